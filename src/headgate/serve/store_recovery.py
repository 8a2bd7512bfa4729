"""Store recovery: a thread that tries a write while a store condition lasts, so that its end needs no request."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from headgate.store.faults import StoreFaults

INTERVAL_SECONDS: Final = 1.0
_STOP_SECONDS_MAX: Final = 2.0


class StoreRecovery:
    """Tries a write every second while `faults` has a condition that a successful write ends."""

    def __init__(self, faults: StoreFaults, write: Callable[[], None]) -> None:
        self._faults = faults
        self._write = write
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headgate-store-recovery", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop, and wait for a write in progress for a short time."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_SECONDS_MAX)

    def _run(self) -> None:
        while not self._stopping.wait(INTERVAL_SECONDS):
            if self._faults.is_active:
                # The store records the failure; whatever it is, the next try may succeed.
                with suppress(Exception):
                    self._write()
