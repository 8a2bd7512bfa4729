"""Work poller: reads inboxes, timers and unfinished dispatches from the store, and hands them to the engine.

Every read is of a sparse index, which has an entry for each piece of pending work and none for the rest.
"""

from __future__ import annotations

from typing import Final

from headgate.clock import Clock
from headgate.durable.engine.engine import Engine
from headgate.durable.engine.membership import Fleet
from headgate.durable.engine.turn_commit import Source
from headgate.durable.model.history import TimerFired, load_event
from headgate.durable.model.records import INBOX, NEVER_MS, TIMERS_DUE, UNDISPATCHED, Timer, timer_of
from headgate.store.catalogue.tables import EXECUTIONS, INBOXES, TIMERS
from headgate.store.model.requests import Query, Range, Sort
from headgate.store.model.values import Item
from headgate.store.port import Store

PAGE: Final = 200
PAGES_MAX: Final = 20
# Work that belongs to another worker is left to it for this long.
GRACE_MS: Final = 3_000
# A timer that was fired and is still stored after this long is fired again.
FIRED_SECONDS: Final = 1.0


class WorkPoller:
    """Polls for one worker. Not for several threads at once."""

    def __init__(self, store: Store, clock: Clock, fleet: Fleet, engine: Engine) -> None:
        self._store = store
        self._clock = clock
        self._fleet = fleet
        self._engine = engine
        self._fired_at: dict[str, float] = {}

    def poll_inboxes(self) -> None:
        """Mark every execution with messages as ready."""
        cursor = None
        for _ in range(PAGES_MAX):
            page = self._store.query(
                Query(table=INBOXES, index="ready-index", partition=INBOX, limit=PAGE, cursor=cursor)
            )
            for item in page.items:
                execution_id = item["execution_id"]
                if self._is_ours(item, item["at_ms"]) and not self._engine.ready.is_shelved(execution_id):
                    self._engine.read_inbox(execution_id)
            cursor = page.cursor
            if cursor is None:
                break

    def fire_timers(self) -> int:
        """Fire the timers that are due, and return when to poll timers again."""
        now_ms = self._now_ms()
        now = self._clock.monotonic()
        self._fired_at = {timer_id: at for timer_id, at in self._fired_at.items() if at > now - FIRED_SECONDS}
        cursor, is_any_left = None, False
        for _ in range(PAGES_MAX):
            page = self._store.query(
                Query(table=TIMERS, index="due-index", partition=TIMERS_DUE, limit=PAGE, cursor=cursor)
            )
            for item in page.items:
                timer = timer_of(item)
                if timer.due_at_ms > now_ms:
                    # Timers of other workers stay at the head of the index for up to the grace period.
                    return min(timer.due_at_ms, now_ms + GRACE_MS) if is_any_left else timer.due_at_ms
                is_any_left = is_any_left or not self._fire(timer, item, now)
            cursor = page.cursor
            if cursor is None:
                break
        return now_ms + GRACE_MS if is_any_left else NEVER_MS

    def resume_dispatches(self) -> None:
        """Mark executions as ready whose last turn was committed and not dispatched: a worker died in between."""
        overdue = Sort(Range.AT_MOST, self._now_ms() - GRACE_MS)
        page = self._store.query(
            Query(table=EXECUTIONS, index="ready-index", partition=UNDISPATCHED, sort=overdue, limit=PAGE)
        )
        for item in page.items:
            self._engine.read_inbox(item["execution_id"])

    def _fire(self, timer: Timer, item: Item, now: float) -> bool:
        """Add the event of a due timer to its execution. False if another worker fires it."""
        if timer.timer_id in self._fired_at:
            return True
        if not self._is_ours(item, timer.due_at_ms) or self._engine.ready.is_shelved(timer.execution_id):
            return False
        self._fired_at[timer.timer_id] = now
        self._engine.add_event(timer.execution_id, timer_source(timer))
        return True

    def _is_ours(self, item: Item, since_ms: int) -> bool:
        execution_id: str = item["execution_id"]
        return self._fleet.owns(execution_id) or self._now_ms() - since_ms > GRACE_MS

    def _now_ms(self) -> int:
        return int(self._clock.seconds() * 1000)


def timer_source(timer: Timer) -> Source:
    """Return the event of a due timer, with the write that removes the timer."""
    event = TimerFired(timer.seq) if timer.event is None else load_event(timer.event)
    return Source(event, timer.fired(), timer.run, at_ms=timer.due_at_ms)
