"""Child process handle: starts, feeds and kills one child of a local worker."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from headgate.durable.worker.process_channel import ProcessChannel
from headgate.fanout.core.attempts import ErrorClass
from headgate.fanout.local.captured_output import OutputFile
from headgate.fanout.local.source_files import SourceFiles
from headgate.fanout.model.child_protocol import ANSWERS, Answer, Job, Ready
from headgate.fanout.model.local_access import LocalAccess
from headgate.fanout.model.peak_memory import most_mb, peak_mb_of

READY_SECONDS_MAX: Final = 60.0
# Makes a child write the traceback of every thread to its output. It works while C code runs, too.
TRACE_SIGNAL: Final = signal.SIGUSR2
# A busy machine may not let the child run at once.
TRACE_SECONDS_MAX: Final = 1.0
# A traceback is written in many pieces: it is whole when none has come for so long.
TRACE_QUIET_SECONDS: Final = 0.05
TRACE_PAUSE_SECONDS: Final = 0.01
ENDING_SECONDS_MAX: Final = 1.0
ENDING_PAUSE_SECONDS: Final = 0.0005
_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Death(Struct, frozen=True):
    """How a child ended, and its unfinished jobs, the running one first.

    `is_own_fault`: the running job caused the end. Otherwise the worker ended the child because of another job.
    """

    error_class: ErrorClass
    message: str
    jobs: tuple[Job, ...]
    was_ready: bool
    is_own_fault: bool = True
    # What the running job has printed; with the traceback of every thread if it crashed or took too long.
    printed: str = ""
    memory_mb: int | None = None


class Child:
    """One child process. It runs jobs in the order they are sent."""

    def __init__(self, handler: str, number: int, *, memory_mb: int | None, access: LocalAccess, now: float) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            allowed = msgspec.json.encode(access).decode()
            self._output = OutputFile()
            outputs = self._output.child_end.fileno()
            arguments = [str(theirs.fileno()), str(memory_mb or 0), handler, allowed, str(os.getpid()), str(outputs)]
            # -P: modules of the current folder must not replace those that this program itself imports.
            command = [sys.executable, "-P", "-m", "headgate.fanout.local.child_main", *arguments]
            # A new session, so that processes started by the handler can be killed with it.
            self._process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno(), outputs],
                stdin=subprocess.DEVNULL,
                stdout=self._output.fileno(),
                stderr=self._output.fileno(),
                start_new_session=True,
            )
        self.handler = handler
        # Among the processes of its worker, from 1.
        self.number = number
        self.memory_mb = memory_mb
        self.is_ready = False
        self.jobs: deque[Job] = deque()
        # When the current job started, as far as the worker knows.
        self.busy_since = now
        self.channel = ProcessChannel(ours, ANSWERS)
        self.files = SourceFiles()
        self._killed_as: ErrorClass | None = None
        self._killed_for: int | None = None
        # What the process used when its last job ended, and the kernel's number for its life until then.
        self._idle_mb = self._most_mb = 0
        self._memory_mb: int | None = None
        self._ended: Death | None = None

    @property
    def is_ending(self) -> bool:
        """Whether it was killed. It may have answers that are not read yet, but runs no further job."""
        return self._killed_as is not None

    def ready(self, message: Ready, now: float) -> None:
        """Record that the handler was loaded, and from which files."""
        self.is_ready = True
        self.busy_since = now
        self.files.add(message.files)
        self._idle_mb, self._most_mb = message.memory_mb, message.most_mb

    def is_outdated(self, now: float) -> bool:
        """Whether one of the files that it has loaded has changed since."""
        return self.is_ready and self.files.have_changed(now)

    def give(self, jobs: Sequence[Job], now: float) -> bool:
        """Send jobs. False if the child is gone: `answers` will report that, and its death includes these jobs."""
        if not self.jobs:
            self.busy_since = now
        self.jobs.extend(jobs)
        try:
            self.channel.post(*jobs)
        except OSError:
            return False
        return True

    def answers(self) -> list[Answer]:
        """Return new messages of the child. Raises `EOFError` if it is gone or its channel is corrupt."""
        # A failed write does not mean that there is nothing left to read.
        with suppress(OSError):
            self.channel.flush()
        try:
            return self.channel.receive()
        except OSError as exc:
            raise EOFError from exc
        finally:
            if self.channel.is_corrupt:
                # Messages before the corruption are returned first; the next read reports the end.
                self.kill(ErrorClass.CRASH)

    def disown(self) -> None:
        """Kill a child whose channel carried a message that is not its own, and ignore further messages."""
        self.channel.is_corrupt = True
        self.kill(ErrorClass.CRASH)

    def ended(self, key: int, now: float, *, memory_mb: int | None = None) -> bool:
        """Record the end of a job. False if the child does not have this job."""
        for job in self.jobs:
            if job.key == key:
                self.jobs.remove(job)
                self.busy_since = now
                self._most_mb = max(self._most_mb, memory_mb or 0)
                return True
        return False

    def kill(self, why: ErrorClass, job_key: int | None = None) -> None:
        """Kill the child and everything it started, because of a job; the running one if none is named."""
        if self._killed_as is None:
            self._killed_as, self._killed_for = why, job_key
            if why is ErrorClass.TIMEOUT and self.is_ready:
                self._write_traceback()
            self._memory_mb = peak_mb_of(self._process.pid)
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return

    def _write_traceback(self) -> None:
        size = self._output.size()
        grown_at: float | None = None
        with suppress(ProcessLookupError):
            os.kill(self._process.pid, TRACE_SIGNAL)
            deadline = monotonic() + TRACE_SECONDS_MAX
            while (now := monotonic()) < deadline and (grown_at is None or now < grown_at + TRACE_QUIET_SECONDS):
                threading.Event().wait(TRACE_PAUSE_SECONDS)
                if (seen := self._output.size()) != size:
                    size, grown_at = seen, now

    def limit_output(self) -> None:
        """Keep what its job prints from filling the disk."""
        self._output.limit()

    def death(self) -> Death:
        """Wait for the child's end, and return how it ended. The same again if it is called again."""
        if self._ended is None:
            code = self._wait()
            self.channel.close()
            self._sweep()
            death = self._death(code)
            self._ended = replace(death, printed=self._output.text(), memory_mb=self._memory_mb)
            self._output.close()
        return self._ended

    def _wait(self) -> int:
        """Wait for the end, and return the exit code, negative for a signal."""
        if self._process.returncode is not None:
            return self._process.returncode
        deadline = monotonic() + ENDING_SECONDS_MAX
        pid, status, usage = os.wait4(self._process.pid, os.WNOHANG)
        while pid == 0 and monotonic() < deadline:
            threading.Event().wait(ENDING_PAUSE_SECONDS)
            pid, status, usage = os.wait4(self._process.pid, os.WNOHANG)
        if pid == 0:
            # It has closed its channel and is still running.
            self.kill(ErrorClass.CRASH)
            _, status, usage = os.wait4(self._process.pid, 0)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        self._memory_mb = self._memory_mb or self._peak_mb(most_mb(usage))
        return self._process.returncode

    def _peak_mb(self, most: int) -> int:
        """Return the peak of the job in which the process ended, by the kernel's number for its life.

        If the job has not raised that number, it used no more than earlier jobs, or than the worker that started the
        process, and how much is not known: at least what the process used before.
        """
        return most if most > self._most_mb else self._idle_mb

    def _death(self, code: int) -> Death:
        jobs = tuple(self.jobs)
        self.jobs.clear()
        if self._killed_for is not None and not (jobs and jobs[0].key == self._killed_for):
            message = "the process was ended because of a job that had ended meanwhile"
            return Death(ErrorClass.LOST, message, jobs, self.is_ready, is_own_fault=False)
        if self._killed_as is ErrorClass.TIMEOUT:
            return Death(ErrorClass.TIMEOUT, "it took longer than its time-out", jobs, self.is_ready)
        if self._killed_as is None and code == -signal.SIGKILL:
            message = "the process was killed from outside, which is what the system does when memory runs out"
            return Death(ErrorClass.OOM, message, jobs, self.is_ready)
        if self._killed_as is None and -code in _STOP_SIGNALS:
            # A service manager stops all processes of a service at once; the attempt does not count.
            message = f"the process was stopped from outside by {signal.Signals(-code).name}"
            return Death(ErrorClass.LOST, message, jobs, self.is_ready)
        if self.channel.is_corrupt:
            message = (
                "the handler, or something it uses, wrote to the descriptor by which its process answers the worker, "
                "so the process was ended; have it write to files that it opened itself"
            )
            return Death(ErrorClass.CRASH, message, jobs, self.is_ready)
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return Death(self._killed_as or ErrorClass.CRASH, f"the process ended by {how}", jobs, self.is_ready)

    def _sweep(self) -> None:
        """Kill processes that the child started and left behind."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return
