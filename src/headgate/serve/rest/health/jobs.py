"""Jobs API: jobs outside Headgate that OpenLineage and dbt report, and their runs."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from headgate.auth.roles import Permission
from headgate.auth.rules import Reach, Rule
from headgate.errors import InvalidPayloadError
from headgate.health.jobs.model import JobState, OutsideJob
from headgate.health.jobs.service import JobFilter
from headgate.health.service import HealthService
from headgate.serve.http.operations import Answer, Call, NoQuery, Operation
from headgate.serve.rest.health.models import Name, complete

_EVERY = Rule(Permission.LINEAGE_READ, Reach.ALL)


class JobQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """Filter of jobs, and the page: `after` is the number of jobs to skip."""

    state: JobState | None = None
    namespace: Name = ""
    search: Name = ""
    page_size: Annotated[int, Meta(ge=1, le=1_000)] = 50
    page_token: Name = ""


class JobPage(Struct, frozen=True, kw_only=True):
    """A page of jobs, the latest first."""

    items: list[OutsideJob]
    next_page_token: str | None = None


class RunView(Struct, frozen=True, kw_only=True):
    """A run of a job."""

    run_id: str
    state: JobState
    started_at: str | None
    ended_at: str | None
    duration_seconds: float | None
    nominal_at: str | None
    message: str
    parent_job: str | None
    parent_run_id: str | None


class JobView(Struct, frozen=True, kw_only=True):
    """A job with its last runs, the latest first. `pipeline_id` is set if it is a pipeline of this server."""

    job: OutsideJob
    runs: list[RunView]
    pipeline_id: str | None


def job_operations(health: HealthService) -> list[Operation]:
    """Return the operations on jobs outside Headgate."""

    def ls(call: Call[None, JobQuery]) -> Answer:
        query = call.query
        if query.page_token and not query.page_token.isdecimal():
            raise InvalidPayloadError(f"page_token {query.page_token[:40]!r}: send next_page_token of the page before")
        start = int(query.page_token or 0)
        found = health.jobs.ls(JobFilter(state=query.state, namespace=query.namespace, search=query.search))
        end = start + query.page_size
        token = str(end) if end < len(found) else None
        return Answer(complete(JobPage(items=found[start:end], next_page_token=token)))

    def show(call: Call[None, NoQuery]) -> Answer:
        found = health.jobs.get(call.path["job_id"])
        runs = [
            RunView(
                run_id=each.run_id,
                state=each.state,
                started_at=each.started_at,
                ended_at=each.ended_at,
                duration_seconds=each.duration_seconds,
                nominal_at=each.nominal_at,
                message=each.message,
                parent_job=each.parent_job,
                parent_run_id=each.parent_run_id,
            )
            for each in found.runs
        ]
        prefix, _, pipeline_id = found.job.job_id.partition(":")
        view = JobView(job=found.job, runs=runs, pipeline_id=pipeline_id if prefix == "pipeline" else None)
        return Answer(complete(view))

    return [
        Operation("GET", "/jobs", "List jobs that tools report", ls, {200: JobPage}, query=JobQuery, rule=_EVERY),
        Operation("GET", "/jobs/{job_id}", "Show a job and its runs", show, {200: JobView}, rule=_EVERY),
    ]
