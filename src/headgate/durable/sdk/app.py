"""App: declares the workflows, activities, subscriptions, routes and commands of a user's module."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Protocol, TypeVar, overload

from msgspec import Raw

from headgate.durable.bus.events import Event, Mode
from headgate.durable.bus.subscriptions import RETRY_DEFAULT, Filter, HandlerSignature, Subscription
from headgate.durable.http.router import Router
from headgate.durable.model import payload
from headgate.durable.model.async_invocation import AsyncInvocation
from headgate.durable.model.declarations import Versioning
from headgate.durable.model.duration import Duration, optional_seconds, seconds
from headgate.durable.model.history import NULL, ActivityOptions, Cancellation
from headgate.durable.model.interceptors import Interceptor
from headgate.durable.model.names import BUILT_IN, check_name, is_built_in
from headgate.durable.model.payload_codec import PayloadCodec
from headgate.durable.model.retry import Retry
from headgate.durable.model.schedule_declarations import Cron, ScheduleDeclaration
from headgate.durable.replay.determinism_lint import lint
from headgate.durable.sdk.definitions import Activity, Limit, Workflow, checked_cancellation
from headgate.errors import DefinitionError, InvalidPayloadError, NotFoundError

if TYPE_CHECKING:
    from headgate.durable.bus.bus import Bus
    from headgate.durable.client.client import Client

P = ParamSpec("P")
R = TypeVar("R")

DELIVERY_TIMEOUT_SECONDS = 300.0


class DeclaresActivity(Protocol):
    """The decorator that `app.activity(...)` returns. The result type of an async function is that of awaiting it."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Activity[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> Activity[P, R]: ...


