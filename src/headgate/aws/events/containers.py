"""Event containers: the sink and the bus of the event functions, opened once per process."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from headgate import typed_decode
from headgate.aws.events.bus_events import event_of
from headgate.aws.events.event_sink import EventSink, FailedEvent, RedriveResult, redrive
from headgate.aws.events.targets import EventBus, Target, Topic
from headgate.aws.function_home import prepare_home
from headgate.aws.function_settings import EventSettings, read_event_settings, read_settings
from headgate.bootstrap.key_check import check_function_keys
from headgate.bootstrap.store import AppService, OpenedStore, open_store
from headgate.clock import Clock, SystemClock
from headgate.durable.bus.event_log import EventLog
from headgate.durable.sdk.app import App
from headgate.pipelines.lifecycle.aws_errors import aws_request
from headgate.telemetry import configure_logs
from headgate.triggers.aws.clients import AwsClients

_PAGE = 10


class FailedEventQueue:
    """The SQS queue of failed events."""

    def __init__(self, client: Any, url: str) -> None:  # noqa: ANN401 - boto3 has no types here
        self._client = client
        self._url = url

    def put(self, failed: FailedEvent) -> None:
        """Add an event. Raises `TransientError` and `StoreIOError`."""
        with aws_request(f"queue {self._url}"):
            self._client.send_message(QueueUrl=self._url, MessageBody=msgspec.json.encode(failed).decode())

    def take(self, is_out_of_time: Callable[[], bool]) -> Iterator[tuple[FailedEvent, Callable[[], None]]]:
        """Yield the events that wait, each with what deletes it; those not deleted are visible again later."""
        while not is_out_of_time():
            with aws_request(f"queue {self._url}"):
                answer = self._client.receive_message(QueueUrl=self._url, MaxNumberOfMessages=_PAGE)
            messages = answer.get("Messages", [])
            if not messages:
                return
            for message in messages:
                failed = typed_decode.from_json(message["Body"], FailedEvent)
                yield failed, functools.partial(self._delete, message["ReceiptHandle"])

    def _delete(self, handle: str) -> None:
        with aws_request(f"queue {self._url}"):
            self._client.delete_message(QueueUrl=self._url, ReceiptHandle=handle)


class EventContainer:
    """The opened store, and one method per function."""

    def __init__(self, opened: OpenedStore, clients: AwsClients, functions: EventSettings, clock: Clock) -> None:
        self.opened = opened
        self.clients = clients
        # Only its bus is used; it runs no workflow.
        self.service = AppService(App("headgate"), opened, clock)
        self._failed = FailedEventQueue(clients.client("sqs"), functions.failed_events_url)
        targets: list[Target] = []
        if functions.event_topic_arn:
            targets.append(Topic(clients.client("sns"), functions.event_topic_arn))
        if functions.event_bus_name:
            targets.append(EventBus(clients.client("events"), functions.event_bus_name, functions.event_source))
        self.sink = EventSink(targets, self._failed, clock, opened.spill.restore_change)
        self._log = EventLog(opened.store, clock)

    def redrive(self, is_out_of_time: Callable[[], bool]) -> RedriveResult:
        """Publish failed events again. Raises `TransientError` and `StoreIOError`."""
        return redrive(self._failed.take(is_out_of_time), self._log, self.sink)

    def receive(self, entry: Mapping[str, Any]) -> str:
        """Put an entry of EventBridge on the bus, and return the stored id. Raises `InvalidPayloadError`."""
        return self.service.bus.emit(event_of(entry))

    def close(self) -> None:
        """Close all connections."""
        self.clients.close()
        self.opened.store.close()


@functools.cache
def event_container() -> EventContainer:
    """Return the container of this process, opened from its environment.

    Raises `SettingsError`; the next invocation tries again.
    """
    # The entry point of the process: only here the environment is read.
    environ = dict(os.environ)  # noqa: TID251
    log = read_settings(environ).log
    configure_logs(style=log.format, level=log.level)
    return open_event_container(environ, SystemClock())


def open_event_container(environ: Mapping[str, str], clock: Clock) -> EventContainer:
    """Open the store and the targets. Raises `SettingsError`, and `TransientError` for an unreachable secret."""
    functions, settings = read_event_settings(environ), read_settings(environ)
    clients = AwsClients(region=settings.store.aws_region, endpoint_url=settings.store.aws_endpoint_url)
    prepare_home(settings, clients, keys_secret_arn=functions.keys_secret_arn)
    opened = open_store(settings, clock)
    if functions.keys_secret_arn:
        check_function_keys(opened)
    return EventContainer(opened, clients, functions, clock)
