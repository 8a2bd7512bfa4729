"""The lock between processes: an `flock`, which the kernel hands on in turn and frees when its holder dies."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path
from typing import Final

from headgate.errors import StoreBusyError

WAIT_SECONDS_MAX: Final = 10.0


class FileLock:
    """Held by one process at a time. Within the process, one thread at a time may use it.

    A system call that waits for an `flock` cannot be given a time limit, and polling for it would starve
    whoever polls. So a thread of our own waits in the kernel's queue, and the caller waits for that thread.
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
        """Take the lock if it is free now."""
        # While our thread waits, the lock may become ours at any moment, and asking again would blur whose it is.
        if self._is_waiting:
            return False
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def acquire(self) -> None:
        """Wait for our turn. Raises `StoreBusyError` if it does not come in time."""
        if self.try_acquire():
            return
        with self._guard:
            self._is_wanted = True
            if not self._is_waiting:
                self._send_thread()
        try:
            granted = self._granted.acquire(timeout=self._wait_seconds_max)
        except BaseException:
            self._stop_wanting()
            raise
        if not granted and self._stop_wanting():
            raise StoreBusyError(
                f"{self._path}: another process has kept the lock for {self._wait_seconds_max:g} s; "
                f"find it with 'fuser {self._path}', and let it continue or kill it"
            )

    def release(self) -> None:
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def forget(self) -> None:
        """Let go in a forked child, which shares the lock with its parent and would keep it from being freed."""
        os.close(self._descriptor)

    def close(self) -> None:
        """Let go of the file, at the latest when the wait that is under way ends."""
        with self._guard:
            self._is_closed = True
            if self._is_waiting:
                return
            os.close(self._descriptor)
        if self._thread is not None:
            self._ask.release()
            self._thread.join()

    def _send_thread(self) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._wait_in_turn, name="headgate-file-lock", daemon=True)
            thread.start()
            self._thread = thread
        self._is_waiting = True
        self._ask.release()

    def _stop_wanting(self) -> bool:
        """Give up, and return True; or False if the lock was granted at the last moment and is ours."""
        with self._guard:
            self._is_wanted = False
            return not self._granted.acquire(blocking=False)

    def _wait_in_turn(self) -> None:
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
