"""Audit: who changed what and why, committed with the change itself and kept so that tampering shows."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

import msgspec

from headgate.auth.audit_entry import AuditEntry, AuditLog, change_digest, changed_fields
from headgate.clock import Clock
from headgate.errors import ConflictError, CorruptionError, NotFoundError, OutcomeUnknownError, StoreBusyError
from headgate.health.audit.hash_chain import (
    CHAINS,
    Head,
    Record,
    chain_of,
    check_entry,
    entry_write,
    following,
    head_key,
    head_of,
    head_write,
    record_of,
)
from headgate.health.audit.listing import Entries, Merge, entries_of, last_row
from headgate.health.audit.verify import Fault, Problem, Report, Verifier
from headgate.health.model.timestamps import moment
from headgate.ids import IdMaker
from headgate.store.catalogue.tables import AUDIT
from headgate.store.keyring import Keyring
from headgate.store.model.conditions import absent, equals
from headgate.store.model.requests import Write
from headgate.store.port import Store

# Each time another process was faster; within this one they queue.
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

    A chain whose head is not as it was sealed takes no more entries, and so no more changes: going on would seal the
    forgery.
    """

    def __init__(self, store: Store, clock: Clock, ids: IdMaker, keyring: Keyring) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids
        self._keyring = keyring
        self._locks = [threading.RLock() for _ in range(CHAINS)]
        # As this process last saw them: saves a read for each commit, and shows a chain that was set back.
        self._heads: dict[int, Head] = {}

    def commit(self, writes: Sequence[Write], entry: AuditEntry) -> None:
        """Apply `writes` together with an audit entry, or neither. There is room for 98 writes.

        Raises the `ConflictError` of the caller's own writes, numbered as they were given; `StoreBusyError` if other
        processes were faster again and again; `CorruptionError` if the chain was tampered with.
        """
        check_entry(entry)
        chain = chain_of(entry.entity)
        with self._locks[chain]:
            for _ in range(ATTEMPTS_MAX):
                if self._committed(writes, entry, self._head(chain)):
                    return
        raise StoreBusyError(
            f"audit chain {chain}: other processes were faster {ATTEMPTS_MAX} times; {entry.action} of {entry.entity} "
            "was not done, try it again"
        )

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
        """Return entries, the newest first, of one entity or of all. Both ends of the time are included.

        With an `actor`, the page is what remains of a page of all. For one entity an index is asked, which may lag.
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
        """Look at every entry, and return what is wrong: see `audit_verifying` for what can be seen and what cannot.

        `anchors` are heads that `heads` returned earlier. Those that this process saw are among them by themselves.
        """
        return Verifier(self._store, self._keyring).verify([*anchors, *self._heads.values()])

    def heads(self) -> list[Head]:
        """Return where each chain ends, to be kept elsewhere and given to `verify` later. Raises `CorruptionError`."""
        rows = self._store.get_many(AUDIT, [head_key(chain) for chain in range(CHAINS)], consistent=True)
        heads = [head_of(row, chain, self._keyring) for chain, row in enumerate(rows)]
        return [head for head in heads if head.sequence]

    def reopen(self, chain: int, *, actor: str, reason: str) -> Head:
        """Let a chain that was tampered with take entries again, once someone has looked at it.

        The first of them says that and why. What is wrong with entries stays wrong; a head that was is sealed anew, and
        returned.
        Raises `ConflictError` if someone else is at it.
        """
        if not 0 <= chain < CHAINS:
            raise NotFoundError(f"audit chain {chain}: there are chains 0 to {CHAINS - 1}")
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

    def _end(self, chain: int) -> Head:
        """Return the end of a chain by its entries and by what this process knows, whatever its head says."""
        known = self._heads.get(chain, Head(chain))
        last = last_row(self._store, chain)
        # What the row says of itself may be forged; where it lies is where nothing more can be put.
        found = Head(chain) if last is None else Head(chain, int(last["SK"]), str(last.get("hash", "")))
        return known if found.sequence < known.sequence else found

    def _head(self, chain: int) -> Head:
        head = self._heads.get(chain)
        if head is None:
            head = self._seen(head_of(self._store.get(AUDIT, head_key(chain), consistent=True), chain, self._keyring))
        return head

    def _committed(self, writes: Sequence[Write], entry: AuditEntry, head: Head) -> bool:
        """Try once. Returns whether it is done; if not, the head that won is known now."""
        record = record_of(entry, head, self._ids.make("aud"), int(self._clock.seconds() * 1000))
        own = [entry_write(record), head_write(head, following(record), self._keyring)]
        try:
            self._store.transact([*writes, *own])
        except OutcomeUnknownError:
            # The caller must read. A head that is older than the store's costs the next commit one more attempt.
            raise
        except ConflictError as exc:
            return self._settled(exc, record, len(writes))
        self._seen(following(record))
        return True

    def _settled(self, conflict: ConflictError, record: Record, count: int) -> bool:
        """Return whether the transaction was applied after all. Raises what the caller is to know."""
        place = count + 1
        if place in conflict.failures:
            head = self._seen(head_of(conflict.failures[place], record.chain, self._keyring))
            if head.hash == record.hash:
                return True
        theirs = {index: item for index, item in conflict.failures.items() if index < count}
        if theirs:
            # Theirs come first, so what the error says of the first one is said of theirs already.
            conflict.failures = theirs
            raise conflict
        if place not in conflict.failures:
            raise CorruptionError(
                f"audit chain {record.chain}: there is an entry {record.sequence} after its end, so its head was set "
                "back; 'headgate audit verify' says what is wrong"
            ) from conflict
        return False

    def _seen(self, head: Head) -> Head:
        """Remember a head. Raises `CorruptionError` if it is older than one that was seen before."""
        known = self._heads.get(head.chain)
        if known is not None and head.sequence < known.sequence:
            raise CorruptionError(
                f"audit chain {head.chain}: it had {known.sequence} entries and now has {head.sequence}; "
                "it was set back; 'headgate audit verify' says what is wrong"
            )
        self._heads[head.chain] = head
        return head
