"""Readiness: rules and traits together, what blocks, and errors that are not waited on."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace

from headgate.pipelines.definition.model import Pipeline, Readiness, Rule, Trait
from headgate.pipelines.enums import FailureCategory, Severity, TraitStatus
from headgate.pipelines.rules.facts import Facts, TraitFact
from headgate.pipelines.rules.readiness import ReadinessResult, ReadinessVerdict, readiness_of
from headgate.pipelines.rules.rules import compile_readiness, evaluate
from headgate.pipelines.sensors import Sensor

NOW = datetime(2026, 3, 3, 6, 5, tzinfo=UTC)
PROCEED, NOT_READY, ERROR = ReadinessResult.PROCEED, ReadinessResult.NOT_READY, ReadinessResult.ERROR
P, F, E, S = TraitStatus.PASS, TraitStatus.FAIL, TraitStatus.ERROR, TraitStatus.STALE
THERE, ABSENT = Rule(key="orders"), Rule(key="refunds")
KNOWN = Facts(sensors={"orders": Sensor(key="orders", data={"count": 3})})


def trait(required: bool = True) -> Trait:
    return Trait(evaluator="push", required=required)


def judged(
    *rules: Rule, traits: dict[str, TraitStatus | None] | None = None, shadow: bool = False, **readiness: Any
) -> ReadinessVerdict:
    """Judge rules and traits; a trait whose name ends in "?" is optional, and one of None has no result."""
    given = traits or {}
    pipeline = Pipeline(
        id="silver",
        readiness=Readiness(
            rules=rules, traits={name: trait(required=not name.endswith("?")) for name in given}, **readiness
        ),
        shadow=shadow,
    )
    results = {name: TraitFact(status=status, reason="so") for name, status in given.items() if status is not None}
    evaluation = evaluate(compile_readiness(pipeline.readiness), replace(KNOWN, traits=results), NOW)
    return readiness_of(evaluation, results, pipeline)


@pytest.mark.parametrize(
    ("traits", "result", "blocking"),
    [
        ({}, PROCEED, []),
        ({"a": P, "b": P}, PROCEED, []),
        ({"a": P, "b": F}, NOT_READY, ["b"]),
        ({"a": S, "b": P}, NOT_READY, ["a"]),
        ({"a": None}, NOT_READY, ["a"]),
        ({"a": P, "b": E}, ERROR, ["b"]),  # bug 40: not taken for "not ready" and waited on
        ({"a": F, "b": E}, ERROR, ["a", "b"]),  # bug 40
        ({"a": P, "b?": F}, PROCEED, []),
        ({"a": P, "b?": E}, PROCEED, []),
        ({"a": P, "b?": None}, PROCEED, []),
    ],
)
def test_all_required_pass__statuses__judged(
    traits: dict[str, TraitStatus | None], result: ReadinessResult, blocking: list[str]
) -> None:
    verdict = judged(traits=traits)
    assert verdict.result is result
    assert [each.name for each in verdict.blocking] == blocking


@pytest.mark.parametrize(
    ("traits", "threshold", "result"),
    [
        ({"a": P, "b": P, "c": F}, None, PROCEED),
        ({"a": P, "b": F, "c": F}, None, NOT_READY),
        ({"a": P, "b": F}, None, PROCEED),  # half of two, rounded up, is one
        ({"a": P, "b": F, "c": F}, 1, PROCEED),
        ({"a": P, "b": P, "c": F}, 3, NOT_READY),
        ({"a": P, "b": P, "c": P}, 9, PROCEED),
        ({"a": P, "b": P, "c": E}, None, PROCEED),
        ({"a": P, "b": E, "c": F}, None, ERROR),
        ({"a": F, "b?": P, "c?": P}, None, NOT_READY),
    ],
)
def test_majority_pass__statuses__judged(
    traits: dict[str, TraitStatus | None], threshold: int | None, result: ReadinessResult
) -> None:
    assert judged(traits=traits, trait_rule="majority-pass", threshold=threshold).result is result


def test_trait_rule__not_known__needs_all() -> None:
    assert judged(traits={"a": P, "b": F}, trait_rule="some-pass").result is NOT_READY


def test_optional_or_outvoted_trait__not_passed__is_warned_of() -> None:
    verdict = judged(traits={"a": P, "b": P, "c": S, "d?": F}, trait_rule="majority-pass")
    assert [(each.name, each.status) for each in verdict.warnings] == [("c", "STALE"), ("d?", "FAIL")]


def test_rules_and_traits__both_needed() -> None:
    assert judged(THERE, traits={"a": P}).result is PROCEED
    assert judged(ABSENT, traits={"a": P}).result is NOT_READY
    assert judged(THERE, traits={"a": F}).result is NOT_READY
    both = judged(THERE, ABSENT, traits={"a": F})
    assert [(each.kind, each.name) for each in both.blocking] == [("rule", "refunds"), ("trait", "a")]
    assert both.reason == "1 of 2 rules hold; refunds is missing; trait a is FAIL: so"


def test_no_rules_and_no_traits__ready__and_any_of_none_never() -> None:
    assert judged().result is PROCEED
    never = judged(mode="any")  # bug 56
    assert never.result is NOT_READY
    assert never.blocking[0].reason == "ANY of no rules never holds"


def test_rule_on_a_trait__that_could_not_be_found_out__is_an_error() -> None:
    rule = Rule(trait="fresh", name="data is fresh")
    pipeline = Pipeline(id="silver", readiness=Readiness(rules=(THERE, rule)))
    results = {"fresh": TraitFact(status=E, reason="HTTP 404", category=FailureCategory.PERMANENT)}
    evaluation = evaluate(compile_readiness(pipeline.readiness), replace(KNOWN, traits=results), NOW)
    verdict = readiness_of(evaluation, results, pipeline)
    assert (verdict.result, verdict.category) == (ERROR, FailureCategory.PERMANENT)
    assert verdict.reason == "the evaluation failed: HTTP 404"
    # Where another rule is enough, it is not evaluated.
    either = replace(pipeline, readiness=replace(pipeline.readiness, mode="ANY"))
    enough = evaluate(compile_readiness(either.readiness), replace(KNOWN, traits=results), NOW)
    assert readiness_of(enough, results, either).result is PROCEED


@pytest.mark.parametrize(
    ("categories", "expected"),
    [
        ([FailureCategory.TRANSIENT], FailureCategory.TRANSIENT),  # bug 41: 429 may be tried again
        ([FailureCategory.TRANSIENT, FailureCategory.PERMANENT], FailureCategory.PERMANENT),
        ([None], FailureCategory.PERMANENT),
    ],
)
def test_error__its_category__says_whether_trying_again_helps(
    categories: list[FailureCategory | None], expected: FailureCategory
) -> None:
    results = {f"t{index}": TraitFact(status=E, category=each) for index, each in enumerate(categories)}
    pipeline = Pipeline(id="silver", readiness=Readiness(traits={name: trait() for name in results}))
    evaluation = evaluate(compile_readiness(pipeline.readiness), Facts(), NOW)
    assert readiness_of(evaluation, results, pipeline).category is expected


def test_blocking__nested_rules__named_down_to_what_can_be_repaired() -> None:
    tree = Rule(all=(THERE, Rule(all=(ABSENT, Rule(key="late"))), Rule(any=(ABSENT, Rule(key="late")), name="either")))
    assert [each.name for each in judged(tree).blocking] == ["refunds", "late", "either"]


def test_warning_rule__does_not_hold__is_reported_and_lets_pass() -> None:
    verdict = judged(THERE, Rule(all=(THERE, replace(ABSENT, severity=Severity.WARN))))
    assert verdict.result is PROCEED
    assert [(each.name, each.status) for each in verdict.warnings] == [("refunds", "FAIL")]


@pytest.mark.parametrize(("status", "would_be"), [(F, NOT_READY), (E, ERROR)])
def test_shadow__not_ready__goes_on_and_reports(status: TraitStatus, would_be: ReadinessResult) -> None:
    verdict = judged(ABSENT, traits={"a": status}, shadow=True)
    assert (verdict.result, verdict.shadowed, verdict.blocking) == (PROCEED, would_be, ())
    assert {each.name for each in verdict.warnings} == {"refunds", "a"}
    assert verdict.reason.startswith(f"shadow mode: it would have been {would_be.value}: ")
    assert judged(THERE, shadow=True).shadowed is None


def test_reason__any_of_several__says_that_one_is_enough() -> None:
    reason = judged(ABSENT, Rule(key="late"), mode="Any").reason
    assert reason == "0 of 2 rules hold (one is enough); refunds is missing; late is missing"


def test_reason__many_blocking__is_kept_short() -> None:
    reason = judged(*(Rule(key=f"s{number}") for number in range(9))).reason
    assert reason == "0 of 9 rules hold; s0 is missing; s1 is missing; s2 is missing and 6 more"
