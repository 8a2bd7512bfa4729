"""Schedules: create, change and fire schedules; each slot starts its workflow once, across crashes and processes."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from headgate import typed_decode
from headgate.clock import Clock
from headgate.durable.model import payload
from headgate.durable.model.names import check_name, check_new_execution_id, check_not_built_in, check_tags
from headgate.durable.model.observer import NULL_OBSERVER, DurableObserver
from headgate.durable.model.starts import StartRequest
from headgate.durable.schedules import cron
from headgate.durable.schedules.rows import (
    DUE,
    PARKED,
    SCHEDULE_TAG,
    SLOT_TAG,
    ScheduleRows,
    latest,
    row_item,
    schedule_of,
)
from headgate.durable.schedules.slots import (
    OPEN_MAX,
    Backfill,
    Fire,
    Overlap,
    Schedule,
    Skipped,
    Spec,
    decide,
    due_at_ms,
    milliseconds,
    moment,
    slot_of,
)
from headgate.errors import (
    ConflictError,
    CursorError,
    InvalidIdError,
    InvalidScheduleError,
    NotFoundError,
    PayloadTooLargeError,
    UserError,
    VersionConflictError,
)
from headgate.ids import IdMaker
from headgate.store.catalogue.tables import EXECUTIONS, SCHEDULES
from headgate.store.model.conditions import absent, version_is
from headgate.store.model.requests import Page, Poll, Query, Range, Sort
from headgate.store.model.schema import Key
from headgate.store.port import Store

BACKFILLS_MAX: Final = 10
PREVIEW_MAX: Final = 1000
# Small enough for the inputs of all starts of one transaction.
INPUT_BYTES_MAX: Final = 256 * 1024
SECONDS_MAX: Final = 100 * 366 * 86_400
# Without the slash that separates it from the slot, so that execution ids are unique.
_SCHEDULE_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@=+-]{0,127}")
# More conflicts than this with other writers are not a race any more.
_ATTEMPTS_MAX: Final = 25


class SchedulePage(Struct, frozen=True):
    """A page of schedules. `cursor` is None on the last page."""

    schedules: list[Schedule]
    cursor: str | None = None


class Preview(Struct, frozen=True):
    """A future slot, and when it will be fired (later by its jitter)."""

    slot: datetime
    due: datetime


class Schedules:
    """The schedules of a store. Any number of processes may fire them."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        ids: IdMaker,
        *,
        limits_of: Callable[[str], tuple[float | None, float | None]] = lambda _workflow: (None, None),
        observer: DurableObserver = NULL_OBSERVER,
        seal: Callable[[StartRequest], StartRequest] = lambda request: request,
    ) -> None:
        """`seal` returns a start as it is stored, by the codec of its workflow."""
        self._observer = observer
        self._store = store
        self._clock = clock
        self._ids = ids
        self._rows = ScheduleRows(store, ids, limits_of, seal)

    def create(
        self,
        schedule_id: str,
        spec: Spec,
        *,
        paused: bool = False,
        reason: str = "",
        declared_by: str = "",
        declared_digest: str = "",
    ) -> Schedule:
        """Store a new schedule, with slots from now on; `declared_by` is the app whose code declares it.

        Creating the same schedule again changes nothing. Raises `ConflictError` if the id has a different schedule, and
        `InvalidScheduleError`, `InvalidIdError` or another `UserError` for an invalid one.
        """
        now_ms = self._now_ms()
        schedule = Schedule(
            schedule_id=check_schedule_id(schedule_id),
            spec=checked(spec),
            created_at_ms=now_ms,
            judged_through_ms=now_ms,
            version=1,
            revision=1,
            paused=paused,
            reason=reason,
            declared_by=declared_by,
            declared_digest=declared_digest,
        )
        try:
            self._store.put(SCHEDULES, row_item(schedule, due_at_ms(schedule, now_ms)), condition=absent())
        except ConflictError as exc:
            existing = self._find(schedule_id)
            if existing is not None and existing.spec == schedule.spec:
                return existing
            raise ConflictError(
                f"schedule {schedule_id}: it exists and is different; update it, or choose another id",
                current=exc.current,
            ) from exc
        self._observer.on_work_stored()
        return schedule

    def find(self, schedule_id: str) -> Schedule | None:
        """Return the stored schedule, if there is one."""
        return self._find(schedule_id)

    def get(self, schedule_id: str) -> Schedule:
        """Return the stored schedule. Raises `NotFoundError`."""
        schedule = self._find(schedule_id)
        if schedule is None:
            raise NotFoundError(f"schedule {schedule_id[:80]!r}: there is none; 'headgate schedule ls' lists them")
        return schedule

    def ls(self, *, limit: int = 100, cursor: str | None = None) -> SchedulePage:
        """Return schedules in the order of their next slot; paused and ended ones come last.

        A schedule that is paused or resumed meanwhile can be on two pages or on none. Raises `CursorError`.
        """
        partition, _, inner = (cursor or f"{DUE}|").partition("|")
        if partition not in (DUE, PARKED):
            raise CursorError(f"cursor {cursor!r}: it is not one of this list; begin again without")
        page = self._listed(partition, limit, inner or None)
        schedules = [schedule_of(item) for item in page.items]
        if page.cursor is not None:
            return SchedulePage(schedules, f"{partition}|{page.cursor}")
        if partition == PARKED:
            return SchedulePage(schedules)
        room = limit - len(schedules)
        parked = self._listed(PARKED, max(1, room))
        if room <= 0:
            return SchedulePage(schedules, f"{PARKED}|" if parked.items else None)
        schedules += [schedule_of(item) for item in parked.items]
        return SchedulePage(schedules, None if parked.cursor is None else f"{PARKED}|{parked.cursor}")

    def _listed(self, partition: str, limit: int, cursor: str | None = None) -> Page:
        query = Query(table=SCHEDULES, index="due-index", partition=partition, limit=limit, cursor=cursor)
        return self._store.query(query)

    def update(
        self,
        schedule_id: str,
        spec: Spec,
        *,
        revision: int | None = None,
        also: Callable[[Schedule], Schedule | None] = lambda current: current,
    ) -> Schedule:
        """Replace the spec of a schedule. Slots up to now are decided by the old spec.

        With `revision`, only if that is the current one. `also` changes other parts of it, or
        returns None to leave it as it is. Raises `ConflictError`, `NotFoundError`, or a `UserError` as
        `create` does.
        """
        spec = checked(spec)

        def change(current: Schedule) -> Schedule:
            marked = also(current)
            if marked is None or marked.spec == spec:
                return marked or current
            if marked.spec.recurrence == spec.recurrence:
                return replace(marked, spec=spec)
            now_ms = self._now_ms()
            settled = self._settled(marked, now_ms)
            return replace(settled, spec=spec, judged_through_ms=max(settled.judged_through_ms, now_ms))

        return self._change(schedule_id, change, revision)

    def pause(self, schedule_id: str, reason: str = "", *, revision: int | None = None) -> Schedule:
        """Start nothing from now on, except by trigger and backfill. Undecided slots are skipped."""
        return self._change(schedule_id, lambda current: replace(current, paused=True, reason=reason), revision)

    def resume(self, schedule_id: str, *, revision: int | None = None) -> Schedule:
        """Resume with the slots from now on."""

        def change(current: Schedule) -> Schedule:
            if not current.paused:
                return current
            return replace(self._settled(current, self._now_ms()), paused=False, reason="")

        return self._change(schedule_id, change, revision)

    def delete(self, schedule_id: str, *, revision: int | None = None) -> None:
        """Delete a schedule; its executions go on. Raises `NotFoundError`, `ConflictError` for another `revision`."""
        for _ in range(_ATTEMPTS_MAX):
            current = self.get(schedule_id)
            _check_revision(current, revision)
            try:
                self._store.delete(SCHEDULES, Key(schedule_id), condition=version_is(current.version))
            except ConflictError:
                continue
            return
        raise _contended(schedule_id)

    def trigger(self, schedule_id: str, *, overlap: Overlap = Overlap.ALLOW, request_id: str | None = None) -> Fire:
        """Start an execution now, besides the slots, paused or not, and return the result.

        `request_id` is an idempotency key. Raises `NotFoundError`, `InvalidIdError`, and `InvalidScheduleError` for an
        `overlap` of buffer_one.
        """
        if overlap is Overlap.BUFFER_ONE:
            raise InvalidScheduleError(
                "overlap buffer_one: a start by hand has skip, allow, cancel_other, terminate_other"
            )
        started = check_new_execution_id(f"{schedule_id}/trigger-{request_id or self._ids.ulid()}")
        for _ in range(_ATTEMPTS_MAX):
            schedule, now_ms = self.get(schedule_id), self._now_ms()
            if self._store.get(EXECUTIONS, Key(started), consistent=True) is not None:
                return Fire(slot_of(now_ms), now_ms, started, by_hand=True)
            fire = self._trigger(schedule, started, overlap, now_ms)
            if fire is not None:
                self._observer.on_work_stored()
                return fire
        raise _contended(schedule_id)

    def backfill(
        self, schedule_id: str, since: datetime, until: datetime, overlap: Overlap = Overlap.BUFFER_ONE
    ) -> Schedule:
        """Start the slots from `since` on and before `until`, whether or not they were skipped.

        The backfill is stored, and any process that fires schedules continues it. A slot with an execution keeps it, so
        that the call can be repeated. `overlap` buffer_one starts them one after another, allow in parallel. Raises
        `InvalidScheduleError`, `NotFoundError`.
        """
        if overlap not in (Overlap.BUFFER_ONE, Overlap.ALLOW):
            raise InvalidScheduleError(f"overlap {overlap.value}: a backfill has buffer_one (one by one) or allow")
        if since.tzinfo is None or until.tzinfo is None or since >= until or since.year < 1970:
            raise InvalidScheduleError("since and until: two moments with an offset, from 1970 on, since the earlier")

        def change(current: Schedule) -> Schedule:
            now_ms = self._now_ms()
            settled = self._settled(current, now_ms) if current.paused else current
            # Later slots are not decided yet: the schedule itself will start or skip them.
            until_ms = min(milliseconds(until), settled.judged_through_ms + 1)
            since_ms = milliseconds(since)
            backfill = Backfill(since_ms, until_ms, since_ms - 1, overlap is Overlap.BUFFER_ONE)
            if since_ms >= until_ms or any(_same_range(backfill, each) for each in settled.backfills):
                return settled
            if len(settled.backfills) == BACKFILLS_MAX:
                raise InvalidScheduleError(
                    f"schedule {schedule_id}: {BACKFILLS_MAX} backfills are under way; wait for one, or stop them"
                )
            return replace(settled, backfills=(*settled.backfills, backfill))

        return self._change(schedule_id, change)

    def stop_backfills(self, schedule_id: str, *, revision: int | None = None) -> Schedule:
        """Start no further slots of backfills. Raises `NotFoundError`, and `ConflictError` for another `revision`."""
        return self._change(
            schedule_id, lambda current: replace(current, backfills=()) if current.backfills else current, revision
        )

    def running(self, schedule: Schedule) -> tuple[str, ...]:
        """Return the executions of a schedule that are still open, oldest first."""
        return self._rows.running(schedule)

    def preview(self, schedule_id: str, count: int = 10) -> list[Preview]:
        """Return the next slots, even of a paused schedule. Raises `NotFoundError`, `InvalidScheduleError`."""
        if not 1 <= count <= PREVIEW_MAX:
            raise InvalidScheduleError(f"count {count}: from 1 to {PREVIEW_MAX}")
        schedule = self.get(schedule_id)
        recurrence = schedule.spec.recurrence
        after = moment(max(schedule.judged_through_ms, self._now_ms()))
        return [
            Preview(slot, moment(milliseconds(slot) + cron.jitter_ms(recurrence, schedule_id, slot)))
            for slot in cron.next_times(recurrence, after, count)
        ]

    def next_due_ms(self) -> int | None:
        """Return when the next schedule is due; None if there is none until a schedule is created or changed."""
        page = self._store.query(Query(table=SCHEDULES, index="due-index", partition=DUE, limit=1, poll=Poll.PROMPT))
        return page.items[0]["due_at_ms"] if page.items else None

    def fire_due(self, now_ms: int, limit: int = 100) -> list[str]:
        """Decide the due slots of up to `limit` schedules, and return the executions that were started.

        Each schedule is one transaction. A schedule that is far behind stays due. One that another process has fired is
        skipped. One with an invalid spec is paused, with the reason.
        """
        page = self._store.query(
            Query(
                table=SCHEDULES,
                index="due-index",
                partition=DUE,
                sort=Sort(Range.AT_MOST, now_ms),
                limit=limit,
                poll=Poll.PROMPT,
            )
        )
        return [started for item in page.items for started in self._fire(item["schedule_id"], now_ms)]

    def _fire(self, schedule_id: str, now_ms: int) -> list[str]:
        schedule = self._rows.find_due(schedule_id, now_ms)
        if schedule is None:
            return []
        try:
            decision = decide(schedule, now_ms, self._rows.running(schedule))
            is_done = self._rows.carry_out(schedule, decision, now_ms) is not None
        except UserError as exc:
            self._pause_failed(schedule_id, f"it could not go on: {exc}")
            return []
        return [start.execution_id for start in decision.starts] if is_done else []

    def _pause_failed(self, schedule_id: str, reason: str) -> None:
        """Pause a schedule that would fail every time, with its backfills."""
        with contextlib.suppress(NotFoundError):
            self._change(schedule_id, lambda current: replace(current, paused=True, reason=reason, backfills=()))

    def _trigger(self, schedule: Schedule, started: str, overlap: Overlap, now_ms: int) -> Fire | None:
        """Start a triggered execution. None if another process has changed the schedule."""
        fire = Fire(slot_of(now_ms), now_ms, started, by_hand=True)
        running = self._rows.running(schedule)
        if running and overlap is Overlap.SKIP:
            fire = replace(fire, execution_id=None, skipped=Skipped.OVERLAP, blocked_by=running[-1])
            open_ids, groups = running, []
        else:
            ends = running if overlap in (Overlap.CANCEL_OTHER, Overlap.TERMINATE_OTHER) else ()
            open_ids = (*(() if ends else running), started)[-OPEN_MAX:]
            groups = [self._rows.start(schedule, started, fire.slot, now_ms)]
            groups += [self._rows.end(schedule, overlap, other, now_ms) for other in ends]
        changed = replace(schedule, version=schedule.version + 1, fires=latest(schedule, [fire]), open_ids=open_ids)
        return fire if self._rows.commit(changed, due_at_ms(changed, now_ms, running), groups) else None

    def _settled(self, schedule: Schedule, now_ms: int) -> Schedule:
        """Return the schedule after all slots up to now are decided by its current spec."""
        while cron.times_between(schedule.spec.recurrence, moment(schedule.judged_through_ms), moment(now_ms), 1):
            # Without jitter: a change of the spec does not wait for it.
            recurrence = replace(schedule.spec.recurrence, jitter_seconds=0)
            prompt = replace(schedule, spec=replace(schedule.spec, recurrence=recurrence))
            decision = decide(prompt, now_ms, self._rows.running(schedule))
            schedule = self._rows.carry_out(schedule, decision, now_ms) or self.get(schedule.schedule_id)
        return schedule

    def _change(
        self, schedule_id: str, change: Callable[[Schedule], Schedule], revision: int | None = None
    ) -> Schedule:
        for _ in range(_ATTEMPTS_MAX):
            current = self.get(schedule_id)
            _check_revision(current, revision)
            updated = change(current)
            if updated is current:
                return current
            changed = replace(updated, version=updated.version + 1, revision=updated.revision + 1)
            if self._rows.commit(changed, due_at_ms(changed, self._now_ms()), ()):
                self._observer.on_work_stored()
                return changed
        raise _contended(schedule_id)

    def _find(self, schedule_id: str) -> Schedule | None:
        return self._rows.find(check_schedule_id(schedule_id))

    def _now_ms(self) -> int:
        return int(self._clock.seconds() * 1000)


