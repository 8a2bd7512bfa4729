"""`headgate schedule`: manages recurring starts of workflows."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headgate.cli.api_client import Api, at
from headgate.cli.commands import Answer, Option, add_action, add_deletion, command_group, server_command
from headgate.cli.durable.schedule_edit import Id, Overlap, create, next_slot, schedule_text, update
from headgate.cli.options import Limit, OwnerOption, PipelineOption, Reason, Since, TierOption, Until
from headgate.cli.output import compact, short, show_cut, show_facts, show_table
from headgate.cli.times import past_time

app = command_group("Manage recurring starts of workflows, and list the next slots of pipelines.")

app.command("create")(create)
app.command("update")(update)


@server_command(app, "ls")
def ls(
    api: Api,
    workflow: Annotated[str | None, typer.Option("--workflow", metavar="NAME", help="Filter by workflow.")] = None,
    paused: Annotated[
        bool | None, typer.Option("--paused/--active", help="Filter by state. [default: both]", show_default=False)
    ] = None,
) -> Answer:
    """List schedules, next due first."""
    is_paused = None if paused is None else str(paused).lower()
    found = list(api.entries("/schedules", "schedules", workflow=workflow, paused=is_paused))
    yield found
    rows = [
        (each["id"], each["workflow"], each["cron"], each["zone"], next_slot(each), _last(each), each.get("reason", ""))
        for each in found
    ]
    show_table(("ID", "WORKFLOW", "CRON", "ZONE", "NEXT", "LAST", "REASON"), rows, nothing="no schedules")


@server_command(app, "show")
def show(
    api: Api,
    id: Id,
) -> Answer:
    """Show a schedule and the outcomes of its last slots."""
    found = api.get(at("schedules", id))
    yield found
    fires = found.pop("fires", [])
    found["input"] = compact(found["input"])
    show_facts(found)
    rows = [(each["slot"], short(each["at"]), _outcome(each)) for each in fires]
    show_table(("SLOT", "DECIDED", "OUTCOME"), rows, nothing="no slots yet")


_PATH = "/schedules/{id}/"
add_action(
    app,
    "pause",
    _PATH + "pause",
    "Pause a schedule. It can still be triggered and backfilled.",
    schedule_text,
    id=Id,
    reason=Option(Reason, ""),
)
add_action(app, "resume", _PATH + "resume", "Resume a schedule from its next slot on.", schedule_text, id=Id)
add_action(
    app,
    "stop-backfills",
    _PATH + "stop-backfills",
    "Stop the backfills of a schedule. Started executions continue.",
    "{id}: backfills stopped",
    id=Id,
)
add_deletion(app, "delete", "/schedules/{id}", "Delete a schedule. Started executions continue.", id=Id)


@server_command(app, "trigger")
def trigger(
    api: Api,
    id: Id,
    overlap: Annotated[Overlap, typer.Option(help="Policy while an execution is open.")] = Overlap.ALLOW,
    request_id: Annotated[
        str | None, typer.Option(metavar="ID", help="Request id; a repeated request has no effect.")
    ] = None,
) -> Answer:
    """Start an execution now and print its id."""
    body = {"overlap": overlap.value, "id": request_id}
    fire = api.post(at("schedules", id, "trigger"), body)
    yield fire
    typer.echo(_outcome(fire))


@server_command(app, "backfill")
def backfill(
    api: Api,
    id: Id,
    since: Since,
    until: Until,
    overlap: Annotated[
        Overlap, typer.Option(help="buffer_one: one at a time; allow: in parallel.")
    ] = Overlap.BUFFER_ONE,
) -> Answer:
    """Start the slots of a past time range."""
    body = {"since": past_time(since, "--since"), "until": past_time(until, "--until"), "overlap": overlap.value}
    answer = api.post(at("schedules", id, "backfill"), body)
    yield answer
    typer.echo(f"{id}: {len(answer.get('backfills', []))} backfills in progress")


@server_command(app, "upcoming")
def upcoming(
    api: Api,
    pipeline: PipelineOption = None,
    owner: OwnerOption = None,
    tier: TierOption = None,
    hours: Annotated[float, typer.Option("--hours", help="How far ahead.")] = 24,
    limit: Limit = 50,
) -> Answer:
    """List the next slots of the cron schedules of pipelines, in order."""
    found = api.get("/upcoming", pipeline=pipeline, owner=owner, tier=tier, hours=hours, limit=min(limit, 1000))
    yield found["slots"]
    rows = [
        (
            _in_zone(each["at"], each["timezone"]),
            each["pipeline_id"],
            each["schedule_id"],
            each["date"],
            each["owner"],
            each["tier"],
            each["obstacle"],
        )
        for each in found["slots"]
    ]
    columns = ("AT", "PIPELINE", "SCHEDULE", "DATE", "OWNER", "TIER", "NO RUN BECAUSE")
    show_table(columns, rows, nothing=f"no slots in the next {hours:g} hours", key=1)
    show_cut(limit, is_cut=not found["is_complete"])


def _in_zone(at: str, zone: str) -> str:
    from datetime import datetime
    from zoneinfo import ZoneInfo

    local = datetime.fromisoformat(at).astimezone(ZoneInfo(zone))
    return f"{local:%Y-%m-%d %H:%M} {local.tzname()}"


@server_command(app, "next")
def next_slots(
    api: Api,
    id: Id,
    count: Annotated[int, typer.Option("-n", min=1, max=1000, help="Number of slots.")] = 10,
) -> Answer:
    """List the next slots, as if the schedule were not paused."""
    found = api.get(at("schedules", id, "preview"), n=count)
    yield found["slots"]
    zone = found["zone"]
    rows = [
        (each["slot"], "" if zone == "UTC" else _local(each), each["due"] if each["due"] != each["slot"] else "")
        for each in found["slots"]
    ]
    show_table(("SLOT", "" if zone == "UTC" else zone, "STARTS AT"), rows, nothing="no further slots")


def _local(slot: dict[str, Any]) -> str:
    """Return the local time of a slot with its UTC offset, which distinguishes the repeated hour of a DST change."""
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
