"""Ingestion: applies the effects of OpenLineage events and dbt artifacts to registry, signals, evidence and lineage."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from headgate.errors import AlreadyExistsError, DatasetNotFoundError, StoreBusyError, UserError
from headgate.health.evidence.cache import EvidenceCache
from headgate.health.evidence.rows import Correlation, Evidence, Producer, Result, Validation
from headgate.health.ingest import dbt_artifacts
from headgate.health.ingest.dbt import Dbt
from headgate.health.ingest.drain import DrainResult, Handlers
from headgate.health.ingest.effects import (
    AliasEffect,
    DatasetDiscovered,
    Effect,
    EvidenceEffect,
    LifecycleEffect,
    SignalEffect,
    SpecUpdate,
)
from headgate.health.ingest.inbox import OpenLineageInbox
from headgate.health.ingest.names import NameResolver
from headgate.health.ingest.runs import folded, spec_of
from headgate.health.lineage.service import Lineage
from headgate.health.lineage.specs import LineageSpec
from headgate.health.model.datasets import DatasetStatus, Slos, Source
from headgate.health.model.signals import ANY_VERSION, UpdateVerdict
from headgate.health.registry.service import Registry
from headgate.health.resolution.resolver import Resolver
from headgate.health.signals.writer import Signals

ACTOR: Final = "openlineage"
_DROPPED: Final = "DROP"
_GATE: Final = "RUN"


class DbtReport(Struct, frozen=True, kw_only=True):
    """The outcome of an upload of dbt artifacts."""

    invocation_id: str
    datasets: int
    signals: int
    lineage: int
    refused: list[str]


class Ingestion:
    """Ingests events and artifacts. Safe to use from many threads; `drain` from many processes."""

    def __init__(
        self,
        inbox: OpenLineageInbox,
        registry: Registry,
        resolver: Resolver,
        signals: Signals,
        evidence: EvidenceCache,
        lineage: Lineage,
    ) -> None:
        self.inbox = inbox
        self._registry = registry
        self._signals = signals
        self._evidence = evidence
        self._lineage = lineage
        self._names = NameResolver(alias=registry.named, topic=lambda _namespace, topic: _mapped(resolver, topic))
        self._handlers = Handlers(
            names=self._names,
            configs=self._slos,
            lineage=self._learn,
            signal=self._take,
            evidence=self._keep,
            discovered=self._discover,
            alias=self._alias,
            lifecycle=self._follow,
        )

    def drain(self, *, limit: int = 200) -> DrainResult:
        """Process accepted events, and return the outcome."""
        return self.inbox.drain(self._handlers, limit=limit)

    def dbt(
        self, manifest: bytes, *, run_results: bytes | None = None, sources: bytes | None = None, namespace: str = ""
    ) -> DbtReport:
        """Apply dbt artifacts. Repeating the same ones changes nothing.

        Raises `InvalidPayloadError` or `PayloadTooLargeError` for invalid artifacts, and what the store raises.
        """
        project = Dbt(dbt_artifacts.manifest(manifest), self._names, namespace=namespace)
        artifacts = [project.lineage()]
        if run_results is not None:
            artifacts.append(project.run_results(dbt_artifacts.run_results(run_results)))
        if sources is not None:
            artifacts.append(project.sources(dbt_artifacts.sources(sources)))
        effects = [effect for each in artifacts for effect in each.effects]
        refused = self._carry_out(effects)
        return DbtReport(
            invocation_id=artifacts[-1].invocation_id,
            datasets=sum(isinstance(each, DatasetDiscovered) for each in effects),
            signals=sum(isinstance(each, SignalEffect) for each in effects),
            lineage=sum(isinstance(each, SpecUpdate) for each in effects),
            refused=refused,
        )

    def _carry_out(self, effects: Iterable[Effect]) -> list[str]:
        refused = []
        for effect in effects:
            try:
                self._apply(effect)
            except UserError as exc:
                refused.append(exc.message)
        return refused

    def _apply(self, effect: Effect) -> None:
        match effect:
            case DatasetDiscovered():
                self._discover(effect)
            case AliasEffect():
                self._alias(effect)
            case SignalEffect():
                self._take(effect)
            case EvidenceEffect():
                self._keep(effect)
            case SpecUpdate():
                spec = spec_of(folded(None, effect))
                if spec is not None:
                    self._learn(spec)
            case LifecycleEffect():
                self._follow(effect)

    def _discover(self, effect: DatasetDiscovered) -> None:
        source = Source(type="OPENLINEAGE", namespace=effect.namespace, name=effect.name)
        self._registry.discover(effect.dataset_urn, source, ACTOR)

    def _alias(self, effect: AliasEffect) -> None:
        if self._registry.named(effect.namespace, effect.name) is None:
            self._registry.alias(effect.namespace, effect.name, effect.dataset_urn, why=effect.provenance, actor=ACTOR)

    def _learn(self, spec: LineageSpec) -> None:
        try:
            self._lineage.update(spec)
        except AlreadyExistsError:
            # The same run sent other content under this id before: the first one stays.
            return

    def _take(self, effect: SignalEffect) -> None:
        update = effect.update()
        kept = self._registry.find(update.dataset_urn)
        if kept is not None:
            update = replace(update, dataset_urn=kept.dataset_urn)
        result = self._signals.update(replace(update, expected_version=ANY_VERSION))
        if result.verdict is UpdateVerdict.DATASET_NOT_FOUND:
            raise DatasetNotFoundError(result.message)
        if result.verdict is UpdateVerdict.UNAVAILABLE:
            raise StoreBusyError(result.message)

    def _keep(self, effect: EvidenceEffect) -> None:
        if effect.dataset_urn is None:
            return
        self._evidence.put(
            Evidence(
                evidence_id=effect.evidence_id,
                dataset_urn=effect.dataset_urn,
                created_at=effect.created_at,
                producer=Producer(producer_id=effect.producer_id, version=effect.producer_version),
                validation=Validation(
                    result=Result.FAIL, failed_gates=effect.failed_gates or (_GATE,), reason_codes=effect.reason_codes
                ),
                correlation=Correlation(run_id=effect.run_id, job_id=effect.job, dag_id=effect.parent_job),
            )
        )

    def _follow(self, effect: LifecycleEffect) -> None:
        """Deprecate a dropped dataset; a person decides whether to delete it."""
        found = self._registry.find(effect.dataset_urn)
        if effect.change != _DROPPED or found is None or found.status is not DatasetStatus.ACTIVE:
            return
        self._registry.deprecate(
            found.dataset_urn, expected_version=ANY_VERSION, actor=ACTOR, reason=f"dropped at {effect.at}"
        )

    def _slos(self, dataset_urn: str) -> Slos | None:
        found = self._registry.find(dataset_urn)
        return None if found is None else found.slos


def _mapped(resolver: Resolver, topic: str) -> str | None:
    found = resolver.resolve(topic)
    return found.dataset_urn if found.is_mapped else None
