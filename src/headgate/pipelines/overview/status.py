"""Pipeline status: the current state of many pipelines, read in a fixed number of store calls."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import chain, islice
from typing import Final

from msgspec import Struct

from headgate.errors import HeadgateError
from headgate.health.model.timestamps import instant
from headgate.pipelines.definition.model import Period, Pipeline
from headgate.pipelines.enums import Cause, ControlState, ExpectationVerdict, RunStatus, Verdict
from headgate.pipelines.overview.attention import AttentionList
from headgate.pipelines.readiness.evaluation_log import Purpose, StoredEvaluation, evaluation_of
from headgate.pipelines.readiness.explain import Explanation, PeriodSnapshot, PeriodState, why
from headgate.pipelines.row_codec import struct_of
from headgate.pipelines.rules.compiler import RuleKind
from headgate.pipelines.rules.rules import RuleResult
from headgate.pipelines.runs.controls import Control, control_key, control_of
from headgate.pipelines.runs.locks import Lock, evaluation_key, lock_row_key
from headgate.pipelines.runs.rows import RunLog, Slot, run_log_of
from headgate.pipelines.schedule.calendars import Calendars
from headgate.pipelines.schedule.due_checks import Due, due_of
from headgate.pipelines.schedule.sla import SlaMoments, completion_moments, judge
from headgate.pipelines.schedule.timetables import DueSlot, Timetable, timetables
from headgate.pipelines.service import PipelineService
from headgate.store.catalogue.tables import EVALUATION, PIPELINES
from headgate.store.model.requests import Query, Range, Sort

PERIODS: Final = 24
# Search range for the next due slot: a schedule with few days has long gaps.
_HORIZONS: Final[Mapping[Period, timedelta]] = {
    Period.HOURLY: timedelta(days=4),
    Period.CUSTOM: timedelta(days=4),
    Period.DAILY: timedelta(days=14),
    Period.WEEKLY: timedelta(days=70),
    Period.MONTHLY: timedelta(days=70),
}


class PipelineState(enum.StrEnum):
    """State of a pipeline, most urgent first."""

    # The circuit breaker is open after consecutive failures.
    STOPPED = "stopped"
    FAILED = "failed"
    # A deadline has passed before completion.
    LATE = "late"
    STUCK = "stuck"
    # By an operator, or by the gate of a dataset.
    HELD = "held"
    # A period was due and never ran, although a later one is done.
    MISSED = "missed"
    PAUSED = "paused"
    WAITING = "waiting"
    RUNNING = "running"
    HEALTHY = "well"

    @property
    def needs_attention(self) -> bool:
        """Whether an operator should check it."""
        return self not in (PipelineState.WAITING, PipelineState.RUNNING, PipelineState.HEALTHY)


_ON_REQUEST: Final = frozenset({Cause.MANUAL, Cause.BACKFILL, Cause.RERUN, Cause.REPLAY})
_URGENCY: Final[Mapping[PipelineState, int]] = {state: rank for rank, state in enumerate(PipelineState)}


class SlaState(enum.StrEnum):
    """State of a deadline."""

    MET = "met"
    DUE = "due"
    AT_RISK = "at risk"
    BREACHED = "breached"


class DefinedPipeline(Struct, frozen=True):
    """A pipeline definition, and the time of its version."""

    pipeline: Pipeline
    at: str


class SlaStatus(Struct, frozen=True, kw_only=True):
    """Status of a period's deadline. `margin_seconds` is the time left, negative after the deadline."""

    state: SlaState
    margin_seconds: float
    is_done: bool
    at: str


class PipelineStatus(Struct, frozen=True, kw_only=True):
    """Status of a pipeline, based on its most relevant period."""

    pipeline: Pipeline
    state: PipelineState
    slot: Slot
    # Explanation of the state, without the pipeline's name.
    sentence: str
    # Up to `periods` latest run logs, and missed periods.
    periods: int
    logs: Sequence[RunLog]
    missed: Sequence[Slot]
    control: Control
    sla: SlaStatus | None
    next_due: str | None
    log: RunLog | None
    # Further states that apply.
    also: tuple[PipelineState, ...] = ()
    # The datasets whose gate holds the run, and the pipelines that it still waits for.
    held_by: tuple[str, ...] = ()
    waits_for: tuple[str, ...] = ()

    @property
    def urgency(self) -> tuple[int, int, str]:
        """Sort key: most urgent state first, then tier."""
        return _URGENCY[self.state], self.pipeline.tier, self.pipeline.id


