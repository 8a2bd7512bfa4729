"""Catalog rows: the current definition of each pipeline, its versions, and its dependencies."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from headgate import typed_decode
from headgate.errors import CorruptionError, UserError
from headgate.pipelines.authoring.loader import Known, load_pipeline
from headgate.pipelines.definition.model import Pipeline
from headgate.pipelines.definition.serialization import decode, digest, encode
from headgate.pipelines.schedule.dependencies import Dependency, sources_of, upstreams_of
from headgate.store.catalogue.tables import DEFINITION_VERSION, DEFINITIONS, DEPENDENCY, PIPELINE_CONFIG, PIPELINES
from headgate.store.model.conditions import Condition, absent
from headgate.store.model.requests import Delete, Put, Write
from headgate.store.model.schema import Key
from headgate.store.model.values import Item

KIND: Final = "PIPELINE"
PARTITION: Final = "PIPELINES"
# Index partition of deleted pipelines.
DELETED: Final = "PIPELINES-DELETED"


class StoredPipeline(Struct, frozen=True, kw_only=True):
    """A version of a pipeline. `digest` is that of the definition."""

    pipeline: Pipeline
    version: int
    digest: str
    by: str
    at: str
    # The file or call it came from, and the digest of its text.
    source: str = ""
    source_digest: str = ""
    # The signature of the server over a definition from the project folder; see `provenance`.
    seal: str = ""
    deleted: bool = False
    # Why it was changed or deleted, if stated.
    reason: str = ""


class Dependent(Struct, frozen=True, kw_only=True):
    """A pipeline that depends on another one."""

    pipeline_id: str
    upstream_id: str
    dependencies: tuple[Dependency, ...]

    @property
    def starts(self) -> bool:
        """Whether an upstream run starts one of this pipeline."""
        return any(dependency.starts for dependency in self.dependencies)


def config_key(pipeline_id: str) -> Key:
    """Return the key of the current definition."""
    return PIPELINE_CONFIG.key(pipeline_id=pipeline_id)


def version_key(pipeline_id: str, version: int) -> Key:
    """Return the key of one version."""
    return DEFINITION_VERSION.key(kind=KIND, name=pipeline_id, version=version)


def change_writes(
    stored: StoredPipeline, source_text: str, previous: StoredPipeline | None, condition: Condition
) -> list[Write]:
    """Return the writes that make this the current version, with its dependencies, under `condition`."""
    pipeline_id = stored.pipeline.id
    attributes = _attributes(stored)
    config: Item = {**attributes, **PIPELINES.key_attributes(config_key(pipeline_id))}
    config |= PIPELINE_CONFIG.index_attributes(pipeline_id=pipeline_id)
    if stored.deleted:
        # Not among the pipelines, but the retention of their runs finds them.
        config["GSI1PK"] = DELETED
    version: Item = {
        **attributes,
        **DEFINITIONS.key_attributes(version_key(pipeline_id, stored.version)),
        "source_text": source_text,
    }
    return [
        Put(PIPELINES, config, condition),
        Put(DEFINITIONS, version, absent()),
        *_dependency_writes(stored, previous),
    ]


def sealing_writes(stored: StoredPipeline, source_text: str, condition: Condition) -> list[Write]:
    """Return the writes that replace both rows of the current version, whose definition is unchanged."""
    config, version, *_ = change_writes(stored, source_text, stored, condition)
    assert isinstance(version, Put), "the row of the version"
    return [config, replace(version, condition=None)]


def stored_of(item: Item) -> StoredPipeline:
    """Decode a definition from its row. The definition in it may have any supported format.

    Raises `CorruptionError` that names the row and the problem.
    """
    where = f"row {item.get('PK')} / {item.get('SK')}"
    try:
        pipeline = _definition(item, where)
        stored = StoredPipeline(
            pipeline=pipeline,
            version=int(item.get("version", 0)),
            digest=str(item.get("digest") or digest(pipeline)),
            by=str(item.get("by", "")),
            at=str(item.get("at", "")),
            source=str(item.get("source", "")),
            source_digest=str(item.get("source_digest", "")),
            seal=str(item.get("seal", "")),
            deleted=bool(item.get("deleted", False)),
            reason=str(item.get("reason", "")),
        )
    except (UserError, ValueError, TypeError) as exc:
        raise CorruptionError(f"{where}: {exc}; put the definition again") from exc
    if pipeline.id != id_of(item):
        raise CorruptionError(f"{where}: its definition is that of {pipeline.id!r}; put it under its own id")
    return stored


def id_of(item: Item) -> str:
    """Return the pipeline id of a definition's row."""
    return str(item.get("PK", "")).partition("#")[2]


def dependent_of(item: Item) -> Dependent:
    """Decode a dependency from its row. Raises `CorruptionError`."""
    try:
        return typed_decode.convert(
            {name: item.get(name) for name in ("pipeline_id", "upstream_id", "dependencies")}, Dependent
        )
    except msgspec.ValidationError as exc:
        where = f"row {item.get('PK')} / {item.get('SK')}"
        raise CorruptionError(f"{where}: it is no dependency, {exc}; put the pipeline downstream again") from exc


def moment_text(moment: datetime) -> str:
    """Format a time as in rows."""
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _definition(item: Item, where: str) -> Pipeline:
    config = item.get("config")
    if isinstance(config, str) and "digest" in item:
        return decode(config)
    # A row of another program: as text, or as the map itself.
    text = config if isinstance(config, str) else msgspec.json.encode(config).decode()
    return load_pipeline(text, where, Known(is_stored=True))


def _attributes(stored: StoredPipeline) -> Item:
    pipeline = stored.pipeline
    attributes: dict[str, Any] = {
        "pipeline_id": pipeline.id,
        "config": encode(pipeline),
        "version": stored.version,
        "digest": stored.digest,
        "by": stored.by,
        "at": stored.at,
        "source": stored.source,
        "source_digest": stored.source_digest,
        "owner": pipeline.owner,
        "tier": pipeline.tier,
    }
    if stored.seal:
        attributes["seal"] = stored.seal
    if stored.deleted:
        attributes["deleted"] = True
    if stored.reason:
        attributes["reason"] = stored.reason
    return attributes


def _dependency_writes(stored: StoredPipeline, previous: StoredPipeline | None) -> list[Write]:
    before = {} if previous is None or previous.deleted else _dependencies(previous.pipeline)
    after = {} if stored.deleted else _dependencies(stored.pipeline)
    downstream = stored.pipeline.id
    writes: list[Write] = [
        Delete(PIPELINES, DEPENDENCY.key(upstream_id=upstream, downstream_id=downstream))
        for upstream in before.keys() - after.keys()
    ]
    writes += [
        Put(PIPELINES, _dependency_item(upstream, downstream, dependencies))
        for upstream, dependencies in after.items()
        if before.get(upstream) != dependencies
    ]
    return writes


def _dependencies(pipeline: Pipeline) -> dict[str, list[Dependency]]:
    # Datasets and events are indexed in the same way, without further data.
    dependencies: dict[str, list[Dependency]] = {source: [] for source in sources_of(pipeline)}
    for dependency in upstreams_of(pipeline):
        dependencies.setdefault(dependency.upstream.pipeline, []).append(dependency)
    return dependencies


def _dependency_item(upstream: str, downstream: str, dependencies: Sequence[Dependency]) -> Item:
    return {
        **PIPELINES.key_attributes(DEPENDENCY.key(upstream_id=upstream, downstream_id=downstream)),
        "pipeline_id": downstream,
        "upstream_id": upstream,
        "dependencies": [msgspec.to_builtins(dependency) for dependency in dependencies],
    }
