"""The books of a fan-out, audited from its rows alone: what the counters must say, and where chunks must be found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from headgate.clock import VirtualClock
from headgate.fanout.core.attempts import item_indexes
from headgate.fanout.core.maintenance import FanoutMaintenance
from headgate.fanout.core.observer import NoObserver
from headgate.fanout.core.queries import FanoutQueries
from headgate.fanout.core.splitter import Order, Splitter
from headgate.fanout.core.tracking import Claim, Tracker
from headgate.fanout.local.claims import Claims
from headgate.fanout.model.counts import NAMES, Counts
from headgate.fanout.model.rows import (
    Attempt,
    Chunk,
    Fanout,
    Policy,
    attempt_of,
    chunk_of,
    failed_items_partition,
    fanout_of,
)
from headgate.fanout.model.sources import ListSource, Source
from headgate.fanout.model.states import Disposition, FanoutStatus
from headgate.fanout.repair.control import FanoutControl
from headgate.ids import IdMaker
from headgate.store.catalogue.tables import FANOUT
from headgate.store.model.requests import Query, Write
from headgate.store.model.values import Item
from headgate.store.port import Store
from headgate.store.sqlite.store import Synchronous
from tests.stores import open_sqlite

RUN = "run-1"
OPEN = (Disposition.WAITING, Disposition.QUEUED, Disposition.RETRYING, Disposition.RUNNING)
COMPLETED = (Disposition.DONE, Disposition.DEFERRED)
FAILED = (Disposition.DEAD, Disposition.QUARANTINED)
# What is counted of things that leave no row.
UNTOLD = {"duplicates", "redriven", "lost", "busy_ms", "wasted_ms"}


class ClosedFanouts(NoObserver):
    """Records the fan-outs that were closed, and the counts they closed with."""

    def __init__(self) -> None:
        self.closed: list[tuple[str, FanoutStatus]] = []
        self.counts: list[Counts] = []

    def closing_writes(self, fanout: Fanout, counts: Counts) -> list[Write]:
        del fanout
        self.counts.append(counts)
        return []

    def on_closed(self, fanout: Fanout) -> None:
        self.closed.append((fanout.run_id, fanout.status))


class Shop:
    """Everything that handles fan-outs around one store, with a clock that stands still."""

    def __init__(self, store: Store, clock: VirtualClock, *, shards: int = 1, ids: IdMaker | None = None) -> None:
        self.store = store
        self.clock = clock
        self.ids = ids or IdMaker(clock)
        self.splitter = Splitter(store, clock, self.ids, shards=shards)
        self.tracker = Tracker(store, clock, self.ids, draw=lambda: 0.0)
        self.observer = ClosedFanouts()
        self.maintenance = FanoutMaintenance(store, clock, self.ids, observer=self.observer, draw=lambda: 0.0)
        self.control = FanoutControl(store, clock, self.ids)
        self.queries = FanoutQueries(store, clock)
        self.now_ms = self.queries.now_ms

    def close_with_last_chunk(self) -> None:
        """Have the tracker fold counts, and close a fan-out when its last chunk ends."""
        self.tracker = Tracker(self.store, self.clock, self.ids, maintenance=self.maintenance, draw=lambda: 0.0)

    @classmethod
    def open(cls, folder: Path, *, shards: int = 1) -> Shop:
        """Open a shop on a new store. A copy of an empty one: making all its tables is what takes the time."""
        clock = VirtualClock()
        (folder / "headgate.db").write_bytes(_empty_store())
        return cls(open_sqlite(folder, clock=clock, synchronous=Synchronous.NORMAL), clock, shards=shards)

    def split(
        self, items: Sequence[Any] | Source, *, size: int = 1, run_id: str = RUN, group: str = "g", **policy: Any
    ) -> Fanout:
        source = ListSource(items) if isinstance(items, Sequence) else items
        return self.splitter.split(Order(group, size, policy=Policy(**policy)), source, run_id=run_id)

    def claims(self, worker: str = "w", **options: Any) -> Claims:
        return Claims(self.store, self.clock, self.ids, worker=worker, draw=lambda: 0.0, **options)

    def start(self, chunk_id: str, *, worker: str = "w", run_id: str = RUN, **options: Any) -> Claim:
        claim = self.tracker.start(run_id, chunk_id, worker=worker, **options).claim
        assert claim is not None
        return claim

    def fanout(self, run_id: str = RUN) -> Fanout:
        return self.queries.fanout(run_id, consistent=True)

    def chunk(self, chunk_id: str, run_id: str = RUN) -> Chunk:
        return self.queries.chunk(run_id, chunk_id)

    def counts(self, run_id: str = RUN) -> Counts:
        return self.queries.counts(self.fanout(run_id))

    def books(self, run_id: str = RUN) -> Books:
        return read_books(self.store, run_id)

    def check(self, run_id: str = RUN, *, indexes: bool = True) -> Books:
        """Audit everything that must hold at any moment, and return what was read."""
        books = self.books(run_id)
        check_books(books)
        if indexes:
            check_found(self.store, books)
        return books


@cache
def _empty_store() -> bytes:
    with TemporaryDirectory() as folder:
        open_sqlite(Path(folder), clock=VirtualClock(), synchronous=Synchronous.NORMAL).close()
        return (Path(folder) / "headgate.db").read_bytes()


def places(count: int) -> list[str]:
    """Return the ids of the first chunks of a fan-out with chunks of one item."""
    return [f"chunk-{number:07d}" for number in range(count)]


@dataclass
class Books:
    """All rows of one fan-out at one moment."""

    fanout: Fanout
    chunks: dict[str, Chunk] = field(default_factory=dict)
    attempts: dict[str, dict[int, Attempt]] = field(default_factory=dict)
    counters: dict[int, Item] = field(default_factory=dict)
    events: list[Item] = field(default_factory=list)

    @property
    def main(self) -> list[Chunk]:
        return [chunk for chunk in self.chunks.values() if chunk.lane == "main"]

    @property
    def slow(self) -> list[Chunk]:
        return [chunk for chunk in self.chunks.values() if chunk.lane == "slow"]


def read_books(store: Store, run_id: str) -> Books:
    """Read every row of a fan-out."""
    items = list(_every(store, Query(table=FANOUT, partition=run_id, limit=1000, consistent=True)))
    rows = {item["SK"]: item for item in items}
    books = Books(fanout_of(rows.pop("RUN")))
    for sk, item in rows.items():
        kind, _, rest = sk.partition("#")
        match kind:
            case "CHUNK" | "SLOW":
                books.chunks[rest] = chunk_of(item)
            case "ATT":
                books.attempts.setdefault(rest.partition("#")[0], {})[int(item["attempt"])] = attempt_of(item)
            case "CTR":
                books.counters[int(rest)] = item
            case _:
                books.events.append(item)
    return books


def check_books(books: Books) -> None:
    """The counters, shard by shard, are what the rows add up to, and every row is right by itself."""
    run_id = books.fanout.run_id
    assert len(books.counters) == books.fanout.shards, f"{run_id}: counters {sorted(books.counters)}"
    recounted = _recounted(books)
    for shard, counter in books.counters.items():
        said = {name: value for name, value in counter.items() if name in NAMES - UNTOLD and value}
        assert said == recounted[shard], f"{run_id}, counter {shard}: says {said}, rows {recounted[shard]}"
        buckets = sum(counter.get(disposition.bucket, 0) for disposition in Disposition)
        assert buckets == counter.get("total", 0), f"{run_id}, counter {shard}: {counter}"
        negative = {name: counter[name] for name in NAMES if counter.get(name, 0) < 0}
        assert not negative, f"{run_id}, counter {shard}: {negative}"
    for chunk in books.chunks.values():
        check_chunk(chunk, books.attempts.get(chunk.chunk_id, {}))
    for piece in books.slow:
        check_piece(piece, books.chunks[piece.chunk_id.replace("slow", "chunk")])
    check_fanout(books)


def check_chunk(chunk: Chunk, attempts: Mapping[int, Attempt]) -> None:
    """A row says the same in each of its attributes, and its attempts are all there."""
    name = f"{chunk.run_id} {chunk.chunk_id} ({chunk.disposition}, attempt {chunk.attempt})"
    assert chunk.status is chunk.disposition.status, f"{name}: status {chunk.status}"
    is_queued = chunk.disposition in (Disposition.QUEUED, Disposition.RETRYING)
    # Deferred items that failed run again in the slow lane, in the chunk that deferred them.
    lanes = {chunk.lane} if chunk.rerun_items is None else {"main", "slow"}
    in_queue = chunk.queue_pk in {f"{chunk.run_id}#{lane}" for lane in lanes}
    assert in_queue is is_queued, f"{name}: queue {chunk.queue_pk}"
    assert (chunk.queue_sk is not None) is is_queued, f"{name}: queue place {chunk.queue_sk}"
    is_running = chunk.disposition is Disposition.RUNNING
    assert (chunk.attention_pk == f"{chunk.run_id}#RUNNING") is is_running, f"{name}: {chunk.attention_pk}"
    assert (chunk.lease_expires_at is not None) is is_running, f"{name}: lease {chunk.lease_expires_at}"
    if is_running:
        assert str(chunk.attention_sk).startswith(str(chunk.lease_expires_at)), f"{name}: {chunk.attention_sk}"
    assert 0 <= chunk.tried <= chunk.attempt, f"{name}: tried {chunk.tried}"
    ended = set(range(1, chunk.attempt + (0 if is_running else 1)))
    if chunk.disposition in COMPLETED:
        # A first attempt that went well has no row of its own.
        ended -= {1} if chunk.attempt == 1 else set()
        assert chunk.items == chunk.items_ok + chunk.items_failed + chunk.items_deferred, f"{name}: {chunk}"
    check_items(chunk, name)
    assert set(attempts) == ended, f"{name}: has rows for the attempts {sorted(attempts)}"


def check_items(chunk: Chunk, name: str) -> None:
    """Each item of a chunk is ok, failed, deferred or open, and none of a failed chunk is open."""
    if chunk.lane == "slow":
        return
    left = chunk.items - chunk.items_ok - chunk.items_failed - chunk.items_deferred
    if chunk.disposition in (*COMPLETED, *FAILED):
        assert left == 0, f"{name}: {left} items are neither ok nor failed nor deferred: {chunk}"
    else:
        rerun = chunk.items if chunk.rerun_items is None else len(item_indexes(chunk))
        assert left >= rerun > 0, f"{name}: {left} items are open, and {rerun} are to run: {chunk}"


def check_piece(piece: Chunk, parent: Chunk) -> None:
    """A piece of the slow lane and its chunk agree."""
    is_done = piece.disposition is Disposition.DONE
    # Failed items of a chunk that is done may run again.
    is_deferred = parent.disposition is Disposition.DEFERRED
    assert is_deferred is not is_done, f"{piece.chunk_id} is {piece.disposition}, its chunk {parent.disposition}"
    assert parent.items_deferred == (0 if is_done else piece.items), f"{parent.chunk_id}: {parent.items_deferred}"


def check_fanout(books: Books) -> None:
    """A fan-out is closed exactly if its books say so, and then says what it has come to."""
    fanout = books.fanout
    name = f"{fanout.run_id} ({fanout.status})"
    is_open = [chunk.chunk_id for chunk in books.chunks.values() if chunk.disposition in OPEN]
    if fanout.finished_at is None:
        assert fanout.attention_pk == "ACTIVE", f"{name}: not finished, and listed under {fanout.attention_pk}"
        return
    assert fanout.attention_pk != "ACTIVE", f"{name}: finished, and still listed as active"
    assert not is_open, f"{name}: finished, and open are {is_open[:5]}"
    expected = expected_status(books)
    assert fanout.status is expected, f"{name}: should be {expected}"
    assert fanout.chunks_total == len(books.main), f"{name}: total {fanout.chunks_total}"
    assert fanout.chunks_completed == _count(books.main, COMPLETED), f"{name}: completed {fanout.chunks_completed}"
    assert fanout.chunks_failed == _count(books.main, FAILED), f"{name}: failed {fanout.chunks_failed}"
    assert fanout.items_total == sum(chunk.items for chunk in books.main), f"{name}: items {fanout.items_total}"
    folded = {key: value for key, value in fanout.counts.items() if key not in UNTOLD}
    sums = _summed(_recounted(books).values())
    assert folded == sums, f"{name}: the row says {folded}, rows add up to {sums}"


def expected_status(books: Books) -> FanoutStatus:
    """What the glossary says of a fan-out none of whose chunks is open."""
    main, fanout = books.main, books.fanout
    cancelled = _count([*main, *books.slow], (Disposition.CANCELLED,))
    if fanout.cancelled_at is not None and (cancelled or fanout.is_cut_short):
        return FanoutStatus.CANCELLED
    failed, completed = _count(main, FAILED), _count(main, COMPLETED)
    if failed and not completed:
        return FanoutStatus.FAILED
    is_whole = not (
        failed or cancelled or _count(main, (Disposition.DEFERRED,)) or sum(chunk.items_failed for chunk in main)
    )
    return FanoutStatus.SUCCEEDED if is_whole else FanoutStatus.PARTIAL


def check_found(store: Store, books: Books) -> None:
    """Every open chunk is in the index where it is looked for, and nothing else is. For indexes that do not lag."""
    run_id = books.fanout.run_id
    indexed: dict[str, set[str]] = {}
    for lane in ("main", "slow"):
        found = _every(store, Query(table=FANOUT, index="queue-index", partition=f"{run_id}#{lane}", limit=1000))
        indexed.setdefault("queue", set()).update(item["SK"].partition("#")[2] for item in found)
    running = Query(table=FANOUT, index="attention-index", partition=f"{run_id}#RUNNING", limit=1000)
    indexed["running"] = {item["SK"].partition("#")[2] for item in _every(store, running)}
    waiting = (Disposition.QUEUED, Disposition.RETRYING)
    chunks = books.chunks.values()
    assert indexed["queue"] == {chunk.chunk_id for chunk in chunks if chunk.disposition in waiting}, run_id
    assert indexed["running"] == {chunk.chunk_id for chunk in chunks if chunk.disposition is Disposition.RUNNING}
    listed = Query(table=FANOUT, index="attention-index", partition=failed_items_partition(run_id), limit=1000)
    with_errors = {chunk.chunk_id for chunk in chunks if chunk.disposition is Disposition.DONE and chunk.item_errors}
    assert {item["SK"].partition("#")[2] for item in _every(store, listed)} == with_errors, run_id
    done = Query(table=FANOUT, index="attention-index", partition=f"{run_id}#DONE", limit=1000)
    listed_done = {chunk.chunk_id for chunk in chunks if chunk.attention_pk == f"{run_id}#DONE"}
    assert {item["SK"].partition("#")[2] for item in _every(store, done)} == listed_done, run_id
    assert all(chunk.disposition is Disposition.DONE for chunk in chunks if chunk.chunk_id in listed_done), run_id
    for about in (*FAILED, Disposition.RETRYING, Disposition.DEFERRED, Disposition.CANCELLED, Disposition.SKIPPED):
        query = Query(table=FANOUT, index="attention-index", partition=f"{run_id}#{about.value}", limit=1000)
        found_ids = {item["SK"].partition("#")[2] for item in _every(store, query)}
        assert found_ids == {chunk.chunk_id for chunk in chunks if chunk.disposition is about}, f"{run_id} {about}"


def _recounted(books: Books) -> dict[int, dict[str, int]]:
    sums: dict[int, dict[str, int]] = {shard: {} for shard in books.counters}
    for chunk in books.chunks.values():
        counter = sums[chunk.shard]
        prefix = "slow_" if chunk.lane == "slow" else ""
        amounts = {
            f"{prefix}total": 1,
            prefix + chunk.disposition.bucket: 1,
            "attempts": chunk.attempt,
            "retries": max(0, chunk.attempt - 1),
        }
        if not prefix:
            amounts |= {"items_total": chunk.items, "items_ok": chunk.items_ok}
            amounts |= {"items_failed": chunk.items_failed, "items_deferred": chunk.items_deferred}
            amounts["items_dead"] = chunk.items_failed if chunk.disposition in FAILED else 0
            amounts["done_listed"] = int(chunk.disposition is Disposition.DONE and chunk.attention_pk is not None)
        elif chunk.disposition in FAILED:
            # Its chunk has deferred these items; they have failed.
            amounts |= {"items_failed": chunk.items, "items_deferred": -chunk.items, "items_dead": chunk.items}
        for name, amount in amounts.items():
            counter[name] = counter.get(name, 0) + amount
    return {shard: {name: value for name, value in counter.items() if value} for shard, counter in sums.items()}


def _summed(counters: Iterable[Mapping[str, int]]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for counter in counters:
        for name, value in counter.items():
            sums[name] = sums.get(name, 0) + value
    return sums


def _count(chunks: Iterable[Chunk], dispositions: Sequence[Disposition]) -> int:
    return sum(chunk.disposition in dispositions for chunk in chunks)


def _every(store: Store, query: Query) -> Iterable[Item]:
    cursor = None
    while True:
        page = store.query(
            Query(
                table=query.table,
                partition=query.partition,
                index=query.index,
                limit=query.limit,
                cursor=cursor,
                consistent=query.consistent,
            )
        )
        yield from page.items
        cursor = page.cursor
        if cursor is None:
            return