class PipelineStatusReader:
    """Reads the status of pipelines."""

    def __init__(self, pipelines: PipelineService, attention: AttentionList) -> None:
        self._store = pipelines.store
        self._calendars = pipelines.reader.calendars()
        self._attention = attention
        self._now = pipelines.clock.now()

    def statuses(self, pipelines: Sequence[DefinedPipeline], *, periods: int = PERIODS) -> list[PipelineStatus]:
        """Return the status of each pipeline, in order, with four store calls in total."""
        if not pipelines:
            return []
        logs = self._logs(pipelines, periods)
        controls = self._controls(pipelines)
        selected = [self._select(each, logs[index], controls[index], periods) for index, each in enumerate(pipelines)]
        evaluations, locks = self._evaluations(selected), self._locks(selected)
        return [
            each.status(self._now, evaluations[index], locks[index], self._attention)
            for index, each in enumerate(selected)
        ]

    def _logs(self, pipelines: Sequence[DefinedPipeline], periods: int) -> list[list[RunLog]]:
        queries = [
            Query(
                table=PIPELINES,
                partition=f"PIPELINE#{each.pipeline.id}",
                sort=Sort(Range.BEGINS_WITH, "RUNLOG#"),
                limit=periods,
                descending=True,
            )
            for each in pipelines
        ]
        return [[run_log_of(item) for item in page.items] for page in self._store.query_many(queries)]

    def _controls(self, pipelines: Sequence[DefinedPipeline]) -> list[Control]:
        items = self._store.get_many(PIPELINES, [control_key(each.pipeline.id) for each in pipelines])
        return [
            Control(pipeline_id=each.pipeline.id) if item is None else control_of(item)
            for each, item in zip(pipelines, items, strict=True)
        ]

    def _locks(self, selected: Sequence[_SelectedPeriod]) -> list[Lock | None]:
        keys = [lock_row_key(evaluation_key(each.slot)) for each in selected]
        return [None if item is None else struct_of(item, Lock) for item in self._store.get_many(PIPELINES, keys)]

    def _evaluations(self, selected: Sequence[_SelectedPeriod]) -> list[StoredEvaluation | None]:
        queries = []
        for each in selected:
            key = EVALUATION.key(**each.slot._asdict(), evaluation_id=f"{Purpose.READINESS.value}_")
            sort = Sort(Range.BEGINS_WITH, key.sort or "")
            queries.append(Query(table=PIPELINES, partition=key.partition, sort=sort, limit=1, descending=True))
        pages = self._store.query_many(queries)
        return [evaluation_of(page.items[0]) if page.items else None for page in pages]

    def _select(self, defined: DefinedPipeline, logs: list[RunLog], control: Control, periods: int) -> _SelectedPeriod:
        pipeline = defined.pipeline
        tables = _timetables(pipeline, self._calendars)
        missed = [slot for slot in self._attention.missed.get(pipeline.id, ()) if _is_open(self._log(slot, logs))]
        overdue = [slot for slot in missed if not _is_later_done(slot, logs)]
        current = [Slot(pipeline.id, table.schedule_id, table.date_of(self._now)) for table in tables]
        failed = _failed(logs, control)
        slot = _slot(failed, overdue, missed, logs, current or [Slot(pipeline.id, "", "")])
        log = self._log(slot, logs)
        timetable = next((each for each in tables if each.schedule_id == slot.schedule_id), None)
        return _SelectedPeriod(
            pipeline=pipeline,
            slot=slot,
            log=log,
            control=control,
            timetable=timetable,
            due=_due(pipeline, slot, self._calendars),
            periods=periods,
            logs=logs,
            missed=missed,
            next_due=_next_due(pipeline, tables, self._now),
            is_failed=failed is not None,
            is_overdue=slot in overdue,
            is_expected=slot in missed or _is_expected(log, timetable, slot.date, defined.at),
        )

    def _log(self, slot: Slot, logs: Sequence[RunLog]) -> RunLog | None:
        return next((log for log in logs if log.slot == slot), None) or self._attention.logs.get(slot)


