"""Pipelines in a world that fails: one live run a period, no lock left behind, and no start request forgotten."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from headgate.durable.model.duration import Seconds
from headgate.pipelines.definition.model import Readiness, Rule
from headgate.pipelines.enums import RunStatus
from headgate.pipelines.readiness.waiters import WaitKind
from headgate.pipelines.runs.rows import Slot
from tests.simulation.pipeline_world import LOOK_SECONDS, PipelineProcess, PipelineWorld
from tests.simulation.seeds import seeds

# Read here, because tests themselves see no setting of the machine.
SEEDS = seeds(6)
STEPS = 200


@pytest.mark.parametrize("seed", SEEDS)
def test_world__of_any_seed__keeps_its_promises(tmp_path: Path, seed: int) -> None:
    with closing(PipelineWorld(seed, tmp_path)) as world:
        world.run(STEPS)


def test_world__of_one_seed_twice__goes_the_same_way(tmp_path: Path) -> None:
    # Otherwise a seed that fails once could not be looked at again.
    logs = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        with closing(PipelineWorld(3, tmp_path / name)) as world:
            for _ in range(60):
                world.step()
            logs.append((world.log, [(run.run_id, run.status) for run in world.all_runs()]))

    assert logs[0] == logs[1]


# The lookout, which dies at each of its calls in turn. Its calls are fewer than these.

LOOK_CALLS, WAKE_CALLS = 10, 14
DAY = Readiness(rules=(Rule(key="orders"),), window=Seconds(86_400), interval=Seconds(120))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[PipelineWorld]:
    with closing(PipelineWorld(0, tmp_path)) as made:
        made.jobs.succeed()
        patient = replace(made.definitions["bronze"], readiness=DAY)
        made.outside.pipelines.definitions.put(patient, "text", "ana")
        yield made


def look(process: PipelineProcess) -> None:
    process.pipelines.readiness_poller.tick()


def land(world: PipelineWorld, date: str) -> Slot:
    world.outside.pipelines.sensors.push("bronze", "landed", {"date": date})
    slot = Slot("bronze", "stream", date)
    settle(world)
    assert world.outside.pipelines.waiters.find(slot, WaitKind.CHANGE) is not None, "it waits"
    return slot


def settle(world: PipelineWorld) -> None:
    """Do what can be done, also what a process had that is gone."""
    if not world.processes:
        world.join()
    for _ in range(2):
        world._settle_now()
        world.clock.advance(LOOK_SECONDS)
    world._settle_now()


@pytest.mark.parametrize("is_done", [False, True])
def test_lookout__dies_at_any_call_of_a_look__the_next_process_looks(world: PipelineWorld, is_done: bool) -> None:
    slot = land(world, "2026-03-01")
    deaths = 0
    for call in range(1, LOOK_CALLS):
        before = len(world.outside.pipelines.evaluations.ls(slot).evaluations)
        world.clock.advance(121.0)
        world.processes[0].store.fail_in(call, crash=True, is_done=is_done)
        deaths += not world.guarded(world.processes[0], look)
        for process in world.processes:
            process.store.fault = None
        settle(world)

        after = len(world.outside.pipelines.evaluations.ls(slot).evaluations)
        # One that is due, and at most one more in the time that it takes to come back.
        assert before < after <= before + 2, f"call {call}"
    assert 4 <= deaths < LOOK_CALLS - 1


@pytest.mark.parametrize("is_done", [False, True])
def test_lookout__dies_at_any_call_on_the_way_to_waking__run_starts_once(world: PipelineWorld, is_done: bool) -> None:
    directives = world.outside.pipelines.stores.directives
    deaths = 0
    for call in range(1, WAKE_CALLS):
        date = f"2026-03-{call:02d}"
        slot = land(world, date)
        directives.hold(slot, by="ana", reason="simulated")
        world.outside.pipelines.sensors.push("bronze", "orders", {"date": date, "count": 10})
        settle(world)
        # No event reports this; a check finds it.
        directives.approve(slot, by="ana", reason="simulated")
        world.clock.advance(121.0)
        world.processes[0].store.fail_in(call, crash=True, is_done=is_done)
        deaths += not world.guarded(world.processes[0], look)
        for process in world.processes:
            process.store.fault = None
        settle(world)

        log = world.machine.runs.log(slot)
        assert log is not None
        assert log.status in (RunStatus.RUNNING, RunStatus.COMPLETED), f"call {call}"
    assert 4 <= deaths < WAKE_CALLS - 1
    started = [order.key for order in world.jobs.orders if order.pipeline == "bronze"]
    assert len(started) == len(set(started)) == WAKE_CALLS - 1
    world.check()
