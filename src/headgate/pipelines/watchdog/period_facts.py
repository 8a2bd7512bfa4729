"""Facts of periods: what is known of a period, read for whoever judges what was expected of it."""

from __future__ import annotations

from datetime import UTC, datetime

from headgate.pipelines.context import Parts
from headgate.pipelines.definition.model import Pipeline
from headgate.pipelines.enums import ControlState, ExpectationKind, RunStatus
from headgate.pipelines.rules.rules import compile_post_run
from headgate.pipelines.runs.rows import RunLog, Slot
from headgate.pipelines.sensors import Sensor
from headgate.pipelines.watchdog.expectations import Facts, Pause, facts_of
from headgate.pipelines.watchdog.followups import Watches, WatchKind
from headgate.pipelines.watchdog.verdicts import NOT_STARTED


class PeriodFacts:
    """Reads facts. It reads only what the kind of expectation asks for."""

    def __init__(self, parts: Parts, watches: Watches) -> None:
        self._parts = parts
        self._watches = watches

    def read(self, pipeline: Pipeline, slot: Slot, kind: ExpectationKind) -> Facts:
        """Return what is known of a period, as far as it bears on an expectation of this kind."""
        log = self._parts.runs.log(slot)
        is_evaluation = kind is ExpectationKind.EVALUATION_SLA
        is_post_run = kind is ExpectationKind.POST_RUN_SENSOR
        return facts_of(
            log,
            evaluated_at=_begun_before_history(log),
            ready_at=self._ready_at(slot, log) if is_evaluation else None,
            post_run_sensor_at=self._post_run_sensor_at(pipeline, slot, log) if is_post_run else None,
            dry_run_at=self._dry_run_at(log),
            pauses=self._pauses(pipeline.id),
        )

    def _ready_at(self, slot: Slot, log: RunLog | None) -> datetime | None:
        """Return when the period was first found ready, or its job started."""
        runs = [self._parts.runs.find(attempt.run_id) for attempt in log.history] if log is not None else []
        moments = [run.triggered_at_ms for run in runs if run is not None and run.triggered_at_ms is not None]
        # What was found ready and then held by someone was never started.
        latest = self._parts.evaluations.latest(slot)
        if latest is not None and latest.verdict.may_start:
            moments.append(latest.at_ms)
        return moment_of(min(moments)) if moments else None

    def _post_run_sensor_at(self, pipeline: Pipeline, slot: Slot, log: RunLog | None) -> datetime | None:
        """Return when the first sensor of a post-run rule came after the success, as far as that is known."""
        watch = self._watches.find(slot, WatchKind.POST_RUN)
        if watch is not None and watch.seen_at_ms is not None:
            return moment_of(watch.seen_at_ms)
        if log is None or log.succeeded_at_ms is None:
            return None
        since_ms = log.succeeded_at_ms if watch is None else watch.since_ms
        keys = compile_post_run(pipeline.post_run).needs.sensors
        reading = self._parts.sensors.read(pipeline.id, keys, slot.date)
        came = [came_at_ms(sensor) for sensor in reading.sensors.values()]
        return min((moment_of(at_ms) for at_ms in came if at_ms > since_ms), default=None)

    def _dry_run_at(self, log: RunLog | None) -> datetime | None:
        if log is None or log.status is not RunStatus.CANCELLED or not log.run_id:
            return None
        run = self._parts.runs.find(log.run_id)
        return moment_of(run.created_at_ms) if run is not None and run.is_dry_run else None

    def _pauses(self, pipeline_id: str) -> tuple[Pause, ...]:
        control = self._parts.controls.get(pipeline_id)
        ended = tuple(Pause(moment_of(each.since_ms), moment_of(each.until_ms)) for each in control.pauses)
        if control.state is not ControlState.PAUSED:
            return ended
        until = None if control.until_ms is None else moment_of(control.until_ms)
        return (*ended, Pause(moment_of(control.since_ms), until))


def status_of(facts: Facts) -> str:
    """Return how a period stands, in a word."""
    return NOT_STARTED if facts.status is None or facts.begun_at is None else facts.status.value


def came_at_ms(sensor: Sensor) -> int:
    """Return when a sensor came: when it was said here, or for a row of someone else's what it says itself."""
    return sensor.pushed_at_ms or sensor.updated_at_ms


def moment_of(at_ms: int) -> datetime:
    """Return a moment from milliseconds."""
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def _begun_before_history(log: RunLog | None) -> datetime | None:
    """Return when a period was begun of whose attempts the first are no longer told one by one."""
    if log is None or log.attempts <= len(log.history):
        return None
    return moment_of(log.created_at_ms)
