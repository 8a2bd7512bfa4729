"""Schedule check: gives every expectation that has fallen due its verdict, after any downtime.

Missed schedules, missed irregular dates, trigger deadlines and clock-based SLAs share one cursor of a schedule. It
moves only when each of them has its verdict, so an error is retried at the next tick.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from msgspec.structs import replace

from headgate.errors import ConflictError, HeadgateError
from headgate.pipelines.definition_reader import DefinitionReader
from headgate.pipelines.enums import ExpectationKind, ExpectationVerdict
from headgate.pipelines.runs.rows import Slot
from headgate.pipelines.runs.store import Runs
from headgate.pipelines.schedule.timetables import Timetable
from headgate.pipelines.watchdog import expectations
from headgate.pipelines.watchdog.cursors import HORIZON, Cursor, Cursors, QueuedSchedule, ScheduleQueue, ScheduleRef
from headgate.pipelines.watchdog.expectations import Expectation, ExpectationFacts, ExpectationJudgement
from headgate.pipelines.watchdog.period_facts import PeriodFactReader, status_of
from headgate.pipelines.watchdog.roster import CheckBudget, CheckTally
from headgate.pipelines.watchdog.thresholds import DEFAULTS, Thresholds
from headgate.pipelines.watchdog.verdicts import Verdicts, iso

BY: Final = "watchdog"
CHECK: Final = "schedules"
_MINUTE: Final = timedelta(minutes=1)
_BATCH: Final = 100
# The check that each kind is counted and reported under.
CHECKS: Final = {
    ExpectationKind.SCHEDULE: "missed-schedules",
    ExpectationKind.IRREGULAR_DATE: "missed-irregular-dates",
    ExpectationKind.TRIGGER_DEADLINE: "trigger-deadlines",
    ExpectationKind.EVALUATION_SLA: "evaluation-sla",
    ExpectationKind.COMPLETION_SLA: "completion-sla",
    ExpectationKind.RELATIVE_SLA: "relative-sla",
    ExpectationKind.POST_RUN_SENSOR: "post-run-sensors",
}


class ScheduleCheck:
    """Judges the expectations of schedules."""

    def __init__(
        self,
        runs: Runs,
        definitions: DefinitionReader,
        verdicts: Verdicts,
        facts: PeriodFactReader,
        cursors: Cursors,
        queue: ScheduleQueue,
        thresholds: Thresholds = DEFAULTS,
    ) -> None:
        self._runs = runs
        self._thresholds = thresholds
        self._definitions = definitions
        self._verdicts = verdicts
        self._facts = facts
        self._cursors = cursors
        self._queue = queue

    def __call__(self, now: datetime, budget: CheckBudget, tally: CheckTally) -> None:
        """Check every due schedule within the budget. An error in one does not stop the others."""
        # Entries taken from the queue: all go back, whatever happens.
        left: dict[ScheduleRef, QueuedSchedule] = {}
        checked: list[tuple[QueuedSchedule, datetime]] = []
        try:
            while not budget.is_over() and (entry := self._queue.pop_due(now)) is not None:
                left[entry.ref] = entry
                try:
                    checked.append(self._check(entry, now, budget, tally))
                except HeadgateError as exc:
                    tally.failed(CHECK, "/".join(entry.ref), exc)
                if len(checked) >= _BATCH:
                    self._save(checked, left, now)
            self._save(checked, left, now)
        finally:
            for entry in left.values():
                self._queue.requeue(entry, now)

    def _save(
        self, checked: list[tuple[QueuedSchedule, datetime]], left: dict[ScheduleRef, QueuedSchedule], now: datetime
    ) -> None:
        """Store the cursors of checked schedules with one commit; those with more to judge now stay in `left`."""
        outcomes = self._cursors.put_all([entry.cursor for entry, _ in checked])
        for (entry, next_at), is_saved in zip(checked, outcomes, strict=True):
            current = entry if is_saved else self._reloaded(entry)
            if next_at > now:
                del left[entry.ref]
                self._queue.requeue(current, next_at)
            else:
                left[entry.ref] = current
        checked.clear()

    def _reloaded(self, entry: QueuedSchedule) -> QueuedSchedule:
        """Return a schedule with the cursor of another watchdog. Verdicts of both are stored once."""
        cursor = self._cursors.find_all([entry.ref])[0]
        return replace(entry, cursor=replace(entry.cursor, version=0) if cursor is None else cursor)

    def _check(
        self, entry: QueuedSchedule, now: datetime, budget: CheckBudget, tally: CheckTally
    ) -> tuple[QueuedSchedule, datetime]:
        """Judge a schedule up to now, and return it with the time of its next check: now, if something is left."""
        timetable = self._definitions.timetable(entry.pipeline, entry.ref.schedule_id)
        assert timetable is not None, "the queue has only schedules of the definition"
        cursor = entry.cursor
        grace_seconds = self._thresholds.of(entry.pipeline).schedule_grace_seconds
        while cursor.judged_through < now and not budget.is_over():
            batch = expectations.due_expectations(
                timetable,
                created_at=cursor.since,
                judged_through=cursor.judged_through,
                now=now,
                grace_seconds=grace_seconds,
            )
            # Judge all even if one fails: the stored verdicts are not repeated.
            outcomes = [self._is_judged(timetable, each, now, tally) for each in batch.due]
            for each in batch.warnings:
                self._warn(timetable, each, now, tally)
            if not all(outcomes):
                return _moved(entry, cursor, now)
            if batch.judged_through <= cursor.judged_through:
                # The definition lies in the future of this clock: nothing is expected until then.
                return _moved(entry, cursor, min(max(cursor.since, now + _MINUTE), now + HORIZON))
            cursor = replace(cursor, judged_through=batch.judged_through)
        if cursor.judged_through < now:
            return _moved(entry, cursor, now)
        following = expectations.next_at(
            timetable, created_at=cursor.since, after=cursor.judged_through, grace_seconds=grace_seconds
        )
        return _moved(entry, cursor, min(following, now + HORIZON))

    def _is_judged(self, timetable: Timetable, expectation: Expectation, now: datetime, tally: CheckTally) -> bool:
        check = CHECKS[expectation.kind]
        try:
            self._judge(timetable, expectation, now, tally)
        except HeadgateError as exc:
            tally.failed(check, f"{timetable.pipeline.id}/{expectation.schedule_id}/{expectation.date}", exc)
            return False
        return True

    def _judge(self, timetable: Timetable, expectation: Expectation, now: datetime, tally: CheckTally) -> None:
        pipeline = timetable.pipeline
        slot = Slot(pipeline.id, expectation.schedule_id, expectation.date)
        if self._verdicts.find(slot, expectation.kind) is not None:
            return
        facts = self._facts.read(pipeline, slot, expectation.kind)
        if not expectations.is_expected(expectation, facts):
            return
        judgement = expectations.judge(expectation, facts, now)
        if _is_closing(expectation, facts, judgement):
            closed = self._close(slot, expectation, judgement)
            if closed is not None:
                tally.found(CHECKS[expectation.kind], count=int(closed))
                return
            # The period started in between: judge it again by its log.
            facts = self._facts.read(pipeline, slot, expectation.kind)
            judgement = expectations.judge(expectation, facts, now)
        is_new = self._verdicts.judge_once(pipeline.id, expectation, judgement, status=status_of(facts))
        if is_new and judgement.verdict is ExpectationVerdict.MISSED:
            tally.found(CHECKS[expectation.kind])

    def _close(self, slot: Slot, expectation: Expectation, judgement: ExpectationJudgement) -> bool | None:
        """Close a period without its sensor, with its verdict. None: it has started; False: it has a verdict."""
        reason = f"its sensor did not come by {iso(expectation.due_at)}"
        also = self._verdicts.verdict_writes(slot.pipeline_id, expectation, judgement)
        try:
            return None if self._runs.close(slot, reason, by=BY, also=also) is None else True
        except ConflictError:
            if self._verdicts.find(slot, expectation.kind) is None:
                raise
            return False

    def _warn(self, timetable: Timetable, expectation: Expectation, now: datetime, tally: CheckTally) -> None:
        pipeline = timetable.pipeline
        slot = Slot(pipeline.id, expectation.schedule_id, expectation.date)
        check = CHECKS[expectation.kind]
        try:
            facts = self._facts.read(pipeline, slot, expectation.kind)
            is_due = expectations.is_expected(expectation, facts) and expectations.is_warning_due(
                expectation, facts, now
            )
            if is_due and self._verdicts.warn_once(pipeline.id, expectation, status=status_of(facts)):
                tally.found(check)
        except HeadgateError as exc:
            tally.failed(check, str(slot), exc)


def _is_closing(expectation: Expectation, facts: ExpectationFacts, judgement: ExpectationJudgement) -> bool:
    """Whether the trigger deadline of a period passed without a start."""
    is_missed = judgement.verdict is ExpectationVerdict.MISSED
    return is_missed and expectation.kind is ExpectationKind.TRIGGER_DEADLINE and facts.begun_at is None


def _moved(entry: QueuedSchedule, cursor: Cursor, next_at: datetime) -> tuple[QueuedSchedule, datetime]:
    """Return a schedule with a moved cursor, and its next check."""
    version = entry.definition_version
    moved = replace(cursor, definition_version=version, next_at=next_at, version=cursor.version + 1)
    return replace(entry, cursor=moved), next_at
