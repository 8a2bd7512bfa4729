"""Captured output: what a child process prints, in a file that the worker and the child share.

The child's standard output and error are the same file, open for appending. The child empties it before each job, so
that what is in it belongs to the job that runs. The worker reads it when the child has died.
"""

from __future__ import annotations

import fcntl
import os
import stat
import sys
import tempfile
from typing import Final

# Of a longer output the beginning and the end are kept.
HEAD_BYTES: Final = 4_000
TAIL_BYTES: Final = 12_000
# A job that prints without end must not fill the disk: the worker empties the file beyond this size.
FILE_BYTES_MAX: Final = 16 * 1_048_576
_STDOUT: Final = 1


class OutputFile:
    """The worker's side: a file without a name, which the child gets as its standard output and error."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="headgate-chunk-")  # noqa: SIM115 - closed with the child
        # Both sides may empty the file, and writes must then go to its beginning.
        flags = fcntl.fcntl(self._file, fcntl.F_GETFL)
        fcntl.fcntl(self._file, fcntl.F_SETFL, flags | os.O_APPEND)

    def fileno(self) -> int:
        return self._file.fileno()

    def limit(self) -> None:
        """Empty the file if it has become too large."""
        if os.fstat(self.fileno()).st_size > FILE_BYTES_MAX:
            os.ftruncate(self.fileno(), 0)

    def text(self) -> str:
        """Return what was printed since the job started."""
        return _text(self.fileno(), _size(self.fileno()))

    def close(self) -> None:
        self._file.close()


def begin_job() -> None:
    """Empty the output of this process, if it is a file."""
    if _size(_STDOUT):
        os.ftruncate(_STDOUT, 0)


def end_job() -> str:
    """Return what this process has printed since `begin_job`."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            # The handler has closed or replaced it.
            continue
    size = _size(_STDOUT)
    return _text(_STDOUT, size) if size else ""


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
