"""Standings: where many pipelines stand, read in a handful of calls however many periods and runs they have."""

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
from headgate.pipelines.enums import Cause, ControlState, ExpectationVerdict, RunStatus
from headgate.pipelines.readiness.evaluation_log import Purpose, StoredEvaluation, evaluation_of
from headgate.pipelines.readiness.explain import Explanation, PeriodSnapshot, PeriodState, why
from headgate.pipelines.row_codec import struct_of
from headgate.pipelines.runs.controls import Control, control_key, control_of
from headgate.pipelines.runs.locks import Lock, evaluation_key, lock_row_key
from headgate.pipelines.runs.rows import RunLog, Slot, run_log_of
from headgate.pipelines.schedule.calendars import Calendars
from headgate.pipelines.schedule.due_checks import Due, due_of
from headgate.pipelines.schedule.sla import SlaMoments, completion_moments, judge
from headgate.pipelines.schedule.timetables import DueSlot, Timetable, timetables
from headgate.pipelines.service import PipelineService
from headgate.serve.pages.attention import AttentionList
from headgate.serve.pages.labels import span
from headgate.serve.pages.period_grid import PeriodStrip, cells
from headgate.store.catalogue.tables import EVALUATION, PIPELINES
from headgate.store.model.requests import Query, Range, Sort

PERIODS: Final = 24
# How far to look for what is due next: a schedule with few days of its own has many that are none.
_HORIZONS: Final[Mapping[Period, timedelta]] = {
    Period.HOURLY: timedelta(days=4),
    Period.CUSTOM: timedelta(days=4),
    Period.DAILY: timedelta(days=14),
    Period.WEEKLY: timedelta(days=70),
    Period.MONTHLY: timedelta(days=70),
}


class State(enum.StrEnum):
    """How a pipeline stands, the most urgent first."""

    # Failures in a row have opened its breaker.
    STOPPED = "stopped"
    FAILED = "failed"
    # A deadline has passed, and the period is not done.
    LATE = "late"
    STUCK = "stuck"
    HELD = "held"
    PAUSED = "paused"
    WAITING = "waiting"
    RUNNING = "running"
    WELL = "well"

    @property
    def is_trouble(self) -> bool:
        """Whether someone should look at it before anything else."""
        return self not in (State.WAITING, State.RUNNING, State.WELL)


_ASKED_FOR: Final = frozenset({Cause.MANUAL, Cause.BACKFILL, Cause.RERUN, Cause.REPLAY})
MET: Final = "met"
DUE: Final = "due"
AT_RISK: Final = "at risk"
BREACHED: Final = "breached"
_URGENCY: Final[Mapping[State, int]] = {state: rank for rank, state in enumerate(State)}


class Defined(Struct, frozen=True):
    """A pipeline as it is defined, and since when."""

    pipeline: Pipeline
    at: str


class SlaStanding(Struct, frozen=True, kw_only=True):
    """How the deadline of a period stands: a word, how far from it, and the moment."""

    word: str
    text: str
    at: str


class PipelineRow(Struct, frozen=True, kw_only=True):
    """Where a pipeline stands, told by the period of it that someone should look at."""

    pipeline: Pipeline
    state: State
    slot: Slot
    # What it waits for or has come to, without its own name, which stands beside it.
    sentence: str
    strip: PeriodStrip
    control: Control
    sla: SlaStanding | None
    next_due: str | None
    log: RunLog | None
    # What else holds of it, beside its state.
    also: tuple[str, ...] = ()

    @property
    def urgency(self) -> tuple[int, int, str]:
        """The order in which someone on call looks: the worst first, and of those alike what matters most."""
        return _URGENCY[self.state], self.pipeline.tier, self.pipeline.id


