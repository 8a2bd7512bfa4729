"""A busy home over many days: once retention starts, it has a bounded number of rows, and what is referenced stays.

`make soak` runs thirty days; otherwise fewer days at a smaller scale are simulated. The clock is virtual, the store is
a real one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from headgate.auth.audit_entry import AuditEntry
from headgate.bootstrap.health import open_health
from headgate.bootstrap.store import database_path, measure_size, open_fanouts
from headgate.errors import NotFoundError
from headgate.fanout.core.splitter import Order
from headgate.fanout.inline_worker import InlineWorker
from headgate.fanout.model.rows import Policy
from headgate.fanout.model.sources import ListSource
from headgate.fanout.repair.retention import Purge
from headgate.health.model.datasets import DatasetSpec
from headgate.health.model.enums import SignalState, Tier
from headgate.health.model.signals import SignalUpdate
from headgate.pipelines.definition.model import Period, Schedule
from headgate.pipelines.lifecycle.starter import MACHINE
from headgate.pipelines.operations.backfills import Backfills
from headgate.pipelines.operations.run_retention import RunRetention
from headgate.settings import ArchiveSettings, EvidenceSettings, RetentionSettings, Settings
from headgate.store.cache.read_through import Cache
from headgate.store.sqlite.vacuum import vacuum
from tests.health_rig import value
from tests.pipeline_rig import Rig, pipeline

IS_THOROUGH: Final = "HEADGATE_TEST_SEEDS" in os.environ
DAYS: Final = 30 if IS_THOROUGH else 14
RUNS_A_DAY: Final = 24 if IS_THOROUGH else 4
KEPT_DAYS: Final = 4
# Executions are archived seven days after their end, and the archive is kept for one.
PLATEAU_DAY: Final = 10
DATASET: Final = "urn:dp:busy:orders"
DOUBLE: Final = "tests.scenarios.map_handlers:double"
SICK: Final = "urn:dp:busy:sick"
RETENTION: Final = RetentionSettings(
    runs_days=KEPT_DAYS,
    run_logs_days=KEPT_DAYS,
    evaluations_days=KEPT_DAYS,
    job_logs_days=KEPT_DAYS,
    markers_days=KEPT_DAYS,
    sensors_days=KEPT_DAYS,
    pipeline_events_days=KEPT_DAYS,
    expectations_days=KEPT_DAYS,
    events_days=KEPT_DAYS,
    signal_history_days=KEPT_DAYS,
    audit_days=KEPT_DAYS,
)


class Home:
    """A server's components on one store, with the background work of a day done once a day."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        opened, service = rig.env.opened, rig.env.service
        self.health = open_health(opened, Cache(clock=rig.env.clock), rig.env.clock, service)
        self.fanouts = open_fanouts(opened, rig.env.clock, service.ids)
        self.runs = RunRetention(
            rig.store,
            rig.clock,
            Backfills(rig.store, rig.clock, rig.ids),
            self._is_open,
            runs_days=RETENTION.runs_days,
            run_logs_days=RETENTION.run_logs_days,
        )
        rig.jobs.is_sync = True
        rig.define(
            pipeline("busy", schedules=(Schedule(cron=f"0 */{24 // RUNS_A_DAY} * * *"),), period=Period.HOURLY),
            pipeline("once", schedules=(Schedule(cron="0 12 3 3 *"),)),
        )
        for urn in (DATASET, SICK):
            self.health.registry.create(urn, DatasetSpec(tier=Tier.TIER_2, owner_team="busy"), actor="ann")
        self.say(SICK, SignalState.CRITICAL)

    def _is_open(self, name: str) -> bool:
        try:
            return not self.rig.env.service.client.get(f"{MACHINE}:{name}").status.is_closed
        except NotFoundError:
            return False

    def say(self, urn: str, state: SignalState) -> None:
        update = SignalUpdate(
            dataset_urn=urn, signal_type="FRESHNESS", value=value(state, self.rig.now_ms), expected_version=-1
        )
        self.health.update_signal(update)

    def live_a_day(self) -> None:
        for _ in range(RUNS_A_DAY):
            self.rig.push("busy", "landed", self.rig.now.strftime("%Y-%m-%d"), count=1)
            self.say(DATASET, SignalState.WARNING)
            self.rig.advance(86_400 / RUNS_A_DAY)
            self.say(DATASET, SignalState.OK)
            self.health.audit.commit([], AuditEntry("ann", "dataset.update", DATASET, 1, 2))
        order = Order("busy", 5, handler=DOUBLE, policy=Policy(retention_days=KEPT_DAYS, each=True))
        fanout = self.fanouts.splitter.split(order, ListSource(list(range(20))))
        worker = InlineWorker(self.fanouts)
        while worker.work():
            pass
        assert self.fanouts.queries.fanout(fanout.run_id).finished_at is not None
        self.sweep()

    def sweep(self) -> None:
        """Do what the sweepers of a server do."""
        opened = self.rig.env.opened
        self.health.sweep()
        self.health.purge()
        self.runs.prune(limit=100_000)
        Purge(self.rig.store, self.rig.clock).purge(rows_max=100_000)
        while self.rig.store.sweep(limit=1000) >= 1000:
            pass
        opened.spill.sweep(opened.store)

    def rows(self) -> dict[str, int]:
        size = measure_size(self.rig.env.opened)
        assert size is not None
        return size.rows


@pytest.fixture
def home() -> Iterator[Home]:
    settings = Settings(
        home=Path("unused"),
        retention=RETENTION,
        archive=ArchiveSettings(days=1),
        evidence=EvidenceSettings(archive_days=KEPT_DAYS),
    )
    with Rig(settings=settings) as rig:
        made = Home(rig)
        yield made
        made.health.close()


@pytest.mark.timeout(1200)
def test_days__of_a_busy_home__rows_reach_a_plateau_and_what_is_referenced_stays(home: Home) -> None:
    totals: list[int] = []
    for day in range(1, DAYS + 1):
        home.live_a_day()
        rows = home.rows()
        totals.append(sum(rows.values()))
        if IS_THOROUGH:
            print(f"day {day}: {totals[-1]} rows, {database_path(home.rig.env.opened.settings).stat().st_size} bytes")
    plateau = totals[PLATEAU_DAY - 1 :]

    print({name: count for name, count in home.rows().items() if count})
    assert max(plateau) <= 1.05 * plateau[0], totals
    assert totals[2] < plateau[0], "it grew before retention started"
    # The last run of a pipeline that ran once, long ago; its log; the open incident; the chain of the audit.
    (only,) = home.rig.stores.runs.ls("once", limit=10).runs
    assert home.rig.stores.runs.log(only.slot) is not None
    busy = home.rig.stores.runs.ls("busy", limit=500).runs
    assert RUNS_A_DAY * KEPT_DAYS <= len(busy) <= RUNS_A_DAY * (KEPT_DAYS + 2)
    assert home.health.profile(SICK) is not None
    (signal,) = home.health.signals.breaches(states=(SignalState.CRITICAL,)).signals
    assert signal.dataset_urn == SICK
    report = home.health.audit.verify()
    assert (report.problems, report.entries > 0) == ([], True)
    assert sum(anchor.count for anchor in report.anchors) > 0
    done = vacuum(database_path(home.rig.env.opened.settings), full=False)
    print(f"{totals[-1]} rows, {done.after_bytes} bytes after {DAYS} days")
