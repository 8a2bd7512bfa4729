"""Slots: decides which slots of a schedule start an execution. Pure: the time and the open executions are arguments.

Every slot gets one decision, in order: an execution with an id derived from the slot, or the reason to skip it.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from headgate.durable.schedules import cron
from headgate.durable.schedules.cron import Recurrence, slot_text

# A slot that is decided this soon after its time is on time, and not a catch-up.
ON_TIME_MS: Final = 60_000
# Limits of one transaction. A schedule that is further behind is due again at once.
SLOTS_MAX: Final = 1000
STARTS_MAX: Final = 8
# How often to check whether the execution that a buffered slot or a backfill waits for has ended.
POLL_MS: Final = 2_000
# How many open executions a schedule tracks. All of them can be ended in one transaction.
OPEN_MAX: Final = 30


class Overlap(enum.StrEnum):
    """What a slot does while an execution of the schedule is still open."""

    # Skip the slot.
    SKIP = "skip"
    # Start it when nothing is open any more; one slot waits, and further ones are skipped.
    BUFFER_ONE = "buffer_one"
    # Start it in parallel.
    ALLOW = "allow"
    # Cancel (or terminate) the open execution, and start at once.
    CANCEL_OTHER = "cancel_other"
    TERMINATE_OTHER = "terminate_other"


class CatchUp(enum.StrEnum):
    """What happens to slots that were missed because no worker was running."""

    NONE = "none"
    # Start the newest missed slot.
    LAST = "last"
    ALL = "all"


class Skipped(enum.StrEnum):
    """Why a slot was skipped."""

    PAUSED = "paused"
    # It was missed, and the schedule does not catch up.
    LATE = "late"
    # It was missed by more than the catch-up window.
    TOO_OLD = "too_old"
    # It was missed, and a newer slot was started instead.
    SUPERSEDED = "superseded"
    # An execution was still open.
    OVERLAP = "overlap"
    # An execution was still open, and another slot waits for its end already.
    BUFFER_FULL = "buffer_full"


class Spec(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The user's definition of a schedule. `input` is JSON text."""

    workflow: str
    recurrence: Recurrence
    input: str = "null"
    overlap: Overlap = Overlap.SKIP
    catchup: CatchUp = CatchUp.LAST
    # Slots that were missed by more are skipped, whatever `catchup` is.
    catchup_window_seconds: int = 7 * 86_400
    tags: dict[str, str] = {}
    timeout_seconds: float | None = None
    retention_seconds: float | None = None


class Fire(Struct, frozen=True, omit_defaults=True):
    """The decision on a slot, or a triggered start, whose slot is the time of the request."""

    slot: str
    at_ms: int
    execution_id: str | None = None
    skipped: Skipped | None = None
    # The open execution that caused the skip.
    blocked_by: str | None = None
    by_hand: bool = False


class Backfill(Struct, frozen=True, omit_defaults=True):
    """Past slots to be started as well: later than `done_through_ms`, before `until_ms`.

    All of them are decided already: the schedule itself starts later slots.
    """

    since_ms: int
    until_ms: int
    done_through_ms: int
    # Each slot waits until nothing of the schedule is open; otherwise they start in parallel.
    one_by_one: bool = True


