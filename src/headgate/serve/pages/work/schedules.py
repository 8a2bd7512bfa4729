"""Schedule pages: the list, and one schedule with its next slots and latest fires."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from headgate.auth.roles import Permission
from headgate.durable.schedules.slots import Overlap
from headgate.serve.pages.actions import Action, Field, FieldKind, Tone, allowed
from headgate.serve.pages.api_calls import ApiCaller, Section, segment, twin
from headgate.serve.pages.labels import command, options
from headgate.serve.pages.live_updates import ALL_WORK, changes_of
from headgate.serve.pages.page import Chip, Page, PageRequest, PageRoute, chips, following

ADDRESS: Final = "/ui/schedules"
LISTED: Final = 100
PREVIEWED: Final = 10
FILTERS: Final = ("state", "workflow", "cursor")
_ACTIVE, _PAUSED = "active", "paused"
_STATES: Final = (("All", ""), ("Active", _ACTIVE), ("Paused", _PAUSED))


class ScheduleList(Struct, frozen=True, kw_only=True):
    """A page of the list."""

    schedules: list[Any]
    chips: list[Chip]
    filters: Mapping[str, Any]
    is_filtered: bool
    more: str


class SchedulePage(Struct, frozen=True, kw_only=True):
    """View of a schedule."""

    schedule: Any
    preview: Section
    next_cli: str


def schedule_list(api: ApiCaller, query: Mapping[str, Any]) -> ScheduleList:
    """Return a page of the list. Raises as the API operation."""
    found, cursor = api.found("GET /schedules", "schedules", query={**_asked(query), "limit": LISTED})
    return ScheduleList(
        schedules=found,
        chips=chips(ADDRESS, query, "state", _STATES),
        filters={name: query.get(name, "") for name in FILTERS},
        is_filtered=any(query.get(name) for name in ("state", "workflow")),
        more=following(ADDRESS, query, cursor),
    )


def _asked(query: Mapping[str, Any]) -> dict[str, Any]:
    """Return the filters of the API for those of the page."""
    found = {name: value for name, value in query.items() if name != "state"}
    return found if not query.get("state") else {**found, "paused": str(query["state"] == _PAUSED).lower()}


def schedule_actions(api: ApiCaller, schedule: Mapping[str, Any]) -> tuple[Action, ...]:
    """Return the actions that fit the state of a schedule."""
    schedule_id, version = schedule["id"], f'"{schedule["revision"]}"'
    base = f"/schedules/{segment(schedule_id)}"
    if schedule["paused"]:
        first = Action(
            label="Resume",
            sentence="The schedule starts its workflow again from the next slot on.",
            path=f"{base}/resume",
            fields=(),
            cli=command("schedule", "resume", schedule_id),
            tone=Tone.PRIMARY,
            if_match=version,
            done="The schedule is active.",
        )
    else:
        first = Action(
            label="Pause",
            sentence="No further slot starts the workflow; open executions go on.",
            path=f"{base}/pause",
            cli=f"{command('schedule', 'pause', schedule_id)} --reason {{reason}}",
            if_match=version,
            done="The schedule is paused.",
        )
    found = (
        first,
        Action(
            label="Trigger now",
            sentence=f"Starts {schedule['workflow']} once with the input of the schedule, beside its slots.",
            path=f"{base}/trigger",
            fields=(
                Field(
                    name="overlap", label="If one is open", kind=FieldKind.CHOICE, value=Overlap.ALLOW.value,
                    choices=tuple(each.value for each in Overlap),
                ),
            ),
            cli=f"{command('schedule', 'trigger', schedule_id)} --overlap {{overlap}}",
            done="It is started.",
        ),
        Action(
            label="Delete",
            sentence="Deletes the schedule. Executions that it started stay.",
            method="DELETE",
            path=base,
            fields=(),
            cli=command("schedule", "delete", schedule_id),
            tone=Tone.DANGER,
            if_match=version,
            done="The schedule is deleted.",
        ),
    )  # fmt: skip
    return tuple(allowed(api, Permission.SCHEDULE_WRITE, each) for each in found)


def _list(api: ApiCaller, request: PageRequest) -> Page:
    query = request.query
    state = [f"--{query['state']}"] if query.get("state") in (_ACTIVE, _PAUSED) else []
    return Page(
        template="schedules.html",
        title="Schedules",
        view=schedule_list(api, query),
        json=twin("/schedules", _asked(query)),
        cli=command("schedule", "ls", *state, *options([("--workflow", query.get("workflow"))])),
        changes=changes_of(of=ALL_WORK),
        section="schedules",
    )


def _one(api: ApiCaller, request: PageRequest) -> Page:
    schedule_id = request.path["schedule_id"]
    path = {"id": schedule_id}
    schedule = api.call("GET /schedules/{id}", path=path)
    return Page(
        template="schedule.html",
        title=schedule_id,
        crumbs=(("Schedules", ADDRESS),),
        view=SchedulePage(
            schedule=schedule,
            preview=api.section("GET /schedules/{id}/preview", path=path, query={"n": PREVIEWED}),
            next_cli=command("schedule", "next", schedule_id),
        ),
        actions=schedule_actions(api, schedule),
        json=twin(f"/schedules/{segment(schedule_id)}"),
        cli=command("schedule", "show", schedule_id),
        changes=changes_of(of=ALL_WORK),
        section="schedules",
    )


PAGES: Final = (
    PageRoute("/schedules", _list, FILTERS, needs="GET /schedules"),
    PageRoute("/schedules/{schedule_id:str}", _one),
)
