"""Event functions: the stream of the event log, SNS, EventBridge and the functions between them, from the package."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.aws.events.containers import EventContainer, open_event_container
from headgate.aws.function_settings import read_settings
from headgate.bootstrap.store import AppService, OpenedStore, create_dynamodb_tables, open_store
from headgate.clock import SystemClock
from headgate.deployment.bus_rules import bus_rules
from headgate.durable.bus.events import Event
from headgate.durable.bus.subscriptions import Filter
from headgate.durable.sdk.app import App
from headgate.health.model.events import SOURCE
from headgate.store.catalogue.tables import EVENTS
from tests.aws_rig import EVENT_FUNCTIONS, TABLE_PREFIX, sign_in, until
from tests.ministack import REGION, aws_session, fresh_account
from tests.packaged_function import make_packaged_function, not_granted, unpack

CLOCK = SystemClock()
OWN = "headgate.test.1.us-east-1"
INCIDENT = {
    "event_type": "INCIDENT_CREATED",
    "incident_id": "inc-1",
    "severity": "SEV2",
    "dataset_urn": "urn:dp:orders:o:v1",
    "signal_types": ["FRESHNESS"],
    "owner_team": "orders",
    "timestamp": "2026-01-05T00:00:00Z",
}


class Exchange:
    """One deployment: its event log with a stream, a topic, a bus, and the functions between them."""

    def __init__(self, endpoint: str, account: str, folder: Path) -> None:
        self.account = account
        session: Any = aws_session(account)
        self._session, self._endpoint = session, endpoint
        sqs, sns, events, functions = (self._client(each) for each in ("sqs", "sns", "events", "lambda"))
        self.sqs, self.events = sqs, events
        self._client("s3").create_bucket(Bucket=f"events-{account}")
        topic = sns.create_topic(Name="changes")["TopicArn"]
        self.queues = {
            name: sqs.create_queue(QueueName=name)["QueueUrl"] for name in ("from-topic", "from-bus", "failed-events")
        }
        sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=self.arn("sqs", "from-topic"))
        events.create_event_bus(Name="headgate")
        events.put_rule(Name="all", EventBusName="headgate", EventPattern=json.dumps({"source": [OWN]}))
        events.put_targets(
            Rule="all", EventBusName="headgate", Targets=[{"Id": "queue", "Arn": self.arn("sqs", "from-bus")}]
        )
        self.environ = {
            "AWS_REGION": REGION,
            "AWS_ACCESS_KEY_ID": account,
            "AWS_SECRET_ACCESS_KEY": "-",
            "HEADGATE_HOME": str(folder / "home"),
            "HEADGATE_STORE_AWS_ENDPOINT_URL": endpoint,
            "HEADGATE_STORE_BLOB_BUCKET": f"events-{account}",
            "HEADGATE_STORE_TABLE_PREFIX": TABLE_PREFIX,
            "EVENT_BUS_NAME": "headgate",
            "EVENT_SOURCE": OWN,
            "EVENT_TOPIC_ARN": topic,
            "FAILED_EVENTS_URL": self.queues["failed-events"],
        }
        create_dynamodb_tables(read_settings(self.environ), CLOCK)
        self.opened: OpenedStore = open_store(read_settings(self.environ), CLOCK)
        self.app = App("shop")
        self.app.on_event("order.paid", filter=Filter(data={"country": "DE"}))(ship)
        self.service = AppService(self.app, self.opened, CLOCK)
        self.service.bus.register(list(self.app.subscriptions.values()), self.app.name)
        task = folder / "task"
        task.mkdir()
        unpack(task, {})
        self.notes = {name: folder / f"{name}.jsonl" for name in EVENT_FUNCTIONS}
        arns = {
            name: make_packaged_function(
                functions,
                f"arn:aws:iam::{account}:role/any",
                name,
                function["handler"],
                task,
                self.notes[name],
                self.environ | {"HEADGATE_HOME": str(folder / name)},
            )
            for name, function in EVENT_FUNCTIONS.items()
        }
        described = self._client("dynamodb").describe_table(TableName=TABLE_PREFIX + EVENTS.name)["Table"]
        functions.create_event_source_mapping(
            EventSourceArn=described["LatestStreamArn"],
            FunctionName="event-sink",
            StartingPosition="TRIM_HORIZON",
            BatchSize=100,
            FunctionResponseTypes=["ReportBatchItemFailures"],
            FilterCriteria={"Filters": [{"Pattern": json.dumps({"eventName": ["INSERT"]})}]},
        )
        for name, pattern in bus_rules(self.app.subscriptions.values()).items():
            # As deploy/terraform/events.tf completes it.
            complete = {**pattern, "source": [{"anything-but": [OWN]}]}
            events.put_rule(Name=name, EventBusName="headgate", EventPattern=json.dumps(complete))
            events.put_targets(
                Rule=name, EventBusName="headgate", Targets=[{"Id": "handler", "Arn": arns["bus-handler"]}]
            )

    def _client(self, service: str) -> Any:
        return self._session.client(service, endpoint_url=self._endpoint)

    def arn(self, service: str, resource: str) -> str:
        return f"arn:aws:{service}:{REGION}:{self.account}:{resource}"

    def messages(self, name: str) -> list[dict[str, Any]]:
        """Return the bodies of messages that have arrived, and delete them."""
        url = self.queues[name]
        found = self.sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages", [])
        for each in found:
            self.sqs.delete_message(QueueUrl=url, ReceiptHandle=each["ReceiptHandle"])
        return [json.loads(each["Body"]) for each in found]

    def put(self, detail_type: str, detail: object, source: str = "shop.web") -> None:
        entry = {"Source": source, "DetailType": detail_type, "Detail": json.dumps(detail), "EventBusName": "headgate"}
        answer = self.events.put_events(Entries=[entry])
        assert answer["FailedEntryCount"] == 0

    def close(self) -> None:
        self.opened.store.close()


def ship(event: Any) -> None: ...


@pytest.fixture(scope="module")
def exchange(ministack: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exchange]:
    account = fresh_account()
    with pytest.MonkeyPatch.context() as patch:
        sign_in(patch, account)
        exchange = Exchange(ministack, account, tmp_path_factory.mktemp("events"))
        yield exchange
        # No function has asked for more than Terraform grants it.
        assert not_granted(EVENT_FUNCTIONS, exchange.notes, TABLE_PREFIX) == set()
        exchange.close()


@pytest.fixture
def container(exchange: Exchange, monkeypatch: pytest.MonkeyPatch) -> Iterator[EventContainer]:
    sign_in(monkeypatch, exchange.account)
    opened = open_event_container(exchange.environ, CLOCK)
    yield opened
    opened.close()


def test_sink__events_of_health_and_of_the_app__reach_topic_and_bus(exchange: Exchange) -> None:
    bus = exchange.service.bus
    bus.emit(Event(type="headgate.incident.created", source=SOURCE, subject="inc-1", data=INCIDENT))
    bus.emit(Event(type="order.placed", subject="o-1", data={"id": "o-1"}))

    (notice,) = until("the message of the topic", lambda: exchange.messages("from-topic"))
    entries: list[dict[str, Any]] = []

    def has_both() -> bool:
        entries.extend(exchange.messages("from-bus"))
        return len(entries) >= 2

    until("both entries of the bus", has_both)

    # The payload of the contract, as it is; users' events are no matter of the topic.
    assert json.loads(notice["Message"]) == INCIDENT
    assert notice["MessageAttributes"]["event_type"]["Value"] == "INCIDENT_CREATED"
    by_type = {each["detail-type"]: each for each in entries}
    assert by_type["INCIDENT_CREATED"]["detail"]["data"] == INCIDENT
    placed = by_type["order.placed"]
    assert (placed["source"], placed["detail"]["type"]) == (OWN, "order.placed")
    assert placed["detail"]["data"] == {"id": "o-1"}


def test_bus_handler__an_event_of_another_program__is_delivered_once_and_not_published_again(
    exchange: Exchange,
) -> None:
    exchange.put("order.paid", {"id": "o-2", "country": "FR"})
    exchange.put("order.paid", {"id": "o-3", "country": "DE"})

    (stored,) = until("the event", lambda: exchange.service.bus.tail(type="order.paid"))
    assert stored.event.data == {"id": "o-3", "country": "DE"}
    assert stored.event.source == "shop.web"
    # What follows it on the stream is published, and it is not.
    exchange.service.bus.emit(Event(type="order.shipped", data={}))
    entries = until("the next event on the bus", lambda: exchange.messages("from-bus"))
    assert [each["detail-type"] for each in entries] == ["order.shipped"]


def test_bus_handler__an_event_that_this_deployment_has_published__does_not_come_back(
    exchange: Exchange, container: EventContainer
) -> None:
    event_id = exchange.service.bus.emit(Event(type="order.paid", data={"id": "o-4", "country": "DE"}))
    (entry,) = until("the event on the bus", lambda: exchange.messages("from-bus"))

    # Its rule lets it not through; and if a detour brings it, it is known.
    again = container.receive(entry)

    assert again == event_id
    ids = [each.event_id for each in exchange.service.bus.tail(type="order.paid") if each.event.data["id"] == "o-4"]
    assert ids == [event_id]


def test_bus_handler__an_event_of_another_deployment__keeps_its_identity(container: EventContainer) -> None:
    detail = {
        "specversion": "1.0",
        "id": "evt-7",
        "source": "/headgate/health",
        "type": "headgate.incident.created",
        "time": "2026-01-05T00:00:00Z",
        "subject": "inc-9",
        "data": INCIDENT,
    }
    entry = {
        "id": "any",
        "source": "headgate.other.1.eu-west-1",
        "detail-type": "INCIDENT_CREATED",
        "time": "2026-01-05T00:00:00Z",
        "detail": detail,
    }

    first, second = container.receive(entry), container.receive({**entry, "id": "other"})

    assert first == second
    stored = container.service.bus.get(first)
    assert stored is not None
    # Names of Headgate are its own: no sender outside can claim that an incident of this deployment was opened.
    assert (stored.type, stored.event.subject, stored.event.data) == ("INCIDENT_CREATED", "inc-9", INCIDENT)
    assert stored.event.extensions == {"headgateorigin": "headgate.other.1.eu-west-1"}


def test_redrive__events_that_were_refused__are_published_and_leave_the_queue(
    exchange: Exchange, container: EventContainer
) -> None:
    event_id = exchange.service.bus.emit(Event(type="order.held", data={"id": "o-5"}))
    until("the event on the bus", lambda: exchange.messages("from-bus"))
    body = json.dumps({"event_id": event_id, "target": "bus", "reason": "refused once"})
    exchange.sqs.send_message(QueueUrl=exchange.queues["failed-events"], MessageBody=body)
    gone = json.dumps({"event_id": "", "target": "topic", "reason": "not readable"})
    exchange.sqs.send_message(QueueUrl=exchange.queues["failed-events"], MessageBody=gone)

    done = container.redrive(lambda: False)

    assert (done.published, done.refused, done.missing) == (1, 0, 1)
    (entry,) = until("the event again", lambda: exchange.messages("from-bus"))
    assert entry["detail"]["data"] == {"id": "o-5"}
    assert exchange.messages("failed-events") == []
