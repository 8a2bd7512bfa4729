"""Manual actions: operations on periods and pipelines by operators, each with author, reason and event."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec import Struct

from headgate.clock import Clock
from headgate.errors import IllegalTransitionError, VersionConflictError
from headgate.ids import IdMaker
from headgate.pipelines.definition.model import Json, Pipeline
from headgate.pipelines.definition_reader import DefinitionReader
from headgate.pipelines.enums import Cause, ControlState, FailureCategory, RerunReason, RunStatus, Verdict
from headgate.pipelines.event_writer import EventWriter
from headgate.pipelines.events.names import EventName
from headgate.pipelines.lifecycle.job_control import JobControl
from headgate.pipelines.lifecycle.rerun_judge import RerunJudge
from headgate.pipelines.lifecycle.starter import LifecycleStarter, execution_name
from headgate.pipelines.readiness.waiters import Waiters, WaitKind
from headgate.pipelines.row_codec import required
from headgate.pipelines.rules.facts import Facts
from headgate.pipelines.rules.rules import compile_trigger, evaluate
from headgate.pipelines.runs.admissions import Applicant, admit
from headgate.pipelines.runs.controls import Control
from headgate.pipelines.runs.locks import evaluation_key
from headgate.pipelines.runs.rerun_rows import Rerun
from headgate.pipelines.runs.rows import Run, RunLog, Slot
from headgate.pipelines.runs.stores import RunStores
from headgate.pipelines.schedule.timetables import StartCondition, Timetable
from headgate.pipelines.sensors import Sensors
from headgate.store.model.requests import Write

_RACES_MAX: Final = 10


class StartedRun(Struct, frozen=True):
    """An execution of the lifecycle for a period."""

    slot: Slot
    execution: str
    is_new: bool


class ManualActions:
    """The operations of operators. All raise `InvalidPayloadError` without an author (`by`) or a reason."""

    def __init__(  # noqa: PLR0913 - each operation acts on another component
        self,
        stores: RunStores,
        definitions: DefinitionReader,
        sensors: Sensors,
        events: EventWriter,
        clock: Clock,
        ids: IdMaker,
        starter: LifecycleStarter,
        waiters: Waiters,
        jobs: JobControl,
        judge: RerunJudge,
    ) -> None:
        self._stores = stores
        self._definitions = definitions
        self._sensors = sensors
        self._events = events
        self._clock = clock
        self._ids = ids
        self._starter = starter
        self._waiters = waiters
        self._jobs = jobs
        self._judge = judge

    # Periods.

    def start(self, slot: Slot, *, by: str, reason: str, is_forced: bool = False, token: str = "") -> StartedRun:
        """Start a period now, regardless of its calendar; if forced, its job starts without readiness.

        `token` is an idempotency key. Raises `IllegalTransitionError` for a period that is running, done, held or
        skipped, and `NotFoundError` for an unknown pipeline.
        """
        by, reason = required(str(slot), "by", by), required(str(slot), "reason", reason)
        pipeline, _ = self._definitions.newest(slot.pipeline_id)
        request_id = token or self._ids.ulid()
        execution = execution_name(slot, Cause.MANUAL, request_id)
        lock = self._stores.locks.find(evaluation_key(slot))
        if lock is not None:
            if lock.owner == execution:
                return StartedRun(slot, execution, is_new=False)
            raise IllegalTransitionError(
                f"{slot}: {lock.owner} holds its lock; cancel its run, or force it if it waits to be ready"
            )
        admission = admit(self._stores.runs.log(slot), Applicant(cause=Cause.MANUAL), pipeline.retry)
        if not admission.proceeds:
            raise IllegalTransitionError(f"{slot}: it is not started, {admission.reason}")
        if is_forced:
            self._force(slot, by, reason)
        is_new = self._starter.start_run(slot, Cause.MANUAL, token=request_id, by=by, note=reason)
        return StartedRun(slot, execution, is_new=is_new)

    def hold(self, slot: Slot, *, by: str, reason: str) -> RunLog:
        """Block the job of a period until it is approved. Raises `IllegalTransitionError` if the job has started."""
        events = self._order_events(EventName.RUN_HELD, by, reason)
        return self._stores.directives.hold(slot, by=by, reason=reason, also=events)

    def approve(self, slot: Slot, *, by: str, reason: str) -> RunLog:
        """Release a held period; a start that was due while it was held happens now.

        Raises `IllegalTransitionError` if it is not held.
        """
        events = self._order_events(EventName.RUN_APPROVED, by, reason)
        log = self._stores.directives.approve(slot, by=by, reason=reason, also=events)
        if log.is_live:
            self._waiters.wake(slot, WaitKind.CHANGE, f"{by} approved it")
            return log
        pipeline, _ = self._definitions.newest(slot.pipeline_id)
        cause = self._missed_start(pipeline, slot)
        if cause is not None:
            # The version of the log distinguishes this approval from a later one.
            self._starter.start_run(slot, cause, token=f"approved-{log.version}", by=by, note=reason)
        return log

    def skip(self, slot: Slot, *, by: str, reason: str) -> RunLog:
        """Skip a period. Raises `IllegalTransitionError` if a run is active or the period is done."""
        events = self._order_events(EventName.RUN_SKIPPED, by, reason)
        return self._stores.directives.skip(slot, by=by, reason=reason, also=events)

    def mark_success(self, slot: Slot, *, by: str, reason: str) -> RunLog:
        """Mark a period as done without a run; pipelines that wait for it go on.

        Raises `IllegalTransitionError` as `skip` does.
        """
        events = self._order_events(EventName.PIPELINE_COMPLETED, by, reason)
        return self._stores.directives.mark_success(slot, by=by, reason=reason, also=events)

    def force(self, slot: Slot, *, by: str, reason: str) -> RunLog:
        """Start the job of a period without readiness: a waiting run goes on, otherwise a new one starts.

        Raises `IllegalTransitionError` if it is done.
        """
        log = self._force(slot, by, reason)
        is_running = log.is_live or self._stores.locks.find(evaluation_key(slot)) is not None
        if not is_running:
            self._starter.start_run(slot, Cause.MANUAL, token=f"forced-{log.version}", by=by, note=reason)
        return log

    def rerun(self, slot: Slot, reason: RerunReason, *, by: str, note: str, is_forced: bool = False) -> Rerun:
        """Request a rerun of a period, and return it: REJECTED if it is refused, otherwise pending.

        A pending request is returned as it is. While a run holds the period's lock, the request waits for its end.
        """
        by, note = required(str(slot), "by", by), required(str(slot), "note", note)
        rerun = self._stores.reruns.request(
            slot,
            reason,
            by=by,
            note=note,
            is_forced=is_forced,
            also=lambda rerun, _log: self._events.writes(
                EventName.RERUN_REQUESTED,
                rerun.slot,
                {"rerun_id": rerun.rerun_id, "reason": rerun.reason.value, "by": by, "note": note},
            ),
        )
        if self._stores.locks.find(evaluation_key(slot)) is not None:
            return rerun
        # A rejection needs no lock. An acceptance does, and follows from the execution that the request starts.
        return self._judge.judge(rerun.rerun_id, slot).rerun

    # Runs.

    def cancel(self, run_id: str, *, by: str, reason: str) -> Run:
        """Cancel a run and its job; a cancelled run stays as it is.

        Raises `NotFoundError`, and `IllegalTransitionError` for a run with another end.
        """
        by, reason = required(run_id, "by", by), required(run_id, "reason", reason)
        run = self._stores.runs.get(run_id)
        if run.status is RunStatus.CANCELLED:
            return run
        return self._jobs.cancel(run_id, by=by, reason=reason)

    def complete(
        self, run_id: str, *, is_success: bool, reason: str = "", category: FailureCategory | None = None
    ) -> Run:
        """Record the end that a job reports itself; the first report counts. Raises `NotFoundError`."""
        for _ in range(_RACES_MAX):
            try:
                return self._jobs.complete(run_id, is_success=is_success, reason=reason, category=category)
            except VersionConflictError:
                # The lifecycle changed the run in between; the report still holds.
                continue
        raise VersionConflictError(f"run {run_id}: concurrent changes keep winning; try again")

    # Pipelines.

    def pause(self, pipeline_id: str, *, by: str, reason: str, until_ms: int | None = None) -> Control:
        """Start no runs by schedule or data, until the pipeline is resumed or a time is reached."""
        detail = {"by": by, "reason": reason}

        def also(_before: Control, _after: Control) -> list[Write]:
            return self._events.writes(EventName.PIPELINE_PAUSED, Slot(pipeline_id, "", ""), detail)

        return self._stores.controls.pause(pipeline_id, by=by, reason=reason, until_ms=until_ms, also=also)

    def resume(self, pipeline_id: str, *, by: str, reason: str) -> Control:
        """Start runs again, and reset the circuit breaker."""
        detail = {"by": by, "reason": reason}

        def also(before: Control, _after: Control) -> list[Write]:
            name = (
                EventName.CIRCUIT_BREAKER_RESET if before.state is ControlState.TRIPPED else EventName.PIPELINE_RESUMED
            )
            return self._events.writes(name, Slot(pipeline_id, "", ""), detail)

        return self._stores.controls.resume(pipeline_id, by=by, reason=reason, also=also)

    # Helpers.

    def _force(self, slot: Slot, by: str, reason: str) -> RunLog:
        events = self._order_events(EventName.RUN_FORCED, by, reason)
        log = self._stores.directives.force(slot, by=by, reason=reason, also=events)
        self._waiters.wake(slot, WaitKind.CHANGE, f"{by} forced it")
        return log

    def _order_events(self, name: EventName, by: str, reason: str) -> Callable[[RunLog], list[Write]]:
        detail: dict[str, Json] = {"by": by, "reason": reason}
        return lambda log: self._events.writes(name, log.slot, {**detail, "run_id": log.run_id})

    def _missed_start(self, pipeline: Pipeline, slot: Slot) -> Cause | None:
        """Return the start that a hold prevented; None: there was none."""
        if self._stores.markers.find(slot) is not None:
            return Cause.MARKER
        timetable = self._definitions.timetable(pipeline, slot.schedule_id)
        if timetable is None or not pipeline.schedules:
            return None
        if timetable.start_condition is not StartCondition.DATA:
            due_at = timetable.slot(slot.date)
            return Cause.RECOVERY if due_at is not None and due_at <= self._clock.now() else None
        return Cause.SENSOR if self._has_arrived(timetable, slot) else None

    def _has_arrived(self, timetable: Timetable, slot: Slot) -> bool:
        trigger = timetable.schedule.sensor
        if trigger is None:
            return False
        sensors = self._sensors.read(slot.pipeline_id, [trigger.key], slot.date).sensors
        verdict = evaluate(compile_trigger(trigger), Facts(sensors=sensors), self._clock.now()).verdict
        return bool(sensors) and verdict is Verdict.PASS
