"""Process evaluators: programs that read the question on standard input and answer on standard output.

A program is started from its argv, without a shell, with a small environment, as the leader of a process group. The
group is killed after the answer, on too much output, and at the time-out.
"""

from __future__ import annotations

import math
import os
import selectors
import shlex
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from headgate.clock import Clock, SystemClock
from headgate.pipelines.enums import FailureCategory
from headgate.pipelines.traits.protocol import (
    ANSWER_BYTES_MAX,
    Answer,
    Question,
    failure,
    read_answer,
    timed_out,
    too_large,
)
from headgate.triggers.contract import shown
from headgate.triggers.local.command import INHERITED

PREFIX: Final = "command:"
# Environment variables with this prefix are passed on to evaluators.
ENVIRONMENT_PREFIX: Final = "EVALUATOR_"
EXIT_PERMANENT: Final = 2
EXIT_CRASH: Final = 128
STDERR_BYTES: Final = 2_048
_READ_BYTES: Final = 65_536
# Poll interval for the end of a program where the system has no pidfd.
_POLL_SECONDS: Final = 0.02
# How long to wait for a killed program.
_REAP_SECONDS: Final = 5.0
_REAL_TIME: Final = SystemClock()


class ProcessEvaluator:
    """Runs programs. `environ` is the server's environment, of which they get the allowed part.

    Programs run in real time, independent of the injected clock.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        *,
        inherited: Sequence[str] = INHERITED,
        folder: str | None = None,
        clock: Clock = _REAL_TIME,
    ) -> None:
        allowed = {
            name: value for name, value in environ.items() if name in inherited or name.startswith(ENVIRONMENT_PREFIX)
        }
        self._environment = {"PATH": os.defpath} | allowed
        self._folder = folder
        self._clock = clock

    def evaluate(self, question: Question) -> Answer:
        """Run the program of the reference, and return its answer."""
        try:
            argv = shlex.split(question.reference.removeprefix(PREFIX))
        except ValueError as exc:
            return failure(FailureCategory.PERMANENT, f"its command cannot be split into arguments: {exc}")
        if not argv:
            return failure(FailureCategory.PERMANENT, "its command is empty; write command:PROGRAM ARGUMENT…")
        ends_at = self._clock.monotonic() + question.timeout_seconds
        try:
            process = self._started(argv)
        except (FileNotFoundError, PermissionError, NotADirectoryError, ValueError) as exc:
            return failure(FailureCategory.PERMANENT, f"{argv[0]} cannot be run: {exc}")
        except OSError as exc:
            return failure(FailureCategory.TRANSIENT, f"{argv[0]} could not be started: {exc}")
        exchange = _Exchange(process, question.body(), self._clock)
        try:
            has_ended = exchange.follow(ends_at)
        finally:
            _end(process)
        if exchange.is_too_large:
            return too_large()
        if not has_ended:
            return timed_out(question.timeout_seconds)
        return _judged(process.returncode, bytes(exchange.output), bytes(exchange.errors))

    def _started(self, argv: Sequence[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env=self._environment,
            cwd=self._folder,
            start_new_session=True,
        )


class _Exchange:
    """The input and output of a program, without blocking."""

    def __init__(self, process: subprocess.Popen[bytes], question: bytes, clock: Clock) -> None:
        assert process.stdin is not None, "it is a pipe"
        assert process.stdout is not None, "it is a pipe"
        assert process.stderr is not None, "it is a pipe"
        self.output = bytearray()
        self.errors = bytearray()
        self._process = process
        self._clock = clock
        self._stdin, self._stdout, self._stderr = (
            process.stdin.fileno(),
            process.stdout.fileno(),
            process.stderr.fileno(),
        )
        self._unsaid = memoryview(question)
        self._open = {self._stdin, self._stdout, self._stderr}
        for end in self._open:
            os.set_blocking(end, False)

    @property
    def is_too_large(self) -> bool:
        return len(self.output) > ANSWER_BYTES_MAX

    def follow(self, ends_at: float) -> bool:
        """Exchange data until the program ends. Returns False if it writes too much or the time is up."""
        with selectors.DefaultSelector() as selector, _watched(self._process, selector) as look_seconds:
            for end in self._open:
                selector.register(end, selectors.EVENT_WRITE if end == self._stdin else selectors.EVENT_READ)
            while not self.is_too_large:
                left = ends_at - self._clock.monotonic()
                if left <= 0:
                    return False
                # Without pipes the selector only waits.
                for key, _ in selector.select(min(left, look_seconds)):
                    if key.fd in self._open:
                        self._step(selector, key.fd)
                if _has_ended(self._process):
                    self._drain()
                    return not self.is_too_large
        return False

    def _step(self, selector: selectors.BaseSelector, end: int) -> None:
        is_open = self._write() if end == self._stdin else self._read(end)
        if not is_open:
            selector.unregister(end)
            self._open.discard(end)
            if end == self._stdin and self._process.stdin is not None:
                # End of input for the program.
                self._process.stdin.close()

    def _write(self) -> bool:
        try:
            self._unsaid = self._unsaid[os.write(self._stdin, self._unsaid) :]
        except BlockingIOError:
            return True
        except OSError:
            # The program does not read its input, which is allowed.
            return False
        return len(self._unsaid) > 0

    def _read(self, end: int) -> bool:
        """Read the available output. Returns whether more can come."""
        try:
            chunk = os.read(end, _READ_BYTES)
        except BlockingIOError:
            return True
        if end == self._stdout:
            self.output += chunk
        else:
            self.errors += chunk
            # Only the end of the error output is of interest.
            del self.errors[:-STDERR_BYTES]
        return bool(chunk)

    def _drain(self) -> None:
        """Read the rest of the pipes. Children of the program may go on writing, which is ignored."""
        for end in (self._stdout, self._stderr):
            length = -1
            while end in self._open and not self.is_too_large and length != len(self.output) + len(self.errors):
                length = len(self.output) + len(self.errors)
                if not self._read(end):
                    self._open.discard(end)


def _judged(code: int, said: bytes, errors: bytes) -> Answer:
    if code == 0:
        return read_answer(said)
    words = shown(errors.decode(errors="replace"))
    because = f": {words}" if words else ""
    if code < 0:
        return failure(FailureCategory.EVALUATOR_CRASH, f"it was ended by signal {-code}{because}")
    if code >= EXIT_CRASH:
        return failure(FailureCategory.EVALUATOR_CRASH, f"it ended with {code}{because}")
    category = FailureCategory.PERMANENT if code == EXIT_PERMANENT else FailureCategory.TRANSIENT
    return failure(category, f"it ended with {code}{because}")


@contextmanager
def _watched(process: subprocess.Popen[bytes], selector: selectors.BaseSelector) -> Iterator[float]:
    """Make the selector wake when the program ends, which its pipes do not show. Yields the longest sleep."""
    try:
        watch = os.pidfd_open(process.pid)
    except (AttributeError, OSError):
        yield _POLL_SECONDS
        return
    try:
        selector.register(watch, selectors.EVENT_READ)
        yield math.inf
    finally:
        os.close(watch)


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether the program has ended; it is not reaped, so that its pid cannot be reused."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the process group, reap the program and close its pipes."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_REAP_SECONDS)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()
