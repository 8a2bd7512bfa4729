"""Lineage specs: what a producer reads and writes, as one of its builds or runs reported it."""

from __future__ import annotations

import enum
import hashlib
import re
from collections.abc import Callable, Iterable
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from headgate.errors import InvalidIdError, InvalidPayloadError, PayloadTooLargeError
from headgate.health.model import timestamps, urns
from headgate.health.model.enums import Confidence, EntityType
from headgate.ids import check_new_path

TTL_SECONDS: Final = 90 * 24 * 3600
TTL_SECONDS_MAX: Final = 3650 * 24 * 3600
# A spec with a time in the future would make every later, correct one stale.
FUTURE_MS_MAX: Final = 10 * 60 * 1000
EDGES_MAX: Final = 25_000
ID_BYTES_MAX: Final = 512
SPEC_ID_BYTES_MAX: Final = 900
# The sort key of the producer index has at most 1,024 bytes.
COLUMN_BYTES_MAX: Final = 1_000
NAME_LENGTH_MAX: Final = 256

# Wider than lspec:NAME:(git|tag|branch):HEX on purpose: producers are also called `job:orders`, and sources vary.
_SPEC_ID: Final = re.compile(
    r"lspec:(?P<producer>[^\s#\x00-\x1f\x7f]+):(?P<source>[A-Za-z][\w.-]{0,31}):(?P<commit>[\w.+~@/-]{1,128})"
)
_ENTITY_ID: Final = re.compile(r"[^\s#\x00-\x1f\x7f]+")
_KIND_PREFIXES: Final = ("job:", "service:", "lambda:", "notebook:")


class EdgeKind(enum.StrEnum):
    """The kind of an edge: a producer writes or reads a dataset or a column."""

    DATASET_WRITE = "dw"
    DATASET_READ = "dr"
    COLUMN_WRITE = "cw"
    COLUMN_READ = "cr"


class SpecId(Struct, frozen=True):
    """The parts of a spec's id."""

    producer: str
    source: str
    commit: str


