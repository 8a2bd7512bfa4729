"""Redrive: hands what functions gave up on to them again.

A batch of stream records that a function failed on leaves a message that names the records, and not their content. They
are read again from the stream, which has them for a day. Events that a target refused are published again by the sink.
Records of lost invocations are counted again.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec import Struct

from headgate.errors import NotFoundError, TransientError
from headgate.triggers.aws.clients import AwsClients, aws_call, error_code
from headgate.triggers.contract import TriggerFailedError

_RECORDS_MAX: Final = 100
_MESSAGES_MAX: Final = 10
_VISIBILITY_SECONDS: Final = 900
# Shards that have closed end without an iterator; an open one can answer empty pages before the records.
_EMPTY_PAGES_MAX: Final = 50
_GONE: Final = frozenset({"TrimmedDataAccessException", "ResourceNotFoundException"})
_SINK: Final = "event-sink"
_LOST: Final = "lost-activities"


class Batch(Struct, frozen=True, kw_only=True):
    """A batch of records that a function failed on."""

    function: str
    function_arn: str
    stream_arn: str
    shard_id: str
    # Sequence numbers.
    first: str
    last: str
    count: int


class Outcome(Struct, frozen=True, kw_only=True):
    """What became of a batch. `error` is empty if the function has processed it."""

    batch: Batch
    records: int
    error: str = ""
    # The stream no longer has the records.
    is_gone: bool = False


class EventOutcome(Struct, frozen=True, kw_only=True):
    """What became of failed events."""

    published: int
    refused: int
    missing: int


class RecordOutcome(Struct, frozen=True, kw_only=True):
    """What became of records of lost invocations."""

    counted: int
    refused: int


class Redrive:
    """Redrives the queues of one deployment."""

    def __init__(self, clients: AwsClients, name: str) -> None:
        """`name` is the Terraform variable."""
        self._clients = clients
        self._name = name

    def batches(self, *, discards_gone: bool = False) -> Iterator[Outcome]:
        """Hand the failed batches to their functions, and yield what became of each.

        A batch that was processed leaves the queue, and with `discards_gone` one whose records are gone too. Raises
        `NotFoundError` for an unknown deployment, and `TriggerFailedError` for refused calls.
        """
        url = self._queue_url(f"{self._name}-failed-stream")
        sqs = self._clients.client("sqs")
        while True:
            with aws_call(f"queue {url}"):
                answer = sqs.receive_message(
                    QueueUrl=url, MaxNumberOfMessages=_MESSAGES_MAX, VisibilityTimeout=_VISIBILITY_SECONDS
                )
            messages = answer.get("Messages", [])
            if not messages:
                return
            for message in messages:
                outcome = self._run(_batch(message["Body"]))
                if not outcome.error or (outcome.is_gone and discards_gone):
                    with aws_call(f"queue {url}"):
                        sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
                yield outcome

    def events(self) -> EventOutcome | None:
        """Have the sink publish failed events again. None: the deployment publishes none.

        Raises `TriggerFailedError`, and `TransientError` if the sink raised an error.
        """
        function = f"{self._name}-{_SINK}"
        try:
            with aws_call(f"function {function}"):
                answer = self._invoke(f"{function}:live", {"redrive": True})
        except TriggerFailedError as exc:
            if _code(exc) == "ResourceNotFoundException":
                return None
            raise
        return EventOutcome(**answer)

    def invocations(self) -> RecordOutcome | None:
        """Have records of lost invocations counted again. None: no activity of the deployment is invoked so.

        Raises `TriggerFailedError`, and `TransientError` if the function raised an error.
        """
        try:
            url = self._queue_url(f"{self._name}-failed-{_LOST}")
        except NotFoundError:
            return None
        sqs = self._clients.client("sqs")
        counted = refused = 0
        while True:
            with aws_call(f"queue {url}"):
                answer = sqs.receive_message(
                    QueueUrl=url, MaxNumberOfMessages=_MESSAGES_MAX, VisibilityTimeout=_VISIBILITY_SECONDS
                )
            messages = answer.get("Messages", [])
            if not messages:
                return RecordOutcome(counted=counted, refused=refused)
            records = [{"messageId": each["MessageId"], "body": each["Body"]} for each in messages]
            with aws_call(f"function {self._name}-{_LOST}"):
                answer = self._invoke(f"{self._name}-{_LOST}:live", {"Records": records})
            failed = {each["itemIdentifier"] for each in answer["batchItemFailures"]}
            refused += len(failed)
            for message in messages:
                if message["MessageId"] not in failed:
                    counted += 1
                    with aws_call(f"queue {url}"):
                        sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])

    def _run(self, batch: Batch) -> Outcome:
        done = 0
        try:
            records = list(self._records(batch))
            for start in range(0, len(records), _RECORDS_MAX):
                part = records[start : start + _RECORDS_MAX]
                with aws_call(f"function {batch.function}"):
                    answer = self._invoke(batch.function_arn, {"Records": part})
                failed = (answer or {}).get("batchItemFailures", [])
                if failed:
                    return Outcome(batch=batch, records=done, error=f"{len(failed)} records failed again; see its log")
                done += len(part)
        except _GoneError as exc:
            return Outcome(batch=batch, records=done, error=str(exc), is_gone=True)
        except _FunctionFailedError as exc:
            return Outcome(batch=batch, records=done, error=str(exc))
        return Outcome(batch=batch, records=done)

    def _records(self, batch: Batch) -> Iterator[dict[str, Any]]:
        """Yield the records of a batch as Lambda is given them. Raises `_GoneError`."""
        streams = self._clients.client("dynamodbstreams")
        try:
            with aws_call(f"stream {batch.stream_arn}"):
                iterator = streams.get_shard_iterator(
                    StreamArn=batch.stream_arn,
                    ShardId=batch.shard_id,
                    ShardIteratorType="AT_SEQUENCE_NUMBER",
                    SequenceNumber=batch.first,
                )["ShardIterator"]
                empty = 0
                while iterator is not None and empty < _EMPTY_PAGES_MAX:
                    page = streams.get_records(ShardIterator=iterator)
                    empty = 0 if page["Records"] else empty + 1
                    for record in page["Records"]:
                        number = int(record["dynamodb"]["SequenceNumber"])
                        if number <= int(batch.last):
                            yield _lambda_record(record, batch.stream_arn)
                        if number >= int(batch.last):
                            return
                    iterator = page.get("NextShardIterator")
        except TriggerFailedError as exc:
            if _code(exc) in _GONE:
                raise _GoneError("the stream has had its records for a day, and no longer has these") from exc
            raise

    def _invoke(self, function: str, event: Mapping[str, Any]) -> Any:  # noqa: ANN401 - what it returns
        answer = self._clients.client("lambda").invoke(FunctionName=function, Payload=json.dumps(event).encode())
        content = json.loads(answer["Payload"].read() or b"null")
        if answer.get("FunctionError"):
            message = str((content or {}).get("errorMessage", content))
            raise _FunctionFailedError(f"function {function}: {message}; see its log")
        return content

    def _queue_url(self, name: str) -> str:
        try:
            with aws_call(f"queue {name}"):
                return str(self._clients.client("sqs").get_queue_url(QueueName=name)["QueueUrl"])
        except TriggerFailedError as exc:
            if "NonExistentQueue" in _code(exc):
                raise NotFoundError(f"queue {name}: there is none; name the deployment with --name, --region") from exc
            raise


class _GoneError(Exception):
    """The stream no longer has the records."""


class _FunctionFailedError(TransientError):
    """The function raised an error."""


def _code(error: TriggerFailedError) -> str:
    cause = error.__cause__
    return error_code(cause) if isinstance(cause, Exception) else ""


def _batch(body: str) -> Batch:
    message = json.loads(body)
    info, function_arn = message["DDBStreamBatchInfo"], message["requestContext"]["functionArn"]
    return Batch(
        # arn:aws:lambda:region:account:function:NAME:ALIAS
        function=function_arn.split(":")[6],
        function_arn=function_arn,
        stream_arn=info["streamArn"],
        shard_id=info["shardId"],
        first=info["startSequenceNumber"],
        last=info["endSequenceNumber"],
        count=int(info["batchSize"]),
    )


def _lambda_record(record: Mapping[str, Any], stream_arn: str) -> dict[str, Any]:
    """Return a record of the stream's API as Lambda passes it on: times are seconds, and bytes base64."""
    body = dict(record["dynamodb"])
    body["ApproximateCreationDateTime"] = body["ApproximateCreationDateTime"].timestamp()
    for image in ("Keys", "NewImage", "OldImage"):
        if image in body:
            body[image] = {name: _encoded(value) for name, value in body[image].items()}
    identity = record.get("userIdentity")
    named = (
        {}
        if identity is None
        else {"userIdentity": {"principalId": identity.get("PrincipalId"), "type": identity.get("Type")}}
    )
    return {
        "eventID": record["eventID"],
        "eventName": record["eventName"],
        "eventVersion": record.get("eventVersion", "1.1"),
        "eventSource": "aws:dynamodb",
        "awsRegion": record.get("awsRegion", ""),
        "eventSourceARN": stream_arn,
        "dynamodb": body,
        **named,
    }


def _encoded(value: Mapping[str, Any]) -> dict[str, Any]:
    ((kind, content),) = value.items()
    match kind:
        case "B":
            return {kind: base64.b64encode(content).decode()}
        case "BS":
            return {kind: [base64.b64encode(each).decode() for each in content]}
        case "M":
            return {kind: {name: _encoded(each) for name, each in content.items()}}
        case "L":
            return {kind: [_encoded(each) for each in content]}
    return {kind: content}
