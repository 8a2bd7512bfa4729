"""Watching over RPC: changes as the bus tells of them, each with the thing as it stands, from a cursor on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from functools import partial
from typing import Any, Final, NamedTuple

from headgate.auth.principals import Principal
from headgate.auth.roles import Permission
from headgate.auth.rules import Reach, Rule
from headgate.durable.bus.bus import Bus
from headgate.durable.bus.event_log import StoredEvent, first_id
from headgate.errors import NotFoundError
from headgate.health.model import enums as vocabulary
from headgate.health.model import urns
from headgate.health.model.events import SOURCE
from headgate.health.service import HealthService
from headgate.serve.rest.health.dataset_names import NamedDatasets
from headgate.serve.rpc.methods import MethodRegistry, RpcCall
from headgate.serve.rpc.statestore import proto as pb
from headgate.serve.rpc.statestore.messages import signal_message
from headgate.serve.rpc.statestore.signals import shown
from headgate.serve.runtime.thread_pool import WorkPool
from headgate.serve.runtime.watch_hub import WatchHub

PAGE: Final = 100
# How often a stream without news says that it is there; what is between closes connections that are silent.
ALIVE_SECONDS: Final = 15.0
# How long to trust that nothing was committed.
LOOK_SECONDS: Final = 5.0


class News(NamedTuple):
    """Something that the bus told of, or a sign of life; and the cursor to go on from."""

    cursor: str
    data: dict[str, Any] | None


class Wanted(NamedTuple):
    """Which datasets someone watches. None that is named: all that they reach."""

    registered: frozenset[str]
    # Names that nobody had registered when the watch began. Whichever form is registered later is meant.
    unknown: frozenset[str]
    principal: Principal

    @classmethod
    def of(cls, names: NamedDatasets, given: Iterable[str], principal: Principal) -> Wanted:
        """Return what someone names. Raises `InvalidIdError`, `ForbiddenError` and `TransientError`."""
        asked = [(each, names.one(each, principal), names.is_registered(each)) for each in given]
        return cls(
            frozenset(urn for _, urn, is_known in asked if is_known),
            frozenset(urns.unversioned(each) for each, _, is_known in asked if not is_known),
            principal,
        )

    def has(self, urn: str) -> bool:
        """Whether news of a dataset are for them."""
        is_named = urn in self.registered or urns.unversioned(urn) in self.unknown
        return (is_named or not (self.registered or self.unknown)) and self.principal.reaches(urn)


class StateWatching:
    """The Watch methods of signals and incidents."""

    def __init__(self, health: HealthService, bus: Bus, watches: WatchHub, pool: WorkPool) -> None:
        self._bus = bus
        self._watches = watches
        self._pool = pool
        self._clock = health.clock
        self._signals = health.signals
        self._incidents = health.incidents
        self._of_signals = NamedDatasets(health, Permission.SIGNAL_READ)
        self._of_incidents = NamedDatasets(health, Permission.INCIDENT_READ)

    def declare(self, rpcs: MethodRegistry) -> None:
        """Declare the methods."""
        signals = Rule(Permission.SIGNAL_READ, Reach.FILTERED)
        rpcs.stream("SignalStateService", "Watch", self.watch_signals, rule=signals)
        incidents = Rule(Permission.INCIDENT_READ, Reach.FILTERED)
        rpcs.stream("IncidentService", "Watch", self.watch_incidents, rule=incidents)

    async def watch_signals(self, request: pb.WatchSignalsRequest, call: RpcCall) -> AsyncIterator[pb.SignalChange]:
        named = partial(Wanted.of, self._of_signals, request.dataset_urns, call.principal)
        wanted = await self._pool.run(named)
        kinds = frozenset(vocabulary.signal_type(each) for each in request.signal_types)
        async for cursor, data in self._news("headgate.signal.state_changed", request.cursor):
            if data is None:
                yield pb.SignalChange(cursor=cursor, heartbeat=True)
                continue
            urn, kind = data["dataset_urn"], data["signal_type"]
            if not wanted.has(urn) or (kinds and kind not in kinds):
                continue
            signal = await self._pool.run(partial(self._signals.get, urn, kind))
            if signal is not None:
                yield pb.SignalChange(signal=signal_message(signal), cursor=cursor)

    async def watch_incidents(
        self, request: pb.WatchIncidentsRequest, call: RpcCall
    ) -> AsyncIterator[pb.IncidentChange]:
        named = partial(Wanted.of, self._of_incidents, request.dataset_urns, call.principal)
        wanted = await self._pool.run(named)
        async for cursor, data in self._news("headgate.incident.*", request.cursor):
            if data is None:
                yield pb.IncidentChange(cursor=cursor, heartbeat=True)
                continue
            if not wanted.has(data["dataset_urn"]):
                continue
            try:
                incident = await self._pool.run(partial(self._incidents.get, data["incident_id"]))
            except NotFoundError:
                # Expired since then.
                continue
            message = shown(incident, call.principal)
            yield pb.IncidentChange(event_type=data["event_type"], incident=message, cursor=cursor)

    async def _news(self, type: str, cursor: str) -> AsyncIterator[News]:
        """Yield what the bus tells of, and signs of life, until the server stops. Raises `InvalidIdError`."""
        cursor = cursor or first_id(int(self._clock.seconds() * 1000))
        spoke_at = self._clock.monotonic()
        while not self._watches.is_stopping:
            found = await self._pool.run(partial(self._bus.tail, cursor, type=type, limit=PAGE))
            for stored in found:
                cursor = stored.event_id
                # Anyone may emit an event of any type, but not from here.
                if stored.source != SOURCE:
                    continue
                yield News(cursor, _data(stored))
                spoke_at = self._clock.monotonic()
            if self._clock.monotonic() - spoke_at >= ALIVE_SECONDS:
                yield News(cursor, None)
                spoke_at = self._clock.monotonic()
            if len(found) < PAGE:
                await self._watches.committed(LOOK_SECONDS)


def _data(stored: StoredEvent) -> dict[str, Any]:
    data: dict[str, Any] = stored.event.data
    return data
