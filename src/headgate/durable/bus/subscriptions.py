"""Subscriptions: which events are delivered to which handler or address, and the registry of them."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from headgate import typed_decode
from headgate.clock import Clock
from headgate.durable.bus.events import TRACEPARENT, Event, Mode, check_type, load
from headgate.durable.model import payload
from headgate.durable.model.history import ActivityOptions
from headgate.durable.model.names import check_name, is_built_in
from headgate.durable.model.records import Activity, instant
from headgate.durable.model.retry import Retry
from headgate.errors import ConflictError, DefinitionError, InvalidPayloadError, NotFoundError
from headgate.store.catalogue.tables import SUBSCRIPTIONS
from headgate.store.model.conditions import Condition, absent, version_is
from headgate.store.model.requests import Query
from headgate.store.model.schema import Key
from headgate.store.model.values import Item, same
from headgate.store.port import Store
from headgate.telemetry import checked_traceparent

ANY: Final = "*"
# Eight attempts within about an hour and a half: long enough for a deployment that is rolled back.
RETRY_DEFAULT: Final = Retry(attempts=8, first=1.0, factor=4.0, most=3600.0)
START_TO_CLOSE_SECONDS: Final = 300.0
# How long a change by another process may go unnoticed.
CACHE_SECONDS: Final = 2.0
META: Final = "META"
KIND: Final = "SUBSCRIPTION"
_TRIES: Final = 10
_ADDRESS: Final = re.compile(r"https?://[^\s/?#@]+([/?][^\s#]*)?")
_MISSING: Final = object()


class Filter(Struct, frozen=True, omit_defaults=True):
    """Conditions on an event besides its type. An empty field matches any event.

    `source` and `subject` match exactly, or by prefix if they end in `*`. `data` maps paths into the data, with dots
    between member names and list indexes, to the required values.
    """

    source: str | None = None
    subject: str | None = None
    data: dict[str, Any] = {}


class Subscription(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A subscription to events. `types` are names, prefixes such as `order.*`, or `*` for all.

    With `forward_to`, events are sent there over HTTP; otherwise the handler of this name is called.
    Raises `DefinitionError` if it is not valid.
    """

    name: str
    types: tuple[str, ...]
    filter: Filter = Filter()
    retry: Retry = RETRY_DEFAULT
    start_to_close: float | None = START_TO_CLOSE_SECONDS
    queue: str = "default"
    forward_to: str | None = None
    # The CloudEvents mode of forwarding.
    mode: Mode = Mode.STRUCTURED

    def __post_init__(self) -> None:
        check_name("subscription", self.name)
        check_name("queue", self.queue)
        if not self.types:
            raise DefinitionError(f"subscription {self.name}: it has no type of event; use '*' for all")
        for pattern in self.types:
            check_pattern(pattern, what=f"subscription {self.name}")
        for path, value in self.filter.data.items():
            if not path or "" in path.split(".") or isinstance(value, list | dict):
                raise DefinitionError(
                    f"subscription {self.name}: filter {path!r}: {value!r}; use a path such as order.status and a "
                    "value that is text, a number, true, false or null"
                )
        if self.start_to_close is not None and self.start_to_close <= 0:
            raise DefinitionError(f"subscription {self.name}: start_to_close {self.start_to_close}: use more than 0")
        if self.forward_to is not None and not _ADDRESS.fullmatch(self.forward_to):
            raise DefinitionError(
                f"subscription {self.name}: forward_to {self.forward_to[:80]!r}: use an address such as "
                "https://shop.example/events, without a user or password"
            )


class Registered(Struct, frozen=True, omit_defaults=True):
    """A subscription as stored for all processes."""

    subscription: Subscription
    app: str
    version: int
    registered_at: str
    retired_at: str | None = None

    def check_in_force(self) -> None:
        """Raise `ConflictError` if it is retired: there may be no app left to handle a delivery."""
        if self.retired_at is not None:
            raise ConflictError(
                f"subscription {self.subscription.name}: it is retired; start an app that declares it, or purge its "
                "dead letters"
            )


def check_pattern(pattern: str, *, what: str = "pattern") -> str:
    """Return a type pattern. Raises `DefinitionError` if it is not valid."""
    try:
        check_type(pattern.removesuffix(".*") if pattern != ANY else "any")
    except InvalidPayloadError as exc:
        raise DefinitionError(f"{what}: {exc}; a '*' stands at the end alone, as in order.*") from exc
    return pattern


