"""Worker processes on one file, killed without warning: everything finishes, and nothing is done twice unrecorded."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from headgate.clock import SystemClock
from headgate.durable.model.history import Status
from headgate.durable.service import Service
from headgate.errors import ExecutionClosedError
from headgate.store.blobs.folder import FolderBlobs
from headgate.store.keyring import Keyring
from headgate.store.sqlite.store import SqliteStore
from tests.acceptance.durable_app import app, journey
from tests.acceptance.program import PROGRAM, until
from tests.stores import open_sqlite

ROOT = Path(__file__).parents[2]
SOAK_SECONDS = float(os.environ.get("HEADGATE_TEST_SOAK_SECONDS", "0"))
EXECUTIONS = 2_000 if SOAK_SECONDS else 200
KILLS = 60 if SOAK_SECONDS else 6
STEPS = ("first", "left", "right", "last")


class WorkerProcess:
    """A running `headgate worker`."""

    def __init__(self, folder: Path, number: int) -> None:
        self._log = folder / f"worker-{number}.log"
        with self._log.open("wb") as file:
            self.process = subprocess.Popen(
                [PROGRAM, "worker", "--home", folder / "home", "--app", "tests.acceptance.durable_app:app"],
                cwd=ROOT,
                env={**os.environ, "JOURNAL": str(folder / "journal"), "HEADGATE_WORKER_LEASE_SECONDS": "2"},
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    @property
    def log(self) -> str:
        return self._log.read_text()

    def is_ready(self) -> bool:
        assert self.process.poll() is None, f"it ended: {self.log}"
        return "headgate worker ready" in self.log

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def open_client(folder: Path) -> tuple[Service, SqliteStore]:
    clock = SystemClock()
    home = folder / "home"
    home.mkdir()
    store = open_sqlite(home)
    service = Service(app, store, clock, Keyring.open(home / "keys.json", clock), FolderBlobs(home / "blobs"))
    return service, store


@pytest.mark.timeout(240 + 4 * int(SOAK_SECONDS))
def test_kill_9__one_of_two_workers_every_second__everything_finishes_and_no_effect_is_missing(tmp_path: Path) -> None:
    chance = random.Random(20261116)
    _, store = open_client(tmp_path)
    workers = [WorkerProcess(tmp_path, number) for number in range(2)]
    try:
        for worker in workers:
            until(worker.is_ready, "the line that says the worker is ready")
        handles = [journey.start(number, id=f"journey-{number:05d}") for number in range(EXECUTIONS)]
        for handle in handles:
            handle.signal("go", "now", id="only")
            with suppress(ExecutionClosedError):  # Some are through already.
                handle.signal("go", "again", id="only")
        for count in range(KILLS):
            time.sleep(1.0)
            victim = chance.randrange(2)
            workers[victim].kill()
            workers[victim] = WorkerProcess(tmp_path, 2 + count)
        results = [handle.result(120) for handle in handles]
        assert results == [f"{number} now" for number in range(EXECUTIONS)]
    finally:
        for worker in workers:
            worker.kill()
        app.bind(None, None)
        store.close()
    lines = (tmp_path / "journal").read_text().splitlines()
    done = {line.rpartition(" ")[0] for line in lines}
    assert done == {f"journey-{number:05d}/{step}" for number in range(EXECUTIONS) for step in STEPS}
    # The same step twice is allowed where a second attempt was recorded; the same attempt twice never is.
    assert [line for line, count in Counter(lines).items() if count > 1] == []


def test_sigterm__worker_with_executions_under_way__gives_them_back_and_exits_zero(tmp_path: Path) -> None:
    _, store = open_client(tmp_path)
    first = WorkerProcess(tmp_path, 0)
    try:
        until(first.is_ready, "the line that says the worker is ready")
        handles = [journey.start(number, id=f"j-{number}") for number in range(20)]
        first.process.send_signal(signal.SIGTERM)
        assert first.process.wait(15) == 0, first.log
        second = WorkerProcess(tmp_path, 1)
        try:
            for handle in handles:
                handle.signal("go", "on")
            assert [handle.result(30) for handle in handles] == [f"{number} on" for number in range(20)]
        finally:
            second.kill()
        assert {handle.status() for handle in handles} == {Status.SUCCEEDED}
    finally:
        first.kill()
        app.bind(None, None)
        store.close()
