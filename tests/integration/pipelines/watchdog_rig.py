"""Pipelines in virtual time with a watchdog beside them, which can be away, come back, and be given what is gone."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, Self

from headgate.bootstrap.pipelines import is_open
from headgate.bootstrap.watchdog import build_sla_monitor, build_watchdog
from headgate.pipelines.definition.model import Pipeline, Schedule
from headgate.pipelines.enums import Cause, ExpectationKind, ExpectationVerdict, RunStatus
from headgate.pipelines.events.names import EventName
from headgate.pipelines.lifecycle.messages import Answer
from headgate.pipelines.runs.locks import evaluation_key
from headgate.pipelines.runs.rows import Run, Slot
from headgate.pipelines.runs.store import RunStart
from headgate.pipelines.watchdog.followups import FollowupKind, Followups
from headgate.pipelines.watchdog.liveness_check import Lifecycle
from headgate.pipelines.watchdog.verdicts import StoredVerdict, Verdicts
from headgate.pipelines.watchdog.watchdog import Check, TickReport, Watchdog
from tests.pipeline_rig import DATE, Rig, pipeline

CRON: Final = Schedule(name="morning", cron="0 9 * * *")
SLOT: Final = Slot("gold", "morning", DATE)


class WatchRig(Rig):
    """One server and one watchdog. The watchdog looks only when asked to."""

    def __init__(self, start: str = "2026-03-03T08:00:00+00:00") -> None:
        super().__init__(start, functions={"sla_monitor_arn": self._monitor})

    def __enter__(self) -> Self:
        super().__enter__()
        self.verdicts = Verdicts(self.store, self.env.service.clock, self.event_writer)
        self.monitor = build_sla_monitor(self.pipelines, self.verdicts)
        self.watches = Followups(self.store)
        self.restart()
        return self

    def _monitor(self, event: dict[str, Any]) -> Answer:
        self.sla_calls.append(event)
        return self.monitor(event)

    def restart(self, **more: Any) -> None:
        """Have another watchdog in place of the one there was, which takes its memory with it."""
        self.watchdog: Watchdog = build_watchdog(self.pipelines, self.lifecycle, **more)

    @property
    def lifecycle(self) -> Lifecycle:
        return Lifecycle(
            is_open=lambda name: is_open(self.env.service, name),
            orchestrate=self.pipelines.orchestrator,
            end_job=self.pipelines.jobs.end_job,
        )

    def tick(self) -> TickReport:
        report = self.watchdog.tick()
        assert not report.failed, report.failed
        self.pump()
        return report

    def watch(self, *, until: str) -> None:
        """Let time pass, with a tick every five minutes."""
        end = datetime.fromisoformat(until).timestamp()
        self.tick()
        while self.env.clock.seconds() < end:
            self.advance(min(300.0, end - self.env.clock.seconds()))
            self.tick()

    def set_clock(self, text: str) -> None:
        """Let time pass with no process there: no server, no watchdog, only the clock."""
        self.env.clock.advance(datetime.fromisoformat(text).timestamp() - self.env.clock.seconds())

    # Looking.

    def verdict(self, slot: Slot = SLOT, kind: ExpectationKind = ExpectationKind.SCHEDULE) -> str:
        found = self.verdicts.find(slot, kind)
        return "none" if found is None else found.verdict.value

    def missed(self) -> list[tuple[str, str, str]]:
        """Return what was missed, by pipeline, date and kind, in the order of its time."""
        found = self.all_verdicts(ExpectationVerdict.MISSED)
        return [(each.pipeline_id, each.date, each.kind.value) for each in found]

    def all_verdicts(self, verdict: ExpectationVerdict) -> list[StoredVerdict]:
        found: list[StoredVerdict] = []
        cursor: str | None = None
        while True:
            page = self.verdicts.ls_by_verdict(verdict, cursor=cursor)
            found += page.verdicts
            cursor = page.cursor
            if cursor is None:
                return found[::-1]

    def count(self, name: EventName, pipeline_id: str = "gold") -> int:
        return len(self.events(pipeline_id, name))

    def watched(self, slot: Slot = SLOT) -> set[FollowupKind]:
        return {kind for kind in FollowupKind if self.watches.find(slot, kind) is not None}

    # Rows, as a server that is gone has left them.

    def begin_alone(self, slot: Slot = SLOT, execution: str = "someone-else", **more: Any) -> Run:
        """Begin a run as an execution does that this engine knows nothing of."""
        lock = self.stores.locks.acquire(evaluation_key(slot), execution, 4 * 3_600.0)
        assert lock is not None
        pipeline_version = self.known.newest(slot.pipeline_id)[1]
        start = RunStart(
            slot=slot,
            cause=Cause.CRON,
            execution=execution,
            lock_token=lock.token,
            definition_version=pipeline_version,
            **more,
        )
        return self.stores.runs.create(start)

    def move(self, run: Run, *statuses: RunStatus, **changes: Any) -> Run:
        for status in statuses:
            run = self.stores.runs.move(run, status, **(changes if status is statuses[-1] else {}))
        return run


def gold(*schedules: Schedule, **fields: Any) -> Pipeline:
    """Return a pipeline that is due every day at nine."""
    return pipeline("gold", schedules=schedules or (CRON,), **fields)


def failing(name: str, error: Exception) -> Check:
    def run(*_: object) -> None:
        raise error

    return Check(name, run)


def dates(found: Sequence[tuple[str, str, str]]) -> list[str]:
    return [date for _, date, _ in found]
