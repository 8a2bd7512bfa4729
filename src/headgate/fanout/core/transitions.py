"""Chunk transitions: changes of chunks with their counters, batched into transactions.

A change holds the row as read and the row to write, and is fenced on the former. If another process has changed the
chunk meanwhile, that change is refused and returned with the current row; the others of its transaction are committed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

import msgspec
from msgspec import Struct

from headgate.errors import ConflictError, CorruptionError, HeadgateError, OutcomeUnknownError
from headgate.fanout.model.counts import counter_add, counter_delta
from headgate.fanout.model.rows import Chunk
from headgate.fanout.model.states import Disposition, is_legal
from headgate.store.catalogue.tables import FANOUT
from headgate.store.model.conditions import AllOf, Compare, Comparison, Condition, any_of, at_most, lacks
from headgate.store.model.requests import Check, Put, Update, Write
from headgate.store.model.values import Item
from headgate.store.port import Store

# Of a transaction's 100 writes, one is the counter; a change may also carry extra writes.
WRITES_MAX: Final = 96
# Of a transaction's limit of 4 MB.
BYTES_MAX: Final = 3_000_000
# Below the first size, a whole put is cheaper than a diff; above the second, the row is put whole, because only a put
# can spill its largest attribute into a blob.
INPUT_BYTES_SMALL: Final = 2_000
ROW_BYTES_SURE: Final = 300_000
_BYTES_USUAL: Final = 2_000
# The texts of a row that may be long.
_texts_of: Final = attrgetter(
    "input", "output", "item_errors", "message", "deferred", "error", "printed", "further_item_errors", "rerun_items"
)
_ROW_BYTES_MAX: Final = 400 * 1024


class ChunkChange(Struct, frozen=True):
    """The change of one chunk. `before` is None for a new chunk."""

    before: Chunk | None
    after: Chunk
    # Further additions to the counter: attempts, items, time.
    counted: Mapping[str, int] = {}
    # Written in the same transaction: an attempt's row, the slow-lane chunk.
    extra_writes: tuple[Write, ...] = ()
    # Justified by an expired lease: a later heartbeat invalidates the change.
    is_overdue: bool = False

    def writes(self) -> list[Write]:
        """Return the writes of this change, the chunk's own first."""
        if self.before is None:
            return [self.after.put(None), *self.extra_writes]
        if not is_legal(self.before.disposition, self.after.disposition):
            raise CorruptionError(
                f"chunk {self.after.chunk_id} of {self.after.run_id}: "
                f"{self.before.disposition} cannot become {self.after.disposition}"
            )
        if self._is_written_whole():
            return [self.after.put(self._fence()), *self.extra_writes]
        # An update of the differing attributes only: the items are large and never change.
        before, after = msgspec.to_builtins(self.before), msgspec.to_builtins(self.after)
        changed = {name: value for name, value in after.items() if before.get(name) != value}
        gone = tuple(name for name in before if name not in after)
        return [Update(FANOUT, self.after.key, set=changed, remove=gone, condition=self._fence()), *self.extra_writes]

    def _is_written_whole(self) -> bool:
        return _bytes(self.after.input) < INPUT_BYTES_SMALL or _row_bytes(self.after) > ROW_BYTES_SURE

    def bytes_written(self) -> int:
        """Return an upper estimate of the bytes this change writes."""
        written = _row_bytes(self.after)
        if self.before is not None and not self._is_written_whole():
            written -= _bytes(self.after.input)
        return min(written, _ROW_BYTES_MAX) + sum(map(_extra_bytes, self.extra_writes))

    def _fence(self) -> Condition:
        assert self.before is not None
        fence = self.before.fence()
        if not self.is_overdue or self.before.lease_expires_at is None:
            return fence
        lease = Compare("lease_expires_at", Comparison.EQUALS, self.before.lease_expires_at)
        return AllOf((*fence.clauses, lease))

    def delta(self) -> dict[str, int]:
        """Return what this change adds to the chunk's counter."""
        delta = counter_delta(self.before, self.after)
        for name, amount in self.counted.items():
            delta[name] = delta.get(name, 0) + amount
        return delta


class RefusedChange(Struct, frozen=True):
    """A change that was not committed, with the current row if the chunk had changed."""

    change: ChunkChange
    current: Item | None


class TransitionGuard(Struct, frozen=True):
    """Extra conditions on every transaction: checks, and an upper bound on one counter bucket."""

    checks: tuple[Check, ...] = ()
    bucket: str = ""
    count_max: int | None = None

    def of_counter(self, delta: Mapping[str, int]) -> Condition | None:
        """Return the condition on the counter that receives this delta."""
        if self.count_max is None:
            return None
        return any_of(lacks(self.bucket), at_most(self.bucket, self.count_max - delta.get(self.bucket, 0)))


