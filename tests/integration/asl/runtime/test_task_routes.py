"""Resource maps at run time: what runs in the place of the resources that Tasks name."""

from __future__ import annotations

import json
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import yaml

import headgate as hg
from headgate.asl.machines.executions import ExecutionDescription, MachineExecutions
from headgate.errors import DefinitionError, NotFoundError
from headgate.settings import ForwardSettings, Settings, TaskSettings
from headgate.testing import Environment
from tests.asl_rig import Functions, machine
from tests.unit.triggers.rigs import Asked, Reply, serving

GLUE: Final = "arn:aws:states:::glue:startJobRun"
QUEUE: Final = "arn:aws:states:::sqs:sendMessage.waitForTaskToken"
LOCAL: Final = ForwardSettings(private_hosts=("127.0.0.1",), plain_http=True)


class World:
    """A project folder with a resource map, and machines in virtual time that use it."""

    def __init__(self, folder: Path, content: Any, *, forward: ForwardSettings = LOCAL, **settings: Any) -> None:
        (folder / "resources.yaml").write_text(content if isinstance(content, str) else yaml.safe_dump(content))
        self.functions = Functions()
        app = hg.App("mapped")
        self.functions.declare(app)
        tasks = TaskSettings(resources=Path("resources.yaml"), **settings)
        self.env = Environment(app, settings=Settings(project=folder, forward=forward, tasks=tasks))
        self.started = 0

    @property
    def executions(self) -> MachineExecutions:
        return self.env.service.asl.executions

    def run(self, definition: Any, input: Any = None, *, test_case: str = "") -> ExecutionDescription:
        self.started += 1
        execution_id, _ = self.executions.start_definition(
            "m", json.dumps(definition), input or {}, name=f"n{self.started}", test_case=test_case
        )
        for _ in range(100):
            self.env.run()
            found = self.executions.describe(execution_id)
            if found.ended_at:
                return found
            self.env.advance("1s")
        raise AssertionError(f"still {found}")


Open = Callable[..., World]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Open]:
    with ExitStack() as stack:

        def opened(*entries: dict[str, Any], content: Any = None, **settings: Any) -> World:
            made = World(tmp_path, {"resources": list(entries)} if content is None else content, **settings)
            stack.enter_context(made.env)
            return made

        yield opened


def call(resource: str, parameters: Any = None, **fields: Any) -> dict[str, Any]:
    given = {} if parameters is None else {"Parameters": parameters}
    return machine(("Call", {"Type": "Task", "Resource": resource, **given, **fields}))


def test_function__in_the_place_of_an_integration__gets_the_parameters(world: Open) -> None:
    made = world({"resource": "glue:startJobRun", "parameters": {"JobName": "night*"}, "function": "echo"})

    ended = made.run(call(f"{GLUE}.sync", {"JobName": "nightly", "Arguments": {"--day.$": "$.day"}}), {"day": "1"})

    assert ended.output == {"JobName": "nightly", "Arguments": {"--day": "1"}}
    assert made.functions.count("echo") == 1
    with pytest.raises(DefinitionError, match=r"state 'Call': glue:startJobRun on noon: no setting allows"):
        made.run(call(f"{GLUE}.sync", {"JobName": "noon"}))


def test_function__in_the_place_of_a_lambda__gets_the_payload_and_its_result_is_wrapped(world: Open) -> None:
    arn = "arn:aws:lambda:eu-west-1:1:function:price"
    made = world(
        {"resource": "lambda:invoke", "parameters": {"FunctionName": "price"}, "function": "echo"},
        {"resource": arn, "function": "echo"},
    )

    invoked = made.run(call("arn:aws:states:::lambda:invoke", {"FunctionName": "price", "Payload": {"n": 1}}))
    direct = made.run(call(arn, {"n": 2}))

    assert invoked.output == {"ExecutedVersion": "$LATEST", "Payload": {"n": 1}, "StatusCode": 200}
    assert direct.output == {"n": 2}


def test_function__that_no_worker_has__is_refused_unless_it_is_mapped(world: Open) -> None:
    made = world({"resource": "${price}", "answer": 7})

    assert made.run(call("${price}")).output == 7
    with pytest.raises(NotFoundError, match="no worker has the function other"):
        made.run(call("${other}"))


