"""Manual actions: what people do to periods and pipelines, with their name and reason, told in the same transaction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec import Struct

from headgate.errors import IllegalTransitionError, VersionConflictError
from headgate.pipelines.context import Parts
from headgate.pipelines.definition.model import Json, Pipeline
from headgate.pipelines.enums import Cause, ControlState, FailureCategory, RerunReason, RunStatus, Verdict
from headgate.pipelines.events.names import EventName
from headgate.pipelines.lifecycle.job_control import Triggering
from headgate.pipelines.lifecycle.starter import Starter, execution_name
from headgate.pipelines.readiness.waiters import Waiters, WaitKind
from headgate.pipelines.row_codec import required
from headgate.pipelines.rules.facts import Facts
from headgate.pipelines.rules.rules import compile_trigger, evaluate
from headgate.pipelines.runs.admissions import Applicant, admit
from headgate.pipelines.runs.controls import Control
from headgate.pipelines.runs.locks import evaluation_key
from headgate.pipelines.runs.rerun_rows import Rerun
from headgate.pipelines.runs.rows import Run, RunLog, Slot
from headgate.pipelines.schedule.timetables import Beginning, Timetable
from headgate.store.model.requests import Write

_RACES_MAX: Final = 10


class Begun(Struct, frozen=True):
    """An execution of the lifecycle that pursues a period."""

    slot: Slot
    execution: str
    is_new: bool


class ManualActions:
    """What people can do. `by` is who does it. Everything raises `InvalidPayloadError` without a name or a reason."""

    def __init__(self, parts: Parts, starter: Starter, waiters: Waiters, triggering: Triggering) -> None:
        self._parts = parts
        self._starter = starter
        self._waiters = waiters
        self._triggering = triggering

    # Periods.

    def start(self, slot: Slot, *, by: str, reason: str, is_forced: bool = False, token: str = "") -> Begun:
        """Have a period pursued now, whatever its calendar says; forced, its job starts ready or not.

        The same token asks once. Raises `IllegalTransitionError` for a period that is under way, done, held or
        skipped, and `NotFoundError` for a pipeline that is not there.
        """
        by, reason = required(str(slot), "by", by), required(str(slot), "reason", reason)
        pipeline, _ = self._parts.definitions.newest(slot.pipeline_id)
        wish = token or self._parts.ids.ulid()
        begun = Begun(slot, execution_name(slot, Cause.MANUAL, wish), is_new=False)
        lock = self._parts.locks.find(evaluation_key(slot))
        if lock is not None:
            if lock.owner == begun.execution:
                return begun
            raise IllegalTransitionError(
                f"{slot}: {lock.owner} is at it; cancel its run, or force it if it waits to be ready"
            )
        admission = admit(self._parts.runs.log(slot), Applicant(cause=Cause.MANUAL), pipeline.retry)
        if not admission.proceeds:
            raise IllegalTransitionError(f"{slot}: it is not started, {admission.reason}")
        if is_forced:
            self._force(slot, by, reason)
        is_new = self._starter.pursue(slot, Cause.MANUAL, token=wish, by=by, note=reason)
        return Begun(slot, begun.execution, is_new=is_new)

    def hold(self, slot: Slot, *, by: str, reason: str) -> RunLog:
        """Let a period start no job until someone approves it. Raises `IllegalTransitionError` if one has started."""
        told = self._told(EventName.RUN_HELD, by, reason)
        return self._parts.directives.hold(slot, by=by, reason=reason, also=told)

    def approve(self, slot: Slot, *, by: str, reason: str) -> RunLog:
        """Let a period that is held go on; what came while it was held begins it now.

        Raises `IllegalTransitionError` if nobody holds it.
        """
        told = self._told(EventName.RUN_APPROVED, by, reason)
        log = self._parts.directives.approve(slot, by=by, reason=reason, also=told)
        if log.is_live:
            self._waiters.wake(slot, WaitKind.CHANGE, f"{by} approved it")
            return log
        pipeline, _ = self._parts.definitions.newest(slot.pipeline_id)
        cause = self._missed(pipeline, slot)
        if cause is not None:
            # The version of the log tells this approval from another.
            self._starter.pursue(slot, cause, token=f"approved-{log.version}", by=by, note=reason)
        return log

    def skip(self, slot: Slot, *, by: str, reason: str) -> RunLog:
        """Have nothing done for a period. Raises `IllegalTransitionError` if a run is under way or it is done."""
        told = self._told(EventName.RUN_SKIPPED, by, reason)
        return self._parts.directives.skip(slot, by=by, reason=reason, also=told)

    def mark_success(self, slot: Slot, *, by: str, reason: str) -> RunLog:
        """Take a period for done, though no run of ours did it: whoever waits for it goes on.

        Raises `IllegalTransitionError` as `skip` does.
        """
        told = self._told(EventName.PIPELINE_COMPLETED, by, reason)
        return self._parts.directives.mark_success(slot, by=by, reason=reason, also=told)

    def force(self, slot: Slot, *, by: str, reason: str) -> RunLog:
        """Have a period start its job, ready or not: the run that waits goes on, or else one begins.

        Raises `IllegalTransitionError` if it is done.
        """
        log = self._force(slot, by, reason)
        is_pursued = log.is_live or self._parts.locks.find(evaluation_key(slot)) is not None
        if not is_pursued:
            self._starter.pursue(slot, Cause.MANUAL, token=f"forced-{log.version}", by=by, note=reason)
        return log

    def rerun(self, slot: Slot, reason: RerunReason, *, by: str, note: str, is_forced: bool = False) -> Rerun:
        """Ask for a period to be done again. One that waits to be judged already is returned as it is."""
        by, note = required(str(slot), "by", by), required(str(slot), "note", note)
        parts = self._parts
        return parts.reruns.request(
            slot,
            reason,
            by=by,
            note=note,
            is_forced=is_forced,
            also=lambda asked, _log: parts.tells(
                EventName.RERUN_REQUESTED,
                asked.slot,
                {"rerun_id": asked.rerun_id, "reason": asked.reason.value, "by": by, "note": note},
            ),
        )

    # Runs.

    def cancel(self, run_id: str, *, by: str, reason: str) -> Run:
        """End a run, and its job with it; one that was cancelled stays as it is.

        Raises `NotFoundError`, and `IllegalTransitionError` for one that has ended otherwise.
        """
        by, reason = required(run_id, "by", by), required(run_id, "reason", reason)
        run = self._parts.runs.get(run_id)
        if run.status is RunStatus.CANCELLED:
            return run
        return self._triggering.cancel(run_id, by=by, reason=reason)

    def complete(
        self, run_id: str, *, is_success: bool, reason: str = "", category: FailureCategory | None = None
    ) -> Run:
        """Take a job's own word for how it ended; what was said first counts. Raises `NotFoundError`."""
        for _ in range(_RACES_MAX):
            try:
                return self._triggering.complete(run_id, is_success=is_success, reason=reason, category=category)
            except VersionConflictError:
                # The lifecycle moved it on meanwhile, which does not make the job's word less true.
                continue
        raise VersionConflictError(f"run {run_id}: it keeps changing; try again")

    # Pipelines.

    def pause(self, pipeline_id: str, *, by: str, reason: str, until_ms: int | None = None) -> Control:
        """Let nothing begin by itself, until someone resumes the pipeline or a moment has come."""
        detail = {"by": by, "reason": reason}

        def also(_before: Control, _after: Control) -> list[Write]:
            return self._parts.tells(EventName.PIPELINE_PAUSED, Slot(pipeline_id, "", ""), detail)

        return self._parts.controls.pause(pipeline_id, by=by, reason=reason, until_ms=until_ms, also=also)

    def resume(self, pipeline_id: str, *, by: str, reason: str) -> Control:
        """Let a pipeline begin runs again, with no failure held against it."""
        detail = {"by": by, "reason": reason}

        def also(before: Control, _after: Control) -> list[Write]:
            name = (
                EventName.CIRCUIT_BREAKER_RESET if before.state is ControlState.TRIPPED else EventName.PIPELINE_RESUMED
            )
            return self._parts.tells(name, Slot(pipeline_id, "", ""), detail)

        return self._parts.controls.resume(pipeline_id, by=by, reason=reason, also=also)

    # How.

    def _force(self, slot: Slot, by: str, reason: str) -> RunLog:
        told = self._told(EventName.RUN_FORCED, by, reason)
        log = self._parts.directives.force(slot, by=by, reason=reason, also=told)
        self._waiters.wake(slot, WaitKind.CHANGE, f"{by} forced it")
        return log

    def _told(self, name: EventName, by: str, reason: str) -> Callable[[RunLog], list[Write]]:
        detail: dict[str, Json] = {"by": by, "reason": reason}
        return lambda log: self._parts.tells(name, log.slot, {**detail, "run_id": log.run_id})

    def _missed(self, pipeline: Pipeline, slot: Slot) -> Cause | None:
        """Return what would have begun a period, had it not been held; None: nothing has yet."""
        parts = self._parts
        if parts.markers.find(slot) is not None:
            return Cause.MARKER
        timetable = parts.timetable(pipeline, slot.schedule_id)
        if timetable is None or not pipeline.schedules:
            return None
        if timetable.beginning is not Beginning.DATA:
            due_at = timetable.slot(slot.date)
            return Cause.RECOVERY if due_at is not None and due_at <= parts.now() else None
        return Cause.SENSOR if self._has_come(timetable, slot) else None

    def _has_come(self, timetable: Timetable, slot: Slot) -> bool:
        trigger = timetable.schedule.sensor
        if trigger is None:
            return False
        sensors = self._parts.sensors.read(slot.pipeline_id, [trigger.key], slot.date).sensors
        verdict = evaluate(compile_trigger(trigger), Facts(sensors=sensors), self._parts.now()).verdict
        return bool(sensors) and verdict is Verdict.PASS
