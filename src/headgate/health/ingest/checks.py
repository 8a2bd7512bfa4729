"""Data quality checks that producers report, and the signal that the checks of a dataset add up to."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from headgate.health.ingest.facets import Assertion, Test
from headgate.health.model.enums import SignalState
from headgate.health.model.signals import Metrics

WHOLE_DATASET: Final = "dataset"
_CODE_LENGTH: Final = 100
_FIELD_LENGTH: Final = 150
_NOT_CODE: Final = re.compile(r"[^A-Z0-9_]+")
_NOT_FIELD: Final = re.compile(r"[\s#\x00-\x1f\x7f]+")
# Worst first. A check that was not evaluated ranks below one that was.
_WORST: Final = (SignalState.CRITICAL, SignalState.WARNING, SignalState.OK, SignalState.UNKNOWN)


class Check(Struct, frozen=True):
    """A check: its name, its column, and its result."""

    code: str
    field: str
    state: SignalState

    @property
    def signature(self) -> str:
        return f"{self.code}:{self.field}"


class CheckResult(Struct, frozen=True):
    """The combined result of the checks of one dataset. The score is the share of evaluated checks that passed."""

    state: SignalState
    score: float
    metrics: Metrics
    failure_signature: str | None = None
    signatures: tuple[str, ...] = ()


def check(code: str, field: str | None, state: SignalState) -> Check:
    """Return the name of a check in the form of a failure signature."""
    word = _NOT_CODE.sub("_", code.strip().upper()).strip("_")[:_CODE_LENGTH]
    place = _NOT_FIELD.sub("_", (field or "").strip())[:_FIELD_LENGTH]
    return Check(word or "CHECK", place or WHOLE_DATASET, state)


def of_assertion(given: Assertion) -> Check:
    return check(given.assertion, given.column, SignalState.OK if given.success else _failed(given.severity))


def of_test(given: Test) -> Check:
    """Return the check of a run's test. An unknown status does not count against the dataset."""
    status = given.status.strip().lower()
    state = {"pass": SignalState.OK, "fail": _failed(given.severity)}.get(status, SignalState.UNKNOWN)
    column = (given.params or {}).get("column")
    return check(given.type or given.name, column if isinstance(column, str) else None, state)


def verdict(checks: Sequence[Check]) -> CheckResult:
    """Return the combined result of at least one check."""
    worst = next(state for state in _WORST if any(each.state is state for each in checks))
    passed = sum(each.state is SignalState.OK for each in checks)
    failed = sum(each.state.is_breach for each in checks)
    # Of several failed alike, the first by name, so that the order of a report does not change the signature.
    worst_first = sorted((_WORST.index(each.state), each.signature) for each in checks if each.state.is_breach)
    signatures = tuple(dict.fromkeys(signature for _, signature in worst_first))
    return CheckResult(
        state=worst,
        score=passed / (passed + failed) if passed + failed else 0.0,
        metrics=Metrics(evidence_count=len(checks), pass_count=passed, fail_count=failed),
        failure_signature=signatures[0] if signatures else None,
        signatures=signatures,
    )


def _failed(severity: str | None) -> SignalState:
    return SignalState.WARNING if (severity or "").strip().lower() in ("warn", "warning") else SignalState.CRITICAL
