"""Task activities: Tasks that start machines and fan-outs or call services, on the engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

import headgate as hg
from headgate.asl.errors import StateError
from headgate.asl.machines.executions import ExecutionStatus, MachineExecutions
from headgate.asl.runtime.execution_request import ExecutionRequest
from headgate.asl.tasks.actions import ACTIONS, known_actions, normalized_call
from headgate.asl.tasks.activities import FANOUT, LOAD, START
from headgate.asl.tasks.fanout_tasks import run_fanout
from headgate.asl.tasks.resources import Callee, TaskCall, TaskTarget, WaitMode
from headgate.fanout.core.queries import FanoutQueries
from headgate.fanout.model.states import FanoutStatus
from tests.integration.asl.task_rig import Rig, key
from tests.integration.fanout.worlds import CrashError
from tests.scenarios import map_handlers

HANDLERS = "tests.scenarios.map_handlers"
PASSES = {"StartAt": "Only", "States": {"Only": {"Type": "Pass", "End": True}}}
WAITS = {"StartAt": "Only", "States": {"Only": {"Type": "Wait", "Seconds": 60, "End": True}}}
CALLS_NOBODY = {"StartAt": "Only", "States": {"Only": {"Type": "Task", "Resource": "nobody_has_it", "End": True}}}
TAKEN = "StepFunctions.ExecutionAlreadyExistsException"


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path) as made:
        made.executions.machines.put("passes", json.dumps(PASSES))
        made.executions.machines.put("calls", json.dumps(CALLS_NOBODY))
        yield made


def test_known_actions__each_is_one_that_can_be_called(rig: Rig) -> None:
    for service, actions in known_actions().items():
        for action in actions:
            with pytest.raises(StateError) as failed:
                rig.call(service, action, {"Unknown": 1})
            assert "'Unknown'" in failed.value.cause
    assert normalized_call("aws-sdk:EventBridge", "PutEvents") == ("events", "putEvents", True)
    assert known_actions()["eventbridge"] == ACTIONS["events"]


# Machines.


def test_start__a_machine__runs_it_under_an_id(rig: Rig) -> None:
    answer = rig.attempt(START, {"machine": "passes", "input": {"n": 1}, "name": "first"})
    assert answer == {"ExecutionArn": "passes:first", "StartDate": "2025-06-15T15:06:40.000Z"}
    assert rig.service.client.get("passes:first").tags == {"machine": "passes"}


@pytest.mark.parametrize("name", [None, "named"])
@pytest.mark.parametrize("is_applied", [False, True])
def test_start__worker_dies_at_the_start__second_attempt_gives_the_same_execution(
    rig: Rig, name: str | None, is_applied: bool
) -> None:
    order = {"machine": "passes", "input": 1, "name": name}
    rig.crashing.crash_at, rig.crashing.is_applied = rig.crashing.writes + 1, is_applied
    with pytest.raises(CrashError):
        rig.attempt(START, order)
    if is_applied:
        _run_to_the_end(rig)
    rig.clock.advance(5)
    answer = rig.attempt(START, order, attempt=2)
    assert answer["StartDate"] == f"2025-06-15T15:06:4{0 if is_applied else 5}.000Z"
    assert len(rig.service.client.list(workflow="headgate.machine").executions) == 1


def test_start__without_a_name_by_two_tasks__makes_two_executions(rig: Rig) -> None:
    ids = {rig.attempt(START, {"machine": "passes"}, id=f"m:1#1#{n}")["ExecutionArn"] for n in (1, 2)}
    assert len(ids) == 2


def test_start__a_name_that_runs_with_the_same_input__gives_it_and_with_another_is_refused(rig: Rig) -> None:
    first = rig.attempt(START, {"machine": "passes", "input": 1, "name": "x"}, id="a")
    assert rig.attempt(START, {"machine": "passes", "input": 1, "name": "x"}, id="b") == first
    with pytest.raises(StateError) as failed:
        rig.attempt(START, {"machine": "passes", "input": 2, "name": "x"}, id="c")
    assert failed.value.error == TAKEN


def test_start__a_name_whose_execution_has_ended__is_taken(rig: Rig) -> None:
    rig.attempt(START, {"machine": "passes", "input": 1, "name": "x"}, id="a")
    _run_to_the_end(rig)
    with pytest.raises(StateError) as failed:
        rig.attempt(START, {"machine": "passes", "input": 1, "name": "x"}, id="b")
    assert failed.value.error == TAKEN


@pytest.mark.parametrize("activity", [START, LOAD])
@pytest.mark.parametrize(
    ("order", "error"),
    [
        ({"machine": "unknown"}, "StepFunctions.StateMachineDoesNotExistException"),
        ({"machine": "not a name"}, "StepFunctions.InvalidArnException"),
        ({"machine": "passes", "name": "not a name"}, "StepFunctions.InvalidNameException"),
        ({"machine": "passes", "input": "x" * 300_000}, "StepFunctions.InvalidExecutionInputException"),
        ({"machine": "calls"}, "StepFunctions.ValidationException"),
    ],
)
def test_start_and_load__what_cannot_be_started__is_reported_in_step_functions_words(
    rig: Rig, activity: str, order: Any, error: str
) -> None:
    with pytest.raises(StateError) as failed:
        rig.attempt(activity, order)
    assert failed.value.error == error


def test_load__a_machine__gives_the_request_that_a_child_runs(rig: Rig) -> None:
    loaded = rig.attempt(LOAD, {"machine": "passes", "input": {"n": 1}, "name": "child"})
    request = msgspec.convert(loaded, ExecutionRequest)
    assert (request.machine, request.name, request.input, request.version) == ("passes", "child", {"n": 1}, 1)
    assert request.definition == ""
    assert json.loads(rig.executions.machines.definition("passes", 1)) == PASSES
    assert rig.attempt(LOAD, {"machine": "passes"}) == rig.attempt(LOAD, {"machine": "passes"}, attempt=2)


def _run_to_the_end(rig: Rig) -> None:
    worker = rig.service.worker()
    worker.join()
    for _ in range(20):
        worker.poll()
        while worker.engine.has_work:
            worker.turn()
    worker.engine.drop()


# Fan-outs.


def test_fanout__started__has_its_chunks_and_its_policy(rig: Rig) -> None:
    parameters = {"items": [1, 2, 3], "chunk_size": 2, "params": {"f": 2}, "max_attempts": 7, "campaign": "spring"}
    answer = rig.attempt(FANOUT, {"fanout": f"{HANDLERS}.double", "parameters": parameters, "wait": ""})
    made = rig.fanouts.queries.fanout(answer["runId"])
    assert (made.handler, made.group, made.chunks) == (f"{HANDLERS}:double", f"{HANDLERS}.double", 2)
    assert (made.rules().max_attempts, made.rules().each, made.campaign) == (7, True, "spring")
    assert (made.waiter, made.status) == (None, FanoutStatus.RUNNING)


@pytest.mark.parametrize("write", [1, 2, 3])
@pytest.mark.parametrize("is_applied", [False, True])
def test_fanout__worker_dies_while_it_is_split__second_attempt_goes_on_with_it(
    rig: Rig, write: int, is_applied: bool
) -> None:
    order = {"fanout": f"{HANDLERS}.double", "parameters": {"range": [0, 5], "chunk_size": 1}}
    rig.crashing.crash_at, rig.crashing.is_applied = rig.crashing.writes + write, is_applied
    with pytest.raises(CrashError):
        rig.attempt(FANOUT, order)
    answer = rig.attempt(FANOUT, order, attempt=2)
    assert [made.run_id for made in rig.fanouts.queries.active().fanouts] == [answer["runId"]]
    assert rig.fanouts.queries.fanout(answer["runId"]).chunks == 5


@pytest.mark.parametrize(
    ("fanout", "parameters", "error", "message"),
    [
        ("double", {"items": []}, "States.Runtime", "module.function"),
        ("a.b", {}, "States.Runtime", "'items' and 'range'"),
        ("a.b", {"items": [], "range": [0, 1]}, "States.Runtime", "'items' and 'range'"),
        ("a.b", {"range": [1, 0]}, "States.Runtime", "before it begins"),
        ("a.b", {"range": [0]}, "States.Runtime", "range"),
        ("a.b", {"items": [], "chunks": 3}, "States.Runtime", "chunks"),
        ("a.b", "text", "States.Runtime", "object"),
        ("a.b", {"items": [1], "priority": 99}, "Fanout.InvalidOrderException", "priority"),
        ("a.b", {"items": ["x" * 300_000]}, "Fanout.InvalidOrderException", "300002 bytes"),
    ],
)
def test_fanout__that_cannot_be_made__is_refused(
    rig: Rig, fanout: str, parameters: Any, error: str, message: str
) -> None:
    with pytest.raises(StateError) as failed:
        rig.attempt(FANOUT, {"fanout": fanout, "parameters": parameters})
    assert failed.value.error == error
    assert message in failed.value.cause
    assert rig.fanouts.queries.active().fanouts == []


waiting = hg.App("waiting")


@waiting.workflow
async def waits_for(handler: str, parameters: Any, timeout_seconds: float | None) -> Any:
    target = TaskTarget(Callee.FANOUT, f"{HANDLERS}.{handler}", wait=WaitMode.JOB)
    try:
        return await run_fanout(TaskCall(target, parameters, timeout_seconds, None, ""))
    except StateError as error:
        return error.output


@pytest.mark.parametrize("replay_always", [True, False])
def test_run_fanout__to_its_end__gives_how_it_ended_and_what_was_returned(replay_always: bool) -> None:
    with hg.testing.Environment(waiting, replay_always=replay_always) as env:
        ended = env.result(env.start(waits_for, "double", {"items": [1, 2, 3], "collect": True}, None))
        assert ended["results"] == [2, 4, 6]
        assert (ended["status"], ended["chunks"], ended["items"], ended["itemsFailed"]) == ("SUCCEEDED", 3, 3, 0)
        assert "results" not in env.result(env.start(waits_for, "double", {"range": [0, 4]}, None))


def test_run_fanout__a_chunk_fails__the_task_fails_with_how_it_ended() -> None:
    with hg.testing.Environment(waiting) as env:
        failed = env.result(env.start(waits_for, "picky", {"items": [1, 2, 3], "max_attempts": 1}, None))
    assert failed["Error"] == "States.TaskFailed"
    cause = json.loads(failed["Cause"])
    assert (cause["Error"], cause["completed"], cause["failed"]) == ("Fanout.FanoutFailedException", 2, 1)


def test_run_fanout__out_of_time__is_cancelled() -> None:
    map_handlers.calls.clear()
    with hg.testing.Environment(waiting) as env:
        # It fails and waits for an hour before the next attempt.
        given = {"items": [1], "backoff_seconds": 3600, "backoff_seconds_max": 3600}
        failed = env.result(env.start(waits_for, "flaky", given, 10.0))
        assert failed["Error"] == "States.Timeout"
        env.run()
        assert FanoutQueries(env.service.store, env.clock).active().fanouts == []
    assert map_handlers.calls == [1]


def test_run_fanout__an_order_that_makes_no_sense__is_refused() -> None:
    with hg.testing.Environment(waiting) as env:
        failed = env.result(env.start(waits_for, "double", {"items": [1], "priority": 99}, None))
        assert failed["Error"] == "Fanout.InvalidOrderException"
        failed = env.result(env.start(waits_for, "double", {"items": [1], "priority": "high"}, None))
        assert failed["Error"] == "States.Runtime"


# Machines on the engine.


@contextmanager
def opened(**machines: Any) -> Iterator[tuple[hg.testing.Environment, MachineExecutions]]:
    """Give an environment in which these machines can be run."""
    with hg.testing.Environment(hg.App("machines"), tables=["locks:PK:SK"]) as env:
        executions = env.service.asl.executions
        for name, definition in machines.items():
            executions.machines.put(name, json.dumps(definition))
        yield env, executions


def test_machine__its_tasks_call_services__keeps_the_item_and_publishes() -> None:
    machine = {
        "StartAt": "Claim",
        "States": {
            "Claim": {
                "Type": "Task",
                "Resource": "arn:aws:states:::dynamodb:putItem",
                "Parameters": {
                    "TableName": "locks",
                    "Item": {**key("LOCK#a", "LOCK"), "owner": {"S.$": "$.who"}},
                    "ConditionExpression": "attribute_not_exists(PK)",
                },
                "ResultPath": None,
                "Catch": [{"ErrorEquals": ["DynamoDB.ConditionalCheckFailedException"], "Next": "Taken"}],
                "Next": "Tell",
            },
            "Tell": {
                "Type": "Task",
                "Resource": "arn:aws:states:::sns:publish",
                "Parameters": {"TopicArn": "arn:aws:sns:::locks", "Message": {"by.$": "$.who"}},
                "ResultPath": None,
                "End": True,
            },
            "Taken": {"Type": "Fail", "Error": "Taken"},
        },
    }
    with opened(claims=machine) as (env, executions):
        for name in ("first", "second"):
            executions.start("claims", {"who": name}, name=name)
            env.run()
        assert executions.describe("claims:first").output == {"who": "first"}
        assert executions.describe("claims:second").error == "Taken"
        (result,) = env.service.bus.tail()
        assert (result.event.subject, result.event.decoded().data["message"]) == ("locks", {"by": "first"})


def test_machine__starts_another_and_waits_for_a_third__has_both_run() -> None:
    machine = {
        "StartAt": "Start",
        "States": {
            "Start": {
                "Type": "Task",
                "Resource": "arn:aws:states:::states:startExecution",
                "Parameters": {"StateMachineArn": "arn:aws:states:::stateMachine:waits", "Name": "w", "Input": {}},
                "ResultPath": "$.started",
                "Next": "Wait",
            },
            "Wait": {
                "Type": "Task",
                "Resource": "arn:aws:states:::states:startExecution.sync:2",
                "Parameters": {"StateMachineArn": "passes", "Input": {"n": 1}},
                "ResultSelector": {"n.$": "$.Output.n"},
                "ResultPath": "$.waited",
                "End": True,
            },
        },
    }
    with opened(parent=machine, passes=PASSES, waits=WAITS) as (env, executions):
        executions.start("parent", {}, name="p")
        env.run()
        output = executions.describe("parent:p").output
        assert (output["started"]["ExecutionArn"], output["waited"]) == ("waits:w", {"n": 1})
        assert executions.describe("waits:w").status is ExecutionStatus.RUNNING
        env.advance(61)
        assert executions.describe("waits:w").status is ExecutionStatus.SUCCEEDED
