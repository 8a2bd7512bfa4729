"""Subscription API: list and retire subscriptions, replay past events."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final

from litestar.types import ControllerRouterHandler
from msgspec import Meta, Struct

from headgate.auth.roles import Permission
from headgate.auth.rules import Reach
from headgate.durable.bus.replays import DROPPED_MAX, ReplayState, ReplayStatus
from headgate.durable.bus.subscriptions import Filter, Registered
from headgate.durable.model.records import instant
from headgate.durable.service import Service
from headgate.serve.http.operations import AccessPolicy, Answer, Auditing, Call, NoQuery, Operation, operation_routes
from headgate.serve.http.raw_json import idempotency_key
from headgate.serve.rest.parameters import Cursor, EventPattern, ReplayId
from headgate.serve.runtime.thread_pool import WorkPool

# Events of every dataset are included.
_POLICY: Final = AccessPolicy(Permission.EVENT_READ, Permission.EVENT_WRITE, Reach.ALL)


class SubscriptionView(Struct, frozen=True, omit_defaults=True):
    """A subscription."""

    name: str
    app: str
    types: tuple[str, ...]
    queue: str
    attempts: int | None
    registered_at: str
    filter: FilterView | None = None
    forward_to: str | None = None
    retired_at: str | None = None


class FilterView(Struct, frozen=True, omit_defaults=True):
    """Conditions besides the event type."""

    source: str | None = None
    subject: str | None = None
    data: dict[str, str | int | float | bool | None] = {}


class SubscriptionPage(Struct, frozen=True):
    """All subscriptions."""

    subscriptions: list[SubscriptionView]


class Replay(Struct, forbid_unknown_fields=True):
    """Events to replay. With an id, a repeated request resumes the replay."""

    since: Annotated[datetime, Meta(tz=True)]
    until: Annotated[datetime, Meta(tz=True)]
    types: list[EventPattern] = []
    id: ReplayId | None = None


class Replayed(Struct, frozen=True):
    """Number of replayed events."""

    count: int


class ReplayView(Struct, frozen=True, omit_defaults=True):
    """A replay: its range, status and number of deliveries."""

    id: str
    status: ReplayStatus
    count: int
    since: str
    until: str
    types: tuple[str, ...] = ()


class ReplayPage(Struct, frozen=True):
    """The retained replays of a subscription."""

    replays: list[ReplayView]


class StopReplay(Struct, forbid_unknown_fields=True):
    """Maximum pending deliveries to drop per request, and where to continue."""

    limit: Annotated[int, Meta(ge=1, le=DROPPED_MAX)] = DROPPED_MAX
    cursor: Cursor | None = None


class ReplayStopped(Struct, frozen=True, omit_defaults=True):
    """A stopped replay and the number of dropped deliveries; the cursor continues with the rest."""

    replay: ReplayView
    dropped: int
    cursor: str | None = None


def subscription_routes(
    service: Service, pool: WorkPool, *, auditing: Auditing | None = None
) -> list[ControllerRouterHandler]:
    """Return the routes of subscriptions and their replays."""
    return operation_routes(_Subscriptions(service).operations(), pool, _POLICY, auditing=auditing)


class _Subscriptions:
    def __init__(self, service: Service) -> None:
        self._bus = service.bus

    def operations(self) -> list[Operation]:
        one = "/subscriptions/{name}"
        stop = f"{one}/replays/{{id}}/stop"
        return [
            Operation("GET", "/subscriptions", "List subscriptions", self.ls, {200: SubscriptionPage}),
            Operation("POST", f"{one}/retire", "Retire a subscription", self.retire, {200: SubscriptionView}),
            Operation("POST", f"{one}/replay", "Replay past events", self.replay, {200: Replayed}, body=Replay),
            Operation("GET", f"{one}/replays", "List replays", self.replays, {200: ReplayPage}),
            Operation("POST", stop, "Stop a replay", self.stop, {200: ReplayStopped}, body=StopReplay),
        ]

    def ls(self, _call: Call[None, NoQuery]) -> Answer:
        found = sorted(self._bus.refresh(), key=lambda each: each.subscription.name)
        return Answer(SubscriptionPage([_view(each) for each in found]))

    def retire(self, call: Call[None, NoQuery]) -> Answer:
        self._bus.retire(call.path["name"])
        return Answer(_view(self._bus.subscription(call.path["name"])))

    def replay(self, call: Call[Replay, NoQuery]) -> Answer:
        body = call.body
        replay_id = body.id if body.id is not None else idempotency_key(call.headers)
        count = self._bus.replay(
            call.path["name"], since=body.since, until=body.until, types=body.types, replay_id=replay_id
        )
        return Answer(Replayed(count))

    def replays(self, call: Call[None, NoQuery]) -> Answer:
        return Answer(ReplayPage([_replay_view(each) for each in self._bus.replays(call.path["name"])]))

    def stop(self, call: Call[StopReplay, NoQuery]) -> Answer:
        body = call.body
        stopped = self._bus.stop_replay(call.path["name"], call.path["id"], limit=body.limit, cursor=body.cursor)
        return Answer(ReplayStopped(_replay_view(stopped.replay), stopped.dropped, stopped.cursor))


def _view(registered: Registered) -> SubscriptionView:
    subscription = registered.subscription
    condition = subscription.filter
    return SubscriptionView(
        name=subscription.name,
        app=registered.app,
        types=subscription.types,
        queue=subscription.queue,
        attempts=subscription.retry.attempts,
        registered_at=registered.registered_at,
        filter=None if condition == Filter() else FilterView(condition.source, condition.subject, dict(condition.data)),
        forward_to=subscription.forward_to,
        retired_at=registered.retired_at,
    )


def _replay_view(replay: ReplayState) -> ReplayView:
    scope = (instant(replay.since_ms), instant(replay.until_ms), replay.types)
    return ReplayView(replay.id, replay.status, replay.count, *scope)
