"""Triggers of AWS against MiniStack over real HTTP, and against an EMR Serverless that speaks its documented API."""

from __future__ import annotations

import io
import json
import re
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
import pytest
from msgspec.structs import replace

from headgate.triggers.aws.clients import AwsClients
from headgate.triggers.contract import FailureCategory, JobState, PollResult, StartStatus, TriggerFailedError
from headgate.triggers.registry import TriggerKinds
from tests.ministack import REGION, aws_session, fresh_account
from tests.unit.triggers.rigs import RUN_ID, Asked, Reply, kinds, order, serving

ROLE = "arn:aws:iam::123456789012:role/headgate"
WAITING = {"StartAt": "W", "States": {"W": {"Type": "Wait", "Seconds": 600, "End": True}}}
PASSING = {"StartAt": "P", "States": {"P": {"Type": "Pass", "End": True}}}
FAILING = {"StartAt": "F", "States": {"F": {"Type": "Fail", "Error": "KeyError", "Cause": "'id'"}}}
FUNCTION = """
import sys
def handler(event, context):
    if event.get("fail") == "code":
        raise RuntimeError("KeyError: 'id'")
    if event.get("fail") == "passing":
        raise RuntimeError("connection reset by peer")
    return event
"""


class World:
    """An account of its own, and clients to prepare and to look."""

    def __init__(self, endpoint: str, tmp_path: Path) -> None:
        self.session = aws_session(fresh_account())
        self.endpoint = endpoint
        self.aws = AwsClients(region=REGION, endpoint_url=endpoint, session=self.session)
        self.kinds: TriggerKinds = kinds(tmp_path, aws=self.aws)
        self._clients: list[Any] = []

    def client(self, service: Any) -> Any:
        client: Any = self.session.client(service, endpoint_url=self.endpoint)
        self._clients.append(client)
        return client

    def close(self) -> None:
        self.aws.close()
        for client in self._clients:
            client.close()

    def ended(self, type: str, config: dict[str, Any], metadata: dict[str, str]) -> PollResult:
        """Poll until the job has ended."""
        return until(lambda: self.kinds.poll(order(type, config), metadata), lambda one: one.state != JobState.RUNNING)


def until(look: Callable[[], PollResult], accept: Callable[[PollResult], bool]) -> PollResult:
    ends_at = time.monotonic() + 30
    while not accept(found := look()):
        assert time.monotonic() < ends_at, f"still {found}"
        time.sleep(0.05)
    return found


@pytest.fixture
def world(ministack: str, tmp_path: Path) -> Iterator[World]:
    world = World(ministack, tmp_path)
    yield world
    world.close()


# Step Functions.


@pytest.fixture
def machine(world: World) -> Callable[[dict[str, Any]], str]:
    states = world.client("stepfunctions")

    def made(definition: dict[str, Any]) -> str:
        answer = states.create_state_machine(name="load", definition=json.dumps(definition), roleArn=ROLE)
        return str(answer["stateMachineArn"])

    return made


def test_step_function__machine_that_succeeds__is_started_once_and_polled(
    world: World, machine: Callable[[dict[str, Any]], str]
) -> None:
    # D2, D20
    config = {"state_machine_arn": machine(PASSING), "input": {"day": "${date}"}}

    first = world.kinds.start(order("step-function", config))
    polled = world.ended("step-function", config, first.metadata)
    second = world.kinds.start(order("step-function", config))

    assert first == second
    assert first.external_id.endswith(f":execution:load:{RUN_ID}")
    assert (first.status, polled.state) == (StartStatus.RUNNING, JobState.SUCCEEDED)
    executions = world.client("stepfunctions").list_executions(stateMachineArn=config["state_machine_arn"])
    assert len(executions["executions"]) == 1
    described = world.client("stepfunctions").describe_execution(executionArn=first.external_id)
    assert json.loads(described["input"]) == {"day": "2026-03-03T07"}


def test_step_function__machine_that_fails__has_a_category(
    world: World, machine: Callable[[dict[str, Any]], str]
) -> None:
    # D27
    config = {"state_machine_arn": machine(FAILING)}

    polled = world.ended("step-function", config, world.kinds.start(order("step-function", config)).metadata)

    assert (polled.state, polled.category) == (JobState.FAILED, FailureCategory.PERMANENT)
    assert polled.reason == "FAILED: KeyError: 'id'"


