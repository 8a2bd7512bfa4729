"""A store with fan-outs in it, whatever workers do to them, and a crash at any write that a test chooses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from headgate.clock import VirtualClock
from headgate.errors import HeadgateError
from headgate.fanout.core import queries as queries
from headgate.fanout.core.attempts import AttemptFailure, AttemptResult
from headgate.fanout.core.maintenance import FanoutMaintenance
from headgate.fanout.core.queries import FanoutQueries
from headgate.fanout.core.splitter import Order, Splitter
from headgate.fanout.core.tracking import Claim, Tracker
from headgate.fanout.model.counts import NAMES, Counts
from headgate.fanout.model.rows import ACTIVE, Chunk, Fanout, Policy, counter_key
from headgate.fanout.model.sources import ListSource, Source
from headgate.fanout.model.states import Disposition
from headgate.fanout.repair.control import FanoutControl
from headgate.ids import IdMaker
from headgate.store.catalogue.tables import FANOUT
from headgate.store.model.requests import Query, Update, Write
from headgate.store.model.values import Item
from headgate.store.port import Store
from headgate.store.sqlite.store import Synchronous
from tests.stores import open_sqlite

RUN = "run"
# What differs from one telling of the same story to another.
_VOLATILE = ("token", "version", "repairs")


class CrashError(Exception):
    """The process is gone."""


class CrashingStore:
    """A store whose user dies at the n-th write, either just before it or just after, its answer not having come."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.writes = 0
        self.crash_at = 0
        self.is_applied = False
        # What others do just before each read, and just before each write.
        self.before_read: Callable[[], None] = lambda: None
        self.before_write: Callable[[], None] = lambda: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def get(self, *args: Any, **options: Any) -> Item | None:
        self.before_read()
        return self._store.get(*args, **options)

    def get_many(self, *args: Any, **options: Any) -> list[Item | None]:
        self.before_read()
        return self._store.get_many(*args, **options)

    def query(self, query: Query) -> Any:
        self.before_read()
        return self._store.query(query)

    def transact(self, writes: Sequence[Write], *, token: str | None = None) -> None:
        self._write(lambda: self._store.transact(writes, token=token))

    def transact_many(self, transactions: Sequence[Sequence[Write]]) -> list[HeadgateError | None]:
        outcomes: list[HeadgateError | None] = self._write(lambda: self._store.transact_many(transactions))
        return outcomes

    def _write(self, call: Callable[[], Any]) -> Any:
        self.writes += 1
        self.before_write()
        if self.writes == self.crash_at and not self.is_applied:
            raise CrashError
        answer = call()
        if self.writes == self.crash_at:
            raise CrashError
        return answer


def once(act: Callable[[], object]) -> Callable[[], None]:
    """Return what does something the first time that it is called."""
    left = [act]

    def do() -> None:
        if left:
            left.pop()()

    return do


