"""`headgate schedule`: workflows that are started again and again."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headgate.cli.api_client import Api, asks, at
from headgate.cli.durable.schedule_edit import Id, Overlap, create, next_slot, say, update
from headgate.cli.output import compact, short, show_facts, show_table
from headgate.cli.session import Json, echo_json
from headgate.cli.times import Since, Until, asked

app = typer.Typer(help="Recurring starts of workflows.", no_args_is_help=True, rich_markup_mode=None)

app.command("create")(create)
app.command("update")(update)

Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="For whoever wonders.")]


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
        (each["id"], each["workflow"], each["cron"], each["zone"], next_slot(each), _last(each), each.get("reason", ""))
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
    say(api.post(at("schedules", id, "pause"), {"reason": reason}), as_json=as_json)


@app.command("resume")
@asks
def resume(
    api: Api,
    id: Id,
    as_json: Json = False,
) -> None:
    """Start again, with the slots from now on."""
    say(api.post(at("schedules", id, "resume")), as_json=as_json)


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
    body = {"since": asked(since, "--since"), "until": asked(until, "--until"), "overlap": overlap.value}
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
    found = api.get(at("schedules", id, "preview"), n=count)
    if as_json:
        echo_json(found["slots"])
        return
    zone = found["zone"]
    rows = [
        (each["slot"], "" if zone == "UTC" else _local(each), each["due"] if each["due"] != each["slot"] else "")
        for each in found["slots"]
    ]
    show_table(("SLOT", "" if zone == "UTC" else zone, "TAKEN AT"), rows, nothing="no slots to come")


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


def _local(slot: dict[str, Any]) -> str:
    """Return what time a slot is where the schedule is, with the day: some hours are there twice, some never."""
    from datetime import datetime

    moment = datetime.fromisoformat(slot["local"])
    return f"{moment:%a %Y-%m-%d %H:%M:%S %z}"


def _last(schedule: dict[str, Any]) -> str:
    fires = schedule.get("fires", [])
    return _outcome(fires[-1]) if fires else ""


def _outcome(fire: dict[str, Any]) -> str:
    if fire.get("skipped"):
        blocked = f" by {fire['blocked_by']}" if fire.get("blocked_by") else ""
        return f"skipped: {fire['skipped']}{blocked}"
    return str(fire["execution_id"])
