from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from headgate.asl.machines.executions import ExecutionStatus
from headgate.asl.runtime.interpreter import Limits
from headgate.asl.runtime.task_tokens import CallbackKind, TaskCallback
from headgate.durable.model.history import Started
from tests.asl_rig import Rig, beside, check_events, each, machine, task

LONG = {"Type": "Wait", "Seconds": 86_400}
FAILS = task("fail", Parameters={"error": "Refused"})
PASS = {"Type": "Pass"}


def caught(*patterns: str, **fields: Any) -> list[dict[str, Any]]:
    return [{"ErrorEquals": list(patterns), "Next": "Caught", **fields}]


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig() as made:
        yield made


# Time.


def test_task__longer_than_its_timeout__fails_with_states_timeout_and_leaves_nothing(rig: Rig) -> None:
    rig.stand_in("work").waits()
    execution_id = rig.start(machine(("T", task("work", Parameters="x", TimeoutSeconds=30))))
    rig.env.advance(29.9)
    assert rig.executions.describe(execution_id).status is ExecutionStatus.RUNNING

    found = rig.end(execution_id)

    assert (found.status, found.error) == (ExecutionStatus.FAILED, "States.Timeout")
    assert rig.types(execution_id)[-2:] == ["LambdaFunctionTimedOut", "ExecutionFailed"]
    assert rig.rows_left() == []


def test_task__timeout_from_its_input__is_the_one_that_counts(rig: Rig) -> None:
    rig.stand_in("work").waits()
    started_at = rig.env.clock.seconds()
    definition = machine(("T", task("work", Parameters="x", TimeoutSecondsPath="$.limit")))

    assert rig.run(definition, {"limit": 77}).error == "States.Timeout"
    assert rig.env.clock.seconds() - started_at == pytest.approx(77.0, abs=1.0)


def test_task__retry_after_a_timeout__is_a_new_attempt_with_all_its_time(rig: Rig) -> None:
    rig.stand_in("work").waits_once()
    retry = [{"ErrorEquals": ["States.Timeout"], "IntervalSeconds": 5}]
    found = rig.run(machine(("T", task("work", Parameters="x", TimeoutSeconds=30, Retry=retry))))

    assert found.output == "did x"


def test_task__heartbeats_of_its_function_in_time_and_then_none__fails_with_heartbeat_timeout(rig: Rig) -> None:
    rig.stand_in("work").waits()
    definition = machine(("T", task("work", Parameters="x", HeartbeatSeconds=30, TimeoutSeconds=900)))
    execution_id = rig.start(definition)
    for _ in range(4):
        rig.env.advance(20.0)
        rig.env.service.client.beat_activity(rig.env.tokens[-1])
    assert rig.executions.describe(execution_id).status is ExecutionStatus.RUNNING

    found = rig.end(execution_id)

    assert found.error == "States.HeartbeatTimeout"
    assert rig.rows_left() == []


@pytest.mark.parametrize("jump", [-7_200.0, -30.0, 30.0, 7_200.0])
def test_wait__clock_jumps_in_the_middle__is_no_shorter_and_ends(rig: Rig, jump: float) -> None:
    execution_id = rig.start(machine(("W", {"Type": "Wait", "Seconds": 600}), ("Last", PASS)))
    rig.env.clock.step(jump)

    assert rig.end(execution_id).status is ExecutionStatus.SUCCEEDED
    times = {event.type: event.at_ms for event in rig.history(execution_id)}
    assert times["WaitStateExited"] - times["WaitStateEntered"] >= 600_000


# Siblings.


def test_branch__that_fails__ends_its_siblings_and_nothing_of_them_is_left(rig: Rig) -> None:
    rig.stand_in("work").waits()
    held = task("work", Parameters="held", TimeoutSeconds=900)
    definition = machine(
        (
            "P",
            beside(
                machine(("First", {"Type": "Wait", "Seconds": 5}), ("Fails", FAILS)),
                machine(("Held", held)),
                machine(("Long", LONG)),
                machine(("M", each(("Item", held), Parameters={"a": 1}, ItemsPath="$.items"))),
                machine(("Inner", beside(machine(("Deep", LONG)), machine(("Deeper", held))))),
                Catch=caught("Refused"),
            ),
        ),
        ("Caught", {"Type": "Wait", "Seconds": 100}),
    )
    execution_id = rig.start(definition, {"items": [1, 2, 3]})
    assert len(rig.rows_left()) == 8

    rig.env.advance(6.0)

    assert len(rig.rows_left()) == 1, "only the timer of the Wait after it"
    assert rig.end(execution_id).output["Error"] == "Refused"
    counts = Counter(rig.types(execution_id))
    assert (counts["MapIterationAborted"], counts["TaskStateAborted"], counts["WaitStateAborted"]) == (3, 5, 2)
    check_events(rig.history(execution_id))


