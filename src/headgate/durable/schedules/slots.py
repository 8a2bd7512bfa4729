"""Slots: what becomes of each moment that a schedule names. Pure: the time and what is running are passed in.

Every slot gets one verdict, in order: an execution of an id that is derived from the slot, or a reason why not.
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

# A slot that is judged this soon after its time is on time, and no matter of catching up.
ON_TIME_MS: Final = 60_000
# How much one transaction judges. Whoever is further behind is due again at once.
SLOTS_MAX: Final = 1000
STARTS_MAX: Final = 8
# How often to look whether what a buffered slot or a backfill waits for has ended.
POLL_MS: Final = 2_000
# How many executions a schedule keeps an eye on. All of them can be ended in one transaction.
OPEN_MAX: Final = 30


class Overlap(enum.StrEnum):
    """What to do when a slot comes while an execution of the schedule is still open."""

    # Leave the slot out.
    SKIP = "skip"
    # Start it when nothing is open any more; one slot waits, and further ones are left out.
    BUFFER_ONE = "buffer_one"
    # Start it besides.
    ALLOW = "allow"
    # Ask what is open to end (terminate: end it), and start at once.
    CANCEL_OTHER = "cancel_other"
    TERMINATE_OTHER = "terminate_other"


class CatchUp(enum.StrEnum):
    """What to do about slots that nobody was there to start in time."""

    NONE = "none"
    # Start the newest one.
    LAST = "last"
    ALL = "all"


class Skipped(enum.StrEnum):
    """Why a slot started nothing."""

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
    """What a user says about a schedule. `input` is JSON text."""

    workflow: str
    recurrence: Recurrence
    input: str = "null"
    overlap: Overlap = Overlap.SKIP
    catchup: CatchUp = CatchUp.LAST
    # Slots that were missed by more are left out, whatever `catchup` says.
    catchup_window_seconds: int = 7 * 86_400
    tags: dict[str, str] = {}
    timeout_seconds: float | None = None
    retention_seconds: float | None = None


class Fire(Struct, frozen=True, omit_defaults=True):
    """What became of a slot, or of a start by hand, whose slot is the moment it was asked for."""

    slot: str
    at_ms: int
    execution_id: str | None = None
    skipped: Skipped | None = None
    # The open execution because of which it was skipped.
    blocked_by: str | None = None
    by_hand: bool = False


class Backfill(Struct, frozen=True, omit_defaults=True):
    """Slots of a past time that are to be started as well: later than `done_through_ms`, before `until_ms`.

    It lies in the time that the schedule has judged: what comes later, the schedule starts itself.
    """

    since_ms: int
    until_ms: int
    done_through_ms: int
    # Each waits until nothing of the schedule is open; otherwise they start side by side.
    one_by_one: bool = True


class Schedule(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A workflow that is started again and again.

    Every change of the row moves `version`; `revision` moves only when a user changes the schedule.
    """

    schedule_id: str
    spec: Spec
    created_at_ms: int
    # Every slot up to here has its verdict. It never moves back, so that a clock that does fires nothing twice.
    judged_through_ms: int
    # Neither has a default: what is at its default is not stored, and could not be compared with.
    version: int
    revision: int
    paused: bool = False
    reason: str = ""
    # The last verdicts, newest last, and how many there were of slots that were due.
    fires: tuple[Fire, ...] = ()
    started_count: int = 0
    skipped_count: int = 0
    # The newest executions that were started and not seen ended.
    open_ids: tuple[str, ...] = ()
    # The slot that waits until nothing is open.
    buffered_ms: int | None = None
    backfills: tuple[Backfill, ...] = ()


class Start(Struct, frozen=True):
    """An execution that is to be started for a slot. `is_due`: not by a backfill."""

    slot_ms: int
    execution_id: str
    is_due: bool = True


class Skip(Struct, frozen=True):
    """A slot that is to start nothing."""

    slot_ms: int
    reason: Skipped
    blocked_by: str | None = None