def test_step_function__cancelled__is_aborted_and_cancelling_again_changes_nothing(
    world: World, machine: Callable[[dict[str, Any]], str]
) -> None:
    config = {"state_machine_arn": machine(WAITING)}
    started = world.kinds.start(order("step-function", config))
    running = world.kinds.poll(order("step-function", config), started.metadata)

    world.kinds.cancel(order("step-function", config), started.metadata)
    world.kinds.cancel(order("step-function", config), started.metadata)
    polled = world.kinds.poll(order("step-function", config), started.metadata)

    assert running.state is JobState.RUNNING
    assert (polled.state, polled.category) == (JobState.FAILED, FailureCategory.TRANSIENT)


def test_step_function__machine_that_does_not_exist__fails_for_good(world: World) -> None:
    arn = f"arn:aws:states:{REGION}:123456789012:stateMachine:none"

    with pytest.raises(TriggerFailedError, match="StateMachineDoesNotExist") as caught:
        world.kinds.start(order("step-function", {"state_machine_arn": arn}))

    assert caught.value.category is FailureCategory.PERMANENT


def test_step_function__execution_not_seen_yet__says_nothing_of_the_job(
    world: World, machine: Callable[[dict[str, Any]], str]
) -> None:
    config = {"state_machine_arn": machine(PASSING)}
    arn = config["state_machine_arn"].replace("stateMachine", "execution") + ":other"

    with pytest.raises(TriggerFailedError) as caught:
        world.kinds.poll(order("step-function", config), {"external_id": arn})

    assert caught.value.category is FailureCategory.TRANSIENT


# Lambda.


@pytest.fixture
def function(world: World) -> str:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("app.py", FUNCTION)
    world.client("lambda").create_function(
        FunctionName="load", Runtime="python3.11", Role=ROLE, Handler="app.handler", Code={"ZipFile": packed.getvalue()}
    )
    return "load"


def test_lambda__function_that_succeeds__is_completed_with_an_id(world: World, function: str) -> None:
    # bug 32, D2
    started = world.kinds.start(order("lambda", {"function": function, "payload": {"day": "${date}"}}))

    assert (started.status, started.external_id) == (StartStatus.COMPLETED, RUN_ID)


@pytest.mark.parametrize(
    ("fail", "category"), [("code", FailureCategory.PERMANENT), ("passing", FailureCategory.TRANSIENT)]
)
def test_lambda__function_that_raises__has_a_category(
    world: World, function: str, fail: str, category: FailureCategory
) -> None:
    # D27
    with pytest.raises(TriggerFailedError) as caught:
        world.kinds.start(order("lambda", {"function": function, "payload": {"fail": fail}}))

    assert (caught.value.category, caught.value.was_started) == (category, True), caught.value


def test_lambda__event_with_a_callback__runs_until_it_is_called(world: World, function: str) -> None:
    config = {"function": function, "invocation": "Event"}

    done = world.kinds.start(order("lambda", config))
    result = world.kinds.start(order("lambda", config, callback_url="https://headgate.example/c"))

    assert (done.status, result.status) == (StartStatus.COMPLETED, StartStatus.RUNNING)


def test_lambda__function_that_does_not_exist__fails_for_good(world: World) -> None:
    with pytest.raises(TriggerFailedError, match="ResourceNotFoundException") as caught:
        world.kinds.start(order("lambda", {"function": "none"}))

    assert caught.value.category is FailureCategory.PERMANENT


# Glue.


@pytest.fixture
def glue_job(world: World, tmp_path: Path) -> Callable[[str], str]:
    def made(code: str) -> str:
        script = tmp_path / "job.py"
        script.write_text(code)
        world.client("glue").create_job(
            Name="load", Role=ROLE, Command={"Name": "pythonshell", "ScriptLocation": str(script)}
        )
        return "load"

    return made


