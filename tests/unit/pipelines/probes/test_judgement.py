"""Expectations and rules on probes: a probe that could not look is never FAIL."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from headgate.pipelines.definition.model import Rule
from headgate.pipelines.enums import FailureCategory, Verdict
from headgate.pipelines.probes.model import ProbeResult
from headgate.pipelines.probes.poller import next_look_ms
from headgate.pipelines.probes.runner import judge
from headgate.pipelines.rules.facts import Facts
from headgate.pipelines.rules.rules import compile_rules, evaluate
from headgate.pipelines.sensors import Sensor
from tests.probe_rig import probe

NOW = datetime(2026, 3, 3, 12, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1000)


@pytest.mark.parametrize(
    ("fields", "seen", "verdict", "said"),
    [
        ({"files": {"path": "x"}}, {"count": 1}, Verdict.PASS, "count is 1"),
        ({"files": {"path": "x"}}, {"count": 0}, Verdict.FAIL, "at least 1 is needed"),
        ({"files": {"path": "x", "marker": "_SUCCESS"}}, {"count": 1, "complete": False}, Verdict.FAIL, "complete"),
        ({"delta": {"path": "x"}}, {"exists": False}, Verdict.FAIL, "exists is "),
        ({"iceberg": {"path": "x"}}, {"exists": True}, Verdict.FAIL, "snapshot_id is missing"),
        ({"http": {"url": "https://a"}}, {"ok": True}, Verdict.PASS, "ok is "),
        (
            {"files": {"path": "x"}, "expect": [{"field": "newest", "check": "age_lt", "value": "1h"}]},
            {"newest": "2026-03-03T11:30:00+00:00"},
            Verdict.PASS,
            "is 30m old",
        ),
        (
            {"http": {"url": "https://a", "value": "$.n"}, "expect": [{"check": "gt", "value": 1}]},
            {"ok": True, "value": "many"},
            Verdict.UNKNOWN,
            "not a number",
        ),
    ],
)
def test_judge__what_was_seen__is_compared(
    fields: dict[str, Any], seen: dict[str, Any], verdict: Verdict, said: str
) -> None:
    found, reason = judge(probe(**fields), seen, NOW)
    assert found is verdict
    assert said in reason


def _rule(data: dict[str, Any] | None, *, age_seconds: float = 0.0, **fields: Any) -> tuple[Verdict, str]:
    key = "probe:orders"
    sensor = Sensor(key=key, data=data or {}, pushed_at_ms=NOW_MS - round(age_seconds * 1000))
    facts = Facts(sensors={} if data is None else {key: sensor})
    result = evaluate(compile_rules([Rule(key=key, **fields)]), facts, NOW).results[0]
    return result.verdict, result.reason


def _data(verdict: Verdict) -> dict[str, Any]:
    is_unknown = verdict is Verdict.UNKNOWN
    result = ProbeResult(
        verdict=verdict,
        reason="no route" if is_unknown else "value is 3",
        at_ms=NOW_MS,
        duration_ms=5,
        seen={} if is_unknown else {"value": 3},
        category=FailureCategory.TRANSIENT if is_unknown else None,
    )
    return result.sensor_data(probe(files={"path": "x"}))


@pytest.mark.parametrize("verdict", list(Verdict))
def test_rule__names_a_probe__takes_its_verdict(verdict: Verdict) -> None:
    assert _rule(_data(verdict))[0] is verdict


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"field": "value"},
        {"field": "value", "check": "lt", "value": 1},
        {"check": "age_gt", "value": "1d"},
        {"field": "ready", "check": "equals", "value": True},
    ],
)
def test_rule__probe_could_not_look_or_is_silent__is_unknown_whatever_it_compares(fields: dict[str, Any]) -> None:
    for data, age_seconds, said in [
        (_data(Verdict.UNKNOWN), 0.0, "could not look: no route"),
        (None, 0.0, "has no result for this period yet"),
        (_data(Verdict.PASS), 600.0, "has not looked for 600 s"),
    ]:
        verdict, reason = _rule(data, age_seconds=age_seconds, **fields)
        assert verdict is Verdict.UNKNOWN
        assert said in reason


def test_rule__field_of_a_probe__is_compared() -> None:
    assert _rule(_data(Verdict.FAIL), field="value", check="gte", value=3)[0] is Verdict.PASS


def test_next_look__a_thousand_probes_of_one_interval__spread_over_it() -> None:
    ids = [f"probe-{number}" for number in range(1000)]
    times = [next_look_ms(probe(id=name, files={"path": "x"}), NOW_MS) - NOW_MS for name in ids]
    assert all(0 < each <= 60_000 for each in times)
    seconds = [sum(each // 1000 == second for each in times) for second in range(60)]
    assert max(seconds) < 45


def test_next_look__is_an_interval_after_the_last() -> None:
    first = next_look_ms(probe(files={"path": "x"}), NOW_MS)
    assert next_look_ms(probe(files={"path": "x"}), first) == first + 60_000
