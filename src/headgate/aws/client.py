"""Client handler: starts, signals, cancels and describes executions for callers without a Headgate server.

An event names an action. With ids in the event, a repeated call has no further effect.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw, Struct

from headgate import typed_decode
from headgate.aws.app_container import app_container
from headgate.aws.invocation import Context, Event, handle
from headgate.durable.bus import events
from headgate.durable.model import payload
from headgate.durable.model.starts import Reuse
from headgate.durable.service import Service
from headgate.errors import InvalidPayloadError


class _Request(Struct, frozen=True, kw_only=True, tag_field="action", tag=str.lower, forbid_unknown_fields=True):
    """Base of the requests. The action is the name of the class in lower case."""


class Start(_Request, frozen=True, kw_only=True):
    """Start an execution."""

    workflow: str
    input: Any = None
    id: str | None = None
    reuse: Reuse = Reuse.NEVER
    tags: dict[str, str] = {}


class Signal(_Request, frozen=True, kw_only=True):
    """Send a signal."""

    id: str
    name: str
    payload: Any = None
    signal_id: str | None = None


class Cancel(_Request, frozen=True, kw_only=True):
    """Request the cancellation of an execution."""

    id: str
    reason: str = ""


class Terminate(_Request, frozen=True, kw_only=True):
    """End an execution without running its code."""

    id: str
    reason: str = ""


class Redrive(_Request, frozen=True, kw_only=True):
    """Retry a stuck execution."""

    id: str


class Emit(_Request, frozen=True, kw_only=True):
    """Put an event on the bus."""

    type: str
    data: Any = None
    id: str = ""
    subject: str = ""


class Show(_Request, frozen=True, kw_only=True):
    """Describe an execution."""

    id: str


ClientRequest = Start | Signal | Cancel | Terminate | Redrive | Emit | Show


def client(event: Event, context: Context) -> Event:
    """Run the action of an event; the response follows the commit. Raises `InvalidPayloadError`."""

    def run() -> Event:
        container = app_container()
        with container.metrics.of("client"):
            return _run(container.service, event)

    return handle("client", context, run)


def _run(service: Service, event: Event) -> Event:
    try:
        request = typed_decode.convert(event, ClientRequest)
    except msgspec.ValidationError as exc:
        raise InvalidPayloadError(
            f"event: {exc}; give an action (start, signal, cancel, terminate, redrive, emit, show) and what it needs"
        ) from exc
    executions = service.client
    match request:
        case Start():
            started = executions.start(
                request.workflow,
                _raw(request.input, "input"),
                execution_id=request.id,
                reuse=request.reuse,
                tags=request.tags,
            )
            return {"id": started.id, "created": started.was_started}
        case Emit():
            data = _raw(request.data, "data")
            source = f"/headgate/{service.app.name}"
            emitted = events.Event(id=request.id, type=request.type, source=source, subject=request.subject, data=data)
            return {"id": service.bus.emit(emitted)}
        case Show():
            row = executions.get(request.id)
            result = None if row.result is None else msgspec.json.decode(row.result)
            error = None if row.error is None else msgspec.json.decode(row.error)
            return {"id": row.execution_id, "status": row.status.value, "result": result, "error": error}
        case Signal():
            executions.signal(request.id, request.name, _raw(request.payload, "payload"), signal_id=request.signal_id)
        case Cancel():
            executions.cancel(request.id, request.reason)
        case Terminate():
            executions.terminate(request.id, request.reason)
        case Redrive():
            executions.redrive(request.id)
    return {"id": request.id}


def _raw(value: Any, what: str) -> Raw:  # noqa: ANN401 - whatever JSON holds
    return payload.encode(value, what=what)
