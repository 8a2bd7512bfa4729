"""Signals, incidents and their upkeep on one store, as wiring puts them together, and what must always hold of them."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headgate.clock import VirtualClock
from headgate.durable.bus.bus import Bus
from headgate.durable.bus.event_log import first_id
from headgate.durable.bus.events import Event
from headgate.durable.bus.subscriptions import Subscription
from headgate.durable.model.records import instant
from headgate.health.audit.log import Audit
from headgate.health.evidence.archive import Archive
from headgate.health.evidence.pins import Pins
from headgate.health.gate.overrides import Overrides
from headgate.health.incidents.listing import IncidentFilter, IncidentListing
from headgate.health.incidents.rows import TimerKind, due_key
from headgate.health.incidents.service import Incidents
from headgate.health.incidents.timers import IncidentTimers
from headgate.health.model.datasets import DatasetProfile
from headgate.health.model.enums import SignalState, Tier
from headgate.health.model.events import IncidentEventType
from headgate.health.model.incidents import BlastRadius, Incident, IncidentReport
from headgate.health.model.signals import (
    ANY_VERSION,
    Metrics,
    Signal,
    SignalUpdate,
    SignalValue,
    UpdateResult,
    UpdateVerdict,
)
from headgate.health.observer import NullObserver
from headgate.health.signals.rows import signal_of
from headgate.health.signals.writer import Signals
from headgate.ids import IdMaker
from headgate.store.blobs.folder import FolderBlobs
from headgate.store.cache.read_through import Cache
from headgate.store.catalogue.tables import (
    AUDIT,
    CONTROL,
    EVENTS,
    EVIDENCE_CACHE,
    IDEMPOTENCY,
    INCIDENT_INDEX,
    PIPELINES,
    SIGNAL_HISTORY,
    SIGNAL_STATE,
    SUBSCRIPTIONS,
    TURNS,
)
from headgate.store.keyring import Keyring
from headgate.store.model.requests import Query, Write
from headgate.store.model.schema import Key
from headgate.store.model.values import Item
from headgate.store.port import Store

ORDERS = "urn:dp:orders:created:v1"
PAYMENTS = "urn:dp:payments:settled:v1"
SIGNATURE = "MISSING_FIELD:customer_id"
OK, WARNING, CRITICAL, UNKNOWN = SignalState.OK, SignalState.WARNING, SignalState.CRITICAL, SignalState.UNKNOWN
HEALTH_TABLES = (
    PIPELINES, SIGNAL_STATE, SIGNAL_HISTORY, INCIDENT_INDEX, EVIDENCE_CACHE, EVENTS, SUBSCRIPTIONS, CONTROL, AUDIT,
    IDEMPOTENCY, TURNS,
)  # fmt: skip
MINUTE = 60.0


def value(
    state: SignalState,
    window_end_ms: int,
    *,
    signature: str | None = None,
    score: float = 0.5,
    evidence: Sequence[str] = (),
    **more: Any,
) -> SignalValue:
    """What an engine says at the end of a window of five minutes."""
    if signature is None and state.is_breach:
        signature = SIGNATURE
    return SignalValue(
        state=state,
        score=score,
        window_start=instant(window_end_ms - 300_000),
        window_end=instant(window_end_ms),
        window_type="TUMBLING_5MIN",
        slo_threshold=0.95,
        metrics=Metrics(evidence_count=10, pass_count=5, fail_count=5),
        failure_signature=signature,
        evidence_sample=tuple(evidence),
        **more,
    )


def evidence_id(number: int) -> str:
    return f"evd-01HQXY8MNP4QR7ST9V{number:08d}"


def trouble(dataset_urn: str = ORDERS, *signal_types: str, **more: Any) -> IncidentReport:
    given: dict[str, Any] = {"failure_signatures": (SIGNATURE,), **more}
    return IncidentReport(dataset_urn=dataset_urn, signal_types=signal_types or ("FRESHNESS",), **given)


class Recorder(NullObserver):
    """Records what health reports to its observer."""

    def __init__(self) -> None:
        self.changed: list[Signal] = []
        self.results: list[tuple[SignalUpdate, UpdateResult]] = []
        self.incident_events: list[IncidentEventType] = []

    def on_signals_changed(self, signals: Sequence[Signal]) -> None:
        self.changed.extend(signals)

    def on_updates_processed(self, results: Sequence[tuple[SignalUpdate, UpdateResult]]) -> None:
        self.results.extend(results)

    def on_incident_changed(self, incident: Incident, event_type: IncidentEventType) -> None:
        self.incident_events.append(event_type)


@dataclass
class Rig:
    """One process on a store. `store` is what it sees of it; `eye` sees it as it is."""

    store: Store
    clock: VirtualClock
    keyring: Keyring
    folder: Path
    ids: IdMaker | None = None
    eye: Store | None = None
    profiles: dict[str, DatasetProfile] = field(default_factory=dict)
    blast_radius: Callable[[str], BlastRadius | None] = lambda _urn: BlastRadius(downstream_count=2)
    registered: Callable[[str], str] = lambda urn: urn
    subscriptions: Sequence[Subscription] = ()
    events: list[Event] = field(default_factory=list)
    started_ms: int = 0
    observer: Recorder = field(default_factory=lambda: Recorder())

    def __post_init__(self) -> None:
        ids = self.ids = self.ids or IdMaker(self.clock)
        self.eye = self.eye or self.store
        self.started_ms = self.started_ms or self.now_ms - 1
        self.bus = Bus(self.store, self.clock, ids)
        if self.subscriptions:
            self.bus.register(self.subscriptions, "tests")
        self.audit = Audit(self.store, self.clock, ids, self.keyring)
        self.pins = Pins(self.store, self.clock, ids, Archive(FolderBlobs(self.folder / "evidence")))
        cache = Cache(clock=self.clock)
        self.incidents = Incidents(
            self.store,
            self.clock,
            ids,
            cache,
            self.audit,
            event_writes=self.event_writes,
            pin_writes=self.pins.writes,
            blast_radius=self.blast_radius,
            profile=self.profile,
            observer=self.observer,
        )
        self.signals = Signals(
            self.store,
            self.clock,
            ids,
            cache,
            self.keyring,
            profiles=self.profiles_of,
            event_writes=self.event_writes,
            incidents=self.incidents,
            observer=self.observer,
        )
        self.incident_timers = IncidentTimers(
            self.store, self.clock, ids, self.incidents, event_writes=self.event_writes, unpin=self.pins.unpin
        )
        self.overrides = Overrides(self.store, self.clock, ids, self.audit, registered=self.registered)
        self.listing = IncidentListing(self.store, self.keyring)

    def profiles_of(self, urns: Sequence[str]) -> dict[str, DatasetProfile]:
        return {urn: found for urn in urns if (found := self.profile(urn)) is not None}

    def profile(self, urn: str) -> DatasetProfile | None:
        if "unregistered" in urn:
            return None
        return self.profiles.get(urn, DatasetProfile(Tier.TIER_1, "team-a"))

    def event_writes(self, event: Event, now_ms: int) -> list[Write]:
        self.events.append(event)
        return self.bus.event_writes(event, now_ms)

    @property
    def now_ms(self) -> int:
        return int(self.clock.seconds() * 1000)

    # Engines.

    def say(
        self,
        state: SignalState,
        *,
        urn: str = ORDERS,
        kind: str = "FRESHNESS",
        ago_ms: int = 0,
        version: int = ANY_VERSION,
        **more: Any,
    ) -> UpdateResult:
        """Report a state for a window that ends now, or some milliseconds ago."""
        return self.signals.update(self.update(state, urn=urn, kind=kind, ago_ms=ago_ms, version=version, **more))

    def update(
        self,
        state: SignalState,
        *,
        urn: str = ORDERS,
        kind: str = "FRESHNESS",
        ago_ms: int = 0,
        version: int = ANY_VERSION,
        **more: Any,
    ) -> SignalUpdate:
        said = value(state, self.now_ms - ago_ms, **more)
        return SignalUpdate(dataset_urn=urn, signal_type=kind, value=said, expected_version=version)

    def pass_minutes(self, minutes: float) -> None:
        self.clock.advance(minutes * MINUTE)

    def later(self, state: SignalState, *, minutes: float = 1.0, **more: Any) -> UpdateResult:
        """Let time pass, then report."""
        self.pass_minutes(minutes)
        result = self.say(state, **more)
        assert result.verdict is UpdateVerdict.APPLIED, result
        return result

    # Looking, at the store itself.

    def signal(self, kind: str = "FRESHNESS", urn: str = ORDERS) -> Signal:
        assert self.eye is not None
        row = self.eye.get(SIGNAL_STATE, Key(urn, kind), consistent=True)
        assert row is not None
        return signal_of(row)

    def incident_of(self, kind: str = "FRESHNESS", urn: str = ORDERS) -> Incident:
        incident_id = self.signal(kind, urn).value.incident_id
        assert incident_id is not None
        return self.incidents.get(incident_id)

    def all_incidents(self) -> list[Incident]:
        found: list[Incident] = []
        cursor: str | None = None
        while True:
            page = self.listing.ls(IncidentFilter(), limit=100, cursor=cursor)
            found += page.incidents
            cursor = page.cursor
            if cursor is None:
                return found

    def rows(self, *urns: str) -> list[Item]:
        assert self.eye is not None
        return [
            row
            for urn in urns
            for row in self.eye.query(Query(table=SIGNAL_STATE, partition=urn, limit=1000, consistent=True)).items
        ]

    def due(self, kind: str, incident_id: str) -> Item | None:
        assert self.eye is not None
        return self.eye.get(CONTROL, due_key(kind, incident_id), consistent=True)

    def stored_events(self) -> list[dict[str, Any]]:
        """The data of every event that is kept, in the order they were accepted."""
        found: list[dict[str, Any]] = []
        after = first_id(self.started_ms)
        while True:
            page = self.bus.tail(after, limit=1000)
            found += [{**each.event.data, "_id": each.event.id, "_kept_as": each.event_id} for each in page]
            if not page:
                return found
            after = page[-1].event_id


def check_invariants(rig: Rig, urns: Sequence[str], *, pinned: Sequence[str] = ()) -> None:
    """See that signals, incidents, due rows, history, events and pins agree with each other."""
    incidents = {each.incident_id: each for each in rig.all_incidents()}
    open_ones = [each for each in incidents.values() if each.is_open]
    keys = Counter(each.dedup_key for each in open_ones)
    assert all(count == 1 for count in keys.values()), f"more than one open incident of one trouble: {keys}"
    rows = rig.rows(*urns)
    for row in rows:
        linked = row.get("incident_id")
        if linked is not None:
            assert linked in incidents, f"{row['PK']} {row['SK']} links to {linked}, which is not there"
            assert incidents[linked].is_open, f"{row['PK']} {row['SK']} ({row['state']}) links to a resolved incident"
            assert row["SK"] in incidents[linked].signal_types, f"{linked} does not list {row['SK']}"
    for incident in incidents.values():
        for kind in (TimerKind.ESCALATION, TimerKind.RECOVERY):
            if not incident.is_open:
                assert rig.due(kind, incident.incident_id) is None, f"{incident.incident_id} is resolved; {kind} is due"
    _check_pins(rig, open_ones, pinned)
    _check_reported(rig, rows, list(incidents.values()))


def _check_pins(rig: Rig, open_ones: Sequence[Incident], pinned: Sequence[str]) -> None:
    assert rig.eye is not None
    for incident in open_ones:
        for each in incident.evidence_sample:
            if each not in pinned:
                continue
            row = rig.eye.get(EVIDENCE_CACHE, Key(each), consistent=True)
            assert row is not None, f"{each} of {incident.incident_id} is gone"
            assert f"pin#{incident.incident_id}" in row, f"{each} is not pinned to {incident.incident_id}"
            assert "ttl" not in row, f"{each} of {incident.incident_id} expires"


def _check_reported(rig: Rig, rows: Sequence[Item], incidents: Sequence[Incident]) -> None:
    """Every transition is in the history once and reported once; so is each opening and each end of an incident."""
    assert rig.eye is not None
    events = rig.stored_events()
    ids = Counter(each["_id"] for each in events)
    assert all(count == 1 for count in ids.values())
    changed = Counter(
        (each["dataset_urn"], each["signal_type"], each["version"])
        for each in events
        if each["event_type"] == "SIGNAL_STATE_CHANGED"
    )
    kept: Counter[tuple[str, str, int]] = Counter()
    for row in rows:
        snapshots = rig.signals.history(row["PK"], row["SK"], "2025-01-01T00:00:00.000Z", "2027-01-01T00:00:00.000Z")
        real = [each for each in snapshots if not each.late]
        kept.update((row["PK"], row["SK"], each.version) for each in real)
        assert real, f"{row['PK']} {row['SK']} has no history"
        by_version = sorted(real, key=lambda each: each.version)
        assert by_version[-1].state == row["state"], f"{row['PK']} {row['SK']}: the last transition is not there"
        for before, after in itertools.pairwise(by_version):
            assert after.previous_state is before.state, f"{row['PK']} {row['SK']}: a transition is missing"
    assert changed == kept, f"published and not stored {changed - kept}, stored and not published {kept - changed}"
    created = Counter(each["incident_id"] for each in events if each["event_type"] == "INCIDENT_CREATED")
    assert created == Counter(each.incident_id for each in incidents)
    resolved = Counter(each["incident_id"] for each in events if each["event_type"] == "INCIDENT_RESOLVED")
    ends = {each.incident_id: each.episode - (1 if each.is_open else 0) for each in incidents}
    assert resolved == Counter({name: count for name, count in ends.items() if count}), f"{resolved} {ends}"
