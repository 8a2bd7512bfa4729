"""Evaluator isolation: runs each evaluation in its own thread, so that one that hangs does not block others.

A thread cannot be killed. A hanging one is abandoned and counted until it returns, and one evaluator gets only a few
threads to hang in.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Final

from headgate.pipelines.enums import FailureCategory
from headgate.pipelines.traits.protocol import Answer, failure, of_failure, timed_out

HANGING_MAX: Final = 4
# Extra time for evaluators that enforce their time-out themselves.
GRACE_SECONDS: Final = 1.0


class Isolation:
    """Runs evaluations isolated from each other. Thread-safe."""

    def __init__(self, *, hanging_max: int = HANGING_MAX, grace_seconds: float = GRACE_SECONDS) -> None:
        self._hanging_max = hanging_max
        self._grace_seconds = grace_seconds
        self._hanging: Counter[str] = Counter()
        self._lock = threading.Lock()

    def run(self, evaluator: str, timeout_seconds: float, evaluate: Callable[[], Answer]) -> Answer:
        """Return the answer of `evaluate` within its time; an exception becomes an answer too. Never raises."""
        hanging = self.hanging(evaluator)
        if hanging >= self._hanging_max:
            return failure(
                FailureCategory.TRANSIENT,
                f"{hanging} earlier evaluations of it still hang; it is asked again after one ends",
            )
        call = _Call(evaluate)
        thread = threading.Thread(target=self._run, args=(evaluator, call), name="headgate-evaluator", daemon=True)
        try:
            thread.start()
        except RuntimeError as exc:
            return failure(FailureCategory.TRANSIENT, f"no thread could be started for it: {exc}")
        if call.done.wait(timeout_seconds + self._grace_seconds):
            return call.answer
        with self._lock:
            if call.done.is_set():
                return call.answer
            call.is_left = True
            self._hanging[evaluator] += 1
        return timed_out(timeout_seconds)

    def hanging(self, evaluator: str) -> int:
        """Return the number of abandoned evaluations of this evaluator."""
        with self._lock:
            return self._hanging[evaluator]

    def _run(self, evaluator: str, call: _Call) -> None:
        try:
            call.run()
        finally:
            with self._lock:
                call.done.set()
                if call.is_left:
                    self._hanging[evaluator] -= 1
                    # Drop the entry of a recovered evaluator.
                    self._hanging += Counter()


class _Call:
    """One evaluation, and whether its caller still waits."""

    def __init__(self, ask: Callable[[], Answer]) -> None:
        self.done = threading.Event()
        self.is_left = False
        self.answer = failure(FailureCategory.EVALUATOR_CRASH, "it ended without an answer")
        self._ask = ask

    def run(self) -> None:
        try:
            self.answer = self._ask()
        except (Exception, SystemExit) as exc:  # noqa: BLE001 - evaluators may be anyone's code
            self.answer = of_failure(exc)
