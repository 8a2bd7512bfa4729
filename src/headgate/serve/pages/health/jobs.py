"""Job pages: jobs of other tools with their last runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from headgate.health.jobs.model import JobState
from headgate.serve.pages.api_calls import ApiCaller, segment, twin
from headgate.serve.pages.labels import command, options
from headgate.serve.pages.live_updates import changes_of
from headgate.serve.pages.page import Page, PageRequest, PageRoute

ADDRESS: Final = "/ui/jobs"
LISTED: Final = 50
FILTERS: Final = ("search", "state", "namespace")


class JobList(Struct, frozen=True, kw_only=True):
    """A page of jobs."""

    jobs: list[Any]
    next_page_token: str | None
    filters: Mapping[str, str]
    states: tuple[str, ...] = tuple(each.value for each in JobState)


class JobPage(Struct, frozen=True, kw_only=True):
    """A job with its runs."""

    job: Any
    runs: list[Any]
    pipeline_id: str | None


def _list(api: ApiCaller, request: PageRequest) -> Page:
    found = api.call("GET /jobs", query={**request.query, "page_size": LISTED})
    filters = {name: str(request.query.get(name, "")) for name in FILTERS}
    names = {"search": "--search", "state": "--state", "namespace": "--namespace"}
    return Page(
        template="jobs.html",
        title="Jobs",
        view=JobList(jobs=found["items"], next_page_token=found["next_page_token"], filters=filters),
        json=twin("/jobs", request.query),
        cli=command("job", "ls", *options((names[name], value) for name, value in filters.items())),
        changes=changes_of(),
        section="jobs",
    )


def _one(api: ApiCaller, request: PageRequest) -> Page:
    job_id = request.path["job_id"]
    found = api.call("GET /jobs/{job_id}", path={"job_id": job_id})
    return Page(
        template="job.html",
        title=found["job"]["name"],
        crumbs=(("Jobs", ADDRESS),),
        view=JobPage(job=found["job"], runs=found["runs"], pipeline_id=found["pipeline_id"]),
        json=twin(f"/jobs/{segment(job_id)}"),
        cli=command("job", "show", job_id),
        changes=changes_of(),
        section="jobs",
    )


PAGES: Final = (PageRoute("/jobs", _list, (*FILTERS, "page_token")), PageRoute("/jobs/{job_id:str}", _one))
