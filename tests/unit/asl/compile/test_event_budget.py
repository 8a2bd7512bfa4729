"""Event budget: the events of a pass, and the loops that exceed the history."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headgate.asl.compile.event_budget import EVENTS_MAX, LoopVerdict, event_budget
from headgate.asl.compile.problems import ProblemCode

_EXAMPLES = Path(__file__).parents[4] / "examples" / "asl"

Json = Any


def _task(**fields: Json) -> Json:
    return {"Type": "Task", "Resource": "work", **fields}


def _machine(states: dict[str, Json], **fields: Json) -> Json:
    return {"StartAt": next(iter(states)), "States": states, **fields}


def _poll(pause: Json, **fields: Json) -> Json:
    choices = [{"Variable": "$.done", "BooleanEquals": True, "Next": "Done"}]
    return _machine(
        {
            "Ask": _task(Next="Is it?"),
            "Is it?": {"Type": "Choice", "Choices": choices, "Default": "Pause"},
            "Pause": {**pause, "Next": "Ask"},
            "Done": {"Type": "Succeed"},
        },
        **fields,
    )


@pytest.mark.parametrize(
    ("state", "events"),
    [
        pytest.param(_task(End=True), 5, id="task"),
        pytest.param(_task(Resource="arn:aws:states:::sns:publish", End=True), 5, id="service"),
        pytest.param(_task(Resource="arn:aws:states:::lambda:invoke.waitForTaskToken", End=True), 6, id="task-token"),
        pytest.param({"Type": "Pass", "End": True}, 2, id="pass"),
        pytest.param({"Type": "Wait", "Seconds": 1, "End": True}, 2, id="wait"),
        pytest.param({"Type": "Succeed"}, 2, id="succeed"),
        pytest.param({"Type": "Fail"}, 1, id="fail"),
        pytest.param(
            {"Type": "Parallel", "Branches": [_machine({"A": _task(End=True)}), _machine({"B": _task(End=True)})]},
            4 + 5 + 5,
            id="parallel-sums-its-branches",
        ),
        pytest.param(
            {
                "Type": "Map",
                "QueryLanguage": "JSONata",
                "Items": [1, 2, 3],
                "ItemProcessor": _machine({"A": _task(End=True)}),
            },
            4 + 3 * (2 + 5),
            id="map-of-three",
        ),
        pytest.param(
            {
                "Type": "Map",
                "ItemProcessor": {
                    **_machine({"A": _task(End=True)}),
                    "ProcessorConfig": {"Mode": "DISTRIBUTED", "ExecutionType": "STANDARD"},
                },
            },
            4 + 2,
            id="distributed-map-has-the-run-alone",
        ),
    ],
)
def test_budget__one_state__its_events_and_those_of_the_execution(state: Json, events: int) -> None:
    assert event_budget(_machine({"Only": state})).events_per_pass == events + 2


def test_budget__ways_of_unlike_cost__the_costliest() -> None:
    machine = _machine(
        {
            "Which": {
                "Type": "Choice",
                "Choices": [{"Variable": "$.x", "IsNull": True, "Next": "Short"}],
                "Default": "A",
            },
            "Short": {"Type": "Pass", "End": True},
            "A": _task(Next="B"),
            "B": _task(End=True),
        }
    )

    assert event_budget(machine).events_per_pass == 2 + 2 + 5 + 5


def test_budget__inline_map_of_unknown_length__cost_per_item_is_distinguished() -> None:
    machine = _machine({"All": {"Type": "Map", "ItemProcessor": _machine({"A": _task(End=True)}), "End": True}})

    found = event_budget(machine)

    assert found.events_per_pass == 2 + 4
    assert [(each.path, each.events_per_item) for each in found.iterations] == [("$.States.All", 7)]


@pytest.mark.parametrize(
    ("pause", "timeout_seconds", "verdict"),
    [
        # 9 events a round: about 2,700 rounds fit.
        pytest.param({"Type": "Wait", "Seconds": 60}, 86_400, LoopVerdict.HOLDS, id="minutes-for-a-day"),
        pytest.param({"Type": "Wait", "Seconds": 30}, 86_400, LoopVerdict.EXCEEDS, id="half-minutes-for-a-day"),
        pytest.param({"Type": "Wait", "Seconds": 60}, None, LoopVerdict.UNKNOWN, id="no-time-out"),
        pytest.param(
            {"Type": "Wait", "SecondsPath": "$.pause"}, 86_400, LoopVerdict.UNKNOWN, id="pause-from-the-input"
        ),
        pytest.param({"Type": "Wait", "Seconds": 0}, 86_400, LoopVerdict.UNBOUNDED, id="pause-of-nothing"),
        pytest.param({"Type": "Pass"}, 86_400, LoopVerdict.UNBOUNDED, id="no-pause"),
        pytest.param(
            _task(Resource="arn:aws:states:::lambda:invoke.waitForTaskToken"), None, LoopVerdict.UNKNOWN, id="token"
        ),
    ],
)
def test_budget__poll_loop__verdict_by_pause_and_time_out(
    pause: Json, timeout_seconds: int | None, verdict: LoopVerdict
) -> None:
    fields = {} if timeout_seconds is None else {"TimeoutSeconds": timeout_seconds}

    (loop,) = event_budget(_poll(pause, **fields)).loops

    assert loop.states == ("Ask", "Is it?", "Pause")
    assert loop.verdict is verdict
    assert (loop.rounds_max - 1) * loop.events_per_round < EVENTS_MAX


def test_budget__exceeding_and_unbounded_loops__problems_at_the_loop() -> None:
    exceeding = event_budget(_poll({"Type": "Wait", "Seconds": 1}, TimeoutSeconds=86_400)).problems
    unbounded = event_budget(_poll({"Type": "Pass"})).problems

    assert [(problem.path, problem.code) for problem in exceeding] == [("$.States.Ask", ProblemCode.BUDGET_EXCEEDED)]
    assert [(problem.path, problem.code) for problem in unbounded] == [("$.States.Ask", ProblemCode.UNBOUNDED_LOOP)]


def test_budget__loop_that_counts__not_called_unbounded() -> None:
    machine = _machine(
        {
            "Work": _task(ResultPath="$.count", Next="Enough"),
            "Enough": {
                "Type": "Choice",
                "Choices": [{"Variable": "$.count", "NumericGreaterThan": 9, "Next": "Done"}],
                "Default": "Work",
            },
            "Done": {"Type": "Succeed"},
        }
    )

    found = event_budget(machine)

    assert [loop.verdict for loop in found.loops] == [LoopVerdict.UNKNOWN]
    assert found.problems == []


def test_budget__loop_inside_an_inline_map__unknown_for_the_items_are() -> None:
    inner = _poll({"Type": "Wait", "Seconds": 600})
    machine = _machine({"Each": {"Type": "Map", "ItemProcessor": inner, "End": True}}, TimeoutSeconds=86_400)

    (loop,) = event_budget(machine).loops

    assert loop.path == "$.States.Each.ItemProcessor.States.Ask"
    assert loop.verdict is LoopVerdict.UNKNOWN


@pytest.mark.parametrize(("execution_type", "children"), [("STANDARD", 1), ("EXPRESS", 0)])
def test_budget__distributed_map__child_history_of_its_own_unless_express(execution_type: str, children: int) -> None:
    processor = {
        **_poll({"Type": "Pass"}),
        "ProcessorConfig": {"Mode": "DISTRIBUTED", "ExecutionType": execution_type},
    }
    found = event_budget(_machine({"Each": {"Type": "Map", "ItemProcessor": processor, "End": True}}))

    assert found.loops == ()
    assert len(found.children) == len(found.problems) == children


def test_budget__more_loops_than_are_searched__says_so() -> None:
    names = [f"S{number}" for number in range(12)]
    states = {
        name: {
            "Type": "Choice",
            "Choices": [{"Variable": "$.x", "StringEquals": other, "Next": other} for other in names],
            "Default": "End",
        }
        for name in names
    }
    machine = _machine({**states, "End": {"Type": "Succeed"}})

    found = event_budget(machine)

    assert not found.has_all_loops
    assert found.events_per_pass == 2 + 12 * 2 + 2


@pytest.mark.parametrize("path", sorted(_EXAMPLES.glob("*.asl.json")), ids=lambda path: path.stem)
def test_budget__examples__no_problem(path: Path) -> None:
    assert event_budget(json.loads(path.read_text())).problems == []
