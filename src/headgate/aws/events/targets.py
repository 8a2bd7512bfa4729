"""Event targets: the SNS topic and the EventBridge bus that events are published to, in batches."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec
from msgspec import Struct

from headgate.durable.bus.event_log import StoredEvent
from headgate.durable.bus.events import Event
from headgate.durable.model.names import is_built_in
from headgate.health.model.events import SOURCE as HEALTH
from headgate.pipelines.events.outbox import SOURCE as PIPELINES
from headgate.pipelines.lifecycle.aws_errors import aws_request

# Limits of one call of PutEvents and of PublishBatch, and of one event in it.
BATCH_MAX: Final = 10
BATCH_BYTES_MAX: Final = 256_000
DETAIL_TYPE_MAX: Final = 128
# The members of an entry beside its content.
_ENTRY_BYTES: Final = 2_000
# Refusals of single events that a retry may change.
_PASSING: Final = frozenset(
    {"InternalFailure", "InternalException", "InternalError", "ThrottlingException", "ThrottledException", "Throttled"}
)
# The extension of events that came from a bus: they are not published again.
ORIGIN: Final = "headgateorigin"


class TargetName(enum.StrEnum):
    """The kind of a target."""

    TOPIC = "topic"
    BUS = "bus"


class Refusal(Struct, frozen=True):
    """Why an event was not accepted, and whether a later attempt may succeed."""

    reason: str
    is_passing: bool


class Target(Protocol):
    """Where events are published."""

    name: TargetName

    def wants(self, event: Event) -> bool:
        """Whether an event is published here."""

    def publish(self, events: Sequence[StoredEvent]) -> dict[str, Refusal]:
        """Publish events in order. Returns the refusals by event id.

        Raises `TransientError`, and `StoreIOError` if the target is missing or may not be used.
        """


class Topic:
    """An SNS topic. A message is the data of an event: the contract of seed events has `event_type` in it.

    A FIFO topic gets the messages of a subject as one group, without duplicates.
    """

    name = TargetName.TOPIC

    def __init__(self, client: Any, topic_arn: str) -> None:  # noqa: ANN401 - boto3 has no types here
        self._client = client
        self._topic_arn = topic_arn

    def wants(self, event: Event) -> bool:
        """Whether an event is one of health or of pipelines."""
        return is_built_in(event.type) and event.source in (HEALTH, PIPELINES)

    def publish(self, events: Sequence[StoredEvent]) -> dict[str, Refusal]:
        entries = {each.event_id: self._entry(each) for each in events}
        refused = {name: _TOO_LARGE for name, entry in entries.items() if _bytes(entry["Message"]) > BATCH_BYTES_MAX}
        for batch in _batches({name: entry for name, entry in entries.items() if name not in refused}, "Message"):
            with aws_request(f"topic {self._topic_arn}"):
                answer = self._client.publish_batch(TopicArn=self._topic_arn, PublishBatchRequestEntries=batch)
            for failed in answer.get("Failed", []):
                code = failed.get("Code", "")
                is_passing = not failed.get("SenderFault") or code in _PASSING
                refused[failed["Id"]] = Refusal(f"{code}: {failed.get('Message', '')}", is_passing)
        return refused

    def _entry(self, stored: StoredEvent) -> dict[str, Any]:
        event = stored.event
        fifo = {}
        if self._topic_arn.endswith(".fifo"):
            fifo = {"MessageGroupId": (event.subject or event.type)[:128], "MessageDeduplicationId": stored.event_id}
        return {
            "Id": stored.event_id,
            "Message": msgspec.json.encode(event.data).decode(),
            "MessageAttributes": {
                "event_type": {"DataType": "String", "StringValue": detail_type(event)},
                "event_id": {"DataType": "String", "StringValue": stored.event_id},
            },
            **fifo,
        }


class EventBus:
    """An EventBridge bus. The detail of an entry is the whole event as structured JSON, a CloudEvent.

    The source of an entry names this deployment: its own rules skip it, and rules to other buses take nothing else.
    """

    name = TargetName.BUS

    def __init__(self, client: Any, bus_name: str, source: str) -> None:  # noqa: ANN401
        self._client = client
        self._bus_name = bus_name
        self._source = source

    def wants(self, event: Event) -> bool:
        """Whether an event did not come from a bus."""
        return ORIGIN not in event.extensions

    def publish(self, events: Sequence[StoredEvent]) -> dict[str, Refusal]:
        entries = {each.event_id: self._entry(each) for each in events}
        refused = {name: _TOO_LARGE for name, entry in entries.items() if _bytes(entry["Detail"]) > BATCH_BYTES_MAX}
        kept = {name: entry for name, entry in entries.items() if name not in refused}
        names = iter(kept)
        for batch in _batches(kept, "Detail"):
            with aws_request(f"event bus {self._bus_name}"):
                answer = self._client.put_events(Entries=batch)
            # The results first: once they end, no further name is taken.
            for result, name in zip(answer["Entries"], names, strict=False):
                code = result.get("ErrorCode")
                if code:
                    refused[name] = Refusal(f"{code}: {result.get('ErrorMessage', '')}", code in _PASSING)
        return refused

    def _entry(self, stored: StoredEvent) -> dict[str, Any]:
        event = stored.event
        return {
            "Time": event.time,
            "Source": self._source,
            "DetailType": detail_type(event),
            "Detail": stored.body,
            "Resources": [],
            "EventBusName": self._bus_name,
        }


_TOO_LARGE: Final = Refusal(f"larger than the {BATCH_BYTES_MAX:,} bytes of a message", is_passing=False)


def detail_type(event: Event) -> str:
    """Return the name of an event outside: its type, or that of its contract for an event of Headgate's own."""
    contract = event.data.get("event_type") if is_built_in(event.type) and isinstance(event.data, Mapping) else None
    return (contract if isinstance(contract, str) and contract else event.type)[:DETAIL_TYPE_MAX]


def _batches(entries: Mapping[str, dict[str, Any]], content: str) -> Iterator[list[dict[str, Any]]]:
    """Yield the entries in order, as many at once as one call takes."""
    batch: list[dict[str, Any]] = []
    size = 0
    for entry in entries.values():
        entry_bytes = _bytes(entry[content]) + _ENTRY_BYTES
        if batch and (len(batch) == BATCH_MAX or size + entry_bytes > BATCH_BYTES_MAX):
            yield batch
            batch, size = [], 0
        batch.append(entry)
        size += entry_bytes
    if batch:
        yield batch


def _bytes(text: str) -> int:
    return len(text.encode())
