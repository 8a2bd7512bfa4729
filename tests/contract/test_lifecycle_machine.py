"""The lifecycle as it is shipped: our interpreter and Step Functions of MiniStack go the same way by the same file."""

from __future__ import annotations

import io
import json
import re
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from headgate.pipelines.lifecycle.starter import FUNCTIONS
from tests import lifecycle_answers
from tests.asl_peers import Case, Outcome, StepFunctions, validate
from tests.lifecycle_answers import counts
from tests.lifecycle_scenarios import (
    MACHINE,
    SCENARIOS,
    TABLE,
    TEXT,
    Ended,
    OurLifecycle,
    input_of,
    substituted,
)
from tests.ministack import Ministack, aws_session, fresh_account

STATES: Final[dict[str, dict[str, Any]]] = MACHINE["States"]
SHIPPED: Final = Path(__file__).parents[2] / "deploy" / "statemachine.asl.json"
# MiniStack waits for the token if the function that is given it fails; AWS documents that the task fails.
AS_AWS: Final = [name for name in SCENARIOS if name != "killed-while-waiting"]
every_scenario = pytest.mark.parametrize("name", SCENARIOS)


# Ours.


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Ended]]:
    with OurLifecycle(tmp_path_factory.mktemp("calls")) as peer:
        yield {name: peer.run(name) for name in SCENARIOS}


# MiniStack's.


def run_on_ministack(endpoint: str, folder: Path) -> dict[str, Ended]:
    """Run all scenarios at the same time, and return how each ended."""
    calls, table = folder / "calls", folder / "table.json"
    calls.mkdir()
    table.write_text(json.dumps(TABLE))
    account = fresh_account()
    session = aws_session(account)
    states = StepFunctions(session.client("stepfunctions", endpoint_url=endpoint), account)
    functions: Any = session.client("lambda", endpoint_url=endpoint)
    functions.create_function(
        FunctionName="canned",
        Runtime="provided.al2023",
        Handler="canned",
        Role=states.role,
        Code={"ZipFile": _runtime_zip()},
        Environment={"Variables": {"CALLS": str(calls), "TABLE": str(table), "ENDPOINT": endpoint, "ACCOUNT": account}},
        Timeout=30,
    )
    definition = substituted(f"arn:aws:lambda:us-east-1:{account}:function:canned")
    machine = states.create("lifecycle", definition)
    arns = {name: states.start(machine, name, input_of(name)) for name in AS_AWS}
    ended = {name: states.ended(arn) for name, arn in arns.items()}
    outcome = {
        name: Ended(found.status, found.error, [str(state) for state in found.visited], counts(calls, name))
        for name, found in ended.items()
    }
    states.close()
    functions.close()
    return outcome


def _runtime_zip() -> bytes:
    bootstrap = zipfile.ZipInfo("bootstrap")
    bootstrap.external_attr = 0o755 << 16
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as code:
        program = Path(lifecycle_answers.__file__)
        code.writestr(bootstrap, f'#!/bin/sh\nexec "{sys.executable}" -E -S "{program}"\n')
    return packed.getvalue()


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    folder = tmp_path_factory.mktemp("ministack-lifecycle")
    with pytest.MonkeyPatch.context() as environment:
        # Its waits and pauses take no time.
        environment.setenv("SFN_WAIT_SCALE", "0")
        server = Ministack.start(folder)
    try:
        return run_on_ministack(server.endpoint, folder)
    finally:
        server.stop()


# The way it goes.


def check(name: str, ended: Ended) -> None:
    scenario = SCENARIOS[name]
    assert ended.visited == scenario.way.split()
    assert (ended.status, ended.error) == (scenario.status, scenario.error)
    assert {call: ended.calls.get(call, 0) for call in scenario.calls} == scenario.calls


@every_scenario
def test_lifecycle__on_our_interpreter__goes_the_way_it_must(name: str, ours: dict[str, Ended]) -> None:
    check(name, ours[name])


@pytest.mark.parametrize("name", AS_AWS)
def test_lifecycle__on_step_functions_of_ministack__goes_the_same_way(
    name: str, ours: dict[str, Ended], theirs: dict[str, Ended]
) -> None:
    check(name, theirs[name])
    assert theirs[name].calls == ours[name].calls


@pytest.mark.parametrize("name", [name for name, scenario in SCENARIOS.items() if scenario.seconds is not None])
def test_lifecycle__in_virtual_time__takes_as_long_as_its_config_says(name: str, ours: dict[str, Ended]) -> None:
    assert ours[name].seconds == pytest.approx(SCENARIOS[name].seconds or 0.0, abs=1.0)


def test_scenarios__all_together__enter_every_state_but_those_of_alerts_that_fail() -> None:
    entered_somewhere = {state for scenario in SCENARIOS.values() for state in scenario.way.split()}
    # What happens if an SLA cannot be checked, or the end of the watch cannot be found: seen in the structure alone.
    left = {"AlertCompletionSLAFailure", "AlertEvaluationSLAFailure", "AlertMonitoringEnd"}
    assert set(STATES) - entered_somewhere == left


# How it is made.


def tasks() -> Iterator[tuple[str, dict[str, Any], bool]]:
    """Give every Task: its name, what it says, and whether a Map around it has its Catch."""
    for name, state in STATES.items():
        if state["Type"] == "Task":
            yield name, state, False
        for inner_name, inner in state.get("ItemProcessor", {}).get("States", {}).items():
            if inner["Type"] == "Task":
                assert state["Catch"], name
                yield inner_name, inner, True


