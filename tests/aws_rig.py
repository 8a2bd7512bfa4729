"""Headgate on an account of MiniStack: tables, machine and stream are there, and its Lambdas call the handlers here.

A Lambda of MiniStack is a process; each of these only passes its event on to this one, where the handler of the same
name is called, and the answer back. Run as a program, this file is that process, which sees no installed package: all
that is imported before a function is called belongs to Python itself.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import sys
import threading
import time
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

if __name__ != "__main__":
    from tests.recorded_calls import record

if TYPE_CHECKING:
    import pytest

    from headgate.aws.lifecycle_container import LifecycleContainer
    from headgate.clock import Clock

ROOT: Final = Path(__file__).parents[1]
TERRAFORM: Final = ROOT / "deploy" / "terraform"
PIPELINE_FUNCTIONS: Final[dict[str, dict[str, Any]]] = json.loads((TERRAFORM / "functions.json").read_text())
WORKFLOW_FUNCTIONS: Final[dict[str, dict[str, Any]]] = json.loads((TERRAFORM / "workflow_functions.json").read_text())
FANOUT_FUNCTIONS: Final[dict[str, dict[str, Any]]] = json.loads((TERRAFORM / "fanout_functions.json").read_text())
HTTP_FUNCTIONS: Final[dict[str, dict[str, Any]]] = json.loads((TERRAFORM / "http_functions.json").read_text())
EVENT_FUNCTIONS: Final[dict[str, dict[str, Any]]] = json.loads((TERRAFORM / "event_functions.json").read_text())
FUNCTIONS: Final = {
    **PIPELINE_FUNCTIONS,
    **WORKFLOW_FUNCTIONS,
    **FANOUT_FUNCTIONS,
    **HTTP_FUNCTIONS,
    **EVENT_FUNCTIONS,
}
FILTERS: Final[list[dict[str, Any]]] = json.loads((TERRAFORM / "stream_filters.json").read_text())
# Which function a variable of the machine stands for.
MACHINE_FUNCTIONS: Final = {
    "OrchestratorFunctionArn": "orchestrator",
    "orchestrator_arn": "orchestrator",
    "EvaluatorFunctionArn": "evaluator",
    "TriggerFunctionArn": "trigger",
    "RunCheckerFunctionArn": "run-checker",
    "sla_monitor_arn": "sla-monitor",
}
JOB: Final = "the-job"
TABLE_PREFIX: Final = "test-"
PIPELINES: Final = f"{TABLE_PREFIX}headgate-pipelines"
# The function that asks something of AWS.
_asking: ContextVar[str] = ContextVar("asking", default="")
_WITHIN_SECONDS: Final = 30.0
# Services whose permissions go by another name.
_CALLED: Final = {"stepfunctions": "states"}

Handler = Callable[[Any, Any], Any]


class Context:
    """An invocation with plenty of time, or as much as a test says."""

    aws_request_id = "0b4cf7ec-3c9a-4a41-9d0d-1b8f7f0a3c11"

    def __init__(self, left_ms: int = 60_000) -> None:
        self._left_ms = left_ms

    def get_remaining_time_in_millis(self) -> int:
        return self._left_ms


def handler_of(function: str) -> Handler:
    """Return the handler that Terraform names for a function."""
    module, _, name = str(FUNCTIONS[function]["handler"]).rpartition(".")
    handler: Handler = getattr(importlib.import_module(module), name)
    return handler


class Cloud:
    """One account: what Terraform would make, and what a test looks at."""

    def __init__(
        self, endpoint: str, account: str, home: Path, clock: Clock, settings: Mapping[str, str] | None = None
    ) -> None:
        """Take an account whose access key is in the environment. `settings` are further variables of functions."""
        from headgate.aws.function_settings import read_settings
        from headgate.aws.lifecycle_container import open_container
        from headgate.bootstrap.store import KEYS, create_dynamodb_tables
        from headgate.store.keyring import Keyring
        from tests.ministack import REGION, aws_session

        self.account = account
        self.endpoint = endpoint
        self.region = REGION
        self._session = aws_session(self.account)
        self._clients: dict[str, Any] = {}
        self.environ: dict[str, str] = {
            "AWS_REGION": REGION,
            "HEADGATE_HOME": str(home / "home"),
            "LAMBDA_TASK_ROOT": str(home),
            "HEADGATE_STORE_AWS_ENDPOINT_URL": endpoint,
            # Names of buckets are those of all accounts.
            "HEADGATE_STORE_BLOB_BUCKET": f"cloud-{account}",
            "HEADGATE_STORE_TABLE_PREFIX": TABLE_PREFIX,
            "STATE_MACHINE_ARN": self.arn("states", "stateMachine:lifecycle"),
            "SLA_MONITOR_ARN": self.function_arn("sla-monitor"),
            "SCHEDULER_ROLE_ARN": f"arn:aws:iam::{self.account}:role/scheduler",
            "SCHEDULER_GROUP_NAME": "default",
            "SCHEDULE_FAILURES_ARN": self.arn("sqs", "failed-schedules"),
            "LIFECYCLE_TOPIC_ARN": self.client("sns").create_topic(Name="lifecycle")["TopicArn"],
        }
        self.environ |= settings or {}
        Keyring.open(home / KEYS, clock)
        keys = self.client("secretsmanager").create_secret(Name="keys", SecretString=(home / KEYS).read_text())
        self.environ["KEYS_SECRET_ARN"] = keys["ARN"]
        # Where what is published of periods that have ended arrives.
        self._published = self.client("sqs").create_queue(QueueName="published")["QueueUrl"]
        self.client("sns").subscribe(
            TopicArn=self.environ["LIFECYCLE_TOPIC_ARN"], Protocol="sqs", Endpoint=self.arn("sqs", "published")
        )
        # Where the chunks of fan-outs go that name no queue.
        self._chunks = self.client("sqs").create_queue(QueueName="chunks")["QueueUrl"]
        self.environ["HEADGATE_FANOUT_QUEUE_URL"] = self._chunks
        self._letters: list[dict[str, Any]] = []
        # Where alerts arrive, as notify.toml of the package has it.
        alerts = self.client("sns").create_topic(Name="alerts")["TopicArn"]
        self._alerts = self.client("sqs").create_queue(QueueName="alerts")["QueueUrl"]
        self.client("sns").subscribe(TopicArn=alerts, Protocol="sqs", Endpoint=self.arn("sqs", "alerts"))
        (home / "notify.toml").write_text(f'[channels.topic]\nkind = "sns"\ntopic_arn = "{alerts}"\n')
        self.client("s3").create_bucket(Bucket=f"cloud-{account}")
        create_dynamodb_tables(read_settings(self.environ), clock)
        self.container: LifecycleContainer = open_container(self.environ, clock)
        # What the job of the lambda trigger was invoked with.
        self.jobs: list[dict[str, Any]] = []
        # What each function has asked of AWS: service, operation, and the table, if it is one of a table.
        self.asked: dict[str, set[tuple[str, str, str]]] = {name: set() for name in FUNCTIONS}
        self._direct = ""

    def close(self) -> None:
        self.container.close()
        for client in self._clients.values():
            client.close()

    def client(self, service: str) -> Any:
        if service not in self._clients:
            make: Any = self._session.client
            self._clients[service] = make(service, endpoint_url=self.endpoint)
        return self._clients[service]

    def arn(self, service: str, resource: str) -> str:
        return f"arn:aws:{service}:{self.region}:{self.account}:{resource}"

    def function_arn(self, function: str) -> str:
        return self.arn("lambda", f"function:{function}")

    # What Terraform would make.

    def deploy(self, passed_on_to: str) -> None:
        """Make the functions of the machine, the machine, and the mapping from the stream to the router."""
        from headgate.pipelines.lifecycle.starter import lifecycle_definition

        for function in {*MACHINE_FUNCTIONS.values(), "stream-router", JOB}:
            self._make_function(function, f"{passed_on_to}/{function}")
        text = lifecycle_definition()
        for variable, function in MACHINE_FUNCTIONS.items():
            text = text.replace(f"${{{variable}}}", self.function_arn(function))
        self.client("stepfunctions").create_state_machine(name="lifecycle", definition=text, roleArn=self._role)
        stream = self.client("dynamodb").describe_table(TableName=PIPELINES)["Table"]["LatestStreamArn"]
        self.client("lambda").create_event_source_mapping(
            EventSourceArn=stream,
            FunctionName="stream-router",
            StartingPosition="TRIM_HORIZON",
            BatchSize=100,
            FunctionResponseTypes=["ReportBatchItemFailures"],
            FilterCriteria={"Filters": [{"Pattern": json.dumps(pattern)} for pattern in FILTERS]},
        )

    @property
    def _role(self) -> str:
        return f"arn:aws:iam::{self.account}:role/any"

    def _make_function(self, name: str, url: str) -> None:
        make_function(self.client("lambda"), self._role, name, url)

    def call(self, function: str, event: Any) -> Any:
        """Do what a function does: a handler of ours, or the job."""
        if function == JOB:
            self.jobs.append(event)
            return {"rows": 3}
        token = _asking.set(function)
        try:
            return handler_of(function)(event, Context())
        finally:
            _asking.reset(token)

    def invoke(self, function: str, event: Any = None, *, left_ms: int = 60_000) -> Any:
        """Call a handler here and now; what threads of its own ask for is its own, too."""
        self._direct = function
        try:
            return handler_of(function)({} if event is None else event, Context(left_ms))
        finally:
            self._direct = ""

    def note(self, client: Any, operation: str, given: Mapping[str, Any]) -> None:
        """Note what is asked of AWS, and for which function."""
        function = _asking.get() or self._direct
        if not function:
            return
        service = client.meta.service_model.service_name
        for table in tables_in(operation, given) or {""}:
            self.asked[function].add((service, operation, table.removeprefix(TABLE_PREFIX)))

    # What a test looks at.

    def executions(self) -> dict[str, str]:
        """Return the executions of the lifecycle, with their status."""
        found = self.client("stepfunctions").list_executions(stateMachineArn=self.environ["STATE_MACHINE_ARN"])
        return {each["name"]: each["status"] for each in found["executions"]}

    def published(self, pipeline_id: str) -> list[dict[str, Any]]:
        """Return what was published of a pipeline so far."""
        answer = self.client("sqs").receive_message(QueueUrl=self._published, MaxNumberOfMessages=10)
        self._letters += [json.loads(json.loads(each["Body"])["Message"]) for each in answer.get("Messages", [])]
        return [letter for letter in self._letters if letter["pipelineId"] == pipeline_id]

    def chunks(self) -> list[dict[str, Any]]:
        """Return messages of chunks as the records of an event, and delete them."""
        answer = self.client("sqs").receive_message(QueueUrl=self._chunks, MaxNumberOfMessages=10)
        for each in answer.get("Messages", []):
            self.client("sqs").delete_message(QueueUrl=self._chunks, ReceiptHandle=each["ReceiptHandle"])
        return [{"messageId": each["MessageId"], "body": each["Body"]} for each in answer.get("Messages", [])]

    def alerts(self) -> list[str]:
        """Return the alerts that have arrived since the last call."""
        answer = self.client("sqs").receive_message(QueueUrl=self._alerts, MaxNumberOfMessages=10)
        for each in answer.get("Messages", []):
            self.client("sqs").delete_message(QueueUrl=self._alerts, ReceiptHandle=each["ReceiptHandle"])
        return [str(json.loads(each["Body"])["Message"]) for each in answer.get("Messages", [])]

    def row(self, partition: str, sort: str) -> dict[str, Any] | None:
        key = {"PK": {"S": partition}, "SK": {"S": sort}}
        answer = self.client("dynamodb").get_item(TableName=PIPELINES, Key=key, ConsistentRead=True)
        item: dict[str, Any] | None = answer.get("Item")
        return item

    def put_row(self, partition: str, sort: str, **attributes: Any) -> None:
        """Write a row as a program that knows nothing of Headgate does."""
        item = {"PK": {"S": partition}, "SK": {"S": sort}, **attributes}
        self.client("dynamodb").put_item(TableName=PIPELINES, Item=item)


def make_function(client: Any, role: str, name: str, url: str) -> str:
    """Make a function that passes its events on to an address, and return its ARN."""
    bootstrap = zipfile.ZipInfo("bootstrap")
    bootstrap.external_attr = 0o755 << 16
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as code:
        code.writestr(bootstrap, f'#!/bin/sh\nexec "{sys.executable}" -E -S "{__file__}" "{url}"\n')
    made = client.create_function(
        FunctionName=name,
        Runtime="provided.al2023",
        Handler="any",
        Role=role,
        Code={"ZipFile": packed.getvalue()},
        Timeout=60,
    )
    return str(made["FunctionArn"])


def is_passed_on() -> bool:
    """Whether a Lambda of MiniStack makes this call, and not a function that a test calls itself."""
    return bool(_asking.get())


def tables_in(operation: str, given: Mapping[str, Any]) -> set[str]:
    """Return the tables that a request of DynamoDB names, each with what is done to it."""
    if operation == "TransactWriteItems":
        return {f"{write['TableName']}:{action}" for each in given["TransactItems"] for action, write in each.items()}
    if operation in ("BatchGetItem", "BatchWriteItem", "TransactGetItems") and "RequestItems" in given:
        return set(given["RequestItems"])
    return {given["TableName"]} if "TableName" in given else set()


def is_granted(function: Mapping[str, Any], service: str, operation: str, table: str) -> bool:
    """Whether the role that Terraform gives a function may do this."""
    name, _, write = table.partition(":")
    match service:
        case "dynamodb" if operation == "DescribeTable":
            return bool(function["reads_stream"])
        case "dynamodb" if operation in ("GetItem", "BatchGetItem", "Query"):
            return name in function["reads"]
        case "dynamodb" if write == "ConditionCheck":
            return name in {*function["reads"], *function["writes"]}
        case "dynamodb":
            return name in function["writes"]
        case "dynamodbstreams":
            return bool(function["reads_stream"])
        case "lambda":
            return bool(function["starts_jobs"]) or "lambda:InvokeFunction" in function["calls"]
        case "s3":
            return operation in ("GetObject", "PutObject")
    call = f"{_CALLED.get(service, service)}:{operation.removesuffix('Batch')}"
    of_chunks = {"sqs:SendMessage": "send", "sqs:ChangeMessageVisibility": "run"}.get(call)
    return (
        call in (*function["calls"], *function.get("event_calls", []))
        or of_chunks in function.get("chunk_queues", [])
        or (service == "stepfunctions" and function["starts_jobs"])
    )


class Notes(Protocol):
    """A deployment that notes what each of its functions asks of AWS."""

    # By function: service, operation, and the table, if it is one of a table.
    asked: dict[str, set[tuple[str, str, str]]]

    def note(self, client: Any, operation: str, given: Mapping[str, Any]) -> None: ...


def sign_in(patch: pytest.MonkeyPatch, account: str) -> None:
    """Have an account's access key in the environment."""
    patch.setenv("AWS_ACCESS_KEY_ID", account)
    patch.setenv("AWS_SECRET_ACCESS_KEY", "-")


