"""The standby worker of the watchdog: it delivers what the server does not, once, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable

from headgate.durable.engine.membership import list_members
from headgate.durable.worker.standby import GRACE_SECONDS, LEAVE_SECONDS, StandbyWorker
from headgate.notify.deliverer import QUEUE
from tests.unit.notify.rig import World


def _polled(world: World, standby: StandbyWorker, is_done: Callable[[], bool]) -> None:
    """Poll until a condition holds. Its threads are real."""
    for _ in range(500):
        standby.poll()
        if is_done():
            return
        time.sleep(0.01)
    raise AssertionError("not done within 5 s")


def test_standby__server_delivers__takes_nothing_and_is_no_member(world: World) -> None:
    standby = world.service.standby_worker(queues=(QUEUE,))
    world.emit(world.notice())

    standby.poll()
    world.clock.advance(GRACE_SECONDS + 1)
    standby.poll()

    assert not standby.is_member
    assert len(world.sent()) == 1
    assert len(list_members(world.store)) == 1, "the worker of the server alone"
    standby.close()


def test_standby__no_worker_claims__delivers_after_the_grace_period_once_and_leaves(world: World) -> None:
    standby = world.service.standby_worker(queues=(QUEUE,))
    world.worker.leave()
    world.publish(world.notice())

    standby.poll()
    assert not standby.is_member, "the server may still claim it"
    world.clock.advance(GRACE_SECONDS)
    _polled(world, standby, lambda: len(world.sent()) == 1)

    assert standby.is_member
    assert [member.queues for member in list_members(world.store)] == [(QUEUE,)]
    _polled(world, standby, lambda: world.alerts.ls().alerts[0].deliveries["ops#trigger"].state == "SENT")
    world.clock.advance(LEAVE_SECONDS + 1)
    _polled(world, standby, lambda: not standby.is_member)
    assert list_members(world.store) == []
    world.worker.join()
    world.run()
    assert len(world.sent()) == 1, "the server finds nothing left to deliver"
    standby.close()
