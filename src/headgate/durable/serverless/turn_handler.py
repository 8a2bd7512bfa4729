"""Invoked turns: advances executions within one call, for those who work only when they are called.

The engine is the one of every worker, and so is its fence, the version of the row. It claims no activity and joins
no fleet: what it has not done when the call ends is where it was, and is told again.
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
from headgate.durable.worker.poller import fired
from headgate.errors import HeadgateError
from headgate.store.catalogue.tables import TIMERS
from headgate.store.model.schema import Key

# A timer that is due in less than this is waited for: clocks of two machines differ by a little.
PATIENCE_SECONDS: Final = 2.0
_log = structlog.get_logger(__name__)


class InvokedTurns:
    """Advances the executions that a call is for, and no other. Not for several threads at once.

    Executions stay in memory from call to call, so that the next turn of one that comes back needs no replay.
    """

    def __init__(self, service: Service, *, turn_seconds: float = TURN_SECONDS) -> None:
        self._store = service.store
        self._clock = service.clock
        self._turn_seconds = turn_seconds
        self._worker = service.worker(queues=())
        self._worker.fleet.worker_id = service.ids.make("wrk")

    def __call__(self, wakes: Sequence[TurnWake], is_over: Callable[[], bool]) -> tuple[list[Due], set[str]]:
        """Take turns until nobody has anything to hear, or time is up.

        Returns what came too early, for when it is due, and the executions that have to be told again: there was no
        time left for them, or the store did not let them go on. Raises what the store raises if that holds for all.
        """
        early: list[Due] = []
        left: set[str] = set()
        errors: list[HeadgateError] = []
        executions = {wake.execution_id for wake in wakes}
        for execution_id in executions:
            own = [wake for wake in wakes if wake.execution_id == execution_id]
            try:
                is_left = is_over() or self._advance(own, early, is_over)
            except HeadgateError as exc:
                # One by one, so that an execution whose rows are damaged holds up no other.
                _log.error("execution could not go on", execution_id=execution_id, code=exc.code, error=str(exc))
                errors.append(exc)
                is_left = True
            if is_left:
                left.add(execution_id)
        if errors and len(errors) == len(executions):
            raise errors[0]
        return early, left

    def _advance(self, wakes: Sequence[TurnWake], early: list[Due], is_over: Callable[[], bool]) -> bool:
        """Take the turns of one execution, and return whether time was up before it had heard everything."""
        ready = self._worker.engine.ready = _OnlyOne(self._clock, wakes[0].execution_id)
        for wake in wakes:
            due = self._tell(wake)
            if due is not None:
                early.append(due)
        with each_turn(self._turn_seconds):
            while ready and not is_over():
                self._worker.turn()
        return bool(ready)

    def _tell(self, wake: TurnWake) -> Due | None:
        engine = self._worker.engine
        if wake.timer_id is None:
            engine.look(wake.execution_id)
            return None
        item = self._store.get(TIMERS, Key(wake.timer_id), consistent=True)
        if item is None:
            # It was cancelled, or has fired, and the turn that heard it may have been left halfway.
            engine.look(wake.execution_id)
            return None
        timer = timer_of(item)
        left_seconds = timer.due_at_ms / 1000 - self._clock.seconds()
        if left_seconds > PATIENCE_SECONDS:
            return again(wake, timer.due_at_ms, int(self._clock.seconds() * 1000))
        if left_seconds > 0:
            self._clock.sleep(left_seconds)
        engine.tell(timer.execution_id, fired(timer))
        return None


class _OnlyOne(ReadyList):
    """The ready list of one execution: others who get mail by its turns have wakes, and calls, of their own."""

    def __init__(self, clock: Clock, execution_id: str) -> None:
        super().__init__(clock)
        self._execution_id = execution_id

    def look(self, execution_id: str) -> None:
        if execution_id == self._execution_id:
            super().look(execution_id)