def test_branch__that_fails__without_catch__ends_the_machine_with_its_error(rig: Rig) -> None:
    found = rig.run(machine(("P", beside(machine(("Fails", FAILS)), machine(("Long", LONG))))))

    assert (found.status, found.error) == (ExecutionStatus.FAILED, "Refused")
    assert rig.rows_left() == []


def test_map__item_that_fails__no_further_item_is_begun(rig: Rig) -> None:
    rig.functions.broken = {2}
    found = rig.run(machine(("M", each(("I", task("work")), MaxConcurrency=1))), [1, 2, 3, 4])

    assert found.error == "Broken"
    assert rig.functions.inputs("work") == [1, 2]


@pytest.mark.parametrize(("concurrency", "most"), [(0, 40), (1, 1), (3, 3), (100, 60)])
def test_map__max_concurrency__so_many_are_under_way_at_once(rig: Rig, concurrency: int, most: int) -> None:
    rig.stand_in("work").waits()
    definition = machine(("M", each(("I", task("work")), MaxConcurrency=concurrency)))
    rig.start(definition, list(range(60)))

    assert len(rig.env.tokens) == most


def test_map__retried_as_a_whole__all_items_are_done_again(rig: Rig) -> None:
    rig.functions.broken = {2}
    retry = [{"ErrorEquals": ["Broken"], "IntervalSeconds": 1, "MaxAttempts": 1}]
    rig.run(machine(("M", each(("I", task("work")), MaxConcurrency=1, Retry=retry))), [1, 2])

    assert rig.functions.inputs("work") == [1, 2, 1, 2]


# Variables.


def test_variables__of_branches__see_those_outside_and_stay_inside(rig: Rig) -> None:
    inner = machine(
        ("Set", {"Type": "Pass", "Assign": {"mine.$": "$.n", "seen.$": "$outer"}}),
        ("Pause", {"Type": "Wait", "Seconds": 1}),
        ("Get", {"Type": "Pass", "Parameters": {"mine.$": "$mine", "seen.$": "$seen", "outer.$": "$outer"}}),
    )
    definition = machine(
        ("Begin", {"Type": "Pass", "Assign": {"outer": "o"}}),
        ("M", {"Type": "Map", "ItemsPath": "$.items", "ItemProcessor": inner, "ResultPath": "$.got"}),
        ("After", {"Type": "Pass", "Parameters": {"got.$": "$.got", "outer.$": "$outer"}}),
    )

    found = rig.run(definition, {"items": [{"n": 1}, {"n": 2}]})

    expected = [{"mine": n, "seen": "o", "outer": "o"} for n in (1, 2)]
    assert found.output == {"got": expected, "outer": "o"}


def test_variables__set_in_a_branch__are_not_there_outside(rig: Rig) -> None:
    definition = machine(
        ("P", beside(machine(("Set", {"Type": "Pass", "Assign": {"inside": 1}})))),
        ("Get", {"Type": "Pass", "Parameters": {"x.$": "$inside"}}),
    )

    found = rig.run(definition)

    assert found.status is ExecutionStatus.FAILED
    assert rig.entered(found.execution_id) == ["P", "Set", "Get"]


# Sizes.


def test_result__larger_than_may_pass__is_data_limit_exceeded_which_only_its_name_catches(rig: Rig) -> None:
    rig.stand_in("work").returns("x" * 262_143)
    by_all = machine(("T", task("work", Parameters=1, Catch=caught("States.ALL"))), ("Caught", PASS))
    by_name = machine(
        ("T", task("work", Parameters=1, Catch=caught("States.DataLimitExceeded"))), ("Caught", {"Type": "Succeed"})
    )

    missed, found = rig.run(by_all, name="one"), rig.run(by_name, name="two")

    assert (missed.status, missed.error) == (ExecutionStatus.FAILED, "States.DataLimitExceeded")
    assert (found.status, found.output["Error"]) == (ExecutionStatus.SUCCEEDED, "States.DataLimitExceeded")


def test_output__of_a_map_that_adds_up_to_more_than_may_pass__is_data_limit_exceeded(rig: Rig) -> None:
    rig.stand_in("work").returns("x" * 100_000)

    found = rig.run(machine(("M", each(("I", task("work"))))), [1, 2, 3])

    assert (found.status, found.error) == (ExecutionStatus.FAILED, "States.DataLimitExceeded")


def test_limits__smaller_ones__are_those_that_count(rig: Rig) -> None:
    found = rig.run(machine(("E", task("echo"))), "x" * 50, limits=Limits(data_bytes_max=60))
    grown = rig.run(
        machine(("P", {"Type": "Pass", "Parameters": {"a.$": "$", "b.$": "$"}})),
        "x" * 50,
        name="two",
        limits=Limits(data_bytes_max=60),
    )

    assert (found.output, grown.error) == ("x" * 50, "States.DataLimitExceeded")


