"""Backfill plans: which periods of a range are begun next, in what order, and what each end means. Decided here."""

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
    """Where a backfill stands."""

    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    COMPLETED = "COMPLETED"
    CANCELLED = "CANCELLED"

    @property
    def is_over(self) -> bool:
        """Whether nothing more is begun."""
        return self in (BackfillState.COMPLETED, BackfillState.CANCELLED)


class DateOrder(enum.StrEnum):
    """In which order periods are begun."""

    OLDEST_FIRST = "oldest-first"
    NEWEST_FIRST = "newest-first"


class BackfillSpec(Struct, frozen=True, kw_only=True):
    """What a backfill is asked to do. `dates` are the periods of the range, in the order of time."""

    pipeline_id: str
    schedule_id: str
    dates: tuple[str, ...]
    order: DateOrder = DateOrder.OLDEST_FIRST
    concurrency: int = 1
    # Also what is done already.
    redo: bool = False
    # Although the pipeline is paused.
    while_paused: bool = False
    # Pause when a period fails.
    stop_on_failure: bool = False


class Plan(Struct, frozen=True):
    """What a backfill would do."""

    begins: tuple[str, ...]
    skips: tuple[str, ...]


class Batch(Struct, frozen=True):
    """What a backfill does next."""

    begins: tuple[str, ...] = ()
    skips: tuple[str, ...] = ()


class Backfill(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A range of periods that is being done. Every change of it moves `version`."""

    backfill_id: str
    pipeline_id: str
    schedule_id: str
    # In the order in which they are begun. The copy in the list of the pipeline goes without them.
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
    # How many of the dates were begun or skipped, and those of them that have not ended.
    taken: int = 0
    running: tuple[str, ...] = ()
    succeeded: int = 0
    skipped: int = 0
    # Those that failed or were cancelled, and why.
    failed: dict[str, str] = {}

    def slot(self, date: str) -> Slot:
        """Return one of its periods."""
        return Slot(self.pipeline_id, self.schedule_id, date)


def check_spec(spec: BackfillSpec) -> None:
    """Raise `InvalidPayloadError` for what cannot be asked."""
    what = f"backfill of {spec.pipeline_id}/{spec.schedule_id}"
    if not 1 <= len(spec.dates) <= DATES_MAX:
        raise InvalidPayloadError(f"{what}: {len(spec.dates)} periods; give 1 to {DATES_MAX}, in several if need be")
    if len(set(spec.dates)) != len(spec.dates):
        raise InvalidPayloadError(f"{what}: a period is named twice; name each once")
    if not 1 <= spec.concurrency <= CONCURRENCY_MAX:
        raise InvalidPayloadError(f"{what}: concurrency {spec.concurrency}; give 1 to {CONCURRENCY_MAX}")


def ordered(spec: BackfillSpec) -> tuple[str, ...]:
    """Return the periods in the order in which they are begun."""
    return spec.dates if spec.order is DateOrder.OLDEST_FIRST else tuple(reversed(spec.dates))


def plan(spec: BackfillSpec, done: Collection[str]) -> Plan:
    """Return what a backfill would do now, where `done` are the periods that are. Raises `InvalidPayloadError`."""
    check_spec(spec)
    begins, skips = _split(ordered(spec), done, len(spec.dates), redo=spec.redo)
    return Plan(begins, skips)


def next_batch(backfill: Backfill, done: Collection[str], *, limit: int = CONCURRENCY_MAX) -> Batch:
    """Return what to begin now, at most `limit`, and what to pass over because it is done."""
    room = min(backfill.concurrency - len(backfill.running), limit)
    if backfill.state is not BackfillState.RUNNING or room <= 0:
        return Batch()
    return Batch(*_split(backfill.dates[backfill.taken :], done, room, redo=backfill.redo))


def advanced(backfill: Backfill, batch: Batch, now_ms: int) -> Backfill:
    """Return the backfill once a batch is begun."""
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
    """Return the backfill once a period of it has ended so. The same object: that is known, or none of its business."""
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
    """Return what to begin and what to pass over, from the front, until there is no more room."""
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
