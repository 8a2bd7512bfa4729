"""Rows of runs: the run, the log of its period and the entries of its job, and how each is stored.

A run is kept twice, as the truth under its own id and as a copy in the list of its pipeline. Both are always written
in one transaction; only the truth is compared with.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from msgspec import Struct, json

from headgate.pipelines.definition.model import Json
from headgate.pipelines.enums import Cause, FailureCategory, JobEvent, RunStatus
from headgate.pipelines.row_codec import moment_digits, row, struct_of
from headgate.store.catalogue.tables import JOB, PIPELINES, RUN_COPY, RUN_LOG, RUN_STATE
from headgate.store.model.conditions import Condition, absent, version_is
from headgate.store.model.requests import Put
from headgate.store.model.schema import Key
from headgate.store.model.values import Item

# How many attempts the log of a period tells of one by one. All of them are counted.
HISTORY_MAX: Final = 20
JOB_LOG_SECONDS: Final = 90 * 86_400


class Slot(NamedTuple):
    """What a run is for: one period of one schedule of a pipeline. `date` is the period's own text."""

    pipeline_id: str
    schedule_id: str
    date: str

    def __str__(self) -> str:
        return f"{self.pipeline_id}/{self.schedule_id}/{self.date}"


class Transition(Struct, frozen=True):
    """When a run became what."""

    status: RunStatus
    at_ms: int


