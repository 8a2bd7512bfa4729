"""Watching over RPC: changes as the bus tells of them, each with the thing as it stands, from a cursor on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any, Final, NamedTuple

from headgate.auth.roles import Permission
from headgate.auth.rules import filtered
from headgate.clock import Clock
from headgate.durable.bus import Bus
from headgate.durable.event_log import StoredEvent, first_id
from headgate.errors import NotFoundError
from headgate.health import urns, vocabulary
from headgate.health.announcements import SOURCE
from headgate.health.incidents import Incidents
from headgate.health.signals import Signals
from headgate.serve import statestore as pb
from headgate.serve.pool import WorkPool
from headgate.serve.rpc import Declarations, RpcCall
from headgate.serve.statestore_messages import signal_message
from headgate.serve.statestore_methods import shown
from headgate.serve.watching import Watches

PAGE: Final = 100
# How often a stream without news says that it is there; what is between closes connections that are silent.
ALIVE_SECONDS: Final = 15.0
# How long to trust that nothing was committed.
LOOK_SECONDS: Final = 5.0


class News(NamedTuple):
    """Something that the bus told of, or a sign of life; and the cursor to go on from."""

    cursor: str
    data: dict[str, Any] | None


class StateWatching:
    """The Watch methods of signals and incidents."""

    def __init__(
        self, bus: Bus, watches: Watches, pool: WorkPool, clock: Clock, signals: Signals, incidents: Incidents
    ) -> None:
        self._bus = bus
        self._watches = watches
        self._pool = pool
        self._clock = clock
        self._signals = signals
        self._incidents = incidents

    def declare(self, rpcs: Declarations) -> None:
        """Declare the methods."""
        signals = filtered(Permission.SIGNAL_READ, "dataset_urns")
        rpcs.stream("SignalStateService", "Watch", self.watch_signals, rule=signals)
        incidents = filtered(Permission.INCIDENT_READ, "dataset_urns")
        rpcs.stream("IncidentService", "Watch", self.watch_incidents, rule=incidents)

    async def watch_signals(self, request: pb.WatchSignalsRequest, call: RpcCall) -> AsyncIterator[pb.SignalChange]:
        wanted = frozenset(urns.dataset_urn(each) for each in request.dataset_urns)
        kinds = frozenset(vocabulary.signal_type(each) for each in request.signal_types)
        async for cursor, data in self._news("headgate.signal.state_changed", request.cursor):
            if data is None:
                yield pb.SignalChange(cursor=cursor, heartbeat=True)
                continue
            urn, kind = data["dataset_urn"], data["signal_type"]
            if not is_wanted(urn, wanted, call) or (kinds and kind not in kinds):
                continue
            signal = await self._pool.run(partial(self._signals.get, urn, kind))
            if signal is not None:
                yield pb.SignalChange(signal=signal_message(signal), cursor=cursor)

    async def watch_incidents(
        self, request: pb.WatchIncidentsRequest, call: RpcCall
    ) -> AsyncIterator[pb.IncidentChange]:
        wanted = frozenset(urns.dataset_urn(each) for each in request.dataset_urns)
        async for cursor, data in self._news("headgate.incident.*", request.cursor):
            if data is None:
                yield pb.IncidentChange(cursor=cursor, heartbeat=True)
                continue
            if not is_wanted(data["dataset_urn"], wanted, call):
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


def is_wanted(urn: str, wanted: frozenset[str], call: RpcCall) -> bool:
    """Whether a caller asked for this dataset, or for all, and may see it."""
    return (not wanted or urn in wanted) and call.principal.reaches(urn)


def _data(stored: StoredEvent) -> dict[str, Any]:
    data: dict[str, Any] = stored.event.data
    return data
