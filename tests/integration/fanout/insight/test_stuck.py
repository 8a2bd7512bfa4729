"""Which chunks do not move: judged from rows, and found in a store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from headgate.clock import VirtualClock
from headgate.errors import NotFoundError
from headgate.fanout.core.chunk_workers import ChunkWorkerRow, ChunkWorkers
from headgate.fanout.core.maintenance import worker_name
from headgate.fanout.core.queries import FanoutQueries
from headgate.fanout.core.splitter import Order, Splitter
from headgate.fanout.insight.eta import spread_of
from headgate.fanout.insight.stuck import LaneState, StuckKind, classify, lane_states, stuck
from headgate.fanout.model.counts import Counts
from headgate.fanout.model.rows import MAIN_LANE, SLOW_LANE, Policy, timestamp
from headgate.fanout.model.sources import RangeSource
from headgate.fanout.model.states import Disposition
from headgate.ids import IdMaker
from headgate.store.catalogue.tables import FANOUT
from headgate.store.sqlite.store import SqliteStore, Synchronous
from tests.stores import open_sqlite
from tests.unit.fanout.made_rows import RUN, SIZE, T0, Stage, made_chunk, made_fanout

LATER = T0 + 901_000


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(T0 / 1000)


@pytest.fixture
def store(tmp_path: Path, clock: VirtualClock) -> Iterator[SqliteStore]:
    opened = open_sqlite(tmp_path, clock=clock, synchronous=Synchronous.NORMAL)
    yield opened
    opened.close()


FREE = LaneState()
NO_TAKER = LaneState(no_taker="no worker of the main lane is running")
REMOTE = LaneState(is_remote=True)


def _kind(
    disposition: Disposition,
    now_ms: int,
    about: dict[str, Any] | None = None,
    *,
    lane: LaneState = FREE,
    **chunk: Any,
) -> StuckKind | None:
    found = classify(made_fanout(**(about or {})), made_chunk(0, disposition, **chunk), now_ms, lane)
    return None if found is None else found.kind


def _worker(lane: str = MAIN_LANE, **row: Any) -> ChunkWorkerRow:
    return ChunkWorkerRow(worker_id="far|1|x", lane=lane, processes=2, started_at=timestamp(T0), **row)


def test_classify__lease_runs_out_with_attempts_left__will_be_tried_again() -> None:
    assert _kind(Disposition.RUNNING, T0 + 899_000) is None
    assert _kind(Disposition.RUNNING, T0 + 900_000) is StuckKind.RETRY_PENDING
    assert _kind(Disposition.RUNNING, LATER, attempt=2) is StuckKind.RETRY_PENDING


def test_classify__lease_runs_out_for_the_last_time__is_lost() -> None:
    assert _kind(Disposition.RUNNING, LATER, attempt=20, lost_attempts=19) is StuckKind.LOST
    # Failed attempts do not count as lost ones.
    assert _kind(Disposition.RUNNING, LATER, attempt=21, lost_attempts=18) is StuckKind.RETRY_PENDING


def test_classify__lease_runs_out_after_a_cancellation__is_lost() -> None:
    assert _kind(Disposition.RUNNING, LATER, {"cancelled_at": timestamp(T0)}) is StuckKind.LOST


def test_classify__alive_beyond_the_threshold__is_overdue() -> None:
    lease = timestamp(LATER + 30_000)

    assert _kind(Disposition.RUNNING, LATER, lease_expires_at=lease) is StuckKind.OVERDUE
    assert _kind(Disposition.RUNNING, T0 + 900_000, lease_expires_at=lease) is None


def test_classify__a_retry_is_due__is_pending_and_says_when() -> None:
    chunk = replace(made_chunk(0, Disposition.RETRYING), queue_sk=f"{T0 + 5000:013d}#0000000")

    found = classify(made_fanout(), chunk, T0 + 3000, FREE)

    assert found is not None
    assert found.kind is StuckKind.RETRY_PENDING
    assert found.seconds == 2
    assert timestamp(T0 + 5000) in found.reason


@pytest.mark.parametrize("disposition", [Disposition.QUEUED, Disposition.WAITING])
def test_classify__queue_without_an_end_for_the_time_out__was_never_started(disposition: Disposition) -> None:
    assert _kind(disposition, T0 + 900_000, lane=REMOTE) is None
    assert _kind(disposition, LATER, lane=REMOTE) is StuckKind.NEVER_STARTED


def test_classify__no_live_worker_takes_it__is_never_started_after_a_minute() -> None:
    assert _kind(Disposition.QUEUED, T0 + 60_000, lane=NO_TAKER) is None

    found = classify(made_fanout(), made_chunk(0, Disposition.QUEUED), T0 + 61_000, NO_TAKER)

    assert found is not None
    assert (found.kind, found.reason) == (StuckKind.NEVER_STARTED, "no worker of the main lane is running")


@pytest.mark.parametrize("lane", [FREE, LaneState(running=2), LaneState(running=2, no_taker="gone")])
def test_classify__waits_for_its_turn__is_not_stuck_however_long(lane: LaneState) -> None:
    fanout = made_fanout(updated_at=timestamp(T0))

    assert classify(fanout, made_chunk(0, Disposition.QUEUED), 2 * LATER, lane) is None
    assert classify(fanout, made_chunk(0, Disposition.QUEUED), 2 * LATER, lane, older_than_seconds=5) is None


def test_classify__waiting_in_a_queue_that_moves__is_not_stuck() -> None:
    assert _kind(Disposition.QUEUED, LATER, {"updated_at": timestamp(LATER - 5000)}, lane=REMOTE) is None
    assert _kind(Disposition.QUEUED, LATER, {"updated_at": timestamp(T0)}, lane=REMOTE) is StuckKind.NEVER_STARTED


def test_classify__put_back_into_the_queue__waits_from_then() -> None:
    chunk = replace(made_chunk(0, Disposition.QUEUED), queue_sk=f"{LATER - 1000:013d}#0000000")

    assert classify(made_fanout(), chunk, LATER, NO_TAKER) is None


def test_classify__runs_many_times_longer_than_others__is_overdue_before_its_time_out() -> None:
    lane = LaneState(running=1, durations=spread_of([1000] * 20))
    lease = timestamp(LATER)

    assert _kind(Disposition.RUNNING, T0 + 60_000, lane=lane, lease_expires_at=lease) is None
    found = classify(made_fanout(), made_chunk(0, Disposition.RUNNING, lease_expires_at=lease), T0 + 61_000, lane)

    assert found is not None
    assert found.kind is StuckKind.OVERDUE
    assert "99 of 100 others took at most 1 s" in found.reason


def test_classify__slow_lane__has_its_own_time_out() -> None:
    chunk = replace(
        made_chunk(0, Disposition.RUNNING), sk="SLOW#slow-0000000", lease_expires_at=timestamp(T0 + 9_000_000)
    )

    assert classify(made_fanout(), chunk, T0 + 3_600_000, FREE) is None
    assert classify(made_fanout(), chunk, T0 + 3_601_000, FREE) is not None


def test_classify__heartbeats_have_stopped__is_said_before_the_lease_ends() -> None:
    heartbeat: dict[str, Any] = {
        "heartbeat_at": timestamp(T0 + 10_000),
        "lease_expires_at": timestamp(T0 + 40_000),
    }

    assert _kind(Disposition.RUNNING, T0 + 30_000, **heartbeat) is None
    assert _kind(Disposition.RUNNING, T0 + 31_000, **heartbeat) is StuckKind.NO_HEARTBEAT


def test_lane_states__workers_of_all_kinds__say_which_lane_has_none() -> None:
    fanout = made_fanout(handler="jobs:run")

    def reasons(*workers: ChunkWorkerRow) -> list[str | None]:
        return [state.no_taker for state in lane_states(fanout, Counts(), workers, {}).values()]

    none = ["no worker of the main lane is running", "no worker of the slow lane is running"]
    assert reasons() == none
    assert reasons(_worker()) == [None, none[1]]
    assert reasons(_worker(), _worker(SLOW_LANE)) == [None, None]
    assert reasons(_worker(run_id="other"))[0] == "no live worker takes it: 1 of the main lane run other fan-outs"
    assert reasons(_worker(handler="jobs:other"))[0] == "no live worker takes it: 1 of the main lane run other fan-outs"
    assert reasons(_worker(unusable={"jobs:run": "No module named jobs"}))[0] == (
        "no live worker can load its handler: No module named jobs"
    )
    bare = made_fanout()
    assert lane_states(bare, Counts(), [_worker()], {})[MAIN_LANE].no_taker == (
        "it has no handler, and no live worker names one"
    )
    assert lane_states(bare, Counts(), [_worker(handler="jobs:run")], {})[MAIN_LANE].no_taker is None


@pytest.mark.parametrize("disposition", [Disposition.QUEUED, Disposition.RETRYING])
@pytest.mark.parametrize("why", ["paused_at", "cancelled_at"])
def test_classify__held_on_purpose__is_not_stuck(disposition: Disposition, why: str) -> None:
    assert _kind(disposition, LATER, {why: timestamp(T0)}, lane=NO_TAKER) is None


@pytest.mark.parametrize("disposition", [one for one in Disposition if one.status.is_terminal])
def test_classify__has_ended__is_not_stuck(disposition: Disposition) -> None:
    assert _kind(disposition, LATER * 2, lane=NO_TAKER) is None


def test_classify__threshold_given__is_used_instead_of_the_time_out() -> None:
    chunk = made_chunk(0, Disposition.QUEUED)

    assert classify(made_fanout(), chunk, T0 + 31_000, NO_TAKER, older_than_seconds=30) is not None
    assert classify(made_fanout(), chunk, LATER, NO_TAKER, older_than_seconds=3600) is None


def test_classify__policy_with_another_time_out__goes_by_that() -> None:
    fanout = made_fanout(Policy(timeout_seconds=30))

    assert classify(fanout, made_chunk(0, Disposition.QUEUED), T0 + 31_000, REMOTE) is not None


def test_classify__row_of_another_program_without_a_lease__has_the_time_out() -> None:
    chunk = made_chunk(0, Disposition.RUNNING, attempt=0, lease_expires_at=None, worker=None)

    assert classify(made_fanout(shards=0), chunk, T0 + 899_000, REMOTE) is None
    found = classify(made_fanout(shards=0), chunk, LATER, REMOTE)
    assert found is not None
    assert found.kind is StuckKind.RETRY_PENDING
    assert found.reason.startswith("the lease of its worker expired")


def test_stuck__chunks_in_every_state__are_reported_by_kind(store: SqliteStore, clock: VirtualClock) -> None:
    stage = Stage(store, clock, chunks=6, policy=Policy(lost_attempts_max=2, backoff_seconds=0, heartbeat_seconds=100))
    stage.complete(0)
    stage.start(1)
    clock.advance(301)
    stage.start(1)  # After one lost attempt, the last that chunk 1 may lose.
    stage.start(2)
    stage.fail(3)
    alive = stage.start(4)
    for _ in range(5):
        clock.advance(200)
        alive = stage.tracker.heartbeat(alive)

    found = sorted((one.chunk.start // SIZE, one.kind) for one in stuck(stage.queries, RUN, workers=[]))

    # Chunk 5 is queued behind the running ones.
    assert found == [
        (1, StuckKind.LOST),
        (2, StuckKind.RETRY_PENDING),
        (3, StuckKind.RETRY_PENDING),
        (4, StuckKind.OVERDUE),
    ]


def test_stuck__queued_and_no_worker__are_reported_until_one_comes(store: SqliteStore, clock: VirtualClock) -> None:
    stage = Stage(store, clock, chunks=3)
    workers = ChunkWorkers(store, clock)
    clock.advance(61)

    assert [one.kind for one in stuck(stage.queries, RUN, workers=workers.live())] == [StuckKind.NEVER_STARTED] * 3

    workers.beat(_worker(handler="jobs:run"))
    assert stuck(stage.queries, RUN, workers=workers.live()) == []

    # Without a heartbeat its row expires.
    clock.advance(36)
    assert len(stuck(stage.queries, RUN, workers=workers.live())) == 3


def test_workers__one_leaves__is_not_live(store: SqliteStore, clock: VirtualClock) -> None:
    workers = ChunkWorkers(store, clock)
    workers.beat(_worker())
    assert [row.worker_id for row in workers.live()] == ["far|1|x"]

    workers.leave("far|1|x")

    assert workers.live() == []


def test_workers__process_of_this_machine_is_gone__is_not_live(store: SqliteStore, clock: VirtualClock) -> None:
    workers = ChunkWorkers(store, clock)
    workers.beat(replace(_worker(), worker_id=worker_name(2**22 + 1, "x")))

    assert workers.live() == []


def test_stuck__nothing_is_old_enough__is_empty(store: SqliteStore, clock: VirtualClock) -> None:
    stage = Stage(store, clock, chunks=4)
    stage.start(0)
    stage.fail(1)
    clock.advance(60)

    assert stuck(stage.queries, RUN, workers=[]) == []
    # The queued ones wait behind the running one.
    found = stuck(stage.queries, RUN, workers=[], older_than_seconds=30)
    assert {one.chunk.start // SIZE for one in found} == {0, 1}


def test_stuck__among_ten_thousand_chunks__reads_a_page_for_each_place_to_look(
    store: SqliteStore, clock: VirtualClock
) -> None:
    stage = Stage(store, clock, chunks=10_000)
    clock.advance(1000)
    before = store.stats.queries

    found = stuck(stage.queries, RUN, workers=[], limit=5)

    assert [one.kind for one in found] == [StuckKind.NEVER_STARTED] * 5
    assert store.stats.queries - before <= 6

    stage.start(7000)
    clock.advance(899)
    assert stuck(stage.queries, RUN, workers=[], limit=5) == []
    clock.advance(2)
    found = stuck(stage.queries, RUN, workers=[], limit=5)
    assert found[0].chunk.chunk_id == "chunk-0070000"
    assert [one.kind for one in found[1:]] == [StuckKind.NEVER_STARTED] * 4


def test_stuck__messages_that_cannot_be_sent__are_reported_with_the_error_of_the_queue(
    store: SqliteStore, clock: VirtualClock
) -> None:
    ids = IdMaker(clock)
    splitter = Splitter(store, clock, ids, send=lambda fanout: fanout)
    fanout = splitter.split(Order("g", 1, queue_url="https://sqs/q"), RangeSource(0, 3), run_id="sent")
    failed = replace(fanout, send_error="queue_url https://sqs/q: it does not exist", version=fanout.version + 1)
    store.transact([failed.replacing(fanout.version)])
    clock.advance(901)

    found = stuck(FanoutQueries(store, clock), "sent", workers=[], limit=2)

    assert [one.chunk.chunk_id for one in found] == ["chunk-0000000", "chunk-0000001"]
    assert found[0].reason == "its message was never sent: queue_url https://sqs/q: it does not exist"


def test_stuck__limit__is_kept(store: SqliteStore, clock: VirtualClock) -> None:
    stage = Stage(store, clock, chunks=5)
    for number in range(5):
        stage.start(number)
    clock.advance(1000)

    assert len(stuck(stage.queries, RUN, workers=[], limit=2)) == 2


def test_stuck__rows_of_another_program__are_found_without_an_index(store: SqliteStore, clock: VirtualClock) -> None:
    stage = Stage(store, clock, chunks=1)
    started = {"status": "IN_PROGRESS", "started_at": "2025-06-15T14:00:00+00:00", "chunk_key": "chunks/a.npz"}
    store.put(FANOUT, {"PK": "foreign", "SK": "RUN", "survey": "grs-15", "jobs_total": 2})
    store.put(FANOUT, {"PK": "foreign", "SK": "CHUNK#chunk-0000000", **started})
    store.put(FANOUT, {"PK": "foreign", "SK": "CHUNK#chunk-0000500", "status": "COMPLETED"})

    assert [one.chunk.chunk_id for one in stuck(stage.queries, "foreign", workers=[])] == ["chunk-0000000"]


def test_stuck__no_such_fan_out__is_said(store: SqliteStore, clock: VirtualClock) -> None:
    stage = Stage(store, clock, chunks=1)

    with pytest.raises(NotFoundError, match="fan-out other"):
        stuck(stage.queries, "other", workers=[])