def takes_type(patterns: Sequence[str], name: str) -> bool:
    """Whether one of the patterns matches this type."""
    return any(
        pattern in (ANY, name) or (pattern.endswith(".*") and name.startswith(pattern[:-1])) for pattern in patterns
    )


def matches(subscription: Subscription, event: Event) -> bool:
    """Whether the subscription matches the event."""
    return takes_type(subscription.types, event.type) and _admits(subscription.filter, event)


def matching(registered: Sequence[Registered], event: Event) -> list[Subscription]:
    """Return the active subscriptions that match the event, by name."""
    active = [each.subscription for each in registered if each.retired_at is None]
    typed = [each for each in active if takes_type(each.types, event.type)]
    if any(each.filter.data for each in typed):
        event = event.decoded()
    return sorted((each for each in typed if _admits(each.filter, event)), key=lambda each: each.name)


def delivery(subscription: Subscription, event_id: str, body: str, now_ms: int, replay: str = "") -> Activity:
    """Return the activity that delivers an event to a subscription. `body` is the event as structured JSON."""
    options = ActivityOptions(
        queue=subscription.queue, retry=subscription.retry, start_to_close=subscription.start_to_close
    )
    return Activity(
        activity_id=f"{subscription.name}#{event_id}" + (f"#{replay}" if replay else ""),
        name=subscription.name,
        input=body,
        options=msgspec.json.encode(options).decode(),
        token="0",
        scheduled_at_ms=now_ms,
        queue_pk=f"Q#{options.queue}",
        available_at_ms=now_ms,
        subscription=subscription.name,
        traceparent=_traceparent(body),
    )


class _Traced(msgspec.Struct):
    """The trace context of an event in structured JSON."""

    traceparent: str = ""


_traced_decoder: Final = msgspec.json.Decoder(_Traced)


def _traceparent(body: str) -> str:
    if f'"{TRACEPARENT}"' not in body:
        return ""
    try:
        return checked_traceparent(_traced_decoder.decode(body).traceparent)
    except msgspec.DecodeError:
        return ""


