"""Change feed of the watchdog: records follow-ups for the changes of the pipelines table.

It reads the change stream, so it does not matter which process starts a run or whether that process survives. Changes
arrive at least once; recording a follow-up twice is idempotent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from headgate.errors import StreamTrimmedError, UserError
from headgate.ids import IdMaker
from headgate.notify.enums import INFRASTRUCTURE
from headgate.pipelines.definition.model import Pipeline
from headgate.pipelines.enums import RunStatus, Verdict
from headgate.pipelines.rules.facts import Facts
from headgate.pipelines.rules.rules import compile_post_run, compile_trigger, evaluate
from headgate.pipelines.runs.rows import RunLog, Slot, run_log_of
from headgate.pipelines.runs.store import Runs
from headgate.pipelines.schedule.periods import Periods, parse, periods_of
from headgate.pipelines.schedule.sensor_periods import is_key_of
from headgate.pipelines.schedule.sla import relative_moments
from headgate.pipelines.schedule.timetables import schedule_id_of
from headgate.pipelines.sensors import Sensor, Sensors, sensor_of
from headgate.pipelines.watchdog.cursors import ScheduleQueue, ScheduleRef
from headgate.pipelines.watchdog.followups import Followup, FollowupKind, Followups
from headgate.pipelines.watchdog.period_facts import arrived_at_ms, moment_of
from headgate.pipelines.watchdog.roster import CheckBudget, ScheduleLoader
from headgate.pipelines.watchdog.thresholds import DEFAULTS, Thresholds
from headgate.store.catalogue.tables import CURSOR, PIPELINES
from headgate.store.model.requests import Change
from headgate.store.port import Store

CONSUMER: Final = "watchdog"
_BATCH: Final = 500
# Run logs read for each pipeline when changes were lost.
_LOGS_MAX: Final = 100
_LOCK: Final = "LOCK#eval:"
_PIPELINE: Final = "PIPELINE#"


class ChangeFeed:
    """Consumes the change stream. `follow` is for one thread at a time."""

    def __init__(
        self,
        store: Store,
        ids: IdMaker,
        runs: Runs,
        sensors: Sensors,
        followups: Followups,
        queue: ScheduleQueue,
        loader: ScheduleLoader,
        *,
        thresholds: Thresholds = DEFAULTS,
    ) -> None:
        self._store = store
        self._ids = ids
        self._runs = runs
        self._sensors = sensors
        self._followups = followups
        self._queue = queue
        self._loader = loader
        self._thresholds = thresholds

    def follow(self, now: datetime, budget: CheckBudget) -> int:
        """Consume changes until there are none or the budget is spent, and return their number."""
        self._loader.load(now)
        consumer = self._consumer()
        consumed = 0
        while not budget.is_over():
            try:
                batch = self._store.changes(PIPELINES, consumer, limit=_BATCH)
            except StreamTrimmedError:
                consumer = self._new_consumer(consumer)
                self._rebuild(now)
                continue
            if not batch.changes:
                break
            self._consume(batch.changes, now)
            self._store.checkpoint(PIPELINES, consumer, batch.position)
            consumed += len(batch.changes)
        return consumed

    def _consume(self, changes: Iterable[Change], now: datetime) -> None:
        changed: set[str] = set()
        pending: list[Followup] = []
        for change in changes:
            # Deleted and expired rows need no follow-up, except for definitions.
            partition, sort = str(change.key.partition), str(change.key.sort)
            pipeline_id = partition.removeprefix(_PIPELINE) if partition.startswith(_PIPELINE) else ""
            if pipeline_id and sort == "CONFIG":
                changed.add(pipeline_id)
            if change.new is None:
                continue
            if partition.startswith(_LOCK):
                pending += _of_lock(change.new, self._thresholds.stuck_seconds)
            elif pipeline_id and sort.startswith("RUNLOG#"):
                pending += self._of_log(run_log_of(change.new))
            elif pipeline_id and sort.startswith("SENSOR#"):
                if pipeline_id in changed:
                    self._loader.update(pipeline_id, now)
                    changed.discard(pipeline_id)
                # Store the follow-ups that this sensor may answer before it is recorded.
                pending = self._flushed(pending)
                pending += self._of_sensor(pipeline_id, sensor_of(change.new), round(change.at_seconds * 1000))
        for pipeline_id in sorted(changed):
            self._loader.update(pipeline_id, now)
        self._followups.record_all(pending)

    def _flushed(self, pending: list[Followup]) -> list[Followup]:
        """Store pending follow-ups if a sensor may answer one of them, and return the rest."""
        if all(followup.kind is not FollowupKind.POST_RUN for followup in pending):
            return pending
        self._followups.record_all(pending)
        return []

    def _of_log(self, log: RunLog) -> list[Followup]:
        entry = self._queue.find(ScheduleRef(log.pipeline_id, log.schedule_id))
        return followups_of_log(log, None if entry is None else entry.pipeline, self._thresholds)

    def _of_sensor(self, pipeline_id: str, sensor: Sensor, changed_at_ms: int) -> list[Followup]:
        followups: list[Followup] = []
        for ref in self._queue.refs(pipeline_id):
            entry = self._queue.find(ref)
            if entry is None:
                continue
            at_ms = arrived_at_ms(sensor) or changed_at_ms
            for slot in _post_run_slots(entry.pipeline, ref, sensor):
                self._followups.record_sensor(slot, at_ms)
            # A sensor from before the definition starts nothing: a deployment does not repeat the past.
            if not sensor.is_copy and moment_of(at_ms) >= entry.cursor.since:
                followups += followups_of_arrival(entry.pipeline, ref, sensor, at_ms, self._thresholds)
        return followups

    # Recovery from lost changes.

    def _consumer(self) -> str:
        item = self._store.get(PIPELINES, _CURSOR, consistent=True)
        return CONSUMER if item is None else str(item["consumer"])

    def _new_consumer(self, consumer: str) -> str:
        """Restart at the oldest change under a new consumer name: a stream position cannot be reset."""
        renewed = f"{CONSUMER}-{self._ids.ulid()}"
        self._store.put(PIPELINES, {**PIPELINES.key_attributes(_CURSOR), "consumer": renewed, "after": consumer})
        return renewed

    def _rebuild(self, now: datetime) -> None:
        """Rebuild follow-ups from the table in place of the lost changes."""
        self._loader.reload(now)
        now_ms = round(now.timestamp() * 1000)
        for pipeline_id in self._queue.pipelines():
            logs = self._runs.logs(pipeline_id, limit=_LOGS_MAX).logs
            followups = [followup for log in logs for followup in self._of_log(log)]
            for sensor in self._sensors.ls(pipeline_id):
                followups += self._of_sensor(pipeline_id, sensor, now_ms)
            self._followups.record_all(followups)


def followups_of_log(log: RunLog, pipeline: Pipeline | None, thresholds: Thresholds = DEFAULTS) -> list[Followup]:
    """Return the follow-ups of a run log. `pipeline` is None if none of its schedules is known."""
    followups: list[Followup] = []
    limits = thresholds.of(pipeline)
    if log.is_live or log.status is RunStatus.COMPLETED_MONITORING:
        followups.append(_followup(log.slot, FollowupKind.LIVENESS, log.updated_at_ms, limits.stuck_seconds))
    if log.status is RunStatus.FAILED and log.attempts:
        followups.append(_followup(log.slot, FollowupKind.FAILURE, log.updated_at_ms, limits.recovery_grace_seconds))
    if pipeline is None:
        return followups
    if log.history and pipeline.sla is not None and pipeline.sla.max_duration is not None:
        followups.append(_relative(pipeline, log.slot, log.history[0].begun_at_ms))
    timeout_seconds = float(pipeline.post_run.sensor_timeout) if pipeline.post_run.rules else 0.0
    if log.status.is_done and log.succeeded_run_id and log.succeeded_at_ms is not None and timeout_seconds:
        followups.append(_followup(log.slot, FollowupKind.POST_RUN, log.succeeded_at_ms, timeout_seconds))
    return followups


def followups_of_arrival(
    pipeline: Pipeline, ref: ScheduleRef, sensor: Sensor, at_ms: int, thresholds: Thresholds = DEFAULTS
) -> list[Followup]:
    """Return the follow-ups of a sensor that meets the start condition of a schedule."""
    schedule = next((each for each in pipeline.schedules if schedule_id_of(each) == ref.schedule_id), None)
    trigger = None if schedule is None else schedule.sensor
    if schedule is None or trigger is None or not is_key_of(sensor.key, trigger.key):
        return []
    facts = Facts(sensors={trigger.key: sensor})
    if evaluate(compile_trigger(trigger), facts, moment_of(at_ms)).verdict is not Verdict.PASS:
        return []
    slot = Slot(pipeline.id, ref.schedule_id, date_of_sensor(periods_of(pipeline, schedule), sensor, at_ms))
    arrival = Followup(
        **slot._asdict(),
        kind=FollowupKind.ARRIVAL,
        since_ms=at_ms,
        due_at_ms=at_ms + round(1000 * (trigger.settle + thresholds.of(pipeline).recovery_grace_seconds)),
        sensor_key=sensor.full_key,
    )
    is_timed = pipeline.sla is not None and pipeline.sla.max_duration is not None
    return [arrival, *([_relative(pipeline, slot, at_ms)] if is_timed else [])]


def date_of_sensor(periods: Periods, sensor: Sensor, at_ms: int) -> str:
    """Return the period of a sensor: its own, ours that contains it, or the one in which it arrived."""
    if sensor.period is None:
        return periods.at(moment_of(at_ms))
    try:
        return periods.check(sensor.period)
    except UserError:
        return periods.at(_in_zone_of(periods, sensor.period).start(sensor.period))


def _in_zone_of(periods: Periods, period: str) -> Periods:
    return Periods(parse(period).period, periods.zone, periods.every_seconds)


def _post_run_slots(pipeline: Pipeline, ref: ScheduleRef, sensor: Sensor) -> Iterator[Slot]:
    """Yield the period that a post-run sensor names."""
    if not pipeline.post_run.rules or sensor.period is None:
        return
    keys = compile_post_run(pipeline.post_run).needs.sensors
    if any(is_key_of(sensor.key, key) for key in keys):
        schedule = next((each for each in pipeline.schedules if schedule_id_of(each) == ref.schedule_id), None)
        yield Slot(pipeline.id, ref.schedule_id, date_of_sensor(periods_of(pipeline, schedule), sensor, 0))


def _of_lock(item: Mapping[str, Any], stuck_seconds: float) -> list[Followup]:
    # Only the date may contain colons.
    fields = str(item["key"]).split(":", 3)
    if len(fields) != 4:
        return []
    return [_followup(Slot(*fields[1:]), FollowupKind.LIVENESS, int(item["acquired_at_ms"]), stuck_seconds)]


def _relative(pipeline: Pipeline, slot: Slot, since_ms: int) -> Followup:
    moments = relative_moments(pipeline.sla, moment_of(since_ms))
    assert moments is not None, "the caller has checked"
    first = moments.breach_at if moments.warning_at is None else moments.warning_at
    seconds = first.timestamp() - since_ms / 1000
    return _followup(slot, FollowupKind.RELATIVE_SLA, since_ms, max(0.0, seconds))


def _followup(slot: Slot, kind: FollowupKind, since_ms: int, seconds: float) -> Followup:
    return Followup(**slot._asdict(), kind=kind, since_ms=since_ms, due_at_ms=since_ms + round(1000 * seconds))


_CURSOR: Final = CURSOR.key(pipeline_id=INFRASTRUCTURE, schedule_id="feed")
