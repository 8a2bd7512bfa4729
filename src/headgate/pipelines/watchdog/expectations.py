"""Expectations: what must have happened to a pipeline by when, and the verdict on each.

Expectations follow from the definition and its calendars, never from rows of runs, so that a run that never started is
missed too. Each is identified by kind, schedule and date, and falls due once. A caller that stores how far a schedule
was judged and continues from there gets every expectation exactly once after any downtime; the verdict depends on what
had happened by the due time, not on the time of judging. Two kinds depend on an earlier event: the relative SLA on the
first arrival, the post-run sensor on the success.

Nothing is expected for the time before a pipeline was created: a period counts if it became ready after that. The SLAs
of an earlier period whose deadline is still ahead count if a run of it was started nevertheless, by an operator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from msgspec import UNSET, Struct
from msgspec.structs import replace

from headgate.pipelines.enums import ExpectationKind, ExpectationVerdict, RunStatus
from headgate.pipelines.runs.rows import Order, RunLog
from headgate.pipelines.schedule import sla
from headgate.pipelines.schedule.timetables import DueSlot, StartCondition, Timetable
from headgate.pipelines.watchdog.thresholds import DEFAULTS

# How long after its slot a period must have started, if the schedule names no deadline.
GRACE_SECONDS: Final = DEFAULTS.schedule_grace_seconds

_DAY: Final = timedelta(days=1)
# Most periods in one call: a longer downtime is judged in several.
_PERIODS_MAX: Final = 2_000
_HORIZONS_DAYS: Final = (1, 8, 40, 400)


class Expectation(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that must have happened by `due_at`."""

    kind: ExpectationKind
    schedule_id: str
    date: str
    due_at: datetime
    warning_at: datetime | None = None
    # Since when the period could run.
    ready_at: datetime
    # Why the expectation is waived in advance: excluded by the calendar, or a dry run.
    waiver: str = ""
    # Whether it counts only if a run was started: the period became ready before the pipeline was created.
    is_on_request: bool = False

    @property
    def judge_at(self) -> datetime:
        """When the expectation is judged: a deadline before the period itself is judged once the period is there."""
        return max(self.due_at, self.ready_at)


class Anchors(Struct, frozen=True):
    """Events of a period that further expectations depend on."""

    # The first sensor; without any, the start of the first run.
    arrived_at: datetime | None = None
    succeeded_at: datetime | None = None


class DueExpectations(Struct, frozen=True):
    """The expectations to judge, those to warn about, and the time up to which that is complete."""

    due: tuple[Expectation, ...]
    warnings: tuple[Expectation, ...]
    judged_through: datetime


class Pause(Struct, frozen=True):
    """A time in which operators had paused the pipeline; `until` None: it is still paused."""

    since: datetime
    until: datetime | None = None


class ExpectationFacts(Struct, frozen=True, kw_only=True):
    """The facts about one period: the first time of each event, which later attempts do not change."""

    # The first evaluation or run.
    begun_at: datetime | None = None
    # The first verdict of readiness, or the start of the job.
    ready_at: datetime | None = None
    succeeded_at: datetime | None = None
    # The first sensor of a post-run rule after the success.
    post_run_sensor_at: datetime | None = None
    # An operator skipped the period, or marked it as done.
    waived_at: datetime | None = None
    waived_by: str = ""
    dry_run_at: datetime | None = None
    pauses: tuple[Pause, ...] = ()
    # The current status and its reason, for the sentence.
    status: RunStatus | None = None
    reason: str = ""


class ExpectationJudgement(Struct, frozen=True, kw_only=True):
    """The verdict on an expectation. OPEN: it is not due yet."""

    verdict: ExpectationVerdict
    # Seconds before the due time at which it happened, negative if after; None: it did not happen.
    margin_seconds: float | None = None
    warned: bool = False
    reason: str = ""


# Which expectations there are.