class PipelineStatusReader:
    """Reads where pipelines stand."""

    def __init__(self, pipelines: PipelineService, troubles: AttentionList) -> None:
        self._store = pipelines.store
        self._calendars = pipelines.reader.calendars()
        self._troubles = troubles
        self._now = pipelines.clock.now()

    def rows(self, pipelines: Sequence[Defined], *, periods: int = PERIODS) -> list[PipelineRow]:
        """Return where each of some pipelines stands, in their order: four calls of the store for all of them."""
        if not pipelines:
            return []
        logs = self._logs(pipelines, periods)
        controls = self._controls(pipelines)
        looks = [self._look(each, logs[index], controls[index], periods) for index, each in enumerate(pipelines)]
        evaluations, locks = self._evaluations(looks), self._locks(looks)
        return [
            look.row(self._now, evaluations[index], locks[index], self._troubles) for index, look in enumerate(looks)
        ]

    # Reading.

    def _logs(self, pipelines: Sequence[Defined], periods: int) -> list[list[RunLog]]:
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

    def _controls(self, pipelines: Sequence[Defined]) -> list[Control]:
        found = self._store.get_many(PIPELINES, [control_key(each.pipeline.id) for each in pipelines])
        return [
            Control(pipeline_id=each.pipeline.id) if item is None else control_of(item)
            for each, item in zip(pipelines, found, strict=True)
        ]

    def _locks(self, looks: Sequence[_Look]) -> list[Lock | None]:
        keys = [lock_row_key(evaluation_key(each.slot)) for each in looks]
        return [None if item is None else struct_of(item, Lock) for item in self._store.get_many(PIPELINES, keys)]

    def _evaluations(self, looks: Sequence[_Look]) -> list[StoredEvaluation | None]:
        queries = []
        for each in looks:
            key = EVALUATION.key(**each.slot._asdict(), evaluation_id=f"{Purpose.READINESS.value}_")
            sort = Sort(Range.BEGINS_WITH, key.sort or "")
            queries.append(Query(table=PIPELINES, partition=key.partition, sort=sort, limit=1, descending=True))
        pages = self._store.query_many(queries)
        return [evaluation_of(page.items[0]) if page.items else None for page in pages]

    # Deciding.

    def _look(self, defined: Defined, logs: list[RunLog], control: Control, periods: int) -> _Look:
        pipeline = defined.pipeline
        tables = _timetables(pipeline, self._calendars)
        missed = [
            slot for slot in self._troubles.missed.get(pipeline.id, ()) if _is_open(slot, self._log(slot, logs), logs)
        ]
        current = [Slot(pipeline.id, table.schedule_id, table.date_of(self._now)) for table in tables]
        failed = _failed(logs, control)
        slot = _slot(failed, missed, logs, current or [Slot(pipeline.id, "", "")])
        now_ms = int(self._now.timestamp() * 1000)
        drawn = cells(logs, missed, now_ms)[-periods:]
        log = self._log(slot, logs)
        timetable = next((each for each in tables if each.schedule_id == slot.schedule_id), None)
        return _Look(
            pipeline=pipeline,
            slot=slot,
            log=log,
            control=control,
            timetable=timetable,
            due=_due(pipeline, slot, self._calendars),
            strip=PeriodStrip(tuple(drawn), periods),
            next_due=_next_due(pipeline, tables, self._now),
            is_failed=failed is not None,
            is_missed=slot in missed,
            is_expected=slot in missed or _is_expected(log, timetable, slot.date, defined.at),
        )

    def _log(self, slot: Slot, logs: Sequence[RunLog]) -> RunLog | None:
        return next((log for log in logs if log.slot == slot), None) or self._troubles.logs.get(slot)


class _Look(Struct, frozen=True, kw_only=True):
    """What is known of a pipeline before its rules are looked at, and which of its periods to look at."""

    pipeline: Pipeline
    slot: Slot
    log: RunLog | None
    control: Control
    timetable: Timetable | None
    due: Due
    strip: PeriodStrip
    next_due: str | None
    is_failed: bool
    is_missed: bool
    # Whether it is done by itself and not because someone asked for it: only then does a deadline mean anything.
    is_expected: bool

    def row(
        self, now: datetime, evaluation: StoredEvaluation | None, lock: Lock | None, troubles: AttentionList
    ) -> PipelineRow:
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
        state = self._state(explanation.state, sla, now_ms, troubles)
        return PipelineRow(
            pipeline=self.pipeline,
            state=state,
            slot=self.slot,
            sentence=self._sentence(explanation),
            strip=self.strip,
            control=self.control,
            sla=sla,
            next_due=self.next_due,
            log=self.log,
            also=tuple(each.value for each in self._also(now_ms) if each is not state),
        )

    def _sentence(self, explanation: Explanation) -> str:
        if explanation.state is PeriodState.UNASKED and self.due.due_at_ms is not None and not self.is_expected:
            return f"{self.slot.date} was due before the pipeline was defined as it is now; nothing has begun it"
        return explanation.sentence.removeprefix(f"{self.slot.pipeline_id} of ")

    def _also(self, now_ms: int) -> Iterator[State]:
        if self.log is not None and self.log.hold is not None:
            yield State.HELD
        if self.control.state_at(now_ms) is ControlState.PAUSED:
            yield State.PAUSED

    def _state(self, standing: PeriodState, sla: SlaStanding | None, now_ms: int, troubles: AttentionList) -> State:
        log, control = self.log, self.control.state_at(now_ms)
        is_over = log is not None and (log.status.is_done or log.status.is_terminal)
        is_breached = sla is not None and sla.word == BREACHED and not is_over
        is_stuck = log is not None and log.is_live and log.run_id in troubles.stuck_runs
        is_unasked = standing is PeriodState.UNASKED and self.due.due_at_ms is not None and self.is_expected
        found = (
            (control is ControlState.TRIPPED, State.STOPPED),
            (self.is_failed, State.FAILED),
            (self.is_missed or is_breached, State.LATE),
            # Due, and nothing has asked for it: whoever should has not.
            (is_stuck or is_unasked, State.STUCK),
            (standing is PeriodState.HELD, State.HELD),
            (control is ControlState.PAUSED, State.PAUSED),
            (log is not None and log.is_live and log.status is RunStatus.PENDING, State.WAITING),
            (log is not None and log.is_live, State.RUNNING),
        )
        return next((state for is_so, state in found if is_so), State.WELL)


