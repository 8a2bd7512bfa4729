"""Audit log: commits each change together with an entry about it, in tamper-evident hash chains."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from typing import Final

import msgspec

from headgate.auth.audit_entry import AuditEntry, AuditLog, change_digest, changed_fields
from headgate.clock import Clock
from headgate.errors import ConflictError, CorruptionError, NotFoundError, OutcomeUnknownError, StoreBusyError
from headgate.health.audit.hash_chain import (
    CHAINS,
    Head,
    Record,
    anchor_key,
    chain_of,
    check_entry,
    entry_write,
    following,
    head_key,
    head_of,
    head_write,
    record_of,
    resealed_anchor,
)
from headgate.health.audit.listing import Entries, Merge, entries_of, last_row
from headgate.health.audit.prune import AuditPruner
from headgate.health.audit.verify import Fault, Problem, Report, Verifier
from headgate.health.model.timestamps import moment
from headgate.ids import IdMaker
from headgate.store.catalogue.tables import AUDIT
from headgate.store.keyring import Keyring
from headgate.store.model.conditions import absent, equals
from headgate.store.model.requests import Write
from headgate.store.port import Store

# Conflicts with other processes; threads of one process queue.
ATTEMPTS_MAX: Final = 32

__all__ = [
    "Audit",
    "AuditEntry",
    "AuditLog",
    "Entries",
    "Fault",
    "Head",
    "Problem",
    "Record",
    "Report",
    "change_digest",
    "changed_fields",
]


class Audit:
    """Commits changes with an entry about them. Safe to use from many threads.

    A chain whose head has an invalid seal accepts no entries, and so no changes: continuing would seal the forgery.
    """

    def __init__(self, store: Store, clock: Clock, ids: IdMaker, keyring: Keyring) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids
        self._keyring = keyring
        self._locks = [threading.RLock() for _ in range(CHAINS)]
        # Last seen heads: they save a read for each commit, and reveal a chain that was rolled back.
        self._heads: dict[int, Head] = {}

    def commit(self, writes: Sequence[Write], entry: AuditEntry) -> None:
        """Apply `writes` together with an audit entry, or neither. There is room for 98 writes.

        Raises the `ConflictError` of the caller's own writes, with their indexes; `StoreBusyError` after too many
        conflicts with other processes; `CorruptionError` if the chain was tampered with.
        """
        check_entry(entry)
        chain = chain_of(entry.entity)
        with self._locks[chain]:
            for _ in range(ATTEMPTS_MAX):
                if self._committed(writes, entry, self._head(chain)):
                    return
        raise StoreBusyError(
            f"audit chain {chain}: {ATTEMPTS_MAX} conflicts with other processes; {entry.action} of {entry.entity} "
            "was not done, try again"
        )

    def require_intact(self, entity: str) -> None:
        """Raise `CorruptionError` if the chain of an entity was tampered with and so accepts no entries."""
        chain = chain_of(entity)
        with self._locks[chain]:
            self._head(chain)

    def ls(
        self,
        entity: str | None = None,
        *,
        since: str | None = None,
        until: str | None = None,
        actor: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Entries:
        """Return entries, newest first, of one entity or of all. Both ends of the period are included.

        With an `actor`, a page is filtered from a page of all. For one entity an index is read, which may lag.
        """
        earliest = None if since is None else moment(since, field="since")
        latest = None if until is None else moment(until, field="until")
        if earliest is not None and latest is not None and earliest > latest:
            return Entries([])
        if entity is not None:
            page = entries_of(self._store, entity, since=earliest, until=latest, limit=limit, cursor=cursor)
        else:
            merge = Merge(self._store, self._keyring)
            page = merge.page(since=earliest, until=latest, limit=limit, cursor=cursor, actor=actor)
        return Entries([each for each in page.entries if actor is None or each.actor == actor], page.cursor)

    def verify(self, anchors: Sequence[Head] = ()) -> Report:
        """Check every entry, and return the problems: see `verify` for what can be detected.

        `anchors` are heads that `heads` returned earlier. The heads that this process saw are checked as well.
        """
        return Verifier(self._store, self._keyring).verify([*anchors, *self._heads.values()])

    def prune(self, *, kept_seconds: float, limit: int = 1000) -> int:
        """Delete entries older than this, leaving a sealed anchor for each chain; return their number."""
        return AuditPruner(self._store, self._clock, self._keyring).prune(kept_seconds=kept_seconds, limit=limit)

    def heads(self) -> list[Head]:
        """Return the head of each chain, to be stored elsewhere for a later `verify`. Raises `CorruptionError`."""
        rows = self._store.get_many(AUDIT, [head_key(chain) for chain in range(CHAINS)], consistent=True)
        heads = [head_of(row, chain, self._keyring) for chain, row in enumerate(rows)]
        return [head for head in heads if head.sequence]

    def has_valid_head(self, chain: int) -> bool:
        """Whether the head of a chain has a valid seal, so that the chain accepts entries."""
        try:
            head_of(self._store.get(AUDIT, head_key(chain), consistent=True), chain, self._keyring)
        except CorruptionError:
            return False
        return True

    def reopen(self, chain: int, *, actor: str, reason: str) -> Head:
        """Let a tampered chain accept entries again, after an investigation.

        The first new entry records the reopening and its reason. Faulty entries stay; a faulty head is sealed again and
        returned. Raises `ConflictError` for a concurrent reopening.
        """
        if not 0 <= chain < CHAINS:
            raise NotFoundError(f"audit chain {chain}: the chains are 0 to {CHAINS - 1}")
        entry = AuditEntry(actor, "audit.reopen", f"audit chain {chain}", None, None, reason=reason)
        check_entry(entry)
        with self._locks[chain]:
            row = self._store.get(AUDIT, head_key(chain), consistent=True)
            record = record_of(entry, self._end(chain), self._ids.make("aud"), int(self._clock.seconds() * 1000))
            head = following(record)
            condition = absent() if row is None else equals("seal", str(row.get("seal")))
            move = msgspec.structs.replace(head_write(head, head, self._keyring), condition=condition)
            self._store.transact([entry_write(record), move])
            self._heads[chain] = head
            return head

    def reseal_anchor(self, chain: int, lost_keys: Collection[str]) -> None:
        """Seal the anchor of a pruned chain again if its key is lost. Entries are still compared with it."""
        row = self._store.get(AUDIT, anchor_key(chain), consistent=True)
        write = None if row is None else resealed_anchor(row, chain, lost_keys, self._keyring)
        if write is not None:
            self._store.transact([write])

    def _end(self, chain: int) -> Head:
        """Return the end of a chain by its entries and the last seen head, whatever its stored head is."""
        known = self._heads.get(chain, Head(chain))
        last = last_row(self._store, chain)
        # The content of the row may be forged; its position is where nothing more can be written.
        found = Head(chain) if last is None else Head(chain, int(last["SK"]), str(last.get("hash", "")))
        return known if found.sequence < known.sequence else found

    def _head(self, chain: int) -> Head:
        head = self._heads.get(chain)
        if head is None:
            head = self._seen(head_of(self._store.get(AUDIT, head_key(chain), consistent=True), chain, self._keyring))
        return head

    def _committed(self, writes: Sequence[Write], entry: AuditEntry, head: Head) -> bool:
        """Try once. Return whether it was committed; if not, the winning head is known now."""
        record = record_of(entry, head, self._ids.make("aud"), int(self._clock.seconds() * 1000))
        own = [entry_write(record), head_write(head, following(record), self._keyring)]
        try:
            self._store.transact([*writes, *own])
        except OutcomeUnknownError:
            # The caller must read. A head older than the store's costs the next commit one more attempt.
            raise
        except ConflictError as exc:
            return self._settled(exc, record, len(writes))
        self._seen(following(record))
        return True

    def _settled(self, conflict: ConflictError, record: Record, count: int) -> bool:
        """Return whether the transaction was applied after all. Raises the caller's own error."""
        place = count + 1
        if place in conflict.failures:
            head = self._seen(head_of(conflict.failures[place], record.chain, self._keyring))
            if head.hash == record.hash:
                return True
        theirs = {index: item for index, item in conflict.failures.items() if index < count}
        if theirs:
            # The caller's writes come first, so the indexes in the error are correct.
            conflict.failures = theirs
            raise conflict
        if place not in conflict.failures:
            raise CorruptionError(
                f"audit chain {record.chain}: there is an entry {record.sequence} after its end, so the head was "
                "rolled back; run 'headgate audit verify'"
            ) from conflict
        return False

    def _seen(self, head: Head) -> Head:
        """Store a last seen head. Raises `CorruptionError` if it is older than one seen before."""
        known = self._heads.get(head.chain)
        if known is not None and head.sequence < known.sequence:
            raise CorruptionError(
                f"audit chain {head.chain}: it had {known.sequence} entries and now has {head.sequence}; "
                "it was rolled back; run 'headgate audit verify'"
            )
        self._heads[head.chain] = head
        return head
