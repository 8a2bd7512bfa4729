"""Starts: the writes that start an execution, for a client, a parent, a schedule or an event."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence
from typing import Any, Final

from msgspec import Raw, Struct

from headgate.durable.model.history import NULL, Started, Status, dump_event
from headgate.durable.model.payload import Signature, digest, encode
from headgate.durable.model.records import Execution, Timer, instant, message, timer_id
from headgate.durable.model.retry import Retry
from headgate.errors import AlreadyStartedError, InvalidPayloadError
from headgate.store.model.conditions import absent
from headgate.store.model.requests import Write

# Timers of the engine itself have numbers that no command has.
START_SEQ: Final = 0
TIMEOUT_SEQ: Final = -1
RETRY_SEQ: Final = -2
# They belong to the execution, whatever its current run.
ANY_RUN: Final = 0


class Reuse(enum.StrEnum):
    """What a start does if an execution of this id exists already."""

    # Return the existing one, open or closed. An event that is delivered twice starts nothing twice.
    NEVER = "never"
    # Start again if it is closed and did not succeed.
    FAILED = "failed"
    # Start again if it is closed.
    CLOSED = "closed"
    # Start again, and terminate it if it is open.
    TERMINATE = "terminate"


class StartRequest(Struct, frozen=True, kw_only=True):
    """A request to start an execution."""

    execution_id: str
    workflow: str
    input: Raw
    tags: dict[str, str] = {}
    memo: Raw = NULL
    timeout_seconds: float | None = None
    retention_seconds: float | None = None
    delay_seconds: float | None = None
    # In place of the retry policy that the workflow declares.
    retry: Retry | None = None
    tells_end: bool = False
    headers: dict[str, str] | None = None
    parent_id: str | None = None
    parent_seq: int | None = None
    parent_run: int | None = None
    # The build that the execution is pinned to from its start.
    pinned_build: str = ""
    traceparent: str = ""


def start_writes(
    request: StartRequest, now_ms: int, unique: str, earlier: Execution | None = None
) -> tuple[Execution, list[Write]]:
    """Return the new execution and the writes of the transaction that starts it.

    With `earlier`, the closed execution of this id, the new one replaces it as the next run. The store refuses the
    first write if the id is taken.
    """
    begins_ms = now_ms + round(1000 * (request.delay_seconds or 0))
    run = 1 if earlier is None else earlier.run + 1
    turn = 0 if earlier is None else earlier.turn
    timeout_at_ms = None if request.timeout_seconds is None else begins_ms + round(1000 * request.timeout_seconds)
    memo = bytes(request.memo).decode()
    started = Started(
        workflow=request.workflow,
        input=request.input,
        run=run,
        parent_id=request.parent_id,
        parent_seq=request.parent_seq,
        timeout_at_ms=timeout_at_ms,
        memo=request.memo,
        seed=unique,
        headers=request.headers or None,
        retry=request.retry,
    )
    execution = Execution(
        execution_id=request.execution_id,
        workflow=request.workflow,
        status=Status.RUNNING,
        started_at=instant(now_ms),
        version=1 if earlier is None else earlier.version + 1,
        first_run=run,
        run=run,
        turn=turn,
        first_turn=turn + 1,
        input_digest=digest(request.input),
        parent_id=request.parent_id,
        parent_seq=request.parent_seq,
        parent_run=request.parent_run,
        build=request.pinned_build,
        is_pinned=bool(request.pinned_build),
        tags=request.tags,
        memo=None if memo == "null" else memo,
        traceparent=request.traceparent,
        timeout_at_ms=timeout_at_ms,
        retry=None if request.retry is None else request.retry.dump(),
        retention_seconds=request.retention_seconds,
        tells_end=request.tells_end,
        archive=None if earlier is None else earlier.archive,
        archived_through=0 if earlier is None else earlier.archived_through,
    )
    first = execution.put(absent()) if earlier is None else execution.replacing(earlier.version)
    writes: list[Write] = [first]
    if begins_ms > now_ms:
        timer = timer_id(request.execution_id, ANY_RUN, START_SEQ)
        event = dump_event(started)
        writes.append(Timer(timer, request.execution_id, ANY_RUN, START_SEQ, begins_ms, event=event).put())
    else:
        writes.append(message(request.execution_id, started, now_ms, unique, run=run).put())
    return execution, writes


def satisfies(reuse: Reuse, current: Execution, request: StartRequest) -> bool:
    """Whether the existing execution satisfies a request. If not, a new run is to be started.

    Raises `AlreadyStartedError` if neither is allowed.
    """
    closed = current.status.is_closed
    if reuse is Reuse.TERMINATE or (closed and reuse is Reuse.CLOSED):
        return False
    if closed and reuse is Reuse.FAILED and current.status is not Status.SUCCEEDED:
        return False
    requested = digest(request.input)
    if current.workflow == request.workflow and current.input_digest == requested:
        return True
    raise AlreadyStartedError(
        f"execution {request.execution_id}: it exists ({current.workflow}, {current.status.value}) with input digest "
        f"{current.input_digest}, and {request.workflow} was requested with {requested}; "
        "use another id or a reuse policy",
        current={"execution_id": current.execution_id, "status": current.status.value},
    )


def is_same_input(signature: Signature, one: Raw, other: Raw) -> bool:
    """Whether a workflow of this signature gets the same arguments from both inputs."""
    try:
        first, second = [_with_defaults(signature.unpack(each, what="input")) for each in (one, other)]
        return digest(encode(first, what="input")) == digest(encode(second, what="input"))
    except InvalidPayloadError:
        return False


def _with_defaults(value: Any) -> Any:  # noqa: ANN401 - of any annotated type
    """Return a value as plain data with all fields: the JSON of a dataclass omits its defaults."""
    if isinstance(value, Struct):
        return {name: _with_defaults(getattr(value, name)) for name in value.__struct_fields__}
    if dataclasses.is_dataclass(value):
        return {field.name: _with_defaults(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {name: _with_defaults(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_with_defaults(each) for each in value]
    return value


def same_parent(current: Execution, request: StartRequest) -> bool:
    """Whether the existing execution is the child of this very request, started by an earlier attempt."""
    requested: Sequence[object] = (request.parent_id, request.parent_run, request.parent_seq)
    return requested == (current.parent_id, current.parent_run, current.parent_seq)
