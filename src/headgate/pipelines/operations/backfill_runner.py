"""Backfill runner: records ended periods of backfills, and starts the next ones."""

from __future__ import annotations

import structlog

from headgate.errors import ConflictError, UserError
from headgate.pipelines.enums import Cause
from headgate.pipelines.event_writer import EventWriter
from headgate.pipelines.events.names import EventName
from headgate.pipelines.lifecycle.starter import LifecycleStarter
from headgate.pipelines.operations.backfill_plans import Backfill, BackfillState
from headgate.pipelines.operations.backfills import Backfills
from headgate.pipelines.runs.rows import Slot
from headgate.pipelines.runs.store import Runs
from headgate.store.model.requests import Write

_log = structlog.get_logger(__name__)


class BackfillRunner:
    """Advances all backfills of a store. Running two at once is safe."""

    def __init__(self, runs: Runs, events: EventWriter, starter: LifecycleStarter, backfills: Backfills) -> None:
        self._runs = runs
        self._events = events
        self._starter = starter
        self._backfills = backfills

    def tick(self) -> int:
        """Advance every unfinished backfill by one step, and return the number of started periods."""
        started = 0
        for backfill_id in self._backfills.unfinished():
            try:
                started += self._step(backfill_id)
            except (ConflictError, UserError) as exc:
                # An error in one does not stop the others.
                _log.warning("backfill not advanced", backfill_id=backfill_id, error=str(exc))
        return started

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
            # The backfill id makes the name unique: after a crash the same start is repeated, which is idempotent.
            self._start(backfill, date)
        for date in backfill.running:
            self._start(backfill, date)
        return len(batch.begins)

    def _start(self, backfill: Backfill, date: str) -> None:
        self._starter.start_run(
            backfill.slot(date), Cause.BACKFILL, token=backfill.backfill_id, by=backfill.by, is_replay=backfill.redo
        )

    def _settle(self, backfill: Backfill, date: str) -> None:
        log = self._runs.log(backfill.slot(date))
        if log is None or not (log.status.is_terminal or log.status.is_done):
            return
        is_own = log.begun_at_ms is None or log.begun_at_ms >= backfill.created_at_ms
        if not is_own:
            return
        self._backfills.settle(backfill.backfill_id, date, log.status, reason=log.reason, also=self._end_events)

    def _end_events(self, backfill: Backfill) -> list[Write]:
        slot = Slot(backfill.pipeline_id, backfill.schedule_id, "")
        detail = {"backfill_id": backfill.backfill_id, "failed": len(backfill.failed), "succeeded": backfill.succeeded}
        if backfill.state is not BackfillState.COMPLETED:
            return []
        name = EventName.BACKFILL_FAILED if backfill.failed else EventName.BACKFILL_COMPLETED
        return self._events.writes(name, slot, detail)

    def _is_done(self, slot: Slot) -> bool:
        log = self._runs.log(slot)
        return log is not None and log.status.is_done
