"""The committer thread survives refusals of the operating system: without it, submitted commits wait for ever."""

from __future__ import annotations

import fcntl
import threading
from contextlib import closing
from pathlib import Path

import pytest

from headgate.store.sqlite.store import Synchronous
from tests.stores import open_sqlite


def test_checkpoint__no_thread_left_to_wait_for_the_lock__is_left_to_a_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with closing(open_sqlite(tmp_path, synchronous=Synchronous.NORMAL)) as store:
        commits = store._commits
        (lock,) = tmp_path.rglob("*.lock")
        with lock.open("rb") as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            with monkeypatch.context() as patch:
                patch.setattr(threading.Thread, "start", refuse)
                assert commits._leading.acquire(blocking=False)
                # As the committer thread does.
                commits._checkpoint_wal()
        assert not commits._leading.locked()
        done = threading.Event()
        commits.submit(lambda _connection: None, lambda _error: done.set())
        assert done.wait(5)
