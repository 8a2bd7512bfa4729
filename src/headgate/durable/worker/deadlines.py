"""Reapers: end activities whose deadline has passed, and stop those that were cancelled."""

from __future__ import annotations

from collections.abc import Sequence

import structlog
from msgspec.structs import replace

from headgate.durable.engine.activity_store import Activities, AttemptResult, Timeout, unbegun, wait_deadline
from headgate.durable.model.failures import CANCELLED, ErrorInfo
from headgate.durable.model.history import Note
from headgate.durable.model.records import NEVER_MS, Activity
from headgate.durable.worker.claims import HeldClaims
from headgate.durable.worker.executor import RunningAttempt
from headgate.durable.worker.result_recorder import ResultRecorder
from headgate.errors import StaleClaimError

_log = structlog.get_logger(__name__)


class DeadlineReaper:
    """Times out activities that run here, wait here for a thread, or are claimed by no worker."""

    def __init__(self, activities: Activities, claims: HeldClaims, recorder: ResultRecorder) -> None:
        self._activities = activities
        self._claims = claims
        self._recorder = recorder

    def end_running(self) -> None:
        """Abandon attempts whose deadline has passed. One that cannot be stopped runs on, and its result is fenced."""
        now_ms = self._activities.now_ms()
        for running in list(self._claims.running.values()):
            if running.timeout is None or running.deadline_ms > now_ms or running.is_abandoned:
                continue
            running.abandon()
            activity = running.activity
            _log.warning(
                "activity timed out",
                activity_id=activity.activity_id,
                name=activity.name,
                limit=running.timeout.value,
                hung=self._claims.hung_count(),
            )
            notes = tuple(running.context.notes)
            self._recorder.record_or_buffer(activity, _timed_out(activity, running.timeout, notes=notes))

    def end_queued(self) -> None:
        """Time out claims that have waited here for a thread for too long."""
        now_ms = self._activities.now_ms()
        self._claims.reset_queue_deadline()
        next_ms = NEVER_MS
        # A copy, made in one step: other threads take from the queue.
        for activity in list(self._claims.queue):
            at_ms, kind = wait_deadline(activity)
            if kind is None or at_ms > now_ms:
                next_ms = min(next_ms, at_ms)
                continue
            if not self._claims.unqueue(activity):
                continue
            _log.warning("activity timed out in the queue", activity_id=activity.activity_id, limit=kind.value)
            self._recorder.record_or_buffer(unbegun(activity), _timed_out(activity, kind))
        self._claims.lower_queue_deadline(next_ms)

    def end_unclaimed(self, *, limit: int = 100) -> int:
        """Time out up to `limit` activities that no worker holds, and return when to try again."""
        activities = self._activities
        if activities.next_deadline_ms() <= activities.now_ms():
            for activity, kind in activities.overdue(limit):
                try:
                    self._recorder.record(activity, _timed_out(activity, kind))
                except StaleClaimError:
                    continue
        # One that has passed and is still there waits for its turn, or another worker ends it.
        return max(activities.next_deadline_ms(), activities.now_ms() + 100)


class CancellationReaper:
    """Stops activities that run or wait here and were cancelled. `find` is for the polling thread."""

    def __init__(self, activities: Activities, claims: HeldClaims, recorder: ResultRecorder) -> None:
        self._activities = activities
        self._claims = claims
        self._recorder = recorder

    def cancel(self, activity_ids: Sequence[str]) -> None:
        """Stop activities that a turn of this process has cancelled."""
        for activity_id in activity_ids:
            running = self._claims.running.get(activity_id)
            if running is not None:
                _abandon(running)
        if self._claims.queue:
            cancelled = set(activity_ids)
            # A copy, made in one step: other threads take from the queue.
            for activity in list(self._claims.queue):
                if activity.activity_id in cancelled:
                    self._claims.unqueue(activity)

    def request(self, activity_ids: Sequence[str]) -> None:
        """Have activities end themselves whose end the code awaits. Those that wait here for a thread end now."""
        for activity_id in activity_ids:
            running = self._claims.running.get(activity_id)
            if running is not None:
                _request(running)
        requested = set(activity_ids)
        # A copy, made in one step: other threads take from the queue.
        for activity in list(self._claims.queue):
            if activity.activity_id in requested:
                self._end_queued(activity)

    def _end_queued(self, activity: Activity) -> None:
        if self._claims.unqueue(activity):
            _log.info("activity cancelled", activity_id=activity.activity_id, name=activity.name)
            ended = replace(unbegun(activity), is_cancel_requested=True)
            self._recorder.record_or_buffer(ended, AttemptResult(error=CANCELLED))

    def find(self) -> None:
        """Stop activities that another process has cancelled.

        Their row is gone, has another token, or has a request to end whose outcome the code awaits.
        """
        running = [each for each in list(self._claims.running.values()) if not each.is_abandoned]
        queued = list(self._claims.queue)
        if not running and not queued:
            return
        rows = self._activities.held_rows([*[each.activity for each in running], *queued])
        for each, row in zip(running, rows[: len(running)], strict=True):
            if row is None:
                _abandon(each)
            elif row.is_cancel_requested:
                _request(each)
        for activity, row in zip(queued, rows[len(running) :], strict=True):
            if row is None:
                self._claims.unqueue(activity)
            elif row.is_cancel_requested:
                self._end_queued(activity)


def _timed_out(activity: Activity, kind: Timeout, *, notes: tuple[Note, ...] = ()) -> AttemptResult:
    error = ErrorInfo(type="TimeoutError", message=f"{kind.value} of {activity.name} has passed")
    return AttemptResult(error=error, timeout=kind, notes=notes)


def _request(running: RunningAttempt) -> None:
    if not running.is_abandoned and not running.activity.is_cancel_requested:
        _log.info("cancellation requested", activity_id=running.activity.activity_id, name=running.activity.name)
        running.request_cancel()


def _abandon(running: RunningAttempt) -> None:
    # It may have ended in this moment, which is harmless.
    if not running.is_abandoned:
        _log.info("activity cancelled", activity_id=running.activity.activity_id, name=running.activity.name)
        running.abandon()
