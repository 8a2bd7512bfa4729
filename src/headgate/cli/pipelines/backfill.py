"""`headgate backfill`: creates and controls backfills, which run a range of past periods."""

from __future__ import annotations

from enum import StrEnum
from itertools import islice
from typing import Annotated, Any

import typer

from headgate.cli.api_client import Api, at
from headgate.cli.commands import Answer, add_action, command_group, server_command
from headgate.cli.options import (
    DryRun,
    Limit,
    OwnerOption,
    Pipeline,
    Reason,
    Schedule,
    SinceOption,
    TierOption,
    Timeout,
)
from headgate.cli.output import counted, show_cut, show_facts, show_table
from headgate.cli.pipelines.views import LocalTimes, Row
from headgate.cli.session import Json
from headgate.cli.times import past_time

app = command_group("Run ranges of past periods.")
BackfillId = Annotated[str, typer.Argument(metavar="BACKFILL", help="Backfill id, backfill_…")]
_SHOWN = 20


class Order(StrEnum):
    """Order in which the periods run."""

    OLDEST_FIRST = "oldest-first"
    NEWEST_FIRST = "newest-first"


@server_command(app, "create")
def create(  # noqa: PLR0913 - each is an option
    api: Api,
    pipeline: Pipeline,
    first: Annotated[str, typer.Option("--from", metavar="DATE", help="First period.")],
    last: Annotated[str, typer.Option("--to", metavar="DATE", help="Last period, inclusive.")],
    reason: Reason,
    schedule: Schedule = None,
    concurrency: Annotated[int, typer.Option("--concurrency", min=1, max=1000, help="Periods to run at a time.")] = 1,
    order: Annotated[Order, typer.Option("--order", help="Order of the periods.")] = Order.OLDEST_FIRST,
    redo: Annotated[bool, typer.Option("--redo", help="Run completed periods again.")] = False,
    while_paused: Annotated[bool, typer.Option("--while-paused", help="Run even if the pipeline is paused.")] = False,
    stop_on_failure: Annotated[
        bool, typer.Option("--stop-on-failure", help="Pause the backfill when a period fails.")
    ] = False,
    dry_run: DryRun = False,
) -> Answer:
    """Create a backfill for a range of periods, and print its id."""
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
    yield answer
    if dry_run:
        _show_plan(answer)
    else:
        typer.echo(f"{answer['backfill_id']}: {counted(answer['dates_count'], 'period')} of {pipeline}")


def _show_plan(plan: Row) -> None:
    begins, skips, excluded = plan["begins"], plan["skips"], plan["excluded"]
    for date in begins[:_SHOWN]:
        typer.echo(f"to run: {date}")
    if len(begins) > _SHOWN:
        typer.echo(f"and {len(begins) - _SHOWN} more, up to {begins[-1]}")
    for date in skips[:_SHOWN]:
        typer.echo(f"completed: {date}")
    for date, why in list(excluded.items())[:_SHOWN]:
        typer.echo(f"excluded: {date}, {why}")
    typer.echo(f"{counted(len(begins), 'period')} to run, {len(skips)} completed, {len(excluded)} excluded")


@server_command(app, "ls")
def ls(
    api: Api,
    pipeline: Annotated[str | None, typer.Argument(metavar="[PIPELINE]", help="Pipeline id. [default: all]")] = None,
    state: Annotated[
        list[str] | None,
        typer.Option("--state", metavar="STATE", help="Filter by state: RUNNING, PAUSED, … Repeatable."),
    ] = None,
    owner: OwnerOption = None,
    tier: TierOption = None,
    since: SinceOption = None,
    limit: Limit = 50,
) -> Answer:
    """List the backfills of a pipeline or of all pipelines, newest first."""
    states = [each.upper() for each in state or []]
    query: dict[str, Any] = {"state": states or None, "pipeline": pipeline, "owner": owner, "tier": tier}
    found = api.entries("/backfills", "backfills", **query, since=past_time(since, "--since"))
    # One more than is shown, to know whether there are more.
    backfills = list(islice(found, limit + 1))
    has_more, backfills = len(backfills) > limit, backfills[:limit]
    yield backfills
    times = LocalTimes(api)
    rows = [
        (
            each["backfill_id"],
            *(() if pipeline else (each["pipeline_id"],)),
            each["schedule_id"],
            each["state"],
            progress_text(each),
            times.text(each["pipeline_id"], each["created_at"]),
            each["by"],
            each["reason"],
        )
        for each in backfills
    ]
    columns = ("SCHEDULE", "STATE", "PERIODS", "CREATED", "BY", "REASON")
    show_table(("BACKFILL", *(() if pipeline else ("PIPELINE",)), *columns), rows, nothing="no backfills")
    show_cut(limit, is_cut=has_more)


@server_command(app, "show")
def show(api: Api, backfill: BackfillId) -> Answer:
    """Show the progress and the failed periods of a backfill."""
    found = api.get(at("backfills", backfill))
    yield found
    times, pipeline = LocalTimes(api), found["pipeline_id"]
    typer.echo(_backfill_text(found))
    dates: list[str] = found["dates"]
    facts: dict[str, Any] = {
        "periods": f"{dates[0]} to {dates[-1]}" if dates else "",
        "concurrency": str(found["concurrency"]),
        "running": found["running"],
        "created": f"{times.text(pipeline, found['created_at'])} by {found['by']}: {found['reason']}",
        "ended": times.text(pipeline, found["ended_at"]),
    }
    show_facts(facts)
    for date, why in found["failed"].items():
        typer.echo(f"failed: {date}: {why}")


@server_command(app, "watch")
def watch(api: Api, backfill: BackfillId, timeout: Timeout = None, as_json: Json = False) -> None:
    """Follow a backfill until it ends, and show why its periods wait.

    The exit code is 1 if a period failed or it was cancelled, 5 if a failure paused it, 75 if the timeout passed.
    """
    from headgate.cli.pipelines.watch import FollowedBackfill, follow
    from headgate.clock import SystemClock
    from headgate.durable.model.duration import optional_seconds

    seconds = optional_seconds(timeout, name="--timeout")
    raise typer.Exit(
        follow(FollowedBackfill(api, backfill), timeout_seconds=seconds, as_json=as_json, clock=SystemClock())
    )


def _backfill_text(backfill: Row) -> str:
    return f"{backfill['backfill_id']}: {backfill['pipeline_id']}, {backfill['state']}, {progress_text(backfill)}"


def progress_text(backfill: Row) -> str:
    """Return how many periods are completed, running and failed."""
    parts = [f"{backfill['succeeded']} of {backfill['dates_count']} completed"]
    counts = {
        "running": len(backfill["running"]),
        "failed": len(backfill["failed"]),
        "already completed": backfill["skipped"],
    }
    return ", ".join([*parts, *(f"{count} {name}" for name, count in counts.items() if count)])


for _name, _help in (
    ("pause", "Pause a backfill: no further period starts."),
    ("resume", "Resume a paused backfill."),
    ("cancel", "Cancel a backfill: no further period starts, running ones continue."),
):
    add_action(
        app, _name, f"/backfills/{{backfill}}/{_name}", _help, _backfill_text, backfill=BackfillId, reason=Reason
    )
