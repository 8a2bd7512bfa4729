"""Stopping: the first signal asks for an orderly end and sets its deadline, the second ends at once.

The event loop that servers run on.

How servers and workers have Python look for garbage: seldom, and only among what came after the start.

What requests and turns leave behind is freed as it is let go of; only what refers to itself waits for the collector. By
default that walks over the young after every 700 objects, and over everything there is before long: a batch of a
thousand items would be walked over many times while it is at work, and the caches with it, while everyone else waits.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
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


# Python's own is 5 ms: as long as many an answer may take in all.
SWITCH_SECONDS: Final = 0.001


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes a loop: uvloop's, or None for asyncio's own."""
    try:
        import uvloop
    except ModuleNotFoundError:
        # It does not exist for Windows; asyncio's own loop does the same, more slowly.
        return None
    return uvloop.new_event_loop


def give_way() -> None:
    """Let threads that compute give way to the loop sooner than Python would."""
    sys.setswitchinterval(SWITCH_SECONDS)


YOUNG_MAX: Final = 20_000
_OLDER: Final = (20, 20)


def look_seldom() -> None:
    """Look for garbage less often from now on: a program that begins makes little, and much that stays."""
    gc.set_threshold(YOUNG_MAX, *_OLDER)


def settle() -> None:
    """Take what is there for good, and look for garbage less often from now on."""
    gc.collect()
    gc.freeze()
    look_seldom()
