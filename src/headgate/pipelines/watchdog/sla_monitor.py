"""SLA timers: the function that the lifecycle asks when an SLA is due, and that judges it once its run is over.

The moments are those of the expectations, whoever asks: there is no clock of a run's own that could differ from them,
and none to be taken back. A timer that fires is a question, and the answer is what holds then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from headgate.errors import InvalidPayloadError, NotFoundError
from headgate.pipelines.context import Parts
from headgate.pipelines.enums import ExpectationKind, ExpectationVerdict
from headgate.pipelines.lifecycle.messages import Answer, Call, read_call
from headgate.pipelines.runs.rows import Slot
from headgate.pipelines.schedule.sla import SlaMoments, completion_moments
from headgate.pipelines.schedule.timetables import Timetable
from headgate.pipelines.watchdog import expectations
from headgate.pipelines.watchdog.cursors import Cursors, ScheduleRef
from headgate.pipelines.watchdog.expectations import Expectation, Judgement
from headgate.pipelines.watchdog.followups import Watch, Watches, WatchKind
from headgate.pipelines.watchdog.period_facts import PeriodFacts, status_of
from headgate.pipelines.watchdog.run_checks import anchored
from headgate.pipelines.watchdog.verdicts import Verdicts, iso

WARNING: Final = "warning"
BREACH: Final = "breach"
_TICK: Final = timedelta(microseconds=1)
NONE: Final[Mapping[str, Any]] = {"verdict": "NONE", "marginSeconds": None, "warned": False}


class SlaMonitor:
    """Answers to the modes schedule, cancel, fire-alert and reconcile."""

    def __init__(self, parts: Parts, verdicts: Verdicts) -> None:
        self._parts = parts
        self._verdicts = verdicts
        self._watches = Watches(parts.store)
        self._cursors = Cursors(parts.store)
        self._facts = PeriodFacts(parts, self._watches)
        self._modes: Mapping[str, Callable[[Call], Answer]] = {
            "schedule": self.schedule,
            "cancel": self.cancel,
            "fire-alert": self.fire_alert,
            "reconcile": self.reconcile,
        }

    def __call__(self, event: dict[str, Any]) -> Answer:
        """Return the answer to an event. Raises `InvalidPayloadError` for one that names no mode."""
        call = read_call(event)
        mode = self._modes.get(call.mode)
        if mode is None:
            raise InvalidPayloadError(f"mode {call.mode!r}: use one of {', '.join(self._modes)}")
        return mode(call)

    def schedule(self, call: Call) -> Answer:
        """Return when to warn and when it is too late, as whole timestamps; empty where there is no such moment.

        Asked again, it says the same.
        """
        found = self._expectations(call)
        if not found:
            return {"warningAt": "", "breachAt": ""}
        first = min(found, key=lambda each: each.due_at)
        return {"warningAt": "" if first.warning_at is None else iso(first.warning_at), "breachAt": iso(first.due_at)}

    def cancel(self, call: Call) -> Answer:
        """Judge what was expected of a period whose run is over, as far as that is decided.

        What failed, was cancelled or never ran is never met. As long as its time has not come it is still open: it may
        be done by another attempt, and is judged when its time comes.
        """
        answers = [self._judged(call, each) for each in self._expectations(call)]
        return answers[0] if answers else dict(NONE)

    def fire_alert(self, call: Call) -> Answer:
        """Warn, or tell of a breach, if that is what holds now. After a breach nobody is warned of it any more."""
        if call.kind not in ("", WARNING, BREACH):
            raise InvalidPayloadError(f"kind {call.kind!r}: use {WARNING} or {BREACH}")
        alerted = False
        for expectation in self._expectations(call):
            if call.kind != BREACH:
                alerted |= self._warned(call, expectation)
            if call.kind != WARNING:
                alerted |= bool(self._judged(call, expectation)["alerted"])
        return {"alerted": alerted}

    def reconcile(self, call: Call) -> Answer:
        """Warn of and judge whatever is due, for one who has lost track of what was told."""
        alerted = bool(self.fire_alert(call)["alerted"])
        return {**self.cancel(call), "alerted": alerted}

    # How.

    def _expectations(self, call: Call) -> list[Expectation]:
        """Return what is expected of a period: that it is done by a time of the clock, and within a time."""
        timetable = self._timetable(call.slot)
        if timetable is None:
            return []
        found: list[Expectation] = []
        moments = completion_moments(timetable, call.date)
        if moments is not None and self._is_owed(timetable, call.slot):
            found.append(_completion(timetable, call.date, moments))
        arrived = self._arrived(timetable, call)
        relative = None if arrived is None else anchored(timetable, arrived)
        return found if relative is None else [*found, relative]

    def _timetable(self, slot: Slot) -> Timetable | None:
        try:
            pipeline, _ = self._parts.definitions.newest(slot.pipeline_id)
        except NotFoundError:
            # Deleted since: nobody expects anything of it.
            return None
        return self._parts.timetable(pipeline, slot.schedule_id)

    def _is_owed(self, timetable: Timetable, slot: Slot) -> bool:
        """Whether something is expected of a period: its schedule names it, and did so when it could be done."""
        ready_at = timetable.ready_at(slot.date)
        if not any(due.date == slot.date for due in timetable.ready(ready_at - _TICK, ready_at)):
            return False
        cursor = self._cursors.find_all([ScheduleRef(slot.pipeline_id, slot.schedule_id)])[0]
        return cursor is None or ready_at >= cursor.since

    def _arrived(self, timetable: Timetable, call: Call) -> Watch | None:
        """Return since when the time of a relative SLA counts, and keep it: whoever asks later has the same."""
        sla = timetable.pipeline.sla
        if sla is None or sla.max_duration is None:
            return None
        known = self._watches.find(call.slot, WatchKind.RELATIVE_SLA)
        since_ms = self._since_ms(call)
        if known is not None and (since_ms is None or known.since_ms <= since_ms):
            return known
        if since_ms is None:
            return None
        watch = Watch(**call.slot._asdict(), kind=WatchKind.RELATIVE_SLA, since_ms=since_ms, due_at_ms=since_ms)
        if self._verdicts.find(call.slot, ExpectationKind.RELATIVE_SLA) is None:
            self._watches.note_all([watch])
        return watch

    def _since_ms(self, call: Call) -> int | None:
        moments: list[int] = []
        if call.sensor_arrival_at:
            moments.append(round(datetime.fromisoformat(call.sensor_arrival_at).timestamp() * 1000))
        run = self._parts.runs.find(call.run_id) if call.run_id else None
        if run is not None:
            moments.append(run.sensor_arrival_at_ms if run.sensor_arrival_at_ms is not None else run.created_at_ms)
        log = self._parts.runs.log(call.slot)
        moments += [attempt.begun_at_ms for attempt in ([] if log is None else log.history[:1])]
        return min(moments, default=None)

    def _judged(self, call: Call, expectation: Expectation) -> Answer:
        known = self._verdicts.find(call.slot, expectation.kind)
        if known is not None:
            return _answer(known.verdict, known.margin_seconds, warned=known.warned, alerted=False)
        pipeline, _ = self._parts.definitions.newest(call.pipeline_id)
        facts = self._facts.read(pipeline, call.slot, expectation.kind)
        judgement: Judgement = expectations.judge(expectation, facts, self._parts.now())
        is_news = judgement.verdict is not ExpectationVerdict.OPEN and self._verdicts.judge_once(
            call.pipeline_id, expectation, judgement, status=status_of(facts)
        )
        return _answer(judgement.verdict, judgement.margin_seconds, warned=judgement.warned, alerted=is_news)

    def _warned(self, call: Call, expectation: Expectation) -> bool:
        pipeline, _ = self._parts.definitions.newest(call.pipeline_id)
        facts = self._facts.read(pipeline, call.slot, expectation.kind)
        is_due = expectations.is_warning_due(expectation, facts, self._parts.now())
        return is_due and self._verdicts.warn_once(call.pipeline_id, expectation, status=status_of(facts))


def _completion(timetable: Timetable, date: str, moments: SlaMoments) -> Expectation:
    is_dry = timetable.pipeline.dry_run
    return Expectation(
        kind=ExpectationKind.COMPLETION_SLA,
        schedule_id=timetable.schedule_id,
        date=date,
        due_at=moments.breach_at,
        warning_at=moments.warning_at,
        ready_at=timetable.ready_at(date),
        waiver=timetable.why_dormant(date) or ("the pipeline is on a dry run" if is_dry else ""),
    )


def _answer(verdict: ExpectationVerdict, margin_seconds: float | None, *, warned: bool, alerted: bool) -> Answer:
    return {"verdict": verdict.value, "marginSeconds": margin_seconds, "warned": warned, "alerted": alerted}