def test_error_of_a_mapped_function__is_retried_and_caught_by_the_machine(world: Open) -> None:
    made = world({"resource": "glue:*", "function": "fail"})
    catch = [{"ErrorEquals": ["Glue.EntityNotFoundException"], "Next": "Done", "ResultPath": "$.error"}]
    state = {
        "Type": "Task",
        "Resource": GLUE,
        "Parameters": {"error": "Glue.EntityNotFoundException"},
        "Retry": [{"ErrorEquals": ["Glue.EntityNotFoundException"], "MaxAttempts": 2}],
        "Catch": catch,
    }

    ended = made.run(machine(("Call", state), ("Done", {"Type": "Succeed"})))

    assert ended.status == "SUCCEEDED"
    assert ended.output["error"]["Error"] == "Glue.EntityNotFoundException"
    assert made.functions.count("fail") == 3


def test_answer__recorded__is_the_result_and_completes_a_task_that_waits_for_a_token(world: Open) -> None:
    made = world(
        {"resource": "sqs:sendMessage.waitForTaskToken", "answer": {"approved": True}},
        {"resource": "aws-sdk:s3:*", "error": "S3.NoSuchKeyException", "cause": "gone"},
    )
    sent = {"QueueUrl": "https://sqs/1/q", "MessageBody": {"token.$": "$$.Task.Token"}}

    approved = made.run(call(QUEUE, sent))
    missing = made.run(call("arn:aws:states:::aws-sdk:s3:getObject", {"Bucket": "b", "Key": "k"}))

    assert approved.output == {"approved": True}
    assert (missing.status, missing.error, missing.cause) == ("FAILED", "S3.NoSuchKeyException", "gone")


def test_function__in_the_place_of_a_callback__gets_the_token(world: Open) -> None:
    made = world({"resource": QUEUE, "function": "keep"})
    sent = {"QueueUrl": "q", "token.$": "$$.Task.Token"}
    execution_id, _ = made.executions.start_definition("m", json.dumps(call(QUEUE, sent)), {}, name="one")
    made.env.run()

    assert made.executions.describe(execution_id).status == "RUNNING"
    assert len(made.functions.tokens) == 1


def test_http__call__gets_the_input_and_its_answer_is_the_result(world: Open) -> None:
    def answer(asked: Asked) -> Reply:
        return (200, {"got": asked.json()}) if asked.path == "/ok" else (404, {"detail": "none"})

    with serving(answer) as server:
        made = world(
            {"resource": "ok:*", "http": f"{server.url}/ok"}, {"resource": "no:*", "http": {"url": f"{server.url}/no"}}
        )
        found = made.run(call("arn:aws:states:::ok:go", {"n": 1}))
        failed = made.run(call("arn:aws:states:::no:go", {"n": 1}))

    assert found.output == {"got": {"n": 1}}
    assert server.asked[0].headers["idempotency-key"]
    assert (failed.status, failed.error) == ("FAILED", "States.Http.StatusCode.404")


def test_http__private_address__is_refused_by_the_egress_policy(world: Open) -> None:
    made = world({"resource": "ok:*", "http": "http://169.254.169.254/latest/meta-data"})

    failed = made.run(call("arn:aws:states:::ok:go"))

    assert (failed.error, "not a public address" in failed.cause) == ("States.TaskFailed", True)


def test_http_endpoint__that_a_rule_names__is_called_with_the_headers_of_its_host(world: Open, tmp_path: Path) -> None:
    (tmp_path / "headers").write_text("Authorization: Bearer hidden\n")
    with serving(lambda asked: (200 if asked.path.startswith("/v1") else 500, {"path": asked.path})) as server:
        host = server.url.removeprefix("http://")
        forward = msgspec.structs.replace(LOCAL, headers={host: str(tmp_path / "headers")})
        made = world(forward=forward, aws=(f"http:invoke:{server.url}/*",))
        given = {
            "ApiEndpoint": f"{server.url}/v1/charge",
            "Method": "POST",
            "Authentication": {"ConnectionArn": "arn:aws:events:eu-west-1:1:connection/pay/1"},
            "RequestBody": {"amount": 3, "tags": ["a", "b"]},
            "QueryParameters": {"day": "1 2"},
            "Transform": {"RequestBodyEncoding": "URL_ENCODED"},
        }

        found = made.run(call("arn:aws:states:::http:invoke", given))
        broken = made.run(call("arn:aws:states:::http:invoke", {**given, "ApiEndpoint": f"{server.url}/v2"}))
        with pytest.raises(DefinitionError, match="no setting allows"):
            made.run(call("arn:aws:states:::http:invoke", {**given, "ApiEndpoint": "https://example.com/v1"}))
        bare = made.run(call("arn:aws:states:::http:invoke", {"ApiEndpoint": f"{server.url}/v1", "Method": "GET"}))
        named = made.run(call("arn:aws:states:::http:invoke", {**given, "Headers": {"X-Name": "Zoë"}}))

    assert (found.output["StatusCode"], found.output["StatusText"]) == (200, "OK")
    assert found.output["ResponseBody"] == {"path": "/v1/charge?day=1%202"}
    assert found.output["Headers"]["content-type"] == ["application/json"]
    assert server.asked[0].headers["authorization"] == "Bearer hidden"
    assert server.asked[0].body == b"amount=3&tags%5B0%5D=a&tags%5B1%5D=b"
    assert broken.error == "States.Http.StatusCode.500"
    assert "ConnectionArn" in bare.cause
    assert (named.error, "'x-name'" in named.cause) == ("States.Runtime", True)