class LineageSpec(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a producer reads and writes. Immutable under its id.

    A complete spec lists every edge, and removes those it does not list. A partial one only adds edges.
    """

    spec_id: str
    producer_id: str
    updated_at: str
    producer_name: str = ""
    producer_type: EntityType = EntityType.JOB
    confidence: Confidence = Confidence.HIGH
    commit: str | None = None
    dataset_reads: tuple[str, ...] = ()
    dataset_writes: tuple[str, ...] = ()
    column_reads: tuple[str, ...] = ()
    column_writes: tuple[str, ...] = ()
    ttl_seconds: int = TTL_SECONDS
    is_complete: bool = True

    @property
    def edges(self) -> frozenset[str]:
        """Every edge as in the manifest: its kind, `#`, and its target."""
        sides = (
            (EdgeKind.DATASET_WRITE, self.dataset_writes),
            (EdgeKind.DATASET_READ, self.dataset_reads),
            (EdgeKind.COLUMN_WRITE, self.column_writes),
            (EdgeKind.COLUMN_READ, self.column_reads),
        )
        return frozenset(f"{kind.value}#{target}" for kind, targets in sides for target in targets)

    @property
    def digest(self) -> str:
        """A hash of the content, without the time and completeness of its confirmation."""
        content = (
            self.producer_id, self.producer_name, self.producer_type, self.confidence, self.commit,
            self.dataset_reads, self.dataset_writes, self.column_reads, self.column_writes,
        )  # fmt: skip
        return hashlib.blake2b(_encode(content), digest_size=16).hexdigest()


_encode: Final = msgspec.msgpack.Encoder(order="deterministic").encode


def checked(spec: LineageSpec, now_ms: int) -> LineageSpec:
    """Return the spec in canonical form.

    Raises `InvalidIdError` for an invalid name, `InvalidPayloadError` for a time in the future or an invalid expiry,
    and `PayloadTooLargeError` for more than `EDGES_MAX` edges.
    """
    parts = spec_id(spec.spec_id)
    entity_id(spec.producer_id)
    if parts.producer not in (spec.producer_id, bare_name(spec.producer_id)):
        raise InvalidIdError(
            f"lineage spec {spec.spec_id[:120]}: its producer is {spec.producer_id[:120]!r}; "
            "write lspec:PRODUCER:SOURCE:COMMIT with that producer"
        )
    updated_at = timestamps.moment(spec.updated_at, field="updated_at")
    if updated_at > timestamps.instant(now_ms + FUTURE_MS_MAX):
        raise InvalidPayloadError(
            f"lineage spec {spec.spec_id}: updated_at {updated_at} is in the future; it is {timestamps.instant(now_ms)}"
        )
    if not 1 <= spec.ttl_seconds <= TTL_SECONDS_MAX:
        raise InvalidPayloadError(
            f"lineage spec {spec.spec_id}: ttl_seconds {spec.ttl_seconds} is outside 1 to {TTL_SECONDS_MAX}"
        )
    commit = spec.commit if spec.commit is not None else parts.commit
    read = replace(
        spec,
        updated_at=updated_at,
        producer_name=(spec.producer_name or bare_name(spec.producer_id))[:NAME_LENGTH_MAX],
        commit=commit[:NAME_LENGTH_MAX] or None,
        dataset_reads=_unique(spec.dataset_reads, urns.dataset_urn),
        dataset_writes=_unique(spec.dataset_writes, urns.dataset_urn),
        column_reads=_unique(spec.column_reads, column_urn),
        column_writes=_unique(spec.column_writes, column_urn),
    )
    _check_count(read)
    return read


def check_new(spec: LineageSpec) -> LineageSpec:
    """Return a spec that a client sends. Raises `InvalidIdError` for an id that no URL reaches.

    Ids of jobs that other systems report are taken as they are.
    """
    check_new_path("spec_id", spec.spec_id, SPEC_ID_BYTES_MAX, is_foreign=True)
    check_new_path("producer_id", spec.producer_id, ID_BYTES_MAX, is_foreign=True)
    return spec


def spec_id(given: str) -> SpecId:
    """Return the parts of a spec's id. Raises `InvalidIdError`."""
    found = _SPEC_ID.fullmatch(given)
    if found is None or len(given.encode(errors="replace")) > SPEC_ID_BYTES_MAX:
        raise InvalidIdError(
            f"lineage spec {given[:80]!r}: write lspec:PRODUCER:SOURCE:COMMIT, such as lspec:orders:git:9f31c2d, "
            f"at most {SPEC_ID_BYTES_MAX} bytes"
        )
    return SpecId(found["producer"], found["source"], found["commit"])


def entity_id(given: str) -> str:
    """Return the id of a writer or reader. Raises `InvalidIdError`."""
    if not _ENTITY_ID.fullmatch(given) or len(given.encode(errors="replace")) > ID_BYTES_MAX:
        raise InvalidIdError(
            f"producer {given[:80]!r}: use an id without spaces and '#', such as job:orders-landing, "
            f"at most {ID_BYTES_MAX} bytes"
        )
    return given


def column_urn(given: str) -> str:
    """Return a column URN that fits the index. Raises `InvalidIdError`."""
    urns.column(given)
    if len(given.encode()) > COLUMN_BYTES_MAX:
        raise InvalidIdError(f"column {given[:80]!r}: {len(given.encode())} bytes, at most {COLUMN_BYTES_MAX}")
    return given


def bare_name(entity: str) -> str:
    """Return an entity's id without its kind prefix."""
    for prefix in _KIND_PREFIXES:
        if entity.startswith(prefix) and len(entity) > len(prefix):
            return entity[len(prefix) :]
    return entity


def entity_ids(name: str) -> tuple[str, ...]:
    """Return the ids that a given name may mean, the most literal first."""
    return (name, *(f"{prefix}{name}" for prefix in _KIND_PREFIXES if not name.startswith(prefix)))


def _unique(targets: Iterable[str], check: Callable[[str], str]) -> tuple[str, ...]:
    return tuple(sorted({check(target) for target in targets}))


def _check_count(spec: LineageSpec) -> None:
    count = sum(map(len, (spec.dataset_reads, spec.dataset_writes, spec.column_reads, spec.column_writes)))
    if count > EDGES_MAX:
        raise PayloadTooLargeError(
            f"lineage spec {spec.spec_id}: {count:,} edges, at most {EDGES_MAX:,}; leave out columns, "
            "or split the producer"
        )