@contextmanager
def noting(account: str, opened: Sequence[Notes]) -> Iterator[pytest.MonkeyPatch]:
    """Sign in, and have what is asked of AWS noted by what is open by then. Yields what else can be patched with."""
    import pytest
    from botocore.client import BaseClient

    make = BaseClient._make_api_call  # type: ignore[attr-defined]

    def noted(client: Any, operation: str, given: Mapping[str, Any]) -> Any:
        for deployment in opened:
            deployment.note(client, operation, given)
        return make(client, operation, given)

    with pytest.MonkeyPatch.context() as patch:
        sign_in(patch, account)
        patch.setattr(BaseClient, "_make_api_call", noted)
        yield patch


def not_granted(deployed: Notes) -> set[tuple[str, str, str, str]]:
    """Return what functions have asked of AWS that Terraform does not grant them."""
    # Threads of functions may be asking just now.
    asked = {name: set(all_asked) for name, all_asked in deployed.asked.items()}
    for name, calls in asked.items():
        record(name, calls)
    return {(name, *each) for name, calls in asked.items() for each in calls if not is_granted(FUNCTIONS[name], *each)}


def until(what: str, read: Callable[[], Any], *, within_seconds: float = _WITHIN_SECONDS) -> Any:
    """Return what is read as soon as it is something."""
    ends_at = time.monotonic() + within_seconds
    while not (found := read()):
        assert time.monotonic() < ends_at, f"not within {within_seconds:g} s: {what}"
        time.sleep(0.02)
    return found


