"""Quarantine: records that a job set aside for a period, and whether they block later runs.

Jobs write rows `QUARANTINE#date#hour`, or push them through the API. A period without an hour covers all its hours.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date as calendar_date
from datetime import timedelta
from typing import Any, Final

import structlog
from msgspec import Struct

from headgate.clock import Clock
from headgate.errors import ConflictError, HeadgateError, InvalidPayloadError
from headgate.pipelines.field_values import number
from headgate.pipelines.schedule.sensor_periods import period_text
from headgate.store.catalogue.tables import PIPELINES, QUARANTINE
from headgate.store.model.conditions import all_of, exists, lacks
from headgate.store.model.requests import Change, Put, Query, Range, Sort, Write
from headgate.store.port import Store

RETENTION_SECONDS: Final = 30 * 86_400
TTL: Final = "ttl"
# The hour of records that belong to a whole day.
ALL_DAY: Final = "all"
REASONS_MAX: Final = 20
_PREFIX: Final = "QUARANTINE#"
_PAGE: Final = 200
_DAY_LENGTH: Final = len("2026-03-03")
_HOUR_LENGTH: Final = len("2026-03-03T07")

_log: Final = structlog.get_logger(__name__)


class QuarantineState(enum.StrEnum):
    """Whether records are in quarantine, and whether they block later runs."""

    CLEAN = "clean"
    QUARANTINED = "quarantined"
    BLOCKED = "blocked"


class Quarantined(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Records in quarantine for a day or an hour of it."""

    date: str
    hour: str
    count: int
    path: str = ""
    reasons: tuple[str, ...] = ()

    @property
    def period(self) -> str:
        """The day, or the hour of it."""
        return f"{self.date}T{self.hour[:2]}" if self.hour[:2].isdecimal() else self.date


class QuarantineCheck(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The quarantine of a period. With a `problem` it could not be read, and blocks nothing."""

    pipeline_id: str
    date: str
    state: QuarantineState
    count: int = 0
    records: tuple[Quarantined, ...] = ()
    problem: str = ""

    @property
    def is_blocked(self) -> bool:
        """Whether later runs have to wait."""
        return self.state is QuarantineState.BLOCKED

    @property
    def reason(self) -> str:
        """The state as one sentence."""
        if self.problem:
            return f"the quarantine of {self.date} could not be read, and counts as clean: {self.problem}"
        if self.state is QuarantineState.CLEAN:
            return f"nothing is in quarantine for {self.date}"
        named = sorted({reason for record in self.records for reason in record.reasons})[:3]
        because = f": {', '.join(named)}" if named else ""
        return f"{self.count} records are in quarantine for {self.date}{because}"


def judge(pipeline_id: str, date: str, records: Sequence[Quarantined], *, blocking: bool) -> QuarantineCheck:
    """Return the state that quarantine records of a period amount to."""
    held = tuple(record for record in records if record.count > 0)
    state = QuarantineState.CLEAN
    if held:
        state = QuarantineState.BLOCKED if blocking else QuarantineState.QUARANTINED
    return QuarantineCheck(
        pipeline_id=pipeline_id, date=date, state=state, count=sum(record.count for record in held), records=held
    )


def log_problem(check: QuarantineCheck) -> None:
    """Log a quarantine that could not be read."""
    _log.warning("quarantine_unreadable", pipeline_id=check.pipeline_id, date=check.date, problem=check.problem)


class QuarantineRecords:
    """Stores and reads quarantine records. `on_unreadable` receives every check that could not read."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        on_unreadable: Callable[[QuarantineCheck], None] = log_problem,
        kept_seconds: int = RETENTION_SECONDS,
    ) -> None:
        self._store = store
        self._kept_seconds = kept_seconds
        self._clock = clock
        self._on_unreadable = on_unreadable

    def put(
        self,
        pipeline_id: str,
        date: str,
        count: int,
        *,
        path: str = "",
        reasons: Sequence[str] = (),
        also: Sequence[Write] = (),
    ) -> Quarantined:
        """Set the number of records in quarantine for a day or an hour; 0 clears it.

        Raises `InvalidPayloadError` for any other period, and for an invalid count.
        """
        period = period_text(date)
        if period is None or len(period) not in (_DAY_LENGTH, _HOUR_LENGTH):
            raise InvalidPayloadError(
                f"quarantine of {date[:40]!r}: give a day or an hour, 2026-03-03 or 2026-03-03T07"
            )
        if isinstance(count, bool) or count < 0:
            raise InvalidPayloadError(f"quarantine of {period}: count is {count!r}; give how many records, from 0")
        day, _, hour = period.partition("T")
        record = Quarantined(
            date=day, hour=hour or ALL_DAY, count=count, path=path, reasons=tuple(reasons)[:REASONS_MAX]
        )
        item = {
            **PIPELINES.key_attributes(QUARANTINE.key(pipeline_id=pipeline_id, date=day, hour=record.hour)),
            "date": day,
            "hour": record.hour,
            "count": count,
            "quarantinePath": path,
            "reasons": list(record.reasons),
            "ttl": int(self._clock.seconds()) + self._kept_seconds,
        }
        self._store.transact([Put(PIPELINES, item), *also])
        return record

    def on_change(self, change: Change) -> None:
        """Give a row that a job wrote without an expiry one, so that it does not stay forever."""
        if change.new is None or TTL in change.new or not str(change.key.sort).startswith(_PREFIX):
            return
        expires = int(self._clock.seconds()) + self._kept_seconds
        try:
            self._store.update(PIPELINES, change.key, set={TTL: expires}, condition=all_of(exists(), lacks(TTL)))
        except ConflictError:
            # It was deleted, or has an expiry by now.
            return

    def check(self, pipeline_id: str, date: str, *, blocking: bool) -> QuarantineCheck:
        """Return the quarantine of a period, and whether it blocks later runs.

        A read error blocks nothing and is reported. Never raises.
        """
        try:
            records = list(self._read(pipeline_id, date))
        except HeadgateError as exc:
            unreadable = QuarantineCheck(
                pipeline_id=pipeline_id, date=date, state=QuarantineState.CLEAN, problem=str(exc) or type(exc).__name__
            )
            self._report(unreadable)
            return unreadable
        return judge(pipeline_id, date, records, blocking=blocking)

    def _report(self, unreadable: QuarantineCheck) -> None:
        try:
            self._on_unreadable(unreadable)
        except HeadgateError:
            # The receiver may need the store that has just failed.
            log_problem(unreadable)

    def _read(self, pipeline_id: str, date: str) -> Iterator[Quarantined]:
        partition = QUARANTINE.key(pipeline_id=pipeline_id, date="-", hour="-").partition
        for prefix in prefixes(date):
            cursor = None
            while True:
                sort = Sort(Range.BEGINS_WITH, prefix)
                page = self._store.query(
                    Query(table=PIPELINES, partition=partition, sort=sort, limit=_PAGE, cursor=cursor, consistent=True)
                )
                yield from (quarantined_of(item) for item in page.items)
                cursor = page.cursor
                if cursor is None:
                    break


