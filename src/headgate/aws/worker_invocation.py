"""Worker invocation: runs a durable worker within one Lambda invocation, mainly to deliver alerts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from headgate.durable.engine.membership import list_members
from headgate.durable.serverless.lease_watch import LeaseWatch
from headgate.durable.serverless.wakeups import WorkerWake
from headgate.durable.service import Service
from headgate.durable.worker.worker import Worker
from headgate.notify.deliverer import QUEUE as ALERTS

# The worker sends no heartbeat during a delivery, so every delivery must take less than this.
LEASE_SECONDS: Final = 240.0
# Above the longest invocation plus the clock skew between two Lambdas.
INVOCATION_SECONDS_MAX: Final = 900.0


def run_worker(service: Service, is_out_of_time: Callable[[], bool], *, delivers_alerts: bool = True) -> int:
    """Perform due work until none is left or time is up, and return the number of activities performed.

    Unstarted claims are released at the end. Claims of a killed invocation are reclaimed once its lease has expired and
    it can no longer be running.
    """
    # Lambda sandboxes share host names and process ids, which therefore cannot identify a live worker.
    queues = ("default", ALERTS) if delivers_alerts else ("default",)
    worker = service.worker(queues=queues, lease_seconds=LEASE_SECONDS, host=service.ids.make("call"))
    worker.join()
    done = 0
    try:
        _expire_dead_workers(worker, service)
        while not is_out_of_time():
            worker.poll()
            while worker.engine.has_work and not is_out_of_time():
                worker.turn()
            if not worker.queue:
                break
            while worker.queue and not is_out_of_time():
                worker.perform(worker.queue.popleft())
                done += 1
    finally:
        worker.leave()
    return done


def _expire_dead_workers(worker: Worker, service: Service) -> None:
    """Expire workers whose lease ended longer ago than an invocation can last."""
    watch = LeaseWatch(worker, service.store)
    at_ms = int(1000 * (service.clock.seconds() - INVOCATION_SECONDS_MAX))
    for member in list_members(service.store):
        if member.lease_until_ms < at_ms:
            watch.check(WorkerWake(member.worker_id, member.beats, member.is_revoked))
