"""Handle: reads and controls one execution from outside."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, Generic, overload

import msgspec
from msgspec import Raw

from headgate.durable.model import payload
from headgate.durable.model.failures import ErrorInfo, ExecutionFailure, UpdateFailure, with_cause
from headgate.durable.model.history import AnswerUpdate, Status
from headgate.durable.model.interceptors import ClientCall, ClientCallKind, around_client
from headgate.durable.model.message_types import A, Query, R_co, Signal, T, Update, name_of, pack
from headgate.durable.model.records import Execution
from headgate.durable.replay.query_replay import QUERY_SECONDS

if TYPE_CHECKING:
    from headgate.durable.client.client import Client

_error_decoder: Final = msgspec.json.Decoder(ErrorInfo)


class Handle(Generic[R_co]):
    """One execution, as a caller outside of it reads and controls it. `R_co` is what its workflow returns."""

    def __init__(self, client: Client, execution_id: str, *, was_started: bool = False, returns: Any = Any) -> None:  # noqa: ANN401
        self.id = execution_id
        self.was_started = was_started
        self._client = client
        self._returns = returns

    def status(self) -> Status:
        """Return the status of the execution."""
        return self._client.get(self.id).status

    def describe(self) -> Execution:
        """Return the execution's row."""
        return self._client.get(self.id)

    def result(self, timeout_seconds: float | None = None) -> R_co:
        """Wait for the end and return the result.

        Raises `ExecutionFailure` if the execution did not succeed, and `TimeoutError` if it has not ended in time.
        """
        row = self._client.opened(self._client.wait(self.id, timeout_seconds))
        if row.status is not Status.SUCCEEDED:
            raise failure_of(row)
        raw = Raw((row.result or "null").encode())
        result: R_co = payload.decode(raw, self._returns, what=f"result of {self.id}")
        return result

    @overload
    def signal(self, name: Signal[None], /, *, id: str | None = None) -> None: ...

    @overload
    def signal(self, name: Signal[T], value: T, /, *, id: str | None = None) -> None: ...

    @overload
    def signal(self, name: str, value: object = None, *, id: str | None = None) -> None: ...

    def signal(self, name: str | Signal[Any], value: Any = None, *, id: str | None = None) -> None:
        """Send a signal, given by its name or its declaration.

        `id` is an idempotency key: a signal of the same id is received once.
        """
        raw = pack(name, value, what=f"payload of signal {name_of(name)}")
        call = ClientCall(ClientCallKind.SIGNAL, self.id, name_of(name), raw)
        with self._around(call):
            self._client.signal(self.id, name_of(name), call.input, signal_id=id, headers=call.headers)

    @overload
    def query(self, name: Query[None, T], /, *, timeout_seconds: float = ...) -> T: ...

    @overload
    def query(self, name: Query[A, T], input: A, /, *, timeout_seconds: float = ...) -> T: ...

    @overload
    def query(self, name: str, input: object = ..., *, returns: type[T], timeout_seconds: float = ...) -> T: ...

    @overload
    def query(self, name: str, input: object = ..., returns: object = ..., *, timeout_seconds: float = ...) -> Any: ...  # noqa: ANN401 - the type is not known

    def query(
        self,
        name: str | Query[Any, Any],
        input: Any = None,
        returns: Any = Any,
        *,
        timeout_seconds: float = QUERY_SECONDS,
    ) -> Any:
        """Return the answer of a query handler, decoded by its declaration or as `returns`.

        Raises `QueryTimeoutError` if it takes too long.
        """
        label = name_of(name)
        raw = pack(name, input, what=f"input of query {label}")
        call = ClientCall(ClientCallKind.QUERY, self.id, label, raw)
        with self._around(call):
            answer = self._client.query(self.id, label, call.input, timeout_seconds=timeout_seconds)
        returns = returns if isinstance(name, str) else name.returns
        return payload.decode(answer, returns, what=f"answer of query {label}")

    @overload
    def update(self, name: Update[None, T], /, *, timeout_seconds: float = ...) -> T: ...

    @overload
    def update(self, name: Update[A, T], input: A, /, *, timeout_seconds: float = ...) -> T: ...

    @overload
    def update(self, name: str, input: object = ..., *, timeout_seconds: float = ..., returns: type[T]) -> T: ...

    @overload
    def update(self, name: str, input: object = ..., *, timeout_seconds: float = ..., returns: object = ...) -> Any: ...  # noqa: ANN401 - the type is not known

    def update(
        self, name: str | Update[Any, Any], input: Any = None, *, timeout_seconds: float = 30.0, returns: Any = Any
    ) -> Any:
        """Send an update, and return the answer of its handler, decoded by its declaration or as `returns`.

        Raises `UpdateFailure` if it is rejected or fails, and `TimeoutError` if it is not answered in time.
        """
        label = name_of(name)
        raw = pack(name, input, what=f"input of update {label}")
        call = ClientCall(ClientCallKind.UPDATE, self.id, label, raw)
        with self._around(call):
            answer = self._client.update(self.id, label, call.input, timeout_seconds=timeout_seconds)
        returns = returns if isinstance(name, str) else name.returns
        return payload.decode(answer, returns, what=f"answer of update {label}")

    def cancel(self, reason: str = "") -> None:
        """Request cancellation; the workflow may clean up, or ignore it."""
        with self._around(ClientCall(ClientCallKind.CANCEL, self.id)):
            self._client.cancel(self.id, reason)

    def terminate(self, reason: str = "") -> None:
        """End the execution without running its code."""
        with self._around(ClientCall(ClientCallKind.TERMINATE, self.id)):
            self._client.terminate(self.id, reason)

    def _around(self, call: ClientCall) -> AbstractContextManager[object]:
        return around_client(self._client.interceptors, call)

    def __repr__(self) -> str:
        return f"<execution {self.id}>"


def failure_of(row: Execution) -> ExecutionFailure:
    """Return the error of an execution that did not succeed."""
    info = (
        _error_decoder.decode(row.error)
        if row.error is not None
        else ErrorInfo(type=row.status.value, message=f"ended {row.status.value}")
    )
    return with_cause(ExecutionFailure(info, execution_id=row.execution_id, status=row.status.value))


def update_failure(answer: AnswerUpdate, name: str, execution_id: str) -> UpdateFailure:
    """Return the error of an update that was rejected or failed."""
    assert answer.error is not None
    failure = UpdateFailure(answer.error, execution_id=execution_id, update=name, is_refused=answer.rejected)
    return with_cause(failure)
