"""The app: what a user's module declares. Workflows, activities, subscriptions, routes and commands by name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, overload

from headgate.durable.bus.events import Event, Mode
from headgate.durable.bus.subscriptions import RETRY_DEFAULT, Filter, HandlerSignature, Subscription
from headgate.durable.http.router import Router
from headgate.durable.model import payload
from headgate.durable.model.duration import Duration, optional_seconds, seconds
from headgate.durable.model.history import ActivityOptions
from headgate.durable.model.names import check_name
from headgate.durable.model.retry import Retry
from headgate.durable.replay.determinism_lint import look_through
from headgate.durable.sdk.definitions import Activity, Limit, Workflow
from headgate.errors import DefinitionError, NotFoundError

if TYPE_CHECKING:
    from headgate.durable.bus.bus import Bus
    from headgate.durable.client.client import Client

P = ParamSpec("P")
R = TypeVar("R")

DELIVERY_TIMEOUT_SECONDS = 300.0


class DeclaresActivity(Protocol):
    """The decorator that `app.activity(...)` returns. What an async function returns is what awaiting it gives."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Activity[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> Activity[P, R]: ...


class App(Router):
    """Declares what a service does. Loaded by `headgate up --app module:app` and `headgate worker`."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = check_name("app", name)
        self.workflows: dict[str, Workflow[..., Any]] = {}
        self.activities: dict[str, Activity[..., Any]] = {}
        self.subscriptions: dict[str, Subscription] = {}
        self.handlers: dict[str, Activity[..., Any]] = {}
        # Workflows whose source names something that was not defined when they were declared.
        self._unseen: list[Workflow[..., Any]] = []
        self._client: Client | None = None
        self._bus: Bus | None = None

    # Declaring.

    @overload
    def workflow(self, function: Callable[P, Awaitable[R]], /) -> Workflow[P, R]: ...

    @overload
    def workflow(
        self,
        *,
        name: str | None = None,
        timeout: Duration | None = None,
        retention: Duration | None = None,
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
        check: bool = True,
    ) -> Any:
        """Make an `async def` a workflow.

        Its source, and that of the functions of the same package that it names, is looked through for what cannot be
        replayed (clocks, random numbers, I/O), unless `check` is False. Raises `DefinitionError` with what was found
        and what to use instead.
        """

        def declare(function: Callable[P, Awaitable[R]]) -> Workflow[P, R]:
            made = Workflow(
                function,
                name=name or function.__name__,
                timeout_seconds=optional_seconds(timeout, name="timeout"),
                retention_seconds=optional_seconds(retention, name="retention"),
                client=self.client,
            )
            if check:
                self._check(made)
            self._declare(self.workflows, "workflow", made.name, made)
            return made

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
    ) -> DeclaresActivity: ...

    def activity(  # type: ignore[misc]  # noqa: PLR0913 - each is a thing that users set
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
    ) -> Any:
        """Make a function, async or not, an activity: a side effect with retries and time limits.

        With `isolate`, one that is not async runs in a process of its own, which is killed with everything that it has
        started when its time is up, or nobody wants its result any more.
        """
        options = ActivityOptions(
            queue=check_name("queue", queue),
            retry=retry or Retry(),
            start_to_close=optional_seconds(timeout, name="timeout"),
            schedule_to_start=optional_seconds(schedule_to_start, name="schedule_to_start"),
            schedule_to_close=optional_seconds(schedule_to_close, name="schedule_to_close"),
            heartbeat=optional_seconds(heartbeat, name="heartbeat"),
        )

        def declare(function: Callable[P, R]) -> Activity[P, R]:
            made = Activity(function, name=name or function.__name__, options=options, limit=limit, isolate=isolate)
            self._declare(self.activities, "activity", made.name, made)
            return made

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
        """Have a function called with every event of these types: `order.created`, `order.*` or `*`.

        Deliveries are at least once, retried, and kept as dead letters when they fail for good.
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
        """Send events of these types on to another service, as CloudEvents over HTTP.

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

    def check_again(self) -> None:
        """Look through workflows again that named what was not defined yet. Raises `DefinitionError`."""
        unseen, self._unseen = self._unseen, []
        try:
            while unseen:
                self._check(unseen[-1])
                unseen.pop()
        finally:
            # What was refused is refused the next time too.
            self._unseen = unseen

    def _check(self, workflow: Workflow[..., Any]) -> None:
        looked = look_through(workflow.function)
        if looked.findings:
            raise DefinitionError(f"workflow {workflow.name} cannot be replayed: {'; '.join(looked.findings)}")
        if not looked.is_whole:
            self._unseen.append(workflow)

    # Using what was declared.

    def bind(self, client: Client | None, bus: Bus | None) -> None:
        """Have `workflow.start` and its like reach executions through this client, and events this bus."""
        self._client = client
        self._bus = bus

    def emit(self, type: str, data: Any = None, *, subject: str = "", id: str = "") -> str:  # noqa: ANN401
        """Put an event on the bus, and return its id once it is durable. The same `id` again is the same event."""
        self.client()
        assert self._bus is not None, "bound together with the client"
        raw = payload.encode(data, what=f"data of event {type}")
        return self._bus.emit(Event(id=id, type=type, source=f"/headgate/{self.name}", subject=subject, data=raw))

    def client(self) -> Client:
        """Return the client that the app is bound to. Raises `DefinitionError` if it is not."""
        if self._client is None:
            raise DefinitionError(
                f"app {self.name} is not connected to a store; run it with 'headgate up --app', or in "
                "'with hg.connect(app, home=...)'"
            )
        return self._client

    def activity_names(self) -> list[str]:
        """Return the names of everything that can be performed here."""
        return [*self.activities, *self.subscriptions]

    def has_activity(self, name: str, *, is_delivery: bool) -> bool:
        """Whether this app can perform an activity, or the delivery of an event, of this name."""
        return name in (self.subscriptions if is_delivery else self.activities)

    def activity_named(self, name: str, *, is_delivery: bool) -> Activity[..., Any]:
        """Return what to call. Raises `NotFoundError` if the app has nothing of this name."""
        found: Mapping[str, Activity[..., Any]] = self.handlers if is_delivery else self.activities
        if name not in found:
            raise NotFoundError(f"activity {name}: app {self.name} does not have it; it has {sorted(found)}")
        return found[name]

    def _declare(self, known: dict[str, Any], kind: str, name: str, made: object) -> None:
        if name in known:
            raise DefinitionError(f"{kind} {name}: app {self.name} has one of this name already; give another name=")
        known[name] = made
