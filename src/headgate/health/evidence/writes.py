"""Writes of evidence: what is to be kept is checked, told from what is there already, and written in groups.

A group is one transaction: its rows, each only if its id is not taken, and one row of the spool from which the archive
is filled (`evidence_archive`). So what is stored is certain to be archived, and a batch that is offered again after a
failure changes nothing: what was stored is a duplicate then.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from headgate.errors import AlreadyExistsError, ConflictError, HeadgateError, OutcomeUnknownError, UserError
from headgate.health.evidence import rows as evidence_rows
from headgate.health.evidence.archive import Line, spool_put
from headgate.health.evidence.rows import TTL, Evidence
from headgate.health.model.timestamps import instant
from headgate.ids import IdMaker
from headgate.store.catalogue.tables import EVIDENCE_CACHE
from headgate.store.model import requests as writes
from headgate.store.model.conditions import absent
from headgate.store.model.values import Item, TrustedItem
from headgate.store.port import Store
from headgate.store.resilience.rate_limiter import Priority, prioritised

# A transaction takes a hundred writes and 4 MB, and one of the writes is the row of the spool.
GROUP_ROWS: Final = 90
GROUP_BYTES: Final = 256 * 1024
_ROUNDS: Final = 5


class Decision(enum.StrEnum):
    """What became of a piece of evidence. REFUSED: it is not valid, or its id has another content already."""

    STORED = "STORED"
    SAMPLED_OUT = "SAMPLED_OUT"
    DUPLICATE = "DUPLICATE"
    SHED = "SHED"
    REFUSED = "REFUSED"


class Put(Struct, frozen=True):
    """What became of a piece of evidence, and until when it is kept here (None: not at all, or while it is pinned)."""

    decision: Decision
    evidence_id: str = ""
    expires_at: str | None = None
    error: HeadgateError | None = None

    @property
    def stored(self) -> bool:
        """Whether it can be read here now."""
        return self.decision in (Decision.STORED, Decision.DUPLICATE)


class Kept:
    """A piece of evidence on its way into the store, with its row and its answer once it has them."""

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
        """What became of it."""
        assert self.answer is not None, "everything that is kept was answered or has raised"
        return self.answer


class EvidenceWrites:
    """Writes evidence that is to be kept."""

    def __init__(self, store: Store, ids: IdMaker, *, hot_seconds: int) -> None:
        self._store = store
        self._ids = ids
        self._hot_seconds = hot_seconds

    def store(self, kept: Sequence[Kept], now_ms: int) -> None:
        """Write what is kept, and give each its answer. If it raises, some may be stored."""
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
        """Store each group in a transaction of its own, and return what is left of those that were refused."""
        transactions: list[list[writes.Write]] = []
        for group in groups:
            rows = [writes.Put(EVIDENCE_CACHE, _stored(each, ttl), absent(), quiet=True) for each in group]
            lines = [Line(each.evidence_id, each.line) for each in group]
            transactions.append([*rows, spool_put(self._ids.ulid(), lines, now_ms)])
        expires_at = instant(1000 * ttl)
        left = []
        # Where the store asks for less, this is what is let go first.
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
    """Give each its row, and go through those that are valid."""
    for each in kept:
        try:
            each.line = evidence_rows.line_of(each.evidence, each.evidence_id, now_ms)
        except UserError as exc:
            each.answer = Put(Decision.REFUSED, each.evidence_id, error=exc)
            continue
        # As it will be read again: with lists, and without what only Python knows.
        each.row = evidence_rows.row_of_line(each.line)
        yield each


def _stored(kept: Kept, ttl: int) -> Item:
    """Return the row as the store keeps it."""
    # It was checked and made anew by its codec a moment ago. Only a store says which text beyond ASCII it can keep.
    made = TrustedItem if kept.line.isascii() else dict
    return made(kept.row, **{TTL: ttl})


def _distinct(kept: Iterator[Kept]) -> Iterator[Kept]:
    """Go through those whose id has not come before, and answer the others."""
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
    """Answer those of a refused group that are there already."""
    for place, current in conflict.failures.items():
        if current is not None and place < len(group):
            group[place].answer = _compared(group[place], current)


def _compared(kept: Kept, current: Item) -> Put:
    """Return the answer to evidence whose id is taken."""
    before, now = evidence_rows.content_of(current), dict(kept.row)
    if not kept.evidence.created_at:
        # It was not given, and only says when it was offered.
        before.pop("created_at", None), now.pop("created_at", None)
    if before == now:
        ttl = current.get(TTL)
        return Put(Decision.DUPLICATE, kept.evidence_id, None if ttl is None else instant(1000 * ttl))
    error = AlreadyExistsError(
        f"evidence {kept.evidence_id}: it is stored already with another content; the first stays, use another id",
        current=current,
    )
    return Put(Decision.REFUSED, kept.evidence_id, error=error)
