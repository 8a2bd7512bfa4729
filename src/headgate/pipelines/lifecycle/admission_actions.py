"""Admission: may this period be pursued now, by whom, and under which definition?"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from headgate.errors import IllegalTransitionError, NotFoundError, StaleClaimError
from headgate.pipelines.context import Parts
from headgate.pipelines.definition.model import Pipeline
from headgate.pipelines.enums import Cause, RerunReason
from headgate.pipelines.events.names import EventName
from headgate.pipelines.lifecycle.messages import Answer, Call
from headgate.pipelines.runs import locks
from headgate.pipelines.runs.admissions import Applicant, admit
from headgate.pipelines.runs.controls import refusal
from headgate.pipelines.runs.locks import evaluation_key
from headgate.pipelines.runs.rerun_decisions import Situation, newest_update_ms, spent_limit
from headgate.pipelines.runs.rerun_rows import Rerun
from headgate.pipelines.runs.rows import Run
from headgate.pipelines.runs.store import RunStart
from headgate.store.model.requests import Write

# What a run was before it began.
NO_RUN = "no run"
PROCEED = "proceed"
SKIP = "skip"
# Someone wants this very period, on a day on which nothing is done by itself.
_BY_HAND = frozenset({Cause.MANUAL, Cause.REPLAY})


class AdmissionActions:
    """checkExclusion, acquireLock, checkRunLog, resolvePipeline and releaseLock."""

    def __init__(self, parts: Parts, pursue: Callable[[Rerun, str], None]) -> None:
        """Take `pursue`, which begins a rerun; the text tells one time of asking from another."""
        self._parts = parts
        self._pursue = pursue

    def check_exclusion(self, call: Call) -> Answer:
        """Say whether the pipeline is dormant: excluded on the period's own date, paused, or stopped by its breaker."""
        try:
            pipeline, _ = self._parts.definitions.newest(call.pipeline_id)
        except NotFoundError as exc:
            return {"result": SKIP, "reason": str(exc)}
        reason = self._why_dormant(pipeline, call)
        if not reason:
            return {"result": PROCEED}
        self._parts.tell(EventName.PIPELINE_EXCLUDED, call.slot, source=call.cause.value, reason=reason)
        return {"result": SKIP, "reason": reason}

    def look_at_exclusion(self, call: Call) -> Answer | None:
        """Say that the pipeline is not dormant. None: it is, or there is none, which has to be told."""
        pipeline, _ = self._parts.definitions.newest(call.pipeline_id)
        return None if self._why_dormant(pipeline, call) else {"result": PROCEED}

    def look_at_run_log(self, call: Call) -> Answer | None:
        """Say whether the period may have another attempt. None: a rerun asks, which has to be judged."""
        return None if call.cause is Cause.RERUN and call.rerun_id else self.check_run_log(call)

    def _why_dormant(self, pipeline: Pipeline, call: Call) -> str:
        if call.cause is Cause.RERUN and self._is_by_hand(call.rerun_id):
            # Judged by itself, with the lock in hand: what is refused is then told as that.
            return ""
        control = self._parts.controls.get(call.pipeline_id)
        refused = refusal(control, call.cause, self._parts.now_ms(), while_paused=call.cause is Cause.BACKFILL)
        if refused or call.cause in (*_BY_HAND, Cause.RERUN):
            return refused
        timetable = self._parts.timetable(pipeline, call.schedule_id)
        return "" if timetable is None else timetable.why_dormant(call.date) or ""

    def _is_by_hand(self, rerun_id: str) -> bool:
        rerun = self._parts.reruns.find(rerun_id) if rerun_id else None
        return rerun is not None and rerun.reason is RerunReason.MANUAL

    def acquire_lock(self, call: Call) -> Answer:
        """Take the lock of the period for as long as the whole pursuit may last."""
        pipeline, _ = self._parts.definitions.newest(call.pipeline_id)
        key = evaluation_key(call.slot)
        held = self._parts.locks.acquire(key, call.execution_name, locks.lifetime_seconds(pipeline))
        if held is None:
            holder = self._parts.locks.find(key)
            whose = "another execution" if holder is None else holder.owner
            return {"result": SKIP, "lockToken": "", "reason": f"{whose} has the lock of {call.slot}"}
        return {"result": PROCEED, "lockToken": held.token}

    def check_run_log(self, call: Call) -> Answer:
        """Say whether the period may have another attempt, and judge the rerun that asked for it."""
        pipeline, _ = self._parts.definitions.newest(call.pipeline_id)
        rerun_id = call.rerun_id
        if call.cause is Cause.RERUN and rerun_id:
            judged = self._judge_rerun(pipeline, call)
            if judged is not None:
                return judged
        applicant = Applicant(cause=call.cause, execution=call.execution_name, is_replay=call.replay, rerun_id=rerun_id)
        admission = admit(self._parts.runs.log(call.slot), applicant, pipeline.retry)
        return {"result": PROCEED if admission.proceeds else SKIP, "reason": admission.reason}

    def _judge_rerun(self, pipeline: Pipeline, call: Call) -> Answer | None:
        """Return the answer for a rerun that is not to be; None: it is accepted."""
        parts = self._parts
        timetable = parts.timetable(pipeline, call.schedule_id)
        sensors = [sensor.data for sensor in parts.sensors.ls(call.pipeline_id)]
        situation = Situation(
            budgets=pipeline.budgets,
            retry=pipeline.retry,
            is_excluded=timetable is not None and timetable.why_dormant(call.date) is not None,
            newest_update_ms=newest_update_ms(sensors),
        )
        judgement = parts.reruns.judge(
            call.rerun_id,
            situation,
            execution=call.execution_name,
            lock_token=call.lock_token,
            also=lambda rerun, _log: _rerun_told(parts, rerun, pipeline),
        )
        return None if judgement.proceeds else {"result": SKIP, "reason": judgement.reason}

    def resolve_pipeline(self, call: Call) -> Answer:
        """Begin a run under the definition as it is now, and say what it needs to go on."""
        parts = self._parts
        pipeline, version = parts.definitions.newest(call.pipeline_id)
        if pipeline.trigger is None and not pipeline.dry_run:
            reason = f"pipeline {pipeline.id} has no trigger"
            told = parts.tells(EventName.PIPELINE_FAILED, call.slot, {"reason": reason})
            parts.runs.close(call.slot, reason, by="lifecycle", also=told)
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
        )
        try:
            run = parts.runs.create(
                start,
                admits=lambda log: admit(log, applicant, pipeline.retry),
                also=lambda run, _log: [*_begun(parts, run), *self._taken_over(run)],
            )
        except (StaleClaimError, IllegalTransitionError) as exc:
            # Skipped, closed or taken over since it was looked at: nothing is to be done, and nothing has failed.
            return {"result": SKIP, "runId": "", "reason": str(exc)}
        return {
            "result": PROCEED,
            "runId": run.run_id,
            "traits": _traits(pipeline),
            "config": lifecycle_config(pipeline),
        }

    def _taken_over(self, run: Run) -> list[Write]:
        """Return the writes that end a rerun whose period another run takes over."""
        log = self._parts.runs.log(run.slot)
        rerun = self._parts.reruns.find(log.rerun_id) if log is not None and log.rerun_id else None
        if rerun is None or rerun.rerun_id == run.rerun_id:
            return []
        return self._parts.reruns.ending_writes(rerun, run_id=run.run_id, is_success=False)

    def release_lock(self, call: Call) -> Answer:
        """Let go of the period's lock: by its token, or of whatever this execution holds."""
        key = evaluation_key(call.slot)
        locks_ = self._parts.locks
        released = (
            locks_.release(key, call.lock_token) if call.lock_token else locks_.release_owned(key, call.execution_name)
        )
        self._let_in(call)
        return {"released": released}

    def _let_in(self, call: Call) -> None:
        """Begin what was asked for while the lock was held, and had to turn away."""
        waiting = self._parts.reruns.pending(call.slot)
        if waiting is not None:
            self._pursue(waiting, f"{call.execution_name}#{call.run_id}")


