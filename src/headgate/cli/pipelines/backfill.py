"""`headgate backfill`: ranges of past periods, done a few at a time."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from headgate.cli.api_client import Api, asks, at
from headgate.cli.output import show_facts, show_table
from headgate.cli.pipelines.files import counted
from headgate.cli.pipelines.views import Limit, Pipeline, Reason, Row, Schedule, Walls, pages
from headgate.cli.session import Json, echo_json

app = typer.Typer(
    help="Backfills: ranges of past periods, done a few at a time.", no_args_is_help=True, rich_markup_mode=None
)
Id = Annotated[str, typer.Argument(metavar="BACKFILL", help="Its id, backfill_…")]
_SHOWN = 20


class Order(StrEnum):
    """Which come first."""

    OLDEST_FIRST = "oldest-first"
    NEWEST_FIRST = "newest-first"


@app.command("create")
@asks
def create(  # noqa: PLR0913 - each is an option
    api: Api,
    pipeline: Pipeline,
    first: Annotated[str, typer.Option("--from", metavar="DATE", help="The first period.")],
    last: Annotated[str, typer.Option("--to", metavar="DATE", help="The last period.")],
    reason: Reason,
    schedule: Schedule = None,
    concurrency: Annotated[int, typer.Option("--concurrency", min=1, max=1000, help="How many at a time.")] = 1,
    order: Annotated[Order, typer.Option("--order")] = Order.OLDEST_FIRST,
    redo: Annotated[bool, typer.Option("--redo", help="Also what is done already.")] = False,
    while_paused: Annotated[bool, typer.Option("--while-paused", help="Although the pipeline is paused.")] = False,
    stop_on_failure: Annotated[bool, typer.Option("--stop-on-failure", help="Pause when a period fails.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what it would do, and do nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Have the periods from one to another done, both among them, and print its id."""
    body = {
        "from": first,
        "to": last,
        "schedule": schedule,
        "concurrency": concurrency,
        "order": order.value,
        "redo": redo,
        "while_paused": while_paused,
        "stop_on_failure": stop_on_failure,
        "dry_run": dry_run,
        "reason": reason,
    }
    answer = api.post(at("pipelines", pipeline, "backfills"), body)
    if as_json:
        echo_json(answer)
    elif dry_run:
        _show_plan(answer)
    else:
        typer.echo(f"{answer['backfill_id']}: {counted(answer['dates_count'], 'period')} of {pipeline}")


def _show_plan(plan: Row) -> None:
    begins, skips, excluded = plan["begins"], plan["skips"], plan["excluded"]
    for date in begins[:_SHOWN]:
        typer.echo(f"would begin {date}")
    if len(begins) > _SHOWN:
        typer.echo(f"and {len(begins) - _SHOWN} more, the last of them {begins[-1]}")
    for date in skips[:_SHOWN]:
        typer.echo(f"is done: {date}")
    for date, why in list(excluded.items())[:_SHOWN]:
        typer.echo(f"is excluded: {date}, {why}")
    typer.echo(f"{counted(len(begins), 'period')} to begin, {len(skips)} done, {len(excluded)} excluded")


@app.command("ls")
@asks
def ls(api: Api, pipeline: Pipeline, limit: Limit = 50, as_json: Json = False) -> None:
    """List the backfills of a pipeline, the latest first."""
    found = list(pages(api, at("pipelines", pipeline, "backfills"), "backfills", limit))
    if as_json:
        echo_json(found)
        return
    walls = Walls(api)
    rows = [
        (
            each["backfill_id"],
            each["schedule_id"],
            each["state"],
            _progress(each),
            walls.text(pipeline, each["created_at"]),
            each["by"],
            each["reason"],
        )
        for each in found
    ]
    columns = ("BACKFILL", "SCHEDULE", "STATE", "PERIODS", "ASKED", "BY", "WHY")
    show_table(columns, rows, nothing="no backfills")


@app.command("show")
@asks
def show(api: Api, backfill: Id, as_json: Json = False) -> None:
    """Show how far a backfill is, and what failed of it."""
    found = api.get(at("backfills", backfill))
    if as_json:
        echo_json(found)
        return
    walls, pipeline = Walls(api), found["pipeline_id"]
    typer.echo(_standing(found))
    dates: list[str] = found["dates"]
    facts: dict[str, Any] = {
        "periods": f"{dates[0]} to {dates[-1]}" if dates else "",
        "at a time": str(found["concurrency"]),
        "running": found["running"],
        "asked": f"{walls.text(pipeline, found['created_at'])} by {found['by']}: {found['reason']}",
        "ended": walls.text(pipeline, found["ended_at"]),
    }
    show_facts(facts)
    for date, why in found["failed"].items():
        typer.echo(f"failed: {date}: {why}")


@app.command("pause")
@asks
def pause(api: Api, backfill: Id, reason: Reason, as_json: Json = False) -> None:
    """Begin none of its periods for now."""
    _steer(api, "pause", backfill, reason, as_json=as_json)


@app.command("resume")
@asks
def resume(api: Api, backfill: Id, reason: Reason, as_json: Json = False) -> None:
    """Begin its periods again."""
    _steer(api, "resume", backfill, reason, as_json=as_json)


@app.command("cancel")
@asks
def cancel(api: Api, backfill: Id, reason: Reason, as_json: Json = False) -> None:
    """Begin none of its periods any more. What has begun goes on."""
    _steer(api, "cancel", backfill, reason, as_json=as_json)


def _steer(api: Api, verb: str, backfill: str, reason: str, *, as_json: bool) -> None:
    answer = api.post(at("backfills", backfill, verb), {"reason": reason})
    if as_json:
        echo_json(answer)
    else:
        typer.echo(_standing(answer))


def _standing(backfill: Row) -> str:
    return f"{backfill['backfill_id']}: {backfill['pipeline_id']}, {backfill['state']}, {_progress(backfill)}"


def _progress(backfill: Row) -> str:
    parts = [f"{backfill['succeeded']} of {backfill['dates_count']} done"]
    counts = {
        "running": len(backfill["running"]),
        "failed": len(backfill["failed"]),
        "done before": backfill["skipped"],
    }
    return ", ".join([*parts, *(f"{count} {name}" for name, count in counts.items() if count)])