class Run(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One attempt at a period. Every change of it moves `version`."""

    run_id: str
    pipeline_id: str
    schedule_id: str
    date: str
    status: RunStatus
    version: int
    # Which attempt at its period it is, counted from 1 over everything that ever began it.
    attempt: int
    cause: Cause
    created_at_ms: int
    updated_at_ms: int
    # Who or what began it, and what they had to say.
    by: str = ""
    note: str = ""
    # How it ended: a category, the last thing the job did, and a sentence.
    category: FailureCategory | None = None
    event: JobEvent | None = None
    reason: str = ""
    # The version of the definition that it goes by, whatever the pipeline becomes.
    definition_version: int = 0
    # The execution of the lifecycle, and the hold on the lock under which it works.
    execution: str = ""
    lock_token: str = ""
    # What the job is called where it runs, and what its trigger needs to ask after it.
    job_id: str = ""
    job: dict[str, Json] = {}
    evaluation_id: str = ""
    sensor_arrival_at_ms: int | None = None
    triggered_at_ms: int | None = None
    started_at_ms: int | None = None
    ended_at_ms: int | None = None
    monitor_until_ms: int | None = None
    rerun_id: str = ""
    backfill_id: str = ""
    is_dry_run: bool = False
    transitions: tuple[Transition, ...] = ()

    @property
    def slot(self) -> Slot:
        """The period it is for."""
        return Slot(self.pipeline_id, self.schedule_id, self.date)

    @property
    def duration_ms(self) -> int | None:
        """How long the job took, once it has ended."""
        began_at_ms = self.started_at_ms or self.triggered_at_ms
        if began_at_ms is None or self.ended_at_ms is None:
            return None
        return self.ended_at_ms - began_at_ms


class Attempt(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the log of a period says of one attempt."""

    number: int
    run_id: str
    status: RunStatus
    cause: Cause
    begun_at_ms: int
    by: str = ""
    execution: str = ""
    category: FailureCategory | None = None
    event: JobEvent | None = None
    reason: str = ""
    ended_at_ms: int | None = None


class Order(enum.StrEnum):
    """What a person says about one period."""

    HOLD = "hold"
    SKIP = "skip"
    MARK_SUCCESS = "mark-success"
    FORCE = "force"


class Directive(Struct, frozen=True):
    """An order that someone gave for a reason."""

    order: Order
    by: str
    reason: str
    at_ms: int


class RunLog(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a period stands, over all its attempts. It never expires: what is over must not begin again by itself."""

    pipeline_id: str
    schedule_id: str
    date: str
    status: RunStatus
    version: int
    created_at_ms: int
    updated_at_ms: int
    # How many attempts have begun, and the run of the last.
    attempts: int = 0
    run_id: str = ""
    cause: Cause | None = None
    by: str = ""
    execution: str = ""
    category: FailureCategory | None = None
    event: JobEvent | None = None
    reason: str = ""
    begun_at_ms: int | None = None
    ended_at_ms: int | None = None
    # The last success, which stays known while a rerun is under way or has failed.
    succeeded_at_ms: int | None = None
    succeeded_run_id: str = ""
    # Failures since someone last asked for the period, of the kinds that have budgets of their own.
    failures: int = 0
    permanent_failures: int = 0
    # Reruns that were accepted, by budget; the last of them, and whether its run has yet to begin.
    reruns: dict[str, int] = {}
    rerun_id: str = ""
    is_rerun_due: bool = False
    hold: Directive | None = None
    order: Directive | None = None
    history: tuple[Attempt, ...] = ()

    @property
    def slot(self) -> Slot:
        """The period it is about."""
        return Slot(self.pipeline_id, self.schedule_id, self.date)

    @property
    def is_live(self) -> bool:
        """Whether a run is on its way to a result. One that is merely watched afterwards is not."""
        return bool(self.run_id) and not self.status.is_terminal and not self.status.is_done


class JobLogEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that happened to the job of a period."""

    pipeline_id: str
    schedule_id: str
    date: str
    event: JobEvent
    at_ms: int
    run_id: str = ""
    attempt: int = 0
    job_id: str = ""
    category: FailureCategory | None = None
    error: str = ""
    duration_ms: int | None = None
    by: str = ""
    detail: dict[str, Json] = {}

    @property
    def slot(self) -> Slot:
        """The period it belongs to."""
        return Slot(self.pipeline_id, self.schedule_id, self.date)


# Keys.


def run_key(run_id: str) -> Key:
    """Return where the truth about a run is kept."""
    return RUN_STATE.key(run_id=run_id)


def run_log_key(slot: Slot) -> Key:
    """Return where the log of a period is kept."""
    return RUN_LOG.key(pipeline_id=slot.pipeline_id, date=slot.date, schedule_id=slot.schedule_id)


# Codecs.


def run_writes(run: Run, *, replaces: int | None = None) -> list[Put]:
    """Return the writes of a run, truth first: a new one, or one that replaces the version it was read at."""
    copy = RUN_COPY.key(pipeline_id=run.pipeline_id, run_id=run.run_id)
    return [
        Put(PIPELINES, row(run_key(run.run_id), run), _unchanged(replaces)),
        Put(PIPELINES, row(copy, run)),
    ]


def run_of(item: Mapping[str, Any]) -> Run:
    """Return the run that a row, or its copy, stands for."""
    return struct_of(item, Run)


def run_log_put(log: RunLog, *, replaces: int | None = None) -> Put:
    """Return the write of a period's log: a new one, or one that replaces the version it was read at."""
    return Put(PIPELINES, row(run_log_key(log.slot), log), _unchanged(replaces))


def run_log_of(item: Mapping[str, Any]) -> RunLog:
    """Return the log that a row stands for."""
    return struct_of(item, RunLog)


def job_put(entry: JobLogEntry, *, kept_seconds: int = JOB_LOG_SECONDS) -> Put:
    """Return the write of an entry. The same thing of the same run at the same moment is one entry."""
    return Put(PIPELINES, job_item(entry, kept_seconds=kept_seconds))


def job_item(entry: JobLogEntry, *, kept_seconds: int = JOB_LOG_SECONDS) -> Item:
    """Return an entry as it is stored."""
    detail = json.encode(entry.detail, order="sorted").decode()
    moment = moment_digits(entry.at_ms, entry.run_id, str(entry.attempt), entry.event, detail)
    key = JOB.key(pipeline_id=entry.pipeline_id, schedule_id=entry.schedule_id, date=entry.date, at_ms=moment)
    return row(key, entry, ttl=entry.at_ms // 1000 + kept_seconds)


def job_of(item: Mapping[str, Any]) -> JobLogEntry:
    """Return the entry that a row stands for."""
    return struct_of(item, JobLogEntry)


def _unchanged(replaces: int | None) -> Condition:
    return absent() if replaces is None else version_is(replaces)
