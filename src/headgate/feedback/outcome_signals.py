"""What an event of a pipeline says of the health of the datasets that it writes: decided without looking anywhere.

Two signals are the pipelines' own, so that nobody who measures a dataset otherwise is overruled by them: PIPELINE_RUN,
whether what should have been written was, in time, and PIPELINE_DATA, whether it can be relied upon. The window is
the period, as far as it is over: what becomes of an old period never overrules a newer one.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from msgspec import Struct

from headgate.errors import UserError
from headgate.feedback.writer_verdicts import Word
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


class Meaning(Struct, frozen=True):
    """What an event says of one signal. `until_done`: it says nothing any more once the period is done."""

    signal_type: str
    state: SignalState
    reason: str = ""
    until_done: bool = False
    # Of good news: the one reason that is over with it, if not all are.
    takes_back: str = ""


QUARANTINED: Final = "QUARANTINED"
_OK, _WARNING, _CRITICAL = SignalState.OK, SignalState.WARNING, SignalState.CRITICAL
MEANINGS: Final[dict[E, tuple[Meaning, ...]]] = {
    E.PIPELINE_COMPLETED: (Meaning(RUN, _OK), Meaning(DATA, _OK)),
    E.PIPELINE_FAILED: (Meaning(RUN, _CRITICAL, "RUN_FAILED"),),
    E.SLA_BREACH: (Meaning(RUN, _CRITICAL, "LATE", until_done=True),),
    E.RELATIVE_SLA_BREACH: (Meaning(RUN, _CRITICAL, "LATE", until_done=True),),
    E.EVALUATION_SLA_BREACH: (Meaning(RUN, _WARNING, "NOT_READY", until_done=True),),
    E.SCHEDULE_MISSED: (Meaning(RUN, _CRITICAL, "NEVER_BEGAN", until_done=True),),
    E.IRREGULAR_SCHEDULE_MISSED: (Meaning(RUN, _CRITICAL, "NEVER_BEGAN", until_done=True),),
    E.SENSOR_DEADLINE_EXPIRED: (Meaning(RUN, _CRITICAL, "SENSOR_MISSING", until_done=True),),
    E.POST_RUN_PASSED: (Meaning(DATA, _OK),),
    E.POST_RUN_FAILED: (Meaning(DATA, _CRITICAL, "POST_RUN_FAILED"),),
    E.POST_RUN_SENSOR_MISSING: (Meaning(DATA, _WARNING, "NOT_CONFIRMED"),),
    # A rerun was asked for: what is there is not wrong, but it is not what would be made now.
    E.POST_RUN_DRIFT: (Meaning(DATA, _WARNING, "DRIFT"),),
    E.MONITORING_DRIFT_DETECTED: (Meaning(DATA, _WARNING, "DRIFT"),),
    E.LATE_DATA_ARRIVAL: (Meaning(DATA, _WARNING, "LATE_DATA"),),
    # How bad that is, and whether it still is, is read from what is put aside.
    E.DATA_QUARANTINED: (Meaning(DATA, _WARNING, QUARANTINED),),
    E.QUARANTINE_CLEARED: (Meaning(DATA, _OK, takes_back=QUARANTINED),),
}


def telling(signal_type: str) -> frozenset[str]:
    """Return the names of the events that say anything of a signal."""
    return frozenset(
        name.value for name, said in MEANINGS.items() if any(each.signal_type == signal_type for each in said)
    )


def weighed(meaning: Meaning, aside: QuarantineCheck) -> Meaning | None:
    """Return what an event means by what is put aside of its period now; None: nothing any more.

    As long as records are put aside there is no good news of the data, whatever else was looked at.
    """
    if meaning.signal_type != DATA or (meaning.state is not _OK and meaning.reason != QUARANTINED):
        return meaning
    if aside.state is QuarantineState.CLEAN:
        return meaning if meaning.state is _OK else None
    return Meaning(DATA, _CRITICAL if aside.is_blocked else _WARNING, QUARANTINED)


def is_overtaken(notice: Notice, later: Iterable[tuple[int, str]]) -> bool:
    """Whether something was told of the same after it: by the moments and ids of what was."""
    return any(other > (notice.at_ms, notice.event_id) for other in later)


def window_of(pipeline: Pipeline, slot: Slot, at_ms: int) -> tuple[int, int]:
    """Return from when to when a period counts, in milliseconds; as long as it lasts, until the event itself."""
    schedule = next((each for each in pipeline.schedules if schedule_id_of(each) == slot.schedule_id), None)
    try:
        span: Span | None = periods_of(pipeline, schedule).span(slot.date)
    except UserError:
        # The pipeline has periods of another length now.
        span = None
    if span is None:
        return at_ms, at_ms
    return min(_ms(span.start), at_ms), min(_ms(span.end), at_ms)


def evidence_of(notice: Notice, meaning: Meaning, dataset_urn: str) -> Evidence:
    """Return the run as a proof of what is said. The same event is always the same proof."""
    result = _RESULTS[meaning.state]
    signature = signature_of(meaning, notice.pipeline_id)
    is_bad = meaning.state is not _OK
    gate = Gate(gate=_GATE, result=result, reason_code=signature, details=notice.text[:_DETAILS_MAX])
    return Evidence(
        evidence_id=evidence_id(notice.at_ms, notice.event_id, meaning.signal_type, dataset_urn),
        dataset_urn=dataset_urn,
        created_at=instant(notice.at_ms),
        producer=EvidenceProducer(producer_id=notice.pipeline_id[:_ID_MAX], confidence=Confidence.HIGH),
        validation=Validation(
            result=result,
            failed_gates=(_GATE,) if is_bad else (),
            reason_codes=(signature,) if signature is not None else (),
            gates=(gate,),
        ),
        correlation=Correlation(run_id=notice.run_id or None, job_id=f"{notice.schedule_id} {notice.date}"[:_ID_MAX]),
    )


def word_of(
    notice: Notice, meaning: Meaning, written_as: str, dataset_urn: str, window: tuple[int, int], before: Word | None
) -> Word:
    """Return what an event says, as the word of its pipeline that follows the one before."""
    return Word(
        dataset_urn=dataset_urn,
        signal_type=meaning.signal_type,
        pipeline_id=notice.pipeline_id,
        written_as=written_as,
        state=meaning.state,
        window_start_ms=window[0],
        window_end_ms=window[1],
        at_ms=notice.at_ms,
        event_id=notice.event_id,
        signature=signature_of(meaning, notice.pipeline_id),
        version=1 if before is None else before.version + 1,
    )


def update_of(word: Word, current: Signal | None) -> SignalUpdate:
    """Return the update that makes a signal, as it was seen, show a word.

    Its window does not end before the present one, which another writer may have reached earlier.
    """
    is_bad = word.state is not _OK
    end = instant(word.window_end_ms)
    value = SignalValue(
        state=word.state,
        score=_SCORES[word.state],
        window_start=instant(word.window_start_ms),
        window_end=end if current is None else max(end, current.value.window_end),
        window_type=WINDOW_TYPE,
        metrics=Metrics(evidence_count=1, pass_count=0 if is_bad else 1, fail_count=1 if is_bad else 0),
        failure_signature=word.signature,
        top_producer=Producer(producer_id=word.pipeline_id[:_ID_MAX], confidence=Confidence.HIGH),
        evidence_sample=word.evidence,
    )
    version = 0 if current is None else current.version
    return SignalUpdate(
        dataset_urn=word.dataset_urn, signal_type=word.signal_type, value=value, expected_version=version
    )


def signature_of(meaning: Meaning, pipeline_id: str) -> str | None:
    """Return how a signal fails: the reason, and the pipeline that it is about."""
    return f"{meaning.reason}:{pipeline_id[:_ID_MAX]}" if meaning.reason else None


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
