"""The lifecycle as it is shipped: our interpreter and Step Functions of MiniStack go the same way by the same file."""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
import time
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from msgspec import Struct

from headgate.asl.runtime.task_tokens import CallbackKind, TaskCallback
from headgate.durable.model.failures import ExecutionFailure
from headgate.durable.sdk.app import App
from headgate.pipelines.lifecycle.starter import FUNCTIONS, lifecycle_definition
from headgate.testing import Environment
from tests import lifecycle_answers
from tests.asl_peers import Case, Outcome, inner_names, validate
from tests.asl_rig import entered
from tests.lifecycle_answers import (
    CONFIG,
    SLA,
    TIME_OUT,
    WAKE,
    Answers,
    Canned,
    checked,
    counts,
    evaluated,
    logged,
    proceeds,
    resolved,
)
from tests.ministack import Ministack, aws_session, fresh_account

TEXT: Final = lifecycle_definition()
MACHINE: Final[dict[str, Any]] = json.loads(TEXT)
STATES: Final[dict[str, dict[str, Any]]] = MACHINE["States"]
SHIPPED: Final = Path(__file__).parents[2] / "deploy" / "statemachine.asl.json"
_ENDS_WITHIN_SECONDS: Final = 60.0

# Ways that scenarios share.
BEGINS: Final = "InitDefaults CheckExclusion IsExcluded"
LOCKS: Final = "AcquireLock IsLockAcquired"
RESOLVES: Final = (
    "CheckRunLog ShouldProceedAfterRunLog ResolvePipeline IsResolved InitEvalLoop SetRun SetConfig CheckSLAConfig"
)
LOOKS: Final = "EvaluateTraits Evaluate CheckEvaluationSLA CheckValidationTimeout IsValidationTimedOut"
EVALUATES: Final = f"{LOOKS} CheckReadiness IsReady"
WAITS: Final = "IncrementElapsed CheckWindowExhausted WaitInterval"
STARTS: Final = "Trigger HasTriggerResult"
POLLS: Final = "WaitForJob CheckJob IsJobDone"
MORE: Final = "IncrementJobPollElapsed CheckJobPollExhausted"
EXHAUSTS: Final = "ValidationExhausted SetNoTriggerResult HasTriggerResult"
COMPLETES: Final = "CheckCompletionSLA LogCompleted NotifyDownstream ShouldMonitor"
ENDS: Final = "CheckCancelSLA ReleaseLock Done"
READY: Final = f"{BEGINS} {LOCKS} {RESOLVES} {EVALUATES}"
RUNS: Final = f"{READY} {STARTS} InitJobPollLoop {POLLS}"
RETRIES: Final = f"RetryBackoffWait ReleaseLockForRetry ForgetRun {LOCKS} {RESOLVES} {EVALUATES}"
WATCHES: Final = "MonitoringWait MonitoringEvaluate CheckDrift IsDrifted"
COUNTED: Final = {"elapsed": 0, "waitSeconds": 30, "rounds": 0}
FAILS: Final = "AlertError ReleaseLockAfterError InfraFailure"

# The state of an execution that another continues.
CONTINUED: Final = {
    "runId": "run_1",
    "lock": proceeds(lockToken="lock_1"),
    "resolved": resolved(),
    "config": CONFIG,
    "triggerResult": {"status": "running", "metadata": {"external_id": "job-1"}},
    "evaluation": {"elapsed": 0, "rounds": 0},
}
NOT_READY: Final = {"result": "not_ready", "reason": "orders are missing"}
DOWN: Final = ("Down", "no answer")
KILLED: Final = ("Runtime.ExitError", "RequestId: 0b4cf7ec Error: Runtime exited with error: signal: killed")


class Scenario(Struct, frozen=True, kw_only=True):
    """What the functions answer, and the way that the machine must go."""

    way: str
    answers: Answers = {}
    status: str = "SUCCEEDED"
    error: str | None = None
    # How often functions are called whose number of calls is what the scenario is about.
    calls: Mapping[str, int] = {}
    input: Mapping[str, Any] = {}
    # In virtual time.
    seconds: float | None = None