def test_glue__job_that_succeeds__is_started_once_with_its_arguments(
    world: World, glue_job: Callable[[str], str]
) -> None:
    # D2, D20: without a token of Glue's own, by an argument.
    config = {"job_name": glue_job("print('x')"), "arguments": {"--par_day": "${day_compact}"}}

    first = world.kinds.start(order("glue", config))
    second = world.kinds.start(order("glue", config))
    polled = world.ended("glue", config, first.metadata)
    # A further attempt is a run of its own.
    third = world.kinds.start(replace(order("glue", config, attempt=2), run_id="run_2"))

    runs = world.client("glue").get_job_runs(JobName="load")["JobRuns"]
    assert first == second != third
    assert polled.state is JobState.SUCCEEDED
    assert {run["Id"] for run in runs} == {first.external_id, third.external_id}
    assert runs[0]["Arguments"] == {"--par_day": "20260303", "--headgate_run_id": RUN_ID}


def test_glue__job_that_fails__has_a_category(world: World, glue_job: Callable[[str], str]) -> None:
    # D27
    config = {"job_name": glue_job("raise KeyError('id')")}

    polled = world.ended("glue", config, world.kinds.start(order("glue", config)).metadata)

    assert (polled.state, polled.category) == (JobState.FAILED, FailureCategory.PERMANENT)
    assert "KeyError" in polled.reason


@pytest.mark.parametrize(
    ("stream", "line", "state"),
    [
        ("{run}", "26/03/03 07:00:01 ERROR ApplicationMaster: User application exited with status 1", JobState.FAILED),
        ("{run}-job-insights-rca-driver", '{{"Event":"GlueExceptionAnalysisJobFailed"}}', JobState.FAILED),
        ("{run}", "java -XX:OnOutOfMemoryError='kill' -XX:+ExitOnOutOfMemoryError", JobState.SUCCEEDED),
        ("{run}", "26/03/03 07:00:01 INFO Main: 0 rows with ERROR in them", JobState.SUCCEEDED),
        ("{run}_g-17", "26/03/03 07:00:01 ERROR Executor: mended", JobState.SUCCEEDED),
    ],
)
def test_glue__success_that_the_log_denies__is_a_failure(
    world: World, glue_job: Callable[[str], str], stream: str, line: str, state: JobState
) -> None:
    # bug 34, on real log streams
    config = {"job_name": glue_job("pass")}
    started = world.kinds.start(order("glue", config))
    logs, group = world.client("logs"), "/aws-glue/jobs/logs-v2"
    name = stream.format(run=started.external_id)
    logs.create_log_group(logGroupName=group)
    logs.create_log_stream(logGroupName=group, logStreamName=name)
    event = {"timestamp": int(time.time() * 1000), "message": line.replace("{{", "{").replace("}}", "}")}
    logs.put_log_events(logGroupName=group, logStreamName=name, logEvents=[event])

    assert world.ended("glue", config, started.metadata).state is state
    trusting = {**config, "verify_logs": False}
    assert world.ended("glue", trusting, started.metadata).state is JobState.SUCCEEDED


def test_glue__cancelled__is_stopped(world: World, glue_job: Callable[[str], str]) -> None:
    config = {"job_name": glue_job("import time; time.sleep(30)")}
    started = world.kinds.start(order("glue", config))
    world.kinds.cancel(order("glue", config), started.metadata)
    polled = world.kinds.poll(order("glue", config), started.metadata)
    world.kinds.cancel(order("glue", config), started.metadata)

    assert (polled.state, polled.category) == (JobState.FAILED, FailureCategory.TRANSIENT)
    assert polled.reason == "Glue says STOPPED"


def test_glue__job_that_does_not_exist__fails_for_good(world: World) -> None:
    with pytest.raises(TriggerFailedError, match="EntityNotFoundException") as caught:
        world.kinds.start(order("glue", {"job_name": "none"}))

    assert caught.value.category is FailureCategory.PERMANENT


# EMR.


def test_emr__step__is_added_once_and_polled(world: World) -> None:
    # D2, D20: without a token of EMR's own, by the name of the step.
    emr = world.client("emr")
    instances = {"InstanceCount": 1, "MasterInstanceType": "m5.xlarge", "KeepJobFlowAliveWhenNoSteps": True}
    cluster = emr.run_job_flow(Name="c", Instances=instances)["JobFlowId"]
    config = {"cluster_id": cluster, "args": ["spark-submit", "s3://b/load.py", "${date}"], "step_name": "load"}

    first = world.kinds.start(order("emr", config))
    second = world.kinds.start(order("emr", config))
    polled = world.ended("emr", config, first.metadata)
    world.kinds.cancel(order("emr", config), first.metadata)

    steps = emr.list_steps(ClusterId=cluster)["Steps"]
    assert first == second
    assert [(step["Id"], step["Name"]) for step in steps] == [(first.external_id, f"load {RUN_ID}")]
    assert steps[0]["Config"]["Args"] == ["spark-submit", "s3://b/load.py", "2026-03-03T07"]
    assert polled.state is JobState.SUCCEEDED


