"""GraphQL subscriptions: signals and incidents as they stand after each change, told by the bus."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

import msgspec
import strawberry
from msgspec import Struct
from strawberry import UNSET

from headgate import typed_decode
from headgate.auth.principals import Principal
from headgate.auth.roles import Permission
from headgate.durable.bus.event_log import StoredEvent
from headgate.errors import NotFoundError
from headgate.health.model import urns
from headgate.health.model.enums import Severity, Tier
from headgate.health.model.incidents import Incident
from headgate.health.model.signals import Signal
from headgate.health.service import HealthService
from headgate.serve.graphql.enums import follows
from headgate.serve.graphql.loaders import Context
from headgate.serve.graphql.types import IncidentType, SignalStateType
from headgate.serve.runtime.log_tail import LogTail
from headgate.serve.runtime.thread_pool import WorkPool
from headgate.serve.runtime.watch_hub import WatchHub

SIGNALS: Final = "headgate.signal.state_changed"
INCIDENTS: Final = "headgate.incident.*"
_LOOK_SECONDS: Final = 1.0
# Between two looks at the log, so that a busy bus is not asked after every event.
_PAUSE_SECONDS: Final = 0.1


class SignalNews(Struct, frozen=True):
    """What an event says of a signal. Anyone who may emit events can say so: it is only where to look."""

    dataset_urn: str
    signal_type: str
    version: int


class IncidentNews(Struct, frozen=True):
    """What an event says of an incident. Anyone who may emit events can say so: it is only where to look."""

    dataset_urn: str
    incident_id: str
    version: int


N = TypeVar("N", SignalNews, IncidentNews)


class Following:
    """What subscriptions follow the log with."""

    def __init__(self, health: HealthService, pool: WorkPool, watches: WatchHub) -> None:
        self.health = health
        self.pool = pool
        self.watches = watches


class StreamContext(Context):
    """The context of a subscription, which besides reading waits for news."""

    def __init__(self, following: Following, principal: Principal) -> None:
        super().__init__(following.health, principal, float("inf"))
        self.following = following

    async def named(self, given: str | None, permission: Permission) -> str | None:
        """Return the name that a dataset is registered under. Raises `InvalidIdError` or `ForbiddenError`."""
        if given is None:
            return None
        urn = await self.following.pool.run(partial(self.registered, urns.dataset_urn(given)))
        self.require(permission, urn)
        return urn

    async def news(self, kind: str, shape: type[N]) -> AsyncIterator[list[N]]:
        """Go through what events of a type say from now on, those that came in together at once.

        What is said of datasets that are not in scope is left out. It ends when the server stops, and with what the
        store raises.
        """
        tail = LogTail(self.health, kind)
        watches, pool = self.following.watches, self.following.pool
        while not watches.is_stopping:
            found = _read(await pool.run(tail.poll), shape)
            if wanted := [each for each in found if self.principal.reaches(each.dataset_urn)]:
                yield wanted
            await asyncio.sleep(_PAUSE_SECONDS)
            await watches.committed(_LOOK_SECONDS)


StreamInfo = strawberry.Info[StreamContext, None]


@strawberry.type(name="Subscription")
class Subscription:
    """What can be followed. Changes in quick succession may be told as one: the thing as it then stands."""

    @follows("Signals that have changed their state, of one dataset or tier or all.")
    async def signal_changed(
        self, info: StreamInfo, dataset_urn: str | None = UNSET, tier: Tier | None = UNSET
    ) -> AsyncGenerator[SignalStateType, None]:
        context = info.context
        urn = await context.named(dataset_urn or None, Permission.SIGNAL_READ)
        async for news in context.news(SIGNALS, SignalNews):
            found = await context.following.pool.run(partial(signals_of, context.health, news))
            for each in found:
                if urn in (None, each.dataset_urn) and (not tier or each.tier is tier):
                    yield SignalStateType.of(each)

    @follows("Incidents that were opened, changed or resolved, of one dataset or all.")
    async def incident_changed(
        self, info: StreamInfo, dataset_urn: str | None = UNSET, severity: Severity | None = UNSET
    ) -> AsyncGenerator[IncidentType, None]:
        context = info.context
        urn = await context.named(dataset_urn or None, Permission.INCIDENT_READ)
        async for news in context.news(INCIDENTS, IncidentNews):
            found = await context.following.pool.run(partial(incidents_of, context.health, news))
            for each in found:
                of = each.primary_dataset_urn
                # An event may have spoken of another dataset than the incident is of.
                if urn in (None, of) and context.principal.reaches(of) and (not severity or each.severity is severity):
                    yield IncidentType.of(each, context)


def signals_of(health: HealthService, news: list[SignalNews]) -> list[Signal]:
    """Return the signals that events tell of as they stand now, each once. One that is no longer kept is left out."""
    versions = {(each.dataset_urn, each.signal_type): each.version for each in news}
    named = list(dict.fromkeys(urn for urn, _ in versions))
    listed = health.signals.of_datasets(named) if named else []
    by_key = {(each.dataset_urn, each.signal_type): each for its in listed for each in its}
    found = []
    for (urn, signal_type), version in versions.items():
        signal = by_key.get((urn, signal_type))
        if signal is None or signal.version < version:
            # The event was here before a replica that answered had the signal.
            signal = health.signals.get(urn, signal_type, consistent=True)
        if signal is not None:
            found.append(signal)
    return found


def incidents_of(health: HealthService, news: list[IncidentNews]) -> list[Incident]:
    """Return the incidents that events tell of as they stand now, each once. One that is no longer kept is left out."""
    versions = {each.incident_id: each.version for each in news}
    listed = health.incidents.get_many(list(versions)) if versions else []
    found = []
    for incident, (incident_id, version) in zip(listed, versions.items(), strict=True):
        if incident is not None and incident.version >= version:
            found.append(incident)
            continue
        try:
            found.append(health.incidents.get(incident_id))
        except NotFoundError:
            continue
    return found


def _read(events: list[StoredEvent], shape: type[N]) -> list[N]:
    """Return what events say. Those that say something else are left out."""
    found = []
    for each in events:
        with suppress(msgspec.ValidationError):
            found.append(typed_decode.convert(each.event.data, shape))
    return found
