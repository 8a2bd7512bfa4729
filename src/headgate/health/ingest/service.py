"""Ingestion: applies the effects of OpenLineage events and dbt artifacts to registry, signals, evidence and lineage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from headgate.errors import (
    AlreadyExistsError,
    ApprovalRequiredError,
    DatasetNotFoundError,
    InvalidPayloadError,
    StoreBusyError,
    UserError,
)
from headgate.health.evidence.cache import EvidenceCache
from headgate.health.evidence.rows import Correlation, Evidence, Gate, Producer, Result, Validation
from headgate.health.ingest import dbt_artifacts
from headgate.health.ingest.dbt import Dbt
from headgate.health.ingest.drain import DrainResult, Handlers
from headgate.health.ingest.drift import drift_value
from headgate.health.ingest.effects import (
    AliasEffect,
    DatasetDiscovered,
    Effect,
    FieldsEffect,
    IngestWarning,
    LifecycleEffect,
    MetadataEffect,
    ResultEffect,
    RunEffect,
    SignalEffect,
    SpecUpdate,
)
from headgate.health.ingest.inbox import OpenLineageInbox
from headgate.health.ingest.names import NameResolver
from headgate.health.ingest.runs import folded, spec_of
from headgate.health.jobs.model import RunReport
from headgate.health.jobs.service import OutsideJobs
from headgate.health.lineage.service import Lineage
from headgate.health.lineage.specs import LineageSpec
from headgate.health.model.dataset_fields import DatasetFields, Observation
from headgate.health.model.datasets import DatasetStatus, Slos, Source
from headgate.health.model.enums import JOB_RUN, SCHEMA_DRIFT, SignalState
from headgate.health.model.signals import ANY_VERSION, SignalUpdate, SignalValue, UpdateResult, UpdateVerdict
from headgate.health.registry.service import Registry
from headgate.health.resolution.resolver import Resolver
from headgate.health.results.model import Report, ReportedResult, ResultKind, signal_value
from headgate.health.results.service import ReportedResults
from headgate.health.signals.writer import Signals

ACTOR: Final = "openlineage"
_DROPPED: Final = "DROP"
# The bounds of a gate of evidence.
_DETAILS_MAX: Final = 2_048
_RUN_ID_MAX: Final = 256
# Reports of concurrent events change the results of a dataset while its signal is written.
_RACES_MAX: Final = 10
_TOGETHER: Final = 500
# As many as the audit log has chains: an upload registers thousands of datasets.
_THREADS: Final = 16


class DbtReport(Struct, frozen=True, kw_only=True):
    """The outcome of an upload of dbt artifacts."""

    invocation_id: str
    # The tables of the project.
    datasets: int
    signals: int
    lineage: int
    # The results of tests and models, and how many of them failed.
    results: int
    failed: int
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
        results: ReportedResults,
        jobs: OutsideJobs,
    ) -> None:
        self.inbox = inbox
        self._registry = registry
        self._signals = signals
        self._evidence = evidence
        self._lineage = lineage
        self._results = results
        self._jobs = jobs
        self._names = NameResolver(alias=registry.named, topic=lambda _namespace, topic: _mapped(resolver, topic))
        self._handlers = Handlers(
            names=self._names,
            configs=self._slos,
            lineage=self._learn,
            signal=self._take,
            results=self._record,
            outputs=lambda producer_id: lineage.by_producer(producer_id).dataset_writes,
            discovered=self._discover,
            alias=self._alias,
            metadata=self._describe,
            fields=self._observe,
            run=lambda effect: jobs.record(effect.report),
            lifecycle=self._follow,
        )

    def drain(self, *, limit: int = 200) -> DrainResult:
        """Process accepted events, and return the outcome."""
        return self.inbox.drain(self._handlers, limit=limit)

    def dbt(
        self,
        manifest: bytes,
        *,
        run_results: bytes | None = None,
        sources: bytes | None = None,
        catalog: bytes | None = None,
        namespace: str = "",
    ) -> DbtReport:
        """Apply dbt artifacts. Repeating the same ones changes nothing.

        Raises `InvalidPayloadError` or `PayloadTooLargeError` for invalid artifacts, and what the store raises.
        """
        project = Dbt(dbt_artifacts.manifest(manifest), self._names, namespace=namespace)
        read_catalog = None if catalog is None else dbt_artifacts.catalog(catalog)
        artifacts = [project.lineage(), project.metadata(read_catalog)]
        if run_results is not None:
            artifacts.append(project.run_results(dbt_artifacts.run_results(run_results)))
        if sources is not None:
            artifacts.append(project.sources(dbt_artifacts.sources(sources)))
        effects = list(_once(effect for each in artifacts for effect in each.effects))
        results = [each for each in effects if isinstance(each, ResultEffect)]
        refused = self._carry_out(each for each in effects if not isinstance(each, ResultEffect))
        refused += [f"{each.where}: {each.reason}" for each in effects if isinstance(each, IngestWarning)]
        gone = self._results.keep_only(project.source, project.declared_tests())
        written = self._record(results, changed={(urn, ResultKind.TEST) for urn in gone}, refused=refused)
        return DbtReport(
            invocation_id=artifacts[-1].invocation_id,
            datasets=len(project.tables()),
            signals=written + sum(isinstance(each, SignalEffect) for each in effects),
            lineage=sum(isinstance(each, SpecUpdate) for each in effects),
            results=len(results),
            failed=sum(each.state.is_breach for each in results),
            refused=refused,
        )

    def _carry_out(self, effects: Iterable[Effect]) -> list[str]:
        """Apply the effects of artifacts, and return the messages of those that were rejected.

        Datasets come first. Commits of several threads are grouped by the store, which is most of the time.
        """
        phases: tuple[list[Effect], list[Effect]] = [], []
        fields: list[tuple[str, FieldsEffect]] = []
        reports: list[RunReport] = []
        for effect in effects:
            if isinstance(effect, FieldsEffect):
                fields.append((effect.dataset_urn, effect))
            elif isinstance(effect, RunEffect):
                reports.append(effect.report)
            else:
                phases[not isinstance(effect, DatasetDiscovered)].append(effect)
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="headgate-dbt") as threads:
            messages = [each for phase in phases for each in threads.map(self._applied, phase)]
        self._jobs.record_many(reports)
        refused = [each for each in messages if each is not None]
        return refused + self._observe_many(dict(fields).values())

    def _applied(self, effect: Effect) -> str | None:
        """Apply an effect. Return the message of its error if it was rejected."""
        try:
            self._apply(effect)
        except UserError as exc:
            return exc.message
        return None

    def _observe_many(self, effects: Iterable[FieldsEffect]) -> list[str]:
        seen = [(self._registered(each.dataset_urn), each.observation) for each in effects]
        refused = []
        for (urn, observation), pair in zip(seen, self._registry.fields.observe_many(seen), strict=True):
            try:
                self._write_drift(urn, observation, *pair)
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
            case SpecUpdate():
                spec = spec_of(folded(None, effect))
                if spec is not None:
                    self._learn(spec)
            case MetadataEffect():
                self._describe(effect)
            case FieldsEffect():
                self._observe(effect)
            case RunEffect():
                self._jobs.record(effect.report)
            case LifecycleEffect():
                self._follow(effect)

    def _discover(self, effect: DatasetDiscovered) -> None:
        source = Source(type="OPENLINEAGE", namespace=effect.namespace, name=effect.name)
        self._registry.discover(effect.dataset_urn, source, ACTOR, metadata=effect.metadata)

    def _describe(self, effect: MetadataEffect) -> None:
        try:
            self._registry.describe(effect.dataset_urn, effect.metadata, actor=ACTOR)
        except ApprovalRequiredError:
            # Only people change the config of a dataset of TIER_1.
            return

    def _observe(self, effect: FieldsEffect) -> None:
        """Store the fields of a dataset, and write the signal of a change of its schema."""
        urn = self._registered(effect.dataset_urn)
        self._write_drift(urn, effect.observation, *self._registry.fields.observe(urn, effect.observation))

    def _write_drift(self, urn: str, seen: Observation, before: DatasetFields, after: DatasetFields) -> None:
        known = self._registry.find(urn) if seen.is_whole else None
        if known is None:
            return
        required = () if known.contract_binding is None else known.contract_binding.required_fields
        value = drift_value(before, after, required, seen)
        if value is not None:
            update = SignalUpdate(dataset_urn=urn, signal_type=SCHEMA_DRIFT, value=value, expected_version=ANY_VERSION)
            _check_applied(self._signals.update(update))

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
        _check_applied(self._signals.update(self._registered_update(effect.update())))

    def _registered_update(self, update: SignalUpdate) -> SignalUpdate:
        return replace(update, dataset_urn=self._registered(update.dataset_urn), expected_version=ANY_VERSION)

    def _registered(self, dataset_urn: str) -> str:
        kept = self._registry.find(dataset_urn)
        return dataset_urn if kept is None else kept.dataset_urn

    def _record(
        self,
        effects: Sequence[ResultEffect],
        *,
        changed: Iterable[tuple[str, ResultKind]] = (),
        refused: list[str] | None = None,
    ) -> int:
        """Store results with the evidence of each failure, then write the signals that they add up to.

        The signals of `changed` are written too. Return the number of signals. With `refused`, the messages of updates
        that were rejected are added to it; otherwise the first is raised.
        """
        reports: list[Report] = []
        evidence: list[Evidence] = []
        names: dict[str, str] = {}
        for effect in effects:
            if effect.dataset_urn is None:
                continue
            if effect.dataset_urn not in names:
                names[effect.dataset_urn] = self._registered(effect.dataset_urn)
            urn = names[effect.dataset_urn]
            reports.append(effect.report(urn))
            if effect.state.is_breach:
                evidence.append(_evidence_of(effect, urn))
        if evidence:
            self._evidence.put_many(evidence)
        self._results.record(reports)
        targets = list(dict.fromkeys([*((each.dataset_urn, each.kind) for each in reports), *changed]))
        for start in range(0, len(targets), _TOGETHER):
            self._write_signals(targets[start : start + _TOGETHER], refused)
        return len(targets)

    def _write_signals(self, targets: Sequence[tuple[str, ResultKind]], refused: list[str] | None) -> None:
        """Write the signals of datasets from their results, and again if the results changed meanwhile."""
        written: dict[tuple[str, ResultKind], SignalValue | None] = {}
        for _ in range(_RACES_MAX):
            values = {
                (urn, kind): signal_value(found) if found else None
                for kind in ResultKind
                for urn, found in self._results_of([urn for urn, each in targets if each is kind], kind)
            }
            updates = [
                SignalUpdate(dataset_urn=urn, signal_type=kind.signal_type, value=value, expected_version=ANY_VERSION)
                for (urn, kind), value in values.items()
                if value is not None and written.get((urn, kind)) != value
            ]
            if not updates:
                return
            for update, result in zip(updates, self._signals.update_many(updates), strict=True):
                if result.verdict is UpdateVerdict.DATASET_NOT_FOUND and update.signal_type == JOB_RUN:
                    # A job still writes a dataset that was deleted here: the deletion stands.
                    continue
                try:
                    _check_applied(result)
                except UserError as exc:
                    if refused is None:
                        raise
                    refused.append(exc.message)
            written = values
        raise StoreBusyError(f"results of {targets[0][0]}: they keep changing; try again")

    def _results_of(self, urns: Sequence[str], kind: ResultKind) -> Iterable[tuple[str, list[ReportedResult]]]:
        return zip(urns, self._results.of_many(urns, kind), strict=True)

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


def _once(effects: Iterable[Effect]) -> Iterator[Effect]:
    """Yield effects without repeated discoveries: each artifact names the datasets that it discovered."""
    seen: set[str] = set()
    for each in effects:
        if isinstance(each, DatasetDiscovered):
            if each.dataset_urn in seen:
                continue
            seen.add(each.dataset_urn)
        yield each


def _check_applied(result: UpdateResult) -> None:
    """Raise the error of an update that must not be lost. A window that is older than the stored one is no error."""
    if result.verdict is UpdateVerdict.DATASET_NOT_FOUND:
        raise DatasetNotFoundError(result.message)
    if result.verdict is UpdateVerdict.INVALID:
        raise InvalidPayloadError(result.message)
    if result.verdict is UpdateVerdict.UNAVAILABLE:
        raise StoreBusyError(result.message)


def _evidence_of(effect: ResultEffect, dataset_urn: str) -> Evidence:
    result = Result.FAIL if effect.state is SignalState.CRITICAL else Result.WARN
    details = "\n".join(part for part in (effect.message, effect.detail) if part)
    gate = Gate(gate=effect.test_id, result=result, reason_code=effect.signature, details=details[:_DETAILS_MAX])
    producer = None
    if effect.producer_id is not None:
        producer = Producer(producer_id=effect.producer_id, version=effect.producer_version)
    return Evidence(
        evidence_id=effect.evidence_id or "",
        dataset_urn=dataset_urn,
        created_at=effect.at,
        producer=producer,
        validation=Validation(
            result=result, failed_gates=(effect.test_id,), reason_codes=(effect.signature,), gates=(gate,)
        ),
        correlation=Correlation(
            run_id=None if effect.run_id is None else effect.run_id[:_RUN_ID_MAX],
            job_id=effect.job,
            dag_id=effect.parent_job,
        ),
    )


def _mapped(resolver: Resolver, topic: str) -> str | None:
    found = resolver.resolve(topic)
    return found.dataset_urn if found.is_mapped else None
