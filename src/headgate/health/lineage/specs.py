"""Lineage specs: what one producer reads and writes, as one build or run of it has told."""

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
from headgate.health.model import timestamps as moments
from headgate.health.model import urns
from headgate.health.model.enums import Confidence, EntityType

TTL_SECONDS: Final = 90 * 24 * 3600
TTL_SECONDS_MAX: Final = 3650 * 24 * 3600
# A spec from the future would keep every honest one after it from being taken.
FUTURE_MS_MAX: Final = 10 * 60 * 1000
EDGES_MAX: Final = 25_000
ID_BYTES_MAX: Final = 512
SPEC_ID_BYTES_MAX: Final = 900
# The sort key of the index by producer is 1,024 bytes long at most.
COLUMN_BYTES_MAX: Final = 1_000
NAME_LENGTH_MAX: Final = 256

# Wider than lspec:NAME:(git|tag|branch):HEX on purpose: producers are called `job:orders` too, and sources are many.
_SPEC_ID: Final = re.compile(
    r"lspec:(?P<producer>[^\s#\x00-\x1f\x7f]+):(?P<source>[A-Za-z][\w.-]{0,31}):(?P<commit>[\w.+~@/-]{1,128})"
)
_ENTITY_ID: Final = re.compile(r"[^\s#\x00-\x1f\x7f]+")
_KIND_PREFIXES: Final = ("job:", "service:", "lambda:", "notebook:")


class EdgeKind(enum.StrEnum):
    """What an edge of a producer says: that it writes or reads a dataset or a column."""

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
    """What a producer reads and writes. For good under its id: another content needs another id.

    A spec that is complete lists all of it, and what it does not list is no longer so. One that is not complete
    adds to what is known.
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
        """Every edge as the manifest keeps it: its kind, `#`, and what it leads to."""
        sides = (
            (EdgeKind.DATASET_WRITE, self.dataset_writes),
            (EdgeKind.DATASET_READ, self.dataset_reads),
            (EdgeKind.COLUMN_WRITE, self.column_writes),
            (EdgeKind.COLUMN_READ, self.column_reads),
        )
        return frozenset(f"{kind.value}#{target}" for kind, targets in sides for target in targets)

    @property
    def digest(self) -> str:
        """What tells two contents apart. When a spec was last confirmed, and how completely, is not of its content."""
        content = (
            self.producer_id, self.producer_name, self.producer_type, self.confidence, self.commit,
            self.dataset_reads, self.dataset_writes, self.column_reads, self.column_writes,
        )  # fmt: skip
        return hashlib.blake2b(_encode(content), digest_size=16).hexdigest()


_encode: Final = msgspec.msgpack.Encoder(order="deterministic").encode


def checked(spec: LineageSpec, now_ms: int) -> LineageSpec:
    """Return the spec in canonical form.

    Raises `InvalidIdError` for a name that cannot be one, `InvalidPayloadError` for a moment in the future or an
    expiry that makes no sense, and `PayloadTooLargeError` for more than `EDGES_MAX` edges.
    """
    parts = spec_id(spec.spec_id)
    entity_id(spec.producer_id)
    if parts.producer not in (spec.producer_id, bare_name(spec.producer_id)):
        raise InvalidIdError(
            f"lineage spec {spec.spec_id[:120]}: its producer is {spec.producer_id[:120]!r}; "
            "write lspec:PRODUCER:SOURCE:COMMIT with that producer"
        )
    updated_at = moments.moment(spec.updated_at, field="updated_at")
    if updated_at > moments.instant(now_ms + FUTURE_MS_MAX):
        raise InvalidPayloadError(
            f"lineage spec {spec.spec_id}: updated_at {updated_at} lies in the future; it is {moments.instant(now_ms)}"
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
    """Return the name of a column that an index can hold. Raises `InvalidIdError`."""
    urns.column(given)
    if len(given.encode()) > COLUMN_BYTES_MAX:
        raise InvalidIdError(f"column {given[:80]!r}: {len(given.encode())} bytes, at most {COLUMN_BYTES_MAX}")
    return given


def bare_name(entity: str) -> str:
    """Return an entity's id without the kind that it may begin with."""
    for prefix in _KIND_PREFIXES:
        if entity.startswith(prefix) and len(entity) > len(prefix):
            return entity[len(prefix) :]
    return entity


def entity_ids(name: str) -> tuple[str, ...]:
    """Return the ids that someone who writes this name may mean, the most literal first."""
    return (name, *(f"{prefix}{name}" for prefix in _KIND_PREFIXES if not name.startswith(prefix)))


def _unique(targets: Iterable[str], check: Callable[[str], str]) -> tuple[str, ...]:
    return tuple(sorted({check(target) for target in targets}))


def _check_count(spec: LineageSpec) -> None:
    count = sum(map(len, (spec.dataset_reads, spec.dataset_writes, spec.column_reads, spec.column_writes)))
    if count > EDGES_MAX:
        raise PayloadTooLargeError(
            f"lineage spec {spec.spec_id}: {count:,} edges, and {EDGES_MAX:,} are accepted; leave out columns, "
            "or split the producer"
        )
