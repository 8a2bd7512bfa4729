"""Late data: records each sensor arrival for a period that is done, which is a reason for a rerun."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from headgate.errors import ConflictError
from headgate.pipelines.definition.model import Json
from headgate.pipelines.enums import JobEvent
from headgate.pipelines.row_codec import row, row_digest, struct_of
from headgate.pipelines.runs.rows import JobLogEntry, RunLog, Slot, job_put
from headgate.store.catalogue.tables import LATE_DATA, PIPELINES
from headgate.store.model.conditions import absent
from headgate.store.model.requests import Put, Query, Range, Sort, Write
from headgate.store.port import Store

RETENTION_SECONDS: Final = 30 * 86_400


class Arrival(enum.StrEnum):
    """What the arrival of a sensor means for its period. The arrival time counts, not the time of processing."""

    # The period has not started: the arrival may start it.
    FIRST = "first"
    # It arrived before the last attempt, which has read it.
    KNOWN = "known"
    # It arrived during a run, which may or may not have read it.
    DURING = "during"
    LATE = "late"
    AFTER_FAILURE = "after-failure"


class LateArrival(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Data that arrived after its period was done."""

    pipeline_id: str
    schedule_id: str
    date: str
    sensor_key: str
    sensor_version: int
    at_ms: int
    # The run that finished without it, and the delay.
    run_id: str = ""
    late_by_ms: int = 0
    data: dict[str, Json] = {}

    @property
    def slot(self) -> Slot:
        """The period."""
        return Slot(self.pipeline_id, self.schedule_id, self.date)


def judge_arrival(log: RunLog | None, at_ms: int) -> Arrival:
    """Return what a sensor that arrived at `at_ms` means for the period."""
    if log is None or (not log.attempts and not log.status.is_terminal):
        return Arrival.FIRST
    if log.begun_at_ms is not None and at_ms <= log.begun_at_ms:
        return Arrival.KNOWN
    if log.status.is_done:
        is_after = log.succeeded_at_ms is None or at_ms > log.succeeded_at_ms
        return Arrival.LATE if is_after else Arrival.DURING
    return Arrival.AFTER_FAILURE if log.status.is_terminal else Arrival.DURING


def arrival_writes(arrival: LateArrival, *, kept_seconds: int = RETENTION_SECONDS) -> list[Write]:
    """Return the writes that record an arrival, the row first, which is refused if it was recorded before."""
    entry = JobLogEntry(
        **arrival.slot._asdict(),
        event=JobEvent.LATE_DATA_ARRIVAL,
        at_ms=arrival.at_ms,
        run_id=arrival.run_id,
        detail={"sensor_key": arrival.sensor_key, "sensor_version": arrival.sensor_version},
    )
    digest = row_digest(arrival.sensor_key, str(arrival.sensor_version))
    key = LATE_DATA.key(
        pipeline_id=arrival.pipeline_id,
        date=arrival.date,
        schedule_id=arrival.schedule_id,
        at_ms=arrival.at_ms,
        digest=digest,
    )
    item = row(key, arrival, ttl=arrival.at_ms // 1000 + kept_seconds)
    return [Put(PIPELINES, item, absent()), job_put(entry)]


class LateData:
    """Stores late arrivals."""

    def __init__(self, store: Store, *, kept_seconds: int = RETENTION_SECONDS) -> None:
        self._store = store
        self._kept_seconds = kept_seconds

    def note(self, arrival: LateArrival, *, also: Sequence[Write] = ()) -> bool:
        """Record an arrival. False: it was recorded before, and nothing is written.

        Raises `ConflictError` if a write of `also` is refused.
        """
        try:
            self._store.transact([*arrival_writes(arrival, kept_seconds=self._kept_seconds), *also])
        except ConflictError as exc:
            if 0 in exc.failures:
                return False
            raise
        return True

    def ls(self, slot: Slot, *, limit: int = 100) -> list[LateArrival]:
        """Return the late arrivals of a period, in order of arrival."""
        query = Query(
            table=PIPELINES,
            partition=f"PIPELINE#{slot.pipeline_id}",
            sort=Sort(Range.BEGINS_WITH, f"LATE#{slot.date}#{slot.schedule_id}#"),
            limit=limit,
        )
        return [arrival_of(item) for item in self._store.query(query).items]


def arrival_of(item: Mapping[str, Any]) -> LateArrival:
    """Decode an arrival from its row."""
    return struct_of(item, LateArrival)
