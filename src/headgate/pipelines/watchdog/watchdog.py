"""The watchdog: sees what does not happen. Every check by itself, within a time of its own, and each finding once.

A check that fails, hangs or meets a bad row stops no other, and is told of by name: nobody takes silence for health.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Final

import structlog
from msgspec import Struct

from headgate.errors import DeadlineExceededError, HeadgateError
from headgate.pipelines.catalog.store import PipelineStore
from headgate.pipelines.context import Parts
from headgate.pipelines.enums import ExpectationKind
from headgate.pipelines.lifecycle.starter import Starter
from headgate.pipelines.watchdog.cursors import Agenda, Cursors
from headgate.pipelines.watchdog.feed import STUCK_SECONDS, Feed
from headgate.pipelines.watchdog.followups import Watches, WatchKind
from headgate.pipelines.watchdog.heartbeats import Heartbeats, Who
from headgate.pipelines.watchdog.liveness_check import STUCK, Lifecycle, PursuitCheck
from headgate.pipelines.watchdog.period_facts import PeriodFacts
from headgate.pipelines.watchdog.roster import Budget, Roster, Tally
from headgate.pipelines.watchdog.run_checks import (
    FAILED_RUNS,
    SENSOR_TRIGGERS,
    AnchoredCheck,
    ArrivalCheck,
    FailureCheck,
    look_at_due,
)
from headgate.pipelines.watchdog.schedule_check import CHECK as SCHEDULES
from headgate.pipelines.watchdog.schedule_check import CHECKS, ScheduleCheck
from headgate.pipelines.watchdog.verdicts import Verdicts

TICK_SECONDS: Final = 300.0
LIMIT_SECONDS: Final = 60.0
FEED: Final = "changes"
HEARTBEATS: Final = "heartbeats"
REPORTING: Final = "reporting"
# A check is asked to stop before it is given up.
_ASKED_SHARE: Final = 0.8
_SECONDS_MIN: Final = 1.0
_log = structlog.get_logger(__name__)

Run = Callable[[datetime, Budget, Tally], None]


class Check(Struct, frozen=True):
    """Something that the watchdog looks for, and how long it may take."""

    name: str
    run: Run
    limit_seconds: float = LIMIT_SECONDS


class TickReport(Struct, frozen=True, kw_only=True):
    """What a tick came to: how often each check found something, and which failed, with why."""

    at: datetime
    findings: Mapping[str, int]
    failed: Mapping[str, str]

    @property
    def is_degraded(self) -> bool:
        """Whether something could not be looked at."""
        return bool(self.failed)


class Watchdog:
    """Makes ticks. One at a time; several watchdogs on one store do no harm."""

    def __init__(
        self, parts: Parts, checks: Sequence[Check], heartbeats: Heartbeats, agenda: Agenda, watches: Watches
    ) -> None:
        self._parts = parts
        self._checks = (*checks, Check(HEARTBEATS, self._beat))
        self._heartbeats = heartbeats
        self._agenda = agenda
        self._watches = watches
        # Checks that did not stop when their time was up.
        self._hanging: dict[str, threading.Thread] = {}

    def tick(self, now: datetime | None = None) -> TickReport:
        """Make every check once, and tell of those that failed. Never raises for what a check met."""
        at = self._parts.now() if now is None else now
        total = Tally()
        for check in self._checks:
            tally = self._made(check, at)
            total.findings.update(tally.findings)
            total.problems.update(tally.problems)
        failed = {name: "; ".join(problems) for name, problems in total.problems.items()}
        for name, why in failed.items():
            _log.error("watchdog check failed", action="watchdog", check=name, error=why)
        try:
            self._heartbeats.degrade(Who.WATCHDOG, failed)
        except HeadgateError as exc:
            # The store is away: whoever waits for the heartbeat hears of that.
            _log.error("watchdog cannot report", action="watchdog", error=str(exc))
            failed[REPORTING] = f"{type(exc).__name__}: {exc}"
        return TickReport(at=at, findings=dict(total.findings), failed=failed)

    def seconds_until_next(self) -> float:
        """Return in how many seconds something is due, or the next tick is."""
        now_seconds = self._parts.clock.seconds()
        next_at, due_ms = self._agenda.next_at(), self._watches.next_due_ms()
        moments = [] if next_at is None else [next_at.timestamp()]
        moments += [] if due_ms is None else [due_ms / 1000]
        left = min((moment - now_seconds for moment in moments), default=TICK_SECONDS)
        return min(TICK_SECONDS, max(_SECONDS_MIN, left))

    def _made(self, check: Check, now: datetime) -> Tally:
        """Make a check in a thread of its own, and leave it behind if it does not end in its time."""
        tally = Tally()
        before = self._hanging.get(check.name)
        if before is not None and before.is_alive():
            tally.failed(check.name, "check", DeadlineExceededError("it has not ended since an earlier tick"))
            return tally
        budget = Budget(self._parts.clock, check.limit_seconds * _ASKED_SHARE)
        thread = threading.Thread(
            target=_isolated, args=(check, now, budget, tally), name=f"headgate-watchdog-{check.name}", daemon=True
        )
        thread.start()
        thread.join(check.limit_seconds)
        if not thread.is_alive():
            return tally
        self._hanging[check.name] = thread
        # Not the tally that the thread may still write to.
        late = Tally()
        late.failed(check.name, "check", DeadlineExceededError(f"it has not ended after {check.limit_seconds:g} s"))
        return late

    def _beat(self, _now: datetime, _budget: Budget, tally: Tally) -> None:
        own = self._heartbeats.beat(Who.WATCHDOG)
        if self._heartbeats.watch(own, Who.SERVER) is not None:
            tally.found(HEARTBEATS)


def build_watchdog(
    parts: Parts,
    pipelines: PipelineStore,
    starter: Starter,
    lifecycle: Lifecycle,
    *,
    stuck_seconds: float = STUCK_SECONDS,
    limit_seconds: float = LIMIT_SECONDS,
) -> Watchdog:
    """Return a watchdog with all its checks."""
    watches, cursors, agenda = Watches(parts.store), Cursors(parts.store), Agenda()
    verdicts = Verdicts(parts.store, parts.clock, parts.tells)
    facts = PeriodFacts(parts, watches)
    roster = Roster(pipelines, cursors, agenda)
    feed = Feed(parts, watches, agenda, roster, stuck_seconds=stuck_seconds)
    pursuits = PursuitCheck(parts, watches, lifecycle, stuck_seconds)
    failures = FailureCheck(parts, watches, starter, lifecycle.is_open)
    arrivals = ArrivalCheck(parts, watches, starter)
    anchored = AnchoredCheck(parts, watches, verdicts, facts)

    def follow(now: datetime, budget: Budget, tally: Tally) -> None:
        feed.follow(now, budget)
        roster.report(tally)

    relative, post_run = CHECKS[ExpectationKind.RELATIVE_SLA], CHECKS[ExpectationKind.POST_RUN_SENSOR]
    runs: dict[str, Run] = {
        FEED: follow,
        SCHEDULES: ScheduleCheck(parts, verdicts, facts, cursors, agenda),
        STUCK: look_at_due(watches, WatchKind.PURSUIT, STUCK, pursuits.look),
        FAILED_RUNS: look_at_due(watches, WatchKind.FAILURE, FAILED_RUNS, failures.look),
        SENSOR_TRIGGERS: look_at_due(watches, WatchKind.ARRIVAL, SENSOR_TRIGGERS, arrivals.look),
        relative: look_at_due(watches, WatchKind.RELATIVE_SLA, relative, anchored.look),
        post_run: look_at_due(watches, WatchKind.POST_RUN, post_run, anchored.look),
    }
    checks = [Check(name, run, limit_seconds) for name, run in runs.items()]
    heartbeats = Heartbeats(parts.store, parts.clock, parts.tells)
    return Watchdog(parts, checks, heartbeats, agenda, watches)


def _isolated(check: Check, now: datetime, budget: Budget, tally: Tally) -> None:
    try:
        check.run(now, budget, tally)
    except Exception as exc:  # noqa: BLE001 - the top of a thread: whatever it is, the other checks are made
        tally.failed(check.name, "check", exc)
