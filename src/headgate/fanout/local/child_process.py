"""Children: the processes in which a worker runs its handler, one dying without harm to another."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from msgspec import Struct

from headgate.durable.worker.process_channel import ProcessChannel
from headgate.fanout.core.attempts import ErrorClass
from headgate.fanout.handlers import ANY
from headgate.fanout.model.child_protocol import ANSWERS, Answer, Job

READY_SECONDS_MAX: Final = 60.0
ENDING_SECONDS_MAX: Final = 1.0


def _mark(file: str) -> tuple[int, int] | None:
    try:
        found = os.stat(file)  # noqa: PTH116 - asked whenever a job is handed out
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size)


class Death(Struct, frozen=True):
    """How a child ended, and the jobs that it had: the first of them was being worked on."""

    error_class: ErrorClass
    message: str
    jobs: tuple[Job, ...]
    was_ready: bool


class Child:
    """One child process. Jobs are worked off in the order in which they are given."""

    def __init__(self, handler: str, *, memory_mb: int | None, trusted: Sequence[str] | None, now: float) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            packages = ANY if trusted is None else ",".join(trusted)
            arguments = [str(theirs.fileno()), str(memory_mb or 0), handler, packages, str(os.getpid())]
            command = [sys.executable, "-m", "headgate.fanout.local.child_main", *arguments]
            # A session of its own, so that whatever the handler starts ends with it.
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], start_new_session=True)
        self.handler = handler
        self.memory_mb = memory_mb
        self.is_ready = False
        self.jobs: deque[Job] = deque()
        # When the first of the jobs was begun, as far as can be told from here.
        self.busy_since = now
        self.channel = ProcessChannel(ours, ANSWERS)
        self._killed_as: ErrorClass | None = None
        self._file = ""
        self._mark: tuple[int, int] | None = None

    def ready(self, file: str, now: float) -> None:
        """Note that the handler is loaded, from this file."""
        self.is_ready = True
        self.busy_since = now
        self._file, self._mark = file, _mark(file)

    def is_outdated(self) -> bool:
        """Whether the file of the handler is another one than was loaded."""
        return self.is_ready and _mark(self._file) != self._mark

    def give(self, jobs: Sequence[Job], now: float) -> bool:
        """Hand over jobs. False if the child is gone: its death will be told by `answers`, and has these jobs too."""
        if not self.jobs:
            self.busy_since = now
        self.jobs.extend(jobs)
        try:
            self.channel.post(*jobs)
        except OSError:
            return False
        return True

    def answers(self) -> list[Answer]:
        """Return what the child has said since. Raises `EOFError` if it is gone, or can no longer be understood."""
        # What cannot be sent any more says nothing about what there is still to be read.
        with suppress(OSError):
            self.channel.flush()
        try:
            return self.channel.receive()
        except OSError as exc:
            raise EOFError from exc
        finally:
            if self.channel.is_corrupt:
                # What it said before is returned first: by its end it is seen that there is no more.
                self.kill(ErrorClass.CRASH)

    def disown(self) -> None:
        """End a child in whose name something else has spoken: nothing it says is heard any more."""
        self.channel.is_corrupt = True
        self.kill(ErrorClass.CRASH)

    def ended(self, key: int, now: float) -> bool:
        """Note that a job has ended. False if this child was not given it, or has answered it already."""
        for job in self.jobs:
            if job.key == key:
                self.jobs.remove(job)
                self.busy_since = now
                return True
        return False

    def kill(self, why: ErrorClass) -> None:
        """End the child and everything it has started. What it was doing counts as having ended for this reason."""
        self._killed_as = self._killed_as or why
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return

    def death(self) -> Death:
        """Return how the child ended; its channel has reached its end."""
        try:
            code = self._process.wait(ENDING_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            # It has closed its end and lives on.
            self.kill(ErrorClass.CRASH)
            code = self._process.wait()
        self.channel.close()
        self._sweep()
        jobs = tuple(self.jobs)
        self.jobs.clear()
        if self._killed_as is ErrorClass.TIMEOUT:
            return Death(ErrorClass.TIMEOUT, "it took longer than its time-out", jobs, self.is_ready)
        if self._killed_as is None and code == -signal.SIGKILL:
            said = "the process was killed from outside, which is what the system does when memory runs out"
            return Death(ErrorClass.OOM, said, jobs, self.is_ready)
        if self.channel.is_corrupt:
            said = (
                "the handler, or something it uses, wrote to the descriptor by which its process answers the worker, "
                "so the process was ended; have it write to files that it opened itself"
            )
            return Death(ErrorClass.CRASH, said, jobs, self.is_ready)
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return Death(self._killed_as or ErrorClass.CRASH, f"the process ended by {how}", jobs, self.is_ready)

    def _sweep(self) -> None:
        """End what the child may have started and left behind."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return
