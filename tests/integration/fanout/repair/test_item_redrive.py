"""Failed items of completed chunks run again, by item, by error or all, and every item stays in one bucket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from headgate.errors import ConflictError, NotFoundError
from headgate.fanout.core.attempts import item_indexes
from headgate.fanout.insight.error_groups import error_groups
from headgate.fanout.model.rows import failed_items_partition
from headgate.fanout.model.states import Disposition, FanoutStatus
from headgate.fanout.repair.redrive import ChunkSelection, Redriver
from headgate.store.model.requests import Query
from tests.integration.fanout.worlds import RUN, World, crash_everywhere, once

FIRST = "chunk-0000000"
SECOND = "chunk-0000005"
ALL = ChunkSelection(failed=True)


class Rig(World):
    """A world with a redriver."""

    def __init__(self, folder: Path, *, shards: int = 1) -> None:
        super().__init__(folder, shards=shards)
        self.redriver = Redriver(self.store, self.clock, self.ids)

    def items(self) -> tuple[int, int, int, int]:
        counts = self.counts()
        return counts.items_ok, counts.items_failed, counts.items_deferred, counts.items_open


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.check()
    made.close()


def spoiled(rig: Rig) -> None:
    """Ten items in two chunks: 1 and 3 fail as ValueError, 7 as KeyError."""
    rig.split(10, size=5, max_attempts=1)
    rig.complete(FIRST, output="[0,null,2,null,4]", item_errors={1: "ValueError: bad 1", 3: "ValueError: bad 3"})
    rig.complete(SECOND, output="[5,6,null,8,9]", item_errors={7: "KeyError: 'x'"})
    assert rig.tend().status is FanoutStatus.PARTIAL


def test_items__of_dead_chunks__have_failed(rig: Rig) -> None:
    rig.split(20, size=10, max_attempts=1)
    rig.complete(FIRST)
    assert rig.items() == (10, 0, 0, 10)

    rig.kill("chunk-0000010")

    assert rig.items() == (10, 10, 0, 0)


def test_redrive__failed__reruns_only_failed_items_and_merges_their_results(rig: Rig) -> None:
    spoiled(rig)
    assert rig.items() == (7, 3, 0, 0)

    report = rig.redriver.redrive(RUN, ALL)

    assert (report.redriven, report.rerun_chunks, report.rerun_items) == (2, 2, 3)
    assert rig.fanout().status is FanoutStatus.RUNNING
    assert rig.items() == (7, 0, 0, 3)
    assert list(item_indexes(rig.claim(FIRST).chunk)) == [1, 3]
    rig.clock.advance(10_000)
    rig.complete(FIRST, output="[11,33]")
    rig.complete(SECOND, output="[77]")
    assert rig.tend().status is FanoutStatus.SUCCEEDED
    assert rig.items() == (10, 0, 0, 0)
    assert [rig.row(name).output for name in (FIRST, SECOND)] == ["[0,11,2,33,4]", "[5,6,77,8,9]"]


def test_redrive__by_error_class__leaves_other_failed_items(rig: Rig) -> None:
    spoiled(rig)

    report = rig.redriver.redrive(RUN, ChunkSelection(error_class="KeyError"))

    assert (report.ids, report.rerun_items) == ((SECOND,), 1)
    rig.complete(SECOND, output="[77]")
    assert rig.tend().status is FanoutStatus.PARTIAL
    assert rig.items() == (8, 2, 0, 0)


def test_redrive__by_fingerprint_of_an_error_group__reruns_its_items(rig: Rig) -> None:
    spoiled(rig)
    (largest, _) = error_groups(rig.queries, RUN).groups
    assert (largest.error_class, largest.items, largest.chunk_ids) == ("ValueError", 2, [FIRST])

    report = rig.redriver.redrive(RUN, ChunkSelection(fingerprint=largest.fingerprint))

    assert (report.ids, report.rerun_items) == ((FIRST,), 2)


def test_redrive__one_item_of_two__the_other_stays_failed_with_its_error(rig: Rig) -> None:
    spoiled(rig)

    report = rig.redriver.redrive(RUN, ChunkSelection(items=(3,)))

    assert (report.ids, report.rerun_items) == ((FIRST,), 1)
    assert rig.items() == (7, 2, 0, 1)
    rig.complete(FIRST, output="[33]", item_errors={})
    assert rig.items() == (8, 2, 0, 0)
    assert msgspec.json.decode(rig.row(FIRST).item_errors or "") == {"1": "ValueError: bad 1"}


def test_redrive__items_that_fail_again__keep_the_new_error(rig: Rig) -> None:
    spoiled(rig)
    rig.redriver.redrive(RUN, ChunkSelection(chunk_ids=(FIRST,)))

    rig.complete(FIRST, output="[null,33]", item_errors={1: "OSError: disk full"})

    assert rig.tend().status is FanoutStatus.PARTIAL
    assert rig.items() == (8, 2, 0, 0)
    assert msgspec.json.decode(rig.row(FIRST).item_errors or "") == {"1": "OSError: disk full"}


def test_redrive__a_rerun_that_dies__only_its_items_have_failed_and_run_again(rig: Rig) -> None:
    spoiled(rig)
    rig.redriver.redrive(RUN, ChunkSelection(items=(1,)))

    rig.kill(FIRST, error_class="CRASH", message="signal 11")

    assert rig.items() == (7, 3, 0, 0)
    assert rig.redriver.redrive(RUN, ChunkSelection(dispositions=(Disposition.DEAD,))).redriven == 1
    assert rig.items() == (7, 2, 0, 1)
    assert list(item_indexes(rig.claim(FIRST).chunk)) == [1]


def test_redrive__of_a_fan_out_that_succeeded_with_tolerated_failures__runs_them_again(rig: Rig) -> None:
    rig.split(2, max_attempts=1, tolerated_failures=1)
    rig.complete(FIRST)
    rig.kill("chunk-0000001")
    assert rig.tend().status is FanoutStatus.SUCCEEDED

    assert rig.redriver.redrive(RUN, ALL).redriven == 1
    assert rig.fanout().status is FanoutStatus.RUNNING


def test_redrive__twice__the_second_changes_nothing(rig: Rig) -> None:
    spoiled(rig)
    rig.redriver.redrive(RUN, ALL)
    before = rig.snapshot()

    again = rig.redriver.redrive(RUN, ALL)

    assert (again.redriven, again.overtaken) == (0, 0)
    assert rig.redriver.redrive(RUN, ChunkSelection(items=(1,))).already == 1
    assert rig.snapshot() == before


def test_redrive__an_item_that_has_not_failed__is_refused_and_none_is_redriven(rig: Rig) -> None:
    spoiled(rig)
    before = rig.snapshot()

    with pytest.raises(ConflictError, match="item 2 of chunk-0000000 has not failed; none was redriven"):
        rig.redriver.redrive(RUN, ChunkSelection(items=(7, 2)))
    with pytest.raises(NotFoundError, match="it has no item 10; it has 10 from 0"):
        rig.redriver.redrive(RUN, ChunkSelection(items=(7, 10)))

    assert rig.snapshot() == before


def test_redrive__an_item_of_a_dead_chunk__runs_the_chunk_again(rig: Rig) -> None:
    rig.split(10, size=5, max_attempts=1)
    rig.kill(FIRST)

    report = rig.redriver.redrive(RUN, ChunkSelection(items=(3,)))

    assert (report.ids, report.rerun_chunks) == ((FIRST,), 0)
    assert rig.items() == (0, 0, 0, 10)


def test_redrive__items_that_failed_in_the_slow_lane__run_in_the_chunk_that_deferred_them(rig: Rig) -> None:
    rig.split(5, size=5, max_attempts=1)
    rig.complete(FIRST, output="[0,null,2,null,4]", deferred=[3], item_errors={1: "ValueError: bad 1"})
    assert rig.redriver.redrive(RUN, ALL).refused_count == 1
    rig.complete("slow-0000000", item_errors={3: "KeyError: 'x'"})
    assert rig.tend().status is FanoutStatus.PARTIAL
    assert rig.items() == (3, 2, 0, 0)

    report = rig.redriver.redrive(RUN, ALL)

    assert (report.ids, report.rerun_items) == ((FIRST,), 2)
    rig.complete(FIRST, output="[11,33]")
    assert rig.tend().status is FanoutStatus.SUCCEEDED
    assert (rig.row(FIRST).output, rig.row("slow-0000000").item_errors) == ("[0,11,2,33,4]", None)
    assert rig.items() == (5, 0, 0, 0)


def test_redrive__an_item_of_a_slow_lane_chunk_that_died__runs_that_chunk_again(rig: Rig) -> None:
    rig.split(5, size=5, max_attempts=1)
    rig.complete(FIRST, deferred=[3], item_errors={1: "ValueError: bad 1"})
    rig.kill("slow-0000000")
    assert rig.tend().status is FanoutStatus.PARTIAL

    report = rig.redriver.redrive(RUN, ChunkSelection(items=(1, 3)))

    assert (report.ids, list(report.refused)) == (("slow-0000000",), [FIRST])
    assert rig.redriver.redrive(RUN, ChunkSelection(items=(3,))).already == 1
    with pytest.raises(ConflictError, match="item 2 of chunk-0000000 has not failed"):
        rig.redriver.redrive(RUN, ChunkSelection(items=(2, 3)))
    rig.complete("slow-0000000")
    assert rig.items() == (4, 1, 0, 0)


def test_redrive__another_redrive_ran_an_item_of_the_slow_lane_meanwhile__it_does_not_run_twice(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.split(5, size=5, max_attempts=1)
    rig.complete(FIRST, deferred=[1, 3])
    rig.complete("slow-0000000", item_errors={1: "ValueError: bad 1", 3: "KeyError: 'x'"})
    rig.tend()

    def other_redrive() -> None:
        Redriver(rig.sqlite, rig.clock, rig.ids).redrive(RUN, ChunkSelection(items=(3,)))
        rig.complete(FIRST)

    meanwhile = once(other_redrive)

    def query(asked: Query) -> object:
        found = rig.sqlite.query(asked)
        if asked.partition == failed_items_partition(RUN):
            meanwhile()
        return found

    monkeypatch.setattr(rig.crashing, "query", query)
    report = rig.redriver.redrive(RUN, ALL)

    assert report.rerun_items == 1
    rig.complete(FIRST)
    assert rig.items() == (5, 0, 0, 0)


def test_redrive__a_rerun_that_reports_errors_of_items_that_did_not_run__they_are_not_counted(rig: Rig) -> None:
    spoiled(rig)
    rig.redriver.redrive(RUN, ChunkSelection(items=(3,)))

    rig.fail(FIRST, item_errors={2: "ValueError: of no item that ran", 3: "ValueError: bad 3"})
    rig.redriver.redrive(RUN, ChunkSelection(chunk_ids=(FIRST,)))
    rig.complete(FIRST)

    assert rig.items() == (8, 2, 0, 0)
    assert rig.redriver.redrive(RUN, ChunkSelection(chunk_ids=(FIRST,))).rerun_items == 1


def test_redrive__more_failed_items_than_errors_stored__reruns_them_all(rig: Rig) -> None:
    rig.split(3000, size=3000, max_attempts=1)
    rig.complete(FIRST, item_errors={index: f"ValueError: bad {index}" for index in range(2500)})
    (group,) = error_groups(rig.queries, RUN).groups
    assert (group.items, group.count) == (2500, 2500)

    report = rig.redriver.redrive(RUN, ChunkSelection(error_class="ValueError"))

    assert report.rerun_items == 2500
    assert list(item_indexes(rig.claim(FIRST).chunk)) == list(range(2500))


def test_redrive__output_that_is_no_list_of_results__replaces_the_earlier_one_which_its_attempt_keeps(rig: Rig) -> None:
    rig.split(5, size=5, max_attempts=1)
    rig.complete(FIRST, output='{"rows":4}', output_key="s3://b/1", item_errors={1: "ValueError: bad 1"})
    rig.redriver.redrive(RUN, ALL)

    rig.complete(FIRST, output='{"rows":1}', output_key="s3://b/2")

    chunk = rig.row(FIRST)
    assert (chunk.output, chunk.output_key) == ('{"rows":1}', "s3://b/2")
    first = rig.queries.attempts(chunk)[0]
    assert (first.attempt, first.output, first.output_key) == (1, '{"rows":4}', "s3://b/1")


def test_redrive__a_crash_at_every_write__comes_to_the_same(tmp_path: Path) -> None:
    def build(folder: Path) -> Rig:
        made = Rig(folder)
        made.split(12, size=3, max_attempts=1)
        for start in (0, 3):
            made.complete(f"chunk-{start:07d}", item_errors={start: "ValueError: bad"}, deferred=[start + 1])
            made.complete(f"slow-{start:07d}", item_errors={start + 1: "KeyError: worse"})
        made.complete("chunk-0000006", item_errors={7: "ValueError: bad"})
        made.kill("chunk-0000009")
        made.tend()
        return made

    def act(world: World) -> None:
        assert isinstance(world, Rig)
        world.redriver.redrive(RUN, ALL)

    crash_everywhere(tmp_path, build, act)
