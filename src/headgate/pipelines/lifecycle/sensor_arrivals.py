"""Sensor arrivals: a changed sensor starts its period, counts as late data, or shows drift after a run."""

from __future__ import annotations

from datetime import UTC, datetime

from headgate.clock import Clock
from headgate.pipelines.definition.model import Pipeline, Schedule
from headgate.pipelines.definition_reader import DefinitionReader
from headgate.pipelines.enums import Cause, RerunReason, Verdict
from headgate.pipelines.event_writer import EventWriter
from headgate.pipelines.events.names import EventName
from headgate.pipelines.lifecycle.drift import DryRunEvents, RunBaselines, drift_of
from headgate.pipelines.lifecycle.starter import LifecycleStarter
from headgate.pipelines.rules.facts import FactReader, Facts
from headgate.pipelines.rules.rules import compile_post_run, compile_trigger, evaluate
from headgate.pipelines.runs.late_data import Arrival, LateArrival, judge_arrival
from headgate.pipelines.runs.rows import RunLog, Slot
from headgate.pipelines.runs.stores import RunStores
from headgate.pipelines.schedule.periods import own_period, periods_of
from headgate.pipelines.schedule.sensor_periods import is_key_of
from headgate.pipelines.schedule.sla import trigger_deadline
from headgate.pipelines.schedule.timetables import schedule_id_of
from headgate.pipelines.sensors import Sensor, Sensors


