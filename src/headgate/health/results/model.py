"""Reported results: the result of a test or of a job's run, folded with the results before it."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from headgate.health.model.enums import (
    ANOMALY,
    CONTRACT_COMPLIANCE,
    DATA_QUALITY,
    FRESHNESS,
    JOB_RUN,
    SCHEMA_DRIFT,
    VOLUME,
    SignalState,
)
from headgate.health.model.signals import MESSAGE_MAX, SAMPLES_MAX, SIGNATURES_MAX, Metrics, Producer, SignalValue

HISTORY_MAX: Final = 30
# The source of results of Headgate's own checks.
CHECK_SOURCE: Final = "headgate"
# The history keeps the beginning of each message; the last result keeps all of it.
PAST_MESSAGE_MAX: Final = 300
# Worst first. A test that was not evaluated ranks below one that was.
WORST: Final = (SignalState.CRITICAL, SignalState.WARNING, SignalState.OK, SignalState.UNKNOWN)


class ResultKind(enum.StrEnum):
    """What a result is of: a test of the data, the run of a job that writes it, or a check of Headgate's own."""

    TEST = "TEST"
    RUN = "RUN"
    FRESHNESS = "FRESHNESS"
    VOLUME = "VOLUME"
    SCHEMA = "SCHEMA"
    ANOMALY = "ANOMALY"
    CONTRACT = "CONTRACT"

    @property
    def signal_type(self) -> str:
        """The signal that the results of this kind add up to."""
        return _SIGNAL_TYPES[self]


_SIGNAL_TYPES: Final = {
    ResultKind.TEST: DATA_QUALITY,
    ResultKind.RUN: JOB_RUN,
    ResultKind.FRESHNESS: FRESHNESS,
    ResultKind.VOLUME: VOLUME,
    ResultKind.SCHEMA: SCHEMA_DRIFT,
    ResultKind.ANOMALY: ANOMALY,
    ResultKind.CONTRACT: CONTRACT_COMPLIANCE,
}


class Report(Struct, frozen=True, kw_only=True):
    """A result as a tool reports it. `test_id` is unique among the results of this kind of a dataset.

    `source` is the tool, and its project if it has one. `signature` is the failure signature if the result is a breach.
    """

    dataset_urn: str
    kind: ResultKind
    test_id: str
    state: SignalState
    at: str
    started_at: str
    signature: str
    source: str
    column: str | None = None
    message: str = ""
    failures: int | None = None
    run_id: str | None = None
    producer_id: str | None = None
    producer_version: str = ""
    evidence_id: str | None = None


class PastResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One result in the history of a test."""

    at: str
    state: SignalState
    message: str = ""
    failures: int | None = None
    run_id: str | None = None


class ReportedResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The last result of a test or job, since when it is in this state, and the results before it, newest first.

    A test that failed and was then skipped stays failed: nothing shows that it was fixed.
    """

    dataset_urn: str
    kind: ResultKind
    test_id: str
    state: SignalState
    at: str
    started_at: str
    since: str
    signature: str
    source: str
    column: str | None = None
    message: str = ""
    failures: int | None = None
    run_id: str | None = None
    producer_id: str | None = None
    producer_version: str = ""
    evidence_id: str | None = None
    history: tuple[PastResult, ...] = ()
    version: int = 1


def folded(known: ReportedResult | None, report: Report) -> ReportedResult:
    """Return the results of a test with one more report. The same object if the report is a repeated one.

    Reports may arrive in any order: the history is sorted by time, and an older one does not replace the last.
    """
    past = PastResult(
        at=report.at,
        state=report.state,
        message=report.message[:PAST_MESSAGE_MAX],
        failures=report.failures,
        run_id=report.run_id,
    )
    if known is None:
        return _replaced(report, report.at, (past,), 1)
    if past in known.history or (known.history and past.at < known.history[-1].at and _is_full(known)):
        return known
    # A tool may report a test with the start of a run and again with its end.
    repeated = [each for each in known.history if _is_same_run(each, past)]
    if any(each.at > past.at for each in repeated):
        return known
    others = (each for each in known.history if each not in repeated)
    history = tuple(sorted((*others, past), key=lambda each: each.at, reverse=True)[:HISTORY_MAX])
    is_unproven = report.state is SignalState.UNKNOWN and known.state.is_breach
    if report.at < known.at or is_unproven:
        return replace(known, history=history, version=known.version + 1)
    since = known.since if report.state is known.state else report.at
    return _replaced(report, since, history, known.version + 1)


