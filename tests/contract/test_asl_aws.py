"""Tasks that call AWS, against MiniStack over real HTTP: outputs, error names, waits and client tokens."""

from __future__ import annotations

import io
import itertools
import json
import zipfile
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import pytest

import headgate as hg
from headgate.asl.machines.executions import ExecutionDescription, MachineExecutions
from headgate.asl.tasks.activities import SERVICE
from headgate.bootstrap.task_backends import TaskClients
from headgate.durable.sdk.activity_context import ActivityContext
from headgate.durable.worker.executor import perform
from headgate.errors import DefinitionError
from headgate.settings import Settings, TaskSettings
from headgate.testing import Environment
from tests.asl_rig import Functions, machine
from tests.ministack import REGION, aws_session, fresh_account

ROLE: Final = "arn:aws:iam::123456789012:role/any"
FUNCTION: Final = """
def handler(event, context):
    if "fail" in event:
        raise ValueError(event["fail"])
    return event
"""
RULES: Final = (
    "s3:*:reports", "dynamodb:*:orders", "sns:publish:alerts", "sqs:*:jobs*", "events:putEvents:default",
    "lambda:invoke:price", "glue:startJobRun:nightly", "ecs:runTask:job", "batch:submitJob:jd", "athena:*",
    "secretsmanager:getSecretValue", "nosuchservice:do", "dynamodb:getItem:missing", "glue:startJobRun:crashed",
    "dynamodb:transactWriteItems:orders-counted",
)  # fmt: skip


class World:
    """An account of its own, a machine in virtual time whose Tasks may call it, and clients to prepare it."""

    def __init__(self, endpoint: str, **settings: Any) -> None:
        account = fresh_account()
        self.session = aws_session(account)
        self.endpoint = endpoint
        self.account = account
        self.functions = Functions()
        app = hg.App("aws")
        self.functions.declare(app)
        tasks = TaskSettings(aws=RULES, aws_region=REGION, aws_endpoint_url=endpoint, **settings)
        self.env = Environment(app, settings=Settings(tasks=tasks))
        self._clients: dict[str, Any] = {}
        self._numbers = itertools.count()

    def client(self, service: Any) -> Any:
        if service not in self._clients:
            self._clients[service] = self.session.client(service, endpoint_url=self.endpoint)
        return self._clients[service]

    @property
    def executions(self) -> MachineExecutions:
        return self.env.service.asl.executions

    def start(self, resource: str, parameters: Any, **fields: Any) -> str:
        state = {"Type": "Task", "Resource": resource, "Parameters": parameters, **fields}
        definition = json.dumps(machine(("Call", state)))
        execution_id, _ = self.executions.start_definition("m", definition, {}, name=f"n{next(self._numbers)}")
        self.env.run()
        return execution_id

    def ended(self, resource: str, parameters: Any, **fields: Any) -> ExecutionDescription:
        """Run one Task to its end."""
        execution_id = self.start(resource, parameters, **fields)
        for _ in range(200):
            found = self.executions.describe(execution_id)
            if found.ended_at:
                return found
            self.env.advance("1s")
        raise AssertionError(f"still {found}")

    def result(self, resource: str, parameters: Any, **fields: Any) -> Any:
        found = self.ended(resource, parameters, **fields)
        assert found.status == "SUCCEEDED", (found.error, found.cause)
        return found.output

    def error(self, resource: str, parameters: Any, **fields: Any) -> tuple[str, str]:
        found = self.ended(resource, parameters, **fields)
        assert found.status == "FAILED", found
        return found.error, found.cause

    def close(self) -> None:
        for client in self._clients.values():
            client.close()


@pytest.fixture(scope="module")
def opened(ministack: str) -> Iterator[World]:
    world = World(ministack)
    with world.env:
        yield world
    world.close()


