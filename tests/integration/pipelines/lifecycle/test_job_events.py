"""Runs whose job is a workflow or a fan-out of ours: its end wakes them, long before they would ask after it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pytest

import headgate as hg
from headgate.clock import VirtualClock
from headgate.durable.model.duration import Seconds
from headgate.durable.model.history import Status
from headgate.durable.replay import sandbox
from headgate.durable.sdk.app import App
from headgate.fanout.service import FanoutService
from headgate.pipelines.definition.model import Pipeline, RetryPolicy, TriggerSpec
from headgate.pipelines.enums import RunStatus
from headgate.pipelines.lifecycle.job_events import SUBSCRIPTION
from headgate.pipelines.readiness.waiters import WaitKind
from headgate.pipelines.runs.rows import Run, Slot
from headgate.triggers.contract import PollResult, Started, TriggerOrder
from headgate.triggers.registry import TriggerKinds
from tests.pipeline_rig import DATE, START, Jobs, Rig, pipeline, slot_of
from tests.simulation.asl_processes import AslProcess
from tests.simulation.durable_processes import LEASE_SECONDS, Crash
from tests.simulation.pipeline_world import PipelineMachine, PipelineProcess
from tests.unit.triggers.rigs import kinds

SLOT: Final = slot_of()
# So rarely that a run which ends within a minute was woken.
CHECK_SECONDS: Final = 1_800
WRITES: Final = frozenset({"put", "update", "delete", "transact", "transact_many"})
HANDLERS: Final = __name__


async def load(seconds: float) -> None:
    await hg.sleep(seconds)


async def refuse(_: dict[str, Any]) -> None:
    raise ValueError("no orders")


async def load_when_reported(_: dict[str, Any]) -> None:
    await hg.wait_signal("go")


def note(numbers: list[int]) -> None:
    assert numbers


class OwnJobs(Jobs):
    """Jobs that are workflows and fan-outs of ours, once `of` says of which store."""

    of: TriggerKinds

    def start(self, order: TriggerOrder) -> Started:
        return self.of.start(order)

    def poll(self, order: TriggerOrder, metadata: Mapping[str, str]) -> PollResult:
        return self.of.poll(order, metadata)

    def cancel(self, order: TriggerOrder, metadata: Mapping[str, str]) -> None:
        self.of.cancel(order, metadata)


def declare(app: App) -> None:
    for workflow in (load, refuse, load_when_reported):
        app.workflow(workflow)


def silver(type: str, **config: Any) -> Pipeline:
    spec = TriggerSpec(
        type=type, config=config, check_interval=Seconds(CHECK_SECONDS), poll_window=Seconds(10 * CHECK_SECONDS)
    )
    return pipeline(trigger=spec, retry=RetryPolicy(attempts=1))


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig()
    jobs = rig.jobs = OwnJobs()
    declare(rig.app)
    with rig:
        service = rig.env.service
        fanouts = FanoutService(rig.store, rig.env.clock, service.ids)
        jobs.of = kinds(tmp_path, client=service.client, fanouts=fanouts)
        # The worker has joined before there were these.
        service.bus.register(list(rig.app.subscriptions.values()), rig.app.name)
        yield rig


@pytest.mark.parametrize(
    ("definition", "ends", "passes"),
    [
        (silver("workflow", workflow="load", input=0), RunStatus.COMPLETED, 0),
        (silver("workflow", workflow="load", input=0.1), RunStatus.COMPLETED, 0.1),
        (silver("workflow", workflow="refuse"), RunStatus.FAILED, 0),
        (silver("fan-out", handler=f"{HANDLERS}:note", range=[0, 4], chunk_size=2), RunStatus.COMPLETED, 0),
    ],
    ids=["workflow that is quick", "workflow", "workflow that fails", "fan-out"],
)
def test_run__its_job_ends__goes_on_at_that_moment(
    rig: Rig, definition: Pipeline, ends: RunStatus, passes: float
) -> None:
    rig.define(definition)

    rig.push("silver", "landed", date=DATE)
    rig.advance(passes)

    assert rig.run(SLOT).status is ends


def test_run__the_news_is_lost__asks_at_its_interval_as_before(rig: Rig) -> None:
    rig.define(silver("workflow", workflow="load", input=20))
    rig.app.handlers[SUBSCRIPTION].function = str

    rig.push("silver", "landed", date=DATE)
    rig.advance(CHECK_SECONDS - 1)
    before = rig.run(SLOT)
    rig.advance(1)

    assert before.status is RunStatus.RUNNING
    assert rig.env.service.client.get(before.run_id).status is Status.SUCCEEDED
    assert rig.run(SLOT).status is RunStatus.COMPLETED


class World:
    """Servers on one file, one after the other, with jobs that end when asked to."""

    def __init__(self, folder: Path) -> None:
        sandbox.install()
        self.clock = VirtualClock(datetime.fromisoformat(START).timestamp())
        self.machine = PipelineMachine(folder, random.Random(1), self.clock)
        self.jobs = OwnJobs()
        self.machine.jobs = self.jobs  # type: ignore[assignment]
        # People's, who do not crash.
        self.outside = self._open()
        self.jobs.of = kinds(folder, client=self.outside.client)
        self.outside.pipelines.put_machine()
        self.outside.pipelines.definitions.put(silver("workflow", workflow="load_when_reported"), "text", "ana")
        self.server = self.join()

    def _open(self) -> PipelineProcess:
        process = PipelineProcess(self.machine)
        declare(process.app)
        return process

    def join(self) -> PipelineProcess:
        process = self._open()
        process.worker.join()
        return process

    def work(self) -> None:
        """Let everything happen that can happen without time passing."""
        process, rest = self.server, 0
        while rest < 2:
            before = self._writes()
            process.worker.poll()
            while process.worker.engine.has_work:
                process.worker.turn()
            while process.worker.queue:
                process.begin()
                process.finish()
            process.route(100)
            rest = rest + 1 if self._writes() == before else 0

    def _writes(self) -> int:
        return sum(name in WRITES for name in self.server.store.names)

    def run(self, slot: Slot) -> Run:
        log = self.machine.runs.log(slot)
        assert log is not None, f"{slot}: nothing was begun"
        return self.machine.runs.get(log.run_id)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    opened = World(tmp_path)
    yield opened
    opened.server.bury()
    opened.outside.bury()
    opened.machine.close()


def test_run__its_job_is_ended_by_another_process__is_woken_here(world: World) -> None:
    world.outside.pipelines.sensors.push("silver", "landed", {"date": DATE})
    world.work()
    run = world.run(SLOT)
    # One that knows workflows and nothing of pipelines, and takes up what the server leaves lying.
    other = AslProcess(world.machine)
    declare(other.app)
    other.worker.join()
    other.client.signal(run.run_id, "go")
    world.clock.advance(5)
    other.worker.poll()
    other.worker.turn()
    ended = other.client.get(run.run_id)
    other.bury()

    world.work()

    assert ended.status is Status.SUCCEEDED
    assert world.run(SLOT).status is RunStatus.COMPLETED


def test_run__the_server_dies_between_the_end_of_the_job_and_the_wake_up__the_next_one_wakes_it(
    world: World,
) -> None:
    between = 0

    for number in range(1, 29):
        slot = slot_of(date=f"2026-02-{number:02d}")
        world.outside.pipelines.sensors.push("silver", "landed", {"date": slot.date})
        world.work()
        run = world.run(slot)
        world.outside.client.signal(run.run_id, "go")
        world.server.store.fail_in(number, crash=True, is_done=number % 2 == 0)
        try:
            world.work()
        except Crash:
            has_ended = world.outside.client.get(run.run_id).status.is_closed
            between += has_ended and world.outside.pipelines.waiters.find(slot, WaitKind.JOB) is not None
            world.server.bury()
            world.server = world.join()
            world.clock.advance(LEASE_SECONDS + 5)
            world.work()
        world.server.store.fault = None
        assert world.run(slot).status is RunStatus.COMPLETED, f"died at call {number}"

    assert between > 3
