"""Workflows on an account of MiniStack: tables, streams and queues are there, and nothing works but the handlers.

This stands in for the event source mappings of Lambda alone: it reads streams and queues, calls the handler that
Terraform maps them to, and deletes what the handler does not report. A test may have it bring things twice, in another
order, or not at all.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from headgate.aws.app_container import AppContainer, open_app_container
from headgate.aws.function_settings import read_settings
from headgate.bootstrap.store import create_dynamodb_tables
from headgate.clock import Clock
from tests.aws_rig import TERRAFORM, WORKFLOW_FUNCTIONS, Context, handler_of, is_passed_on, tables_in
from tests.ministack import REGION, aws_session

FILTERS: Final[dict[str, list[dict[str, Any]]]] = json.loads((TERRAFORM / "wake_filters.json").read_text())
TABLE_PREFIX: Final = "test-"
_WITHIN_SECONDS: Final = 30.0

Records = list[dict[str, Any]]


class Workflows:
    """One account. `bring` is what becomes of records before a handler is called with them."""

    def __init__(
        self,
        endpoint: str,
        account: str,
        home: Path,
        clock: Clock,
        beside: Mapping[str, str] | None = None,
        more: Mapping[str, str] | None = None,
    ) -> None:
        """Take an account whose access key is in the environment. `beside` are variables of pipeline functions.

        `more` are further variables of these.
        """
        session: Any = aws_session(account)
        self._sqs = session.client("sqs", endpoint_url=endpoint)
        self._streams = session.client("dynamodbstreams", endpoint_url=endpoint)
        self.scheduler = session.client("scheduler", endpoint_url=endpoint)
        self.s3 = session.client("s3", endpoint_url=endpoint)
        dynamodb = session.client("dynamodb", endpoint_url=endpoint)
        self.clients = (self._sqs, self._streams, self.scheduler, self.s3, dynamodb)
        fifo = {"FifoQueue": "true", "VisibilityTimeout": "0"}
        self.turns = self._sqs.create_queue(QueueName="turns.fifo", Attributes=fifo)["QueueUrl"]
        self.later = self._sqs.create_queue(QueueName="later")["QueueUrl"]
        self.tasks = self._sqs.create_queue(QueueName="default", Attributes={"VisibilityTimeout": "0"})["QueueUrl"]
        # Names of buckets are those of all accounts.
        bucket = f"blobs-{account}"
        self.s3.create_bucket(Bucket=bucket)
        self.environ = {
            "AWS_REGION": REGION,
            "HEADGATE_APP": "tests.order_app:app",
            "HEADGATE_HOME": str(home / "home"),
            "HEADGATE_STORE_AWS_ENDPOINT_URL": endpoint,
            "HEADGATE_STORE_BLOB_BUCKET": bucket,
            "HEADGATE_STORE_TABLE_PREFIX": TABLE_PREFIX,
            "TURNS_QUEUE_URL": self.turns,
            "LATER_QUEUE_URL": self.later,
            "LATER_QUEUE_ARN": f"arn:aws:sqs:{REGION}:{account}:later",
            "ACTIVITY_QUEUE_URLS": json.dumps({"default": self.tasks}),
            "SCHEDULER_ROLE_ARN": f"arn:aws:iam::{account}:role/scheduler",
            "SCHEDULER_GROUP_NAME": "default",
        }
        shared = ("HEADGATE_STORE_BLOB_BUCKET", "KEYS_SECRET_ARN")
        self.environ |= {name: (beside or {})[name] for name in shared if name in (beside or {})}
        self.environ |= more or {}
        create_dynamodb_tables(read_settings(self.environ), clock)
        self._clock = clock
        self.container = self.opened = open_app_container(self.environ, clock)
        self._arns = {
            name: dynamodb.describe_table(TableName=TABLE_PREFIX + name)["Table"]["LatestStreamArn"] for name in FILTERS
        }
        self._iterators = {name: self._first(arn) for name, arn in self._arns.items()}
        self.bring: Callable[[Records], list[Records]] = lambda records: [records]
        # Whether everything that streams tell is lost.
        self.is_deaf = False
        # What each function has asked of AWS: service, operation, and the table, if it is one of a table.
        self.asked: dict[str, set[tuple[str, str, str]]] = {name: set() for name in WORKFLOW_FUNCTIONS}
        self._calling = ""

    def close(self) -> None:
        self.opened.close()
        for client in self.clients:
            client.close()

    def another_container(self) -> AppContainer:
        """Return a container as another process of Lambda has it."""
        other = open_app_container(self.environ, self._clock)
        # In one process the app is one, and its last container starts executions; that is the first again.
        self.opened.service.app.bind(self.opened.service.client, self.opened.service.bus)
        return other

    # Calling.

    def invoke(self, function: str, event: Any = None, *, context: Context | None = None) -> Any:
        """Call a handler here and now."""
        self._calling = function
        try:
            return handler_of(function)({} if event is None else event, context or Context())
        finally:
            self._calling = ""

    def note(self, client: Any, operation: str, given: Mapping[str, Any]) -> None:
        """Note what is asked of AWS, and for which function."""
        if self._calling and not is_passed_on():
            service = client.meta.service_model.service_name
            for table in tables_in(operation, given) or {""}:
                self.asked[self._calling].add((service, operation, table.removeprefix(TABLE_PREFIX)))

    # What mappings do.

    def step(self) -> bool:
        """Bring everything that is there to its handler once, and return whether there was anything."""
        records = [record for name in FILTERS for record in self.changes(name)]
        brought = [self._bring("waker", [] if self.is_deaf else records)]
        for function, url in (("waker", self.later), ("turns", self.turns), ("activities", self.tasks)):
            brought.append(self._bring(function, self.received(url), url))
        return any(brought)

    def run(self, is_done: Callable[[], Any], *, within_seconds: float = _WITHIN_SECONDS) -> Any:
        """Bring everything to its handler until something holds, and return it."""
        ends_at = time.monotonic() + within_seconds
        while not (found := is_done()):
            assert time.monotonic() < ends_at, f"not within {within_seconds:g} s"
            if not self.step():
                time.sleep(0.02)
        return found

    def settle(self) -> None:
        """Bring everything to its handler until nothing is left that is due."""
        while self.step():
            continue

    def changes(self, table: str) -> Records:
        """Return the records of a table that the filters let through, as Lambda is given them."""
        answer = self._streams.get_records(ShardIterator=self._iterators[table])
        self._iterators[table] = answer["NextShardIterator"]
        found = []
        for record in answer["Records"]:
            since = record["dynamodb"]["ApproximateCreationDateTime"].timestamp()
            body = {**record["dynamodb"], "ApproximateCreationDateTime": since}
            result = {**record, "eventSource": "aws:dynamodb", "eventSourceARN": self._arns[table], "dynamodb": body}
            if any(lets_through(pattern, result) for pattern in FILTERS[table]):
                found.append(result)
        return found

    def received(self, url: str) -> Records:
        """Return messages as Lambda is given them."""
        answer = self._sqs.receive_message(
            QueueUrl=url,
            MaxNumberOfMessages=10,
            VisibilityTimeout=20,
            MessageSystemAttributeNames=["ApproximateReceiveCount"],
        )
        return [
            {
                "messageId": each["MessageId"],
                "receiptHandle": each["ReceiptHandle"],
                "body": each["Body"],
                "attributes": each["Attributes"],
                "eventSource": "aws:sqs",
            }
            for each in answer.get("Messages", [])
        ]

    def received_within(self, url: str, *, seconds: float) -> Records:
        """Return messages as soon as there are any. Raises `AssertionError` if none comes in time."""
        ends_at = time.monotonic() + seconds
        while not (found := self.received(url)):
            assert time.monotonic() < ends_at, f"no message within {seconds:g} s"
            time.sleep(0.05)
        return found

    def send_later(self, body: str) -> None:
        """Do what a schedule does that fires."""
        self._sqs.send_message(QueueUrl=self.later, MessageBody=body)

    def held_back(self) -> int:
        """Return how many messages wait in the queue for later."""
        name = "ApproximateNumberOfMessagesDelayed"
        answer = self._sqs.get_queue_attributes(QueueUrl=self.later, AttributeNames=[name])
        return int(answer["Attributes"][name])

    def schedules(self) -> list[dict[str, Any]]:
        """Return the schedules that wait, those due first before the others."""
        names = [each["Name"] for each in self.scheduler.list_schedules(GroupName="default")["Schedules"]]
        found = [self.scheduler.get_schedule(Name=name, GroupName="default") for name in names]
        return sorted(found, key=lambda each: str(each["ScheduleExpression"]))

    def _bring(self, function: str, records: Records, url: str | None = None) -> bool:
        for batch in self.bring(records) if records else ():
            for part in [[each] for each in batch] if function == "activities" else [batch]:
                answer = self.invoke(function, {"Records": part})
                if url is not None:
                    failed = {each["itemIdentifier"] for each in answer.get("batchItemFailures", [])}
                    self._delete(url, [each for each in part if each["messageId"] not in failed])
        return bool(records)

    def _delete(self, url: str, records: Iterable[Mapping[str, Any]]) -> None:
        for record in records:
            # A message that a test has brought twice is gone by the second time.
            with suppress(self._sqs.exceptions.ReceiptHandleIsInvalid):
                self._sqs.delete_message(QueueUrl=url, ReceiptHandle=record["receiptHandle"])

    def _first(self, arn: str) -> str:
        (shard,) = self._streams.describe_stream(StreamArn=arn)["StreamDescription"]["Shards"]
        answer = self._streams.get_shard_iterator(
            StreamArn=arn, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )
        return str(answer["ShardIterator"])


def lets_through(pattern: Any, value: Any) -> bool:
    """Whether a pattern of EventBridge, as far as ours go, matches a record."""
    if isinstance(pattern, dict):
        return isinstance(value, Mapping) and all(lets_through(each, value.get(name)) for name, each in pattern.items())
    return any(_equals(each, value) for each in pattern)


def _equals(wanted: Any, value: Any) -> bool:
    if isinstance(wanted, dict):
        return isinstance(value, str) and value.startswith(wanted["prefix"])
    return bool(wanted == value)


def reversed_twice(records: Records) -> list[Records]:
    """Bring records in the other order, and then again as they came."""
    return [list(reversed(records)), records]
