"""Command process: runs a program without a shell, in its own process group, with bounded output."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from msgspec import Struct

from headgate.clock import Clock

_READ_BYTES: Final = 65_536
# Poll interval for the end of a command whose output is kept open by a descendant.
_LOOK_SECONDS: Final = 0.02


class Finished(Struct, frozen=True):
    """How a process ended: with a code (negative: the signal that killed it), or by time-out."""

    exit_code: int
    output: bytes
    output_bytes: int
    is_out_of_time: bool = False


class Command(Struct, frozen=True, kw_only=True):
    """The program to run, its environment and limits."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    folder: str | None
    timeout_seconds: float
    grace_seconds: float
    output_bytes_max: int


def run(command: Command, clock: Clock, lock: int, begun: Callable[[int], None]) -> Finished:
    """Run a command to its end, and kill everything it leaves behind. `begun` is called with its process group id.

    Raises `OSError` if it cannot be started.
    """
    process = subprocess.Popen(
        list(command.argv),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=command.folder,
        env=dict(command.environment),
        start_new_session=True,
        pass_fds=(lock,),
    )
    assert process.stdout is not None, "it is a pipe"
    tail = _Tail(command.output_bytes_max)
    try:
        begun(process.pid)
        ends_at = clock.monotonic() + command.timeout_seconds
        is_out_of_time = not _follow(process, tail, clock, ends_at)
        if is_out_of_time:
            _signal(process.pid, signal.SIGTERM)
            _follow(process, tail, clock, clock.monotonic() + command.grace_seconds)
    finally:
        # The process is not reaped yet, so that its group id cannot have been reused.
        _signal(process.pid, signal.SIGKILL)
        process.wait()
        tail.drain(process.stdout.fileno())
        process.stdout.close()
    return Finished(process.returncode, tail.kept(), tail.total, is_out_of_time)


def kill_group(group: int, signal_number: signal.Signals = signal.SIGKILL) -> None:
    """Kill the processes of a command."""
    _signal(group, signal_number)


class _Tail:
    """The tail of an output, in bounded memory."""

    def __init__(self, bytes_max: int) -> None:
        self.total = 0
        self._max = bytes_max
        self._kept = bytearray()

    def add(self, chunk: bytes) -> None:
        self.total += len(chunk)
        self._kept += chunk
        if len(self._kept) > 2 * self._max:
            del self._kept[: -self._max]

    def drain(self, output: int) -> None:
        """Read what is available, without waiting."""
        os.set_blocking(output, False)
        with suppress(BlockingIOError):
            while self.total < 1 << 40 and (chunk := os.read(output, _READ_BYTES)):
                self.add(chunk)

    def kept(self) -> bytes:
        return bytes(self._kept[-self._max :])


def _follow(process: subprocess.Popen[bytes], tail: _Tail, clock: Clock, ends_at: float) -> bool:
    """Read until the process ends. Return False if the time-out comes first."""
    assert process.stdout is not None, "it is a pipe"
    output = process.stdout.fileno()
    is_open = True
    while True:
        left = ends_at - clock.monotonic()
        if left <= 0:
            return _has_ended(process)
        if is_open and select.select([output], [], [], min(left, _LOOK_SECONDS))[0]:
            chunk = os.read(output, _READ_BYTES)
            is_open = bool(chunk)
            tail.add(chunk)
            if is_open:
                continue
        if _has_ended(process):
            return True
        if not is_open:
            clock.sleep(min(left, _LOOK_SECONDS))


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether the process has ended; it is not reaped yet."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _signal(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