def test_emr__cluster_that_does_not_exist__fails_for_good(world: World) -> None:
    with pytest.raises(TriggerFailedError) as caught:
        world.kinds.start(order("emr", {"cluster_id": "j-NONE"}))

    assert caught.value.category is FailureCategory.PERMANENT


# What MiniStack does not have, or cannot be made to do.


class Json11:
    """A service of AWS that speaks JSON 1.1: one function for each operation; an error is a code and a message."""

    def __init__(self, **operations: Callable[[dict[str, Any]], dict[str, Any] | tuple[str, str] | None]) -> None:
        self._operations = operations
        self.called: list[str] = []

    def answer(self, asked: Asked) -> Reply | None:
        operation = asked.headers["x-amz-target"].rpartition(".")[2]
        self.called.append(operation)
        found = self._operations[operation](asked.json())
        if found is None:
            return None
        if isinstance(found, tuple):
            return 400, {"__type": found[0], "message": found[1], "Message": found[1]}
        return 200, found


def on(url: str, tmp_path: Path) -> tuple[TriggerKinds, AwsClients]:
    session = boto3.Session(aws_access_key_id="1", aws_secret_access_key="-", region_name=REGION)
    aws = AwsClients(region=REGION, endpoint_url=url, session=session)
    return kinds(tmp_path, aws=aws), aws


@pytest.mark.parametrize(
    ("code", "category"),
    [
        # bug 45: as many as may run at once; the caller waits and tries again.
        ("ConcurrentRunsExceededException", FailureCategory.TRANSIENT),
        ("ThrottlingException", FailureCategory.TRANSIENT),
        ("ResourceNumberLimitExceededException", FailureCategory.TRANSIENT),
        ("InvalidInputException", FailureCategory.PERMANENT),
        ("AccessDeniedException", FailureCategory.PERMANENT),
    ],
)
def test_glue__start_refused__has_a_category(tmp_path: Path, code: str, category: FailureCategory) -> None:
    glue = Json11(GetJobRuns=lambda _: {"JobRuns": []}, StartJobRun=lambda _: (code, "no"))
    with serving(glue.answer) as api:
        registry, aws = on(api.url, tmp_path)
        with pytest.raises(TriggerFailedError, match=code) as caught:
            registry.start(order("glue", {"job_name": "load"}))
        aws.close()

    assert (caught.value.category, caught.value.was_started) == (category, False)


@pytest.mark.parametrize("answer", [("InternalServiceException", "after it was started"), None])
def test_glue__start_whose_answer_was_lost__is_found_again(tmp_path: Path, answer: tuple[str, str] | None) -> None:
    # D20: the client must not try by itself, for it would not look.
    runs: list[dict[str, Any]] = []

    def start(asked: dict[str, Any]) -> tuple[str, str] | None:
        runs.append({"Id": "jr_1", "JobName": "load", "Arguments": asked["Arguments"], "JobRunState": "RUNNING"})
        return answer

    glue = Json11(GetJobRuns=lambda _: {"JobRuns": runs}, StartJobRun=start)
    with serving(glue.answer) as api:
        registry, aws = on(api.url, tmp_path)
        with pytest.raises(TriggerFailedError) as caught:
            registry.start(order("glue", {"job_name": "load"}))
        started = registry.start(order("glue", {"job_name": "load"}))
        aws.close()

    assert caught.value.category is FailureCategory.TRANSIENT
    assert started.external_id == "jr_1"
    assert glue.called.count("StartJobRun") == 1


def test_emr__step_whose_answer_was_lost__is_found_again(tmp_path: Path) -> None:
    # D20
    steps: list[dict[str, Any]] = []

    def add(asked: dict[str, Any]) -> None:
        steps.append({"Id": "s-1", "Name": asked["Steps"][0]["Name"]})

    emr = Json11(ListSteps=lambda _: {"Steps": steps}, AddJobFlowSteps=add)
    with serving(emr.answer) as api:
        registry, aws = on(api.url, tmp_path)
        with pytest.raises(TriggerFailedError):
            registry.start(order("emr", {"cluster_id": "j-1"}))
        started = registry.start(order("emr", {"cluster_id": "j-1"}))
        aws.close()

    assert started.external_id == "s-1"
    assert len(steps) == 1


