"""Outcome signals: map pipeline events to health signals of the datasets that a pipeline writes. Pure functions.

Pipelines have two signal types of their own, so that they never overwrite other measurements: PIPELINE_RUN (was the
dataset written, in time?) and PIPELINE_DATA (is its content reliable?). The window is the period, cut at the event's
time, so that a late outcome of an old period never overwrites a newer one.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from msgspec import Struct

from headgate.errors import UserError
from headgate.feedback.writer_verdicts import WriterVerdict
from headgate.health.evidence.rows import Correlation, Evidence, Gate, Result, Validation
from headgate.health.evidence.rows import Producer as EvidenceProducer
from headgate.health.ingest.effects import evidence_id
from headgate.health.model.enums import Confidence, SignalState
from headgate.health.model.signals import Metrics, Producer, Signal, SignalUpdate, SignalValue
from headgate.health.model.timestamps import instant
from headgate.notify.notices import Notice
from headgate.pipelines.definition.model import Pipeline
from headgate.pipelines.events.names import EventName as E
from headgate.pipelines.readiness.quarantine import QuarantineCheck, QuarantineState
from headgate.pipelines.runs.rows import Slot
from headgate.pipelines.schedule.periods import Span, periods_of
from headgate.pipelines.schedule.timetables import schedule_id_of

RUN: Final = "PIPELINE_RUN"
DATA: Final = "PIPELINE_DATA"
SIGNAL_TYPES: Final = (RUN, DATA)
WINDOW_TYPE: Final = "PERIOD"
_GATE: Final = "pipeline"
_DETAILS_MAX: Final = 2_000
_ID_MAX: Final = 200
_SCORES: Final = {SignalState.OK: 1.0, SignalState.WARNING: 0.5, SignalState.CRITICAL: 0.0}
_RESULTS: Final = {
    SignalState.OK: Result.PASS,
    SignalState.WARNING: Result.WARN,
    SignalState.CRITICAL: Result.FAIL,
}


class SignalEffect(Struct, frozen=True):
    """The effect of an event on one signal. With `until_done` it no longer applies once the period is done."""

    signal_type: str
    state: SignalState
    reason: str = ""
    until_done: bool = False
    # For OK: the only reason that it clears; empty clears all.
    clears_reason: str = ""


QUARANTINED: Final = "QUARANTINED"
_OK, _WARNING, _CRITICAL = SignalState.OK, SignalState.WARNING, SignalState.CRITICAL
SIGNAL_EFFECTS: Final[dict[E, tuple[SignalEffect, ...]]] = {
    E.PIPELINE_COMPLETED: (SignalEffect(RUN, _OK), SignalEffect(DATA, _OK)),
    E.PIPELINE_FAILED: (SignalEffect(RUN, _CRITICAL, "RUN_FAILED"),),
    E.SLA_BREACH: (SignalEffect(RUN, _CRITICAL, "LATE", until_done=True),),
    E.RELATIVE_SLA_BREACH: (SignalEffect(RUN, _CRITICAL, "LATE", until_done=True),),
    E.EVALUATION_SLA_BREACH: (SignalEffect(RUN, _WARNING, "NOT_READY", until_done=True),),
    E.SCHEDULE_MISSED: (SignalEffect(RUN, _CRITICAL, "NEVER_BEGAN", until_done=True),),
    E.IRREGULAR_SCHEDULE_MISSED: (SignalEffect(RUN, _CRITICAL, "NEVER_BEGAN", until_done=True),),
    E.SENSOR_DEADLINE_EXPIRED: (SignalEffect(RUN, _CRITICAL, "SENSOR_MISSING", until_done=True),),
    E.POST_RUN_PASSED: (SignalEffect(DATA, _OK),),
    E.POST_RUN_FAILED: (SignalEffect(DATA, _CRITICAL, "POST_RUN_FAILED"),),
    E.POST_RUN_SENSOR_MISSING: (SignalEffect(DATA, _WARNING, "NOT_CONFIRMED"),),
    # A rerun was requested: the data is not wrong, but outdated.
    E.POST_RUN_DRIFT: (SignalEffect(DATA, _WARNING, "DRIFT"),),
    E.MONITORING_DRIFT_DETECTED: (SignalEffect(DATA, _WARNING, "DRIFT"),),
    E.LATE_DATA_ARRIVAL: (SignalEffect(DATA, _WARNING, "LATE_DATA"),),
    # `with_quarantine` reads the severity from the quarantine records.
    E.DATA_QUARANTINED: (SignalEffect(DATA, _WARNING, QUARANTINED),),
    E.QUARANTINE_CLEARED: (SignalEffect(DATA, _OK, clears_reason=QUARANTINED),),
}


def events_for(signal_type: str) -> frozenset[str]:
    """Return the names of the events that affect a signal type."""
    return frozenset(
        name.value
        for name, effects in SIGNAL_EFFECTS.items()
        if any(each.signal_type == signal_type for each in effects)
    )


def with_quarantine(effect: SignalEffect, quarantine: QuarantineCheck) -> SignalEffect | None:
    """Adjust an effect by the current quarantine of its period; None if it no longer applies.

    While records are quarantined, PIPELINE_DATA does not become OK.
    """
    if effect.signal_type != DATA or (effect.state is not _OK and effect.reason != QUARANTINED):
        return effect
    if quarantine.state is QuarantineState.CLEAN:
        return effect if effect.state is _OK else None
    return SignalEffect(DATA, _CRITICAL if quarantine.is_blocked else _WARNING, QUARANTINED)


def is_superseded(notice: Notice, later: Iterable[tuple[int, str]]) -> bool:
    """Whether one of the `later` events, by time and id, follows the notice."""
    return any(other > (notice.at_ms, notice.event_id) for other in later)


def window_of(pipeline: Pipeline, slot: Slot, at_ms: int) -> tuple[int, int]:
    """Return the start and end of a period in milliseconds; an unfinished one ends at the event."""
    schedule = next((each for each in pipeline.schedules if schedule_id_of(each) == slot.schedule_id), None)
    try:
        span: Span | None = periods_of(pipeline, schedule).span(slot.date)
    except UserError:
        # The schedule changed and no longer has this period.
        span = None
    if span is None:
        return at_ms, at_ms
    return min(_ms(span.start), at_ms), min(_ms(span.end), at_ms)


def evidence_of(notice: Notice, effect: SignalEffect, dataset_urn: str) -> Evidence:
    """Return the evidence row of an event. Its id is deterministic."""
    result = _RESULTS[effect.state]
    signature = signature_of(effect, notice.pipeline_id)
    is_failing = effect.state is not _OK
    gate = Gate(gate=_GATE, result=result, reason_code=signature, details=notice.text[:_DETAILS_MAX])
    return Evidence(
        evidence_id=evidence_id(notice.at_ms, notice.event_id, effect.signal_type, dataset_urn),
        dataset_urn=dataset_urn,
        created_at=instant(notice.at_ms),
        producer=EvidenceProducer(producer_id=notice.pipeline_id[:_ID_MAX], confidence=Confidence.HIGH),
        validation=Validation(
            result=result,
            failed_gates=(_GATE,) if is_failing else (),
            reason_codes=(signature,) if signature is not None else (),
            gates=(gate,),
        ),
        correlation=Correlation(run_id=notice.run_id or None, job_id=f"{notice.schedule_id} {notice.date}"[:_ID_MAX]),
    )


def verdict_of(
    notice: Notice,
    effect: SignalEffect,
    written_as: str,
    dataset_urn: str,
    window: tuple[int, int],
    before: WriterVerdict | None,
) -> WriterVerdict:
    """Return the verdict of an event's pipeline, as the version after `before`."""
    return WriterVerdict(
        dataset_urn=dataset_urn,
        signal_type=effect.signal_type,
        pipeline_id=notice.pipeline_id,
        written_as=written_as,
        state=effect.state,
        window_start_ms=window[0],
        window_end_ms=window[1],
        at_ms=notice.at_ms,
        event_id=notice.event_id,
        signature=signature_of(effect, notice.pipeline_id),
        version=1 if before is None else before.version + 1,
    )


