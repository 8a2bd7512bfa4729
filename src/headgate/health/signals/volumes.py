"""Volume history: event counts of a dataset by hour, stored with the VOLUME signal.

The current hour is in the signal's own row. The first window of a later hour moves it to a row of its own, in the same
transaction; a late window gets its own row with the history. Rows expire once no expected band is fitted to them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from msgspec import Struct

from headgate.clock import Clock
from headgate.errors import InvalidPayloadError
from headgate.health.model.enums import VOLUME
from headgate.health.model.timestamps import instant
from headgate.health.model.urns import dataset_urn
from headgate.health.model.volume_counts import (
    DAY_HOURS,
    DAYS,
    DAYS_MAX,
    HOUR_MS,
    KEPT_DAYS,
    VolumeHour,
    VolumePoint,
    hour_of,
    hourly_counts,
    points,
    stored_hour,
    together,
)
from headgate.store.catalogue.tables import SIGNAL_HISTORY, SIGNAL_STATE
from headgate.store.model.requests import Put, Query, Range, Sort
from headgate.store.model.schema import Key
from headgate.store.model.values import Item, TrustedItem
from headgate.store.port import Store

_KEPT_MS: Final = (KEPT_DAYS * DAY_HOURS + 2) * HOUR_MS
_PAGE: Final = 1000
_HOUR_LENGTH: Final = len("2026-01-15T10")


class VolumeHistory(Struct, frozen=True, kw_only=True):
    """Hourly counts of some days, oldest first, up to the current hour; `known_count` of them were measured."""

    dataset_urn: str
    days: int
    known_count: int
    points: list[VolumePoint]


class Volumes:
    """Reads volume counts. Safe to use from many threads."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def history(self, urn: str, days: int = DAYS) -> VolumeHistory:
        """Return the hourly counts of some days. Raises `InvalidPayloadError` for more days than are kept."""
        if not 1 <= days <= DAYS_MAX:
            raise InvalidPayloadError(f"days {days}: give 1 to {DAYS_MAX}")
        urn, now_ms = dataset_urn(urn), int(self._clock.seconds() * 1000)
        found = points(self._known(urn, days, now_ms), days, now_ms)
        known = sum(each.event_count is not None for each in found)
        return VolumeHistory(dataset_urn=urn, days=days, known_count=known, points=found)

    def hourly(self, urn: str) -> dict[int, float]:
        """Return all counts that are kept, by whole hours since the epoch, with the current hour as far as it is."""
        return hourly_counts(self._known(dataset_urn(urn), KEPT_DAYS, int(self._clock.seconds() * 1000)))

    def _known(self, urn: str, days: int, now_ms: int) -> dict[str, VolumeHour]:
        # The signal is read first: an hour that ends in between is then seen twice instead of never.
        signal = self._store.get(SIGNAL_STATE, Key(urn, VOLUME), consistent=True)
        rows = list(self._rows(urn, instant(now_ms - (days * DAY_HOURS + 1) * HOUR_MS)))
        in_time = [hour_of(row) for row in rows if "late" not in row]
        if signal is not None and "volume_hour" in signal:
            in_time.insert(0, hour_of(signal["volume_hour"]))
        return together(in_time, [hour_of(row) for row in rows if "late" in row])

    def _rows(self, urn: str, since: str) -> Iterator[Item]:
        cursor: str | None = None
        while True:
            query = Query(
                table=SIGNAL_HISTORY,
                partition=_partition(urn),
                sort=Sort(Range.AT_LEAST, since[:_HOUR_LENGTH]),
                limit=_PAGE,
                cursor=cursor,
                consistent=True,
            )
            page = self._store.query(query)
            yield from page.items
            cursor = page.cursor
            if cursor is None:
                return


def hour_put(urn: str, hour: VolumeHour) -> Put:
    """Return the write of an hour that is over."""
    # The URN is validated and the rest is generated, so the store need not check it.
    return Put(SIGNAL_HISTORY, TrustedItem(_row(urn, hour, hour.hour)))


def late_put(urn: str, window: VolumeHour) -> Put:
    """Return the write of a late window; the same window has the same key."""
    return Put(SIGNAL_HISTORY, _row(urn, window, f"{window.hour}#{window.counts[0][0]:07d}") | {"late": True})


def _partition(urn: str) -> str:
    return f"{urn}#{VOLUME}#HOURS"


def _row(urn: str, hour: VolumeHour, sort: str) -> dict[str, Any]:
    return {"PK": _partition(urn), "SK": sort, **stored_hour(hour), "ttl": (hour.start_ms + _KEPT_MS) // 1000}