def due_expectations(
    timetable: Timetable,
    *,
    created_at: datetime,
    judged_through: datetime,
    now: datetime,
    anchors: Mapping[str, Anchors] | None = None,
    grace_seconds: float = GRACE_SECONDS,
) -> DueExpectations:
    """Return the expectations of a schedule that fell due after `judged_through` and up to now.

    `anchors` holds the dates with events whose consequences may fall due in that time. Warnings concern expectations
    that are still open; a warning that would come after the due time is dropped.
    """
    # Nothing is expected for the time before the creation.
    after = max(judged_through, created_at - timedelta(microseconds=1))
    until = min(now, after + _PERIODS_MAX * timetable.periods.length)
    if until <= after:
        # A cursor ahead of the clock stays where it is.
        return DueExpectations((), (), judged_through)
    candidates = list(_all(timetable, created_at, after, until, anchors or {}, grace_seconds))
    due = [each for each in candidates if after < each.judge_at <= until]
    warnings = [
        each
        for each in candidates
        if each.warning_at is not None and after < each.warning_at <= until and each.due_at > now and not each.waiver
    ]
    return DueExpectations(tuple(sorted(due, key=_by_time)), tuple(sorted(warnings, key=_by_time)), until)


def next_at(
    timetable: Timetable,
    *,
    created_at: datetime,
    after: datetime,
    anchors: Mapping[str, Anchors] | None = None,
    grace_seconds: float = GRACE_SECONDS,
) -> datetime:
    """Return the next time at which an expectation is judged or warned about, at most a year ahead."""
    until = after
    for days in _HORIZONS_DAYS:
        until = after + min(days * _DAY, _PERIODS_MAX * timetable.periods.length)
        candidates = list(_all(timetable, created_at, after, until, anchors or {}, grace_seconds))
        moments = [moment for each in candidates for moment in (each.judge_at, each.warning_at) if moment is not None]
        if upcoming := [moment for moment in moments if after < moment <= until]:
            return min(upcoming)
    return until


# The verdict.


def judge(expectation: Expectation, facts: ExpectationFacts, now: datetime) -> ExpectationJudgement:
    """Return the verdict on an expectation. Once it is not OPEN, it is the same at any later time.

    Only events before the due time count. Excluded periods and dry runs are waived in any case; a skip, a pause or a
    dry run before the due time waives what was not done by then.
    """
    if expectation.waiver:
        is_open = now < expectation.judge_at
        verdict = ExpectationVerdict.OPEN if is_open else ExpectationVerdict.WAIVED
        return ExpectationJudgement(verdict=verdict, reason=expectation.waiver)
    done_at = _done_at(expectation.kind, facts)
    moments = sla.SlaMoments(expectation.due_at, expectation.warning_at)
    result = sla.judge(moments, done_at, now)
    if result.verdict is not ExpectationVerdict.MET and now < expectation.judge_at:
        return ExpectationJudgement(
            verdict=ExpectationVerdict.OPEN, margin_seconds=result.margin_seconds, warned=result.warned
        )
    if result.verdict is ExpectationVerdict.MISSED and (waiver := _waiver(expectation, facts)):
        return ExpectationJudgement(
            verdict=ExpectationVerdict.WAIVED, margin_seconds=result.margin_seconds, reason=waiver
        )
    reason = _sentence(expectation, facts) if result.verdict is ExpectationVerdict.MISSED else ""
    return ExpectationJudgement(
        verdict=result.verdict, margin_seconds=result.margin_seconds, warned=result.warned, reason=reason
    )


def is_warning_due(expectation: Expectation, facts: ExpectationFacts, now: datetime) -> bool:
    """Whether to warn about an expectation now: it is not done, not waived and not yet due."""
    moments = sla.SlaMoments(expectation.due_at, expectation.warning_at)
    if expectation.waiver or not moments.is_warning_due(_done_at(expectation.kind, facts), now):
        return False
    is_waived = facts.waived_at is not None or facts.dry_run_at is not None
    return not is_waived and not _is_paused(facts, now)


def facts_of(
    log: RunLog | None,
    *,
    evaluated_at: datetime | None = None,
    ready_at: datetime | None = None,
    post_run_sensor_at: datetime | None = None,
    dry_run_at: datetime | None = None,
    pauses: tuple[Pause, ...] = (),
) -> ExpectationFacts:
    """Return the facts about a period from its run log and the other records: the first evaluation and so on."""
    if log is None:
        return ExpectationFacts(
            begun_at=evaluated_at,
            ready_at=ready_at,
            post_run_sensor_at=post_run_sensor_at,
            dry_run_at=dry_run_at,
            pauses=pauses,
        )
    begun = [attempt.begun_at_ms for attempt in log.history]
    succeeded_at = _first_success(log)
    waived_at_ms, waived_by = _waived(log)
    return ExpectationFacts(
        begun_at=_first(evaluated_at, *map(_moment, begun)),
        ready_at=_first(ready_at, succeeded_at),
        succeeded_at=succeeded_at,
        post_run_sensor_at=post_run_sensor_at,
        waived_at=_moment(waived_at_ms),
        waived_by=waived_by,
        dry_run_at=dry_run_at,
        pauses=pauses,
        status=log.status,
        reason=log.reason,
    )