class Schedule(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A schedule of a workflow.

    Every change of the row increments `version`; only a change by a user increments `revision`.
    """

    schedule_id: str
    spec: Spec
    created_at_ms: int
    # All slots up to here are decided. It never moves back, so that a clock that does fires nothing twice.
    judged_through_ms: int
    # Without defaults: a default is not stored, and a condition could not compare with it.
    version: int
    revision: int
    paused: bool = False
    reason: str = ""
    # The last decisions, newest last, and the counts of due slots.
    fires: tuple[Fire, ...] = ()
    started_count: int = 0
    skipped_count: int = 0
    # The newest executions that were started and are not known to be closed.
    open_ids: tuple[str, ...] = ()
    # The buffered slot, which waits until nothing is open.
    buffered_ms: int | None = None
    backfills: tuple[Backfill, ...] = ()
    # The app whose code declares it, and the digests of that declaration and of earlier ones.
    declared_by: str = ""
    declared_digest: str = ""
    superseded: tuple[str, ...] = ()


class Start(Struct, frozen=True):
    """An execution to start for a slot. `is_due` is False for a backfill."""

    slot_ms: int
    execution_id: str
    is_due: bool = True


class Skip(Struct, frozen=True):
    """A slot to skip."""

    slot_ms: int
    reason: Skipped
    blocked_by: str | None = None


class Decision(Struct, frozen=True):
    """The changes of one schedule, committed together."""

    starts: tuple[Start, ...]
    skips: tuple[Skip, ...]
    # Executions to cancel or terminate, by the overlap policy.
    ends: tuple[str, ...]
    open_ids: tuple[str, ...]
    buffered_ms: int | None
    backfills: tuple[Backfill, ...]
    judged_through_ms: int
    # When to decide again; None if not before a change.
    due_at_ms: int | None


def execution_id(schedule_id: str, slot_ms: int) -> str:
    """Return the id of the execution of a slot, which makes its start idempotent."""
    return f"{schedule_id}/{slot_of(slot_ms)}"


def slot_of(ms: int) -> str:
    """Return a slot as text."""
    return slot_text(moment(ms))


def decide(schedule: Schedule, now_ms: int, running: Sequence[str]) -> Decision:
    """Return the decision on every due slot. `running` are the executions of `open_ids` that are still open.

    Raises `InvalidScheduleError` if the recurrence is not valid.
    """
    slots, has_more = _due_slots(schedule, now_ms)
    decider = _Decider(schedule, now_ms, running)
    if schedule.paused:
        decider.skip_buffered(Skipped.PAUSED)
    else:
        decider.start_buffered()
    for place, slot_ms in enumerate(slots):
        if not decider.decide(slot_ms, is_newest=place == len(slots) - 1 and not has_more):
            break
    decider.advance_backfill()
    return decider.decision()


def due_at_ms(schedule: Schedule, now_ms: int, running: Sequence[str] = ()) -> int | None:
    """Return when to call `decide` again; None if not before a change of the schedule."""
    waits = []
    if schedule.backfills:
        waits.append(now_ms + POLL_MS if running and schedule.backfills[0].one_by_one else now_ms)
    if not schedule.paused:
        if schedule.buffered_ms is not None:
            waits.append(now_ms + POLL_MS)
        after = moment(schedule.judged_through_ms)
        waits.extend(_due_ms(schedule, slot) for slot in cron.next_times(schedule.spec.recurrence, after, 1))
    return min(waits, default=None)


def moment(ms: int) -> datetime:
    """Return milliseconds since 1970 as a UTC datetime."""
    return datetime.fromtimestamp(ms // 1000, UTC).replace(microsecond=ms % 1000 * 1000)


def milliseconds(at: datetime) -> int:
    """Return a datetime as milliseconds since 1970."""
    return int(at.replace(microsecond=0).timestamp()) * 1000 + at.microsecond // 1000


def _due_ms(schedule: Schedule, slot: datetime) -> int:
    return milliseconds(slot) + cron.jitter_ms(schedule.spec.recurrence, schedule.schedule_id, slot)


def _due_slots(schedule: Schedule, now_ms: int) -> tuple[list[int], bool]:
    """Return the due slots, oldest first, and whether there are more than one decision takes."""
    after, now = moment(schedule.judged_through_ms), moment(now_ms)
    slots = cron.times_between(schedule.spec.recurrence, after, now, SLOTS_MAX + 1)
    due: list[int] = []
    for slot in slots:
        # A slot with a long jitter delays those after it: slots are decided in order.
        if not schedule.paused and _due_ms(schedule, slot) > now_ms:
            break
        due.append(milliseconds(slot))
    return due[:SLOTS_MAX], len(due) > SLOTS_MAX


class _Decider:
    """Decides slots one after the other; each decision includes the effects of those before it."""

    def __init__(self, schedule: Schedule, now_ms: int, running: Sequence[str]) -> None:
        self._schedule = schedule
        self._spec = schedule.spec
        self._now_ms = now_ms
        self._running = tuple(running)
        self._open = list(running)
        self._starts: list[Start] = []
        self._skips: list[Skip] = []
        self._ends: list[str] = []
        self._buffered_ms = schedule.buffered_ms
        self._backfills = schedule.backfills
        self._judged_through_ms = schedule.judged_through_ms

    def decision(self) -> Decision:
        changed = replace(
            self._schedule,
            judged_through_ms=self._judged_through_ms,
            buffered_ms=self._buffered_ms,
            backfills=self._backfills,
        )
        return Decision(
            starts=tuple(self._starts),
            skips=tuple(self._skips),
            ends=tuple(self._ends),
            open_ids=tuple(self._open[-OPEN_MAX:]),
            buffered_ms=self._buffered_ms,
            backfills=self._backfills,
            judged_through_ms=self._judged_through_ms,
            due_at_ms=due_at_ms(changed, self._now_ms, self._running),
        )

    def start_buffered(self) -> None:
        """Start the buffered slot, if nothing is open."""
        if self._buffered_ms is not None and (not self._open or self._spec.overlap is Overlap.ALLOW):
            self._start(self._buffered_ms)
            self._buffered_ms = None

    def skip_buffered(self, reason: Skipped) -> None:
        if self._buffered_ms is not None:
            self._skips.append(Skip(self._buffered_ms, reason))
            self._buffered_ms = None

    def decide(self, slot_ms: int, *, is_newest: bool) -> bool:
        """Decide a slot. False if this decision has no room for another start; the slot stays due."""
        if len(self._starts) == STARTS_MAX:
            return False
        reason = self._missed(slot_ms, is_newest=is_newest)
        if reason is not None:
            self._skips.append(Skip(slot_ms, reason))
        else:
            self._place(slot_ms, is_newest=is_newest)
        self._judged_through_ms = slot_ms
        return True

    def advance_backfill(self) -> None:
        """Start the next slots of the oldest backfill, while there is room."""
        room = STARTS_MAX - len(self._starts)
        # An execution that is being ended may belong to a slot of the backfill: not in one transaction.
        if not self._backfills or not room or self._ends:
            return
        backfill = self._backfills[0]
        if backfill.one_by_one and self._open:
            return
        after, last = moment(backfill.done_through_ms), moment(backfill.until_ms - 1)
        slots = cron.times_between(self._spec.recurrence, after, last, 1 if backfill.one_by_one else room)
        for slot in slots:
            self._start(milliseconds(slot), is_due=False)
        if not slots:
            self._backfills = self._backfills[1:]
            return
        done = Backfill(backfill.since_ms, backfill.until_ms, milliseconds(slots[-1]), backfill.one_by_one)
        self._backfills = (done, *self._backfills[1:])

    def _missed(self, slot_ms: int, *, is_newest: bool) -> Skipped | None:
        """Return why a missed slot is skipped; None if it is to be started."""
        if self._schedule.paused:
            return Skipped.PAUSED
        late_ms = self._now_ms - _due_ms(self._schedule, moment(slot_ms))
        if late_ms <= ON_TIME_MS:
            return None
        if self._spec.catchup is CatchUp.NONE:
            return Skipped.LATE
        if late_ms > 1000 * self._spec.catchup_window_seconds:
            return Skipped.TOO_OLD
        if self._spec.catchup is CatchUp.LAST and not is_newest:
            return Skipped.SUPERSEDED
        return None

    def _place(self, slot_ms: int, *, is_newest: bool) -> None:
        """Start a slot, or apply the overlap policy."""
        match self._spec.overlap:
            case Overlap.ALLOW:
                self._start(slot_ms)
            case Overlap.CANCEL_OTHER | Overlap.TERMINATE_OTHER if not is_newest:
                # The next slot would end it before it had done anything.
                self._skips.append(Skip(slot_ms, Skipped.SUPERSEDED))
            case Overlap.CANCEL_OTHER | Overlap.TERMINATE_OTHER:
                # They are cancelled once. A second request would disturb the clean-up.
                self._ends, self._open = list(self._running), self._open[len(self._running) :]
                self._start(slot_ms)
            case _ if not self._open and self._buffered_ms is None:
                self._start(slot_ms)
            case Overlap.BUFFER_ONE if self._buffered_ms is None:
                self._buffered_ms = slot_ms
            case overlap:
                reason = Skipped.BUFFER_FULL if overlap is Overlap.BUFFER_ONE else Skipped.OVERLAP
                self._skips.append(Skip(slot_ms, reason, self._open[-1] if self._open else None))

    def _start(self, slot_ms: int, *, is_due: bool = True) -> None:
        started = execution_id(self._schedule.schedule_id, slot_ms)
        # A backfill may reach a slot that is open, or that this decision starts.
        if is_due or started not in self._open:
            self._starts.append(Start(slot_ms, started, is_due))
        if started not in self._open:
            self._open.append(started)
