"""Evidence writes: validates admitted evidence, detects duplicates, and writes it in groups.

A group is one transaction: its rows, each conditional on a free id, and one spool row for the archive. So all stored
evidence is archived, and offering a batch again after a failure changes nothing: its stored items are duplicates.
"""

from __future__ import annotations

import enum
import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from headgate.errors import AlreadyExistsError, ConflictError, HeadgateError, OutcomeUnknownError, UserError
from headgate.health.evidence import rows as evidence_rows
from headgate.health.evidence.archive import SPOOL_SHARDS, Line, spool_put
from headgate.health.evidence.rows import TTL, Evidence
from headgate.health.model.timestamps import instant
from headgate.ids import IdMaker
from headgate.store.catalogue.tables import EVIDENCE_CACHE
from headgate.store.model import requests as writes
from headgate.store.model.conditions import absent
from headgate.store.model.values import Item, TrustedItem
from headgate.store.port import Store
from headgate.store.resilience.rate_limiter import Priority, prioritised

# A transaction takes 100 writes and 4 MB; one of the writes is the spool row.
GROUP_ROWS: Final = 90
GROUP_BYTES: Final = 256 * 1024
_ROUNDS: Final = 5


class Decision(enum.StrEnum):
    """The outcome of an item. REFUSED: it is invalid, or its id has other content already."""

    STORED = "STORED"
    SAMPLED_OUT = "SAMPLED_OUT"
    DUPLICATE = "DUPLICATE"
    SHED = "SHED"
    REFUSED = "REFUSED"


class Put(Struct, frozen=True):
    """The outcome of an item, and when its row expires (None: no row, or pinned)."""

    decision: Decision
    evidence_id: str = ""
    expires_at: str | None = None
    error: HeadgateError | None = None

    @property
    def stored(self) -> bool:
        """Whether its row exists now."""
        return self.decision in (Decision.STORED, Decision.DUPLICATE)


class Kept:
    """An item to be stored, with its row and its outcome once it has them."""

    __slots__ = ("answer", "evidence", "evidence_id", "is_good_on_record", "line", "row")

    def __init__(self, evidence_id: str, evidence: Evidence, *, is_good_on_record: bool = False) -> None:
        self.evidence_id = evidence_id
        self.evidence = evidence
        # Whether the dataset's row LAST-GOOD is to name it.
        self.is_good_on_record = is_good_on_record
        self.row: Item = {}
        self.line = b""
        self.answer: Put | None = None

    @property
    def answered(self) -> Put:
        """Its outcome."""
        assert self.answer is not None, "every item has an outcome or has raised"
        return self.answer


class EvidenceWrites:
    """Writes admitted evidence."""

    def __init__(self, store: Store, ids: IdMaker, *, hot_seconds: int) -> None:
        self._store = store
        self._ids = ids
        self._hot_seconds = hot_seconds
        # In turn, so that each shard takes the same share. The first is any, as many processes may write little each.
        self._turns = itertools.count(random.randrange(SPOOL_SHARDS))

    def store(self, kept: Sequence[Kept], now_ms: int) -> None:
        """Write items and set their outcomes. If it raises, some may be stored."""
        ttl = now_ms // 1000 + self._hot_seconds
        groups = _grouped(_distinct(_shaped(kept, now_ms)))
        for _ in range(_ROUNDS):
            if not groups:
                return
            groups = self._write(groups, ttl, now_ms)
        if groups:
            first = groups[0][0].evidence_id
            raise OutcomeUnknownError(f"evidence {first}: its row keeps changing; offer it again")

    def _write(self, groups: list[list[Kept]], ttl: int, now_ms: int) -> list[list[Kept]]:
        """Store each group in its own transaction, and return the items of failed ones that are left to store."""
        transactions: list[list[writes.Write]] = []
        for group in groups:
            rows = [writes.Put(EVIDENCE_CACHE, _stored(each, ttl), absent(), quiet=True) for each in group]
            lines = [Line(each.evidence_id, each.line) for each in group]
            shard = next(self._turns) % SPOOL_SHARDS
            transactions.append([*rows, spool_put(shard, self._ids.ulid(), lines, now_ms)])
        expires_at = instant(1000 * ttl)
        left = []
        # The lowest priority: it is shed first when the store throttles.
        with prioritised(Priority.EVIDENCE):
            outcomes = self._store.transact_many(transactions)
        for group, outcome in zip(groups, outcomes, strict=True):
            if outcome is None:
                for each in group:
                    each.answer = Put(Decision.STORED, each.evidence_id, expires_at)
                continue
            if not isinstance(outcome, ConflictError):
                raise outcome
            if not isinstance(outcome, OutcomeUnknownError):
                _settle(group, outcome)
            left.append([each for each in group if each.answer is None])
        return [group for group in left if group]


def _shaped(kept: Sequence[Kept], now_ms: int) -> Iterator[Kept]:
    """Set the row of each item, and yield the valid ones."""
    for each in kept:
        try:
            each.line = evidence_rows.line_of(each.evidence, each.evidence_id, now_ms)
        except UserError as exc:
            each.answer = Put(Decision.REFUSED, each.evidence_id, error=exc)
            continue
        # As it will be read back: with lists, and without Python-only fields.
        each.row = evidence_rows.row_of_line(each.line)
        yield each


def _stored(kept: Kept, ttl: int) -> Item:
    """Return the row in the form that the store returns."""
    # Just validated and encoded. Only non-ASCII text is left for the store to check.
    made = TrustedItem if kept.line.isascii() else dict
    return made(kept.row, **{TTL: ttl})


def _distinct(kept: Iterator[Kept]) -> Iterator[Kept]:
    """Yield items whose id is new in this batch, and set the outcome of the others."""
    first: dict[str, Kept] = {}
    for each in kept:
        before = first.setdefault(each.evidence_id, each)
        if before is each:
            yield each
        else:
            each.answer = _compared(each, before.row)


def _grouped(kept: Iterator[Kept]) -> list[list[Kept]]:
    groups: list[list[Kept]] = []
    group_bytes = 0
    for each in kept:
        if not groups or len(groups[-1]) == GROUP_ROWS or group_bytes + len(each.line) > GROUP_BYTES:
            groups.append([])
            group_bytes = 0
        groups[-1].append(each)
        group_bytes += len(each.line)
    return groups


def _settle(group: Sequence[Kept], conflict: ConflictError) -> None:
    """Set the outcome of items of a failed group that are stored already."""
    for place, current in conflict.failures.items():
        if current is not None and place < len(group):
            group[place].answer = _compared(group[place], current)


def _compared(kept: Kept, current: Item) -> Put:
    """Return the outcome of an item whose id is taken."""
    before, now = evidence_rows.content_of(current), dict(kept.row)
    if not kept.evidence.created_at:
        # It was generated at the time of the offer, not given.
        before.pop("created_at", None), now.pop("created_at", None)
    if before == now:
        ttl = current.get(TTL)
        return Put(Decision.DUPLICATE, kept.evidence_id, None if ttl is None else instant(1000 * ttl))
    error = AlreadyExistsError(
        f"evidence {kept.evidence_id}: already stored with other content; the first stays, use another id",
        current=current,
    )
    return Put(Decision.REFUSED, kept.evidence_id, error=error)