# The expectations of each kind.


def _all(
    timetable: Timetable,
    created_at: datetime,
    after: datetime,
    until: datetime,
    anchors: Mapping[str, Anchors],
    grace_seconds: float,
) -> Iterator[Expectation]:
    """Yield at least all expectations that are due or warned about after `after` and up to `until`."""
    # Only periods that became ready after the creation count, so the search starts there.
    begin = max(after - _lead(timetable, grace_seconds), created_at - timedelta(microseconds=1))
    for slot in timetable.ready(begin, until):
        yield from _of_slot(timetable, slot, grace_seconds)
    if after < created_at + _lead(timetable, grace_seconds):
        yield from _before_creation(timetable, created_at, grace_seconds)
    for date, anchor in anchors.items():
        yield from _of_anchors(timetable, date, anchor)


def _before_creation(timetable: Timetable, created_at: datetime, grace_seconds: float) -> Iterator[Expectation]:
    """Yield the SLAs that were ahead at the creation, of periods that were ready by then."""
    kinds = (ExpectationKind.EVALUATION_SLA, ExpectationKind.COMPLETION_SLA)
    if timetable.pipeline.sla is None:
        return
    tick = timedelta(microseconds=1)
    for slot in timetable.ready(created_at - _lead(timetable, grace_seconds), created_at - tick):
        for each in _of_slot(timetable, slot, grace_seconds):
            if each.kind in kinds and each.due_at > created_at:
                yield replace(each, is_on_request=True)


def is_expected(expectation: Expectation, facts: ExpectationFacts) -> bool:
    """Whether an expectation counts: of a period from before the creation, only once a run was started."""
    return not expectation.is_on_request or facts.begun_at is not None


def _lead(timetable: Timetable, grace_seconds: float) -> timedelta:
    """Return the longest time from a period's readiness to its last deadline."""
    schedule, agreed = timetable.schedule, timetable.pipeline.sla
    texts = [schedule.deadline, schedule.sensor.deadline if schedule.sensor is not None else None]
    offset_days = 0
    if agreed is not None:
        texts += [agreed.deadline, agreed.evaluation_deadline]
        offset_days = 0 if agreed.day_offset is UNSET else abs(agreed.day_offset)
    longest = max((sla.reach(text) for text in texts if text is not None), default=timedelta(0))
    is_days = longest >= _DAY
    return timedelta(seconds=grace_seconds) + longest + (offset_days * _DAY if is_days else timedelta(0))


def _of_slot(timetable: Timetable, slot: DueSlot, grace_seconds: float) -> Iterator[Expectation]:
    schedule_due_at = _schedule_due_at(timetable, slot, grace_seconds)
    if schedule_due_at is not None:
        is_irregular = bool(timetable.schedule.include.dates) and timetable.schedule.cron is None
        kind = ExpectationKind.IRREGULAR_DATE if is_irregular else ExpectationKind.SCHEDULE
        yield _expectation(timetable, slot, kind, sla.SlaMoments(schedule_due_at))
    trigger_due_at = sla.trigger_deadline(timetable, slot.date)
    if trigger_due_at is not None:
        yield _expectation(timetable, slot, ExpectationKind.TRIGGER_DEADLINE, sla.SlaMoments(trigger_due_at))
    evaluation = sla.evaluation_moments(timetable, slot.date)
    if evaluation is not None:
        yield _expectation(timetable, slot, ExpectationKind.EVALUATION_SLA, evaluation)
    completion = sla.completion_moments(timetable, slot.date)
    if completion is not None:
        yield _expectation(timetable, slot, ExpectationKind.COMPLETION_SLA, completion)


def _of_anchors(timetable: Timetable, date: str, anchors: Anchors) -> Iterator[Expectation]:
    if anchors.arrived_at is not None:
        relative = sla.relative_moments(timetable.pipeline.sla, anchors.arrived_at)
        if relative is not None:
            arrived = _anchored(timetable, date, anchors.arrived_at)
            yield _expectation(timetable, arrived, ExpectationKind.RELATIVE_SLA, relative)
    post_run = timetable.pipeline.post_run
    if anchors.succeeded_at is not None and post_run.rules and post_run.sensor_timeout:
        due_at = anchors.succeeded_at + timedelta(seconds=post_run.sensor_timeout)
        succeeded = _anchored(timetable, date, anchors.succeeded_at)
        yield _expectation(timetable, succeeded, ExpectationKind.POST_RUN_SENSOR, sla.SlaMoments(due_at))


