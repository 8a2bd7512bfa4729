"""Wake sweep: sends wake-ups for overdue work whose wake-up was lost, and runs the timed maintenance.

Every read is of a sparse index, which has an entry for each piece of pending work and none for the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import structlog
from msgspec.structs import replace

from headgate.durable.engine.function_apps import FunctionApp, FunctionApps
from headgate.durable.engine.inbox import Inboxes
from headgate.durable.engine.turn_commit import queue_partition
from headgate.durable.model.archive import Archiver
from headgate.durable.model.records import INBOX, TIMERS_DUE, UNDISPATCHED
from headgate.durable.serverless.activity_handler import store_results
from headgate.durable.serverless.lease_watch import LeaseWatch
from headgate.durable.serverless.wakeups import AT_ONCE_MS, Due, TurnWake, activity_wake
from headgate.durable.service import Service
from headgate.store.catalogue.tables import ACTIVITIES, EXECUTIONS, INBOXES, TIMERS
from headgate.store.model.requests import Query, Range, Sort
from headgate.store.model.schema import Table
from headgate.store.model.values import Item

_MINUTE_MS: Final = 60_000
# A prime, so that sweeps at any interval hit some of its multiples.
_LATER_MINUTES: Final = 61
_OVERDUE_MAX: Final = 1_000
_PAGE: Final = 200
_PAGES_MAX: Final = 20
_log = structlog.get_logger(__name__)


class WakeSweep:
    """Sweeps for one app. Any number of sweeps may run at once."""

    def __init__(self, service: Service, task_queues: Sequence[str]) -> None:
        self._store = service.store
        self._clock = service.clock
        self._task_queues = task_queues
        self._schedules = service.schedules
        self._bus = service.bus
        self._worker = service.worker(queues=())
        self._inboxes = Inboxes(service.store, service.ids)
        self._archiver = Archiver(service.store, service.clock, service.archive)
        self.workers = LeaseWatch(self._worker, service.store)
        self._served = FunctionApp(
            app=service.app.name,
            build=service.build,
            workflows=tuple(sorted(service.app.workflows)),
            activities=tuple(sorted(service.app.activity_names())),
            queues=tuple(sorted(task_queues)),
            schedules=self._worker.declared_schedules,
            patches=self._worker.patches(),
        )

    def register(self) -> None:
        """Register what the functions serve, and have the stored schedules agree with those that the app declares."""
        now_ms = self._worker.activities.now_ms()
        if FunctionApps(self._store).register(replace(self._served, registered_at_ms=now_ms)):
            _log.info("functions registered", app=self._served.app, build=self._served.build)
        # Workers beside the functions may have an older or a newer build.
        self._worker.fleet.refresh()
        self._worker.reconcile_schedules()

    def overdue(self) -> list[Due]:
        """Return wake-ups for all work that has waited too long, and a check of every worker."""
        now_ms = self._worker.activities.now_ms()
        cause = f"sweep~{now_ms}"
        turns: dict[tuple[str, str | None], Due] = {}
        for table, index, partition in (
            (EXECUTIONS, "ready-index", UNDISPATCHED),
            (INBOXES, "ready-index", INBOX),
            (TIMERS, "due-index", TIMERS_DUE),
        ):
            for item in self._overdue_rows(table, index, partition, now_ms):
                wake = TurnWake(item["execution_id"], f"{cause}#{item.get('timer_id', '')}", item.get("timer_id"))
                turns[wake.execution_id, wake.timer_id] = Due(wake, AT_ONCE_MS)
        tasks = [
            Due(activity_wake(item), AT_ONCE_MS)
            for queue in self._task_queues
            for item in self._overdue_rows(ACTIVITIES, "queue-index", queue_partition(queue), now_ms)
        ]
        return [*turns.values(), *tasks, *self.workers.checks()]

    def run_maintenance(self, is_over: Callable[[], bool]) -> None:
        """Time out unclaimed activities, fire schedules, complete deliveries, release stuck executions, archive."""
        self._worker.deadlines.end_unclaimed(limit=_OVERDUE_MAX)
        store_results(self._worker, self._inboxes, self._clock.sleep, is_over)
        self._schedules.fire_due(self._worker.activities.now_ms(), _PAGE)
        self._bus.sweep()
        self._worker.release_stuck()
        if not is_over():
            self._archiver.archive_due()

    def _overdue_rows(self, table: Table, index: str, partition: str, now_ms: int) -> Iterator[Item]:
        """Yield overdue rows that are due for a wake-up, newest first, so that stuck rows do not hide the others."""
        due_by = table.index(index).sort
        assert due_by is not None, "an index of due rows is ordered by time"
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
            yield from (item for item in page.items if is_wake_due(now_ms - item[due_by.name]))
            cursor = page.cursor
            if cursor is None:
                return


def is_wake_due(waited_ms: int) -> bool:
    """Whether a row gets another wake-up now: after one minute, two, four and so on, and about every hour.

    The backoff keeps a backlog from growing by a wake-up per row and minute.
    """
    minutes = waited_ms // _MINUTE_MS
    is_power_of_two = minutes > 0 and minutes & (minutes - 1) == 0
    return is_power_of_two or (minutes > 0 and minutes % _LATER_MINUTES == 0)
