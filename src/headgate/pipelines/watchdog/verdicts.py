"""Verdicts: stores the verdict on each expectation once, with the events that publish it.

The row of a verdict is put only if there is none, in one transaction with its events: several watchdogs may judge the
same expectation, and it is stored and published once.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from msgspec import Struct

from headgate.clock import Clock
from headgate.durable.model.records import instant
from headgate.errors import ConflictError
from headgate.pipelines.enums import ExpectationKind, ExpectationVerdict
from headgate.pipelines.event_writer import EventWriter
from headgate.pipelines.events.names import EventName
from headgate.pipelines.row_codec import row, struct_of
from headgate.pipelines.runs.rows import Slot
from headgate.pipelines.watchdog.expectations import Expectation, ExpectationJudgement
from headgate.store.catalogue.tables import EXPECTATION, PIPELINES
from headgate.store.model.conditions import absent
from headgate.store.model.requests import Put, Query, Range, Sort, Write
from headgate.store.model.schema import Key
from headgate.store.port import Store

# Longer than any report looks back; the cursors never return to older expectations.
RETENTION_DAYS: Final = 400
NOT_STARTED: Final = "not started"
_PREFIX: Final = "EXPECT#"
_WARNED: Final = "warned"

# The event of a verdict, in addition to the one that every verdict has.
EVENTS: Final[Mapping[tuple[ExpectationKind, ExpectationVerdict], EventName]] = {
    (ExpectationKind.SCHEDULE, ExpectationVerdict.MISSED): EventName.SCHEDULE_MISSED,
    (ExpectationKind.IRREGULAR_DATE, ExpectationVerdict.MISSED): EventName.IRREGULAR_SCHEDULE_MISSED,
    (ExpectationKind.EVALUATION_SLA, ExpectationVerdict.MISSED): EventName.EVALUATION_SLA_BREACH,
    (ExpectationKind.COMPLETION_SLA, ExpectationVerdict.MISSED): EventName.SLA_BREACH,
    (ExpectationKind.COMPLETION_SLA, ExpectationVerdict.MET): EventName.SLA_MET,
    (ExpectationKind.RELATIVE_SLA, ExpectationVerdict.MISSED): EventName.RELATIVE_SLA_BREACH,
    (ExpectationKind.RELATIVE_SLA, ExpectationVerdict.MET): EventName.SLA_MET,
    (ExpectationKind.TRIGGER_DEADLINE, ExpectationVerdict.MISSED): EventName.SENSOR_DEADLINE_EXPIRED,
    (ExpectationKind.POST_RUN_SENSOR, ExpectationVerdict.MISSED): EventName.POST_RUN_SENSOR_MISSING,
}
WARNINGS: Final[Mapping[ExpectationKind, EventName]] = {
    ExpectationKind.EVALUATION_SLA: EventName.EVALUATION_SLA_WARNING,
    ExpectationKind.COMPLETION_SLA: EventName.SLA_WARNING,
    ExpectationKind.RELATIVE_SLA: EventName.RELATIVE_SLA_WARNING,
}


class StoredVerdict(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The verdict on an expectation."""

    pipeline_id: str
    schedule_id: str
    date: str
    kind: ExpectationKind
    verdict: ExpectationVerdict
    due_at: str
    judged_at_ms: int
    # Seconds before the due time at which it happened, negative if after; None: it did not happen.
    margin_seconds: float | None = None
    warned: bool = False
    reason: str = ""

    @property
    def slot(self) -> Slot:
        """The period of the expectation."""
        return Slot(self.pipeline_id, self.schedule_id, self.date)


class VerdictPage(Struct, frozen=True):
    """A page of verdicts. It may be short or empty although there are more: the cursor decides."""

    verdicts: list[StoredVerdict]
    cursor: str | None = None


