"""Monitoring actions: watch a completed run for changes of its inputs."""

from __future__ import annotations

from headgate.clock import Clock, epoch_ms
from headgate.pipelines.definition_reader import DefinitionReader
from headgate.pipelines.enums import RerunReason, RunStatus
from headgate.pipelines.event_writer import EventWriter
from headgate.pipelines.events.names import EventName
from headgate.pipelines.lifecycle.messages import Answer, Call
from headgate.pipelines.rules.facts import FactReader, Needs
from headgate.pipelines.rules.readiness import ReadinessResult, readiness_of
from headgate.pipelines.rules.rules import compile_rules, evaluate
from headgate.pipelines.runs.rows import Run
from headgate.pipelines.runs.stores import RunStores
from headgate.store.model.requests import Write


class MonitoringActions:
    """The actions checkDrift, handleLateArrival and checkMonitoringExpired."""

    def __init__(
        self, stores: RunStores, definitions: DefinitionReader, facts: FactReader, events: EventWriter, clock: Clock
    ) -> None:
        self._stores = stores
        self._definitions = definitions
        self._facts = facts
        self._events = events
        self._clock = clock

    def check_drift(self, call: Call) -> Answer:
        """Check whether the traits that held when the job started still hold."""
        run = self._stores.runs.get(call.run_id)
        pipeline = self._definitions.of_run(run)
        if run.status is not RunStatus.COMPLETED_MONITORING:
            return {"drifted": False}
        now = self._clock.now()
        facts = self._facts.gather(pipeline, call.slot, Needs(traits=frozenset(pipeline.readiness.traits)), now)
        verdict = readiness_of(evaluate(compile_rules(()), facts, now), facts.traits, pipeline)
        # An evaluator that cannot be reached says nothing about the data.
        return {"drifted": verdict.result is ReadinessResult.NOT_READY, "reason": verdict.reason}

    def handle_late_arrival(self, call: Call) -> Answer:
        """End the monitoring and request a rerun, which has its own budget."""
        run = self._stores.runs.get(call.run_id)
        if run.status is RunStatus.COMPLETED_MONITORING:
            run = self._stores.runs.move(run, RunStatus.COMPLETED, lock_token=call.lock_token, also=self._drift_events)
        rerun = self._stores.reruns.request(
            call.slot,
            RerunReason.DATA_DRIFT,
            by="monitoring",
            note="the traits changed after the run",
            also=lambda rerun, _log: self._events.writes(
                EventName.RERUN_REQUESTED, rerun.slot, {"rerun_id": rerun.rerun_id, "reason": rerun.reason.value}
            ),
        )
        return {"rerunId": rerun.rerun_id}

    def check_monitoring_expired(self, call: Call) -> Answer:
        """End the monitoring if its time is over, and return whether it is."""
        run = self._stores.runs.get(call.run_id)
        if run.status is not RunStatus.COMPLETED_MONITORING:
            return {"expired": True}
        if run.monitor_until_ms is not None and epoch_ms(self._clock) < run.monitor_until_ms:
            return {"expired": False}
        self._stores.runs.move(run, RunStatus.COMPLETED, also=self._completed_events)
        return {"expired": True}

    def _drift_events(self, run: Run, _log: object) -> list[Write]:
        detail = {"run_id": run.run_id, "trait": "", "reason": "the traits no longer hold"}
        return self._events.writes(EventName.MONITORING_DRIFT_DETECTED, run.slot, detail)

    def _completed_events(self, run: Run, _log: object) -> list[Write]:
        return self._events.writes(EventName.MONITORING_COMPLETED, run.slot, {"run_id": run.run_id})
