"""An app inside of a process, with real threads, an event loop for async activities, and processes of their own."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import headgate as hg
from headgate.durable.engine.membership import list_members
from headgate.durable.model.history import ActivityEnded
from headgate.durable.model.worker_limits import WorkerLimits
from headgate.durable.service import Service
from headgate.durable.threads import WorkerThreads
from headgate.errors import IllegalTransitionError
from tests.acceptance import isolated_app as mine
from tests.acceptance.program import until


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    mine.release.clear()
    with hg.connect(mine.app, home=tmp_path / "home") as opened:
        yield opened
        mine.release.set()


@pytest.mark.usefixtures("service")
def test_isolated__activity__runs_in_another_process_and_returns_a_large_result() -> None:
    pid, size = mine.isolated.start(2_000_000).result(60)
    assert pid != os.getpid()
    assert size == 2_000_000


@pytest.mark.usefixtures("service")
@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("odd", "raised odd"),
        ("exit", "failed ProcessDied"),
        # The copy comes back too, and its message is discarded.
        ("fork", "raised fork"),
        ("fork and exit", "failed ProcessDied"),
        ("noise", "failed ProcessDied"),
        ("text", "failed ProcessDied"),
        ("latin-1", "failed ProcessDied"),
    ],
)
def test_isolated__that_raises_dies_or_makes_no_sense__is_reported(what: str, message: str) -> None:
    assert mine.broken.start(what).result(60) == message


@pytest.mark.usefixtures("service")
def test_hung__threads_that_never_return__time_out_and_do_not_hold_up_the_others() -> None:
    assert mine.hung.start(5).result(30) == 5
    assert mine.adding.start(50).result(30) == sum(range(50))


@pytest.mark.usefixtures("service")
def test_async__many_that_wait__wait_at_the_same_time() -> None:
    started = time.monotonic()
    assert mine.many_waits.start(50).result(30) == 50
    # One after the other they would take 15 seconds.
    assert time.monotonic() - started < 8


def test_queue__behind_one_that_blocks__is_left_to_a_worker_that_comes_later(tmp_path: Path) -> None:
    mine.release.clear()
    with hg.connect(mine.app, home=tmp_path / "home", threads_max=1) as first:
        try:
            handle = mine.adding_behind_one_that_blocks.start(20)
            until(lambda: first.client.get(handle.id).turn >= 1, "the first turn")
            with hg.connect(mine.app, home=tmp_path / "home", threads_max=1) as second:

                def ended() -> int:
                    turns = second.client.history(handle.id)
                    return sum(isinstance(event, ActivityEnded) for turn in turns for event in turn.events)

                # One of them may be next in line where the other is held up.
                until(lambda: ended() >= 19, "the others")
        finally:
            mine.release.set()
        assert handle.result(30) == sum(range(20))


@pytest.mark.usefixtures("service")
def test_heartbeat__longer_than_its_limit_but_alive__is_not_timed_out() -> None:
    assert mine.beating.start(12).result(30) == 12


@pytest.mark.usefixtures("service")
def test_backlog__longer_than_a_page_behind_a_limit__is_worked_off() -> None:
    assert mine.many_limited.start(600).result(60) == sum(range(600))


@pytest.mark.usefixtures("service")
def test_log__text_without_a_form_in_utf_8_and_a_bad_format__harms_no_other(service: Service) -> None:
    handle = mine.odd.start(0)
    assert handle.result(30) == "said"
    assert any("caf\\udce9" in note.text for note in service.client.logs(handle.id))


@pytest.mark.usefixtures("service")
def test_async__that_leaves_by_system_exit__fails_and_the_loop_goes_on() -> None:
    assert mine.leaving.start(0).result(30) == "SystemExit 0.01"


def test_time_limit__of_what_waits_for_a_thread__counts_from_its_start(tmp_path: Path) -> None:
    with hg.connect(mine.app, home=tmp_path / "home", threads_max=1):
        assert mine.queueing.start(6).result(30) == 6


def test_time_limit__of_what_waits_behind_one_that_blocks__is_kept(tmp_path: Path) -> None:
    mine.release.clear()
    with hg.connect(mine.app, home=tmp_path / "home", threads_max=1):
        try:
            started = time.monotonic()
            limits = mine.behind_one_that_blocks.start(3).result(15)
            assert limits == ["schedule_to_close", "schedule_to_start"]
            assert time.monotonic() - started < 5
        finally:
            mine.release.set()


def test_queue__behind_one_that_blocks__does_not_have_the_store_asked_again_and_again(tmp_path: Path) -> None:
    mine.release.clear()
    with hg.connect(mine.app, home=tmp_path / "home", threads_max=1) as service:
        try:
            handle = mine.adding_behind_one_that_blocks.start(20)
            until(lambda: service.client.get(handle.id).turn >= 1, "the first turn")
            before = service.store.stats.snapshot()["queries"]  # type: ignore[attr-defined]  # of every real store
            time.sleep(1.0)
            assert service.store.stats.snapshot()["queries"] - before < 100  # type: ignore[attr-defined]
        finally:
            mine.release.set()
        assert handle.result(30) == sum(range(20))


@pytest.mark.usefixtures("service")
def test_busy__execution_that_is_always_ready__does_not_hold_up_a_timer() -> None:
    busy = mine.restless.start(1_000_000)
    started = time.monotonic()
    assert mine.sleeping.start(0.3).result(30) == "slept"
    assert time.monotonic() - started < 5
    busy.terminate("enough")
    with pytest.raises(hg.ExecutionFailure):
        busy.result(30)


@pytest.mark.usefixtures("service")
def test_spinning__workflow_code_that_never_waits__is_interrupted_and_others_go_on() -> None:
    spinning = mine.spinning.start(0)
    until(lambda: spinning.describe().failures > 0, "the first setback")
    row = spinning.describe()
    assert row.turn == 0
    assert row.failure is not None
    assert "in spinning; workflow code may go on for 2 s" in row.failure
    assert mine.adding.start(50).result(30) == sum(range(50))
    spinning.terminate("enough")
    with pytest.raises(hg.ExecutionFailure, match="TERMINATED"):
        spinning.result(30)


def test_status__of_a_worker__shows_what_it_does_and_what_holds_it_up(tmp_path: Path) -> None:
    mine.release.clear()
    mine.gate.acquire()
    with hg.connect(mine.app, home=tmp_path / "home", work=False) as opened:
        worker = opened.worker(limits=WorkerLimits(threads_max=1))
        threads = WorkerThreads(worker, opened.store, turn_seconds=0.2)
        threads.start()
        try:
            adding = mine.adding_behind_one_that_blocks.start(20)
            until(lambda: threads.status().queued == 20, "the activities that wait for the thread")
            busy = threads.status()
            assert (busy.running, busy.hung, busy.has_lease, busy.has_failed) == (1, 0, True, False)
            assert busy.polled_seconds is not None
            assert busy.polled_seconds < 5
            assert busy.turned_seconds is not None
            assert busy.faults() == []
            blocked = mine.blocked_for_good.start(0)
            until(lambda: bool(threads.status().overdue), "the turn that is blocked")
            (fault,) = threads.status().faults()
            assert fault.startswith(f"execution {blocked.id} has been in one turn for")
            assert "in blocked_for_good" in fault
        finally:
            mine.gate.release()
            mine.release.set()
        assert adding.result(30) == sum(range(20))
        threads.stop(5.0)


def test_fatal__store_closed_under_the_worker__is_reported_once(tmp_path: Path) -> None:
    received: list[BaseException] = []
    with hg.connect(mine.app, home=tmp_path / "home", work=False) as opened:
        opened.start(on_fatal=received.append)
        opened.store.close()
        until(lambda: bool(received), "the word that the worker has stopped")
        opened.stop(grace_seconds=0.2)
    assert len(received) == 1


def test_stop__with_an_activity_that_never_returns__returns_within_its_grace(tmp_path: Path) -> None:
    mine.release.clear()
    before = threading.active_count()
    with hg.connect(mine.app, home=tmp_path / "home") as opened:
        handle = mine.hung.start(1)
        until(lambda: opened.client.get(handle.id).turn >= 1, "the first turn")
        started = time.monotonic()
        opened.stop(grace_seconds=0.5)
        assert time.monotonic() - started < 5
    mine.release.set()
    until(lambda: threading.active_count() <= before + 1, "the end of the threads")


def test_start__service_that_has_a_worker__is_refused_and_the_worker_goes_on(service: Service) -> None:
    with pytest.raises(IllegalTransitionError, match="started already"):
        service.start()

    assert mine.adding.start(5).result(30) == sum(range(5))
    service.stop()
    service.start()
    assert mine.adding.start(6).result(30) == sum(range(6))


def test_async__more_than_the_slots__wait_in_their_queue_while_other_activities_run(tmp_path: Path) -> None:
    mine.crowd.clear()
    with hg.connect(mine.app, home=tmp_path / "home", work=False) as opened:
        opened.start(limits=WorkerLimits(async_max=3))
        crowded = mine.crowded.start(40)
        until(lambda: len(mine.crowd) >= 1, "the first of the async activities")
        assert mine.adding.start(20).result(30) == sum(range(20))
        # The most that was seen by any of them.
        assert crowded.result(60) == 3
        (member,) = list_members(opened.store)
        assert member.limits == WorkerLimits(async_max=3)
        until(lambda: list_members(opened.store)[0].usage is not None, "a heartbeat")
        opened.stop()


def test_isolated__app_with_interceptors__is_wrapped_in_its_process(tmp_path: Path) -> None:
    with hg.connect(mine.marked, home=tmp_path / "home"):
        pid, mark, wrapped_by = mine.marked_pids.start(1).result(60)

    assert (mark, wrapped_by == pid, pid == os.getpid()) == ("m", True, False)
