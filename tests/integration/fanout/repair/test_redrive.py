"""Redriving: which chunks are run again, when, and that nothing on the way loses one."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from tempfile import mkdtemp

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headgate.errors import (
    ConflictError,
    DefinitionError,
    FatalError,
    HeadgateError,
    InvalidIdError,
    NotFoundError,
    UserError,
)
from headgate.fanout.core.maintenance import FanoutMaintenance
from headgate.fanout.local.claims import Claims
from headgate.fanout.model.rows import ACTIVE, Fanout, run_key, timestamp_ms
from headgate.fanout.model.sources import LinesSource, ListSource
from headgate.fanout.model.states import Disposition, FanoutStatus
from headgate.fanout.repair import redrive as redriving
from headgate.fanout.repair.redrive import ChunkSelection, Redriver, RedriveReport
from headgate.fanout.repair.retention import PURGING
from headgate.store.blobs.folder import FolderBlobs
from headgate.store.blobs.spill import Spill
from headgate.store.catalogue.tables import FANOUT
from headgate.store.keyring import Keyring
from headgate.store.model.cursors import Cursors
from headgate.store.model.requests import Query
from headgate.store.sqlite.store import SqliteStore
from headgate.store.table_names import TableNames
from tests.integration.fanout.worlds import RUN, CrashError, World, crash_everywhere, once, read_in_pages

ALL = ChunkSelection(all=True)


class Rig(World):
    """Six chunks of an item each, and someone who redrives them."""

    def __init__(self, folder: Path, *, shards: int = 1) -> None:
        super().__init__(folder, shards=shards)
        self.redriver = Redriver(self.store, self.clock, self.ids)

    def redrive(self, selection: ChunkSelection = ALL) -> RedriveReport:
        return self.redriver.redrive(RUN, selection)

    def events(self) -> list[tuple[str, int | None, str | None]]:
        page = self.sqlite.query(Query(table=FANOUT, partition=RUN, limit=1000))
        return [
            (item["kind"], item.get("count"), item.get("by")) for item in page.items if item["SK"].startswith("EVT#")
        ]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with closing(Rig(tmp_path)) as rig:
        yield rig
        rig.check()


def name(number: int) -> str:
    return f"chunk-{number:07d}"


def names(*numbers: int) -> tuple[str, ...]:
    return tuple(map(name, numbers))


# Selections.


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({}, "it is empty"),
        ({"chunk_ids": names(1), "all": True}, "give one of chunk ids, items, failed and all"),
        ({"items": (1,), "failed": True}, "give one of chunk ids, items, failed and all"),
        ({"items": (3, -1)}, "item -1; indexes of items begin at 0"),
        ({"dispositions": (Disposition.DONE,)}, "DONE cannot be redriven; choose from DEAD, QUARANTINED, CANCELLED"),
        ({"older_than_seconds": -1.0}, "at least 0"),
        ({"older_than_seconds": float("nan")}, "at least 0"),
    ],
)
def test_selection__that_makes_no_sense__is_refused_with_what_is_allowed(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        ChunkSelection(**wrong)  # type: ignore[arg-type]


def test_redrive__dead_and_set_aside_and_cancelled__by_disposition(rig: Rig) -> None:
    rig.split(6)
    rig.kill(*names(0, 1))
    rig.fail(name(2), is_final=True)
    rig.control.cancel(RUN)
    rig.tend()
    assert rig.fanout().status is FanoutStatus.CANCELLED
    states = ["DEAD", "DEAD", "QUARANTINED", "CANCELLED", "CANCELLED", "CANCELLED"]
    assert list(rig.dispositions().values()) == states

    found = {
        kind: rig.redriver.redrive(RUN, ChunkSelection(dispositions=(kind,)), dry_run=True).ids
        for kind in redriving.REDRIVABLE
    }

    assert found == {
        Disposition.DEAD: names(0, 1),
        Disposition.QUARANTINED: names(2),
        Disposition.CANCELLED: names(3, 4, 5),
    }
    assert list(rig.dispositions().values()) == states, "a dry run changes nothing"


def test_redrive__by_error__those_that_died_of_it(rig: Rig) -> None:
    rig.split(6)
    rig.kill(name(0), error_class="TIMEOUT", message="after 900 s")
    rig.kill(name(1), error_class="ValueError", message="bad row 17")
    rig.kill(name(2), error_class="ValueError", message="bad row 4711")
    rig.kill(name(3), error_class="ValueError", message="no such column")
    fingerprint = rig.row(name(1)).error_fingerprint

    alike = rig.redriver.redrive(RUN, ChunkSelection(fingerprint=fingerprint), dry_run=True)
    timed_out = rig.redriver.redrive(RUN, ChunkSelection(error_class="TIMEOUT"), dry_run=True)
    both = rig.redriver.redrive(RUN, ChunkSelection(error_class="TIMEOUT", fingerprint=fingerprint), dry_run=True)

    assert alike.ids == names(1, 2)
    assert timed_out.ids == names(0)
    assert both.ids == ()


def test_redrive__older_than__those_given_up_before_that(rig: Rig) -> None:
    rig.split(4)
    for number in range(3):
        rig.kill(name(number))
        rig.clock.advance(60)

    found = rig.redriver.redrive(RUN, ChunkSelection(older_than_seconds=100.0), dry_run=True)
    exactly = rig.redriver.redrive(RUN, ChunkSelection(older_than_seconds=120.0), dry_run=True)

    assert found.ids == names(0, 1)
    assert exactly.ids == names(0), "120 s is not longer than 120 s"


def test_redrive__without_dispositions__leaves_the_cancelled_alone(rig: Rig) -> None:
    rig.split(3)
    rig.kill(name(0))
    rig.control.cancel(RUN)
    rig.tend()

    assert rig.redriver.redrive(RUN, ChunkSelection(older_than_seconds=0.0), dry_run=True).ids == ()
    rig.clock.advance(1)
    assert rig.redriver.redrive(RUN, ChunkSelection(older_than_seconds=0.0), dry_run=True).ids == names(0)
    assert rig.redriver.redrive(RUN, ALL, dry_run=True).ids == names(0, 1, 2)


# What becomes of the chunk and of its fan-out.


def test_redrive__a_dead_chunk__has_all_its_tries_again(rig: Rig) -> None:
    rig.split(2, max_attempts=3)
    rig.kill(name(0))
    dead = rig.row(name(0))

    redriven = rig.redrive()

    chunk = rig.row(name(0))
    assert (redriven.redriven, redriven.ids, redriven.is_dry_run) == (1, names(0), False)
    assert (chunk.disposition, chunk.attempt, chunk.tried, chunk.redrives) == (Disposition.QUEUED, 3, 3, 1)
    assert chunk.token != dead.token
    assert rig.fail(name(0)).disposition is Disposition.RETRYING
    assert rig.fail(name(0)).disposition is Disposition.RETRYING
    assert rig.fail(name(0)).disposition is Disposition.DEAD
    assert rig.row(name(0)).attempt == 6
    assert rig.events() == [("redriven", 1, None)]


@pytest.mark.parametrize("status", [FanoutStatus.PARTIAL, FanoutStatus.FAILED, FanoutStatus.CANCELLED])
def test_redrive__a_fanout_that_has_ended__is_open_again_and_can_succeed(rig: Rig, status: FanoutStatus) -> None:
    rig.split(2)
    if status is not FanoutStatus.FAILED:
        rig.complete(name(0))
    else:
        rig.kill(name(0))
    if status is FanoutStatus.CANCELLED:
        rig.control.cancel(RUN, reason="by mistake")
    else:
        rig.kill(name(1))
    ended = rig.tend()
    assert (ended.status, ended.is_finished) == (status, True)

    rig.redriver.redrive(RUN, ALL, by="ana", reason="mended")

    opened = rig.fanout()
    assert (opened.status, opened.finished_at, opened.cancelled_at) == (FanoutStatus.RUNNING, None, None)
    assert (opened.attention_pk, opened.attention_sk) == (ACTIVE, f"{opened.created_at}#{RUN}")
    assert opened.version > ended.version
    assert [fanout.run_id for fanout in rig.queries.active().fanouts] == [RUN]
    assert ("redriven", 2 if status is FanoutStatus.FAILED else 1, "ana") in rig.events()
    for chunk_id, disposition in rig.dispositions().items():
        if disposition == "QUEUED":
            rig.complete(chunk_id)
    assert rig.tend().status is FanoutStatus.SUCCEEDED


def test_redrive__a_paused_fanout__stays_paused(rig: Rig) -> None:
    rig.split(2)
    rig.kill(name(0))
    rig.control.pause(RUN)

    rig.redrive()

    assert rig.fanout().paused_at is not None
    assert rig.row(name(0)).disposition is Disposition.QUEUED


def test_redrive__while_it_is_split__leaves_the_splitter_its_row(rig: Rig) -> None:
    rig.split(2)
    rig.kill(name(0))
    rig.sqlite.update(FANOUT, run_key(RUN), set={"status": "SPLITTING"})

    rig.redrive()

    assert rig.fanout().status is FanoutStatus.SPLITTING
    assert rig.row(name(0)).disposition is Disposition.QUEUED


def test_redrive__221_dead_letters__all_come_back_and_the_fanout_succeeds(rig: Rig) -> None:
    rig.split(230, max_attempts=1)
    rig.kill(*(name(number) for number in range(221)))
    for number in range(221, 230):
        rig.complete(name(number))
    assert rig.tend().status is FanoutStatus.PARTIAL

    redriven = rig.redrive()

    assert redriven.redriven == 221
    for number in range(221):
        rig.complete(name(number))
    assert rig.tend().status is FanoutStatus.SUCCEEDED


def test_redrive__a_piece_of_the_slow_lane__goes_back_to_its_own_queue(rig: Rig) -> None:
    rig.split(2, size=2)
    rig.complete(name(0), deferred=[1])
    rig.kill("slow-0000000")
    assert rig.tend().status is FanoutStatus.PARTIAL

    redriven = rig.redrive()

    assert redriven.ids == ("slow-0000000",)
    assert rig.row("slow-0000000").queue_pk == f"{RUN}#slow"
    assert rig.counts().slow_queued == 1


# Named chunks.


def test_redrive__an_unknown_chunk__is_an_error_and_none_is_redriven(rig: Rig) -> None:
    rig.split(3)
    rig.kill(name(0))
    before = rig.snapshot()

    with pytest.raises(NotFoundError, match=r"run: it has no chunk-0000007, chunk-0000009; none was redriven"):
        rig.redrive(ChunkSelection(chunk_ids=names(0, 9, 7)))
    with pytest.raises(InvalidIdError):
        rig.redrive(ChunkSelection(chunk_ids=(name(0), "chunk-x")))
    assert rig.snapshot() == before


def test_redrive__a_chunk_that_is_done__is_an_error_and_none_is_redriven(rig: Rig) -> None:
    rig.split(3)
    rig.kill(name(0))
    rig.complete(name(1))
    before = rig.snapshot()

    with pytest.raises(ConflictError, match="chunk-0000001 has completed"):
        rig.redrive(ChunkSelection(chunk_ids=names(0, 1)))
    assert rig.snapshot() == before


def test_redrive__a_fanout_that_has_succeeded__is_an_error(rig: Rig) -> None:
    rig.split(1)
    rig.complete(name(0))
    rig.tend()

    with pytest.raises(ConflictError, match="it has SUCCEEDED"):
        rig.redrive()


def test_redrive__the_same_chunks_twice__changes_nothing_the_second_time(rig: Rig) -> None:
    rig.split(4)
    rig.kill(*names(0, 1))
    chosen = ChunkSelection(chunk_ids=names(1, 0, 1))

    first, after_first = rig.redrive(chosen), rig.snapshot()
    second = rig.redrive(chosen)

    assert (first.redriven, first.already, first.ids) == (2, 0, names(1, 0))
    assert (second.redriven, second.already, second.ids) == (0, 2, ())
    assert rig.snapshot() == after_first
    assert rig.redrive().redriven == 0


# Inputs that are gone.


def test_redrive__an_input_that_is_gone__is_refused_and_the_others_go_on(rig: Rig, tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_text("a\nb\nc\n")
    rig.split(LinesSource(path))
    chunk_ids = [chunk.chunk_id for chunk in rig.rows()]
    rig.kill(*chunk_ids)
    # The row of one of them says that it reads something else, which is there.
    inline = rig.row(chunk_ids[1])
    rig.sqlite.update(FANOUT, inline.key, set={"input": '["b"]'})
    path.unlink()

    redriven = rig.redrive()

    assert redriven.ids == (chunk_ids[1],)
    assert redriven.refused_count == 2
    assert set(redriven.refused) == {chunk_ids[0], chunk_ids[2]}
    assert all("No such file" in reason for reason in redriven.refused.values())
    assert list(rig.dispositions().values()) == ["DEAD", "QUEUED", "DEAD"]


def test_redrive__an_input_that_has_changed__is_refused(rig: Rig, tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_text("a\nb\n")
    rig.split(LinesSource(path), size=2)
    (chunk,) = rig.rows()
    rig.kill(chunk.chunk_id)
    os.utime(path, ns=(1, 1))

    assert "it has changed since it was split" in rig.redrive().refused[chunk.chunk_id]
    assert rig.tend().status is FanoutStatus.FAILED


# Rate and limit.


def test_redrive__with_a_rate__chunks_may_start_one_after_the_other_exactly(rig: Rig) -> None:
    rig.split(7, max_attempts=1)
    rig.kill(*names(*range(7)))
    now_ms = rig.queries.now_ms()

    redriven = rig.redriver.redrive(RUN, ALL, rate_per_second=3.0)

    due = [int((chunk.queue_sk or "").partition("#")[0]) - now_ms for chunk in rig.rows()]
    assert due == [0, 333, 666, 1000, 1333, 1666, 2000]
    assert timestamp_ms(redriven.until or "") == now_ms + 2000
    claims = Claims(rig.sqlite, rig.clock, rig.ids, worker="w")
    taken = []
    for _ in range(3):
        taken.append(len(claims.take(100, {})))
        rig.clock.advance(1)
    assert taken == [1, 3, 3]


def test_redrive__with_a_rate__goes_on_across_batches(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redriving, "BATCH", 2)
    rig.split(5, max_attempts=1)
    rig.kill(*names(*range(5)))
    now_ms = rig.queries.now_ms()

    rig.redriver.redrive(RUN, ALL, rate_per_second=0.5)

    due = [int((chunk.queue_sk or "").partition("#")[0]) - now_ms for chunk in rig.rows()]
    assert due == [0, 2000, 4000, 6000, 8000]


def test_redrive__with_a_limit__says_that_there_are_more(rig: Rig) -> None:
    rig.split(5, max_attempts=1)
    rig.kill(*names(*range(4)))

    first = rig.redriver.redrive(RUN, ALL, limit=3)
    second = rig.redriver.redrive(RUN, ALL, limit=3)

    assert (first.redriven, first.is_cut_off) == (3, True)
    assert (second.redriven, second.is_cut_off) == (1, False)


@pytest.mark.parametrize("numbers", [{"rate_per_second": 0.0}, {"rate_per_second": float("inf")}, {"limit": 0}])
def test_redrive__a_rate_or_limit_that_makes_no_sense__is_refused(rig: Rig, numbers: dict[str, float]) -> None:
    rig.split(1)

    with pytest.raises(DefinitionError, match="must be"):
        rig.redriver.redrive(RUN, ALL, **numbers)  # type: ignore[arg-type]


def test_redrive__very_many__names_the_first_and_counts_all(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redriving, "NAMED_MAX", 2)
    monkeypatch.setattr(redriving, "BATCH", 3)
    rig.split(8, max_attempts=1)
    rig.kill(*names(*range(8)))

    redriven = rig.redrive()

    assert (redriven.redriven, redriven.ids) == (8, names(0, 1))


def test_redrive__rows_too_large_for_one_transaction__go_in_several(rig: Rig) -> None:
    rig.split(ListSource(["x" * 200_000 for _ in range(30)]), max_attempts=1)
    rig.kill(*names(*range(30)))

    assert rig.redrive().redriven == 30


def test_redrive__costs_what_the_answer_costs(rig: Rig) -> None:
    rig.split(3000)
    rig.kill(name(17))
    queries = rig.sqlite.stats.queries

    rig.redrive(ChunkSelection(dispositions=(Disposition.DEAD,)))

    assert rig.sqlite.stats.queries - queries == 1


# Others at the same time.


def test_redrive__a_chunk_that_someone_else_redrove__is_overtaken(rig: Rig) -> None:
    rig.split(3, max_attempts=1)
    rig.kill(*names(0, 1))
    other = Redriver(rig.sqlite, rig.clock, rig.ids)
    rig.crashing.before_write = once(lambda: other.redrive(RUN, ChunkSelection(chunk_ids=names(0))))

    redriven = rig.redrive()

    assert (redriven.redriven, redriven.overtaken, redriven.ids) == (1, 1, names(1))
    assert rig.row(name(0)).redrives == 1


def test_redrive__closed_by_someone_just_before_the_write__is_open_with_the_chunk(rig: Rig) -> None:
    rig.split(1, max_attempts=1)
    rig.kill(name(0))
    assert not rig.fanout().is_finished
    rig.crashing.before_write = once(rig.tend)

    rig.redrive()

    assert rig.row(name(0)).disposition is Disposition.QUEUED
    assert (rig.fanout().status, rig.fanout().is_finished) == (FanoutStatus.RUNNING, False)


def test_redrive__the_caller_that_was_about_to_close__does_not(rig: Rig) -> None:
    rig.split(1, max_attempts=1)
    rig.kill(name(0))
    maintenance = FanoutMaintenance(rig.store, rig.clock, rig.ids)
    rig.crashing.before_write = once(lambda: Redriver(rig.sqlite, rig.clock, rig.ids).redrive(RUN, ALL))

    maintenance.maintain(RUN)

    assert rig.row(name(0)).disposition is Disposition.QUEUED
    assert not rig.fanout().is_finished


def test_redrive__cancelled_between_two_batches__stops(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redriving, "BATCH", 2)
    rig.split(4, max_attempts=1)
    rig.kill(*names(*range(4)))
    rig.control.cancel(RUN)
    rig.tend()

    def cancel() -> None:
        if rig.crashing.writes == 2:
            rig.clock.advance(1)
            rig.control.cancel(RUN)
            rig.tend()
            rig.crashing.before_write = lambda: None

    rig.crashing.before_write = cancel
    with pytest.raises(ConflictError, match="cancelled meanwhile"):
        rig.redrive()

    assert list(rig.dispositions().values()) == ["CANCELLED", "CANCELLED", "DEAD", "DEAD"]
    assert rig.fanout().status is FanoutStatus.CANCELLED


def test_redrive__while_it_is_being_cancelled__is_refused(rig: Rig) -> None:
    rig.split(2)
    rig.claim(name(0))
    rig.control.cancel(RUN)

    with pytest.raises(ConflictError, match="is being cancelled; try again when it has ended"):
        rig.redrive()


def test_redrive__while_it_is_being_deleted__is_refused(rig: Rig) -> None:
    rig.split(1, max_attempts=1)
    rig.kill(name(0))
    rig.tend()
    purged = once(lambda: rig.sqlite.update(FANOUT, run_key(RUN), set={"attention_pk": PURGING}))
    rig.crashing.before_write = purged

    with pytest.raises(NotFoundError, match="is being deleted"):
        rig.redrive()
    with pytest.raises(NotFoundError, match="is being deleted"):
        rig.redrive()
    assert rig.row(name(0)).disposition is Disposition.DEAD


def test_redrive__a_fanout_of_another_program__is_refused(rig: Rig) -> None:
    rig.sqlite.put(FANOUT, {"PK": "theirs", "SK": "RUN", "survey": "grs", "created_at": "2026-01-01", "jobs_total": 1})
    rig.split(1)

    with pytest.raises(UserError, match="created by another program"):
        rig.redriver.redrive("theirs", ALL)


def test_redrive__a_chunk_that_dies_again_at_once__is_left_for_the_next_call(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redriving, "BATCH", 1)
    read_in_pages(monkeypatch, 1)
    rig.split(3, max_attempts=1)
    rig.kill(*names(0, 1, 2))

    def die_again() -> None:
        rig.clock.advance(0.001)
        for chunk_id, disposition in rig.dispositions().items():
            if disposition == "QUEUED":
                rig.kill(chunk_id)

    rig.crashing.before_write = die_again

    assert rig.redrive().redriven == 3
    assert [chunk.redrives for chunk in rig.rows()] == [1, 1, 1]


def test_redrive__from_an_index_that_lags__is_fenced(rig: Rig, tmp_path: Path) -> None:
    rig.split(3, max_attempts=1)
    rig.kill(*names(0, 1))
    with closing(lagging_store(tmp_path, rig)) as lagging:
        redriver = Redriver(lagging, rig.clock, rig.ids)
        # Now the index is remembered as it is.
        assert redriver.redrive(RUN, ALL, dry_run=True).redriven == 2
        rig.redrive(ChunkSelection(chunk_ids=names(0)))
        rig.complete(name(0))

        redriven = redriver.redrive(RUN, ALL)

    assert (redriven.redriven, redriven.overtaken) == (1, 1)
    assert list(rig.dispositions().values()) == ["DONE", "QUEUED", "QUEUED"]


def lagging_store(folder: Path, rig: Rig) -> SqliteStore:
    return SqliteStore.open(
        folder / "headgate.db",
        names=TableNames(),
        clock=rig.clock,
        cursors=Cursors(Keyring.open(folder / "keys.json", rig.clock)),
        spill=Spill(FolderBlobs(folder / "blobs"), rig.clock),
        index_lag_seconds=3600.0,
    )


# A queue of its own.


def test_redrive__a_fanout_with_a_queue__makes_its_chunks_wait_and_has_them_sent(rig: Rig) -> None:
    rig.split(3, queue_url="https://sqs/q", max_attempts=1)
    rig.kill(*names(0, 1))
    sent: list[list[str]] = []

    def send(fanout: Fanout) -> Fanout:
        assert not fanout.is_finished
        sent.append([chunk.chunk_id for chunk in rig.rows() if chunk.disposition is Disposition.WAITING])
        return fanout

    rig.redriver = Redriver(rig.store, rig.clock, rig.ids, send=send)
    redriven = rig.redrive()

    assert redriven.redriven == 2
    assert sent == [list(names(0, 1, 2))]
    assert rig.row(name(0)).queue_pk is None


def test_redrive__a_fanout_with_a_queue_and_no_one_to_send__is_refused(rig: Rig) -> None:
    rig.split(1, queue_url="https://sqs/q", max_attempts=1)
    rig.kill(name(0))

    with pytest.raises(DefinitionError, match="nothing here can send to https://sqs/q"):
        rig.redrive()
    assert rig.redriver.redrive(RUN, ALL, dry_run=True).redriven == 1
    rig.redriver = Redriver(rig.store, rig.clock, rig.ids, send=lambda fanout: fanout)
    with pytest.raises(DefinitionError, match="give a limit, not a rate"):
        rig.redriver.redrive(RUN, ALL, rate_per_second=1.0)


def test_redrive__after_a_crash_before_sending__a_second_call_sends(rig: Rig) -> None:
    rig.split(2, queue_url="https://sqs/q", max_attempts=1)
    rig.kill(*names(0, 1))
    calls = [0]

    def send(fanout: Fanout) -> Fanout:
        calls[0] += 1
        if calls[0] == 1:
            raise CrashError
        return fanout

    rig.redriver = Redriver(rig.store, rig.clock, rig.ids, send=send)
    with pytest.raises(CrashError):
        rig.redrive()
    assert rig.redrive().redriven == 0
    assert calls == [2]


# Crashes, and everything at once.


@pytest.mark.parametrize("shards", [1, 3])
def test_redrive__a_crash_at_any_write__loses_no_chunk_and_a_second_call_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shards: int
) -> None:
    monkeypatch.setattr(redriving, "BATCH", 2)

    def build(folder: Path) -> World:
        rig = Rig(folder, shards=shards)
        rig.split(6, max_attempts=1)
        rig.kill(*names(0, 2, 3, 5))
        rig.complete(name(1))
        rig.complete(name(4))
        rig.tend()
        return rig

    def act(world: World) -> None:
        assert isinstance(world, Rig)
        world.redrive()

    assert crash_everywhere(tmp_path, build, act) >= 2


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_redrive__among_all_that_workers_and_people_do__the_sums_hold_after_every_step(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    with closing(Rig(Path(mkdtemp(dir=tmp_path)), shards=chance.choice([1, 2]))) as rig:
        rig.split(6, size=chance.choice([1, 2]), max_attempts=chance.choice([1, 2]))
        chunk_ids = [chunk.chunk_id for chunk in rig.rows()]
        for _ in range(25):
            chunk_id = chance.choice(chunk_ids)
            acts: dict[str, Callable[[], object]] = {
                "complete": partial(rig.complete, chunk_id),
                "fail": partial(rig.fail, chunk_id, is_final=chance.random() < 0.3),
                "redrive": partial(rig.redriver.redrive, RUN, ALL, limit=chance.choice([None, 1, 2])),
                "named": partial(rig.redrive, ChunkSelection(chunk_ids=(chunk_id,))),
                "close": rig.tend,
                "cancel": partial(rig.control.cancel, RUN),
                "skip": partial(rig.control.skip, RUN, [chunk_id]),
            }
            act = chance.choices(list(acts.values()), weights=[4, 6, 4, 2, 4, 1, 1])[0]
            try:
                act()
            except (HeadgateError, AssertionError) as exc:
                # Not possible now, which is not what this is about; a broken sum is.
                assert not isinstance(exc, FatalError), exc
            rig.check()
            rig.clock.advance(chance.choice([0.0, 0.5]))
