"""Run retention: old runs, reruns, backfills and logs go; what something open needs, and the last run, stay."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from headgate.pipelines.enums import RerunReason, RunStatus
from headgate.pipelines.operations.backfill_plans import BackfillSpec
from headgate.pipelines.operations.run_retention import RunRetention
from headgate.pipelines.runs.rerun_rows import RerunStatus, rerun_key, rerun_writes
from headgate.pipelines.runs.rows import Run, Slot
from headgate.store.catalogue.tables import PIPELINES
from tests.unit.pipelines.run_rig import Rig, opened_rig

DAY = 86_400.0


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with opened_rig(tmp_path) as rig:
        yield rig


class Home:
    """A pipeline with one completed run a day, and retention over it."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.open_executions: set[str] = set()
        self.retention = self.make()
        self.define("PIPELINES")

    def make(self, *, runs_days: int = 10, run_logs_days: int = 20) -> RunRetention:
        return RunRetention(
            self.rig.store,
            self.rig.clock,
            self.rig.backfills,
            lambda name: name in self.open_executions,
            runs_days=runs_days,
            run_logs_days=run_logs_days,
        )

    def define(self, partition: str) -> None:
        config = {"PK": "PIPELINE#orders", "SK": "CONFIG", "GSI1PK": partition, "GSI1SK": "orders"}
        self.rig.store.put(PIPELINES, config)

    def days(self, count: int, schedule: str = "daily") -> list[Run]:
        runs = []
        for _ in range(count):
            self.rig.clock.advance(DAY)
            slot = Slot("orders", schedule, f"{self.rig.clock.now():%Y-%m-%d}")
            runs.append(self.rig.succeed(f"exec-{schedule}-{slot.date}", slot=slot))
        return runs

    def left(self) -> set[str]:
        return {run.run_id for run in self.rig.runs.ls("orders", limit=500).runs}

    def count(self, prefix: str) -> int:
        return sum(item["SK"].startswith(prefix) for item in self.rig.items("PIPELINE#orders"))


@pytest.fixture
def home(rig: Rig) -> Home:
    return Home(rig)


def test_prune__runs_past_their_retention__go_with_their_copies_and_young_ones_stay(home: Home) -> None:
    runs = home.days(30)

    # Twenty runs in two rows each, and the logs of ten periods.
    assert home.retention.prune() == 20 * 2 + 10

    assert home.left() == {run.run_id for run in runs[20:]}
    assert all(home.rig.item(f"RUN#{run.run_id}", "STATE") is None for run in runs[:20])
    assert home.count("RUNLOG#") == 20
    assert home.retention.prune() == 0


def test_prune__many_days__rows_stay_bounded(home: Home) -> None:
    counts = []
    for _ in range(6):
        home.days(10)
        home.retention.prune()
        counts.append(len(home.rig.items("PIPELINE#orders")))

    assert counts[3:] == [counts[2]] * 3


def test_prune__in_small_steps__ends_the_same(home: Home) -> None:
    home.days(30)

    deleted = [home.retention.prune(limit=7) for _ in range(20)]

    assert (sum(deleted), home.retention.prune()) == (50, 0)
    assert max(deleted) <= 2 * 7


def test_prune__pipeline_that_stopped__keeps_its_last_run_and_log(home: Home) -> None:
    last = home.days(5)[-1]
    home.rig.clock.advance(1000 * DAY)

    home.retention.prune()

    assert home.left() == {last.run_id}
    assert home.count("RUNLOG#") == 1


def test_prune__last_success_before_failures__stays(home: Home) -> None:
    (good,) = home.days(1)
    failed = home.rig.fail("exec-again", slot=good.slot)
    home.rig.clock.advance(1000 * DAY)

    home.retention.prune()

    assert home.left() == {good.run_id, failed.run_id}


def test_prune__other_schedule_that_runs_seldom__keeps_its_last_run(home: Home) -> None:
    seldom = home.days(1, "yearly")[0]
    home.days(150)

    home.retention.prune()

    assert seldom.run_id in home.left()
    assert home.rig.runs.log(seldom.slot) is not None


