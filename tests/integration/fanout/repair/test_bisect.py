"""Bisecting: a poison chunk is cut until the bad item stands alone, and no item is lost or doubled on the way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from headgate.errors import ConflictError, CorruptionError, NotFoundError, UserError
from headgate.fanout.core.maintenance import FanoutMaintenance
from headgate.fanout.model.rows import ACTIVE, Chunk, Fanout, chunk_key
from headgate.fanout.model.sources import (
    BytesSource,
    LinesSource,
    ListSource,
    Piece,
    RangeSource,
    Source,
    read_items,
)
from headgate.fanout.model.states import Disposition, FanoutStatus
from headgate.fanout.repair.auto_heal import Healer
from headgate.fanout.repair.bisect import Bisector, halves
from headgate.fanout.repair.redrive import ChunkSelection, Redriver
from headgate.store.catalogue.tables import FANOUT
from headgate.store.model.requests import Put
from headgate.store.port import Store
from tests.integration.fanout.worlds import RUN, CrashError, World, crash_everywhere, once
from tests.iterable_source import IterableSource

FIRST = "chunk-0000000"


class Rig(World):
    def __init__(self, folder: Path, *, shards: int = 1) -> None:
        super().__init__(folder, shards=shards)
        self.bisector = Bisector(self.store, self.clock, self.ids)

    def items(self) -> list[Any]:
        """What all chunks together would be handed, in their order."""
        source = msgspec.json.decode(self.fanout().source)
        found: list[Any] = []
        for chunk in self.queries.every_chunk(RUN):
            places = range(chunk.start, chunk.start + chunk.items)
            found += read_items(source, Piece(chunk.start, chunk.items, chunk.input_key, chunk.input), places)
        return found

    def spans(self) -> list[tuple[str, int, int]]:
        return [(chunk.chunk_id, chunk.start, chunk.items) for chunk in self.queries.every_chunk(RUN)]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with closing(Rig(tmp_path)) as rig:
        yield rig
        rig.check()


def test_isolate__a_dead_chunk__becomes_two_that_are_queued(rig: Rig) -> None:
    rig.split(7, size=5)
    rig.kill(FIRST, error_class="OOM", message="killed")
    rig.complete("chunk-0000005")
    ended = rig.tend()
    assert ended.status is FanoutStatus.PARTIAL

    cut = rig.bisector.isolate(RUN, FIRST)

    assert rig.spans() == [(FIRST, 0, 3), ("chunk-0000003", 3, 2), ("chunk-0000005", 5, 2)]
    assert rig.items() == [f"item {number}" for number in range(7)]
    assert list(rig.dispositions().values()) == ["QUEUED", "QUEUED", "DONE"]
    assert cut.other is not None
    assert (cut.chunk.items, cut.other.items) == (3, 2)
    assert cut.description == "the 5 items of chunk-0000000 were split; 2 of them are in chunk-0000003"
    kept, other = rig.row(FIRST), rig.row("chunk-0000003")
    assert (kept.attempt, kept.tried, kept.redrives) == (3, 3, 1)
    assert (other.attempt, other.tried, other.error_class, other.shard) == (0, 0, "OOM", kept.shard)
    assert (kept.input_key, other.input_key) == ("items:0-2", "items:3-4")
    counts, fanout = rig.counts(), rig.fanout()
    assert (counts.total, counts.queued, counts.dead, counts.items_total) == (3, 2, 0, 7)
    assert (fanout.status, fanout.is_finished, fanout.attention_pk) == (FanoutStatus.RUNNING, False, ACTIVE)
    assert (fanout.chunks_total, fanout.chunks, fanout.version) == (3, 3, ended.version + 1)


def test_isolate__both_halves__run_like_any_chunk_and_the_fanout_succeeds(rig: Rig) -> None:
    rig.split(4, size=4)
    rig.kill(FIRST)
    rig.tend()

    rig.bisector.isolate(RUN, FIRST)
    rig.complete(FIRST)
    rig.complete("chunk-0000002", item_errors={3: "odd"})

    assert rig.counts().items_ok == 3
    assert rig.tend().status is FanoutStatus.PARTIAL


def test_isolate__a_half_with_deferred_items__has_a_piece_of_its_own(rig: Rig) -> None:
    rig.split(4, size=4)
    rig.kill(FIRST)
    rig.bisector.isolate(RUN, FIRST)

    rig.complete(FIRST, deferred=[1])
    rig.complete("chunk-0000002", deferred=[2, 3])
    rig.complete("slow-0000000")
    rig.complete("slow-0000002")

    assert rig.tend().status is FanoutStatus.SUCCEEDED
    assert rig.counts().items_ok == 4


def test_isolate__a_single_item__is_put_aside_with_its_error(rig: Rig) -> None:
    rig.split(3)
    rig.kill("chunk-0000001", message="bad spectrum")
    rig.complete(FIRST)
    rig.complete("chunk-0000002")
    rig.tend()

    cut = rig.bisector.isolate(RUN, "chunk-0000001")

    chunk = rig.row("chunk-0000001")
    assert cut.other is None
    assert cut.description == "item 1 is the one that fails: bad spectrum"
    assert (chunk.disposition, chunk.items_failed) == (Disposition.QUARANTINED, 1)
    assert msgspec.json.decode(chunk.item_errors or "") == {"1": "ValueError: bad spectrum"}
    counts = rig.counts()
    assert (counts.dead, counts.quarantined, counts.items_failed, counts.items_ok) == (0, 1, 1, 2)
    ended = rig.tend()
    assert (ended.status, ended.chunks_failed) == (FanoutStatus.PARTIAL, 1)
    assert ended.counts["quarantined"] == 1, "folded anew"


def test_isolate__a_single_item_that_was_rejected__gets_its_item_counted_once(rig: Rig) -> None:
    rig.split(2)
    rig.fail(FIRST, "RejectedError", "never", is_final=True)
    assert (rig.row(FIRST).items_failed, rig.row(FIRST).item_errors) == (1, None)

    rig.bisector.isolate(RUN, FIRST)
    assert (rig.row(FIRST).items_failed, rig.counts().items_failed) == (1, 1)
    again = rig.bisector.isolate(RUN, FIRST)

    assert again.description == "item 0 is put aside already"
    assert rig.counts().items_failed == 1


@pytest.mark.parametrize("final", [False, True])
def test_isolate__a_single_item_of_a_cancelled_fanout__leaves_it_cancelled(rig: Rig, final: bool) -> None:
    rig.split(2, max_attempts=1)
    rig.fail(FIRST, is_final=final)
    rig.control.cancel(RUN)
    rig.tend()

    rig.bisector.isolate(RUN, FIRST)

    ended = rig.tend()
    assert (ended.status, ended.is_finished, ended.counts["items_failed"]) == (FanoutStatus.CANCELLED, True, 1)


def test_isolate__a_single_item_redriven_afterwards__is_no_longer_counted_as_failed(rig: Rig) -> None:
    rig.split(1)
    rig.kill(FIRST)
    rig.bisector.isolate(RUN, FIRST)
    rig.tend()

    Redriver(rig.store, rig.clock, rig.ids).redrive(RUN, ChunkSelection(all=True))

    chunk = rig.row(FIRST)
    assert (chunk.items_failed, chunk.item_errors, rig.counts().items_failed) == (0, None, 0)
    rig.complete(FIRST)
    assert rig.tend().status is FanoutStatus.SUCCEEDED


def test_isolate__again_and_again__finds_the_bad_item(rig: Rig) -> None:
    rig.split(500, size=250, max_attempts=1)
    bad = 333
    rounds = 0
    while True:
        for chunk in list(rig.queries.every_chunk(RUN)):
            if chunk.disposition is not Disposition.QUEUED:
                continue
            if chunk.start <= bad < chunk.start + chunk.items:
                rig.kill(chunk.chunk_id, message="bad")
            else:
                rig.complete(chunk.chunk_id)
        rig.check()
        (dead,) = rig.queries.in_disposition(RUN, Disposition.DEAD).chunks
        rounds += 1
        if rig.bisector.isolate(RUN, dead.chunk_id).other is None:
            break

    assert rounds == 9, "eight cuts of 250, and the verdict"
    (aside,) = rig.queries.in_disposition(RUN, Disposition.QUARANTINED).chunks
    assert (aside.start, aside.items) == (bad, 1)
    assert rig.items() == [f"item {number}" for number in range(500)]
    counts = rig.counts()
    assert (counts.items_ok, counts.items_failed, counts.open) == (499, 1, 0)


def maintenance_of(rig: World, store: Store) -> FanoutMaintenance:
    """Maintenance as a server runs it, with the healer."""
    healer = Healer(store, rig.clock, rig.ids, draw=lambda: 0.0)

    def heal(fanout: Fanout) -> int:
        report = healer.heal(fanout.run_id)
        return report.healed + report.unseen

    return FanoutMaintenance(store, rig.clock, rig.ids, heal=heal, draw=lambda: 0.0)


def run_queued(rig: World, bad: set[int]) -> int:
    """Run all queued chunks, of which those with a bad item die, and return how many ran."""
    queued = [chunk for chunk in rig.rows() if chunk.disposition is Disposition.QUEUED]
    for chunk in queued:
        if bad.isdisjoint(range(chunk.start, chunk.start + chunk.items)):
            rig.complete(chunk.chunk_id)
        else:
            rig.kill(chunk.chunk_id)
    return len(queued)


@pytest.mark.parametrize("bad", [{333}, {250, 333, 499}])
def test_isolate__until_alone__maintenance_cuts_what_fails_until_each_bad_item_is_alone(
    rig: Rig, bad: set[int]
) -> None:
    rig.split(500, size=250, max_attempts=1)
    maintenance = maintenance_of(rig, rig.sqlite)
    run_queued(rig, bad)
    rig.tend()
    assert rig.fanout().is_finished

    cut = rig.bisector.isolate(RUN, "chunk-0000250", until_alone=True)

    assert "until the failing item is alone" in cut.description
    while run_queued(rig, bad):
        maintenance.maintain(RUN)
        rig.check()
    aside = rig.queries.in_disposition(RUN, Disposition.QUARANTINED).chunks
    assert sorted((chunk.start, chunk.items) for chunk in aside) == [(item, 1) for item in sorted(bad)]
    assert rig.items() == [f"item {number}" for number in range(500)]
    counts = rig.counts()
    assert (counts.items_ok, counts.items_failed, counts.open, counts.dead) == (500 - len(bad), len(bad), 0, 0)
    maintenance.maintain(RUN)
    assert rig.fanout().status is FanoutStatus.PARTIAL


def test_isolate__until_alone__other_dead_chunks_are_left_to_the_policy(rig: Rig) -> None:
    rig.split(8, size=4, max_attempts=1)
    run_queued(rig, {1, 6})
    rig.bisector.isolate(RUN, FIRST, until_alone=True)
    maintenance = maintenance_of(rig, rig.sqlite)

    while run_queued(rig, {1}):
        maintenance.maintain(RUN)

    assert rig.dispositions()["chunk-0000004"] == Disposition.DEAD
    assert rig.dispositions()["chunk-0000001"] == Disposition.QUARANTINED


def test_isolate__once__a_half_that_fails_is_not_cut_again(rig: Rig) -> None:
    rig.split(4, size=4, max_attempts=1)
    rig.kill(FIRST)
    rig.bisector.isolate(RUN, FIRST)
    run_queued(rig, {1})

    maintenance_of(rig, rig.sqlite).maintain(RUN)

    assert rig.dispositions() == {FIRST: Disposition.DEAD, "chunk-0000002": Disposition.DONE}


# What is cut.


@pytest.mark.parametrize("kind", ["list", "range", "iterable", "lines", "bytes"])
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_isolate__whatever_the_source__no_item_is_lost_or_doubled_or_moved(
    tmp_path: Path, kind: str, data: st.DataObject
) -> None:
    size = data.draw(st.integers(2, 9))
    source, total = drawn_source(kind, tmp_path, data)
    with closing(Rig(Path(mkdtemp(dir=tmp_path)))) as rig:
        rig.split(source, size, max_attempts=1)
        expected, width = joined(rig.items()), rig.fanout().width
        for _ in range(6):
            queued = [chunk_id for chunk_id, what in rig.dispositions().items() if what == "QUEUED"]
            if not queued:
                break
            chunk_id = data.draw(st.sampled_from(queued))
            rig.kill(chunk_id)
            rig.bisector.isolate(RUN, chunk_id)
            rig.check()
            assert joined(rig.items()) == expected
            spans = rig.spans()
            assert [start for _, start, _ in spans] == sorted(start for _, start, _ in spans)
            assert {len(chunk_id) for chunk_id, _, _ in spans} == {len("chunk-") + width}
        assert rig.counts().items_total == total


def drawn_source(kind: str, folder: Path, data: st.DataObject) -> tuple[Source, int]:
    count = data.draw(st.integers(2, 20))
    values = st.one_of(st.integers(), st.text(max_size=5), st.floats(allow_nan=False, allow_infinity=False), st.none())
    items = data.draw(st.lists(values, min_size=count, max_size=count))
    path = folder / "input"
    if kind == "list":
        return ListSource(items), count
    if kind == "range":
        low = data.draw(st.integers(-50, 50))
        return RangeSource(low, low + count), count
    if kind == "iterable":
        return IterableSource(lambda: iter(items), name="drawn"), count
    if kind == "lines":
        words = st.text(st.characters(codec="ascii", categories=["L", "N", "P"]), max_size=6)
        lines = data.draw(st.lists(words, min_size=count, max_size=count))
        end = data.draw(st.sampled_from(["\n", "\r\n"]))
        path.write_bytes(end.join([*lines, "last"]).encode())
        return LinesSource(path), count + 1
    path.write_bytes(data.draw(st.binary(min_size=count, max_size=count)))
    return BytesSource(path), count


def joined(items: list[Any]) -> object:
    return b"".join(items) if items and isinstance(items[0], bytes) else items


def test_halves__of_a_list__keep_each_item_to_the_letter() -> None:
    chunk = bare_chunk(items=3, input='[1.10, {"b":1,  "a":[]} ,"\\u00e9"]')

    first, second = halves(chunk, {"kind": "list"})

    assert (first.input, first.input_key) == ('[1.10,{"b":1,  "a":[]}]', "items:0-1")
    assert (second.input, second.input_key) == ('["\\u00e9"]', "items:2-2")


def test_halves__of_a_range__say_which_numbers() -> None:
    first, second = halves(bare_chunk(items=5, start=10), {"kind": "range", "low": 100, "high": 200})

    assert (first.start, first.items, first.input_key) == (10, 3, "range:110-112")
    assert (second.start, second.items, second.input_key) == (13, 2, "range:113-114")


def test_halves__of_what_only_the_worker_knows__are_refused() -> None:
    with pytest.raises(UserError, match=r"only its worker knows the items of 'chunks/7\.npz'"):
        halves(replace(bare_chunk(items=5), input_key="chunks/7.npz"), {})


def test_halves__of_an_input_with_another_number_of_items__are_refused() -> None:
    with pytest.raises(CorruptionError, match="it has 3 items, and its input 2"):
        halves(bare_chunk(items=3, input="[1,2]"), {})


def bare_chunk(*, items: int, start: int = 0, input: str | None = None) -> Chunk:
    return Chunk(
        run_id=RUN,
        sk=f"CHUNK#chunk-{start:07d}",
        status=Disposition.DEAD.status,
        disposition=Disposition.DEAD,
        created_at="2026-01-01T00:00:00.000Z",
        start=start,
        items=items,
        token="t",
        input=input,
    )


# What is refused.


def test_isolate__a_file_that_is_gone__is_refused_and_nothing_changes(rig: Rig, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_text("a\nb\nc\n")
    rig.split(LinesSource(path), 3)
    (chunk,) = rig.rows()
    rig.kill(chunk.chunk_id)
    path.unlink()
    before = rig.snapshot()

    with pytest.raises(NotFoundError, match="No such file"):
        rig.bisector.isolate(RUN, chunk.chunk_id)
    assert rig.snapshot() == before


@pytest.mark.parametrize("state", ["QUEUED", "RUNNING", "RETRYING", "DONE", "SKIPPED"])
def test_isolate__a_chunk_that_has_not_failed__is_refused(rig: Rig, state: str) -> None:
    rig.split(4, size=2)
    match state:
        case "RUNNING":
            rig.claim(FIRST)
        case "RETRYING":
            rig.fail(FIRST)
        case "DONE":
            rig.complete(FIRST)
        case "SKIPPED":
            rig.control.skip(RUN, [FIRST])

    with pytest.raises(ConflictError, match=f"it is {state}; only a failed one can be split"):
        rig.bisector.isolate(RUN, FIRST)


def test_isolate__a_piece_of_the_slow_lane__is_refused(rig: Rig) -> None:
    rig.split(4, size=4)
    rig.complete(FIRST, deferred=[1, 2])
    rig.kill("slow-0000000")

    with pytest.raises(UserError, match="a slow-lane chunk cannot be split"):
        rig.bisector.isolate(RUN, "slow-0000000")


def test_isolate__an_unknown_chunk__is_not_found(rig: Rig) -> None:
    rig.split(4, size=2)

    with pytest.raises(NotFoundError):
        rig.bisector.isolate(RUN, "chunk-0000001")


def test_isolate__where_the_other_half_is_already__says_so_and_changes_nothing(rig: Rig) -> None:
    rig.split(8, size=4)
    rig.kill(FIRST)
    stray = replace(rig.row(FIRST), sk="CHUNK#chunk-0000002")
    rig.sqlite.transact([Put(FANOUT, msgspec.to_builtins(stray))])
    before = rig.snapshot()

    with pytest.raises(ConflictError, match=r"chunk-0000002 exists already.*reconcile"):
        rig.bisector.isolate(RUN, FIRST)
    assert rig.snapshot() == before
    rig.sqlite.delete(FANOUT, chunk_key(RUN, "chunk-0000002"))


def test_isolate__a_chunk_that_was_moved_meanwhile__is_left(rig: Rig) -> None:
    rig.split(4, size=4)
    rig.kill(FIRST)
    rig.crashing.before_write = once(lambda: rig.control.skip(RUN, [FIRST]))

    with pytest.raises(ConflictError, match="it was changed meanwhile, it is SKIPPED"):
        rig.bisector.isolate(RUN, FIRST)
    assert rig.spans() == [(FIRST, 0, 4)]


def test_isolate__with_a_queue__makes_both_wait_and_has_them_sent(rig: Rig) -> None:
    rig.split(4, size=4, queue_url="https://sqs/q", max_attempts=1)
    rig.kill(FIRST)
    with pytest.raises(UserError, match="nothing here can send"):
        rig.bisector.isolate(RUN, FIRST)
    sent: list[list[str]] = []

    def send(fanout: Fanout) -> Fanout:
        sent.append([chunk.chunk_id for chunk in rig.rows() if chunk.disposition is Disposition.WAITING])
        return fanout

    rig.bisector = Bisector(rig.store, rig.clock, rig.ids, send=send)
    rig.bisector.isolate(RUN, FIRST)

    assert sent == [[FIRST, "chunk-0000002"]]


# Crashes.


@pytest.mark.parametrize("is_applied", [False, True])
def test_isolate__until_alone_and_a_crash_at_any_write__the_item_is_found_all_the_same(
    tmp_path: Path, is_applied: bool
) -> None:
    def build(folder: Path) -> World:
        rig = Rig(folder)
        rig.split(4, size=4, max_attempts=1)
        rig.kill(FIRST)
        rig.tend()
        return rig

    def act(world: World) -> None:
        assert isinstance(world, Rig)
        # A second request is refused if the first was committed.
        with suppress(ConflictError):
            world.bisector.isolate(RUN, FIRST, until_alone=True)
        maintenance = maintenance_of(world, world.store)
        maintenance.maintain(RUN)
        while run_queued(world, {1}):
            maintenance.maintain(RUN)
        # The pass after the last cut closes it.
        maintenance.maintain(RUN)

    def check(world: World) -> None:
        (aside,) = world.queries.in_disposition(RUN, Disposition.QUARANTINED).chunks
        assert (aside.start, aside.items, world.fanout().status) == (1, 1, FanoutStatus.PARTIAL)

    writes, number = 1, 0
    while number < writes:
        with closing(build(tmp_path / str(number))) as world:
            world.crashing.crash_at, world.crashing.is_applied = number, is_applied
            with suppress(CrashError):
                act(world)
            world.check()
            act(world)
            world.check()
            check(world)
            writes = max(writes, world.crashing.writes)
        number += 1
    assert writes > 3


@pytest.mark.parametrize("size", [1, 4])
def test_isolate__a_crash_at_any_write__it_is_done_or_not(tmp_path: Path, size: int) -> None:
    def build(folder: Path) -> World:
        rig = Rig(folder, shards=2)
        rig.split(size, size=size, max_attempts=1)
        rig.kill(FIRST)
        rig.tend()
        return rig

    def act(world: World) -> None:
        assert isinstance(world, Rig)
        # Told already, if the first time came through.
        with suppress(ConflictError):
            world.bisector.isolate(RUN, FIRST)

    assert crash_everywhere(tmp_path, build, act) == 1
