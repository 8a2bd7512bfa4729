"""Routing: what a change in the table of pipelines means: a run to begin, a waiter to wake, a rerun to judge.

It is told of every change at least once and in the order of each row, so that everything it does can be done twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import structlog
from msgspec.structs import replace

from headgate.errors import CorruptionError
from headgate.pipelines.catalog.rows import stored_of
from headgate.pipelines.context import Parts
from headgate.pipelines.definition.model import Json, Pipeline, Schedule
from headgate.pipelines.enums import Cause, RerunReason, Verdict
from headgate.pipelines.events.names import EventName
from headgate.pipelines.lifecycle.downstream import Downstream
from headgate.pipelines.lifecycle.drift import DryRunNews, RunBaselines, drift_of
from headgate.pipelines.lifecycle.starter import Starter
from headgate.pipelines.readiness.quarantine import quarantined_of
from headgate.pipelines.readiness.waiters import Waiters, WaitKind
from headgate.pipelines.rules.facts import Facts
from headgate.pipelines.rules.rules import compile_post_run, compile_trigger, evaluate
from headgate.pipelines.runs.late_data import Arrival, LateArrival, judge_arrival
from headgate.pipelines.runs.markers import marker_of
from headgate.pipelines.runs.rows import Order, RunLog, Slot, run_log_of
from headgate.pipelines.schedule.periods import own_period, periods_of
from headgate.pipelines.schedule.sensor_periods import is_key_of
from headgate.pipelines.schedule.sla import trigger_deadline
from headgate.pipelines.schedule.timetables import schedule_id_of
from headgate.pipelines.sensors import Sensor, sensor_of
from headgate.store.model.requests import Change

_PIPELINE: Final = "PIPELINE#"
_log = structlog.get_logger(__name__)


class Router:
    """Hears of changes and acts on them."""

    def __init__(
        self,
        parts: Parts,
        starter: Starter,
        waiters: Waiters,
        downstream: Downstream,
        *,
        follow: Callable[[Iterable[str]], None] = lambda _types: None,
    ) -> None:
        """Take `follow`, which is told the types of events that a definition names, or named."""
        self._parts = parts
        self._starter = starter
        self._waiters = waiters
        self._downstream = downstream
        self._follow = follow
        self._baselines = RunBaselines(parts)
        self._dry_runs = DryRunNews(parts)
        self._routes: Mapping[str, Callable[[str, Mapping[str, Any], Change], None]] = {
            "SENSOR#": self._sensor,
            "TRAIT#": self._trait,
            "RERUN_REQUEST#": self._rerun,
            "RUNLOG#": self._run_log,
            "QUARANTINE#": self._quarantine,
            "JOB#": self._job,
        }

    def hear(self, change: Change) -> None:
        """Act on a change. A row that was deleted, or has expired, asks for nothing; nor does one that is none."""
        item = change.new
        try:
            if str(change.key.sort) == "CONFIG":
                self._config(change)
            elif item is not None:
                self._route(item, change)
        except CorruptionError as exc:
            # It will not make sense the next time either, and must not hold up what comes after it.
            _log.error("row passed over", action="router", key=str(change.key), error=str(exc))

    def _route(self, item: Mapping[str, Any], change: Change) -> None:
        partition, sort = str(item["PK"]), str(item["SK"])
        if partition.startswith("MARKER#"):
            self._marker(item)
            return
        if not partition.startswith(_PIPELINE):
            return
        for prefix, route in self._routes.items():
            if sort.startswith(prefix):
                route(partition.removeprefix(_PIPELINE), item, change)
                return

    def _config(self, change: Change) -> None:
        """Hear of the events that begin the pipeline from now on, and of no others."""
        types: set[str] = set()
        for item in (change.old, change.new):
            if item is None:
                continue
            try:
                types |= {each.event for each in stored_of(item).pipeline.schedules if each.event is not None}
            except CorruptionError:
                # It is reported where definitions are listed; what is wrong with one row says nothing of the other.
                continue
        self._follow(types)

    def _marker(self, item: Mapping[str, Any]) -> None:
        marker = marker_of(item)
        if self._starter.knows(marker.pipeline_id) is None:
            return
        cause = Cause.UPSTREAM if marker.source.startswith("cascade:") else Cause.MARKER
        token = "" if marker.version <= 1 else str(marker.version)
        not_before_ms = marker.data.get("notBeforeMs")
        wait_ms = not_before_ms - self._parts.now_ms() if isinstance(not_before_ms, int) else 0
        self._starter.pursue(marker.slot, cause, token=token, by=marker.by, delay_seconds=max(0.0, wait_ms / 1000))

    def _trait(self, pipeline_id: str, item: Mapping[str, Any], change: Change) -> None:
        del item, change
        self._waiters.wake_all(pipeline_id, WaitKind.CHANGE, "a trait has changed")

    def _sensor(self, pipeline_id: str, item: Mapping[str, Any], change: Change) -> None:
        sensor = sensor_of(item)
        if sensor.is_copy:
            return
        # Others put rows with nothing but their data: the change itself says when, and tells one from another.
        # A version begins anew when the row was deleted, so that it does not tell wishes apart by itself.
        token = f"{sensor.version}.{sensor.changed_at_ms}" if sensor.version else change.id
        if not sensor.changed_at_ms:
            sensor = replace(sensor, changed_at_ms=round(change.at_seconds * 1000))
        pipeline = self._starter.knows(pipeline_id)
        if pipeline is None:
            return
        self._waiters.wake_all(pipeline_id, WaitKind.CHANGE, f"sensor {sensor.full_key} has changed")
        for schedule in pipeline.schedules:
            trigger = schedule.sensor
            if trigger is not None and is_key_of(sensor.key, trigger.key):
                self._triggered(pipeline, schedule, sensor, token)
        if any(is_key_of(sensor.key, rule.key) for rule in pipeline.post_run.rules if rule.key is not None):
            self._post_run(pipeline, sensor, token)

    def _triggered(self, pipeline: Pipeline, schedule: Schedule, sensor: Sensor, token: str) -> None:
        """Begin the period that a sensor speaks of, if it meets the condition; if that is done, the data is late."""
        assert schedule.sensor is not None, "the caller has looked"
        parts = self._parts
        compiled = compile_trigger(schedule.sensor)
        facts = Facts(sensors={schedule.sensor.key: sensor})
        if evaluate(compiled, facts, parts.now()).verdict is not Verdict.PASS:
            return
        slot = Slot(pipeline.id, schedule_id_of(schedule), self._date(pipeline, schedule, sensor))
        timetable = parts.timetable(pipeline, slot.schedule_id)
        closes_at = None if timetable is None else trigger_deadline(timetable, slot.date)
        if closes_at is not None and parts.now() >= closes_at:
            return
        log = parts.runs.log(slot)
        if pipeline.dry_run and log is not None and self._dry_runs.was_one(log):
            if sensor.changed_at_ms > (log.begun_at_ms or 0):
                self._dry_runs.late(log, sensor, token)
            return
        if judge_arrival(log, sensor.changed_at_ms) is Arrival.LATE:
            self._late(slot, sensor, log)
            return
        arrived_at = parts.now().isoformat() if not sensor.changed_at_ms else _iso(sensor.changed_at_ms)
        self._starter.pursue(slot, Cause.SENSOR, token=token, arrived_at=arrived_at)

    def _date(self, pipeline: Pipeline, schedule: Schedule, sensor: Sensor) -> str:
        """Return the period that a sensor speaks of: its own, ours that its own lies in, or that in which it came."""
        periods = periods_of(pipeline, schedule)
        if sensor.period is None:
            # When it came, and not when it is heard of: that may be after midnight.
            return periods.at(datetime.fromtimestamp(sensor.changed_at_ms / 1000, UTC))
        return own_period(periods, sensor.period)

    def _late(self, slot: Slot, sensor: Sensor, log: RunLog | None) -> None:
        parts = self._parts
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
        # Asked for first: who dies in between asks again, and gets the request that waits.
        self._ask_again(slot, RerunReason.LATE_DATA, f"sensor {sensor.full_key} came after the run")
        parts.late_data.note(arrival, also=parts.tells(EventName.LATE_DATA_ARRIVAL, slot, detail))

    def _post_run(self, pipeline: Pipeline, sensor: Sensor, token: str) -> None:
        """Compare a sensor that comes after the run with what it was at its end."""
        parts = self._parts
        current = self._parts.sensors.get(
            pipeline.id, sensor.key, period=sensor.period if sensor.is_of_period else None
        )
        if current is not None and current.changed_at_ms > sensor.changed_at_ms:
            # Told once more after it was overtaken: what it said is not so any more.
            return
        for schedule in pipeline.schedules:
            slot = Slot(pipeline.id, schedule_id_of(schedule), self._date(pipeline, schedule, sensor))
            log = parts.runs.log(slot)
            is_dry = pipeline.dry_run and self._dry_runs.was_one(log)
            if log is None or not (log.is_live or log.status.is_done or is_dry):
                continue
            drift = drift_of(self._baselines.find(slot), sensor.key, sensor.data, pipeline.post_run)
            if drift is None:
                if log.succeeded_at_ms is not None and sensor.changed_at_ms > log.succeeded_at_ms:
                    self._judge_post_run(pipeline, slot, log, f"post-run#{slot}#{sensor.full_key}#{token}")
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
                parts.tell_once(f"{once}#inflight", EventName.POST_RUN_DRIFT_INFLIGHT, slot, **detail)
                continue
            if not parts.tell_once(once, EventName.POST_RUN_DRIFT, slot, **detail):
                continue
            self._ask_again(slot, RerunReason.DATA_DRIFT, f"{sensor.key}.{drift.field} moved by {drift.delta}")

    def _judge_post_run(self, pipeline: Pipeline, slot: Slot, log: RunLog, once: str) -> None:
        """Say whether what a run has made holds, now that a sensor speaks of it."""
        if not log.status.is_done:
            return
        parts = self._parts
        compiled = compile_post_run(pipeline.post_run)
        facts = parts.facts.gather(pipeline, slot, compiled.needs, parts.now())
        evaluation = evaluate(compiled, facts, parts.now())
        if evaluation.verdict is Verdict.UNKNOWN:
            return
        is_passed = evaluation.verdict is Verdict.PASS
        failed = [result.reason for result in evaluation.counted if result.verdict is not Verdict.PASS]
        name = EventName.POST_RUN_PASSED if is_passed else EventName.POST_RUN_FAILED
        parts.tell_once(once, name, slot, run_id=log.succeeded_run_id, rule="; ".join(failed))

    def _ask_again(self, slot: Slot, reason: RerunReason, note: str) -> None:
        parts = self._parts
        parts.reruns.request(
            slot,
            reason,
            by="headgate",
            note=note,
            also=lambda asked, _log: parts.tells(
                EventName.RERUN_REQUESTED, asked.slot, {"rerun_id": asked.rerun_id, "reason": asked.reason.value}
            ),
        )

    def _rerun(self, pipeline_id: str, item: Mapping[str, Any], change: Change) -> None:
        del change
        schedule_id, _, date = str(item["SK"]).removeprefix("RERUN_REQUEST#").partition("#")
        slot = Slot(pipeline_id, schedule_id, date)
        rerun = self._parts.reruns.adopt(slot, item)
        if rerun.status.is_open and self._starter.knows(pipeline_id) is not None:
            self._starter.pursue_rerun(rerun)

    def _job(self, pipeline_id: str, item: Mapping[str, Any], change: Change) -> None:
        """Say what would follow a failure that others report of a pipeline which is on a dry run."""
        if change.old is not None:
            return
        pipeline = self._starter.knows(pipeline_id)
        schedule_id, _, rest = str(item["SK"]).removeprefix("JOB#").partition("#")
        date, _, at = rest.partition("#")
        if pipeline is not None and pipeline.dry_run and at:
            self._dry_runs.failed(Slot(pipeline_id, schedule_id, date), item, pipeline.retry)

    def _quarantine(self, pipeline_id: str, item: Mapping[str, Any], change: Change) -> None:
        """Tell that records were put aside, or are no longer, whoever wrote that down."""
        pipeline = self._starter.knows(pipeline_id)
        if pipeline is None:
            return
        record = quarantined_of(item)
        before = 0 if change.old is None else quarantined_of(change.old).count
        slot = Slot(pipeline_id, "", own_period(periods_of(pipeline), record.period))
        once = f"quarantine#{change.id}"
        if record.count:
            detail: dict[str, Json] = {"count": record.count, "path": record.path, "reasons": list(record.reasons)}
            self._parts.tell_once(once, EventName.DATA_QUARANTINED, slot, **detail)
        elif before:
            self._parts.tell_once(once, EventName.QUARANTINE_CLEARED, slot)
        self._waiters.wake_all(pipeline_id, WaitKind.CHANGE, f"the quarantine of {slot.date} has changed")

    def _run_log(self, pipeline_id: str, item: Mapping[str, Any], change: Change) -> None:
        """Wake those who wait for this period, whatever became of it; what someone took for done begins others too."""
        log = run_log_of(item)
        if not (log.status.is_terminal or log.status.is_done):
            return
        is_news = change.old is None or not run_log_of(change.old).status.is_done
        pipeline = self._starter.knows(pipeline_id)
        if is_news and pipeline is not None and log.status.is_done and _is_marked(log):
            self._downstream.done(log.slot, pipeline)
        for concerned in self._downstream.concerned(log.slot):
            self._waiters.wake_all(concerned.pipeline.id, WaitKind.CHANGE, f"{log.slot} is {log.status.value}")


def _is_marked(log: RunLog) -> bool:
    return log.order is not None and log.order.order is Order.MARK_SUCCESS


def _iso(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat()