@pytest.mark.parametrize("reason", ["active", "monitoring", "execution", "backfill"])
def test_prune__run_that_something_open_needs__stays_until_it_ends(home: Home, reason: str) -> None:
    rig = home.rig
    slot = Slot("orders", "daily", "2020-01-01")
    spec = BackfillSpec(pipeline_id="orders", schedule_id="daily", dates=("2020-01-01", "2020-01-02"), concurrency=1)
    backfill = rig.backfills.create(spec, by="ann", reason="column")
    more: dict[str, Any] = {"backfill_id": backfill.backfill_id} if reason == "backfill" else {}
    run = rig.begin("exec-old", slot, **more)
    if reason == "active":
        run = rig.finish(run, RunStatus.TRIGGERING, RunStatus.RUNNING)
    elif reason == "monitoring":
        run = rig.finish(run, RunStatus.TRIGGERING, RunStatus.COMPLETED_MONITORING)
    else:
        run = rig.finish(run, RunStatus.TRIGGERING, RunStatus.COMPLETED)
    if reason == "execution":
        home.open_executions.add("exec-old")
    home.days(30)

    home.retention.prune()
    assert run.run_id in home.left()
    assert rig.runs.log(slot) is not None

    home.open_executions.clear()
    if not run.status.is_terminal:
        rig.finish(run, RunStatus.COMPLETED)
    rig.backfills.cancel(backfill.backfill_id, by="ann", reason="done")
    home.days(30)
    home.retention.prune()
    assert run.run_id not in home.left()


def test_prune__period_on_hold__its_log_stays(home: Home) -> None:
    slot = Slot("orders", "daily", "2020-01-01")
    home.rig.directives.hold(slot, by="ann", reason="check")
    home.days(60)

    home.retention.prune()

    assert home.rig.runs.log(slot) is not None


def test_prune__ended_reruns_and_backfills__go_and_open_ones_stay(home: Home) -> None:
    rig = home.rig
    done, pending = (Slot("orders", "daily", date) for date in ("2020-01-01", "2020-01-02"))
    ended = rig.reruns.request(done, RerunReason.MANUAL, by="ann")
    waiting = rig.reruns.request(pending, RerunReason.MANUAL, by="ann")
    after = replace(ended, status=RerunStatus.COMPLETED, version=ended.version + 1)
    rig.store.transact(rerun_writes(after, replaces=ended.version))
    spec = BackfillSpec(pipeline_id="orders", schedule_id="daily", dates=("2020-01-03",), concurrency=1)
    closed, running = (rig.backfills.create(spec, by="ann", reason="column") for _ in range(2))
    rig.backfills.cancel(closed.backfill_id, by="ann", reason="no")
    rig.clock.advance(11 * DAY)

    home.retention.prune()

    assert rig.store.get(PIPELINES, rerun_key(ended.rerun_id)) is None
    assert rig.store.get(PIPELINES, rerun_key(waiting.rerun_id)) is not None
    assert rig.item("PIPELINE#orders", f"RERUN_REQUEST#daily#{done.date}") is None
    assert rig.item("PIPELINE#orders", f"RERUN_REQUEST#daily#{pending.date}") is not None
    assert rig.item(f"BACKFILL#{closed.backfill_id}", "STATE") is None
    assert rig.item(f"BACKFILL#{running.backfill_id}", "STATE") is not None
    assert home.count("BACKFILL#") == 1


def test_prune__deleted_pipeline__its_old_runs_go_too(home: Home) -> None:
    home.days(30)
    home.define("PIPELINES-DELETED")

    assert home.retention.prune() > 0
    assert len(home.left()) == 10


def test_prune__unreadable_row_of_another_pipeline__does_not_stop_it(home: Home) -> None:
    runs = home.days(30)
    home.rig.store.put(PIPELINES, {"PK": "PIPELINE#bad", "SK": "CONFIG", "GSI1PK": "PIPELINES", "GSI1SK": "bad"})
    home.rig.store.put(PIPELINES, {"PK": "PIPELINE#bad", "SK": "RUNLOG#2026-01-01#daily", "status": "none of ours"})

    home.retention.prune()

    assert home.left() == {run.run_id for run in runs[20:]}
