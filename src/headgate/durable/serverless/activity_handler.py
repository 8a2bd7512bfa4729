"""Invoked activities: performs one activity within one call, under a lease that is renewed for as long as it runs.

The call is a worker of its own: it joins the fleet, claims, performs, records and leaves. If it dies, its lease runs
out and the activity is queued again. What it came to goes to the inbox of its execution, whoever advances that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from headgate.durable.engine.activity_store import Ended, Timeout
from headgate.durable.engine.engine import CYCLE_MAX
from headgate.durable.engine.inbox import Mail
from headgate.durable.engine.ready_queue import ReadyList
from headgate.durable.model.failures import ErrorInfo
from headgate.durable.model.records import Activity
from headgate.durable.serverless.wakeups import ActivityWake, Due
from headgate.durable.service import Service, install_notes
from headgate.durable.threads import is_async
from headgate.durable.worker.async_executor import AsyncPerformers
from headgate.durable.worker.executor import Running
from headgate.durable.worker.worker import Worker
from headgate.errors import HeadgateError, TransientError

LEASE_SECONDS: Final = 30.0
# What waits for a slot of its limit is tried again after half the time that it has waited, within these bounds: nobody
# tells when one is free, and of thousands that wait not each can ask every few seconds.
LIMITED_SECONDS_MIN: Final = 5.0
LIMITED_SECONDS_MAX: Final = 300.0
_STEP_SECONDS: Final = 0.25
_PAUSE_SECONDS: Final = 0.5
_log = structlog.get_logger(__name__)


class InvokedActivities:
    """Performs one activity after the other. Not for several threads at once."""

    def __init__(self, service: Service, queues: Sequence[str], *, lease_seconds: float = LEASE_SECONDS) -> None:
        install_notes()
        self._app = service.app
        self._clock = service.clock
        self._worker = service.worker(queues=queues, lease_seconds=lease_seconds)
        # Machines of functions have names and process ids in common: by these nobody can tell whether this one lives.
        self._worker.fleet.host = service.ids.make("call")
        self._mail = Mail(service.store, service.ids)

    def __call__(self, wake: ActivityWake, is_over: Callable[[], bool]) -> Due | None:
        """Perform an activity that waits, and return when it should be asked for again, if it could not be claimed.

        An attempt that has not ended when time is up has failed, by the limit of an attempt. Raises what the store
        raises; whatever is claimed by then is taken over after the lease.
        """
        worker = self._worker
        row = worker.activities.find(wake.activity_id)
        if row is None or row.queue_pk is None or row.available_at_ms is None:
            # It has ended, or is someone's. Should that one die, it is queued again, and told of again.
            return None
        if row.available_at_ms > worker.activities.now_ms():
            return Due(wake, row.available_at_ms)
        if not worker.can_perform(row):
            # Deliveries to other apps on the same tables are their business.
            if row.subscription is None:
                _log.warning("no such activity", activity_id=row.activity_id, name=row.name, app=self._app.name)
            return None
        worker.fleet.join(self._app.name, self._app.workflows, self._app.activity_names(), worker.queues)
        claimed = worker.activities.take(row)
        if claimed is not None:
            if not self._perform(claimed, is_over):
                return None
            record(worker, self._mail, self._clock.sleep, is_over)
        # Not after an error, nor if it was given up: what it claimed is found by its row.
        worker.fleet.leave()
        return None if claimed is not None else self._limited(wake, row.available_at_ms)

    def _limited(self, wake: ActivityWake, since_ms: int) -> Due:
        now_ms = self._worker.activities.now_ms()
        waited_seconds = (now_ms - since_ms) / 1000
        pause_seconds = min(LIMITED_SECONDS_MAX, max(LIMITED_SECONDS_MIN, waited_seconds / 2))
        return Due(wake, now_ms + round(1000 * pause_seconds))

    def _perform(self, activity: Activity, is_over: Callable[[], bool]) -> bool:
        """Run an activity to its end, or until its time is up. False if this worker was given up meanwhile."""
        done, errors = threading.Event(), list[Exception]()
        if not is_async(self._worker, activity):
            self._begin(activity, done, errors)
            return self._awaited(activity, done, errors, is_over)
        # A loop for each: one that lets nothing cancel it is left behind, and disturbs nobody.
        performers = AsyncPerformers(self._worker, ended=done.set, failed=errors.append)
        try:
            performers.perform(activity)
            return self._awaited(activity, done, errors, is_over)
        finally:
            performers.stop()

    def _begin(self, activity: Activity, done: threading.Event, errors: list[Exception]) -> None:
        def perform() -> None:
            try:
                self._worker.perform(activity)
            except HeadgateError as exc:
                errors.append(exc)
            finally:
                done.set()

        threading.Thread(target=perform, name="headgate-performer", daemon=True).start()

    def _awaited(
        self, activity: Activity, done: threading.Event, errors: list[Exception], is_over: Callable[[], bool]
    ) -> bool:
        fleet, running = self._worker.fleet, self._worker.running
        renew_at = self._clock.monotonic() + fleet.lease_seconds / 3
        while not done.wait(_STEP_SECONDS):
            if self._clock.monotonic() >= renew_at:
                renew_at = self._clock.monotonic() + fleet.lease_seconds / 3
                if not self._renewed():
                    self._worker.abandon_all()
                    running.clear()
                    return False
            if activity.activity_id in running and self._timed_out(running[activity.activity_id], is_over):
                return True
        if errors:
            raise errors[0]
        if running.pop(activity.activity_id, None) is not None:
            raise TransientError(f"activity {activity.activity_id}: how it ended is not known; it is performed again")
        return True

    def _renewed(self) -> bool:
        """Renew the lease. False if the others have given this worker up: what it had claimed is theirs.

        An activity that was cancelled meanwhile is told so, and stopped where that can be done.
        """
        try:
            is_ours = self._worker.fleet.renew()
            if is_ours:
                self._worker.unwanted.look()
        except TransientError as exc:
            _log.warning("the store is busy", error=str(exc))
            return True
        return is_ours

    def _timed_out(self, running: Running, is_over: Callable[[], bool]) -> bool:
        """End an attempt whose time is up, its own or that of the call. Its thread cannot be stopped, and is fenced."""
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
        self._worker.finish(activity, Ended(error=error, timeout=kind, notes=tuple(running.context.notes)))
        return True


def record(worker: Worker, mail: Mail, sleep: Callable[[float], None], is_over: Callable[[], bool]) -> None:
    """Store how activities ended, as far as only memory knows it: into the inboxes of their executions.

    Raises `TransientError` if the store does not take it before time is up.
    """
    ready = worker.engine.ready
    while True:
        for _ in range(len(worker.unfinished)):
            worker.finish(*worker.unfinished.popleft())
        is_kept = _kept(ready, mail, worker.activities.now_ms())
        if not worker.unfinished and not ready:
            return
        if is_over():
            raise TransientError("the end of an activity could not be stored in time; it is performed again")
        if worker.unfinished or not is_kept:
            sleep(_PAUSE_SECONDS)


def _kept(ready: ReadyList, mail: Mail, now_ms: int) -> bool:
    """Put what some executions are to hear into their inboxes. False if the store is busy; then all of it is left."""
    told = ready.take(CYCLE_MAX)
    try:
        for execution_id, work in told:
            mail.keep(execution_id, work.sources, now_ms)
    except TransientError as exc:
        _log.warning("the store is busy", error=str(exc))
        ready.put_back(told)
        return False
    finally:
        ready.settle()
    return True
