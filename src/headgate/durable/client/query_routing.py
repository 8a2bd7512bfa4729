"""Query routing: has a live worker answer a query of a workflow whose code is not loaded here."""

from __future__ import annotations

from msgspec import Raw

from headgate.clock import Clock
from headgate.durable.client.result_waiters import ResultWaiters
from headgate.durable.model.failures import ExecutionFailure, revive
from headgate.durable.model.query_requests import QueryAnswer, answer_of, new_request
from headgate.durable.model.records import Execution
from headgate.errors import QueryTimeoutError
from headgate.ids import IdMaker
from headgate.problem_errors import error_of
from headgate.store.catalogue.tables import INBOXES
from headgate.store.port import Store


class QueryRouter:
    """Sends queries to the workers of a store."""

    def __init__(self, store: Store, clock: Clock, ids: IdMaker, waiters: ResultWaiters) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids
        self._waiters = waiters

    def ask(self, row: Execution, name: str, input: Raw, timeout_seconds: float) -> Raw:
        """Return the answer of a worker. Raises `QueryTimeoutError`, and what the handler raises."""
        request = new_request(
            row.execution_id,
            row.workflow,
            name,
            input,
            unique=self._ids.ulid(),
            now_ms=int(self._clock.seconds() * 1000),
            timeout_seconds=timeout_seconds,
        )
        self._store.batch_write([request.put()])
        # Responders ignore the commits of their own process, which may be this one if it serves several apps.
        self._store.wake()

        def read() -> QueryAnswer | None:
            item = self._store.get(INBOXES, request.answer_key, consistent=True)
            return None if item is None else answer_of(item)

        answer = self._waiters.wait(read, timeout_seconds)
        self._store.delete(INBOXES, INBOXES.key_of(request.put().item) if answer is None else request.answer_key)
        if answer is None:
            raise QueryTimeoutError(
                f"execution {row.execution_id}: no worker has answered query {name} in {timeout_seconds:g} s; see "
                "'headgate worker ls' for those of its app, and try again"
            )
        if answer.code:
            raise error_of(answer.status, answer.code, answer.detail)
        if answer.error is not None:
            raise revive(
                answer.error, otherwise=ExecutionFailure, execution_id=row.execution_id, status=row.status.value
            )
        return answer.result
