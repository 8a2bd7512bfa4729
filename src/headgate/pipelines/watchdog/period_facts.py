"""Period fact reader: collects the facts about a period that expectations are judged by."""

from __future__ import annotations

from datetime import UTC, datetime

from headgate.pipelines.definition.model import Pipeline
from headgate.pipelines.enums import ControlState, ExpectationKind, RunStatus
from headgate.pipelines.readiness.evaluation_log import Evaluations
from headgate.pipelines.rules.rules import compile_post_run
from headgate.pipelines.runs.rows import RunLog, Slot
from headgate.pipelines.runs.stores import RunStores
from headgate.pipelines.sensors import Sensor, Sensors
from headgate.pipelines.watchdog.expectations import ExpectationFacts, Pause, facts_of
from headgate.pipelines.watchdog.followups import FollowupKind, Followups
from headgate.pipelines.watchdog.verdicts import NOT_STARTED


class PeriodFactReader:
    """Reads the facts that a kind of expectation needs, and no others."""

    def __init__(self, stores: RunStores, sensors: Sensors, evaluations: Evaluations, followups: Followups) -> None:
        self._stores = stores
        self._sensors = sensors
        self._evaluations = evaluations
        self._followups = followups

    def read(self, pipeline: Pipeline, slot: Slot, kind: ExpectationKind) -> ExpectationFacts:
        """Return the facts about a period for an expectation of this kind."""
        log = self._stores.runs.log(slot)
        is_evaluation = kind is ExpectationKind.EVALUATION_SLA
        is_post_run = kind is ExpectationKind.POST_RUN_SENSOR
        return facts_of(
            log,
            evaluated_at=_started_before_history(log),
            ready_at=self._ready_at(slot, log) if is_evaluation else None,
            post_run_sensor_at=self._post_run_sensor_at(pipeline, slot, log) if is_post_run else None,
            dry_run_at=self._dry_run_at(log),
            pauses=self._pauses(pipeline.id),
        )

    def _ready_at(self, slot: Slot, log: RunLog | None) -> datetime | None:
        """Return when the period first became ready, or its job started."""
        runs = [self._stores.runs.find(attempt.run_id) for attempt in log.history] if log is not None else []
        moments = [run.triggered_at_ms for run in runs if run is not None and run.triggered_at_ms is not None]
        # A period that was ready and then held has no started run.
        latest = self._evaluations.latest(slot)
        if latest is not None and latest.verdict.may_start:
            moments.append(latest.at_ms)
        return moment_of(min(moments)) if moments else None

    def _post_run_sensor_at(self, pipeline: Pipeline, slot: Slot, log: RunLog | None) -> datetime | None:
        """Return when the first post-run sensor arrived after the success, if known."""
        followup = self._followups.find(slot, FollowupKind.POST_RUN)
        if followup is not None and followup.seen_at_ms is not None:
            return moment_of(followup.seen_at_ms)
        if log is None or log.succeeded_at_ms is None:
            return None
        since_ms = log.succeeded_at_ms if followup is None else followup.since_ms
        keys = compile_post_run(pipeline.post_run).needs.sensors
        reading = self._sensors.read(pipeline.id, keys, slot.date)
        arrivals = [arrived_at_ms(sensor) for sensor in reading.sensors.values()]
        return min((moment_of(at_ms) for at_ms in arrivals if at_ms > since_ms), default=None)

    def _dry_run_at(self, log: RunLog | None) -> datetime | None:
        if log is None or log.status is not RunStatus.CANCELLED or not log.run_id:
            return None
        run = self._stores.runs.find(log.run_id)
        return moment_of(run.created_at_ms) if run is not None and run.is_dry_run else None

    def _pauses(self, pipeline_id: str) -> tuple[Pause, ...]:
        control = self._stores.controls.get(pipeline_id)
        ended = tuple(Pause(moment_of(each.since_ms), moment_of(each.until_ms)) for each in control.pauses)
        if control.state is not ControlState.PAUSED:
            return ended
        until = None if control.until_ms is None else moment_of(control.until_ms)
        return (*ended, Pause(moment_of(control.since_ms), until))


def status_of(facts: ExpectationFacts) -> str:
    """Return the status of a period as text."""
    return NOT_STARTED if facts.status is None or facts.begun_at is None else facts.status.value


def arrived_at_ms(sensor: Sensor) -> int:
    """Return when a sensor arrived: its push time, or the update time that a foreign row states."""
    return sensor.pushed_at_ms or sensor.updated_at_ms


def moment_of(at_ms: int) -> datetime:
    """Convert milliseconds to a datetime."""
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def _started_before_history(log: RunLog | None) -> datetime | None:
    """Return the start of a period whose first attempts were dropped from the history."""
    if log is None or log.attempts <= len(log.history):
        return None
    return moment_of(log.created_at_ms)
