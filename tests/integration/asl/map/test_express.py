"""EXPRESS iterations: limits, failures and crashed workers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from headgate.asl.errors import EXCEED_TOLERATED_FAILURE_THRESHOLD, RUNTIME, TIMEOUT
from headgate.asl.map.ledger import MapLedger
from headgate.fanout.model.states import Disposition, FanoutStatus
from tests.integration.asl.map_rig import MapRig, each

PASS: tuple[str, dict[str, Any]] = ("Pass", {"Type": "Pass"})


@pytest.fixture
def rig() -> Iterator[MapRig]:
    with MapRig() as made:
        yield made


@pytest.mark.parametrize("resource", ["send.waitForTaskToken", "arn:aws:states:::states:startExecution.sync:2"])
def test_express__what_waits_for_others__is_refused(rig: MapRig, resource: str) -> None:
    state = ("Send", {"Type": "Task", "Resource": resource, "Parameters": {"StateMachineArn": "other"}})
    found = rig.run(each("EXPRESS", state, ToleratedFailureCount=1), [1])
    assert found[0]["Error"] == RUNTIME
    assert "EXPRESS" in found[0]["Cause"]


def test_express__a_map_within__cannot_be_distributed(rig: MapRig) -> None:
    inner = each("EXPRESS", PASS)["States"]["Each"]
    found = rig.run(each("EXPRESS", ("Inner", inner), ToleratedFailureCount=1), [[1]])
    assert found[0]["Error"] == RUNTIME


def test_express__a_function_that_takes_too_long__timed_out(rig: MapRig) -> None:
    async def hang() -> None:
        await asyncio.sleep(60)

    rig.app.activity(hang)
    state = ("Hang", {"Type": "Task", "Resource": "hang", "TimeoutSeconds": 1, "Parameters": None})
    found = rig.run(each("EXPRESS", state, ToleratedFailureCount=1), [1])
    assert found[0]["Error"] == TIMEOUT


def test_express__chunks_of_a_dead_worker__are_run_by_another(rig: MapRig) -> None:
    ledger = MapLedger(rig.fanouts)
    claimed: list[Any] = []

    def die(item: int) -> None:
        # A second worker claims two chunks and dies.
        if item == 0:
            claimed.extend(ledger.claim(rig.map_run.run_id, 2, lambda *_: "gone"))

    rig.on_double = die
    assert rig.run(each("EXPRESS", MaxConcurrency=1), [0, 1, 2, 3]) == [0, 2, 4, 6]
    assert len(claimed) == 2
    # A late report of the dead worker changes nothing.
    before = rig.queries.chunk(rig.map_run.run_id, claimed[0].chunk.chunk_id)
    assert ledger.claimed(rig.map_run.run_id, claimed[0].chunk.chunk_id, claimed[0].chunk.token) is None
    assert before.disposition is Disposition.DONE
    rig.check_ledger()


def test_express__some_of_a_chunk_failed__only_those_are_done_again_when_redriven(rig: MapRig) -> None:
    rig.broken = {7, 1500}
    items = list(range(2_500))
    definition = each("EXPRESS")
    assert rig.run(definition, items) == EXCEED_TOLERATED_FAILURE_THRESHOLD
    run = rig.map_run
    assert run.chunk_size == 3
    failed = [chunk for chunk in rig.queries.failures(run.run_id) if chunk.start == 6]
    assert [(chunk.items_ok, chunk.items_failed) for chunk in failed] == [(2, 1)]
    assert "ValueError" in (failed[0].item_errors or "")
    rig.check_ledger()

    rig.broken = set()
    done = {name for name, count in rig.calls.items() if count}
    rig.executions.redrive("m:one")
    assert rig.ended("m:one") == [2 * n for n in items]
    assert {name: count for name, count in rig.calls.items() if count > 1} == {
        name: 2 for name in ("double 7", "double 1500") if name in done
    }
    assert rig.map_run.status is FanoutStatus.SUCCEEDED
    rig.check_ledger()


def test_express__too_many_have_failed__begins_none_any_more(rig: MapRig) -> None:
    rig.broken = {6}
    items = list(range(2_500))
    assert rig.run(each("EXPRESS", MaxConcurrency=1), items) == EXCEED_TOLERATED_FAILURE_THRESHOLD
    assert rig.calls == {f"double {n}": 1 for n in range(7)}
    assert {name: rig.map_run.counts.get(name) for name in ("items_ok", "items_failed")} == {
        "items_ok": 6,
        "items_failed": 1,
    }
    rig.check_ledger()

    rig.broken = set()
    rig.executions.redrive("m:one")
    assert rig.ended("m:one") == [2 * n for n in items]
    assert rig.calls == {f"double {n}": 1 + (n == 6) for n in items}
    rig.check_ledger()


def test_express__ten_thousand_items__takes_few_commits(rig: MapRig, capsys: pytest.CaptureFixture[str]) -> None:
    items = list(range(10_000))
    assert rig.run(each("EXPRESS"), items) == [2 * n for n in items]
    stats = rig.env.service.store.stats.snapshot()  # type: ignore[attr-defined]
    with capsys.disabled():
        print(f"\n{stats['commits'] / len(items):.4f} commits for an item of an EXPRESS map run")
    assert stats["commits"] < 0.05 * len(items)
    assert rig.map_run.chunks_total == 1_000