def _schedule_due_at(timetable: Timetable, slot: DueSlot, grace_seconds: float) -> datetime | None:
    deadline = sla.schedule_deadline(timetable, slot.date)
    if deadline is not None:
        return deadline
    # Data that never arrives is no missed schedule, and a pipeline without schedules misses none.
    if timetable.start_condition is StartCondition.DATA or not timetable.pipeline.schedules:
        return None
    return slot.at + timedelta(seconds=grace_seconds)


def _anchored(timetable: Timetable, date: str, at: datetime) -> DueSlot:
    return DueSlot(timetable.schedule_id, date, at, timetable.exclusion_reason(date))


def _expectation(timetable: Timetable, slot: DueSlot, kind: ExpectationKind, moments: sla.SlaMoments) -> Expectation:
    is_dry = timetable.pipeline.dry_run
    return Expectation(
        kind=kind,
        schedule_id=slot.schedule_id,
        date=slot.date,
        due_at=moments.breach_at,
        warning_at=moments.warning_at,
        ready_at=slot.at,
        waiver=slot.excluded or ("the pipeline is on a dry run" if is_dry else ""),
    )


def _by_time(expectation: Expectation) -> tuple[datetime, str, str]:
    return (expectation.judge_at, expectation.date, expectation.kind)


# Which events count for the verdict.


def _done_at(kind: ExpectationKind, facts: ExpectationFacts) -> datetime | None:
    match kind:
        case ExpectationKind.SCHEDULE | ExpectationKind.IRREGULAR_DATE | ExpectationKind.TRIGGER_DEADLINE:
            return facts.begun_at
        case ExpectationKind.EVALUATION_SLA:
            return facts.ready_at
        case ExpectationKind.COMPLETION_SLA | ExpectationKind.RELATIVE_SLA:
            return facts.succeeded_at
        case ExpectationKind.POST_RUN_SENSOR:
            return facts.post_run_sensor_at


def _waiver(expectation: Expectation, facts: ExpectationFacts) -> str:
    """Return why a missed expectation is waived: only reasons from before its due time count."""
    due_at = expectation.judge_at
    if facts.waived_at is not None and facts.waived_at < due_at:
        return facts.waived_by
    if facts.dry_run_at is not None and facts.dry_run_at < due_at:
        return "it was a dry run"
    return "the pipeline was paused" if _is_paused(facts, due_at) else ""


def _is_paused(facts: ExpectationFacts, moment: datetime) -> bool:
    return any(pause.since <= moment and (pause.until is None or moment < pause.until) for pause in facts.pauses)


def _sentence(expectation: Expectation, facts: ExpectationFacts) -> str:
    done_at = _done_at(expectation.kind, facts)
    due = f"{expectation.due_at:%Y-%m-%dT%H:%M:%SZ}"
    if done_at is not None:
        return f"expected by {due}, happened at {done_at:%Y-%m-%dT%H:%M:%SZ}"
    if facts.status is None:
        return f"expected by {due}, and nothing was started"
    why = f": {facts.reason}" if facts.reason else ""
    return f"expected by {due}, and it was {facts.status}{why}"


def _first_success(log: RunLog) -> datetime | None:
    """Return the first success of a period: a later rerun does not make it late."""
    done = [attempt.ended_at_ms for attempt in log.history if attempt.status.is_done]
    if log.succeeded_run_id:
        done.append(log.succeeded_at_ms)
    return _first(*map(_moment, done))


def _waived(log: RunLog) -> tuple[int | None, str]:
    order = log.order
    if order is not None and order.order in (Order.SKIP, Order.MARK_SUCCESS):
        return order.at_ms, f"{order.order} by {order.by}: {order.reason}"
    # Marked as done without a run, and started later nevertheless.
    if log.succeeded_at_ms is not None and not log.succeeded_run_id:
        return log.succeeded_at_ms, f"{Order.MARK_SUCCESS} by hand"
    return None, ""


def _moment(at_ms: int | None) -> datetime | None:
    return None if at_ms is None else datetime.fromtimestamp(at_ms / 1000, UTC)


def _first(*moments: datetime | None) -> datetime | None:
    return min((moment for moment in moments if moment is not None), default=None)
