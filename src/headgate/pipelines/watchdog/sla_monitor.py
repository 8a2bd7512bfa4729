"""SLA monitor: the function that the lifecycle calls to schedule SLA timers, to check deadlines and to judge an SLA.

Due times come from the expectations at the time of each call, so there is no timer state that could differ from them
or would have to be cancelled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from msgspec.structs import replace

from headgate.clock import Clock
from headgate.errors import InvalidPayloadError, NotFoundError
from headgate.pipelines.definition_reader import DefinitionReader
from headgate.pipelines.enums import ExpectationKind, ExpectationVerdict
from headgate.pipelines.lifecycle.messages import Answer, Call, read_call
from headgate.pipelines.runs.rows import Slot
from headgate.pipelines.runs.store import Runs
from headgate.pipelines.schedule.sla import SlaMoments, completion_moments, evaluation_moments
from headgate.pipelines.schedule.timetables import Timetable
from headgate.pipelines.watchdog import expectations
from headgate.pipelines.watchdog.cursors import Cursors, ScheduleRef
from headgate.pipelines.watchdog.expectations import Expectation, ExpectationJudgement
from headgate.pipelines.watchdog.followups import Followup, FollowupKind, Followups
from headgate.pipelines.watchdog.period_facts import PeriodFactReader, status_of
from headgate.pipelines.watchdog.run_checks import anchored_expectation
from headgate.pipelines.watchdog.verdicts import Verdicts, iso

WARNING: Final = "warning"
BREACH: Final = "breach"
_TICK: Final = timedelta(microseconds=1)
NONE: Final[Mapping[str, Any]] = {"verdict": "NONE", "marginSeconds": None, "warned": False}


class SlaMonitor:
    """The modes schedule, cancel, fire-alert and reconcile."""

    def __init__(
        self,
        clock: Clock,
        runs: Runs,
        definitions: DefinitionReader,
        verdicts: Verdicts,
        followups: Followups,
        cursors: Cursors,
        facts: PeriodFactReader,
    ) -> None:
        self._clock = clock
        self._runs = runs
        self._definitions = definitions
        self._verdicts = verdicts
        self._followups = followups
        self._cursors = cursors
        self._facts = facts
        self._modes: Mapping[str, Callable[[Call], Answer]] = {
            "schedule": self.schedule,
            "cancel": self.cancel,
            "fire-alert": self.fire_alert,
            "reconcile": self.reconcile,
        }

    def __call__(self, event: dict[str, Any]) -> Answer:
        """Run the mode that an event names. Raises `InvalidPayloadError` for an unknown one."""
        call = read_call(event)
        mode = self._modes.get(call.mode)
        if mode is None:
            raise InvalidPayloadError(f"mode {call.mode!r}: use one of {', '.join(self._modes)}")
        return mode(call)

    def schedule(self, call: Call) -> Answer:
        """Return the times of the warning and the breach as timestamps; empty if there is none. Idempotent."""
        found = self._expectations(call)
        if not found:
            return {"warningAt": "", "breachAt": ""}
        first = min(found, key=lambda each: each.due_at)
        return {"warningAt": "" if first.warning_at is None else iso(first.warning_at), "breachAt": iso(first.due_at)}

    def cancel(self, call: Call) -> Answer:
        """Judge the expectations of a period whose run has ended, as far as they are decided.

        A failed, cancelled or missing run never meets them. Before the due time the expectation stays open: another
        attempt may still meet it.
        """
        answers = [self._judged(call, each) for each in self._expectations(call)]
        return answers[0] if answers else dict(NONE)

    def fire_alert(self, call: Call) -> Answer:
        """Publish a warning or a breach if it holds now. After a breach no warning is published."""
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
        """Publish and judge everything that is due, for a caller that has lost its state."""
        alerted = bool(self.fire_alert(call)["alerted"])
        return {**self.cancel(call), "alerted": alerted}

    # Actions of the orchestrator.

    def check_completion(self, call: Call) -> Answer:
        """Publish the breach of a period whose job has ended after its deadline. Idempotent."""
        # Each of them, not only the first: a period may have a deadline and a longest duration.
        breached = [each for each in self._expectations(call) if self._is_breached(call, each)]
        return {"breached": bool(breached)}

    def peek_completion(self, call: Call) -> Answer | None:
        """Answer `check_completion` without a write. None: a deadline has passed, which is published."""
        timetable = self._timetable(call.slot)
        if timetable is None or timetable.pipeline.sla is None:
            return {"breached": False}
        is_due = any(each.due_at <= self._clock.now() for each in self._expectations(call))
        return None if is_due else {"breached": False}

    def check_evaluation(self, call: Call) -> Answer:
        """Publish the breach of a period that was not ready by its evaluation deadline. Idempotent."""
        timetable = self._timetable(call.slot)
        moments = None if timetable is None else evaluation_moments(timetable, call.date)
        if timetable is None or moments is None or not self._is_owed(timetable, call.slot, moments):
            return {"breached": False}
        expectation = _expectation(timetable, call.date, ExpectationKind.EVALUATION_SLA, moments)
        return {"breached": self._is_breached(call, expectation)}

    def _is_breached(self, call: Call, expectation: Expectation) -> bool:
        if self._clock.now() < expectation.due_at:
            return False
        answer = self._judged(call, expectation, is_done_now=expectation.kind is not ExpectationKind.EVALUATION_SLA)
        return bool(answer["verdict"] == ExpectationVerdict.MISSED)

    # Helpers.

    def _expectations(self, call: Call) -> list[Expectation]:
        """Return the expectations of a period: completion by a time of day, and within a duration."""
        timetable = self._timetable(call.slot)
        if timetable is None:
            return []
        found: list[Expectation] = []
        moments = completion_moments(timetable, call.date)
        if moments is not None and self._is_owed(timetable, call.slot, moments):
            found.append(_expectation(timetable, call.date, ExpectationKind.COMPLETION_SLA, moments))
        arrived = self._arrived(timetable, call)
        relative = None if arrived is None else anchored_expectation(timetable, arrived)
        return found if relative is None else [*found, relative]

    def _timetable(self, slot: Slot) -> Timetable | None:
        try:
            pipeline, _ = self._definitions.newest(slot.pipeline_id)
        except NotFoundError:
            # A deleted pipeline has no expectations.
            return None
        return self._definitions.timetable(pipeline, slot.schedule_id)

    def _is_owed(self, timetable: Timetable, slot: Slot, moments: SlaMoments) -> bool:
        """Whether the schedule includes the period, and already did when it became ready or was started by request."""
        ready_at = timetable.ready_at(slot.date)
        if not any(due.date == slot.date for due in timetable.ready(ready_at - _TICK, ready_at)):
            return False
        cursor = self._cursors.find_all([ScheduleRef(slot.pipeline_id, slot.schedule_id)])[0]
        if cursor is None or ready_at >= cursor.since:
            return True
        log = self._runs.log(slot)
        return log is not None and bool(log.attempts) and moments.breach_at > cursor.since

    def _arrived(self, timetable: Timetable, call: Call) -> Followup | None:
        """Return the event that starts the time of a relative SLA, and store it for later calls."""
        sla = timetable.pipeline.sla
        if sla is None or sla.max_duration is None:
            return None
        known = self._followups.find(call.slot, FollowupKind.RELATIVE_SLA)
        since_ms = self._since_ms(call)
        if known is not None and (since_ms is None or known.since_ms <= since_ms):
            return known
        if since_ms is None:
            return None
        followup = Followup(
            **call.slot._asdict(), kind=FollowupKind.RELATIVE_SLA, since_ms=since_ms, due_at_ms=since_ms
        )
        if self._verdicts.find(call.slot, ExpectationKind.RELATIVE_SLA) is None:
            self._followups.record_all([followup])
        return followup

    def _since_ms(self, call: Call) -> int | None:
        moments: list[int] = []
        if call.sensor_arrival_at:
            moments.append(round(datetime.fromisoformat(call.sensor_arrival_at).timestamp() * 1000))
        run = self._runs.find(call.run_id) if call.run_id else None
        if run is not None:
            moments.append(run.sensor_arrival_at_ms if run.sensor_arrival_at_ms is not None else run.created_at_ms)
        log = self._runs.log(call.slot)
        moments += [attempt.begun_at_ms for attempt in ([] if log is None else log.history[:1])]
        return min(moments, default=None)

    def _judged(self, call: Call, expectation: Expectation, *, is_done_now: bool = False) -> Answer:
        known = self._verdicts.find(call.slot, expectation.kind)
        if known is not None:
            return _answer(known.verdict, known.margin_seconds, warned=known.warned, alerted=False)
        pipeline, _ = self._definitions.newest(call.pipeline_id)
        facts = self._facts.read(pipeline, call.slot, expectation.kind)
        if is_done_now and facts.succeeded_at is None:
            # The job has succeeded; the log of the period says so in the next state.
            facts = replace(facts, succeeded_at=self._clock.now())
        judgement: ExpectationJudgement = expectations.judge(expectation, facts, self._clock.now())
        is_new = judgement.verdict is not ExpectationVerdict.OPEN and self._verdicts.judge_once(
            call.pipeline_id, expectation, judgement, status=status_of(facts)
        )
        return _answer(judgement.verdict, judgement.margin_seconds, warned=judgement.warned, alerted=is_new)

    def _warned(self, call: Call, expectation: Expectation) -> bool:
        pipeline, _ = self._definitions.newest(call.pipeline_id)
        facts = self._facts.read(pipeline, call.slot, expectation.kind)
        is_due = expectations.is_warning_due(expectation, facts, self._clock.now())
        return is_due and self._verdicts.warn_once(call.pipeline_id, expectation, status=status_of(facts))


def _expectation(timetable: Timetable, date: str, kind: ExpectationKind, moments: SlaMoments) -> Expectation:
    is_dry = timetable.pipeline.dry_run
    return Expectation(
        kind=kind,
        schedule_id=timetable.schedule_id,
        date=date,
        due_at=moments.breach_at,
        warning_at=moments.warning_at,
        ready_at=timetable.ready_at(date),
        waiver=timetable.exclusion_reason(date) or ("the pipeline is on a dry run" if is_dry else ""),
    )


def _answer(verdict: ExpectationVerdict, margin_seconds: float | None, *, warned: bool, alerted: bool) -> Answer:
    return {"verdict": verdict.value, "marginSeconds": margin_seconds, "warned": warned, "alerted": alerted}
