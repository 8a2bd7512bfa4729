"""Space reserve: a file that is deleted when the disk is full, so that a server can start and serve reads.

SQLite needs room for the files `-wal` and `-shm` to open a database, even to read it. They are deleted when the last
process closes the database, and a full disk has no room to create them again.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

NAME: Final = "headgate.reserve"
RESERVE_BYTES: Final = 1024 * 1024
# The reserve must not be what fills a small disk.
_FREE_BYTES_MIN: Final = 4 * RESERVE_BYTES


class SpaceReserve:
    """The reserve of one home folder."""

    def __init__(self, home: Path) -> None:
        self._path = home / NAME

    def ensure(self) -> None:
        """Create the reserve if it is missing and the disk has room. A failure is ignored until the next call."""
        with suppress(OSError):
            if self._path.exists() or _free_bytes(self._path.parent) < _FREE_BYTES_MIN:
                return
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                # Allocated, not sparse.
                os.posix_fallocate(descriptor, 0, RESERVE_BYTES)
            except OSError:
                self._path.unlink(missing_ok=True)
            finally:
                os.close(descriptor)

    def release(self) -> bool:
        """Delete the reserve. Return whether there was one."""
        try:
            self._path.unlink()
        except OSError:
            return False
        return True


def _free_bytes(folder: Path) -> int:
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize
