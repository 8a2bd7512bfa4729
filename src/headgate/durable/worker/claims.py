"""Claims: the activities that a worker holds until their results are stored, the prefetch limit, and lost claims.

A claim is lost when the store commits it and the answer does not arrive. Each claim is tracked in `HeldClaims` until
its result is stored, because the store may delay a call for longer than the time between two searches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from headgate.clock import Clock
from headgate.durable.engine.activity_store import Activities, AttemptResult, options_of, wait_deadline
from headgate.durable.engine.engine import Engine
from headgate.durable.model.records import NEVER_MS, Activity
from headgate.durable.model.worker_limits import DEFAULT_LIMITS
from headgate.durable.worker.executor import RunningAttempt

# A claim that would wait longer than this for a thread is better left to other workers.
PREFETCH_SECONDS: Final = 1.0


class Prefetch:
    """Decides how many activities to claim ahead, and when to release them to other workers.

    It estimates the wait of a claim from the mean duration of activities, and from the last progress of the queue.
    """

    def __init__(self, clock: Clock, prefetch_max: int = DEFAULT_LIMITS.prefetch_max) -> None:
        self._clock = clock
        self._prefetch_max = prefetch_max
        self._mean_seconds = 0.0
        self._progress_at = clock.monotonic()

    def on_progress(self) -> None:
        """Note that an activity was started, or that an empty queue was filled."""
        self._progress_at = self._clock.monotonic()

    def on_finished(self, seconds: float) -> None:
        """Include the duration of an activity in the mean."""
        self._mean_seconds += 0.1 * (seconds - self._mean_seconds)

    def room(self, queued: int, threads: int) -> int:
        """Return how many more activities to claim."""
        if queued >= threads and self._seconds_left() <= 0:
            return 0
        room = self._prefetch_max - queued
        if self._mean_seconds > 0:
            within_limit = int(PREFETCH_SECONDS * threads / self._mean_seconds) + threads
            room = min(room, within_limit - queued)
        return max(0, room)

    def has_room(self, queued: int, threads: int) -> bool:
        """Whether to claim one more activity."""
        # The next idle thread takes it at once.
        return queued < min(threads, self._prefetch_max) or self.room(queued, threads) > 0

    def surplus(self, queued: int, threads: int) -> int:
        """Return how many queued claims to release: none while the threads make progress."""
        return 0 if self._seconds_left() > 0 else max(0, queued - threads)

    def seconds_left(self, queued: int, threads: int) -> float | None:
        """Return the seconds until there is a surplus if no activity is started; None if there will be none."""
        return max(0.0, self._seconds_left()) if queued > threads else None

    def _seconds_left(self) -> float:
        return self._progress_at + PREFETCH_SECONDS - self._clock.monotonic()


class _TokenHold(Struct):
    """A block that uses a claim."""

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

    def __init__(self, clock: Clock, *, threads: int = 1, prefetch_max: int = DEFAULT_LIMITS.prefetch_max) -> None:
        self.queue: deque[Activity] = deque()
        self.running: dict[str, RunningAttempt] = {}
        # Results that the store has not accepted yet.
        self.unrecorded: deque[tuple[Activity, AttemptResult | None]] = deque()
        self.threads = threads
        self.prefetch = Prefetch(clock, prefetch_max)
        self._reserved = 0
        self._reserved_tokens: list[str] = []
        # Of claims that a thread works on just now; see `in_use`.
        self.tokens_in_use: set[str] = set()
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
        return self.prefetch.room(len(self.queue) + self._reserved, self.threads)

    def has_room(self) -> bool:
        """Whether this worker should claim one more activity."""
        return self.prefetch.has_room(len(self.queue) + self._reserved, self.threads)

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
        return _TokenHold(self.tokens_in_use, activity.token)

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
            options = options_of(activity)
            if options.schedule_to_start is None and options.schedule_to_close is None:
                continue
            deadline_ms = wait_deadline(activity)[0]
            if deadline_ms < self._queue_deadline_ms:
                self._queue_deadline_ms = deadline_ms

    def reset_queue_deadline(self) -> None:
        """Forget the first deadline of the queue; `lower_queue_deadline` sets it anew."""
        self._queue_deadline_ms = NEVER_MS

    def lower_queue_deadline(self, deadline_ms: int) -> None:
        """Set the first deadline of the queue, unless a claim that was queued meanwhile has an earlier one."""
        self._queue_deadline_ms = min(self._queue_deadline_ms, deadline_ms)

    def may_be_due_in(self, seconds: float) -> bool:
        """Whether there is a deadline, or queued claims become surplus within so many seconds."""
        if self._queue_deadline_ms != NEVER_MS:
            return True
        for running in list(self.running.values()):
            if running.timeout is not None:
                return True
        surplus_seconds = self.prefetch.seconds_left(len(self.queue), self.threads)
        return surplus_seconds is not None and surplus_seconds < seconds

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
        known.update(list(self.tokens_in_use))
        known.update(activity.token for activity, _ in list(self.unrecorded))
        return known


class LostClaimFinder:
    """Finds claims under this worker's id that this process does not hold. For the polling thread."""

    def __init__(self, activities: Activities, claims: HeldClaims, engine: Engine) -> None:
        self._activities = activities
        self._claims = claims
        self._engine = engine
        self._suspects: set[str] = set()

    def find(self) -> list[Activity]:
        """Return claims that two searches in a row found lost: one may just have caught a claim between two stages."""
        known = self._claims.known_tokens()
        ending = self._engine.ready.removal_keys()
        claimed = self._activities.held()
        lost = [each for each in claimed if each.token not in known and each.activity_id not in ending]
        confirmed = [each for each in lost if each.token in self._suspects]
        self._suspects = {each.token for each in lost} - {each.token for each in confirmed}
        # The index may lag behind the row, which may have ended.
        rows = self._activities.held_rows(confirmed) if confirmed else []
        return [row for row in rows if row is not None]
