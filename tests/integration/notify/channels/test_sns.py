"""The SNS channel and secrets of AWS, against an emulator over real HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.clock import SystemClock
from headgate.durable.model.failures import NonRetryable
from headgate.errors import SettingsError, TransientError
from headgate.notify.channels.factory import open_channels
from headgate.notify.channels.sns import secret_fetch
from headgate.notify.configuration import parse_config
from headgate.notify.messages import Channel
from tests.ministack import REGION, Ministack, aws_session, fresh_account
from tests.stores import open_sqlite
from tests.unit.notify.rig import a_message, surroundings


@pytest.fixture(scope="module")
def ministack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ministack]:
    started = Ministack.start(tmp_path_factory.mktemp("ministack"))
    yield started
    started.stop()


class Cloud:
    """An account of the emulator, with the clients that a test looks with."""

    def __init__(self, endpoint: str, account: str) -> None:
        session: Any = aws_session(account)
        self.endpoint = endpoint
        self.sns = session.client("sns", endpoint_url=endpoint)
        self.sqs = session.client("sqs", endpoint_url=endpoint)
        self.secrets = session.client("secretsmanager", endpoint_url=endpoint)

    def topic_with_queue(
        self, name: str, of_topic: dict[str, str] | None = None, of_queue: dict[str, str] | None = None
    ) -> tuple[str, str]:
        """Return the name of a topic, and the address of a queue that gets what is published there."""
        topic = self.sns.create_topic(Name=name, Attributes=of_topic or {})["TopicArn"]
        queue = self.sqs.create_queue(QueueName=name, Attributes=of_queue or {})["QueueUrl"]
        arn = self.sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        self.sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn)
        return topic, queue

    def received(self, queue: str) -> list[dict[str, Any]]:
        answer = self.sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10, WaitTimeSeconds=1)
        return [json.loads(message["Body"]) for message in answer.get("Messages", [])]


@pytest.fixture
def cloud(ministack: Ministack, monkeypatch: pytest.MonkeyPatch) -> Cloud:
    account = fresh_account()
    # The product finds credentials where AWS always looks.
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", account)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "-")
    return Cloud(ministack.endpoint, account)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def opened(cloud: Cloud, folder: Path, specs: dict[str, Any]) -> dict[str, Channel]:
    store = open_sqlite(folder)
    around = surroundings(store, SystemClock(), folder, aws_region=REGION, aws_endpoint_url=cloud.endpoint)
    try:
        return open_channels(parse_config({"channels": specs}), around)
    finally:
        store.close()


def test_sns__published__reaches_who_subscribed_with_attributes_to_filter_by(cloud: Cloud, folder: Path) -> None:
    topic, queue = cloud.topic_with_queue("alerts")
    channel = opened(cloud, folder, {"topic": {"kind": "sns", "topic_arn": topic}})["topic"]

    message_id = channel.send(a_message(title="größer " + "x" * 200))

    received = cloud.received(queue)
    assert len(received) == 1
    assert received[0]["MessageId"] == message_id
    assert len(received[0]["Subject"]) <= 100
    assert received[0]["Subject"].isascii()
    body = json.loads(received[0]["Message"])
    assert body["event"] == "JOB_FAILED"
    assert body["detail"] == {"error": "exit 1"}
    attributes = {name: each["Value"] for name, each in received[0]["MessageAttributes"].items()}
    assert attributes == {
        "severity": "critical", "event": "JOB_FAILED", "pipeline_id": "orders", "action": "trigger",
    }  # fmt: skip


def test_sns__fifo__the_same_message_twice_is_one(cloud: Cloud, folder: Path) -> None:
    topic, queue = cloud.topic_with_queue("alerts.fifo", {"FifoTopic": "true"}, {"FifoQueue": "true"})
    channel = opened(cloud, folder, {"topic": {"kind": "sns", "topic_arn": topic}})["topic"]

    channel.send(a_message())
    channel.send(a_message())

    assert len(cloud.received(queue)) == 1


def test_sns__topic_is_gone__is_not_tried_again(cloud: Cloud, folder: Path) -> None:
    arn = f"arn:aws:sns:{REGION}:000000000000:nowhere"
    channel = opened(cloud, folder, {"topic": {"kind": "sns", "topic_arn": arn}})["topic"]

    with pytest.raises(NonRetryable, match="NotFound"):
        channel.send(a_message())


def test_sns__aws_cannot_be_reached__is_tried_again(cloud: Cloud, folder: Path) -> None:
    cloud.endpoint = "http://127.0.0.1:9"
    arn = f"arn:aws:sns:{REGION}:000000000000:alerts"
    channel = opened(cloud, folder, {"topic": {"kind": "sns", "topic_arn": arn}})["topic"]

    with pytest.raises(TransientError, match="cannot be reached"):
        channel.send(a_message())


def test_secret__in_secrets_manager__is_used_by_reference(cloud: Cloud, folder: Path) -> None:
    # bug 81: the token of Slack stands in a secret store, by reference.
    cloud.secrets.create_secret(Name="slack", SecretString=json.dumps({"token": "xoxb-1234567890-abc"}))

    channels = opened(
        cloud, folder, {"slack": {"kind": "slack", "channel": "C024BE91L", "token": "aws-secret:slack#token"}}
    )

    assert list(channels) == ["slack"]


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("aws-secret:missing", "ResourceNotFoundException"),
        ("aws-secret:slack#other", "it is empty"),
        ("aws-secret:slack", "its content is malformed"),
        ("aws-secret:text#token", "not a JSON object"),
    ],
)
def test_secret__missing_or_malformed__is_refused_at_the_start(
    cloud: Cloud, folder: Path, reference: str, says: str
) -> None:
    # bug 72
    cloud.secrets.create_secret(Name="slack", SecretString=json.dumps({"token": "xoxb-1234567890-abc"}))
    cloud.secrets.create_secret(Name="text", SecretString="xoxb-1234567890-abc")

    with pytest.raises(SettingsError, match=says) as raised:
        opened(cloud, folder, {"slack": {"kind": "slack", "channel": "C024BE91L", "token": reference}})

    assert "xoxb-1234567890" not in str(raised.value)
    assert raised.value.__context__ is None or "xoxb-1234567890" not in repr(raised.value.__context__)


def test_secret_fetch__found__is_its_text(cloud: Cloud) -> None:
    cloud.secrets.create_secret(Name="plain", SecretString="text")

    assert secret_fetch(region=REGION, endpoint_url=cloud.endpoint)("plain") == "text"
