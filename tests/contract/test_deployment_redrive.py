"""Redrive: batches that a function gave up on are read again from the stream, and handed to it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.aws.function_settings import read_settings
from headgate.aws.stream_records import stream_change
from headgate.bootstrap.store import create_dynamodb_tables, open_store
from headgate.clock import SystemClock
from headgate.deployment.redrive import EventOutcome, RecordOutcome, Redrive
from headgate.errors import NotFoundError
from headgate.store.catalogue.tables import INBOXES
from headgate.triggers.aws.clients import AwsClients
from tests.aws_rig import TABLE_PREFIX, make_function, passing_on, sign_in
from tests.ministack import REGION, aws_session, fresh_account

CLOCK = SystemClock()


class Failed:
    """A deployment whose function has failed on some rows of a stream, with a message for each batch."""

    def __init__(self, endpoint: str, account: str, folder: Path, address: str) -> None:
        session: Any = aws_session(account)
        self.clients = AwsClients(region=REGION, endpoint_url=endpoint, session=session)
        self.clients.client("s3").create_bucket(Bucket=f"redrive-{account}")
        environ = {
            "AWS_REGION": REGION,
            "HEADGATE_HOME": str(folder),
            "HEADGATE_STORE_AWS_ENDPOINT_URL": endpoint,
            "HEADGATE_STORE_BLOB_BUCKET": f"redrive-{account}",
            "HEADGATE_STORE_TABLE_PREFIX": TABLE_PREFIX,
        }
        create_dynamodb_tables(read_settings(environ), CLOCK)
        self.opened = open_store(read_settings(environ), CLOCK)
        table = self.clients.client("dynamodb").describe_table(TableName=TABLE_PREFIX + INBOXES.name)["Table"]
        self.stream = table["LatestStreamArn"]
        functions = self.clients.client("lambda")
        self.function = make_function(
            functions, f"arn:aws:iam::{account}:role/any", "headgate-waker", f"{address}/waker"
        )
        for name in ("event-sink", "lost-activities"):
            made = f"headgate-{name}"
            make_function(functions, f"arn:aws:iam::{account}:role/any", made, f"{address}/{name}")
            version = functions.publish_version(FunctionName=made)["Version"]
            functions.create_alias(FunctionName=made, Name="live", FunctionVersion=version)
        self.queue = self.clients.client("sqs").create_queue(QueueName="headgate-failed-stream")["QueueUrl"]
        self.given: list[dict[str, Any]] = []
        self.answer: Any = {"batchItemFailures": []}
        # Messages that the function of lost invocations reports as failed.
        self.refused: list[str] = []

    def call(self, function: str, event: Any) -> Any:
        if function == "event-sink":
            return {"published": 2, "refused": 0, "missing": 1}
        self.given += event["Records"]
        if function == "lost-activities":
            return {"batchItemFailures": [{"itemIdentifier": each} for each in self.refused]}
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def write(self, *names: str) -> list[dict[str, Any]]:
        """Write rows, and return their records as the stream's API has them."""
        for name in names:
            self.opened.store.put(INBOXES, {"execution_id": name, "message_id": "m", "body": b"\xff"})
        streams = self.clients.client("dynamodbstreams")
        (shard,) = streams.describe_stream(StreamArn=self.stream)["StreamDescription"]["Shards"]
        iterator = streams.get_shard_iterator(
            StreamArn=self.stream, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        self.shard = shard["ShardId"]
        found = streams.get_records(ShardIterator=iterator)["Records"]
        return [each for each in found if each["dynamodb"]["Keys"]["execution_id"]["S"] in names]

    def give_up(self, first: str, last: str, *, stream: str = "") -> None:
        """Send what Lambda sends for a batch."""
        message = {
            "requestContext": {"functionArn": self.function, "condition": "RetryAttemptsExhausted"},
            "DDBStreamBatchInfo": {
                "shardId": self.shard,
                "startSequenceNumber": first,
                "endSequenceNumber": last,
                "batchSize": 2,
                "streamArn": stream or self.stream,
            },
        }
        self.clients.client("sqs").send_message(QueueUrl=self.queue, MessageBody=json.dumps(message))

    def waiting(self) -> int:
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self.clients.client("sqs").get_queue_attributes(QueueUrl=self.queue, AttributeNames=names)
        return sum(int(each) for each in found["Attributes"].values())

    def close(self) -> None:
        self.clients.close()
        self.opened.store.close()


@pytest.fixture
def failed(ministack: str, tmp_path: Path) -> Iterator[Failed]:
    account = fresh_account()
    made: list[Failed] = []
    with pytest.MonkeyPatch.context() as patch, passing_on(lambda name, event: made[0].call(name, event)) as address:
        sign_in(patch, account)
        made.append(Failed(ministack, account, tmp_path, address))
        yield made[0]
        made[0].close()


def test_batch__that_a_function_gave_up_on__is_processed_and_leaves_the_queue(failed: Failed) -> None:
    records = failed.write("before", "a", "b", "after")
    numbers = [each["dynamodb"]["SequenceNumber"] for each in records]
    failed.give_up(numbers[1], numbers[2])

    (outcome,) = Redrive(failed.clients, "headgate").batches()

    assert (outcome.batch.function, outcome.records, outcome.error) == ("headgate-waker", 2, "")
    changes = [stream_change(INBOXES, each) for each in failed.given]
    assert [each.new and each.new["execution_id"] for each in changes] == ["a", "b"]
    assert [each.new and each.new["body"] for each in changes] == [b"\xff", b"\xff"]
    assert {each["eventSourceARN"] for each in failed.given} == {failed.stream}
    assert failed.waiting() == 0


@pytest.mark.parametrize("answer", [{"batchItemFailures": [{"itemIdentifier": "1"}]}, ValueError("still broken")])
def test_batch__that_fails_again__stays_in_the_queue(failed: Failed, answer: Any) -> None:
    (record,) = failed.write("a")
    failed.give_up(record["dynamodb"]["SequenceNumber"], record["dynamodb"]["SequenceNumber"])
    failed.answer = answer

    (outcome,) = Redrive(failed.clients, "headgate").batches()

    assert "failed again" in outcome.error or "still broken" in outcome.error
    assert failed.waiting() == 1


def test_batch__whose_stream_is_gone__stays_until_it_is_to_be_discarded(failed: Failed) -> None:
    failed.write("a")
    gone = failed.stream.rpartition("/")[0] + "/2001-01-01T00:00:00.000"
    failed.give_up(f"{1:021d}", f"{2:021d}", stream=gone)
    url = failed.queue

    (outcome,) = Redrive(failed.clients, "headgate").batches()
    assert (outcome.is_gone, failed.waiting()) == (True, 1)
    failed.clients.client("sqs").purge_queue(QueueUrl=url)
    failed.give_up(f"{1:021d}", f"{2:021d}", stream=gone)
    (again,) = Redrive(failed.clients, "headgate").batches(discards_gone=True)

    assert (again.is_gone, failed.waiting()) == (True, 0)


def test_events__that_a_target_refused__are_left_to_the_sink(failed: Failed) -> None:
    assert Redrive(failed.clients, "headgate").events() == EventOutcome(published=2, refused=0, missing=1)
    assert Redrive(failed.clients, "without-events").events() is None


def test_records__of_lost_invocations__are_counted_or_stay(failed: Failed) -> None:
    assert Redrive(failed.clients, "headgate").invocations() is None
    sqs = failed.clients.client("sqs")
    failed.queue = sqs.create_queue(QueueName="headgate-failed-lost-activities")["QueueUrl"]
    sent = [sqs.send_message(QueueUrl=failed.queue, MessageBody=body)["MessageId"] for body in ("a", "b")]
    failed.refused = [sent[1]]

    outcome = Redrive(failed.clients, "headgate").invocations()

    assert outcome == RecordOutcome(counted=1, refused=1)
    assert sorted(each["body"] for each in failed.given) == ["a", "b"]
    assert failed.waiting() == 1


def test_deployment__not_there__names_the_options(failed: Failed) -> None:
    with pytest.raises(NotFoundError, match="--name"):
        list(Redrive(failed.clients, "other").batches())
