"""Turn handler: advances executions within one function invocation.

It uses the same engine and the same fence, the version of the row, as every worker. It claims no activity and does not
join the fleet: events that are left when the invocation ends stay stored, and their wake-ups are sent again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import structlog

from headgate.clock import Clock
from headgate.durable.engine.ready_queue import ReadyList
from headgate.durable.model.records import timer_of
from headgate.durable.replay.turn_timeout import TURN_SECONDS, each_turn
from headgate.durable.serverless.wakeups import Due, TurnWake, again
from headgate.durable.service import Service
from headgate.durable.worker.poller import timer_source
from headgate.errors import HeadgateError
from headgate.store.catalogue.tables import TIMERS
from headgate.store.model.schema import Key

# The handler waits for a timer that is due within this time: the clocks of two machines differ a little.
PATIENCE_SECONDS: Final = 2.0
_log = structlog.get_logger(__name__)


class InvokedTurns:
    """Advances the executions of an invocation, and no others. Not for several threads at once.

    Executions stay in memory between invocations, so that their next turn needs no replay.
    """

    def __init__(self, service: Service, *, turn_seconds: float = TURN_SECONDS) -> None:
        self._store = service.store
        self._clock = service.clock
        self._turn_seconds = turn_seconds
        self._ready = _SingleReadyList(service.clock)
        self._worker = service.worker(queues=(), worker_id=service.ids.make("wrk"), ready=self._ready)

    def __call__(self, wakes: Sequence[TurnWake], is_over: Callable[[], bool]) -> tuple[list[Due], set[str]]:
        """Take turns until no execution has events, or time is up.

        Returns the wake-ups that came too early, with their due times, and the executions that need another wake-up:
        there was no time left for them, or the store failed. Raises what the store raises if it failed for all.
        """
        early: list[Due] = []
        unfinished: set[str] = set()
        errors: list[HeadgateError] = []
        executions = {wake.execution_id for wake in wakes}
        for execution_id in executions:
            own = [wake for wake in wakes if wake.execution_id == execution_id]
            try:
                is_unfinished = is_over() or self._advance(own, early, is_over)
            except HeadgateError as exc:
                # Each by itself, so that an execution with damaged rows does not block the others.
                _log.error("execution not advanced", execution_id=execution_id, code=exc.code, error=str(exc))
                errors.append(exc)
                is_unfinished = True
            if is_unfinished:
                unfinished.add(execution_id)
        if errors and len(errors) == len(executions):
            raise errors[0]
        return early, unfinished

    def _advance(self, wakes: Sequence[TurnWake], early: list[Due], is_over: Callable[[], bool]) -> bool:
        """Take the turns of one execution, and return whether events are left."""
        ready = self._ready
        ready.restart(wakes[0].execution_id)
        for wake in wakes:
            due = self._add_event(wake)
            if due is not None:
                early.append(due)
        with each_turn(self._turn_seconds):
            while ready and not is_over():
                self._worker.turn()
        return bool(ready)

    def _add_event(self, wake: TurnWake) -> Due | None:
        engine = self._worker.engine
        if wake.timer_id is None:
            engine.read_inbox(wake.execution_id)
            return None
        item = self._store.get(TIMERS, Key(wake.timer_id), consistent=True)
        if item is None:
            # It was cancelled or has fired, and the dispatch of its turn may have been interrupted.
            engine.read_inbox(wake.execution_id)
            return None
        timer = timer_of(item)
        left_seconds = timer.due_at_ms / 1000 - self._clock.seconds()
        if left_seconds > PATIENCE_SECONDS:
            return again(wake, timer.due_at_ms, int(self._clock.seconds() * 1000))
        if left_seconds > 0:
            self._clock.sleep(left_seconds)
        engine.add_event(timer.execution_id, timer_source(timer))
        return None


class _SingleReadyList(ReadyList):
    """The ready list of one execution: others that get a message by its turns have wake-ups of their own."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._execution_id = ""

    def restart(self, execution_id: str) -> None:
        """Drop all events, and accept those of this execution from now on."""
        self.clear()
        self._execution_id = execution_id

    def read_inbox(self, execution_id: str) -> None:
        if execution_id == self._execution_id:
            super().read_inbox(execution_id)
