"""Waiting API: wait for results, queries and updates of executions, and stream their changes.

Waiting holds no thread. Queries run user code in the pool, behind a concurrency gate.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from litestar import Response
from msgspec import Raw

from headgate.durable.model import duration
from headgate.durable.model.failures import describe
from headgate.durable.model.history import AnswerUpdate, Status
from headgate.durable.model.records import Execution
from headgate.durable.replay.query_replay import QUERY_SECONDS
from headgate.durable.service import Service
from headgate.errors import ExecutionClosedError, HeadgateError, UserError
from headgate.serve.http.operations import Answer, Call, NoQuery, Operation
from headgate.serve.http.problem import Problem, response, retry_after
from headgate.serve.http.raw_json import checked, error_view, idempotency_key
from headgate.serve.http.sse import ALIVE, ALIVE_SECONDS, MEDIA_TYPE, OPENING, message, stream, stream_seconds
from headgate.serve.rest.durable.models import (
    AnswerView,
    Ask,
    AskUpdate,
    ExecutionSummary,
    ResultQuery,
    ResultView,
    StreamQuery,
    UpdateView,
    path_of,
    result_view,
    summary,
)
from headgate.serve.runtime.concurrency_gate import ConcurrencyGate
from headgate.serve.runtime.thread_pool import WorkPool
from headgate.serve.runtime.watch_hub import WatchHub

WAIT_SECONDS_MAX: Final = 60.0
QUERIES_MAX: Final = 8
QUERY_WAIT_SECONDS: Final = 1.0
# Poll interval without a commit notification.
_POLL_SECONDS: Final = 0.5


def wait_operations(service: Service, pool: WorkPool, watches: WatchHub) -> list[Operation]:
    """Return the operations that wait."""
    waits = _Waits(service, pool, watches)
    one = "/executions/{id}"
    return [
        Operation(
            "GET",
            f"{one}/result",
            "Wait for the result",
            waits.result,
            {200: ResultView, 202: ResultView},
            query=ResultQuery,
        ),
        Operation("POST", f"{one}/queries", "Query an execution", waits.query, {200: AnswerView}, body=Ask),
        Operation(
            "POST",
            f"{one}/updates",
            "Update an execution and wait for the answer",
            waits.update,
            {200: UpdateView, 202: UpdateView},
            body=AskUpdate,
        ),
        Operation(
            "GET",
            f"{one}/updates/{{update_id}}",
            "Get the answer of an update",
            waits.answer,
            {200: UpdateView, 202: UpdateView},
        ),
        Operation(
            "GET",
            f"{one}/watch",
            "Stream changes as server-sent events",
            waits.watch,
            {200: (ExecutionSummary, ResultView)},
            query=StreamQuery,
            answer_media=MEDIA_TYPE,
        ),
    ]


class _Waits:
    def __init__(self, service: Service, pool: WorkPool, watches: WatchHub) -> None:
        self._service = service
        self._client = service.client
        self._pool = pool
        self._watches = watches
        self._queries = ConcurrencyGate(pool, "queries", calls_max=QUERIES_MAX, wait_seconds=QUERY_WAIT_SECONDS)

    async def query(self, call: Call[Ask, NoQuery]) -> Answer | Response[Any]:
        body, execution_id = call.body, call.path["id"]
        input = checked(body.input, f"input of query {body.name}")
        ask = partial(self._client.query, execution_id, body.name, input, timeout_seconds=QUERY_SECONDS)
        try:
            found = await self._queries.run(ask)
        except HeadgateError:
            raise
        except Exception as exc:  # noqa: BLE001 - any error of user code is the answer
            info = describe(exc)
            return response(Problem.of(422, "query_failed", f"query {body.name}: {info}", errors=[error_view(info)]))
        return Answer(AnswerView(found))

    async def result(self, call: Call[None, ResultQuery]) -> Answer:
        wait_seconds = _wait_seconds(call.query.wait)
        deadline_at = _now() + wait_seconds
        row = await self._get(call.path["id"])
        while not row.status.is_closed:
            left = deadline_at - _now()
            # A stuck execution will not end without a redrive.
            if left <= 0 or self._watches.is_stopping or row.status is Status.STUCK:
                return Answer(result_view(row), 202, retry_after(1))
            row = await self._watches.changed(row.execution_id, row.version, left) or row
        return Answer(result_view(row))

    async def update(self, call: Call[AskUpdate, NoQuery]) -> Answer | Response[Any]:
        body, execution_id = call.body, call.path["id"]
        deadline_at = _now() + _wait_seconds(body.wait)
        input = checked(body.input, f"input of update {body.name}")
        key = body.id if body.id is not None else idempotency_key(call.headers)
        update_id = await self._pool.run(lambda: self._client.ask_update(execution_id, body.name, input, update_id=key))
        while True:
            answer = await self._pool.run(partial(self._update_answer, execution_id, update_id))
            if answer is not None:
                return _update_response(update_id, answer)
            left = deadline_at - _now()
            if left <= 0 or self._watches.is_stopping:
                return _pending(execution_id, update_id)
            await self._watches.committed(min(left, _POLL_SECONDS))

    def answer(self, call: Call[None, NoQuery]) -> Answer | Response[Any]:
        execution_id, update_id = call.path["id"], call.path["update_id"]
        answer = self._update_answer(execution_id, update_id)
        return _pending(execution_id, update_id) if answer is None else _update_response(update_id, answer)

    async def watch(self, call: Call[None, StreamQuery]) -> Response[Any]:
        ends_at = _now() + stream_seconds(call.query.seconds)
        # Read before streaming starts, so that a missing execution is a 404.
        row = await self._get(call.path["id"])
        return stream(self._changes(row, ends_at))

    async def _changes(self, row: Execution, ends_at: float) -> AsyncIterator[bytes]:
        yield OPENING
        yield message("state", summary(row), id=str(row.version))
        while not row.status.is_closed and _now() < ends_at and not self._watches.is_stopping:
            wait_seconds = min(ALIVE_SECONDS, ends_at - _now())
            try:
                after = await self._watches.changed(row.execution_id, row.version, wait_seconds)
            except HeadgateError:
                return  # The stream has started; the client sees the error when it reconnects.
            if after is None:
                yield ALIVE
            else:
                row = after
                yield message("state", summary(row), id=str(row.version))
        if row.status.is_closed:
            yield message("end", result_view(row))

    async def _get(self, execution_id: str) -> Execution:
        return await self._pool.run(lambda: self._client.get(execution_id))

    def _update_answer(self, execution_id: str, update_id: str) -> AnswerUpdate | None:
        """Return the answer, or None if it may still come. Raises `ExecutionClosedError`, `NotFoundError`."""
        # Read before the answer: a closed execution has recorded all its answers.
        row = self._client.get(execution_id)
        answer = self._client.update_answer(execution_id, update_id)
        if answer is None and row.status.is_closed and row.dispatched is None:
            raise ExecutionClosedError(
                f"execution {execution_id}: ended ({row.status.value}) without an answer to the update"
            )
        return answer


def _update_response(update_id: str, answer: AnswerUpdate) -> Answer | Response[Any]:
    if answer.error is None:
        return Answer(UpdateView(update_id, result=Raw(bytes(answer.result))))
    code = "update_rejected" if answer.rejected else "update_failed"
    return response(Problem.of(422, code, f"update: {answer.error}", errors=[error_view(answer.error)]))


def _pending(execution_id: str, update_id: str) -> Answer:
    place = quote(update_id, safe="")
    headers = {"location": f"{path_of(execution_id)}/updates/{place}", **retry_after(1)}
    return Answer(UpdateView(update_id, pending=True), 202, headers)


def _wait_seconds(wait: duration.Duration) -> float:
    seconds = duration.seconds(wait, name="wait")
    if seconds > WAIT_SECONDS_MAX:
        raise UserError(f"wait {wait!r}: at most {WAIT_SECONDS_MAX:g}s per request; repeat the request")
    return seconds


def _now() -> float:
    return asyncio.get_running_loop().time()
