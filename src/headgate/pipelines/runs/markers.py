"""Markers: rows that request a period by its date. The change router reads them from the change stream.

A repeated request does not replace an existing marker. `put_again` requests once more, as a change in the stream; the
run log decides whether the period then starts anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from headgate.clock import Clock
from headgate.errors import ConflictError
from headgate.pipelines.definition.model import Json
from headgate.pipelines.row_codec import row, struct_of
from headgate.pipelines.runs.rows import Slot
from headgate.store.catalogue.tables import MARKER, PIPELINES
from headgate.store.model.conditions import VERSION, Condition, absent, lacks, version_is
from headgate.store.model.requests import Put, Query, Range, Sort, Write
from headgate.store.model.schema import Key
from headgate.store.model.values import Item
from headgate.store.port import Store
from headgate.telemetry import traceparent

RETENTION_SECONDS: Final = 30 * 86_400
PARTITION: Final = "MARKER#"
SCHEDULE_DEFAULT: Final = "daily"
_RACES_MAX: Final = 10
# The spellings of the attribute in rows of other programs, and ours.
_SCHEDULE_NAMES: Final = ("scheduleID", "scheduleId", "schedule_id")


class Marker(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request for a period. `version` counts the requests; 0: a row of another program without a count."""

    pipeline_id: str
    schedule_id: str
    date: str
    # Whether only the key of the row has the date, and no attribute.
    is_date_of_key: bool = False
    version: int = 0
    # The source ("cascade:UPSTREAM", "api") and the author.
    source: str = ""
    by: str = ""
    at_ms: int = 0
    data: dict[str, Json] = {}

    @property
    def slot(self) -> Slot:
        """The requested period."""
        return Slot(self.pipeline_id, self.schedule_id, self.date)


class Placed(Struct, frozen=True):
    """The stored marker, and whether this call created it."""

    marker: Marker
    is_new: bool


class Markers:
    """Stores markers."""

    def __init__(self, store: Store, clock: Clock, *, kept_seconds: int = RETENTION_SECONDS) -> None:
        self._store = store
        self._clock = clock
        self._kept_seconds = kept_seconds

    def put(
        self,
        slot: Slot,
        *,
        source: str,
        by: str = "",
        data: Mapping[str, Json] | None = None,
        also: Sequence[Write] = (),
    ) -> Placed:
        """Request a period, unless it is requested already. `also` is written only with a new marker.

        Raises `ConflictError` if a write of `also` is refused.
        """
        marker = self._new(slot, source, by, data)
        try:
            self._store.transact([self._put(marker, None), *also])
        except ConflictError as exc:
            if 0 not in exc.failures or exc.failures[0] is None:
                raise
            return Placed(marker_of(exc.failures[0]), is_new=False)
        return Placed(marker, is_new=True)

    def put_again(
        self,
        slot: Slot,
        *,
        source: str,
        by: str = "",
        data: Mapping[str, Json] | None = None,
        also: Sequence[Write] = (),
    ) -> Marker:
        """Request a period, once more if it is requested already. Raises `ConflictError` if `also` is refused."""
        current: Marker | None = None
        for _ in range(_RACES_MAX):
            marker = self._new(slot, source, by, data)
            if current is not None:
                marker = replace(marker, version=current.version + 1)
            try:
                self._store.transact([self._put(marker, current), *also])
            except ConflictError as exc:
                if 0 not in exc.failures:
                    raise
                refusing = exc.failures[0]
                current = None if refusing is None else marker_of(refusing)
            else:
                return marker
        raise ConflictError(f"marker {slot}: concurrent changes keep winning; try again")

    def find(self, slot: Slot) -> Marker | None:
        """Return the marker of a period, or None."""
        item = self._store.get(PIPELINES, marker_key(slot), consistent=True)
        return None if item is None else marker_of(item)

    def ls(self, pipeline_id: str, *, dates: str = "", limit: int = 100) -> list[Marker]:
        """Return the markers of a pipeline, latest dates first: all, or those whose date begins with `dates`."""
        query = Query(
            table=PIPELINES,
            partition=f"{PARTITION}{pipeline_id}",
            sort=Sort(Range.BEGINS_WITH, dates) if dates else None,
            limit=limit,
            descending=True,
        )
        return [marker_of(item) for item in self._store.query(query).items]

    def _new(self, slot: Slot, source: str, by: str, data: Mapping[str, Json] | None) -> Marker:
        at_ms = int(self._clock.seconds() * 1000)
        return Marker(**slot._asdict(), version=1, source=source, by=by, at_ms=at_ms, data=dict(data or {}))

    def _put(self, marker: Marker, replaces: Marker | None) -> Put:
        item = marker_item(marker, kept_seconds=self._kept_seconds)
        trace = traceparent()
        return Put(PIPELINES, {**item, "traceparent": trace} if trace else item, _unchanged(replaces))


def marker_key(slot: Slot) -> Key:
    """Return the key of a marker's row."""
    return MARKER.key(pipeline_id=slot.pipeline_id, date=slot.date, schedule_id=slot.schedule_id)


def marker_item(marker: Marker, *, kept_seconds: int = RETENTION_SECONDS) -> Item:
    """Encode a marker as its row."""
    return row(marker_key(marker.slot), marker, ttl=marker.at_ms // 1000 + kept_seconds)


def marker_of(item: Mapping[str, Any]) -> Marker:
    """Decode a marker from its row, also a row of another program.

    Its own attributes `date` and `scheduleID` take precedence over the key: the marker of the last hour of a day is
    written on the next day.
    """
    key_date, _, key_schedule = str(item["SK"]).partition("#")
    date = item.get("date")
    named = {
        "pipeline_id": str(item["PK"]).removeprefix(PARTITION),
        "schedule_id": _schedule_of(item) or key_schedule or SCHEDULE_DEFAULT,
        "date": _text(date) if date not in (None, "") else key_date,
        "is_date_of_key": date in (None, ""),
    }
    return struct_of({**item, **named}, Marker)


def _schedule_of(item: Mapping[str, Any]) -> str:
    return next((value for name in _SCHEDULE_NAMES if isinstance(value := item.get(name), str) and value), "")


def _text(date: object) -> str:
    # A compact day may be a number: 20260303.
    return str(int(date)) if isinstance(date, int | float) and not isinstance(date, bool) else str(date)


def _unchanged(replaces: Marker | None) -> Condition:
    if replaces is None:
        return absent()
    return version_is(replaces.version) if replaces.version else lacks(VERSION)
