"""Waiting: executions that wait for something to change, and how they are woken.

A row says who waits with which task token. Whoever learns of a change answers the token and takes the row away; if that
is lost, the task's own time-out has it look again.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from headgate.errors import ConflictError, NotFoundError, SignatureError, StaleClaimError
from headgate.pipelines.row_codec import row, struct_of
from headgate.pipelines.run_rows import Slot
from headgate.store.conditions import equals
from headgate.store.port import Store
from headgate.store.tables import PIPELINES, WAITER
from headgate.store.writes import Query, Range, Sort

KEPT_SECONDS: Final = 7 * 86_400
_PREFIX: Final = "WAIT#"


class WaitKind(enum.StrEnum):
    """What is waited for."""

    # Something that the readiness reads.
    CHANGE = "change"
    # The end of the job, or the wish that it end.
    JOB = "job"


class Waiter(Struct, frozen=True, kw_only=True):
    """Someone who waits."""

    pipeline_id: str
    schedule_id: str
    date: str
    kind: WaitKind
    task_token: str

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

    def register(self, slot: Slot, kind: WaitKind, task_token: str) -> None:
        """Note that the execution of a period waits. A later wait takes the place of an earlier one."""
        waiter = Waiter(**slot._asdict(), kind=kind, task_token=task_token)
        key = WAITER.key(**slot._asdict(), kind=kind.value)
        self._store.put(PIPELINES, row(key, waiter, ttl=self._now_ms() // 1000 + KEPT_SECONDS))

    def wake(self, slot: Slot, kind: WaitKind, reason: str) -> bool:
        """Wake the execution of a period. False: it does not wait for this."""
        item = self._store.get(PIPELINES, WAITER.key(**slot._asdict(), kind=kind.value), consistent=True)
        return item is not None and self._end(struct_of(item, Waiter), reason)

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
            found = [struct_of(item, Waiter) for item in page.items]
            woken += sum(self._end(waiter, reason) for waiter in found if waiter.kind is kind)
            cursor = page.cursor
            if cursor is None:
                return woken

    def _end(self, waiter: Waiter, reason: str) -> bool:
        try:
            self._answer(waiter.task_token, {"woken": reason})
            is_woken = True
        except (StaleClaimError, NotFoundError, SignatureError):
            # It has gone on by itself.
            is_woken = False
        key = WAITER.key(**waiter.slot._asdict(), kind=waiter.kind.value)
        try:
            self._store.delete(PIPELINES, key, condition=equals("task_token", waiter.task_token))
        except ConflictError:
            # It waits again already.
            return is_woken
        return is_woken
