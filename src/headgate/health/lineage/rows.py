"""Rows of lineage: edges in four tables, and for each producer its specs, its manifest and its graph row."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Struct

from headgate import typed_decode
from headgate.health.lineage.manifests import Manifest, Mention, PendingChange, confidences
from headgate.health.lineage.specs import EdgeKind, LineageSpec
from headgate.health.model.enums import Confidence, EntityType
from headgate.store.catalogue.tables import COLUMN_READERS, COLUMN_WRITERS, CONTROL, DATASET_READERS, DATASET_WRITERS
from headgate.store.model.requests import Delete, Put
from headgate.store.model.schema import Key, Table
from headgate.store.model.values import Item

# Due-index partitions: manifests with pending changes, and all producers by their last change.
PENDING: Final = "LINEAGE#PENDING"
GRAPH: Final = "LINEAGE#GRAPH"
SPEC_TTL_SECONDS: Final = 365 * 24 * 3600
# A manifest outlives its edge rows, so that no row is left without one.
_MARGIN_SECONDS: Final = 24 * 3600

_SIDES: Final[dict[EdgeKind, tuple[Table, str]]] = {
    EdgeKind.DATASET_WRITE: (DATASET_WRITERS, "producer"),
    EdgeKind.DATASET_READ: (DATASET_READERS, "consumer"),
    EdgeKind.COLUMN_WRITE: (COLUMN_WRITERS, "producer"),
    EdgeKind.COLUMN_READ: (COLUMN_READERS, "consumer"),
}


class LineageEntry(Struct, frozen=True, kw_only=True):
    """A writer or reader of a dataset or column. `updated_at` is the day it was last confirmed."""

    entity_id: str
    entity_name: str
    entity_type: EntityType
    confidence: Confidence
    spec_id: str
    updated_at: str
    commit: str | None = None
    # The dataset or column.
    target: str


class ProducerDatasets(Struct, frozen=True, kw_only=True, gc=False):
    """The datasets of a producer, each with its confidence."""

    producer_id: str
    producer_name: str
    producer_type: EntityType
    reads: dict[str, Confidence]
    writes: dict[str, Confidence]
    expires: int
    version: int

    @property
    def ttl(self) -> int:
        return self.expires + _MARGIN_SECONDS


# Edges.


def side(kind: EdgeKind) -> tuple[Table, str]:
    """Return the table of a kind of edge, and its name for the entity: producer or consumer."""
    return _SIDES[kind]


def edge_write(manifest: Manifest, pending: PendingChange, change: str) -> Put | Delete:
    """Return the write of one pending change."""
    sign, edge = change[0], change[1:]
    kind, _, target = edge.partition("#")
    table, role = _SIDES[EdgeKind(kind)]
    key = Key(target, f"{role}#{manifest.producer_id}")
    if sign == "-":
        return Delete(table, key)
    item = {
        **table.key_attributes(key),
        f"{role}_id": manifest.producer_id,
        f"{role}_name": manifest.producer_name,
        f"{role}_type": manifest.producer_type.value,
        "confidence": pending.confidence.value,
        "spec_id": pending.spec_id,
        "updated_at": pending.at,
        "ttl": pending.expires,
    }
    return Put(table, item if pending.commit is None else {**item, "commit": pending.commit})


def entry_of(kind: EdgeKind, item: Item) -> LineageEntry:
    role = _SIDES[kind][1]
    return LineageEntry(
        entity_id=item[f"{role}_id"],
        entity_name=item[f"{role}_name"],
        entity_type=EntityType(item[f"{role}_type"]),
        confidence=Confidence(item["confidence"]),
        spec_id=item["spec_id"],
        commit=item.get("commit"),
        updated_at=item["updated_at"],
        target=item["PK"],
    )


# Specs.


def spec_key(producer_id: str, spec_id: str) -> Key:
    return Key(f"LSPEC#{producer_id}", f"SPEC#{spec_id}")


def spec_item(spec: LineageSpec, now_seconds: int) -> Item:
    content: dict[str, Any] = msgspec.to_builtins(spec)
    ttl = now_seconds + max(SPEC_TTL_SECONDS, spec.ttl_seconds)
    return {**CONTROL.key_attributes(spec_key(spec.producer_id, spec.spec_id)), **content,
            "digest": spec.digest, "ttl": ttl}  # fmt: skip


def commit_partition(commit: str) -> str:
    """Return the partition of the specs of a commit."""
    return f"LCOMMIT#{commit}"


def commit_item(commit: str, spec: LineageSpec, now_seconds: int) -> Item:
    """Return the row that lists a spec under its commit, with the retention of the spec."""
    ttl = now_seconds + max(SPEC_TTL_SECONDS, spec.ttl_seconds)
    return {"PK": commit_partition(commit), "SK": spec.spec_id, "producer_id": spec.producer_id, "ttl": ttl}


def spec_of(item: Item) -> LineageSpec:
    return typed_decode.convert(item, LineageSpec)


# Manifests.


def manifest_key(producer_id: str) -> Key:
    return Key(f"LSPEC#{producer_id}", "MANIFEST")


def manifest_item(manifest: Manifest, now_ms: int) -> Item:
    """Return the row of a manifest. With pending changes it is in the due-index, from `now_ms` on."""
    item: Item = {
        **CONTROL.key_attributes(manifest_key(manifest.producer_id)),
        "producer_id": manifest.producer_id,
        "producer_name": manifest.producer_name,
        "producer_type": manifest.producer_type.value,
        "version": manifest.version,
        "complete_at": manifest.complete_at,
        "mentions": [msgspec.to_builtins(mention) for mention in manifest.mentions],
        "ttl": manifest.expires + _MARGIN_SECONDS,
    }
    if manifest.pending is None:
        return item
    due = {"due_pk": PENDING, "due_at_ms": now_ms}
    return {**item, **due, "pending": msgspec.to_builtins(manifest.pending), "done": manifest.done}


def manifest_of(item: Item) -> Manifest:
    pending = item.get("pending")
    return Manifest(
        producer_id=item["producer_id"],
        producer_name=item["producer_name"],
        producer_type=EntityType(item["producer_type"]),
        version=item["version"],
        complete_at=item["complete_at"],
        mentions=typed_decode.convert(item["mentions"], tuple[Mention, ...]),
        pending=None if pending is None else typed_decode.convert(pending, PendingChange),
        done=item.get("done", 0),
    )


# The graph: datasets only, one small row for each producer, listed by its last change.


def ties_key(producer_id: str) -> Key:
    return Key(f"LSPEC#{producer_id}", "GRAPH")


def ties(manifest: Manifest) -> ProducerDatasets:
    found = confidences(manifest)
    sides: dict[str, dict[str, Confidence]] = {EdgeKind.DATASET_READ.value: {}, EdgeKind.DATASET_WRITE.value: {}}
    for edge, confidence in found.items():
        kind, _, target = edge.partition("#")
        if kind in sides:
            sides[kind][target] = confidence
    return ProducerDatasets(
        producer_id=manifest.producer_id,
        producer_name=manifest.producer_name,
        producer_type=manifest.producer_type,
        reads=sides[EdgeKind.DATASET_READ.value],
        writes=sides[EdgeKind.DATASET_WRITE.value],
        expires=manifest.expires,
        version=manifest.version,
    )


def ties_item(tied: ProducerDatasets, now_ms: int) -> Item:
    return {
        **CONTROL.key_attributes(ties_key(tied.producer_id)),
        "due_pk": GRAPH,
        "due_at_ms": now_ms,
        "producer_id": tied.producer_id,
        "producer_name": tied.producer_name,
        "producer_type": tied.producer_type.value,
        "reads": _by_confidence(tied.reads),
        "writes": _by_confidence(tied.writes),
        "version": tied.version,
        "ttl": tied.ttl,
    }


def ties_of(item: Item) -> ProducerDatasets:
    return ProducerDatasets(
        producer_id=item["producer_id"],
        producer_name=item["producer_name"],
        producer_type=EntityType(item["producer_type"]),
        reads=_confidence_of_each(item["reads"]),
        writes=_confidence_of_each(item["writes"]),
        expires=item["ttl"] - _MARGIN_SECONDS,
        version=item["version"],
    )


def _by_confidence(side: dict[str, Confidence]) -> dict[str, list[str]]:
    grouped: dict[str, list[str]] = {}
    for target, confidence in sorted(side.items()):
        grouped.setdefault(confidence.value, []).append(target)
    return grouped


def _confidence_of_each(grouped: dict[str, list[str]]) -> dict[str, Confidence]:
    each: dict[str, Confidence] = {}
    for word, targets in grouped.items():
        each.update(dict.fromkeys(targets, Confidence(word)))
    return each
