"""Run rows: the run, the run log of its period and job log entries, and their encoding.

A run has a main row under its id and a copy in the list of its pipeline. Both are written in one transaction; only the
main row carries the version condition.
"""

from __future__ import annotations

import enum
import time
import zlib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from msgspec import Struct, json

from headgate.pipelines.definition.model import Json
from headgate.pipelines.enums import Cause, FailureCategory, JobEvent, RunStatus
from headgate.pipelines.row_codec import row, row_digest, struct_of
from headgate.store.catalogue.tables import JOB, PIPELINES, RUN_COPY, RUN_LOG, RUN_STATE
from headgate.store.model.conditions import Condition, absent, version_is
from headgate.store.model.requests import Put
from headgate.store.model.schema import Key
from headgate.store.model.values import Item

# How many attempts a run log lists. All of them are counted.
HISTORY_MAX: Final = 20
JOB_LOG_SECONDS: Final = 90 * 86_400
# The index partitions over which the runs of a day, and the open runs, are spread.
RUN_SHARDS: Final = 4


class Slot(NamedTuple):
    """One period of one schedule of a pipeline. `date` is the period's text."""

    pipeline_id: str
    schedule_id: str
    date: str

    def __str__(self) -> str:
        return f"{self.pipeline_id}/{self.schedule_id}/{self.date}"


class Transition(Struct, frozen=True):
    """A status and when the run took it."""

    status: RunStatus
    at_ms: int


