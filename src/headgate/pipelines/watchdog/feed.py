"""The feed of the watchdog: the changes of the table of pipelines, and what each makes worth a look later.

It follows the table and not its own process: who begins a run, where, and whether they live to see its end, makes no
difference. Changes are told at least once; what is kept of them can be kept twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from headgate.errors import StreamTrimmedError, UserError
from headgate.notify.enums import INFRASTRUCTURE
from headgate.pipelines.context import Parts
from headgate.pipelines.definition.model import Pipeline
from headgate.pipelines.enums import RunStatus, Verdict
from headgate.pipelines.rules.facts import Facts
from headgate.pipelines.rules.rules import compile_post_run, compile_trigger, evaluate
from headgate.pipelines.runs.rows import RunLog, Slot, run_log_of
from headgate.pipelines.schedule.periods import Periods, parse, periods_of
from headgate.pipelines.schedule.sensor_periods import is_key_of
from headgate.pipelines.schedule.sla import relative_moments
from headgate.pipelines.schedule.timetables import schedule_id_of
from headgate.pipelines.sensors import Sensor, sensor_of
from headgate.pipelines.watchdog.cursors import Agenda, ScheduleRef
from headgate.pipelines.watchdog.followups import Watch, Watches, WatchKind
from headgate.pipelines.watchdog.period_facts import came_at_ms, moment_of
from headgate.pipelines.watchdog.roster import Budget, Roster
from headgate.store.catalogue.tables import CURSOR, PIPELINES
from headgate.store.model.requests import Change

# How long a run may show no sign of life.
STUCK_SECONDS: Final = 1_800.0
# How long what should follow at once may take before the watchdog does it.
GRACE_SECONDS: Final = 300.0
CONSUMER: Final = "watchdog"
_BATCH: Final = 500
# Of each pipeline, where changes were lost and the table has to be read instead.
_LOGS_MAX: Final = 100
_LOCK: Final = "LOCK#eval:"
_PIPELINE: Final = "PIPELINE#"


class Feed:
    """Follows the changes. `follow` is for one thread at a time."""

    def __init__(
        self, parts: Parts, watches: Watches, agenda: Agenda, roster: Roster, *, stuck_seconds: float = STUCK_SECONDS
    ) -> None:
        self._parts = parts
        self._watches = watches
        self._agenda = agenda
        self._roster = roster
        self._stuck_seconds = stuck_seconds

    def follow(self, now: datetime, budget: Budget) -> int:
        """Take in what has changed, until there is no more or the time is up, and return how many changes it was."""
        self._roster.load(now)
        consumer = self._consumer()
        taken = 0
        while not budget.is_over():
            try:
                batch = self._parts.store.changes(PIPELINES, consumer, limit=_BATCH)
            except StreamTrimmedError:
                consumer = self._renewed(consumer)
                self._rebuild(now)
                continue
            if not batch.changes:
                break
            self._take(batch.changes, now)
            self._parts.store.checkpoint(PIPELINES, consumer, batch.position)
            taken += len(batch.changes)
        return taken

    def _take(self, changes: Iterable[Change], now: datetime) -> None:
        changed: set[str] = set()
        noted: list[Watch] = []
        for change in changes:
            # What was taken away, or has run out, asks for nothing; but a definition that is gone has gone.
            partition, sort = str(change.key.partition), str(change.key.sort)
            pipeline_id = partition.removeprefix(_PIPELINE) if partition.startswith(_PIPELINE) else ""
            if pipeline_id and sort == "CONFIG":
                changed.add(pipeline_id)
            if change.new is None:
                continue
            if partition.startswith(_LOCK):
                noted += _of_lock(change.new, self._stuck_seconds)
            elif pipeline_id and sort.startswith("RUNLOG#"):
                noted += self._of_log(run_log_of(change.new))
            elif pipeline_id and sort.startswith("SENSOR#"):
                if pipeline_id in changed:
                    self._roster.learn(pipeline_id, now)
                    changed.discard(pipeline_id)
                # What it may say something about has to be there first.
                noted = self._noted(noted)
                noted += self._of_sensor(pipeline_id, sensor_of(change.new), round(change.at_seconds * 1000))
        for pipeline_id in sorted(changed):
            self._roster.learn(pipeline_id, now)
        self._watches.note_all(noted)

    def _noted(self, watches: list[Watch]) -> list[Watch]:
        """Keep those that a sensor may answer, with all before them, and return what is left."""
        if all(watch.kind is not WatchKind.POST_RUN for watch in watches):
            return watches
        self._watches.note_all(watches)
        return []

    def _of_log(self, log: RunLog) -> list[Watch]:
        entry = self._agenda.find(ScheduleRef(log.pipeline_id, log.schedule_id))
        return watches_of_log(log, None if entry is None else entry.pipeline, self._stuck_seconds)

    def _of_sensor(self, pipeline_id: str, sensor: Sensor, changed_at_ms: int) -> list[Watch]:
        noted: list[Watch] = []
        for ref in self._agenda.refs(pipeline_id):
            entry = self._agenda.find(ref)
            if entry is None:
                continue
            at_ms = came_at_ms(sensor) or changed_at_ms
            for slot in _spoken_of(entry.pipeline, ref, sensor):
                self._watches.saw_sensor(slot, at_ms)
            # What lay there before the schedule was defined begins nothing: who deploys does not repeat the past.
            if not sensor.is_copy and moment_of(at_ms) >= entry.cursor.since:
                noted += watches_of_arrival(entry.pipeline, ref, sensor, at_ms)
        return noted

    # Where changes were lost.

    def _consumer(self) -> str:
        item = self._parts.store.get(PIPELINES, _CURSOR, consistent=True)
        return CONSUMER if item is None else str(item["consumer"])

    def _renewed(self, consumer: str) -> str:
        """Begin anew with the oldest change there is, under another name: a position cannot be taken back."""
        renewed = f"{CONSUMER}-{self._parts.ids.ulid()}"
        self._parts.store.put(PIPELINES, {**PIPELINES.key_attributes(_CURSOR), "consumer": renewed, "after": consumer})
        return renewed

    def _rebuild(self, now: datetime) -> None:
        """Read from the table what the changes that are gone would have said."""
        self._roster.reload(now)
        now_ms = round(now.timestamp() * 1000)
        for pipeline_id in self._agenda.pipelines():
            logs = self._parts.runs.logs(pipeline_id, limit=_LOGS_MAX).logs
            noted = [watch for log in logs for watch in self._of_log(log)]
            for sensor in self._parts.sensors.ls(pipeline_id):
                noted += self._of_sensor(pipeline_id, sensor, now_ms)
            self._watches.note_all(noted)


def watches_of_log(log: RunLog, pipeline: Pipeline | None, stuck_seconds: float = STUCK_SECONDS) -> list[Watch]:
    """Return what to look after once a period stands so. `pipeline` is None if no schedule of it is known."""
    found: list[Watch] = []
    if log.is_live or log.status is RunStatus.COMPLETED_MONITORING:
        found.append(_watch(log.slot, WatchKind.PURSUIT, log.updated_at_ms, stuck_seconds))
    if log.status is RunStatus.FAILED and log.attempts:
        found.append(_watch(log.slot, WatchKind.FAILURE, log.updated_at_ms, GRACE_SECONDS))
    if pipeline is None:
        return found
    if log.history and pipeline.sla is not None and pipeline.sla.max_duration is not None:
        found.append(_relative(pipeline, log.slot, log.history[0].begun_at_ms))
    timeout_seconds = float(pipeline.post_run.sensor_timeout) if pipeline.post_run.rules else 0.0
    if log.status.is_done and log.succeeded_run_id and log.succeeded_at_ms is not None and timeout_seconds:
        found.append(_watch(log.slot, WatchKind.POST_RUN, log.succeeded_at_ms, timeout_seconds))
    return found


def watches_of_arrival(pipeline: Pipeline, ref: ScheduleRef, sensor: Sensor, at_ms: int) -> list[Watch]:
    """Return what to look after once a sensor has come: the period that it begins, if it meets the condition."""
    schedule = next((each for each in pipeline.schedules if schedule_id_of(each) == ref.schedule_id), None)
    trigger = None if schedule is None else schedule.sensor
    if schedule is None or trigger is None or not is_key_of(sensor.key, trigger.key):
        return []
    came = Facts(sensors={trigger.key: sensor})
    if evaluate(compile_trigger(trigger), came, moment_of(at_ms)).verdict is not Verdict.PASS:
        return []
    slot = Slot(pipeline.id, ref.schedule_id, date_of_sensor(periods_of(pipeline, schedule), sensor, at_ms))
    arrival = Watch(
        **slot._asdict(),
        kind=WatchKind.ARRIVAL,
        since_ms=at_ms,
        due_at_ms=at_ms + round(1000 * (trigger.settle + GRACE_SECONDS)),
        sensor_key=sensor.full_key,
    )
    is_timed = pipeline.sla is not None and pipeline.sla.max_duration is not None
    return [arrival, *([_relative(pipeline, slot, at_ms)] if is_timed else [])]


def date_of_sensor(periods: Periods, sensor: Sensor, at_ms: int) -> str:
    """Return the period that a sensor speaks of: its own, ours that its own lies in, or the one in which it came."""
    if sensor.period is None:
        return periods.at(moment_of(at_ms))
    try:
        return periods.check(sensor.period)
    except UserError:
        return periods.at(_same_wall(periods, sensor.period).start(sensor.period))


def _same_wall(periods: Periods, period: str) -> Periods:
    return Periods(parse(period).period, periods.zone, periods.every_seconds)


def _spoken_of(pipeline: Pipeline, ref: ScheduleRef, sensor: Sensor) -> Iterator[Slot]:
    """Give the period that a sensor of a post-run rule speaks of, if it names one."""
    if not pipeline.post_run.rules or sensor.period is None:
        return
    keys = compile_post_run(pipeline.post_run).needs.sensors
    if any(is_key_of(sensor.key, key) for key in keys):
        schedule = next((each for each in pipeline.schedules if schedule_id_of(each) == ref.schedule_id), None)
        yield Slot(pipeline.id, ref.schedule_id, date_of_sensor(periods_of(pipeline, schedule), sensor, 0))


def _of_lock(item: Mapping[str, Any], stuck_seconds: float) -> list[Watch]:
    # Of the parts of the key only the date may have colons.
    parts = str(item["key"]).split(":", 3)
    if len(parts) != 4:
        return []
    return [_watch(Slot(*parts[1:]), WatchKind.PURSUIT, int(item["acquired_at_ms"]), stuck_seconds)]


def _relative(pipeline: Pipeline, slot: Slot, since_ms: int) -> Watch:
    moments = relative_moments(pipeline.sla, moment_of(since_ms))
    assert moments is not None, "the caller has looked"
    first = moments.breach_at if moments.warning_at is None else moments.warning_at
    seconds = first.timestamp() - since_ms / 1000
    return _watch(slot, WatchKind.RELATIVE_SLA, since_ms, max(0.0, seconds))


def _watch(slot: Slot, kind: WatchKind, since_ms: int, seconds: float) -> Watch:
    return Watch(**slot._asdict(), kind=kind, since_ms=since_ms, due_at_ms=since_ms + round(1000 * seconds))


_CURSOR: Final = CURSOR.key(pipeline_id=INFRASTRUCTURE, schedule_id="feed")
