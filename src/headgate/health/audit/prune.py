"""Audit pruning: deletes old entries of each chain, and leaves a sealed anchor from which the rest verifies.

The anchor is written before the entries are deleted: a crash in between leaves entries that the next call deletes. A
chain is pruned only as far as it verifies, so that pruning never hides tampering.
"""

from __future__ import annotations

from typing import Final

import structlog

from headgate.clock import Clock
from headgate.errors import ConflictError, CorruptionError
from headgate.health.audit.hash_chain import (
    CHAINS,
    Anchor,
    Record,
    anchor_key,
    anchor_of,
    anchor_write,
    head_key,
    head_of,
    read_record,
)
from headgate.health.audit.verify import Walk
from headgate.health.model.timestamps import instant
from headgate.store.catalogue.tables import AUDIT
from headgate.store.keyring import Keyring
from headgate.store.model.requests import Delete, Query, Range, Sort
from headgate.store.model.values import Item
from headgate.store.port import Store

_PAGE: Final = 500
_TRANSACTION: Final = 100
_log = structlog.get_logger(__name__)


class AuditPruner:
    """Deletes entries past their retention, but never the last entry of a chain."""

    def __init__(self, store: Store, clock: Clock, keyring: Keyring) -> None:
        self._store = store
        self._clock = clock
        self._keyring = keyring

    def prune(self, *, kept_seconds: float, limit: int = 1000) -> int:
        """Delete up to about `limit` entries older than this, and return their number."""
        before = instant(int((self._clock.seconds() - kept_seconds) * 1000))
        deleted = 0
        for chain in range(CHAINS):
            if deleted >= limit:
                break
            try:
                deleted += self._prune_pages(chain, before, limit - deleted)
            except CorruptionError as exc:
                # The chain keeps its entries, for the investigation; others need not wait.
                _log.critical("audit chain is not pruned", action="audit.prune", chain=chain, error=exc.message)
        return deleted

    def _prune_pages(self, chain: int, before: str, limit: int) -> int:
        """Prune a chain page by page: one entity may have nearly all entries, and so one chain."""
        deleted = 0
        while deleted < limit:
            page = min(_PAGE, limit - deleted)
            count = self._prune_chain(chain, before, page)
            deleted += count
            if count < page:
                break
        return deleted

    def _prune_chain(self, chain: int, before: str, limit: int) -> int:
        anchor = anchor_of(self._store.get(AUDIT, anchor_key(chain), consistent=True), chain, self._keyring)
        head = head_of(self._store.get(AUDIT, head_key(chain), consistent=True), chain, self._keyring)
        rows = self._oldest(chain, limit + 1)
        records = self._verified(anchor, rows)
        due = [each for each in records if anchor.sequence < each.sequence < head.sequence and each.at < before]
        due = due[:limit]
        if due and not self._move(anchor, due[-1], len(due)):
            return 0
        through = due[-1].sequence if due else anchor.sequence
        gone = [row for row in rows if row["SK"] <= f"{through:012d}"]
        for start in range(0, len(gone), _TRANSACTION):
            # Oldest first and whole, so that an interrupted pruning leaves no gap.
            self._store.transact([Delete(AUDIT, AUDIT.key_of(row)) for row in gone[start : start + _TRANSACTION]])
        return len(gone)

    def _move(self, anchor: Anchor, last: Record, count: int) -> bool:
        now = instant(int(self._clock.seconds() * 1000))
        after = Anchor(anchor.chain, last.sequence, last.hash, last.at, anchor.count + count, now)
        try:
            self._store.transact([anchor_write(anchor, after, self._keyring)])
        except ConflictError:
            # Another process prunes the chain.
            return False
        return True

    def _oldest(self, chain: int, limit: int) -> list[Item]:
        sort = Sort(Range.BETWEEN, f"{1:012d}", f"{10**12 - 1:012d}")
        query = Query(table=AUDIT, partition=f"AUDIT#{chain}", sort=sort, limit=limit, consistent=True)
        return self._store.query(query).items

    def _verified(self, anchor: Anchor, rows: list[Item]) -> list[Record]:
        """Return the entries. Raises `CorruptionError` if they do not follow from the anchor."""
        walk = Walk(anchor)
        for row in rows:
            walk.take(row, set())
        if walk.problems:
            raise CorruptionError(f"audit chain {anchor.chain}: {walk.problems[0].fact}; run 'headgate audit verify'")
        return [read_record(row) for row in rows]
