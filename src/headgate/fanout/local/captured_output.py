"""Captured output: what a child process prints, in a file that the worker and the child share.

The child's standard output and error are the same file, open for appending. The child empties it before each job, so
that what is in it belongs to the job that runs. A process that a job has started may outlive it and go on printing into
the file: the child then takes a new file, and sends its descriptor to the worker. The worker reads the file when the
child has died.
"""

from __future__ import annotations

import fcntl
import os
import resource
import socket
import stat
import sys
import tempfile
from typing import IO, Final

# Of a longer output the beginning and the end are kept.
HEAD_BYTES: Final = 4_000
TAIL_BYTES: Final = 12_000
# A job that prints without end must not fill the disk: the worker empties the file beyond this size.
FILE_BYTES_MAX: Final = 16 * 1_048_576
_STDOUT: Final = 1
_STDERR: Final = 2


class OutputFile:
    """The worker's side: a file without a name, which the child gets as its standard output and error."""

    def __init__(self) -> None:
        self._file = _new_file()
        # The child sends the descriptors of later files here.
        self._replacements, self.child_end = socket.socketpair()
        # `recv_fds` of Python 3.11 ignores its flags.
        self._replacements.settimeout(0)

    def fileno(self) -> int:
        return self._file.fileno()

    def size(self) -> int:
        """Return how many bytes were printed since the job started."""
        self._follow()
        return _size(self.fileno())

    def limit(self) -> None:
        """Empty the file if it has become too large."""
        self._follow()
        if os.fstat(self.fileno()).st_size > FILE_BYTES_MAX:
            os.ftruncate(self.fileno(), 0)

    def text(self) -> str:
        """Return what was printed since the job started."""
        self._follow()
        return _text(self.fileno(), _size(self.fileno()))

    def close(self) -> None:
        self._file.close()
        self._replacements.close()
        self.child_end.close()

    def _follow(self) -> None:
        """Go over to the file that the child uses now."""
        while True:
            try:
                _, descriptors, _, _ = socket.recv_fds(self._replacements, 1, 1)
            except BlockingIOError:
                return
            if not descriptors:
                return
            self._file.close()
            self._file = os.fdopen(descriptors[0], "r+b", buffering=0)


class JobOutput:
    """The child's side: the output of one job after the other."""

    def __init__(self, worker: socket.socket) -> None:
        self._worker = worker
        self._reaped = _reaped()

    def begin(self) -> None:
        """Begin the output of a job, with an empty file if this process prints into one."""
        is_shared = self._has_started_processes()
        if is_shared and _is_file(_STDOUT):
            self._replace()
        elif _size(_STDOUT):
            os.ftruncate(_STDOUT, 0)

    def end(self) -> str:
        """Return what was printed since `begin`."""
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError, AttributeError):
                # The handler has closed or replaced it.
                continue
        size = _size(_STDOUT)
        return _text(_STDOUT, size) if size else ""

    def _has_started_processes(self) -> bool:
        """Whether this process has children, or has had one since the last call, which may have left some of its own.

        Every process that a handler starts is a child until this process has waited for it.
        """
        reaped, self._reaped = self._reaped, _reaped()
        if self._reaped != reaped:
            return True
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return False
        return True

    def _replace(self) -> None:
        with _new_file() as file:
            os.dup2(file.fileno(), _STDOUT)
            os.dup2(file.fileno(), _STDERR)
            socket.send_fds(self._worker, [b"\0"], [file.fileno()])


def _new_file() -> IO[bytes]:
    file = tempfile.TemporaryFile(prefix="headgate-chunk-", buffering=0)  # noqa: SIM115 - closed by its user
    # Both sides may empty the file, and writes must then go to its beginning.
    flags = fcntl.fcntl(file, fcntl.F_GETFL)
    fcntl.fcntl(file, fcntl.F_SETFL, flags | os.O_APPEND)
    return file


def _reaped() -> tuple[float, ...]:
    """Return numbers that differ after this process has waited for a child."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_minflt, used.ru_utime, used.ru_stime, used.ru_nvcsw


def _is_file(descriptor: int) -> bool:
    try:
        return stat.S_ISREG(os.fstat(descriptor).st_mode)
    except OSError:
        return False


def _size(descriptor: int) -> int:
    try:
        found = os.fstat(descriptor)
    except OSError:
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


def _text(descriptor: int, size: int) -> str:
    if size <= HEAD_BYTES + TAIL_BYTES:
        return _decoded(os.pread(descriptor, size, 0))
    head, tail = os.pread(descriptor, HEAD_BYTES, 0), os.pread(descriptor, TAIL_BYTES, size - TAIL_BYTES)
    left_out = size - HEAD_BYTES - TAIL_BYTES
    return f"{_decoded(head)}\n[{left_out:,} bytes left out]\n{_decoded(tail)}"


def _decoded(content: bytes) -> str:
    return content.decode("utf-8", "replace").replace("\0", "\N{SYMBOL FOR NULL}")
