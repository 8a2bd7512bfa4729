"""Error alerts: errors of one kind that exceed their rate per minute are logged, counted and published on the bus.

Recording an error only counts it. Events wait until `publish` is called, because the failing store may be the one that
would store them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

import msgspec
import structlog
from msgspec import Struct

from headgate.clock import Clock
from headgate.durable.bus.events import Event
from headgate.health.model.timestamps import instant
from headgate.ids import IdMaker
from headgate.store.resilience.circuit_breaker import BreakerChange
from headgate.store.resilience.error_policy import ErrorCategory, ErrorRateExceeded, ErrorRates

EVENT_TYPE: Final = "headgate.alert.error_rate"
EVENT_SOURCE: Final = "/headgate/health"
# An alert is raised once until its error rate drops again, so only a long outage fills this.
WAITING_MAX: Final = 100
_log = structlog.get_logger("statestore.alerts")


class ErrorRateAlert(Struct, frozen=True, kw_only=True):
    """The data of `headgate.alert.error_rate`: one kind of store error exceeded its rate per minute."""

    event_type: str = "ERROR_RATE_EXCEEDED"
    error_type: str
    category: ErrorCategory
    alert_threshold_per_minute: int
    timestamp: str


class StoreCounters(Protocol):
    """Counts store calls and alerts."""

    def answered(self, tables: str, operation: str, seconds: float) -> None: ...

    def failed(self, tables: str, operation: str, error: BaseException) -> None: ...

    def changed(self, change: BreakerChange) -> None: ...

    def alerted(self, code: str, category: str) -> None:
        """The rate of one kind of error exceeded its threshold."""


class ErrorAlerts:
    """Counts errors and raises alerts. Safe to use from many threads.

    It is the `AttemptObserver` of a store and the `StoreObserver` of the guarded store around it.
    """

    def __init__(self, clock: Clock, counters: StoreCounters | None = None) -> None:
        self._clock = clock
        self._ids = IdMaker(clock)
        self._counters = counters
        self._rates = ErrorRates(clock, self._alarm)
        self._waiting: deque[Event] = deque(maxlen=WAITING_MAX)
        self.record = self._rates.record
        self.per_minute = self._rates.per_minute
        if counters is not None:
            # Bound once: the store reports every call here.
            self.on_answered = counters.answered  # type: ignore[method-assign]

    def on_attempt_failed(self, error: BaseException) -> None:
        self._rates.record(error)

    def on_answered(self, tables: str, operation: str, seconds: float) -> None:
        """Successful calls are not counted without counters."""

    def on_failed(self, tables: str, operation: str, error: BaseException) -> None:
        self._rates.record(error)
        if self._counters is not None:
            self._counters.failed(tables, operation, error)

    def on_conflicted(self, error: BaseException) -> None:
        self._rates.record(error)

    def on_breaker_changed(self, change: BreakerChange) -> None:
        if self._counters is not None:
            self._counters.changed(change)

    def publish(self, emit: Callable[[Event], object]) -> int:
        """Publish the waiting alerts with `emit`, and return their count.

        Raises what `emit` raises; the remaining alerts wait for the next call.
        """
        count = 0
        while self._waiting:
            emit(self._waiting[0])
            self._waiting.popleft()
            count += 1
        return count

    def _alarm(self, found: ErrorRateExceeded) -> None:
        _log.error(
            "error_rate_exceeded",
            error_type=found.code,
            category=found.category.value,
            alerts_above=found.alerts_above,
        )
        if self._counters is not None:
            self._counters.alerted(found.code, found.category.value)
        event = Event(
            id=self._ids.make("evt"),
            type=EVENT_TYPE,
            source=EVENT_SOURCE,
            subject=found.code,
            data=msgspec.to_builtins(
                ErrorRateAlert(
                    error_type=found.code,
                    category=found.category,
                    alert_threshold_per_minute=found.alerts_above,
                    timestamp=instant(int(self._clock.seconds() * 1000)),
                )
            ),
        )
        self._waiting.append(event)
