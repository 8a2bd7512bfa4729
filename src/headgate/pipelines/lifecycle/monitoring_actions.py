"""Monitoring: a run that is done is watched for a while, in case what it was made from changes after all."""

from __future__ import annotations

from headgate.pipelines.context import Parts
from headgate.pipelines.enums import RerunReason, RunStatus
from headgate.pipelines.events.names import EventName
from headgate.pipelines.lifecycle.messages import Answer, Call
from headgate.pipelines.rules.facts import Needs
from headgate.pipelines.rules.readiness import ReadinessResult, readiness_of
from headgate.pipelines.rules.rules import compile_rules, evaluate
from headgate.pipelines.runs.rows import Run
from headgate.store.model.requests import Write


class MonitoringActions:
    """checkDrift, handleLateArrival and checkMonitoringExpired."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def check_drift(self, call: Call) -> Answer:
        """Say whether the traits no longer hold that held when the job was started."""
        parts = self._parts
        run = parts.runs.get(call.run_id)
        pipeline = parts.pipeline_of(run)
        if run.status is not RunStatus.COMPLETED_MONITORING:
            return {"drifted": False}
        now = parts.now()
        facts = parts.facts.gather(pipeline, call.slot, Needs(traits=frozenset(pipeline.readiness.traits)), now)
        verdict = readiness_of(evaluate(compile_rules(()), facts, now), facts.traits, pipeline)
        # An evaluator that cannot be asked says nothing about the data.
        return {"drifted": verdict.result is ReadinessResult.NOT_READY, "reason": verdict.reason}

    def handle_late_arrival(self, call: Call) -> Answer:
        """End the watch, and ask for the period to be done again; the rerun has budgets of its own."""
        parts = self._parts
        run = parts.runs.get(call.run_id)
        if run.status is RunStatus.COMPLETED_MONITORING:
            run = parts.runs.move(run, RunStatus.COMPLETED, lock_token=call.lock_token, also=self._told_drift)
        rerun = parts.reruns.request(
            call.slot,
            RerunReason.DATA_DRIFT,
            by="monitoring",
            note="the traits changed after the run",
            also=lambda asked, _log: parts.tells(
                EventName.RERUN_REQUESTED, asked.slot, {"rerun_id": asked.rerun_id, "reason": asked.reason.value}
            ),
        )
        return {"rerunId": rerun.rerun_id}

    def check_monitoring_expired(self, call: Call) -> Answer:
        """Say whether the watch is over, and end it if so."""
        parts = self._parts
        run = parts.runs.get(call.run_id)
        if run.status is not RunStatus.COMPLETED_MONITORING:
            return {"expired": True}
        if run.monitor_until_ms is not None and parts.now_ms() < run.monitor_until_ms:
            return {"expired": False}
        parts.runs.move(run, RunStatus.COMPLETED, also=self._told_over)
        return {"expired": True}

    def _told_drift(self, run: Run, _log: object) -> list[Write]:
        detail = {"run_id": run.run_id, "trait": "", "reason": "the traits no longer hold"}
        return self._parts.tells(EventName.MONITORING_DRIFT_DETECTED, run.slot, detail)

    def _told_over(self, run: Run, _log: object) -> list[Write]:
        return self._parts.tells(EventName.MONITORING_COMPLETED, run.slot, {"run_id": run.run_id})
