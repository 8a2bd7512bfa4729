"""`headgate marker`: periods of pipelines that are asked for."""

from __future__ import annotations

from typing import Annotated

import typer

from headgate.cli.api_client import Api, asks, at, read_json
from headgate.cli.output import compact, show_table
from headgate.cli.pipelines.views import Date, Limit, Pipeline, Schedule, Walls
from headgate.cli.session import Json, echo_json

app = typer.Typer(help="Markers: periods that are asked for.", no_args_is_help=True, rich_markup_mode=None)


@app.command("put")
@asks
def put(
    api: Api,
    pipeline: Pipeline,
    date: Date,
    schedule: Schedule = None,
    again: Annotated[bool, typer.Option("--again", help="Once more, if someone has asked for it before.")] = False,
    data: Annotated[str | None, typer.Option("--data", metavar="JSON", help="An object: JSON, @file, or -.")] = None,
    as_json: Json = False,
) -> None:
    """Ask for a period. It begins if it has not; asking for it twice is asking once."""
    body = {"date": date, "schedule": schedule, "again": again, "data": read_json(data, "--data")}
    answer = api.post(at("pipelines", pipeline, "markers"), body)
    if as_json:
        echo_json(answer)
        return
    said = "is asked for" if answer["is_new"] else "was asked for before; --again asks once more"
    typer.echo(f"{pipeline}: {answer['date']} ({answer['schedule_id']}) {said}")


@app.command("ls")
@asks
def ls(
    api: Api,
    pipeline: Pipeline,
    dates: Annotated[str, typer.Option("--dates", metavar="PREFIX", help="Those that begin so, such as 2026-03.")] = "",
    limit: Limit = 100,
    as_json: Json = False,
) -> None:
    """List the periods that were asked for, the latest first."""
    found = api.get(at("pipelines", pipeline, "markers"), dates=dates or None, limit=min(limit, 1000))["markers"]
    if as_json:
        echo_json(found)
        return
    walls = Walls(api)
    rows = [
        (
            each["date"],
            each["schedule_id"],
            each["version"],
            walls.text(pipeline, each["at"]),
            each["by"] or each["source"],
            compact(each["data"]) if each["data"] else "",
        )
        for each in found
    ]
    show_table(("DATE", "SCHEDULE", "ASKED", "LAST", "BY", ""), rows, nothing="no period was asked for")
