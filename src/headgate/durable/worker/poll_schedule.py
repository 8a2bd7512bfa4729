"""Poll schedule: when a worker polls the store next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headgate.clock import Clock
from headgate.durable.model.records import NEVER_MS
from headgate.durable.model.worker_limits import DEFAULT_LIMITS
from headgate.durable.worker.claims import HeldClaims
from headgate.durable.worker.slots import Slots

RENEW: Final = "renew"
LOOK: Final = "look for other workers"
SWEEP: Final = "sweep"
ARCHIVE: Final = "archive"
DECLARED: Final = "declared"
UNDECLARED: Final = "undeclared"
SWEEP_SECONDS: Final = 2.0
ARCHIVE_SECONDS: Final = 60.0
DECLARED_SECONDS: Final = 60.0
UNDECLARED_SECONDS: Final = 300.0


class PollSchedule:
    """The due times of one worker. Any thread may bring the next poll forward; the polling thread does the rest."""

    def __init__(
        self, clock: Clock, claims: HeldClaims, slots: Slots, idle_seconds: float = DEFAULT_LIMITS.poll_seconds
    ) -> None:
        """An idle worker polls every `idle_seconds`, which makes up for any lost notification."""
        self._clock = clock
        self._claims = claims
        self._slots = slots
        self._idle_seconds = idle_seconds
        self._next_due_ms = 0
        self._is_stale = True
        self._idle_until = 0.0
        self._is_claim_rejected = False
        self._due_at = {RENEW: 0.0, LOOK: 0.0, SWEEP: 0.0, ARCHIVE: 0.0, DECLARED: 0.0, UNDECLARED: 0.0}

    # From any thread.

    def poll_soon(self) -> None:
        """Have the next poll made at once: rows were stored that only a poll finds."""
        self._next_due_ms = 0
        self._is_stale = True

    def renew_soon(self) -> None:
        """Have the lease renewed with the next poll, at once."""
        self._due_at[RENEW] = 0.0
        self._is_stale = True

    def on_claim_rejected(self) -> None:
        """Poll for activities as soon as there is room: one was left in its queue."""
        self._is_claim_rejected = True

    def on_timers_scheduled(self, due_ms: Sequence[int]) -> None:
        """Poll when the first of these new timers is due."""
        self._next_due_ms = min(self._next_due_ms, *due_ms)
        self._is_stale = True

    # For the polling thread.

    def begin_poll(self) -> None:
        """Forget the due times found by the previous poll."""
        self._next_due_ms = NEVER_MS
        self._idle_until = self._clock.monotonic() + self._idle_seconds

    def end_poll(self, next_due_ms: int) -> None:
        """Set the due time that a poll found. An earlier one that was reported meanwhile stays."""
        self._next_due_ms = min(self._next_due_ms, next_due_ms)

    def set_claim_rejected(self, *, is_rejected: bool) -> None:
        """Set whether activities wait in their queue for room in this worker."""
        self._is_claim_rejected = is_rejected

    def take(self, task: str, interval_seconds: float) -> bool:
        """Whether a task is due now; if so, it is due again after the interval."""
        now = self._clock.monotonic()
        if now < self._due_at[task]:
            return False
        self._due_at[task] = now + interval_seconds
        return True

    @property
    def next_due_ms(self) -> int:
        """When the next known work is due."""
        return min(self._next_due_ms, self._claims.next_due_ms(self._now_ms()))

    def seconds_left(self) -> float:
        """Return the seconds until the next poll is due."""
        if self._is_claim_rejected and self._claims.room() > 0:
            return 0.0
        if self._slots.is_lacking and self._slots.is_freed():
            return 0.0
        work_seconds = (self.next_due_ms - self._now_ms()) / 1000
        due_at = min(self._due_at[RENEW], self._due_at[SWEEP], self._idle_until)
        maintenance_seconds = due_at - self._clock.monotonic()
        return max(0.0, min(work_seconds, maintenance_seconds))

    def plan_wait(self) -> float:
        """Return `seconds_left` for a thread that waits so long; `may_be_due_in` tells if it may have changed."""
        # Reset first: a change in this moment counts as one.
        self._is_stale = False
        return self.seconds_left()

    def may_be_due_in(self, seconds: float) -> bool:
        """Whether work may be due within so many seconds, which are left of the time that `plan_wait` returned.

        Cheaper than `seconds_left`: it is asked after every activity.
        """
        claims = self._claims
        return (
            self._is_stale
            or self._is_claim_rejected
            or self._slots.is_lacking
            or bool((claims.running or claims.queue) and claims.may_be_due_in(seconds))
        )

    def _now_ms(self) -> int:
        return int(self._clock.seconds() * 1000)