@pytest.fixture
def world(opened: World, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", opened.account)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "-")
    return opened


SDK: Final = "arn:aws:states:::aws-sdk:"
OPTIMISED: Final = "arn:aws:states:::"


def _zipped(code: str) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("app.py", code)
    return packed.getvalue()


def test_s3__object__is_written_read_and_listed_with_the_names_of_the_sdk(world: World) -> None:
    world.client("s3").create_bucket(Bucket="reports")

    put = world.result(f"{SDK}s3:putObject", {"Bucket": "reports", "Key": "a.json", "Body": {"x": 1}})
    got = world.result(f"{SDK}s3:getObject", {"Bucket": "reports", "Key": "a.json"})
    listed = world.result(f"{SDK}s3:listObjectsV2", {"Bucket": "reports"})

    assert put["ETag"].strip('"')
    assert (json.loads(got["Body"]), got["ContentLength"]) == ({"x": 1}, 7)
    assert got["LastModified"].endswith("Z")
    assert [each["Key"] for each in listed["Contents"]] == ["a.json"]


def test_s3__errors__have_the_names_of_the_java_sdk(world: World) -> None:
    world.client("s3").create_bucket(Bucket="reports")

    error, cause = world.error(f"{SDK}s3:getObject", {"Bucket": "reports", "Key": "missing"})
    assert error == "S3.NoSuchKeyException"
    assert "Status Code: 404" in cause
    assert world.error(f"{SDK}s3:headObject", {"Bucket": "reports", "Key": "zz"})[0] == "S3.NoSuchKeyException"
    assert world.error(f"{SDK}s3:getObject", {"Bucket": "reports", "Kye": "zz"})[0] == "States.Runtime"
    assert world.error(f"{SDK}s3:getObject", {"Bucket": "reports"})[0] == "States.Runtime"
    assert world.error(f"{SDK}s3:getNothing", {"Bucket": "reports"})[0] == "States.Runtime"


def test_s3__bucket_that_no_rule_names__is_refused_before_the_machine_starts(world: World) -> None:
    with pytest.raises(DefinitionError, match="no setting allows this call") as refused:
        world.start(f"{SDK}s3:getObject", {"Bucket": "others", "Key": "a"})
    assert '"s3:getObject:others"' in str(refused.value)

    # Known only while it runs.
    error, cause = world.error(f"{SDK}s3:getObject", {"Bucket.$": "$$.Execution.Name", "Key": "a"})
    assert (error, "no setting allows" in cause) == ("States.Permissions", True)


def test_dynamodb__item__is_written_under_a_condition_in_both_forms(world: World) -> None:
    world.client("dynamodb").create_table(
        TableName="orders",
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    put = {
        "TableName": "orders",
        "Item": {"id": {"S": "7"}, "n": {"N": "1"}, "raw": {"B": "aGk="}},
        "ConditionExpression": "attribute_not_exists(id)",
    }
    key = {"id": {"S": "7"}}

    world.result(f"{OPTIMISED}dynamodb:putItem", put)
    got = world.result(f"{OPTIMISED}dynamodb:getItem", {"TableName": "orders", "Key": key})
    queried = world.result(
        f"{SDK}dynamodb:query",
        {
            "TableName": "orders",
            "KeyConditionExpression": "id = :i",
            "ExpressionAttributeValues": {":i": {"S": "7"}},
        },
    )

    assert got["Item"] == {"id": {"S": "7"}, "n": {"N": "1"}, "raw": {"B": "aGk="}}
    assert (queried["Count"], queried["Items"]) == (1, [got["Item"]])
    failed = "ConditionalCheckFailedException"
    assert world.error(f"{OPTIMISED}dynamodb:putItem", put)[0] == f"DynamoDB.{failed}"
    assert world.error(f"{SDK}dynamodb:putItem", put)[0] == f"DynamoDb.{failed}"
    missing = {"TableName": "missing", "Key": key}
    assert world.error(f"{OPTIMISED}dynamodb:getItem", missing)[0] == "DynamoDB.ResourceNotFoundException"
    with pytest.raises(DefinitionError, match=r"table others: tasks\.tables does not declare it"):
        world.start(f"{OPTIMISED}dynamodb:getItem", {"TableName": "others", "Key": key})


def test_messages__topic_queue_and_bus_of_the_account__receive_them(world: World) -> None:
    sqs = world.client("sqs")
    url = sqs.create_queue(QueueName="jobs")["QueueUrl"]
    fifo = sqs.create_queue(QueueName="jobs.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    topic = world.client("sns").create_topic(Name="alerts")["TopicArn"]

    sent = world.result(f"{OPTIMISED}sqs:sendMessage", {"QueueUrl": url, "MessageBody": {"n": 1}})
    world.result(f"{OPTIMISED}sqs:sendMessage", {"QueueUrl": fifo, "MessageBody": "x", "MessageGroupId": "g"})
    published = world.result(f"{OPTIMISED}sns:publish", {"TopicArn": topic, "Message": {"n": 1}})
    entry = {"Source": "shop", "DetailType": "order", "Detail": {"n": 1}}
    put = world.result(f"{OPTIMISED}events:putEvents", {"Entries": [entry]})

    received = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=5)["Messages"]
    assert [json.loads(each["Body"]) for each in received] == [{"n": 1}]
    assert sent["MessageId"] == received[0]["MessageId"]
    assert published["MessageId"]
    assert (put["FailedEntryCount"], len(put["Entries"])) == (0, 1)
    gone = url.replace("/jobs", "/jobs-gone")
    error, _ = world.error(f"{SDK}sqs:sendMessage", {"QueueUrl": gone, "MessageBody": "x"})
    assert error == "Sqs.QueueDoesNotExistException"


def test_queue__that_no_rule_names__is_an_event_of_the_bus(world: World) -> None:
    sent = world.result(f"{OPTIMISED}sqs:sendMessage", {"QueueUrl": "https://x/1/others", "MessageBody": "x"})

    assert sent["MessageId"]


def test_lambda__function_that_a_rule_names__is_invoked_in_the_account(world: World) -> None:
    made = world.client("lambda").create_function(
        FunctionName="price",
        Runtime="python3.11",
        Handler="app.handler",
        Role=ROLE,
        Code={"ZipFile": _zipped(FUNCTION)},
    )

    invoked = world.result(f"{OPTIMISED}lambda:invoke", {"FunctionName": "price", "Payload": {"n": 1}})
    direct = world.result(made["FunctionArn"], {"n": 2})
    error, cause = world.error(f"{OPTIMISED}lambda:invoke", {"FunctionName": "price", "Payload": {"fail": "code"}})

    assert (invoked["Payload"], invoked["StatusCode"]) == ({"n": 1}, 200)
    assert direct == {"n": 2}
    assert error not in ("", "Lambda.Unknown")
    assert "errorMessage" in cause
    # A function of the app is called as before.
    assert world.result(f"{OPTIMISED}lambda:invoke", {"FunctionName": "echo", "Payload": 3})["Payload"] == 3


def test_glue__job__is_started_once_and_waited_for(world: World) -> None:
    command = {"Name": "pythonshell", "ScriptLocation": "s3://x/y.py"}
    world.client("glue").create_job(Name="nightly", Role=ROLE, Command=command)

    started = world.result(f"{OPTIMISED}glue:startJobRun", {"JobName": "nightly"})
    ended = world.result(f"{OPTIMISED}glue:startJobRun.sync", {"JobName": "nightly", "Arguments": {"--a": "b"}})

    assert started["JobRunId"]
    assert (ended["JobName"], ended["JobRunState"], ended["Arguments"]["--a"]) == ("nightly", "SUCCEEDED", "b")
    assert isinstance(ended["StartedOn"], int)
    runs = world.client("glue").get_job_runs(JobName="nightly")["JobRuns"]
    assert sorted(each["Id"] for each in runs) == sorted([started["JobRunId"], ended["Id"]])


# A worker dies after the call and before its result is stored: the activity runs again.


def attempt(world: World, call: dict[str, Any], number: int, *, id: str) -> Any:
    """Run an attempt at the activity of a service call, as a worker does."""
    context = ActivityContext(
        activity_id=id,
        name=SERVICE,
        attempt=number,
        sign=lambda: "",
        execution_id="m:one",
        details=None,
        clock_ms=lambda: 0,
        beat=lambda _, __: None,
        put_event=lambda *_: None,
    )
    ended = perform(world.env.app.activities[SERVICE], msgspec.Raw(msgspec.json.encode(call)), context)
    assert ended is not None
    assert ended.error is None, ended.error
    return msgspec.json.decode(ended.result)


def test_glue__second_attempt_after_a_crash__finds_the_run_of_the_first(world: World) -> None:
    glue = world.client("glue")
    command = {"Name": "pythonshell", "ScriptLocation": "s3://x/y.py"}
    glue.create_job(Name="crashed", Role=ROLE, Command=command)
    call = {"service": "glue", "action": "startJobRun", "parameters": {"JobName": "crashed"}}

    first = attempt(world, call, 1, id="m:one#1#1")
    second = attempt(world, call, 2, id="m:one#1#1")
    other = attempt(world, call, 2, id="m:one#1#2")

    assert first == second
    assert other != first
    assert len(glue.get_job_runs(JobName="crashed")["JobRuns"]) == 2


def test_fifo_queue__second_attempt_after_a_crash__sends_no_second_message(world: World) -> None:
    sqs = world.client("sqs")
    url = sqs.create_queue(QueueName="jobs-crashed.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    given = {"QueueUrl": url, "MessageBody": "x", "MessageGroupId": "g"}
    call = {"service": "sqs", "action": "sendMessage", "parameters": given}

    attempt(world, call, 1, id="m:one#1#3")
    attempt(world, call, 2, id="m:one#1#3")

    count = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["ApproximateNumberOfMessages"])["Attributes"]
    assert count == {"ApproximateNumberOfMessages": "1"}


def test_transaction__second_attempt_after_a_crash__has_the_same_client_token(world: World) -> None:
    dynamodb = world.client("dynamodb")
    dynamodb.create_table(
        TableName="orders-counted",
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    add = {
        "TableName": "orders-counted",
        "Key": {"id": {"S": "7"}},
        "UpdateExpression": "ADD n :one",
        "ExpressionAttributeValues": {":one": {"N": "1"}},
    }
    call = {
        "service": "aws-sdk:dynamodb",
        "action": "transactWriteItems",
        "parameters": {"TransactItems": [{"Update": add}]},
    }

    attempt(world, call, 1, id="m:one#1#4")
    attempt(world, call, 2, id="m:one#1#4")

    item = dynamodb.get_item(TableName="orders-counted", Key=add["Key"], ConsistentRead=True)["Item"]
    assert item["n"] == {"N": "1"}


def test_poll__while_aws_does_not_answer__the_job_counts_as_running(world: World) -> None:
    dead = World("http://127.0.0.1:9")
    job = {"id": "jr_1", "scope": {"JobName": "nightly"}}
    with dead.env:
        polled = attempt(dead, {"service": "glue", "action": "startJobRun", "step": "poll", "job": job}, 1, id="m#5")
    missing = {"service": "glue", "action": "startJobRun", "step": "poll", "job": job}

    assert polled == {"is_ended": False, "result": None}
    with pytest.raises(AssertionError, match=r"Glue\.EntityNotFoundException"):
        attempt(world, missing, 1, id="m#6")


def test_role__of_the_settings__is_assumed_for_the_calls(ministack: str, monkeypatch: pytest.MonkeyPatch) -> None:
    account = fresh_account()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", account)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "-")
    role = f"arn:aws:iam::{account}:role/tasks"
    tasks = TaskSettings(aws_role=role, aws_region=REGION, aws_endpoint_url=ministack)

    client = TaskClients(Settings(tasks=tasks)).client("sts", read_seconds=30.0, tries=1)

    assert client.get_caller_identity()["Arn"] == f"arn:aws:sts::{account}:assumed-role/tasks/headgate-tasks"


def test_batch_and_athena__jobs__are_waited_for_and_a_failed_one_is_task_failed(world: World) -> None:
    batch = world.client("batch")
    batch.create_compute_environment(computeEnvironmentName="ce", type="UNMANAGED")
    order = [{"order": 1, "computeEnvironment": "ce"}]
    batch.create_job_queue(jobQueueName="q", priority=1, computeEnvironmentOrder=order)
    batch.register_job_definition(
        jobDefinitionName="jd", type="container", containerProperties={"image": "x", "vcpus": 1, "memory": 16}
    )

    submit = {"JobName": "one", "JobQueue": "q", "JobDefinition": "jd"}
    job = world.result(f"{OPTIMISED}batch:submitJob.sync", submit)
    query = {"QueryString": "SELECT 1", "ResultConfiguration": {"OutputLocation": "s3://no-such-bucket-here/"}}
    error, cause = world.error(f"{OPTIMISED}athena:startQueryExecution.sync", query)

    assert (job["Status"], job["Container"]) == ("SUCCEEDED", {"ExitCode": 0})
    assert (error, json.loads(cause)["QueryExecution"]["Status"]["State"]) == ("States.TaskFailed", "FAILED")


def test_ecs__task_that_takes_too_long__is_stopped_and_so_is_that_of_a_stopped_execution(world: World) -> None:
    ecs = world.client("ecs")
    ecs.create_cluster(clusterName="c")
    containers = [{"name": "x", "image": "busybox", "essential": True}]
    ecs.register_task_definition(family="job", containerDefinitions=containers)
    run = {"Cluster": "c", "TaskDefinition": "job"}

    error, _ = world.error(f"{OPTIMISED}ecs:runTask.sync", run, TimeoutSeconds=20)
    execution_id = world.start(f"{OPTIMISED}ecs:runTask.sync", run)
    world.env.advance("3s")
    world.executions.stop(execution_id)
    world.env.advance("3s")

    assert error == "States.Timeout"
    assert world.executions.describe(execution_id).status == "ABORTED"
    arns = [*ecs.list_tasks(cluster="c", desiredStatus="STOPPED")["taskArns"], *ecs.list_tasks(cluster="c")["taskArns"]]
    tasks = ecs.describe_tasks(cluster="c", tasks=sorted(set(arns)))["tasks"]
    assert [each["lastStatus"] for each in tasks] == ["STOPPED"] * 2


def test_secret__by_the_generic_form__is_read_with_names_in_pascal_case(world: World) -> None:
    world.client("secretsmanager").create_secret(Name="db", SecretString="hidden")

    found = world.result(f"{SDK}secretsmanager:getSecretValue", {"SecretId": "db"})
    error, _ = world.error(f"{SDK}secretsmanager:getSecretValue", {"SecretId": "none"})

    assert found["SecretString"] == "hidden"
    assert error == "SecretsManager.ResourceNotFoundException"


def test_service__that_aws_does_not_have__is_named(world: World) -> None:
    error, cause = world.error(f"{SDK}nosuchservice:do", {})

    assert (error, "no such service" in cause) == ("States.Runtime", True)
