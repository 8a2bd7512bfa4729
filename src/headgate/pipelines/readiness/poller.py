"""Readiness poller: evaluates waiting runs at their interval, and wakes the executions that can go on.

Its queue can be rebuilt: the next evaluation time is in each waiter's row, and an execution that is not woken
evaluates by itself after a time-out.
"""

from __future__ import annotations

import heapq
import math
import threading
from collections.abc import Callable, Sequence
from typing import Final

import structlog
from msgspec import Struct

from headgate.clock import Clock, epoch_ms
from headgate.errors import (
    ConflictError,
    CorruptionError,
    HeadgateError,
    StoreUnavailableError,
    TransientError,
    UserError,
)
from headgate.pipelines.definition.model import Pipeline
from headgate.pipelines.definition_reader import DefinitionReader
from headgate.pipelines.readiness.evaluator import ReadinessEvaluator, ReadinessSnapshot, wake_reason
from headgate.pipelines.readiness.waiters import Waiter, Waiters, WaitKind, waiter_of
from headgate.pipelines.runs.rows import Slot
from headgate.pipelines.runs.store import Runs
from headgate.store.model.requests import Change, Write
from headgate.store.port import Store

# How often all waiters are read again, because another process may have consumed their changes from the stream.
RELOAD_SECONDS: Final = 300.0
# Evaluations in one tick, stored with one commit.
BATCH: Final = 16
_RETRY_MS: Final = 5_000
_PUSHED: Final = "push"
_log = structlog.get_logger(__name__)


class _PendingEvaluation(Struct, frozen=True):
    """An evaluation after which the run waits on, with the writes that store it."""

    waiter: Waiter
    snapshot: ReadinessSnapshot
    writes: Sequence[Write]


