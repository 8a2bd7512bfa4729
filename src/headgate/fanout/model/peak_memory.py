"""Peak memory: the most memory that a process has used since a moment.

The kernel's number for a whole process (`ru_maxrss`) includes the memory of the process that started it. On Linux the
peak since the start of a job is read instead; elsewhere that number is the best there is.
"""

from __future__ import annotations

import os
import re
import resource
import sys
from contextlib import suppress
from typing import Final

# A job that takes no longer is not worth the price of reading the peak: its memory at the end is near it.
QUICK_MS_MAX: Final = 1.0
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_STATUS_BYTES: Final = 8_192
_PEAK: Final = re.compile(rb"VmHWM:\s*(\d+) kB")
_MB: Final = 1_048_576
# Resets the peak, see proc_pid_clear_refs(5).
_RESET: Final = b"5"


class PeakMemory:
    """The peak of this process, measured anew for each job. For one thread."""

    def __init__(self) -> None:
        self._pid = 0
        self._files: tuple[int, int, int] | None = None

    def begin(self) -> None:
        """Forget the peak so far."""
        if self._pid != os.getpid():
            # Opened by each process for itself: such a file is that of the process which opened it.
            self._pid, self._files = os.getpid(), _opened()
        if self._files is not None:
            try:
                os.pwrite(self._files[0], _RESET, 0)
            except OSError:
                self._files = None

    def mb(self, elapsed_ms: float) -> int:
        """Return the peak since `begin`, which was so long ago."""
        if self._files is None:
            return most_mb(resource.getrusage(resource.RUSAGE_SELF))
        _, status, pages = self._files
        if elapsed_ms <= QUICK_MS_MAX:
            return int(os.pread(pages, 200, 0).split()[1]) * _PAGE_BYTES // _MB
        return _peak_mb(os.pread(status, _STATUS_BYTES, 0)) or most_mb(resource.getrusage(resource.RUSAGE_SELF))


def peak_mb_of(pid: int) -> int | None:
    """Return the peak of a process since its job began; None if it is gone, or not on Linux."""
    with suppress(OSError), open(f"/proc/{pid}/status", "rb") as file:  # noqa: PTH123 - no object for each call
        return _peak_mb(file.read(_STATUS_BYTES))
    return None


def most_mb(usage: resource.struct_rusage) -> int:
    """Return the kernel's number for the whole life of a process."""
    # Kilobytes on Linux, bytes on macOS.
    return usage.ru_maxrss // (1024 if sys.platform != "darwin" else _MB)


def _opened() -> tuple[int, int, int] | None:
    opened: list[int] = []
    try:
        for name, flags in (("clear_refs", os.O_WRONLY), ("status", os.O_RDONLY), ("statm", os.O_RDONLY)):
            opened.append(os.open(f"/proc/self/{name}", flags | os.O_CLOEXEC))
    except OSError:
        for descriptor in opened:
            os.close(descriptor)
        return None
    reset, status, pages = opened
    return reset, status, pages


def _peak_mb(status: bytes) -> int | None:
    found = _PEAK.search(status)
    return None if found is None else int(found[1]) // 1024
