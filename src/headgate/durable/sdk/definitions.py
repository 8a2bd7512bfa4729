"""Definitions: workflows and activities as the decorators of an app create them from functions."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, NoReturn, ParamSpec, TypeVar, Unpack, overload

import msgspec
from msgspec import Raw

from headgate.durable.model import payload
from headgate.durable.model.async_invocation import AsyncInvocation, check_invocation
from headgate.durable.model.declarations import Versioning
from headgate.durable.model.duration import Duration, optional_seconds, seconds
from headgate.durable.model.history import NULL, ActivityOptions, Cancellation, ParentClose, StartChild
from headgate.durable.model.interceptors import (
    ClientCall,
    ClientCallKind,
    Interceptor,
    OutboundKind,
    around_client,
)
from headgate.durable.model.message_types import Signal, name_of, pack
from headgate.durable.model.names import check_execution_id, check_name, check_signal_name, check_tags, child_id
from headgate.durable.model.payload_codec import PayloadCodec
from headgate.durable.model.retry import Retry
from headgate.durable.replay.interpreter import Interpreter, PendingFuture, current, running
from headgate.durable.replay.outcomes import ContinueRequest
from headgate.durable.sdk.call_shapes import (
    SignalWithStartOptions,
    StartOptions,
    Takes0,
    Takes1,
    Takes2,
    Takes3,
    Takes4,
    Takes5,
)
from headgate.errors import DefinitionError, InvalidIdError, WorkflowViolationError

if TYPE_CHECKING:
    from headgate.durable.client.handle import Handle
    from headgate.durable.model.starts import Reuse

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")


@dataclass(frozen=True)
class Limit:
    """A limit of how many calls of an activity run at once, or start in a period, across all workers.

    `key` makes a separate limit for each value: a function of the activity's arguments, or a fixed name that several
    activities share.
    """

    concurrency: int | None = None
    rate: int | None = None
    per: Duration = 1.0
    key: str | Callable[..., object] | None = None

    def __post_init__(self) -> None:
        if self.concurrency is None and self.rate is None:
            raise DefinitionError("Limit: give concurrency, or rate, or both")
        for name in ("concurrency", "rate"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise DefinitionError(f"Limit({name}={value!r}): a whole number from 1")
        seconds(self.per, name="per")


class Activity(Generic[P, R]):
    """A side effect of workflows. A call in a workflow is durable; any other call just runs the function."""

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str,
        options: ActivityOptions,
        limit: Limit | None = None,
        isolate: bool = False,
        is_handler: bool = False,
        look: Callable[[Any], Any] | None = None,
        interceptors: Sequence[Interceptor] = (),
        invocation: AsyncInvocation | None = None,
    ) -> None:
        self.name = check_name("activity", name)
        # Made once: every call names its input and its result, for errors.
        self.input_label = f"input of activity {name}"
        self.result_label = f"result of activity {name}"
        self.interceptors = tuple(interceptors)
        # Answers a read-only call of a state machine within its turn; None if the activity has no such calls.
        self.look = look
        # The result of an event handler is dropped.
        self.is_handler = is_handler
        self.function = function
        self.signature = payload.Signature.of(function)
        self.is_async = inspect.iscoroutinefunction(function)
        self.isolate = isolate
        self.activity_options = options
        self.limit = limit
        # None: the activity is invoked through its task queue.
        self.invocation = invocation
        if invocation is not None:
            check_invocation(name, options)
        if isolate and self.is_async:
            raise DefinitionError(f"activity {name}: isolate=True is for functions that are not async")

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]:
        interpreter = running()
        if interpreter is None:
            return self.function(*args, **kwargs)  # type: ignore[return-value]  # the plain function, as in a unit test
        raw = self.signature.pack(args, kwargs, what=self.input_label)
        options = self.activity_options if self.limit is None else self.options_for(args, kwargs)
        return interpreter.start_activity(self.name, raw, options, self._decode)

    def options(
        self,
        *,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        schedule_to_start: Duration | None = None,
        schedule_to_close: Duration | None = None,
        heartbeat: Duration | None = None,
        queue: str | None = None,
        cancellation: Cancellation | str | None = None,
    ) -> Activity[P, R]:
        """Return the same activity with other options for the calls made through it."""
        options = {
            "retry": retry,
            "start_to_close": optional_seconds(timeout, name="timeout"),
            "schedule_to_start": optional_seconds(schedule_to_start, name="schedule_to_start"),
            "schedule_to_close": optional_seconds(schedule_to_close, name="schedule_to_close"),
            "heartbeat": optional_seconds(heartbeat, name="heartbeat"),
            "queue": queue if queue is None else check_name("queue", queue),
            "cancellation": None
            if cancellation is None
            else checked_cancellation(f"activity {self.name}", cancellation),
        }
        changed = {name: value for name, value in options.items() if value is not None}
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__)
        copy.activity_options = msgspec.structs.replace(self.activity_options, **changed)
        if self.invocation is not None:
            check_invocation(self.name, copy.activity_options)
        return copy

    def options_for(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ActivityOptions:
        """Return the options of a call with these arguments."""
        if self.limit is None:
            return self.activity_options
        key = self.limit.key
        suffix = key if isinstance(key, str) or key is None else key(*args, **kwargs)
        limit_key = self.name if suffix is None else str(suffix) if isinstance(key, str) else f"{self.name}:{suffix}"
        return msgspec.structs.replace(
            self.activity_options,
            limit_key=limit_key,
            concurrency=self.limit.concurrency,
            rate=self.limit.rate,
            per=seconds(self.limit.per, name="per"),
        )

    def _decode(self, result: Raw) -> Any:  # noqa: ANN401
        return self.signature.decode_result(result, self.result_label)

    def __repr__(self) -> str:
        return f"<activity {self.name}>"


class Child(PendingFuture[R]):
    """A child execution: await it for its result."""

    __slots__ = ("awaits_end", "id")

    id: str
    # Whether cancelling it waits for the end of the child.
    awaits_end: bool

    def cancel(self, msg: Any | None = None) -> bool:  # noqa: ANN401 - asyncio's signature
        if self.awaits_end and not self.done() and self._interpreter.request_cancel(self.seq):
            return True
        return super().cancel(msg)

    @overload
    def signal(self, name: Signal[None], /) -> Awaitable[None]: ...

    @overload
    def signal(self, name: Signal[T], value: T, /) -> Awaitable[None]: ...

    @overload
    def signal(self, name: str, value: object = None) -> Awaitable[None]: ...

    def signal(self, name: str | Signal[Any], value: Any = None) -> Awaitable[None]:
        """Send the child a signal."""
        label = name_of(name)
        raw = pack(name, value, what=f"payload of signal {label}")
        return self._interpreter.send_signal(self.id, check_signal_name(label), raw)


@dataclass(frozen=True)
class ExecutionOptions:
    """The options of executions that are started through a workflow: as a child, or from outside."""

    id: str | None = None
    parent_close: ParentClose = ParentClose.TERMINATE
    cancellation: Cancellation = Cancellation.REQUEST
    timeout_seconds: float | None = None
    tags: Mapping[str, str] | None = None
    reuse: Reuse | str | None = None
    memo: Any = None
    delay_seconds: float | None = None
    # In place of the retry policy that the workflow declares.
    retry: Retry | None = None


class Workflow(Generic[P, R]):
    """A durable function. Start it from outside; a call inside of another workflow starts a child."""

    def __init__(
        self,
        function: Callable[P, Awaitable[R]],
        *,
        name: str,
        timeout_seconds: float | None,
        retention_seconds: float | None,
        client: Callable[[], Any],
        retry: Retry | None = None,
        interceptors: Sequence[Interceptor] = (),
        versioning: Versioning | str = Versioning.AUTO,
        codec: PayloadCodec | None = None,
    ) -> None:
        self.name = check_name("workflow", name)
        self.retry = retry
        self.interceptors = tuple(interceptors)
        self.function = function
        self.signature = payload.Signature.of(function)
        self.timeout_seconds = timeout_seconds
        self.retention_seconds = retention_seconds
        try:
            self.versioning = Versioning(versioning)
        except ValueError:
            allowed = [each.value for each in Versioning]
            raise DefinitionError(f"workflow {name}: versioning {versioning!r}: use one of {allowed}") from None
        self.codec = codec
        self._client = client
        self._options = ExecutionOptions()
        if not inspect.iscoroutinefunction(function):
            raise DefinitionError(f"workflow {name}: write it as 'async def'; what blocks belongs into an activity")

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Child[R]:
        interpreter = current(f"calling workflow {self.name} starts a child and")
        what = f"input of workflow {self.name}"
        raw = self.signature.pack(args, kwargs, what=what)
        if not interpreter.is_child_recorded():
            # Checked here, where the code can handle the error: the child could only get stuck.
            self.signature.unpack(raw, what=what)
        return self._start_child(interpreter, raw)

    def options(
        self,
        *,
        id: str | None = None,
        parent_close: ParentClose | str = ParentClose.TERMINATE,
        cancellation: Cancellation | str = Cancellation.REQUEST,
        timeout: Duration | None = None,
        tags: Mapping[str, str] | None = None,
        reuse: Reuse | str | None = None,
        memo: Any = None,  # noqa: ANN401 - any JSON
        delay: Duration | None = None,
        retry: Retry | None = None,
    ) -> Workflow[P, R]:
        """Return the same workflow with options for the executions that are started through it.

        `parent_close` and `cancellation` are for children: with `cancellation="wait"`, code that cancels the child it
        awaits goes on once the child has ended. `reuse`, `memo` and `delay` are for executions started from outside.
        `retry` is in place of the retry policy that the workflow declares.
        """
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__)
        copy._options = replace(
            checked_options(
                self._options,
                self.name,
                id=id,
                parent_close=parent_close,
                cancellation=cancellation,
                timeout=timeout,
                tags=tags,
                retry=retry,
            ),
            reuse=reuse,
            memo=memo,
            delay_seconds=optional_seconds(delay, name="delay"),
        )
        return copy

    @overload
    def start(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]: ...

    @overload
    def start(self: Takes0[R], /, **options: Unpack[StartOptions]) -> Handle[R]: ...

    @overload
    def start(self: Takes1[A, R], a: A, /, **options: Unpack[StartOptions]) -> Handle[R]: ...

    @overload
    def start(self: Takes2[A, B, R], a: A, b: B, /, **options: Unpack[StartOptions]) -> Handle[R]: ...

    @overload
    def start(self: Takes3[A, B, C, R], a: A, b: B, c: C, /, **options: Unpack[StartOptions]) -> Handle[R]: ...

    @overload
    def start(self: Takes4[A, B, C, D, R], a: A, b: B, c: C, d: D, /, **options: Unpack[StartOptions]) -> Handle[R]: ...

    @overload
    def start(
        self: Takes5[A, B, C, D, E, R], a: A, b: B, c: C, d: D, e: E, /, **options: Unpack[StartOptions]
    ) -> Handle[R]: ...

    def start(  # type: ignore[misc]  # mypy cannot match a parameter specification with options beside it
        self,
        *args: Any,
        id: str | None = None,
        reuse: Reuse | str | None = None,
        tags: Mapping[str, str] | None = None,
        memo: Any = None,
        timeout: Duration | None = None,
        delay: Duration | None = None,
        retry: Retry | None = None,
        **kwargs: Any,
    ) -> Handle[Any]:
        """Start an execution, and return once the start is durable.

        The same input under the id of a live execution starts nothing again; another input raises
        `AlreadyStartedError`. `retry` is in place of the retry policy that the workflow declares. Parameters of the
        workflow with the name of an option are passed by position. Type
        checkers accept options beside positional arguments; beside named ones, use `options(...).start(...)`.
        """
        raw = self._input("start", args, kwargs)
        declared = self._options
        client = self._client()
        execution_id = declared.id if id is None else id
        call = ClientCall(ClientCallKind.START, execution_id or "", self.name, raw)
        with around_client(client.interceptors, call):
            handle: Handle[Any] = client.start(
                self.name,
                call.input,
                execution_id=execution_id,
                reuse=reuse or declared.reuse or "never",
                tags=declared.tags if tags is None else tags,
                memo=self._memo(memo),
                timeout_seconds=_first(optional_seconds(timeout, name="timeout"), declared.timeout_seconds),
                delay_seconds=_first(optional_seconds(delay, name="delay"), declared.delay_seconds),
                retry=declared.retry if retry is None else retry,
                headers=call.headers,
            )
        return handle

    @overload
    def signal_with_start(self, signal: Signal[T], value: T, /, *args: P.args, **kwargs: P.kwargs) -> Handle[R]: ...

    @overload
    def signal_with_start(
        self: Takes0[R], signal: Signal[T], value: T, /, **options: Unpack[SignalWithStartOptions]
    ) -> Handle[R]: ...

    @overload
    def signal_with_start(
        self: Takes1[A, R], signal: Signal[T], value: T, a: A, /, **options: Unpack[SignalWithStartOptions]
    ) -> Handle[R]: ...

    @overload
    def signal_with_start(
        self: Takes2[A, B, R], signal: Signal[T], value: T, a: A, b: B, /, **options: Unpack[SignalWithStartOptions]
    ) -> Handle[R]: ...

    @overload
    def signal_with_start(
        self: Takes3[A, B, C, R],
        signal: Signal[T],
        value: T,
        a: A,
        b: B,
        c: C,
        /,
        **options: Unpack[SignalWithStartOptions],
    ) -> Handle[R]: ...

    @overload
    def signal_with_start(
        self: Takes4[A, B, C, D, R],
        signal: Signal[T],
        value: T,
        a: A,
        b: B,
        c: C,
        d: D,
        /,
        **options: Unpack[SignalWithStartOptions],
    ) -> Handle[R]: ...

    @overload
    def signal_with_start(
        self: Takes5[A, B, C, D, E, R],
        signal: Signal[T],
        value: T,
        a: A,
        b: B,
        c: C,
        d: D,
        e: E,
        /,
        **options: Unpack[SignalWithStartOptions],
    ) -> Handle[R]: ...

    @overload
    def signal_with_start(self, signal: str, value: object = None, /, *args: Any, **kwargs: Any) -> Handle[R]: ...  # noqa: ANN401

    def signal_with_start(  # type: ignore[misc]
        self,
        signal: str | Signal[Any],
        value: Any = None,
        /,
        *args: Any,
        id: str | None = None,
        signal_id: str | None = None,
        reuse: Reuse | str | None = None,
        tags: Mapping[str, str] | None = None,
        memo: Any = None,
        timeout: Duration | None = None,
        retry: Retry | None = None,
        **kwargs: Any,
    ) -> Handle[Any]:
        """Send a signal to the execution of this id, and start it first with the other arguments if none is open.

        `signal_id` is an idempotency key: the same signal is received once, and starts nothing again. Raises
        `ExecutionClosedError` if the execution has ended and `reuse` does not allow to replace it.
        """
        raw = self._input("signal_with_start", args, kwargs)
        declared = self._options
        execution_id = declared.id if id is None else id
        if execution_id is None:
            raise InvalidIdError(f"{self.name}.signal_with_start(): give the id of the execution, as id=")
        label = name_of(signal)
        client = self._client()
        call = ClientCall(ClientCallKind.SIGNAL_WITH_START, execution_id, self.name, raw)
        with around_client(client.interceptors, call):
            handle: Handle[Any] = client.signal_with_start(
                self.name,
                call.input,
                label,
                pack(signal, value, what=f"payload of signal {label}"),
                execution_id=execution_id,
                tags=declared.tags if tags is None else tags,
                memo=self._memo(memo),
                timeout_seconds=_first(optional_seconds(timeout, name="timeout"), declared.timeout_seconds),
                retry=declared.retry if retry is None else retry,
                signal_id=signal_id,
                reuse=reuse or declared.reuse or "closed",
                headers=call.headers,
            )
        return handle

    def continue_as_new(self, *args: P.args, **kwargs: P.kwargs) -> NoReturn:
        """End this run and start a new one with this input, as `hg.continue_as_new`, with the arguments checked.

        Raises `WorkflowViolationError` inside of another workflow.
        """
        interpreter = current(f"{self.name}.continue_as_new()")
        assert interpreter.started is not None, "workflow code runs after it was started"
        if interpreter.started.workflow != self.name:
            raise WorkflowViolationError(
                f"{self.name}.continue_as_new() inside of {interpreter.started.workflow}: a run continues as its own "
                "workflow; start another one as a child"
            )
        raise ContinueRequest(self.signature.pack(args, kwargs, what="input of the next run"))

    def _memo(self, memo: object) -> Raw:
        memo = self._options.memo if memo is None else memo
        return NULL if memo is None else payload.encode(memo, what="memo")

    def _input(self, call: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Raw:
        """Return the input of an execution that is started from outside. Raises `InvalidPayloadError`."""
        if running() is not None:
            raise WorkflowViolationError(
                f"{self.name}.{call}() inside of a workflow: call {self.name}(...) to make a child, or do it in an "
                "activity"
            )
        what = f"input of workflow {self.name}"
        raw = self.signature.pack(args, kwargs, what=what)
        # Decoded as the worker does: an invalid input could only get stuck later.
        self.signature.unpack(raw, what=what)
        return raw

    @property
    def start_options(self) -> ExecutionOptions:
        """The options of executions that are started through this workflow."""
        return self._options

    def input_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Raw:
        """Return the input of an execution with these arguments. Raises `InvalidPayloadError`."""
        return self._input("start", args, dict(kwargs))

    def handle(self, id: str) -> Handle[R]:
        """Return the handle of an execution that exists already."""
        handle: Handle[R] = self._client().handle(id, returns=self.signature.result)
        return handle

    def _start_child(self, interpreter: Interpreter, raw: Raw) -> Child[R]:
        timeout_seconds = _first(self._options.timeout_seconds, self.timeout_seconds)
        return new_child(
            interpreter, self.name, raw, replace(self._options, timeout_seconds=timeout_seconds), self._decode
        )

    def _decode(self, result: Raw) -> Any:  # noqa: ANN401
        return self.signature.decode_result(result, f"result of workflow {self.name}")

    def __repr__(self) -> str:
        return f"<workflow {self.name}>"


def new_child(
    interpreter: Interpreter,
    workflow: str,
    input: Raw,
    options: ExecutionOptions,
    decode: Callable[[Raw], Any],
) -> Child[Any]:
    """Start a child of the running workflow."""
    assert interpreter.started is not None, "workflow code runs after it was started"
    headers = interpreter.outbound_headers(OutboundKind.CHILD, workflow, input)
    seq = interpreter.next_seq()
    command = StartChild(
        seq,
        workflow,
        options.id or child_id(interpreter.execution_id, interpreter.started.run, seq),
        input,
        options.parent_close,
        options.timeout_seconds,
        dict(options.tags or {}),
        headers,
        options.retry,
    )
    future: Child[Any] = interpreter.start_child(command, decode, Child)
    future.id = command.child_id
    future.awaits_end = options.cancellation is Cancellation.WAIT
    return future


def checked_options(
    options: ExecutionOptions,
    workflow: str,
    *,
    id: str | None,
    parent_close: ParentClose | str,
    cancellation: Cancellation | str,
    timeout: Duration | None,
    tags: Mapping[str, str] | None,
    retry: Retry | None,
) -> ExecutionOptions:
    """Return options with those of a child. Raises `DefinitionError`, `InvalidIdError`."""
    try:
        close = ParentClose(parent_close)
    except ValueError:
        allowed = [each.value for each in ParentClose]
        raise DefinitionError(f"workflow {workflow}: parent_close {parent_close!r}: use one of {allowed}") from None
    cancel = checked_cancellation(f"workflow {workflow}", cancellation, (Cancellation.REQUEST, Cancellation.WAIT))
    return replace(
        options,
        id=id if id is None else check_execution_id(id),
        parent_close=close,
        cancellation=cancel,
        timeout_seconds=optional_seconds(timeout, name="timeout"),
        tags=check_tags(tags or {}),
        retry=retry,
    )


def checked_cancellation(
    what: str, cancellation: Cancellation | str, allowed: Sequence[Cancellation] = tuple(Cancellation)
) -> Cancellation:
    """Return a policy of cancellation. Raises `DefinitionError`."""
    if cancellation not in allowed:
        names = [each.value for each in allowed]
        raise DefinitionError(f"{what}: cancellation {cancellation!r}: use one of {names}")
    return Cancellation(cancellation)


def _first(value: float | None, otherwise: float | None) -> float | None:
    return otherwise if value is None else value