# Long loops.

ROUNDS = 3_000


def test_poll_loop__of_thousands_of_rounds__goes_on_under_one_id_in_runs_of_bounded_length() -> None:
    rule = {"Variable": "$.seen", "NumericGreaterThanEquals": ROUNDS, "Next": "Done"}
    definition = machine(
        ("Pause", {"Type": "Wait", "Seconds": 60}),
        (
            "Look",
            {"Type": "Pass", "Parameters": {"seen.$": "States.MathAdd($.seen, 1)"}, "Assign": {"last.$": "$.seen"}},
        ),
        ("Enough", {"Type": "Choice", "Choices": [rule], "Default": "Pause"}),
        ("Done", {"Type": "Pass", "Parameters": {"seen.$": "$.seen", "last.$": "$last", "id.$": "$$.Execution.Id"}}),
    )
    # Replaying before every turn is what other tests are for: here it would take minutes.
    with Rig(replay_always=False) as rig:
        found = rig.run(definition, {"seen": 0})
        row = rig.env.service.client.get(found.execution_id)
        turns = list(rig.env.service.client.history(found.execution_id))
        events = rig.history(found.execution_id)

    assert found.output == {"seen": ROUNDS, "last": ROUNDS, "id": found.execution_id}
    assert (found.name, found.input) == ("one", {"seen": 0})
    check_events(events)
    assert sum(event.type == "WaitStateEntered" for event in events) == ROUNDS
    assert [event.type for event in events].count("ExecutionStarted") == 1
    in_run = Counter(turn.run for turn in turns)
    assert row.run == len(in_run) > 10
    # No run has more to replay, or begins with more, than another: however long it goes on.
    assert max(in_run.values()) <= Limits().events_a_run
    sizes = [len(bytes(event.input)) for turn in turns for event in turn.events if isinstance(event, Started)]
    assert max(sizes[1:]) - min(sizes[1:]) <= 20


def test_loop__in_a_branch_without_a_wait_or_a_task__fails_instead_of_holding_its_worker() -> None:
    again = {
        "Type": "Choice",
        "Choices": [{"Variable": "$.done", "BooleanEquals": True, "Next": "Out"}],
        "Default": "In",
    }
    branch = {
        "StartAt": "In",
        "States": {"In": {"Type": "Pass", "Next": "Again"}, "Again": again, "Out": {"Type": "Succeed"}},
    }
    definition = machine(("Both", {"Type": "Parallel", "Branches": [branch]}))
    with Rig(replay_always=False) as rig:
        found = rig.run(definition, {"done": False})

    assert (found.status, found.error) == (ExecutionStatus.FAILED, "States.Runtime")
    assert found.cause == "The branch entered 25000 states in a row without a Wait or a Task."


def test_token_wait__for_another_machine__only_starts_it(rig: Rig) -> None:
    rig.env.service.asl.machines.put("inner", json.dumps(machine(("Long", LONG))))
    given = {"StateMachineArn": "arn:aws:states:eu-west-1:1:stateMachine:inner", "Input": {"t.$": "$$.Task.Token"}}
    resource = "arn:aws:states:::states:startExecution.waitForTaskToken"
    execution_id = rig.start(machine(("Ask", {"Type": "Task", "Resource": resource, "Parameters": given})))
    running = [row for row in rig.env.service.client.list().executions if row.execution_id != execution_id]

    token = rig.executions.describe(running[0].execution_id).input["t"]
    rig.executions.send_callback(token, TaskCallback(CallbackKind.SUCCESS, output="well"))
    rig.env.run()

    assert rig.executions.describe(execution_id).output == "well"
    assert rig.executions.describe(running[0].execution_id).status is ExecutionStatus.RUNNING


@pytest.mark.parametrize("name", ["echo:prod", "arn:aws:lambda:eu-west-1:1:function:echo:7", "${echo}"])
def test_invoke__function_with_a_qualifier__is_found(rig: Rig, name: str) -> None:
    invoke = {
        "Type": "Task",
        "Resource": "arn:aws:states:::lambda:invoke",
        "Parameters": {"FunctionName": name, "Payload.$": "$"},
        "OutputPath": "$.Payload",
    }

    assert rig.run(machine(("Call", invoke)), {"a": 1}).output == {"a": 1}


def test_jsonata_field__of_the_wrong_type__can_be_caught(rig: Rig) -> None:
    caught = {"ErrorEquals": ["States.ALL"], "Next": "Caught"}
    items = each(("I", {"Type": "Pass"}), Items="{% 'no list' %}", QueryLanguage="JSONata", Catch=[caught])

    found = rig.run(machine(("M", {**items, "Next": "Caught"}), ("Caught", {"Type": "Pass"})))

    assert found.output["Error"] == "States.QueryEvaluationError"
