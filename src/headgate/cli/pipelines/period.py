"""`headgate period`: what people order for one period of a pipeline, and why."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headgate.cli.api_client import Api, asks, at
from headgate.cli.output import show_facts, show_table
from headgate.cli.pipelines.views import Pipeline, Reason, Row, Schedule, Walls, progress_text
from headgate.cli.session import Json, echo_json

app = typer.Typer(
    help="Periods of pipelines: held, approved, skipped, forced.", no_args_is_help=True, rich_markup_mode=None
)
Period = Annotated[str, typer.Argument(metavar="DATE", help="The period: 2026-03-03, 2026-03-03T07, 2026-W10, …")]


@app.command("show")
@asks
def show(api: Api, pipeline: Pipeline, date: Period, schedule: Schedule = None, as_json: Json = False) -> None:
    """Show where a period stands, and each attempt at it."""
    found = api.get(at("pipelines", pipeline, "run-logs", date), schedule=schedule)
    if as_json:
        echo_json(found)
        return
    walls = Walls(api)
    typer.echo(_standing(found))
    facts: dict[str, Any] = {
        name.removesuffix("_at"): walls.text(pipeline, found[name]) for name in ("begun_at", "ended_at", "succeeded_at")
    }
    show_facts({**facts, "cause": found["cause"], "run": found["run_id"], "reruns": found["reruns"]})
    rows = [
        (
            each["number"],
            each["run_id"],
            each["status"],
            each["cause"],
            walls.text(pipeline, each["begun_at"]),
            walls.text(pipeline, each["ended_at"]),
            progress_text(each),
        )
        for each in found["history"]
    ]
    columns = ("ATTEMPT", "RUN", "STATUS", "CAUSE", "BEGAN", "ENDED", "")
    show_table(columns, rows, nothing="no attempt was made", key=1)


@app.command("hold")
@asks
def hold(
    api: Api, pipeline: Pipeline, date: Period, reason: Reason, schedule: Schedule = None, as_json: Json = False
) -> None:
    """Start no job of a period until someone approves it."""
    _order(api, "hold", pipeline, date, reason, schedule, as_json=as_json)


@app.command("approve")
@asks
def approve(
    api: Api, pipeline: Pipeline, date: Period, reason: Reason, schedule: Schedule = None, as_json: Json = False
) -> None:
    """Let a period that is held go on."""
    _order(api, "approve", pipeline, date, reason, schedule, as_json=as_json)


@app.command("skip")
@asks
def skip(
    api: Api, pipeline: Pipeline, date: Period, reason: Reason, schedule: Schedule = None, as_json: Json = False
) -> None:
    """Have nothing done for a period. What waits for it goes on waiting."""
    _order(api, "skip", pipeline, date, reason, schedule, as_json=as_json)


@app.command("mark-success")
@asks
def mark_success(
    api: Api, pipeline: Pipeline, date: Period, reason: Reason, schedule: Schedule = None, as_json: Json = False
) -> None:
    """Take a period for done though no run did it. What waits for it goes on."""
    _order(api, "mark-success", pipeline, date, reason, schedule, as_json=as_json)


@app.command("force")
@asks
def force(
    api: Api, pipeline: Pipeline, date: Period, reason: Reason, schedule: Schedule = None, as_json: Json = False
) -> None:
    """Start the job of a period, ready or not."""
    _order(api, "force", pipeline, date, reason, schedule, as_json=as_json)


def _order(api: Api, order: str, pipeline: str, date: str, reason: str, schedule: str | None, *, as_json: bool) -> None:
    body = {"reason": reason, "schedule": schedule}
    answer = api.post(at("pipelines", pipeline, "periods", date, order), body)
    if as_json:
        echo_json(answer)
    else:
        typer.echo(_standing(answer))


def _standing(log: Row) -> str:
    said = progress_text(log)
    standing = f"{log['pipeline_id']} of {log['date']} ({log['schedule_id']}): {log['status']}"
    return f"{standing}; {said}" if said else standing