class Run(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One attempt at a period. Every change increments `version`."""

    run_id: str
    pipeline_id: str
    schedule_id: str
    date: str
    status: RunStatus
    version: int
    # Number of the attempt, counted from 1 over all causes.
    attempt: int
    cause: Cause
    created_at_ms: int
    updated_at_ms: int
    # Author and note of the start.
    by: str = ""
    note: str = ""
    # How it ended: a category, the last job event, and a sentence.
    category: FailureCategory | None = None
    event: JobEvent | None = None
    reason: str = ""
    # The version of the definition that the run uses, even if the pipeline changes.
    definition_version: int = 0
    # The execution of the lifecycle, and the token of its lock.
    execution: str = ""
    lock_token: str = ""
    # The id of the job where it runs, and the data that its trigger needs to poll it.
    job_id: str = ""
    job: dict[str, Json] = {}
    evaluation_id: str = ""
    sensor_arrival_at_ms: int | None = None
    triggered_at_ms: int | None = None
    started_at_ms: int | None = None
    ended_at_ms: int | None = None
    # The last heartbeat of a job that calls back.
    heartbeat_at_ms: int | None = None
    # When the job ended, if that is known: a server that was down learns of it later.
    job_ended_at_ms: int | None = None
    monitor_until_ms: int | None = None
    rerun_id: str = ""
    backfill_id: str = ""
    is_dry_run: bool = False
    # The W3C trace context of the request that started the run.
    traceparent: str = ""
    # The failure that a repair of the job has made good. Empty: there was none.
    recovered_from: str = ""
    transitions: tuple[Transition, ...] = ()

    @property
    def slot(self) -> Slot:
        """The period."""
        return Slot(self.pipeline_id, self.schedule_id, self.date)

    @property
    def duration_ms(self) -> int | None:
        """Duration of the job, once it has ended."""
        began_at_ms = self.started_at_ms or self.triggered_at_ms
        if began_at_ms is None or self.ended_at_ms is None:
            return None
        ended_at_ms = self.ended_at_ms if self.job_ended_at_ms is None else self.job_ended_at_ms
        return max(0, ended_at_ms - began_at_ms)


class Attempt(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One attempt in a run log."""

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
    # The failure that a repair of the job has made good.
    recovered_from: str = ""


class Order(enum.StrEnum):
    """The kind of an operator's order for a period."""

    HOLD = "hold"
    SKIP = "skip"
    MARK_SUCCESS = "mark-success"
    FORCE = "force"


class Directive(Struct, frozen=True):
    """An order with author and reason."""

    order: Order
    by: str
    reason: str
    at_ms: int


class RunLog(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of a period over all its attempts. It never expires: a finished period must not start by itself."""

    pipeline_id: str
    schedule_id: str
    date: str
    status: RunStatus
    version: int
    created_at_ms: int
    updated_at_ms: int
    # Number of started attempts, and the run of the last.
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
    # The failure of its run that a repair of the job has made good, until another run starts.
    recovered_from: str = ""
    # The last success, which stays known during a rerun and after its failure.
    succeeded_at_ms: int | None = None
    succeeded_run_id: str = ""
    # Failures since the period was last requested, by retry budget.
    failures: int = 0
    permanent_failures: int = 0
    # Accepted reruns by budget; the last of them, and whether its run has yet to start.
    reruns: dict[str, int] = {}
    rerun_id: str = ""
    is_rerun_due: bool = False
    hold: Directive | None = None
    order: Directive | None = None
    history: tuple[Attempt, ...] = ()

    @property
    def slot(self) -> Slot:
        """The period."""
        return Slot(self.pipeline_id, self.schedule_id, self.date)

    @property
    def is_live(self) -> bool:
        """Whether a run is active. Monitoring after a success does not count."""
        return bool(self.run_id) and not self.status.is_terminal and not self.status.is_done


class JobLogEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event of the job of a period."""

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
        """The period."""
        return Slot(self.pipeline_id, self.schedule_id, self.date)


# Keys.


def run_key(run_id: str) -> Key:
    """Return the key of a run's main row."""
    return RUN_STATE.key(run_id=run_id)


def run_log_key(slot: Slot) -> Key:
    """Return the key of a run log's row."""
    return RUN_LOG.key(pipeline_id=slot.pipeline_id, date=slot.date, schedule_id=slot.schedule_id)


# Codecs.


def run_writes(run: Run, *, replaces: int | None = None) -> list[Put]:
    """Return the writes of a run, main row first: a new one, or one that replaces a version.

    The main row is indexed by the day of the run, the copy as long as the run is open.
    """
    copy = RUN_COPY.key(pipeline_id=run.pipeline_id, run_id=run.run_id)
    sort, shard = run_sort(run), run_shard(run.run_id)
    by_day = {"GSI1PK": f"RUNS#{run_day(run)}#{shard}", "GSI1SK": sort}
    as_open = {} if run.status.is_terminal else {"GSI1PK": f"OPEN-RUNS#{shard}", "GSI1SK": sort}
    return [
        # The copy has the same content: one of the two is enough in the change stream.
        Put(PIPELINES, row(run_key(run.run_id), run, **by_day), _unchanged(replaces), quiet=True),
        Put(PIPELINES, row(copy, run, **as_open)),
    ]


def run_sort(run: Run) -> str:
    """Return the sort key of a run in the index: its time of creation, then its id."""
    return f"{run.created_at_ms:013d}#{run.run_id}"


def run_day(run: Run) -> str:
    """Return the day of creation (UTC) under which a run is indexed."""
    return time.strftime("%Y%m%d", time.gmtime(run.created_at_ms / 1000))


def run_shard(run_id: str) -> int:
    """Return the index shard of a run."""
    return zlib.crc32(run_id.encode()) % RUN_SHARDS


def run_of(item: Mapping[str, Any]) -> Run:
    """Decode a run from its row or its copy."""
    return struct_of(item, Run)


def run_log_put(log: RunLog, *, replaces: int | None = None) -> Put:
    """Return the write of a run log: a new one, or one that replaces a version."""
    return Put(PIPELINES, row(run_log_key(log.slot), log), _unchanged(replaces))


def run_log_of(item: Mapping[str, Any]) -> RunLog:
    """Decode a run log from its row."""
    return struct_of(item, RunLog)


def job_put(entry: JobLogEntry, *, kept_seconds: int = JOB_LOG_SECONDS) -> Put:
    """Return the write of an entry. The same event of the same run at the same time is one entry."""
    return Put(PIPELINES, job_item(entry, kept_seconds=kept_seconds))


def job_item(entry: JobLogEntry, *, kept_seconds: int = JOB_LOG_SECONDS) -> Item:
    """Encode an entry as its row."""
    detail = json.encode(entry.detail, order="sorted").decode()
    digest = row_digest(entry.run_id, str(entry.attempt), entry.event, detail)
    key = JOB.key(**entry.slot._asdict(), at_ms=entry.at_ms, digest=digest)
    return row(key, entry, ttl=entry.at_ms // 1000 + kept_seconds)


def job_of(item: Mapping[str, Any]) -> JobLogEntry:
    """Decode an entry from its row."""
    return struct_of(item, JobLogEntry)


def _unchanged(replaces: int | None) -> Condition:
    return absent() if replaces is None else version_is(replaces)
