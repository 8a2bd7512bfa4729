"""Audit listing: the entries of all chains in one order, newest first, in pages."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Struct

from headgate import typed_decode
from headgate.errors import CursorError, InvalidPayloadError, SignatureError
from headgate.health.audit.hash_chain import CHAINS, Record, read_record
from headgate.store.catalogue.tables import AUDIT
from headgate.store.keyring import Keyring, Purpose
from headgate.store.model.requests import Query, Range, Sort
from headgate.store.model.validation import QUERY_LIMIT_MAX
from headgate.store.model.values import Item
from headgate.store.port import Store

_LAST: Final = 10**12 - 1


class Entries(Struct, frozen=True):
    """A page of entries, and the cursor of the next page."""

    entries: list[Record]
    cursor: str | None = None


class _Place(Struct, frozen=True, array_like=True):
    """The end of a page: the highest entry of each chain that was not returned yet; 0 if all were."""

    question: str
    below: tuple[int, ...]


def entries_of(
    store: Store, entity: str, *, since: str | None, until: str | None, limit: int, cursor: str | None
) -> Entries:
    """Return the entries of one entity, newest first. Reads an index that may lag."""
    sort = None
    if since is not None and until is not None:
        sort = Sort(Range.BETWEEN, since, until)
    elif since is not None:
        sort = Sort(Range.AT_LEAST, since)
    elif until is not None:
        sort = Sort(Range.AT_MOST, until)
    page = store.query(
        Query(
            table=AUDIT,
            index="entity-index",
            partition=entity,
            sort=sort,
            limit=_checked(limit),
            cursor=cursor,
            descending=True,
        )
    )
    return Entries([read_record(row) for row in page.items], page.cursor)


def last_row(store: Store, chain: int, highest: int = _LAST) -> Item | None:
    """Return the row of a chain's last entry, or of the last one up to `highest`, or None."""
    rows = store.query(_downwards(chain, highest, 1)).items
    return rows[0] if rows else None


class Merge:
    """Merges all chains. Within a chain later entries have later timestamps, so merging gives the order."""

    def __init__(self, store: Store, keyring: Keyring) -> None:
        self._store = store
        self._keyring = keyring

    def page(
        self, *, since: str | None, until: str | None, limit: int, cursor: str | None, actor: str | None = None
    ) -> Entries:
        """Return the entries of all chains, newest first. Raises `CursorError`.

        The caller filters by actor; a cursor is valid for the same filter only.
        """
        question = hashlib.sha256(repr(("audit", since, until, actor)).encode()).hexdigest()[:16]
        below = self._resumed(question, cursor) if cursor is not None else self._start(until)
        found = self._read(below, _checked(limit))
        rows = sorted(
            (record for _, records in found for record in records if since is None or record.at >= since),
            key=lambda record: (record.at, record.chain, record.sequence),
            reverse=True,
        )[:limit]
        left = _left(found, rows, below, since)
        if not any(left):
            return Entries(rows)
        place = msgspec.json.encode(_Place(question, tuple(left)))
        return Entries(rows, self._keyring.sign(Purpose.CURSOR, place))

    def _read(self, below: Sequence[int], limit: int) -> list[tuple[bool, list[Record]]]:
        """Return for each chain whether there is more, and its highest entries that were not returned yet."""
        wanted = [chain for chain in range(CHAINS) if below[chain]]
        pages = self._store.query_many([_downwards(chain, below[chain], limit) for chain in wanted])
        found: list[tuple[bool, list[Record]]] = [(False, [])] * CHAINS
        for chain, page in zip(wanted, pages, strict=True):
            found[chain] = (page.cursor is not None, [read_record(row) for row in page.items])
        return found

    def _start(self, until: str | None) -> list[int]:
        return [_LAST if until is None else self._until(chain, until) for chain in range(CHAINS)]

    def _until(self, chain: int, until: str) -> int:
        """Return the last entry of a chain that is not after `until`, by binary search."""
        last = last_row(self._store, chain)
        low, high = 0, 0 if last is None else read_record(last).sequence
        while low < high:
            middle = (low + high + 1) // 2
            # For missing entries, the nearest one before the gap is used.
            row = last_row(self._store, chain, middle)
            found = None if row is None else read_record(row)
            if found is None or found.at <= until:
                low = middle
            else:
                high = found.sequence - 1
        return low

    def _resumed(self, question: str, cursor: str) -> tuple[int, ...]:
        try:
            place = typed_decode.from_json(self._keyring.verify(Purpose.CURSOR, cursor), _Place)
        except (SignatureError, msgspec.DecodeError) as exc:
            raise CursorError(f"{exc}; start again without a cursor") from exc
        if place.question != question or len(place.below) != CHAINS:
            raise CursorError("cursor belongs to another query; use it with the same since and until")
        return place.below


def _left(
    found: Sequence[tuple[bool, list[Record]]], shown: Sequence[Record], below: Sequence[int], since: str | None
) -> list[int]:
    lowest = {}
    for record in shown:
        lowest[record.chain] = record.sequence
    left = []
    for chain, (more, records) in enumerate(found):
        rest = [each for each in records if each.sequence < lowest.get(chain, below[chain] + 1)]
        if rest:
            left.append(rest[0].sequence if since is None or rest[0].at >= since else 0)
        else:
            left.append(records[-1].sequence - 1 if more else 0)
    return left


def _downwards(chain: int, highest: int, limit: int) -> Query:
    return Query(
        table=AUDIT,
        partition=f"AUDIT#{chain}",
        sort=Sort(Range.BETWEEN, f"{1:012d}", f"{highest:012d}"),
        limit=limit,
        descending=True,
        consistent=True,
    )


def _checked(limit: int) -> int:
    if not 1 <= limit <= QUERY_LIMIT_MAX:
        raise InvalidPayloadError(f"limit {limit}: give 1 to {QUERY_LIMIT_MAX}")
    return limit
