"""Messaging actions: SNS, SQS and EventBridge calls, published as events on Headgate's bus.

A bus subscription takes the place of an SNS subscriber, an SQS consumer or an EventBridge rule. Event ids derive from
the activity's id, so a retry publishes nothing twice.
"""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from headgate.asl.errors import StateError, runtime_error
from headgate.asl.expressions.formats import parse_timestamp
from headgate.asl.expressions.scope import Json
from headgate.asl.tasks.actions import CallParameters
from headgate.durable.bus.bus import Bus
from headgate.durable.bus.events import TYPE_LENGTH_MAX, UNTIMED, Event
from headgate.durable.model.names import BUILT_IN, is_built_in
from headgate.durable.sdk.activity_context import ActivityContext
from headgate.errors import InvalidPayloadError, PayloadTooLargeError

NOTIFICATION: Final = "headgate.notification"
MESSAGE: Final = "headgate.message"
SOURCE: Final = "/headgate/asl"
# The limit of EventBridge.
ENTRIES_MAX: Final = 10
_NOT_IN_TYPE: Final = re.compile("[*\x00-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
_NOT_IN_SOURCE: Final = re.compile(r"""[\s<>"{}|\\^`\x00-\x1f\x7f]""")
_DATA_TYPES: Final = ("String", "Number", "Binary", "String.Array")
_INVALID: Final = (InvalidPayloadError, PayloadTooLargeError)


class _Malformed(Exception):
    """An invalid entry, with EventBridge's error code and message."""

    def __init__(self, code: str, fact: str) -> None:
        super().__init__(code, fact)
        self.code = code
        self.fact = fact


class BusCalls:
    """Runs SNS, SQS and EventBridge actions on the bus."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    def publish(self, parameters: CallParameters, context: ActivityContext) -> Json:
        """Publish to a topic and return the message id. Raises `StateError`."""
        parameters.allow(
            ("TopicArn", "TargetArn", "Message", "Subject", "MessageAttributes", "MessageGroupId",
             "MessageDeduplicationId")
        )  # fmt: skip
        arn = parameters.find("TopicArn", str) or parameters.find("TargetArn", str)
        if arn is None:
            raise runtime_error(f"The field 'TopicArn' of {parameters.resource} is required but was missing")
        data = {"topic": arn, "message": parameters.raw("Message"), "attributes": _message_attributes(parameters)}
        for field, name in (("Subject", "subject"), ("MessageGroupId", "group")):
            if (text := parameters.find(field, str)) is not None:
                data[name] = text
        return {
            "MessageId": self._emit(
                NOTIFICATION, _last_part(arn), data, parameters, context, "SNS.InvalidParameterException"
            )
        }

    def send_message(self, parameters: CallParameters, context: ActivityContext) -> Json:
        """Send a message to a queue and return its id. Raises `StateError`."""
        parameters.allow(("QueueUrl", "MessageBody", "MessageAttributes", "MessageGroupId", "MessageDeduplicationId"))
        url, body = parameters.get("QueueUrl", str), parameters.raw("MessageBody")
        data = {"queue": url, "message": body, "attributes": _message_attributes(parameters)}
        if (group := parameters.find("MessageGroupId", str)) is not None:
            data["group"] = group
        message_id = self._emit(
            MESSAGE, _last_part(url), data, parameters, context, "SQS.InvalidMessageContentsException"
        )
        text = body if isinstance(body, str) else msgspec.json.encode(body).decode()
        digest = hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
        return {"MD5OfMessageBody": digest, "MessageId": message_id}

    def _emit(
        self, type: str, subject: str, data: Json, parameters: CallParameters, context: ActivityContext, invalid: str
    ) -> str:
        # With a deduplication id, the same message from another Task is a duplicate.
        own_id = parameters.find("MessageDeduplicationId", str)
        source, id = (
            (SOURCE, context.activity_id) if own_id is None else (f"{SOURCE}/{type}/{_quoted(subject)}", own_id)
        )
        extensions = _extensions(context)
        try:
            return self._bus.emit(
                Event(type=type, source=source, id=id, subject=subject, data=data, extensions=extensions)
            )
        except _INVALID as exc:
            raise StateError(invalid, str(exc)) from exc

    def put_events(self, parameters: CallParameters, context: ActivityContext, *, raises: bool) -> Json:
        """Publish each entry as an event, and return their ids.

        As with EventBridge, an invalid entry does not block the others; with `raises`, the Task then fails with
        EventBridge.FailedEntry.
        """
        parameters.allow(("Entries", "EndpointId"))
        entries = parameters.get("Entries", list)
        if not 1 <= len(entries) <= ENTRIES_MAX:
            raise runtime_error(f"The field 'Entries' of {parameters.resource} must have 1 to {ENTRIES_MAX} elements")
        results = [self._put_event(entry, index, context) for index, entry in enumerate(entries)]
        failed = sum("ErrorCode" in each for each in results)
        response = {"Entries": results, "FailedEntryCount": failed}
        if failed and raises:
            raise StateError("EventBridge.FailedEntry", msgspec.json.encode(response).decode())
        return response

    def _put_event(self, entry: Json, index: int, context: ActivityContext) -> dict[str, str]:
        try:
            event = _event_of(entry, f"{context.activity_id}#{index}", context)
            return {"EventId": self._bus.emit(event)}
        except _Malformed as exc:
            return {"ErrorCode": exc.code, "ErrorMessage": exc.fact}
        except _INVALID as exc:
            return {"ErrorCode": "InvalidArgument", "ErrorMessage": str(exc)}


def _event_of(entry: Json, id: str, context: ActivityContext) -> Event:
    if not isinstance(entry, dict):
        raise _Malformed("InvalidArgument", "An entry must be an object with Source, DetailType and Detail.")
    source, detail_type = _required(entry, "Source"), _required(entry, "DetailType")
    extensions = _extensions(context)
    if isinstance(bus := entry.get("EventBusName"), str) and bus:
        extensions["eventbus"] = bus
    if isinstance(resources := entry.get("Resources"), list) and resources:
        extensions["resources"] = " ".join(map(str, resources))
    type = event_type(detail_type)
    if is_built_in(type):
        raise _Malformed(
            "AccessDeniedException",
            f"DetailType {type[:80]}: types that begin with {BUILT_IN!r} are reserved for Headgate itself.",
        )
    return Event(
        type=type, source=_quoted(source), id=id, time=_time(entry), data=_detail(entry), extensions=extensions
    )


def _required(entry: dict[str, Any], name: str) -> str:
    text = entry.get(name)
    if not isinstance(text, str) or not text.strip():
        raise _Malformed("InvalidArgument", f"Parameter {name} is not valid. Reason: {name} is a required argument.")
    return text


def event_type(detail_type: str) -> str:
    """Return the bus event type of a DetailType; characters that a type cannot have become '_'."""
    return _NOT_IN_TYPE.sub("_", detail_type.strip())[:TYPE_LENGTH_MAX].strip()


def _detail(entry: dict[str, Any]) -> Json:
    detail = entry.get("Detail", {})
    if isinstance(detail, str):
        try:
            detail = msgspec.json.decode(detail)
        except msgspec.DecodeError as exc:
            raise _Malformed("MalformedDetail", f"Detail is malformed: {exc}") from exc
    if not isinstance(detail, dict):
        raise _Malformed("MalformedDetail", "Detail is malformed: it must be a JSON object.")
    return detail


def _time(entry: dict[str, Any]) -> datetime:
    if (text := entry.get("Time")) is None:
        return UNTIMED
    at_ms = parse_timestamp(text)
    if at_ms is None:
        raise _Malformed("InvalidArgument", "Parameter Time is not valid. Reason: write 2026-01-31T12:00:00Z.")
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def _message_attributes(parameters: CallParameters) -> dict[str, Json]:
    found: dict[str, Json] = {}
    for name, attribute in (parameters.find("MessageAttributes", dict) or {}).items():
        value = attribute.get("StringValue", attribute.get("BinaryValue")) if isinstance(attribute, dict) else None
        if not isinstance(value, str) or attribute.get("DataType") not in _DATA_TYPES:
            raise runtime_error(
                f"The message attribute {name!r} of {parameters.resource} must have a StringValue or BinaryValue, "
                f"and a DataType of {', '.join(_DATA_TYPES)}"
            )
        found[name] = value
    return found


def _extensions(context: ActivityContext) -> dict[str, str]:
    return {"executionid": context.execution_id}


def _last_part(name: str) -> str:
    """Return the last part of an ARN or URL."""
    return re.split("[:/]", name.rstrip(":/"))[-1]


def _quoted(text: str) -> str:
    return _NOT_IN_SOURCE.sub("_", text.strip())
