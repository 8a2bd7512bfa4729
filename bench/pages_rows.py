"""What pages are measured on: a home as full as the goals say, and a smaller one for open pages."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

from bench import fanout_runs
from bench.health_rows import Sizes, fill, settings_at, urn
from bench.pipelines_service import define, pipeline
from headgate.bootstrap.store import open_store
from headgate.clock import SystemClock
from headgate.fanout.model.states import Disposition
from headgate.health.lineage.service import Lineage
from headgate.health.lineage.specs import LineageSpec
from headgate.health.model.timestamps import instant
from headgate.pipelines.definition.model import Schedule
from headgate.store.port import Store

DATASETS, INCIDENTS, PIPELINES, CHUNKS = 10_000, 1_000, 1_000, 100_000
# As many datasets and as many jobs.
LINEAGE_JOBS: Final = 999
LINEAGE_NODES: Final = 2 * LINEAGE_JOBS + 1


class Filled(NamedTuple):
    """Where the things are whose pages are measured."""

    lineage_urn: str
    fanout_id: str


def fill_large(home: Path) -> Filled:
    """Write everything into the store at `home`."""
    fill(home, Sizes(DATASETS, INCIDENTS, rules=50, evidence=1_000, producers=10, columns=1))
    clock = SystemClock()
    with closing(open_store(settings_at(home), clock).store) as store:
        _pipelines(store, PIPELINES)
        _lineage(store)
    fanout_runs.quiet()
    with fanout_runs.opened(home) as (service, _):
        fanout_id = fanout_runs.filled(home, service, CHUNKS, _fate)
        service.new_maintenance().chunk_ended(fanout_id)
    return Filled(urn(0), fanout_id)


def fill_small(home: Path) -> None:
    """Write a team's platform: 500 datasets, 50 open incidents, 50 pipelines."""
    fill(home, Sizes(datasets=500, incidents=50, rules=50, evidence=1_000, producers=50, columns=1))
    with closing(open_store(settings_at(home), SystemClock()).store) as store:
        _pipelines(store, 50)


def _pipelines(store: Store, count: int) -> None:
    """Define daily pipelines."""
    crons = (f"{number % 60} {number % 24} * * *" for number in range(count))
    define(
        store, [pipeline(pipeline_id(number), schedules=(Schedule(cron=each),)) for number, each in enumerate(crons)]
    )


def pipeline_id(number: int) -> str:
    """Return the id of the n-th pipeline."""
    return f"load-{number:04d}"


def _lineage(store: Store) -> None:
    """Have a tree of datasets with further edges across it, two reads and a write for each job."""
    clock = SystemClock()
    lineage = Lineage(store, clock)
    at = instant(int(1000 * clock.seconds()))
    for number in range(1, LINEAGE_JOBS + 1):
        reads = {urn((number - 1) // 2), urn(number * 2 // 3)}
        lineage.update(
            LineageSpec(
                spec_id=f"lspec:job:tree{number}:git:9f31c2d",
                producer_id=f"job:tree{number}",
                updated_at=at,
                dataset_reads=tuple(sorted(reads)),
                dataset_writes=(urn(number),),
            )
        )


def _fate(place: int, size: int) -> Disposition:
    """Half of the chunks are done, one in a thousand is dead."""
    if place % 1_000 == 500:
        return Disposition.DEAD
    return Disposition.DONE if place < size // 2 else Disposition.QUEUED
