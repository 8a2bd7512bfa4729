"""The counts that the bill uses are those of the code: they are measured again, with fewer units."""

from __future__ import annotations

import pytest

from bench import load_stories, unit_counts
from bench.load_stories import AFTER
from headgate.deployment.costs.bill import read_counts


def stored(name: str) -> dict[str, float]:
    return {str(item): value for item, value in read_counts().unit(name).quantities.items()}


def test_counts__of_executions_and_steps_on_functions__are_those_measured_now() -> None:
    execution = unit_counts.of(load_stories.executions_of_functions(AFTER, 10, concurrent=2))
    step = unit_counts.step_of_functions(execution, 10, concurrent=2)

    assert execution == pytest.approx(stored("execution"), rel=0.05)
    assert step == pytest.approx(stored("step"), rel=0.05)


def test_counts__of_chunks_on_functions__are_those_measured_now() -> None:
    # The fan-out itself is a part of few chunks: of 100 it is some two units each.
    assert unit_counts.chunk_of_functions(100) == pytest.approx(stored("chunk"), rel=0.1)


def test_counts__of_signals_and_evidence__are_those_measured_now() -> None:
    health = load_stories.health_operations(AFTER, 100, evidence=400)
    stories = {
        "signal": health.refreshes,
        "breach": health.breaches,
        "recovery": health.recoveries,
        "evidence": health.evidence,
    }

    for name, story in stories.items():
        assert unit_counts.of(story) == pytest.approx(stored(name), rel=0.1, abs=0.2), name