def signal_value(results: Sequence[ReportedResult]) -> SignalValue:
    """Return the value of the signal that the results of one kind add up to: the worst of them.

    It names every failure, worst first and then by name, so that the order of reports does not change it.
    """
    failing = sorted(
        (each for each in results if each.state.is_breach),
        key=lambda each: (WORST.index(each.state), each.signature, each.test_id),
    )
    passed = sum(each.state is SignalState.OK for each in results)
    latest = max(results, key=lambda each: (each.at, each.test_id))
    signatures = tuple(dict.fromkeys(each.signature for each in failing))[:SIGNATURES_MAX]
    blamed = failing[0] if failing else latest
    return SignalValue(
        state=_worst_state(results),
        score=passed / (passed + len(failing)) if passed + len(failing) else 0.0,
        window_start=min(latest.started_at, latest.at),
        window_end=latest.at,
        window_type="RUN",
        metrics=Metrics(evidence_count=len(results), pass_count=passed, fail_count=len(failing)),
        failure_signature=signatures[0] if signatures else None,
        failure_signatures=signatures,
        message=_message(failing, len(results)),
        top_producer=_producer(blamed),
        evidence_sample=tuple(_evidence_ids(failing))[:SAMPLES_MAX],
    )


def _worst_state(results: Sequence[ReportedResult]) -> SignalState:
    """Return the worst state. A check of our own that could not run is never a pass; a skipped test of a tool is."""
    worst = next(state for state in WORST if any(each.state is state for each in results))
    if worst is SignalState.OK and any(
        each.source == CHECK_SOURCE and each.state is SignalState.UNKNOWN for each in results
    ):
        return SignalState.UNKNOWN
    return worst


def _message(failing: Sequence[ReportedResult], count: int) -> str | None:
    if not failing:
        return None
    if len(failing) == 1:
        return _words(failing[0])[:MESSAGE_MAX]
    noun = "jobs" if failing[0].kind is ResultKind.RUN else "tests"
    named = "\n".join(f"{each.test_id}: {_words(each)}" for each in failing)
    return f"{len(failing)} of {count} {noun} failed\n{named}"[:MESSAGE_MAX]


def _words(result: ReportedResult) -> str:
    return result.message or ("the run failed" if result.kind is ResultKind.RUN else "the test failed")


def _producer(result: ReportedResult) -> Producer | None:
    if result.producer_id is None:
        return None
    return Producer(producer_id=result.producer_id, version=result.producer_version)


def _evidence_ids(failing: Iterable[ReportedResult]) -> Iterable[str]:
    return (each.evidence_id for each in failing if each.evidence_id is not None)


def _is_same_run(left: PastResult, right: PastResult) -> bool:
    return left.run_id == right.run_id if left.run_id is not None else left.at == right.at


def _is_full(known: ReportedResult) -> bool:
    return len(known.history) >= HISTORY_MAX


def _replaced(report: Report, since: str, history: tuple[PastResult, ...], version: int) -> ReportedResult:
    return ReportedResult(
        dataset_urn=report.dataset_urn,
        kind=report.kind,
        test_id=report.test_id,
        state=report.state,
        at=report.at,
        started_at=report.started_at,
        since=since,
        signature=report.signature,
        source=report.source,
        column=report.column,
        message=report.message,
        failures=report.failures,
        run_id=report.run_id,
        producer_id=report.producer_id,
        producer_version=report.producer_version,
        evidence_id=report.evidence_id,
        history=history,
        version=version,
    )
