"""Async client: starts, reads and messages executions of a server over HTTP.

`sync_client.py` is generated from this module by `python -m tests.sync_client`, without `async` and `await`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar, overload

import httpx
from msgspec import Raw

from headgate import typed_decode
from headgate.clock import Clock, SystemClock
from headgate.durable.model import payload
from headgate.durable.model.duration import Duration, optional_seconds
from headgate.durable.model.failures import ErrorInfo, ExecutionFailure, Failure, UpdateFailure, revive, with_cause
from headgate.durable.model.history import Status
from headgate.durable.model.interceptors import ClientCall, ClientCallKind, Interceptor, around_client
from headgate.durable.model.message_types import A, Query, R_co, Signal, T, Update, name_of, pack
from headgate.durable.model.names import check_execution_id
from headgate.durable.model.payload_codec import (
    ERROR,
    INPUT,
    MEMO,
    RESULT,
    PayloadCodec,
    open_error,
    open_for,
    seal_for,
)
from headgate.durable.model.retry import Retry
from headgate.durable.model.starts import Reuse
from headgate.durable.remote.access import Access
from headgate.durable.remote.answers import (
    EmittedEvents,
    ExecutionDetails,
    ExecutionEnd,
    ExecutionPage,
    ExecutionSummary,
    HeartbeatAnswer,
    QueryAnswer,
    ScheduleDetails,
    SchedulePage,
    StartedExecution,
    TriggeredSlot,
    UpdateAnswer,
)
from headgate.durable.remote.exchange import (
    WAIT_SECONDS_MAX,
    NoReplyError,
    ProblemReplyError,
    Reply,
    Request,
    Retries,
    checked,
    json_body,
    moment_text,
    path_of,
)
from headgate.durable.remote.http_errors import no_reply, retry_after_seconds
from headgate.durable.replay.sealed_history import answer_place, signal_place, update_place
from headgate.durable.schedules.slots import CatchUp, Overlap
from headgate.durable.sdk.definitions import Workflow
from headgate.errors import HeadgateError, InvalidIdError
from headgate.ids import IdMaker

P = ParamSpec("P")
R = TypeVar("R")
Answer = TypeVar("Answer")

_STUCK_PAUSE_SECONDS = 1.0


class AsyncConnection:
    """Sends requests to one server, again if a failure is transient and repeating the request is safe."""

    def __init__(self, access: Access, clock: Clock, *, timeout_seconds: float, retry_seconds: float) -> None:
        self.clock = clock
        self._url = access.url
        self._timeout_seconds = timeout_seconds
        self._retry_seconds = retry_seconds
        self._http = httpx.AsyncClient(
            base_url=access.url,
            headers=access.headers(),
            verify=access.tls(),
            # Redirects are not followed: the key is for this server only.
            follow_redirects=False,
            trust_env=not access.is_local,
        )

    async def call(self, request: Request, answer: type[Answer]) -> Answer:
        """Return the decoded answer. Raises the error of the server's problem document, or `TransientError`."""
        return typed_decode.from_json(await self.send(request), answer)

    async def send(self, request: Request) -> bytes:
        """Return the content of the reply. Raises as `call` does."""
        retries = Retries(request, self._url, seconds_max=self._retry_seconds)
        began = self.clock.monotonic()
        while True:
            try:
                reply = await self._exchange(request)
                try:
                    return checked(reply, f"{self._url}{request.path}")
                except HeadgateError as exc:
                    pause_seconds = retries.after_reply(reply, exc, self.clock.monotonic() - began)
                    if pause_seconds is None:
                        raise
            except NoReplyError as exc:
                pause_seconds = retries.after_no_reply(exc, self.clock.monotonic() - began)
            await self.pause(pause_seconds)

    async def _exchange(self, request: Request) -> Reply:
        try:
            reply = await self._http.request(
                request.method,
                request.target,
                content=request.body,
                headers=request.headers(),
                timeout=self._timeout_seconds + request.wait_seconds,
            )
        except httpx.HTTPError as exc:
            raise no_reply(exc, self._url) from exc
        return Reply(reply.status_code, reply.content, retry_after_seconds(reply.headers))

    async def pause(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()


class AsyncRemoteHandle(Generic[R_co]):
    """One execution of a server. `R_co` is what its workflow returns."""

    def __init__(
        self,
        connection: AsyncConnection,
        ids: IdMaker,
        execution_id: str,
        *,
        was_started: bool = False,
        returns: Any = Any,  # noqa: ANN401 - a type of any kind
        interceptors: Sequence[Interceptor] = (),
        codec: PayloadCodec | None = None,
    ) -> None:
        self._interceptors = interceptors
        self.id = check_execution_id(execution_id, derived=True)
        self.was_started = was_started
        self._connection = connection
        self._ids = ids
        self._returns = returns
        self._codec = codec

    async def status(self) -> Status:
        """Return the status of the execution. Raises `NotFoundError`."""
        return (await self.describe()).status

    async def describe(self) -> ExecutionDetails:
        """Return the execution, with what it waits for. Raises `NotFoundError`."""
        return await self._connection.call(Request(method="GET", path=self._path()), ExecutionDetails)

    async def result(self, timeout_seconds: float | None = None) -> R_co:
        """Wait for the end and return the result.

        Raises `ExecutionFailure` if the execution did not succeed, and `TimeoutError` if it has not ended in time.
        """
        end = await self._ended(timeout_seconds)
        if end.status is not Status.SUCCEEDED:
            info = open_error(self._codec, end.error, self.id, ERROR)
            info = info or ErrorInfo(type=end.status.value, message=f"ended {end.status.value}")
            raise with_cause(ExecutionFailure(info, execution_id=self.id, status=end.status.value))
        raw = open_for(self._codec, end.result, self.id, RESULT)
        result: R_co = payload.decode(raw, self._returns, what=f"result of {self.id}")
        return result

    async def _ended(self, timeout_seconds: float | None) -> ExecutionEnd:
        """Return the end of the execution. Raises `TimeoutError`."""
        ends_at = None if timeout_seconds is None else self._connection.clock.monotonic() + timeout_seconds
        while True:
            left = (
                WAIT_SECONDS_MAX
                if ends_at is None
                else min(WAIT_SECONDS_MAX, max(0.0, ends_at - self._connection.clock.monotonic()))
            )
            request = Request(
                method="GET", path=self._path("result"), query={"wait": f"{left:.3f}s"}, wait_seconds=left
            )
            end = await self._connection.call(request, ExecutionEnd)
            if end.status.is_closed:
                return end
            if ends_at is not None and self._connection.clock.monotonic() >= ends_at:
                raise TimeoutError(f"execution {self.id}: still {end.status.value} after {timeout_seconds} s")
            if end.status is Status.STUCK:
                # The server answers at once, and only a redrive changes it.
                await self._connection.pause(_STUCK_PAUSE_SECONDS)

    @overload
    async def signal(self, name: Signal[None], /, *, id: str | None = None) -> None: ...

    @overload
    async def signal(self, name: Signal[T], value: T, /, *, id: str | None = None) -> None: ...

    @overload
    async def signal(self, name: str, value: object = None, *, id: str | None = None) -> None: ...

    async def signal(self, name: str | Signal[Any], value: Any = None, *, id: str | None = None) -> None:
        """Send a signal, given by its name or its declaration.

        `id` is an idempotency key: a signal of the same id is received once.
        """
        label = name_of(name)
        raw = pack(name, value, what=f"payload of signal {label}")
        call = ClientCall(ClientCallKind.SIGNAL, self.id, label, raw)
        with around_client(self._interceptors, call):
            sealed = seal_for(self._codec, call.input, self.id, signal_place(label))
            body = {"name": label, "payload": sealed, "id": id or self._ids.ulid(), "headers": call.headers}
            await self._connection.send(Request(method="POST", path=self._path("signals"), body=json_body(body)))

    @overload
    async def query(self, name: Query[None, T], /) -> T: ...

    @overload
    async def query(self, name: Query[A, T], input: A, /) -> T: ...

    @overload
    async def query(self, name: str, input: object = ..., *, returns: type[T]) -> T: ...

    @overload
    async def query(self, name: str, input: object = ..., returns: object = ...) -> Any: ...  # noqa: ANN401 - the type is not known

    async def query(self, name: str | Query[Any, Any], input: Any = None, returns: Any = Any) -> Any:
        """Return the answer of a query handler, decoded by its declaration or as `returns`.

        Raises what the handler raises, and `QueryTimeoutError` if it takes too long.
        """
        label = name_of(name)
        call = ClientCall(ClientCallKind.QUERY, self.id, label, pack(name, input, what=f"input of query {label}"))
        with around_client(self._interceptors, call):
            body = json_body({"name": label, "input": call.input})
            request = Request(method="POST", path=self._path("queries"), body=body)
            try:
                answer = await self._connection.call(request, QueryAnswer)
            except ProblemReplyError as exc:
                raise revive(exc.info, otherwise=Failure) from None
        returns = returns if isinstance(name, str) else name.returns
        return payload.decode(answer.result, returns, what=f"answer of query {label}")

    @overload
    async def update(self, name: Update[None, T], /, *, timeout_seconds: float = ..., id: str | None = ...) -> T: ...

    @overload
    async def update(
        self, name: Update[A, T], input: A, /, *, timeout_seconds: float = ..., id: str | None = ...
    ) -> T: ...

    @overload
    async def update(
        self, name: str, input: object = ..., *, timeout_seconds: float = ..., returns: type[T], id: str | None = ...
    ) -> T: ...

    @overload
    async def update(
        self,
        name: str,
        input: object = ...,
        *,
        timeout_seconds: float = ...,
        returns: object = ...,
        id: str | None = ...,
    ) -> Any: ...  # noqa: ANN401 - the type is not known

    async def update(
        self,
        name: str | Update[Any, Any],
        input: Any = None,
        *,
        timeout_seconds: float = 30.0,
        returns: Any = Any,
        id: str | None = None,
    ) -> Any:
        """Send an update, and return the answer of its handler, decoded by its declaration or as `returns`.

        `id` is an idempotency key. Raises `UpdateFailure` if it is rejected or fails, and `TimeoutError` if it is not
        answered in time.
        """
        label = name_of(name)
        call = ClientCall(ClientCallKind.UPDATE, self.id, label, pack(name, input, what=f"input of update {label}"))
        update_id = id or self._ids.ulid()
        with around_client(self._interceptors, call):
            sealed = seal_for(self._codec, call.input, self.id, update_place(label))
            answer = await self._updated(label, sealed, update_id, timeout_seconds)
        returns = returns if isinstance(name, str) else name.returns
        opened = open_for(self._codec, answer.result, self.id, answer_place(update_id))
        return payload.decode(opened, returns, what=f"answer of update {label}")

    async def _updated(self, label: str, input: Raw, update_id: str, timeout_seconds: float) -> UpdateAnswer:
        """Return the answer of an update. Raises `UpdateFailure`, `TimeoutError`."""
        ends_at = self._connection.clock.monotonic() + timeout_seconds
        while True:
            left = min(WAIT_SECONDS_MAX, max(0.0, ends_at - self._connection.clock.monotonic()))
            body = json_body({"name": label, "input": input, "id": update_id, "wait": left})
            # Sent again under the same id, it only waits.
            request = Request(method="POST", path=self._path("updates"), body=body, wait_seconds=left)
            try:
                answer = await self._connection.call(request, UpdateAnswer)
            except ProblemReplyError as exc:
                is_refused = exc.problem.code == "update_rejected"
                info = open_error(self._codec, exc.info, self.id, answer_place(update_id))
                failure = UpdateFailure(info, execution_id=self.id, update=label, is_refused=is_refused)
                raise with_cause(failure) from None
            if not answer.pending:
                return answer
            if self._connection.clock.monotonic() >= ends_at:
                raise TimeoutError(f"execution {self.id}: update {label} was not answered in {timeout_seconds} s")

    async def cancel(self, reason: str = "") -> None:
        """Request cancellation; the workflow may clean up, or ignore it. Raises `ExecutionClosedError`."""
        await self._control(ClientCallKind.CANCEL, reason)

    async def terminate(self, reason: str = "") -> None:
        """End the execution without running its code. Raises `ExecutionClosedError`."""
        await self._control(ClientCallKind.TERMINATE, reason)

    async def _control(self, action: ClientCallKind, reason: str) -> None:
        request = Request(
            method="POST",
            path=self._path(action.value),
            body=json_body({"reason": reason}),
            idempotency_key=self._ids.ulid(),
        )
        with around_client(self._interceptors, ClientCall(action, self.id)):
            await self._connection.send(request)

    def _path(self, *more: str) -> str:
        return path_of("executions", self.id, *more)

    def __repr__(self) -> str:
        return f"<execution {self.id}>"


class AsyncClient:
    """The executions, events and schedules of a server.

    `url`, `api_key` and `ca` default to HEADGATE_SERVER, HEADGATE_API_KEY and HEADGATE_CA. A request that fails with a
    transient error is sent again for up to `retry_seconds`; each has an idempotency key, so that it happens once.
    Errors are those of the client in process. `interceptors` wrap its calls, the first one outermost. Use it in an
    `async with` block, or call `aclose()`.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        ca: Path | str | None = None,
        timeout_seconds: float = 30.0,
        retry_seconds: float = 30.0,
        interceptors: Sequence[Interceptor] = (),
    ) -> None:
        self._interceptors = tuple(interceptors)
        access = Access.of(url, api_key, ca)
        clock = SystemClock()
        self._connection = AsyncConnection(access, clock, timeout_seconds=timeout_seconds, retry_seconds=retry_seconds)
        self._ids = IdMaker(clock)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._connection.aclose()

    # Executions.

    async def start(self, workflow: Workflow[P, R], *args: P.args, **kwargs: P.kwargs) -> AsyncRemoteHandle[R]:
        """Start an execution with these arguments, and return once the start is durable.

        Options come with the workflow: `client.start(fulfil.options(id="o-1"), order)`. Raises as `start_by_name`.
        """
        options = workflow.start_options
        return await self._start(
            workflow.name,
            workflow.input_of(args, kwargs),
            id=options.id,
            reuse=options.reuse or Reuse.NEVER,
            tags=options.tags,
            memo=options.memo,
            timeout=options.timeout_seconds,
            delay=options.delay_seconds,
            retry=options.retry,
            returns=workflow.signature.result,
            codec=workflow.codec,
        )

    async def start_by_name(  # noqa: PLR0913 - each is an option of callers
        self,
        workflow: str,
        input: object = None,
        *,
        id: str | None = None,
        reuse: Reuse | str = Reuse.NEVER,
        tags: Mapping[str, str] | None = None,
        memo: object = None,
        timeout: Duration | None = None,
        delay: Duration | None = None,
        retry: Retry | None = None,
        returns: Any = Any,  # noqa: ANN401 - a type of any kind
    ) -> AsyncRemoteHandle[Any]:
        """Start an execution of a workflow whose code is not at hand, and return once the start is durable.

        `input` is the argument of a workflow with one, or a mapping of several by name. The same input under the id of
        a live execution starts nothing again. `retry` is in place of the retry policy of the workflow. Raises
        `UnknownWorkflowError`, `AlreadyStartedError`,
        `InvalidPayloadError`; and `OutcomeUnknownError` if the answer is lost and `reuse` does not allow to repeat it.
        """
        raw = payload.encode(input, what=f"input of workflow {workflow}")
        return await self._start(
            workflow,
            raw,
            id=id,
            reuse=reuse,
            tags=tags,
            memo=memo,
            timeout=optional_seconds(timeout, name="timeout"),
            delay=optional_seconds(delay, name="delay"),
            retry=retry,
            returns=returns,
        )

    async def _start(  # noqa: PLR0913 - each is an option of callers
        self,
        workflow: str,
        input: Raw,
        *,
        id: str | None,
        reuse: Reuse | str,
        tags: Mapping[str, str] | None,
        memo: object,
        timeout: float | None,
        delay: float | None,
        retry: Retry | None,
        returns: Any,  # noqa: ANN401 - a type of any kind
        codec: PayloadCodec | None = None,
    ) -> AsyncRemoteHandle[Any]:
        execution_id = id or f"{workflow}/{self._ids.ulid()}"
        call = ClientCall(ClientCallKind.START, execution_id, workflow, input)
        body = {
            "workflow": workflow,
            "id": execution_id,
            "reuse": str(reuse),
            "tags": dict(tags or {}),
            "memo": None if memo is None else seal_for(codec, payload.encode(memo, what="memo"), execution_id, MEMO),
            "timeout": timeout,
            "delay": delay,
            "retry": retry,
        }
        # With another policy a second start replaces the execution of the first.
        is_repeatable = str(reuse) == Reuse.NEVER.value
        with around_client(self._interceptors, call):
            sealed = seal_for(codec, call.input, execution_id, INPUT)
            content = json_body({**body, "input": sealed, "headers": call.headers})
            request = Request(method="POST", path="/executions", body=content, is_repeatable=is_repeatable)
            started = await self._connection.call(request, StartedExecution)
        # Under an id of its own nothing existed before: a repeated request found what the first one started.
        was_started = started.created or id is None
        return self._handle(started.id, was_started=was_started, returns=returns, codec=codec)

    @overload
    async def signal_with_start(
        self, workflow: Workflow[P, R], signal: Signal[T], value: T, /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncRemoteHandle[R]: ...

    @overload
    async def signal_with_start(
        self, workflow: Workflow[P, R], signal: str, value: object, /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncRemoteHandle[R]: ...

    async def signal_with_start(
        self, workflow: Workflow[P, R], signal: str | Signal[Any], value: Any, /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncRemoteHandle[R]:
        """Send a signal to the execution of this id, and start it first with the other arguments if none is open.

        The id and other options come with the workflow: `basket.options(id="b-1")`. The signal is received once.
        """
        options = workflow.start_options
        if options.id is None:
            raise InvalidIdError(f"{workflow.name}: give the id of the execution: {workflow.name}.options(id=...)")
        label, codec = name_of(signal), workflow.codec
        what = f"payload of signal {label}"
        body = {
            "workflow": workflow.name,
            "id": options.id,
            "name": label,
            "payload": seal_for(codec, pack(signal, value, what=what), options.id, signal_place(label)),
            "signal_id": self._ids.ulid(),
            "reuse": str(options.reuse or Reuse.CLOSED),
            "tags": dict(options.tags or {}),
            "memo": options.memo
            if options.memo is None
            else seal_for(codec, payload.encode(options.memo, what="memo"), options.id, MEMO),
            "timeout": options.timeout_seconds,
            "retry": options.retry,
        }
        call = ClientCall(ClientCallKind.SIGNAL_WITH_START, options.id, workflow.name, workflow.input_of(args, kwargs))
        with around_client(self._interceptors, call):
            content = json_body(
                {**body, "input": seal_for(codec, call.input, options.id, INPUT), "headers": call.headers}
            )
            request = Request(method="POST", path="/executions/signal-with-start", body=content)
            started = await self._connection.call(request, StartedExecution)
        return self._handle(started.id, was_started=started.created, returns=workflow.signature.result, codec=codec)

    @overload
    def handle(self, id: str) -> AsyncRemoteHandle[Any]: ...

    @overload
    def handle(self, id: str, workflow: Workflow[..., R]) -> AsyncRemoteHandle[R]: ...

    def handle(self, id: str, workflow: Workflow[..., Any] | None = None) -> AsyncRemoteHandle[Any]:
        """Return the handle of an execution, which need not exist. Its result has the type of `workflow`."""
        if workflow is None:
            return self._handle(id)
        return self._handle(id, returns=workflow.signature.result, codec=workflow.codec)

    def _handle(
        self,
        id: str,
        *,
        was_started: bool = False,
        returns: Any = Any,  # noqa: ANN401 - a type of any kind
        codec: PayloadCodec | None = None,
    ) -> AsyncRemoteHandle[Any]:
        return AsyncRemoteHandle(
            self._connection,
            self._ids,
            id,
            was_started=was_started,
            returns=returns,
            interceptors=self._interceptors,
            codec=codec,
        )

    async def executions(
        self,
        *,
        status: Status | None = None,
        workflow: str | None = None,
        parent_id: str | None = None,
        tags: Mapping[str, str] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        text: str = "",
        oldest_first: bool = False,
    ) -> AsyncIterator[ExecutionSummary]:
        """Give all executions that match every filter, by start time, page by page as they are read.

        They were started from `since` on and before `until`; `text` is in the id, the workflow, a tag or the error.
        """
        cursor: str | None = None
        while True:
            page = await self.execution_page(
                status=status,
                workflow=workflow,
                parent_id=parent_id,
                tags=tags,
                since=since,
                until=until,
                text=text,
                oldest_first=oldest_first,
                cursor=cursor,
            )
            for each in page.executions:
                yield each
            cursor = page.cursor
            if cursor is None:
                return

    async def execution_page(  # noqa: PLR0913 - each is a filter of callers
        self,
        *,
        status: Status | None = None,
        workflow: str | None = None,
        parent_id: str | None = None,
        tags: Mapping[str, str] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        text: str = "",
        oldest_first: bool = False,
        limit: int = 100,
        cursor: str | None = None,
    ) -> ExecutionPage:
        """Return a page of the executions that match every filter. It may be short although there are more."""
        query = {
            "status": None if status is None else status.value,
            "workflow": workflow,
            "parent": parent_id,
            "tag": [f"{name}:{value}" for name, value in (tags or {}).items()] or None,
            "since": moment_text(since),
            "until": moment_text(until),
            "text": text or None,
            "order": "oldest" if oldest_first else "newest",
            "limit": str(limit),
            "cursor": cursor,
        }
        given = {name: value for name, value in query.items() if value is not None}
        return await self._connection.call(Request(method="GET", path="/executions", query=given), ExecutionPage)

    # Events.

    async def emit(
        self, type: str, data: object = None, *, subject: str = "", id: str | None = None, source: str = ""
    ) -> str:
        """Emit an event, and return its stored id. `id` is an idempotency key."""
        body = {
            "type": type,
            "data": payload.encode(data, what=f"data of event {type}"),
            "subject": subject,
            "source": source,
            "id": id or self._ids.make("evt"),
        }
        request = Request(method="POST", path="/events", body=json_body(body))
        return (await self._connection.call(request, EmittedEvents)).ids[0]

    # Activities that are completed from outside.

    async def complete_activity(self, token: str, result: object = None) -> None:
        """End an activity with a result. Raises `SignatureError`, `StaleClaimError`, `NotFoundError`."""
        raw = payload.encode(result, what="result of the activity")
        await self._report("complete", {"token": token, "result": raw})

    async def fail_activity(
        self, token: str, type: str, message: str = "", *, data: object = None, retryable: bool = True
    ) -> None:
        """End an attempt at an activity with an error; its retry policy applies."""
        error = {"type": type, "message": message, "data": data, "retryable": retryable}
        await self._report("fail", {"token": token, "error": error})

    async def heartbeat_activity(self, token: str, details: object = None) -> bool:
        """Record a heartbeat. Returns False if the activity was cancelled, and the work should stop."""
        raw = None if details is None else payload.encode(details, what="heartbeat details")
        body = json_body({"token": token, "details": raw})
        request = Request(method="POST", path="/activities/heartbeat", body=body)
        return not (await self._connection.call(request, HeartbeatAnswer)).cancelled

    async def _report(self, action: str, body: Mapping[str, object]) -> None:
        path = path_of("activities", action)
        key = self._ids.ulid()
        await self._connection.send(Request(method="POST", path=path, body=json_body(body), idempotency_key=key))

    # Schedules.

    async def create_schedule(  # noqa: PLR0913 - each is an option of a schedule
        self,
        id: str,
        workflow: Workflow[..., Any] | str,
        cron: str,
        *,
        zone: str = "UTC",
        input: object = None,
        overlap: Overlap | str = Overlap.SKIP,
        catchup: CatchUp | str = CatchUp.LAST,
        tags: Mapping[str, str] | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
        paused: bool = False,
    ) -> ScheduleDetails:
        """Create a schedule; creating the same one again changes nothing. Raises `ConflictError` for another one."""
        name = workflow if isinstance(workflow, str) else workflow.name
        body = {
            "id": id,
            "workflow": name,
            "cron": cron,
            "zone": zone,
            "input": payload.encode(input, what=f"input of workflow {name}"),
            "overlap": str(overlap),
            "catchup": str(catchup),
            "tags": dict(tags or {}),
            "start": start,
            "end": end,
            "paused": paused,
        }
        request = Request(method="POST", path="/schedules", body=json_body(body))
        return await self._connection.call(request, ScheduleDetails)

    async def schedule(self, id: str) -> ScheduleDetails:
        """Return a schedule. Raises `NotFoundError`."""
        return await self._connection.call(Request(method="GET", path=path_of("schedules", id)), ScheduleDetails)

    async def schedules(self, *, workflow: str | None = None) -> AsyncIterator[ScheduleDetails]:
        """Give all schedules, next due first, page by page as they are read."""
        query: dict[str, str] = {} if workflow is None else {"workflow": workflow}
        while True:
            page = await self._connection.call(Request(method="GET", path="/schedules", query=query), SchedulePage)
            for each in page.schedules:
                yield each
            if page.cursor is None:
                return
            query = {**query, "cursor": page.cursor}

    async def pause_schedule(self, id: str, reason: str = "") -> ScheduleDetails:
        """Pause a schedule. Raises `NotFoundError`."""
        return await self._change_schedule(id, "pause", {"reason": reason})

    async def resume_schedule(self, id: str) -> ScheduleDetails:
        """Resume a schedule with the slots from now on. Raises `NotFoundError`."""
        return await self._change_schedule(id, "resume", {})

    async def _change_schedule(self, id: str, action: str, body: Mapping[str, object]) -> ScheduleDetails:
        request = Request(method="POST", path=path_of("schedules", id, action), body=json_body(body))
        return await self._connection.call(request, ScheduleDetails)

    async def trigger_schedule(self, id: str, *, overlap: Overlap | str = Overlap.ALLOW) -> TriggeredSlot:
        """Start an execution of a schedule now, besides its slots. Raises `NotFoundError`."""
        body = json_body({"overlap": str(overlap), "id": self._ids.ulid()})
        request = Request(method="POST", path=path_of("schedules", id, "trigger"), body=body)
        return await self._connection.call(request, TriggeredSlot)

    async def delete_schedule(self, id: str) -> None:
        """Delete a schedule; its executions go on. Raises `NotFoundError`."""
        # Not repeatable: the second answer would be that there is none.
        await self._connection.send(Request(method="DELETE", path=path_of("schedules", id), is_repeatable=False))
