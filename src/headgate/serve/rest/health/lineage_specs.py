"""Lineage specs in requests: entries per dataset, or plain names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from headgate import typed_decode
from headgate.errors import InvalidPayloadError
from headgate.health.lineage.specs import TTL_SECONDS, LineageSpec, check_new
from headgate.health.lineage.specs import spec_id as checked_spec_id
from headgate.health.model import enums, timestamps, urns


class EntryIn(Struct, forbid_unknown_fields=True, kw_only=True):
    """A dataset or column of a producer."""

    dataset_urn: str = ""
    column_urn: str = ""
    entity_id: str = ""
    entity_name: str = ""
    entity_type: str = ""


class SpecIn(Struct, forbid_unknown_fields=True, kw_only=True):
    """Reads and writes of a producer. The producer is named in the entries, in `producer_id`, or in the spec id."""

    spec_id: str = ""
    updated_at: str
    producer_id: str = ""
    producer_name: str = ""
    producer_type: str = ""
    confidence: str = "HIGH"
    commit: str | None = None
    dataset_reads: list[str | EntryIn] = []
    dataset_writes: list[str | EntryIn] = []
    column_reads: list[str | EntryIn] = []
    column_writes: list[str | EntryIn] = []
    ttl_seconds: Annotated[int, Meta(ge=1)] = TTL_SECONDS
    is_complete: bool = True


def read_spec(given: dict[str, Any], spec_id: str) -> LineageSpec:
    """Parse a spec. Raises `InvalidPayloadError`."""
    try:
        read = typed_decode.convert(given, SpecIn)
    except msgspec.ValidationError as exc:
        raise InvalidPayloadError(f"spec {spec_id[:80]}: {exc}") from exc
    if read.spec_id not in ("", spec_id):
        raise InvalidPayloadError(f"spec_id {read.spec_id[:80]!r}: the path has {spec_id[:80]}")
    checked_spec_id(spec_id)
    sides = (read.dataset_reads, read.dataset_writes, read.column_reads, read.column_writes)
    entries = [each for side in sides for each in side if isinstance(each, EntryIn)]
    producer_id = read.producer_id or _only(entries, "entity_id", spec_id) or _named(spec_id)
    kind = read.producer_type or _only(entries, "entity_type", spec_id) or "JOB"
    spec = LineageSpec(
        spec_id=spec_id,
        producer_id=producer_id,
        producer_name=read.producer_name or _only(entries, "entity_name", spec_id),
        producer_type=enums.entity_type(kind),
        confidence=enums.confidence(read.confidence),
        commit=read.commit,
        updated_at=timestamps.moment(read.updated_at, field="updated_at"),
        dataset_reads=_targets(read.dataset_reads),
        dataset_writes=_targets(read.dataset_writes),
        column_reads=_targets(read.column_reads),
        column_writes=_targets(read.column_writes),
        ttl_seconds=read.ttl_seconds,
        is_complete=read.is_complete,
    )
    return check_new(spec)


def registered_spec(spec: LineageSpec, registered: Callable[[str], str]) -> LineageSpec:
    """Return a spec with registered dataset names. Raises `InvalidIdError`."""

    def columns(names: tuple[str, ...]) -> tuple[str, ...]:
        read = (urns.column(each) for each in names)
        return tuple(urns.column_urn(registered(each.dataset_urn), each.name) for each in read)

    return replace(
        spec,
        dataset_reads=tuple(map(registered, spec.dataset_reads)),
        dataset_writes=tuple(map(registered, spec.dataset_writes)),
        column_reads=columns(spec.column_reads),
        column_writes=columns(spec.column_writes),
    )


def _only(entries: Iterable[EntryIn], name: str, spec_id: str) -> str:
    found = {getattr(each, name) for each in entries} - {""}
    if len(found) > 1:
        raise InvalidPayloadError(
            f"spec {spec_id[:80]}: entries have several values of {name}; a spec has one producer"
        )
    return found.pop() if found else ""


def _named(spec_id: str) -> str:
    """Return the producer in `lspec:{producer_id}:{source}:{commit}`."""
    parts = spec_id.split(":")
    if len(parts) < 4:
        raise InvalidPayloadError(f"spec {spec_id[:80]}: producer_id is missing, and the id contains no producer")
    return ":".join(parts[1:-2])


def _targets(side: Iterable[str | EntryIn]) -> tuple[str, ...]:
    return tuple(each if isinstance(each, str) else each.column_urn or each.dataset_urn for each in side)
