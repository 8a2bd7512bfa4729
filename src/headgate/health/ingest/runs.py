"""OpenLineage runs: merges the events of a run into the lineage of its job.

Events of a run add up and may arrive in any order. The lineage of a job is that of its whole run once the run is
complete; until then, the known lineage plus what the run adds.
"""

from __future__ import annotations

import hashlib

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from headgate import typed_decode
from headgate.health.ingest.effects import RunState, SpecUpdate
from headgate.health.ingest.names import PIPELINE_PREFIX
from headgate.health.lineage.specs import EDGES_MAX, LineageSpec
from headgate.health.model.enums import Confidence, EntityType


class RunLineage(Struct, frozen=True, kw_only=True):
    """The merged events of a run."""

    producer_id: str
    producer_name: str
    producer_type: EntityType
    confidence: Confidence
    source: str
    at: str
    commit: str | None = None
    is_complete: bool = False
    # The event declares the job itself, not a run: then an empty list means none.
    is_declared: bool = False
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    column_reads: tuple[str, ...] = ()
    column_writes: tuple[str, ...] = ()


def folded(known: RunLineage | None, update: SpecUpdate) -> RunLineage:
    """Return the state of a run merged with one more event, which may be a repeated one."""
    fresh = RunLineage(
        producer_id=update.producer_id,
        producer_name=update.producer_name,
        producer_type=update.producer_type,
        confidence=update.confidence,
        source=update.source,
        at=update.at,
        commit=update.commit,
        is_complete=update.state is RunState.COMPLETE,
        is_declared=update.run_id is None and update.state is RunState.COMPLETE,
        reads=tuple(sorted(update.reads)),
        writes=tuple(sorted(update.writes)),
        column_reads=tuple(sorted(update.column_reads)),
        column_writes=tuple(sorted(update.column_writes)),
    )
    if known is None:
        return fresh
    latest = fresh if fresh.at >= known.at else known
    return replace(
        latest,
        commit=latest.commit or fresh.commit or known.commit,
        is_complete=known.is_complete or fresh.is_complete,
        reads=_union(known.reads, fresh.reads),
        writes=_union(known.writes, fresh.writes),
        column_reads=_union(known.column_reads, fresh.column_reads),
        column_writes=_union(known.column_writes, fresh.column_writes),
    )


def spec_of(run: RunLineage) -> LineageSpec | None:
    """Return the lineage spec of a run, under an id derived from its content; None if it names no dataset.

    With too many columns, only the datasets are kept.
    """
    if not (run.reads or run.writes or run.is_declared):
        return None
    count = sum(map(len, (run.reads, run.writes, run.column_reads, run.column_writes)))
    if count > EDGES_MAX:
        run = replace(run, column_reads=(), column_writes=())
    spec = LineageSpec(
        spec_id="",
        producer_id=run.producer_id,
        producer_name=run.producer_name,
        producer_type=run.producer_type,
        confidence=run.confidence,
        updated_at=run.at,
        # Empty, not None: the last part of the id is a digest and not a commit.
        commit=run.commit or "",
        dataset_reads=run.reads,
        dataset_writes=run.writes,
        column_reads=run.column_reads,
        column_writes=run.column_writes,
        # The definition of a pipeline lists its datasets; its events only add to them.
        is_complete=run.is_complete and not run.producer_id.startswith(PIPELINE_PREFIX),
    )
    digest = hashlib.blake2b(spec.digest.encode(), digest_size=8).hexdigest()
    return replace(spec, spec_id=f"lspec:{run.producer_id}:{run.source}:{digest}")


def dump(run: RunLineage) -> dict[str, object]:
    found: dict[str, object] = msgspec.to_builtins(run)
    return found


def load(item: dict[str, object]) -> RunLineage:
    return typed_decode.convert(item, RunLineage)


def _union(left: tuple[str, ...], right: tuple[str, ...]) -> tuple[str, ...]:
    return left if set(right) <= set(left) else tuple(sorted({*left, *right}))
