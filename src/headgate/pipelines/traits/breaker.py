"""Breakers of evaluators: one that keeps failing is left alone for a while, then asked once.

Only what speaks against the evaluator counts: that a trait does not hold, is out of date, or will fail the same way
every time says that the evaluator answers.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from headgate.clock import Clock
from headgate.errors import BreakerOpenError
from headgate.pipelines.enums import FailureCategory, TraitStatus
from headgate.pipelines.traits.protocol import Answer
from headgate.store.resilience.circuit_breaker import Breaker, BreakerChange, BreakerLimits, BreakerState

# Five failures within a minute, however many successes lie between them; half a minute's rest; then one try.
LIMITS: Final = BreakerLimits(failures_min=5, failure_rate=0.0, window_seconds=60.0, open_seconds=30.0, probes=1)
# Those that were used longest ago are forgotten first.
BREAKERS_MAX: Final = 10_000


class EvaluatorBreakers:
    """A breaker for each evaluator. Safe to use from many threads; every process has its own."""

    def __init__(
        self,
        clock: Clock,
        *,
        limits: BreakerLimits = LIMITS,
        changed: Callable[[BreakerChange], None] = lambda _change: None,
    ) -> None:
        self._clock = clock
        self._limits = limits
        self._changed = changed
        self._breakers: OrderedDict[str, Breaker] = OrderedDict()
        self._lock = threading.Lock()

    def guarded(self, evaluator: str, ask: Callable[[], Answer]) -> Answer:
        """Return what `ask` answers, or that the evaluator is left alone for now. `ask` must not raise."""
        breaker = self._breaker(evaluator)
        try:
            ticket = breaker.admit()
        except BreakerOpenError as exc:
            return left_alone(exc.retry_after_seconds)
        answer = ask()
        if answer.is_setback:
            breaker.failed(ticket)
        else:
            breaker.succeeded(ticket)
        return answer

    def state(self, evaluator: str) -> BreakerState:
        """Return whether an evaluator is asked at present."""
        with self._lock:
            found = self._breakers.get(evaluator)
        return BreakerState.CLOSED if found is None else found.state

    def _breaker(self, evaluator: str) -> Breaker:
        with self._lock:
            found = self._breakers.get(evaluator)
            if found is None:
                found = self._breakers[evaluator] = Breaker(evaluator, self._clock, self._limits, self._changed)
                if len(self._breakers) > BREAKERS_MAX:
                    self._breakers.popitem(last=False)
            self._breakers.move_to_end(evaluator)
            return found


def left_alone(seconds: float) -> Answer:
    """Return the answer of an evaluator that is not asked: not ready, and worth another try."""
    return Answer(
        status=TraitStatus.FAIL,
        category=FailureCategory.TRANSIENT,
        reason=f"the evaluator kept failing and is left alone for another {max(1, round(seconds))} s",
    )