class ReadinessPoller:
    """Polls the readiness of waiting runs. `tick` belongs to one thread; the other methods are thread-safe."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        runs: Runs,
        definitions: DefinitionReader,
        waiters: Waiters,
        evaluator: ReadinessEvaluator,
        on_committed: Callable[[], None],
    ) -> None:
        """`on_committed` is called after a tick has committed events."""
        self._store = store
        self._clock = clock
        self._runs = runs
        self._definitions = definitions
        self._waiters = waiters
        self._evaluator = evaluator
        self._on_committed = on_committed
        self._queue = _DueQueue()
        self._reload_at: float | None = None
        self._is_behind = False

    def polls(self, pipeline: Pipeline) -> bool:
        """Whether waiting runs of a pipeline are evaluated here.

        Not before the first tick, not under overload, and not for traits with an evaluator, which the lifecycle runs.
        """
        is_able = self._reload_at is not None and not self._is_behind
        return is_able and all(trait.evaluator == _PUSHED for trait in pipeline.readiness.traits.values())

    def on_change(self, change: Change) -> None:
        """Schedule the next evaluation of a waiter whose row changed."""
        if not is_waiter_row(change):
            return
        waiter = None if change.new is None else waiter_of(change.new)
        if waiter is not None and waiter.kind is WaitKind.CHANGE and waiter.evaluate_at_ms is not None:
            self._queue.plan(waiter.slot, waiter.evaluate_at_ms)

    @property
    def is_behind(self) -> bool:
        """Whether the last tick may have left due evaluations."""
        return self._is_behind

    def seconds_left(self) -> float:
        """Return the seconds until the next known evaluation."""
        if self._reload_at is None:
            return 0.0
        next_at_ms = self._queue.next_at_ms
        return math.inf if next_at_ms is None else max(0.0, (next_at_ms - epoch_ms(self._clock)) / 1000)

    def tick(self) -> int:
        """Evaluate one batch of due waiters, and return its size. The rest stays due."""
        self._reload()
        pending: list[_PendingEvaluation] = []
        evaluated = 0
        due = self._queue.take(epoch_ms(self._clock), BATCH)
        self._is_behind = len(due) == BATCH
        for slot in due:
            try:
                result = self._evaluate(slot)
            except (TransientError, ConflictError) as exc:
                self._reschedule(slot, exc)
                continue
            except CorruptionError as exc:
                # A retry would fail too, and the row must not block the others.
                _log.error("corrupt waiter row skipped", slot=str(slot), error=str(exc))
                continue
            evaluated += 1
            if result is not None:
                pending.append(result)
        self._commit(pending)
        return evaluated

    def _reload(self) -> None:
        """Read all polled waiters, at first and from time to time."""
        now = self._clock.monotonic()
        if self._reload_at is not None and now < self._reload_at:
            return
        for waiter in self._waiters.polled():
            if waiter.evaluate_at_ms is not None:
                self._queue.plan(waiter.slot, waiter.evaluate_at_ms, replace=False)
        self._reload_at = now + RELOAD_SECONDS

    def _evaluate(self, slot: Slot) -> _PendingEvaluation | None:
        """Evaluate a waiting run and wake it if it can go on; otherwise return the evaluation to store."""
        waiter = self._waiters.find(slot, WaitKind.CHANGE)
        if waiter is None or waiter.evaluate_at_ms is None:
            return None
        try:
            return self._evaluate_waiter(waiter, waiter.evaluate_at_ms)
        except (TransientError, ConflictError):
            raise
        except HeadgateError as exc:
            self._hand_back(waiter, exc)
            return None

    def _evaluate_waiter(self, waiter: Waiter, evaluate_at_ms: int) -> _PendingEvaluation | None:
        run = self._runs.get(waiter.run_id)
        interval_ms = 1000 * self._definitions.of_run(run).readiness.interval
        if 0 < evaluate_at_ms - epoch_ms(self._clock) <= interval_ms:
            # Another process has evaluated. A time further ahead was planned before the clock was set back.
            self._queue.plan(waiter.slot, evaluate_at_ms)
            return None
        snapshot = self._evaluator.evaluate(run)
        reason = wake_reason(snapshot, self._evaluator.decide(run, snapshot.verdict))
        if reason:
            # Not stored: the woken execution evaluates again and stores that.
            self._waiters.end(waiter, reason)
            return None
        _, writes = self._evaluator.storage_writes(snapshot, is_polled=True)
        return _PendingEvaluation(
            waiter, snapshot, [*writes, self._waiters.next_poll_write(waiter, snapshot.next_at_ms)]
        )

    def _commit(self, pending: Sequence[_PendingEvaluation]) -> None:
        """Store evaluations, each in its own transaction. One whose waiter has gone on is refused."""
        if not pending:
            return
        try:
            outcomes = self._store.transact_many([each.writes for each in pending])
        except (TransientError, ConflictError) as exc:
            outcomes = [exc] * len(pending)
        except UserError:
            # An evaluation that cannot be stored, for example because of its size, must not fail the others.
            outcomes = [self._commit_one(each.writes) for each in pending]
        for each, error in zip(pending, outcomes, strict=True):
            if error is None:
                self._queue.plan(each.waiter.slot, each.snapshot.next_at_ms)
            elif isinstance(error, (TransientError, ConflictError)):
                self._reschedule(each.waiter.slot, error)
            else:
                self._hand_back(each.waiter, error)
        self._on_committed()

    def _commit_one(self, writes: Sequence[Write]) -> HeadgateError | None:
        try:
            self._store.transact(writes)
        except (UserError, TransientError, ConflictError) as exc:
            return exc
        return None

    def _hand_back(self, waiter: Waiter, error: HeadgateError) -> None:
        """Wake a run that cannot be evaluated here: the lifecycle meets the same error and handles it."""
        _log.warning("readiness evaluation failed", slot=str(waiter.slot), error=str(error))
        try:
            self._waiters.end(waiter, f"the evaluation failed: {error}")
        except (TransientError, ConflictError) as exc:
            self._reschedule(waiter.slot, exc)

    def _reschedule(self, slot: Slot, error: HeadgateError) -> None:
        if not isinstance(error, StoreUnavailableError):
            _log.info("readiness evaluation rescheduled", slot=str(slot), error=str(error))
        self._queue.plan(slot, epoch_ms(self._clock) + _RETRY_MS)


class _DueQueue:
    """Priority queue of slots by due time. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._due: dict[Slot, int] = {}
        self._heap: list[tuple[int, Slot]] = []
        self._now_ms = 0

    @property
    def next_at_ms(self) -> int | None:
        """The earliest due time."""
        with self._lock:
            return self._heap[0][0] if self._heap else None

    def plan(self, slot: Slot, at_ms: int, *, replace: bool = True) -> None:
        """Set the due time of a slot. Without `replace` an existing one stays."""
        with self._lock:
            planned = self._due.get(slot)
            if planned == at_ms or (planned is not None and not replace):
                return
            self._due[slot] = at_ms
            heapq.heappush(self._heap, (at_ms, slot))

    def take(self, now_ms: int, limit: int) -> list[Slot]:
        """Remove and return due slots, the earliest first."""
        with self._lock:
            if now_ms < self._now_ms:
                self._shift(self._now_ms - now_ms)
            self._now_ms = now_ms
            taken: list[Slot] = []
            while self._heap and self._heap[0][0] <= now_ms and len(taken) < limit:
                at_ms, slot = heapq.heappop(self._heap)
                # A different time means that the slot was planned anew.
                if self._due.get(slot) == at_ms:
                    del self._due[slot]
                    taken.append(slot)
            return taken

    def _shift(self, by_ms: int) -> None:
        """Keep the remaining times after the clock was set back."""
        self._due = {slot: at_ms - by_ms for slot, at_ms in self._due.items()}
        self._heap = [(at_ms, slot) for slot, at_ms in self._due.items()]
        heapq.heapify(self._heap)


def is_waiter_row(change: Change) -> bool:
    """Whether a change is of a waiter's row."""
    return str(change.key.sort).startswith("WAIT#")