class _SelectedPeriod(Struct, frozen=True, kw_only=True):
    """The most relevant period of a pipeline, and its data except the evaluation."""

    pipeline: Pipeline
    slot: Slot
    log: RunLog | None
    control: Control
    timetable: Timetable | None
    due: Due
    periods: int
    logs: Sequence[RunLog]
    missed: Sequence[Slot]
    next_due: str | None
    is_failed: bool
    # Whether it was missed, and no later period is done.
    is_overdue: bool
    # Whether it runs by schedule rather than on request: only then its deadline applies.
    is_expected: bool

    def status(
        self, now: datetime, evaluation: StoredEvaluation | None, lock: Lock | None, attention: AttentionList
    ) -> PipelineStatus:
        explanation = why(
            PeriodSnapshot(
                pipeline=self.pipeline,
                slot=self.slot,
                now=now,
                log=self.log,
                control=self.control,
                lock=lock,
                evaluation=evaluation,
                due=self.due,
            )
        )
        is_judged = self.is_expected and not self.due.excluded
        sla = _sla(self.timetable, self.slot.date, self.log, now) if is_judged else None
        now_ms = int(now.timestamp() * 1000)
        is_gated = self._is_gated(evaluation)
        state = self._state(explanation.state, sla, now_ms, attention, is_gated=is_gated)
        return PipelineStatus(
            pipeline=self.pipeline,
            state=state,
            slot=self.slot,
            sentence=self._sentence(explanation, state),
            periods=self.periods,
            logs=self.logs,
            missed=self.missed,
            control=self.control,
            sla=sla,
            next_due=self.next_due,
            log=self.log,
            also=tuple(each for each in self._also(now_ms, is_gated=is_gated) if each is not state),
            held_by=self._unmet(evaluation, RuleKind.DATASET),
            waits_for=self._unmet(evaluation, RuleKind.UPSTREAM),
        )

    def _is_gated(self, evaluation: StoredEvaluation | None) -> bool:
        """Whether the run waits for a dataset that may not be read."""
        return any(
            leaf.kind is RuleKind.DATASET and leaf.verdict is Verdict.FAIL for leaf in self._blocking(evaluation)
        )

    def _unmet(self, evaluation: StoredEvaluation | None, kind: RuleKind) -> tuple[str, ...]:
        """Return what the rules of a kind read that the run still waits for."""
        unmet = (leaf for leaf in self._blocking(evaluation) if leaf.kind is kind and leaf.verdict is not Verdict.PASS)
        return tuple(dict.fromkeys(leaf.subject for leaf in unmet))

    def _blocking(self, evaluation: StoredEvaluation | None) -> Iterator[RuleResult]:
        """Yield the rules that keep the run from starting, nested ones included."""
        if evaluation is None or self.log is None or not self.log.is_live or self.log.status is not RunStatus.PENDING:
            return
        for result in evaluation.evaluation.counted:
            if result.verdict is not Verdict.PASS:
                yield from result.walk()

    def _sentence(self, explanation: Explanation, state: PipelineState) -> str:
        if state is PipelineState.MISSED:
            count = len(self.missed)
            which = "1 period was missed" if count == 1 else f"{count} periods were missed, the last"
            return f"{which}: {max(slot.date for slot in self.missed)}; run it with a backfill, or skip it"
        if explanation.state is PeriodState.UNASKED and self.due.due_at_ms is not None and not self.is_expected:
            return f"{self.slot.date} was due before the current definition; it has not started"
        return explanation.sentence.removeprefix(f"{self.slot.pipeline_id} of ")

    def _also(self, now_ms: int, *, is_gated: bool) -> Iterator[PipelineState]:
        if is_gated or (self.log is not None and self.log.hold is not None):
            yield PipelineState.HELD
        if self.missed and not self.is_overdue:
            yield PipelineState.MISSED
        if self.control.state_at(now_ms) is ControlState.PAUSED:
            yield PipelineState.PAUSED

    def _state(
        self, standing: PeriodState, sla: SlaStatus | None, now_ms: int, attention: AttentionList, *, is_gated: bool
    ) -> PipelineState:
        log, control = self.log, self.control.state_at(now_ms)
        is_over = log is not None and (log.status.is_done or log.status.is_terminal)
        # The deadline of a missed period is not the question once a later one is done.
        is_old = self.slot in self.missed and not self.is_overdue
        is_breached = sla is not None and sla.state is SlaState.BREACHED and not is_over and not is_old
        is_stuck = log is not None and log.is_live and log.run_id in attention.stuck_runs
        is_due = self.due.due_at_ms is not None and self.is_expected and not is_old
        is_unasked = standing is PeriodState.UNASKED and is_due
        candidates = (
            (control is ControlState.TRIPPED, PipelineState.STOPPED),
            (self.is_failed, PipelineState.FAILED),
            (self.is_overdue or is_breached, PipelineState.LATE),
            # Due, but never requested: its initiator failed.
            (is_stuck or is_unasked, PipelineState.STUCK),
            (standing is PeriodState.HELD or is_gated, PipelineState.HELD),
            (bool(self.missed), PipelineState.MISSED),
            (control is ControlState.PAUSED, PipelineState.PAUSED),
            (log is not None and log.is_live and log.status is RunStatus.PENDING, PipelineState.WAITING),
            (log is not None and log.is_live, PipelineState.RUNNING),
        )
        return next((state for applies, state in candidates if applies), PipelineState.HEALTHY)


