"""Deliveries: what waits for a worker, alerts above all, worked off within one invocation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from headgate.durable.engine.membership import list_members
from headgate.durable.serverless.lease_watch import LeaseWatch
from headgate.durable.serverless.wakeups import WorkerWake
from headgate.durable.service import Service
from headgate.durable.worker.worker import Worker

# No worker beats while a delivery is made, and none of them may take this long.
LEASE_SECONDS: Final = 240.0
# No invocation lives longer, and no clock of two that are set by AWS is wrong by this much.
INVOCATION_SECONDS_MAX: Final = 900.0


def work_off(service: Service, is_over: Callable[[], bool]) -> int:
    """Perform what is due until nothing is left or time is up, and return how much it was.

    What was claimed and not begun is given back; what a killed invocation held is taken over once its lease is over
    and it cannot be there any more.
    """
    worker = service.worker(lease_seconds=LEASE_SECONDS)
    # Machines of functions have names and process ids in common: by these nobody can tell who of them lives.
    worker.fleet.host = service.ids.make("call")
    worker.join()
    done = 0
    try:
        _take_over(worker, service)
        while not is_over():
            worker.poll()
            while worker.engine.has_work and not is_over():
                worker.turn()
            if not worker.queue:
                break
            while worker.queue and not is_over():
                worker.perform(worker.queue.popleft())
                done += 1
    finally:
        worker.leave()
    return done


def _take_over(worker: Worker, service: Service) -> None:
    """Give up workers that have not been seen for longer than they can live: this one stays too short to watch them."""
    watch = LeaseWatch(worker, service.store)
    at_ms = int(1000 * (service.clock.seconds() - INVOCATION_SECONDS_MAX))
    for member in list_members(service.store):
        if member.lease_until_ms < at_ms:
            watch.check(WorkerWake(member.worker_id, member.beats, member.is_revoked))
