"""The lookout: looks by the clock at what runs wait for, in place of their executions, and wakes those that may go on.

Nothing is lost with it: when to look next is in the row of whoever waits, and who is not woken looks by itself in time.
"""

from __future__ import annotations

import heapq
import math
import threading
from collections.abc import Callable, Sequence
from typing import Final

import structlog
from msgspec import Struct

from headgate.errors import ConflictError, CorruptionError, HeadgateError, TransientError, UserError
from headgate.pipelines.context import Parts
from headgate.pipelines.definition.model import Pipeline
from headgate.pipelines.readiness.evaluator import Look, Looking, why_wake
from headgate.pipelines.readiness.waiters import Waiter, Waiters, WaitKind, waiter_of
from headgate.pipelines.runs.rows import Slot
from headgate.store.model.requests import Change, Write

# How often everyone who waits is read, for what the stream did not tell here: another process may have heard it.
LEARN_SECONDS: Final = 300.0
# So few at a time, with one commit, that nobody else has to wait long for their turn.
BATCH: Final = 16
_AGAIN_MS: Final = 5_000
_PUSHED: Final = "push"
_log = structlog.get_logger(__name__)


class _Kept(Struct, frozen=True):
    """A look that changes nothing, and the writes that keep it."""

    waiter: Waiter
    look: Look
    writes: Sequence[Write]


class Lookout:
    """Knows when to look at what each run waits for. `tick` is for one thread; everything else is for any."""

    def __init__(self, parts: Parts, waiters: Waiters, looking: Looking, told: Callable[[], None]) -> None:
        """Take `told`, which is called after events were told."""
        self._parts = parts
        self._waiters = waiters
        self._looking = looking
        self._told = told
        self._agenda = _Agenda()
        self._learn_at: float | None = None
        self._is_behind = False

    def watches(self, pipeline: Pipeline) -> bool:
        """Whether runs of a pipeline are looked at from here while they wait.

        Not before the first tick nor while there is too much to look at, nor where traits have to be evaluated, which
        is the lifecycle's to do.
        """
        is_able = self._learn_at is not None and not self._is_behind
        return is_able and all(trait.evaluator == _PUSHED for trait in pipeline.readiness.traits.values())

    def hear(self, change: Change) -> None:
        """Take note of who waits, if a change is about that."""
        if not is_of_waiter(change):
            return
        waiter = None if change.new is None else waiter_of(change.new)
        if waiter is not None and waiter.kind is WaitKind.CHANGE and waiter.look_at_ms is not None:
            self._agenda.plan(waiter.slot, waiter.look_at_ms)

    @property
    def is_behind(self) -> bool:
        """Whether the last tick may have left something that was due."""
        return self._is_behind

    def seconds_left(self) -> float:
        """Return in how many seconds there may be something to look at, as far as is known."""
        if self._learn_at is None:
            return 0.0
        next_at_ms = self._agenda.next_at_ms
        return math.inf if next_at_ms is None else max(0.0, (next_at_ms - self._parts.now_ms()) / 1000)

    def tick(self) -> int:
        """Look at some of what is due, and return how many looks that were. What is left is due at once."""
        self._learn()
        kept: list[_Kept] = []
        looks = 0
        due = self._agenda.take(self._parts.now_ms(), BATCH)
        self._is_behind = len(due) == BATCH
        for slot in due:
            try:
                looked = self._look(slot)
            except (TransientError, ConflictError) as exc:
                self._put_off(slot, exc)
                continue
            except CorruptionError as exc:
                # It will not make sense the next time either, and must not hold up the others.
                _log.error("waiter passed over", slot=str(slot), error=str(exc))
                continue
            looks += 1
            if looked is not None:
                kept.append(looked)
        self._keep(kept)
        return looks

    def _learn(self) -> None:
        """Read who waits, at first and from time to time."""
        now = self._parts.clock.monotonic()
        if self._learn_at is not None and now < self._learn_at:
            return
        for waiter in self._waiters.watched():
            if waiter.look_at_ms is not None:
                self._agenda.plan(waiter.slot, waiter.look_at_ms, is_news=False)
        self._learn_at = now + LEARN_SECONDS

    def _look(self, slot: Slot) -> _Kept | None:
        """Look, and wake who waits if it would go on. Otherwise return what is to be kept of the look."""
        waiter = self._waiters.find(slot, WaitKind.CHANGE)
        if waiter is None or waiter.look_at_ms is None:
            return None
        try:
            return self._look_for(waiter, waiter.look_at_ms)
        except (TransientError, ConflictError):
            raise
        except HeadgateError as exc:
            self._leave(waiter, exc)
            return None

    def _look_for(self, waiter: Waiter, look_at_ms: int) -> _Kept | None:
        run = self._parts.runs.get(waiter.run_id)
        interval_ms = 1000 * self._parts.pipeline_of(run).readiness.interval
        if 0 < look_at_ms - self._parts.now_ms() <= interval_ms:
            # Another has looked. What lies further ahead was planned before the clock was set back.
            self._agenda.plan(waiter.slot, look_at_ms)
            return None
        look = self._looking.look(run)
        why = why_wake(look, self._looking.decide(run, look.verdict))
        if why:
            # Not kept: whoever is woken looks again, and keeps that.
            self._waiters.end(waiter, why)
            return None
        _, writes = self._looking.kept(look, is_watched=True)
        return _Kept(waiter, look, [*writes, self._waiters.looked(waiter, look.next_at_ms)])

    def _keep(self, kept: Sequence[_Kept]) -> None:
        """Keep looks, each in a transaction of its own, unless whoever waited for it has gone on meanwhile."""
        if not kept:
            return
        try:
            outcomes = self._parts.store.transact_many([each.writes for each in kept])
        except (TransientError, ConflictError) as exc:
            outcomes = [exc] * len(kept)
        except UserError:
            # One that cannot be kept, too large say, must not take the others with it.
            outcomes = [self._keep_alone(each.writes) for each in kept]
        for each, refusal in zip(kept, outcomes, strict=True):
            if refusal is None:
                self._agenda.plan(each.waiter.slot, each.look.next_at_ms)
            elif isinstance(refusal, (TransientError, ConflictError)):
                self._put_off(each.waiter.slot, refusal)
            else:
                self._leave(each.waiter, refusal)
        self._told()

    def _keep_alone(self, writes: Sequence[Write]) -> HeadgateError | None:
        try:
            self._parts.store.transact(writes)
        except (UserError, TransientError, ConflictError) as exc:
            return exc
        return None

    def _leave(self, waiter: Waiter, why: HeadgateError) -> None:
        """Leave a look that cannot be made to the lifecycle: it meets the same, and knows what follows from it."""
        _log.warning("look failed", slot=str(waiter.slot), error=str(why))
        try:
            self._waiters.end(waiter, f"it cannot be looked at: {why}")
        except (TransientError, ConflictError) as exc:
            self._put_off(waiter.slot, exc)

    def _put_off(self, slot: Slot, why: HeadgateError) -> None:
        _log.info("look put off", slot=str(slot), error=str(why))
        self._agenda.plan(slot, self._parts.now_ms() + _AGAIN_MS)