class SensorArrivals:
    """Acts on changed sensors."""

    def __init__(
        self,
        stores: RunStores,
        definitions: DefinitionReader,
        sensors: Sensors,
        facts: FactReader,
        events: EventWriter,
        clock: Clock,
        starter: LifecycleStarter,
        baselines: RunBaselines,
        dry_runs: DryRunEvents,
    ) -> None:
        self._stores = stores
        self._definitions = definitions
        self._sensors = sensors
        self._facts = facts
        self._events = events
        self._clock = clock
        self._starter = starter
        self._baselines = baselines
        self._dry_runs = dry_runs

    def on_sensor(self, pipeline: Pipeline, sensor: Sensor, token: str) -> None:
        """Act on a changed sensor. `token` identifies the change."""
        for schedule in pipeline.schedules:
            trigger = schedule.sensor
            if trigger is not None and is_key_of(sensor.key, trigger.key):
                self._start_or_record_late(pipeline, schedule, sensor, token)
        if any(is_key_of(sensor.key, rule.key) for rule in pipeline.post_run.rules if rule.key is not None):
            self._check_drift(pipeline, sensor, token)

    def _start_or_record_late(self, pipeline: Pipeline, schedule: Schedule, sensor: Sensor, token: str) -> None:
        """Start the period of a sensor that meets its condition; if the period is done, the data is late."""
        assert schedule.sensor is not None, "the caller has checked"
        compiled = compile_trigger(schedule.sensor)
        facts = Facts(sensors={schedule.sensor.key: sensor})
        if evaluate(compiled, facts, self._clock.now()).verdict is not Verdict.PASS:
            return
        slot = Slot(pipeline.id, schedule_id_of(schedule), self._date(pipeline, schedule, sensor))
        timetable = self._definitions.timetable(pipeline, slot.schedule_id)
        closes_at = None if timetable is None else trigger_deadline(timetable, slot.date)
        if closes_at is not None and self._clock.now() >= closes_at:
            return
        log = self._stores.runs.log(slot)
        if pipeline.dry_run and log is not None and self._dry_runs.is_dry_run(log):
            if sensor.changed_at_ms > (log.begun_at_ms or 0):
                self._dry_runs.late_data(log, sensor, token)
            return
        if judge_arrival(log, sensor.changed_at_ms) is Arrival.LATE:
            self._record_late(slot, sensor, log)
            return
        arrived_at = self._clock.now().isoformat() if not sensor.changed_at_ms else _iso(sensor.changed_at_ms)
        self._starter.start_run(slot, Cause.SENSOR, token=token, arrived_at=arrived_at)

    def _date(self, pipeline: Pipeline, schedule: Schedule, sensor: Sensor) -> str:
        """Return the period of a sensor: its own, ours that contains it, or the one in which it arrived."""
        periods = periods_of(pipeline, schedule)
        if sensor.period is None:
            # The arrival counts, not the time of processing, which may be after midnight.
            return periods.at(datetime.fromtimestamp(sensor.changed_at_ms / 1000, UTC))
        return own_period(periods, sensor.period)

    def _record_late(self, slot: Slot, sensor: Sensor, log: RunLog | None) -> None:
        arrival = LateArrival(
            **slot._asdict(),
            sensor_key=sensor.full_key,
            sensor_version=sensor.version,
            at_ms=sensor.changed_at_ms,
            run_id="" if log is None else log.succeeded_run_id,
            late_by_ms=0 if log is None or log.succeeded_at_ms is None else sensor.changed_at_ms - log.succeeded_at_ms,
        )
        detail = {
            "sensor_key": sensor.full_key,
            "run_id": arrival.run_id,
            "late_by_seconds": arrival.late_by_ms / 1000,
        }
        # Requested first: after a crash in between, a repeated request returns the pending one.
        self._request_rerun(slot, RerunReason.LATE_DATA, f"sensor {sensor.full_key} came after the run")
        self._stores.late_data.note(arrival, also=self._events.writes(EventName.LATE_DATA_ARRIVAL, slot, detail))

    def _check_drift(self, pipeline: Pipeline, sensor: Sensor, token: str) -> None:
        """Compare a sensor that changes after a run with its baseline."""
        current = self._sensors.get(pipeline.id, sensor.key, period=sensor.period if sensor.is_of_period else None)
        if current is not None and current.changed_at_ms > sensor.changed_at_ms:
            # A newer value has replaced this one: the redelivered change is obsolete.
            return
        for schedule in pipeline.schedules:
            slot = Slot(pipeline.id, schedule_id_of(schedule), self._date(pipeline, schedule, sensor))
            log = self._stores.runs.log(slot)
            is_dry = pipeline.dry_run and self._dry_runs.is_dry_run(log)
            if log is None or not (log.is_live or log.status.is_done or is_dry):
                continue
            drift = drift_of(self._baselines.find(slot), sensor.key, sensor.data, pipeline.post_run)
            if drift is None:
                if log.succeeded_at_ms is not None and sensor.changed_at_ms > log.succeeded_at_ms:
                    self._evaluate_post_run(pipeline, slot, log, f"post-run#{slot}#{sensor.full_key}#{token}")
                continue
            detail = {
                "sensor_key": sensor.key,
                "field": drift.field,
                "previous": drift.previous,
                "current": drift.current,
                "delta": drift.delta,
                "threshold": drift.threshold,
            }
            once = f"drift#{slot}#{sensor.full_key}#{token}"
            if is_dry:
                self._dry_runs.drifted(slot, drift, once)
                continue
            if not log.status.is_done:
                self._events.publish_once(f"{once}#inflight", EventName.POST_RUN_DRIFT_INFLIGHT, slot, **detail)
                continue
            if not self._events.publish_once(once, EventName.POST_RUN_DRIFT, slot, **detail):
                continue
            self._request_rerun(slot, RerunReason.DATA_DRIFT, f"{sensor.key}.{drift.field} moved by {drift.delta}")

    def _evaluate_post_run(self, pipeline: Pipeline, slot: Slot, log: RunLog, once: str) -> None:
        """Evaluate the post-run rules of a completed run, and publish the result."""
        if not log.status.is_done:
            return
        compiled = compile_post_run(pipeline.post_run)
        facts = self._facts.gather(pipeline, slot, compiled.needs, self._clock.now())
        evaluation = evaluate(compiled, facts, self._clock.now())
        if evaluation.verdict is Verdict.UNKNOWN:
            return
        is_passed = evaluation.verdict is Verdict.PASS
        failed = [result.reason for result in evaluation.counted if result.verdict is not Verdict.PASS]
        name = EventName.POST_RUN_PASSED if is_passed else EventName.POST_RUN_FAILED
        self._events.publish_once(once, name, slot, run_id=log.succeeded_run_id, rule="; ".join(failed))

    def _request_rerun(self, slot: Slot, reason: RerunReason, note: str) -> None:
        self._stores.reruns.request(
            slot,
            reason,
            by="headgate",
            note=note,
            also=lambda rerun, _log: self._events.writes(
                EventName.RERUN_REQUESTED, rerun.slot, {"rerun_id": rerun.rerun_id, "reason": rerun.reason.value}
            ),
        )


def _iso(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat()
