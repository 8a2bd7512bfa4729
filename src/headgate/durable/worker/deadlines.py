"""Expiry: the limits of time of what runs in a worker, or waits there for a thread.

The unwanted: activities that run here, or wait here for a thread, and whose result nobody will take any more.

A turn that was committed here says so at once. One that another process committed shows in the store, where the row of
the activity is gone or has another token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import structlog

from headgate.durable.engine.activity_store import Ended, unbegun, wait_deadline
from headgate.durable.model.failures import ErrorInfo
from headgate.durable.model.records import NEVER_MS, Activity
from headgate.durable.worker.executor import Running

if TYPE_CHECKING:
    from headgate.durable.worker.worker import Worker
if TYPE_CHECKING:
    from headgate.durable.worker.worker import Worker


_log = structlog.get_logger(__name__)


class Expiry:
    """Ends what has run or waited for too long in one worker. For the thread that polls; `waits` is for who leads."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        # When the first limit passes of what waits in the queue, or earlier.
        self._waiting_due_ms = NEVER_MS

    def waits(self, claims: Sequence[Activity]) -> None:
        """Note the limits of what has come to wait for a thread."""
        for activity in claims:
            self._waiting_due_ms = min(self._waiting_due_ms, wait_deadline(activity)[0])

    def end_running(self) -> None:
        """Give up what runs and whose limit has passed. What cannot be stopped goes on, and is fenced."""
        worker = self._worker
        now_ms = worker.activities.now_ms()
        for running in list(worker.running.values()):
            if running.timeout is None or running.deadline_ms > now_ms or running.is_abandoned:
                continue
            running.abandon()
            activity = running.activity
            _log.warning(
                "activity timed out",
                activity_id=activity.activity_id,
                name=activity.name,
                limit=running.timeout.value,
                hung=worker.hung(),
            )
            error = ErrorInfo(type="TimeoutError", message=f"{running.timeout.value} of {activity.name} has passed")
            outcome = Ended(error=error, timeout=running.timeout, notes=tuple(running.context.notes))
            worker.record_or_keep(activity, outcome)

    def end_waiting(self) -> None:
        """End what was claimed, waits here for a thread, and whose limit has passed."""
        worker = self._worker
        now_ms = worker.activities.now_ms()
        self._waiting_due_ms = NEVER_MS
        # A copy, which is made in one step: other threads take from the queue.
        for activity in list(worker.queue):
            at_ms, kind = wait_deadline(activity)
            if kind is None or at_ms > now_ms:
                self._waiting_due_ms = min(self._waiting_due_ms, at_ms)
                continue
            if not worker.unqueue(activity):
                continue
            _log.warning("activity was not begun in time", activity_id=activity.activity_id, limit=kind.value)
            error = ErrorInfo(type="TimeoutError", message=f"{kind.value} of {activity.name} has passed")
            worker.record_or_keep(unbegun(activity), Ended(error=error, timeout=kind))

    def next_ms(self) -> int:
        """Return when the first of the limits passes."""
        # One that was given up has no limit any more, however long it holds its thread.
        running = [
            each.deadline_ms
            for each in list(self._worker.running.values())
            if each.timeout is not None and not each.is_abandoned
        ]
        return min([self._waiting_due_ms, *running])


class Unwanted:
    """Lets go of the unwanted of one worker. `look` is for the thread that polls, `cancelled` for any."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def cancelled(self, activity_ids: Sequence[str]) -> None:
        """A turn has taken these back, whoever has claimed them."""
        worker = self._worker
        for activity_id in activity_ids:
            running = worker.running.get(activity_id)
            if running is not None:
                _let_go(running)
        if worker.queue:
            gone = set(activity_ids)
            # A copy, which is made in one step: other threads take from the queue.
            for activity in list(worker.queue):
                if activity.activity_id in gone:
                    worker.unqueue(activity)

    def look(self) -> None:
        """Find what the store no longer has under the tokens by which it is held here."""
        worker = self._worker
        running = [each for each in list(worker.running.values()) if not each.is_abandoned]
        waiting = list(worker.queue)
        if not running and not waiting:
            return
        held = worker.activities.are_held([*[each.activity for each in running], *waiting])
        for each, is_held in zip(running, held[: len(running)], strict=True):
            if not is_held:
                _let_go(each)
        self._unqueue([each for each, is_held in zip(waiting, held[len(running) :], strict=True) if not is_held])

    def _unqueue(self, activities: Sequence[Activity]) -> None:
        for activity in activities:
            self._worker.unqueue(activity)


def _let_go(running: Running) -> None:
    # It may have ended in this moment; then there is nobody left to hear this.
    if not running.is_abandoned:
        _log.info("activity is no longer wanted", activity_id=running.activity.activity_id, name=running.activity.name)
        running.abandon()
