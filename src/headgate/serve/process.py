"""Process setup of servers and workers: stop signals, event loop, thread switching and garbage collection.

Python's default garbage collector scans young objects after every 700 allocations and soon the whole heap: it would
walk batches and caches many times while requests wait. Most objects are freed by reference counting anyway, so the
collector runs rarely, and never over objects from before the start.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Final

from headgate.exit_codes import ExitCode

if TYPE_CHECKING:
    # Commands that start no server use this module too: asyncio would slow each of them down.
    import asyncio

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class Stop:
    """Handles SIGTERM and SIGINT: the first starts the drain and its deadline, the second exits at once."""

    def __init__(self, *, deadline_seconds: float) -> None:
        self.requested = False
        self.exit_code = ExitCode.OK
        self._deadline_seconds = deadline_seconds
        self._callback: Callable[[], None] | None = None

    def install(self) -> None:
        for number in _SIGNALS:
            signal.signal(number, self._on_signal)

    def on_request(self, callback: Callable[[], None]) -> None:
        """Call `callback` on the first signal, or now if it was received already. It must not block."""
        self._callback = callback
        if self.requested:
            callback()

    def request(self) -> None:
        """Request the drain from within the process, as SIGTERM does."""
        if not self.requested:
            os.kill(os.getpid(), signal.SIGTERM)

    def fail(self) -> None:
        """Request the drain from within the process, because it cannot continue: the exit code is not 0."""
        if not self.requested:
            # A service manager restarts a process that ended although no signal has asked for it.
            self.exit_code = ExitCode.FATAL
            os.kill(os.getpid(), signal.SIGTERM)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self.requested:
            os._exit(128 + number)
        self.requested = True
        # In its own thread, so that neither a stuck request nor a stuck store can block it.
        guard = threading.Timer(self._deadline_seconds, _exit_late, [self._deadline_seconds])
        guard.daemon = True
        guard.start()
        if self._callback is not None:
            self._callback()


def _exit_late(deadline_seconds: float) -> None:
    # Directly to the descriptor: a stuck thread may hold the logging lock.
    os.write(2, f"error: not drained after {deadline_seconds:g} s; requests in progress are cut off\n".encode())
    os._exit(ExitCode.TRY_AGAIN)


# Python's default of 5 ms is as long as a whole request may take.
SWITCH_SECONDS: Final = 0.001


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's event loop factory, or None for asyncio's."""
    try:
        import uvloop
    except ModuleNotFoundError:
        # Not available on Windows.
        return None
    return uvloop.new_event_loop


def set_switch_interval() -> None:
    """Make computing threads yield to the event loop sooner than by default."""
    sys.setswitchinterval(SWITCH_SECONDS)


YOUNG_MAX: Final = 20_000
_OLDER: Final = (20, 20)


def relax_gc() -> None:
    """Run the garbage collector rarely: a starting program creates mostly objects that stay."""
    gc.set_threshold(YOUNG_MAX, *_OLDER)


def freeze_heap() -> None:
    """Exclude all present objects from garbage collection, and run the collector rarely.

    It is not run before: a program that starts leaves some hundred objects, and to find them is a tenth of its start.
    """
    gc.freeze()
    relax_gc()
