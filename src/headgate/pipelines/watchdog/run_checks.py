"""The checks of what has happened: failed runs, sensors that began nothing, and what had to follow within a time.

Each decides from how a period stands when it is looked at, in a function of facts alone. What is told is written
before anything is begun, and what is begun has a name that can be used once: a finding is told once, and acted on
until it is over.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct

from headgate.errors import AlreadyStartedError, HeadgateError, NotFoundError
from headgate.pipelines.context import Parts
from headgate.pipelines.definition.model import Pipeline
from headgate.pipelines.enums import Cause, ExpectationKind, ExpectationVerdict, JobEvent, RunStatus, Verdict
from headgate.pipelines.events.names import EventName
from headgate.pipelines.lifecycle.starter import Starter
from headgate.pipelines.rules.facts import Facts
from headgate.pipelines.rules.rules import compile_trigger, evaluate
from headgate.pipelines.runs.controls import refusal
from headgate.pipelines.runs.locks import evaluation_key
from headgate.pipelines.runs.retries import decide_retry
from headgate.pipelines.runs.rows import RunLog, Slot
from headgate.pipelines.schedule.sla import relative_moments, trigger_deadline
from headgate.pipelines.schedule.timetables import Timetable
from headgate.pipelines.watchdog import expectations
from headgate.pipelines.watchdog.expectations import Expectation
from headgate.pipelines.watchdog.feed import GRACE_SECONDS
from headgate.pipelines.watchdog.followups import Watch, Watches, WatchKind
from headgate.pipelines.watchdog.period_facts import PeriodFacts, moment_of, status_of
from headgate.pipelines.watchdog.roster import Budget, Tally
from headgate.pipelines.watchdog.schedule_check import CHECKS
from headgate.pipelines.watchdog.verdicts import Verdicts, iso

FAILED_RUNS: Final = "failed-runs"
SENSOR_TRIGGERS: Final = "sensor-triggers"
# How long a failure or an arrival is looked after that nothing can be done about now.
PATIENCE_SECONDS: Final = 7 * 86_400.0
_RETRY_LOOK_MS: Final = 1_800_000
_GRACE_MS: Final = round(1000 * GRACE_SECONDS)

# Looks at one period, and returns the name of the check that found something.
Look = Callable[[Watch, int], str | None]


def look_at_due(watches: Watches, kind: WatchKind, check: str, look: Look) -> Callable[[datetime, Budget, Tally], None]:
    """Return a check that looks at every watch of a kind that is due. One that cannot be looked at stops no other."""

    def run(now: datetime, budget: Budget, tally: Tally) -> None:
        now_ms = round(now.timestamp() * 1000)
        for watch in watches.due(kind, now_ms):
            if budget.is_over():
                return
            try:
                found = look(watch, now_ms)
            except HeadgateError as exc:
                tally.failed(check, str(watch.slot), exc)
                continue
            if found is not None:
                tally.found(found)

    return run


class Step(enum.Enum):
    """What to do about something that has happened."""

    DROP = enum.auto()
    WAIT = enum.auto()
    BEGIN = enum.auto()


class Decision(Struct, frozen=True):
    """What to do, and when to look again."""

    step: Step
    look_at_ms: int = 0


# Failed runs.


class Failure(Struct, frozen=True, kw_only=True):
    """What is known of a period whose run failed."""

    log: RunLog | None
    pipeline: Pipeline | None
    # Whether its execution is under way, which then tries again by itself.
    is_open: bool
    # Why nothing may begin: paused or stopped.
    refusal: str = ""
    dormant: str | None = None


def decide_failure(failure: Failure, since_ms: int, now_ms: int) -> Decision:
    """Return whether to begin a period again whose run failed. What is over for good never is."""
    log, pipeline = failure.log, failure.pipeline
    is_failed = log is not None and log.status is RunStatus.FAILED and bool(log.attempts)
    if log is None or not is_failed or pipeline is None or pipeline.dry_run or failure.dormant is not None:
        return Decision(Step.DROP)
    if log.event is JobEvent.VALIDATION_EXHAUSTED:
        # Its data never came. If it comes, that is what begins it.
        return Decision(Step.DROP)
    retry = decide_retry(pipeline.retry, log)
    if not retry.is_retryable or log.hold is not None:
        return Decision(Step.DROP)
    if failure.refusal:
        is_patient = now_ms - since_ms < 1000 * PATIENCE_SECONDS
        return Decision(Step.WAIT, now_ms + _RETRY_LOOK_MS) if is_patient else Decision(Step.DROP)
    ended_ms = log.ended_at_ms if log.ended_at_ms is not None else log.updated_at_ms
    ready_ms = ended_ms + round(1000 * retry.backoff_seconds) + _GRACE_MS
    if failure.is_open or now_ms < ready_ms:
        return Decision(Step.WAIT, max(ready_ms, now_ms + _GRACE_MS))
    return Decision(Step.BEGIN)


class FailureCheck:
    """Begins periods again whose run failed, may be tried again, and is not."""

    def __init__(self, parts: Parts, watches: Watches, starter: Starter, is_open: Callable[[str], bool]) -> None:
        self._parts = parts
        self._watches = watches
        self._starter = starter
        self._is_open = is_open

    def look(self, watch: Watch, now_ms: int) -> str | None:
        """Look at a period, and return the name of the check if it was begun again."""
        parts, slot = self._parts, watch.slot
        log = parts.runs.log(slot)
        pipeline = self._starter.knows(slot.pipeline_id)
        timetable = None if pipeline is None else parts.timetable(pipeline, slot.schedule_id)
        control = parts.controls.get(slot.pipeline_id)
        failure = Failure(
            log=log,
            pipeline=pipeline,
            is_open=log is not None and bool(log.execution) and self._is_open(log.execution),
            refusal=refusal(control, Cause.RECOVERY, now_ms),
            dormant=None if timetable is None else timetable.why_dormant(slot.date),
        )
        decision = decide_failure(failure, watch.since_ms, now_ms)
        if decision.step is Step.DROP or log is None:
            self._watches.drop(watch)
            return None
        if decision.step is Step.WAIT:
            self._watches.postpone(watch, decision.look_at_ms)
            return None
        return self._begin(watch, log, now_ms)

    def _begin(self, watch: Watch, log: RunLog, now_ms: int) -> str | None:
        done = f"retrigger:{log.run_id}"
        is_news = watch.done != done
        detail = {"run_id": log.run_id, "attempt": log.attempts + 1, "reason": log.reason}
        told = self._parts.tells(EventName.WATCHDOG_RETRIGGER, watch.slot, detail) if is_news else []
        if not self._watches.postpone(watch, now_ms + _GRACE_MS, done=done, also=told):
            return None
        begun = begin_once(self._starter, watch.slot, token=log.run_id, arrived_at="")
        if not is_news and not begun:
            # It was begun before and came to nothing: its own log says why.
            self._drop(watch.slot)
        return FAILED_RUNS if is_news else None

    def _drop(self, slot: Slot) -> None:
        current = self._watches.find(slot, WatchKind.FAILURE)
        if current is not None:
            self._watches.drop(current)


def begin_once(starter: Starter, slot: Slot, *, token: str, arrived_at: str) -> bool:
    """Have a period pursued. False: the same wish has started an execution before."""
    try:
        return starter.pursue(slot, Cause.RECOVERY, token=token, by="watchdog", arrived_at=arrived_at)
    except AlreadyStartedError:
        # Under the same name, and the definition has changed since.
        return False


# Sensors that began nothing.


class ArrivalFacts(Struct, frozen=True, kw_only=True):
    """What is known of a period whose sensor has come."""

    log: RunLog | None
    pipeline: Pipeline | None
    is_locked: bool
    # Whether the sensor still meets the condition.
    is_met: bool
    # From when on it is too late.
    closes_at: datetime | None = None
    refusal: str = ""
    dormant: str | None = None


def decide_arrival(facts: ArrivalFacts, since_ms: int, now_ms: int) -> Decision:
    """Return whether to begin a period whose sensor came and which nobody has begun."""
    log, pipeline = facts.log, facts.pipeline
    is_begun = log is not None and (bool(log.attempts) or log.status.is_terminal)
    if is_begun or pipeline is None or pipeline.dry_run or facts.dormant is not None or not facts.is_met:
        return Decision(Step.DROP)
    if facts.closes_at is not None and moment_of(now_ms) >= facts.closes_at:
        return Decision(Step.DROP)
    if facts.is_locked or facts.refusal or (log is not None and log.hold is not None):
        is_patient = now_ms - since_ms < 1000 * PATIENCE_SECONDS
        return Decision(Step.WAIT, now_ms + _GRACE_MS) if is_patient else Decision(Step.DROP)
    return Decision(Step.BEGIN)


class ArrivalCheck:
    """Begins periods whose sensor came and was not heard of."""

    def __init__(self, parts: Parts, watches: Watches, starter: Starter) -> None:
        self._parts = parts
        self._watches = watches
        self._starter = starter

    def look(self, watch: Watch, now_ms: int) -> str | None:
        """Look at a period, and return the name of the check if it was begun."""
        decision = decide_arrival(self._read(watch, now_ms), watch.since_ms, now_ms)
        if decision.step is Step.DROP:
            self._watches.drop(watch)
            return None
        if decision.step is Step.WAIT:
            self._watches.postpone(watch, decision.look_at_ms)
            return None
        done = f"recover:{watch.sensor_key}:{watch.since_ms}"
        is_news = watch.done != done
        arrived_at = iso(moment_of(watch.since_ms))
        detail = {"sensor_key": watch.sensor_key, "arrived_at": arrived_at}
        told = self._parts.tells(EventName.TRIGGER_RECOVERED, watch.slot, detail) if is_news else []
        if not self._watches.postpone(watch, now_ms + _GRACE_MS, done=done, also=told):
            return None
        begun = begin_once(self._starter, watch.slot, token=f"arrival-{watch.since_ms}", arrived_at=arrived_at)
        current = None if begun or is_news else self._watches.find(watch.slot, watch.kind)
        if current is not None:
            # It was begun before and came to nothing: its own execution says why.
            self._watches.drop(current)
        return SENSOR_TRIGGERS if is_news else None

    def _read(self, watch: Watch, now_ms: int) -> ArrivalFacts:
        parts, slot = self._parts, watch.slot
        pipeline = self._starter.knows(slot.pipeline_id)
        timetable = None if pipeline is None else parts.timetable(pipeline, slot.schedule_id)
        return ArrivalFacts(
            log=parts.runs.log(slot),
            pipeline=pipeline,
            is_locked=parts.locks.find(evaluation_key(slot)) is not None,
            is_met=timetable is not None and self._is_met(timetable, watch, now_ms),
            closes_at=None if timetable is None else trigger_deadline(timetable, slot.date),
            refusal=refusal(parts.controls.get(slot.pipeline_id), Cause.RECOVERY, now_ms),
            dormant=None if timetable is None else timetable.why_dormant(slot.date),
        )

    def _is_met(self, timetable: Timetable, watch: Watch, now_ms: int) -> bool:
        trigger = timetable.schedule.sensor
        if trigger is None:
            return False
        sensor = self._parts.sensors.get(watch.pipeline_id, watch.sensor_key)
        sensors = {} if sensor is None else {trigger.key: sensor}
        return evaluate(compile_trigger(trigger), Facts(sensors=sensors), moment_of(now_ms)).verdict is Verdict.PASS


# What has to follow within a time.


def anchored(timetable: Timetable, watch: Watch) -> Expectation | None:
    """Return what is expected because of what has happened; None: the definition expects nothing any more."""
    pipeline, since = timetable.pipeline, moment_of(watch.since_ms)
    warning_at: datetime | None = None
    if watch.kind is WatchKind.RELATIVE_SLA:
        kind = ExpectationKind.RELATIVE_SLA
        moments = relative_moments(pipeline.sla, since)
        if moments is None:
            return None
        due_at, warning_at = moments.breach_at, moments.warning_at
    else:
        kind = ExpectationKind.POST_RUN_SENSOR
        if not pipeline.post_run.rules or not pipeline.post_run.sensor_timeout:
            return None
        due_at = since + timedelta(seconds=pipeline.post_run.sensor_timeout)
    waiver = timetable.why_dormant(watch.date) or ("the pipeline is on a dry run" if pipeline.dry_run else "")
    return Expectation(
        kind=kind,
        schedule_id=watch.schedule_id,
        date=watch.date,
        due_at=due_at,
        warning_at=warning_at,
        ready_at=since,
        waiver=waiver,
    )


class AnchoredCheck:
    """Judges relative SLAs, and whether a sensor said something about a run that succeeded."""

    def __init__(self, parts: Parts, watches: Watches, verdicts: Verdicts, facts: PeriodFacts) -> None:
        self._parts = parts
        self._watches = watches
        self._verdicts = verdicts
        self._facts = facts

    def look(self, watch: Watch, now_ms: int) -> str | None:
        """Judge a period or warn of it, and return the name of the check if there is something to hear of."""
        timetable = self._timetable(watch.slot)
        expectation = None if timetable is None else anchored(timetable, watch)
        if timetable is None or expectation is None:
            self._watches.drop(watch)
            return None
        now, pipeline = moment_of(now_ms), timetable.pipeline
        facts = self._facts.read(pipeline, watch.slot, expectation.kind)
        judgement = expectations.judge(expectation, facts, now)
        if judgement.verdict is not ExpectationVerdict.OPEN:
            is_news = self._verdicts.judge_once(pipeline.id, expectation, judgement, status=status_of(facts))
            self._watches.drop(watch)
            is_missed = judgement.verdict is ExpectationVerdict.MISSED
            return CHECKS[expectation.kind] if is_news and is_missed else None
        is_warned = expectations.is_warning_due(expectation, facts, now) and self._verdicts.warn_once(
            pipeline.id, expectation, status=status_of(facts)
        )
        upcoming = [at for at in (expectation.warning_at, expectation.comes_at) if at is not None and at > now]
        self._watches.postpone(watch, round(min(upcoming).timestamp() * 1000))
        return CHECKS[expectation.kind] if is_warned else None

    def _timetable(self, slot: Slot) -> Timetable | None:
        try:
            pipeline, _ = self._parts.definitions.newest(slot.pipeline_id)
        except NotFoundError:
            return None
        return self._parts.timetable(pipeline, slot.schedule_id)
