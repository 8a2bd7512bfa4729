"""The check of schedules: every expectation whose time has come gets its verdict, after however long.

Missed schedules, missed dates of their own, trigger deadlines and the SLAs of the clock all come from one cursor of a
schedule. It moves on only once each of them has its verdict, so that what could not be judged is judged the next time.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from msgspec.structs import replace

from headgate.errors import ConflictError, HeadgateError
from headgate.pipelines.context import Parts
from headgate.pipelines.enums import ExpectationKind, ExpectationVerdict
from headgate.pipelines.runs.rows import Slot
from headgate.pipelines.schedule.timetables import Timetable
from headgate.pipelines.watchdog import expectations
from headgate.pipelines.watchdog.cursors import HORIZON, Agenda, Cursor, Cursors, Entry, ScheduleRef
from headgate.pipelines.watchdog.expectations import Expectation, Facts, Judgement
from headgate.pipelines.watchdog.period_facts import PeriodFacts, status_of
from headgate.pipelines.watchdog.roster import Budget, Tally
from headgate.pipelines.watchdog.verdicts import Verdicts, iso

BY: Final = "watchdog"
CHECK: Final = "schedules"
_MINUTE: Final = timedelta(minutes=1)
_BATCH: Final = 100
# Under which name each kind is counted and reported.
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
    """Judges what the clock makes due."""

    def __init__(self, parts: Parts, verdicts: Verdicts, facts: PeriodFacts, cursors: Cursors, agenda: Agenda) -> None:
        self._parts = parts
        self._verdicts = verdicts
        self._facts = facts
        self._cursors = cursors
        self._agenda = agenda

    def __call__(self, now: datetime, budget: Budget, tally: Tally) -> None:
        """Look at every schedule that is due, until the time is up. One that cannot be looked at stops no other."""
        # Whatever becomes of a look, its schedule does not fall off the agenda.
        left: dict[ScheduleRef, Entry] = {}
        looked: list[tuple[Entry, datetime]] = []
        try:
            while not budget.is_over() and (entry := self._agenda.pop_due(now)) is not None:
                left[entry.ref] = entry
                try:
                    looked.append(self._look(entry, now, budget, tally))
                except HeadgateError as exc:
                    tally.failed(CHECK, "/".join(entry.ref), exc)
                if len(looked) >= _BATCH:
                    self._keep(looked, left, now)
            self._keep(looked, left, now)
        finally:
            for entry in left.values():
                self._agenda.again(entry, now)

    def _keep(self, looked: list[tuple[Entry, datetime]], left: dict[ScheduleRef, Entry], now: datetime) -> None:
        """Keep how far schedules were judged, with one wait for all; those with more to judge now are left."""
        outcomes = self._cursors.put_all([entry.cursor for entry, _ in looked])
        for (entry, next_at), is_kept in zip(looked, outcomes, strict=True):
            standing = entry if is_kept else self._standing(entry)
            if next_at > now:
                del left[entry.ref]
                self._agenda.again(standing, next_at)
            else:
                left[entry.ref] = standing
        looked.clear()

    def _standing(self, entry: Entry) -> Entry:
        """Return a schedule where another watchdog has left it. What both have judged is judged once."""
        found = self._cursors.find_all([entry.ref])[0]
        return replace(entry, cursor=replace(entry.cursor, version=0) if found is None else found)

    def _look(self, entry: Entry, now: datetime, budget: Budget, tally: Tally) -> tuple[Entry, datetime]:
        """Judge a schedule up to now, and return it with when to look next: now, if something is left."""
        timetable = self._parts.timetable(entry.pipeline, entry.ref.schedule_id)
        assert timetable is not None, "the agenda has only schedules of the definition"
        cursor = entry.cursor
        while cursor.judged_through < now and not budget.is_over():
            asked = expectations.asked(
                timetable, created_at=cursor.since, judged_through=cursor.judged_through, now=now
            )
            # All of them, though one fails: the verdicts of the others are kept, and not asked for twice.
            outcomes = [self._is_judged(timetable, each, now, tally) for each in asked.due]
            for warned in asked.warnings:
                self._warn(timetable, warned, now, tally)
            if not all(outcomes):
                return _moved(entry, cursor, now)
            if asked.judged_through <= cursor.judged_through:
                # Defined later than the clock says it is now: nothing is owed until then.
                return _moved(entry, cursor, min(max(cursor.since, now + _MINUTE), now + HORIZON))
            cursor = replace(cursor, judged_through=asked.judged_through)
        if cursor.judged_through < now:
            return _moved(entry, cursor, now)
        following = expectations.next_at(timetable, created_at=cursor.since, after=cursor.judged_through)
        return _moved(entry, cursor, min(following, now + HORIZON))

    def _is_judged(self, timetable: Timetable, expectation: Expectation, now: datetime, tally: Tally) -> bool:
        check = CHECKS[expectation.kind]
        try:
            self._judge(timetable, expectation, now, tally)
        except HeadgateError as exc:
            tally.failed(check, f"{timetable.pipeline.id}/{expectation.schedule_id}/{expectation.date}", exc)
            return False
        return True

    def _judge(self, timetable: Timetable, expectation: Expectation, now: datetime, tally: Tally) -> None:
        pipeline = timetable.pipeline
        slot = Slot(pipeline.id, expectation.schedule_id, expectation.date)
        if self._verdicts.find(slot, expectation.kind) is not None:
            return
        facts = self._facts.read(pipeline, slot, expectation.kind)
        judgement = expectations.judge(expectation, facts, now)
        if _is_closing(expectation, facts, judgement):
            closed = self._close(slot, expectation, judgement)
            if closed is not None:
                tally.found(CHECKS[expectation.kind], count=int(closed))
                return
            # Begun between the two: by its own log it is now late, and not closed.
            facts = self._facts.read(pipeline, slot, expectation.kind)
            judgement = expectations.judge(expectation, facts, now)
        is_news = self._verdicts.judge_once(pipeline.id, expectation, judgement, status=status_of(facts))
        if is_news and judgement.verdict is ExpectationVerdict.MISSED:
            tally.found(CHECKS[expectation.kind])

    def _close(self, slot: Slot, expectation: Expectation, judgement: Judgement) -> bool | None:
        """Close a period whose sensor did not come, with its verdict. None: it was begun; False: it has a verdict."""
        reason = f"its sensor did not come by {iso(expectation.due_at)}"
        also = self._verdicts.verdict_writes(slot.pipeline_id, expectation, judgement)
        try:
            return None if self._parts.runs.close(slot, reason, by=BY, also=also) is None else True
        except ConflictError:
            if self._verdicts.find(slot, expectation.kind) is None:
                raise
            return False

    def _warn(self, timetable: Timetable, expectation: Expectation, now: datetime, tally: Tally) -> None:
        pipeline = timetable.pipeline
        slot = Slot(pipeline.id, expectation.schedule_id, expectation.date)
        check = CHECKS[expectation.kind]
        try:
            facts = self._facts.read(pipeline, slot, expectation.kind)
            is_due = expectations.is_warning_due(expectation, facts, now)
            if is_due and self._verdicts.warn_once(pipeline.id, expectation, status=status_of(facts)):
                tally.found(check)
        except HeadgateError as exc:
            tally.failed(check, str(slot), exc)


def _is_closing(expectation: Expectation, facts: Facts, judgement: Judgement) -> bool:
    """Whether it was too late to begin a period by itself, and nobody has begun it."""
    is_missed = judgement.verdict is ExpectationVerdict.MISSED
    return is_missed and expectation.kind is ExpectationKind.TRIGGER_DEADLINE and facts.begun_at is None


def _moved(entry: Entry, cursor: Cursor, next_at: datetime) -> tuple[Entry, datetime]:
    """Return a schedule as it is to be kept, and when to look at it next."""
    version = entry.definition_version
    moved = replace(cursor, definition_version=version, next_at=next_at, version=cursor.version + 1)
    return replace(entry, cursor=moved), next_at
