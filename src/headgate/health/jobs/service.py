"""Jobs in the store: a row for the list, and a row with the last runs of each job."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Struct

from headgate import typed_decode
from headgate.clock import Clock
from headgate.errors import ConflictError, NotFoundError, StoreBusyError
from headgate.health.jobs.model import JobHistory, JobState, OutsideJob, OutsideRun, RunReport, folded
from headgate.store.catalogue.tables import CONTROL, OUTSIDE_JOB, OUTSIDE_RUNS
from headgate.store.model.conditions import absent, version_is
from headgate.store.model.requests import Put, Query, Write
from headgate.store.model.schema import Key
from headgate.store.model.values import Item
from headgate.store.port import Store

SHARDS: Final = 8
# A job that no tool reports any more.
KEPT_SECONDS: Final = 90 * 24 * 3600
LISTED_MAX: Final = 5_000
ATTEMPTS_MAX: Final = 20
TOGETHER: Final = 50
_PAGE: Final = 1_000


class JobFilter(Struct, frozen=True, kw_only=True):
    """Filter of a listing. `search` is a text in the namespace, the name or the integration, ignoring case."""

    state: JobState | None = None
    namespace: str | None = None
    search: str = ""

    def admits(self, job: OutsideJob) -> bool:
        """Whether a job matches."""
        text = f"{job.namespace} {job.name} {job.integration}".casefold()
        return (
            self.state in (None, job.state)
            and self.namespace in (None, "", job.namespace)
            and self.search.casefold() in text
        )


class OutsideJobs:
    """Jobs outside Headgate. Safe to use from many threads and processes."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def record(self, report: RunReport) -> None:
        """Store a report about a run. Repeating it changes nothing. Raises `StoreBusyError` after many conflicts."""
        for _ in range(ATTEMPTS_MAX):
            known = self._read(report.job_id)
            after = folded(known, report)
            if after is None or after is known:
                return
            try:
                self._store.transact(self._writes(known, after))
            except ConflictError:
                continue
            return
        raise StoreBusyError(f"job {report.job_id}: {ATTEMPTS_MAX} conflicts with other writers; try again")

    def record_many(self, reports: Sequence[RunReport]) -> None:
        """Store reports about runs of different jobs, in few transactions."""
        for start in range(0, len(reports), TOGETHER):
            self._record_together(reports[start : start + TOGETHER])

    def _record_together(self, reports: Sequence[RunReport]) -> None:
        planned = []
        for report, known in zip(reports, self._read_many([each.job_id for each in reports]), strict=True):
            after = folded(known, report)
            if after is not None and after is not known:
                planned.append((report, self._writes(known, after)))
        outcomes = self._store.transact_many([writes for _, writes in planned]) if planned else []
        for (report, _), error in zip(planned, outcomes, strict=True):
            if isinstance(error, ConflictError):
                self.record(report)
            elif error is not None:
                raise error

    def _writes(self, known: JobHistory | None, after: JobHistory) -> list[Write]:
        ttl = int(self._clock.seconds()) + KEPT_SECONDS
        job_id = after.job.job_id
        key = CONTROL.key_attributes(_key(job_id))
        row = {**msgspec.to_builtins(after.job), **key, "version": after.job.version, "ttl": ttl}
        runs = {
            **CONTROL.key_attributes(OUTSIDE_RUNS.key(job_id=job_id)),
            "runs": msgspec.to_builtins(after.runs),
            "ttl": ttl,
        }
        condition = absent() if known is None else version_is(known.job.version)
        return [Put(CONTROL, row, condition), Put(CONTROL, runs)]

    def get(self, job_id: str) -> JobHistory:
        """Return a job with its last runs. Raises `NotFoundError`."""
        found = self._read(job_id)
        if found is None:
            raise NotFoundError(f"job {job_id[:80]}: no run was reported; 'headgate job ls' lists the jobs")
        return found

    def ls(self, wanted: JobFilter) -> list[OutsideJob]:
        """Return the jobs that match, the latest first; at most `LISTED_MAX`."""
        found: list[OutsideJob] = []
        for shard in range(SHARDS):
            cursor: str | None = None
            while len(found) < LISTED_MAX:
                partition = OUTSIDE_JOB.key(shard=shard, job_id="-").partition
                page = self._store.query(Query(table=CONTROL, partition=partition, limit=_PAGE, cursor=cursor))
                jobs = (typed_decode.convert(item, OutsideJob) for item in page.items)
                found += [each for each in jobs if wanted.admits(each)]
                cursor = page.cursor
                if cursor is None:
                    break
        return sorted(found, key=lambda each: (each.at, each.job_id), reverse=True)

    def _read(self, job_id: str) -> JobHistory | None:
        [found] = self._read_many([job_id])
        return found

    def _read_many(self, job_ids: Sequence[str]) -> list[JobHistory | None]:
        keys = [key for job_id in job_ids for key in (_key(job_id), OUTSIDE_RUNS.key(job_id=job_id))]
        rows = self._store.get_many(CONTROL, keys, consistent=True)
        return [_history(row, runs) for row, runs in zip(rows[::2], rows[1::2], strict=True)]


def _history(row: Item | None, runs: Item | None) -> JobHistory | None:
    if row is None:
        return None
    past = () if runs is None else typed_decode.convert(runs["runs"], tuple[OutsideRun, ...])
    return JobHistory(job=typed_decode.convert(row, OutsideJob), runs=past)


def _key(job_id: str) -> Key:
    return OUTSIDE_JOB.key(shard=zlib.crc32(job_id.encode(errors="replace")) % SHARDS, job_id=job_id)