SCENARIOS: Final[dict[str, Scenario]] = {
    "excluded": Scenario(
        way=f"{BEGINS} End",
        answers={"checkExclusion": [{"result": "skip", "reason": "a holiday"}]},
        calls={"acquireLock": 0, "releaseLock": 0},
    ),
    "locked": Scenario(
        way=f"{BEGINS} {LOCKS} End",
        answers={"acquireLock": [{"result": "skip", "lockToken": ""}]},
        calls={"releaseLock": 0},
    ),
    "done-already": Scenario(
        way=f"{BEGINS} {LOCKS} CheckRunLog ShouldProceedAfterRunLog ReleaseLock Done",
        answers={"checkRunLog": [{"result": "skip", "reason": "it is done"}]},
        calls={"releaseLock": 1},
    ),
    "resolve-failed": Scenario(
        way=f"{BEGINS} {LOCKS} CheckRunLog ShouldProceedAfterRunLog ResolvePipeline IsResolved LogResolveFailed "
        "ReleaseLock Done",
        answers={"resolvePipeline": [{"result": "error", "runId": "", "reason": "no trigger"}]},
    ),
    "ready-at-once": Scenario(
        way=f"{RUNS} {COMPLETES} {ENDS}", calls={"evaluator": 1, "evaluate": 1, "releaseLock": 1}, seconds=30.0
    ),
    "ready-after-waiting": Scenario(
        way=f"{READY} {WAITS} {EVALUATES} {WAITS} {EVALUATES} {STARTS} InitJobPollLoop {POLLS} {COMPLETES} {ENDS}",
        answers={
            "checkReadiness": [NOT_READY, NOT_READY, proceeds()],
            "evaluate": [evaluated(0), evaluated(300), evaluated(310)],
            # The first wait is over because time has passed, the second because something has changed.
            "await-change": [TIME_OUT, WAKE],
        },
        calls={"evaluate": 3, "evaluator": 3},
        seconds=330.0,
    ),
    "window-exhausted": Scenario(
        way=f"{READY} {WAITS} {EVALUATES} IncrementElapsed CheckWindowExhausted {EXHAUSTS} {ENDS}",
        answers={"checkReadiness": [NOT_READY], "evaluate": [evaluated(0), evaluated(3_600)]},
        calls={"trigger": 0},
    ),
    "validation-timed-out": Scenario(
        way=f"{BEGINS} {LOCKS} {RESOLVES} {LOOKS} LogValidationTimeout ShouldRetry {ENDS}",
        answers={"checkValidationTimeout": [{"timedOut": True}]},
    ),
    "evaluator-error": Scenario(
        way=f"{READY} LogEvaluatorError AlertEvaluatorError {ENDS}",
        answers={"checkReadiness": [{"result": "error", "reason": "404"}]},
        calls={"alertError": 1},
    ),
    "trigger-fails-for-good": Scenario(
        way=f"{READY} Trigger TriggerRetryExhausted ShouldRetryTrigger {ENDS}",
        answers={"trigger": [DOWN]},
        # At once, and after 30, 60, 120 and 240 seconds.
        calls={"trigger": 5, "trigger-exhausted": 1},
        seconds=450.0,
    ),
    "trigger-refused": Scenario(
        way=f"{READY} {STARTS} LogRunFailed ShouldRetry {ENDS}",
        answers={"trigger": [{"status": "failed", "runId": "", "metadata": {}, "reason": "no such job"}]},
        calls={"trigger": 1},
    ),
    "trigger-retries": Scenario(
        way=f"{RUNS} {COMPLETES} {ENDS}",
        answers={"trigger": [DOWN, DOWN, *lifecycle_answers.USUAL["trigger"]]},
        calls={"trigger": 3},
        seconds=120.0,
    ),
    "job-done-when-started": Scenario(
        way=f"{READY} {STARTS} {COMPLETES} {ENDS}",
        answers={"trigger": [{"status": "completed", "runId": "sync", "metadata": {}}]},
        calls={"check-job": 0},
    ),
    "job-succeeds-later": Scenario(
        way=f"{RUNS} {MORE} {POLLS} {COMPLETES} {ENDS}",
        answers={"check-job": [checked(), checked("success", 60)], "await-job": [TIME_OUT, WAKE]},
        calls={"check-job": 2},
    ),
    "job-fails": Scenario(
        way=f"{RUNS} LogRunFailed ShouldRetry {ENDS}", answers={"check-job": [checked("fail")]}, calls={"logResult": 1}
    ),
    "job-times-out": Scenario(
        way=f"{RUNS} LogRunFailed ShouldRetry {ENDS}", answers={"check-job": [checked("timeout")]}
    ),
    "job-cancelled": Scenario(way=f"{RUNS} {ENDS}", answers={"check-job": [checked("cancelled")]}),
    "poll-exhausted": Scenario(
        way=f"{RUNS} {MORE} {POLLS} {MORE} JobPollExhausted ShouldRetryPoll {ENDS}",
        answers={"check-job": [checked(None, 30), checked(None, 900)]},
        calls={"job-poll-exhausted": 1},
    ),
    "retry-with-backoff": Scenario(
        way=f"{RUNS} LogRunFailed ShouldRetry SetRetryBackoff {RETRIES} {STARTS} InitJobPollLoop {POLLS} "
        f"{COMPLETES} {ENDS}",
        answers={
            "check-job": [checked("fail"), checked("success")],
            "logResult": [logged(retry_seconds=60), logged()],
            "resolvePipeline": [resolved(), {**resolved(), "runId": "run_2"}],
        },
        calls={"acquireLock": 2, "releaseLock": 2, "trigger": 2},
        seconds=120.0,
    ),
    "retry-after-poll-exhausted": Scenario(
        way=f"{RUNS} {MORE} JobPollExhausted ShouldRetryPoll {RETRIES} {STARTS} InitJobPollLoop {POLLS} "
        f"{COMPLETES} {ENDS}",
        answers={
            "check-job": [checked(None, 900), checked("success")],
            "job-poll-exhausted": [logged(retry_seconds=5)],
        },
    ),
    "retry-never-becomes-ready": Scenario(
        way=f"{RUNS} LogRunFailed ShouldRetry SetRetryBackoff {RETRIES} IncrementElapsed CheckWindowExhausted "
        f"{EXHAUSTS} {ENDS}",
        answers={
            "check-job": [checked("fail")],
            "logResult": [logged(retry_seconds=60)],
            "checkReadiness": [proceeds(), NOT_READY],
            "evaluate": [evaluated(0), evaluated(3_600)],
        },
        # The trigger of the attempt before does not count.
        calls={"trigger": 1, "check-job": 1},
    ),
    "retry-finds-the-lock-taken": Scenario(
        way=f"{RUNS} LogRunFailed ShouldRetry SetRetryBackoff RetryBackoffWait ReleaseLockForRetry ForgetRun "
        f"{LOCKS} End",
        answers={
            "check-job": [checked("fail")],
            "logResult": [logged(retry_seconds=60)],
            "acquireLock": [proceeds(lockToken="lock_1"), {"result": "skip", "lockToken": ""}],
        },
    ),
    "monitored-with-drift": Scenario(
        way=f"{RUNS} {COMPLETES} {WATCHES} CheckMonitoringExpired IsMonitoringExpired CountMonitoringRound {WATCHES} "
        f"HandleLateArrival {ENDS}",
        answers={
            "logResult": [logged(monitor=True)],
            "checkDrift": [{"drifted": False}, {"drifted": True}],
            "checkMonitoringExpired": [{"expired": False}],
        },
        calls={"evaluator": 3, "handleLateArrival": 1},
    ),
    "monitored-without-drift": Scenario(
        way=f"{RUNS} {COMPLETES} {WATCHES} CheckMonitoringExpired IsMonitoringExpired {ENDS}",
        answers={"logResult": [logged(monitor=True)]},
        calls={"handleLateArrival": 0},
        seconds=90.0,
    ),
    "monitoring-fails": Scenario(
        way=f"{RUNS} {COMPLETES} MonitoringWait MonitoringEvaluate CheckDrift AlertMonitoringFailure "
        f"CheckMonitoringExpired IsMonitoringExpired {ENDS}",
        answers={"logResult": [logged(monitor=True)], "checkDrift": [DOWN]},
        calls={"checkDrift": 4, "alertError": 1},
    ),
    "dry-run": Scenario(
        way=f"{READY} DryRun {ENDS}", answers={"checkReadiness": [{"result": "dry_run"}]}, calls={"trigger": 0}
    ),
    "cancelled-while-waiting": Scenario(
        way=f"{READY} {ENDS}", answers={"checkReadiness": [{"result": "cancelled"}]}, calls={"trigger": 0}
    ),
    "infra-failure": Scenario(
        way=f"{BEGINS} {LOCKS} {RESOLVES} EvaluateTraits Evaluate {FAILS}",
        answers={"evaluate": [DOWN]},
        status="FAILED",
        error="Down",
        # At once, and after 2, 4 and 8 seconds.
        calls={"evaluate": 4, "alertError": 1, "releaseLock": 1},
        seconds=14.0,
    ),
    "infra-failure-at-once": Scenario(
        way=f"InitDefaults CheckExclusion {FAILS}", answers={"checkExclusion": [DOWN]}, status="FAILED", error="Down"
    ),
    "evaluator-down": Scenario(
        way=f"{BEGINS} {LOCKS} {RESOLVES} EvaluateTraits {FAILS}",
        answers={"evaluator": [DOWN]},
        status="FAILED",
        error="Down",
        calls={"evaluator": 4},
    ),
    "infra-that-mends-itself": Scenario(
        way=f"{RUNS} {COMPLETES} {ENDS}",
        answers={"evaluate": [DOWN, DOWN, DOWN, evaluated()], "check-job": [DOWN, checked("success")]},
        calls={"evaluate": 4, "check-job": 2, "alertError": 0},
    ),
    # Who makes a wait known can be killed as well: what AWS reports then is none of its errors of Lambda.
    "killed-while-waiting": Scenario(
        way=f"{READY} {WAITS} {EVALUATES} {STARTS} InitJobPollLoop {POLLS} {COMPLETES} {ENDS}",
        answers={
            "checkReadiness": [NOT_READY, proceeds()],
            "evaluate": [evaluated(0), evaluated(300)],
            "await-change": [KILLED, TIME_OUT],
            "await-job": [KILLED, KILLED, TIME_OUT],
        },
        calls={"await-change": 2, "await-job": 3, "alertError": 0},
        # Two seconds, the interval, two and four seconds, the interval.
        seconds=338.0,
    ),
    "lock-not-released": Scenario(
        way=f"{RUNS} {COMPLETES} CheckCancelSLA ReleaseLock AlertReleaseLockFailed Done",
        answers={"releaseLock": [DOWN]},
        calls={"alertError": 1},
    ),
    "cascade-fails": Scenario(
        way=f"{RUNS} CheckCompletionSLA LogCompleted NotifyDownstream AlertCascadeFailure ShouldMonitor {ENDS}",
        answers={"notifyDownstream": [DOWN]},
    ),
    "sla": Scenario(
        way=f"{BEGINS} {LOCKS} {RESOLVES} ScheduleSLAAlerts {EVALUATES} {STARTS} InitJobPollLoop {POLLS} {COMPLETES} "
        "CheckCancelSLA CancelSLASchedules ReleaseLock Done",
        answers={"resolvePipeline": [resolved(sla=SLA)]},
        calls={"schedule": 1, "cancel": 1},
    ),
    "sla-monitor-down": Scenario(
        way=f"{BEGINS} {LOCKS} {RESOLVES} ScheduleSLAAlerts AlertSLAFailure ResetSLASchedule {EVALUATES} {STARTS} "
        f"InitJobPollLoop {POLLS} {COMPLETES} CheckCancelSLA CancelSLASchedules AlertCancelFailure ReleaseLock Done",
        answers={"resolvePipeline": [resolved(sla=SLA)], "schedule": [DOWN], "cancel": [DOWN]},
        calls={"schedule": 4, "cancel": 4},
    ),
    "sla-of-a-window-that-closes": Scenario(
        way=f"{BEGINS} {LOCKS} {RESOLVES} ScheduleSLAAlerts {EVALUATES} IncrementElapsed CheckWindowExhausted "
        f"{EXHAUSTS} CheckCancelSLA CancelSLASchedules ReleaseLock Done",
        answers={
            "resolvePipeline": [resolved(sla=SLA)],
            "checkReadiness": [NOT_READY],
            "evaluate": [evaluated(3_600)],
        },
        calls={"schedule": 1, "cancel": 1},
    ),
    "hands-over-while-it-waits": Scenario(
        way=f"{READY} {WAITS} {EVALUATES} IncrementElapsed CheckWindowExhausted ResumeEvaluation HandOver Done",
        answers={"resolvePipeline": [resolved(handOverRounds=2)], "checkReadiness": [NOT_READY]},
        calls={"handOver": 1, "releaseLock": 0},
    ),
    "hands-over-while-its-job-runs": Scenario(
        way=f"{RUNS} {MORE} {POLLS} {MORE} ResumeJob HandOver Done",
        answers={"resolvePipeline": [resolved(handOverRounds=2)], "check-job": [checked()]},
        calls={"handOver": 1, "releaseLock": 0},
    ),
    "hands-over-while-it-monitors": Scenario(
        way=f"{RUNS} {COMPLETES} {WATCHES} CheckMonitoringExpired IsMonitoringExpired CountMonitoringRound "
        f"{WATCHES} CheckMonitoringExpired IsMonitoringExpired ResumeMonitoring HandOver Done",
        answers={
            "resolvePipeline": [resolved(handOverRounds=1)],
            "logResult": [logged(monitor=True)],
            "checkMonitoringExpired": [{"expired": False}],
        },
        calls={"handOver": 1, "releaseLock": 0},
    ),
    "continues-to-wait": Scenario(
        way=f"{BEGINS} {EVALUATES} {STARTS} InitJobPollLoop {POLLS} {COMPLETES} {ENDS}",
        input={**CONTINUED, "resumeAt": "evaluation"},
        calls={"acquireLock": 0, "resolvePipeline": 0, "releaseLock": 1},
    ),
    "continues-to-poll": Scenario(
        way=f"{BEGINS} {POLLS} {COMPLETES} {ENDS}",
        input={**CONTINUED, "resumeAt": "job", "poll": COUNTED},
        calls={"trigger": 0, "check-job": 1},
    ),
    "continues-to-monitor": Scenario(
        way=f"{BEGINS} {WATCHES} CheckMonitoringExpired IsMonitoringExpired {ENDS}",
        input={**CONTINUED, "resumeAt": "monitoring"},
        calls={"checkDrift": 1},
    ),
    "alerts-down-too": Scenario(
        way="InitDefaults CheckExclusion AlertError InfraFailure",
        answers={"checkExclusion": [DOWN], "alertError": [("Deaf", "nobody listens")]},
        status="FAILED",
        error="Deaf",
    ),
}
# MiniStack waits for the token if the function that is given it fails; AWS documents that the task fails.
AS_AWS: Final = [name for name in SCENARIOS if name != "killed-while-waiting"]
TABLE: Final = {name: dict(scenario.answers) for name, scenario in SCENARIOS.items()}
every_scenario = pytest.mark.parametrize("name", SCENARIOS)


