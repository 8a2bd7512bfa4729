"""Changes: moves of chunks and their counts, many to a transaction, each alone in whether it is still right.

A change carries the row as it was read and the row as it is to be. Whoever has moved the chunk meanwhile wins: the
change is then left out, the others of its transaction go ahead, and its maker is told what the row is now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from headgate.errors import ConflictError, CorruptionError, HeadgateError, OutcomeUnknownError
from headgate.fanout.model.counts import added, moved
from headgate.fanout.model.rows import Chunk
from headgate.fanout.model.states import Disposition, is_legal
from headgate.store.catalogue.tables import FANOUT
from headgate.store.model.conditions import AllOf, Compare, Comparison, Condition, any_of, at_most, lacks
from headgate.store.model.requests import Check, Put, Update, Write
from headgate.store.model.values import Item
from headgate.store.port import Store

# One of a transaction's 100 writes is the counter, and a change may come with writes of its own.
WRITES_MAX: Final = 96
# Of a transaction's 4 MB.
BYTES_MAX: Final = 3_000_000
# Below the first, working out what differs costs more than writing it all; above the second, only a row that is written
# whole can have its largest part put elsewhere.
INPUT_BYTES_SMALL: Final = 2_000
ROW_BYTES_SURE: Final = 300_000
_BYTES_USUAL: Final = 2_000
_ROW_BYTES_MAX: Final = 400 * 1024


class ChunkChange(Struct, frozen=True):
    """One chunk's move. `before` is None for a chunk that is new."""

    before: Chunk | None
    after: Chunk
    # What else this adds to the counter: attempts, items, time.
    counted: Mapping[str, int] = {}
    # Written with it: the row of an attempt, the chunk of the slow lane.
    beside: tuple[Write, ...] = ()
    # Made because the lease has run out: a heartbeat since then makes it wrong.
    is_overdue: bool = False

    def writes(self) -> list[Write]:
        """Return the writes that make this change, the chunk's own first."""
        if self.before is None:
            return [self.after.put(None), *self.beside]
        if not is_legal(self.before.disposition, self.after.disposition):
            raise CorruptionError(
                f"chunk {self.after.chunk_id} of {self.after.run_id}: "
                f"{self.before.disposition} cannot become {self.after.disposition}"
            )
        if self._is_written_whole():
            return [self.after.put(self._fence()), *self.beside]
        # Only what differs: the items are large and never change.
        before, after = msgspec.to_builtins(self.before), msgspec.to_builtins(self.after)
        changed = {name: value for name, value in after.items() if before.get(name) != value}
        gone = tuple(name for name in before if name not in after)
        return [Update(FANOUT, self.after.key, set=changed, remove=gone, condition=self._fence()), *self.beside]

    def _is_written_whole(self) -> bool:
        return _bytes(self.after.input) < INPUT_BYTES_SMALL or _row_bytes(self.after) > ROW_BYTES_SURE

    def bytes_written(self) -> int:
        """Return about how much a change writes, and never much less."""
        written = _row_bytes(self.after)
        if self.before is not None and not self._is_written_whole():
            written -= _bytes(self.after.input)
        return min(written, _ROW_BYTES_MAX) + sum(_beside_bytes(write) for write in self.beside)

    def _fence(self) -> Condition:
        assert self.before is not None
        fence = self.before.fence()
        if not self.is_overdue or self.before.lease_expires_at is None:
            return fence
        lease = Compare("lease_expires_at", Comparison.EQUALS, self.before.lease_expires_at)
        return AllOf((*fence.clauses, lease))

    def delta(self) -> dict[str, int]:
        """Return what this adds to the chunk's counter."""
        delta = moved(self.before, self.after)
        for name, amount in self.counted.items():
            delta[name] = delta.get(name, 0) + amount
        return delta


class RefusedChange(Struct, frozen=True):
    """A change that was not made, and the row as it is now, if that is why."""

    change: ChunkChange
    current: Item | None


