"""Incident context: everything about an incident in one call, for root-cause analysis, with the parts that failed."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from msgspec import Struct

from headgate.clock import Clock
from headgate.errors import DatasetNotFoundError, TransientError
from headgate.health.evidence.cache import Contrast, EvidenceCache
from headgate.health.evidence.rows import Evidence, Result
from headgate.health.incidents.service import Incidents
from headgate.health.lineage.blast_radius import BlastRadii, BlastRadius
from headgate.health.lineage.rows import LineageEntry
from headgate.health.lineage.service import Lineage
from headgate.health.model.datasets import Dataset
from headgate.health.model.incidents import Incident, Step
from headgate.health.model.signals import Signal
from headgate.health.model.timestamps import instant, milliseconds
from headgate.health.registry.service import Registry
from headgate.health.signals.writer import Signals

# The timeline starts this long before the incident.
BEFORE_MS: Final = 60 * 60 * 1000
VERSIONS_LOOKED_AT: Final = 20
SIGNATURES_LOOKED_AT: Final = 5

T = TypeVar("T")


class Happening(enum.StrEnum):
    """The kind of a timeline entry."""

    SIGNAL = "signal"
    INCIDENT = "incident"
    CONFIG = "config"
    DEPLOYMENT = "deployment"
    EVIDENCE = "evidence"


class TimelineEntry(Struct, frozen=True):
    """An entry of an incident's timeline."""

    at: str
    kind: Happening
    what: str


class Missing(Struct, frozen=True):
    """A part of the context that could not be read, and why."""

    part: str
    why: str


class IncidentContext(Struct, frozen=True, kw_only=True):
    """The context of an incident. `complete` is false if a part is missing or truncated."""

    incident: Incident
    dataset: Dataset | None
    signals: tuple[Signal, ...]
    evidence: tuple[Evidence, ...]
    first_bad: Evidence | None
    last_good: Evidence | None
    writers: tuple[LineageEntry, ...]
    readers: tuple[LineageEntry, ...]
    blast_radius: BlastRadius | None
    timeline: tuple[TimelineEntry, ...]
    missing: tuple[Missing, ...]
    complete: bool
    as_of: str


