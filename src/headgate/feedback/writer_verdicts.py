"""Writer verdicts: the last state that each pipeline reported for a dataset it writes, and how they combine.

A dataset has one signal per type and may have several writers: the signal takes the worst state of its writers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from headgate.health.model import timestamps
from headgate.health.model.enums import SignalState
from headgate.health.model.signals import Signal
from headgate.pipelines.row_codec import row, struct_of
from headgate.store.catalogue.tables import PIPELINES, WRITER_WORD
from headgate.store.model.conditions import absent, version_is
from headgate.store.model.requests import Put, Query, Range, Sort
from headgate.store.port import Store

# An OK verdict expires: it only prevents an older event from being applied.
OK_TTL_SECONDS: Final = 90 * 86_400
WRITERS_MAX: Final = 1_000
_WORST_LAST: Final = (SignalState.OK, SignalState.UNKNOWN, SignalState.WARNING, SignalState.CRITICAL)


class WriterVerdict(Struct, frozen=True, kw_only=True):
    """The state that a pipeline reports for a dataset's signal. `written_as` is the name in its definition."""

    dataset_urn: str
    signal_type: str
    pipeline_id: str
    written_as: str
    state: SignalState
    window_start_ms: int
    window_end_ms: int
    # The event that reported it.
    at_ms: int
    event_id: str
    signature: str | None = None
    evidence: tuple[str, ...] = ()
    version: int = 1

    @property
    def order(self) -> tuple[int, int, str]:
        """Sort key: by period, then by the time of the event."""
        return self.window_end_ms, self.at_ms, self.event_id


class WriterVerdicts:
    """The writer verdicts in a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def of(self, dataset_urn: str, signal_type: str) -> dict[str, WriterVerdict]:
        """Return the verdicts on a signal by pipeline."""
        key = WRITER_WORD.key(dataset_urn=dataset_urn, signal_type=signal_type, pipeline_id="-")
        prefix = str(key.sort).removesuffix("-")
        page = self._store.query(
            Query(
                table=PIPELINES,
                partition=key.partition,
                sort=Sort(Range.BEGINS_WITH, prefix),
                limit=WRITERS_MAX,
                consistent=True,
            )
        )
        verdicts = (struct_of(item, WriterVerdict) for item in page.items)
        return {verdict.pipeline_id: verdict for verdict in verdicts}

    def put(self, verdict: WriterVerdict, now_ms: int) -> None:
        """Replace the preceding version of a verdict. Raises `ConflictError` if another version is stored."""
        key = WRITER_WORD.key(
            dataset_urn=verdict.dataset_urn, signal_type=verdict.signal_type, pipeline_id=verdict.pipeline_id
        )
        ttl = None if verdict.state.is_breach else now_ms // 1000 + OK_TTL_SECONDS
        condition = absent() if verdict.version == 1 else version_is(verdict.version - 1)
        self._store.transact([Put(PIPELINES, row(key, verdict, ttl=ttl), condition)])


def supersedes(before: WriterVerdict | None, verdict: WriterVerdict, clears_reason: str) -> bool:
    """Whether a verdict replaces the last one of its writer. With `clears_reason` it only ends that reason."""
    if before is None:
        return True
    if before.order > verdict.order:
        return False
    return not (clears_reason and before.state.is_breach) or (before.signature or "").startswith(f"{clears_reason}:")


def with_signal_verdict(verdicts: dict[str, WriterVerdict], current: Signal | None) -> dict[str, WriterVerdict]:
    """Add the verdict that only the signal itself records, if there is one.

    A verdict is stored before its signal; a signal without one was written before verdicts were stored.
    """
    producer = "" if current is None or current.value.top_producer is None else current.value.top_producer.producer_id
    if current is None or not producer or producer in verdicts or not current.state.is_breach:
        return verdicts
    value = current.value
    return {
        **verdicts,
        producer: WriterVerdict(
            dataset_urn=current.dataset_urn,
            signal_type=current.signal_type,
            pipeline_id=producer,
            written_as=current.dataset_urn,
            state=value.state,
            window_start_ms=timestamps.milliseconds(value.window_start),
            window_end_ms=timestamps.milliseconds(value.window_end),
            at_ms=0,
            event_id="",
            signature=value.failure_signature,
            evidence=value.evidence_sample,
            version=0,
        ),
    }


def worst_verdict(own: WriterVerdict, others: Iterable[WriterVerdict], current: Signal | None) -> WriterVerdict:
    """Return the verdict for the signal: the worst; among equals the new one, then the one the signal has."""

    def rank(verdict: WriterVerdict) -> tuple[int, bool, bool, tuple[int, int, str]]:
        is_current = current is not None and current.value.failure_signature == verdict.signature
        return _WORST_LAST.index(verdict.state), verdict is own, is_current, verdict.order

    return max((own, *others), key=rank)