@pytest.mark.parametrize(
    ("state", "expected", "category"),
    [
        ("STARTING", JobState.RUNNING, None),
        ("WAITING", JobState.RUNNING, None),
        ("STOPPING", JobState.RUNNING, None),
        ("TIMEOUT", JobState.FAILED, FailureCategory.TIMEOUT),
        ("EXPIRED", JobState.FAILED, FailureCategory.TIMEOUT),
        ("ERROR", JobState.FAILED, FailureCategory.TRANSIENT),
        (None, JobState.RUNNING, None),
    ],
)
def test_glue__every_state__has_a_meaning(
    tmp_path: Path, state: str | None, expected: JobState, category: FailureCategory | None
) -> None:
    # bug 42: an answer without the run, or without a state, is no crash.
    run = {} if state is None else {"JobRun": {"Id": "jr_1", "JobRunState": state}}
    with serving(Json11(GetJobRun=lambda _: run).answer) as api:
        registry, aws = on(api.url, tmp_path)
        polled = registry.poll(order("glue", {"job_name": "load"}), {"external_id": "jr_1"})
        aws.close()

    assert (polled.state, polled.category) == (expected, category)


@pytest.mark.parametrize("type", ["glue", "emr", "emr-serverless"])
def test_start__answer_without_an_id__is_transient(tmp_path: Path, type: str) -> None:
    # bug 42
    configs: dict[str, dict[str, Any]] = {
        "glue": {"job_name": "load"},
        "emr": {"cluster_id": "j-1"},
        "emr-serverless": SERVERLESS,
    }
    with serving(lambda _: (200, {})) as api:
        registry, aws = on(api.url, tmp_path)
        with pytest.raises(TriggerFailedError, match="without an id") as caught:
            registry.start(order(type, configs[type]))
        aws.close()

    assert caught.value.category is FailureCategory.TRANSIENT


@pytest.mark.parametrize(
    ("status", "expected", "category"),
    [
        ({"State": "PENDING"}, JobState.RUNNING, None),
        ({"State": "CANCEL_PENDING"}, JobState.RUNNING, None),
        ({"State": "INTERRUPTED"}, JobState.FAILED, FailureCategory.TRANSIENT),
        (
            {"State": "FAILED", "FailureDetails": {"Reason": "Unknown Error", "Message": "NullPointerException"}},
            JobState.FAILED,
            FailureCategory.PERMANENT,
        ),
        ({}, JobState.RUNNING, None),
    ],
)
def test_emr__every_state__has_a_meaning(
    tmp_path: Path, status: dict[str, Any], expected: JobState, category: FailureCategory | None
) -> None:
    with serving(Json11(DescribeStep=lambda _: {"Step": {"Id": "s-1", "Status": status}}).answer) as api:
        registry, aws = on(api.url, tmp_path)
        polled = registry.poll(order("emr", {"cluster_id": "j-1"}), {"external_id": "s-1"})
        aws.close()

    assert (polled.state, polled.category) == (expected, category)


# EMR Serverless: REST with JSON, runs by client token.

SERVERLESS: dict[str, Any] = {
    "application_id": "00f1abcd",
    "execution_role_arn": ROLE,
    "job_driver": {"sparkSubmit": {"entryPoint": "s3://b/load.py", "entryPointArguments": ["${date}"]}},
}


