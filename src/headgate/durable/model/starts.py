"""Starts: how an execution comes to be, from a client, a parent, a schedule or an event."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence
from typing import Any, Final

from msgspec import Raw, Struct

from headgate.durable.model.history import NULL, Started, Status, dump_event
from headgate.durable.model.payload import Signature, digest, encode
from headgate.durable.model.records import Execution, Timer, instant, message, timer_id
from headgate.errors import AlreadyStartedError, InvalidPayloadError
from headgate.store.model.conditions import absent
from headgate.store.model.requests import Write

# Timers that are not the workflow's own have numbers that no command has.
START_SEQ: Final = 0
TIMEOUT_SEQ: Final = -1
RETRY_SEQ: Final = -2
# They belong to the execution, whichever run is under way.
ANY_RUN: Final = 0


class Reuse(enum.StrEnum):
    """What to do if there is an execution of this id already, with the same input or another."""

    # Take the one that is there, ended or not. An event that is delivered twice starts nothing twice.
    NEVER = "never"
    # Begin anew if it has ended other than well.
    FAILED = "failed"
    # Begin anew if it has ended.
    CLOSED = "closed"
    # Begin anew, and end the one that is still running.
    TERMINATE = "terminate"


class StartRequest(Struct, frozen=True, kw_only=True):
    """An execution that is wanted."""

    execution_id: str
    workflow: str
    input: Raw
    tags: dict[str, str] = {}
    memo: Raw = NULL
    timeout_seconds: float | None = None
    retention_seconds: float | None = None
    delay_seconds: float | None = None
    tells_end: bool = False
    parent_id: str | None = None
    parent_seq: int | None = None
    parent_run: int | None = None


def start_writes(
    request: StartRequest, now_ms: int, unique: str, earlier: Execution | None = None
) -> tuple[Execution, list[Write]]:
    """Return the new execution and the writes of one transaction that make it.

    With `earlier`, the execution that has ended under this id, the new one takes its place as the next run. The first
    write is the one that is refused if the id is taken.
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
        tags=request.tags,
        memo=None if memo == "null" else memo,
        timeout_at_ms=timeout_at_ms,
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


def takes(reuse: Reuse, current: Execution, request: StartRequest) -> bool:
    """Whether the execution that is there is the one that was asked for. If not, a new run is to begin.

    Raises `AlreadyStartedError` if neither may be.
    """
    closed = current.status.is_closed
    if reuse is Reuse.TERMINATE or (closed and reuse is Reuse.CLOSED):
        return False
    if closed and reuse is Reuse.FAILED and current.status is not Status.SUCCEEDED:
        return False
    asked = digest(request.input)
    if current.workflow == request.workflow and current.input_digest == asked:
        return True
    raise AlreadyStartedError(
        f"execution {request.execution_id}: it exists ({current.workflow}, {current.status.value}) with input digest "
        f"{current.input_digest}, and {request.workflow} was asked for with {asked}; use another id or a reuse policy",
        current={"execution_id": current.execution_id, "status": current.status.value},
    )


def reads_alike(signature: Signature, one: Raw, other: Raw) -> bool:
    """Whether a workflow of this signature is called the same with both inputs."""
    try:
        first, second = [_spelled_out(signature.unpack(each, what="input")) for each in (one, other)]
        return digest(encode(first, what="input")) == digest(encode(second, what="input"))
    except InvalidPayloadError:
        return False


def _spelled_out(value: Any) -> Any:  # noqa: ANN401 - whatever the annotation says
    """Return a value with its defaults: the JSON of a dataclass has only those that it was given."""
    if isinstance(value, Struct):
        return {name: _spelled_out(getattr(value, name)) for name in value.__struct_fields__}
    if dataclasses.is_dataclass(value):
        return {field.name: _spelled_out(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {name: _spelled_out(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_spelled_out(each) for each in value]
    return value


def same_parent(current: Execution, request: StartRequest) -> bool:
    """Whether this is the child that a parent asked for, started by an earlier attempt."""
    asked: Sequence[object] = (request.parent_id, request.parent_run, request.parent_seq)
    return asked == (current.parent_id, current.parent_run, current.parent_seq)
