"""Job log: the events of the jobs of each period, in order."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from headgate.pipelines.runs.rows import JOB_LOG_SECONDS, JobLogEntry, Slot, job_of, job_put
from headgate.store.catalogue.tables import PIPELINES
from headgate.store.model.requests import Query, Range, Sort, Write
from headgate.store.port import Store


class JobLogPage(Struct, frozen=True):
    """A page of entries, latest first."""

    entries: list[JobLogEntry]
    cursor: str | None = None


class JobLog:
    """Stores the job log. It is an audit trail: the run log decides whether a period is over."""

    def __init__(self, store: Store, *, kept_seconds: int = JOB_LOG_SECONDS) -> None:
        self._store = store
        self._kept_seconds = kept_seconds

    def entry_write(self, entry: JobLogEntry) -> Write:
        """Return the write of an entry, for the transaction of the change that it records."""
        return job_put(entry, kept_seconds=self._kept_seconds)

    def note(self, entry: JobLogEntry, *, also: Sequence[Write] = ()) -> None:
        """Add an entry. The same event of the same run at the same time is one entry."""
        self._store.transact([self.entry_write(entry), *also])

    def ls(self, slot: Slot, *, limit: int = 100, cursor: str | None = None) -> JobLogPage:
        """Return the entries of a period, latest first."""
        page = self._store.query(_of_period(slot, limit, cursor))
        return JobLogPage([job_of(item) for item in page.items], page.cursor)

    def latest(self, slot: Slot, *, run_id: str = "") -> JobLogEntry | None:
        """Return the latest entry of a period, or of one of its runs."""
        cursor: str | None = None
        while True:
            page = self._store.query(_of_period(slot, 1 if not run_id else 100, cursor))
            entries = (job_of(item) for item in page.items if not run_id or item.get("run_id") == run_id)
            entry = next(entries, None)
            cursor = page.cursor
            if entry is not None or cursor is None:
                return entry


def _of_period(slot: Slot, limit: int, cursor: str | None) -> Query:
    return Query(
        table=PIPELINES,
        partition=f"PIPELINE#{slot.pipeline_id}",
        # Including the delimiter after the date: the prefix of a day would match its hours.
        sort=Sort(Range.BEGINS_WITH, f"JOB#{slot.schedule_id}#{slot.date}#"),
        limit=limit,
        cursor=cursor,
        descending=True,
        consistent=True,
    )
