"""Sweeper: a thread that calls a periodic cleanup in batches."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Final

import structlog

from headgate.errors import StoreUnavailableError, TransientError

BATCH_MAX: Final = 1000
STOP_SECONDS_MAX: Final = 2.0
DEMAND_SECONDS: Final = 120.0
_log = structlog.get_logger(__name__)


class Demand:
    """Whether something was asked for within the last two minutes. Thread-safe."""

    def __init__(self, now: Callable[[], float]) -> None:
        """`now` returns seconds that never go back."""
        self._now = now
        self._asked_at = -math.inf

    @property
    def is_there(self) -> bool:
        return self._now() - self._asked_at < DEMAND_SECONDS

    def ask(self) -> bool:
        """Note that it is asked for. Returns whether it had been before: what is kept up to date is up to date."""
        was_there, self._asked_at = self.is_there, self._now()
        return was_there


class Sweeper:
    """Calls `sweep` with a batch size, pauses, and repeats; without a pause after a full batch.

    An error is counted and stored in `last_error` until a sweep succeeds; the first of several is logged. It never ends
    the thread. With `demand`, there is a first sweep, and further ones while there is demand.
    """

    def __init__(
        self, what: str, sweep: Callable[[int], int], *, interval_seconds: float, demand: Demand | None = None
    ) -> None:
        self.what = what
        self.deleted = 0
        self.failures = 0
        self.last_error: str | None = None
        self.has_run = False
        self._sweep = sweep
        self._demand = demand
        self._lock = threading.Lock()
        self._consecutive_failures = 0
        self._interval_seconds = interval_seconds
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"headgate-sweep-{what}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    def request_stop(self) -> None:
        """Make the current sweep the last one, without waiting for it."""
        self._stopping.set()

    def stop(self, timeout_seconds: float = STOP_SECONDS_MAX) -> None:
        """Stop, and wait for the current sweep until the timeout.

        A longer sweep ends with the process; a later sweep deletes the rest.
        """
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout_seconds)

    def _run(self) -> None:
        while not self._stopping.is_set():
            if not self._is_wanted or self.sweep_once() < BATCH_MAX:
                self._stopping.wait(self._interval_seconds)

    def _on_failed(self, error: Exception) -> None:
        """Count a failure, and log the first of an outage. A condition of the store is logged by the store."""
        self.failures += 1
        self._consecutive_failures += 1
        self.last_error = f"{type(error).__name__}: {error}"
        if self._consecutive_failures == 1 and not isinstance(error, StoreUnavailableError):
            cause = None if isinstance(error, TransientError) else error
            _log.error("sweep failed", action="sweep", what=self.what, error=self.last_error, exc_info=cause)

    @property
    def _is_wanted(self) -> bool:
        return self._demand is None or not self.has_run or self._demand.is_there

    def sweep_once(self) -> int:
        """Sweep once, from any thread, and return how many items were deleted. An error is counted."""
        with self._lock:
            return self._sweep_once()

    def _sweep_once(self) -> int:
        try:
            deleted = self._sweep(BATCH_MAX)
        except Exception as exc:  # noqa: BLE001 - top of a thread: the next sweep may succeed
            if self.is_stopping:
                # The store was closed during an abandoned sweep.
                return 0
            self._on_failed(exc)
            return 0
        if self.last_error is not None:
            _log.info("sweep recovered", action="sweep", what=self.what, failures=self._consecutive_failures)
        self._consecutive_failures = 0
        self.deleted += deleted
        self.last_error = None
        self.has_run = True
        return deleted
