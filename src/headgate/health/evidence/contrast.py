"""Evidence contrast: the first failure of a dataset since a time, and the last success before it.

The row of the last success may have expired, as for a dataset that is produced once a day. So each dataset has a row
LAST-GOOD with the id of its newest success, which the archive still has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from headgate.errors import InvalidPayloadError
from headgate.health.evidence.rows import TTL, Evidence, Result, evidence_of
from headgate.health.evidence.writes import Kept
from headgate.health.model.timestamps import instant, moment
from headgate.health.model.urns import dataset_urn
from headgate.store.catalogue.tables import CONTROL, EVIDENCE_CACHE
from headgate.store.model.conditions import absent, any_of, less_than
from headgate.store.model.requests import Page, Put, Query, Range, Sort, Write
from headgate.store.model.schema import Key
from headgate.store.model.values import Item
from headgate.store.port import Store

LAST_GOOD: Final = "LAST-GOOD"
INDEX: Final = "dataset-time-index"
# The retention of incidents, and a little more.
_KEPT_SECONDS: Final = 400 * 86_400
_PAGE: Final = 200
_PAGES_MAX: Final = 25
_EARLIEST: Final = "1970-01-01T00:00:00.000Z"


class Contrast(Struct, frozen=True):
    """The first failure since a time, and the last success before it. Incomplete: the scan limit was reached."""

    first_bad: Evidence | None
    last_good: Evidence | None
    is_complete: bool = True


class Contrasts:
    """Finds first failures and last successes. `read` returns evidence by id, from the rows or the archive."""

    def __init__(self, store: Store, read: Callable[[str], Evidence | None]) -> None:
        self._store = store
        self._read = read

    def find(self, urn: str, since: str | None, until: str | None, signature: str | None) -> Contrast:
        """Return the first failure between two times, with this signature if one is given, and the last success before.

        Reads an index that may lag briefly.
        """
        dataset_urn(urn)
        rising = Query(table=EVIDENCE_CACHE, index=INDEX, partition=urn, sort=between(since, until), limit=_PAGE)
        bad, is_complete = self._first(rising, lambda each: _is_bad(each, signature))
        before = between(None, until) if bad is None else Sort(Range.LESS_THAN, bad.created_at)
        falling = replace(rising, sort=before, descending=True)
        good, is_whole = self._first(falling, lambda each: each.validation.result is Result.PASS)
        if good is None:
            good = self._on_record(urn, until if bad is None else bad.created_at)
        return Contrast(bad, good, is_complete and (is_whole or good is not None))

    def record(self, kept: Sequence[Kept], now_ms: int) -> None:
        """Update the LAST-GOOD rows with stored successes that are newer."""
        newest: dict[str, Item] = {}
        for row in (each.row for each in kept if each.is_good_on_record and each.answered.stored):
            best = newest.setdefault(row["dataset_urn"], row)
            if row["created_at"] > best["created_at"]:
                newest[row["dataset_urn"]] = row
        if newest:
            # A conflict means that a newer success is there already.
            self._store.transact_many([[_put(row, now_ms)] for row in newest.values()])

    def _on_record(self, urn: str, before: str | None) -> Evidence | None:
        row = self._store.get(CONTROL, _key(urn))
        if row is None or (before is not None and row["created_at"] >= before):
            return None
        return self._read(row["evidence_id"])

    def _first(self, query: Query, accept: Callable[[Evidence], bool]) -> tuple[Evidence | None, bool]:
        """Return the first accepted item, and whether all candidates were scanned."""
        cursor = None
        for page in pages(self._store, query):
            for each in map(evidence_of, page.items):
                if accept(each):
                    return each, True
            cursor = page.cursor
        return None, cursor is None


def pages(store: Store, query: Query) -> Iterator[Page]:
    """Yield the pages of a query, up to a limit."""
    for _ in range(_PAGES_MAX):
        page = store.query(query)
        yield page
        if page.cursor is None:
            return
        query = replace(query, cursor=page.cursor)


def between(since: str | None, until: str | None) -> Sort:
    """Return the sort range of two times, both included. Raises `InvalidPayloadError` if it is empty."""
    low = moment(since, field="since") if since else _EARLIEST
    if not until:
        return Sort(Range.AT_LEAST, low)
    high = moment(until, field="until")
    if high < low:
        raise InvalidPayloadError(f"since {low} is after until {high}; give the earlier one first")
    return Sort(Range.BETWEEN, low, high)


def _put(row: Item, now_ms: int) -> Write:
    item = {
        **CONTROL.key_attributes(_key(row["dataset_urn"])),
        "evidence_id": row["evidence_id"],
        # An item with a time in the future must not stay the last success forever.
        "created_at": min(row["created_at"], instant(now_ms)),
        TTL: now_ms // 1000 + _KEPT_SECONDS,
    }
    return Put(CONTROL, item, any_of(absent(), less_than("created_at", item["created_at"])), quiet=True)


def _is_bad(evidence: Evidence, signature: str | None) -> bool:
    validation = evidence.validation
    if validation.result is not Result.FAIL:
        return False
    return signature is None or signature in validation.reason_codes or signature == evidence.signature


def _key(urn: str) -> Key:
    return Key(f"{LAST_GOOD}#{urn}", "EVIDENCE")
