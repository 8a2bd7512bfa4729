"""Watch methods: streams of signal and incident changes from the event bus, resumable by cursor."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from headgate.auth.principals import Principal
from headgate.auth.roles import Permission
from headgate.auth.rules import Reach, Rule
from headgate.durable.bus.bus import Bus
from headgate.durable.bus.event_log import StoredEvent, first_id
from headgate.errors import NotFoundError
from headgate.health.model import enums, urns
from headgate.health.model.enums import SignalState
from headgate.health.model.events import SOURCE
from headgate.health.model.signals import Signal
from headgate.health.service import HealthService
from headgate.serve.rest.health.dataset_names import NamedDatasets
from headgate.serve.rpc.methods import MethodRegistry, RpcCall
from headgate.serve.rpc.statestore import proto as pb
from headgate.serve.rpc.statestore.messages import signal_message
from headgate.serve.rpc.statestore.signals import masked_incident
from headgate.serve.runtime.thread_pool import WorkPool
from headgate.serve.runtime.watch_hub import WatchHub

PAGE: Final = 100
# Heartbeat interval of an idle stream; proxies close silent connections.
HEARTBEAT_SECONDS: Final = 15.0
# Poll interval without a commit notification.
POLL_SECONDS: Final = 5.0


class WatchEvent(NamedTuple):
    """An event, or a heartbeat if `data` is None; and the cursor to resume from."""

    cursor: str
    data: dict[str, Any] | None


class WatchScope(NamedTuple):
    """The datasets of a watch. Without names: all in the caller's scope."""

    registered: frozenset[str]
    # Names not registered when the watch started. They match whichever form is registered later.
    unknown: frozenset[str]
    principal: Principal

    @classmethod
    def of(cls, names: NamedDatasets, requested: Iterable[str], principal: Principal) -> WatchScope:
        """Resolve the requested names. Raises `InvalidIdError`, `ForbiddenError` and `TransientError`."""
        resolved = [(each, names.one(each, principal), names.is_registered(each)) for each in requested]
        return cls(
            frozenset(urn for _, urn, is_known in resolved if is_known),
            frozenset(urns.unversioned(each) for each, _, is_known in resolved if not is_known),
            principal,
        )

    def has(self, urn: str) -> bool:
        """Whether events of a dataset belong to the watch."""
        is_named = urn in self.registered or urns.unversioned(urn) in self.unknown
        return (is_named or not (self.registered or self.unknown)) and self.principal.reaches(urn)


class WatchMethods:
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
        named = partial(WatchScope.of, self._of_signals, request.dataset_urns, call.principal)
        scope = await self._pool.run(named)
        kinds = frozenset(enums.signal_type(each) for each in request.signal_types)
        async for cursor, data in self._events("headgate.signal.state_changed", request.cursor):
            if data is None:
                yield pb.SignalChange(cursor=cursor, heartbeat=True)
                continue
            urn, kind = data["dataset_urn"], data["signal_type"]
            if not scope.has(urn) or (kinds and kind not in kinds):
                continue
            signal = await self._pool.run(partial(self._signals.get, urn, kind))
            if signal is not None:
                yield pb.SignalChange(signal=signal_message(as_of_event(signal, data)), cursor=cursor)

    async def watch_incidents(
        self, request: pb.WatchIncidentsRequest, call: RpcCall
    ) -> AsyncIterator[pb.IncidentChange]:
        named = partial(WatchScope.of, self._of_incidents, request.dataset_urns, call.principal)
        scope = await self._pool.run(named)
        async for cursor, data in self._events("headgate.incident.*", request.cursor):
            if data is None:
                yield pb.IncidentChange(cursor=cursor, heartbeat=True)
                continue
            if not scope.has(data["dataset_urn"]):
                continue
            try:
                incident = await self._pool.run(partial(self._incidents.get, data["incident_id"]))
            except NotFoundError:
                # Expired since then.
                continue
            message = masked_incident(incident, call.principal)
            yield pb.IncidentChange(event_type=data["event_type"], incident=message, cursor=cursor)

    async def _events(self, type: str, cursor: str) -> AsyncIterator[WatchEvent]:
        """Yield events and heartbeats until the server stops. Raises `InvalidIdError`."""
        cursor = cursor or first_id(int(self._clock.seconds() * 1000))
        sent_at = self._clock.monotonic()
        while not self._watches.is_stopping:
            page = await self._pool.run(partial(self._bus.tail, cursor, type=type, limit=PAGE))
            for stored in page:
                cursor = stored.event_id
                # Users may emit events of any type; only ours have this source.
                if stored.source != SOURCE:
                    continue
                yield WatchEvent(cursor, _data(stored))
                sent_at = self._clock.monotonic()
            if self._clock.monotonic() - sent_at >= HEARTBEAT_SECONDS:
                yield WatchEvent(cursor, None)
                sent_at = self._clock.monotonic()
            if len(page) < PAGE:
                await self._watches.committed(POLL_SECONDS)


def as_of_event(signal: Signal, data: Mapping[str, Any]) -> Signal:
    """Return a signal as it was at an event, if it has changed since: every transition is sent once, as itself."""
    if signal.version <= data["version"]:
        return signal
    value, previous = signal.value, data["previous_state"]
    return replace(
        signal,
        version=data["version"],
        previous_state=None if previous is None else SignalState(previous),
        last_updated=data["timestamp"],
        detected_at=data["timestamp"],
        # Events of earlier releases have no window.
        state_changed_at=data.get("window_end", signal.state_changed_at),
        value=replace(
            value,
            state=SignalState(data["new_state"]),
            score=data.get("score", value.score),
            window_start=data.get("window_start", value.window_start),
            window_end=data.get("window_end", value.window_end),
            failure_signature=data["failure_signature"],
            incident_id=data["incident_id"],
        ),
    )


def _data(stored: StoredEvent) -> dict[str, Any]:
    data: dict[str, Any] = stored.event.data
    return data
