"""`headgate trait`: pushes and lists trait results, which evaluators also write."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from headgate.cli.api_client import Api, at, read_json
from headgate.cli.commands import Answer, command_group, server_command
from headgate.cli.options import Pipeline, Schedule
from headgate.cli.output import compact, show_table
from headgate.cli.pipelines.views import LocalTimes

app = command_group("Push and list trait results of pipelines.")
Type = Annotated[str, typer.Argument(metavar="TYPE", help="Trait type, such as source-freshness.")]


class TraitStatus(StrEnum):
    """Status of a pushed trait."""

    PASS = "PASS"
    FAIL = "FAIL"


@server_command(app, "push")
def push(
    api: Api,
    pipeline: Pipeline,
    type: Type,
    status: Annotated[TraitStatus, typer.Argument(case_sensitive=False)],
    ttl: Annotated[
        str, typer.Option("--ttl", metavar="DURATION", help="Time to live; 0s: until the next result.")
    ] = "5m",
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Explanation, such as '12000 rows'.")] = "",
    value: Annotated[
        str | None, typer.Option("--value", metavar="JSON", help="JSON, @file, or - for standard input.")
    ] = None,
    date: Annotated[str | None, typer.Option("--date", metavar="DATE", help="Only for this period.")] = None,
    schedule: Schedule = None,
) -> Answer:
    """Push the status of a trait."""
    body = {
        "status": status.value,
        "ttl": ttl,
        "reason": reason,
        "value": read_json(value, "--value"),
        "date": date,
        "schedule": schedule,
    }
    answer = api.post(at("pipelines", pipeline, "traits", type), body)
    yield answer
    expires = answer.get("expires_at")
    until = f" until {LocalTimes(api).text(pipeline, expires)}" if expires else ""
    typer.echo(f"{pipeline}: {type} is {answer['status']}{until}")


@server_command(app, "ls")
def ls(api: Api, pipeline: Pipeline) -> Answer:
    """List the current traits of a pipeline."""
    found = api.get(at("pipelines", pipeline, "traits"))["traits"]
    yield found
    times = LocalTimes(api)
    rows = [
        (
            each["trait_type"],
            each["status"],
            each["date"],
            times.text(pipeline, each["evaluated_at"]),
            times.text(pipeline, each["expires_at"]),
            each["by"] or each["evaluator"],
            each["reason"] or ("" if each["value"] is None else compact(each["value"])),
        )
        for each in found
    ]
    columns = ("TRAIT", "STATUS", "PERIOD", "EVALUATED", "EXPIRES", "BY", "REASON")
    show_table(columns, rows, nothing="no trait results")


@server_command(app, "history")
def history(api: Api, pipeline: Pipeline, type: Type) -> Answer:
    """List the past results of a trait, newest first."""
    found = api.get(at("pipelines", pipeline, "traits", type, "history"))["lines"]
    yield found
    times = LocalTimes(api)
    rows = [
        (
            each["status"],
            each["date"],
            times.text(pipeline, each["first_at"]),
            times.text(pipeline, each["last_at"]),
            each["count"],
            each["by"],
            each["reason"],
        )
        for each in found
    ]
    show_table(("STATUS", "PERIOD", "FIRST", "LAST", "COUNT", "BY", "REASON"), rows, nothing="no trait results")
