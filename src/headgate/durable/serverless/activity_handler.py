"""Activity handler: runs one activity within one function invocation, under a lease that is renewed while it runs.

The invocation is a worker of its own: it joins the fleet, claims, runs, records and leaves. If it dies, its lease
expires and the activity is queued again. The result goes to the inbox of the execution.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from headgate.durable.engine.activity_store import AttemptResult, Timeout
from headgate.durable.engine.engine import CYCLE_MAX
from headgate.durable.engine.inbox import Inboxes
from headgate.durable.engine.ready_queue import ReadyList
from headgate.durable.model.failures import ErrorInfo
from headgate.durable.model.records import Activity
from headgate.durable.serverless.wakeups import ActivityWake, Due
from headgate.durable.service import Service, install_notes
from headgate.durable.threads import is_async
from headgate.durable.worker.async_executor import AsyncExecutor
from headgate.durable.worker.executor import RunningAttempt
from headgate.durable.worker.worker import Worker
from headgate.errors import HeadgateError, TransientError

LEASE_SECONDS: Final = 30.0
# An activity that waits for a slot of its limit is retried after half the time that it has waited, within these bounds:
# a freed slot sends no wake-up, and thousands of waiting activities cannot each retry every few seconds.
LIMITED_SECONDS_MIN: Final = 5.0
LIMITED_SECONDS_MAX: Final = 300.0
_STEP_SECONDS: Final = 0.25
_PAUSE_SECONDS: Final = 0.5
_log = structlog.get_logger(__name__)


class InvokedActivities:
    """Runs one activity per call. Not for several threads at once."""

    def __init__(self, service: Service, queues: Sequence[str], *, lease_seconds: float = LEASE_SECONDS) -> None:
        install_notes()
        self._app = service.app
        self._clock = service.clock
        # Hosts of functions share names and process ids, so that those cannot show whether this worker is alive.
        self._worker = service.worker(queues=queues, lease_seconds=lease_seconds, host=service.ids.make("call"))
        self._inboxes = Inboxes(service.store, service.ids)

    def __call__(self, wake: ActivityWake, is_over: Callable[[], bool]) -> Due | None:
        """Run a queued activity. Returns when to wake it again if it cannot be claimed now.

        An attempt that has not ended when time is up fails with the time limit of an attempt. Raises what the store
        raises; a claim is then reclaimed after the lease.
        """
        worker = self._worker
        row = worker.activities.find(wake.activity_id)
        if row is None or row.queue_pk is None or row.available_at_ms is None:
            # It has ended, or is claimed. If that worker dies, it is queued again, with a new wake-up.
            return None
        if row.available_at_ms > worker.activities.now_ms():
            return Due(wake, row.available_at_ms)
        if not worker.can_perform(row):
            # Deliveries to other apps on the same tables are left to those apps.
            if row.subscription is None:
                _log.warning(
                    "activity unknown to this app", activity_id=row.activity_id, name=row.name, app=self._app.name
                )
            return None
        worker.fleet.join(self._app.name, self._app.workflows, self._app.activity_names(), worker.queues, alone=True)
        claimed = worker.activities.claim_one(row)
        if claimed is not None:
            if not self._perform(claimed, is_over):
                return None
            store_results(worker, self._inboxes, self._clock.sleep, is_over)
        # Not after an error or a lost lease: the worker's row is needed to reclaim the claim.
        worker.fleet.leave()
        return None if claimed is not None else self._limited(wake, row.available_at_ms)

    def _limited(self, wake: ActivityWake, since_ms: int) -> Due:
        now_ms = self._worker.activities.now_ms()
        waited_seconds = (now_ms - since_ms) / 1000
        pause_seconds = min(LIMITED_SECONDS_MAX, max(LIMITED_SECONDS_MIN, waited_seconds / 2))
        return Due(wake, now_ms + round(1000 * pause_seconds))

    def _perform(self, activity: Activity, is_over: Callable[[], bool]) -> bool:
        """Run an activity until it ends or its time is up. False if the lease was lost meanwhile."""
        done, errors = threading.Event(), list[Exception]()
        if not is_async(self._worker, activity):
            self._start_thread(activity, done, errors)
            return self._wait(activity, done, errors, is_over)
        # An event loop for each activity: one that resists cancellation keeps its loop, and does not affect others.
        executor = AsyncExecutor(self._worker, on_ended=done.set, on_failed=errors.append)
        try:
            executor.perform(activity)
            return self._wait(activity, done, errors, is_over)
        finally:
            executor.stop()

    def _start_thread(self, activity: Activity, done: threading.Event, errors: list[Exception]) -> None:
        def perform() -> None:
            try:
                self._worker.perform(activity)
            except HeadgateError as exc:
                errors.append(exc)
            finally:
                done.set()

        threading.Thread(target=perform, name="headgate-performer", daemon=True).start()

    def _wait(
        self, activity: Activity, done: threading.Event, errors: list[Exception], is_over: Callable[[], bool]
    ) -> bool:
        fleet, running = self._worker.fleet, self._worker.running
        renew_at = self._clock.monotonic() + fleet.lease_seconds / 3
        while not done.wait(_STEP_SECONDS):
            if self._clock.monotonic() >= renew_at:
                renew_at = self._clock.monotonic() + fleet.lease_seconds / 3
                if not self._renew():
                    self._worker.abandon_all()
                    running.clear()
                    return False
            if activity.activity_id in running and self._timed_out(running[activity.activity_id], is_over):
                return True
        if errors:
            raise errors[0]
        if running.pop(activity.activity_id, None) is not None:
            raise TransientError(f"activity {activity.activity_id}: its result is unknown; it is run again")
        return True

    def _renew(self) -> bool:
        """Renew the lease. False if it was revoked: other workers reclaim the activity.

        An activity that was cancelled meanwhile is stopped where that is possible.
        """
        try:
            has_lease = self._worker.fleet.renew()
            if has_lease:
                self._worker.cancellations.find()
        except TransientError as exc:
            _log.warning("store unavailable; lease renewal retried", error=str(exc))
            return True
        return has_lease

    def _timed_out(self, running: RunningAttempt, is_over: Callable[[], bool]) -> bool:
        """End an attempt at its deadline or that of the invocation. Its thread runs on, and its result is fenced."""
        activity, kind = running.activity, running.timeout
        if kind is not None and running.deadline_ms <= self._worker.activities.now_ms():
            fact = f"{kind.value} of {activity.name} has passed"
        elif is_over():
            kind = Timeout.START_TO_CLOSE
            fact = f"the time of the function that ran {activity.name} was over; give it a shorter task or a worker"
        else:
            return False
        _log.warning("activity timed out", activity_id=activity.activity_id, name=activity.name, limit=kind.value)
        running.abandon()
        self._worker.running.pop(activity.activity_id, None)
        error = ErrorInfo(type="TimeoutError", message=fact)
        self._worker.finish(activity, AttemptResult(error=error, timeout=kind, notes=tuple(running.context.notes)))
        return True


def store_results(
    worker: Worker, inboxes: Inboxes, sleep: Callable[[float], None], is_over: Callable[[], bool]
) -> None:
    """Store the results that are only in memory, in the inboxes of their executions.

    Raises `TransientError` if the store does not accept them before time is up.
    """
    ready, unrecorded = worker.engine.ready, worker.claims.unrecorded
    while True:
        for _ in range(len(unrecorded)):
            worker.finish(*unrecorded.popleft())
        is_stored = _store_events(ready, inboxes, worker.activities.now_ms())
        if not unrecorded and not ready:
            return
        if is_over():
            raise TransientError("the end of an activity could not be stored in time; it is performed again")
        if unrecorded or not is_stored:
            sleep(_PAUSE_SECONDS)


def _store_events(ready: ReadyList, inboxes: Inboxes, now_ms: int) -> bool:
    """Move events of ready executions into their inboxes. False if the store is unavailable; all of them stay."""
    batch = ready.take(CYCLE_MAX)
    try:
        for execution_id, work in batch:
            inboxes.store(execution_id, work.sources, now_ms)
    except TransientError as exc:
        _log.warning("store unavailable; events not stored", error=str(exc))
        ready.put_back(batch)
        return False
    finally:
        ready.end_batch()
    return True
