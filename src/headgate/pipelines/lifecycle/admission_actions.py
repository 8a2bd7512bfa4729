"""Admission actions: decide whether a period may run now, take its lock, and create the run."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from headgate.clock import Clock, epoch_ms
from headgate.errors import IllegalTransitionError, NotFoundError, StaleClaimError
from headgate.pipelines.definition.job_times import window_seconds
from headgate.pipelines.definition.model import Pipeline, TriggerSpec
from headgate.pipelines.definition_reader import DefinitionReader
from headgate.pipelines.enums import Cause, RerunReason
from headgate.pipelines.event_writer import EventWriter
from headgate.pipelines.events.names import EventName
from headgate.pipelines.lifecycle.hand_over import rounds_before_hand_over
from headgate.pipelines.lifecycle.messages import Answer, Call
from headgate.pipelines.lifecycle.rerun_judge import RerunJudge
from headgate.pipelines.runs import locks
from headgate.pipelines.runs.admissions import Applicant, admit
from headgate.pipelines.runs.controls import refusal
from headgate.pipelines.runs.locks import evaluation_key
from headgate.pipelines.runs.rerun_rows import Rerun, RerunStatus
from headgate.pipelines.runs.rows import Run, RunLog
from headgate.pipelines.runs.store import RunStart
from headgate.pipelines.runs.stores import RunStores
from headgate.store.model.requests import Write

# The status that the first state-change event of a run names as the previous one.
NO_RUN = "no run"
PROCEED = "proceed"
SKIP = "skip"
# An operator asked for this period, so calendar exclusions do not apply.
_MANUAL_CAUSES = frozenset({Cause.MANUAL, Cause.REPLAY})


class AdmissionActions:
    """The actions checkExclusion, acquireLock, checkRunLog, resolvePipeline and releaseLock."""

    def __init__(
        self,
        stores: RunStores,
        definitions: DefinitionReader,
        events: EventWriter,
        clock: Clock,
        judge: RerunJudge,
        *,
        start_rerun: Callable[[Rerun, str], None],
        hand_over_events: int | None = None,
    ) -> None:
        """`start_rerun` starts an execution for a rerun; its second argument makes the execution name unique.

        `hand_over_events` are the history events after which an execution hands over; None: it never does.
        """
        self._stores = stores
        self._definitions = definitions
        self._events = events
        self._clock = clock
        self._judge = judge
        self._start_rerun = start_rerun
        self._hand_over_events = hand_over_events

    def check_exclusion(self, call: Call) -> Answer:
        """Skip a period whose date is excluded, or whose pipeline is paused or stopped by its circuit breaker.

        An execution that continues another was admitted with it.
        """
        if call.resume_at:
            return {"result": PROCEED}
        try:
            pipeline, _ = self._definitions.newest(call.pipeline_id)
        except NotFoundError as exc:
            return {"result": SKIP, "reason": str(exc)}
        reason = self._exclusion_reason(pipeline, call)
        if not reason:
            return {"result": PROCEED}
        self._events.publish(EventName.PIPELINE_EXCLUDED, call.slot, source=call.cause.value, reason=reason)
        return {"result": SKIP, "reason": reason}

    def peek_exclusion(self, call: Call) -> Answer | None:
        """Answer checkExclusion without a write. None: the period is skipped, which publishes an event."""
        if call.resume_at:
            return {"result": PROCEED}
        pipeline, _ = self._definitions.newest(call.pipeline_id)
        return None if self._exclusion_reason(pipeline, call) else {"result": PROCEED}

    def peek_run_log(self, call: Call) -> Answer | None:
        """Answer checkRunLog without a write. None: a rerun has to be decided on, which is stored."""
        return None if call.cause is Cause.RERUN and call.rerun_id else self.check_run_log(call)

    def _exclusion_reason(self, pipeline: Pipeline, call: Call) -> str:
        if call.cause is Cause.RERUN and self._is_manual_rerun(call.rerun_id):
            # checkRunLog decides on manual reruns, under the lock, and publishes a refusal.
            return ""
        control = self._stores.controls.get(call.pipeline_id)
        refused = refusal(control, call.cause, epoch_ms(self._clock), while_paused=call.cause is Cause.BACKFILL)
        if refused or call.cause in (*_MANUAL_CAUSES, Cause.RERUN):
            return refused
        timetable = self._definitions.timetable(pipeline, call.schedule_id)
        return "" if timetable is None else timetable.exclusion_reason(call.date) or ""

    def _is_manual_rerun(self, rerun_id: str) -> bool:
        rerun = self._stores.reruns.find(rerun_id) if rerun_id else None
        return rerun is not None and rerun.reason is RerunReason.MANUAL

    def acquire_lock(self, call: Call) -> Answer:
        """Take the lock of the period, with a lifetime that covers the whole run."""
        pipeline, _ = self._definitions.newest(call.pipeline_id)
        key = evaluation_key(call.slot)
        held = self._stores.locks.acquire(key, call.execution_name, locks.lifetime_seconds(pipeline))
        if held is None:
            holder = self._stores.locks.find(key)
            whose = "another execution" if holder is None else holder.owner
            reason = f"{whose} has the lock of {call.slot}"
            self._end_rerun(call, reason)
            return {"result": SKIP, "lockToken": "", "reason": reason}
        return {"result": PROCEED, "lockToken": held.token}

    def check_run_log(self, call: Call) -> Answer:
        """Decide whether the period may have another attempt, and on the rerun that requests it."""
        pipeline, _ = self._definitions.newest(call.pipeline_id)
        rerun_id = call.rerun_id
        if call.cause is Cause.RERUN and rerun_id:
            judged = self._judge_rerun(call)
            if judged is not None:
                return judged
        applicant = Applicant(cause=call.cause, execution=call.execution_name, is_replay=call.replay, rerun_id=rerun_id)
        admission = admit(self._stores.runs.log(call.slot), applicant, pipeline.retry)
        if not admission.proceeds:
            self._end_rerun(call, admission.reason)
        return {"result": PROCEED if admission.proceeds else SKIP, "reason": admission.reason}

    def _judge_rerun(self, call: Call) -> Answer | None:
        """Return the answer for a refused rerun; None: it is accepted."""
        judgement = self._judge.judge(
            call.rerun_id,
            call.slot,
            execution=call.execution_name,
            lock_token=call.lock_token,
            also=self._replaced_rerun_writes,
        )
        return None if judgement.proceeds else {"result": SKIP, "reason": judgement.reason}

    def resolve_pipeline(self, call: Call) -> Answer:
        """Create a run under the newest definition, and return its configuration."""
        pipeline, version = self._definitions.newest(call.pipeline_id)
        if pipeline.trigger is None and not pipeline.dry_run:
            reason = f"pipeline {pipeline.id} has no trigger"
            failed = self._events.writes(EventName.PIPELINE_FAILED, call.slot, {"reason": reason})
            self._stores.runs.close(call.slot, reason, by="lifecycle", also=failed)
            self._end_rerun(call, reason)
            return {"result": "error", "runId": "", "reason": reason}
        applicant = Applicant(
            cause=call.cause, execution=call.execution_name, is_replay=call.replay, rerun_id=call.rerun_id
        )
        start = RunStart(
            slot=call.slot,
            cause=call.cause,
            by=call.by,
            note=call.note,
            execution=call.execution_name,
            lock_token=call.lock_token,
            definition_version=version,
            sensor_arrival_at_ms=_milliseconds(call.sensor_arrival_at),
            rerun_id=call.rerun_id,
            is_dry_run=pipeline.dry_run,
            traceparent=call.traceparent,
        )
        try:
            run = self._stores.runs.create(
                start,
                admits=lambda log: admit(log, applicant, pipeline.retry),
                also=lambda run, _log: [*self._created_events(run), *self._superseded_rerun_writes(run)],
            )
        except (StaleClaimError, IllegalTransitionError) as exc:
            # The period was skipped, closed or claimed by another execution in the meantime. This is not a failure.
            self._end_rerun(call, str(exc))
            return {"result": SKIP, "runId": "", "reason": str(exc)}
        return {
            "result": PROCEED,
            "runId": run.run_id,
            "traits": _traits(pipeline),
            "config": lifecycle_config(pipeline, self._hand_over_events),
        }

    def _superseded_rerun_writes(self, run: Run) -> list[Write]:
        """Return the writes that end the rerun which the new run replaces."""
        rerun = self._rerun_of_log(self._stores.runs.log(run.slot))
        if rerun is None or rerun.rerun_id == run.rerun_id:
            return []
        return self._ended_rerun_writes(rerun, f"run {run.run_id} replaced it", run_id=run.run_id)

    def _replaced_rerun_writes(self, accepted: Rerun) -> list[Write]:
        """Return the writes that end an earlier accepted rerun whose execution lost the lock to the accepted one."""
        log = self._stores.runs.log(accepted.slot) if accepted.status is RerunStatus.ACCEPTED else None
        earlier = self._rerun_of_log(log)
        if log is None or earlier is None or earlier.rerun_id == accepted.rerun_id:
            return []
        # The log names one rerun: from now on no later run finds the earlier one.
        return self._ended_rerun_writes(earlier, f"rerun {accepted.rerun_id} replaced it", run_id=earlier.run_id)

    def _end_rerun(self, call: Call, reason: str) -> None:
        """End the rerun that this execution accepted, because the execution ends without a run for it."""
        log = self._stores.runs.log(call.slot)
        rerun = self._stores.reruns.find(call.rerun_id) if call.rerun_id else self._rerun_of_log(log)
        if rerun is None or not call.execution_name or rerun.execution != call.execution_name:
            return
        if log is not None and log.is_live and log.attempts and log.execution == call.execution_name:
            # A repeated call of an earlier attempt: a later attempt of this execution is under way, and ends the rerun.
            return
        writes = self._ended_rerun_writes(rerun, f"its execution ended without a run: {reason}")
        if writes:
            self._stores.reruns.end(writes)

    def _ended_rerun_writes(self, rerun: Rerun, reason: str, *, run_id: str = "") -> list[Write]:
        ended = self._stores.reruns.ending_writes(rerun, run_id=run_id, is_success=False, reason=reason)
        detail = {
            "rerun_id": rerun.rerun_id,
            "run_id": run_id,
            "status": RerunStatus.FAILED.value,
            "reason": reason,
        }
        return [*ended, *self._events.writes(EventName.RERUN_COMPLETED, rerun.slot, detail)] if ended else []

    def _rerun_of_log(self, log: RunLog | None) -> Rerun | None:
        return self._stores.reruns.find(log.rerun_id) if log is not None and log.rerun_id else None

    def release_lock(self, call: Call) -> Answer:
        """Release the lock of the period by its token, or any lock that this execution owns on it."""
        key = evaluation_key(call.slot)
        if call.lock_token:
            released = self._stores.locks.release(key, call.lock_token)
        else:
            released = self._stores.locks.release_owned(key, call.execution_name)
        if not call.run_id:
            # After an error between the acceptance of a rerun and its run.
            self._end_rerun(call, "it failed before the run was created")
        # A rerun that was requested while the lock was held starts now.
        pending = self._stores.reruns.pending(call.slot)
        if pending is not None:
            self._start_rerun(pending, f"{call.execution_name}#{call.run_id}")
        return {"released": released}

    def _created_events(self, run: Run) -> list[Write]:
        detail = {"run_id": run.run_id, "before": NO_RUN, "after": run.status.value, "attempt": run.attempt}
        return self._events.writes(EventName.RUN_STATE_CHANGED, run.slot, detail)


def _traits(pipeline: Pipeline) -> list[dict[str, object]]:
    """Return the traits that the lifecycle evaluates; pushed traits arrive from outside."""
    return [
        {
            "type": name,
            "evaluator": trait.evaluator,
            "config": trait.config,
            "ttlSeconds": float(trait.ttl),
            "timeoutSeconds": float(trait.timeout),
            "required": trait.required,
        }
        for name, trait in pipeline.readiness.traits.items()
        if trait.evaluator != "push"
    ]


def lifecycle_config(pipeline: Pipeline, hand_over_events: int | None = None) -> Answer:
    """Return the settings of a definition that the state machine reads."""
    readiness, trigger, sla = pipeline.readiness, pipeline.trigger, pipeline.sla
    config: Answer = {
        "evaluationIntervalSeconds": max(1, round(readiness.interval)),
        "evaluationWindowSeconds": round(readiness.window),
        "monitoringIntervalSeconds": max(1, round(pipeline.post_run.monitoring.interval)),
        "jobCheckIntervalSeconds": _first_check_seconds(trigger),
        "jobPollWindowSeconds": round(window_seconds(trigger)),
        "handOverRounds": rounds_before_hand_over(pipeline, hand_over_events),
    }
    if sla is not None:
        config["sla"] = {
            "deadline": sla.deadline or "",
            "expectedDuration": "" if sla.expected_duration is None else float(sla.expected_duration),
            "maxDuration": "" if sla.max_duration is None else float(sla.max_duration),
            "timezone": sla.timezone or pipeline.timezone,
        }
    return config


def _first_check_seconds(trigger: TriggerSpec | None) -> int:
    """Return the time to the first check of a job; a missing heartbeat is found in time."""
    if trigger is None:
        return 30
    limit = trigger.heartbeat if trigger.callback and trigger.heartbeat is not None else trigger.check_interval
    return max(1, round(min(trigger.check_interval, limit)))


def _milliseconds(text: str) -> int | None:
    return round(datetime.fromisoformat(text).timestamp() * 1000) if text else None
