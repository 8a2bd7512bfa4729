"""Chunk heartbeat: renews the lease of a chunk while a remote worker runs it, within the worker's deadline."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from headgate.clock import Clock
from headgate.errors import HeadgateError, TransientError
from headgate.fanout.core.tracking import Claim, lease_of
from headgate.fanout.remote.trackers import ChunkTracker

# A worker stops this long before its deadline, and defers the remaining items to the slow lane.
MARGIN_SECONDS: Final = 60.0
# Upper bound of that margin as a fraction of the time left.
MARGIN_SHARE: Final = 5
# The lease outlasts the worker's deadline by this, so that it can record the result.
GRACE_SECONDS: Final = 5.0
BEATS_PER_INTERVAL: Final = 2
# Interval of progress updates if the policy asks for no heartbeat.
PROGRESS_SECONDS: Final = 10.0

RemainingMs = Callable[[], int]


class Deadline:
    """The end of a worker's time: its own limit, and the policy's time-out from now on."""

    def __init__(self, clock: Clock, remaining_ms: RemainingMs | None, limit_seconds: float = float("inf")) -> None:
        self._clock = clock
        self._remaining_ms = remaining_ms
        self._ends_at = clock.monotonic() + limit_seconds
        self._margin_seconds = min(MARGIN_SECONDS, self.left_seconds() / MARGIN_SHARE)

    def left_seconds(self) -> float:
        """Return the remaining seconds, or infinity."""
        left_seconds = self._ends_at - self._clock.monotonic()
        if self._remaining_ms is not None:
            left_seconds = min(left_seconds, self._remaining_ms() / 1000)
        return max(0.0, left_seconds)

    def is_near(self) -> bool:
        """Whether no further item should be started."""
        return self.left_seconds() <= self._margin_seconds


class ChunkHeartbeat:
    """Renews a claim while its block runs, from a thread of its own if the policy asks for heartbeats."""

    def __init__(self, tracker: ChunkTracker, clock: Clock, claim: Claim, deadline: Deadline) -> None:
        self.claim = claim
        # The error that ended the heartbeat.
        self.error: HeadgateError | None = None
        self._tracker = tracker
        self._clock = clock
        self._deadline = deadline
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._items_done = 0
        self._sent_at = clock.monotonic()
        heartbeat_seconds = claim.fanout.rules().heartbeat_seconds
        self._pause_seconds = PROGRESS_SECONDS if heartbeat_seconds is None else heartbeat_seconds / BEATS_PER_INTERVAL
        self._thread: threading.Thread | None = None
        if heartbeat_seconds is not None:
            self._thread = threading.Thread(target=self._run, name="headgate-chunk", daemon=True)

    def start(self) -> None:
        if self._thread is not None:
            self._thread.start()

    def stop(self) -> None:
        """Stop the heartbeat. Returns after a running one has finished, so that it cannot overwrite the result."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def progress(self, items_done: int) -> None:
        self._items_done = items_done
        if self._clock.monotonic() - self._sent_at >= self._pause_seconds:
            self._send()
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        while self.error is None and not self._stopping.wait(self._pause_seconds):
            self._send()

    def _send(self) -> None:
        with self._lock:
            left_seconds = self._deadline.left_seconds()
            # A worker that hangs must not renew its lease forever.
            if self._stopping.is_set() or self.error is not None or left_seconds <= 0:
                return
            lease_seconds = min(lease_of(self.claim.fanout), left_seconds + GRACE_SECONDS)
            try:
                self.claim = self._tracker.heartbeat(
                    self.claim, items_done=self._items_done, lease_seconds=lease_seconds
                )
            except TransientError:
                # The lease outlasts one or two missed heartbeats.
                pass
            except HeadgateError as exc:
                self.error = exc
            self._sent_at = self._clock.monotonic()
