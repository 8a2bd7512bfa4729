"""Definitions: workflows and activities as the decorators of an app create them from functions."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

import msgspec
from msgspec import Raw

from headgate.durable.model import payload
from headgate.durable.model.duration import Duration, optional_seconds, seconds
from headgate.durable.model.history import NULL, ActivityOptions, ParentClose, StartChild
from headgate.durable.model.names import check_execution_id, check_name, check_signal_name, check_tags, child_id
from headgate.durable.model.retry import Retry
from headgate.durable.replay.interpreter import Interpreter, PendingFuture, current, running
from headgate.errors import DefinitionError, WorkflowViolationError

if TYPE_CHECKING:
    from headgate.durable.client.handle import Handle
    from headgate.durable.model.starts import Reuse

P = ParamSpec("P")
R = TypeVar("R")


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
    ) -> None:
        self.name = check_name("activity", name)
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
        if isolate and self.is_async:
            raise DefinitionError(f"activity {name}: isolate=True is for functions that are not async")

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]:
        interpreter = running()
        if interpreter is None:
            return self.function(*args, **kwargs)  # type: ignore[return-value]  # the plain function, as in a unit test
        raw = self.signature.pack(args, kwargs, what=f"input of activity {self.name}")
        return interpreter.start_activity(self.name, raw, self.options_for(args, kwargs), self._decode)

    def options(
        self,
        *,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        schedule_to_start: Duration | None = None,
        schedule_to_close: Duration | None = None,
        heartbeat: Duration | None = None,
        queue: str | None = None,
    ) -> Activity[P, R]:
        """Return the same activity with other options for the calls made through it."""
        options = {
            "retry": retry,
            "start_to_close": optional_seconds(timeout, name="timeout"),
            "schedule_to_start": optional_seconds(schedule_to_start, name="schedule_to_start"),
            "schedule_to_close": optional_seconds(schedule_to_close, name="schedule_to_close"),
            "heartbeat": optional_seconds(heartbeat, name="heartbeat"),
            "queue": queue if queue is None else check_name("queue", queue),
        }
        changed = {name: value for name, value in options.items() if value is not None}
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__)
        copy.activity_options = msgspec.structs.replace(self.activity_options, **changed)
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
        return self.signature.decode_result(result, f"result of activity {self.name}")

    def __repr__(self) -> str:
        return f"<activity {self.name}>"


class Child(PendingFuture):
    """A child execution: await it for its result."""

    __slots__ = ("id",)

    id: str

    def signal(self, name: str, value: Any = None) -> Awaitable[None]:  # noqa: ANN401
        """Send the child a signal."""
        raw = payload.encode(value, what=f"payload of signal {name}")
        return self._interpreter.send_signal(self.id, check_signal_name(name), raw)


@dataclass(frozen=True)
class ChildOptions:
    """The options of a child."""

    id: str | None = None
    parent_close: ParentClose = ParentClose.TERMINATE
    timeout_seconds: float | None = None
    tags: Mapping[str, str] | None = None


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
    ) -> None:
        self.name = check_name("workflow", name)
        self.function = function
        self.signature = payload.Signature.of(function)
        self.timeout_seconds = timeout_seconds
        self.retention_seconds = retention_seconds
        self._client = client
        self._child = ChildOptions()
        if not inspect.iscoroutinefunction(function):
            raise DefinitionError(f"workflow {name}: write it as 'async def'; what blocks belongs into an activity")

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Child:
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
        timeout: Duration | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> Workflow[P, R]:
        """Return the same workflow with options for the children that are made through it."""
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__)
        copy._child = replace(
            self._child,
            id=id if id is None else check_execution_id(id),
            parent_close=self._parent_close(parent_close),
            timeout_seconds=optional_seconds(timeout, name="timeout"),
            tags=check_tags(tags or {}),
        )
        return copy

    def _parent_close(self, value: ParentClose | str) -> ParentClose:
        try:
            return ParentClose(value)
        except ValueError:
            allowed = [each.value for each in ParentClose]
            raise DefinitionError(f"workflow {self.name}: parent_close {value!r}: use one of {allowed}") from None

    def start(
        self,
        *args: Any,  # noqa: ANN401 - arguments of the workflow, checked when they are packed
        id: str | None = None,
        reuse: Reuse | str = "never",
        tags: Mapping[str, str] | None = None,
        memo: Any = None,  # noqa: ANN401
        timeout: Duration | None = None,
        delay: Duration | None = None,
        **kwargs: Any,  # noqa: ANN401
    ) -> Handle:
        """Start an execution, and return once the start is durable.

        The same input under the id of a live execution starts nothing again; another input raises
        `AlreadyStartedError`. Parameters of the workflow with the name of an option are passed by position.
        """
        raw = self._input("start", args, kwargs)
        handle: Handle = self._client().start(
            self.name,
            raw,
            execution_id=id,
            reuse=reuse,
            tags=tags,
            memo=NULL if memo is None else payload.encode(memo, what="memo"),
            timeout_seconds=optional_seconds(timeout, name="timeout"),
            delay_seconds=optional_seconds(delay, name="delay"),
        )
        return handle

    def signal_with_start(
        self,
        name: str,
        value: Any = None,  # noqa: ANN401 - any JSON
        /,
        *args: Any,  # noqa: ANN401 - arguments of the workflow, checked when they are packed
        id: str,
        signal_id: str | None = None,
        reuse: Reuse | str = "closed",
        tags: Mapping[str, str] | None = None,
        memo: Any = None,  # noqa: ANN401
        timeout: Duration | None = None,
        **kwargs: Any,  # noqa: ANN401
    ) -> Handle:
        """Send a signal to the execution of this id, and start it first with the other arguments if none is open.

        `signal_id` is an idempotency key: the same signal is received once, and starts nothing again. Raises
        `ExecutionClosedError` if the execution has ended and `reuse` does not allow to replace it.
        """
        raw = self._input("signal_with_start", args, kwargs)
        handle: Handle = self._client().signal_with_start(
            self.name,
            raw,
            name,
            payload.encode(value, what=f"payload of signal {name}"),
            execution_id=id,
            tags=tags,
            memo=NULL if memo is None else payload.encode(memo, what="memo"),
            timeout_seconds=optional_seconds(timeout, name="timeout"),
            signal_id=signal_id,
            reuse=reuse,
        )
        return handle

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

    def handle(self, id: str) -> Handle:
        """Return the handle of an execution that exists already."""
        handle: Handle = self._client().handle(id)
        return handle

    def _start_child(self, interpreter: Interpreter, raw: Raw) -> Child:
        assert interpreter.started is not None, "workflow code runs after it was started"
        seq = interpreter.next_seq()
        options = self._child
        timeout_seconds = options.timeout_seconds if options.timeout_seconds is not None else self.timeout_seconds
        command = StartChild(
            seq,
            self.name,
            options.id or child_id(interpreter.execution_id, interpreter.started.run, seq),
            raw,
            options.parent_close,
            timeout_seconds,
            dict(options.tags or {}),
        )
        future = interpreter.start_child(command, self._decode, Child)
        future.id = command.child_id
        return future

    def _decode(self, result: Raw) -> Any:  # noqa: ANN401
        return self.signature.decode_result(result, f"result of workflow {self.name}")

    def __repr__(self) -> str:
        return f"<workflow {self.name}>"
