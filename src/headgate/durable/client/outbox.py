"""Message sender: puts messages into the inboxes of open executions, each signal id once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Raw

from headgate.clock import Clock
from headgate.durable.client.sealing import Sealing
from headgate.durable.model import payload
from headgate.durable.model.history import Event, Signal, UpdateRequested
from headgate.durable.model.names import (
    check_execution_id,
    check_headers,
    check_signal_id,
    check_signal_name,
    is_built_in,
)
from headgate.durable.model.observer import DurableObserver
from headgate.durable.model.records import OPEN, SEEN, Execution, execution_of, message
from headgate.errors import (
    ConflictError,
    ExecutionClosedError,
    InvalidPayloadError,
    NotFoundError,
    OutcomeUnknownError,
    PayloadTooLargeError,
)
from headgate.ids import IdMaker
from headgate.store.catalogue.tables import EXECUTIONS, INBOXES
from headgate.store.model.conditions import absent, all_of, equals
from headgate.store.model.requests import Check, Put, Write
from headgate.store.model.schema import Key
from headgate.store.port import Store
from headgate.telemetry import traceparent

# Signals and updates have idempotency keys of their own.
_SIGNAL: Final = "#"
_UPDATE: Final = "u#"


class MessageSender:
    """Sends messages to the executions of one store."""

    def __init__(self, store: Store, clock: Clock, ids: IdMaker, observer: DurableObserver, sealing: Sealing) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids
        self._observer = observer
        self._sealing = sealing

    def get(self, execution_id: str) -> Execution:
        """Return an execution. Raises `NotFoundError`."""
        item = self._store.get(EXECUTIONS, Key(check_execution_id(execution_id, derived=True)), consistent=True)
        if item is None:
            raise _unknown(execution_id)
        return execution_of(item)

    def send(self, execution_id: str, event: Event, *, is_internal: bool = True, is_once: bool = False) -> None:
        """Put an event into an execution's inbox. A signal with an id that was sent before changes nothing.

        With `is_once`, neither does an update with such an id.

        Raises `NotFoundError`, and `ExecutionClosedError` if the execution has ended and was not sent this signal. A
        message that is not internal raises `InvalidPayloadError` if the workflow is built in.
        """
        row = self.get(execution_id)
        if not is_internal and is_built_in(row.workflow):
            raise InvalidPayloadError(
                f"execution {execution_id}: its workflow {row.workflow} is part of Headgate and takes no messages from "
                "outside; complete a Task with its token: 'headgate asl task succeed'"
            )
        # Bound to this life of the id: a message that is not consumed before the end must not reach the next life.
        first_run = row.first_run
        now_ms = int(self._clock.seconds() * 1000)
        sealed = self._sealing.message(row, event)
        stored = message(execution_id, sealed, now_ms, self._ids.ulid(), first_run=first_run, traceparent=traceparent())
        is_open = all_of(OPEN, equals("first_run", first_run))
        writes: list[Write] = [Check(EXECUTIONS, Key(execution_id), is_open), stored.put()]
        key = _key_of(event, is_once=is_once)
        if key:
            writes.append(Put(INBOXES, _received_row(execution_id, first_run, key), absent()))
        try:
            self._store.transact(writes)
        except OutcomeUnknownError:
            raise
        except ConflictError as exc:
            if 0 not in exc.failures:
                return  # The signal of this id was sent before.
            if exc.failures[0] is None:
                raise _unknown(execution_id) from None
            row = execution_of(exc.failures[0])
            if not row.status.is_closed:
                # Started again under the same id between the read and the write.
                self.send(execution_id, event, is_internal=is_internal, is_once=is_once)
                return
            if key and self._was_received(row, key):
                return  # It was sent before the end; this is a retry of the call.
            raise ExecutionClosedError(
                f"execution {execution_id}: it has ended ({row.status.value}) and takes no more messages; start a new "
                "one"
            ) from None
        self._observer.on_message_stored(execution_id)

    def was_sent(self, row: Execution, signal_id: str) -> bool:
        """Whether this life of an execution was sent the signal of this id."""
        return self._was_received(row, f"{_SIGNAL}{signal_id}")

    def _was_received(self, row: Execution, key: str) -> bool:
        item = _received_row(row.execution_id, row.first_run, key)
        return self._store.get(INBOXES, INBOXES.key_of(item), consistent=True) is not None


def signal_of(name: str, value: Raw, signal_id: str | None, headers: Mapping[str, str] | None = None) -> Signal:
    """Return a signal event. Raises `InvalidIdError`, `PayloadTooLargeError`."""
    check_size(value, f"payload of signal {name}")
    key = "" if signal_id is None else check_signal_id(signal_id)
    return Signal(check_signal_name(name), value, id=key, headers=check_headers(headers) if headers else None)


def received_row(execution_id: str, first_run: int, signal_id: str) -> dict[str, str]:
    """Return the row that records that this life of an execution was sent the signal of this id."""
    return _received_row(execution_id, first_run, f"{_SIGNAL}{signal_id}")


def _received_row(execution_id: str, first_run: int, key: str) -> dict[str, str]:
    return {"execution_id": execution_id, "message_id": f"{SEEN}{first_run}{key}"}


def _key_of(event: Event, *, is_once: bool) -> str:
    """Return the idempotency key of an event, with the prefix of its kind; empty if it has none."""
    if isinstance(event, Signal) and event.id:
        return f"{_SIGNAL}{event.id}"
    return f"{_UPDATE}{event.id}" if isinstance(event, UpdateRequested) and is_once else ""


def check_size(value: Raw, what: str) -> None:
    """Raise `PayloadTooLargeError` if a payload is over the size limit."""
    size = len(bytes(value))
    if size > payload.BYTES_MAX:
        raise PayloadTooLargeError(f"{what}: {size:,} bytes; at most {payload.BYTES_MAX:,}; pass a reference instead")


def _unknown(execution_id: str) -> NotFoundError:
    return NotFoundError(f"execution {execution_id}: there is none of this id; see 'headgate execution ls'")
