"""Expectations: what must have happened to a pipeline by when, and how each came out. Absence is seen here.

They follow from the definition and its calendars, never from rows of runs, so that what never began is missed too.
Each is named by kind, schedule and date, and its time comes once. Whoever keeps how far a schedule was judged and asks
from there to now, after however long, gets every one exactly once; what its verdict is depends on what had happened
by its time, not on when one asks. Only two kinds hang on something that happened: the relative SLA on the first
arrival, the post-run sensor on the success.

A pipeline owes nothing for the time before it was created: a period counts if it could first be done after that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from msgspec import UNSET, Struct

from headgate.pipelines.enums import ExpectationKind, ExpectationVerdict, RunStatus
from headgate.pipelines.runs.rows import Order, RunLog
from headgate.pipelines.schedule import sla
from headgate.pipelines.schedule.timetables import Beginning, DueSlot, Timetable

# How long after its slot a period must have been begun, where the schedule names no deadline.
GRACE_SECONDS: Final = 300.0

_DAY: Final = timedelta(days=1)
# What is asked for at once: a longer absence is judged piece by piece.
_PERIODS_MAX: Final = 2_000
_HORIZONS_DAYS: Final = (1, 8, 40, 400)


class Expectation(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that must have happened by `due_at`."""

    kind: ExpectationKind
    schedule_id: str
    date: str
    due_at: datetime
    warning_at: datetime | None = None
    # Since when it could be done.
    ready_at: datetime
    # Why nobody has to account for it, if that is known beforehand: excluded, or dry.
    waiver: str = ""

    @property
    def comes_at(self) -> datetime:
        """When it is to be judged. One whose deadline lies before its period is, once there is a period."""
        return max(self.due_at, self.ready_at)


class Anchors(Struct, frozen=True):
    """What happened to a period that more is expected from."""

    # The first sensor; without any, when the first run began.
    arrived_at: datetime | None = None
    succeeded_at: datetime | None = None


class Asked(Struct, frozen=True):
    """What is to be judged, what is to be warned of, and how far that reaches: if not to now, ask again from there."""

    due: tuple[Expectation, ...]
    warnings: tuple[Expectation, ...]
    judged_through: datetime


class Pause(Struct, frozen=True):
    """A time in which people had stopped the pipeline; `until` None: it goes on."""

    since: datetime
    until: datetime | None = None


class Facts(Struct, frozen=True, kw_only=True):
    """What is known of one period: the first time each thing happened, which later attempts do not change."""

    # Somebody looked at it: an evaluation, or a run.
    begun_at: datetime | None = None
    # It was found ready, or its job was started.
    ready_at: datetime | None = None
    succeeded_at: datetime | None = None
    # The first sensor of a post-run rule that came after the success.
    post_run_sensor_at: datetime | None = None
    # Someone said that nothing is to be done, or that it is done without us.
    waived_at: datetime | None = None
    waived_by: str = ""
    dry_run_at: datetime | None = None
    pauses: tuple[Pause, ...] = ()
    # How it stands and why, for the sentence.
    status: RunStatus | None = None
    reason: str = ""


class Judgement(Struct, frozen=True, kw_only=True):
    """The verdict on an expectation. OPEN: its time has not come."""

    verdict: ExpectationVerdict
    # How long before its time it happened, or how long after (negative); None: it did not.
    margin_seconds: float | None = None
    warned: bool = False
    reason: str = ""


# What is expected.


def asked(
    timetable: Timetable,
    *,
    created_at: datetime,
    judged_through: datetime,
    now: datetime,
    anchors: Mapping[str, Anchors] | None = None,
) -> Asked:
    """Return the expectations of a schedule whose time came later than `judged_through` and not later than now.

    `anchors` are those of the dates for which something happened whose consequence may be due in that time. Warnings
    are of expectations that are still to come; a warning that would come too late is not given any more.
    """
    # Nothing is owed for the time before the creation.
    after = max(judged_through, created_at - timedelta(microseconds=1))
    until = min(now, after + _PERIODS_MAX * timetable.periods.length)
    if until <= after:
        # A cursor that is ahead of the clock stays where it is.
        return Asked((), (), judged_through)
    found = list(_all(timetable, created_at, after, until, anchors or {}))
    due = [each for each in found if after < each.comes_at <= until]
    warnings = [
        each
        for each in found
        if each.warning_at is not None and after < each.warning_at <= until and each.due_at > now and not each.waiver
    ]
    return Asked(tuple(sorted(due, key=_by_time)), tuple(sorted(warnings, key=_by_time)), until)


