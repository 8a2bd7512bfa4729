"""Change router: turns changes of the pipelines table into runs to start, waiters to wake and reruns to decide.

Changes arrive at least once and in order for each row, so every action is idempotent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import structlog
from msgspec.structs import replace

from headgate.clock import Clock, epoch_ms
from headgate.errors import CorruptionError, UserError
from headgate.pipelines.catalog.rows import stored_of
from headgate.pipelines.definition.model import Json, Period
from headgate.pipelines.enums import Cause
from headgate.pipelines.event_writer import EventWriter
from headgate.pipelines.events.names import EventName
from headgate.pipelines.lifecycle.downstream import DownstreamNotifier
from headgate.pipelines.lifecycle.drift import DryRunEvents
from headgate.pipelines.lifecycle.pool_admission import PoolAdmission
from headgate.pipelines.lifecycle.sensor_arrivals import SensorArrivals
from headgate.pipelines.lifecycle.starter import LifecycleStarter
from headgate.pipelines.readiness.quarantine import gained_expiry_only, quarantined_of
from headgate.pipelines.readiness.waiters import Waiters, WaitKind
from headgate.pipelines.runs.markers import Marker, marker_of
from headgate.pipelines.runs.reruns import Reruns
from headgate.pipelines.runs.rows import Order, RunLog, Slot, run_log_of
from headgate.pipelines.schedule.periods import Periods, own_period, parse, periods_of
from headgate.pipelines.schedule.sensor_periods import period_text
from headgate.pipelines.schedule.timetables import schedule_id_of
from headgate.pipelines.sensors import PROBE_PREFIX, Sensor, data_of, sensor_of
from headgate.store.model.requests import Change
from headgate.telemetry import continued

_PIPELINE: Final = "PIPELINE#"
_log = structlog.get_logger(__name__)


class ChangeRouter:
    """Acts on changes of the pipelines table."""

    def __init__(  # noqa: PLR0913 - a router knows what it routes to
        self,
        reruns: Reruns,
        events: EventWriter,
        clock: Clock,
        starter: LifecycleStarter,
        waiters: Waiters,
        downstream: DownstreamNotifier,
        arrivals: SensorArrivals,
        dry_runs: DryRunEvents,
        pools: PoolAdmission,
        *,
        follow: Callable[[Iterable[str]], None],
        readers: Callable[[str], Sequence[str]],
    ) -> None:
        """`follow` receives the event types that a changed definition names or named.

        `readers` returns the ids of the pipelines that read a probe.
        """
        self._reruns = reruns
        self._events = events
        self._clock = clock
        self._starter = starter
        self._waiters = waiters
        self._downstream = downstream
        self._arrivals = arrivals
        self._dry_runs = dry_runs
        self._pools = pools
        self._follow = follow
        self._readers = readers
        self._routes: Mapping[str, Callable[[str, Mapping[str, Any], Change], None]] = {
            "SENSOR#": self._sensor,
            "TRAIT#": self._trait,
            "RERUN_REQUEST#": self._rerun,
            "RUNLOG#": self._run_log,
            "QUARANTINE#": self._quarantine,
            "JOB#": self._job,
            "RUN#": self._run,
        }

    def on_change(self, change: Change) -> None:
        """Act on a change. Deleted, expired and foreign rows cause nothing."""
        item = change.new
        try:
            if str(change.key.sort) == "CONFIG":
                self._config(change)
            elif item is not None:
                with continued(str(item.get("traceparent", ""))):
                    self._route(item, change)
        except CorruptionError as exc:
            # A retry would fail too, and the row must not block the changes after it.
            _log.error("corrupt row skipped", action="router", key=str(change.key), error=str(exc))

    def _route(self, item: Mapping[str, Any], change: Change) -> None:
        partition, sort = str(item["PK"]), str(item["SK"])
        if partition.startswith("MARKER#"):
            self._marker(item, change)
            return
        if partition.startswith("POOL#"):
            self._pools.on_pool_changed(change)
            return
        if not partition.startswith(_PIPELINE):
            return
        for prefix, route in self._routes.items():
            if sort.startswith(prefix):
                route(partition.removeprefix(_PIPELINE), item, change)
                return

    def _config(self, change: Change) -> None:
        """Pass on the event types that start the pipeline, before and after the change."""
        types: set[str] = set()
        for item in (change.old, change.new):
            if item is None:
                continue
            try:
                types |= {each.event for each in stored_of(item).pipeline.schedules if each.event is not None}
            except CorruptionError:
                # The list of definitions reports a corrupt row; the other of the two may be readable.
                continue
        self._follow(types)

    def _marker(self, item: Mapping[str, Any], change: Change) -> None:
        marker = marker_of(item)
        pipeline = self._starter.find_pipeline(marker.pipeline_id)
        if pipeline is None:
            _log.warning("marker of an unknown pipeline skipped", pipeline=marker.pipeline_id, key=str(change.key))
            return
        schedule = next((each for each in pipeline.schedules if schedule_id_of(each) == marker.schedule_id), None)
        try:
            date = _marker_date(periods_of(pipeline, schedule), marker, change.at_seconds)
        except UserError as exc:
            _log.warning("marker refused", pipeline=pipeline.id, key=str(change.key), reason=str(exc))
            slot = Slot(pipeline.id, marker.schedule_id, "")
            detail: dict[str, Json] = {"marker": str(change.key.sort), "reason": str(exc)}
            self._events.publish_once(f"marker#{change.id}", EventName.MARKER_REFUSED, slot, **detail)
            return
        cause = Cause.UPSTREAM if marker.source.startswith("cascade:") else Cause.MARKER
        token = "" if marker.version <= 1 else str(marker.version)
        not_before_ms = marker.data.get("notBeforeMs")
        wait_ms = not_before_ms - epoch_ms(self._clock) if isinstance(not_before_ms, int) else 0
        slot = Slot(pipeline.id, marker.schedule_id, date)
        self._starter.start_run(slot, cause, token=token, by=marker.by, delay_seconds=max(0.0, wait_ms / 1000))

    def _trait(self, pipeline_id: str, item: Mapping[str, Any], change: Change) -> None:
        del item, change
        self._waiters.wake_all(pipeline_id, WaitKind.CHANGE, "a trait has changed")

    def _sensor(self, pipeline_id: str, item: Mapping[str, Any], change: Change) -> None:
        sensor = sensor_of(item)
        if sensor.is_copy:
            return
        if sensor.key.startswith(PROBE_PREFIX):
            if change.old is not None and data_of(change.old) == data_of(item):
                # Seen again without a change.
                return
            for reader in self._readers(sensor.key):
                self._arrived(reader, sensor, change)
            return
        self._arrived(pipeline_id, sensor, change)

    def _arrived(self, pipeline_id: str, sensor: Sensor, change: Change) -> None:
        """Wake the runs of a pipeline that may wait for a sensor, and start or check what it concerns."""
        # Rows from other programs may hold only data: the change then supplies time and token. A version restarts when
        # the row was deleted, so the token includes the time.
        token = f"{sensor.version}.{sensor.changed_at_ms}" if sensor.version else change.id
        if not sensor.changed_at_ms:
            sensor = replace(sensor, changed_at_ms=round(change.at_seconds * 1000))
        pipeline = self._starter.find_pipeline(pipeline_id)
        if pipeline is None:
            return
        self._waiters.wake_all(pipeline_id, WaitKind.CHANGE, f"sensor {sensor.full_key} has changed")
        self._arrivals.on_sensor(pipeline, sensor, token)

    def _rerun(self, pipeline_id: str, item: Mapping[str, Any], change: Change) -> None:
        del change
        schedule_id, _, date = str(item["SK"]).removeprefix("RERUN_REQUEST#").partition("#")
        slot = Slot(pipeline_id, schedule_id, date)
        rerun = self._reruns.adopt(slot, item)
        if rerun.status.is_open and self._starter.find_pipeline(pipeline_id) is not None:
            self._starter.start_rerun(rerun)

    def _job(self, pipeline_id: str, item: Mapping[str, Any], change: Change) -> None:
        """Publish the retry decision for a reported failure of a pipeline in dry-run mode."""
        if change.old is not None:
            return
        pipeline = self._starter.find_pipeline(pipeline_id)
        schedule_id, _, rest = str(item["SK"]).removeprefix("JOB#").partition("#")
        date, _, at = rest.partition("#")
        if pipeline is not None and pipeline.dry_run and at:
            self._dry_runs.failed(Slot(pipeline_id, schedule_id, date), item, pipeline.retry)

    def _run(self, pipeline_id: str, item: Mapping[str, Any], change: Change) -> None:
        del pipeline_id, change
        self._pools.on_run_changed(item)

    def _quarantine(self, pipeline_id: str, item: Mapping[str, Any], change: Change) -> None:
        """Publish that records entered or left quarantine."""
        pipeline = self._starter.find_pipeline(pipeline_id)
        if pipeline is None or gained_expiry_only(change):
            return
        record = quarantined_of(item)
        before = 0 if change.old is None else quarantined_of(change.old).count
        slot = Slot(pipeline_id, "", own_period(periods_of(pipeline), record.period))
        once = f"quarantine#{change.id}"
        if record.count:
            detail: dict[str, Json] = {"count": record.count, "path": record.path, "reasons": list(record.reasons)}
            self._events.publish_once(once, EventName.DATA_QUARANTINED, slot, **detail)
        elif before:
            self._events.publish_once(once, EventName.QUARANTINE_CLEARED, slot)
        self._waiters.wake_all(pipeline_id, WaitKind.CHANGE, f"the quarantine of {slot.date} has changed")

    def _run_log(self, pipeline_id: str, item: Mapping[str, Any], change: Change) -> None:
        """Wake the executions that wait for this period.

        A period that no lifecycle completed (marked as done, or its job was repaired) also starts its dependents.
        """
        log = run_log_of(item)
        if not (log.status.is_terminal or log.status.is_done):
            return
        is_newly_done = change.old is None or not run_log_of(change.old).status.is_done
        pipeline = self._starter.find_pipeline(pipeline_id)
        if is_newly_done and pipeline is not None and log.status.is_done and (_is_marked(log) or log.recovered_from):
            self._downstream.notify_done(log.slot, pipeline, log.succeeded_run_id)
        for dependent in self._downstream.dependent_periods(log.slot):
            self._waiters.wake_all(dependent.pipeline.id, WaitKind.CHANGE, f"{log.slot} is {log.status.value}")


def _marker_date(periods: Periods, marker: Marker, at_seconds: float) -> str:
    """Return the period that a marker requests: the named one, ours around a shorter one, or that of the marker's time.

    Raises `UserError` for a date that names no period, or a longer one than ours.
    """
    named = period_text(marker.date)
    if named is None and marker.is_date_of_key:
        # By the time of the change, which stays the same when the change is delivered again.
        return periods.at(datetime.fromtimestamp(at_seconds, UTC))
    kind = parse(named or marker.date).period
    if kind is not Period.CUSTOM and Periods(kind).length > periods.length:
        raise UserError(f"date {named} is {kind}, and the pipeline is {periods.period}: name one of its periods")
    return own_period(periods, named or marker.date)


def _is_marked(log: RunLog) -> bool:
    return log.order is not None and log.order.order is Order.MARK_SUCCESS