class EmrServerless:
    """Job runs of one application."""

    def __init__(self) -> None:
        self.runs: dict[str, dict[str, Any]] = {}
        self.by_token: dict[str, str] = {}

    def answer(self, asked: Asked) -> Reply:
        match = re.fullmatch(r"/applications/([0-9a-z]+)/jobruns(?:/(\w+))?", urlsplit(asked.path).path)
        assert match is not None, asked.path
        if match.group(1) != SERVERLESS["application_id"]:
            return 404, {"__type": "ResourceNotFoundException", "message": "Application does not exist."}
        if asked.method == "POST":
            return self._start(asked.json())
        run = self.runs.get(match.group(2))
        if run is None:
            return 404, {"__type": "ResourceNotFoundException", "message": "Job run does not exist."}
        if asked.method == "DELETE":
            if run["state"] in ("SUCCESS", "FAILED", "CANCELLED"):
                return 400, {"__type": "ValidationException", "message": f"Job run is {run['state']}"}
            run["state"] = "CANCELLING"
            return 200, {"applicationId": match.group(1), "jobRunId": run["jobRunId"]}
        return 200, {"jobRun": run}

    def _start(self, body: dict[str, Any]) -> Reply:
        assert re.fullmatch(r"[A-Za-z0-9._-]{1,64}", body["clientToken"])
        run_id = self.by_token.setdefault(body["clientToken"], f"00f{len(self.by_token):05d}")
        self.runs.setdefault(run_id, {"jobRunId": run_id, "state": "SUBMITTED", "stateDetails": "", "asked": body})
        return 200, {"applicationId": "00f1abcd", "jobRunId": run_id, "arn": f"arn:aws:emr-serverless:::{run_id}"}


@pytest.fixture
def serverless(tmp_path: Path) -> Iterator[tuple[EmrServerless, TriggerKinds]]:
    emr = EmrServerless()
    with serving(emr.answer) as api:
        registry, aws = on(api.url, tmp_path)
        yield emr, registry
        aws.close()


def test_emr_serverless__job_driver__is_sent_once_by_our_token(
    serverless: tuple[EmrServerless, TriggerKinds],
) -> None:
    # D2, D20: there is a job driver, and a token.
    emr, registry = serverless

    first = registry.start(order("emr-serverless", SERVERLESS))
    second = registry.start(order("emr-serverless", SERVERLESS))

    assert first == second
    assert len(emr.runs) == 1
    asked = emr.runs[first.external_id]["asked"]
    assert asked["clientToken"] == RUN_ID
    assert asked["jobDriver"]["sparkSubmit"]["entryPointArguments"] == ["2026-03-03T07"]


@pytest.mark.parametrize(
    ("state", "details", "expected", "category"),
    [
        ("SUBMITTED", "", JobState.RUNNING, None),
        ("QUEUED", "", JobState.RUNNING, None),
        ("CANCELLING", "", JobState.RUNNING, None),
        ("SUCCESS", "", JobState.SUCCEEDED, None),
        ("FAILED", "Job failed, ModuleNotFoundError: pandas", JobState.FAILED, FailureCategory.PERMANENT),
        ("FAILED", "Job timed out after 60 minutes", JobState.FAILED, FailureCategory.TIMEOUT),
        ("FAILED", "", JobState.FAILED, FailureCategory.TRANSIENT),
        ("CANCELLED", "", JobState.FAILED, FailureCategory.TRANSIENT),
    ],
)
def test_emr_serverless__every_state__has_a_meaning(
    serverless: tuple[EmrServerless, TriggerKinds],
    state: str,
    details: str,
    expected: JobState,
    category: FailureCategory | None,
) -> None:
    emr, registry = serverless
    started = registry.start(order("emr-serverless", SERVERLESS))
    emr.runs[started.external_id] |= {"state": state, "stateDetails": details}

    polled = registry.poll(order("emr-serverless", SERVERLESS), started.metadata)

    assert (polled.state, polled.category) == (expected, category)


def test_emr_serverless__cancelled__ends_unless_it_has_ended(serverless: tuple[EmrServerless, TriggerKinds]) -> None:
    emr, registry = serverless
    started = registry.start(order("emr-serverless", SERVERLESS))
    registry.cancel(order("emr-serverless", SERVERLESS), started.metadata)
    state = emr.runs[started.external_id]["state"]
    emr.runs[started.external_id]["state"] = "SUCCESS"
    registry.cancel(order("emr-serverless", SERVERLESS), started.metadata)

    assert (state, emr.runs[started.external_id]["state"]) == ("CANCELLING", "SUCCESS")


def test_aws__no_one_listens__is_transient(tmp_path: Path) -> None:
    with serving(lambda _: (200, {})) as api:
        url = api.url
    registry, aws = on(url, tmp_path)
    with pytest.raises(TriggerFailedError) as caught:
        registry.start(order("emr-serverless", SERVERLESS))
    aws.close()

    assert caught.value.category is FailureCategory.TRANSIENT