class App(Router):
    """The declarations of a service. Loaded by `headgate up --app module:app` and `headgate worker`."""

    def __init__(
        self, name: str, *, interceptors: Sequence[Interceptor] = (), codec: PayloadCodec | None = None
    ) -> None:
        """Create an app. `interceptors` wrap its client calls, workflows and activities, the first one outermost.

        `codec` seals the values of its workflows and activities before they are stored.
        """
        super().__init__()
        self.name = check_name("app", name)
        self.interceptors = tuple(interceptors)
        self.codec = codec
        self.workflows: dict[str, Workflow[..., Any]] = {}
        self.activities: dict[str, Activity[..., Any]] = {}
        self.subscriptions: dict[str, Subscription] = {}
        self.handlers: dict[str, Activity[..., Any]] = {}
        self.schedules: dict[str, ScheduleDeclaration] = {}
        # Workflows whose source had undefined names when they were declared.
        self._unseen: list[Workflow[..., Any]] = []
        self._client: Client | None = None
        self._bus: Bus | None = None

    # Declarations.

    @overload
    def workflow(self, function: Callable[P, Awaitable[R]], /) -> Workflow[P, R]: ...

    @overload
    def workflow(
        self,
        *,
        name: str | None = None,
        timeout: Duration | None = None,
        retention: Duration | None = None,
        retry: Retry | None = None,
        schedule: Cron | None = None,
        versioning: Versioning | Literal["auto", "pinned"] = Versioning.AUTO,
        check: bool = True,
    ) -> Callable[[Callable[P, Awaitable[R]]], Workflow[P, R]]: ...

    def workflow(  # type: ignore[misc]  # mypy cannot match a parameter specification in a decorator's overload
        self,
        function: Any = None,
        /,
        *,
        name: str | None = None,
        timeout: Duration | None = None,
        retention: Duration | None = None,
        retry: Retry | None = None,
        schedule: Cron | None = None,
        versioning: Versioning | Literal["auto", "pinned"] = Versioning.AUTO,
        check: bool = True,
    ) -> Any:
        """Declare an `async def` as a workflow.

        Its source, and that of the functions of the same package that it names, is checked for code that cannot be
        replayed (clocks, random numbers, I/O), unless `check` is False. With `versioning="pinned"`, an execution stays
        with the build of the worker that took its first turn; with "auto", any build whose code fits its history
        continues it. With `retry`, a failed run is followed by another one with the same input. With `schedule`, it is
        started without arguments at these times, by a schedule with the name of the workflow. Raises `DefinitionError`
        with the findings and their remedies.
        """

        def declare(function: Callable[P, Awaitable[R]]) -> Workflow[P, R]:
            workflow = Workflow(
                function,
                name=name or function.__name__,
                timeout_seconds=optional_seconds(timeout, name="timeout"),
                retention_seconds=optional_seconds(retention, name="retention"),
                client=self.client,
                retry=retry,
                interceptors=self.interceptors,
                versioning=versioning,
                codec=self.codec,
            )
            if check:
                self._check(workflow)
            self._declare(self.workflows, "workflow", workflow.name, workflow)
            if schedule is not None:
                self._schedule(workflow.name, workflow, schedule, NULL)
            return workflow

        return declare if function is None else declare(function)

    @overload
    def activity(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Activity[P, R]: ...

    @overload
    def activity(self, function: Callable[P, R], /) -> Activity[P, R]: ...

    @overload
    def activity(
        self,
        *,
        name: str | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        schedule_to_start: Duration | None = None,
        schedule_to_close: Duration | None = None,
        heartbeat: Duration | None = None,
        queue: str = "default",
        limit: Limit | None = None,
        isolate: bool = False,
        cancellation: Cancellation | str = Cancellation.REQUEST,
        invocation: AsyncInvocation | None = None,
    ) -> DeclaresActivity: ...

    def activity(  # type: ignore[misc]  # noqa: PLR0913 - each is an option of users
        self,
        function: Any = None,
        /,
        *,
        name: str | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        schedule_to_start: Duration | None = None,
        schedule_to_close: Duration | None = None,
        heartbeat: Duration | None = None,
        queue: str = "default",
        limit: Limit | None = None,
        isolate: bool = False,
        cancellation: Cancellation | str = Cancellation.REQUEST,
        invocation: AsyncInvocation | None = None,
    ) -> Any:
        """Declare a function, async or not, as an activity: a side effect with retries and time limits.

        With `isolate`, a function that is not async runs in a process of its own, which is killed with all its
        descendants at the time limit or when the activity is cancelled.

        `cancellation` is for workflow code that cancels the activity it awaits: with "request" it goes on at once and
        the activity is stopped; with "wait" it goes on once the activity has ended; with "abandon" it goes on at once
        and the activity runs on.

        With `invocation`, the activity is a Lambda function of its own on AWS, which is invoked asynchronously.
        """
        options = ActivityOptions(
            queue=check_name("queue", queue),
            retry=retry or Retry(),
            start_to_close=optional_seconds(timeout, name="timeout"),
            schedule_to_start=optional_seconds(schedule_to_start, name="schedule_to_start"),
            schedule_to_close=optional_seconds(schedule_to_close, name="schedule_to_close"),
            heartbeat=optional_seconds(heartbeat, name="heartbeat"),
            cancellation=checked_cancellation("activity" if name is None else f"activity {name}", cancellation),
        )

        def declare(function: Callable[P, R]) -> Activity[P, R]:
            activity = Activity(
                function,
                name=name or function.__name__,
                options=options,
                limit=limit,
                isolate=isolate,
                interceptors=self.interceptors,
                invocation=invocation,
            )
            self._declare(self.activities, "activity", activity.name, activity)
            return activity

        return declare if function is None else declare(function)

    def on_event(
        self,
        *types: str,
        name: str | None = None,
        filter: Filter | None = None,
        retry: Retry | None = None,
        timeout: Duration = DELIVERY_TIMEOUT_SECONDS,
        queue: str = "default",
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Declare a handler of all events of these types: `order.created`, `order.*` or `*`.

        Deliveries are at least once; a failed one is retried, and then stored as a dead letter.
        """

        def declare(function: Callable[P, R]) -> Callable[P, R]:
            label = check_name("subscription", name or function.__name__)
            subscription = Subscription(
                name=label,
                types=types,
                filter=filter or Filter(),
                retry=retry or RETRY_DEFAULT,
                start_to_close=seconds(timeout, name="timeout"),
                queue=check_name("queue", queue),
            )
            handler = Activity(function, name=label, options=ActivityOptions(), is_handler=True)
            handler.signature = HandlerSignature.of(function)
            self._declare(self.subscriptions, "subscription", label, subscription)
            self.handlers[label] = handler
            return function

        return declare

    def forward(
        self,
        *types: str,
        to: str,
        name: str,
        filter: Filter | None = None,
        retry: Retry | None = None,
        mode: Mode | str = Mode.STRUCTURED,
    ) -> None:
        """Forward events of these types to another service, as CloudEvents over HTTP.

        `mode` is `structured`, an event as one JSON document, or `binary`, its attributes as headers and its data as
        the body.
        """
        try:
            mode = Mode(mode)
        except ValueError:
            allowed = [each.value for each in Mode]
            raise DefinitionError(f"subscription {name}: mode {mode!r}: use one of {allowed}") from None
        subscription = Subscription(
            name=check_name("subscription", name),
            types=types,
            filter=filter or Filter(),
            retry=retry or RETRY_DEFAULT,
            forward_to=to,
            mode=mode,
        )
        self._declare(self.subscriptions, "subscription", name, subscription)

    def schedule(self, id: str, workflow: Workflow[P, R], cron: Cron, *args: P.args, **kwargs: P.kwargs) -> None:
        """Declare a schedule that starts a workflow with these arguments.

        Workers of the app create it when they start, change it when its declaration changes, and remove it when no live
        worker has declared it for ten minutes.
        """
        self._schedule(id, workflow, cron, workflow.input_of(args, kwargs))

    def _schedule(self, id: str, workflow: Workflow[..., Any], cron: Cron, input: Raw) -> None:
        try:
            workflow.signature.unpack(input, what=f"input of workflow {workflow.name}")
        except InvalidPayloadError as exc:
            raise DefinitionError(
                f"schedule {id}: {exc}; @app.workflow(schedule=...) passes no arguments: use app.schedule()"
            ) from exc
        declaration = ScheduleDeclaration(id, workflow.name, cron, bytes(input).decode())
        self._declare(self.schedules, "schedule", id, declaration)

    def check_again(self) -> None:
        """Check workflows again whose source had undefined names. Raises `DefinitionError`."""
        unseen, self._unseen = self._unseen, []
        try:
            while unseen:
                self._check(unseen[-1])
                unseen.pop()
        finally:
            # A refused workflow is refused the next time too.
            self._unseen = unseen

    def _check(self, workflow: Workflow[..., Any]) -> None:
        result = lint(workflow.function)
        if result.findings:
            raise DefinitionError(f"workflow {workflow.name} cannot be replayed: {'; '.join(result.findings)}")
        if not result.is_whole:
            self._unseen.append(workflow)

    # Use.

    def bind(self, client: Client | None, bus: Bus | None) -> None:
        """Set the client that `workflow.start` uses, and the bus that `emit` uses."""
        self._client = client
        self._bus = bus

    def emit(self, type: str, data: Any = None, *, subject: str = "", id: str = "") -> str:  # noqa: ANN401
        """Emit an event, and return its stored id. `id` is an idempotency key."""
        self.client()
        assert self._bus is not None, "bound together with the client"
        raw = payload.encode(data, what=f"data of event {type}")
        return self._bus.emit(Event(id=id, type=type, source=f"/headgate/{self.name}", subject=subject, data=raw))

    def client(self) -> Client:
        """Return the client of the app. Raises `DefinitionError` if it has none."""
        if self._client is None:
            raise DefinitionError(
                f"app {self.name} is not connected to a store; run it with 'headgate up --app', or in "
                "'with hg.connect(app, home=...)'"
            )
        return self._client

    def activity_names(self) -> list[str]:
        """Return the names of all activities and subscriptions."""
        return [*self.activities, *self.subscriptions]

    def has_activity(self, name: str, *, is_delivery: bool) -> bool:
        """Whether this app has the activity, or the subscription, of this name."""
        return name in (self.subscriptions if is_delivery else self.activities)

    def activity_named(self, name: str, *, is_delivery: bool) -> Activity[..., Any]:
        """Return an activity, or the handler of a subscription. Raises `NotFoundError`."""
        declared: Mapping[str, Activity[..., Any]] = self.handlers if is_delivery else self.activities
        if name not in declared:
            raise NotFoundError(f"activity {name}: app {self.name} does not have it; it has {sorted(declared)}")
        return declared[name]

    def _declare(self, known: dict[str, Any], kind: str, name: str, definition: object) -> None:
        # Headgate declares its own subscriptions here, but registers its workflows and activities directly.
        if kind != "subscription" and is_built_in(name):
            raise DefinitionError(
                f"{kind} {name}: names that begin with {BUILT_IN!r} are reserved for Headgate; give another name="
            )
        if name in known:
            raise DefinitionError(f"{kind} {name}: app {self.name} has one of this name already; give another name=")
        known[name] = definition
