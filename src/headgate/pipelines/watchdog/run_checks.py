"""Run checks of the watchdog: failed runs, sensors that started nothing, and deadlines relative to an event.

Each check decides with a pure function from the current facts of a period. The event is stored before anything is
started, and every start has a unique name: a finding is published once, and acted on until it is resolved.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct

from headgate.errors import AlreadyStartedError, HeadgateError, NotFoundError
from headgate.pipelines.definition.model import Pipeline
from headgate.pipelines.definition_reader import DefinitionReader
from headgate.pipelines.enums import Cause, ExpectationKind, ExpectationVerdict, JobEvent, RunStatus, Verdict
from headgate.pipelines.event_writer import EventWriter
from headgate.pipelines.events.names import EventName
from headgate.pipelines.lifecycle.job_recovery import JobRecovery, Recovery
from headgate.pipelines.lifecycle.starter import LifecycleStarter
from headgate.pipelines.rules.facts import Facts
from headgate.pipelines.rules.rules import compile_trigger, evaluate
from headgate.pipelines.runs.controls import refusal
from headgate.pipelines.runs.locks import evaluation_key
from headgate.pipelines.runs.retries import decide_retry
from headgate.pipelines.runs.rows import RunLog, Slot
from headgate.pipelines.runs.stores import RunStores
from headgate.pipelines.schedule.sla import relative_moments, trigger_deadline
from headgate.pipelines.schedule.timetables import Timetable
from headgate.pipelines.sensors import Sensors
from headgate.pipelines.watchdog import expectations
from headgate.pipelines.watchdog.expectations import Expectation
from headgate.pipelines.watchdog.followups import Followup, FollowupKind, Followups
from headgate.pipelines.watchdog.period_facts import PeriodFactReader, moment_of, status_of
from headgate.pipelines.watchdog.roster import CheckBudget, CheckTally
from headgate.pipelines.watchdog.schedule_check import CHECKS
from headgate.pipelines.watchdog.thresholds import DEFAULTS, Thresholds
from headgate.pipelines.watchdog.verdicts import Verdicts, iso

FAILED_RUNS: Final = "failed-runs"
SENSOR_TRIGGERS: Final = "sensor-triggers"
_PAUSED_CHECK_MS: Final = 1_800_000
# How often a failed run is checked for a repaired job whose event was lost.
_REPAIR_CHECK_MS: Final = 1_800_000

# Checks one period, and returns the name of the check that found something.
FollowupCheck = Callable[[Followup, int], str | None]


def check_due(
    followups: Followups, kind: FollowupKind, name: str, check: FollowupCheck
) -> Callable[[datetime, CheckBudget, CheckTally], None]:
    """Return a check of all due follow-ups of a kind. An error in one does not stop the others."""

    def run(now: datetime, budget: CheckBudget, tally: CheckTally) -> None:
        now_ms = round(now.timestamp() * 1000)
        for followup in followups.due(kind, now_ms):
            if budget.is_over():
                return
            try:
                finding = check(followup, now_ms)
            except HeadgateError as exc:
                tally.failed(name, str(followup.slot), exc)
                continue
            if finding is not None:
                tally.found(finding)

    return run


class RecoveryStep(enum.Enum):
    """What to do about a follow-up."""

    DROP = enum.auto()
    WAIT = enum.auto()
    START = enum.auto()


class RecoveryDecision(Struct, frozen=True):
    """What to do, and when to check again."""

    step: RecoveryStep
    next_check_ms: int = 0


# Failed runs.


class FailureFacts(Struct, frozen=True, kw_only=True):
    """The facts about a period whose run failed."""

    log: RunLog | None
    pipeline: Pipeline | None
    # Whether its execution is running, which then retries by itself.
    is_open: bool
    # Why nothing may start: the pipeline is paused or stopped.
    refusal: str = ""
    excluded: str | None = None


def decide_failure(
    failure: FailureFacts, since_ms: int, now_ms: int, thresholds: Thresholds = DEFAULTS
) -> RecoveryDecision:
    """Decide whether to start a period again whose run failed."""
    limits = thresholds.of(failure.pipeline)
    grace_ms = round(1000 * limits.recovery_grace_seconds)
    log, pipeline = failure.log, failure.pipeline
    is_failed = log is not None and log.status is RunStatus.FAILED and bool(log.attempts)
    if log is None or not is_failed or pipeline is None or pipeline.dry_run or failure.excluded is not None:
        return RecoveryDecision(RecoveryStep.DROP)
    if log.event is JobEvent.VALIDATION_EXHAUSTED:
        # Its data never arrived. If it does, the arrival starts the period.
        return RecoveryDecision(RecoveryStep.DROP)
    retry = decide_retry(pipeline.retry, log)
    if not retry.is_retryable or log.hold is not None:
        return RecoveryDecision(RecoveryStep.DROP)
    if failure.refusal:
        is_patient = now_ms - since_ms < 1000 * limits.patience_seconds
        return (
            RecoveryDecision(RecoveryStep.WAIT, now_ms + _PAUSED_CHECK_MS)
            if is_patient
            else RecoveryDecision(RecoveryStep.DROP)
        )
    ended_ms = log.ended_at_ms if log.ended_at_ms is not None else log.updated_at_ms
    ready_ms = ended_ms + round(1000 * retry.backoff_seconds) + grace_ms
    if failure.is_open or now_ms < ready_ms:
        return RecoveryDecision(RecoveryStep.WAIT, max(ready_ms, now_ms + grace_ms))
    return RecoveryDecision(RecoveryStep.START)


class FailureCheck:
    """Starts periods again whose run failed and is not retried although it may be; completes repaired runs."""

    def __init__(
        self,
        stores: RunStores,
        definitions: DefinitionReader,
        events: EventWriter,
        followups: Followups,
        starter: LifecycleStarter,
        is_open: Callable[[str], bool],
        recovery: JobRecovery,
        thresholds: Thresholds = DEFAULTS,
    ) -> None:
        self._thresholds = thresholds
        self._stores = stores
        self._definitions = definitions
        self._events = events
        self._followups = followups
        self._starter = starter
        self._is_open = is_open
        self._recovery = recovery

    def check(self, followup: Followup, now_ms: int) -> str | None:
        """Check a period, and return the name of the check if it was started again or its repaired run completed."""
        slot = followup.slot
        log = self._stores.runs.log(slot)
        pipeline = self._starter.find_pipeline(slot.pipeline_id)
        timetable = None if pipeline is None else self._definitions.timetable(pipeline, slot.schedule_id)
        control = self._stores.controls.get(slot.pipeline_id)
        failure = FailureFacts(
            log=log,
            pipeline=pipeline,
            is_open=log is not None and bool(log.execution) and self._is_open(log.execution),
            refusal=refusal(control, Cause.RECOVERY, now_ms),
            excluded=None if timetable is None else timetable.exclusion_reason(slot.date),
        )
        decision = decide_failure(failure, followup.since_ms, now_ms, self._thresholds)
        if log is not None and log.status is RunStatus.FAILED:
            recovered = self._recovery.recover(log.run_id)
            if recovered is Recovery.COMPLETED:
                self._followups.drop(followup)
                return FAILED_RUNS
            is_patient = now_ms - followup.since_ms < 1000 * self._thresholds.of(pipeline).patience_seconds
            if decision.step is RecoveryStep.DROP and recovered is Recovery.NOT_REPAIRED and is_patient:
                # Nothing starts it again, but a repair of its job completes it.
                self._followups.postpone(followup, now_ms + _REPAIR_CHECK_MS)
                return None
        if decision.step is RecoveryStep.DROP or log is None:
            self._followups.drop(followup)
            return None
        if decision.step is RecoveryStep.WAIT:
            self._followups.postpone(followup, decision.next_check_ms)
            return None
        grace_seconds = self._thresholds.of(pipeline).recovery_grace_seconds
        return self._start(followup, log, now_ms + round(1000 * grace_seconds))

    def _start(self, followup: Followup, log: RunLog, next_check_ms: int) -> str | None:
        done = f"retrigger:{log.run_id}"
        is_new = followup.done != done
        detail = {"run_id": log.run_id, "attempt": log.attempts + 1, "reason": log.reason}
        writes = self._events.writes(EventName.WATCHDOG_RETRIGGER, followup.slot, detail) if is_new else []
        if not self._followups.postpone(followup, next_check_ms, done=done, also=writes):
            return None
        is_started = start_once(self._starter, followup.slot, token=log.run_id, arrived_at="")
        current = None if is_new or is_started else self._followups.find(followup.slot, FollowupKind.FAILURE)
        if current is not None:
            # An earlier start of the same name had no effect; its execution shows why.
            self._followups.drop(current)
        return FAILED_RUNS if is_new else None


def start_once(starter: LifecycleStarter, slot: Slot, *, token: str, arrived_at: str) -> bool:
    """Start a recovery execution for a period. False: the same start request has started one before."""
    try:
        return starter.start_run(slot, Cause.RECOVERY, token=token, by="watchdog", arrived_at=arrived_at)
    except AlreadyStartedError:
        # The definition changed since the first start under this name.
        return False


# Sensors that started nothing.


class ArrivalFacts(Struct, frozen=True, kw_only=True):
    """The facts about a period whose sensor arrived."""

    log: RunLog | None
    pipeline: Pipeline | None
    is_locked: bool
    # Whether the sensor still meets the condition.
    is_met: bool
    # The deadline for a start.
    closes_at: datetime | None = None
    refusal: str = ""
    excluded: str | None = None


def decide_arrival(
    facts: ArrivalFacts, since_ms: int, now_ms: int, thresholds: Thresholds = DEFAULTS
) -> RecoveryDecision:
    """Decide whether to start a period whose sensor arrived without starting it."""
    limits = thresholds.of(facts.pipeline)
    log, pipeline = facts.log, facts.pipeline
    is_started = log is not None and (bool(log.attempts) or log.status.is_terminal)
    if is_started or pipeline is None or pipeline.dry_run or facts.excluded is not None or not facts.is_met:
        return RecoveryDecision(RecoveryStep.DROP)
    if facts.closes_at is not None and moment_of(now_ms) >= facts.closes_at:
        return RecoveryDecision(RecoveryStep.DROP)
    if facts.is_locked or facts.refusal or (log is not None and log.hold is not None):
        is_patient = now_ms - since_ms < 1000 * limits.patience_seconds
        return (
            RecoveryDecision(RecoveryStep.WAIT, now_ms + round(1000 * limits.recovery_grace_seconds))
            if is_patient
            else RecoveryDecision(RecoveryStep.DROP)
        )
    return RecoveryDecision(RecoveryStep.START)


class ArrivalCheck:
    """Starts periods whose sensor arrived and started nothing."""

    def __init__(
        self,
        stores: RunStores,
        definitions: DefinitionReader,
        sensors: Sensors,
        events: EventWriter,
        followups: Followups,
        starter: LifecycleStarter,
        thresholds: Thresholds = DEFAULTS,
    ) -> None:
        self._thresholds = thresholds
        self._stores = stores
        self._definitions = definitions
        self._sensors = sensors
        self._events = events
        self._followups = followups
        self._starter = starter

    def check(self, followup: Followup, now_ms: int) -> str | None:
        """Check a period, and return the name of the check if it was started."""
        facts = self._read(followup, now_ms)
        decision = decide_arrival(facts, followup.since_ms, now_ms, self._thresholds)
        if decision.step is RecoveryStep.DROP:
            self._followups.drop(followup)
            return None
        if decision.step is RecoveryStep.WAIT:
            self._followups.postpone(followup, decision.next_check_ms)
            return None
        done = f"recover:{followup.sensor_key}:{followup.since_ms}"
        is_new = followup.done != done
        arrived_at = iso(moment_of(followup.since_ms))
        detail = {"sensor_key": followup.sensor_key, "arrived_at": arrived_at}
        writes = self._events.writes(EventName.TRIGGER_RECOVERED, followup.slot, detail) if is_new else []
        next_check_ms = now_ms + round(1000 * self._thresholds.of(facts.pipeline).recovery_grace_seconds)
        if not self._followups.postpone(followup, next_check_ms, done=done, also=writes):
            return None
        is_started = start_once(
            self._starter, followup.slot, token=f"arrival-{followup.since_ms}", arrived_at=arrived_at
        )
        current = None if is_started or is_new else self._followups.find(followup.slot, followup.kind)
        if current is not None:
            # An earlier start of the same name had no effect; its execution shows why.
            self._followups.drop(current)
        return SENSOR_TRIGGERS if is_new else None

    def _read(self, followup: Followup, now_ms: int) -> ArrivalFacts:
        slot = followup.slot
        pipeline = self._starter.find_pipeline(slot.pipeline_id)
        timetable = None if pipeline is None else self._definitions.timetable(pipeline, slot.schedule_id)
        return ArrivalFacts(
            log=self._stores.runs.log(slot),
            pipeline=pipeline,
            is_locked=self._stores.locks.find(evaluation_key(slot)) is not None,
            is_met=timetable is not None and self._is_met(timetable, followup, now_ms),
            closes_at=None if timetable is None else trigger_deadline(timetable, slot.date),
            refusal=refusal(self._stores.controls.get(slot.pipeline_id), Cause.RECOVERY, now_ms),
            excluded=None if timetable is None else timetable.exclusion_reason(slot.date),
        )

    def _is_met(self, timetable: Timetable, followup: Followup, now_ms: int) -> bool:
        trigger = timetable.schedule.sensor
        if trigger is None:
            return False
        sensor = self._sensors.get(followup.pipeline_id, followup.sensor_key)
        sensors = {} if sensor is None else {trigger.key: sensor}
        return evaluate(compile_trigger(trigger), Facts(sensors=sensors), moment_of(now_ms)).verdict is Verdict.PASS


# Deadlines relative to an event.


def anchored_expectation(timetable: Timetable, followup: Followup) -> Expectation | None:
    """Return the expectation that follows from an event; None: the definition no longer has one."""
    pipeline, since = timetable.pipeline, moment_of(followup.since_ms)
    warning_at: datetime | None = None
    if followup.kind is FollowupKind.RELATIVE_SLA:
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
    waiver = timetable.exclusion_reason(followup.date) or ("the pipeline is on a dry run" if pipeline.dry_run else "")
    return Expectation(
        kind=kind,
        schedule_id=followup.schedule_id,
        date=followup.date,
        due_at=due_at,
        warning_at=warning_at,
        ready_at=since,
        waiver=waiver,
    )


class AnchoredCheck:
    """Judges relative SLAs and post-run sensors."""

    def __init__(
        self, definitions: DefinitionReader, followups: Followups, verdicts: Verdicts, facts: PeriodFactReader
    ) -> None:
        self._definitions = definitions
        self._followups = followups
        self._verdicts = verdicts
        self._facts = facts

    def check(self, followup: Followup, now_ms: int) -> str | None:
        """Judge a period or warn about it, and return the name of the check if there is something to report."""
        timetable = self._timetable(followup.slot)
        expectation = None if timetable is None else anchored_expectation(timetable, followup)
        if timetable is None or expectation is None:
            self._followups.drop(followup)
            return None
        now, pipeline = moment_of(now_ms), timetable.pipeline
        facts = self._facts.read(pipeline, followup.slot, expectation.kind)
        judgement = expectations.judge(expectation, facts, now)
        if judgement.verdict is not ExpectationVerdict.OPEN:
            is_new = self._verdicts.judge_once(pipeline.id, expectation, judgement, status=status_of(facts))
            self._followups.drop(followup)
            is_missed = judgement.verdict is ExpectationVerdict.MISSED
            return CHECKS[expectation.kind] if is_new and is_missed else None
        is_warned = expectations.is_warning_due(expectation, facts, now) and self._verdicts.warn_once(
            pipeline.id, expectation, status=status_of(facts)
        )
        upcoming = [at for at in (expectation.warning_at, expectation.judge_at) if at is not None and at > now]
        self._followups.postpone(followup, round(min(upcoming).timestamp() * 1000))
        return CHECKS[expectation.kind] if is_warned else None

    def _timetable(self, slot: Slot) -> Timetable | None:
        try:
            pipeline, _ = self._definitions.newest(slot.pipeline_id)
        except NotFoundError:
            return None
        return self._definitions.timetable(pipeline, slot.schedule_id)
