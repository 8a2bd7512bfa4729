"""State tests: one state runs once, with the statuses and the inspection data of TestState."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import yaml

import headgate as hg
from headgate.asl.state_tests import StateTestResult
from headgate.errors import NotFoundError
from headgate.settings import Settings, TaskSettings
from headgate.testing import Environment
from tests.asl_rig import Functions, beside, each, machine, task

GLUE: Final = "arn:aws:states:::glue:startJobRun"
Test = Callable[..., dict[str, Any]]


@pytest.fixture
def functions() -> Functions:
    return Functions()


@pytest.fixture
def test(tmp_path: Path, functions: Functions) -> Iterator[Test]:
    with ExitStack() as stack:

        def run(state: Any, input: Any = None, *entries: dict[str, Any], **options: Any) -> dict[str, Any]:
            content = options.pop("content", {"resources": list(entries)})
            (tmp_path / "resources.yaml").write_text(yaml.safe_dump(content))
            app = hg.App("tested")
            functions.declare(app)
            tasks = TaskSettings(resources=Path("resources.yaml"))
            env = stack.enter_context(Environment(app, settings=Settings(project=tmp_path, tasks=tasks)))
            definition = state if "States" in state else machine(("One", state), ("Next", {"Type": "Succeed"}))
            result: StateTestResult = env.service.asl.test_state(
                "m",
                json.dumps(definition),
                options.pop("name", "One"),
                input,
                variables=options.pop("variables", {}),
                **options,
            )
            found: dict[str, Any] = msgspec.to_builtins(result)
            return found

        yield run


def test_task__that_succeeds__has_the_data_after_each_field(test: Test, functions: Functions) -> None:
    state = task(
        "echo",
        InputPath="$.order",
        Parameters={"n.$": "$.n"},
        ResultSelector={"twice.$": "States.Array($.n, $.n)"},
        ResultPath="$.result",
        OutputPath="$.result",
        Assign={"last.$": "$.n"},
    )

    found = test(state, {"order": {"n": 1, "x": 2}})

    assert (found["status"], found["output"], found["nextState"]) == ("SUCCEEDED", {"twice": [1, 1]}, "Next")
    assert found["inspectionData"] == {
        "input": {"order": {"n": 1, "x": 2}},
        "afterInputPath": {"n": 1, "x": 2},
        "afterParameters": {"n": 1},
        "result": {"n": 1},
        "afterResultSelector": {"twice": [1, 1]},
        "afterResultPath": {"order": {"n": 1, "x": 2}, "result": {"twice": [1, 1]}},
        "variables": {"last": 1},
    }
    assert functions.calls == [("echo", {"n": 1})]


def test_task__in_jsonata__has_its_arguments_and_variables(test: Test) -> None:
    state = task(
        "echo",
        QueryLanguage="JSONata",
        Arguments={"n": "{% $states.input.n + $offset %}"},
        Output="{% $states.result.n %}",
    )

    found = test(state, {"n": 1}, variables={"offset": 41})

    assert (found["output"], found["inspectionData"]["afterArguments"]) == (42, {"n": 42})


def test_error__that_a_retry_matches__is_retriable_and_called_once(test: Test, functions: Functions) -> None:
    retry = [
        {"ErrorEquals": ["Other"]},
        {"ErrorEquals": ["Refused"], "IntervalSeconds": 7, "MaxAttempts": 2},
    ]

    found = test(task("fail", Retry=retry), {})

    details = {"retryIndex": 1, "retryBackoffIntervalSeconds": 7.0}
    assert (found["status"], found["error"]) == ("RETRIABLE", "Refused")
    assert found["inspectionData"]["errorDetails"] == details
    assert functions.count("fail") == 1


def test_error__that_a_catch_matches__goes_to_its_state(test: Test) -> None:
    catch = [{"ErrorEquals": ["States.ALL"], "Next": "Next", "ResultPath": "$.error"}]

    found = test(task("fail", Catch=catch), {"message": "no"})

    assert (found["status"], found["nextState"], found["error"]) == ("CAUGHT_ERROR", "Next", "Refused")
    assert found["output"]["error"]["Error"] == "Refused"
    assert found["inspectionData"]["errorDetails"] == {"catchIndex": 0}


def test_error__without_retry_and_catch__fails(test: Test) -> None:
    found = test(task("fail"), {"error": "Gone"})

    assert (found["status"], found["error"], "output" in found) == ("FAILED", "Gone", False)


@pytest.mark.parametrize(
    ("state", "input", "output", "following"),
    [
        ({"Type": "Pass", "Result": {"a": 1}, "ResultPath": "$.r"}, {}, {"r": {"a": 1}}, "Next"),
        ({"Type": "Wait", "Seconds": 86_400}, {"a": 1}, {"a": 1}, "Next"),
        (
            {"Type": "Choice", "Choices": [{"Variable": "$.a", "NumericEquals": 1, "Next": "Next"}]},
            {"a": 1},
            {"a": 1},
            "Next",
        ),
        ({"Type": "Succeed"}, {"a": 1}, {"a": 1}, None),
        (each(("Inner", task("echo")), ItemsPath="$.items"), {"items": [1, 2]}, [1, 2], "Next"),
        (beside(machine(("A", task("echo"))), machine(("B", task("echo")))), {"a": 1}, [{"a": 1}] * 2, "Next"),
    ],
)
def test_state__of_another_type__has_its_output_and_next_state(
    test: Test, state: Any, input: Any, output: Any, following: str | None
) -> None:
    found = test(state, input)

    assert (found["status"], found["output"], found.get("nextState")) == ("SUCCEEDED", output, following)


def test_state__within_a_map__is_found(test: Test) -> None:
    found = test(machine(("Each", each(("Inner", task("echo"))))), {"a": 1}, name="Inner")

    assert found["output"] == {"a": 1}
    with pytest.raises(NotFoundError, match="it has Each, Inner"):
        test(machine(("Each", each(("Inner", task("echo"))))), {}, name="Outer")


def test_task__that_waits__needs_a_recorded_answer(test: Test) -> None:
    resource = "arn:aws:states:::sqs:sendMessage.waitForTaskToken"
    state = {"Type": "Task", "Resource": resource, "Parameters": {"token.$": "$$.Task.Token"}}

    refused = test(state)
    answered = test(state, {}, {"resource": "sqs:*", "answer": {"approved": True}})

    assert (refused["status"], "a test does not wait" in refused["cause"]) == ("FAILED", True)
    assert answered["output"] == {"approved": True}
    assert answered["inspectionData"]["afterParameters"] == {"token": "test-token"}


def test_task__whose_job_is_mapped__runs_what_replaces_it(test: Test) -> None:
    state = {"Type": "Task", "Resource": f"{GLUE}.sync", "Parameters": {"JobName": "j"}}

    assert test(state, {}, {"resource": "glue:*", "function": "echo"})["output"] == {"JobName": "j"}
    assert "a test does not wait" in test(state)["cause"]


def test_task__with_a_mocked_test_case__is_answered_by_it(test: Test) -> None:
    mocks = {
        "StateMachines": {"m": {"TestCases": {"Busy": {"One": "Busy"}}}},
        "MockedResponses": {"Busy": {"0": {"Throw": {"Error": "Busy", "Cause": "later"}}}},
    }

    found = test({"Type": "Task", "Resource": GLUE}, {}, content=mocks, test_case="Busy")

    assert (found["status"], found["error"], found["cause"]) == ("FAILED", "Busy", "later")
    with pytest.raises(NotFoundError, match="there is Busy"):
        test({"Type": "Task", "Resource": GLUE}, {}, content=mocks, test_case="Other")
