"""Evaluator breakers: a circuit breaker for each evaluator.

Only failures of the evaluator count: a trait that is not met, has expired or fails permanently shows that the evaluator
answers.
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
from headgate.store.resilience.circuit_breaker import BreakerChange, BreakerLimits, BreakerState, CircuitBreaker

# Five failures within a minute, regardless of successes in between; then half a minute open, and one probe.
LIMITS: Final = BreakerLimits(failures_min=5, failure_rate=0.0, window_seconds=60.0, open_seconds=30.0, probes=1)
# The least recently used are dropped first.
BREAKERS_MAX: Final = 10_000


class EvaluatorBreakers:
    """A breaker for each evaluator. Thread-safe; each process has its own."""

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
        self._breakers: OrderedDict[str, CircuitBreaker] = OrderedDict()
        self._lock = threading.Lock()

    def guarded(self, evaluator: str, evaluate: Callable[[], Answer]) -> Answer:
        """Return the answer of `evaluate`, or that the breaker is open. `evaluate` must not raise."""
        breaker = self._breaker(evaluator)
        try:
            ticket = breaker.admit()
        except BreakerOpenError as exc:
            return left_alone(exc.retry_after_seconds)
        answer = evaluate()
        if answer.is_setback:
            breaker.failed(ticket)
        else:
            breaker.succeeded(ticket)
        return answer

    def state(self, evaluator: str) -> BreakerState:
        """Return the breaker state of an evaluator."""
        with self._lock:
            breaker = self._breakers.get(evaluator)
        return BreakerState.CLOSED if breaker is None else breaker.state

    def _breaker(self, evaluator: str) -> CircuitBreaker:
        with self._lock:
            breaker = self._breakers.get(evaluator)
            if breaker is None:
                breaker = self._breakers[evaluator] = CircuitBreaker(
                    evaluator, self._clock, self._limits, self._changed
                )
                if len(self._breakers) > BREAKERS_MAX:
                    self._breakers.popitem(last=False)
            self._breakers.move_to_end(evaluator)
            return breaker


def left_alone(seconds: float) -> Answer:
    """Return the answer while the breaker is open: not ready, and retryable."""
    return Answer(
        status=TraitStatus.FAIL,
        category=FailureCategory.TRANSIENT,
        reason=f"the evaluator kept failing and is left alone for another {max(1, round(seconds))} s",
    )
