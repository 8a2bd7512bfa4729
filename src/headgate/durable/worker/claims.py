"""Held claims: the activities that this worker has claimed, from the claim until their result is stored."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from headgate.clock import Clock
from headgate.durable.engine.activity_store import AttemptResult, wait_deadline
from headgate.durable.model.records import NEVER_MS, Activity
from headgate.durable.worker.executor import RunningAttempt
from headgate.durable.worker.prefetch import Prefetch

RUNNING_MAX: Final = 1_000


class _TokenHold(Struct):
    """A block that uses a claim. A structure, because every activity passes through one."""

    tokens: set[str]
    token: str

    def __enter__(self) -> None:
        self.tokens.add(self.token)

    def __exit__(self, *raised: object) -> None:
        self.tokens.discard(self.token)


class HeldClaims:
    """The claims of one worker: reserved by a turn, queued for a thread, running, or with a result to store.

    The queue and the table of running attempts are safe to use from many threads: every operation on them is one step
    of the interpreter, and readers copy first.
    """

    def __init__(self, clock: Clock, *, threads: int = 1) -> None:
        self.queue: deque[Activity] = deque()
        self.running: dict[str, RunningAttempt] = {}
        # Results that the store has not accepted yet.
        self.unrecorded: deque[tuple[Activity, AttemptResult | None]] = deque()
        self.threads = threads
        self.prefetch = Prefetch(clock)
        self._reserved = 0
        self._reserved_tokens: list[str] = []
        self._tokens_in_use: set[str] = set()
        # The first deadline of a queued claim, or an earlier time.
        self._queue_deadline_ms = NEVER_MS

    # Claims of a turn, before it is committed.

    def reserve(self, claim: Activity) -> Activity:
        """Count a claim of the current turn, and return it."""
        self._reserved += 1
        self._reserved_tokens.append(claim.token)
        return claim

    def unreserve(self, count: int) -> None:
        """Free the room of claims that were not committed."""
        self._reserved -= count

    def begin_turn(self) -> None:
        """Start a turn without reservations."""
        self._reserved = 0

    def end_turn(self) -> None:
        """Drop the reservations: the claims of the turn are queued, or were not committed."""
        self._reserved = 0
        self._reserved_tokens.clear()

    # Claims that wait for a thread.

    def room(self) -> int:
        """Return how many more activities this worker should claim."""
        room = self.prefetch.room(len(self.queue) + self._reserved, self.threads)
        return max(0, min(room, RUNNING_MAX - len(self.running)))

    def enqueue(self, claims: Sequence[Activity]) -> None:
        """Queue committed claims for a thread."""
        if not self.queue:
            self.prefetch.on_progress()
        self.queue.extend(claims)

    def unqueue(self, activity: Activity) -> bool:
        """Remove a claim from the queue. False if a thread has just started it."""
        try:
            self.queue.remove(activity)
        except ValueError:
            return False
        return True

    def in_use(self, activity: Activity) -> _TokenHold:
        """Mark a claim as used by this process within a block, however long the store takes."""
        return _TokenHold(self._tokens_in_use, activity.token)

    # Claims that run.

    def hung_count(self) -> int:
        """Return how many attempts were abandoned and still occupy their thread."""
        return sum(running.is_abandoned for running in list(self.running.values()))

    def abandon_all(self) -> None:
        """Drop every claim: another worker owns them now."""
        self.queue.clear()
        for running in list(self.running.values()):
            running.abandon()

    # Deadlines.

    def watch_deadlines(self, claims: Sequence[Activity]) -> None:
        """Include claims that were just queued in `next_due_ms`."""
        for activity in claims:
            self._queue_deadline_ms = min(self._queue_deadline_ms, wait_deadline(activity)[0])

    def reset_queue_deadline(self) -> None:
        """Forget the first deadline of the queue; `lower_queue_deadline` sets it anew."""
        self._queue_deadline_ms = NEVER_MS

    def lower_queue_deadline(self, deadline_ms: int) -> None:
        """Set the first deadline of the queue, unless a claim that was queued meanwhile has an earlier one."""
        self._queue_deadline_ms = min(self._queue_deadline_ms, deadline_ms)

    def next_due_ms(self, now_ms: int) -> int:
        """Return when a deadline passes or a queued claim becomes surplus; `NEVER_MS` if neither is ahead."""
        # An abandoned attempt has no deadline any more, however long it occupies its thread.
        running = [
            each.deadline_ms
            for each in list(self.running.values())
            if each.timeout is not None and not each.is_abandoned
        ]
        surplus_seconds = self.prefetch.seconds_left(len(self.queue), self.threads)
        surplus_ms = NEVER_MS if surplus_seconds is None else now_ms + int(1000 * surplus_seconds)
        return min([self._queue_deadline_ms, surplus_ms, *running])

    def known_tokens(self) -> set[str]:
        """Return the token of every claim that this process holds, in whatever stage."""
        # In the order in which a claim passes the stages, each copied at once: other threads move it on meanwhile.
        known = set(self._reserved_tokens)
        known.update(activity.token for activity in list(self.queue))
        known.update(running.activity.token for running in list(self.running.values()))
        known.update(list(self._tokens_in_use))
        known.update(activity.token for activity, _ in list(self.unrecorded))
        return known
