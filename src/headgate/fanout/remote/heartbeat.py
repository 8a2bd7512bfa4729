"""Pulse: the signs of life of a worker that is at a chunk, and until when it may go on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from headgate.clock import Clock
from headgate.errors import HeadgateError, TransientError
from headgate.fanout.core.tracking import Claim, Tracker, lease_of

# A worker is to stop so long before its time is up, and what it has not done goes to the slow lane.
MARGIN_SECONDS: Final = 60.0
# Of a short time this part is margin, so that there is time to do anything at all.
MARGIN_SHARE: Final = 5
# A lease outlasts the worker's own time by this, so that it can still say how it ended.
GRACE_SECONDS: Final = 5.0
BEATS_PER_SILENCE: Final = 2
# How often progress is passed on where no sign of life is asked for.
PROGRESS_SECONDS: Final = 10.0

RemainingMs = Callable[[], int]


class Deadline:
    """Until when a worker may go on: by what it is told, and by what the policy allows from now on."""

    def __init__(self, clock: Clock, remaining_ms: RemainingMs | None, limit_seconds: float = float("inf")) -> None:
        self._clock = clock
        self._remaining_ms = remaining_ms
        self._ends_at = clock.monotonic() + limit_seconds
        self._margin_seconds = min(MARGIN_SECONDS, self.left_seconds() / MARGIN_SHARE)

    def left_seconds(self) -> float:
        """Return how long is left, or infinity."""
        left_seconds = self._ends_at - self._clock.monotonic()
        if self._remaining_ms is not None:
            left_seconds = min(left_seconds, self._remaining_ms() / 1000)
        return max(0.0, left_seconds)

    def is_near(self) -> bool:
        """Whether nothing more should be begun."""
        return self.left_seconds() <= self._margin_seconds


class ChunkHeartbeat:
    """Keeps a claim alive while its block runs, if its policy asks for signs of life; also from a thread of its own."""

    def __init__(self, tracker: Tracker, clock: Clock, claim: Claim, deadline: Deadline) -> None:
        self.claim = claim
        # Why the claim can no longer be kept.
        self.trouble: HeadgateError | None = None
        self._tracker = tracker
        self._clock = clock
        self._deadline = deadline
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._items_done = 0
        self._beaten_at = clock.monotonic()
        silence_seconds = claim.fanout.rules().heartbeat_seconds
        self._pause_seconds = PROGRESS_SECONDS if silence_seconds is None else silence_seconds / BEATS_PER_SILENCE
        self._thread: threading.Thread | None = None
        if silence_seconds is not None:
            self._thread = threading.Thread(target=self._run, name="headgate-chunk", daemon=True)

    def start(self) -> None:
        if self._thread is not None:
            self._thread.start()

    def stop(self) -> None:
        """Give no further sign of life. Returns once none is on its way, so that it cannot meet the last word."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def note(self, items_done: int) -> None:
        self._items_done = items_done
        if self._clock.monotonic() - self._beaten_at >= self._pause_seconds:
            self._beat()
        if self.trouble is not None:
            raise self.trouble

    def _run(self) -> None:
        while self.trouble is None and not self._stopping.wait(self._pause_seconds):
            self._beat()

    def _beat(self) -> None:
        with self._lock:
            left_seconds = self._deadline.left_seconds()
            # A worker that hangs must not keep its chunk for ever.
            if self._stopping.is_set() or self.trouble is not None or left_seconds <= 0:
                return
            lease_seconds = min(lease_of(self.claim.fanout), left_seconds + GRACE_SECONDS)
            try:
                self.claim = self._tracker.heartbeat(
                    self.claim, items_done=self._items_done, lease_seconds=lease_seconds
                )
            except TransientError:
                # The lease outlasts a beat or two that are missed.
                pass
            except HeadgateError as exc:
                self.trouble = exc
            self._beaten_at = self._clock.monotonic()
