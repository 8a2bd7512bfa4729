"""Readiness verdict: combines the results of rules and traits into the decision whether a run may start."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct

from headgate.pipelines.definition.model import Pipeline, Readiness
from headgate.pipelines.enums import FailureCategory, Severity, TraitStatus, Verdict
from headgate.pipelines.rules.compiler import RuleKind
from headgate.pipelines.rules.facts import TraitFact
from headgate.pipelines.rules.rules import ANY, Evaluation, RuleResult

MAJORITY: Final = "majority-pass"
_NAMED_MAX: Final = 3


class ReadinessResult(enum.StrEnum):
    """Whether to start, to evaluate again later, or to report that the evaluation failed."""

    PROCEED = "proceed"
    NOT_READY = "not_ready"
    ERROR = "error"


class Blocker(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One rule or trait that is not met."""

    kind: str
    name: str
    # The verdict of a rule, the status of a trait, or MISSING for a trait without a result.
    status: str
    reason: str
    since_ms: int = 0


class ReadinessVerdict(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Whether a run may start, and why."""

    result: ReadinessResult
    reason: str
    blocking: tuple[Blocker, ...] = ()
    warnings: tuple[Blocker, ...] = ()
    # Of an error: whether a retry may help.
    category: FailureCategory | None = None
    # The result without shadow mode.
    shadowed: ReadinessResult | None = None

    @property
    def may_start(self) -> bool:
        """Whether a run may start."""
        return self.result is ReadinessResult.PROCEED


class _TraitVerdict(Struct, frozen=True, kw_only=True):
    is_met: bool
    blocking: tuple[Blocker, ...] = ()
    warnings: tuple[Blocker, ...] = ()
    errors: tuple[TraitFact, ...] = ()


def readiness_of(evaluation: Evaluation, traits: Mapping[str, TraitFact], pipeline: Pipeline) -> ReadinessVerdict:
    """Return whether a run may start.

    A required trait whose evaluation failed is an error, regardless of the rules; an expired or missing result blocks
    like a failed one. In shadow mode nothing blocks, and the reason says what would have.
    """
    of_traits = _of_traits(pipeline.readiness, traits)
    rule_errors = tuple(_trait_errors(evaluation, traits))
    errors = (*of_traits.errors, *rule_errors)
    is_met = evaluation.verdict is Verdict.PASS
    blocking = (*(() if is_met else _blocking_rules(evaluation)), *of_traits.blocking)
    if errors:
        result = ReadinessResult.ERROR
    elif is_met and of_traits.is_met:
        result = ReadinessResult.PROCEED
    else:
        result = ReadinessResult.NOT_READY
    verdict = ReadinessVerdict(
        result=result,
        reason=_reason(evaluation, result, blocking, errors),
        blocking=blocking,
        warnings=(*_warning_rules(evaluation), *of_traits.warnings),
        category=_category(errors) if errors else None,
    )
    return _shadowed(verdict) if pipeline.shadow and not verdict.may_start else verdict


def _shadowed(verdict: ReadinessVerdict) -> ReadinessVerdict:
    return ReadinessVerdict(
        result=ReadinessResult.PROCEED,
        reason=f"shadow mode: it would have been {verdict.result.value}: {verdict.reason}",
        blocking=(),
        warnings=(*verdict.blocking, *verdict.warnings),
        category=verdict.category,
        shadowed=verdict.result,
    )


# Traits.


def _of_traits(readiness: Readiness, facts: Mapping[str, TraitFact]) -> _TraitVerdict:
    required = [name for name, trait in readiness.traits.items() if trait.required]
    optional = [name for name, trait in readiness.traits.items() if not trait.required]
    wanting = tuple(_blocker(name, facts.get(name)) for name in required if not _is_passed(facts.get(name)))
    optional_warnings = tuple(_blocker(name, facts.get(name)) for name in optional if not _is_passed(facts.get(name)))
    is_met = len(required) - len(wanting) >= _needed(readiness, len(required))
    if is_met:
        return _TraitVerdict(is_met=True, warnings=(*wanting, *optional_warnings))
    known = (facts.get(name) for name in required)
    errors = tuple(fact for fact in known if fact is not None and fact.status is TraitStatus.ERROR)
    return _TraitVerdict(is_met=False, blocking=wanting, warnings=optional_warnings, errors=errors)


def _needed(readiness: Readiness, required_count: int) -> int:
    """Return how many required traits have to pass. An unknown combination needs all of them."""
    if readiness.trait_rule != MAJORITY:
        return required_count
    if readiness.threshold is not None:
        return min(max(readiness.threshold, 0), required_count)
    return (required_count + 1) // 2


def _is_passed(fact: TraitFact | None) -> bool:
    return fact is not None and fact.status is TraitStatus.PASS


def _blocker(name: str, fact: TraitFact | None) -> Blocker:
    if fact is None:
        return Blocker(kind="trait", name=name, status="MISSING", reason=f"trait {name} has no result")
    because = f": {fact.reason}" if fact.reason else ""
    return Blocker(
        kind="trait",
        name=name,
        status=fact.status.value,
        reason=f"trait {name} is {fact.status.value}{because}",
        since_ms=fact.evaluated_at_ms,
    )


def _trait_errors(evaluation: Evaluation, traits: Mapping[str, TraitFact]) -> Iterator[TraitFact]:
    """Yield the traits with a failed evaluation that unmet rules read."""
    if evaluation.verdict is Verdict.PASS:
        return
    for result in evaluation.counted:
        for each in result.walk():
            fact = traits.get(each.subject) if each.kind is RuleKind.TRAIT else None
            if fact is not None and fact.status is TraitStatus.ERROR and each.verdict is Verdict.UNKNOWN:
                yield fact


def _category(errors: Sequence[TraitFact]) -> FailureCategory:
    """Return whether a retry may help: only if it may for all of them."""
    categories = [fact.category or FailureCategory.PERMANENT for fact in errors]
    if FailureCategory.PERMANENT in categories:
        return FailureCategory.PERMANENT
    return categories[0]


# Rules.


def _blocking_rules(evaluation: Evaluation) -> tuple[Blocker, ...]:
    """Return the unmet rules, down to those that can be fixed one by one."""
    if not evaluation.counted:
        return (Blocker(kind="rule", name="rules", status=Verdict.FAIL.value, reason="ANY of no rules never holds"),)
    return tuple(_rule(each) for result in evaluation.counted for each in _wanting(result))


def _wanting(result: RuleResult) -> Iterator[RuleResult]:
    if result.verdict is Verdict.PASS:
        return
    below = [child for child in result.children if child.severity is Severity.BLOCK]
    if result.kind is RuleKind.ALL and any(child.verdict is not Verdict.PASS for child in below):
        for child in below:
            yield from _wanting(child)
        return
    yield result


def _warning_rules(evaluation: Evaluation) -> tuple[Blocker, ...]:
    walked = (each for result in evaluation.results for each in result.walk())
    return tuple(_rule(each) for each in walked if each.severity is Severity.WARN and each.verdict is not Verdict.PASS)


def _rule(result: RuleResult) -> Blocker:
    return Blocker(
        kind="rule", name=result.name, status=result.verdict.value, reason=result.reason, since_ms=result.since_ms
    )


def _reason(
    evaluation: Evaluation, result: ReadinessResult, blocking: Sequence[Blocker], errors: Sequence[TraitFact]
) -> str:
    counted = evaluation.counted
    hold = f"{evaluation.passed_count} of {len(counted)} rules hold" if counted else "no rules"
    if result is ReadinessResult.PROCEED:
        return f"ready: {hold}"
    if result is ReadinessResult.ERROR:
        failed = next((each.reason for each in blocking if each.status == TraitStatus.ERROR.value), errors[0].reason)
        return f"the evaluation failed: {failed}"
    listed = "; ".join(each.reason for each in blocking[:_NAMED_MAX])
    more = f" and {len(blocking) - _NAMED_MAX} more" if len(blocking) > _NAMED_MAX else ""
    one_is_enough = " (one is enough)" if evaluation.mode == ANY and len(counted) > 1 else ""
    return f"{hold}{one_is_enough}; {listed}{more}"
