"""File lock between processes: an `flock`, which the kernel grants in FIFO order and releases when the holder dies."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path
from typing import Final

from headgate.errors import StoreBusyError

WAIT_SECONDS_MAX: Final = 10.0


class FileLock:
    """A lock held by one process at a time. Within the process, only one thread at a time may use it.

    A blocking `flock` has no timeout, and polling would starve. So a helper thread waits in the kernel's queue, and the
    caller waits for that thread with a timeout.
    """

    def __init__(self, path: Path, *, wait_seconds_max: float = WAIT_SECONDS_MAX) -> None:
        self._path = path
        self._wait_seconds_max = wait_seconds_max
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_waiting = False
        self._is_wanted = False
        self._is_closed = False
        self._ask = threading.Semaphore(0)
        self._granted = threading.Semaphore(0)

    def try_acquire(self) -> bool:
        """Acquire the lock if it is free now."""
        # While the helper thread waits, the lock may be granted to it at any moment; a second call would confuse them.
        if self._is_waiting:
            return False
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def acquire(self) -> None:
        """Wait for the lock. Raises `StoreBusyError` on timeout."""
        if self.try_acquire():
            return
        with self._guard:
            self._is_wanted = True
            if not self._is_waiting:
                self._start_waiting()
        try:
            granted = self._granted.acquire(timeout=self._wait_seconds_max)
        except BaseException:
            self._cancel_wait()
            raise
        if not granted and self._cancel_wait():
            raise StoreBusyError(
                f"{self._path}: another process has held the lock for {self._wait_seconds_max:g} s; "
                f"find it with 'fuser {self._path}', and let it continue or kill it"
            )

    def release(self) -> None:
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def forget(self) -> None:
        """Close the descriptor in a forked child, which shares the lock with its parent."""
        os.close(self._descriptor)

    def close(self) -> None:
        """Close the file, or let the helper thread close it when its wait ends."""
        with self._guard:
            self._is_closed = True
            if self._is_waiting:
                return
            os.close(self._descriptor)
        if self._thread is not None:
            self._ask.release()
            self._thread.join()

    def _start_waiting(self) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._run_helper, name="headgate-file-lock", daemon=True)
            thread.start()
            self._thread = thread
        self._is_waiting = True
        self._ask.release()

    def _cancel_wait(self) -> bool:
        """Cancel the wait and return True; return False if the lock was granted meanwhile and is held."""
        with self._guard:
            self._is_wanted = False
            return not self._granted.acquire(blocking=False)

    def _run_helper(self) -> None:
        while True:
            self._ask.acquire()
            if self._is_closed and not self._is_waiting:
                return
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            with self._guard:
                self._is_waiting = False
                if self._is_closed:
                    os.close(self._descriptor)
                    return
                if self._is_wanted:
                    self._is_wanted = False
                    self._granted.release()
                else:
                    fcntl.flock(self._descriptor, fcntl.LOCK_UN)