COMMAND: Final = """
import json, os, sys
given = json.load(open(os.environ["HEADGATE_INPUT_FILE"]))
if given.get("print"):
    print(given["print"])
elif given.get("fail"):
    json.dump({"Error": given["fail"], "Cause": "as asked"}, open(os.environ["HEADGATE_OUTPUT_FILE"], "w"))
    sys.exit(3)
elif given.get("crash"):
    sys.exit("no such table")
else:
    folder, has_secret = os.path.basename(os.getcwd()), "AWS_SECRET_ACCESS_KEY" in os.environ
    answer = {"n": given["n"] + 1, "folder": folder, "has_secret": has_secret}
    json.dump(answer, open(os.environ["HEADGATE_OUTPUT_FILE"], "w"))
"""


def test_command__gets_the_input_as_a_file_and_its_result_is_the_file_or_the_output(
    world: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "job.py").write_text(COMMAND)
    made = world({"resource": "glue:*", "command": {"run": [sys.executable, "job.py"], "folder": "jobs"}})

    def ended(**input: Any) -> ExecutionDescription:
        return made.run(call(GLUE, input))

    assert ended(n=1).output == {"n": 2, "folder": "jobs", "has_secret": False}
    assert ended(print="plain").output == "plain"
    assert ended(print='{"a": 1}').output == {"a": 1}
    failed = ended(fail="Job.Refused")
    assert (failed.error, failed.cause) == ("Job.Refused", "as asked")
    crashed = ended(crash=True)
    assert crashed.error == "States.TaskFailed"
    assert "no such table" in crashed.cause


def test_command__with_a_result_beyond_the_limit__is_not_read_whole(world: Open, tmp_path: Path) -> None:
    script = "import os; open(os.environ['HEADGATE_OUTPUT_FILE'], 'wb').truncate(256 * 1_048_576)"
    (tmp_path / "large.py").write_text(script)
    made = world({"resource": "glue:*", "command": [sys.executable, "large.py"]})

    tracemalloc.start()
    try:
        failed = made.run(call(GLUE))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert failed.error == "States.DataLimitExceeded"
    assert peak_bytes < 64 * 1_048_576


def test_command__that_cannot_be_started__fails_the_task(world: Open) -> None:
    made = world({"resource": "glue:*", "command": "no-such-program-here"})

    failed = made.run(call(GLUE))

    assert (failed.error, "cannot be started" in failed.cause) == ("States.TaskFailed", True)


def test_fanout__in_the_place_of_a_batch_job__has_its_items_in_the_input(
    world: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "fanned_items.py").write_text("def twice(item):\n    return 2 * item\n")
    entry = {"handler": "fanned_items.twice", "items": "$.Parameters.rows", "collect": True}
    made = world({"resource": "batch:submitJob", "fanout": entry})

    ended = made.run(call("arn:aws:states:::batch:submitJob.sync", {"Parameters": {"rows": [1, 2, 3]}}))

    assert ended.status == "SUCCEEDED", ended
    assert (ended.output["status"], sorted(ended.output["results"])) == ("SUCCEEDED", [2, 4, 6])


# Mocked test cases.