class Verdicts:
    """Stores and reads verdicts. Thread-safe."""

    def __init__(
        self, store: Store, clock: Clock, events: EventWriter, *, retention_days: int = RETENTION_DAYS
    ) -> None:
        self._retention_seconds = retention_days * 86_400
        self._store = store
        self._clock = clock
        self._events = events

    # Judging.

    def judge_once(
        self, pipeline_id: str, expectation: Expectation, judgement: ExpectationJudgement, *, status: str = NOT_STARTED
    ) -> bool:
        """Store and publish the verdict on an expectation. False: it has one already, which stays."""
        try:
            self._store.transact(self.verdict_writes(pipeline_id, expectation, judgement, status=status))
        except ConflictError as exc:
            if 0 in exc.failures:
                return False
            raise
        return True

    def verdict_writes(
        self, pipeline_id: str, expectation: Expectation, judgement: ExpectationJudgement, *, status: str = NOT_STARTED
    ) -> list[Write]:
        """Return the writes of a verdict, for a transaction with its consequences.

        The first write is refused if a verdict exists, and the transaction with it. An OPEN expectation has no verdict.
        """
        assert judgement.verdict is not ExpectationVerdict.OPEN, "it is not due yet"
        slot = _slot(pipeline_id, expectation)
        now_ms = self._now_ms()
        stored = StoredVerdict(
            **slot._asdict(),
            kind=expectation.kind,
            verdict=judgement.verdict,
            due_at=iso(expectation.due_at),
            judged_at_ms=now_ms,
            margin_seconds=judgement.margin_seconds,
            warned=judgement.warned,
            reason=judgement.reason,
        )
        index = EXPECTATION.index_attributes(
            verdict=stored.verdict.value, due_at=stored.due_at, pipeline_id=pipeline_id
        )
        item = row(verdict_key(slot, stored.kind), stored, ttl=now_ms // 1000 + self._retention_seconds, **index)
        detail = {
            "kind": stored.kind.value,
            "verdict": stored.verdict.value,
            "deadline": stored.due_at,
            "status": status,
            "reason": stored.reason,
            "margin_seconds": stored.margin_seconds,
            "warned": stored.warned,
        }
        name = EVENTS.get((stored.kind, stored.verdict))
        return [
            Put(PIPELINES, item, absent()),
            *self._events.writes(EventName.EXPECTATION_JUDGED, slot, detail),
            *([] if name is None else self._events.writes(name, slot, detail)),
        ]

    def warn_once(self, pipeline_id: str, expectation: Expectation, *, status: str = NOT_STARTED) -> bool:
        """Publish a warning about an expectation. False: it was published before, or the kind has no warnings."""
        name = WARNINGS.get(expectation.kind)
        if name is None:
            return False
        slot = _slot(pipeline_id, expectation)
        now_ms = self._now_ms()
        key = EXPECTATION.key(**slot._asdict(), kind=f"{expectation.kind.value}#{_WARNED}")
        mark = {
            **PIPELINES.key_attributes(key),
            "warned_at_ms": now_ms,
            "ttl": now_ms // 1000 + self._retention_seconds,
        }
        detail = {"kind": expectation.kind.value, "deadline": iso(expectation.due_at), "status": status}
        try:
            self._store.transact([Put(PIPELINES, mark, absent()), *self._events.writes(name, slot, detail)])
        except ConflictError as exc:
            if 0 in exc.failures:
                return False
            raise
        return True

    # Reading.

    def find(self, slot: Slot, kind: ExpectationKind) -> StoredVerdict | None:
        """Return the verdict on an expectation, or None if it has none yet."""
        item = self._store.get(PIPELINES, verdict_key(slot, kind), consistent=True)
        return None if item is None else verdict_of(item)

    def ls(
        self, pipeline_id: str, *, schedule_id: str = "", limit: int = 100, cursor: str | None = None
    ) -> VerdictPage:
        """Return verdicts of a pipeline, the latest period of each schedule first."""
        prefix = f"{_PREFIX}{schedule_id}#" if schedule_id else _PREFIX
        return self._page(
            Query(
                table=PIPELINES,
                partition=EXPECTATION.key(pipeline_id=pipeline_id, schedule_id="-", date="-", kind="-").partition,
                sort=Sort(Range.BEGINS_WITH, prefix),
                limit=limit,
                cursor=cursor,
                descending=True,
            )
        )

    def ls_by_verdict(
        self,
        verdict: ExpectationVerdict,
        *,
        since: datetime | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> VerdictPage:
        """Return the expectations of all pipelines with a verdict, the latest first."""
        return self._page(
            Query(
                table=PIPELINES,
                index="GSI1",
                partition=f"{_PREFIX}{verdict.value}",
                sort=None if since is None else Sort(Range.AT_LEAST, iso(since)),
                limit=limit,
                cursor=cursor,
                descending=True,
            )
        )

    def _page(self, query: Query) -> VerdictPage:
        page = self._store.query(query)
        # The marks of warnings share the key prefix.
        return VerdictPage([verdict_of(item) for item in page.items if "verdict" in item], page.cursor)

    def _now_ms(self) -> int:
        return int(self._clock.seconds() * 1000)


def verdict_key(slot: Slot, kind: ExpectationKind) -> Key:
    """Return the key of a verdict's row."""
    return EXPECTATION.key(**slot._asdict(), kind=kind.value)


def verdict_of(item: Mapping[str, Any]) -> StoredVerdict:
    """Decode a verdict from its row."""
    return struct_of(item, StoredVerdict)


def iso(moment: datetime) -> str:
    """Format a time as in rows and lifecycle messages: UTC, sortable as text."""
    return instant(round(moment.timestamp() * 1000))


def _slot(pipeline_id: str, expectation: Expectation) -> Slot:
    return Slot(pipeline_id, expectation.schedule_id, expectation.date)
