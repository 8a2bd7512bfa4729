"""Pools over the whole lifecycle: a ready run waits for a slot, gets it in turn, and frees it however it ends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headgate.durable.model.duration import Seconds
from headgate.errors import NotFoundError
from headgate.pipelines.definition.model import Pipeline, Readiness, RetryPolicy, TriggerSpec
from headgate.pipelines.enums import RunStatus
from headgate.pipelines.readiness.explain import Explainer, PeriodState
from headgate.pipelines.runs.pool_decisions import LEASE_MS, OFFER_MS
from headgate.pipelines.runs.rows import Slot
from headgate.pipelines.schedule.due_checks import Due
from headgate.settings import PipelineSettings, Settings
from tests.pipeline_rig import DATE, Rig, pipeline, slot_of, waiting_pipeline

NAMES = ("bronze", "silver", "gold")


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig(settings=Settings(pipelines=PipelineSettings(pools={"spark": 1}))) as made:
        made.jobs.keep_running()
        yield made


def pooled(name: str, **more: object) -> Pipeline:
    return pipeline(name, pool="spark", **more)


def start_all(rig: Rig, *names: str) -> list[Slot]:
    slots = []
    for name in names:
        rig.push(name, "landed", date=DATE)
        slots.append(slot_of(name))
        rig.advance(1)
    return slots


def running(rig: Rig, slots: list[Slot]) -> list[str]:
    return [slot.pipeline_id for slot in slots if rig.status(slot) is RunStatus.RUNNING]


def end_job(rig: Rig, slot: Slot, *, is_success: bool = True) -> None:
    rig.pipelines.jobs.complete(rig.run(slot).run_id, is_success=is_success)
    rig.pump()


def why(rig: Rig, slot: Slot) -> tuple[PeriodState, str]:
    explainer = Explainer(
        rig.store, rig.clock, evaluations=rig.evaluations, controls=rig.stores.controls, locks=rig.stores.locks,
        reruns=rig.stores.reruns, pool_wait=rig.pipelines.pools.wait_of,
    )  # fmt: skip
    found, _ = rig.reader.newest(slot.pipeline_id)
    explained = explainer.why(found, slot, Due())
    return explained.state, explained.sentence


def test_pool__of_one_slot__runs_one_job_at_a_time_in_the_order_of_the_runs(rig: Rig) -> None:
    rig.define(*(pooled(name) for name in NAMES))
    slots = start_all(rig, *NAMES)
    for expected in NAMES:
        assert running(rig, slots) == [expected]
        end_job(rig, slot_of(expected))
    assert [rig.status(slot) for slot in slots] == [RunStatus.COMPLETED] * 3
    assert rig.stores.pools.get("spark").leases == ()
    assert rig.stores.pools.queue("spark") == []


def test_pool__that_is_full__why_names_it_its_holder_and_the_place(rig: Rig) -> None:
    rig.define(*(pooled(name) for name in NAMES))
    start_all(rig, *NAMES)

    state, sentence = why(rig, slot_of("gold"))

    holder = rig.run(slot_of("bronze")).run_id
    assert state is PeriodState.QUEUED
    assert f"pool spark has 1 of 1 slots in use by bronze of {DATE} ({holder}); place 2 in its queue" in sentence


@pytest.mark.parametrize("end", ["cancel", "fail", "mark", "lost"])
def test_pool__holder_that_ends__frees_its_slot_however_it_ends(rig: Rig, end: str) -> None:
    rig.define(pooled("bronze", retry=RetryPolicy(attempts=1)), pooled("silver"))
    bronze, silver = start_all(rig, "bronze", "silver")
    holder = rig.run(bronze)

    if end == "cancel":
        rig.pipelines.manual.cancel(holder.run_id, by="ana", reason="not now")
    elif end == "fail":
        end_job(rig, bronze, is_success=False)
    elif end == "mark":
        rig.pipelines.jobs.complete(holder.run_id, is_success=True)
    else:
        # The change that says so is lost with its consumer: the sweep finds it.
        rig.stores.runs.move(holder, RunStatus.FAILED)
        rig.read_stream()
        rig.advance(60)
    rig.pump()

    assert rig.status(silver) is RunStatus.RUNNING
    assert [each.run_id for each in rig.stores.pools.get("spark").leases] == [rig.run(silver).run_id]


def test_pool__run_cancelled_in_the_queue__leaves_it(rig: Rig) -> None:
    rig.define(*(pooled(name) for name in NAMES))
    slots = start_all(rig, *NAMES)

    rig.pipelines.manual.cancel(rig.run(slot_of("silver")).run_id, by="ana", reason="not now")
    rig.pump()
    end_job(rig, slot_of("bronze"))

    assert running(rig, slots) == ["gold"]


def test_pool__long_wait__does_not_count_as_waiting_for_readiness_and_keeps_the_lock(rig: Rig) -> None:
    readiness = Readiness(window=Seconds(600), interval=Seconds(60), timeout=Seconds(600))
    trigger = TriggerSpec(type="command", config={"command": ["true"]}, poll_window=Seconds(86_400))
    rig.define(pooled("bronze", trigger=trigger), pooled("silver", readiness=readiness))
    bronze, silver = start_all(rig, "bronze", "silver")

    # Several times its time-out, and what a pool leases.
    rig.advance("2h")
    assert rig.status(silver) is RunStatus.PENDING
    lock = rig.lock(silver)
    assert lock is not None
    assert lock.token == rig.run(silver).lock_token
    end_job(rig, bronze)

    assert rig.status(silver) is RunStatus.RUNNING


def test_pool__run_that_is_not_ready_any_more__gives_its_turn_to_the_next(rig: Rig) -> None:
    rig.define(pooled("bronze"), waiting_pipeline("silver", pool="spark"), pooled("gold"))
    slots = start_all(rig, "bronze", "silver")
    rig.push("silver", "orders", count=12)
    slots += start_all(rig, "gold")
    assert [each.pipeline_id for each in rig.stores.pools.queue("spark")] == ["silver", "gold"]

    rig.pipelines.manual.hold(slot_of("silver"), by="ana", reason="wait")
    end_job(rig, slot_of("bronze"))

    assert running(rig, slots) == ["gold"]


def test_pool__offer_that_is_not_claimed__goes_to_the_next_run(rig: Rig) -> None:
    rig.define(*(pooled(name) for name in NAMES))
    start_all(rig, *NAMES)
    run = rig.run(slot_of("bronze"))
    rig.stores.pools.free("spark", run.run_id)
    rig.stores.pools.serve("spark", 1)
    assert rig.stores.pools.is_offered(rig.run(slot_of("silver")).run_id, "spark")

    rig.env.clock.advance(OFFER_MS / 1000 + 1)
    rig.stores.pools.sweep("spark", 1)

    assert rig.stores.pools.is_offered(rig.run(slot_of("gold")).run_id, "spark")


def test_pool__restart_after_a_long_downtime__a_job_that_still_runs_keeps_its_slot(rig: Rig) -> None:
    rig.define(pooled("bronze"), pooled("silver"))
    bronze, silver = start_all(rig, "bronze", "silver")

    # Time passes while no process runs, so that the lease expires.
    rig.env.clock.advance(LEASE_MS / 1000 + 60)
    rig.pump()

    assert rig.status(bronze) is RunStatus.RUNNING
    assert rig.status(silver) is RunStatus.PENDING


def test_concurrency__of_a_pipeline__limits_its_own_periods(rig: Rig) -> None:
    rig.define(pipeline("silver", concurrency=1))
    dates = ("2026-03-01", "2026-03-02", DATE)
    for date in dates:
        rig.mark(slot_of("silver", date))
        rig.advance(1)
    slots = [slot_of("silver", date) for date in dates]

    assert [rig.status(slot) for slot in slots] == [RunStatus.RUNNING, RunStatus.PENDING, RunStatus.PENDING]
    assert "the concurrency limit of silver has 1 of 1 slots in use" in why(rig, slots[2])[1]
    end_job(rig, slots[0])
    assert rig.status(slots[1]) is RunStatus.RUNNING


def test_pool__that_is_not_declared_any_more__the_run_waits_and_says_so(rig: Rig) -> None:
    rig.define(pipeline("silver", pool="gone"))
    (slot,) = start_all(rig, "silver")

    assert rig.status(slot) is RunStatus.PENDING
    assert "pool gone is not declared; add it to pipelines.pools" in why(rig, slot)[1]


def test_free__by_an_operator__serves_the_queue_and_refuses_a_run_without_a_slot(rig: Rig) -> None:
    rig.define(pooled("bronze"), pooled("silver"))
    bronze, silver = start_all(rig, "bronze", "silver")
    pools = rig.pipelines.pools

    freed = pools.free("spark", rig.run(bronze).run_id)
    rig.pump()

    assert freed.slot == bronze
    assert rig.status(silver) is RunStatus.RUNNING
    with pytest.raises(NotFoundError, match="holds no slot"):
        pools.free("spark", rig.run(bronze).run_id)
    with pytest.raises(NotFoundError, match="declared: spark"):
        pools.show("sprak")
    assert [state.name for state in pools.ls()] == ["spark"]