def _is_open(log: RunLog | None) -> bool:
    """Whether a missed period is not finished yet: neither run, nor skipped or marked as done."""
    return log is None or not (log.status.is_done or log.status.is_terminal)


def _is_later_done(slot: Slot, logs: Sequence[RunLog]) -> bool:
    """Whether a later period of the same schedule is done."""
    later = (each for each in logs if each.schedule_id == slot.schedule_id and each.date > slot.date)
    return any(each.status.is_done for each in later)


def _is_expected(log: RunLog | None, timetable: Timetable | None, date: str, defined_at: str) -> bool:
    """Whether a period runs by schedule: it was, or will be, started without a request."""
    if log is not None and log.history:
        first = log.history[0]
        return first.cause not in _ON_REQUEST or _is_before_deadline(timetable, date, first.begun_at_ms)
    try:
        # Slots before the current definition are judged by the watchdog.
        return timetable is not None and _text(timetable.ready_at(date)) >= defined_at
    except HeadgateError:
        return False


def _is_before_deadline(timetable: Timetable | None, date: str, begun_at_ms: int) -> bool:
    """Whether a run that an operator started can still meet its deadline, which is then owed."""
    try:
        moments = None if timetable is None else completion_moments(timetable, date)
    except HeadgateError:
        return False
    return moments is not None and begun_at_ms < moments.breach_at.timestamp() * 1000


def _failed(logs: Sequence[RunLog], control: Control) -> RunLog | None:
    """Return the last failed period, unless a later run succeeded."""
    failed = [log for log in logs if log.status is RunStatus.FAILED]
    if control.failures_in_a_row:
        named = next((log for log in failed if log.run_id == control.last_failed_run_id), None)
        if named is not None:
            return named
    return failed[0] if failed and failed[0] is logs[0] else None


def _slot(
    failed: RunLog | None,
    overdue: Sequence[Slot],
    missed: Sequence[Slot],
    logs: Sequence[RunLog],
    current: Sequence[Slot],
) -> Slot:
    """Return the most relevant period: failed, overdue, held, running, missed, or else the current one."""
    if failed is not None:
        return failed.slot
    if overdue:
        return max(overdue, key=lambda slot: slot.date)
    running = [log.slot for log in logs if log.is_live]
    held = (log.slot for log in logs if log.hold is not None)
    return next(chain(held, running, sorted(missed, key=lambda slot: slot.date, reverse=True), current))


