"""Fan-outs on AWS: manifests, chunks and dead letters, by nothing but the functions that objects and queues invoke."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote_plus

import pytest

import headgate as hg
from headgate.aws import activities, client, fanouts, turns, wakeups
from headgate.aws.fanout_container import open_fanout_container
from headgate.clock import SystemClock
from headgate.errors import ThrottledError
from headgate.fanout.core.observer import QueueChoice
from headgate.fanout.core.splitter import Order, Splitter
from headgate.fanout.model.rows import Fanout
from headgate.fanout.model.sources import RangeSource
from headgate.fanout.model.states import Disposition, FanoutStatus
from headgate.fanout.repair.redrive import ChunkSelection
from tests.aws_rig import (
    FANOUT_FUNCTIONS,
    TERRAFORM,
    Context,
    handler_of,
    make_function,
    not_granted,
    noting,
    passing_on,
    sign_in,
    tables_in,
    until,
)
from tests.ministack import REGION, aws_session, fresh_account
from tests.order_app import doubled
from tests.workflow_rig import TABLE_PREFIX, Workflows

RECEIVES_MAX: Final = 2
HANDLER: Final = "tests.contract.test_aws_fanouts:handle"


def handle(items: list[int]) -> int:
    """Fail for a negative item, as long as there is one."""
    if min(items) < 0:
        raise ValueError(f"{min(items)} is negative")
    return len(items)


# Items that the handler below fails for.
fragile_items: set[int] = set()


def handle_fragile(items: list[int]) -> int:
    """Fail for some items, until they are repaired."""
    if fragile_items.intersection(items):
        raise ValueError("it breaks")
    return len(items)


# What is left of the invocation in the test of its deadline; each item takes 20 seconds of it.
left_ms: list[int] = []


def handle_slowly(item: int) -> int:
    left_ms[0] -= 20_000
    return item


class Waning(Context):
    """An invocation whose time the handler uses up."""

    def get_remaining_time_in_millis(self) -> int:
        return left_ms[0]


class Functions:
    """One account with the functions of fan-outs and of an app, their queues and a bucket of manifests."""

    def __init__(self, endpoint: str, account: str, home: Path) -> None:
        session: Any = aws_session(account)
        self.sqs = session.client("sqs", endpoint_url=endpoint)
        at_once = {"VisibilityTimeout": "0"}
        self.dead_url = self.sqs.create_queue(QueueName="chunks-dead", Attributes=at_once)["QueueUrl"]
        arn = f"arn:aws:sqs:{REGION}:{account}:chunks-dead"
        redrive = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": RECEIVES_MAX})
        attributes = {**at_once, "RedrivePolicy": redrive}
        self.url = self.sqs.create_queue(QueueName="chunks", Attributes=attributes)["QueueUrl"]
        more = {"HEADGATE_FANOUT_QUEUE_URL": self.url, "HEADGATE_FANOUT_QUEUES": f"{self.url}*"}
        more["HEADGATE_FANOUT_HANDLERS"] = "tests"
        self.asked: dict[str, set[tuple[str, str, str]]] = {name: set() for name in FANOUT_FUNCTIONS}
        self._calling = ""
        self.workflows = Workflows(endpoint, account, home, SystemClock(), more=more)
        self.lambdas = session.client("lambda", endpoint_url=endpoint)
        self.role = f"arn:aws:iam::{account}:role/any"
        self.account = account
        self.container = open_fanout_container(self.workflows.environ, SystemClock())
        self.bucket = self.workflows.environ["HEADGATE_STORE_BLOB_BUCKET"]

    def close(self) -> None:
        self.container.close()
        self.workflows.close()
        self.sqs.close()
        self.lambdas.close()

    def wire(self, address: str) -> str:
        """Have the bucket and a queue of its own invoke the functions, as Terraform does, and return the queue."""
        arns = {
            name: make_function(self.lambdas, self.role, name, f"{address}/{name}")
            for name in ("splitter", "chunk-worker", "dead-letter")
        }
        dead = self.sqs.create_queue(QueueName="chunks-wired-dead")["QueueUrl"]
        queue_arns = {
            name: f"arn:aws:sqs:{REGION}:{self.account}:{name}" for name in ("chunks-wired", "chunks-wired-dead")
        }
        redrive = json.dumps({"deadLetterTargetArn": queue_arns["chunks-wired-dead"], "maxReceiveCount": RECEIVES_MAX})
        url = self.sqs.create_queue(QueueName="chunks-wired", Attributes={"RedrivePolicy": redrive})["QueueUrl"]
        assert dead == f"{url}-dead"
        for queue, function in (("chunks-wired", "chunk-worker"), ("chunks-wired-dead", "dead-letter")):
            self.lambdas.create_event_source_mapping(
                EventSourceArn=queue_arns[queue],
                FunctionName=function,
                BatchSize=10,
                FunctionResponseTypes=["ReportBatchItemFailures"],
            )
        rules = [{"Name": "prefix", "Value": "manifests/"}, {"Name": "suffix", "Value": ".json"}]
        mapping = {
            "LambdaFunctionArn": arns["splitter"],
            "Events": ["s3:ObjectCreated:*"],
            "Filter": {"Key": {"FilterRules": rules}},
        }
        self.workflows.s3.put_bucket_notification_configuration(
            Bucket=self.bucket, NotificationConfiguration={"LambdaFunctionConfigurations": [mapping]}
        )
        return str(url)

    def invoke(self, function: str, event: Mapping[str, Any], *, context: Context | None = None) -> Any:
        self._calling = function
        try:
            return handler_of(function)(event, context or Context())
        finally:
            self._calling = ""

    def note(self, aws_client: Any, operation: str, given: Mapping[str, Any]) -> None:
        if self._calling:
            service = aws_client.meta.service_model.service_name
            for table in tables_in(operation, given) or {""}:
                self.asked[self._calling].add((service, operation, table.removeprefix(TABLE_PREFIX)))

    def put_manifest(self, key: str, content: Any, *, times: int = 1) -> list[str]:
        """Put a manifest into the bucket, and deliver its event, perhaps more than once."""
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.workflows.s3.put_object(Bucket=self.bucket, Key=key, Body=body)
        placed = {"bucket": {"name": self.bucket}, "object": {"key": quote_plus(key), "sequencer": "0A1B"}}
        answers = [self.invoke("splitter", {"Records": [{"s3": placed}]})["run_ids"] for _ in range(times)]
        assert all(answer == answers[0] for answer in answers)
        return list(answers[0])

    def deliver(self, function: str, url: str, *, context: Context | None = None) -> list[str]:
        """Bring the messages that are visible to a function once, and return those that it reports."""
        answer = self.sqs.receive_message(
            QueueUrl=url, MaxNumberOfMessages=10, VisibilityTimeout=0, MessageSystemAttributeNames=["All"]
        )
        records = [
            {
                "messageId": each["MessageId"],
                "receiptHandle": each["ReceiptHandle"],
                "body": each["Body"],
                "attributes": each["Attributes"],
            }
            for each in answer.get("Messages", [])
        ]
        if not records:
            return []
        reported = self.invoke(function, {"Records": records}, context=context)["batchItemFailures"]
        failed = [each["itemIdentifier"] for each in reported]
        for record in records:
            if record["messageId"] not in failed:
                self.sqs.delete_message(QueueUrl=url, ReceiptHandle=record["receiptHandle"])
        return failed

    def count(self, url: str) -> int:
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
        return sum(map(int, found.values()))

    def status(self, run_id: str) -> FanoutStatus:
        return self.container.service.fanouts.queries.fanout(run_id, consistent=True).status


@pytest.fixture(scope="module")
def account() -> str:
    return fresh_account()


@pytest.fixture(scope="module")
def deployed(ministack: str, account: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Functions]:
    opened: list[Any] = []
    with noting(account, opened) as patch:
        rig = Functions(ministack, account, tmp_path_factory.mktemp("home"))
        opened += [rig, rig.workflows]
        patch.setattr(fanouts, "fanout_container", lambda: rig.container)
        for module in (activities, client, turns, wakeups):
            patch.setattr(module, "app_container", lambda: rig.workflows.container)
        yield rig
        rig.close()


@pytest.fixture
def aws(deployed: Functions, account: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Functions]:
    """The deployment; after each test the queues are empty, and nothing was asked that Terraform does not grant."""
    sign_in(monkeypatch, account)
    yield deployed
    assert not_granted(deployed) == set()
    assert not_granted(deployed.workflows) == set()
    for url in (deployed.url, deployed.dead_url):
        deployed.sqs.purge_queue(QueueUrl=url)


def test_manifest__put_into_the_bucket__is_split_once_run_and_found_as_the_newest_of_its_group(aws: Functions) -> None:
    manifest = {
        "group": "grs-15",
        "range": [0, 25],
        "chunk_size": 10,
        "handler": HANDLER,
    }

    manifest["queue_url"] = aws.url
    (run_id,) = aws.put_manifest("manifests/grs 15.json", manifest, times=2)

    assert run_id.startswith("grs-15-")
    assert aws.count(aws.url) == 3
    queries = aws.container.service.fanouts.queries
    assert queries.by_group("grs-15").fanouts[0].run_id == run_id
    assert aws.deliver("chunk-worker", aws.url) == []
    assert aws.status(run_id) is FanoutStatus.SUCCEEDED
    assert [chunk.output for chunk in queries.every_chunk(run_id)] == ["10", "10", "5"]
    # The queue delivers at least once.
    assert aws.invoke("fanout-sweep", {})["fanouts"] == 0


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{", "manifest s3://"),
        ({"range": [0, 3], "colour": "red"}, "colour"),
        ({"lines": "/etc/passwd"}, "passwd"),
        ({"range": [0, 3], "queue_url": "https://sqs.eu-north-1.amazonaws.com/1/x"}, "fanout.queues allows"),
    ],
)
def test_manifest__invalid__is_refused_with_its_name_and_creates_nothing(
    aws: Functions, content: Any, reason: str
) -> None:
    with pytest.raises(Exception, match=reason):
        aws.put_manifest("manifests/bad.json", content)

    assert aws.count(aws.url) == 0


def test_chunks__that_fail_until_they_are_dead_letters__are_recorded_redriven_and_run(aws: Functions) -> None:
    manifest = {
        **{"group": "bad", "items": [-1, 2, -3, 4], "chunk_size": 1, "backoff_seconds": 0, "max_attempts": 9},
        "handler": HANDLER,
    }
    (run_id,) = aws.put_manifest("manifests/bad.json", manifest)
    queries = aws.container.service.fanouts.queries

    reported = [len(aws.deliver("chunk-worker", aws.url)) for _ in range(RECEIVES_MAX)]
    aws.deliver("chunk-worker", aws.url)

    assert (reported, aws.count(aws.dead_url)) == ([2, 2], 2)
    assert aws.deliver("dead-letter", aws.dead_url) == []
    assert aws.status(run_id) is FanoutStatus.PARTIAL
    dead = list(queries.every_in_disposition(run_id, Disposition.DEAD))
    assert [(chunk.chunk_id, chunk.attempt, chunk.error_class) for chunk in dead] == [
        ("chunk-0000000", 2, "ValueError"),
        ("chunk-0000002", 2, "ValueError"),
    ]
    assert "is negative" in queries.logs(dead[0])[-1].traceback
    # Unknown chunks need an operator: their messages stay.
    aws.sqs.send_message(QueueUrl=aws.dead_url, MessageBody='{"run_id": "none", "chunk_id": "chunk-0000000"}')
    assert len(aws.deliver("dead-letter", aws.dead_url)) == 1

    aws.container.service.fanouts.redriver.redrive(run_id, ChunkSelection(all=True))
    assert aws.count(aws.url) == 2


def test_chunk__its_message_comes_again_after_its_end__is_counted_and_deleted(aws: Functions) -> None:
    manifest = {"range": [0, 1], "chunk_size": 1, "handler": HANDLER}
    (run_id,) = aws.put_manifest("manifests/twice.json", manifest)
    (message,) = aws.sqs.receive_message(QueueUrl=aws.url, VisibilityTimeout=0)["Messages"]
    assert aws.deliver("chunk-worker", aws.url) == []

    aws.sqs.send_message(QueueUrl=aws.url, MessageBody=message["Body"])

    # What that asks of AWS is granted: `aws` looks at the end.
    assert aws.deliver("chunk-worker", aws.url) == []
    assert aws.count(aws.url) == 0
    queries = aws.container.service.fanouts.queries
    counts = queries.counts(queries.fanout(run_id))
    assert (counts.attempts, counts.duplicates) == (1, 1)


def test_chunk__deadline_near__is_not_started_and_delivered_again(aws: Functions) -> None:
    manifest = {"range": [0, 2], "chunk_size": 1, "handler": HANDLER}
    (run_id,) = aws.put_manifest("manifests/late.json", manifest)

    assert len(aws.deliver("chunk-worker", aws.url, context=Context(0))) == 2
    aws.deliver("chunk-worker", aws.url)

    assert aws.status(run_id) is FanoutStatus.SUCCEEDED


def test_chunk__deadline_near_between_items__defers_the_rest_to_the_slow_lane(aws: Functions) -> None:
    handler = "tests.contract.test_aws_fanouts:handle_slowly"
    (run_id,) = aws.put_manifest(
        "manifests/long.json", {"range": [0, 6], "chunk_size": 6, "each": True, "handler": handler}
    )
    left_ms[:] = [100_000]

    assert aws.deliver("chunk-worker", aws.url, context=Waning()) == []

    queries = aws.container.service.fanouts.queries
    (chunk,) = queries.every_chunk(run_id)
    assert (chunk.disposition, chunk.items_ok, chunk.items_deferred) == (Disposition.DEFERRED, 4, 2)
    # The next sweep sends the message of the slow lane.
    aws.invoke("fanout-sweep", {})
    left_ms[:] = [900_000]
    assert aws.deliver("chunk-worker", aws.url, context=Waning()) == []
    assert aws.status(run_id) is FanoutStatus.SUCCEEDED
    assert queries.counts(queries.fanout(run_id)).items_ok == 6


def test_chunk__of_a_foreign_handler__is_refused(aws: Functions) -> None:
    (run_id,) = aws.put_manifest(
        "manifests/evil.json", {"range": [0, 1], "chunk_size": 1, "handler": "os:system", "max_attempts": 1}
    )

    aws.deliver("chunk-worker", aws.url)

    (chunk,) = aws.container.service.fanouts.queries.every_chunk(run_id)
    assert (chunk.disposition, chunk.error_class) == (Disposition.DEAD, "DefinitionError")


def test_worker__connected_to_the_tables__reports_its_chunks(aws: Functions, monkeypatch: pytest.MonkeyPatch) -> None:
    (run_id,) = aws.put_manifest("manifests/own.json", {"group": "own", "items": ["a", "b"], "chunk_size": 1})
    for name, value in aws.workflows.environ.items():
        if name.startswith("HEADGATE_STORE_") and name != "HEADGATE_STORE_TABLE_PREFIX":
            monkeypatch.setenv(name, value)

    with hg.ChunkWorker.connect(f"dynamodb://{REGION}?table_prefix={TABLE_PREFIX}", name="ecs-7") as worker:
        for start, item in enumerate("ab"):
            with worker.chunk((run_id, f"chunk-{start:07d}")) as chunk:
                assert chunk.items == [item]

    assert aws.status(run_id) is FanoutStatus.SUCCEEDED
    assert {chunk.worker for chunk in aws.container.service.fanouts.queries.every_chunk(run_id)} == {"ecs-7"}


def test_sweep__messages_that_were_not_sent__are_sent(aws: Functions) -> None:
    def busy(fanout: Fanout) -> Fanout:
        raise ThrottledError(f"{fanout.run_id}: injected")

    service = aws.container.service.fanouts
    choice = QueueChoice(default_url=aws.url)
    splitter = Splitter(service.store, service.clock, service.ids, shards=16, send=busy, queues=choice)
    fanout = splitter.split(Order(group="g", chunk_size=1, handler=HANDLER), RangeSource(0, 3))
    assert (fanout.status, aws.count(aws.url)) == (FanoutStatus.RUNNING, 0)

    aws.invoke("fanout-sweep", {})

    assert aws.count(aws.url) == 3
    aws.deliver("chunk-worker", aws.url)
    assert aws.status(fanout.run_id) is FanoutStatus.SUCCEEDED


def test_map__in_a_workflow__sends_its_chunks_over_sqs_and_collects_the_results(aws: Functions) -> None:
    handle = doubled.start(5, id="doubled-5")

    aws.workflows.run(lambda: aws.count(aws.url) == 3)
    aws.deliver("chunk-worker", aws.url)
    aws.workflows.run(lambda: handle.describe().status == "SUCCEEDED")

    assert handle.result(timeout_seconds=5) == [0, 2, 4, 6, 8]


def test_functions__invoked_by_bucket_and_queues__split_run_bury_and_run_again(aws: Functions) -> None:
    fragile_items.update(range(0, 40, 10))
    manifest = {
        **{"run_id": "wired", "group": "wired", "range": [0, 40], "chunk_size": 1, "backoff_seconds": 0},
        **{"max_attempts": 9, "handler": "tests.contract.test_aws_fanouts:handle_fragile"},
    }
    with passing_on(lambda name, event: handler_of(name)(event, Context())) as address:
        manifest["queue_url"] = aws.wire(address)
        for key in ("manifests/wired.txt", "other/wired.json"):
            aws.workflows.s3.put_object(Bucket=aws.bucket, Key=key, Body=json.dumps({**manifest, "run_id": "no"}))
        aws.workflows.s3.put_object(Bucket=aws.bucket, Key="manifests/wired.json", Body=json.dumps(manifest))

        queries = aws.container.service.fanouts.queries
        until("it is there", lambda: queries.find("wired"))
        until("what fails is dead", lambda: aws.status("wired") is FanoutStatus.PARTIAL)
        dead = queries.every_in_disposition("wired", Disposition.DEAD)
        assert sorted(chunk.start for chunk in dead) == [0, 10, 20, 30]
        fragile_items.clear()
        aws.container.service.fanouts.redriver.redrive("wired", ChunkSelection(all=True))
        until("all has run", lambda: aws.status("wired") is FanoutStatus.SUCCEEDED)

    counts = queries.counts(queries.fanout("wired", consistent=True))
    assert (counts.completed, counts.failed, counts.drift()) == (40, 0, 0)
    assert queries.find("no") is None


def test_terraform__of_the_queues__gives_functions_their_time() -> None:
    text = (TERRAFORM / "fanouts.tf").read_text()

    assert 'visibility_timeout_seconds        = 6 * local.fanout_functions["chunk-worker"].timeout_seconds' in text
    assert "filter_prefix" in text
    assert "filter_suffix" in text
    assert text.count('function_response_types = ["ReportBatchItemFailures"]') == 2
