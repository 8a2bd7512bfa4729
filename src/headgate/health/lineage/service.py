"""Lineage service: keeps the writers and readers of datasets and columns in step with the specs of producers.

A producer's manifest lists its edges. A spec with few changes is one transaction; for a larger one the manifest first
records the pending changes, and the edge rows follow in steps, each conditional on the manifest's version. After a
crash, the producer's next spec or the sweep finishes the pending changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from headgate.clock import Clock
from headgate.errors import AlreadyExistsError, ConflictError, NotFoundError, StoreBusyError
from headgate.health.lineage.graph import LineageGraph
from headgate.health.lineage.manifests import Manifest, ManifestPlan, Outcome, PendingChange, decide
from headgate.health.lineage.rows import (
    PENDING,
    LineageEntry,
    commit_item,
    commit_partition,
    edge_write,
    entry_of,
    manifest_item,
    manifest_key,
    manifest_of,
    side,
    spec_item,
    spec_key,
    spec_of,
    ties,
    ties_item,
)
from headgate.health.lineage.specs import EdgeKind, LineageSpec, checked, column_urn, entity_id, entity_ids, spec_id
from headgate.health.model import urns
from headgate.store.catalogue.tables import CONTROL
from headgate.store.model.conditions import Condition, absent, any_of, equals, version_is
from headgate.store.model.requests import Poll, Put, Query, Range, Sort, Update, Write
from headgate.store.model.schema import Key
from headgate.store.model.values import Item
from headgate.store.port import Store

PAGE: Final = 100
PAGE_MAX: Final = 1000
# The edges that fit one transaction beside the manifest, the spec, its commit row and the graph row.
STEP_EDGES: Final = 95
# The time a large change has before the sweep finishes it.
SWEEP_AFTER_MS: Final = 30_000
ATTEMPTS: Final = 20
# The limit for each kind of edge when all edges of a producer are read at once.
PRODUCER_EDGES_MAX: Final = 10_000


class Applied(Struct, frozen=True, kw_only=True):
    """The outcome of a spec, with the number of added and removed edges."""

    outcome: Outcome
    spec_id: str
    added: int = 0
    removed: int = 0


class Entries(Struct, frozen=True):
    """A page of writers or readers, and the cursor of the next page."""

    entries: list[LineageEntry]
    cursor: str | None = None


class Specs(Struct, frozen=True):
    """A page of specs of a producer or a commit, and the cursor of the next page."""

    specs: list[LineageSpec]
    cursor: str | None = None


class ProducerLineage(Struct, frozen=True, kw_only=True):
    """What a producer writes and reads. Not `complete`: a limit was reached."""

    producer_id: str
    dataset_writes: tuple[str, ...]
    dataset_reads: tuple[str, ...]
    column_writes: tuple[str, ...]
    column_reads: tuple[str, ...]
    complete: bool


class Lineage:
    """Stores lineage, and lists the writers and readers of datasets. Safe to use from many threads and processes."""

    def __init__(self, store: Store, clock: Clock, graph: LineageGraph | None = None) -> None:
        """Take a store. `graph` is this process's copy of the lineage, and sees a new spec once it is durable."""
        self._store = store
        self._clock = clock
        self._graph = graph

    # Specs.

    def update(self, spec: LineageSpec) -> Applied:
        """Apply a producer's spec, and return what it changed.

        A repeated spec changes nothing; one older than the last complete one is ignored. Raises as `specs.checked`
        does; `AlreadyExistsError` if the id was used for other content; and `StoreBusyError` after too many conflicts.
        After a crash, calling it again finishes the work.
        """
        given = checked(spec, self._now_ms())
        for _ in range(ATTEMPTS):
            manifest = self._settled(given)
            if manifest is not None and manifest.pending is not None:
                self._finish(manifest)
                continue
            plan = decide(manifest, given, self._now_ms() // 1000)
            if plan.manifest is None or self._carry_out(manifest, plan, given):
                return Applied(
                    outcome=plan.outcome, spec_id=given.spec_id, added=len(plan.added), removed=len(plan.removed)
                )
        raise StoreBusyError(f"producer {given.producer_id}: too many conflicts with other writers; try again")

    def sweep(self, *, limit: int = PAGE) -> int:
        """Finish interrupted changes, and return their count."""
        due = Sort(Range.AT_MOST, self._now_ms())
        page = self._store.query(
            Query(table=CONTROL, index="due-index", partition=PENDING, sort=due, limit=limit, poll=Poll.RELAXED)
        )
        finished = 0
        for item in page.items:
            manifest = self._manifest(item["producer_id"])
            if manifest is not None and manifest.pending is not None:
                self._finish(manifest)
                finished += 1
        return finished

    # Reads.

    def writers(self, urn: str, *, limit: int = PAGE, cursor: str | None = None) -> Entries:
        """Return the writers of a dataset. Raises `InvalidIdError`."""
        return self._entries(EdgeKind.DATASET_WRITE, urns.dataset_urn(urn), limit, cursor)

    def readers(self, urn: str, *, limit: int = PAGE, cursor: str | None = None) -> Entries:
        """Return the readers of a dataset. Raises `InvalidIdError`."""
        return self._entries(EdgeKind.DATASET_READ, urns.dataset_urn(urn), limit, cursor)

    def column_writers(self, column: str, *, limit: int = PAGE, cursor: str | None = None) -> Entries:
        """Return the writers of a column. Raises `InvalidIdError`."""
        return self._entries(EdgeKind.COLUMN_WRITE, column_urn(column), limit, cursor)

    def column_readers(self, column: str, *, limit: int = PAGE, cursor: str | None = None) -> Entries:
        """Return the readers of a column. Raises `InvalidIdError`."""
        return self._entries(EdgeKind.COLUMN_READ, column_urn(column), limit, cursor)

    def edges_of(self, entity: str, kind: EdgeKind, *, limit: int = PAGE, cursor: str | None = None) -> Entries:
        """Return one kind of edge of a producer or consumer, by target. Reads an index that may lag."""
        table, role = side(kind)
        page = self._store.query(
            Query(table=table, index=f"{role}-index", partition=entity_id(entity), limit=limit, cursor=cursor)
        )
        return Entries([entry_of(kind, item) for item in page.items], page.cursor)

    def by_producer(self, entity: str) -> ProducerLineage:
        """Return everything that an entity writes and reads. Reads an index that may lag. Raises `InvalidIdError`."""
        found = {kind: self._targets(entity, kind) for kind in EdgeKind}
        return ProducerLineage(
            producer_id=entity,
            dataset_writes=tuple(found[EdgeKind.DATASET_WRITE][:PRODUCER_EDGES_MAX]),
            dataset_reads=tuple(found[EdgeKind.DATASET_READ][:PRODUCER_EDGES_MAX]),
            column_writes=tuple(found[EdgeKind.COLUMN_WRITE][:PRODUCER_EDGES_MAX]),
            column_reads=tuple(found[EdgeKind.COLUMN_READ][:PRODUCER_EDGES_MAX]),
            complete=all(len(targets) <= PRODUCER_EDGES_MAX for targets in found.values()),
        )

    def specs(self, producer_id: str, *, limit: int = PAGE, cursor: str | None = None) -> Specs:
        """Return a producer's specs of the last year, by id. The kind of the producer (`job:`) may be left out."""
        partition = f"LSPEC#{self._producer(producer_id)}"
        sort = Sort(Range.BEGINS_WITH, "SPEC#")
        page = self._store.query(Query(table=CONTROL, partition=partition, sort=sort, limit=limit, cursor=cursor))
        return Specs([spec_of(item) for item in page.items], page.cursor)

    def specs_of_commit(self, commit: str, *, limit: int = PAGE, cursor: str | None = None) -> Specs:
        """Return the specs of a commit of the last year, by id."""
        page = self._store.query(
            Query(table=CONTROL, partition=commit_partition(commit), limit=limit, cursor=cursor, consistent=True)
        )
        keys = [spec_key(row["producer_id"], row["SK"]) for row in page.items]
        found = self._store.get_many(CONTROL, keys, consistent=True)
        return Specs([spec_of(item) for item in found if item is not None], page.cursor)

    def spec(self, given: str) -> LineageSpec:
        """Return a spec. Raises `InvalidIdError` for an invalid id, and `NotFoundError`."""
        candidates = [spec_key(entity, given) for entity in entity_ids(spec_id(given).producer)]
        for item in self._store.get_many(CONTROL, candidates):
            if item is not None:
                return spec_of(item)
        raise NotFoundError(f"lineage spec {given}: not found; it was never sent, or is more than a year old")

    def _entries(self, kind: EdgeKind, target: str, limit: int, cursor: str | None) -> Entries:
        table, _ = side(kind)
        page = self._store.query(Query(table=table, partition=target, limit=limit, cursor=cursor))
        return Entries([entry_of(kind, item) for item in page.items], page.cursor)

    def _targets(self, entity: str, kind: EdgeKind) -> list[str]:
        found: list[str] = []
        cursor: str | None = None
        while len(found) <= PRODUCER_EDGES_MAX:
            page = self.edges_of(entity, kind, limit=PAGE_MAX, cursor=cursor)
            found += [entry.target for entry in page.entries]
            cursor = page.cursor
            if cursor is None:
                break
        return found

    def _producer(self, given: str) -> str:
        """Return the producer's id: as given, unless only one with a kind exists."""
        candidates = entity_ids(entity_id(given))
        rows = self._store.get_many(CONTROL, [manifest_key(entity) for entity in candidates])
        return next((entity for entity, row in zip(candidates, rows, strict=True) if row is not None), given)

    # Transactions.

    def _settled(self, spec: LineageSpec) -> Manifest | None:
        """Return the producer's manifest. Raises `AlreadyExistsError` if the spec's id has other content."""
        keys = [manifest_key(spec.producer_id), spec_key(spec.producer_id, spec.spec_id)]
        manifest, stored = self._store.get_many(CONTROL, keys, consistent=True)
        if stored is not None and stored["digest"] != spec.digest:
            raise AlreadyExistsError(
                f"lineage spec {spec.spec_id}: other content was sent under this id at {stored['updated_at']}; "
                "specs are immutable, use another id",
                current=stored,
            )
        return None if manifest is None else manifest_of(manifest)

    def _carry_out(self, current: Manifest | None, plan: ManifestPlan, spec: LineageSpec) -> bool:
        """Start and finish a plan. Return False after a conflict with another change of the producer."""
        assert plan.manifest is not None
        now_ms = self._now_ms()
        try:
            if plan.is_mark:
                self._mark(plan.manifest)
                return True
            pending = _pending(plan, spec)
            is_small = len(pending.changes) <= STEP_EDGES
            manifest = plan.manifest if is_small else replace(plan.manifest, pending=pending)
            writes = _intent(current, manifest, spec, now_ms)
            if is_small:
                writes += [edge_write(manifest, pending, change) for change in pending.changes]
            self._store.transact(writes)
        except ConflictError:
            return False
        if self._graph is not None:
            self._graph.note(ties(manifest))
        if not is_small:
            self._finish(manifest)
        return True

    def _mark(self, manifest: Manifest) -> None:
        """Record that the last complete spec was confirmed, without other changes."""
        self._store.update(
            CONTROL,
            manifest_key(manifest.producer_id),
            set={"complete_at": manifest.complete_at, "version": manifest.version},
            condition=version_is(manifest.version - 1),
        )

    def _finish(self, manifest: Manifest | None) -> None:
        """Apply the pending changes of a manifest, unless another process does."""
        while manifest is not None and manifest.pending is not None:
            pending = manifest.pending
            batch = pending.changes[manifest.done : manifest.done + STEP_EDGES]
            done = manifest.done + len(batch)
            is_last = done >= len(pending.changes)
            step = _step(manifest, None if is_last else done)
            try:
                self._store.transact([step, *(edge_write(manifest, pending, change) for change in batch)])
            except ConflictError:
                manifest = self._manifest(manifest.producer_id)
                continue
            if is_last:
                return
            manifest = replace(manifest, done=done, version=manifest.version + 1)

    def _manifest(self, producer_id: str) -> Manifest | None:
        item = self._store.get(CONTROL, manifest_key(producer_id), consistent=True)
        return None if item is None else manifest_of(item)

    def _now_ms(self) -> int:
        return int(self._clock.seconds() * 1000)


def _pending(plan: ManifestPlan, spec: LineageSpec) -> PendingChange:
    """Return the changes of a plan: additions before removals, so that no path is interrupted."""
    assert plan.manifest is not None
    mention = next((each for each in plan.manifest.mentions if each.spec_id == spec.spec_id), None)
    return PendingChange(
        spec_id=spec.spec_id,
        at=spec.updated_at,
        confidence=spec.confidence,
        expires=plan.manifest.expires if mention is None else mention.expires,
        changes=(*(f"+{edge}" for edge in plan.puts), *(f"-{edge}" for edge in plan.removed)),
        commit=spec.commit,
    )


def _intent(current: Manifest | None, manifest: Manifest, spec: LineageSpec, now_ms: int) -> list[Write]:
    """Return the writes that start a change: the spec, the manifest, and the graph row if it differs."""
    same_content: Condition = any_of(absent(), equals("digest", spec.digest))
    unchanged: Condition = absent() if current is None else version_is(current.version)
    writes: list[Write] = [
        Put(CONTROL, manifest_item(manifest, now_ms + SWEEP_AFTER_MS), unchanged),
        Put(CONTROL, spec_item(spec, now_ms // 1000), same_content),
    ]
    if spec.commit is not None:
        writes.append(Put(CONTROL, commit_item(spec.commit, spec, now_ms // 1000)))
    tied = ties(manifest)
    before = None if current is None else replace(ties(current), version=tied.version)
    if tied != before:
        writes.append(Put(CONTROL, ties_item(tied, now_ms)))
    return writes


def _step(manifest: Manifest, done: int | None) -> Update:
    """Return the write that records the progress of a change; None: it is finished."""
    key: Key = manifest_key(manifest.producer_id)
    values: Item = {"version": manifest.version + 1}
    condition = version_is(manifest.version)
    if done is not None:
        return Update(CONTROL, key, {**values, "done": done}, condition=condition)
    gone: Sequence[str] = ("pending", "due_pk", "due_at_ms")
    # Every manifest with pending changes has `done`.
    return Update(CONTROL, key, values, remove=(*gone, "done"), condition=condition)
