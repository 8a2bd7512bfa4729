"""The unwanted: activities that run here, or wait here for a thread, and whose result nobody will take any more.

A turn that was committed here says so at once. One that another process committed shows in the store, where the row of
the activity is gone or has another token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import structlog

from headgate.durable.records import Activity
from headgate.durable.running import Running

if TYPE_CHECKING:
    from headgate.durable.worker import Worker

_log = structlog.get_logger(__name__)


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
