"""dbt ingestion: translates dbt artifacts into effects. It needs the files only: no hook, no package, no query.

All effects derive from an artifact and its invocation id, so that a repeated upload changes nothing. The states follow
the severity table: pass is OK, warn WARNING, fail and error CRITICAL, skipped, no-op and "runtime error" UNKNOWN. Every
test and model is a result with its message; a result of several tables is held against the most downstream of them.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from msgspec import Struct

from headgate.errors import InvalidPayloadError
from headgate.health.ingest import checks as openlineage_checks
from headgate.health.ingest import names as openlineage_names
from headgate.health.ingest import runs as openlineage_runs
from headgate.health.ingest.dbt_artifacts import (
    Catalog,
    CatalogTable,
    DbtManifest,
    Exposure,
    Freshness,
    Limit,
    Node,
    NodeResult,
    RunResults,
    Sources,
)
from headgate.health.ingest.effects import (
    DatasetDiscovered,
    Effect,
    FieldsEffect,
    IngestWarning,
    MetadataEffect,
    ResultEffect,
    RunEffect,
    RunState,
    SignalEffect,
    SpecUpdate,
)
from headgate.health.ingest.error_text import error_text
from headgate.health.ingest.metadata import tags_of
from headgate.health.ingest.names import NameResolver
from headgate.health.jobs.model import JobState, RunReport
from headgate.health.lineage.specs import LineageSpec
from headgate.health.model import enums, timestamps
from headgate.health.model.dataset_fields import DatasetField, Observation
from headgate.health.model.datasets import Metadata
from headgate.health.model.enums import FRESHNESS, EntityType, SignalState
from headgate.health.model.signals import Metrics
from headgate.health.results.model import ResultKind

SOURCE: Final = "dbt"
INVOCATION_WINDOW: Final = "INVOCATION"
STALE: Final = "STALE:max_loaded_at"
MODEL_FAILED: Final = "MODEL_FAILED"
# A test that reads more tables than this is held against all of them.
_TESTED_MAX: Final = 20
_TABLES: Final = frozenset({"model", "seed", "snapshot", "source"})
_JOBS: Final = frozenset({"model", "seed", "snapshot"})
_TESTS: Final = frozenset({"test", "unit_test"})
_EPHEMERAL: Final = "ephemeral"
_PART: Final = re.compile(r'"((?:[^"]|"")*)"|`((?:[^`]|``)*)`|\[([^\]]*)\]|([^."`\[\]]+)')
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
_PERIOD_SECONDS: Final = {"minute": 60, "hour": 3600, "day": 86400}


# A model that was skipped did not run: the run before it failed.
_JOB_STATES: Final = {
    SignalState.OK: JobState.COMPLETED,
    SignalState.WARNING: JobState.COMPLETED,
    SignalState.CRITICAL: JobState.FAILED,
    SignalState.UNKNOWN: JobState.ABORTED,
}


class Ingested(Struct, frozen=True):
    """The effects of an artifact, and its invocation."""

    invocation_id: str
    effects: tuple[Effect, ...]


class _TestId(Struct, frozen=True):
    """The id of a test among those of each dataset that it is of."""

    test_id: str
    urns: tuple[str, ...]


class Dbt:
    """A dbt project, from its manifest. `namespace` is the OpenLineage namespace of its tables."""

    def __init__(self, manifest: DbtManifest, names: NameResolver, *, namespace: str = "") -> None:
        self._manifest = manifest
        self._names = names
        self._namespace = namespace or manifest.metadata.adapter_type or SOURCE
        self._project = manifest.metadata.project_name or SOURCE
        self._found: dict[str, str | None] = {}
        self._discovered: dict[str, DatasetDiscovered] = {}
        self._tests: dict[str, _TestId] | None = None

    @property
    def source(self) -> str:
        """The source of its results: tests that the project no longer has are found by it."""
        return f"{SOURCE}:{_clean(self._project, 200)}"

    def tables(self) -> frozenset[str]:
        """Return the datasets of the project."""
        nodes = (*self._manifest.nodes.values(), *self._manifest.sources.values())
        return frozenset(urn for node in nodes if (urn := self._urn(node)) is not None)

    def declared_tests(self) -> dict[str, set[str]]:
        """Return the ids of the tests of each dataset of the project."""
        found: dict[str, set[str]] = {urn: set() for urn in self.tables()}
        for each in self._test_ids().values():
            for urn in each.urns:
                found[urn].add(each.test_id)
        return found

    def lineage(self) -> Ingested:
        """Return the lineage of models and exposures."""
        specs: list[Effect] = [self._model(node) for node in self._manifest.nodes.values() if _is_job(node)]
        specs += [self._exposure(exposure) for exposure in self._manifest.exposures.values()]
        return Ingested(self._manifest.invocation_id, (*self._discovered.values(), *specs))

    def metadata(self, catalog: Catalog | None) -> Ingested:
        """Return the description, owner, tags and fields of each table.

        The catalog has all columns with their types; so has a model with an enforced contract. Otherwise the documented
        columns are descriptions only.
        """
        effects: list[Effect] = []
        for node in (*self._manifest.nodes.values(), *self._manifest.sources.values()):
            urn = self._urn(node) if node.resource_type in _TABLES else None
            if urn is None:
                continue
            metadata = self._metadata_of(node)
            if metadata is not None and urn not in self._discovered:
                effects.append(MetadataEffect(dataset_urn=urn, metadata=metadata))
            table = (
                None if catalog is None else catalog.nodes.get(node.unique_id) or catalog.sources.get(node.unique_id)
            )
            at = self._manifest.at if catalog is None or table is None else catalog.at
            observation = _observation(node, table, self.source, at)
            if observation is not None:
                effects.append(FieldsEffect(dataset_urn=urn, observation=observation))
        return Ingested(self._manifest.invocation_id, (*self._discovered.values(), *effects))

    def _metadata_of(self, node: Node) -> Metadata | None:
        team, email = _owner(node)
        tags = {*(node.tags or ()), *_tags(node)}
        found = Metadata(
            source=SOURCE,
            description=_clean((node.description or "").strip(), 1_000),
            owner_team=team or "",
            owner_email=email or "",
            tags=tags_of(dict.fromkeys(sorted(tags), "")),
        )
        return None if found == Metadata(source=SOURCE) else found

    def run_results(self, results: RunResults) -> Ingested:
        """Return the result of each model and of each test."""
        effects: list[Effect] = []
        for result in results.results:
            node = self._manifest.nodes.get(result.unique_id) or self._manifest.unit_tests.get(result.unique_id)
            if node is None or node.resource_type not in _TESTS | _JOBS:
                continue
            if node.resource_type in _JOBS:
                effects += self._model_result(node, result, results)
                continue
            test = self._test_ids()[result.unique_id]
            effects += [self._test_result(urn, node, test, result, results) for urn in test.urns]
            if not test.urns:
                effects.append(IngestWarning(result.unique_id, "the test reads no table"))
        return Ingested(results.invocation_id, (*self._discovered.values(), *effects))

    def sources(self, sources: Sources) -> Ingested:
        """Return the freshness signal of each source."""
        effects: list[Effect] = []
        for result in sources.results:
            node = self._manifest.sources.get(result.unique_id)
            urn = None if node is None else self._urn(node)
            if urn is None:
                effects.append(IngestWarning(result.unique_id, "the source is not in the manifest"))
            else:
                effects.append(_freshness(urn, result, sources.at))
        return Ingested(sources.invocation_id, (*self._discovered.values(), *effects))

    # Names.

    def _urn(self, node: Node) -> str | None:
        """Return the dataset of a node, or None if it has no table."""
        if node.unique_id not in self._found:
            name = _table(node)
            self._found[node.unique_id] = None if name is None else self._named(node, name)
        return self._found[node.unique_id]

    def _named(self, node: Node, name: str) -> str:
        known = openlineage_names.known_urn(self._namespace, name, self._names)
        if known is not None:
            return known
        urn = openlineage_names.made_urn(self._namespace, name)
        self._discovered[urn] = DatasetDiscovered(
            dataset_urn=urn,
            namespace=self._namespace,
            name=name,
            metadata=self._metadata_of(node),
        )
        return urn

    def _test_ids(self) -> Mapping[str, _TestId]:
        """Return the id and the datasets of each test of the project.

        The id is the code and column of a test, as other tools report it too; tests that share them get a digest.
        """
        if self._tests is None:
            nodes = [each for each in self._manifest.nodes.values() if each.resource_type in _TESTS]
            nodes += self._manifest.unit_tests.values()
            found = [(node, _check(node, SignalState.UNKNOWN), self._tested(node)) for node in nodes]
            shared = Counter((urn, check.signature) for _, check, urns in found for urn in urns)
            self._tests = {}
            for node, check, urns in found:
                is_alone = all(shared[urn, check.signature] == 1 for urn in urns)
                digest = hashlib.blake2b(node.unique_id.encode(errors="replace"), digest_size=4).hexdigest()
                test_id = check.signature if is_alone else f"{check.signature}~{digest}"
                self._tests[node.unique_id] = _TestId(test_id, tuple(sorted(urns)))
        return self._tests

    def _tested(self, node: Node) -> set[str]:
        """Return the datasets of a test: the node it is attached to, or else the most downstream ones it reads."""
        if node.attached_node is not None and (attached := self._node(node.attached_node)) is not None:
            urn = self._urn(attached)
            return set(self._tables([node.attached_node])) if urn is None else {urn}
        parents = self._parents(node.unique_id, node)
        urns = set(self._tables(parents))
        if 1 < len(urns) <= _TESTED_MAX:
            for each in parents:
                urns -= self._upstream(each)
        return urns

    def _upstream(self, unique_id: str) -> set[str]:
        """Return the datasets that a node depends on, over any number of models."""
        seen: set[str] = set()
        waiting = [unique_id]
        found: set[str] = set()
        while waiting:
            node = self._node(waiting.pop())
            for parent in [] if node is None else self._parents(node.unique_id, node):
                above = self._node(parent)
                if parent in seen or above is None:
                    continue
                seen.add(parent)
                waiting.append(parent)
                if (urn := self._urn(above)) is not None:
                    found.add(urn)
        return found

    def _node(self, unique_id: str) -> Node | None:
        return self._manifest.nodes.get(unique_id) or self._manifest.sources.get(unique_id)

    def _parents(self, unique_id: str, node: Node | Exposure) -> list[str]:
        found = (self._manifest.parent_map or {}).get(unique_id)
        if found is None:
            found = (node.depends_on.nodes if node.depends_on is not None else None) or []
        return found

    def _tables(self, unique_ids: list[str]) -> Iterator[str]:
        """Yield the datasets of some nodes. A node without a table stands for the nodes it depends on."""
        seen: set[str] = set()
        waiting = list(unique_ids)
        while waiting:
            unique_id = waiting.pop()
            node = self._node(unique_id)
            if node is None or unique_id in seen or node.resource_type not in _TABLES:
                continue
            seen.add(unique_id)
            urn = self._urn(node)
            if urn is not None:
                yield urn
            else:
                waiting += self._parents(unique_id, node)

    # Lineage.

    def _model(self, node: Node) -> SpecUpdate:
        urn = self._urn(node)
        return SpecUpdate(
            producer_id=self._producer(node),
            producer_name=_clean(node.name, 256),
            at=self._manifest.at,
            source=SOURCE,
            state=RunState.COMPLETE,
            reads=frozenset(self._tables(self._parents(node.unique_id, node))),
            writes=frozenset(() if urn is None else (urn,)),
        )

    def _exposure(self, exposure: Exposure) -> SpecUpdate:
        is_notebook = (exposure.type or "").lower() == "notebook"
        return SpecUpdate(
            producer_id=openlineage_names.producer_id(SOURCE, f"{exposure.package_name or self._project}.exposure"
                                                      f".{exposure.name}"),
            producer_name=_clean(exposure.name, 256),
            producer_type=EntityType.NOTEBOOK if is_notebook else EntityType.SERVICE,
            at=self._manifest.at,
            source=SOURCE,
            state=RunState.COMPLETE,
            reads=frozenset(self._tables(self._parents(exposure.unique_id, exposure))),
        )  # fmt: skip

    def _producer(self, node: Node) -> str:
        return openlineage_names.producer_id(SOURCE, f"{node.package_name or self._project}.{node.name}")

    def _model_result(self, node: Node, result: NodeResult, results: RunResults) -> list[Effect]:
        urn, state = self._urn(node), _state(result.status)
        if urn is None:
            return []
        return [
            RunEffect(report=self._run_report(node, result, results, urn)),
            ResultEffect(
                dataset_urn=urn,
                kind=ResultKind.RUN,
                test_id=self._producer(node),
                state=state,
                at=results.at,
                started_at=results.at,
                signature=f"{MODEL_FAILED}:{openlineage_checks.WHOLE_DATASET}",
                source=self.source,
                message=""
                if state is SignalState.OK
                else error_text(result.message or f"the model is {result.status}"),
                producer_id=self._producer(node),
                run_id=_clean(results.invocation_id, 128),
                job=_clean(node.name, 256),
            ),
        ]

    def _run_report(self, node: Node, result: NodeResult, results: RunResults, urn: str) -> RunReport:
        state = _state(result.status)
        at_ms = timestamps.milliseconds(results.at)
        seconds = result.execution_time if result.execution_time is not None else 0.0
        return RunReport(
            job_id=self._producer(node),
            namespace=SOURCE,
            name=_clean(f"{node.package_name or self._project}.{node.name}", 256),
            run_id=_clean(results.invocation_id, 128),
            at=results.at,
            state=_JOB_STATES[state],
            started_at=timestamps.instant(at_ms - int(min(max(seconds, 0.0), 86_400.0) * 1000)),
            integration="DBT",
            job_type=node.resource_type.upper(),
            message="" if state is SignalState.OK else error_text(result.message or ""),
            inputs=tuple(sorted(self._tables(self._parents(node.unique_id, node)))),
            outputs=(urn,),
        )

    def _test_result(
        self, urn: str, node: Node, test: _TestId, result: NodeResult, results: RunResults
    ) -> ResultEffect:
        check = _check(node, _state(result.status))
        return ResultEffect(
            dataset_urn=urn,
            kind=ResultKind.TEST,
            test_id=test.test_id,
            state=check.state,
            at=results.at,
            started_at=results.at,
            signature=check.signature,
            source=self.source,
            column=node.column_name,
            message=""
            if check.state is SignalState.OK
            else error_text(result.message or f"the test is {result.status}"),
            failures=result.failures,
            run_id=_clean(results.invocation_id, 128),
            job=_clean(node.name, 256),
        )


def spec_of(update: SpecUpdate) -> LineageSpec | None:
    """Return the spec of a model or exposure, under an id derived from its content."""
    return openlineage_runs.spec_of(openlineage_runs.folded(None, update))


def _observation(node: Node, table: CatalogTable | None, source: str, at: str) -> Observation | None:
    """Return the fields of a table: those of the catalog, or the documented ones."""
    documented = {each.name.casefold(): each for each in (node.columns or {}).values()}
    fields: list[DatasetField] = []
    if table is not None:
        for each in sorted(table.columns.values(), key=lambda column: column.index or 0):
            known = documented.get(each.name.casefold())
            text = (known.description if known is not None else None) or each.comment or ""
            fields.append(_field(each.name, each.type, text))
        return Observation(source=f"{source}:catalog", at=at, fields=tuple(fields), is_whole=True) if fields else None
    fields = [_field(each.name, each.data_type or "", each.description or "") for each in documented.values()]
    if not fields:
        return None
    contract = None if node.config is None else node.config.contract
    is_whole = contract is not None and bool(contract.enforced) and all(each.type for each in fields)
    return Observation(source=source, at=at, fields=tuple(fields), is_whole=is_whole)


def _field(name: str, data_type: str, description: str) -> DatasetField:
    return DatasetField(
        name=_clean(name, 200), type=_clean(data_type, 200), description=_clean(description, 1_000), source=SOURCE
    )


def _tags(node: Node) -> list[str]:
    found = None if node.config is None else node.config.tags
    return [found] if isinstance(found, str) else found or []


def _is_job(node: Node) -> bool:
    return node.resource_type in _JOBS and not _is_ephemeral(node)


def _is_ephemeral(node: Node) -> bool:
    return node.config is not None and node.config.materialized == _EPHEMERAL


def _table(node: Node) -> str | None:
    """Return the table name of a node in OpenLineage form, without quotes."""
    if node.resource_type not in _TABLES or _is_ephemeral(node):
        return None
    if node.relation_name:
        parts = ["".join(groups) for groups in _PART.findall(node.relation_name)]
        return ".".join(part.strip() for part in parts if part.strip()) or None
    parts = [node.database or "", node.schema or "", node.identifier or node.alias or node.name]
    return ".".join(part for part in parts if part)


def _owner(node: Node) -> tuple[str | None, str | None]:
    """Return the team and the address of a node's owner, from its meta."""
    meta = {**((node.config.meta if node.config else None) or {}), **(node.meta or {})}
    owner = meta.get("owner")
    if isinstance(owner, dict):
        named = {key: value for key, value in owner.items() if isinstance(value, str)}
        return _text(named.get("team") or named.get("name")), _text(named.get("email"))
    if not isinstance(owner, str) or not owner.strip():
        return None, None
    is_address = "@" in owner.strip()[1:] and " " not in owner.strip()
    return (None, _text(owner)) if is_address else (_text(owner), None)


