"""Monitoring actions: watch a completed run for changes of its inputs."""

from __future__ import annotations

from typing import Final

from headgate.clock import Clock, epoch_ms
from headgate.pipelines.definition.model import Json, Pipeline
from headgate.pipelines.definition_reader import DefinitionReader
from headgate.pipelines.enums import RerunReason, RunStatus
from headgate.pipelines.event_writer import EventWriter
from headgate.pipelines.events.names import EventName
from headgate.pipelines.lifecycle.messages import Answer, Call
from headgate.pipelines.rules.facts import FactReader, Needs
from headgate.pipelines.rules.readiness import ReadinessResult, ReadinessVerdict, readiness_of
from headgate.pipelines.rules.rules import compile_rules, evaluate
from headgate.pipelines.runs.rows import Run, Slot
from headgate.pipelines.runs.stores import RunStores
from headgate.store.model.requests import Write

_NOTE_CHARS_MAX: Final = 500


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
        verdict = self._verdict(call.slot, pipeline)
        # An evaluator that cannot be reached says nothing about the data.
        return {"drifted": verdict.result is ReadinessResult.NOT_READY, "reason": verdict.reason}

    def _verdict(self, slot: Slot, pipeline: Pipeline) -> ReadinessVerdict:
        now = self._clock.now()
        facts = self._facts.gather(pipeline, slot, Needs(traits=frozenset(pipeline.readiness.traits)), now)
        return readiness_of(evaluate(compile_rules(()), facts, now), facts.traits, pipeline)

    def handle_late_arrival(self, call: Call) -> Answer:
        """End the monitoring and request a rerun, which has its own budget."""
        run = self._stores.runs.get(call.run_id)
        verdict = self._verdict(call.slot, self._definitions.of_run(run))
        if run.status is RunStatus.COMPLETED_MONITORING:
            drift = _drift_detail(run, verdict)
            run = self._stores.runs.move(
                run,
                RunStatus.COMPLETED,
                lock_token=call.lock_token,
                also=self._events.writes(EventName.MONITORING_DRIFT_DETECTED, run.slot, drift),
            )
        rerun = self._stores.reruns.request(
            call.slot,
            RerunReason.DATA_DRIFT,
            by="monitoring",
            note=f"after the run, {_drifted(verdict)[1]}"[:_NOTE_CHARS_MAX],
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

    def _completed_events(self, run: Run, _log: object) -> list[Write]:
        return self._events.writes(EventName.MONITORING_COMPLETED, run.slot, {"run_id": run.run_id})


def _drift_detail(run: Run, verdict: ReadinessVerdict) -> dict[str, Json]:
    traits, reason = _drifted(verdict)
    return {"run_id": run.run_id, "trait": traits, "reason": reason}


def _drifted(verdict: ReadinessVerdict) -> tuple[str, str]:
    """Return the names of the traits that no longer hold, and how."""
    traits = [each for each in verdict.blocking if each.kind == "trait"]
    if not traits:
        # They hold once more since the check; the inputs of the run have changed all the same.
        return "a required one", "a trait did not hold for a while"
    return ", ".join(each.name for each in traits), "; ".join(each.reason for each in traits)
