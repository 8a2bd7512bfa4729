"""GraphQL subscriptions: current signals and incidents after each change, driven by bus events."""

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
_POLL_SECONDS: Final = 1.0
# Minimum time between polls, so that a busy bus is not read after every event.
_PAUSE_SECONDS: Final = 0.1


class SignalEvent(Struct, frozen=True):
    """A signal event. Users may emit such events, so it is only a hint to read the signal."""

    dataset_urn: str
    signal_type: str
    version: int


class IncidentEvent(Struct, frozen=True):
    """An incident event. Users may emit such events, so it is only a hint to read the incident."""

    dataset_urn: str
    incident_id: str
    version: int


N = TypeVar("N", SignalEvent, IncidentEvent)


class Following:
    """Dependencies of subscriptions: watch hub and thread pool."""

    def __init__(self, health: HealthService, pool: WorkPool, watches: WatchHub) -> None:
        self.health = health
        self.pool = pool
        self.watches = watches


class StreamContext(Context):
    """Context of a subscription."""

    def __init__(self, following: Following, principal: Principal) -> None:
        super().__init__(following.health, principal, float("inf"))
        self.following = following

    async def named(self, given: str | None, permission: Permission) -> str | None:
        """Return the registered name of a dataset. Raises `InvalidIdError` or `ForbiddenError`."""
        if given is None:
            return None
        urn = await self.following.pool.run(partial(self.registered, urns.dataset_urn(given)))
        self.require(permission, urn)
        return urn

    async def events(self, kind: str, shape: type[N]) -> AsyncIterator[list[N]]:
        """Yield batches of events of a type from now on.

        Events of datasets out of scope are dropped. It ends when the server stops, and raises errors of the store.
        """
        tail = LogTail(self.health, kind)
        watches, pool = self.following.watches, self.following.pool
        while not watches.is_stopping:
            found = _read(await pool.run(tail.poll), shape)
            if wanted := [each for each in found if self.principal.reaches(each.dataset_urn)]:
                yield wanted
            await asyncio.sleep(_PAUSE_SECONDS)
            await watches.committed(_POLL_SECONDS)


StreamInfo = strawberry.Info[StreamContext, None]


@strawberry.type(name="Subscription")
class Subscription:
    """Root subscriptions. Rapid changes may be merged: each message has the current state."""

    @follows("Signals whose state changed, of one dataset, one tier or all.")
    async def signal_changed(
        self, info: StreamInfo, dataset_urn: str | None = UNSET, tier: Tier | None = UNSET
    ) -> AsyncGenerator[SignalStateType, None]:
        context = info.context
        urn = await context.named(dataset_urn or None, Permission.SIGNAL_READ)
        async for events in context.events(SIGNALS, SignalEvent):
            found = await context.following.pool.run(partial(signals_of, context.health, events))
            for each in found:
                if urn in (None, each.dataset_urn) and (not tier or each.tier is tier):
                    yield SignalStateType.of(each)

    @follows("Incidents that were opened, changed or resolved, of one dataset or all.")
    async def incident_changed(
        self, info: StreamInfo, dataset_urn: str | None = UNSET, severity: Severity | None = UNSET
    ) -> AsyncGenerator[IncidentType, None]:
        context = info.context
        urn = await context.named(dataset_urn or None, Permission.INCIDENT_READ)
        async for events in context.events(INCIDENTS, IncidentEvent):
            found = await context.following.pool.run(partial(incidents_of, context.health, events))
            for each in found:
                of = each.primary_dataset_urn
                # The event may name another dataset than the incident has.
                if urn in (None, of) and context.principal.reaches(of) and (not severity or each.severity is severity):
                    yield IncidentType.of(each, context)


def signals_of(health: HealthService, events: list[SignalEvent]) -> list[Signal]:
    """Return the current signals of events, without duplicates. Deleted ones are dropped."""
    versions = {(each.dataset_urn, each.signal_type): each.version for each in events}
    named = list(dict.fromkeys(urn for urn, _ in versions))
    listed = health.signals.of_datasets(named) if named else []
    by_key = {(each.dataset_urn, each.signal_type): each for its in listed for each in its}
    found = []
    for (urn, signal_type), version in versions.items():
        signal = by_key.get((urn, signal_type))
        if signal is None or signal.version < version:
            # The event arrived before a replica that answered had the signal.
            signal = health.signals.get(urn, signal_type, consistent=True)
        if signal is not None:
            found.append(signal)
    return found


def incidents_of(health: HealthService, events: list[IncidentEvent]) -> list[Incident]:
    """Return the current incidents of events, without duplicates. Deleted ones are dropped."""
    versions = {each.incident_id: each.version for each in events}
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
    """Parse events. Those of another shape are dropped."""
    found = []
    for each in events:
        with suppress(msgspec.ValidationError):
            found.append(typed_decode.convert(each.event.data, shape))
    return found