def next_at(
    timetable: Timetable, *, created_at: datetime, after: datetime, anchors: Mapping[str, Anchors] | None = None
) -> datetime:
    """Return when to look next: when something is to be judged or warned of, or else after a year at most."""
    until = after
    for days in _HORIZONS_DAYS:
        until = after + min(days * _DAY, _PERIODS_MAX * timetable.periods.length)
        found = list(_all(timetable, created_at, after, until, anchors or {}))
        moments = [moment for each in found for moment in (each.comes_at, each.warning_at) if moment is not None]
        if upcoming := [moment for moment in moments if after < moment <= until]:
            return min(upcoming)
    return until


# How it came out.


def judge(expectation: Expectation, facts: Facts, now: datetime) -> Judgement:
    """Return how an expectation came out. Once it is no longer OPEN it stays as it is, whenever one asks again.

    Only what happened before its time counts. What is excluded or dry is waived whatever happened; a skip, a pause or
    a dry run waives what was not done by then.
    """
    if expectation.waiver:
        is_open = now < expectation.comes_at
        verdict = ExpectationVerdict.OPEN if is_open else ExpectationVerdict.WAIVED
        return Judgement(verdict=verdict, reason=expectation.waiver)
    done_at = _done_at(expectation.kind, facts)
    moments = sla.SlaMoments(expectation.due_at, expectation.warning_at)
    found = sla.judge(moments, done_at, now)
    if found.verdict is not ExpectationVerdict.MET and now < expectation.comes_at:
        return Judgement(verdict=ExpectationVerdict.OPEN, margin_seconds=found.margin_seconds, warned=found.warned)
    if found.verdict is ExpectationVerdict.MISSED and (waiver := _waiver(expectation, facts)):
        return Judgement(verdict=ExpectationVerdict.WAIVED, margin_seconds=found.margin_seconds, reason=waiver)
    reason = _sentence(expectation, facts) if found.verdict is ExpectationVerdict.MISSED else ""
    return Judgement(verdict=found.verdict, margin_seconds=found.margin_seconds, warned=found.warned, reason=reason)


