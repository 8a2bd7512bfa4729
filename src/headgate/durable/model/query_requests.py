"""Query requests: rows by which a process without the code of a workflow has a worker answer a query.

A request and its answer are rows in the inbox of the execution, outside of its messages. A worker claims a request by
deleting it, so that one worker answers it. Both expire: a query changes nothing, and its caller waits for seconds.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from headgate import typed_decode
from headgate.durable.model.failures import ErrorInfo
from headgate.durable.model.history import NULL
from headgate.durable.model.records import item_of
from headgate.store.catalogue.tables import INBOXES
from headgate.store.model.conditions import exists
from headgate.store.model.requests import Delete, Put
from headgate.store.model.schema import Key

# Partition of the sparse index of open requests.
QUERIES: Final = "QUERIES"
_REQUEST: Final = "Q#"
_ANSWER: Final = "A#"
_TTL_SECONDS: Final = 120


class QueryAnswer(Struct, frozen=True, omit_defaults=True):
    """The result of a query handler; or its error; or the status, code and text of an error of Headgate."""

    result: Raw = NULL
    error: ErrorInfo | None = None
    status: int = 0
    code: str = ""
    detail: str = ""


class QueryRequest(Struct, frozen=True, omit_defaults=True):
    """A query that waits for a worker with the workflow's code."""

    execution_id: str
    message_id: str
    workflow: str
    name: str
    input: str
    at_ms: int
    timeout_seconds: float
    ready_pk: str = ""
    ttl: int = 0

    def put(self) -> Put:
        """Return the write that stores the request."""
        return Put(INBOXES, item_of(msgspec.structs.replace(self, ready_pk=QUERIES)))

    def claimed(self) -> Delete:
        """Return the write that claims the request: one caller succeeds."""
        return Delete(INBOXES, Key(self.execution_id, self.message_id), exists())

    @property
    def answer_key(self) -> Key:
        """The key of the answer."""
        return Key(self.execution_id, f"{_ANSWER}{self.message_id.removeprefix(_REQUEST)}")

    def answer_put(self, answer: QueryAnswer, now_ms: int) -> Put:
        """Return the write that stores the answer."""
        body = msgspec.json.encode(answer).decode()
        key = self.answer_key
        item = {"execution_id": key.partition, "message_id": key.sort, "body": body}
        return Put(INBOXES, {**item, "ttl": now_ms // 1000 + _TTL_SECONDS})


_answer_decoder: Final = msgspec.json.Decoder(QueryAnswer)


def new_request(
    execution_id: str, workflow: str, name: str, input: Raw, *, unique: str, now_ms: int, timeout_seconds: float
) -> QueryRequest:
    """Return a request that expires some time after its caller has given up."""
    return QueryRequest(
        execution_id=execution_id,
        message_id=f"{_REQUEST}{unique}",
        workflow=workflow,
        name=name,
        input=bytes(input).decode(),
        at_ms=now_ms,
        timeout_seconds=timeout_seconds,
        ttl=now_ms // 1000 + _TTL_SECONDS,
    )


def request_of(item: dict[str, Any]) -> QueryRequest:
    """Return the request that a row holds."""
    return typed_decode.convert(item, QueryRequest)


def answer_of(item: dict[str, Any]) -> QueryAnswer:
    """Return the answer that a row holds."""
    return _answer_decoder.decode(item["body"])
