"""Regions: a lease for the one writer region, a fence with its epoch on every write, and merging of rows.

Conditions hold within one region only: two writing regions would each win their own race, and replication would
silently drop one of the writes. So a lease makes one region the writer, and each change of writer has its own epoch.
The lease is in an authority, a store that survives either region: a table in a third region, or one that is
consistent across regions. Each region stores the epoch beside its data, and every write checks it in its own
transaction, so that a writer that missed a change is rejected as soon as the region knows the new epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from headgate.clock import Clock
from headgate.errors import ConflictError, StoreBusyError, StoreIOError
from headgate.store.catalogue.tables import AUDIT, CONTROL
from headgate.store.model.conditions import Condition, absent, all_of, any_of, equals, lacks, less_than, version_is
from headgate.store.model.requests import Check, Delete, Put, Update, Write
from headgate.store.model.schema import Key, Table
from headgate.store.model.values import Item
from headgate.store.port import Store

EPOCH: Final = "region_epoch"
WRITER: Final = "writer_region"
LEASE_SECONDS: Final = 60.0
# A region stops writing this long before its lease ends, to allow for clock skew between regions.
SKEW_SECONDS: Final = 5.0
_LEASE_KEY: Final = Key("REGION#WRITER", "LEASE")
_EPOCH_KEY: Final = Key("REGION#EPOCH", "EPOCH")
_MERGE_TRIES_MAX: Final = 50


class Lease(msgspec.Struct, frozen=True):
    """The writer region, its epoch, and the end of its lease."""

    region: str
    epoch: int
    expires_ms: int
    version: int


class WriterLease:
    """The lease in the authority. Epochs only grow; a region that renews its lease keeps its epoch."""

    def __init__(self, authority: Store, clock: Clock, *, lease_seconds: float = LEASE_SECONDS) -> None:
        self._authority = authority
        self._clock = clock
        self._lease_ms = round(1000 * lease_seconds)

    @property
    def lease_seconds(self) -> float:
        return self._lease_ms / 1000

    def read(self) -> Lease | None:
        """Return the current lease, expired or not; None before the first."""
        row = self._authority.get(CONTROL, _LEASE_KEY, consistent=True)
        return None if row is None else _lease(row)

    def hold(self, region: str) -> Lease:
        """Renew the lease of a region, or acquire an expired one.

        Raises `StoreBusyError` while another region holds it.
        """
        found = self.read()
        now_ms = self._now_ms()
        if found is not None and found.region != region and now_ms < found.expires_ms:
            raise _not_the_writer(region, found)
        is_renewal = found is not None and found.region == region and now_ms < found.expires_ms
        return self._write(found, region, is_renewal=is_renewal)

    def release(self, lease: Lease) -> None:
        """End the lease now, so that another region need not wait. Does nothing if it is not the current one."""
        row = self._row(Lease(lease.region, lease.epoch, self._now_ms(), lease.version + 1))
        try:
            self._authority.put(CONTROL, row, condition=version_is(lease.version))
        except ConflictError:
            return

    def _write(self, found: Lease | None, region: str, *, is_renewal: bool) -> Lease:
        epoch = 1 if found is None else found.epoch + (not is_renewal)
        version = 1 if found is None else found.version + 1
        lease = Lease(region, epoch, self._now_ms() + self._lease_ms, version)
        condition: Condition = absent() if found is None else version_is(found.version)
        try:
            self._authority.put(CONTROL, self._row(lease), condition=condition)
        except ConflictError as exc:
            if exc.current is None:
                raise
            held = _lease(exc.current)
            if held.region == region and self._now_ms() < held.expires_ms:
                # Another process of the same region renewed it.
                return held
            raise _not_the_writer(region, held) from exc
        return lease

    def _row(self, lease: Lease) -> Item:
        return {**CONTROL.key_attributes(_LEASE_KEY), **msgspec.to_builtins(lease)}

    def _now_ms(self) -> int:
        return round(1000 * self._clock.seconds())


class Fence:
    """Lets the writes of a region through only while it is the writer, and marks them with its epoch."""

    def __init__(self, store: Store, region: str, clock: Clock, *, skew_seconds: float = SKEW_SECONDS) -> None:
        self._store = store
        self._region = region
        self._clock = clock
        self._skew_ms = round(1000 * skew_seconds)
        self._lease: Lease | None = None

    def enter(self, lease: Lease) -> None:
        """Open under this lease: raise the epoch beside the data, then let writes through.

        Raises `StoreBusyError` if the region knows a later epoch.
        """
        raise_epoch(self._store, lease.epoch, lease.region)
        self._lease = lease

    def leave(self) -> None:
        """Close: let no more writes through."""
        self._lease = None

    def is_open(self) -> bool:
        """Whether writes are let through now."""
        lease = self._lease
        return (
            lease is not None
            and lease.region == self._region
            and 1000 * self._clock.seconds() < lease.expires_ms - self._skew_ms
        )

    def fence_writes(self, writes: Sequence[Write]) -> list[Write]:
        """Return the marked writes, and a check that the region is still at this epoch, for one transaction.

        The check comes last, so that the caller's writes keep their indexes; it takes one of the hundred places.
        Raises `StoreBusyError` if the region is not the writer.
        """
        lease = self._lease
        if lease is None or not self.is_open():
            raise _not_the_writer(self._region, lease)
        fence = Check(CONTROL, _EPOCH_KEY, all_of(equals("epoch", lease.epoch), equals("region", lease.region)))
        return [*self.marked(writes), fence]

    def marked(self, writes: Sequence[Write]) -> list[Write]:
        """Return the writes marked with the current epoch. Raises `StoreBusyError` as `fence_writes` does.

        Audit entries are not marked: they are hashed as they are, and never replaced.
        """
        lease = self._lease
        if lease is None or not self.is_open():
            raise _not_the_writer(self._region, lease)
        marks = {EPOCH: lease.epoch, WRITER: lease.region}
        return [write if write.table is AUDIT else _marked(write, marks) for write in writes]

    def check(self) -> None:
        """Raise `StoreBusyError` if the region is not the writer, or its stored epoch is later."""
        lease = self._lease
        if lease is None or not self.is_open():
            raise _not_the_writer(self._region, lease)
        if known_epoch(self._store) != (lease.epoch, lease.region):
            raise self.passed()

    def passed(self) -> StoreBusyError:
        """Close the fence, and return the error."""
        self.leave()
        return StoreBusyError(
            f"region {self._region}: its epoch is over and it is no longer the writer; write to the writer region"
        )

    def transact(self, writes: Sequence[Write], *, token: str | None = None) -> None:
        """Apply all of `writes` or none, if the region is the writer.

        Raises as the store does, and `StoreBusyError` if the region is not the writer or no longer at this epoch.
        """
        try:
            self._store.transact(self.fence_writes(writes), token=token)
        except ConflictError as exc:
            if len(writes) in exc.failures:
                raise self.passed() from exc
            raise


def raise_epoch(store: Store, epoch: int, region: str) -> None:
    """Store an epoch in a region. Raises `StoreBusyError` if the region knows a later one. Idempotent."""
    row = {**CONTROL.key_attributes(_EPOCH_KEY), "epoch": epoch, "region": region}
    condition = any_of(absent(), less_than("epoch", epoch), all_of(equals("epoch", epoch), equals("region", region)))
    try:
        store.put(CONTROL, row, condition=condition)
    except ConflictError as exc:
        known = exc.current or {}
        raise StoreBusyError(
            f"region {region}: epoch {epoch} is over, {known.get('region')} writes under {known.get('epoch')}; "
            "acquire the lease again"
        ) from exc


def known_epoch(store: Store) -> tuple[int, str] | None:
    """Return the epoch and the writer that a region has stored."""
    row = store.get(CONTROL, _EPOCH_KEY, consistent=True)
    return None if row is None else (row["epoch"], row["region"])


# Merging.


def rank(item: Mapping[str, Any]) -> tuple[int, str, int, str, bytes]:
    """Return the sort key of copies of one row: the epoch, then the window, the version and the region.

    The content comes last, so that even two conflicting rows are ordered alike everywhere.
    """
    return (
        int(item.get(EPOCH, 0)),
        str(item.get("window_end") or ""),
        int(item.get("version") or 0),
        str(item.get(WRITER, "")),
        msgspec.json.encode(dict(item), order="deterministic"),
    )


def merged(left: Item | None, right: Item | None) -> Item | None:
    """Return the copy that wins. The result does not depend on the order or number of merges."""
    if left is None or right is None:
        return right if left is None else left
    return left if rank(left) >= rank(right) else right


class Replica:
    """Merges rows of another region into a store, in any order and any number of times.

    Deletes are not merged: rows disappear by their expiry, which is part of them.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def take(self, table: Table, item: Item) -> bool:
        """Merge one copy, and return whether it replaced the stored row. A row never gets older.

        Raises `StoreIOError` if the row keeps changing, which only an illegitimate writer causes.
        """
        key = table.key_of(item)
        current = self._store.get(table, key, consistent=True)
        for _ in range(_MERGE_TRIES_MAX):
            if current is not None and rank(current) >= rank(item):
                return False
            try:
                self._store.put(table, item, condition=_unchanged(current))
            except ConflictError as exc:
                current = exc.current
            else:
                return True
        raise StoreIOError(
            f"table {table.name}, item {tuple(key)}: changes faster than it can be merged; check for a second writer"
        )

    def learn_epoch(self, epoch: int, region: str) -> None:
        """Store the epoch of another region, unless this one knows a later one."""
        try:
            raise_epoch(self._store, epoch, region)
        except StoreBusyError:
            return


def _unchanged(current: Item | None) -> Condition:
    if current is None:
        return absent()
    marks = (EPOCH, WRITER, "version")
    return all_of(*(equals(name, current[name]) if name in current else lacks(name) for name in marks))


def _marked(write: Write, marks: Mapping[str, Any]) -> Write:
    match write:
        case Put():
            return Put(write.table, {**write.item, **marks}, write.condition)
        case Update():
            changed = {**write.set, **marks}
            return Update(write.table, write.key, changed, write.add, write.remove, write.condition)
        case Delete() | Check():
            return write


def _lease(row: Mapping[str, Any]) -> Lease:
    return Lease(row["region"], row["epoch"], row["expires_ms"], row["version"])


def _not_the_writer(region: str, lease: Lease | None) -> StoreBusyError:
    who = "there is no writer" if lease is None else f"{lease.region} is, under epoch {lease.epoch}"
    return StoreBusyError(f"region {region}: not the writer ({who}); write to the writer region")
