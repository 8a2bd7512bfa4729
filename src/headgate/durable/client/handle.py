"""Handle: reads and controls one execution from outside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Raw

from headgate.durable.model import payload
from headgate.durable.model.failures import ErrorInfo, ExecutionFailure, UpdateFailure, with_cause
from headgate.durable.model.history import AnswerUpdate, Status
from headgate.durable.model.records import Execution
from headgate.durable.replay.query_replay import QUERY_SECONDS

if TYPE_CHECKING:
    from headgate.durable.client.client import Client

_error_decoder: Final = msgspec.json.Decoder(ErrorInfo)


class Handle:
    """One execution, as a caller outside of it reads and controls it."""

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

    def result(self, timeout_seconds: float | None = None) -> Any:  # noqa: ANN401 - what the workflow returned
        """Wait for the end and return the result.

        Raises `ExecutionFailure` if the execution did not succeed, and `TimeoutError` if it has not ended in time.
        """
        row = self._client.wait(self.id, timeout_seconds)
        if row.status is not Status.SUCCEEDED:
            raise failure_of(row)
        return payload.decode(Raw((row.result or "null").encode()), self._returns, what=f"result of {self.id}")

    def signal(self, name: str, value: Any = None, *, id: str | None = None) -> None:  # noqa: ANN401
        """Send a signal. `id` is an idempotency key: a signal of the same id is received once."""
        self._client.signal(self.id, name, payload.encode(value, what=f"payload of signal {name}"), signal_id=id)

    def query(self, name: str, input: Any = None, returns: Any = Any, *, timeout_seconds: float = QUERY_SECONDS) -> Any:  # noqa: ANN401
        """Return the answer of a query handler. Raises `QueryTimeoutError` if it takes too long."""
        raw = payload.encode(input, what=f"input of query {name}")
        answer = self._client.query(self.id, name, raw, timeout_seconds=timeout_seconds)
        return payload.decode(answer, returns, what=f"answer of query {name}")

    def update(self, name: str, input: Any = None, *, timeout_seconds: float = 30.0, returns: Any = Any) -> Any:  # noqa: ANN401
        """Send an update, and return the answer of its handler.

        Raises `UpdateFailure` if it is rejected or fails, and `TimeoutError` if it is not answered in time.
        """
        raw = payload.encode(input, what=f"input of update {name}")
        answer = self._client.update(self.id, name, raw, timeout_seconds=timeout_seconds)
        return payload.decode(answer, returns, what=f"answer of update {name}")

    def cancel(self, reason: str = "") -> None:
        """Request cancellation; the workflow may clean up, or ignore it."""
        self._client.cancel(self.id, reason)

    def terminate(self, reason: str = "") -> None:
        """End the execution without running its code."""
        self._client.terminate(self.id, reason)

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
