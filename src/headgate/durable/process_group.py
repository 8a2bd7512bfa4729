"""The processes of an isolated activity: one group that ends with the activity, or with the worker that wanted it.

A worker that is killed cannot kill its children, so that each of them watches the worker: by a pipe that the system
closes when the worker dies, and by who its parent is, since a copy of the pipe's other end may have been forked.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from contextlib import suppress
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Final

_LOOK_SECONDS: Final = 0.5


def lead_group() -> None:
    """Make this process, which a worker has spawned, the head of a group that does not outlive the worker."""
    worker = multiprocessing.parent_process()
    assert worker is not None, "only a process that was spawned has someone to end with"
    os.setpgid(0, 0)
    # A daemon: it must not keep the process from ending.
    threading.Thread(target=_end_with, args=(worker,), name="headgate-parent", daemon=True).start()


def kill_group(process: BaseProcess) -> None:
    """Kill a spawned process with everything it has started, and wait until it is gone."""
    assert process.pid is not None, "it was started"
    # Not yet collected, so that its number cannot be anyone else's. Before it heads a group, it has started nothing.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.join()


def _end_with(worker: BaseProcess) -> None:
    while not wait([worker.sentinel], _LOOK_SECONDS) and os.getppid() == worker.pid:
        continue
    os.killpg(0, signal.SIGKILL)
