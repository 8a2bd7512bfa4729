"""Inline worker: runs chunks sequentially in the calling thread, for tests."""

from __future__ import annotations

from headgate.fanout.core.completed_index import CompletedIndex
from headgate.fanout.core.transitions import apply
from headgate.fanout.handlers import load, perform
from headgate.fanout.local.chunk_results import job_of, result_change
from headgate.fanout.local.claims import Claims
from headgate.fanout.model.rows import MAIN_LANE, SLOW_LANE
from headgate.fanout.service import FanoutService


class InlineWorker:
    """Runs the chunks of a service's fan-outs, with any handler."""

    def __init__(self, service: FanoutService) -> None:
        self._service = service
        self._maintenance = service.new_maintenance()
        self._completed = CompletedIndex(service.queries)
        self._lanes = {
            lane: Claims(
                service.store,
                service.clock,
                service.ids,
                worker="inline",
                lane=lane,
                draw=lambda: 0.0,
                # A fan-out without a handler belongs to a remote worker.
                wanted=lambda fanout: fanout.handler is not None,
            )
            for lane in (MAIN_LANE, SLOW_LANE)
        }

    def work(self) -> int:
        """Run every chunk that is due, and return their number. Raises `DefinitionError`."""
        count = 0
        for lane, claims in self._lanes.items():
            claims.refresh()
            for claim in claims.take(100, {}):
                answer = perform(load(claim.fanout.handler or ""), job_of(0, claim, lane), lambda _: None)
                change = result_change(claim, answer, now_ms=claims.queries.now_ms(), draw=0.0)
                apply(self._service.store, self._completed.listed([change]))
                self._maintenance.chunk_ended(claim.fanout.run_id)
                count += 1
        if count == 0:
            self._maintenance.run_once()
        return count

    def next_due_ms(self) -> int | None:
        """Return when the next queued chunk becomes due, or None."""
        found = [due for claims in self._lanes.values() if (due := claims.next_due_ms()) is not None]
        return min(found, default=None)
