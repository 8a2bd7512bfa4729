"""Lineage manifests: the edges of a producer, and a pure function that computes the changes of a spec."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from headgate.errors import PayloadTooLargeError
from headgate.health.lineage.specs import EDGES_MAX, LineageSpec
from headgate.health.model.enums import Confidence, EntityType

# Rows of confirmed edges are rewritten once a day, so that they do not expire, at little cost.
REFRESH_SECONDS: Final = 24 * 3600
MANIFEST_EDGES_MAX: Final = 2 * EDGES_MAX


class Outcome(enum.StrEnum):
    """The outcome of a spec. STALE: a newer complete spec was applied before."""

    APPLIED = "APPLIED"
    REFRESHED = "REFRESHED"
    UNCHANGED = "UNCHANGED"
    STALE = "STALE"


class Mention(Struct, frozen=True, kw_only=True):
    """The edges that a producer has by one spec. Each edge belongs to one mention only."""

    spec_id: str
    at: str
    confidence: Confidence
    # When the edge rows were last written, and when they expire, in epoch seconds.
    written: int
    expires: int
    edges: tuple[str, ...]


class PendingChange(Struct, frozen=True, kw_only=True):
    """Edge rows still to be written (`+` and the edge) or deleted (`-`), in order."""

    spec_id: str
    at: str
    confidence: Confidence
    expires: int
    changes: tuple[str, ...]
    commit: str | None = None


class Manifest(Struct, frozen=True, kw_only=True):
    """Every edge of a producer. `complete_at` is the time of the last complete spec: older specs are ignored."""

    producer_id: str
    producer_name: str
    producer_type: EntityType
    version: int = 0
    complete_at: str = ""
    mentions: tuple[Mention, ...] = ()
    pending: PendingChange | None = None
    # How many of the pending changes are done.
    done: int = 0

    @property
    def edges(self) -> frozenset[str]:
        return frozenset(edge for mention in self.mentions for edge in mention.edges)

    @property
    def expires(self) -> int:
        return max((mention.expires for mention in self.mentions), default=0)


class ManifestPlan(Struct, frozen=True, kw_only=True):
    """The changes of a spec. Without a manifest: none. `is_mark`: only the timestamp of the manifest changes."""

    outcome: Outcome
    manifest: Manifest | None = None
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    # Rows to write: those of new edges, and those due for their daily rewrite.
    puts: tuple[str, ...] = ()
    is_mark: bool = False


def decide(current: Manifest | None, spec: LineageSpec, now_seconds: int) -> ManifestPlan:
    """Return the changes of a checked spec. Raises `PayloadTooLargeError` if the producer has too many edges.

    A complete spec removes the edges that no spec of the same or a later time has; a partial one removes none. A spec
    older than the last complete one changes nothing. Of two specs of one time, the later call wins.
    """
    if current is not None and spec.updated_at < current.complete_at:
        return ManifestPlan(outcome=Outcome.STALE)
    base = current or Manifest(
        producer_id=spec.producer_id, producer_name=spec.producer_name, producer_type=spec.producer_type
    )
    return _replaced(base, spec, now_seconds) if spec.is_complete else _merged(base, spec, now_seconds)


def _replaced(base: Manifest, spec: LineageSpec, now: int) -> ManifestPlan:
    later = tuple(mention for mention in base.mentions if mention.at > spec.updated_at and mention.expires > now)
    mine = spec.edges - _edges(later)
    earlier = _mention_of(base.mentions, spec.spec_id)
    fresh = earlier if earlier is not None and now - earlier.written < REFRESH_SECONDS else None
    puts = mine - frozenset(fresh.edges) if fresh is not None else mine
    removed = _edges(mention for mention in base.mentions if mention.expires > now) - spec.edges - _edges(later)
    added = mine - base.edges
    if not puts and not removed and fresh is not None and len(later) + 1 == len(base.mentions):
        if spec.updated_at == base.complete_at:
            return ManifestPlan(outcome=Outcome.UNCHANGED)
        marked = replace(base, complete_at=spec.updated_at, version=base.version + 1)
        return ManifestPlan(outcome=Outcome.REFRESHED, manifest=marked, is_mark=True)
    mention = _mention(spec, mine, fresh, now)
    outcome = Outcome.APPLIED if added or removed or earlier is None else Outcome.REFRESHED
    return _plan(base, spec, (*later, mention), outcome, added=added, removed=removed, puts=puts)


def _merged(base: Manifest, spec: LineageSpec, now: int) -> ManifestPlan:
    live = tuple(mention for mention in base.mentions if mention.expires > now)
    recent = _edges(mention for mention in live if now - mention.written < REFRESH_SECONDS)
    puts = spec.edges - recent
    if not puts and len(live) == len(base.mentions):
        return ManifestPlan(outcome=Outcome.UNCHANGED)
    earlier = _mention_of(live, spec.spec_id)
    fresh = earlier if earlier is not None and now - earlier.written < REFRESH_SECONDS else None
    mine = puts | frozenset(fresh.edges if fresh is not None else ())
    others = tuple(
        replace(mention, edges=tuple(edge for edge in mention.edges if edge not in mine))
        for mention in live
        if mention.spec_id != spec.spec_id
    )
    added = puts - base.edges
    outcome = Outcome.APPLIED if added else Outcome.REFRESHED
    mentions = tuple(mention for mention in others if mention.edges)
    if mine:
        mentions = (*mentions, _mention(spec, mine, fresh, now))
    return _plan(base, spec, mentions, outcome, added=added, removed=frozenset(), puts=puts)


def _plan(
    base: Manifest,
    spec: LineageSpec,
    mentions: tuple[Mention, ...],
    outcome: Outcome,
    *,
    added: frozenset[str],
    removed: frozenset[str],
    puts: frozenset[str],
) -> ManifestPlan:
    manifest = replace(
        base,
        producer_name=spec.producer_name,
        producer_type=spec.producer_type,
        version=base.version + 1,
        complete_at=spec.updated_at if spec.is_complete else base.complete_at,
        mentions=mentions,
    )
    count = sum(len(mention.edges) for mention in mentions)
    if count > MANIFEST_EDGES_MAX:
        raise PayloadTooLargeError(
            f"producer {spec.producer_id}: {count:,} edges in total, at most {MANIFEST_EDGES_MAX:,}; "
            "send a complete spec, which removes obsolete edges"
        )
    return ManifestPlan(
        outcome=outcome,
        manifest=manifest,
        added=tuple(sorted(added)),
        removed=tuple(sorted(removed)),
        puts=tuple(sorted(puts)),
    )


def _mention(spec: LineageSpec, edges: frozenset[str], fresh: Mention | None, now: int) -> Mention:
    """Return the mention of a spec. Rows written today are not rewritten."""
    expires = now + spec.ttl_seconds
    return Mention(
        spec_id=spec.spec_id,
        at=spec.updated_at if fresh is None else max(fresh.at, spec.updated_at),
        confidence=spec.confidence,
        written=now if fresh is None else fresh.written,
        expires=expires if fresh is None else max(fresh.expires, expires),
        edges=tuple(sorted(edges)),
    )


def _mention_of(mentions: Iterable[Mention], spec_id: str) -> Mention | None:
    return next((mention for mention in mentions if mention.spec_id == spec_id), None)


def _edges(mentions: Iterable[Mention]) -> frozenset[str]:
    return frozenset(edge for mention in mentions for edge in mention.edges)


def confidences(manifest: Manifest) -> Mapping[str, Confidence]:
    """Return the confidence of each edge of a producer."""
    return {edge: mention.confidence for mention in manifest.mentions for edge in mention.edges}
