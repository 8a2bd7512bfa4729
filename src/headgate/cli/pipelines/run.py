"""`headgate run`: runs of pipelines, started, looked at, ended and done again."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from headgate.cli.api_client import Api, asks, at
from headgate.cli.output import show_facts, show_table
from headgate.cli.pipelines.views import Date, Limit, Pipeline, Reason, Row, Schedule, Walls, pages, progress_text, took
from headgate.cli.session import Json, echo_json

app = typer.Typer(help="Runs of pipelines.", no_args_is_help=True, rich_markup_mode=None)
RunId = Annotated[str, typer.Argument(metavar="RUN", help="Its id, run_…")]


class Ending(StrEnum):
    """How a job can be said to have ended."""

    SUCCESS = "success"
    FAILED = "failed"


class Category(StrEnum):
    """Whether trying again may help."""

    TRANSIENT = "TRANSIENT"
    PERMANENT = "PERMANENT"
    TIMEOUT = "TIMEOUT"


class Kind(StrEnum):
    """Which budget a rerun is charged to."""

    MANUAL = "manual"
    LATE_DATA = "late-data"
    DATA_DRIFT = "data-drift"
    JOB_FAIL_RETRY = "job-fail-retry"


@app.command("start")
@asks
def start(
    api: Api,
    pipeline: Pipeline,
    date: Date,
    reason: Reason,
    schedule: Schedule = None,
    force: Annotated[bool, typer.Option("--force", help="Start its job, ready or not.")] = False,
    as_json: Json = False,
) -> None:
    """Begin a period now. It still waits until it is ready, unless it is forced."""
    body = {"date": date, "schedule": schedule, "force": force, "reason": reason}
    answer = api.post(at("pipelines", pipeline, "runs"), body)
    if as_json:
        echo_json(answer)
        return
    said = "it begins" if answer["created"] else "it has begun already"
    typer.echo(f"{pipeline} of {answer['date']} ({answer['schedule_id']}): {said}")


@app.command("ls")
@asks
def ls(
    api: Api,
    pipeline: Pipeline,
    status: Annotated[
        str | None, typer.Option("--status", metavar="STATUS", help="RUNNING, COMPLETED, FAILED and so on.")
    ] = None,
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """List the runs of a pipeline, the latest first."""
    path, wanted = at("pipelines", pipeline, "runs"), status and status.upper()
    found: list[Row] = []
    # Those that match are looked for among all.
    for each in pages(api, path, "runs", None if wanted else limit):
        if wanted in (None, each["status"]):
            found.append(each)
        if len(found) == limit:
            break
    if as_json:
        echo_json(found)
        return
    walls = Walls(api)
    rows = [
        (
            each["run_id"],
            each["date"],
            each["schedule_id"],
            each["status"],
            each["attempt"],
            each["cause"],
            walls.text(pipeline, each["created_at"]),
            took(each["duration_ms"]),
            progress_text(each),
        )
        for each in found
    ]
    columns = ("RUN", "DATE", "SCHEDULE", "STATUS", "ATTEMPT", "CAUSE", "BEGAN", "TOOK", "")
    show_table(columns, rows, nothing="no runs; 'headgate why' says why")


@app.command("show")
@asks
def show(api: Api, run: RunId, as_json: Json = False) -> None:
    """Show a run: what began it, what became of it, and when."""
    found = api.get(at("runs", run))
    if as_json:
        echo_json(found)
        return
    walls, pipeline = Walls(api), found["pipeline_id"]
    moved = " → ".join(f"{each['status']} {walls.text(pipeline, each['at'])}" for each in found.pop("transitions"))
    facts: dict[str, Any] = {}
    for name, value in found.items():
        if name.endswith("_at") or name == "monitor_until":
            facts[name] = walls.text(pipeline, value)
        elif name == "duration_ms":
            facts["took"] = took(value)
        elif value is not False:
            facts[name] = value
    show_facts({**facts, "transitions": moved})


@app.command("cancel")
@asks
def cancel(api: Api, run: RunId, reason: Reason, as_json: Json = False) -> None:
    """End a run, and its job where that runs."""
    _say(api.post(at("runs", run, "cancel"), {"reason": reason}), as_json=as_json)


@app.command("complete")
@asks
def complete(
    api: Api,
    run: RunId,
    status: Annotated[Ending, typer.Argument(case_sensitive=False)],
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="What the job has to say.")] = "",
    category: Annotated[
        Category | None, typer.Option("--category", case_sensitive=False, help="Of a failure: may trying again help?")
    ] = None,
    as_json: Json = False,
) -> None:
    """Say how the job of a run ended: the callback of jobs that say so themselves."""
    body = {"status": status.value, "reason": reason, "category": None if category is None else category.value}
    _say(api.post(at("runs", run, "complete"), body), as_json=as_json)


@app.command("rerun")
@asks
def rerun(
    api: Api,
    pipeline: Pipeline,
    date: Date,
    reason: Reason,
    schedule: Schedule = None,
    kind: Annotated[Kind, typer.Option("--kind", help="Which budget it is charged to.")] = Kind.MANUAL,
    force: Annotated[bool, typer.Option("--force", help="Also if the budget is spent.")] = False,
    as_json: Json = False,
) -> None:
    """Ask for a period to be done again."""
    body = {"date": date, "schedule": schedule, "reason": kind.value, "note": reason, "force": force}
    answer = api.post(at("pipelines", pipeline, "reruns"), body)
    if as_json:
        echo_json(answer)
    else:
        typer.echo(f"{answer['rerun_id']}: {_rerun_text(answer)}")


@app.command("reruns")
@asks
def reruns(
    api: Api,
    pipeline: Annotated[str | None, typer.Argument(metavar="[PIPELINE]", help="[default: all]")] = None,
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """List reruns and what was decided about them, those that were asked for last first."""
    path = "/reruns" if pipeline is None else at("pipelines", pipeline, "reruns")
    found = list(pages(api, path, "reruns", limit))
    if as_json:
        echo_json(found)
        return
    walls = Walls(api)
    rows = [
        (
            each["rerun_id"],
            each["pipeline_id"],
            each["date"],
            each["status"],
            each["reason"],
            walls.text(each["pipeline_id"], each["requested_at"]),
            each["by"],
            each["decision"] or each["note"],
        )
        for each in found
    ]
    columns = ("RERUN", "PIPELINE", "DATE", "STATUS", "KIND", "ASKED", "BY", "")
    show_table(columns, rows, nothing="no reruns")


@app.command("log")
@asks
def log(
    api: Api,
    pipeline: Pipeline,
    dates: Annotated[str, typer.Option("--dates", metavar="PREFIX", help="Those that begin so, such as 2026-03.")] = "",
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """List where the periods of a pipeline stand, the latest period first."""
    found = list(pages(api, at("pipelines", pipeline, "run-logs"), "run_logs", limit, dates=dates or None))
    if as_json:
        echo_json(found)
        return
    walls = Walls(api)
    rows = [
        (
            each["date"],
            each["schedule_id"],
            each["status"],
            each["attempts"],
            each["cause"],
            walls.text(pipeline, each["begun_at"]),
            walls.text(pipeline, each["ended_at"]),
            progress_text(each),
        )
        for each in found
    ]
    columns = ("DATE", "SCHEDULE", "STATUS", "ATTEMPTS", "CAUSE", "BEGAN", "ENDED", "")
    show_table(columns, rows, nothing="nothing was begun; 'headgate why' says why")


@app.command("jobs")
@asks
def jobs(
    api: Api, pipeline: Pipeline, date: Date, schedule: Schedule = None, limit: Limit = 50, as_json: Json = False
) -> None:
    """List what happened to the jobs of a period, the latest first."""
    path = at("pipelines", pipeline, "run-logs", date, "jobs")
    found = list(pages(api, path, "entries", limit, schedule=schedule))
    if as_json:
        echo_json(found)
        return
    walls = Walls(api)
    rows = [
        (
            walls.text(pipeline, each["at"]),
            each["event"],
            each["run_id"],
            each["job_id"],
            took(each["duration_ms"]),
            each["error"],
        )
        for each in found
    ]
    show_table(("AT", "EVENT", "RUN", "JOB", "TOOK", ""), rows, nothing="no job was started", key=2)


def _rerun_text(rerun: Row) -> str:
    said = f"{rerun['pipeline_id']} of {rerun['date']}: {rerun['status']}"
    return f"{said}, {rerun['decision']}" if rerun["decision"] else said


def _say(run: Row, *, as_json: bool) -> None:
    if as_json:
        echo_json(run)
        return
    why = f": {run['reason']}" if run["reason"] else ""
    typer.echo(f"{run['run_id']}: {run['pipeline_id']} of {run['date']} is {run['status']}{why}")