def _timetables(pipeline: Pipeline, calendars: Calendars) -> list[Timetable]:
    try:
        return timetables(pipeline, calendars)
    except HeadgateError:
        # A time zone unknown on this machine must not fail the whole list.
        return []


def _due(pipeline: Pipeline, slot: Slot, calendars: Calendars) -> Due:
    try:
        return due_of(pipeline, slot, calendars)
    except HeadgateError as exc:
        # The schedule has changed since, or its calendar was deleted.
        return Due(unscheduled=exc.message)


def _next_due(pipeline: Pipeline, tables: Sequence[Timetable], now: datetime) -> str | None:
    """Return the next due time by the clock; None if there is none soon."""
    if not pipeline.schedules:
        return None
    until = now + _HORIZONS[pipeline.period]
    upcoming: list[datetime] = []
    for table in tables:
        try:
            upcoming += [slot.at for slot in islice(_open_slots(table, now, until), 1)]
        except HeadgateError:
            continue
    return _text(min(upcoming)) if upcoming else None


def _open_slots(table: Timetable, after: datetime, until: datetime) -> Iterator[DueSlot]:
    return (slot for slot in table.slots(after, until) if slot.excluded is None)


def _sla(table: Timetable | None, date: str, log: RunLog | None, now: datetime) -> SlaStatus | None:
    """Return the deadline status of a period; None if it has no deadline by the clock."""
    try:
        moments = None if table is None else completion_moments(table, date)
    except HeadgateError:
        moments = None
    return None if moments is None else sla_status(moments, log, now)


def sla_margins(pipeline: Pipeline, logs: Sequence[RunLog], calendars: Calendars) -> list[tuple[int, float]]:
    """Return when periods were done and the seconds to their deadline, negative if late; in order of time."""
    found: list[tuple[int, float]] = []
    for log in logs:
        moments = None if log.succeeded_at_ms is None else sla_moments(pipeline, log.slot, calendars)
        if moments is not None and log.succeeded_at_ms is not None:
            found.append((log.succeeded_at_ms, moments.breach_at.timestamp() - log.succeeded_at_ms / 1000))
    return sorted(found)


def sla_moments(pipeline: Pipeline, slot: Slot, calendars: Calendars) -> SlaMoments | None:
    """Return the deadline of a period; None if it has none by the clock, or its schedule has changed since."""
    tables = _timetables(pipeline, calendars)
    table = next((each for each in tables if each.schedule_id == slot.schedule_id), None)
    try:
        return None if table is None else completion_moments(table, slot.date)
    except HeadgateError:
        return None


def sla_status(moments: SlaMoments, log: RunLog | None, now: datetime) -> SlaStatus:
    """Return the status of a deadline."""
    succeeded_at_ms = None if log is None else log.succeeded_at_ms
    done_at = None if succeeded_at_ms is None else datetime.fromtimestamp(succeeded_at_ms / 1000, UTC)
    verdict = judge(moments, done_at, now)
    left_seconds = (moments.breach_at - now).total_seconds()
    match verdict.verdict:
        case ExpectationVerdict.MET:
            state = SlaState.MET
        case ExpectationVerdict.MISSED:
            state = SlaState.BREACHED
        case _:
            state = SlaState.AT_RISK if verdict.warned else SlaState.DUE
    # Without a margin a met deadline was met at an unknown time, and a breached one is still open.
    is_closed = state in (SlaState.MET, SlaState.BREACHED)
    margin = verdict.margin_seconds if is_closed else None
    open_margin = 0.0 if state is SlaState.MET else left_seconds
    return SlaStatus(
        state=state,
        margin_seconds=open_margin if margin is None else margin,
        is_done=margin is not None,
        at=_text(moments.breach_at),
    )


def _text(moment: datetime) -> str:
    return instant(round(moment.timestamp() * 1000))
