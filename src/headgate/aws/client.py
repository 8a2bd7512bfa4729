"""The client on Lambda: starts executions, tells them things and says how they are, for callers who have no server.

An event names an action. Whoever may have called twice gives ids: the same again changes nothing.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw, Struct

from headgate import typed_decode
from headgate.aws.app_container import app_container
from headgate.aws.invocations import Context, Event, answered
from headgate.durable.bus import events
from headgate.durable.model import payload
from headgate.durable.model.starts import Reuse
from headgate.durable.service import Service
from headgate.errors import InvalidPayloadError


class _Asked(Struct, frozen=True, kw_only=True, tag_field="action", tag=str.lower, forbid_unknown_fields=True):
    """What is asked for. The action is the name of the class in lower case."""


class Start(_Asked, frozen=True, kw_only=True):
    """Start an execution."""

    workflow: str
    input: Any = None
    id: str | None = None
    reuse: Reuse = Reuse.NEVER
    tags: dict[str, str] = {}


class Signal(_Asked, frozen=True, kw_only=True):
    """Send a signal."""

    id: str
    name: str
    payload: Any = None
    signal_id: str | None = None


class Cancel(_Asked, frozen=True, kw_only=True):
    """Ask an execution to end."""

    id: str
    reason: str = ""


class Terminate(_Asked, frozen=True, kw_only=True):
    """End an execution without asking its code."""

    id: str
    reason: str = ""


class Redrive(_Asked, frozen=True, kw_only=True):
    """Have an execution that is stuck try again."""

    id: str


class Emit(_Asked, frozen=True, kw_only=True):
    """Put an event on the bus."""

    type: str
    data: Any = None
    id: str = ""
    subject: str = ""


class Show(_Asked, frozen=True, kw_only=True):
    """Say how an execution is."""

    id: str


Asked = Start | Signal | Cancel | Terminate | Redrive | Emit | Show


def client(event: Event, context: Context) -> Event:
    """Do what an event asks for, and answer once that is durable. Raises `InvalidPayloadError` for one that is none."""
    return answered("client", context, lambda: _done(app_container().service, event))


def _done(service: Service, event: Event) -> Event:
    try:
        asked = typed_decode.convert(event, Asked)
    except msgspec.ValidationError as exc:
        raise InvalidPayloadError(
            f"event: {exc}; give an action (start, signal, cancel, terminate, redrive, emit, show) and what it needs"
        ) from exc
    told = service.client
    match asked:
        case Start():
            started = told.start(
                asked.workflow, _raw(asked.input, "input"), execution_id=asked.id, reuse=asked.reuse, tags=asked.tags
            )
            return {"id": started.id, "created": started.was_started}
        case Emit():
            data = _raw(asked.data, "data")
            source = f"/headgate/{service.app.name}"
            emitted = events.Event(id=asked.id, type=asked.type, source=source, subject=asked.subject, data=data)
            return {"id": service.bus.emit(emitted)}
        case Show():
            row = told.get(asked.id)
            result = None if row.result is None else msgspec.json.decode(row.result)
            error = None if row.error is None else msgspec.json.decode(row.error)
            return {"id": row.execution_id, "status": row.status.value, "result": result, "error": error}
        case Signal():
            told.signal(asked.id, asked.name, _raw(asked.payload, "payload"), signal_id=asked.signal_id)
        case Cancel():
            told.cancel(asked.id, asked.reason)
        case Terminate():
            told.terminate(asked.id, asked.reason)
        case Redrive():
            told.redrive(asked.id)
    return {"id": asked.id}


def _raw(value: Any, what: str) -> Raw:  # noqa: ANN401 - whatever JSON holds
    return payload.encode(value, what=what)
