"""Waiting: executions that wait for something to change, and how they are woken.

A row says who waits with which task token. Whoever learns of a change answers the token and takes the row away; if that
is lost, the task's own time-out has it look again.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import structlog
from msgspec import Struct
from msgspec.structs import replace

from headgate.errors import ConflictError, CorruptionError, NotFoundError, SignatureError, StaleClaimError
from headgate.pipelines.row_codec import row, struct_of
from headgate.pipelines.runs.rows import Slot
from headgate.store.catalogue.tables import PIPELINES, WAITER
from headgate.store.model.conditions import all_of, equals
from headgate.store.model.requests import Query, Range, Sort, Update
from headgate.store.model.schema import Key
from headgate.store.port import Store

KEPT_SECONDS: Final = 7 * 86_400
_PREFIX: Final = "WAIT#"
# Where in the index those are in whose place someone is to look.
_WATCHED: Final = "WATCHED"
_PAGE: Final = 500
_log = structlog.get_logger(__name__)


class WaitKind(enum.StrEnum):
    """What is waited for."""

    # Something that the readiness reads.
    CHANGE = "change"
    # The end of the job, or the wish that it end.
    JOB = "job"


class Watch(Struct, frozen=True):
    """For which run and when someone is to look in place of whoever waits."""

    run_id: str
    look_at_ms: int


class Waiter(Struct, frozen=True, kw_only=True):
    """Someone who waits."""

    pipeline_id: str
    schedule_id: str
    date: str
    kind: WaitKind
    task_token: str
    # For which run and when someone is to look in its place. None: it looks for itself when its wait is over.
    run_id: str = ""
    look_at_ms: int | None = None

    @property
    def slot(self) -> Slot:
        """The period whose execution waits."""
        return Slot(self.pipeline_id, self.schedule_id, self.date)


class Waiters:
    """Those who wait, in one store."""

    def __init__(self, store: Store, now_ms: Callable[[], int], answer: Callable[[str, dict[str, str]], None]) -> None:
        """Take `answer`, which ends the task of a token; it raises what a token that is over raises."""
        self._store = store
        self._now_ms = now_ms
        self._answer = answer

    def register(self, slot: Slot, kind: WaitKind, task_token: str, watch: Watch | None = None) -> None:
        """Note that the execution of a period waits. A later wait takes the place of an earlier one."""
        waiter = Waiter(**slot._asdict(), kind=kind, task_token=task_token)
        index: dict[str, str] = {}
        if watch is not None:
            waiter = replace(waiter, run_id=watch.run_id, look_at_ms=watch.look_at_ms)
            index = WAITER.index_attributes(**slot._asdict())
        self._store.put(PIPELINES, row(_key(waiter), waiter, ttl=self._now_ms() // 1000 + KEPT_SECONDS, **index))

    def find(self, slot: Slot, kind: WaitKind) -> Waiter | None:
        """Return who waits for this in a period."""
        item = self._store.get(PIPELINES, WAITER.key(**slot._asdict(), kind=kind.value), consistent=True)
        return None if item is None else waiter_of(item)

    def watched(self) -> Iterator[Waiter]:
        """Return those in whose place someone is to look. Who has just lain down may be missing.

        A row that makes no sense is passed over: it must not hide the others.
        """
        cursor: str | None = None
        while True:
            query = Query(table=PIPELINES, index="GSI1", partition=_WATCHED, limit=_PAGE, cursor=cursor)
            page = self._store.query(query)
            for item in page.items:
                try:
                    yield waiter_of(item)
                except CorruptionError as exc:
                    _log.error("waiter passed over", error=str(exc))
            cursor = page.cursor
            if cursor is None:
                return

    def looked(self, waiter: Waiter, next_at_ms: int) -> Update:
        """Return the write that goes with a look in place of a waiter.

        It is refused if the wait is over, or if another has looked meanwhile.
        """
        as_it_was = all_of(equals("task_token", waiter.task_token), equals("look_at_ms", waiter.look_at_ms))
        return Update(PIPELINES, _key(waiter), set={"look_at_ms": next_at_ms}, condition=as_it_was)

    def wake(self, slot: Slot, kind: WaitKind, reason: str) -> bool:
        """Wake the execution of a period. False: it does not wait for this."""
        waiter = self.find(slot, kind)
        return waiter is not None and self.end(waiter, reason)

    def wake_all(self, pipeline_id: str, kind: WaitKind, reason: str) -> int:
        """Wake every execution of a pipeline that waits for this, and return how many that were."""
        partition = WAITER.key(pipeline_id=pipeline_id, schedule_id="-", date="-", kind="-").partition
        woken = 0
        cursor = None
        while True:
            query = Query(
                table=PIPELINES,
                partition=partition,
                sort=Sort(Range.BEGINS_WITH, _PREFIX),
                cursor=cursor,
                consistent=True,
            )
            page = self._store.query(query)
            found = [waiter_of(item) for item in page.items]
            woken += sum(self.end(waiter, reason) for waiter in found if waiter.kind is kind)
            cursor = page.cursor
            if cursor is None:
                return woken

    def end(self, waiter: Waiter, reason: str) -> bool:
        """End a wait. False: it was over."""
        try:
            self._answer(waiter.task_token, {"woken": reason})
            is_woken = True
        except (StaleClaimError, NotFoundError, SignatureError):
            # It has gone on by itself.
            is_woken = False
        try:
            self._store.delete(PIPELINES, _key(waiter), condition=equals("task_token", waiter.task_token))
        except ConflictError:
            # It waits again already.
            return is_woken
        return is_woken


def waiter_of(item: Mapping[str, Any]) -> Waiter:
    """Return who waits by a row. Raises `CorruptionError` for another row."""
    return struct_of(item, Waiter)


def _key(waiter: Waiter) -> Key:
    return WAITER.key(**waiter.slot._asdict(), kind=waiter.kind.value)
