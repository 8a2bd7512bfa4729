"""Dataset writes: the last completed run of each pipeline that writes a dataset, stored in the run's own transaction.

Checks compare it with the run that they have measured: what was completed before a measurement began is covered by it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from headgate.clock import Clock, epoch_ms
from headgate.pipelines.definition.bounds import WRITES_MAX
from headgate.pipelines.definition.model import Pipeline
from headgate.pipelines.row_codec import row, struct_of
from headgate.pipelines.runs.rows import Run
from headgate.store.catalogue.tables import DATASET_WRITE, PIPELINES
from headgate.store.model.requests import Put, Query, Range, Sort, Write
from headgate.store.port import Store

RETENTION_SECONDS: Final = 30 * 86_400
_WRITERS_MAX: Final = 100


class DatasetWrite(Struct, frozen=True, kw_only=True):
    """The last run of a pipeline that wrote a dataset, and when it was completed."""

    dataset_urn: str
    pipeline_id: str
    run_id: str
    at_ms: int


class DatasetWrites:
    """Stores the last run for each dataset and pipeline. Thread-safe."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def writes(self, run: Run, pipeline: Pipeline) -> list[Write]:
        """Return the writes that record a completed run, for the transaction that completes it."""
        now_ms = epoch_ms(self._clock)
        return [
            Put(
                PIPELINES,
                row(
                    DATASET_WRITE.key(dataset_urn=urn, pipeline_id=pipeline.id),
                    DatasetWrite(dataset_urn=urn, pipeline_id=pipeline.id, run_id=run.run_id, at_ms=now_ms),
                    ttl=now_ms // 1000 + RETENTION_SECONDS,
                ),
                quiet=True,
            )
            for urn in pipeline.writes[:WRITES_MAX]
        ]

    def of(self, names: Iterable[str]) -> dict[str, DatasetWrite]:
        """Return the last write by pipeline of a dataset, under any of its names."""
        queries = [
            Query(
                table=PIPELINES,
                partition=key.partition,
                sort=Sort(Range.BEGINS_WITH, str(key.sort).removesuffix("-")),
                limit=_WRITERS_MAX,
                consistent=True,
            )
            for key in (DATASET_WRITE.key(dataset_urn=name, pipeline_id="-") for name in names)
        ]
        found = (struct_of(item, DatasetWrite) for page in self._store.query_many(queries) for item in page.items)
        return {each.pipeline_id: each for each in sorted(found, key=lambda each: each.at_ms)}
