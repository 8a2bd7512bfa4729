"""Check judgement: pure functions from what was measured to an outcome, with the reason in numbers."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from headgate.checks.model import AnomalyCheck, Check, ExtraColumns, FreshnessCheck, Outcome, SchemaCheck, VolumeCheck
from headgate.durable.model import duration
from headgate.health.model.enums import SignalState
from headgate.health.model.expected_bands import Band, WarmUp, explain, shown
from headgate.health.signals.baselines import Baseline
from headgate.pipelines.definition.model import Json
from headgate.pipelines.enums import Verdict
from headgate.pipelines.field_values import moment_ms, number
from headgate.pipelines.rules.operators import compile_operator

HOUR_MS: Final = 3_600_000
# Clocks differ; newer data than this is reported.
_FUTURE_MS: Final = 5 * 60 * 1000
_OK, _UNKNOWN = SignalState.OK, SignalState.UNKNOWN
_NAMED_MAX: Final = 10
# The field with the time of the newest data, and that with the rows, by kind of source.
TIME_FIELDS: Final = {"sql": "value", "files": "newest", "delta": "committed_at", "iceberg": "committed_at"}
COUNT_FIELDS: Final = {"sql": "value", "files": "count", "delta": "rows", "iceberg": "rows"}

# A state and its reason.
Ruling = tuple[SignalState, str]


def last_hour(now_ms: int) -> tuple[int, int]:
    """Return the start and end of the last whole hour."""
    end = now_ms // HOUR_MS * HOUR_MS
    return end - HOUR_MS, end


def unknown(reason: str, now_ms: int, duration_ms: int = 0) -> Outcome:
    """Return the outcome of a check that could not be measured."""
    return Outcome(
        state=_UNKNOWN, reason=reason, at_ms=now_ms, window_start_ms=now_ms, window_end_ms=now_ms,
        duration_ms=duration_ms,
    )  # fmt: skip


def judge_freshness(check: FreshnessCheck, failed: SignalState, newest: Json, now_ms: int) -> Ruling:
    """Judge the age of the newest data."""
    if newest is None:
        return failed, "there is no data"
    at_ms = moment_ms(newest)
    if at_ms is None and isinstance(newest, str):
        # Databases without time zones return text without an offset; it is UTC, as documented.
        at_ms = moment_ms(f"{newest}+00:00")
    if at_ms is None:
        return _UNKNOWN, f"{str(newest)[:40]!r} is not a time"
    age_seconds = (now_ms - at_ms) / 1000
    if at_ms > now_ms + _FUTURE_MS:
        return _UNKNOWN, f"the newest data is from {_iso(at_ms)}, in the future"
    seen = f"the newest data is {_age(age_seconds)} old, from {_iso(at_ms)}"
    if age_seconds > check.max_age:
        return failed, f"{seen}; at most {_age(check.max_age)}"
    if check.warn_age is not None and age_seconds > check.warn_age:
        return SignalState.WARNING, f"{seen}; a warning after {_age(check.warn_age)}"
    return _OK, f"{seen}; at most {_age(check.max_age)}"


def judge_volume(
    check: VolumeCheck, failed: SignalState, count: Json, unit: str, band: Band | WarmUp | None, hour: int
) -> Ruling:
    """Judge a number of rows by its limits and its expected band. A warm-up alone is UNKNOWN."""
    counted = number(count)
    if counted is None:
        return _UNKNOWN, "the source does not say how many rows it has"
    seen = f"{shown(counted)} {unit}"
    if check.min is not None and counted < check.min:
        return failed, f"{seen}, at least {shown(check.min)} expected"
    if check.max is not None and counted > check.max:
        return failed, f"{seen}, at most {shown(check.max)} expected"
    if isinstance(band, Band):
        return (_OK if band.contains(counted) else failed), explain(counted, band, hour, unit)
    limits = [
        f"{word} {shown(limit)}"
        for word, limit in (("at least", check.min), ("at most", check.max))
        if limit is not None
    ]
    warm_up = f"; {band.reason}" if isinstance(band, WarmUp) else ""
    if not limits:
        return _UNKNOWN, f"{seen}{warm_up}"
    return _OK, f"{seen}, {' and '.join(limits)} expected{warm_up}"


def judge_anomaly(failed: SignalState, value: float | None, band: Band | WarmUp, hour: int, unit: str) -> Ruling:
    """Judge the value of an hour by its expected band."""
    if value is None:
        return _UNKNOWN, "the last whole hour has no value"
    if isinstance(band, WarmUp):
        return _UNKNOWN, f"{shown(value)} {unit}; {band.reason}"
    return (_OK if band.contains(value) else failed), explain(value, band, hour, unit)


def judge_baseline(check: AnomalyCheck, failed: SignalState, value: float | None, baseline: Baseline) -> Ruling:
    """Judge a value by a baseline that an anomaly engine stored."""
    if value is None:
        return _UNKNOWN, "the last whole hour has no value"
    reach = check.deviations * baseline.stddev
    low, high = baseline.baseline_value - reach, baseline.baseline_value + reach
    text = (
        f"{shown(value)}, expected {shown(low)}–{shown(high)} by baseline {baseline.metric} "  # noqa: RUF001
        f"of {baseline.sample_count} samples"
    )
    return (_OK if low <= value <= high else failed), text


def judge_schema(check: SchemaCheck, failed: SignalState, columns: Mapping[str, str]) -> Ruling:
    """Compare the columns of a table with those expected. Names and types are compared without case."""
    found = {name.lower(): kind for name, kind in columns.items()}
    wanted = {name.lower(): kind for name, kind in check.columns.items()}
    removed = [name for name in check.columns if name.lower() not in found]
    retyped = [
        f"{name} is {found[name.lower()]}, not {kind}"
        for name, kind in check.columns.items()
        if kind and name.lower() in found and not _is_same_type(found[name.lower()], kind)
    ]
    added = [name for name in columns if name.lower() not in wanted]
    parts = [
        f"{word}: {', '.join(names[:_NAMED_MAX])}{' …' if len(names) > _NAMED_MAX else ''}"
        for word, names in (("missing", removed), ("retyped", retyped), ("added", added))
        if names
    ]
    if removed or retyped:
        return failed, "; ".join(parts)
    if added and check.extra is not ExtraColumns.ALLOWED:
        return (SignalState.WARNING if check.extra is ExtraColumns.WARNING else SignalState.CRITICAL), "; ".join(parts)
    return _OK, f"{len(columns)} columns, {len(check.columns)} of them as declared"


def judge_value(check: Check, value: Json, now_ms: int) -> Ruling:
    """Judge the value that the query of a null share, uniqueness or SQL check selects."""
    failed = check.severity.state
    if check.null_share is not None:
        if value is None:
            return _UNKNOWN, f"{check.null_share.column}: there are no rows"
        share = number(value)
        if share is None:
            return _UNKNOWN, f"{str(value)[:40]!r} is not a number"
        text = f"{check.null_share.column} is null in {share:.2%} of the rows, at most {check.null_share.max:.2%}"
        return (_OK if share <= check.null_share.max else failed), text
    if check.unique is not None:
        repeated = number(value)
        if repeated is None:
            return _UNKNOWN, f"{str(value)[:40]!r} is not a number"
        named = ", ".join(check.unique.columns)
        return (_OK if repeated == 0 else failed), f"{shown(repeated)} values of {named} occur more than once"
    assert check.sql is not None, "a check has one kind"
    if value is None:
        return failed, "the query selects null"
    if check.sql.check == "exists":
        return _OK, f"value is {value}"
    operator = compile_operator(check.sql.check, check.sql.value, future_max_seconds=_FUTURE_MS / 1000)
    verdict, reason = operator(value, float(now_ms))
    state = {Verdict.PASS: _OK, Verdict.FAIL: failed}.get(verdict, _UNKNOWN)
    return state, f"value {reason}"


def _is_same_type(found: str, wanted: str) -> bool:
    """Whether two types are the same, without case and lengths: VARCHAR(20) is a varchar."""
    plain = [text.lower().partition("(")[0].strip() for text in (found, wanted)]
    return plain[0] == plain[1] or found.lower() == wanted.lower()


def _age(seconds: float) -> str:
    return duration.text(round(seconds))


def _iso(at_ms: float) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%SZ}"
