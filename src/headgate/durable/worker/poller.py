"""The agenda: what the store has for a worker, and when to look again.

Timers that are due, mail, activities that wait, workers that died, schedules. Everything here is a look at a sparse
index that is as long as what there is to do, never as long as what there is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import structlog

from headgate.clock import Clock
from headgate.durable.engine.turn_commit import Source
from headgate.durable.model.archive import Archiver
from headgate.durable.model.failures import ErrorInfo
from headgate.durable.model.history import TimerFired, load_event
from headgate.durable.model.records import INBOX, NEVER_MS, TIMERS_DUE, UNDISPATCHED, Timer, timer_of
from headgate.errors import StaleClaimError
from headgate.store.catalogue.tables import EXECUTIONS, INBOXES, TIMERS
from headgate.store.model.requests import Query, Range, Sort
from headgate.store.model.values import Item
from headgate.store.port import Store

if TYPE_CHECKING:
    from headgate.durable.worker.worker import Worker

PAGE: Final = 200
PAGES_MAX: Final = 20
# What belongs to another worker is left to it for this long.
GRACE_MS: Final = 3_000
SWEEP_SECONDS: Final = 2.0
ARCHIVE_SECONDS: Final = 60.0
# A timer that was told is told again if it is still there after this long.
TOLD_SECONDS: Final = 1.0
# However quiet it is, a look this often makes up for any wake-up that was lost.
IDLE_SECONDS: Final = 1.0
_log = structlog.get_logger(__name__)


class Agenda:
    """Looks for one worker. Not for several threads at once."""

    def __init__(self, worker: Worker, store: Store, clock: Clock, archiver: Archiver | None) -> None:
        self._worker = worker
        self._store = store
        self._clock = clock
        self._archiver = archiver
        self._next_due_ms = 0
        self._is_overtaken = True
        self._idle_until = 0.0
        self._is_full = False
        self._renew_at = 0.0
        self._sweep_at = 0.0
        self._archive_at = 0.0
        self._told: dict[str, float] = {}

    def renew_soon(self) -> None:
        """The lease is gone, or may be: see to it with the next look."""
        self._renew_at = 0.0
        self._is_overtaken = True

    def look_again(self) -> None:
        """Something was put where only a look will find it."""
        self._next_due_ms = 0
        self._is_overtaken = True

    def turned_away(self) -> None:
        """There was no room for an activity: look for it as soon as there is."""
        self._is_full = True

    def timers_made(self, due_ms: Sequence[int]) -> None:
        """Timers were stored that are due at these times."""
        self._next_due_ms = min(self._next_due_ms, *due_ms)
        self._is_overtaken = True

    def poll(self) -> float:
        """Do everything that is due, and return for how many seconds nothing else will be."""
        now = self._clock.monotonic()
        if now >= self._renew_at:
            self._renew(now)
        self._next_due_ms = NEVER_MS
        self._idle_until = now + IDLE_SECONDS
        later = [self._mail(), self._timers(), self._deadlines(), self._claims(), self._schedules()]
        if now >= self._sweep_at:
            self._sweep_at = now + SWEEP_SECONDS
            self._sweep()
        if self._archiver is not None and now >= self._archive_at:
            self._archive_at = now + ARCHIVE_SECONDS
            self._archiver.archive_due()
        self._next_due_ms = min(self._next_due_ms, *later)
        return self.seconds_left()

    @property
    def next_due_ms(self) -> int:
        """When the next thing is due that was known at the last look."""
        return min(self._next_due_ms, self._worker.next_timeout_ms() or NEVER_MS)

    def seconds_left(self) -> float:
        """Return for how many seconds nothing will be due."""
        if self._is_full and self._worker.room() > 0:
            return 0.0
        left = (self.next_due_ms - self._now_ms()) / 1000
        upkeep = min(self._renew_at, self._sweep_at, self._idle_until) - self._clock.monotonic()
        return max(0.0, min(left, upkeep))

    def rest_seconds(self) -> float:
        """Return for how many seconds nothing will be due; `is_overtaken` says from now on whether that may change."""
        # First, so that what comes up in this moment counts as news at worst.
        self._is_overtaken = False
        return self.seconds_left()

    @property
    def is_overtaken(self) -> bool:
        """Whether something may be due before whoever asked for `rest_seconds` expects it."""
        # What runs or waits here has limits of its own, and when it is gone there is room for more.
        return self._is_overtaken or self._is_full or bool(self._worker.running or self._worker.queue)

    # What is looked for.

    def _renew(self, now: float) -> None:
        fleet = self._worker.fleet
        self._renew_at = now + fleet.lease_seconds / 3
        if not fleet.renew():
            _log.warning("taken for dead", worker_id=fleet.worker_id)
            self._worker.abandon_all()
            self._worker.join()
        fleet.refresh()
        for member in fleet.dead():
            if not fleet.give_up(member):
                continue
            taken = self._worker.activities.reap(member.worker_id)
            if taken == 0 and fleet.bury(member):
                _log.info("worker is gone", worker_id=member.worker_id)
            if taken:
                _log.warning("took over from a dead worker", worker_id=member.worker_id, activities=taken)
                # There may be more.
                self._renew_at = now

    def _mail(self) -> int:
        cursor = None
        for _ in range(PAGES_MAX):
            page = self._store.query(
                Query(table=INBOXES, index="ready-index", partition=INBOX, limit=PAGE, cursor=cursor)
            )
            for item in page.items:
                execution_id = item["execution_id"]
                if self._is_ours(item, item["at_ms"]) and not self._worker.engine.ready.is_shelved(execution_id):
                    self._worker.engine.look(execution_id)
            cursor = page.cursor
            if cursor is None:
                break
        return NEVER_MS

    def _timers(self) -> int:
        now_ms = self._now_ms()
        now = self._clock.monotonic()
        self._told = {timer_id: at for timer_id, at in self._told.items() if at > now - TOLD_SECONDS}
        cursor, left_over = None, False
        for _ in range(PAGES_MAX):
            page = self._store.query(
                Query(table=TIMERS, index="due-index", partition=TIMERS_DUE, limit=PAGE, cursor=cursor)
            )
            for item in page.items:
                timer = timer_of(item)
                if timer.due_at_ms > now_ms:
                    # Those of others stay at the head until their owners fire them, or have had time to.
                    return min(timer.due_at_ms, now_ms + GRACE_MS) if left_over else timer.due_at_ms
                left_over = left_over or not self._fire(timer, item, now)
            cursor = page.cursor
            if cursor is None:
                break
        return now_ms + GRACE_MS if left_over else NEVER_MS

    def _fire(self, timer: Timer, item: Item, now: float) -> bool:
        """Tell the execution of a timer that is due. False if that is someone else's to do."""
        if timer.timer_id in self._told:
            return True
        if not self._is_ours(item, timer.due_at_ms) or self._worker.engine.ready.is_shelved(timer.execution_id):
            return False
        self._told[timer.timer_id] = now
        self._worker.engine.tell(timer.execution_id, fired(timer))
        return True

    def _claims(self) -> int:
        worker = self._worker
        room = worker.room()
        self._is_full = room <= 0
        if self._is_full:
            return NEVER_MS
        claimed = worker.activities.claim(worker.queues, worker.can_perform, room)
        worker.take_on(claimed)
        if claimed:
            return 0
        next_ms = worker.activities.next_available_ms(worker.queues)
        # What is there and could not be claimed waits for a slot, or for a worker that knows it.
        return max(next_ms, self._now_ms() + 100)

    def _schedules(self) -> int:
        schedules = self._worker.schedules
        for execution_id in schedules.fire_due(self._now_ms(), PAGE):
            self._worker.engine.look(execution_id)
        due_ms = schedules.next_due_ms()
        return NEVER_MS if due_ms is None else due_ms

    def _sweep(self) -> None:
        """Find what a crash has left halfway, and what another process has cancelled."""
        overdue = Sort(Range.AT_MOST, self._now_ms() - GRACE_MS)
        page = self._store.query(
            Query(table=EXECUTIONS, index="ready-index", partition=UNDISPATCHED, sort=overdue, limit=PAGE)
        )
        for item in page.items:
            self._worker.engine.look(item["execution_id"])
        self._worker.bus.sweep()
        self._worker.adopt()
        self._worker.unwanted.look()

    def _deadlines(self) -> int:
        """End what no worker has and whose time is up."""
        activities = self._worker.activities
        if activities.next_deadline_ms() <= self._now_ms():
            for activity, kind in activities.overdue():
                message = f"{kind.value} of {activity.name} has passed"
                try:
                    self._worker.time_out(activity, ErrorInfo(type="TimeoutError", message=message), kind)
                except StaleClaimError:
                    continue
        next_ms = activities.next_deadline_ms()
        # One that has passed and is still there is being heard, or someone else's.
        return max(next_ms, self._now_ms() + 100)

    def _is_ours(self, item: Item, since_ms: int) -> bool:
        execution_id: str = item["execution_id"]
        return self._worker.fleet.owns(execution_id) or self._now_ms() - since_ms > GRACE_MS

    def _now_ms(self) -> int:
        return int(self._clock.seconds() * 1000)


def fired(timer: Timer) -> Source:
    """Return what an execution hears when a timer is due."""
    event = TimerFired(timer.seq) if timer.event is None else load_event(timer.event)
    return Source(event, timer.fired(), timer.run)
