"""`headgate marker`: requests periods of pipelines by markers."""

from __future__ import annotations

from typing import Annotated

import typer

from headgate.cli.api_client import Api, at, read_json
from headgate.cli.commands import Answer, command_group, server_command
from headgate.cli.options import Date, Limit, Pipeline, Schedule
from headgate.cli.output import compact, show_table
from headgate.cli.pipelines.views import LocalTimes

app = command_group("Request periods of pipelines by markers.")


@server_command(app, "put")
def put(
    api: Api,
    pipeline: Pipeline,
    date: Date,
    schedule: Schedule = None,
    again: Annotated[bool, typer.Option("--again", help="Request it again if it was requested before.")] = False,
    data: Annotated[
        str | None, typer.Option("--data", metavar="JSON", help="JSON object, @file, or - for standard input.")
    ] = None,
) -> Answer:
    """Request a period, which starts it unless it has started. Repeated requests have no effect without --again."""
    body = {"date": date, "schedule": schedule, "again": again, "data": read_json(data, "--data")}
    answer = api.post(at("pipelines", pipeline, "markers"), body)
    yield answer
    status = "requested" if answer["is_new"] else "already requested; use --again to request it again"
    typer.echo(f"{pipeline}: {answer['date']} ({answer['schedule_id']}) {status}")


@server_command(app, "ls")
def ls(
    api: Api,
    pipeline: Pipeline,
    dates: Annotated[str, typer.Option("--dates", metavar="PREFIX", help="Filter by prefix, such as 2026-03.")] = "",
    limit: Limit = 100,
) -> Answer:
    """List requested periods, newest first."""
    found = api.get(at("pipelines", pipeline, "markers"), dates=dates or None, limit=min(limit, 1000))["markers"]
    yield found
    times = LocalTimes(api)
    rows = [
        (
            each["date"],
            each["schedule_id"],
            each["version"],
            times.text(pipeline, each["at"]),
            each["by"] or each["source"],
            compact(each["data"]) if each["data"] else "",
        )
        for each in found
    ]
    show_table(("DATE", "SCHEDULE", "REQUESTS", "LAST", "BY", "DATA"), rows, nothing="no requested periods")
