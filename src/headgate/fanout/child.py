"""A child process of a chunk worker: loads the handler and works off jobs until its parent is gone."""

from __future__ import annotations

import ctypes
import os
import queue
import resource
import signal
import socket
import sys
import threading
from typing import Final

from headgate.errors import HeadgateError
from headgate.fanout.handlers import ANY, Loaded, load, perform
from headgate.fanout.jobs import Channel, Job, Progress, Ready, Unusable

_PR_SET_PDEATHSIG: Final = 1


def main(arguments: list[str]) -> None:
    """Serve the worker at the other end of the descriptor that is the first argument."""
    descriptor, memory_mb, handler = int(arguments[0]), int(arguments[1]), arguments[2]
    trusted = None if arguments[3] == ANY else [name for name in arguments[3].split(",") if name]
    _die_with_parent(int(arguments[4]))
    # Ctrl-C in a terminal reaches the whole group: the parent decides when a child has to go.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = Channel(socket.socket(fileno=descriptor))
    jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
    # Before the handler is loaded: that may take long, and the parent may be gone by then.
    threading.Thread(target=_listen, args=(channel, jobs), daemon=True).start()
    try:
        loaded = load(handler, trusted)
    except HeadgateError as exc:
        channel.send(Unusable(str(exc)))
        return
    if memory_mb:
        limit_bytes = memory_mb * 1024 * 1024
        resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))
    channel.send(Ready(loaded.file))
    _serve(channel, jobs, loaded)


def _die_with_parent(parent: int) -> None:
    """Have the system end this process with its parent, also while C code lets no thread of Python run."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)


def _serve(channel: Channel, jobs: queue.SimpleQueue[Job], handler: Loaded) -> None:
    while True:
        job = jobs.get()
        channel.send(perform(handler, job, lambda done, key=job.key: channel.send(Progress(key, done))))  # type: ignore[misc]


def _listen(channel: Channel, jobs: queue.SimpleQueue[Job]) -> None:
    """Take in jobs also while one is being worked on; when the parent is gone, go, whatever the handler does."""
    while True:
        try:
            for job in channel.jobs():
                jobs.put(job)
        except (EOFError, OSError):
            # With everything that the handler has started: the session is this process's own.
            os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1:])