def input_of(name: str) -> dict[str, Any]:
    # Nothing but what is required: everything else has a default in the machine.
    return {"pipelineId": name, "scheduleId": "stream", "date": "2026-03-03", **SCENARIOS[name].input}


class Ended(NamedTuple):
    """How a scenario ended on one of the two."""

    status: str
    error: str | None
    visited: list[str]
    calls: dict[str, int]
    seconds: float = 0.0


# Ours.


class Ours:
    """The machine on our interpreter, in virtual time."""

    def __init__(self, calls: Path) -> None:
        app = App("lifecycle")
        app.activity(name="canned")(Canned(TABLE, calls, self._tell).__call__)
        self._calls = calls
        self._environment = Environment(app, replay_always=False)

    def __enter__(self) -> Ours:
        self._environment.__enter__()
        variables = dict.fromkeys(FUNCTIONS, "canned")
        self._environment.service.asl.machines.put("lifecycle", TEXT, variables=variables)
        return self

    def __exit__(self, *_: object) -> None:
        self._environment.__exit__()

    def run(self, name: str) -> Ended:
        asl, clock = self._environment.service.asl, self._environment.clock
        begun = clock.seconds()
        execution_id, _ = asl.executions.start("lifecycle", input_of(name), name=name)
        with contextlib.suppress(ExecutionFailure):
            self._environment.result(self._environment.service.client.handle(execution_id))
        found = asl.executions.describe(execution_id)
        inside = frozenset(inner_names(MACHINE))
        visited = [state for state in entered(asl.executions.history(execution_id)) if state not in inside]
        seconds = clock.seconds() - begun
        return Ended(found.status.value, found.error or None, visited, counts(self._calls, name), seconds)

    def _tell(self, token: str, answer: str) -> None:
        # Time passes by itself here.
        if answer == WAKE:
            self._environment.service.asl.executions.send_callback(token, TaskCallback(CallbackKind.SUCCESS, output={}))


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Ended]]:
    with Ours(tmp_path_factory.mktemp("calls")) as peer:
        yield {name: peer.run(name) for name in SCENARIOS}


