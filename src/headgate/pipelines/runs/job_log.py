"""The job log: what happened to the jobs of each period, in order."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from headgate.pipelines.runs.rows import JOB_LOG_SECONDS, JobLogEntry, Slot, job_of, job_put
from headgate.store.catalogue.tables import PIPELINES
from headgate.store.model.requests import Query, Range, Sort, Write
from headgate.store.port import Store


class JobLogPage(Struct, frozen=True):
    """Some entries, the latest first."""

    entries: list[JobLogEntry]
    cursor: str | None = None


class JobLog:
    """The job log of one store. It is for reading back: whether a period is over is for its run log to say."""

    def __init__(self, store: Store, *, kept_seconds: int = JOB_LOG_SECONDS) -> None:
        self._store = store
        self._kept_seconds = kept_seconds

    def entry_write(self, entry: JobLogEntry) -> Write:
        """Return the write of an entry, for the transaction of the change that it tells of."""
        return job_put(entry, kept_seconds=self._kept_seconds)

    def note(self, entry: JobLogEntry, *, also: Sequence[Write] = ()) -> None:
        """Add an entry. The same thing of the same run at the same moment is one entry."""
        self._store.transact([self.entry_write(entry), *also])

    def ls(self, slot: Slot, *, limit: int = 100, cursor: str | None = None) -> JobLogPage:
        """Return the entries of a period, the latest first."""
        page = self._store.query(_of_period(slot, limit, cursor))
        return JobLogPage([job_of(item) for item in page.items], page.cursor)

    def latest(self, slot: Slot, *, run_id: str = "") -> JobLogEntry | None:
        """Return the last entry of a period, or of one run of it: what an earlier attempt did says nothing of this."""
        cursor: str | None = None
        while True:
            page = self._store.query(_of_period(slot, 1 if not run_id else 100, cursor))
            found = (job_of(item) for item in page.items if not run_id or item.get("run_id") == run_id)
            entry = next(found, None)
            cursor = page.cursor
            if entry is not None or cursor is None:
                return entry


def _of_period(slot: Slot, limit: int, cursor: str | None) -> Query:
    return Query(
        table=PIPELINES,
        partition=f"PIPELINE#{slot.pipeline_id}",
        # Up to the sign that ends the date, or a day would find its hours.
        sort=Sort(Range.BEGINS_WITH, f"JOB#{slot.schedule_id}#{slot.date}#"),
        limit=limit,
        cursor=cursor,
        descending=True,
        consistent=True,
    )
