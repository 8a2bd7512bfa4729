"""Audit verification: checks that every chain is complete and unaltered, and reports where it is not.

The store and the keyring alone reveal: an entry that was altered, moved, swapped or removed; a chain cut off at its
end; a head that was altered, removed, or rolled back while later entries stayed. They do not reveal a chain rolled back
as a whole, head and entries together, to an earlier valid state, one that is gone altogether, or forgeries made with
the keyring. A rollback is detected against anchors: heads stored out of reach of those who can write the store.

A pruned chain is verified from the sealed anchor that pruning left. Earlier heads than that cannot be compared.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from headgate.errors import CorruptionError
from headgate.health.audit.hash_chain import (
    CHAINS,
    Anchor,
    Head,
    Record,
    anchor_key,
    anchor_of,
    hash_of,
    head_key,
    head_of,
    read_record,
)
from headgate.store.catalogue.tables import AUDIT
from headgate.store.keyring import Keyring
from headgate.store.model.requests import Query, Range, Sort
from headgate.store.model.values import Item
from headgate.store.port import Store

_ROWS_AT_ONCE: Final = 500
_SORT: Final = re.compile(r"[0-9]{12}")
# Entries sort before the anchor and the head.
_AFTER_ENTRIES: Final = "A"
_WALKS_MAX: Final = 3


class Fault(enum.StrEnum):
    """The kinds of faults of a chain."""

    HEAD_ALTERED = "head_altered"
    HEAD_MISSING = "head_missing"
    ANCHOR_ALTERED = "anchor_altered"
    ENTRY_ALTERED = "entry_altered"
    ENTRY_MISSING = "entry_missing"
    LINK_BROKEN = "link_broken"
    TIME_REVERSED = "time_reversed"
    CUT_OFF = "cut_off"
    AFTER_HEAD = "after_head"
    SET_BACK = "set_back"


class Problem(Struct, frozen=True):
    """A fault of a chain. `sequence` is the entry where it shows."""

    fault: Fault
    chain: int
    sequence: int
    fact: str


class Report(Struct, frozen=True):
    """The numbers of checked chains and entries, their problems, and the anchors of pruned chains."""

    chains: int
    entries: int
    problems: list[Problem]
    anchors: list[Anchor] = []

    @property
    def is_whole(self) -> bool:
        """Whether there are no problems."""
        return not self.problems


class Verifier:
    """Reads chains from the first entry to the last. Entries may be added meanwhile."""

    def __init__(self, store: Store, keyring: Keyring) -> None:
        self._store = store
        self._keyring = keyring

    def verify(self, anchors: Sequence[Head] = ()) -> Report:
        """Check every entry of every chain, and compare the chains with `anchors`."""
        walks = [self._walk(chain, [anchor for anchor in anchors if anchor.chain == chain]) for chain in range(CHAINS)]
        used = [walk for walk in walks if walk.count or walk.problems or walk.anchor.sequence]
        return Report(
            len(used),
            sum(walk.count for walk in used),
            [each for walk in used for each in walk.problems],
            [walk.anchor for walk in used if walk.anchor.sequence],
        )

    def _walk(self, chain: int, anchors: Sequence[Head]) -> Walk:
        walk = self._walk_once(chain, anchors)
        for _ in range(_WALKS_MAX - 1):
            # Entries that were pruned during the walk look like missing ones.
            if not walk.problems or self._anchor(chain, Walk(Anchor(chain))).sequence == walk.anchor.sequence:
                break
            walk = self._walk_once(chain, anchors)
        return walk

    def _walk_once(self, chain: int, anchors: Sequence[Head]) -> Walk:
        failed = Walk(Anchor(chain))
        walk = Walk(self._anchor(chain, failed))
        walk.problems += failed.problems
        before = self._head(chain, walk)
        marks = [*anchors, before] if before is not None else list(anchors)
        watched = {mark.sequence for mark in marks}
        for row in self._rows(chain):
            walk.take(row, watched)
        # Read again: entries added meanwhile have moved it.
        after = self._head(chain, walk) if walk.last > (before.sequence if before else 0) else before
        if before is not None and after is not None:
            walk.end(before, after)
        for anchor in anchors:
            walk.compare(anchor)
        return walk

    def _anchor(self, chain: int, walk: Walk) -> Anchor:
        try:
            return anchor_of(self._store.get(AUDIT, anchor_key(chain), consistent=True), chain, self._keyring)
        except CorruptionError as exc:
            walk.report(Fault.ANCHOR_ALTERED, 0, exc.message)
            return Anchor(chain)

    def _head(self, chain: int, walk: Walk) -> Head | None:
        try:
            return head_of(self._store.get(AUDIT, head_key(chain), consistent=True), chain, self._keyring)
        except CorruptionError as exc:
            walk.report(Fault.HEAD_ALTERED, 0, exc.message)
            return None

    def _rows(self, chain: int) -> Iterator[Item]:
        cursor = None
        while True:
            page = self._store.query(
                Query(
                    table=AUDIT,
                    partition=f"AUDIT#{chain}",
                    sort=Sort(Range.LESS_THAN, _AFTER_ENTRIES),
                    limit=_ROWS_AT_ONCE,
                    cursor=cursor,
                    consistent=True,
                )
            )
            yield from page.items
            cursor = page.cursor
            if cursor is None:
                return


class Walk:
    """One pass through a chain from its anchor, comparing each entry with the expected next one.

    An interrupted pruning leaves some of the entries up to the anchor, which must end with the anchor's.
    """

    def __init__(self, anchor: Anchor) -> None:
        self.chain = anchor.chain
        self.anchor = anchor
        self.count = 0
        self.last = anchor.sequence
        self.problems: list[Problem] = []
        self._hash = anchor.hash
        self._at = anchor.at
        # The hashes at the positions of heads and anchors.
        self._hashes: dict[int, str] = {anchor.sequence: anchor.hash}

    def report(self, fault: Fault, sequence: int, fact: str) -> None:
        problem = Problem(fault, self.chain, sequence, fact)
        if problem not in self.problems:
            self.problems.append(problem)

    def take(self, row: Item, watched: set[int]) -> None:
        """Check the next entry."""
        self.count += 1
        place = _place(row)
        if 0 < place <= self.anchor.sequence and self.last >= self.anchor.sequence:
            # The first entry that an interrupted pruning has left.
            self.last, self._hash, self._at = place - 1, "", ""
        if place > self.last + 1:
            gone = f"entry {self.last + 1}" if place == self.last + 2 else f"entries {self.last + 1} to {place - 1}"
            self.report(Fault.ENTRY_MISSING, self.last + 1, f"{gone} of chain {self.chain}: missing")
        try:
            record = read_record(row)
        except CorruptionError as exc:
            self.report(Fault.ENTRY_ALTERED, place, exc.message)
            self.last, self._hash = max(place, self.last), ""
            return
        self._check(record, place, is_next=place == self.last + 1)
        self.last, self._hash, self._at = max(place, self.last), record.hash, record.at
        if place == self.anchor.sequence and record.hash != self.anchor.hash:
            fact = f"entry {place} of chain {self.chain}: not the one that the anchor was sealed with"
            self.report(Fault.LINK_BROKEN, place, fact)
        elif place in watched:
            self._hashes[place] = record.hash

    def _check(self, record: Record, place: int, *, is_next: bool) -> None:
        named = f"entry {place} of chain {self.chain}"
        if record.hash != hash_of(record) or record.sequence != place or record.chain != self.chain:
            self.report(Fault.ENTRY_ALTERED, place, f"{named}: altered")
        if is_next and self._hash and record.previous != self._hash:
            self.report(Fault.LINK_BROKEN, place, f"{named}: does not follow the entry before it")
        if record.at < self._at:
            self.report(Fault.TIME_REVERSED, place, f"{named}: its time {record.at} is before that of the entry before")

    def end(self, before: Head, after: Head) -> None:
        """Compare the entries with the head before and after the pass."""
        if before.sequence == 0 and after.sequence == 0 and self.last:
            self.report(Fault.HEAD_MISSING, 0, f"chain {self.chain}: {self.count} entries and no head")
            return
        if self.last < before.sequence:
            fact = f"chain {self.chain}: it ends at entry {self.last}; its head says {before.sequence}"
            self.report(Fault.CUT_OFF, self.last + 1, fact)
        elif self._hashes.get(before.sequence) not in (None, before.hash):
            fact = f"entry {before.sequence} of chain {self.chain}: not the one that the head was sealed with"
            self.report(Fault.LINK_BROKEN, before.sequence, fact)
        if self.last > after.sequence:
            fact = f"chain {self.chain}: there are entries up to {self.last}; its head says {after.sequence}"
            self.report(Fault.AFTER_HEAD, after.sequence + 1, fact)
        elif self.last == after.sequence and self._hash not in ("", after.hash):
            fact = f"entry {after.sequence} of chain {self.chain}: not the one that the head was sealed with"
            self.report(Fault.LINK_BROKEN, after.sequence, fact)

    def compare(self, anchor: Head) -> None:
        """Compare the entries with an earlier head of the chain. One before the anchor cannot be compared."""
        if anchor.sequence < self.anchor.sequence:
            return
        if self._hashes.get(anchor.sequence) != anchor.hash:
            fact = f"chain {self.chain}: entry {anchor.sequence} differs from its anchor; rolled back or rewritten"
            self.report(Fault.SET_BACK, anchor.sequence, fact)


def _place(row: Item) -> int:
    """Return the position of a row, or 0 for an invalid key."""
    text = str(row["SK"])
    return int(text) if _SORT.fullmatch(text) else 0
