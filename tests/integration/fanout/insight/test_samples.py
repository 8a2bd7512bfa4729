"""Samples of fan-outs in a store: how they are spread, and what they cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from headgate.clock import VirtualClock
from headgate.fanout.core.queries import FanoutQueries
from headgate.fanout.insight import samples
from headgate.fanout.insight.samples import mapped, sampled, sampled_attempts
from headgate.fanout.model.counts import Counts
from headgate.fanout.model.rows import Chunk, Fanout
from headgate.fanout.model.states import AttemptOutcome, Disposition
from headgate.store.catalogue.tables import FANOUT
from headgate.store.model.requests import Put
from headgate.store.sqlite.store import SqliteStore, Synchronous
from tests.stores import open_sqlite
from tests.unit.fanout.made_rows import SIZE, T0, made_attempt, made_chunk, made_fanout

CHUNKS = 5000
Fill = Callable[[Callable[[int], Chunk]], Fanout]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    opened = open_sqlite(tmp_path, clock=VirtualClock(T0 / 1000), synchronous=Synchronous.NORMAL)
    yield opened
    opened.close()


@pytest.fixture
def fill(store: SqliteStore) -> Fill:
    def write(make: Callable[[int], Chunk]) -> Fanout:
        puts = [Put(FANOUT, msgspec.to_builtins(make(number))) for number in range(CHUNKS)]
        for first in range(0, CHUNKS, 100):
            store.transact(puts[first : first + 100])
        return made_fanout(items_total=CHUNKS * SIZE, chunks_total=CHUNKS)

    return write


def test_sampled__many_chunks__come_from_all_over_at_a_bounded_cost(store: SqliteStore, fill: Fill) -> None:
    fanout = fill(lambda number: made_chunk(number))
    before = store.stats.queries

    sample = sampled(store, fanout, Counts(total=CHUNKS, done=CHUNKS))

    assert not sample.is_whole
    assert len(sample.chunks) == samples.SAMPLE_MAX
    assert len({chunk.sk for chunk in sample.chunks}) == samples.SAMPLE_MAX
    tenths = [sum(1 for chunk in sample.chunks if chunk.start * 10 // fanout.items_total == n) for n in range(10)]
    assert tenths == [100] * 10
    assert store.stats.queries - before <= samples.PLACES + 2


def test_sampled__no_more_chunks_than_asked_for__are_all_there(
    store: SqliteStore, fill: Fill, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples, "BYTES_MAX", 10**9)
    fanout = fill(lambda number: made_chunk(number))

    sample = sampled(store, fanout, Counts(total=CHUNKS, done=CHUNKS), limit=CHUNKS)

    assert [chunk.start for chunk in sample.chunks] == list(range(0, CHUNKS * SIZE, SIZE))
    assert sample.is_whole


def test_sampled__work_has_only_begun__come_from_where_workers_have_been(store: SqliteStore, fill: Fill) -> None:
    fanout = fill(lambda number: made_chunk(number, Disposition.DONE if number < 250 else Disposition.QUEUED))

    sample = sampled(store, fanout, Counts(total=CHUNKS, done=250, queued=CHUNKS - 250))

    assert sum(chunk.disposition is Disposition.DONE for chunk in sample.chunks) == 250


def test_sampled__rows_that_hold_much__are_fewer(
    store: SqliteStore, fill: Fill, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples, "BYTES_MAX", 1_200_000)
    fanout = fill(lambda number: made_chunk(number, input="x" * 5000))

    sample = sampled(store, fanout, Counts(total=CHUNKS, done=CHUNKS))

    assert len(sample.chunks) == 200


def test_sampled__no_chunks__is_empty_and_whole(store: SqliteStore) -> None:
    sample = sampled(store, made_fanout(), Counts())

    assert (sample.chunks, sample.is_whole) == ([], True)


def test_sampled__slow_lane_and_other_rows__are_not_chunks_of_the_main_lane(store: SqliteStore) -> None:
    slow = made_chunk(0, sk="SLOW#slow-0000000")
    store.transact([made_chunk(0).put(None), slow.put(None), made_attempt(0, 1, AttemptOutcome.FAILED).put()])

    sample = sampled(store, made_fanout(items_total=SIZE), Counts(total=1, done=1))

    assert [chunk.chunk_id for chunk in sample.chunks] == ["chunk-0000000"]


def test_sampled_attempts__attempts_at_some_chunks__are_found_where_they_are(store: SqliteStore) -> None:
    rows = [made_attempt(number, attempt, AttemptOutcome.FAILED) for number in range(0, 1000, 40) for attempt in (1, 2)]
    store.transact([row.put() for row in rows])

    found = sampled_attempts(store, made_fanout(items_total=1000 * SIZE))

    assert found == sorted(rows, key=lambda row: row.sk)


def test_sampled_attempts__a_chunk_at_the_end_of_a_stretch__is_not_missed(store: SqliteStore) -> None:
    rows = [made_attempt(0, 1, AttemptOutcome.FAILED, sk=f"ATT#chunk-{start:07d}#0001") for start in range(100)]
    store.transact([row.put() for row in rows])

    assert sampled_attempts(store, made_fanout(items_total=100)) == rows


def test_mapped__few_chunks__are_all_read(store: SqliteStore, fill: Fill) -> None:
    fanout = fill(lambda number: made_chunk(number))
    queries = FanoutQueries(store, VirtualClock(T0 / 1000))

    rows = mapped(store, queries, fanout, Counts(total=CHUNKS, done=CHUNKS))

    assert sum(1 for _ in rows.chunks) == CHUNKS
    assert rows.cells_max == samples.MAPPED_MAX


def test_mapped__many_chunks__has_every_failure_and_a_sample(
    store: SqliteStore, fill: Fill, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples, "MAPPED_MAX", CHUNKS - 1)
    fanout = fill(lambda number: made_chunk(number, Disposition.DEAD if number % 1000 == 7 else Disposition.DONE))
    store.transact([made_chunk(1, Disposition.DEAD, sk="SLOW#slow-0000010").put(None)])
    queries = FanoutQueries(store, VirtualClock(T0 / 1000))

    rows = mapped(store, queries, fanout, Counts(total=CHUNKS, done=CHUNKS - 5, dead=5))
    chunks = list(rows.chunks)

    assert {chunk.start for chunk in chunks if chunk.disposition is Disposition.DEAD} >= {
        SIZE * number for number in (7, 1007, 2007, 3007, 4007)
    }
    assert len(chunks) == samples.MAP_PLACES + 5
    assert rows.cells_max == samples.MAP_PLACES
