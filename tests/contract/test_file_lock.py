"""The lock between processes: in turn, with a limit to the wait, and never kept by one who gave up."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.errors import StoreBusyError
from headgate.store.sqlite.file_lock import FileLock

HOLDER = """
import fcntl, sys
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.readline()
"""


class Holder:
    """Another process that holds the lock until asked to let go, or killed."""

    def __init__(self, path: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "held\n"

    def let_go(self) -> None:
        self._process.communicate("go\n")

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lock"


@pytest.fixture
def lock(path: Path) -> Iterator[FileLock]:
    made = FileLock(path, wait_seconds_max=0.2)
    yield made
    made.close()


def acquired_elsewhere(path: Path) -> bool:
    other = FileLock(path)
    try:
        taken = other.try_acquire()
        if taken:
            other.release()
        return taken
    finally:
        other.close()


def test_acquire__held_elsewhere__busy_after_the_limit_with_the_remedy(lock: FileLock, path: Path) -> None:
    holder = Holder(path)
    started = time.monotonic()

    with pytest.raises(StoreBusyError, match="fuser"):
        lock.acquire()

    assert 0.15 < time.monotonic() - started < 5
    holder.let_go()


def test_acquire__gave_up_once_and_holder_leaves__lock_is_free_for_others_and_for_us(
    lock: FileLock, path: Path
) -> None:
    holder = Holder(path)
    with pytest.raises(StoreBusyError):
        lock.acquire()
    holder.let_go()

    give_up_at = time.monotonic() + 10
    while not acquired_elsewhere(path):
        assert time.monotonic() < give_up_at, "a waiter that gave up must not keep the lock"
    lock.acquire()
    assert not acquired_elsewhere(path)
    lock.release()
    assert acquired_elsewhere(path)


def test_acquire__again_while_the_first_wait_goes_on__granted_when_the_holder_leaves(path: Path) -> None:
    lock = FileLock(path, wait_seconds_max=30)
    holder = Holder(path)
    threading.Timer(0.1, holder.kill).start()

    lock.acquire()

    assert not acquired_elsewhere(path)
    lock.release()
    lock.close()


def test_close__while_a_wait_goes_on__returns_and_the_lock_is_not_kept(path: Path) -> None:
    lock = FileLock(path, wait_seconds_max=0.1)
    holder = Holder(path)
    with pytest.raises(StoreBusyError):
        lock.acquire()

    lock.close()
    holder.let_go()

    give_up_at = time.monotonic() + 10
    while not acquired_elsewhere(path):
        assert time.monotonic() < give_up_at