class Decision(Struct, frozen=True):
    """What is to be done for a schedule now, all of it or nothing."""

    starts: tuple[Start, ...]
    skips: tuple[Skip, ...]
    # Executions that are to be asked to end, or ended, by the schedule's overlap policy.
    ends: tuple[str, ...]
    open_ids: tuple[str, ...]
    buffered_ms: int | None
    backfills: tuple[Backfill, ...]
    judged_through_ms: int
    # When to look again; None: never, by itself.
    due_at_ms: int | None


def execution_id(schedule_id: str, slot_ms: int) -> str:
    """Return the id of the execution of a slot: whoever starts it, and however often, it is one."""
    return f"{schedule_id}/{slot_of(slot_ms)}"


def slot_of(ms: int) -> str:
    """Return a slot as ids and people have it."""
    return slot_text(moment(ms))


def decide(schedule: Schedule, now_ms: int, running: Sequence[str]) -> Decision:
    """Return what to do now about every slot that is due. `running` are the executions of `open_ids` still open.

    Raises `InvalidScheduleError` if the recurrence cannot be read.
    """
    slots, has_more = _due_slots(schedule, now_ms)
    bench = _Bench(schedule, now_ms, running)
    if schedule.paused:
        bench.skip_buffered(Skipped.PAUSED)
    else:
        bench.start_buffered()
    for place, slot_ms in enumerate(slots):
        if not bench.judge(slot_ms, is_newest=place == len(slots) - 1 and not has_more):
            break
    bench.advance_backfill()
    return bench.decision()


def due_at_ms(schedule: Schedule, now_ms: int, running: Sequence[str] = ()) -> int | None:
    """Return when `decide` should be asked again; None: not before someone changes the schedule."""
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
    """Return the slots to be judged now, oldest first, and whether there are more than are judged at once."""
    after, now = moment(schedule.judged_through_ms), moment(now_ms)
    found = cron.times_between(schedule.spec.recurrence, after, now, SLOTS_MAX + 1)
    due: list[int] = []
    for slot in found:
        # A slot whose jitter is long holds those after it back: verdicts are given in order.
        if not schedule.paused and _due_ms(schedule, slot) > now_ms:
            break
        due.append(milliseconds(slot))
    return due[:SLOTS_MAX], len(due) > SLOTS_MAX


class _Bench:
    """Where slots are judged one after the other, each knowing what the ones before it were told."""

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
        """Start the slot that waits, if nothing is in its way."""
        if self._buffered_ms is not None and (not self._open or self._spec.overlap is Overlap.ALLOW):
            self._start(self._buffered_ms)
            self._buffered_ms = None

    def skip_buffered(self, reason: Skipped) -> None:
        if self._buffered_ms is not None:
            self._skips.append(Skip(self._buffered_ms, reason))
            self._buffered_ms = None

    def judge(self, slot_ms: int, *, is_newest: bool) -> bool:
        """Give a slot its verdict. False: there have been enough starts for once, and it keeps waiting for one."""
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
        """Start the next slots of the oldest backfill, as far as it may and there is room."""
        room = STARTS_MAX - len(self._starts)
        # What is being ended may be of a slot that the backfill comes to: not in one transaction.
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
        """Return why a slot is not to be started, whatever is open."""
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
        """Start a slot, or do what the overlap policy says."""
        match self._spec.overlap:
            case Overlap.ALLOW:
                self._start(slot_ms)
            case Overlap.CANCEL_OTHER | Overlap.TERMINATE_OTHER if not is_newest:
                # Started, it would be ended by the next one before it had done anything.
                self._skips.append(Skip(slot_ms, Skipped.SUPERSEDED))
            case Overlap.CANCEL_OTHER | Overlap.TERMINATE_OTHER:
                # They are told once. A second request would disturb the cleaning up after the first.
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
        # A backfill may come across a slot that is open, or is being started in this very decision.
        if is_due or started not in self._open:
            self._starts.append(Start(slot_ms, started, is_due))
        if started not in self._open:
            self._open.append(started)
