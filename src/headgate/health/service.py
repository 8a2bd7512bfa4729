"""The service: everything a process offers of health, around one open store."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from headgate.clock import Clock
from headgate.errors import DatasetNotFoundError, FatalError, TransientError
from headgate.health.alert_quotas import AlertQuotas
from headgate.health.audit.field_encryption import FieldSealer
from headgate.health.audit.log import Audit
from headgate.health.error_alerts import ErrorAlerts
from headgate.health.evidence.cache import ARCHIVE_SECONDS, EvidenceCache
from headgate.health.evidence.limits import Limits as EvidenceLimits
from headgate.health.evidence.sampling import Rates as EvidenceRates
from headgate.health.gate.flags import Flags
from headgate.health.gate.gate import Gatekeeper
from headgate.health.gate.overrides import Overrides
from headgate.health.incident_context import IncidentContexts
from headgate.health.incidents.decisions import mttr_seconds
from headgate.health.incidents.listing import IncidentListing
from headgate.health.incidents.plans import Opened
from headgate.health.incidents.service import Incidents
from headgate.health.incidents.timers import IncidentTimers
from headgate.health.ingest.inbox import OpenLineageInbox
from headgate.health.ingest.service import Ingestion
from headgate.health.lineage.blast_radius import BlastRadii
from headgate.health.lineage.graph import LineageGraph
from headgate.health.lineage.service import Lineage
from headgate.health.metrics import HealthMeters
from headgate.health.model import incidents as incident_values
from headgate.health.model.datasets import DatasetProfile
from headgate.health.model.enums import SignalState, Tier
from headgate.health.model.events import EventWrites, IncidentEventType, no_event_writes
from headgate.health.model.incidents import Incident, IncidentReport
from headgate.health.model.signals import Signal, SignalUpdate, UpdateResult, UpdateVerdict
from headgate.health.registry.service import Registry
from headgate.health.resets import Resets
from headgate.health.resolution.resolver import Resolver
from headgate.health.resolution.topic_producers import TopicProducers
from headgate.health.retirement import Retirement
from headgate.health.signals.baselines import Baselines
from headgate.health.signals.coalescer import Coalescer
from headgate.health.signals.volumes import Volumes
from headgate.health.signals.writer import Signals
from headgate.ids import IdMaker
from headgate.store.blobs.folder import Blobs
from headgate.store.cache import keys as cache_keys
from headgate.store.cache.read_through import Cache
from headgate.store.keyring import Keyring
from headgate.store.port import Store
from headgate.telemetry import Tracing

DOWNSTREAM_NAMED_MAX: Final = 100
# What an incident says when it opens. Many open at once when something is wrong, and to follow ten thousand edges for
# each would keep everyone else waiting; the whole is a question of its own.
OPENING_EDGES_MAX: Final = 500
_LOGGER: Final = "statestore.service"
_log = structlog.get_logger(_LOGGER)
# Asked before a line is made: there are two for each of hundreds of updates a second.
_levels = logging.getLogger(_LOGGER)


def _as_it_is(result: UpdateResult) -> UpdateResult:
    return result


# For when nobody looks, which is nearly always. It holds nothing, so that one will do.
_UNWATCHED: Final = nullcontext(_as_it_is)


class HealthService:
    """Health of one store. It starts no thread but for what is submitted; `sweep` is to be called now and then."""

    def __init__(  # noqa: PLR0913 - what everything else is built from
        self,
        store: Store,
        clock: Clock,
        ids: IdMaker,
        cache: Cache,
        keyring: Keyring,
        blobs: Blobs,
        *,
        announce: EventWrites = no_event_writes,
        told: Callable[[], None] = lambda: None,
        tier_1_needs_ticket: bool = True,
        opens_incidents: bool = True,
        last_known_path: Path | None = None,
        meters: HealthMeters | None = None,
        alerts: ErrorAlerts | None = None,
        tracing: Tracing | None = None,
        db_system: str = "sqlite",
        is_writer: Callable[[], bool] = lambda: True,
        evidence_limits: EvidenceLimits | None = None,
        evidence_rates: EvidenceRates | None = None,
        archive_seconds: float | None = ARCHIVE_SECONDS,
    ) -> None:
        """Take what everything is kept with.

        `announce` gives the writes that make an event known, `told` is called once some are durable. With
        `opens_incidents`, a signal that becomes CRITICAL opens an incident in the same transaction. `db_system` names
        the backend in spans. While `is_writer` says no, another region does what is due. Archived evidence is kept for
        `archive_seconds`, or for ever.
        """
        self.store, self.clock, self.ids, self.keyring = store, clock, ids, keyring
        self._cache = cache
        self._told = told
        self._meters = meters
        self._alerts = alerts
        self._db_system = db_system
        self._is_writer = is_writer
        self.audit = Audit(store, clock, ids, keyring)
        sealer = FieldSealer(keyring)
        self.registry = Registry(
            store,
            clock,
            ids,
            cache,
            self.audit,
            keyring,
            announce=announce,
            tier_1_needs_ticket=tier_1_needs_ticket,
            last_known_path=last_known_path,
        )
        self.resolver = Resolver(store, clock, ids, cache, self.audit, self.registry.get)
        self.evidence = EvidenceCache(store, clock, ids, blobs, limits=evidence_limits, rates=evidence_rates)
        self._archive_seconds = archive_seconds
        self.lineage = Lineage(store, clock)
        graph = LineageGraph(store, clock)
        self.lineage.told = graph.note
        self.blast_radii = BlastRadii(graph, clock, self._tiers)
        self.incidents = _CountedIncidents(
            store,
            clock,
            ids,
            self.audit,
            sealer=sealer,
            announce=announce,
            pin_writes=self.evidence.pin_writes,
            blast_radius=self._blast_radius,
            profile=self.profile,
        )
        if meters is not None:
            self.incidents.could_not_open = meters.incident_creation_failed
            meters.watch_lookups(self.registry.stats)
        if alerts is not None:
            self.registry.on_miss(alerts.record)
        self.baselines = Baselines(store, clock)
        self.volumes = Volumes(store, clock)
        self.topic_producers = TopicProducers(store, clock)
        self.flags = Flags(store, clock, self.audit)
        self.alert_quotas = AlertQuotas(store, clock)
        self.incident_listing = IncidentListing(store, keyring, sealer=sealer)
        self.incident_timers = IncidentTimers(
            store, clock, ids, self.incidents, sealer=sealer, announce=announce, unpin=self.evidence.unpin
        )
        self.signals = Signals(
            store,
            clock,
            ids,
            cache,
            keyring,
            profiles=self.registry.profiles.of,
            announce=announce,
            incidents=self.incidents if opens_incidents else None,
        )
        self.retirement = Retirement(store, clock, cache, self.incidents, held=self.registry.held)
        self.resets = Resets(store, clock, cache, self.audit, self.retirement)
        self.coalescer = Coalescer(self.signals)
        self.overrides = Overrides(store, clock, ids, self.audit, registered=self.registered)
        self.gatekeeper = Gatekeeper(store, clock, find=self.registry.ever, sealer=sealer)
        self.contexts = IncidentContexts(
            clock, self.incidents, self.signals, self.registry, self.evidence, self.lineage, self.blast_radii
        )
        self.ingestion = Ingestion(
            OpenLineageInbox(store, clock, ids), self.registry, self.resolver, self.signals, self.evidence, self.lineage
        )
        if meters is not None:
            inbox = self.ingestion.inbox
            meters.watch_inbox(lambda: inbox.oldest_seconds)
            meters.watch_evidence(self.evidence.stats)
        self.registry.told = told
        self.registry.flipped = self.retirement.flipped
        self.incidents.told = self._incident_told
        self.signals.told = self._signals_told
        self.signals.counted = partial(_report_updates, meters, alerts)
        self._tracing = tracing if tracing is not None else Tracing()
        self._fields = sealer

    def update_signal(self, update: SignalUpdate) -> UpdateResult:
        """Take over a value together with those of other callers, as one span. Raises as `Signals.update` does."""
        with self.updating_signal(update) as noted:
            return noted(self.coalescer.update(update))

    def updating_signal(self, update: SignalUpdate) -> AbstractContextManager[Callable[[UpdateResult], UpdateResult]]:
        """Have a value taken over inside, as one span; the function given notes what was made of it, and returns it."""
        is_told = _levels.isEnabledFor(logging.DEBUG)
        return self._watched_update(update, is_told=is_told) if is_told or self._tracing.is_on else _UNWATCHED

    @contextmanager
    def _watched_update(
        self, update: SignalUpdate, *, is_told: bool
    ) -> Iterator[Callable[[UpdateResult], UpdateResult]]:
        about = {"dataset_urn": update.dataset_urn, "signal_type": update.signal_type}
        with self._tracing.span(
            "SignalStateRepository.updateSignalState",
            dataset_urn=update.dataset_urn,
            signal_type=update.signal_type,
            new_state=update.value.state.value,
        ) as span:
            span.set_attribute("db.system", self._db_system)
            span.set_attribute("db.operation", "UpdateItem")
            if is_told:
                _log.debug("signal_state_update_started", **about, expected_version=update.expected_version)

            def noted(result: UpdateResult) -> UpdateResult:
                if is_told and result.is_success and result.signal is not None:
                    _log.debug("signal_state_update_completed", **about, new_version=result.signal.version)
                span.set_attribute("success", result.is_success)
                if result.signal is not None:
                    span.set_attribute("new_version", result.signal.version)
                if not result.is_success:
                    span.set_attribute("error.type", result.verdict.value)
                return result

            yield noted

    def profile(self, dataset_urn: str) -> DatasetProfile | None:
        """Return what the registry says of a dataset that signals carry, or None for one that is not in use."""
        return self.registry.profiles.of([dataset_urn]).get(dataset_urn)

    def sweep(self, *, limit: int = 100) -> int:
        """Do what is due as time goes by, and return how much that was."""
        told = self.tend()
        if self._is_writer():
            told += self.incident_timers.sweep(limit=limit) + self.retirement.sweep(limit=limit)
            told += self.lineage.sweep(limit=limit)
        return told

    def tend(self) -> int:
        """Do what each process must do for itself: tell its alerts, of which the number is returned, and keep warm."""
        self.blast_radii.warm()
        return 0 if self._alerts is None else self._alerts.tell()

    def drain(self, *, limit: int = 200) -> int:
        """Carry out what was accepted and put off, and return how much that was."""
        return self.ingestion.drain(limit=limit).done if self._is_writer() else 0

    def archive(self) -> int:
        """Move evidence to the archive before it expires, and return how much that was."""
        return self.evidence.archive() if self._is_writer() else 0

    def tidy(self) -> int:
        """Delete what the archive keeps no longer, put secret fields under the active key; return how much that was."""
        if not self._is_writer():
            return 0
        kept_seconds = self._archive_seconds
        purged = 0 if kept_seconds is None else self.evidence.purge_archive(kept_seconds=kept_seconds)
        return purged + self._fields.reseal_all(self.store)

    def close(self) -> None:
        """Finish what was submitted, and let go of what is kept in memory. The store stays open."""
        self.coalescer.close()
        self.registry.close()

    def registered(self, dataset_urn: str) -> str:
        """Return the name that a dataset is registered under, which may have a version that the given one lacks."""
        return self.registry.names.of(dataset_urn) or dataset_urn

    def _tiers(self, dataset_urns: Sequence[str]) -> dict[str, Tier]:
        return {urn: profile.tier for urn, profile in self.registry.profiles.of(dataset_urns).items()}

    def _blast_radius(self, dataset_urn: str) -> incident_values.BlastRadius:
        reached = self.blast_radii.downstream(dataset_urn, edges_max=OPENING_EDGES_MAX)
        return incident_values.BlastRadius(
            downstream_count=reached.downstream_count,
            downstream_services=reached.downstream_services,
            estimated_impact=reached.estimated_impact,
            downstream_datasets=tuple(each.dataset_urn for each in reached.datasets[:DOWNSTREAM_NAMED_MAX]),
            tier_1_count=reached.tier_counts.get(Tier.TIER_1.value, 0),
            complete=reached.complete,
        )

    def _incident_told(self, incident: Incident, news: IncidentEventType) -> None:
        # Its signals were linked or let go in the same transaction, and memory does not know.
        for urn in incident.dataset_urns:
            self._cache.invalidate(cache_keys.signal_states_of(urn))
        if self._meters is not None:
            _count_incident(self._meters, incident, news)
        self._told()

    def _signals_told(self, _signals: Sequence[Signal]) -> None:
        self._told()


class _CountedIncidents(Incidents):
    """Incidents, of which someone is told that one could not be opened."""

    could_not_open: Callable[[], None] = staticmethod(lambda: None)

    def open(self, trouble: IncidentReport, *, actor: str) -> Opened:
        try:
            return super().open(trouble, actor=actor)
        except (TransientError, FatalError):
            self.could_not_open()
            raise


def _report_updates(
    meters: HealthMeters | None, alerts: ErrorAlerts | None, made: Sequence[tuple[SignalUpdate, UpdateResult]]
) -> None:
    """Log and count what was made of updates, under the names that others look for."""
    for update, result in made:
        if not result.is_success:
            _report_refusal(meters, alerts, update, result)
    if meters is not None:
        written = [(each.signal, each.is_transition) for _, each in made if each.verdict is UpdateVerdict.APPLIED]
        meters.signals_updated(
            (signal.signal_type, signal.state, signal.previous_state if is_transition else signal.state, signal.tier)
            for signal, is_transition in written
            if signal is not None
        )


def _report_refusal(
    meters: HealthMeters | None, alerts: ErrorAlerts | None, update: SignalUpdate, result: UpdateResult
) -> None:
    signal, verdict = result.signal, result.verdict
    about = {"dataset_urn": update.dataset_urn, "signal_type": update.signal_type}
    if verdict in (UpdateVerdict.VERSION_CONFLICT, UpdateVerdict.STALE_WINDOW):
        current = None if signal is None else signal.version
        _log.warning(
            "signal_state_update_conflict",
            **about,
            expected_version=update.expected_version,
            current_version=current,
            error_type=verdict.value,
        )
        if meters is not None:
            meters.signal_conflicted()
        return
    _log.error("signal_state_update_failed", **about, error=result.message, error_type=verdict.value)
    if alerts is not None and verdict is UpdateVerdict.DATASET_NOT_FOUND:
        alerts.record(DatasetNotFoundError(result.message))
    if meters is not None:
        meters.signal_failed()
        if verdict is UpdateVerdict.UNAVAILABLE and update.value.state is SignalState.CRITICAL:
            # Its incident would have been opened in the transaction that failed.
            meters.incident_creation_failed()


def _count_incident(meters: HealthMeters, incident: Incident, news: IncidentEventType) -> None:
    if news is IncidentEventType.CREATED:
        meters.incident_created(incident.severity, incident.owner_team)
    elif news is IncidentEventType.RESOLVED:
        meters.incident_resolved(incident.severity, mttr_seconds(incident) or 0.0)
