"""The processes of an isolated activity: one group that ends with the activity, or with the worker that wanted it.

A worker that ends kills the groups that it still has: Python itself would end only the head of each. A worker that is
killed cannot do that, so that each head watches the worker: by a pipe that the system closes when the worker dies, and
by who its parent is, since a copy of the pipe's other end may have been forked.
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

_LOOK_SECONDS: Final = 0.5
# The heads that were started here and not killed yet. None of them is collected, so that its number is its own.
_heads: Final[set[BaseProcess]] = set()


def lead_group() -> None:
    """Make this process, which a worker has spawned, the head of a group that does not outlive the worker."""
    worker = multiprocessing.parent_process()
    assert worker is not None, "only a process that was spawned has someone to end with"
    os.setpgid(0, 0)
    # A daemon: it must not keep the process from ending.
    threading.Thread(target=_end_with, args=(worker,), name="headgate-parent", daemon=True).start()


def start_head(process: BaseProcess) -> None:
    """Start a process that will `lead_group`. Whoever does this calls `kill_group` in the end."""
    process.start()
    _heads.add(process)


def kill_group(process: BaseProcess) -> None:
    """Kill a spawned process with everything it has started, and wait until it is gone."""
    _kill(process)
    _heads.discard(process)
    process.join()


def _kill(process: BaseProcess) -> None:
    assert process.pid is not None, "it was started"
    # Before it heads a group, it has started nothing.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()


def _kill_all() -> None:
    for process in list(_heads):
        _kill(process)


# Called before what `multiprocessing.util` has registered, which ends the heads and waits for them.
atexit.register(_kill_all)
# A copy of this process has started none of them.
os.register_at_fork(after_in_child=_heads.clear)


def _end_with(worker: BaseProcess) -> None:
    while not wait([worker.sentinel], _LOOK_SECONDS) and os.getppid() == worker.pid:
        continue
    os.killpg(0, signal.SIGKILL)