class IncidentContexts:
    """Gathers the contexts of incidents."""

    def __init__(
        self,
        clock: Clock,
        incidents: Incidents,
        signals: Signals,
        registry: Registry,
        evidence: EvidenceCache,
        lineage: Lineage,
        blast_radii: BlastRadii,
    ) -> None:
        self._clock = clock
        self._incidents = incidents
        self._signals = signals
        self._registry = registry
        self._evidence = evidence
        self._lineage = lineage
        self._blast_radii = blast_radii

    def of(self, incident_id: str) -> IncidentContext:
        """Return the context of an incident. Raises `NotFoundError`.

        The incident is read consistently. A part that cannot be read is listed in `missing`.
        """
        incident = self._incidents.get(incident_id)
        urn, missing = incident.primary_dataset_urn, list[Missing]()

        def part(name: str, read: Callable[[], T], without: T) -> T:
            try:
                return read()
            except (TransientError, DatasetNotFoundError) as exc:
                missing.append(Missing(name, exc.message))
                return without

        began = incident.episode_started_at or incident.created_at
        signals: list[Signal] = part("signals", lambda: self._signals.of_dataset(urn), [])
        own = [each for each in signals if each.signal_type in incident.signal_types]
        breach = min((each.value.breach_start for each in own if each.value.breach_start), default=began)
        found = part("evidence", lambda: self._evidence.get_many(incident.evidence_sample), None)
        sample = () if found is None else tuple(found.evidence.values())
        contrast = part("first_bad", lambda: self._contrast(incident, min(breach, began), sample), Contrast(None, None))
        for evidence_id in () if found is None else found.missing:
            missing.append(Missing("evidence", f"{evidence_id} is neither stored nor archived"))
        for evidence_id, why in {} if found is None else found.unreadable.items():
            missing.append(Missing("evidence", f"{evidence_id}: {why}"))
        blast_radius = part("blast_radius", lambda: self._blast_radii.downstream(urn), None)
        if blast_radius is not None and not blast_radius.complete:
            missing.append(Missing("blast_radius", "the lineage exceeds the limit of the walk"))
        return IncidentContext(
            incident=incident,
            dataset=part("dataset", lambda: self._registry.find(urn), None),
            signals=tuple(signals),
            evidence=sample,
            first_bad=contrast.first_bad,
            last_good=contrast.last_good,
            writers=tuple(part("writers", lambda: self._lineage.writers(urn).entries, [])),
            readers=tuple(part("readers", lambda: self._lineage.readers(urn).entries, [])),
            blast_radius=blast_radius,
            timeline=tuple(part("timeline", lambda: self._timeline(incident, contrast), [])),
            missing=tuple(missing),
            complete=not missing,
            as_of=instant(int(self._clock.seconds() * 1000)),
        )

    def _contrast(self, incident: Incident, since: str, sample: Sequence[Evidence]) -> Contrast:
        """Return the first failure of the incident's own signatures, or of its own evidence, and the last success."""
        urn, signatures = incident.primary_dataset_urn, incident.failure_signatures[:SIGNATURES_LOOKED_AT]
        found = [self._evidence.first_bad_and_last_good(urn, since=since, signature=each) for each in signatures]
        if not found:
            return self._evidence.first_bad_and_last_good(urn, since=since)
        failed = [each for each in sample if each.validation.result is Result.FAIL and each.dataset_urn == urn]
        bad = [each.first_bad for each in found if each.first_bad is not None] or failed
        if not bad:
            return found[0]
        first = min(bad, key=lambda each: each.created_at)
        own = next((each for each in found if each.first_bad is first), None)
        return own or Contrast(first, self._evidence.first_bad_and_last_good(urn, until=first.created_at).last_good)

    def _timeline(self, incident: Incident, contrast: Contrast) -> list[TimelineEntry]:
        now = instant(int(self._clock.seconds() * 1000))
        since = instant(milliseconds(incident.created_at) - BEFORE_MS)
        urn = incident.primary_dataset_urn
        found = [TimelineEntry(step.at, Happening.INCIDENT, _step_text(step)) for step in incident.steps]
        for signal_type in incident.signal_types:
            for each in self._signals.history(urn, signal_type, since, now):
                change = f"{signal_type} {each.previous_state or 'first'} -> {each.state}"
                found.append(
                    TimelineEntry(each.changed_at, Happening.SIGNAL, change + (" (late)" if each.late else ""))
                )
        found += self._of_configs(urn, since)
        for name, evidence in (("last good", contrast.last_good), ("first bad", contrast.first_bad)):
            if evidence is not None:
                found.append(TimelineEntry(evidence.created_at, Happening.EVIDENCE, f"{name}: {evidence.evidence_id}"))
        producer = incident.implicated_producer
        if producer is not None and producer.deployed_at is not None:
            deployment = f"{producer.producer_id} {producer.version} was deployed"
            found.append(TimelineEntry(producer.deployed_at, Happening.DEPLOYMENT, deployment))
        return sorted(found, key=lambda each: each.at)

    def _of_configs(self, urn: str, since: str) -> list[TimelineEntry]:
        try:
            versions = self._registry.history(urn, limit=VERSIONS_LOOKED_AT).versions
        except DatasetNotFoundError:
            return []
        return [
            TimelineEntry(
                each.updated_at, Happening.CONFIG, f"config version {each.config_version} by {each.updated_by}"
            )
            for each in versions
            if each.updated_at >= since
        ]


def _step_text(step: Step) -> str:
    phase = "" if step.phase.value == step.status.value else f" ({step.phase})"
    return f"{step.status}{phase} by {step.actor}" + (f": {step.reason}" if step.reason else "")