class Guard(Struct, frozen=True):
    """What must hold for every transaction besides: checks, and how full a bucket may get."""

    checks: tuple[Check, ...] = ()
    bucket: str = ""
    count_max: int | None = None

    def of_counter(self, delta: Mapping[str, int]) -> Condition | None:
        """Return the condition on the counter that takes this delta."""
        if self.count_max is None:
            return None
        return any_of(lacks(self.bucket), at_most(self.bucket, self.count_max - delta.get(self.bucket, 0)))


_FREE: Final = Guard()


def apply(store: Store, changes: Sequence[ChunkChange], *, guard: Guard = _FREE) -> list[RefusedChange]:
    """Make all changes that are still right, and return the others. One that was made before counts as made.

    What the guard does not let pass is returned as well. Raises what the store raises; some changes may then have
    been made.
    """
    refused: list[RefusedChange] = []
    left = list(changes)
    while left:
        groups = grouped(left)
        outcomes = _commit(store, [[*writes_of(group, guard), *guard.checks] for group in groups])
        left = []
        for group, outcome in zip(groups, outcomes, strict=True):
            if outcome is None:
                continue
            late = late_of(group, outcome)
            if not late and guard is _FREE:
                raise outcome
            # Without one that is late it was the guard, and that refuses them all.
            late = late or [RefusedChange(change, None) for change in group]
            refused += [one for one in late if not _is_made(one)]
            gone = {id(one.change) for one in late}
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


def grouped(changes: Sequence[ChunkChange]) -> list[list[ChunkChange]]:
    """Return the changes in groups of one counter each that fit into a transaction."""
    groups: list[list[ChunkChange]] = []
    latest: dict[tuple[str, int], tuple[list[ChunkChange], int, int]] = {}
    for change in changes:
        place = (change.after.run_id, change.after.shard)
        size, weight = 1 + len(change.beside), change.bytes_written()
        group, writes, used = latest.get(place, ([], WRITES_MAX, 0))
        if writes + size > WRITES_MAX or (group and used + weight > BYTES_MAX):
            group, writes, used = [], 0, 0
            groups.append(group)
        group.append(change)
        latest[place] = (group, writes + size, used + weight)
    return groups


def _row_bytes(chunk: Chunk) -> int:
    texts = (chunk.input, chunk.output, chunk.item_errors, chunk.message, chunk.deferred, chunk.error)
    return _BYTES_USUAL + sum(map(_bytes, texts))


def _beside_bytes(write: Write) -> int:
    item: Mapping[str, Any] = write.item if isinstance(write, Put) else {}
    texts = (item.get("input"), item.get("item_errors"), item.get("deferred"))
    return min(_BYTES_USUAL + sum(map(_bytes, texts)), _ROW_BYTES_MAX)


def _bytes(text: str | None) -> int:
    if text is None:
        return 0
    return len(text) if text.isascii() else len(text.encode())


def writes_of(group: Sequence[ChunkChange], guard: Guard = _FREE) -> list[Write]:
    """Return the writes that make the changes of a group, their counter's last."""
    delta: dict[str, int] = {}
    writes: list[Write] = []
    for change in group:
        writes += change.writes()
        for name, amount in change.delta().items():
            delta[name] = delta.get(name, 0) + amount
    counter = added(group[0].after.run_id, group[0].after.shard, delta, guard.of_counter(delta))
    return [*writes, counter] if counter.add else writes


def late_of(group: Sequence[ChunkChange], refusal: HeadgateError) -> list[RefusedChange]:
    """Return which changes of a refused transaction were too late. Raises if it was not refused for a condition."""
    if not isinstance(refusal, ConflictError) or isinstance(refusal, OutcomeUnknownError):
        raise refusal
    late: list[RefusedChange] = []
    place = 0
    for change in group:
        size = 1 + len(change.beside)
        if any(number in refusal.failures for number in range(place, place + size)):
            late.append(RefusedChange(change, refusal.failures.get(place)))
        place += size
    return late


def _is_made(refused: RefusedChange) -> bool:
    """Whether the chunk is where the change was to take it: it was made before, and the answer was lost."""
    current, after = refused.current, refused.change.after
    if current is None or current.get("token") != after.token:
        return False
    # What was deferred may be done by now.
    further = {Disposition.DEFERRED: Disposition.DONE}.get(after.disposition, after.disposition)
    return current.get("disposition") in (after.disposition.value, further.value)
