"""dbt artifacts: the parts of run_results.json, sources.json and manifest.json that ingestion reads."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct

from headgate import typed_decode
from headgate.errors import InvalidPayloadError, PayloadTooLargeError
from headgate.health.model import timestamps

RUN_RESULTS_VERSIONS: Final = (4, 5, 6)
SOURCES_VERSIONS: Final = (3,)
CATALOG_VERSIONS: Final = (1,)
MANIFEST_VERSIONS: Final = (10, 11, 12)
# Manifests of large projects have tens of megabytes; most of that is code, which is skipped.
ARTIFACT_BYTES_MAX: Final = 100_000_000
NODES_MAX: Final = 50_000
_VERSION: Final = re.compile(r"https?://schemas\.getdbt\.com/dbt/([a-z-]+)/v(\d+)\.json")
_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_A = TypeVar("_A", bound="Artifact")


class Metadata(Struct, frozen=True):
    """The invocation that wrote an artifact, and the schema version."""

    dbt_schema_version: str
    generated_at: str
    invocation_id: str | None = None
    dbt_version: str | None = None
    adapter_type: str | None = None
    project_name: str | None = None


class Artifact(Struct, frozen=True, kw_only=True):
    """The common part of all artifacts."""

    metadata: Metadata

    @property
    def at(self) -> str:
        return timestamps.moment(self.metadata.generated_at, field="metadata.generated_at")

    @property
    def invocation_id(self) -> str:
        """The invocation id, or the timestamp for artifacts without one."""
        return self.metadata.invocation_id or self.at


class NodeResult(Struct, frozen=True):
    """The result of a node."""

    unique_id: str
    status: str
    message: str | None = None
    failures: int | None = None
    execution_time: float | None = None


class RunResults(Artifact, frozen=True, kw_only=True):
    """run_results.json: results of models, tests and other nodes."""

    results: list[NodeResult]


class Limit(Struct, frozen=True):
    """A maximum age of data."""

    count: int | None = None
    period: str | None = None


class Criteria(Struct, frozen=True):
    """The ages from which a source is a warning or an error."""

    warn_after: Limit | None = None
    error_after: Limit | None = None


class Freshness(Struct, frozen=True):
    """The freshness of a source, or why it is unknown."""

    unique_id: str
    status: str
    error: Any = None
    max_loaded_at: str | None = None
    snapshotted_at: str | None = None
    max_loaded_at_time_ago_in_s: float | None = None
    criteria: Criteria | None = None


class Sources(Artifact, frozen=True, kw_only=True):
    """sources.json: freshness of sources."""

    results: list[Freshness]


class TestMetadata(Struct, frozen=True):
    """The definition of a generic test."""

    name: str | None = None


class DependsOn(Struct, frozen=True):
    """The dependencies of a node."""

    nodes: list[str] | None = None


class Owner(Struct, frozen=True):
    """The owner of an exposure."""

    name: str | None = None
    email: str | list[str] | None = None


class Contract(Struct, frozen=True):
    """Whether dbt enforces the columns and types of a model."""

    enforced: bool | None = None


class Column(Struct, frozen=True):
    """A column that the project documents."""

    name: str
    description: str | None = None
    data_type: str | None = None


class Config(Struct, frozen=True):
    """The config of a node."""

    contract: Contract | None = None
    tags: str | list[str] | None = None
    materialized: str | None = None
    meta: dict[str, Any] | None = None


class Node(Struct, frozen=True):
    """A model, seed, snapshot, test or source."""

    unique_id: str
    resource_type: str
    name: str
    package_name: str | None = None
    database: str | None = None
    schema: str | None = None
    alias: str | None = None
    identifier: str | None = None
    relation_name: str | None = None
    description: str | None = None
    column_name: str | None = None
    attached_node: str | None = None
    test_metadata: TestMetadata | None = None
    depends_on: DependsOn | None = None
    config: Config | None = None
    meta: dict[str, Any] | None = None
    tags: list[str] | None = None
    columns: dict[str, Column] | None = None


class Exposure(Struct, frozen=True):
    """A consumer of models outside dbt: a dashboard, a notebook, an application."""

    unique_id: str
    name: str
    type: str | None = None
    package_name: str | None = None
    owner: Owner | None = None
    depends_on: DependsOn | None = None


class DbtManifest(Artifact, frozen=True, kw_only=True):
    """manifest.json: all nodes of a project."""

    nodes: dict[str, Node]
    sources: dict[str, Node] = {}
    unit_tests: dict[str, Node] = {}
    exposures: dict[str, Exposure] = {}
    parent_map: dict[str, list[str]] | None = None


class CatalogColumn(Struct, frozen=True):
    """A column of a table."""

    name: str
    type: str = ""
    comment: str | None = None
    index: int | None = None


class CatalogTable(Struct, frozen=True):
    """A table, with all of its columns."""

    unique_id: str | None = None
    columns: dict[str, CatalogColumn] = {}


class Catalog(Artifact, frozen=True, kw_only=True):
    """catalog.json: the tables as the database has them, of `dbt docs generate`."""

    nodes: dict[str, CatalogTable]
    sources: dict[str, CatalogTable] = {}


def catalog(body: bytes) -> Catalog:
    """Return a decoded catalog.json. Raises as `run_results` does."""
    return _read(body, Catalog, "catalog", CATALOG_VERSIONS)


def run_results(body: bytes) -> RunResults:
    """Return a decoded run_results.json. Raises `InvalidPayloadError` and `PayloadTooLargeError`."""
    return _read(body, RunResults, "run-results", RUN_RESULTS_VERSIONS)


def sources(body: bytes) -> Sources:
    """Return a decoded sources.json. Raises as `run_results` does."""
    return _read(body, Sources, "sources", SOURCES_VERSIONS)


def manifest(body: bytes) -> DbtManifest:
    """Return a decoded manifest.json. Raises as `run_results` does."""
    found = _read(body, DbtManifest, "manifest", MANIFEST_VERSIONS)
    count = len(found.nodes) + len(found.sources) + len(found.exposures)
    if count > NODES_MAX:
        raise PayloadTooLargeError(f"dbt manifest: {count:,} nodes, at most {NODES_MAX:,}")
    return found


class _Head(Struct, frozen=True):
    metadata: Metadata


def _read(body: bytes, kind: type[_A], name: str, versions: Collection[int]) -> _A:
    if len(body) > ARTIFACT_BYTES_MAX:
        raise PayloadTooLargeError(f"dbt {name}: {len(body):,} bytes, at most {ARTIFACT_BYTES_MAX:,}")
    try:
        # The version first: errors in an unknown schema are meaningless.
        _check_version(typed_decode.from_json(body, _Head).metadata.dbt_schema_version, name, versions)
        found = typed_decode.from_json(body, kind)
    except _ERRORS as exc:
        raise InvalidPayloadError(f"dbt {name}: {str(exc)[:300]}") from exc
    timestamps.moment(found.metadata.generated_at, field="metadata.generated_at")
    return found


def _check_version(given: str, name: str, versions: Collection[int]) -> None:
    found = _VERSION.fullmatch(given)
    if found is None:
        raise InvalidPayloadError(f"dbt {name}: dbt_schema_version {given[:80]!r} is not a dbt schema")
    if found[1] != name:
        raise InvalidPayloadError(f"dbt {name}: this is a {found[1]} artifact; send it as that")
    if int(found[2]) not in versions:
        known = ", ".join(f"v{version}" for version in versions)
        remedy = "upgrade Headgate" if int(found[2]) > max(versions) else "upgrade dbt"
        raise InvalidPayloadError(f"dbt {name}: schema v{found[2]} is not supported, only {known}; {remedy}")
