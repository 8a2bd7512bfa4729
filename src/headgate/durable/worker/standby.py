"""Standby worker: runs the activities of a queue that no other worker claims.

While the regular workers are alive it only reads the first entry of the queue, and is not a member of the fleet. It
joins when an activity waits longer than the grace period, and leaves again when the queue has been empty for a while.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

import structlog

from headgate.clock import Clock
from headgate.durable.worker.worker import Worker

# An activity that waits this long is claimed by no other worker: those poll every second.
GRACE_SECONDS: Final = 3.0
LEAVE_SECONDS: Final = 30.0
# One slow activity must not delay the others.
THREADS: Final = 4
_log = structlog.get_logger(__name__)


class StandbyWorker:
    """Polls for one thread, and runs activities in a few threads of its own."""

    def __init__(self, worker: Worker, clock: Clock, *, grace_seconds: float = GRACE_SECONDS) -> None:
        self._worker = worker
        self._clock = clock
        self._grace_ms = round(1000 * grace_seconds)
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="headgate-standby")
        self._is_member = False
        self._busy_at = 0.0

    @property
    def is_member(self) -> bool:
        """Whether it currently works for the absent regular workers."""
        return self._is_member

    def poll(self) -> None:
        """Run activities that wait. Raises the errors of the store; the next call continues."""
        worker = self._worker
        if not self._is_member:
            # Deliveries that did not fit the transaction of their event.
            worker.bus.sweep()
            if not self._is_needed():
                return
            worker.join()
            self._is_member = True
            self._busy_at = self._clock.monotonic()
            _log.warning("no worker claims queued activities; delivering them here", queues=worker.queues)
        worker.poll_activities()
        if worker.queue or worker.running or worker.claims.unrecorded:
            self._busy_at = self._clock.monotonic()
        for _ in range(min(THREADS, len(worker.queue))):
            self._pool.submit(self._run_queued).add_done_callback(_log_error)
        if self._clock.monotonic() - self._busy_at > LEAVE_SECONDS:
            self._leave()

    def close(self) -> None:
        """Wait for running activities, and leave the fleet."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        if self._is_member:
            self._leave()

    def _run_queued(self) -> None:
        while True:
            try:
                # Taken here, so that a claim is in the queue or running at any time, and never counts as lost.
                activity = self._worker.queue.popleft()
            except IndexError:
                return
            self._worker.perform(activity)

    def _is_needed(self) -> bool:
        activities = self._worker.activities
        return activities.next_available_ms(self._worker.queues) + self._grace_ms <= activities.now_ms()

    def _leave(self) -> None:
        self._worker.leave()
        self._is_member = False


def _log_error(done: Future[None]) -> None:
    error = None if done.cancelled() else done.exception()
    if error is not None:
        # The claim stays with this worker, and is released when it leaves or its lease ends.
        _log.error("activity not completed", error=f"{type(error).__name__}: {error}")