def _rerun_told(parts: Parts, rerun: Rerun, pipeline: Pipeline) -> list[Write]:
    detail = {"rerun_id": rerun.rerun_id, "reason": rerun.reason.value, "refusal": rerun.decision}
    limit = spent_limit(rerun, pipeline.budgets, pipeline.retry)
    if rerun.status.is_open:
        name = EventName.DRY_RUN_WOULD_RERUN if pipeline.dry_run else EventName.RERUN_ACCEPTED
    else:
        name = EventName.DRY_RUN_RERUN_REJECTED if pipeline.dry_run else EventName.RERUN_REJECTED
    told = parts.tells(name, rerun.slot, detail)
    if limit is not None and not pipeline.dry_run:
        told += parts.tells(EventName.RERUN_CAP_REACHED, rerun.slot, {**detail, "limit": limit})
    return told


def _begun(parts: Parts, run: Run) -> list[Write]:
    detail = {"run_id": run.run_id, "before": NO_RUN, "after": run.status.value, "attempt": run.attempt}
    return parts.tells(EventName.RUN_STATE_CHANGED, run.slot, detail)


def _traits(pipeline: Pipeline) -> list[dict[str, object]]:
    """Return the traits that are to be evaluated; those that are pushed from outside are there or not."""
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


def lifecycle_config(pipeline: Pipeline) -> Answer:
    """Return what the lifecycle needs to know of a definition."""
    readiness, trigger, sla = pipeline.readiness, pipeline.trigger, pipeline.sla
    config: Answer = {
        "evaluationIntervalSeconds": max(1, round(readiness.interval)),
        "evaluationWindowSeconds": round(readiness.window),
        "monitoringIntervalSeconds": max(1, round(pipeline.post_run.monitoring.interval)),
        "jobCheckIntervalSeconds": 30 if trigger is None else max(1, round(trigger.check_interval)),
        "jobPollWindowSeconds": 3_600 if trigger is None else round(trigger.poll_window or 3_600),
    }
    if sla is not None:
        config["sla"] = {
            "deadline": sla.deadline or "",
            "expectedDuration": "" if sla.expected_duration is None else float(sla.expected_duration),
            "maxDuration": "" if sla.max_duration is None else float(sla.max_duration),
            "timezone": sla.timezone or pipeline.timezone,
        }
    return config


def _milliseconds(text: str) -> int | None:
    return round(datetime.fromisoformat(text).timestamp() * 1000) if text else None
