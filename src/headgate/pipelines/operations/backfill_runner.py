"""Backfilling: takes backfills forward: notes what has ended, and begins what comes next."""

from __future__ import annotations

import structlog

from headgate.errors import ConflictError, UserError
from headgate.pipelines.context import Parts
from headgate.pipelines.enums import Cause
from headgate.pipelines.events.names import EventName
from headgate.pipelines.lifecycle.starter import Starter
from headgate.pipelines.operations.backfill_plans import Backfill, BackfillState
from headgate.pipelines.operations.backfills import Backfills
from headgate.pipelines.runs.rows import Slot
from headgate.store.model.requests import Write

_log = structlog.get_logger(__name__)


class Backfilling:
    """Looks after all backfills of a store. Two that do it at once do no harm."""

    def __init__(self, parts: Parts, starter: Starter, backfills: Backfills) -> None:
        self._parts = parts
        self._starter = starter
        self._backfills = backfills

    def tick(self) -> int:
        """Take every backfill that is not over one step further, and return how many periods were begun."""
        begun = 0
        for backfill_id in self._backfills.unfinished():
            try:
                begun += self._step(backfill_id)
            except (ConflictError, UserError) as exc:
                # One that cannot go on now stops no other.
                _log.warning("backfill not advanced", backfill_id=backfill_id, error=str(exc))
        return begun

    def _step(self, backfill_id: str) -> int:
        backfill = self._backfills.get(backfill_id)
        for date in backfill.running:
            self._settle(backfill, date)
        backfill = self._backfills.get(backfill_id)
        if backfill.state is not BackfillState.RUNNING:
            return 0
        waiting = backfill.dates[backfill.taken :][: 4 * backfill.concurrency]
        done = set() if backfill.redo else {date for date in waiting if self._is_done(backfill.slot(date))}
        batch = self._backfills.advance(backfill_id, done)
        for date in batch.begins:
            # Under the id of the backfill: who dies here begins it again, which changes nothing.
            self._begin(backfill, date)
        for date in backfill.running:
            self._begin(backfill, date)
        return len(batch.begins)

    def _begin(self, backfill: Backfill, date: str) -> None:
        self._starter.pursue(
            backfill.slot(date), Cause.BACKFILL, token=backfill.backfill_id, by=backfill.by, is_replay=backfill.redo
        )

    def _settle(self, backfill: Backfill, date: str) -> None:
        log = self._parts.runs.log(backfill.slot(date))
        if log is None or not (log.status.is_terminal or log.status.is_done):
            return
        is_own = log.begun_at_ms is None or log.begun_at_ms >= backfill.created_at_ms
        if not is_own:
            return
        self._backfills.settle(backfill.backfill_id, date, log.status, reason=log.reason, also=self._told)

    def _told(self, backfill: Backfill) -> list[Write]:
        slot = Slot(backfill.pipeline_id, backfill.schedule_id, "")
        detail = {"backfill_id": backfill.backfill_id, "failed": len(backfill.failed), "succeeded": backfill.succeeded}
        if backfill.state is not BackfillState.COMPLETED:
            return []
        name = EventName.BACKFILL_FAILED if backfill.failed else EventName.BACKFILL_COMPLETED
        return self._parts.tells(name, slot, detail)

    def _is_done(self, slot: Slot) -> bool:
        log = self._parts.runs.log(slot)
        return log is not None and log.status.is_done
