"""`headgate schedule`: workflows that are started again and again."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from headgate.cli.api import Api, Input, Since, Tags, Until, asks, at, read_json, read_tags
from headgate.cli.output import compact, short, show_facts, show_table
from headgate.cli.session import Json, echo_json

app = typer.Typer(help="Recurring starts of workflows.", no_args_is_help=True, rich_markup_mode=None)

Id = Annotated[str, typer.Argument(metavar="ID", help="The schedule.")]
Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="For whoever wonders.")]


class Overlap(StrEnum):
    """What to do when a slot comes while an execution of the schedule is still open."""

    SKIP = "skip"
    BUFFER_ONE = "buffer_one"
    ALLOW = "allow"
    CANCEL_OTHER = "cancel_other"
    TERMINATE_OTHER = "terminate_other"


class CatchUp(StrEnum):
    """What to do about slots that nobody was there to start."""

    NONE = "none"
    LAST = "last"
    ALL = "all"


@app.command("create")
@asks
def create(  # noqa: PLR0913 - each is an option
    api: Api,
    id: Id,
    workflow: Annotated[str, typer.Option(metavar="NAME", help="What is started.")],
    cron: Annotated[str, typer.Option(metavar="WHEN", help="'0 6 * * MON-FRI', @hourly, or 'every 15m'.")],
    zone: Annotated[str, typer.Option(metavar="ZONE", help="Such as Europe/Berlin.")] = "UTC",
    input: Input = None,
    overlap: Annotated[Overlap, typer.Option(help="What to do while one is still open.")] = Overlap.SKIP,
    catchup: Annotated[CatchUp, typer.Option(help="What to do about slots that were missed.")] = CatchUp.LAST,
    jitter: Annotated[str | None, typer.Option(metavar="DURATION", help="Spread the starts over this time.")] = None,
    timeout: Annotated[str | None, typer.Option(metavar="DURATION", help="End each execution after this.")] = None,
    tag: Tags = None,
    paused: Annotated[bool, typer.Option("--paused", help="Start nothing yet.")] = False,
    as_json: Json = False,
) -> None:
    """Make a schedule."""
    body = {
        "id": id,
        "workflow": workflow,
        "cron": cron,
        "zone": zone,
        "input": read_json(input, "--input"),
        "overlap": overlap.value,
        "catchup": catchup.value,
        "jitter": jitter,
        "timeout": timeout,
        "tags": read_tags(tag),
        "paused": paused,
    }
    _say(api.post("/schedules", body), as_json=as_json)


@app.command("ls")
@asks
def ls(api: Api, as_json: Json = False) -> None:
    """List schedules, those that are due next first."""
    found: list[dict[str, Any]] = []
    cursor = None
    while True:
        page = api.get("/schedules", limit=1000, cursor=cursor)
        found += page["schedules"]
        cursor = page["cursor"]
        if cursor is None:
            break
    if as_json:
        echo_json(found)
        return
    rows = [
        (each["id"], each["workflow"], each["cron"], each["zone"], _next(each), _last(each), each.get("reason", ""))
        for each in found
    ]
    show_table(("ID", "WORKFLOW", "CRON", "ZONE", "NEXT", "LAST", ""), rows, nothing="no schedules")


@app.command("show")
@asks
def show(
    api: Api,
    id: Id,
    as_json: Json = False,
) -> None:
    """Show a schedule, and what became of its last slots."""
    found = api.get(at("schedules", id))
    if as_json:
        echo_json(found)
        return
    fires = found.pop("fires", [])
    found["input"] = compact(found["input"])
    show_facts(found)
    rows = [(each["slot"], short(each["at"]), _outcome(each)) for each in fires]
    show_table(("SLOT", "JUDGED", "OUTCOME"), rows, nothing="no slot has been judged yet")


@app.command("pause")
@asks
def pause(
    api: Api,
    id: Id,
    reason: Reason = "",
    as_json: Json = False,
) -> None:
    """Start nothing for now, but by hand and by backfill."""
    _say(api.post(at("schedules", id, "pause"), {"reason": reason}), as_json=as_json)


@app.command("resume")
@asks
def resume(
    api: Api,
    id: Id,
    as_json: Json = False,
) -> None:
    """Start again, with the slots from now on."""
    _say(api.post(at("schedules", id, "resume")), as_json=as_json)


@app.command("trigger")
@asks
def trigger(
    api: Api,
    id: Id,
    overlap: Annotated[Overlap, typer.Option(help="What to do if one is open.")] = Overlap.ALLOW,
    request_id: Annotated[str | None, typer.Option(metavar="ID", help="The same again starts nothing more.")] = None,
    as_json: Json = False,
) -> None:
    """Start an execution now, and print its id."""
    body = {"overlap": overlap.value, "id": request_id}
    fire = api.post(at("schedules", id, "trigger"), body)
    if as_json:
        echo_json(fire)
    else:
        typer.echo(_outcome(fire))


@app.command("backfill")
@asks
def backfill(
    api: Api,
    id: Id,
    since: Since,
    until: Until,
    overlap: Annotated[Overlap, typer.Option(help="buffer_one: one by one; allow: side by side.")] = Overlap.BUFFER_ONE,
    as_json: Json = False,
) -> None:
    """Start the slots of a past time."""
    body = {"since": since, "until": until, "overlap": overlap.value}
    answer = api.post(at("schedules", id, "backfill"), body)
    if as_json:
        echo_json(answer)
    else:
        typer.echo(f"{id}: {len(answer.get('backfills', []))} backfills under way")


@app.command("stop-backfills")
@asks
def stop_backfills(api: Api, id: Id, as_json: Json = False) -> None:
    """Start no further slots of past times; what was started goes on."""
    answer = api.post(at("schedules", id, "stop-backfills"))
    if as_json:
        echo_json(answer)
    else:
        typer.echo(f"{id}: no backfills under way")


@app.command("next")
@asks
def next_slots(
    api: Api,
    id: Id,
    count: Annotated[int, typer.Option("-n", min=1, max=1000, help="How many.")] = 10,
    as_json: Json = False,
) -> None:
    """Show the slots to come, as if it were not paused."""
    found = api.get(at("schedules", id, "preview"), n=count)["slots"]
    if as_json:
        echo_json(found)
        return
    rows = [(each["slot"], each["due"] if each["due"] != each["slot"] else "") for each in found]
    show_table(("SLOT", "TAKEN AT"), rows, nothing="no slots to come")


@app.command("delete")
@asks
def delete(
    api: Api,
    id: Id,
    as_json: Json = False,
) -> None:
    """Remove a schedule; what it started goes on."""
    api.request("DELETE", at("schedules", id))
    if as_json:
        echo_json({"deleted": id})
    else:
        typer.echo(f"{id}: it is removed")


def _say(schedule: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        echo_json(schedule)
    else:
        typer.echo(
            f"{schedule['id']}: {schedule['workflow']}, {schedule['cron']} {schedule['zone']}; next {_next(schedule)}"
        )


def _next(schedule: dict[str, Any]) -> str:
    if schedule["paused"]:
        return "paused"
    return short(schedule.get("next")) or "never"


def _last(schedule: dict[str, Any]) -> str:
    fires = schedule.get("fires", [])
    return _outcome(fires[-1]) if fires else ""


def _outcome(fire: dict[str, Any]) -> str:
    if fire.get("skipped"):
        blocked = f" by {fire['blocked_by']}" if fire.get("blocked_by") else ""
        return f"skipped: {fire['skipped']}{blocked}"
    return str(fire["execution_id"])