def read_in_pages(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """Make every scan read so many at a time."""
    monkeypatch.setattr(queries, "PAGE_MAX", rows)
    monkeypatch.setattr(queries, "ROWS_AT_ONCE", rows)


class World:
    """One store, its clock, and all that workers of a fan-out need."""

    def __init__(self, folder: Path, *, shards: int = 1) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.clock = VirtualClock()
        self.ids = IdMaker(self.clock)
        self.sqlite = open_sqlite(folder, clock=self.clock, synchronous=Synchronous.NORMAL)
        self.crashing = CrashingStore(self.sqlite)
        self.store: Store = self.crashing
        # What tests and workers do goes past the crash.
        self.queries = FanoutQueries(self.sqlite, self.clock)
        self.splitter = Splitter(self.sqlite, self.clock, self.ids, shards=shards, send=lambda fanout: fanout)
        self.tracker = Tracker(self.sqlite, self.clock, self.ids, draw=lambda: 0.0)
        self.control = FanoutControl(self.sqlite, self.clock, self.ids)
        self.maintenance = FanoutMaintenance(self.sqlite, self.clock, self.ids, draw=lambda: 0.0)

    def split(
        self, source: Source | int, size: int = 1, *, queue_url: str | None = None, run_id: str = RUN, **policy: Any
    ) -> Fanout:
        """Make a fan-out, of so many items or of a source."""
        if isinstance(source, int):
            source = ListSource([f"item {number}" for number in range(source)])
        order = Order(group="grs-15", chunk_size=size, policy=Policy(**policy), queue_url=queue_url)
        return self.splitter.split(order, source, run_id=run_id)

    def row(self, chunk_id: str) -> Chunk:
        return self.queries.chunk(RUN, chunk_id)

    def rows(self) -> list[Chunk]:
        """All chunks and pieces in their order."""
        return [chunk for slow in (False, True) for chunk in self.queries.every_chunk(RUN, slow=slow)]

    def dispositions(self) -> dict[str, str]:
        return {chunk.chunk_id: chunk.disposition.value for chunk in self.rows()}

    def fanout(self) -> Fanout:
        return self.queries.fanout(RUN, consistent=True)

    def counts(self) -> Counts:
        return self.queries.counts(self.fanout())

    # What workers do.

    def claim(self, chunk_id: str) -> Claim:
        start = self.tracker.start(RUN, chunk_id, worker="w")
        assert start.claim is not None, f"{chunk_id}: {start.admission}"
        return start.claim

    def complete(self, chunk_id: str, **result: Any) -> None:
        self.tracker.complete(self.claim(chunk_id), AttemptResult(**result))

    def fail(self, chunk_id: str, error_class: str = "ValueError", message: str = "bad", **failure: Any) -> Chunk:
        return self.tracker.fail(self.claim(chunk_id), AttemptFailure(error_class, message, **failure))

    def kill(self, *chunk_ids: str, error_class: str = "ValueError", message: str = "bad") -> None:
        """Have chunks fail until no try is left."""
        for chunk_id in chunk_ids:
            while self.fail(chunk_id, error_class, message).disposition is Disposition.RETRYING:
                pass

    def tend(self) -> Fanout:
        """Have the fan-out tended until nothing changes, and return it."""
        self.maintenance.maintain(RUN)
        return self.fanout()

    def close(self) -> None:
        """Let go of the store."""
        self.sqlite.close()

    def corrupt(self, shard: int = 0, **amounts: int) -> None:
        """Add to a counter what no row has moved."""
        key = counter_key(RUN, shard)
        self.sqlite.transact([Update(FANOUT, key, add=amounts)], token=self.ids.ulid())

    # What must hold at any time.

    def check(self) -> None:
        """Assert that every counter is what its rows add up to, and that none overlooks an open chunk."""
        fanout = self.fanout()
        truth: dict[int, dict[str, int]] = {shard: {} for shard in range(fanout.shards)}
        for chunk in self.rows():
            counter = truth[chunk.shard]
            for name, amount in _adds(chunk):
                counter[name] = counter.get(name, 0) + amount
        for shard, expected in truth.items():
            row = self.sqlite.get(FANOUT, counter_key(RUN, shard)) or {}
            found = {name: row[name] for name in _RECOUNTED & set(row) if row[name]}
            assert found == {name: amount for name, amount in expected.items() if amount}, f"counter {shard}"
        counts = self.counts()
        assert counts.drift() == 0
        for chunk in self.rows():
            left = chunk.items - chunk.items_ok - chunk.items_failed - chunk.items_deferred
            is_known = chunk.sk.startswith("CHUNK#") and chunk.disposition.status in ("COMPLETED", "FAILED")
            assert not (is_known and left), f"{chunk.chunk_id}: {left} items are in no bucket"
        is_open = counts.open or counts.slow_open
        assert not (is_open and fanout.is_finished), "an open chunk in a fan-out that counts as over"
        assert not (is_open and fanout.attention_pk != ACTIVE), "an open chunk in a fan-out that no sweep reads"

    def snapshot(self) -> list[Item]:
        """Everything that is stored of the fan-out, but for what chance decides."""
        items: list[Item] = []
        events: dict[str, int] = {}
        cursor = None
        while True:
            page = self.sqlite.query(Query(table=FANOUT, partition=RUN, limit=1000, cursor=cursor, consistent=True))
            for item in page.items:
                if item["SK"].startswith("EVT#"):
                    events[item["kind"]] = events.get(item["kind"], 0) + item.get("count", 1)
                else:
                    items.append({name: value for name, value in item.items() if name not in _VOLATILE})
            cursor = page.cursor
            if cursor is None:
                return [*items, events]


_RECOUNTED = {
    name
    for name in NAMES
    if name.startswith(("slow_", "items_")) or name in {"total", *(each.bucket for each in Disposition)}
}


def _adds(chunk: Chunk) -> Iterator[tuple[str, int]]:
    """Give what a row adds to which number, computed separately from the code under test."""
    if chunk.sk.startswith("SLOW#"):
        yield "slow_total", 1
        yield f"slow_{chunk.disposition.value.lower()}", 1
        if chunk.disposition in (Disposition.DEAD, Disposition.QUARANTINED):
            yield "items_failed", chunk.items
            yield "items_dead", chunk.items
            yield "items_deferred", -chunk.items
        return
    yield "total", 1
    yield chunk.disposition.value.lower(), 1
    yield "items_total", chunk.items
    yield "items_ok", chunk.items_ok
    yield "items_failed", chunk.items_failed
    yield "items_dead", chunk.items_failed if chunk.disposition.status == "FAILED" else 0
    yield "items_deferred", chunk.items_deferred


def crash_everywhere(
    folder: Path,
    build: Callable[[Path], World],
    act: Callable[[World], object],
    *,
    during: Callable[[World], object] = World.check,
) -> int:
    """Do something with a crash at each of its writes in turn, then again, and see that it comes to the same.

    `act` must bear to be done again after it was done; `during` checks what must hold right after the crash. Returns
    how many writes it has.
    """
    with closing(build(folder / "calm")) as calm:
        act(calm)
        calm.check()
        expected, writes = calm.snapshot(), calm.crashing.writes
    for is_applied in (False, True):
        for number in range(1, writes + 1):
            with closing(build(folder / f"{number}-{is_applied}")) as world:
                world.crashing.crash_at, world.crashing.is_applied = number, is_applied
                with suppress(CrashError):
                    act(world)
                assert world.crashing.writes == number, "it died there"
                during(world)
                act(world)
                world.check()
                assert world.snapshot() == expected, f"crash {'after' if is_applied else 'before'} write {number}"
    return writes
