"""Process group: the processes of an isolated activity, which end with the activity or with its worker.

A worker that exits kills its groups: Python itself would end only the leader of each. A worker that is killed cannot,
so each group leader watches the worker: by a pipe that the system closes when the worker dies, and by its parent id,
since a fork may hold the other end of the pipe open.
"""

from __future__ import annotations

import atexit
import multiprocessing
import multiprocessing.util
import os
import signal
import threading
from contextlib import suppress
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Final

_POLL_SECONDS: Final = 0.5
# The group leaders that were started here and not killed yet. They are not reaped, so their ids are not reused.
_leaders: Final[set[BaseProcess]] = set()


def lead_group() -> None:
    """Make this spawned process the leader of a group that does not outlive the worker."""
    worker = multiprocessing.parent_process()
    assert worker is not None, "only a spawned process has a worker"
    os.setpgid(0, 0)
    # A daemon thread, which does not keep the process from exiting.
    threading.Thread(target=_end_with, args=(worker,), name="headgate-parent", daemon=True).start()


def start_leader(process: BaseProcess) -> None:
    """Start a process that will call `lead_group`. The caller ends it with `kill_group`."""
    process.start()
    _leaders.add(process)


def kill_group(process: BaseProcess) -> None:
    """Kill a spawned process with all its descendants, and wait until it is gone."""
    _kill(process)
    _leaders.discard(process)
    process.join()


def _kill(process: BaseProcess) -> None:
    assert process.pid is not None, "it was started"
    # A process that is not a group leader yet has started no other.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()


def _kill_all() -> None:
    for process in list(_leaders):
        _kill(process)


# Runs before the exit handler of `multiprocessing.util`, which ends the leaders and waits for them.
atexit.register(_kill_all)
# A fork of this process has started none of them.
os.register_at_fork(after_in_child=_leaders.clear)


def _end_with(worker: BaseProcess) -> None:
    while not wait([worker.sentinel], _POLL_SECONDS) and os.getppid() == worker.pid:
        continue
    os.killpg(0, signal.SIGKILL)