def _text(given: str | None) -> str | None:
    return _clean(given.strip().lstrip("@"), 200) or None if given else None


def _check(node: Node, state: SignalState) -> openlineage_checks.Check:
    kind = node.test_metadata.name if node.test_metadata is not None else None
    return openlineage_checks.check(kind or node.name, node.column_name, state)


def _state(status: str) -> SignalState:
    """Return the state of a dbt status; UNKNOWN for an unknown status."""
    try:
        return enums.signal_state(status)
    except InvalidPayloadError:
        return SignalState.UNKNOWN


def _freshness(urn: str, result: Freshness, at: str) -> SignalEffect:
    state = _state(result.status)
    age, limit = result.max_loaded_at_time_ago_in_s, _limit_seconds(result)
    score = 1.0 if state is SignalState.OK else 0.0
    if state.is_breach and limit is not None and age is not None and math.isfinite(age) and age > 0:
        score = min(1.0, limit / age)
    end = _moment(result.snapshotted_at) or at
    return SignalEffect(
        dataset_urn=urn,
        signal_type=FRESHNESS,
        state=state,
        score=score,
        window_start=min(_moment(result.max_loaded_at) or end, end),
        window_end=end,
        window_type=INVOCATION_WINDOW,
        slo_threshold=float(limit or 0),
        metrics=Metrics(evidence_count=1, pass_count=int(state is SignalState.OK), fail_count=int(state.is_breach)),
        failure_signature=STALE if state.is_breach else None,
        message=None if state is SignalState.OK else _staleness(result, limit),
    )


def _staleness(result: Freshness, limit_seconds: int | None) -> str:
    """Return why a source is not fresh, or why that is unknown."""
    if result.error is not None:
        return error_text(str(result.error))
    if result.max_loaded_at is None:
        return f"the freshness is {result.status}"
    allowed = "" if limit_seconds is None else f"; at most {limit_seconds:,} s are allowed"
    return f"the last row was loaded at {result.max_loaded_at}{allowed}"


def _limit_seconds(result: Freshness) -> int | None:
    """Return the age from which a source is an error, or else a warning."""
    limits = () if result.criteria is None else (result.criteria.error_after, result.criteria.warn_after)
    return next((seconds for limit in limits if (seconds := _seconds(limit)) is not None), None)


def _seconds(limit: Limit | None) -> int | None:
    if limit is None or limit.count is None or limit.period not in _PERIOD_SECONDS:
        return None
    return limit.count * _PERIOD_SECONDS[limit.period]


def _moment(given: str | None) -> str | None:
    if not given:
        return None
    try:
        return timestamps.moment(given, field="moment")
    except InvalidPayloadError:
        return None


def _clean(text: str, length_max: int) -> str:
    return _CONTROL.sub(" ", text[:length_max])
