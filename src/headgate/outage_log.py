"""Outage log: one log line when a loop begins to fail, one when it succeeds again, and the pause in between."""

from __future__ import annotations

import threading
from typing import Final

import structlog

from headgate.errors import StoreUnavailableError

PAUSE_SECONDS_MAX: Final = 5.0


class OutageLog:
    """Counts consecutive failures of one loop. Thread-safe.

    Conditions of the store are logged by the store, once for all loops of the process.
    """

    def __init__(self, log: structlog.stdlib.BoundLogger, what: str, *, pause_seconds: float) -> None:
        """`what` is the part of the log lines that says what failed; `pause_seconds` is the first pause."""
        self._log = log
        self._what = what
        self._first_pause_seconds = pause_seconds
        self._lock = threading.Lock()
        self._failures = 0
        self._is_logged = False

    def failed(self, error: BaseException, **facts: object) -> float:
        """Count a failure, log it if it is the first one, and return the seconds to pause."""
        with self._lock:
            self._failures += 1
            pause_seconds: float = min(self._first_pause_seconds * 2 ** min(self._failures - 1, 20), PAUSE_SECONDS_MAX)
            is_first = not self._is_logged and not isinstance(error, StoreUnavailableError)
            self._is_logged = self._is_logged or is_first
        if is_first:
            self._log.warning(f"{self._what}; retrying", error=str(error), **facts)
        return pause_seconds

    def succeeded(self) -> None:
        """End the outage, if there is one."""
        if not self._failures:
            return
        with self._lock:
            failures, self._failures = self._failures, 0
            is_logged, self._is_logged = self._is_logged, False
        if is_logged:
            self._log.info(f"{self._what}: recovered", failures=failures)
