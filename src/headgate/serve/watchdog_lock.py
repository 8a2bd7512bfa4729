"""Watchdog lock: at most one watchdog for a home. A newer one takes over, and the older one notices it and ends."""

from __future__ import annotations

import fcntl
import os
import secrets
from pathlib import Path
from typing import Final

from headgate.errors import StoreUnavailableError

LOCK: Final = "watchdog.lock"


class WatchdogLock:
    """A lock file in the home. Its holder is the watchdog of the home.

    Each watchdog creates its own file, locks it with `flock` and renames it to the lock's name. The older watchdog
    detects that the name refers to another file. The kernel releases the `flock` when the process ends or is killed.
    """

    def __init__(self, home: Path) -> None:
        """Take the lock from the current holder. Raises `StoreUnavailableError` if the home cannot be written."""
        self._path = home / LOCK
        draft = home / f".{LOCK}.{secrets.token_hex(4)}"
        try:
            self._descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            draft.replace(self._path)
        except OSError as exc:
            raise StoreUnavailableError(
                f"{self._path}: cannot be written: {exc.strerror}; make the home writable"
            ) from exc

    def is_held(self) -> bool:
        """Whether this process is still the watchdog: no newer one has taken over, and the home is there."""
        try:
            return os.path.samestat(self._path.stat(), os.fstat(self._descriptor))
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            # Temporarily unreachable.
            return True

    def close(self) -> None:
        os.close(self._descriptor)


def has_watchdog(home: Path) -> bool:
    """Whether a running process is the watchdog of a home."""
    try:
        descriptor = os.open(home / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False
