"""Rules: operators, three values, combinations, history, stability."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from headgate.durable.model.duration import Seconds
from headgate.errors import DefinitionError
from headgate.pipelines.definition.model import History, NOf, PostRun, Readiness, Rule, SensorTrigger, Upstream
from headgate.pipelines.enums import OnUnknown, RunStatus, Severity, TraitStatus, Verdict
from headgate.pipelines.field_values import is_equal, moment_ms, number
from headgate.pipelines.lifecycle.drift import baseline_of, drift_of
from headgate.pipelines.rules.facts import DatasetFact, Facts, TraitFact, UpstreamFact
from headgate.pipelines.rules.operators import CHECKS
from headgate.pipelines.rules.rules import (
    Evaluation,
    compile_post_run,
    compile_readiness,
    compile_rules,
    compile_trigger,
    evaluate,
)
from headgate.pipelines.sensors import Sensor, sensor_of

NOW = datetime(2026, 3, 3, 6, 5, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1000)
PASS, FAIL, UNKNOWN = Verdict.PASS, Verdict.FAIL, Verdict.UNKNOWN
THERE = Rule(key="orders")
ABSENT = Rule(key="refunds")
OPEN = Rule(key="refunds", check="gt", field="count", value=1)


def sensor(key: str, **data: Any) -> Sensor:
    return Sensor(key=key, data=data, pushed_at_ms=NOW_MS)


def facts(**sensors: dict[str, Any]) -> Facts:
    return Facts(sensors={key: sensor(key, **data) for key, data in sensors.items()})


ORDERS = facts(orders={"count": 10})


def judged(rule: Rule, known: Facts = ORDERS, now: datetime = NOW) -> tuple[Verdict, str]:
    result = evaluate(compile_rules([rule]), known, now).results[0]
    return result.verdict, result.reason


def verdict_of(check: str, value: Any, given: Any, **more: Any) -> Verdict:
    rule = Rule(key="orders", check=check, field="value", value=value, **more)
    return judged(rule, facts(orders={"value": given}))[0]


@pytest.mark.parametrize(
    ("check", "value", "given", "expected"),
    [
        ("equals", True, "true", PASS),
        ("equals", "true", True, PASS),
        ("equals", True, "True", PASS),
        ("equals", True, 1, FAIL),
        ("equals", 1, 1.0, PASS),
        ("equals", "1", 1, PASS),
        ("equals", 1, "1.0", PASS),
        ("equals", "1", "1.0", FAIL),
        ("equals", "done", "done", PASS),
        ("equals", "done", "DONE", FAIL),
        ("equals", 0, 0, PASS),
        ("equals", 0, False, FAIL),
        ("equals", 2**60, str(2**60 + 1), FAIL),
        ("equals", [1, 2], [1, 2], PASS),
        ("not_equals", "failed", "done", PASS),
        ("not_equals", 1, "1", FAIL),
        ("gt", 5, 5, FAIL),
        ("gt", 5, 5.1, PASS),
        ("gte", 5000, "5000", PASS),  # bug 55
        ("gte", "5000", 4999, FAIL),  # bug 55
        ("lte", 0.02, "0.019", PASS),  # bug 55
        ("lt", 5, 0, PASS),  # bug 48
        ("gte", 1, 0, FAIL),  # bug 48
        ("gt", 5, "many", UNKNOWN),
        ("gt", 5, True, UNKNOWN),
        ("gt", 5, "nan", UNKNOWN),
        ("gt", 5, "1_000", UNKNOWN),
        ("gt", 5, "\uff11\uff10", UNKNOWN),
        ("gt", 5, [7], UNKNOWN),
        ("between", [1, 24], 24, PASS),
        ("between", [1, 24], "0", FAIL),
        ("between", [1, 24], "noon", UNKNOWN),
        ("in", ["eu", 7], "7", PASS),
        ("in", ["eu", "us"], "ap", FAIL),
        ("regex", "^s3://raw/", "s3://raw/orders", PASS),
        ("regex", "^s3://raw/", "s3://cooked/orders", FAIL),
        ("regex", "^1", 12, PASS),
        ("regex", "^a", "a" * 600, UNKNOWN),
        ("regex", "^a", ["a"], UNKNOWN),
    ],
)
def test_operator__a_value__judged(check: str, value: Any, given: Any, expected: Verdict) -> None:
    assert verdict_of(check, value, given) is expected


def test_every_check__is_one_that_compiles() -> None:
    values: dict[str, Any] = {"between": [1, 2], "in": [1], "regex": "^a", "age_lt": "1h", "age_gt": "1h"}
    for check in CHECKS:
        compiled = compile_rules([Rule(key="orders", check=check, field="count", value=values.get(check, 1))])
        assert evaluate(compiled, ORDERS, NOW).results[0].reason


@pytest.mark.parametrize(
    ("check", "given", "expected"),
    [
        ("age_lt", "2026-03-03T05:30:00Z", PASS),
        ("age_lt", "2026-03-03T06:30:00+01:00", PASS),
        ("age_lt", "2026-03-03T04:05:00Z", FAIL),  # exactly two hours is not less
        ("age_lt", NOW_MS - 60_000, PASS),  # bug 50: milliseconds
        ("age_lt", NOW_MS // 1000 - 60, PASS),  # bug 50: seconds
        ("age_lt", str(NOW_MS // 1000 - 60), PASS),  # bug 50: as text
        ("age_lt", NOW_MS * 1000, PASS),  # microseconds
        ("age_lt", NOW_MS // 1000 - 86_400, FAIL),
        ("age_lt", "2026-03-03T06:09:00Z", PASS),  # clocks differ a little
        ("age_lt", "2026-03-03T06:11:00Z", UNKNOWN),  # D15
        ("age_lt", "2999-01-01T00:00:00Z", UNKNOWN),  # D15
        ("age_lt", "2026-03-03T05:30:00", UNKNOWN),  # without an offset
        ("age_lt", "yesterday", UNKNOWN),
        ("age_lt", True, UNKNOWN),
        ("age_lt", 0, UNKNOWN),
        ("age_gt", "2026-03-03T04:00:00Z", PASS),
        ("age_gt", "2026-03-03T05:30:00Z", FAIL),
        ("age_gt", "2999-01-01T00:00:00Z", UNKNOWN),  # D15
    ],
)
def test_age__a_moment__judged_by_the_one_now(check: str, given: Any, expected: Verdict) -> None:
    assert verdict_of(check, "2h", given) is expected


def test_age__future_and_turned_round__still_not_believed() -> None:
    # D15: what is not believed proves neither that it is young nor that it is not old.
    forged = facts(orders={"at": "2999-01-01T00:00:00Z"})
    for check in ("age_lt", "age_gt"):
        assert judged(Rule(not_=Rule(key="orders", check=check, field="at", value="1h")), forged)[0] is UNKNOWN


def test_age__future_max_given__is_the_limit() -> None:
    ahead = "2026-03-03T07:00:00Z"
    assert verdict_of("age_lt", "2h", ahead, future_max=Seconds(3_600)) is PASS
    assert verdict_of("age_lt", "2h", ahead, future_max=Seconds(0)) is UNKNOWN


def test_age__without_field__is_of_the_push() -> None:
    rule = Rule(key="orders", check="age_lt", value="10m")
    assert judged(rule)[0] is PASS
    assert judged(rule, now=NOW + timedelta(minutes=10))[0] is FAIL
    unsaid = Facts(sensors={"orders": Sensor(key="orders", data={})})
    assert judged(rule, unsaid) == (UNKNOWN, "orders does not say when it was updated")


def test_missing__sensor_or_field__is_unknown_and_never_zero() -> None:
    rule = Rule(key="orders", check="lt", field="count", value=100)
    assert judged(rule, Facts()) == (UNKNOWN, "orders is missing")
    assert judged(rule, facts(orders={})) == (UNKNOWN, "orders has no field count")
    assert judged(rule, facts(orders={"count": None})) == (UNKNOWN, "orders has no field count")
    assert judged(replace(rule, check="not_equals"), Facts())[0] is UNKNOWN


def test_exists__is_reported_for_certain() -> None:
    assert judged(THERE) == (PASS, "orders is there")
    assert judged(ABSENT) == (FAIL, "refunds is missing")
    assert judged(Rule(key="orders", field="count")) == (PASS, "orders.count is there")
    assert judged(Rule(key="orders", field="sum")) == (FAIL, "orders has no field sum")
    assert judged(Rule(not_=ABSENT))[0] is PASS


def test_missing__known_of_another_period__says_which() -> None:
    known = Facts(strays={"refunds": "2026-03-02"})
    assert judged(ABSENT, known) == (FAIL, "refunds is missing: its data is of 2026-03-02")


def test_field__a_path__is_followed_unless_a_field_is_called_so() -> None:
    nested = facts(orders={"metrics": {"count": 3}, "a.b": 4})
    assert judged(Rule(key="orders", check="equals", field="metrics.count", value=3), nested)[0] is PASS
    assert judged(Rule(key="orders", check="equals", field="a.b", value=4), nested)[0] is PASS
    assert judged(Rule(key="orders", check="equals", field="metrics.count.x", value=3), nested)[0] is UNKNOWN


@pytest.mark.parametrize(
    ("rules", "expected_all", "expected_any"),
    [
        ((), PASS, FAIL),
        ((THERE,), PASS, PASS),
        ((ABSENT,), FAIL, FAIL),
        ((OPEN,), UNKNOWN, UNKNOWN),
        ((THERE, OPEN), UNKNOWN, PASS),
        ((ABSENT, OPEN), FAIL, UNKNOWN),
        ((THERE, ABSENT), FAIL, PASS),
        ((THERE, ABSENT, OPEN), FAIL, PASS),
    ],
)
@pytest.mark.parametrize("case", [str.upper, str.lower, str.title])  # bug 56
def test_mode__in_any_case__three_values(
    rules: tuple[Rule, ...], expected_all: Verdict, expected_any: Verdict, case: Any
) -> None:
    for mode, expected in (("ALL", expected_all), ("ANY", expected_any)):
        compiled = compile_readiness(Readiness(rules=rules, mode=case(mode)))
        assert evaluate(compiled, ORDERS, NOW).verdict is expected
    nested_all, nested_any = judged(Rule(all=rules))[0], judged(Rule(any=rules))[0]
    assert (nested_all, nested_any) == (expected_all, expected_any)


@pytest.mark.parametrize(
    ("n", "rules", "expected"),
    [
        (2, (THERE, THERE, ABSENT), PASS),
        (2, (THERE, ABSENT, ABSENT), FAIL),
        (2, (THERE, OPEN, ABSENT), UNKNOWN),
        (1, (ABSENT, ABSENT), FAIL),
        (3, (OPEN, OPEN, OPEN), UNKNOWN),
    ],
)
def test_n_of__counts__three_values(n: int, rules: tuple[Rule, ...], expected: Verdict) -> None:
    assert judged(Rule(n_of=NOf(n=n, rules=rules)))[0] is expected


@pytest.mark.parametrize(("rule", "expected"), [(THERE, FAIL), (ABSENT, PASS), (OPEN, UNKNOWN)])
def test_not__turns_round_what_is_known(rule: Rule, expected: Verdict) -> None:
    assert judged(Rule(not_=rule))[0] is expected


def test_on_unknown__says_what_it_is_taken_for() -> None:
    assert judged(replace(OPEN, on_unknown=OnUnknown.PASS)) == (PASS, "refunds is missing (taken for pass)")
    assert judged(replace(OPEN, on_unknown=OnUnknown.FAIL))[0] is FAIL
    # What is known to fail is not unknown.
    known = facts(refunds={"count": 0})
    assert judged(replace(OPEN, on_unknown=OnUnknown.PASS), known)[0] is FAIL


def test_severity__a_rule_that_warns__never_counts() -> None:
    warning = replace(ABSENT, severity=Severity.WARN)
    held = replace(THERE, severity=Severity.WARN)
    for rules, mode, expected in (
        ((THERE, warning), "ALL", PASS),
        ((ABSENT, held), "ANY", FAIL),
        ((warning,), "ALL", PASS),
        ((warning,), "ANY", PASS),
    ):
        assert evaluate(compile_rules(rules, mode), ORDERS, NOW).verdict is expected
    assert judged(Rule(any=(ABSENT, held)))[0] is FAIL


@pytest.mark.parametrize(
    ("check", "left", "right", "expected"),
    [("gte", 10, 9, PASS), ("gte", "10", 11, FAIL), ("equals", "7", 7, PASS), ("not_equals", 7, 8, PASS),
     ("lt", 10, "many", UNKNOWN), ("lt", "many", 10, UNKNOWN)],
)  # fmt: skip
def test_other__two_sensors__are_compared(check: str, left: Any, right: Any, expected: Verdict) -> None:
    rule = Rule(key="loaded", check=check, field="rows", other="source.rows")
    compiled = compile_rules([rule])
    assert compiled.needs.sensors == {"loaded", "source"}
    assert evaluate(compiled, facts(loaded={"rows": left}, source={"rows": right}), NOW).verdict is expected
    assert judged(rule, facts(loaded={"rows": left})) == (UNKNOWN, "source is missing")


@pytest.mark.parametrize(
    ("history", "check", "value", "earlier", "expected"),
    [
        (History(periods=3, within=0.2), "exists", 110, [100, 100, 100], PASS),
        (History(periods=3, within=0.2), "exists", 121, [100, 100, 100], FAIL),
        (History(periods=3, within=0.2), "exists", 79, [100, 100, 100], FAIL),
        (History(periods=3, within=0.2), "exists", 0, [0, 0], PASS),
        (History(periods=3, within=0.2), "exists", 1, [0, 0], FAIL),
        (History(periods=3, within=0.2), "exists", 110, ["100", None, "?"], PASS),
        (History(periods=3, within=0.2), "exists", 110, [], UNKNOWN),
        (History(periods=3, within=0.2, periods_min=3), "exists", 110, [100, 100], UNKNOWN),
        (History(periods=2, within=0.2), "exists", 110, [100, 100, 9_000], PASS),
        (History(periods=3, within=0.2), "exists", "?", [100], UNKNOWN),
        (History(z_score=3), "exists", 105, [98, 100, 102], PASS),
        (History(z_score=3), "exists", 107, [98, 100, 102], FAIL),
        (History(z_score=3), "exists", 100, [100], UNKNOWN),
        (History(z_score=3), "exists", 100, [100, 100], PASS),
        (History(z_score=3), "exists", 101, [100, 100], FAIL),
        (History(), "gte", 100, [90, 110], PASS),
        (History(), "gte", 99, [90, 110], FAIL),
    ],
)
def test_history__earlier_periods__usual_or_not(
    history: History, check: str, value: Any, earlier: list[Any], expected: Verdict
) -> None:
    known = replace(facts(orders={"count": value}), history={"orders": [{"count": each} for each in earlier]})
    rule = Rule(key="orders", check=check, field="count", history=history)
    assert compile_rules([rule]).needs.history == {"orders": history.periods}
    assert judged(rule, known)[0] is expected


def test_upstream__all_periods__done_or_named() -> None:
    upstream = Upstream(pipeline="bronze", periods="all", missing_max=1)
    hours = tuple(f"2026-03-03T{hour:02d}" for hour in range(24))
    done = dict.fromkeys(hours, RunStatus.COMPLETED)

    def verdict(statuses: dict[str, RunStatus], missing_max: int = 0) -> tuple[Verdict, str]:
        rule = replace(upstream, missing_max=missing_max)
        return judged(Rule(upstream=rule), Facts(upstreams={rule: UpstreamFact(dates=hours, statuses=statuses)}))

    assert verdict({**done, hours[5]: RunStatus.COMPLETED_MONITORING})[0] is PASS
    late = {**done, hours[5]: RunStatus.RUNNING}
    assert verdict(late) == (FAIL, "bronze is done for 23 of 24, not for 2026-03-03T05 (RUNNING)")
    assert verdict(late, missing_max=1)[0] is PASS
    assert verdict({})[1].endswith("2026-03-03T02 (not started) and 21 more")
    problem = Facts(upstreams={upstream: UpstreamFact(problem="no such pipeline")})
    assert judged(Rule(upstream=upstream), problem)[0] is UNKNOWN
    assert judged(Rule(upstream=upstream), Facts())[0] is UNKNOWN


@pytest.mark.parametrize("verdict", list(Verdict))
def test_dataset__as_the_gate_says(verdict: Verdict) -> None:
    known = Facts(datasets={"urn:dp:orders": DatasetFact(verdict=verdict)})
    assert judged(Rule(dataset="urn:dp:orders"), known)[0] is verdict
    assert judged(Rule(dataset="urn:dp:others"), known)[0] is UNKNOWN


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (TraitStatus.PASS, PASS),
        (TraitStatus.FAIL, FAIL),
        (TraitStatus.ERROR, UNKNOWN),
        (TraitStatus.STALE, UNKNOWN),
    ],
)
def test_trait__a_result__judged(status: TraitStatus, expected: Verdict) -> None:
    assert judged(Rule(trait="fresh"), Facts(traits={"fresh": TraitFact(status=status)}))[0] is expected
    assert judged(Rule(trait="other"), Facts())[0] is UNKNOWN


def _again(compiled: Any, known: Facts, before: Evaluation | None, minute: int, spacing_ms: int = 0) -> Evaluation:
    memory = None if before is None else msgspec.structs.replace(before.memory, spacing_ms=spacing_ms)
    return evaluate(compiled, replace(known, memory=memory), NOW + timedelta(minutes=minute))


def test_stable_for__passes_in_a_row__counted_from_the_evaluation_before() -> None:
    compiled = compile_rules([replace(THERE, stable_for=3)])
    seen = []
    before = None
    for minute, known in enumerate([ORDERS, ORDERS, Facts(), ORDERS, ORDERS, ORDERS, ORDERS]):
        before = _again(compiled, known, before, minute)
        seen.append(before.verdict)
    assert seen == [UNKNOWN, UNKNOWN, FAIL, UNKNOWN, UNKNOWN, PASS, PASS]
    assert before is not None
    assert before.results[0].passes == 4


def test_stable_for__evaluations_at_once__count_once() -> None:
    compiled = compile_rules([replace(THERE, stable_for=2)])
    first = _again(compiled, ORDERS, None, 0)
    # A task that was tried again, and a sensor pushed twice.
    second = _again(compiled, ORDERS, first, 1, spacing_ms=150_000)
    third = _again(compiled, ORDERS, second, 2, spacing_ms=150_000)
    assert [each.verdict for each in (first, second, third)] == [UNKNOWN] * 3
    assert _again(compiled, ORDERS, third, 3, spacing_ms=150_000).verdict is PASS


def test_stable_for__other_rules_than_before__begin_anew() -> None:
    first = evaluate(compile_rules([replace(THERE, stable_for=2)]), ORDERS, NOW)
    changed = compile_rules([replace(THERE, stable_for=2, name="renamed")])
    assert _again(changed, ORDERS, first, 5).verdict is UNKNOWN


def test_since__the_same_verdict__keeps_its_beginning() -> None:
    compiled = compile_rules([ABSENT, THERE])
    first = _again(compiled, Facts(), None, 0)
    second = _again(compiled, ORDERS, first, 5)
    assert [result.since_ms - NOW_MS for result in second.results] == [0, 300_000]


def test_evaluate__same_facts_and_now__same_result_and_nothing_changed() -> None:
    # bug 57: what is shared between evaluations is changed by none. bug 14: one now for all rules.
    rules = [Rule(key="orders", check="age_lt", field="at", value="1h"), Rule(all=(THERE, ABSENT))]
    data = {"at": "2026-03-03T06:00:00Z", "nested": {"list": [1]}}
    known = facts(orders=data)
    before = msgspec.json.encode(known)
    compiled = compile_rules(rules)
    first = evaluate(compiled, known, NOW)
    assert evaluate(compiled, known, NOW) == first
    assert evaluate(compile_rules(rules), known, NOW) == first
    assert msgspec.json.encode(known) == before


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (Rule(), "exactly one of"),
        (Rule(key="a", trait="b"), "exactly one of"),
        (Rule(key="a", check="age_gt"), "age_gt"),
        (Rule(key="a", check="near", field="x", value=1), "'near' is not known; use one of exists, equals"),
        (Rule(key="a", check="gt", value=1), "needs a field"),
        (Rule(key="a", check="gt", field="x", value="many"), "give a number"),
        (Rule(key="a", check="gt", field="x"), "give a number"),
        (Rule(key="a", check="between", field="x", value=[2, 1]), "the lower first"),
        (Rule(key="a", check="between", field="x", value=[1, "x", 2]), "two numbers"),
        (Rule(key="a", check="in", field="x", value="abc"), "a list"),
        (Rule(key="a", check="regex", field="x", value="(a+)+$"), "regex"),
        (Rule(key="a", check="age_lt", field="x", value="soon"), "not a duration"),
        (Rule(key="a", check="gt", field="x", other="b"), "orders.count"),
        (Rule(key="a", check="exists", field="x", other="b.c"), "a check of"),
        (Rule(key="a", field="x", history=History()), "say what is compared"),
        (Rule(key="a", field="x", history=History(within=0.1, z_score=1)), "not both"),
        (Rule(key="a", field="x", history=History(within=-1)), "from 0"),
        (Rule(key="a", history=History(within=0.1)), "give a field"),
        (Rule(n_of=NOf(n=3, rules=(THERE, ABSENT))), "give 1 to 2"),
        (Rule(n_of=NOf(n=0, rules=(THERE,))), "give 1 to 1"),
        (Rule(not_=replace(THERE, severity=Severity.WARN)), "on the `not`"),
        (Rule(key="a", stable_for=0), "from 1"),
        (Rule(all=(THERE, Rule(any=(Rule(key="a", check="near"),)))), "rule 0.1.0: check"),
        (Rule(key="a", check="near", name="near enough"), "rule 0 (near enough)"),
    ],
)
def test_compile__what_cannot_be__refused_by_name(rule: Rule, said: str) -> None:
    with pytest.raises(DefinitionError) as refused:
        compile_rules([rule])
    assert said in str(refused.value)


def test_compile__mode_or_depth_that_cannot_be__refused() -> None:
    with pytest.raises(DefinitionError, match="use ALL or ANY"):
        compile_rules([], "SOME")
    deep = THERE
    for _ in range(13):
        deep = Rule(all=(deep,))
    with pytest.raises(DefinitionError, match="nested deeper"):
        compile_rules([deep])


def test_post_run__rules__evaluated_by_the_same_code() -> None:
    post_run = PostRun(rules=(THERE, Rule(key="orders", check="gte", field="count", value=10)))
    assert evaluate(compile_post_run(post_run), ORDERS, NOW).verdict is PASS


def test_trigger__a_sensor_of_a_period__judged_by_its_bare_key() -> None:
    # bug 53: the condition that begins a run sees the fields that evaluation sees.
    item = {"PK": "PIPELINE#silver", "SK": "SENSOR#orders#20260303", "data": {"count": "12"}}
    arrived = sensor_of(item)
    compiled = compile_trigger(SensorTrigger(key="orders", check="gte", field="count", value=10))
    assert evaluate(compiled, Facts(sensors={arrived.key: arrived}), NOW).verdict is PASS


@pytest.mark.parametrize(
    ("baseline", "current", "post_run", "delta"),
    [
        ({"count": 5000}, {"count": 0}, PostRun(drift_field="count"), -5000),  # bug 48: zero is a number
        ({"count": 0}, {"count": 1}, PostRun(drift_field="count"), 1),  # bug 48
        ({"count": 5000}, {"count": 5100}, PostRun(drift_field="count"), 100),  # bug 47: the field is configured
        ({"count": 5000}, {"count": 5100}, PostRun(), None),  # bug 47: sensor_count by default
        ({"sensor_count": "10"}, {"sensor_count": 12}, PostRun(drift_threshold=1.0), 2),  # bug 55
        ({"sensor_count": 10}, {"sensor_count": 11}, PostRun(drift_threshold=1.0), None),
        ({"sensor_count": 10}, {}, PostRun(), None),  # missing is not zero
        ({}, {"sensor_count": 10}, PostRun(), None),  # missing is not zero
        (None, {"sensor_count": 10}, PostRun(), None),  # bug 60: no baseline yet
    ],
)
def test_drift__against_baseline__reported_or_not(
    baseline: dict[str, Any] | None, current: dict[str, Any], post_run: PostRun, delta: int | None
) -> None:
    drift = drift_of(None if baseline is None else {"orders": baseline}, "orders", current, post_run)
    assert (None if drift is None else drift.delta) == delta


def test_baseline__two_sensors_with_one_field__both_kept() -> None:
    # bug 49
    rules = tuple(Rule(key=key, check="gte", field="count", value=1) for key in ("orders", "refunds", "late"))
    known = facts(orders={"count": 5}, refunds={"count": 7})
    baseline = baseline_of(compile_rules(rules), known)
    assert baseline == {"orders": {"count": 5}, "refunds": {"count": 7}}
    post_run = PostRun(drift_field="count")
    assert drift_of(baseline, "orders", {"count": 5}, post_run) is None
    # bug 60: a sensor that came only after the baseline was taken.
    assert drift_of(baseline, "late", {"count": 9}, post_run) is None


def test_equality__numbers_of_any_form__symmetric() -> None:
    forms = [1, 1.0, "1", True, "true", "x", 0, False, None, [1], {"a": 1}]
    for left in forms:
        for right in forms:
            assert is_equal(left, right) == is_equal(right, left)


def test_number__infinite_or_huge__is_none_or_exact() -> None:
    assert number(float("inf")) is None
    assert number("1e999") is None
    assert number(str(10**30)) == 10**30
    assert moment_ms("9999-99-99T00:00:00Z") is None
