"""Work poller: reads inboxes, timers and unfinished dispatches from the store, and hands them to the engine.

Every read is of a sparse index, which has an entry for each piece of pending work and none for the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from headgate.clock import Clock
from headgate.durable.engine.engine import Engine
from headgate.durable.engine.membership import Fleet
from headgate.durable.engine.turn_commit import Source
from headgate.durable.model.history import TimerFired, load_event
from headgate.durable.model.records import (
    INBOX,
    NEVER_MS,
    TIMERS_DUE,
    UNDISPATCHED,
    Execution,
    Timer,
    execution_of,
    timer_of,
)
from headgate.store.catalogue.tables import EXECUTIONS, INBOXES, TIMERS
from headgate.store.model.requests import Poll, Query
from headgate.store.model.schema import Key
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
                Query(table=INBOXES, index="ready-index", partition=INBOX, limit=PAGE, cursor=cursor, poll=Poll.PROMPT)
            )
            for item in self._ours(page.items, "at_ms"):
                self._engine.read_inbox(item["execution_id"])
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
                Query(
                    table=TIMERS, index="due-index", partition=TIMERS_DUE, limit=PAGE, cursor=cursor, poll=Poll.PROMPT
                )
            )
            due = [item for item in page.items if item["due_at_ms"] <= now_ms]
            waiting = [item for item in due if item["timer_id"] not in self._fired_at]
            ours = self._ours(waiting, "due_at_ms")
            for item in ours:
                self._fire(timer_of(item), now)
            is_any_left = is_any_left or len(ours) < len(waiting)
            if len(due) < len(page.items):
                next_ms: int = page.items[len(due)]["due_at_ms"]
                # Timers of other workers stay at the head of the index for up to the grace period.
                return min(next_ms, now_ms + GRACE_MS) if is_any_left else next_ms
            cursor = page.cursor
            if cursor is None:
                break
        return now_ms + GRACE_MS if is_any_left else NEVER_MS

    def resume_dispatches(self) -> None:
        """Mark executions as ready whose last turn was committed and not dispatched: a worker died in between."""
        overdue_ms = self._now_ms() - GRACE_MS
        # Oldest first, and without a range: an empty answer then holds for later polls too.
        page = self._store.query(
            Query(table=EXECUTIONS, index="ready-index", partition=UNDISPATCHED, limit=PAGE, poll=Poll.RELAXED)
        )
        for item in page.items:
            if item["ready_at_ms"] <= overdue_ms:
                self._engine.read_inbox(item["execution_id"])

    def _fire(self, timer: Timer, now: float) -> None:
        """Add the event of a due timer to its execution."""
        self._fired_at[timer.timer_id] = now
        self._engine.add_event(timer.execution_id, timer_source(timer))

    def _ours(self, items: Sequence[Item], since: str) -> list[Item]:
        """Return the pending work of executions that this worker is to advance now. `since` names its time."""
        ready = self._engine.ready
        items = [item for item in items if not ready.is_shelved(item["execution_id"])]
        rows = self._rows(items) if self._fleet.is_mixed else {}
        return [item for item in items if self._is_ours(item["execution_id"], rows, item[since])]

    def _is_ours(self, execution_id: str, rows: Mapping[str, Execution], since_ms: int) -> bool:
        row = rows.get(execution_id)
        if self._fleet.owns(execution_id, row):
            return True
        is_late = self._now_ms() - since_ms > GRACE_MS
        return is_late and (row is None or self._fleet.may_advance(row))

    def _rows(self, items: Sequence[Item]) -> dict[str, Execution]:
        """Return the executions of pending work: some workers may not advance some of them."""
        ids = sorted({item["execution_id"] for item in items})
        found = self._store.get_many(EXECUTIONS, [Key(each) for each in ids]) if ids else []
        return {item["execution_id"]: execution_of(item) for item in found if item is not None}

    def _now_ms(self) -> int:
        return int(self._clock.seconds() * 1000)


def timer_source(timer: Timer) -> Source:
    """Return the event of a due timer, with the write that removes the timer."""
    event = TimerFired(timer.seq) if timer.event is None else load_event(timer.event)
    return Source(event, timer.fired(), timer.run, at_ms=timer.due_at_ms)
