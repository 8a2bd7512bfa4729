"""`headgate trait`: what is found out about pipelines, by evaluators or by others who push it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from headgate.cli.api_client import Api, asks, at, read_json
from headgate.cli.output import compact, show_table
from headgate.cli.pipelines.views import Pipeline, Schedule, Walls
from headgate.cli.session import Json, echo_json

app = typer.Typer(
    help="Traits: what is found out about pipelines, for a while.", no_args_is_help=True, rich_markup_mode=None
)
Type = Annotated[str, typer.Argument(metavar="TYPE", help="The trait, such as source-freshness.")]


class Found(StrEnum):
    """What a trait can be said to be."""

    PASS = "PASS"
    FAIL = "FAIL"


@app.command("push")
@asks
def push(  # noqa: PLR0913 - each is an option
    api: Api,
    pipeline: Pipeline,
    type: Type,
    status: Annotated[Found, typer.Argument(case_sensitive=False)],
    ttl: Annotated[str, typer.Option("--ttl", metavar="DURATION", help="How long it holds; 0s: until told.")] = "5m",
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Such as '12000 rows'.")] = "",
    value: Annotated[str | None, typer.Option("--value", metavar="JSON", help="JSON, @file, or -.")] = None,
    date: Annotated[str | None, typer.Option("--date", metavar="DATE", help="For this period alone.")] = None,
    schedule: Schedule = None,
    as_json: Json = False,
) -> None:
    """Say what a trait of a pipeline is."""
    body = {
        "status": status.value,
        "ttl": ttl,
        "reason": reason,
        "value": read_json(value, "--value"),
        "date": date,
        "schedule": schedule,
    }
    answer = api.post(at("pipelines", pipeline, "traits", type), body)
    if as_json:
        echo_json(answer)
        return
    expires = answer.get("expires_at")
    until = f" until {Walls(api).text(pipeline, expires)}" if expires else ""
    typer.echo(f"{pipeline}: {type} is {answer['status']}{until}")


@app.command("ls")
@asks
def ls(api: Api, pipeline: Pipeline, as_json: Json = False) -> None:
    """List the traits of a pipeline, each as it is now."""
    found = api.get(at("pipelines", pipeline, "traits"))["traits"]
    if as_json:
        echo_json(found)
        return
    walls = Walls(api)
    rows = [
        (
            each["trait_type"],
            each["status"],
            each["date"],
            walls.text(pipeline, each["evaluated_at"]),
            walls.text(pipeline, each["expires_at"]),
            each["by"] or each["evaluator"],
            each["reason"] or ("" if each["value"] is None else compact(each["value"])),
        )
        for each in found
    ]
    columns = ("TRAIT", "STATUS", "OF", "FOUND", "EXPIRES", "BY", "")
    show_table(columns, rows, nothing="nothing was found out yet")


@app.command("history")
@asks
def history(api: Api, pipeline: Pipeline, type: Type, as_json: Json = False) -> None:
    """Show what a trait came to over time, the latest first."""
    found = api.get(at("pipelines", pipeline, "traits", type, "history"))["lines"]
    if as_json:
        echo_json(found)
        return
    walls = Walls(api)
    rows = [
        (
            each["status"],
            each["date"],
            walls.text(pipeline, each["first_at"]),
            walls.text(pipeline, each["last_at"]),
            f"{each['count']} times",
            each["by"],
            each["reason"],
        )
        for each in found
    ]
    show_table(("STATUS", "OF", "FIRST", "LAST", "", "BY", ""), rows, nothing="nothing was found out yet")