# MiniStack's.


def run_on_ministack(endpoint: str, folder: Path) -> dict[str, Ended]:
    """Run all scenarios at the same time, and return how each ended."""
    calls, table = folder / "calls", folder / "table.json"
    calls.mkdir()
    table.write_text(json.dumps(TABLE))
    account = fresh_account()
    session = aws_session(account)
    states: Any = session.client("stepfunctions", endpoint_url=endpoint)
    functions: Any = session.client("lambda", endpoint_url=endpoint)
    role = f"arn:aws:iam::{account}:role/any"
    functions.create_function(
        FunctionName="canned",
        Runtime="provided.al2023",
        Handler="canned",
        Role=role,
        Code={"ZipFile": _runtime_zip()},
        Environment={"Variables": {"CALLS": str(calls), "TABLE": str(table), "ENDPOINT": endpoint, "ACCOUNT": account}},
        Timeout=30,
    )
    definition = substituted(f"arn:aws:lambda:us-east-1:{account}:function:canned")
    machine = states.create_state_machine(name="lifecycle", definition=definition, roleArn=role)
    arns = {
        name: states.start_execution(
            stateMachineArn=machine["stateMachineArn"], name=name, input=json.dumps(input_of(name))
        )["executionArn"]
        for name in AS_AWS
    }
    ended = {name: _ended(states, arn) for name, arn in arns.items()}
    outcome = {
        name: Ended(found.status, found.error, [str(state) for state in found.visited], counts(calls, name))
        for name, found in ended.items()
    }
    states.close()
    functions.close()
    return outcome


def _ended(states: Any, arn: str) -> Outcome:
    deadline = time.monotonic() + _ENDS_WITHIN_SECONDS
    while (found := states.describe_execution(executionArn=arn))["status"] == "RUNNING":
        assert time.monotonic() < deadline, f"{arn} is still running"
        time.sleep(0.05)
    visited = [
        event["stateEnteredEventDetails"]["name"]
        for page in states.get_paginator("get_execution_history").paginate(executionArn=arn)
        for event in page["events"]
        if "stateEnteredEventDetails" in event
    ]
    return Outcome(status=found["status"], error=found.get("error"), visited=visited)


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


def substituted(function: str) -> str:
    """Return the definition with every variable replaced by the ARN of one function."""
    text = TEXT
    for variable in FUNCTIONS:
        text = text.replace(f"${{{variable}}}", function)
    return text


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
