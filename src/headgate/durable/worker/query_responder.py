"""Query responder: answers queries that other processes ask about the workflows of this one.

It has threads of its own: a query replays a history, and neither turns nor activities wait for it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol

import structlog
from msgspec import Raw

from headgate.clock import Clock
from headgate.durable.model.declarations import WorkflowDefinition
from headgate.durable.model.failures import describe
from headgate.durable.model.query_requests import QUERIES, QueryAnswer, QueryRequest, request_of
from headgate.errors import ConflictError, HeadgateError, UnknownWorkflowError
from headgate.store.catalogue.tables import INBOXES
from headgate.store.model.requests import Poll, Query
from headgate.store.port import Store
from headgate.store.topics import WORK

THREADS: Final = 4
# Requests are found by notification; a lost one is found after this time.
LISTEN_SECONDS: Final = 1.0
# However much is committed, the index is read no more often than this.
PAUSE_SECONDS: Final = 0.02
_PAGE: Final = 50
_log = structlog.get_logger(__name__)


class LocalQueries(Protocol):
    """Answers queries of workflows that are loaded here."""

    def query(self, execution_id: str, name: str, input: Raw, *, timeout_seconds: float) -> Raw:
        """Return the answer of a query handler."""


class QueryResponder:
    """Answers the requests for the workflows of one process, until it is stopped."""

    def __init__(
        self, store: Store, clock: Clock, workflows: Mapping[str, WorkflowDefinition], local: LocalQueries
    ) -> None:
        self._store = store
        self._clock = clock
        self._workflows = workflows
        self._local = local
        self._stopping = threading.Event()
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="headgate-query")
        self._listener = threading.Thread(target=self._listen, name="headgate-queries", daemon=True)

    def start(self) -> None:
        """Start to answer."""
        self._listener.start()

    def stop(self) -> None:
        """Answer no further request; those in progress end by themselves."""
        self._stopping.set()
        self._store.wake()
        self._listener.join(timeout=2 * LISTEN_SECONDS)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _listen(self) -> None:
        while not self._stopping.is_set():
            try:
                # Not the commits of this process, which answers its own queries: there is one for every step.
                generation = self._store.generation(WORK, others=True)
                self.answer_open()
                if not self._stopping.is_set():
                    self._store.wait(generation, LISTEN_SECONDS, WORK, others=True)
            except HeadgateError as exc:
                _log.warning("store unavailable to queries", error=str(exc))
                self._stopping.wait(LISTEN_SECONDS)
            else:
                self._stopping.wait(PAUSE_SECONDS)

    def answer_open(self) -> None:
        """Claim the open requests of this process's workflows, and answer them in the background."""
        cursor: str | None = None
        while True:
            # All pages: requests for workflows of other workers may come first, and stay until those answer.
            page = self._store.query(
                Query(
                    table=INBOXES, index="ready-index", partition=QUERIES, limit=_PAGE, cursor=cursor, poll=Poll.PROMPT
                )
            )
            for item in page.items:
                request = request_of(item)
                if request.workflow in self._workflows and self._claim(request):
                    self._pool.submit(self._answer, request)
            cursor = page.cursor
            if cursor is None:
                return

    def _claim(self, request: QueryRequest) -> bool:
        try:
            self._store.transact([request.claimed()])
        except ConflictError:
            return False  # Another worker answers it, or its caller has given up.
        return True

    def _answer(self, request: QueryRequest) -> None:
        try:
            answer = self._answered(request)
            self._store.batch_write([request.answer_put(answer, int(self._clock.seconds() * 1000))])
        except HeadgateError as exc:
            # Its caller gets a time-out, and may ask again.
            _log.warning("answer to a query not stored", execution_id=request.execution_id, error=str(exc))

    def _answered(self, request: QueryRequest) -> QueryAnswer:
        if self._workflows[request.workflow].codec is not None:
            # An answer in the store would be in plain text.
            return QueryAnswer(
                status=UnknownWorkflowError.http_status,
                code=UnknownWorkflowError.code,
                detail=f"execution {request.execution_id}: payloads of workflow {request.workflow!r} are encrypted: "
                "query it through a server that has loaded its app (--app)",
            )
        try:
            result = self._local.query(
                request.execution_id,
                request.name,
                Raw(request.input.encode()),
                timeout_seconds=request.timeout_seconds,
            )
        except HeadgateError as exc:
            return QueryAnswer(status=exc.http_status, code=exc.code, detail=exc.message)
        except Exception as exc:  # noqa: BLE001 - any error of user code is the answer
            return QueryAnswer(error=describe(exc))
        return QueryAnswer(result)