def check_schedule_id(schedule_id: str) -> str:
    """Return the id. Raises `InvalidIdError` if it is not a valid schedule id."""
    if not _SCHEDULE_ID.fullmatch(schedule_id):
        raise InvalidIdError(
            f"schedule id {schedule_id[:80]!r}: use 1 to 128 letters, digits and . _ : @ = + -, beginning with a "
            "letter or digit"
        )
    return schedule_id


def checked(spec: Spec) -> Spec:
    """Return the spec in its stored form. Raises a `UserError` if it is not valid."""
    try:
        spec = typed_decode.convert(msgspec.to_builtins(spec), Spec)
    except (msgspec.ValidationError, TypeError) as exc:
        raise InvalidScheduleError(f"schedule: {exc}") from exc
    check_name("workflow", spec.workflow)
    check_not_built_in("workflow", spec.workflow)
    check_tags({**spec.tags, SCHEDULE_TAG: "", SLOT_TAG: ""})
    cron.check(spec.recurrence)
    for name in ("catchup_window_seconds", "timeout_seconds", "retention_seconds"):
        seconds = getattr(spec, name)
        # Written so that NaN, which compares false with any number, is refused too.
        if seconds is not None and not 0 <= seconds <= SECONDS_MAX:
            raise InvalidScheduleError(f"{name} {seconds}: from 0 to {SECONDS_MAX} (a hundred years)")
    if len(spec.input.encode()) > INPUT_BYTES_MAX:
        raise PayloadTooLargeError(
            f"input: {len(spec.input.encode()):,} bytes of JSON, and a schedule takes {INPUT_BYTES_MAX:,}; "
            "store the data elsewhere and pass a reference"
        )
    payload.decode(Raw(spec.input.encode()), Any, what="input")
    return spec


def _check_revision(schedule: Schedule, revision: int | None) -> None:
    if revision is not None and revision != schedule.revision:
        raise VersionConflictError(
            f"schedule {schedule.schedule_id}: it is at revision {schedule.revision}, not {revision}; read it again",
            current={"id": schedule.schedule_id, "revision": schedule.revision},
        )


def _contended(schedule_id: str) -> ConflictError:
    return ConflictError(f"schedule {schedule_id}: it was changed by others {_ATTEMPTS_MAX} times in a row; try again")


def _same_range(one: Backfill, other: Backfill) -> bool:
    return (one.since_ms, one.until_ms, one.one_by_one) == (other.since_ms, other.until_ms, other.one_by_one)
