"""Hand-over: no execution of the lifecycle comes near the 25,000 events of a history, whatever its window."""

from __future__ import annotations

import json

import pytest

from headgate.asl.compile.event_budget import EVENTS_MAX, LoopCost, event_budget
from headgate.asl.model.definition import StateType
from headgate.durable.model.duration import Seconds
from headgate.pipelines.definition.model import Readiness, Trait
from headgate.pipelines.lifecycle.hand_over import (
    NEVER,
    ROUND_EVENTS,
    TRAIT_EVENTS,
    continued_state,
    next_name,
    rounds_before_hand_over,
)
from headgate.pipelines.lifecycle.starter import lifecycle_definition
from headgate.settings import Settings
from tests.pipeline_rig import pipeline

MACHINE = json.loads(lifecycle_definition())
BUDGET = event_budget(MACHINE)
HAND_OVER_EVENTS = Settings().pipelines.hand_over_events
# A Task that fails and is retried adds three events, three times at most.
RETRY_EVENTS = 9


def loops_that_wait() -> list[LoopCost]:
    """Return the loops that repeat within one attempt at a period."""
    return [loop for loop in BUDGET.loops if "AcquireLock" not in loop.states]


def patient(traits: int) -> Readiness:
    found = {f"t{number}": Trait(evaluator="builtin:always") for number in range(traits)}
    return Readiness(traits=found, window=Seconds(23 * 3_600), interval=Seconds(30))


def test_rounds__events_of_a_round__are_those_that_the_budget_tool_counts() -> None:
    assert max(loop.events_per_round for loop in loops_that_wait()) == ROUND_EVENTS
    assert {each.events_per_item for each in BUDGET.iterations} == {TRAIT_EVENTS}
    assert BUDGET.has_all_loops


@pytest.mark.parametrize("traits", [0, 1, 20, 200])
def test_rounds__window_of_23_hours_at_30_seconds__fit_the_history_between_two_hand_overs(traits: int) -> None:
    defined = pipeline("patient", readiness=patient(traits))
    rounds = rounds_before_hand_over(defined, HAND_OVER_EVENTS)
    loop = max(loops_that_wait(), key=lambda each: each.events_per_round)
    tasks = sum(1 for name in loop.states if MACHINE["States"][name]["Type"] == StateType.TASK)

    # Without a hand-over the window does not fit.
    assert loop.rounds_max < 2_760
    quiet = rounds * (ROUND_EVENTS + TRAIT_EVENTS * traits) + BUDGET.events_per_pass
    # The worst case: every Task of every round is retried as often as it can be.
    troubled = quiet + rounds * RETRY_EVENTS * (tasks + traits)
    assert quiet < EVENTS_MAX / 2
    assert troubled < EVENTS_MAX


def test_rounds__on_the_durable_engine__are_never_handed_over() -> None:
    assert rounds_before_hand_over(pipeline("local"), None) == NEVER


@pytest.mark.parametrize(
    ("execution", "following"),
    [
        ("orders-stream-2026-03-03-marker-0123456789", "orders-stream-2026-03-03-marker-0123456789-h2"),
        ("orders-stream-2026-03-03-marker-0123456789-h9", "orders-stream-2026-03-03-marker-0123456789-h10"),
        ("by-hand", "by-hand-h2"),
    ],
)
def test_name__of_the_next_execution__follows_from_the_current_one(execution: str, following: str) -> None:
    assert next_name(execution) == following


def test_name__of_eighty_characters__stays_unique_and_short_over_many_hand_overs() -> None:
    first, second = next_name("x" * 79 + "1"), next_name("x" * 79 + "2")
    name = first
    for _ in range(1_000):
        name = next_name(name)

    assert first != second
    assert len(first) <= 80
    assert len(name) <= 80
    assert name.endswith("-h1002")


def test_state__of_the_next_execution__keeps_everything_and_counts_from_zero() -> None:
    state = {"runId": "run_1", "evaluation": {"elapsed": 30, "rounds": 9}, "poll": {"rounds": 3, "waitSeconds": 5}}

    assert continued_state(state) == {
        "runId": "run_1",
        "evaluation": {"elapsed": 30, "rounds": 0},
        "poll": {"rounds": 0, "waitSeconds": 5},
        "watch": {"rounds": 0},
    }
