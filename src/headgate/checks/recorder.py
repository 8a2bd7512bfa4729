"""Check recorder: stores the outcome of a check as evidence, as a result with history, and as the dataset's signal.

The results of one kind add up to one signal, in the same way as the tests that tools report. The signal is written
through the ordinary path, so that incidents, the gate and alerts follow. Each step may be repeated.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from headgate.checks.catalog import KnownCheck
from headgate.checks.history import PRODUCER
from headgate.checks.model import RESULT_KINDS, Outcome
from headgate.checks.state import CheckKey
from headgate.errors import DatasetNotFoundError, InvalidPayloadError, StoreBusyError
from headgate.health.evidence.rows import Correlation, Evidence, Gate, Producer, Result, Validation
from headgate.health.ingest.effects import evidence_id
from headgate.health.model.datasets import Source
from headgate.health.model.enums import VOLUME, SignalState
from headgate.health.model.signals import ANY_VERSION, Metrics, SignalUpdate, SignalValue, UpdateVerdict
from headgate.health.model.timestamps import instant
from headgate.health.results.model import CHECK_SOURCE, Report, ReportedResult, ResultKind, signal_value
from headgate.health.service import HealthService

ACTOR: Final = "checks"
_DETAILS_MAX: Final = 2_000
_RACES_MAX: Final = 10
_RESULTS: Final = {
    SignalState.OK: Result.PASS,
    SignalState.WARNING: Result.WARN,
    SignalState.CRITICAL: Result.FAIL,
    SignalState.UNKNOWN: Result.SKIP,
}
_REMOVED: Final = "its checks were removed from the project folder"


class CheckRecorder:
    """Records outcomes. Safe to use from many threads."""

    def __init__(self, health: HealthService) -> None:
        self._health = health

    def registered(self, dataset: str) -> str:
        """Return the URN that a dataset is registered under; an unknown one is registered as discovered."""
        found = self._health.registry.find(dataset)
        if found is None:
            found = self._health.registry.discover(dataset, Source(type="CHECK"), ACTOR)
        return found.dataset_urn

    def record(self, known: KnownCheck, dataset_urn: str, outcome: Outcome, *, cause: str = "") -> None:
        """Store an outcome. Raises `TransientError` if health is unavailable."""
        check, kind = known.check, RESULT_KINDS[known.check.kind]
        signature = f"{check.kind.upper()}_CHECK:{check.id}"
        at = instant(outcome.at_ms)
        result = _RESULTS[outcome.state]
        is_failing = outcome.state.is_breach
        gate = Gate(
            gate=check.id,
            result=result,
            reason_code=signature if is_failing else None,
            details=outcome.reason[:_DETAILS_MAX],
        )
        stored = self._health.evidence.put(
            Evidence(
                evidence_id=evidence_id(outcome.at_ms, CHECK_SOURCE, dataset_urn, check.id),
                dataset_urn=dataset_urn,
                created_at=at,
                producer=Producer(producer_id=PRODUCER),
                validation=Validation(
                    result=result,
                    failed_gates=(check.id,) if is_failing else (),
                    reason_codes=(signature,) if is_failing else (),
                    gates=(gate,),
                ),
                correlation=Correlation(run_id=cause.removeprefix("run ")) if cause.startswith("run ") else None,
            )
        )
        self._health.results.record(
            [
                Report(
                    dataset_urn=dataset_urn,
                    kind=kind,
                    test_id=check.id,
                    state=outcome.state,
                    at=at,
                    started_at=at,
                    signature=signature,
                    source=CHECK_SOURCE,
                    column=check.column,
                    message=outcome.reason,
                    failures=outcome.failures,
                    run_id=cause.removeprefix("run ") if cause.startswith("run ") else None,
                    evidence_id=stored.evidence_id if stored.stored and is_failing else None,
                )
            ]
        )
        self._write_signal(dataset_urn, kind, outcome)

    def forget(self, key: CheckKey) -> None:
        """Delete the result of a check that was removed, and write the signal without it."""
        found = self._health.registry.find(key.dataset)
        if found is None:
            return
        urn = found.dataset_urn
        for kind in self._health.results.delete(urn, CHECK_SOURCE, key.check_id):
            self._write_signal(urn, kind, None)

    def _write_signal(self, dataset_urn: str, kind: ResultKind, outcome: Outcome | None) -> None:
        """Write the signal that the results of a kind add up to, and again if they changed meanwhile."""
        before: list[ReportedResult] | None = None
        for _ in range(_RACES_MAX):
            results = self._health.results.of(dataset_urn, kind)
            if results == before:
                return
            before = results
            value = signal_value(results) if results else self._without_results()
            result = self._health.update_signal(self._update(dataset_urn, kind, value, outcome))
            if result.verdict is UpdateVerdict.UNAVAILABLE:
                raise StoreBusyError(result.message)
            if result.verdict is UpdateVerdict.DATASET_NOT_FOUND:
                raise DatasetNotFoundError(result.message)
            if result.verdict is UpdateVerdict.INVALID:
                raise InvalidPayloadError(result.message)
        raise StoreBusyError(f"results of {dataset_urn}: they keep changing; the check runs again")

    def _without_results(self) -> SignalValue:
        now = instant(int(self._health.clock.seconds() * 1000))
        return SignalValue(state=SignalState.UNKNOWN, score=0.0, window_start=now, window_end=now, message=_REMOVED)

    @staticmethod
    def _update(dataset_urn: str, kind: ResultKind, value: SignalValue, outcome: Outcome | None) -> SignalUpdate:
        """Return the update. A volume has the hour and the rows that were counted."""
        is_counted = kind.signal_type != VOLUME
        if kind.signal_type == VOLUME:
            value = replace(value, metrics=Metrics())
            if outcome is not None and outcome.count is not None:
                is_counted = True
                value = replace(
                    value,
                    metrics=Metrics(evidence_count=outcome.count),
                    window_start=instant(outcome.window_start_ms),
                    window_end=instant(outcome.window_end_ms),
                    window_type="TUMBLING_1H",
                )
        return SignalUpdate(
            dataset_urn=dataset_urn,
            signal_type=kind.signal_type,
            value=value,
            expected_version=ANY_VERSION,
            is_counted=is_counted,
        )
