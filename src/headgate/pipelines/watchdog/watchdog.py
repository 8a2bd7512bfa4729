"""Watchdog: runs checks that find what did not happen, each isolated and with a time limit.

A check that fails, hangs or meets a corrupt row does not stop the others, and is reported by name.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Final

import structlog
from msgspec import Struct

from headgate.clock import Clock
from headgate.errors import DeadlineExceededError, HeadgateError
from headgate.pipelines.watchdog.cursors import ScheduleQueue
from headgate.pipelines.watchdog.followups import Followups
from headgate.pipelines.watchdog.heartbeats import Heartbeats, HeartbeatSource
from headgate.pipelines.watchdog.roster import CheckBudget, CheckTally

TICK_SECONDS: Final = 60.0
LIMIT_SECONDS: Final = 60.0
FEED: Final = "changes"
HEARTBEATS: Final = "heartbeats"
REPORTING: Final = "reporting"
# A check is asked to stop after this share of its limit, and abandoned at the limit.
_ASKED_SHARE: Final = 0.8
_SECONDS_MIN: Final = 1.0
_log = structlog.get_logger(__name__)

Run = Callable[[datetime, CheckBudget, CheckTally], None]


class Check(Struct, frozen=True):
    """A named check and its time limit."""

    name: str
    run: Run
    limit_seconds: float = LIMIT_SECONDS


class TickReport(Struct, frozen=True, kw_only=True):
    """The result of a tick: the number of findings by check, and the errors of failed checks."""

    at: datetime
    findings: Mapping[str, int]
    failed: Mapping[str, str]

    @property
    def is_degraded(self) -> bool:
        """Whether a check failed."""
        return bool(self.failed)


class Watchdog:
    """Runs ticks, one at a time. Several watchdogs on one store are safe."""

    def __init__(
        self,
        clock: Clock,
        checks: Sequence[Check],
        heartbeats: Heartbeats,
        queue: ScheduleQueue,
        followups: Followups,
        *,
        tick_seconds: float = TICK_SECONDS,
    ) -> None:
        self._clock = clock
        self._tick_seconds = tick_seconds
        self._checks = (*checks, Check(HEARTBEATS, self._beat))
        self._heartbeats = heartbeats
        self._queue = queue
        self._followups = followups
        # Threads of checks that did not stop within their limit.
        self._hanging: dict[str, threading.Thread] = {}
        # The ticks in a row in which each check failed.
        self._failures: dict[str, int] = {}

    def tick(self, now: datetime | None = None) -> TickReport:
        """Run every check once, and report the failed ones. Errors of checks are not raised."""
        at = self._clock.now() if now is None else now
        total = CheckTally()
        for check in self._checks:
            tally = self._run(check, at)
            total.findings.update(tally.findings)
            total.problems.update(tally.problems)
        failed = {name: "; ".join(problems) for name, problems in total.problems.items()}
        try:
            self._heartbeats.degrade(HeartbeatSource.WATCHDOG, failed)
        except HeadgateError as exc:
            # The store is unavailable: the missing heartbeat alerts the server.
            failed[REPORTING] = f"{type(exc).__name__}: {exc}"
        self._log_changes(failed)
        return TickReport(at=at, findings=dict(total.findings), failed=failed)

    def _log_changes(self, failed: Mapping[str, str]) -> None:
        """Log each check that begins to fail, and each that succeeds again."""
        for name, error in failed.items():
            if name not in self._failures:
                _log.error("watchdog check failed", action="watchdog", check=name, error=error)
        for name, failures in self._failures.items():
            if name not in failed:
                _log.info("watchdog check recovered", action="watchdog", check=name, failures=failures)
        self._failures = {name: self._failures.get(name, 0) + 1 for name in failed}

    def seconds_until_next(self) -> float:
        """Return the seconds until the next due check, at most one tick."""
        now_seconds = self._clock.seconds()
        next_at, due_ms = self._queue.next_at(), self._followups.next_due_ms()
        moments = [] if next_at is None else [next_at.timestamp()]
        moments += [] if due_ms is None else [due_ms / 1000]
        left = min((moment - now_seconds for moment in moments), default=self._tick_seconds)
        return min(self._tick_seconds, max(_SECONDS_MIN, left))

    def _run(self, check: Check, now: datetime) -> CheckTally:
        """Run a check in its own thread, and abandon it at its limit."""
        tally = CheckTally()
        before = self._hanging.get(check.name)
        if before is not None and before.is_alive():
            tally.failed(check.name, "check", DeadlineExceededError("it has not ended since an earlier tick"))
            return tally
        budget = CheckBudget(self._clock, check.limit_seconds * _ASKED_SHARE)
        thread = threading.Thread(
            target=_isolated, args=(check, now, budget, tally), name=f"headgate-watchdog-{check.name}", daemon=True
        )
        thread.start()
        thread.join(check.limit_seconds)
        if not thread.is_alive():
            return tally
        self._hanging[check.name] = thread
        # A new tally: the abandoned thread may still write to the first one.
        late = CheckTally()
        late.failed(check.name, "check", DeadlineExceededError(f"it has not ended after {check.limit_seconds:g} s"))
        return late

    def exchange_heartbeats(self) -> bool:
        """Write the watchdog's heartbeat and check the server's. Returns whether the server's state has changed.

        Ticks do it too; between them it is called every `Heartbeats.interval_seconds`.
        """
        own = self._heartbeats.beat(HeartbeatSource.WATCHDOG)
        return self._heartbeats.watch(own, HeartbeatSource.SERVER) is not None

    def _beat(self, _now: datetime, _budget: CheckBudget, tally: CheckTally) -> None:
        if self.exchange_heartbeats():
            tally.found(HEARTBEATS)


def _isolated(check: Check, now: datetime, budget: CheckBudget, tally: CheckTally) -> None:
    try:
        check.run(now, budget, tally)
    except Exception as exc:  # noqa: BLE001 - the top of a thread: an error must not stop the other checks
        tally.failed(check.name, "check", exc)
