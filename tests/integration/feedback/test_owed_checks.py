"""Owed checks: a pipeline that its upstream starts waits for the checks of what the upstream has just written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from sqlite3 import connect

import pytest
from msgspec.structs import replace

from headgate.checks.definitions import load_check_text
from headgate.durable.model.duration import Seconds
from headgate.health.model.enums import SignalState
from headgate.pipelines.definition.model import Pipeline, Readiness, Rule, Schedule, Upstream
from headgate.pipelines.enums import OnUnknown, RunStatus
from headgate.pipelines.events.names import EventName as E
from tests.integration.feedback.feedback_rig import ORDERS, LoopRig, writer
from tests.pipeline_rig import DATE, pipeline, slot_of

BRONZE, SILVER = slot_of("bronze"), slot_of("silver")
FILE = """\
dataset: urn:dp:shop:orders:v1
source: {sql: {url: "sqlite:///shop.db", table: orders}}
checks:
  - id: amount
    null_share: {column: amount}
"""


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[LoopRig]:
    """Give a server on which bronze writes orders with a check, and starts silver, which reads them if healthy."""
    with LoopRig(tmp_path) as opened:
        loaded = load_check_text(FILE, "checks/orders.yaml")
        assert not loaded.problems
        opened.checks.catalog.replace(loaded.files)
        opened.checks.poller.tick()
        opened.jobs.is_sync = True
        opened.define(writer("bronze"), started_by_bronze())
        yield opened


def started_by_bronze(**rule: object) -> Pipeline:
    """Return a pipeline that bronze starts, and that evaluates by itself once an hour."""
    rules = (Rule(dataset=ORDERS, **rule),)  # type: ignore[arg-type]
    return pipeline(
        "silver",
        schedules=(Schedule(upstream=(Upstream(pipeline="bronze"),)),),
        readiness=Readiness(rules=rules, window=Seconds(86_400), interval=Seconds(3_600)),
    )


def land(rig: LoopRig, folder: Path, *amounts: str, date: str = DATE) -> None:
    """Have bronze write orders."""
    with closing(connect(folder / "shop.db")) as database, database:
        database.execute("DROP TABLE IF EXISTS orders")
        database.execute("CREATE TABLE orders (amount REAL)")
        database.executemany("INSERT INTO orders VALUES (nullif(?, ''))", [(each,) for each in amounts])
    rig.push("bronze", "landed", date=date)


def measure(rig: LoopRig) -> None:
    """Have the check poller run what is due, and what follows happen without time passing."""
    rig.checks.poller.tick()
    rig.pump()


def why(rig: LoopRig) -> str:
    stored = rig.evaluations.latest(SILVER)
    assert stored is not None, "nothing was evaluated"
    return stored.verdict.reason


def test_upstream_start__check_is_owed__waits_for_it_and_starts_at_once(rig: LoopRig, tmp_path: Path) -> None:
    land(rig, tmp_path, "12.5", "30")

    assert rig.status(BRONZE) is RunStatus.COMPLETED
    assert rig.status(SILVER) is RunStatus.PENDING
    run_id = rig.run(BRONZE).run_id
    assert f"check amount of dataset {ORDERS} has not measured run {run_id} yet" in why(rig)

    measure(rig)

    assert rig.status(SILVER) is RunStatus.COMPLETED
    # A short wait is no hold: no event is published.
    assert rig.event_names("silver", E.DATASET_HOLD, E.DATASET_RELEASED) == []


def test_upstream_start__check_fails__is_held_with_the_reason_of_the_check(rig: LoopRig, tmp_path: Path) -> None:
    land(rig, tmp_path, "7", "")
    measure(rig)

    assert rig.status(SILVER) is RunStatus.PENDING
    assert f"DATA_QUALITY of {ORDERS} is CRITICAL" in why(rig)
    assert rig.event_names("silver", E.DATASET_HOLD) == ["DATASET_HOLD"]


def test_upstream_start__source_cannot_be_read__the_verdict_of_the_check_decides(rig: LoopRig) -> None:
    # The table does not exist.
    rig.push("bronze", "landed", date=DATE)
    measure(rig)

    assert rig.signal("DATA_QUALITY").state is SignalState.UNKNOWN
    assert "has not measured" not in why(rig)
    assert f"DATA_QUALITY of {ORDERS} could not be evaluated" in why(rig)


def test_upstream_start__check_never_runs__is_overdue_and_announced(rig: LoopRig, tmp_path: Path) -> None:
    land(rig, tmp_path, "12.5")
    rig.advance("1h")

    assert rig.status(SILVER) is RunStatus.PENDING
    assert "has not measured run" in why(rig)
    assert f"it was due by 08:05 UTC: run it with `headgate check run {ORDERS} amount`" in why(rig)
    assert rig.event_names("silver", E.DATASET_HOLD) == ["DATASET_HOLD"]

    measure(rig)

    assert rig.status(SILVER) is RunStatus.COMPLETED
    assert rig.event_names("silver", E.DATASET_RELEASED) == ["DATASET_RELEASED"]


def test_upstream_start__rule_passes_when_unknown__waits_until_the_check_is_overdue(
    rig: LoopRig, tmp_path: Path
) -> None:
    rig.define(started_by_bronze(on_unknown=OnUnknown.PASS))
    land(rig, tmp_path, "12.5")

    assert rig.status(SILVER) is RunStatus.PENDING

    rig.advance("1h")

    assert rig.status(SILVER) is RunStatus.COMPLETED


def test_upstream_start__run_completes_during_a_measurement__is_not_covered_by_it(rig: LoopRig, tmp_path: Path) -> None:
    land(rig, tmp_path, "12.5")
    begun: list[Callable[[], None]] = []
    rig.checks.poller.tick(begun.append)
    [known] = rig.checks.catalog.all()
    [claimed] = rig.checks.states.of([known.key]).values()
    covered = rig.owed.covered(ORDERS)
    first = rig.run(BRONZE).run_id
    land(rig, tmp_path, "12.5", date="2026-03-02")
    second = rig.run(slot_of("bronze", "2026-03-02")).run_id

    # What the measurement of the first run ends with, if the second completes in the middle of it.
    assert covered == {"bronze": first}
    assert rig.checks.states.finish(claimed, replace(claimed, measured=covered), 0)
    rig.advance("1h")

    assert f"has not measured run {second} yet" in why(rig)

    measure(rig)

    assert rig.status(SILVER) is RunStatus.COMPLETED


def test_upstream_start__check_defined_after_the_run__is_not_owed(rig: LoopRig, tmp_path: Path) -> None:
    rig.checks.catalog.replace([])
    land(rig, tmp_path, "12.5")
    rig.checks.catalog.replace(load_check_text(FILE.replace("amount\n", "new\n"), "checks/orders.yaml").files)
    rig.checks.poller.tick()

    assert rig.owed(ORDERS) is None


@pytest.mark.parametrize("name", ["urn:dp:shop:orders", ORDERS])
def test_owed_check__dataset_by_any_of_its_names__is_found(rig: LoopRig, tmp_path: Path, name: str) -> None:
    land(rig, tmp_path, "12.5")

    owed = rig.owed(name)

    assert owed is not None
    assert owed.is_pending
