"""Waiters: executions that wait for a change or the end of a job, and how they are woken.

A row holds the task token of a waiting execution. A change answers the token and deletes the row; if that is lost, the
task's own time-out makes the execution evaluate again.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import structlog
from msgspec import Struct, field
from msgspec.structs import replace

from headgate.clock import Clock
from headgate.errors import ConflictError, CorruptionError, NotFoundError, SignatureError, StaleClaimError
from headgate.pipelines.row_codec import row, struct_of
from headgate.pipelines.runs.rows import Slot
from headgate.store.catalogue.tables import PIPELINES, WAITER
from headgate.store.model.conditions import all_of, equals
from headgate.store.model.requests import Poll, Query, Range, Sort, Update
from headgate.store.model.schema import Key
from headgate.store.port import Store

RETENTION_SECONDS: Final = 7 * 86_400
_PREFIX: Final = "WAIT#"
# Index partition of the waiters that the readiness poller evaluates for.
_POLLED: Final = "WATCHED"
# The waiters that the readiness poller evaluates for: almost all that wait for a change.
POLLED: Final = Query(table=PIPELINES, index="GSI1", partition=_POLLED, limit=1)
_PAGE: Final = 500
_log = structlog.get_logger(__name__)


class WaitKind(enum.StrEnum):
    """The event that an execution waits for."""

    # A change of an input of its readiness.
    CHANGE = "change"
    # The end or the cancellation of its job.
    JOB = "job"


class PollPlan(Struct, frozen=True):
    """The run that the readiness poller evaluates for a waiter, and when."""

    run_id: str
    evaluate_at_ms: int


class Waiter(Struct, frozen=True, kw_only=True):
    """A waiting execution."""

    pipeline_id: str
    schedule_id: str
    date: str
    kind: WaitKind
    task_token: str
    # The run that the poller evaluates and when. None: the execution evaluates by itself when its wait is over.
    run_id: str = ""
    evaluate_at_ms: int | None = field(default=None, name="look_at_ms")

    @property
    def slot(self) -> Slot:
        """The period of the waiting execution."""
        return Slot(self.pipeline_id, self.schedule_id, self.date)


class Waiters:
    """Registers and wakes waiting executions."""

    def __init__(self, store: Store, clock: Clock, answer: Callable[[str, dict[str, str]], None]) -> None:
        """`answer` completes the task of a token; it raises `StaleClaimError` or `NotFoundError` if that has ended."""
        self._store = store
        self._clock = clock
        self._answer = answer

    def register(self, slot: Slot, kind: WaitKind, task_token: str, plan: PollPlan | None = None) -> None:
        """Register the execution of a period as waiting. A later registration replaces an earlier one."""
        waiter = Waiter(**slot._asdict(), kind=kind, task_token=task_token)
        index: dict[str, str] = {}
        if plan is not None:
            waiter = replace(waiter, run_id=plan.run_id, evaluate_at_ms=plan.evaluate_at_ms)
            index = WAITER.index_attributes(**slot._asdict())
        self._store.put(
            PIPELINES, row(_key(waiter), waiter, ttl=int(self._clock.seconds()) + RETENTION_SECONDS, **index)
        )

    def find(self, slot: Slot, kind: WaitKind) -> Waiter | None:
        """Return the waiter of a period, or None."""
        item = self._store.get(PIPELINES, WAITER.key(**slot._asdict(), kind=kind.value), consistent=True)
        return None if item is None else waiter_of(item)

    def polled(self) -> Iterator[Waiter]:
        """Yield the waiters that the poller evaluates for. The index may lag behind the newest.

        A corrupt row is skipped, so that it does not hide the others.
        """
        cursor: str | None = None
        while True:
            query = replace(POLLED, limit=_PAGE, cursor=cursor, poll=Poll.PROMPT)
            page = self._store.query(query)
            for item in page.items:
                try:
                    yield waiter_of(item)
                except CorruptionError as exc:
                    _log.error("corrupt waiter row skipped", error=str(exc))
            cursor = page.cursor
            if cursor is None:
                return

    def next_poll_write(self, waiter: Waiter, next_at_ms: int) -> Update:
        """Return the write that sets the next evaluation time of a waiter.

        It is refused if the wait is over, or if another process has evaluated meanwhile.
        """
        unchanged = all_of(equals("task_token", waiter.task_token), equals("look_at_ms", waiter.evaluate_at_ms))
        return Update(PIPELINES, _key(waiter), set={"look_at_ms": next_at_ms}, condition=unchanged)

    def wake(self, slot: Slot, kind: WaitKind, reason: str) -> bool:
        """Wake the execution of a period. False: it does not wait for this."""
        waiter = self.find(slot, kind)
        return waiter is not None and self.end(waiter, reason)

    def wake_all(self, pipeline_id: str, kind: WaitKind, reason: str) -> int:
        """Wake every execution of a pipeline that waits for this, and return their number."""
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
            waiters = [waiter_of(item) for item in page.items]
            woken += sum(self.end(waiter, reason) for waiter in waiters if waiter.kind is kind)
            cursor = page.cursor
            if cursor is None:
                return woken

    def end(self, waiter: Waiter, reason: str) -> bool:
        """End a wait. False: it had ended already."""
        try:
            self._answer(waiter.task_token, {"woken": reason})
            is_woken = True
        except (StaleClaimError, NotFoundError, SignatureError):
            # The execution has gone on by itself.
            is_woken = False
        try:
            self._store.delete(PIPELINES, _key(waiter), condition=equals("task_token", waiter.task_token))
        except ConflictError:
            # The execution waits again with another token.
            return is_woken
        return is_woken


def waiter_of(item: Mapping[str, Any]) -> Waiter:
    """Decode a waiter from its row. Raises `CorruptionError` for another row."""
    return struct_of(item, Waiter)


def _key(waiter: Waiter) -> Key:
    return WAITER.key(**waiter.slot._asdict(), kind=waiter.kind.value)