def _is_open(slot: Slot, log: RunLog | None, logs: Sequence[RunLog]) -> bool:
    """Whether a period that was missed still matters: it is not over, and no later one of its schedule is done."""
    if log is not None and (log.status.is_done or log.status.is_terminal):
        return False
    later = (each for each in logs if each.schedule_id == slot.schedule_id and each.date > slot.date)
    return not any(each.status.is_done for each in later)


def _is_expected(log: RunLog | None, timetable: Timetable | None, date: str, defined_at: str) -> bool:
    """Whether a period is to be done by itself: something other than a person began it, or will."""
    if log is not None and log.history:
        return log.history[0].cause not in _ASKED_FOR
    try:
        # What was due before the pipeline was what it is now is the watchdog's to judge.
        return timetable is not None and _text(timetable.ready_at(date)) >= defined_at
    except HeadgateError:
        return False


def _failed(logs: Sequence[RunLog], control: Control) -> RunLog | None:
    """Return the period whose failure stands: the one that failed last, unless something has succeeded since."""
    failed = [log for log in logs if log.status is RunStatus.FAILED]
    if control.failures_in_a_row:
        named = next((log for log in failed if log.run_id == control.last_failed_run_id), None)
        if named is not None:
            return named
    return failed[0] if failed and failed[0] is logs[0] else None


def _slot(failed: RunLog | None, missed: Sequence[Slot], logs: Sequence[RunLog], current: Sequence[Slot]) -> Slot:
    """Return the period to look at: what went wrong, what is held, what is under way, or else the present one."""
    if failed is not None:
        return failed.slot
    if missed:
        return max(missed, key=lambda slot: slot.date)
    under_way = [log.slot for log in logs if log.is_live]
    held = (log.slot for log in logs if log.hold is not None)
    return next(chain(held, under_way, current))


def _timetables(pipeline: Pipeline, calendars: Calendars) -> list[Timetable]:
    try:
        return timetables(pipeline, calendars)
    except HeadgateError:
        # A zone that this machine does not know, in a row of someone else's: the rest of the page does not hang on it.
        return []


def _due(pipeline: Pipeline, slot: Slot, calendars: Calendars) -> Due:
    try:
        return due_of(pipeline, slot, calendars)
    except HeadgateError as exc:
        # A period of a schedule that was otherwise once, or a calendar that is gone.
        return Due(unscheduled=exc.message)


def _next_due(pipeline: Pipeline, tables: Sequence[Timetable], now: datetime) -> str | None:
    """Return when the clock makes the next period due; None: it does not, or not soon."""
    if not pipeline.schedules:
        return None
    until = now + _HORIZONS[pipeline.period]
    found: list[datetime] = []
    for table in tables:
        try:
            found += [slot.at for slot in islice(_open_slots(table, now, until), 1)]
        except HeadgateError:
            continue
    return _text(min(found)) if found else None


def _open_slots(table: Timetable, after: datetime, until: datetime) -> Iterator[DueSlot]:
    return (slot for slot in table.slots(after, until) if slot.excluded is None)


def _sla(table: Timetable | None, date: str, log: RunLog | None, now: datetime) -> SlaStanding | None:
    """Return how the deadline of a period stands; None: it has none, or none that the clock alone tells."""
    try:
        moments = None if table is None else completion_moments(table, date)
    except HeadgateError:
        moments = None
    return None if moments is None else sla_standing(moments, log, now)


def sla_standing(moments: SlaMoments, log: RunLog | None, now: datetime) -> SlaStanding:
    """Return how a deadline stands, in words."""
    succeeded_at_ms = None if log is None else log.succeeded_at_ms
    done_at = None if succeeded_at_ms is None else datetime.fromtimestamp(succeeded_at_ms / 1000, UTC)
    verdict = judge(moments, done_at, now)
    left_seconds = (moments.breach_at - now).total_seconds()
    at = _text(moments.breach_at)
    margin = verdict.margin_seconds
    match verdict.verdict:
        case ExpectationVerdict.MET:
            return SlaStanding(word=MET, text=f"{span(margin or 0)} before its time", at=at)
        case ExpectationVerdict.MISSED:
            late_seconds = -left_seconds if margin is None else -margin
            said = "and not done" if margin is None else "late"
            return SlaStanding(word=BREACHED, text=f"{span(late_seconds)} {said}", at=at)
        case _:
            word = AT_RISK if verdict.warned else DUE
            return SlaStanding(word=word, text=f"{span(left_seconds)} left", at=at)


def _text(moment: datetime) -> str:
    return instant(round(moment.timestamp() * 1000))
