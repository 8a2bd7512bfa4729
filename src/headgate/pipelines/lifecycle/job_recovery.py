"""Job recovery: completes a failed run after its job, a fan-out or workflow of Headgate, was repaired.

A redrive or retry keeps the id of the job. When the job then succeeds, the run goes from FAILED to COMPLETED. The job's
state is read again each time, so that repeated, late and lost events lead to the same result.
"""

from __future__ import annotations

import enum

from headgate.errors import IllegalTransitionError, VersionConflictError
from headgate.pipelines.definition_reader import DefinitionReader
from headgate.pipelines.enums import RunStatus
from headgate.pipelines.event_writer import EventWriter
from headgate.pipelines.events.names import EventName
from headgate.pipelines.lifecycle.completion import RunCompletion
from headgate.pipelines.lifecycle.job_control import REPORTS_END, metadata_of, order_of
from headgate.pipelines.runs.rows import Order, RunLog
from headgate.pipelines.runs.stores import RunStores
from headgate.triggers.contract import FailureCategory, JobState, Trigger, TriggerFailedError


class Recovery(enum.Enum):
    """The result of an attempt to recover a run."""

    # It has not failed, or its job cannot be repaired.
    NOTHING = enum.auto()
    # Its job has not succeeded yet.
    NOT_REPAIRED = enum.auto()
    COMPLETED = enum.auto()
    # Its job has succeeded, but the period belongs to another run or an operator by now.
    REFUSED = enum.auto()


def recovery_refusal(log: RunLog) -> str:
    """Return why a failed run whose job was repaired does not complete its period; empty if it does."""
    if log.order is not None and log.order.order is Order.SKIP:
        return f"{log.order.by} skipped the period: {log.order.reason}"
    if log.status.is_done:
        done = (
            f"run {log.succeeded_run_id} has completed the period" if log.succeeded_run_id else "it is marked as done"
        )
        return f"{done} meanwhile"
    if log.is_live:
        return f"run {log.run_id} of the same period is {log.status.value}"
    if log.is_rerun_due:
        return f"rerun {log.rerun_id} of the same period is about to start"
    if log.status is RunStatus.CANCELLED:
        return f"the period was cancelled, {log.reason or 'without a reason'}"
    return ""


class JobRecovery:
    """Completes failed runs whose jobs were repaired. Idempotent, and safe for use from many processes."""

    def __init__(
        self,
        stores: RunStores,
        definitions: DefinitionReader,
        trigger: Trigger,
        events: EventWriter,
        completion: RunCompletion,
    ) -> None:
        self._stores = stores
        self._definitions = definitions
        self._trigger = trigger
        self._events = events
        self._completion = completion

    def recover(self, run_id: str) -> Recovery:
        """Complete a failed run if its job has succeeded meanwhile. A refusal is published once.

        Raises `TriggerFailedError` if the job cannot be polled at the moment, and `TransientError`.
        """
        run = self._stores.runs.find(run_id)
        if run is None or run.status is not RunStatus.FAILED or not run.job_id or not run.job.get(REPORTS_END):
            return Recovery.NOTHING
        pipeline = self._definitions.of_run(run)
        try:
            polled = self._trigger.poll(order_of(run, pipeline), metadata_of(run))
        except TriggerFailedError as exc:
            if exc.category is FailureCategory.PERMANENT:
                return Recovery.NOTHING
            raise
        if polled.state is not JobState.SUCCEEDED:
            return Recovery.NOT_REPAIRED
        try:
            self._completion.recover(run, pipeline, refuses=recovery_refusal)
        except VersionConflictError:
            # Another process has completed it.
            current = self._stores.runs.get(run_id)
            return Recovery.COMPLETED if current.status.is_done else Recovery.NOT_REPAIRED
        except IllegalTransitionError as exc:
            log = self._stores.runs.log(run.slot)
            by = "" if log is None else log.run_id
            self._events.publish_once(
                f"not-recovered#{run_id}#{by}",
                EventName.RUN_NOT_RECOVERED,
                run.slot,
                run_id=run_id,
                reason=exc.message.removeprefix(f"run {run_id}: its job was repaired, but "),
            )
            return Recovery.REFUSED
        return Recovery.COMPLETED