def update_of(verdict: WriterVerdict, current: Signal | None) -> SignalUpdate:
    """Return the signal update for a verdict.

    Its window does not end before the current one, which may be another writer's.
    """
    is_failing = verdict.state is not _OK
    end = instant(verdict.window_end_ms)
    value = SignalValue(
        state=verdict.state,
        score=_SCORES[verdict.state],
        window_start=instant(verdict.window_start_ms),
        window_end=end if current is None else max(end, current.value.window_end),
        window_type=WINDOW_TYPE,
        metrics=Metrics(evidence_count=1, pass_count=0 if is_failing else 1, fail_count=1 if is_failing else 0),
        failure_signature=verdict.signature,
        top_producer=Producer(producer_id=verdict.pipeline_id[:_ID_MAX], confidence=Confidence.HIGH),
        evidence_sample=verdict.evidence,
    )
    version = 0 if current is None else current.version
    return SignalUpdate(
        dataset_urn=verdict.dataset_urn, signal_type=verdict.signal_type, value=value, expected_version=version
    )


def signature_of(effect: SignalEffect, pipeline_id: str) -> str | None:
    """Return the failure signature: the reason and the pipeline."""
    return f"{effect.reason}:{pipeline_id[:_ID_MAX]}" if effect.reason else None


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
