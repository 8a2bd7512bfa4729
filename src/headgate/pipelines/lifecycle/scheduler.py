"""Clockwork: begins the periods that are due by the clock, each once, also those that passed while nobody looked."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Final

import structlog
from msgspec import Struct

from headgate.errors import ConflictError, TransientError, UserError
from headgate.pipelines.context import Parts
from headgate.pipelines.definition.model import Pipeline
from headgate.pipelines.enums import Cause
from headgate.pipelines.lifecycle.starter import Starter
from headgate.pipelines.runs.rows import Slot
from headgate.pipelines.schedule.timetables import DueSlot, Timetable, catch_up
from headgate.store.catalogue.tables import CURSOR, PIPELINES

# How far ahead is looked for the next slot: beyond it, the schedule is asked again then.
HORIZON: Final = timedelta(days=2)
AGAIN: Final = timedelta(seconds=5)
_BEGUN: Final = "begun:"
_log = structlog.get_logger(__name__)


class Defined(Struct, frozen=True):
    """A pipeline as it is now: nothing is owed for the time before `since`."""

    pipeline: Pipeline
    version: int
    since: datetime


class _Hand(Struct):
    """A schedule, and when to look at it next."""

    timetable: Timetable
    version: int
    since: datetime
    look_at: datetime


class Clockwork:
    """Knows when each schedule is due next. A tick costs by what is due, not by how many pipelines there are."""

    def __init__(self, parts: Parts, starter: Starter) -> None:
        self._parts = parts
        self._starter = starter
        self._hands: dict[tuple[str, str], _Hand] = {}
        self._heap: list[tuple[datetime, str, str]] = []

    def know(self, defined: Iterable[Defined], timetables: Callable[[Pipeline], list[Timetable]]) -> None:
        """Take over the definitions as they are now; those that are not among them are forgotten."""
        kept: set[tuple[str, str]] = set()
        for each in defined:
            try:
                found = timetables(each.pipeline)
            except UserError as exc:
                # One bad definition stops no other. Whoever put it was told.
                _log.warning("pipeline has no timetable", pipeline_id=each.pipeline.id, error=str(exc))
                continue
            for timetable in found:
                key = (each.pipeline.id, timetable.schedule_id)
                kept.add(key)
                known = self._hands.get(key)
                if known is None or known.version != each.version:
                    now = self._parts.now()
                    self._hands[key] = _Hand(timetable, each.version, each.since, now)
                    heapq.heappush(self._heap, (now, *key))
        for key in self._hands.keys() - kept:
            del self._hands[key]

    @property
    def has_pipelines(self) -> bool:
        """Whether there is any pipeline."""
        return bool(self._hands)

    def seconds_left(self) -> float:
        """Return in how many seconds something may be due."""
        if not self._heap:
            return HORIZON.total_seconds()
        return max(0.0, (self._heap[0][0] - self._parts.now()).total_seconds())

    def tick(self) -> int:
        """Begin what is due, and return how many periods that are."""
        begun = 0
        now = self._parts.now()
        while self._heap and self._heap[0][0] <= now:
            _, pipeline_id, schedule_id = heapq.heappop(self._heap)
            hand = self._hands.get((pipeline_id, schedule_id))
            if hand is None or hand.look_at > now:
                # Gone, or a look that was planned under an earlier definition.
                continue
            try:
                begun += self._begin_due(hand, now)
                hand.look_at = self._next_look(hand, now)
            except (UserError, TransientError, ConflictError) as exc:
                # One schedule that cannot be begun now stops no other.
                _log.warning("schedule not begun", pipeline_id=pipeline_id, schedule_id=schedule_id, error=str(exc))
                hand.look_at = now + AGAIN
            heapq.heappush(self._heap, (hand.look_at, pipeline_id, schedule_id))
        return begun

    def _begin_due(self, hand: _Hand, now: datetime) -> int:
        timetable = hand.timetable
        after = self._begun_through(hand)
        due = [slot for slot in timetable.slots(after, now) if slot.excluded is None]
        if not due:
            return 0
        chosen = catch_up(due, timetable.schedule.catch_up, now)
        for slot in chosen.begin:
            self._starter.pursue(_slot(timetable, slot), Cause.CRON)
        # Only now: who dies before it begins them again, under the same names, which changes nothing.
        self._remember(timetable, due[-1].at)
        return len(chosen.begin)

    def _next_look(self, hand: _Hand, now: datetime) -> datetime:
        following = next(hand.timetable.slots(now, now + HORIZON), None)
        return now + HORIZON if following is None else following.at

    def _begun_through(self, hand: _Hand) -> datetime:
        key = CURSOR.key(pipeline_id=hand.timetable.pipeline.id, schedule_id=_BEGUN + hand.timetable.schedule_id)
        item = self._parts.store.get(PIPELINES, key, consistent=True)
        if item is None:
            return hand.since
        return max(hand.since, datetime.fromisoformat(item["through"]))

    def _remember(self, timetable: Timetable, through: datetime) -> None:
        key = CURSOR.key(pipeline_id=timetable.pipeline.id, schedule_id=_BEGUN + timetable.schedule_id)
        item = {**PIPELINES.key_attributes(key), "through": through.isoformat()}
        self._parts.store.put(PIPELINES, item)


def _slot(timetable: Timetable, due: DueSlot) -> Slot:
    return Slot(timetable.pipeline.id, due.schedule_id, due.date)