def prefixes(date: str) -> tuple[str, ...]:
    """Return the key prefixes of all quarantine rows of a period, dashed and compact.

    Raises `InvalidPayloadError` for an invalid period.
    """
    period = period_text(date)
    if period is None:
        raise InvalidPayloadError(
            f"date {date[:40]!r} is no period; write 2026-03-03, 2026-03-03T07, 2026-W10 or 2026-03"
        )
    day, _, time = period.partition("T")
    if "W" in day:
        monday = calendar_date.fromisoformat(f"{day}-1")
        starts = [f"{monday + timedelta(days=number)}#" for number in range(7)]
    elif len(day) < _DAY_LENGTH:
        starts = [f"{day}-"]
    else:
        # Hours are the finest unit. Rows of the whole day belong to each of its hours.
        starts = [f"{day}#{time[:2]}", f"{day}#{ALL_DAY}"] if time else [f"{day}#"]
    return tuple(_PREFIX + form for start in starts for form in (start, start.replace("-", "")))


def gained_expiry_only(change: Change) -> bool:
    """Whether a change only added the expiry, as `QuarantineRecords.on_change` does."""
    if change.old is None or change.new is None or TTL in change.old:
        return False
    return {name: value for name, value in change.new.items() if name != TTL} == change.old


def quarantined_of(item: Mapping[str, Any]) -> Quarantined:
    """Decode a quarantine row, also one that a job wrote. A row without a count stands for one record."""
    day, _, hour = str(item["SK"]).removeprefix(_PREFIX).partition("#")
    counted = number(item.get("count"))
    reasons = item.get("reasons") or ()
    return Quarantined(
        date=period_text(day) or day,
        hour=hour,
        count=1 if counted is None else max(0, int(counted)),
        path=str(item.get("quarantinePath", "")),
        reasons=tuple(str(each) for each in reasons)[:REASONS_MAX] if isinstance(reasons, list | set | tuple) else (),
    )
