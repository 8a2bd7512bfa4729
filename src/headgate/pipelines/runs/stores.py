"""Run stores: the stores of everything that is recorded about runs, built over one store."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from headgate.clock import Clock
from headgate.ids import IdMaker
from headgate.pipelines.runs.controls import Controls
from headgate.pipelines.runs.dataset_writes import DatasetWrites
from headgate.pipelines.runs.directives import Directives
from headgate.pipelines.runs.job_log import JobLog
from headgate.pipelines.runs.late_data import LateData
from headgate.pipelines.runs.locks import Locks
from headgate.pipelines.runs.markers import Markers
from headgate.pipelines.runs.pools import Pools
from headgate.pipelines.runs.reruns import Reruns
from headgate.pipelines.runs.run_index import RunIndex
from headgate.pipelines.runs.store import Runs
from headgate.settings import RetentionSettings
from headgate.store.port import Store

_DEFAULTS: Final = RetentionSettings()


class RunStores(Struct, frozen=True, kw_only=True):
    """What is recorded about runs, from logs and locks to orders of operators and written datasets."""

    runs: Runs
    locks: Locks
    reruns: Reruns
    markers: Markers
    controls: Controls
    directives: Directives
    job_log: JobLog
    late_data: LateData
    pools: Pools
    run_index: RunIndex
    dataset_writes: DatasetWrites


def run_stores(store: Store, clock: Clock, ids: IdMaker, retention: RetentionSettings = _DEFAULTS) -> RunStores:
    """Return the run stores over one store."""
    return RunStores(
        runs=Runs(store, clock, ids),
        locks=Locks(store, clock, ids),
        reruns=Reruns(store, clock, ids),
        markers=Markers(store, clock, kept_seconds=86_400 * retention.markers_days),
        controls=Controls(store, clock),
        directives=Directives(store, clock),
        job_log=JobLog(store, kept_seconds=86_400 * retention.job_logs_days),
        late_data=LateData(store, kept_seconds=86_400 * retention.late_data_days),
        pools=Pools(store, clock),
        dataset_writes=DatasetWrites(store, clock),
        run_index=RunIndex(store, clock, kept_days=retention.runs_days),
    )
