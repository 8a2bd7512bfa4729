"""The sweep of wakes: finds what is overdue though everybody should have been told, and does what is done by the clock.

It is the net under wakes that were lost. Everything it looks at is a sparse index, as long as what there is to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from headgate.durable.engine.inbox import Mail
from headgate.durable.engine.turn_commit import queue_partition
from headgate.durable.model.archive import Archiver
from headgate.durable.model.failures import ErrorInfo
from headgate.durable.model.records import INBOX, TIMERS_DUE, UNDISPATCHED
from headgate.durable.serverless.activity_handler import record
from headgate.durable.serverless.lease_watch import WorkerWatch
from headgate.durable.serverless.wakeups import AT_ONCE_MS, ActivityWake, Due, TurnWake
from headgate.durable.service import Service
from headgate.errors import StaleClaimError
from headgate.store.catalogue.tables import ACTIVITIES, EXECUTIONS, INBOXES, TIMERS
from headgate.store.model.requests import Query, Range, Sort
from headgate.store.model.schema import Table
from headgate.store.model.values import Item

_MINUTE_MS: Final = 60_000
# A prime, so that no interval between sweeps passes by all of its multiples.
_LATER_MINUTES: Final = 61
_OVERDUE_MAX: Final = 1_000
_PAGE: Final = 200
_PAGES_MAX: Final = 20


class WakeSweep:
    """Sweeps for one app. Any number may sweep at once."""

    def __init__(self, service: Service, task_queues: Sequence[str]) -> None:
        self._store = service.store
        self._clock = service.clock
        self._task_queues = task_queues
        self._schedules = service.schedules
        self._bus = service.bus
        self._worker = service.worker(queues=())
        self._mail = Mail(service.store, service.ids)
        self._archiver = Archiver(service.store, service.clock, service.archive)
        self.workers = WorkerWatch(self._worker, service.store)

    def overdue(self) -> list[Due]:
        """Return wakes for what has waited too long and may have been forgotten, and a look after every worker."""
        now_ms = self._worker.activities.now_ms()
        cause = f"sweep~{now_ms}"
        woken: dict[tuple[str, str | None], Due] = {}
        for table, index, partition in (
            (EXECUTIONS, "ready-index", UNDISPATCHED),
            (INBOXES, "ready-index", INBOX),
            (TIMERS, "due-index", TIMERS_DUE),
        ):
            for item in self._found(table, index, partition, now_ms):
                wake = TurnWake(item["execution_id"], f"{cause}#{item.get('timer_id', '')}", item.get("timer_id"))
                woken[wake.execution_id, wake.timer_id] = Due(wake, AT_ONCE_MS)
        tasks = [
            Due(ActivityWake(item["activity_id"], queue), AT_ONCE_MS)
            for queue in self._task_queues
            for item in self._found(ACTIVITIES, "queue-index", queue_partition(queue), now_ms)
        ]
        return [*woken.values(), *tasks, *self.workers.seen()]

    def upkeep(self, is_over: Callable[[], bool]) -> None:
        """Start what schedules say, end activities that nobody has in time, finish deliveries, archive histories."""
        activities = self._worker.activities
        for activity, kind in activities.overdue(limit=_OVERDUE_MAX):
            message = f"{kind.value} of {activity.name} has passed"
            try:
                self._worker.time_out(activity, ErrorInfo(type="TimeoutError", message=message), kind)
            except StaleClaimError:
                continue
        record(self._worker, self._mail, self._clock.sleep, is_over)
        self._schedules.fire_due(activities.now_ms(), _PAGE)
        self._bus.sweep()
        if not is_over():
            self._archiver.archive_due()

    def _found(self, table: Table, index: str, partition: str, now_ms: int) -> Iterator[Item]:
        """Yield rows whose turn it is to be told of again, the youngest first: what is stuck must not hide the rest."""
        due_by = table.index(index).sort
        assert due_by is not None, "an index of what is due is in the order of time"
        cursor = None
        sort = Sort(Range.AT_MOST, now_ms - _MINUTE_MS)
        for _ in range(_PAGES_MAX):
            page = self._store.query(
                Query(
                    table=table,
                    index=index,
                    partition=partition,
                    sort=sort,
                    limit=_PAGE,
                    cursor=cursor,
                    descending=True,
                )
            )
            yield from (item for item in page.items if is_time(now_ms - item[due_by.name]))
            cursor = page.cursor
            if cursor is None:
                return


def is_time(waited_ms: int) -> bool:
    """Whether to tell again of what has waited so long: after one minute, two, four and so on, then every hour.

    What waits because there is much to do would otherwise be told of once a minute, and there would be more to do.
    """
    minutes = waited_ms // _MINUTE_MS
    is_power_of_two = minutes > 0 and minutes & (minutes - 1) == 0
    return is_power_of_two or (minutes > 0 and minutes % _LATER_MINUTES == 0)
