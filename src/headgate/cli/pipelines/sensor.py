"""`headgate sensor`: what is said about the data that pipelines wait for."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headgate.cli.api_client import Api, asks, at, read_json
from headgate.cli.output import compact, show_table
from headgate.cli.pipelines.views import Pipeline, Walls
from headgate.cli.session import Json, echo_json

app = typer.Typer(
    help="Sensors: what is said about the data that pipelines wait for.", no_args_is_help=True, rich_markup_mode=None
)

Key = Annotated[str, typer.Argument(metavar="KEY", help="What it is about, such as orders-landed.")]
Period = Annotated[
    str | None, typer.Option("--period", metavar="DATE", help="Of one period, such as 2026-03-03 or 2026-03-03T07.")
]
_LIMIT_MAX = 1000


@app.command("push")
@asks
def push(
    api: Api,
    pipeline: Pipeline,
    key: Key,
    data: Annotated[
        str, typer.Option("--data", metavar="JSON", help="An object in JSON, @file, or - for standard input.")
    ] = "{}",
    period: Period = None,
    as_json: Json = False,
) -> None:
    """Say something about data. Without a period, 'date' and 'hour' of the data name one."""
    body = {"data": read_json(data, "--data"), "period": period}
    answer = api.post(at("pipelines", pipeline, "sensors", key), body)
    if as_json:
        echo_json(answer)
    else:
        typer.echo(f"{pipeline}: {full_key(answer)}, version {answer['version']}")


@app.command("ls")
@asks
def ls(
    api: Api,
    pipeline: Pipeline,
    key: Annotated[str | None, typer.Option("--key", metavar="KEY", help="With its periods and parts.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=_LIMIT_MAX, help="How many at most.")] = 100,
    as_json: Json = False,
) -> None:
    """List the sensors of a pipeline, by key."""
    found = api.get(at("pipelines", pipeline, "sensors"), key=key, limit=limit)
    if as_json:
        echo_json(found["sensors"])
        return
    walls = Walls(api)
    rows = [
        (
            full_key(each),
            "" if each["is_of_period"] else each["period"],
            f"v{each['version']}",
            walls.text(pipeline, each["pushed_at"]),
            each["by"],
            compact(each["data"]),
        )
        for each in found["sensors"]
    ]
    nothing = f"nothing was said; say it with 'headgate sensor push {pipeline} KEY'"
    show_table(("SENSOR", "OF", "VERSION", "SAID", "BY", "DATA"), rows, nothing=nothing)
    if found["is_cut"]:
        typer.echo(f"there are more than {limit}; narrow it with --key, or raise --limit")


@app.command("rm")
@asks
def rm(api: Api, pipeline: Pipeline, key: Key, period: Period = None, as_json: Json = False) -> None:
    """Forget what was said under a key, of exactly this period or of none."""
    api.request("DELETE", at("pipelines", pipeline, "sensors", key), query={"period": period})
    name = key if period is None else f"{key}#{period}"
    if as_json:
        echo_json({"deleted": name})
    else:
        typer.echo(f"{pipeline}: {name} is forgotten")


def full_key(sensor: dict[str, Any]) -> str:
    """Return the key of a sensor with the period that it names."""
    return f"{sensor['key']}#{sensor['period']}" if sensor["is_of_period"] else str(sensor["key"])
