"""Reported results: folding in any order, and the signal that they add up to."""

from __future__ import annotations

import itertools
from typing import Any, Final

import pytest

from headgate.health.model.enums import SignalState
from headgate.health.model.signals import MESSAGE_MAX, SignalUpdate, checked
from headgate.health.results.model import HISTORY_MAX, Report, ReportedResult, ResultKind, folded, signal_value

URN: Final = "urn:dp:shop:orders"
NOW_MS: Final = 1_768_471_300_000
OK, CRITICAL, WARNING, UNKNOWN = SignalState.OK, SignalState.CRITICAL, SignalState.WARNING, SignalState.UNKNOWN


def report(minute: int, state: SignalState, test_id: str = "NOT_NULL:a", **more: Any) -> Report:
    at = f"2026-01-15T{9 + minute // 60:02d}:{minute % 60:02d}:00.000Z"
    given: dict[str, Any] = {
        "dataset_urn": URN, "kind": ResultKind.TEST, "test_id": test_id, "state": state, "at": at, "started_at": at,
        "signature": test_id, "source": "dbt:shop", "run_id": f"run-{minute}",
    }  # fmt: skip
    return Report(**(given | more))


def results(*reports: Report) -> list[ReportedResult]:
    known: dict[str, ReportedResult] = {}
    for each in reports:
        known[each.test_id] = folded(known.get(each.test_id), each)
    return list(known.values())


def test_folded__reports_in_any_order__give_the_same_state_and_history() -> None:
    reports = [report(0, OK), report(1, CRITICAL, message="3 rows"), report(2, CRITICAL, message="4 rows")]
    found = []
    for order in itertools.permutations(reports):
        (result,) = results(*order)
        found.append((result.state, result.at, result.message, result.history))

    assert all(each == found[0] for each in found)
    state, at, message, history = found[0]
    assert (state, at, message) == (CRITICAL, reports[2].at, "4 rows")
    assert [(each.at, each.state) for each in history] == [(each.at, each.state) for each in reversed(reports)]


def test_folded__a_repeated_report__changes_nothing() -> None:
    known = folded(None, report(1, CRITICAL))

    assert folded(known, report(1, CRITICAL)) is known


def test_folded__two_reports_of_one_run__are_one_result() -> None:
    (result,) = results(report(1, CRITICAL, run_id="r"), report(2, CRITICAL, run_id="r"))

    assert [each.at for each in result.history] == [report(2, CRITICAL).at]


def test_folded__a_failed_test_that_is_skipped__stays_failed() -> None:
    (result,) = results(report(1, CRITICAL, message="3 rows"), report(2, UNKNOWN))

    assert (result.state, result.message) == (CRITICAL, "3 rows")
    assert [each.state for each in result.history] == [UNKNOWN, CRITICAL]


def test_folded__a_test_that_passed_and_is_skipped__is_unknown() -> None:
    (result,) = results(report(1, OK), report(2, UNKNOWN))

    assert result.state is UNKNOWN


def test_folded__more_results_than_are_kept__drops_the_oldest() -> None:
    (result,) = results(*(report(minute, OK) for minute in range(HISTORY_MAX + 5)))

    assert len(result.history) == HISTORY_MAX
    assert result.history[0].run_id == f"run-{HISTORY_MAX + 4}"
    assert folded(result, report(0, CRITICAL)) is result, "older than all that is kept"


def test_folded__since__is_the_first_report_of_the_state() -> None:
    (result,) = results(report(0, OK), report(1, CRITICAL), report(2, CRITICAL))

    assert result.since == report(1, CRITICAL).at


def test_signal_value__several_failures__names_all_with_their_messages() -> None:
    value = signal_value(
        results(
            report(1, CRITICAL, "UNIQUE:b", message="2 rows"),
            report(1, WARNING, "RANGE:c", message="1 row"),
            report(1, CRITICAL, "NOT_NULL:a", message="5 rows"),
            report(1, OK, "NOT_NULL:b"),
        )
    )

    assert (value.state, value.score, value.failure_signature) == (CRITICAL, 0.25, "NOT_NULL:a")
    assert value.failure_signatures == ("NOT_NULL:a", "UNIQUE:b", "RANGE:c")
    assert value.message == "3 of 4 tests failed\nNOT_NULL:a: 5 rows\nUNIQUE:b: 2 rows\nRANGE:c: 1 row"
    assert (value.metrics.evidence_count, value.metrics.pass_count, value.metrics.fail_count) == (4, 1, 3)


@pytest.mark.parametrize(
    ("states", "state", "score"),
    [((OK, OK), OK, 1.0), ((OK, UNKNOWN), OK, 1.0), ((UNKNOWN, UNKNOWN), UNKNOWN, 0.0), ((WARNING, OK), WARNING, 0.5)],
)
def test_signal_value__states__come_to_the_worst_that_was_evaluated(
    states: tuple[SignalState, ...], state: SignalState, score: float
) -> None:
    found = signal_value(results(*(report(1, each, f"T{number}:x") for number, each in enumerate(states))))

    assert (found.state, found.score) == (state, score)


def test_signal_value__a_hundred_failures_with_long_messages__is_a_valid_update() -> None:
    value = signal_value(results(*(report(1, CRITICAL, f"T{n}:x", message="x" * 2_000) for n in range(100))))
    update = SignalUpdate(dataset_urn=URN, signal_type="DATA_QUALITY", value=value, expected_version=-1)

    assert checked(update, NOW_MS) == update
    assert len(value.message or "") == MESSAGE_MAX