def is_warning_due(expectation: Expectation, facts: Facts, now: datetime) -> bool:
    """Whether to warn of an expectation now: it is not done, nobody has waived it, and its time has not come."""
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
) -> Facts:
    """Return what is known of a period from its log and from what is kept elsewhere: the first evaluation and so on."""
    if log is None:
        return Facts(
            begun_at=evaluated_at,
            ready_at=ready_at,
            post_run_sensor_at=post_run_sensor_at,
            dry_run_at=dry_run_at,
            pauses=pauses,
        )
    begun = [attempt.begun_at_ms for attempt in log.history]
    succeeded_at = _first_success(log)
    waived_at_ms, waived_by = _waived(log)
    return Facts(
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


# What is expected: each kind.


def _all(
    timetable: Timetable, created_at: datetime, after: datetime, until: datetime, anchors: Mapping[str, Anchors]
) -> Iterator[Expectation]:
    """Return at least all whose time or warning lies later than `after` and not later than `until`."""
    # Whether a period owes anything is a matter of when it could be done, so that is where the search begins.
    begin = max(after - _lead(timetable), created_at - timedelta(microseconds=1))
    for slot in timetable.ready(begin, until):
        yield from _of_slot(timetable, slot)
    for date, anchor in anchors.items():
        yield from _of_anchors(timetable, date, anchor)


def _lead(timetable: Timetable) -> timedelta:
    """Return how long after a period could be done its last deadline may lie."""
    schedule, agreed = timetable.schedule, timetable.pipeline.sla
    texts = [schedule.deadline, schedule.sensor.deadline if schedule.sensor is not None else None]
    offset_days = 0
    if agreed is not None:
        texts += [agreed.deadline, agreed.evaluation_deadline]
        offset_days = 0 if agreed.day_offset is UNSET else abs(agreed.day_offset)
    longest = max((sla.reach(text) for text in texts if text is not None), default=timedelta(0))
    is_days = longest >= _DAY
    return timedelta(seconds=GRACE_SECONDS) + longest + (offset_days * _DAY if is_days else timedelta(0))


def _of_slot(timetable: Timetable, slot: DueSlot) -> Iterator[Expectation]:
    schedule_due_at = _schedule_due_at(timetable, slot)
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


def _schedule_due_at(timetable: Timetable, slot: DueSlot) -> datetime | None:
    deadline = sla.schedule_deadline(timetable, slot.date)
    if deadline is not None:
        return deadline
    # Data that never comes is no missed schedule, and neither is what nobody has scheduled.
    if timetable.beginning is Beginning.DATA or not timetable.pipeline.schedules:
        return None
    return slot.at + timedelta(seconds=GRACE_SECONDS)


def _anchored(timetable: Timetable, date: str, at: datetime) -> DueSlot:
    return DueSlot(timetable.schedule_id, date, at, timetable.why_dormant(date))


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
    return (expectation.comes_at, expectation.date, expectation.kind)


# How it came out: what counts.


def _done_at(kind: ExpectationKind, facts: Facts) -> datetime | None:
    match kind:
        case ExpectationKind.SCHEDULE | ExpectationKind.IRREGULAR_DATE | ExpectationKind.TRIGGER_DEADLINE:
            return facts.begun_at
        case ExpectationKind.EVALUATION_SLA:
            return facts.ready_at
        case ExpectationKind.COMPLETION_SLA | ExpectationKind.RELATIVE_SLA:
            return facts.succeeded_at
        case ExpectationKind.POST_RUN_SENSOR:
            return facts.post_run_sensor_at


def _waiver(expectation: Expectation, facts: Facts) -> str:
    """Return why an expectation that was not done in time is waived: only what was so by its time counts."""
    due_at = expectation.comes_at
    if facts.waived_at is not None and facts.waived_at < due_at:
        return facts.waived_by
    if facts.dry_run_at is not None and facts.dry_run_at < due_at:
        return "it was a dry run"
    return "the pipeline was paused" if _is_paused(facts, due_at) else ""


def _is_paused(facts: Facts, moment: datetime) -> bool:
    return any(pause.since <= moment and (pause.until is None or moment < pause.until) for pause in facts.pauses)


def _sentence(expectation: Expectation, facts: Facts) -> str:
    done_at = _done_at(expectation.kind, facts)
    due = f"{expectation.due_at:%Y-%m-%dT%H:%M:%SZ}"
    if done_at is not None:
        return f"expected by {due}, happened at {done_at:%Y-%m-%dT%H:%M:%SZ}"
    if facts.status is None:
        return f"expected by {due}, and nothing was begun"
    why = f": {facts.reason}" if facts.reason else ""
    return f"expected by {due}, and it was {facts.status}{why}"


def _first_success(log: RunLog) -> datetime | None:
    """Return the first success of a run: a rerun that is done later does not make the first one late."""
    done = [attempt.ended_at_ms for attempt in log.history if attempt.status.is_done]
    if log.succeeded_run_id:
        done.append(log.succeeded_at_ms)
    return _first(*map(_moment, done))


def _waived(log: RunLog) -> tuple[int | None, str]:
    order = log.order
    if order is not None and order.order in (Order.SKIP, Order.MARK_SUCCESS):
        return order.at_ms, f"{order.order} by {order.by}: {order.reason}"
    # Marked as done without a run, and then begun all the same.
    if log.succeeded_at_ms is not None and not log.succeeded_run_id:
        return log.succeeded_at_ms, f"{Order.MARK_SUCCESS} by hand"
    return None, ""


def _moment(at_ms: int | None) -> datetime | None:
    return None if at_ms is None else datetime.fromtimestamp(at_ms / 1000, UTC)


def _first(*moments: datetime | None) -> datetime | None:
    return min((moment for moment in moments if moment is not None), default=None)
