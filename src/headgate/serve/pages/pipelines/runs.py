"""Run list: runs across pipelines by state, with the step that fits each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct, structs

from headgate.health.model.timestamps import instant
from headgate.pipelines.enums import RunStatus
from headgate.pipelines.runs.rows import Slot
from headgate.serve.pages.actions import Action, Tone, allowed
from headgate.serve.pages.api_calls import ApiCaller, twin
from headgate.serve.pages.labels import command, options
from headgate.serve.pages.live_updates import ALL_PIPELINES, changes_of
from headgate.serve.pages.page import Chip, Page, PageRequest, PageRoute, chips, following
from headgate.serve.pages.pipelines.actions import cancel, rerun

ADDRESS: Final = "/ui/runs"
LISTED: Final = 50
# Choices of the time range, in hours.
RANGES: Final[Mapping[str, float]] = {"1h": 1, "6h": 6, "24h": 24, "7d": 7 * 24}
FILTERS: Final = ("status", "pipeline", "owner", "tier", "within", "cursor")
_OPEN: Final = [each.value for each in (RunStatus.PENDING, RunStatus.TRIGGERING, RunStatus.RUNNING)]
_STATES: Final[tuple[tuple[str, str | list[str]], ...]] = (
    ("All", ""),
    ("Open", _OPEN),
    ("Running", [RunStatus.RUNNING.value]),
    ("Failed", [RunStatus.FAILED.value]),
    ("Completed", [RunStatus.COMPLETED.value, RunStatus.COMPLETED_MONITORING.value]),
    ("Cancelled", [RunStatus.CANCELLED.value]),
)


class RunRow(Struct, frozen=True):
    """A run and its next step, if there is one."""

    run: Any
    action: Action | None


class RunList(Struct, frozen=True, kw_only=True):
    """A page of the list."""

    rows: list[RunRow]
    chips: list[Chip]
    filters: Mapping[str, Any]
    is_filtered: bool
    more: str
    ranges: tuple[str, ...] = tuple(RANGES)


def since(api: ApiCaller, query: Mapping[str, Any]) -> dict[str, Any]:
    """Return the filters of the API for those of a page: a time range becomes the time that it starts at."""
    found = {name: value for name, value in query.items() if name != "within"}
    hours = RANGES.get(str(query.get("within", "")))
    return found if hours is None else {**found, "since": instant(api.now_ms - round(hours * 3_600_000))}


def run_action(api: ApiCaller, run: Mapping[str, Any]) -> Action | None:
    """Return the step that fits the state of a run: cancel an open one, rerun a failed one."""
    status = RunStatus(run["status"])
    if status.value in _OPEN:
        action, permission = cancel(run["run_id"])
    elif status is RunStatus.FAILED:
        slot = Slot(run["pipeline_id"], run["schedule_id"], run["date"])
        action, permission = rerun(slot, ("--schedule", slot.schedule_id), Tone.PLAIN)
    else:
        return None
    # In a list, the dialog says which run it is about.
    sentence = f"{run['pipeline_id']} of {run['date']}: {action.sentence[0].lower()}{action.sentence[1:]}"
    return allowed(api, permission, structs.replace(action, sentence=sentence))


def run_list(api: ApiCaller, query: Mapping[str, Any]) -> RunList:
    """Return a page of the list. Raises as the API operation."""
    runs, cursor = api.found("GET /runs", "runs", query={**since(api, query), "limit": LISTED})
    return RunList(
        rows=[RunRow(each, run_action(api, each)) for each in runs],
        chips=chips(ADDRESS, query, "status", _STATES),
        filters={name: query.get(name, "") for name in FILTERS},
        is_filtered=any(query.get(name) for name in FILTERS),
        more=following(ADDRESS, query, cursor),
    )


def _list(api: ApiCaller, request: PageRequest) -> Page:
    query = request.query
    pipeline = [query["pipeline"]] if query.get("pipeline") else []
    given = (
        ("--status", query.get("status", [])),
        ("--owner", query.get("owner")),
        ("--tier", query.get("tier")),
        ("--since", query.get("within")),
    )
    return Page(
        template="runs.html",
        title="Runs",
        view=run_list(api, query),
        json=twin("/runs", since(api, query)),
        cli=command("run", "ls", *pipeline, *options(given)),
        changes=changes_of(of=ALL_PIPELINES),
        section="runs",
    )


PAGES: Final = (PageRoute("/runs", _list, FILTERS, frozenset({"status"}), needs="GET /runs"),)