_NO_GUARD: Final = TransitionGuard()


def apply(store: Store, changes: Sequence[ChunkChange], *, guard: TransitionGuard = _NO_GUARD) -> list[RefusedChange]:
    """Commit all changes whose chunk is unchanged, and return the others. One committed before counts as committed.

    Changes that the guard rejects are returned too. Raises store errors; some changes may then be committed.
    """
    refused: list[RefusedChange] = []
    left = list(changes)
    while left:
        groups = transaction_groups(left)
        outcomes = _commit(store, [[*writes_of(group, guard), *guard.checks] for group in groups])
        left = []
        for group, outcome in zip(groups, outcomes, strict=True):
            if outcome is None:
                continue
            refused_here = refused_changes(group, outcome)
            if not refused_here and guard is _NO_GUARD:
                raise outcome
            # No chunk had changed, so the guard rejected the whole group.
            refused_here = refused_here or [RefusedChange(change, None) for change in group]
            refused += [one for one in refused_here if not _is_committed(one)]
            gone = {id(one.change) for one in refused_here}
            left += [change for change in group if id(change) not in gone]
    return refused


def _commit(store: Store, transactions: list[list[Write]]) -> list[HeadgateError | None]:
    if len(transactions) > 1:
        return store.transact_many(transactions)
    try:
        store.transact(transactions[0])
    except OutcomeUnknownError:
        raise
    except ConflictError as exc:
        return [exc]
    return [None]


def transaction_groups(changes: Sequence[ChunkChange]) -> list[list[ChunkChange]]:
    """Group the changes by counter into sets that fit a transaction."""
    groups: list[list[ChunkChange]] = []
    latest: dict[tuple[str, int], tuple[list[ChunkChange], int, int]] = {}
    for change in changes:
        counter = (change.after.run_id, change.after.shard)
        size, weight = 1 + len(change.extra_writes), change.bytes_written()
        group, writes, used = latest.get(counter, ([], WRITES_MAX, 0))
        if writes + size > WRITES_MAX or (group and used + weight > BYTES_MAX):
            group, writes, used = [], 0, 0
            groups.append(group)
        group.append(change)
        latest[counter] = (group, writes + size, used + weight)
    return groups


def _row_bytes(chunk: Chunk) -> int:
    return _BYTES_USUAL + sum(map(_bytes, filter(None, _texts_of(chunk))))


def _extra_bytes(write: Write) -> int:
    item: Mapping[str, Any] = write.item if isinstance(write, Put) else {}
    names = ("input", "output", "item_errors", "deferred", "traceback", "printed")
    texts = [item.get(name) for name in names]
    return min(_BYTES_USUAL + sum(map(_bytes, texts)), _ROW_BYTES_MAX)


def _bytes(text: str | None) -> int:
    if text is None:
        return 0
    return len(text) if text.isascii() else len(text.encode())


def writes_of(group: Sequence[ChunkChange], guard: TransitionGuard = _NO_GUARD) -> list[Write]:
    """Return the writes of a group, its counter's last."""
    delta: dict[str, int] = {}
    writes: list[Write] = []
    for change in group:
        writes += change.writes()
        for name, amount in change.delta().items():
            delta[name] = delta.get(name, 0) + amount
    counter = counter_add(group[0].after.run_id, group[0].after.shard, delta, guard.of_counter(delta))
    return [*writes, counter] if counter.add else writes


def refused_changes(group: Sequence[ChunkChange], error: HeadgateError) -> list[RefusedChange]:
    """Return the changes of a rejected transaction that were refused. Raises errors other than a failed condition."""
    if not isinstance(error, ConflictError) or isinstance(error, OutcomeUnknownError):
        raise error
    refused_here: list[RefusedChange] = []
    offset = 0
    for change in group:
        size = 1 + len(change.extra_writes)
        if any(number in error.failures for number in range(offset, offset + size)):
            refused_here.append(RefusedChange(change, error.failures.get(offset)))
        offset += size
    return refused_here


def _is_committed(refused: RefusedChange) -> bool:
    """Whether the chunk already is in the state of the change: it was committed and the response was lost."""
    current, after = refused.current, refused.change.after
    if current is None or current.get("token") != after.token:
        return False
    # A deferred chunk may be done by now.
    further = {Disposition.DEFERRED: Disposition.DONE}.get(after.disposition, after.disposition)
    return current.get("disposition") in (after.disposition.value, further.value)