MOCKS: Final[dict[str, Any]] = {
    "StateMachines": {
        "m": {"TestCases": {"Retried": {"Call": "Retried"}, "Short": {"Call": "Short"}, "Each": {"Inner": "Each"}}}
    },
    "MockedResponses": {
        "Retried": {"0-1": {"Throw": {"Error": "Busy", "Cause": "later"}}, "2": {"Return": {"ok": True}}},
        "Short": {"0": {"Throw": {"Error": "Busy", "Cause": "later"}}},
        "Each": {"0-2": {"Return": {"done": True}}},
    },
}
RETRIED: Final = call(GLUE, {"JobName": "j"}, Retry=[{"ErrorEquals": ["Busy"], "MaxAttempts": 5}])


def test_mocks__retried_state__gets_the_answer_of_each_call(world: Open) -> None:
    made = world(content=json.dumps(MOCKS))

    assert made.run(RETRIED, test_case="Retried").output == {"ok": True}
    short = made.run(RETRIED, test_case="Short")
    assert (short.error, "no answer to call 1" in short.cause) == ("States.Runtime", True)
    with pytest.raises(NotFoundError, match="there is Each, Retried, Short"):
        made.run(RETRIED, test_case="Other")
    with pytest.raises(DefinitionError, match="no setting allows"):
        made.run(RETRIED)


@pytest.mark.parametrize("config", [{}, {"Mode": "DISTRIBUTED", "ExecutionType": "STANDARD"},
                                    {"Mode": "DISTRIBUTED", "ExecutionType": "EXPRESS"}])  # fmt: skip
def test_map__inline_or_distributed__its_iterations_use_the_resource_map_too(world: Open, config: Any) -> None:
    made = world({"resource": "glue:*", "function": "echo"})
    processor = machine(("Inner", {"Type": "Task", "Resource": GLUE}))
    if config:
        processor["ProcessorConfig"] = config
    each = {"Type": "Map", "ItemsPath": "$.items", "ItemProcessor": processor}

    ended = made.run(machine(("Each", each)), {"items": [{"n": 1}, {"n": 2}]})

    assert ended.output == [{"n": 1}, {"n": 2}]


def test_mocks__iterations_of_a_map__are_answered(world: Open) -> None:
    made = world(content=json.dumps(MOCKS))
    processor = machine(("Inner", {"Type": "Task", "Resource": GLUE}))
    each = {"Type": "Map", "ItemsPath": "$.items", "ItemProcessor": processor}

    ended = made.run(machine(("Each", each)), {"items": [1, 2, 3]}, test_case="Each")

    assert ended.output == [{"done": True}] * 3


def test_answer__in_a_loop_without_an_end__does_not_hold_a_turn(world: Open) -> None:
    made = world({"resource": "glue:*", "answer": {}})
    inner = {
        "StartAt": "Call",
        "States": {
            "Call": {"Type": "Task", "Resource": GLUE, "Next": "Again"},
            "Again": {
                "Type": "Choice",
                "Choices": [{"Variable": "$.end", "IsPresent": True, "Next": "End"}],
                "Default": "Call",
            },
            "End": {"Type": "Succeed"},
        },
    }
    both = machine(("Both", {"Type": "Parallel", "Branches": [inner]}))
    execution_id, _ = made.executions.start_definition("m", json.dumps(both), {}, name="endless")
    made.env.advance("100ms")
    assert made.executions.describe(execution_id).status == "RUNNING"

    made.executions.stop(execution_id)
    made.env.run()

    assert made.executions.describe(execution_id).status == "ABORTED"


# Headgate's own machines.


def test_built_in_machine__is_never_routed(world: Open) -> None:
    made = world({"resource": "*", "answer": "replaced"})
    made.executions.machines.put("headgate-m", json.dumps(call("${echo}")), is_internal=True)

    execution_id, _ = made.executions.start("headgate-m", {"n": 1}, name="one", is_internal=True)
    made.env.run()

    assert made.executions.describe(execution_id).output == {"n": 1}


def test_redrive__after_the_map_was_corrected__takes_the_new_route(tmp_path: Path) -> None:
    made = World(tmp_path, {"resources": [{"resource": "glue:*", "function": "work"}]})
    made.functions.broken.add("x")
    with made.env:
        definition = call(GLUE, "x")
        failed = made.run(definition)
        made.functions.broken.clear()
        made.executions.redrive(failed.execution_id)
        made.env.run()

        assert made.executions.describe(failed.execution_id).output == "did x"
