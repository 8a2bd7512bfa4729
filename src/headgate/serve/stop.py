"""Stopping: the first signal asks for an orderly end and sets its deadline, the second ends at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Final

DEADLINE_EXIT_CODE: Final = 75
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class Stop:
    """Listens for SIGTERM and SIGINT from the moment it is installed, also before anything is served."""

    def __init__(self, *, deadline_seconds: float) -> None:
        self.requested = False
        self._deadline_seconds = deadline_seconds
        self._callback: Callable[[], None] | None = None

    def install(self) -> None:
        for number in _SIGNALS:
            signal.signal(number, self._on_signal)

    def on_request(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the first signal comes, or now if it came already. It must not block."""
        self._callback = callback
        if self.requested:
            callback()

    def request(self) -> None:
        """Ask for an orderly end from within, as a signal does from outside."""
        if not self.requested:
            os.kill(os.getpid(), signal.SIGTERM)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self.requested:
            os._exit(128 + number)
        self.requested = True
        # A thread of its own: neither a stuck request nor a store that cannot be closed can hold it up.
        guard = threading.Timer(self._deadline_seconds, _give_up, [self._deadline_seconds])
        guard.daemon = True
        guard.start()
        if self._callback is not None:
            self._callback()


def _give_up(deadline_seconds: float) -> None:
    # Straight to the descriptor: a thread that is stuck may hold the lock of the log.
    os.write(2, f"error: not drained after {deadline_seconds:g} s; what was under way is cut off\n".encode())
    os._exit(DEADLINE_EXIT_CODE)
