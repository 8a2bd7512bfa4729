"""OpenLineage translation: turns one event into effects. It looks up only names and SLOs.

A COMPLETE run gives a volume signal of its outputs, and every run that ends gives a result. Tests are dated by the
event: their window ends with it, and starts at the nominal time of the run if that is earlier.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final

from headgate.errors import InvalidPayloadError
from headgate.health.ingest import checks as openlineage_checks
from headgate.health.ingest import names as openlineage_names
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
    RunState,
    SignalEffect,
    SpecUpdate,
)
from headgate.health.ingest.error_text import error_text
from headgate.health.ingest.events import DatasetRef, Event, EventKind
from headgate.health.ingest.facets import (
    WARNINGS_MAX,
    Assertions,
    ColumnLineage,
    DatasetLineage,
    ErrorMessage,
    ExplicitLineage,
    Facets,
    InputField,
    JobType,
    Lifecycle,
    LineageField,
    LineageInput,
    LineageTarget,
    NominalTime,
    OutputStatistics,
    Parent,
    Schema,
    SourceCodeLocation,
    Sql,
    Symlinks,
    Tests,
)
from headgate.health.ingest.metadata import fields_of, metadata_of
from headgate.health.ingest.names import NameResolver
from headgate.health.jobs.model import JobState, RunReport
from headgate.health.model import enums, timestamps
from headgate.health.model.dataset_fields import Observation, Origin
from headgate.health.model.datasets import Slos
from headgate.health.model.enums import VOLUME, EntityType, SignalState
from headgate.health.model.signals import Metrics
from headgate.health.results.model import ResultKind

Configs = Callable[[str], Slos | None]

DETAIL_LENGTH_MAX: Final = 8_000
COLUMN_LENGTH_MAX: Final = 200
QUERY_LENGTH_MAX: Final = 4_000
ORIGINS_MAX: Final = 20
ROWS_MAX: Final = 2**53 - 1
LOW_VOLUME: Final = "LOW_VOLUME:row_count"
SOURCE: Final = "openlineage"
RUN_WINDOW: Final = "RUN"
# The state of a run that ended, its failure signature, and its message if the event has none.
_ENDED: Final = {
    RunState.COMPLETE: (SignalState.OK, "RUN_FAILED", ""),
    RunState.FAIL: (SignalState.CRITICAL, "RUN_FAILED", "the run failed"),
    RunState.ABORT: (SignalState.WARNING, "RUN_ABORTED", "the run was aborted"),
}
_JOB_STATES: Final = {
    RunState.START: JobState.RUNNING,
    RunState.RUNNING: JobState.RUNNING,
    RunState.COMPLETE: JobState.COMPLETED,
    RunState.FAIL: JobState.FAILED,
    RunState.ABORT: JobState.ABORTED,
}
# Newlines and tabs stay; other control characters are removed from messages.
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")


def translate(event: Event, names: NameResolver, configs: Configs) -> list[Effect]:
    """Return the effects of a parsed event: first the datasets it names, then the statements about them.

    `configs` returns the config of a dataset, or None. Raises `InvalidPayloadError` for names that cannot be mapped.
    """
    return _Translation(event, names, configs).effects()


class _Translation:
    """The translation of one event."""

    def __init__(self, event: Event, names: NameResolver, configs: Configs) -> None:
        self._event = event
        self._names = names
        self._configs = configs
        self._warnings: list[IngestWarning] = []
        self._found: dict[tuple[str, str], str] = {}
        self._named: list[Effect] = []
        self._reads: set[str] = set()
        self._writes: set[str] = set()
        self._column_reads: set[str] = set()
        self._column_writes: set[str] = set()
        # The columns that each column of an output derives from.
        self._origins: dict[str, dict[str, list[Origin]]] = {}
        run, job = event.run, event.job
        self._run = Facets(None if run is None else run.facets, "run.facets", self._warnings)
        self._job = Facets(None if job is None else job.facets, "job.facets", self._warnings)
        self._is_dbt_test = self._has_job_type("DBT", "TEST")
        self._producer = None if job is None else openlineage_names.producer_id(job.namespace, job.name)

    def effects(self) -> list[Effect]:
        event = self._event
        # The output of a dbt test is the table that would hold its failing rows: no dataset of its own.
        inputs, outputs = event.inputs or [], [] if self._is_dbt_test else event.outputs or []
        about = [] if event.dataset is None else [event.dataset]
        for ref in (*about, *inputs, *outputs):
            self._meet(ref)
        effects: list[Effect] = []
        if event.kind is not EventKind.DATASET:
            self._gather(inputs, outputs)
            effects.append(self._spec())
        effects += self._quality([*about, *inputs, *outputs])
        effects += self._volumes(outputs)
        effects += self._outcome()
        effects += self._run_report()
        for ref in (*about, *inputs, *outputs):
            effects += self._metadata(ref)
            effects += self._lifecycle(ref)
        written = {self._urn(ref.namespace, ref.name) for ref in (*about, *outputs)}
        for ref in (*about, *inputs, *outputs):
            effects += self._fields_of(ref, is_written=self._urn(ref.namespace, ref.name) in written)
        return [*self._named, *effects, *self._warnings]

    # Datasets.

    def _meet(self, ref: DatasetRef) -> None:
        """Resolve the dataset of a reference, which may list its aliases."""
        place = (ref.namespace, ref.name)
        symlinks = self._dataset_facets(ref).get("symlinks", Symlinks)
        others = [(each.namespace, each.name) for each in (symlinks.identifiers or [] if symlinks else [])]
        others = [each for each in dict.fromkeys(others) if each != place and all(part.strip() for part in each)]
        known = {each: openlineage_names.known_urn(*each, self._names) for each in others}
        by_symlink = next((urn for urn in known.values() if urn is not None), None)
        if by_symlink is not None and openlineage_names.known_urn(*place, self._names) is None:
            self._found[place] = by_symlink
            self._alias(place, by_symlink, "has a known name as symlink")
        urn = self._urn(*place)
        for other, stands_for in known.items():
            if stands_for is None:
                self._alias(other, urn, f"symlink of {ref.namespace} {ref.name}")
            elif stands_for != urn:
                self._warn(f"dataset {ref.name}.symlinks", f"{' '.join(other)} is {stands_for}, not {urn}")

    def _alias(self, place: tuple[str, str], urn: str, provenance: str) -> None:
        namespace, name = place
        self._named.append(
            AliasEffect(namespace=namespace, name=name, dataset_urn=urn, provenance=_clean(provenance, 200))
        )

    def _warn(self, where: str, reason: str) -> None:
        if len(self._warnings) < WARNINGS_MAX:
            self._warnings.append(IngestWarning(_clean(where, 120), _clean(reason, 300)))

    def _urn(self, namespace: str, name: str) -> str:
        found = self._found.get((namespace, name))
        if found is not None:
            return found
        urn = openlineage_names.known_urn(namespace, name, self._names)
        if urn is None:
            urn = openlineage_names.made_urn(namespace, name)
            self._named.append(DatasetDiscovered(dataset_urn=urn, namespace=namespace, name=name))
        self._found[(namespace, name)] = urn
        return urn

    # Lineage.

    def _gather(self, inputs: Iterable[DatasetRef], outputs: Iterable[DatasetRef]) -> None:
        self._reads.update(self._urn(ref.namespace, ref.name) for ref in inputs)
        for ref in outputs:
            urn = self._urn(ref.namespace, ref.name)
            self._writes.add(urn)
            facets = self._dataset_facets(ref)
            self._columns(urn, facets.get("columnLineage", ColumnLineage))
            explicit = facets.get("lineage", DatasetLineage)
            if explicit is not None:
                self._inputs(explicit.inputs)
                self._fields(urn, explicit.fields)
        for lineage in (self._job.get("lineage", ExplicitLineage), self._run.get("lineage", ExplicitLineage)):
            for target in [] if lineage is None else [*(lineage.entries or []), *(lineage.lineage or [])]:
                self._target(target)

    def _columns(self, urn: str, facet: ColumnLineage | None) -> None:
        """Add the columns that were written and read, and the columns that each was made of."""
        if facet is None:
            return
        for column, made_of in (facet.fields or {}).items():
            self._column(self._column_writes, urn, column)
            for source in made_of.inputFields or []:
                self._source(source.namespace, source.name, source.field)
                self._origin(urn, column, source, made_of.transformationType)
        for source in facet.dataset or []:
            self._source(source.namespace, source.name, source.field)

    def _origin(self, urn: str, column: str, source: InputField, transformation: str | None) -> None:
        if not source.namespace.strip() or not source.name.strip() or not source.field:
            return
        kinds = [each.subtype or each.type or "" for each in source.transformations or []]
        origin = Origin(
            self._urn(source.namespace, source.name),
            _clean(source.field, COLUMN_LENGTH_MAX),
            _clean(next((each for each in kinds if each), transformation or ""), 64),
        )
        listed = self._origins.setdefault(urn, {}).setdefault(_clean(column, COLUMN_LENGTH_MAX), [])
        if origin not in listed and len(listed) < ORIGINS_MAX:
            listed.append(origin)

    def _target(self, target: LineageTarget) -> None:
        is_dataset = (target.type or "").upper() == "DATASET"
        if is_dataset and target.namespace and target.name:
            urn = self._urn(target.namespace, target.name)
            self._writes.add(urn)
            self._fields(urn, target.fields)
        self._inputs(target.inputs)

    def _fields(self, urn: str, fields: dict[str, LineageField] | None) -> None:
        for column, made_of in (fields or {}).items():
            self._column(self._column_writes, urn, column)
            self._inputs(made_of.inputs)

    def _inputs(self, inputs: list[LineageInput] | None) -> None:
        for source in inputs or []:
            if (source.type or "").upper() == "DATASET" and source.namespace and source.name:
                self._source(source.namespace, source.name, source.field)

    def _source(self, namespace: str, name: str, column: str | None) -> None:
        if not namespace.strip() or not name.strip():
            return
        urn = self._urn(namespace, name)
        self._reads.add(urn)
        if column:
            self._column(self._column_reads, urn, column)

    def _column(self, side: set[str], urn: str, column: str) -> None:
        made = openlineage_names.made_column(urn, column)
        if made is not None:
            side.add(made)

    def _spec(self) -> SpecUpdate:
        event = self._event
        assert event.job is not None
        assert self._producer is not None
        return SpecUpdate(
            producer_id=self._producer,
            producer_name=_clean(event.job.name, 256),
            producer_type=self._producer_type(),
            at=event.eventTime,
            commit=self._version() or None,
            run_id=None if event.run is None else event.run.runId.strip(),
            state=self._declared() if event.kind is EventKind.JOB else event.state,
            reads=frozenset(self._reads),
            writes=frozenset(self._writes),
            column_reads=frozenset(self._column_reads),
            column_writes=frozenset(self._column_writes),
        )

    def _declared(self) -> RunState:
        """Return COMPLETE if the event declares the lineage of its job, which is then complete."""
        is_declared = self._event.inputs is not None or self._event.outputs is not None or self._reads or self._writes
        return RunState.COMPLETE if is_declared else RunState.OTHER

    def _has_job_type(self, integration: str, job_type: str) -> bool:
        facet = self._job.get("jobType", JobType)
        return facet is not None and (facet.integration, facet.jobType) == (integration, job_type)

    def _producer_type(self) -> EntityType:
        facet = self._job.get("jobType", JobType)
        try:
            return enums.entity_type((facet.jobType or "") if facet is not None else "")
        except InvalidPayloadError:
            return EntityType.JOB

    def _version(self) -> str:
        facet = self._job.get("sourceCodeLocation", SourceCodeLocation)
        return _clean(facet.version or "", 128) if facet is not None else ""

    # Metadata and fields.

    def _metadata(self, ref: DatasetRef) -> list[Effect]:
        found = metadata_of(self._dataset_facets(ref), SOURCE)
        if found is None:
            return []
        return [MetadataEffect(dataset_urn=self._urn(ref.namespace, ref.name), metadata=found)]

    def _fields_of(self, ref: DatasetRef, *, is_written: bool) -> list[Effect]:
        """Return the fields of a dataset. A reader may know some of them only; the writer knows all."""
        urn = self._urn(ref.namespace, ref.name)
        fields = fields_of(self._dataset_facets(ref).get("schema", Schema), self._origins.get(urn, {}), SOURCE)
        if not fields:
            return []
        # Changes are found within the reports of one job.
        observation = Observation(
            source=f"{SOURCE}:{self._producer}" if self._producer is not None else SOURCE,
            at=self._event.eventTime,
            fields=fields,
            is_whole=is_written and all(each.type for each in fields),
        )
        return [FieldsEffect(dataset_urn=urn, observation=observation)]

    # Signals.

    def _quality(self, refs: Iterable[DatasetRef]) -> list[Effect]:
        """Return the result of each reported test, once however many facets repeat it."""
        checks: dict[str, list[list[openlineage_checks.Check]]] = {}
        for ref in refs:
            for raw in (ref.inputFacets, ref.outputFacets, ref.facets):
                facet = Facets(raw, f"dataset {ref.name}"[:100], self._warnings).get(
                    "dataQualityAssertions", Assertions
                )
                if facet is not None and facet.assertions:
                    urn = self._urn(ref.namespace, ref.name)
                    table = ref.name.rpartition(".")[2] if self._is_dbt_test else None
                    listed = [openlineage_checks.of_assertion(each, table) for each in facet.assertions]
                    checks.setdefault(urn, []).append(listed)
        tests = self._run.get("test", Tests)
        tested = self._tested()
        if tests is not None and tests.tests:
            if tested is None:
                self._warn("run.facets.test", "the run has no single input or output to attach its tests to")
            else:
                checks.setdefault(tested, []).append([*map(openlineage_checks.of_test, tests.tests)])
        return [self._test(urn, each) for urn, lists in checks.items() for each in openlineage_checks.distinct(lists)]

    def _tested(self) -> str | None:
        """Return the dataset of a run's tests: its only input, or else its only output."""
        for side in (self._event.inputs, self._event.outputs):
            urns = {self._urn(ref.namespace, ref.name) for ref in side or []}
            if urns:
                return next(iter(urns)) if len(urns) == 1 else None
        return None

    def _test(self, urn: str, check: openlineage_checks.Check) -> ResultEffect:
        event = self._event
        return ResultEffect(
            dataset_urn=urn,
            kind=ResultKind.TEST,
            test_id=check.test_id,
            state=check.state,
            at=event.eventTime,
            started_at=min(self._nominal_start() or event.eventTime, event.eventTime),
            signature=check.signature,
            source=SOURCE,
            column=None if check.field == openlineage_checks.WHOLE_DATASET else check.field,
            message=check.message,
            failures=check.failures,
            producer_id=self._producer,
            producer_version=self._version(),
            run_id=None if event.run is None else event.run.runId.strip(),
            job=None if event.job is None else _clean(event.job.name, 256),
        )

    def _volumes(self, outputs: Iterable[DatasetRef]) -> list[Effect]:
        if self._event.state is not RunState.COMPLETE:
            return []
        return [effect for ref in outputs if (effect := self._volume(ref)) is not None]

    def _volume(self, ref: DatasetRef) -> SignalEffect | None:
        """Return the volume signal of an output.

        Without a volume SLO, a positive row count is OK, and zero is UNKNOWN.
        """
        where = f"dataset {ref.name}"[:100]
        facet = Facets(ref.outputFacets, where, self._warnings).get("outputStatistics", OutputStatistics)
        if facet is None or facet.rowCount is None:
            return None
        if not 0 <= facet.rowCount <= ROWS_MAX:
            self._warn(f"{where}.outputStatistics", f"rowCount {facet.rowCount}")
            return None
        urn, rows = self._urn(ref.namespace, ref.name), int(facet.rowCount)
        slos = self._configs(urn)
        least = None if slos is None or slos.volume is None else slos.volume.min_events_per_window
        metrics = Metrics(evidence_count=rows, pass_count=rows)
        if least is None:
            state = SignalState.OK if rows else SignalState.UNKNOWN
            return self._signal(urn, VOLUME, state, 1.0 if rows else 0.0, metrics=metrics)
        if rows >= least:
            return self._signal(urn, VOLUME, SignalState.OK, 1.0, metrics=metrics, threshold=float(least))
        return self._signal(
            urn, VOLUME, SignalState.CRITICAL, rows / least,
            metrics=metrics, threshold=float(least), signature=LOW_VOLUME,
        )  # fmt: skip

    def _signal(
        self,
        urn: str,
        signal_type: str,
        state: SignalState,
        score: float,
        *,
        metrics: Metrics,
        threshold: float = 0.0,
        signature: str | None = None,
    ) -> SignalEffect:
        end = self._event.eventTime
        return SignalEffect(
            dataset_urn=urn,
            signal_type=signal_type,
            state=state,
            score=score,
            window_start=min(self._nominal_start() or end, end),
            window_end=end,
            window_type=RUN_WINDOW,
            slo_threshold=threshold,
            metrics=metrics,
            failure_signature=signature,
            producer_id=self._producer,
            producer_version=self._version(),
        )

    def _nominal_start(self) -> str | None:
        facet = self._run.get("nominalTime", NominalTime)
        if facet is None or not facet.nominalStartTime:
            return None
        try:
            return timestamps.moment(facet.nominalStartTime, field="nominalStartTime")
        except InvalidPayloadError as exc:
            self._warn("run.facets.nominalTime", exc.message)
            return None

    # Outcomes of runs, and lifecycle changes.

    def _outcome(self) -> list[Effect]:
        """Return the result of a run that ended, for each dataset it writes."""
        event = self._event
        is_other = self._is_dbt_test or (self._producer or "").startswith(openlineage_names.PIPELINE_PREFIX)
        # The outcome of a pipeline is known from its own run.
        if event.state not in _ENDED or event.run is None or event.job is None or is_other:
            return []
        assert self._producer is not None
        state, code, default = _ENDED[event.state]
        error = self._run.get("errorMessage", ErrorMessage) if state.is_breach else None
        parent = self._run.get("parent", Parent)
        parent_job = None if parent is None else parent.job
        found: list[str | None] = [*sorted(self._writes)] or [None]
        return [
            ResultEffect(
                dataset_urn=urn,
                kind=ResultKind.RUN,
                test_id=self._producer,
                state=state,
                at=event.eventTime,
                started_at=min(self._nominal_start() or event.eventTime, event.eventTime),
                signature=f"{code}:{openlineage_checks.WHOLE_DATASET}",
                source=SOURCE,
                message=error_text((error.message if error is not None else "") or default),
                detail=error_text((error.stackTrace or "") if error is not None else "", DETAIL_LENGTH_MAX),
                producer_id=self._producer,
                producer_version=self._version(),
                run_id=event.run.runId.strip(),
                job=_clean(event.job.name, 256),
                parent_job=None if parent_job is None else _clean(parent_job.name, 256),
            )
            for urn in found
        ]

    def _run_report(self) -> list[Effect]:
        """Return what the event says about the run of its job."""
        event = self._event
        if event.run is None or event.job is None or self._producer is None:
            return []
        error = self._run.get("errorMessage", ErrorMessage)
        parent = self._run.get("parent", Parent)
        kind = self._job.get("jobType", JobType)
        query = self._job.get("sql", Sql)
        report = RunReport(
            job_id=self._producer,
            namespace=_clean(event.job.namespace, 256),
            name=_clean(event.job.name, 256),
            run_id=event.run.runId.strip(),
            at=event.eventTime,
            state=_JOB_STATES.get(event.state),
            integration=_clean((kind.integration or "") if kind is not None else "", 64),
            job_type=_clean((kind.jobType or "") if kind is not None else "", 64),
            nominal_at=self._nominal_start(),
            message=error_text(error.message) if error is not None else "",
            parent_job=None if parent is None or parent.job is None else _clean(parent.job.name, 256),
            parent_run_id=None if parent is None or parent.run is None else parent.run.runId,
            inputs=tuple(sorted(self._reads)),
            outputs=tuple(sorted(self._writes)),
            facets=tuple(_clean(each, 64) for each in sorted({*(event.run.facets or ()), *(event.job.facets or ())})),
            code_version=self._version(),
            query=_clean(query.query, QUERY_LENGTH_MAX) if query is not None else "",
        )
        return [RunEffect(report=report)]

    def _lifecycle(self, ref: DatasetRef) -> list[Effect]:
        facet = self._dataset_facets(ref).get("lifecycleStateChange", Lifecycle)
        if facet is None or not facet.lifecycleStateChange.strip():
            return []
        before = facet.previousIdentifier
        is_named = before is not None and before.namespace.strip() and before.name.strip()
        return [
            LifecycleEffect(
                dataset_urn=self._urn(ref.namespace, ref.name),
                change=_clean(facet.lifecycleStateChange.strip().upper(), 40),
                at=self._event.eventTime,
                previous_urn=self._previous(before.namespace, before.name) if before is not None and is_named else None,
            )
        ]

    def _previous(self, namespace: str, name: str) -> str:
        """Return the previous URN of a dataset, without registering it as discovered."""
        known = openlineage_names.known_urn(namespace, name, self._names)
        return known if known is not None else openlineage_names.made_urn(namespace, name)

    def _dataset_facets(self, ref: DatasetRef) -> Facets:
        return Facets(ref.facets, f"dataset {ref.name}"[:100], self._warnings)


def _clean(text: str, length_max: int) -> str:
    return _CONTROL.sub(" ", text[:length_max])