class _Agenda:
    """When to look at what. Safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._due: dict[Slot, int] = {}
        self._heap: list[tuple[int, Slot]] = []
        self._now_ms = 0

    @property
    def next_at_ms(self) -> int | None:
        """When something may be due."""
        with self._lock:
            return self._heap[0][0] if self._heap else None

    def plan(self, slot: Slot, at_ms: int, *, is_news: bool = True) -> None:
        """Have a look due at a time, and at no other. What is no news changes nothing that is planned."""
        with self._lock:
            planned = self._due.get(slot)
            if planned == at_ms or (planned is not None and not is_news):
                return
            self._due[slot] = at_ms
            heapq.heappush(self._heap, (at_ms, slot))

    def take(self, now_ms: int, limit: int) -> list[Slot]:
        """Return some of what is due, the earliest first; it is planned no more."""
        with self._lock:
            if now_ms < self._now_ms:
                self._set_back(self._now_ms - now_ms)
            self._now_ms = now_ms
            taken: list[Slot] = []
            while self._heap and self._heap[0][0] <= now_ms and len(taken) < limit:
                at_ms, slot = heapq.heappop(self._heap)
                # Else it was planned anew.
                if self._due.get(slot) == at_ms:
                    del self._due[slot]
                    taken.append(slot)
            return taken

    def _set_back(self, by_ms: int) -> None:
        """Have everything as far ahead as it was, although the clock was set back."""
        self._due = {slot: at_ms - by_ms for slot, at_ms in self._due.items()}
        self._heap = [(at_ms, slot) for slot, at_ms in self._due.items()]
        heapq.heapify(self._heap)


def is_of_waiter(change: Change) -> bool:
    """Whether a change is about someone who waits."""
    return str(change.key.sort).startswith("WAIT#")
