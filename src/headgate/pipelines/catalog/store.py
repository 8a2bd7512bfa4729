"""Pipeline store: definitions with all their versions, and their dependencies.

The current definition is one row, which change streams and lists see; each version is another, immutable row. An
unreadable row is reported and left out, and does not affect other pipelines.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from headgate.clock import Clock
from headgate.errors import (
    ConflictError,
    CorruptionError,
    InvalidPayloadError,
    NotFoundError,
    TransactionLimitError,
    VersionConflictError,
)
from headgate.pipelines.catalog.provenance import API, DefinitionSeals, Origin, Provenance
from headgate.pipelines.catalog.rows import (
    KIND,
    PARTITION,
    Dependent,
    StoredPipeline,
    change_writes,
    config_key,
    dependent_of,
    id_of,
    moment_text,
    sealing_writes,
    stored_of,
    version_key,
)
from headgate.pipelines.definition.model import Pipeline
from headgate.pipelines.definition.serialization import decode, differences, digest, encode
from headgate.store.catalogue.tables import DEFINITION_VERSION, DEFINITIONS, DEPENDENCY, PIPELINES
from headgate.store.model.conditions import (
    VALUE_BYTES_MAX,
    Condition,
    absent,
    all_of,
    equals,
    exists,
    lacks,
    version_is,
)
from headgate.store.model.requests import Page, Query, Range, Sort, Write
from headgate.store.model.values import Item
from headgate.store.port import Store

SOURCE_BYTES_MAX: Final = 262_144
REASON_CHARS_MAX: Final = 1_024
WRITES_MAX: Final = 100
PAGE: Final = 100
VERSION_MAX: Final = 999_999
_TRIES: Final = 5


class BadPipeline(Struct, frozen=True, kw_only=True):
    """A row that is no definition, and the problem."""

    pipeline_id: str
    problem: str


class PipelinePage(Struct, frozen=True, kw_only=True):
    """A page of pipelines. `cursor` is None on the last page."""

    pipelines: tuple[StoredPipeline, ...]
    bad: tuple[BadPipeline, ...] = ()
    cursor: str | None = None


class PipelineChange(Struct, frozen=True, kw_only=True):
    """The result of `put` and `delete`. `lines` describe the difference; none if nothing changed."""

    stored: StoredPipeline
    lines: tuple[str, ...] = ()
    is_new: bool = False

    @property
    def is_changed(self) -> bool:
        """Whether there is a new version."""
        return self.is_new or bool(self.lines)


# Makes further writes for the transaction of a change, such as events.
Also = Callable[[PipelineChange], Sequence[Write]]


def _nothing(_: PipelineChange) -> Sequence[Write]:
    return ()


class PipelineStore:
    """Stores definitions. Returned objects are copies."""

    def __init__(self, store: Store, clock: Clock, seals: DefinitionSeals | None = None) -> None:
        """Without `seals`, no definition counts as loaded from the project folder."""
        self._store = store
        self._clock = clock
        self._seals = seals if seals is not None else DefinitionSeals()

    def put(
        self,
        pipeline: Pipeline,
        source_text: str,
        by: str,
        *,
        source: str = "",
        reason: str = "",
        version: int | None = None,
        also: Also = _nothing,
        is_from_folder: bool = False,
    ) -> PipelineChange:
        """Store a definition as the current one of its pipeline. An unchanged one is no new version.

        Only the loader of the project folder sets `is_from_folder`: the definition is sealed and may run programs.
        With `version`, only if that is the current one (0: there is none); otherwise raises `VersionConflictError`. A
        deleted pipeline is restored and its versions continue. Raises `InvalidPayloadError` for a text that is too
        long, and `TransactionLimitError` for more changed upstreams than fit into one transaction.
        """
        if len(source_text.encode()) > SOURCE_BYTES_MAX:
            raise InvalidPayloadError(
                f"pipeline {pipeline.id}: its text is longer than {SOURCE_BYTES_MAX} bytes; split it"
            )
        # A copy: the caller may still change its own.
        pipeline = decode(encode(pipeline))
        wanted = StoredPipeline(
            pipeline=pipeline,
            version=0,
            digest=digest(pipeline),
            by=by,
            at=moment_text(self._clock.now()),
            source=source,
            source_digest=hashlib.sha256(source_text.encode()).hexdigest(),
            reason=reason[:REASON_CHARS_MAX],
        )
        return self._change(wanted, source_text, version, also, is_from_folder=is_from_folder)

    def is_from_folder(self, stored: StoredPipeline) -> bool:
        """Whether this definition was loaded from the project folder and is unaltered since."""
        fields = (stored.pipeline, stored.version, stored.source, stored.source_digest)
        return not stored.deleted and self._seals.holds(stored.seal, *fields)

    def provenance(self, stored: StoredPipeline) -> Provenance:
        """Return where a definition came from."""
        origin = Origin.API if stored.source == API else Origin.UNKNOWN
        return Provenance(
            origin=Origin.FOLDER if self.is_from_folder(stored) else origin,
            source=stored.source,
            sha256=stored.source_digest,
            by=stored.by,
            at=stored.at,
        )

    def delete(
        self,
        pipeline_id: str,
        by: str,
        *,
        reason: str = "",
        version: int | None = None,
        also: Also = _nothing,
    ) -> PipelineChange:
        """Delete a pipeline with its dependencies. Its versions stay, and the deletion is one more.

        Raises `NotFoundError`, and `VersionConflictError` as `put` does.
        """
        current = self.get(pipeline_id)
        wanted = StoredPipeline(
            pipeline=current.pipeline,
            version=0,
            digest=current.digest,
            by=by,
            at=moment_text(self._clock.now()),
            source=current.source,
            source_digest=current.source_digest,
            deleted=True,
            reason=reason[:REASON_CHARS_MAX],
        )
        return self._change(wanted, "", version, also)

    def get(self, pipeline_id: str, version: int | None = None) -> StoredPipeline:
        """Return the current definition, or one version. Raises `NotFoundError`, or `CorruptionError` for a bad row."""
        stored = self.find(pipeline_id, version)
        if stored is None:
            of_version = "" if version is None else f" in version {version}"
            raise NotFoundError(f"pipeline {pipeline_id[:80]!r}: there is none{of_version}; see `headgate pipeline ls`")
        return stored

    def find(self, pipeline_id: str, version: int | None = None) -> StoredPipeline | None:
        """Return the current definition, or one version, also of a deleted pipeline; None: there is none."""
        if not pipeline_id or "#" in pipeline_id:
            return None
        if not version:
            item = self._store.get(PIPELINES, config_key(pipeline_id), consistent=True)
            current = None if item is None else stored_of(item)
            # A row of another program has no version, which counts as 0, and is the only one.
            is_wanted = current is not None and not current.deleted and version in (None, current.version)
            return current if is_wanted else None
        if not 1 <= version <= VERSION_MAX:
            return None
        item = self._store.get(DEFINITIONS, version_key(pipeline_id, version))
        return None if item is None else stored_of(item)

    def source_text(self, pipeline_id: str, version: int) -> str:
        """Return the source text of a version. Raises `NotFoundError`."""
        item = self._store.get(DEFINITIONS, version_key(pipeline_id, version))
        if item is None:
            raise NotFoundError(f"pipeline {pipeline_id[:80]!r}: there is no version {version}")
        return str(item.get("source_text", ""))

    def ls(self, *, limit: int = PAGE, cursor: str | None = None) -> PipelinePage:
        """Return a page of pipelines by id, with the rows of it that are no definitions."""
        query = Query(table=PIPELINES, partition=PARTITION, index="GSI1", limit=limit, cursor=cursor)
        return _page(self._store.query(query))

    def all(self) -> PipelinePage:
        """Return all pipelines."""
        query = Query(table=PIPELINES, partition=PARTITION, index="GSI1", limit=PAGE)
        pages = [_page(page) for page in self._query_all(query)]
        return PipelinePage(
            pipelines=tuple(stored for page in pages for stored in page.pipelines),
            bad=tuple(bad for page in pages for bad in page.bad),
        )

    def written_datasets(self) -> set[str]:
        """Return the datasets that the pipelines write."""
        return {dataset for each in self.all().pipelines for dataset in each.pipeline.writes}

    def versions(
        self, pipeline_id: str, *, limit: int = PAGE, cursor: str | None = None, consistent: bool = False
    ) -> PipelinePage:
        """Return the versions of a pipeline, latest first."""
        partition = DEFINITION_VERSION.key(kind=KIND, name=pipeline_id, version=1).partition
        query = Query(
            table=DEFINITIONS,
            partition=partition,
            sort=Sort(Range.BEGINS_WITH, "v"),
            limit=limit,
            cursor=cursor,
            descending=True,
            consistent=consistent,
        )
        return _page(self._store.query(query))

    def diff(self, pipeline_id: str, old: int, new: int | None = None) -> list[str]:
        """Return the differences between two versions, or since one, as lines. Raises `NotFoundError`."""
        return differences(self.get(pipeline_id, old).pipeline, self.get(pipeline_id, new).pipeline)

    def plan(self, pipeline: Pipeline) -> list[str]:
        """Return what `put` would change, as lines."""
        current = self.find(pipeline.id)
        before = Pipeline(id=pipeline.id) if current is None else current.pipeline
        head = [f"+ pipeline {pipeline.id}"] if current is None else []
        return [*head, *differences(before, pipeline)]

    def downstream_of(self, pipeline_id: str) -> list[Dependent]:
        """Return the pipelines that depend on this one. Unreadable rows are left out."""
        dependents: list[Dependent] = []
        partition = DEPENDENCY.key(upstream_id=pipeline_id, downstream_id="_").partition
        for page in self._query_all(Query(table=PIPELINES, partition=partition, consistent=True, limit=PAGE)):
            for item in page.items:
                try:
                    dependents.append(dependent_of(item))
                except CorruptionError:
                    # The next put of the dependent pipeline rewrites it; the others must be notified meanwhile.
                    continue
        return dependents

    def _change(
        self,
        wanted: StoredPipeline,
        source_text: str,
        version: int | None,
        also: Also,
        *,
        is_from_folder: bool = False,
    ) -> PipelineChange:
        pipeline_id = wanted.pipeline.id
        for _ in range(_TRIES):
            row = self._row(pipeline_id)
            if version is not None and version != row.live_version:
                raise VersionConflictError(
                    f"pipeline {pipeline_id}: it is at version {row.live_version}, not {version}; "
                    "look at what changed, then try again",
                    current={"version": row.live_version},
                )
            change = _change_of(wanted, row)
            is_sealed = not is_from_folder or self.is_from_folder(change.stored)
            if not change.is_changed and is_sealed:
                return change
            if is_from_folder:
                change = self._sealed(change, wanted)
            if change.is_changed:
                writes = [*change_writes(change.stored, source_text, row.stored, row.condition), *also(change)]
            else:
                writes = sealing_writes(change.stored, source_text, row.condition)
            if len(writes) > WRITES_MAX:
                raise TransactionLimitError(
                    f"pipeline {pipeline_id}: {len(writes)} rows would change at once, at most {WRITES_MAX} can; "
                    "change its upstreams in two steps"
                )
            try:
                self._store.transact(writes)
            except ConflictError:
                continue
            return change
        raise VersionConflictError(f"pipeline {pipeline_id}: concurrent changes keep winning; read it, then try again")

    def _sealed(self, change: PipelineChange, wanted: StoredPipeline) -> PipelineChange:
        """Return a change with the seal of a definition from the folder, also of one that is stored already."""
        source, source_digest = wanted.source, wanted.source_digest
        stored = replace(
            change.stored,
            # Equal to the stored one, or its replacement: what is sealed is what the folder holds.
            pipeline=wanted.pipeline,
            digest=wanted.digest,
            by=wanted.by,
            at=wanted.at,
            source=source,
            source_digest=source_digest,
            seal=self._seals.seal(wanted.pipeline, change.stored.version, source, source_digest),
        )
        return replace(change, stored=stored)

    def _row(self, pipeline_id: str) -> _Row:
        """Return the current row, also if it is missing or unreadable."""
        item = self._store.get(PIPELINES, config_key(pipeline_id), consistent=True)
        stored = None
        if item is not None:
            try:
                stored = stored_of(item)
            except CorruptionError:
                # A bad row may be replaced.
                stored = None
        if stored is not None and stored.version:
            return _Row(stored, stored.version, version_is(stored.version))
        condition = absent() if item is None else _as_found(item)
        # Versions are never deleted: the next one follows the last of them.
        last = self.versions(pipeline_id, limit=1, consistent=True).pipelines[:1]
        latest = last[0] if last else None
        version = latest.version if latest is not None else 0
        return _Row(stored or latest, version, condition, is_live=stored is not None)

    def _query_all(self, query: Query) -> Iterator[Page]:
        while True:
            page = self._store.query(query)
            yield page
            if page.cursor is None:
                return
            query = replace(query, cursor=page.cursor)


class _Row(Struct, frozen=True):
    """The current row of a pipeline: its content, the last version, and the condition for its replacement."""

    stored: StoredPipeline | None
    version: int
    condition: Condition
    is_live: bool = True

    @property
    def live_version(self) -> int:
        """The version in force; 0: none."""
        is_gone = self.stored is None or self.stored.deleted or not self.is_live
        return 0 if is_gone else self.version


def _change_of(wanted: StoredPipeline, row: _Row) -> PipelineChange:
    """Return the change that storing this makes. An unchanged definition is returned as stored."""
    before = row.stored if row.is_live and row.stored is not None and not row.stored.deleted else None
    if wanted.deleted:
        lines = [f"- pipeline {wanted.pipeline.id}"]
    elif before is None:
        lines = [f"+ pipeline {wanted.pipeline.id}"]
    else:
        lines = differences(before.pipeline, wanted.pipeline)
        if not lines and (before.source_digest != wanted.source_digest or not before.version):
            lines = ["~ its text alone: comments, order or layout"]
    if before is not None and not lines:
        return PipelineChange(stored=before)
    stored = replace(wanted, version=row.version + 1)
    return PipelineChange(stored=stored, lines=tuple(lines), is_new=before is None and not wanted.deleted)


def _as_found(item: Item) -> Condition:
    """Return the condition that a row of another program is unchanged."""
    version = item.get("version")
    if isinstance(version, int):
        return version_is(version)
    config = item.get("config")
    if isinstance(config, str) and len(config.encode()) <= VALUE_BYTES_MAX:
        return equals("config", config)
    return all_of(exists(), lacks("version"))


def _page(page: Page) -> PipelinePage:
    pipelines: list[StoredPipeline] = []
    bad: list[BadPipeline] = []
    for item in page.items:
        try:
            pipelines.append(stored_of(item))
        except CorruptionError as exc:
            bad.append(BadPipeline(pipeline_id=id_of(item), problem=str(exc)))
    return PipelinePage(pipelines=tuple(pipelines), bad=tuple(bad), cursor=page.cursor)
