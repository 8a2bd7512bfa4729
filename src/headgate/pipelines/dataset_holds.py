"""Dataset holds: which datasets keep a run from starting, and when that is news."""

from __future__ import annotations

from typing import NamedTuple

from headgate.pipelines.evaluations import StoredEvaluation
from headgate.pipelines.facts import Facts
from headgate.pipelines.rule_compiling import RuleKind
from headgate.pipelines.vocabulary import Severity, Verdict


class HoldNews(NamedTuple):
    """The datasets that hold a run since this evaluation, and those that do no longer."""

    held: tuple[str, ...]
    released: tuple[str, ...]


def holds_of(stored: StoredEvaluation) -> frozenset[str]:
    """Return the datasets whose rules do not hold, where a run has to wait for that."""
    if stored.verdict.may_start:
        return frozenset()
    return frozenset(
        each.subject
        for result in stored.evaluation.results
        if result.severity is Severity.BLOCK and result.verdict is not Verdict.PASS
        for each in result.walk()
        if each.kind is RuleKind.DATASET and each.verdict is not Verdict.PASS
    )


def hold_news(before: StoredEvaluation | None, after: StoredEvaluation) -> HoldNews:
    """Return what is news of an evaluation after the one before. What another run was held by is over with it."""
    held_before = holds_of(before) if before is not None and before.run_id == after.run_id else frozenset()
    held_now = holds_of(after)
    return HoldNews(tuple(sorted(held_now - held_before)), tuple(sorted(held_before - held_now)))


def has_recovered(stored: StoredEvaluation, facts: Facts) -> bool:
    """Whether a dataset that held the run when it was evaluated may be read now."""
    return any(urn in facts.datasets and facts.datasets[urn].verdict is Verdict.PASS for urn in holds_of(stored))
