"""Check judgement: each kind has its reason in numbers, and what cannot be judged is UNKNOWN."""

from __future__ import annotations

import pytest

from headgate.checks import judgement
from headgate.checks.model import (
    AnomalyCheck,
    Check,
    ExtraColumns,
    FreshnessCheck,
    NullShareCheck,
    SchemaCheck,
    Severity,
    SqlCheck,
    UniqueCheck,
    VolumeCheck,
)
from headgate.durable.model.duration import Seconds
from headgate.health.model.enums import SignalState
from headgate.health.model.expected_bands import Band, WarmUp
from headgate.health.signals.baselines import Baseline
from headgate.pipelines.definition.model import Json

OK, WARNING, CRITICAL, UNKNOWN = (
    SignalState.OK, SignalState.WARNING, SignalState.CRITICAL, SignalState.UNKNOWN,
)  # fmt: skip
# 2026-03-03 06:30 UTC, a Tuesday.
NOW_MS = 1_772_519_400_000
HOUR = 1_772_517_600 // 3600
BAND = Band(expected=10_600, low=9_800, high=11_400, mad=258, weeks=8)
NULLS = Check(id="n", null_share=NullShareCheck(column="c", max=0.01))
TWO_KEYS = Check(id="u", severity=Severity.WARNING, unique=UniqueCheck(columns=("a", "b")))
FRESH = FreshnessCheck(max_age=Seconds(3600), warn_age=Seconds(1800))


@pytest.mark.parametrize(
    ("newest", "state", "reason"),
    [
        ("2026-03-03T06:20:00+00:00", OK, "the newest data is 10m old, from 2026-03-03 06:20:00Z; at most 1h"),
        ("2026-03-03 06:20:00", OK, "the newest data is 10m old"),
        ("2026-03-03T05:50:00Z", WARNING, "40m old, from 2026-03-03 05:50:00Z; a warning after 30m"),
        ("2026-03-03T05:00:00Z", CRITICAL, "1h30m old, from 2026-03-03 05:00:00Z; at most 1h"),
        (None, CRITICAL, "there is no data"),
        ("soon", UNKNOWN, "'soon' is not a time"),
        ("2026-03-03T08:00:00Z", UNKNOWN, "in the future"),
    ],
)
def test_freshness__by_age__has_state_and_reason(newest: str | None, state: SignalState, reason: str) -> None:
    found = judgement.judge_freshness(FRESH, CRITICAL, newest, NOW_MS)

    assert found[0] is state
    assert reason in found[1]


@pytest.mark.parametrize(
    ("check", "count", "band", "state", "reason"),
    [
        (VolumeCheck(column="at"), 4_012, BAND, CRITICAL, "4,012 rows, expected 9,800–11,400 for a Tuesday 06:00"),  # noqa: RUF001
        (VolumeCheck(column="at"), 10_000, BAND, OK, "10,000 rows, expected 9,800–11,400 for a Tuesday 06:00"),  # noqa: RUF001
        (VolumeCheck(min=100), 99, None, CRITICAL, "99 rows, at least 100 expected"),
        (VolumeCheck(max=100), 101, None, CRITICAL, "101 rows, at most 100 expected"),
        (VolumeCheck(min=1, max=200), 101, None, OK, "101 rows, at least 1 and at most 200 expected"),
        (VolumeCheck(column="at"), 5, WarmUp(1), UNKNOWN, "5 rows; warm-up: 1 of 3 weeks"),
        (VolumeCheck(column="at", min=1), 5, WarmUp(1), OK, "5 rows, at least 1 expected; warm-up: 1 of 3 weeks"),
        (VolumeCheck(min=1), None, None, UNKNOWN, "the source does not say how many rows it has"),
    ],
)
def test_volume__by_limits_and_band__has_state_and_reason(
    check: VolumeCheck, count: Json, band: Band | WarmUp | None, state: SignalState, reason: str
) -> None:
    found = judgement.judge_volume(check, CRITICAL, count, "rows", band, HOUR)

    assert found[0] is state
    assert found[1].startswith(reason)


def test_anomaly__gap_or_warm_up__is_unknown() -> None:
    assert judgement.judge_anomaly(CRITICAL, None, BAND, HOUR, "rows")[0] is UNKNOWN
    assert judgement.judge_anomaly(CRITICAL, 4_012, WarmUp(2), HOUR, "rows")[0] is UNKNOWN
    assert judgement.judge_anomaly(WARNING, 4_012, BAND, HOUR, "rows")[0] is WARNING


def test_baseline__stored_by_an_engine__is_evaluated() -> None:
    stored = Baseline(
        dataset_urn="urn:dp:orders:created:v1", metric="rows", baseline_value=1_000, stddev=50, sample_count=30,
        updated_at="", version=1,
    )  # fmt: skip
    check = AnomalyCheck(baseline="rows")

    state, reason = judgement.judge_baseline(check, CRITICAL, 700, stored)

    assert state is CRITICAL
    assert reason == "700, expected 800–1,200 by baseline rows of 30 samples"  # noqa: RUF001
    assert judgement.judge_baseline(check, CRITICAL, 900, stored)[0] is OK


def test_schema__missing_retyped_and_added__are_named() -> None:
    check = SchemaCheck(columns={"order_id": "bigint", "total": "decimal(18,2)", "gone": ""})

    state, reason = judgement.judge_schema(
        check, CRITICAL, {"ORDER_ID": "VARCHAR", "total": "DECIMAL(10,2)", "extra": "INTEGER"}
    )

    assert state is CRITICAL
    assert reason == "missing: gone; retyped: order_id is VARCHAR, not bigint; added: extra"


@pytest.mark.parametrize(
    ("extra", "state"),
    [(ExtraColumns.ALLOWED, OK), (ExtraColumns.WARNING, WARNING), (ExtraColumns.CRITICAL, CRITICAL)],
)
def test_schema__added_column__is_as_declared(extra: ExtraColumns, state: SignalState) -> None:
    check = SchemaCheck(columns={"a": ""}, extra=extra)

    assert judgement.judge_schema(check, CRITICAL, {"a": "INTEGER", "b": "INTEGER"})[0] is state


@pytest.mark.parametrize(
    ("check", "value", "state", "reason"),
    [
        (NULLS, 0.031, CRITICAL, "c is null in 3.10% of the rows, at most 1.00%"),
        (NULLS, None, UNKNOWN, "c: there are no rows"),
        (TWO_KEYS, 2, WARNING, "2 values of a, b occur more than once"),
        (Check(id="u", unique=UniqueCheck(columns=("a",))), 0, OK, "0 values of a occur more than once"),
        (Check(id="s", sql=SqlCheck(query="SELECT 1", check="lte", value=3)), 4, CRITICAL, "value"),
        (Check(id="s", sql=SqlCheck(query="SELECT 1", check="lte", value=3)), 2, OK, "value"),
        (Check(id="s", sql=SqlCheck(query="SELECT 1", check="lte", value=3)), "many", UNKNOWN, "value"),
        (Check(id="s", sql=SqlCheck(query="SELECT 1")), None, CRITICAL, "the query selects null"),
    ],
)  # fmt: skip
def test_value__of_a_query__has_state_and_reason(check: Check, value: Json, state: SignalState, reason: str) -> None:
    found = judgement.judge_value(check, value, NOW_MS)

    assert found[0] is state
    assert found[1].startswith(reason)