@contextmanager
def passing_on(call: Callable[[str, Any], Any]) -> Iterator[str]:
    """Serve the processes of MiniStack's Lambdas, and yield the address."""

    class Passed(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            event = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            try:
                path, answer = "response", call(self.path.strip("/"), event)
            except Exception as exc:
                # As the runtime of AWS does it.
                path, answer = "error", {"errorType": type(exc).__name__, "errorMessage": str(exc)}
            body = json.dumps({"path": path, "answer": answer}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Passed)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def stream_record(
    number: int, partition: str, sort: str, image: Mapping[str, Any], *, old: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return a record as Lambda is given it."""
    keys = {"PK": {"S": partition}, "SK": {"S": sort}}
    body = {
        "Keys": keys,
        "NewImage": {**keys, **image},
        "SequenceNumber": f"{number:021d}",
        "ApproximateCreationDateTime": time.time(),
        "StreamViewType": "NEW_AND_OLD_IMAGES",
        **({} if old is None else {"OldImage": {**keys, **old}}),
    }
    return {"eventID": f"event-{number}", "eventName": "INSERT" if old is None else "MODIFY", "dynamodb": body}


def _pass_on(url: str) -> None:
    invocations = f"http://{os.environ['AWS_LAMBDA_RUNTIME_API']}/2018-06-01/runtime/invocation"
    while True:
        with urllib.request.urlopen(f"{invocations}/next") as invocation:
            request_id = invocation.headers["Lambda-Runtime-Aws-Request-Id"]
            event = invocation.read()
        with urllib.request.urlopen(urllib.request.Request(url, data=event)) as answered:
            result = json.load(answered)
        body = json.dumps(result["answer"]).encode()
        urllib.request.urlopen(
            urllib.request.Request(f"{invocations}/{request_id}/{result['path']}", data=body)
        ).close()


if __name__ == "__main__":
    _pass_on(sys.argv[1])