TASKS: Final = list(tasks())
every_task = pytest.mark.parametrize(("name", "task", "is_inside"), TASKS, ids=[name for name, _, _ in TASKS])
LAMBDA_ERRORS: Final = frozenset(
    {
        "Lambda.ServiceException",
        "Lambda.AWSLambdaException",
        "Lambda.SdkClientException",
        "Lambda.TooManyRequestsException",
    }
)


def is_alert(name: str) -> bool:
    return name.startswith("Alert")


def test_definition__file_that_is_shipped__is_the_one_that_runs_here() -> None:
    assert SHIPPED.read_text() == TEXT


def test_definition__checked_by_asl_validator__is_valid() -> None:
    definition = json.loads(substituted("arn:aws:lambda:us-east-1:123456789012:function:canned"))
    case = Case(name="lifecycle", about="", definition=definition, input={}, expect=Outcome(status="SUCCEEDED"))
    assert validate([case]) == {"lifecycle": ""}


def test_definition__variables__are_those_that_we_and_terraform_fill_in() -> None:
    assert set(re.findall(r"\$\{(\w+)\}", TEXT)) == set(FUNCTIONS)


def test_definition__every_state__is_reached_and_leads_somewhere() -> None:
    def following(state: Mapping[str, Any]) -> Iterator[str]:
        for name, value in state.items():
            if name in ("Next", "Default"):
                yield value
            if name in ("Choices", "Catch"):
                for each in value:
                    yield each["Next"]

    reached, edge = {MACHINE["StartAt"]}, [MACHINE["StartAt"]]
    while edge:
        found = set(following(STATES[edge.pop()])) - reached
        reached |= found
        edge += found
    assert reached == set(STATES)


@every_task
def test_task__whatever_it_does__is_tried_again_and_caught(name: str, task: dict[str, Any], is_inside: bool) -> None:
    (retry,) = task["Retry"]
    numbers = (retry["IntervalSeconds"], retry["MaxAttempts"], retry["BackoffRate"])

    assert numbers == ((30, 4, 2.0) if name == "Trigger" else (2, 3, 2.0))
    # States.TaskFailed is any error but States.Timeout, with which a wait for a token is over.
    assert set(retry["ErrorEquals"]) == {*LAMBDA_ERRORS, "States.TaskFailed"}
    if not is_inside:
        assert task["Catch"][-1]["ErrorEquals"] == ["States.ALL"]
        # bug 76: what was caught does not overwrite the document, in which later states look for their paths.
        assert all(catch["ResultPath"].startswith("$.") for catch in task["Catch"])


@pytest.mark.parametrize("name", [name for name, state in STATES.items() if "Catch" in state])
def test_catch__of_any_state__ends_in_an_alert(name: str) -> None:
    for catch in STATES[name]["Catch"]:
        target = catch["Next"]
        if catch["ErrorEquals"] == ["States.Timeout"]:
            # The interval is over: look again.
            assert target in ("EvaluateTraits", "CheckJob")
        elif is_alert(name) or name == "ReleaseLockAfterError":
            # What tells of an error and fails itself goes on to where it would have gone, or fails the execution.
            assert target in (STATES[name]["Next"], "InfraFailure")
        elif name == "Trigger":
            assert target == "TriggerRetryExhausted"
        else:
            assert is_alert(target), target


def test_definition__what_the_config_carries__is_fixed_nowhere() -> None:
    for name, state in STATES.items():
        assert not {"Seconds", "Timestamp", "TimeoutSeconds", "HeartbeatSeconds"} & state.keys(), name
        for choice in state.get("Choices", []):
            numeric = [key for key in choice if key.startswith("Numeric")]
            assert all(key.endswith("Path") for key in numeric), name
    assert "TimeoutSeconds" not in MACHINE
    paths = set(re.findall(r"\$\.config\.(\w+)", TEXT))
    assert paths <= {*lifecycle_answers.CONFIG, "sla"}


def test_definition__after_the_lock_is_held__every_way_to_the_end_lets_go_of_it() -> None:
    # An execution that hands over passes its lock on.
    actions = {name: state.get("Parameters", {}).get("action") for name, state in STATES.items()}
    releasing = {name for name, action in actions.items() if action in ("releaseLock", "handOver")}

    def ends_without_release(name: str, seen: frozenset[str]) -> bool:
        state = STATES[name]
        if name in releasing or name in seen or name in ("AcquireLock", "IsLockAcquired"):
            return False
        if state["Type"] in ("Succeed", "Fail"):
            return True
        # If even the alert fails, the lock runs out by itself.
        nexts = [state.get("Next"), state.get("Default"), *(each["Next"] for each in state.get("Choices", []))]
        nexts += [catch["Next"] for catch in state.get("Catch", []) if not is_alert(name)]
        return any(ends_without_release(each, seen | {name}) for each in nexts if each is not None)

    held = [name for name in STATES if name not in ("InitDefaults", "CheckExclusion", "IsExcluded")]
    after_release = {"AlertReleaseLockFailed", "Done", "End", "InfraFailure", "ForgetRun"}
    assert [name for name in held if name not in after_release and ends_without_release(name, frozenset())] == []
