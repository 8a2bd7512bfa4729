"""Backfill plans: pure decisions about which periods of a range start next, and what each end means."""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from headgate.errors import InvalidPayloadError
from headgate.pipelines.enums import RunStatus
from headgate.pipelines.runs.rows import Slot

DATES_MAX: Final = 10_000
CONCURRENCY_MAX: Final = 1_000


class BackfillState(enum.StrEnum):
    """The state of a backfill."""

    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    COMPLETED = "COMPLETED"
    CANCELLED = "CANCELLED"

    @property
    def is_over(self) -> bool:
        """Whether no more periods start."""
        return self in (BackfillState.COMPLETED, BackfillState.CANCELLED)


class DateOrder(enum.StrEnum):
    """The order in which periods start."""

    OLDEST_FIRST = "oldest-first"
    NEWEST_FIRST = "newest-first"


class BackfillSpec(Struct, frozen=True, kw_only=True):
    """The specification of a backfill. `dates` are the periods of the range, in order of time."""

    pipeline_id: str
    schedule_id: str
    dates: tuple[str, ...]
    order: DateOrder = DateOrder.OLDEST_FIRST
    concurrency: int = 1
    # Run periods that are done already, too.
    redo: bool = False
    # Run although the pipeline is paused.
    while_paused: bool = False
    # Pause when a period fails.
    stop_on_failure: bool = False


class Plan(Struct, frozen=True):
    """What a backfill would start and skip."""

    begins: tuple[str, ...]
    skips: tuple[str, ...]


class Batch(Struct, frozen=True):
    """The next step of a backfill."""

    begins: tuple[str, ...] = ()
    skips: tuple[str, ...] = ()


class Backfill(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A range of periods in progress. Every change increments `version`."""

    backfill_id: str
    pipeline_id: str
    schedule_id: str
    # In starting order. The copy in the list of the pipeline omits them.
    dates: tuple[str, ...] = ()
    dates_count: int = 0
    concurrency: int = 1
    redo: bool = False
    while_paused: bool = False
    stop_on_failure: bool = False
    state: BackfillState
    version: int
    created_at_ms: int
    updated_at_ms: int
    ended_at_ms: int | None = None
    by: str = ""
    reason: str = ""
    # How many dates were started or skipped, and those of them that have not ended.
    taken: int = 0
    running: tuple[str, ...] = ()
    succeeded: int = 0
    skipped: int = 0
    # Failed and cancelled periods, with the reason.
    failed: dict[str, str] = {}

    def slot(self, date: str) -> Slot:
        """Return the slot of one of its periods."""
        return Slot(self.pipeline_id, self.schedule_id, date)


def check_spec(spec: BackfillSpec) -> None:
    """Raise `InvalidPayloadError` for an invalid specification."""
    what = f"backfill of {spec.pipeline_id}/{spec.schedule_id}"
    if not 1 <= len(spec.dates) <= DATES_MAX:
        raise InvalidPayloadError(f"{what}: {len(spec.dates)} periods; give 1 to {DATES_MAX}, in several if need be")
    if len(set(spec.dates)) != len(spec.dates):
        raise InvalidPayloadError(f"{what}: a period is named twice; name each once")
    if not 1 <= spec.concurrency <= CONCURRENCY_MAX:
        raise InvalidPayloadError(f"{what}: concurrency {spec.concurrency}; give 1 to {CONCURRENCY_MAX}")


def ordered(spec: BackfillSpec) -> tuple[str, ...]:
    """Return the periods in starting order."""
    return spec.dates if spec.order is DateOrder.OLDEST_FIRST else tuple(reversed(spec.dates))


def plan(spec: BackfillSpec, done: Collection[str]) -> Plan:
    """Return what a backfill would do now, given the periods that are done. Raises `InvalidPayloadError`."""
    check_spec(spec)
    begins, skips = _split(ordered(spec), done, len(spec.dates), redo=spec.redo)
    return Plan(begins, skips)


def next_batch(backfill: Backfill, done: Collection[str], *, limit: int = CONCURRENCY_MAX) -> Batch:
    """Return the periods to start now, at most `limit`, and those to skip because they are done."""
    room = min(backfill.concurrency - len(backfill.running), limit)
    if backfill.state is not BackfillState.RUNNING or room <= 0:
        return Batch()
    return Batch(*_split(backfill.dates[backfill.taken :], done, room, redo=backfill.redo))


def advanced(backfill: Backfill, batch: Batch, now_ms: int) -> Backfill:
    """Return the backfill after a batch was started."""
    return _ended_if_done(
        replace(
            backfill,
            version=backfill.version + 1,
            updated_at_ms=now_ms,
            taken=backfill.taken + len(batch.begins) + len(batch.skips),
            running=(*backfill.running, *batch.begins),
            skipped=backfill.skipped + len(batch.skips),
        ),
        now_ms,
    )


def settled(backfill: Backfill, date: str, status: RunStatus, reason: str, now_ms: int) -> Backfill:
    """Return the backfill after one of its periods has ended. The same object: nothing changes."""
    if date not in backfill.running or not (status.is_terminal or status.is_done):
        return backfill
    is_success = status.is_done
    failed = backfill.failed if is_success else {**backfill.failed, date: reason or status.value}
    changed = replace(
        backfill,
        version=backfill.version + 1,
        updated_at_ms=now_ms,
        running=tuple(each for each in backfill.running if each != date),
        succeeded=backfill.succeeded + is_success,
        failed=failed,
    )
    ended = _ended_if_done(changed, now_ms)
    if is_success or not backfill.stop_on_failure or ended.state is not BackfillState.RUNNING:
        return ended
    return replace(ended, state=BackfillState.PAUSED, by="backfill", reason=f"{date} failed: {failed[date]}")


def _split(
    dates: Sequence[str], done: Collection[str], room: int, *, redo: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the periods to start and to skip, from the front, until the room is used up."""
    known = frozenset() if redo else frozenset(done)
    begins: list[str] = []
    skips: list[str] = []
    for date in dates:
        if date in known:
            skips.append(date)
        elif len(begins) < room:
            begins.append(date)
        else:
            break
    return tuple(begins), tuple(skips)


def _ended_if_done(backfill: Backfill, now_ms: int) -> Backfill:
    is_done = backfill.taken >= len(backfill.dates) and not backfill.running
    if not is_done or backfill.state.is_over:
        return backfill
    return replace(backfill, state=BackfillState.COMPLETED, ended_at_ms=now_ms)