class HandlerSignature(payload.Signature):
    """The signature of an event handler: one argument, the event with its data decoded."""

    __slots__ = ()

    @classmethod
    def of(cls, function: Callable[..., object], *, skip_first: bool = False) -> payload.Signature:
        """Return the signature of a handler. Raises `DefinitionError` if it cannot be called with an event alone."""
        signature = super().of(function, skip_first=skip_first)
        parameters = signature.parameters
        if (parameters and not parameters[0].by_position) or any(each.required for each in parameters[1:]):
            name = getattr(function, "__qualname__", None) or repr(function)
            names = ", ".join(each.name for each in parameters)
            raise DefinitionError(
                f"{name}: it takes {names}; a handler of events takes one parameter, the event, by position"
            )
        return signature

    def unpack(self, raw: msgspec.Raw, *, what: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments to call the function with. Raises `InvalidPayloadError`, naming `what`."""
        try:
            event = load(bytes(raw))
        except InvalidPayloadError as exc:
            raise InvalidPayloadError(f"{what}: {exc}") from exc
        return ((event,), {}) if self.parameters else ((), {})


class Registry:
    """The subscriptions of all apps. Safe to use from many threads."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        # Registrations of this process take effect at once, even if the index lags.
        self._own: dict[str, Registered] = {}
        self._cached: tuple[float, tuple[Registered, ...]] | None = None

    def register(self, subscriptions: Sequence[Subscription], app: str) -> None:
        """Register the subscriptions of an app for all processes; a retired one is active again.

        Raises `DefinitionError` for a duplicate name, or one that belongs to another app.
        """
        names = [subscription.name for subscription in subscriptions]
        for name in names:
            if names.count(name) > 1:
                raise DefinitionError(f"subscription {name}: app {app} has two of this name; pass name=")
        for subscription in subscriptions:
            self._cache(self._register(subscription, app))

    def retire(self, name: str) -> None:
        """Stop deliveries to a subscription. Raises `NotFoundError` if there is none of this name."""
        current = self._read(name)
        for _ in range(_TRIES):
            if current is None:
                raise NotFoundError(f"subscription {name}: there is none; 'headgate event subscriptions' lists them")
            if current.retired_at is not None:
                break
            retired = msgspec.structs.replace(current, version=current.version + 1, retired_at=self._now())
            current, was_written = self._write(retired, version_is(current.version))
            if was_written:
                break
        assert current is not None
        self._cache(current)

    def find(self, name: str) -> Registered | None:
        """Return the subscription of this name, retired or not, or None."""
        cached = {each.subscription.name: each for each in self.all()}.get(name)
        return cached if cached is not None else self._read(name)

    def find_many(self, names: Sequence[str]) -> dict[str, Registered]:
        """Return the subscriptions of these names as stored, retired or not."""
        items = self._store.get_many(SUBSCRIPTIONS, [Key(name, META) for name in names], consistent=True)
        return {each.subscription.name: each for item in items if item is not None for each in [_registered(item)]}

    def all(self) -> tuple[Registered, ...]:
        """Return every subscription, as of at most two seconds ago, with all registrations of this process."""
        cached = self._cached
        if cached is not None and self._clock.monotonic() < cached[0] + CACHE_SECONDS:
            return cached[1]
        return self.refresh()

    def refresh(self) -> tuple[Registered, ...]:
        """Read all subscriptions again and return them."""
        asked_at = self._clock.monotonic()
        stored: dict[str, Registered] = {}
        query = Query(table=SUBSCRIPTIONS, index="kind-index", partition=KIND, limit=1000)
        while True:
            page = self._store.query(query)
            stored.update((each.subscription.name, each) for each in map(_registered, page.items))
            if page.cursor is None:
                break
            query = msgspec.structs.replace(query, cursor=page.cursor)
        with self._lock:
            for name, own in self._own.items():
                if name not in stored or stored[name].version < own.version:
                    stored[name] = own
            everyone = tuple(stored.values())
            self._cached = (asked_at, everyone)
        return everyone

    def _register(self, subscription: Subscription, app: str) -> Registered:
        current = self._read(subscription.name)
        for _ in range(_TRIES):
            if current is not None and current.retired_at is None:
                # Headgate's own belong to the app that the server is started with, or to none.
                if current.app != app and not is_built_in(subscription.name):
                    raise DefinitionError(
                        f"subscription {subscription.name}: it belongs to app {current.app!r}; choose another name, "
                        "or retire that one first"
                    )
                if _text(current.subscription) == _text(subscription):
                    return current
            version = 0 if current is None else current.version
            registered = Registered(subscription, app, version + 1, self._now())
            current, was_written = self._write(registered, absent() if version == 0 else version_is(version))
            if was_written:
                return registered
        raise ConflictError(f"subscription {subscription.name}: it kept changing while app {app} registered it; retry")

    def _write(self, registered: Registered, condition: Condition) -> tuple[Registered | None, bool]:
        """Return the stored subscription, and whether it is this one."""
        try:
            self._store.put(SUBSCRIPTIONS, _item(registered), condition=condition)
        except ConflictError as exc:
            return (None if exc.current is None else _registered(exc.current)), False
        return registered, True

    def _cache(self, own: Registered) -> None:
        with self._lock:
            self._own[own.subscription.name] = own
            self._cached = None

    def _read(self, name: str) -> Registered | None:
        return self.find_many([name]).get(name)

    def _now(self) -> str:
        return instant(int(self._clock.seconds() * 1000))


def _text(subscription: Subscription) -> str:
    return msgspec.json.encode(subscription, order="deterministic").decode()


def _item(registered: Registered) -> Item:
    key = {"subscription": registered.subscription.name, "SK": META, "kind": KIND}
    facts = {"app": registered.app, "version": registered.version, "registered_at": registered.registered_at}
    retired = {} if registered.retired_at is None else {"retired_at": registered.retired_at}
    return {**key, **facts, **retired, "definition": _text(registered.subscription)}


def _registered(item: Mapping[str, Any]) -> Registered:
    subscription = typed_decode.from_json(item["definition"], Subscription)
    return Registered(subscription, item["app"], item["version"], item["registered_at"], item.get("retired_at"))


def _admits(filter: Filter, event: Event) -> bool:
    if filter.source is not None and not _is_like(event.source, filter.source):
        return False
    if filter.subject is not None and not _is_like(event.subject, filter.subject):
        return False
    if not filter.data:
        return True
    data = event.decoded().data
    return all(same(_at(data, path), value) for path, value in filter.data.items())


def _is_like(text: str, pattern: str) -> bool:
    return text.startswith(pattern[:-1]) if pattern.endswith(ANY) else text == pattern


def _at(data: Any, path: str) -> Any:  # noqa: ANN401 - any JSON value
    """Return the value at a path, or `_MISSING`, which equals no JSON value."""
    node = data
    for step in path.split("."):
        match node:
            case dict() if step in node:
                node = node[step]
            case list() if step.isdecimal() and int(step) < len(node):
                node = node[int(step)]
            case _:
                return _MISSING
    return node
