"""Health service: builds every component of health on one open store, and is what a process calls."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Final

import structlog
from msgspec import Struct

from headgate.clock import Clock
from headgate.health.alert_quotas import AlertQuotas
from headgate.health.audit.actions import ActionLog
from headgate.health.audit.field_encryption import FieldSealer
from headgate.health.audit.log import Audit
from headgate.health.blast_refresh import BlastRefresh
from headgate.health.evidence.cache import ARCHIVE_SECONDS, EvidenceCache
from headgate.health.evidence.limits import Limits as EvidenceLimits
from headgate.health.evidence.sampling import Rates as EvidenceRates
from headgate.health.gate.decisions import GatePolicy
from headgate.health.gate.flags import Flags
from headgate.health.gate.gate import Gatekeeper
from headgate.health.gate.held_datasets import HeldDatasets
from headgate.health.gate.overrides import Overrides
from headgate.health.gate.upstream import UpstreamHealth
from headgate.health.incident_context import IncidentContexts
from headgate.health.incidents.decisions import SILENCE_SECONDS
from headgate.health.incidents.listing import IncidentListing
from headgate.health.incidents.rows import KEPT_SECONDS as INCIDENTS_SECONDS
from headgate.health.incidents.service import Incidents
from headgate.health.incidents.timers import IncidentTimers
from headgate.health.ingest.inbox import OpenLineageInbox
from headgate.health.ingest.service import Ingestion
from headgate.health.jobs.service import OutsideJobs
from headgate.health.lineage.blast_radius import BlastRadii
from headgate.health.lineage.graph import LineageGraph
from headgate.health.lineage.service import Lineage
from headgate.health.merge import DatasetMerges
from headgate.health.model import incidents as incident_model
from headgate.health.model.datasets import DatasetProfile
from headgate.health.model.enums import Tier
from headgate.health.model.events import EventWrites, no_event_writes
from headgate.health.model.signals import SignalUpdate, UpdateResult
from headgate.health.observer import HealthObserver
from headgate.health.registry.freshness_backfill import FreshnessBackfill
from headgate.health.registry.service import Registry
from headgate.health.reporter import HealthReporter
from headgate.health.resets import Resets
from headgate.health.resolution.resolver import Resolver
from headgate.health.resolution.topic_producers import TopicProducers
from headgate.health.results.service import ReportedResults
from headgate.health.retirement import Retirement
from headgate.health.signals.baselines import Baselines
from headgate.health.signals.coalescer import Coalescer
from headgate.health.signals.freshness_timers import FreshnessTimers
from headgate.health.signals.rows import HISTORY_SECONDS, QUIET_DAYS
from headgate.health.signals.volumes import Volumes
from headgate.health.signals.writer import Signals
from headgate.ids import IdMaker
from headgate.store.blobs.folder import Blobs
from headgate.store.cache.read_through import Cache
from headgate.store.keyring import Keyring
from headgate.store.port import Store
from headgate.telemetry import Tracing

DOWNSTREAM_NAMED_MAX: Final = 100
# Bound on the lineage walk when an incident opens: during an outage many open at once, and each walk delays the
# signal update that opens the incident. A timer completes it.
OPENING_EDGES_MAX: Final = 500
_LOGGER: Final = "statestore.service"
_log = structlog.get_logger(_LOGGER)
# Checked before a log line is built: an update writes two, and there are hundreds of updates a second.
_levels = logging.getLogger(_LOGGER)


def _unchanged(result: UpdateResult) -> UpdateResult:
    return result


# The context manager of an update without tracing or debug logs, which is nearly every one. It has no state.
_UNTRACED: Final = nullcontext(_unchanged)


class HealthOptions(Struct, frozen=True, kw_only=True):
    """Settings of the health service.

    With `opens_incidents`, a signal that becomes CRITICAL opens an incident in the same transaction. `db_system` is
    the backend's name in trace spans. Archived evidence is deleted after `archive_seconds`, audit entries after
    `audit_seconds`, or never for None. Resolved incidents expire after `incidents_seconds`, a signal that is OK after
    `quiet_days` without an update. `gate` is the policy on silence and on unhealthy datasets upstream.
    A breach that a person resolves while it lasts opens no incident for `silence_seconds`.
    """

    tier_1_needs_ticket: bool = True
    gate: GatePolicy = GatePolicy()
    silence_seconds: int = SILENCE_SECONDS
    opens_incidents: bool = True
    last_known_path: Path | None = None
    db_system: str = "sqlite"
    evidence_limits: EvidenceLimits | None = None
    evidence_rates: EvidenceRates | None = None
    archive_seconds: float | None = ARCHIVE_SECONDS
    audit_seconds: float | None = None
    history_seconds: int = HISTORY_SECONDS
    quiet_days: int = QUIET_DAYS
    incidents_seconds: int = INCIDENTS_SECONDS


_DEFAULTS: Final = HealthOptions()


class HealthService:
    """Health of the datasets in one store. Its only thread is the coalescer's; the caller runs `sweep` regularly."""

    def __init__(  # noqa: PLR0913 - every component of the package is built here
        self,
        store: Store,
        clock: Clock,
        ids: IdMaker,
        cache: Cache,
        keyring: Keyring,
        blobs: Blobs,
        *,
        event_writes: EventWrites = no_event_writes,
        observer: HealthObserver | None = None,
        publish_alerts: Callable[[], int] | None = None,
        tracing: Tracing | None = None,
        is_writer: Callable[[], bool] = lambda: True,
        intake_shed_count: Callable[[str], int] = lambda _urn: 0,
        options: HealthOptions = _DEFAULTS,
    ) -> None:
        """Build the components.

        `event_writes` returns the writes that publish an event in the caller's transaction. `sweep` calls
        `publish_alerts`. While `is_writer` is false, another region runs the background work. `intake_shed_count`
        returns how much evidence of a dataset the intake processes of this server shed.
        """
        observer = observer if observer is not None else HealthReporter()
        sealer = FieldSealer(keyring)
        self.store, self.clock, self.ids, self.keyring = store, clock, ids, keyring
        self._publish_alerts = publish_alerts
        self._tracing = tracing if tracing is not None else Tracing()
        self._db_system = options.db_system
        self._is_writer = is_writer
        self._archive_seconds = options.archive_seconds
        self._audit_seconds = options.audit_seconds
        self._sealer = sealer
        self.audit = Audit(store, clock, ids, keyring)
        self.actions = ActionLog(store, clock, ids, self.audit)
        self.evidence = EvidenceCache(
            store,
            clock,
            ids,
            blobs,
            limits=options.evidence_limits,
            rates=options.evidence_rates,
            intake_shed_count=intake_shed_count,
        )
        graph = LineageGraph(store, clock, peer_changes=cache.peer_changes)
        self.lineage = Lineage(store, clock, graph)
        self.blast_radii = BlastRadii(graph, clock, self._tiers)
        self.incidents = Incidents(
            store,
            clock,
            ids,
            cache,
            self.audit,
            sealer=sealer,
            event_writes=event_writes,
            pin_writes=self.evidence.pin_writes,
            blast_radius=self._blast_radius,
            profile=self.profile,
            observer=observer,
            kept_seconds=options.incidents_seconds,
            silence_seconds=options.silence_seconds,
        )
        self.retirement = Retirement(
            store,
            clock,
            cache,
            self.incidents,
            stored=lambda urn: self.registry.held(urn),
            quiet_days=options.quiet_days,
        )
        self.registry = Registry(
            store,
            clock,
            ids,
            cache,
            self.audit,
            keyring,
            event_writes=event_writes,
            retirement=self.retirement,
            observer=observer,
            tier_1_needs_ticket=options.tier_1_needs_ticket,
            last_known_path=options.last_known_path,
        )
        self.resolver = Resolver(store, clock, ids, cache, self.audit, self.registry.get)
        self.signals = Signals(
            store,
            clock,
            ids,
            cache,
            keyring,
            profiles=self.registry.profiles.of,
            event_writes=event_writes,
            incidents=self.incidents if options.opens_incidents else None,
            observer=observer,
            history_seconds=options.history_seconds,
            quiet_days=options.quiet_days,
            on_silence=options.gate.on_silence,
        )
        self.freshness_timers = FreshnessTimers(
            store, clock, self.signals, stored=self.registry.stored, on_silence=options.gate.on_silence
        )
        self._freshness_backfill = FreshnessBackfill(store, clock, self.registry)
        self.coalescer = Coalescer(self.signals)
        self.baselines = Baselines(store, clock)
        self.volumes = Volumes(store, clock)
        self.topic_producers = TopicProducers(store, clock)
        self.flags = Flags(store, clock, self.audit)
        self.alert_quotas = AlertQuotas(store, clock)
        self.incident_listing = IncidentListing(store, keyring, sealer=sealer)
        self.incident_timers = IncidentTimers(
            store,
            clock,
            ids,
            self.incidents,
            sealer=sealer,
            event_writes=event_writes,
            unpin=self.evidence.unpin,
            blast_radius=self._whole_radius,
        )
        self.results = ReportedResults(store, clock)
        self.resets = Resets(store, clock, cache, self.audit, self.retirement, self.results)
        self.overrides = Overrides(store, clock, ids, self.audit, registered=self.registered)
        upstream = UpstreamHealth(store, clock, self.blast_radii.upstream_within, sealer=sealer)
        self.gatekeeper = Gatekeeper(
            store, clock, find=self.registry.ever, sealer=sealer, policy=options.gate, upstream=upstream.of
        )
        self.held_datasets = HeldDatasets(options.gate, self.blast_radii.downstream_within, self.registry.profiles.of)
        self._blast_refresh = BlastRefresh(
            self.incidents,
            self.incident_listing,
            revision=graph.revision,
            downstream=self._whole_radius,
        )
        self.contexts = IncidentContexts(
            clock, self.incidents, self.signals, self.registry, self.evidence, self.lineage, self.blast_radii
        )
        self.jobs = OutsideJobs(store, clock)
        self.merges = DatasetMerges(
            store,
            clock,
            self.registry,
            self.signals,
            self.incidents,
            self.incident_listing,
            self.lineage,
            self.results,
        )
        inbox = OpenLineageInbox(store, clock, ids, observer)
        self.ingestion = Ingestion(
            inbox, self.registry, self.resolver, self.signals, self.evidence, self.lineage, self.results, self.jobs
        )

    def update_signal(self, update: SignalUpdate) -> UpdateResult:
        """Apply an update, coalesced with those of other callers, in one span. Raises as `Signals.update` does."""
        with self.updating_signal(update) as recorded:
            return recorded(self.coalescer.update(update))

    def updating_signal(self, update: SignalUpdate) -> AbstractContextManager[Callable[[UpdateResult], UpdateResult]]:
        """Return the span around an update. It yields a function that records the result in the span and returns it."""
        is_logged = _levels.isEnabledFor(logging.DEBUG)
        return self._traced_update(update, is_logged=is_logged) if is_logged or self._tracing.is_on else _UNTRACED

    @contextmanager
    def _traced_update(
        self, update: SignalUpdate, *, is_logged: bool
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
            if is_logged:
                _log.debug("signal_state_update_started", **about, expected_version=update.expected_version)

            def recorded(result: UpdateResult) -> UpdateResult:
                if is_logged and result.is_success and result.signal is not None:
                    _log.debug("signal_state_update_completed", **about, new_version=result.signal.version)
                span.set_attribute("success", result.is_success)
                if result.signal is not None:
                    span.set_attribute("new_version", result.signal.version)
                if not result.is_success:
                    span.set_attribute("error.type", result.verdict.value)
                return result

            yield recorded

    @property
    def is_writer(self) -> bool:
        """Whether this region runs the background work."""
        return self._is_writer()

    def profile(self, dataset_urn: str) -> DatasetProfile | None:
        """Return the tier and owner that signals of a dataset carry, or None if the dataset is not in use."""
        return self.registry.profiles.of([dataset_urn]).get(dataset_urn)

    def sweep(self, *, limit: int = 100) -> int:
        """Run all due background work: alerts, timers of incidents and freshness, retirement, lineage, actions."""
        count = self.refresh()
        if self._is_writer():
            count += self.incident_timers.sweep(limit=limit) + self.retirement.sweep(limit=limit)
            count += self._blast_refresh.sweep()
            count += self._freshness_backfill.sweep() + self.freshness_timers.sweep(limit=limit)
            count += self.lineage.sweep(limit=limit) + self.actions.recover(limit=limit)
        return count

    def refresh(self) -> int:
        """Refresh the lineage graph and publish the alerts of this process. Return the number of alerts."""
        self.blast_radii.warm()
        return 0 if self._publish_alerts is None else self._publish_alerts()

    def drain(self, *, limit: int = 200) -> int:
        """Process accepted OpenLineage events. Return the count."""
        return self.ingestion.drain(limit=limit).done if self._is_writer() else 0

    def archive(self) -> int:
        """Move evidence to the archive before it expires. Return the count."""
        return self.evidence.archive() if self._is_writer() else 0

    def purge(self) -> int:
        """Delete expired archives and audit entries, and re-encrypt secret fields. Return the count."""
        if not self._is_writer():
            return 0
        kept_seconds, audit_seconds = self._archive_seconds, self._audit_seconds
        purged = 0 if kept_seconds is None else self.evidence.purge_archive(kept_seconds=kept_seconds)
        purged += 0 if audit_seconds is None else self.audit.prune(kept_seconds=audit_seconds)
        return purged + self._sealer.reseal_all(self.store)

    def close(self) -> None:
        """Apply submitted updates, then save the last-known datasets. The store stays open."""
        self.coalescer.close()
        self.registry.close()

    def registered(self, dataset_urn: str) -> str:
        """Return the URN a dataset is registered under, which may have a version that the given one lacks."""
        return self.registry.names.of(dataset_urn) or dataset_urn

    def _tiers(self, dataset_urns: Sequence[str]) -> dict[str, Tier]:
        return {urn: profile.tier for urn, profile in self.registry.profiles.of(dataset_urns).items()}

    def _whole_radius(self, dataset_urn: str) -> incident_model.BlastRadius:
        return self._blast_radius(dataset_urn, edges_max=None)

    def _blast_radius(
        self, dataset_urn: str, *, edges_max: int | None = OPENING_EDGES_MAX
    ) -> incident_model.BlastRadius:
        reached = self.blast_radii.downstream(dataset_urn, edges_max=edges_max)
        return incident_model.BlastRadius(
            downstream_count=reached.downstream_count,
            downstream_services=reached.downstream_services,
            estimated_impact=reached.estimated_impact,
            downstream_datasets=tuple(each.dataset_urn for each in reached.datasets[:DOWNSTREAM_NAMED_MAX]),
            tier_1_count=reached.tier_counts.get(Tier.TIER_1.value, 0),
            complete=reached.complete,
        )
