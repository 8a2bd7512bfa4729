"""Messaging actions: SNS, SQS and EventBridge calls become one bus event per attempt chain."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headgate.asl.errors import StateError
from headgate.asl.tasks.messaging import MESSAGE, NOTIFICATION, event_type
from headgate.durable.bus.events import Event, check_type
from tests.integration.asl.task_rig import EXECUTION, Rig
from tests.integration.fanout.worlds import CrashError

TOPIC = "arn:aws:sns:eu-west-1:123456789012:alerts"
QUEUE = "https://sqs.eu-west-1.amazonaws.com/123456789012/orders"


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path) as made:
        yield made


def emitted(rig: Rig) -> list[Event]:
    return [stored.event.decoded() for stored in rig.service.bus.tail()]


@pytest.mark.parametrize("message", ["text", {"deep": {"n": 1}}, ["a"]])
@pytest.mark.parametrize("target", ["TopicArn", "TargetArn"])
def test_publish__to_a_topic__is_a_notification_on_the_bus(rig: Rig, message: Any, target: str) -> None:
    answer = rig.call(
        "sns",
        "publish",
        {
            target: TOPIC,
            "Message": message,
            "Subject": "Late",
            "MessageAttributes": {"severity": {"DataType": "String", "StringValue": "high"}},
        },
    )
    (event,) = emitted(rig)
    assert rig.service.bus.get(answer["MessageId"]) is not None
    assert (event.type, event.subject, event.source) == (NOTIFICATION, "alerts", "/headgate/asl")
    assert event.data == {"topic": TOPIC, "message": message, "subject": "Late", "attributes": {"severity": "high"}}
    assert event.extensions == {"executionid": EXECUTION}


def test_send_message__to_a_queue__is_a_message_on_the_bus_with_its_digest(rig: Rig) -> None:
    answer = rig.call("sqs", "sendMessage", {"QueueUrl": QUEUE, "MessageBody": "hello", "MessageGroupId": "g"})
    (event,) = emitted(rig)
    assert (event.type, event.subject) == (MESSAGE, "orders")
    assert event.data == {"queue": QUEUE, "message": "hello", "attributes": {}, "group": "g"}
    assert answer["MD5OfMessageBody"] == "5d41402abc4b2a76b9719d911017c592"
    assert rig.service.bus.get(answer["MessageId"]) is not None


def test_send_message__own_id_twice__is_one_message_of_each_queue(rig: Rig) -> None:
    ids = [
        rig.call("sqs", "sendMessage", {"QueueUrl": url, "MessageBody": "x", "MessageDeduplicationId": "7"}, id=id)
        for url, id in ((QUEUE, "a"), (QUEUE, "b"), (f"{QUEUE}-2", "c"))
    ]
    assert ids[0]["MessageId"] == ids[1]["MessageId"] != ids[2]["MessageId"]
    assert len(emitted(rig)) == 2


CALLS: list[tuple[str, str, dict[str, Any], int]] = [
    ("sns", "publish", {"TopicArn": TOPIC, "Message": "m"}, 1),
    ("sqs", "sendMessage", {"QueueUrl": QUEUE, "MessageBody": "m"}, 1),
    ("events", "putEvents", {"Entries": [{"Source": "s", "DetailType": "t", "Detail": {"n": n}} for n in (1, 2)]}, 2),
]


@pytest.mark.parametrize("is_applied", [False, True])
@pytest.mark.parametrize(("service", "action", "given", "count"), CALLS)
def test_each__worker_dies_at_its_last_write__second_attempt_reports_nothing_twice(
    rig: Rig, is_applied: bool, service: str, action: str, given: Any, count: int
) -> None:
    rig.crashing.crash_at, rig.crashing.is_applied = rig.crashing.writes + count, is_applied
    with pytest.raises(CrashError):
        rig.call(service, action, given)
    first = emitted(rig)
    rig.clock.advance(30)
    rig.call(service, action, given, attempt=2)
    assert len(first) == count - (not is_applied)
    assert len(emitted(rig)) == count


@pytest.mark.parametrize(("service", "action", "given", "count"), CALLS)
def test_each__called_by_two_tasks__is_reported_twice(
    rig: Rig, service: str, action: str, given: Any, count: int
) -> None:
    for id in ("machine:one#1#000001", "machine:one#1#000002"):
        rig.call(service, action, given, id=id)
    assert len(emitted(rig)) == 2 * count


@pytest.mark.parametrize("detail", [{"n": 1}, '{"n": 1}'])
def test_put_events__entries__are_events_of_their_type_and_source(rig: Rig, detail: Any) -> None:
    entry = {
        "Source": "my.source",
        "DetailType": "Order Created",
        "Detail": detail,
        "EventBusName": "orders",
        "Resources": ["arn:a", "arn:b"],
        "Time": "2026-01-31T12:00:00Z",
    }
    answer = rig.call("events", "putEvents", {"Entries": [entry]})
    (event,) = emitted(rig)
    assert answer["FailedEntryCount"] == 0
    assert [rig.service.bus.get(each["EventId"]) is not None for each in answer["Entries"]] == [True]
    assert (event.type, event.source, event.data) == ("Order Created", "my.source", {"n": 1})
    assert event.time == datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert event.extensions == {"executionid": EXECUTION, "eventbus": "orders", "resources": "arn:a arn:b"}


@pytest.mark.parametrize(
    ("entry", "code"),
    [
        ({"DetailType": "t", "Detail": {}}, "InvalidArgument"),
        ({"Source": "s", "Detail": {}}, "InvalidArgument"),
        ({"Source": "s", "DetailType": "t", "Detail": "{"}, "MalformedDetail"),
        ({"Source": "s", "DetailType": "t", "Detail": "[]"}, "MalformedDetail"),
        ({"Source": "s", "DetailType": "t", "Detail": {}, "Time": "noon"}, "InvalidArgument"),
        ({"Source": "s", "DetailType": "t", "Detail": {}, "EventBusName": "x" * 3000}, "InvalidArgument"),
        ("entry", "InvalidArgument"),
    ],
)
def test_put_events__one_entry_is_wrong__the_others_are_put_and_the_task_fails(rig: Rig, entry: Any, code: str) -> None:
    entries = [{"Source": "s", "DetailType": "good", "Detail": {}}, entry]
    with pytest.raises(StateError) as failed:
        rig.call("events", "putEvents", {"Entries": entries})
    assert failed.value.error == "EventBridge.FailedEntry"
    result = msgspec.json.decode(failed.value.cause)
    assert result["FailedEntryCount"] == 1
    assert result["Entries"][1]["ErrorCode"] == code
    assert [event.type for event in emitted(rig)] == ["good"]


def test_put_events__one_entry_is_wrong_by_sdk__is_in_the_answer(rig: Rig) -> None:
    answer = rig.call("aws-sdk:eventbridge", "putEvents", {"Entries": [{}]})
    assert answer["FailedEntryCount"] == 1


@pytest.mark.parametrize(
    ("given", "type"),
    [("Order Created", "Order Created"), (" padded ", "padded"), ("a*b\n", "a_b"), ("x" * 300, "x" * 255)],
)
def test_event_type__of_a_detail_type__is_one_that_the_bus_takes(given: str, type: str) -> None:
    assert check_type(event_type(given)) == type


@pytest.mark.parametrize(
    ("service", "action", "given", "error", "message"),
    [
        ("sns", "publish", {"Message": "m"}, "States.Runtime", "'TopicArn'"),
        ("sns", "publish", {"TopicArn": TOPIC}, "States.Runtime", "'Message'"),
        ("sns", "publish", {"TopicArn": TOPIC, "Message": "m", "PhoneNumber": "1"}, "States.Runtime", "'PhoneNumber'"),
        ("sns", "publish", {"TopicArn": TOPIC, "Message": "m", "Subject": 1}, "States.Runtime", "a STRING"),
        ("sns", "publish", {"TopicArn": "a:\x00", "Message": "m"}, "SNS.InvalidParameterException", "subject"),
        (
            "sns",
            "publish",
            {"TopicArn": TOPIC, "Message": "m", "MessageAttributes": {"a": {"StringValue": "x"}}},
            "States.Runtime",
            "'a'",
        ),
        ("sqs", "sendMessage", {"MessageBody": "m"}, "States.Runtime", "'QueueUrl'"),
        ("sqs", "sendMessage", {"QueueUrl": QUEUE, "MessageBody": "m", "DelaySeconds": 5}, "States.Runtime", "Delay"),
        ("events", "putEvents", {"Entries": []}, "States.Runtime", "1 to 10"),
        ("events", "putEvents", {"Entries": [{}] * 11}, "States.Runtime", "1 to 10"),
        ("events", "putEvents", "text", "States.Runtime", "an object"),
        ("s3", "getObject", {}, "States.Runtime", "aws-sdk:s3:getObject"),
        ("dynamodb", "batchGetItem", {}, "States.Runtime", "getItem"),
    ],
)
def test_call__that_cannot_be_made__is_refused_and_nothing_is_reported(
    rig: Rig, service: str, action: str, given: Any, error: str, message: str
) -> None:
    with pytest.raises(StateError) as failed:
        rig.call(service, action, given)
    assert failed.value.error == error
    assert message in failed.value.cause
    assert emitted(rig) == []
