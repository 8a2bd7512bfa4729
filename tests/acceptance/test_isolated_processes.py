"""Processes of isolated activities: they end with their activity, and with the worker that wanted its result."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import Raw

import headgate as hg
from tests.acceptance import isolated_app as mine
from tests.acceptance.program import PROGRAM, until
from tests.process_state import is_gone

ROOT = Path(__file__).parents[2]


def pids_in(path: Path) -> list[int]:
    """Return the processes that a file names, once it does."""
    until(lambda: path.exists() and path.read_text() != "", "what the activity writes when it has begun")
    return [int(word) for word in path.read_text().split()]


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A running `headgate worker`."""
    log = tmp_path / "worker.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [PROGRAM, "worker", "--home", tmp_path / "home", "--app", "tests.acceptance.isolated_app:app"],
            cwd=ROOT,
            env={**os.environ, "HEADGATE_DRAIN_SECONDS": "2"},
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        until(lambda: "headgate worker ready" in log.read_text(), "the line that says the worker is ready")
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def doomed() -> Iterator[list[int]]:
    """Processes that must be gone by the end of a test, and will be."""
    pids: list[int] = []
    yield pids
    for pid in pids:
        if not is_gone(pid):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_isolated__its_worker_ends__the_process_and_its_children_are_gone_soon(
    tmp_path: Path, worker: subprocess.Popen[bytes], doomed: list[int], end: signal.Signals
) -> None:
    with hg.connect(mine.app, home=tmp_path / "home", work=False):
        mine.endless.start(str(tmp_path / "pids"))
        doomed += pids_in(tmp_path / "pids")
        assert not any(map(is_gone, doomed))

        worker.send_signal(end)
        worker.wait(15)

        until(lambda: all(map(is_gone, doomed)), "the end of the activity's processes", 10.0)


def test_isolated__its_worker_is_killed_and_a_fork_of_it_lives_on__the_process_is_gone_all_the_same(
    tmp_path: Path, worker: subprocess.Popen[bytes], doomed: list[int]
) -> None:
    with hg.connect(mine.app, home=tmp_path / "home", work=False):
        mine.endless_beside_a_copy.start(str(tmp_path / "pids"))
        pids = pids_in(tmp_path / "pids")
        copies = pids_in(tmp_path / "pids.copy")
        doomed += pids + copies

        worker.kill()

        until(lambda: all(map(is_gone, pids)), "the end of the activity's processes", 10.0)
        assert not any(map(is_gone, copies))


def test_isolated__over_its_time_limit__is_killed_with_its_children(tmp_path: Path, doomed: list[int]) -> None:
    with hg.connect(mine.app, home=tmp_path / "home"):
        assert mine.killed_with_its_child.start(str(tmp_path / "pids")).result(60) == "start_to_close"
        doomed += pids_in(tmp_path / "pids")

        until(lambda: all(map(is_gone, doomed)), "the end of the activity's processes", 10.0)


def test_isolated__heartbeats__let_the_next_attempt_go_on_and_its_words_and_events_arrive(tmp_path: Path) -> None:
    with hg.connect(mine.app, home=tmp_path / "home") as service:
        handle = mine.stepwise.start(6)

        assert handle.result(60) == [3, 6]
        assert "done with 6" in [note.text for note in service.client.logs(handle.id)]
        (event,) = service.bus.tail(type="steps.done")
        assert event.event.data == {"steps": 6}


def test_isolated__no_heartbeat_any_more__is_killed_with_its_children(tmp_path: Path, doomed: list[int]) -> None:
    with hg.connect(mine.app, home=tmp_path / "home"):
        assert mine.silent.start(str(tmp_path / "pids")).result(60) == "heartbeat"
        doomed += pids_in(tmp_path / "pids")

        until(lambda: all(map(is_gone, doomed)), "the end of the activity's processes", 10.0)


def test_isolated__to_be_completed_later__is_by_the_caller_that_has_the_token(tmp_path: Path) -> None:
    path = tmp_path / "token"
    with hg.connect(mine.app, home=tmp_path / "home") as service:
        handle = mine.outside.start(str(path))
        until(lambda: path.exists() and path.read_text() != "", "the token")

        service.client.complete_activity(path.read_text(), Raw(b'"from outside"'))

        assert handle.result(60) == "from outside"
