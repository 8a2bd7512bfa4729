"""`headgate sensor`: pushes, lists and deletes sensor values that readiness rules read."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headgate.cli.api_client import Api, at, read_json
from headgate.cli.commands import Answer, command_group, keep_spelling, server_command
from headgate.cli.options import Pipeline
from headgate.cli.output import compact, show_table
from headgate.cli.pipelines.views import LocalTimes

app = command_group("Push, list and delete sensor values.")

Key = Annotated[str, typer.Argument(metavar="KEY", help="Sensor key, such as orders-landed.")]
Period = Annotated[
    str | None, typer.Option("--period", metavar="DATE", help="Period, such as 2026-03-03 or 2026-03-03T07.")
]
_LIMIT_MAX = 1000


@server_command(app, "push")
def push(
    api: Api,
    pipeline: Pipeline,
    key: Key,
    data: Annotated[
        str, typer.Option("--data", metavar="JSON", help="JSON object, @file, or - for standard input.")
    ] = "{}",
    period: Period = None,
    all_periods: Annotated[
        bool, typer.Option("--all-periods", help="The value holds for every period, also later ones.")
    ] = False,
    new: Annotated[bool, typer.Option("--new", help="Accept a key that the pipeline does not read.")] = False,
) -> Answer:
    """Push a sensor value.

    It belongs to the period of --period, to that of the fields 'date' and 'hour' in the data, or else to the period in
    which it arrives. A key that no rule, schedule or trait of the pipeline reads and that has no value yet is refused,
    unless --new is given.
    """
    body = {"data": read_json(data, "--data"), "period": period, "all_periods": all_periods}
    if new:
        body["new"] = True
    answer = api.post(at("pipelines", pipeline, "sensors", key), body)
    yield answer
    typer.echo(f"{pipeline}: {answer['key']}, {_period(answer)}, version {answer['version']}")


@server_command(app, "ls")
def ls(
    api: Api,
    pipeline: Pipeline,
    key: Annotated[
        str | None, typer.Option("--key", metavar="KEY", help="Filter by key; includes its periods and parts.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=_LIMIT_MAX, help="Maximum number of results.")] = 100,
) -> Answer:
    """List the sensors of a pipeline by key."""
    found = api.get(at("pipelines", pipeline, "sensors"), key=key, limit=limit)
    yield found["sensors"]
    times = LocalTimes(api)
    rows = [
        (
            full_key(each),
            each["period"] or "all",
            f"v{each['version']}",
            times.text(pipeline, each["pushed_at"]),
            each["by"],
            compact(each["data"]),
        )
        for each in found["sensors"]
    ]
    nothing = f"no sensors; push one with 'headgate sensor push {pipeline} KEY'"
    show_table(("SENSOR", "PERIOD", "VERSION", "PUSHED", "BY", "DATA"), rows, nothing=nothing)
    if found["is_cut"]:
        typer.echo(f"more than {limit} results; filter with --key or raise --limit")


@server_command(app, "delete")
def rm(api: Api, pipeline: Pipeline, key: Key, period: Period = None) -> Answer:
    """Delete the sensor value of a key and exactly this period, or without a period."""
    api.request("DELETE", at("pipelines", pipeline, "sensors", key), query={"period": period})
    name = key if period is None else f"{key}#{period}"
    yield {"deleted": name}
    typer.echo(f"{pipeline}: {name} deleted")


keep_spelling(app, "rm", "delete")


def _period(sensor: dict[str, Any]) -> str:
    return f"period {sensor['period']}" if sensor["period"] else "all periods"


def full_key(sensor: dict[str, Any]) -> str:
    """Return the key of a sensor with its period, if it has one."""
    return f"{sensor['key']}#{sensor['period']}" if sensor["is_of_period"] else str(sensor["key"])
