"""Deliveries: what waits for a worker, alerts above all, worked off within one invocation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from headgate.durable.service import Service

# No worker beats while a delivery is made, and none of them may take this long.
LEASE_SECONDS: Final = 240.0


def work_off(service: Service, is_over: Callable[[], bool]) -> int:
    """Perform what is due until nothing is left or time is up, and return how much it was.

    What was claimed and not begun is given back; what a killed invocation held is taken over after its lease.
    """
    worker = service.worker(lease_seconds=LEASE_SECONDS)
    worker.join()
    done = 0
    try:
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
