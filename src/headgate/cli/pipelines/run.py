"""`headgate run`: starts, lists, cancels, completes and reruns pipeline runs."""

from __future__ import annotations

from enum import StrEnum
from itertools import islice
from typing import Annotated, Any, Final

import typer

from headgate.cli.api_client import Api, at
from headgate.cli.commands import Answer, Option, add_action, command_group, server_command
from headgate.cli.options import (
    Date,
    Limit,
    OptionalDate,
    OwnerOption,
    Pipeline,
    Reason,
    Schedule,
    SinceOption,
    TierOption,
    Timeout,
)
from headgate.cli.output import show_cut, show_facts, show_table
from headgate.cli.pipelines.period import list_periods
from headgate.cli.pipelines.views import LocalTimes, Row, milliseconds_text, reason_text
from headgate.cli.session import Json, echo_json
from headgate.cli.times import past_time
from headgate.clock import SystemClock
from headgate.exit_codes import ExitCode

_REQUESTED: Final = "REQUESTED"
_REJECTED: Final = "REJECTED"
# How long a rerun's decision is waited for.
_DECISION_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.1
app = command_group("Manage pipeline runs.")
# An earlier spelling.
server_command(app, "log", hidden=True)(list_periods)
# A long poll of the server, and the size of a part.
_FOLLOW_SECONDS = 10
_PART_BYTES = 262_144
RunId = Annotated[str, typer.Argument(metavar="RUN", help="Run id, run_…")]


# The statuses of runs that have not ended.
_OPEN = ("PENDING", "TRIGGERING", "RUNNING", "COMPLETED_MONITORING")


class Outcome(StrEnum):
    """Outcome of a job."""

    SUCCESS = "success"
    FAILED = "failed"


class Category(StrEnum):
    """Failure category, which decides whether the job is retried."""

    TRANSIENT = "TRANSIENT"
    PERMANENT = "PERMANENT"
    TIMEOUT = "TIMEOUT"


class RerunKind(StrEnum):
    """Budget that a rerun is charged to."""

    MANUAL = "manual"
    LATE_DATA = "late-data"
    DATA_DRIFT = "data-drift"
    JOB_FAIL_RETRY = "job-fail-retry"


@server_command(app, "start")
def start(
    api: Api,
    pipeline: Pipeline,
    date: Date,
    reason: Reason,
    schedule: Schedule = None,
    force: Annotated[bool, typer.Option("--force", help="Start the job without waiting for readiness.")] = False,
) -> Answer:
    """Start a period now. Its job waits for readiness unless --force is given."""
    body = {"date": date, "schedule": schedule, "force": force, "reason": reason}
    answer = api.post(at("pipelines", pipeline, "runs"), body)
    yield answer
    status = "started" if answer["created"] else "already started"
    typer.echo(f"{pipeline} of {answer['date']} ({answer['schedule_id']}): {status}")


@server_command(app, "ls")
def ls(
    api: Api,
    pipeline: Annotated[str | None, typer.Argument(metavar="[PIPELINE]", help="Pipeline id. [default: all]")] = None,
    status: Annotated[
        list[str] | None,
        typer.Option("--status", metavar="STATUS", help="Filter by status: RUNNING, COMPLETED, FAILED, … Repeatable."),
    ] = None,
    open_only: Annotated[bool, typer.Option("--open", help="Only runs that have not ended.")] = False,
    owner: OwnerOption = None,
    tier: TierOption = None,
    since: SinceOption = None,
    limit: Limit = 50,
) -> Answer:
    """List the runs of a pipeline or of all pipelines, newest first."""
    statuses = [each.upper() for each in status or []] or (list(_OPEN) if open_only else [])
    query: dict[str, Any] = {"status": statuses or None, "pipeline": pipeline, "owner": owner, "tier": tier}
    # One more than is shown, to know whether there are more.
    found = list(islice(api.entries("/runs", "runs", **query, since=past_time(since, "--since")), limit + 1))
    has_more, found = len(found) > limit, found[:limit]
    yield found
    times = LocalTimes(api)
    rows = [
        (
            each["run_id"],
            *(() if pipeline else (each["pipeline_id"],)),
            each["date"],
            each["schedule_id"],
            each["status"],
            each["attempt"],
            each["cause"],
            times.text(each["pipeline_id"], each["created_at"]),
            milliseconds_text(each["duration_ms"]),
            reason_text(each),
        )
        for each in found
    ]
    columns = ("DATE", "SCHEDULE", "STATUS", "ATTEMPT", "CAUSE", "STARTED", "DURATION", "REASON")
    nothing = "no runs; see 'headgate period why'" if pipeline else "no matching runs"
    show_table(("RUN", *(() if pipeline else ("PIPELINE",)), *columns), rows, nothing=nothing)
    show_cut(limit, is_cut=has_more)


@server_command(app, "show")
def show(api: Api, run: RunId) -> Answer:
    """Show a run: its cause, status and transitions."""
    found = api.get(at("runs", run))
    yield found
    times, pipeline = LocalTimes(api), found["pipeline_id"]
    transitions = " → ".join(
        f"{each['status']} {times.text(pipeline, each['at'])}" for each in found.pop("transitions")
    )
    facts: dict[str, Any] = {}
    for name, value in found.items():
        if name.endswith("_at") or name == "monitor_until":
            facts[name] = times.text(pipeline, value)
        elif name == "duration_ms":
            facts["duration"] = milliseconds_text(value)
        elif value is not False:
            facts[name] = value
    show_facts({**facts, "transitions": transitions})


@server_command(app, "watch")
def watch(
    api: Api,
    target: Annotated[str, typer.Argument(metavar="PIPELINE|RUN", help="Pipeline id, or run id, run_…")],
    date: OptionalDate = None,
    schedule: Schedule = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Follow a run, or a period of a pipeline with all its attempts, until it ends, and show why it waits.

    A period is followed also before its first run. The exit code is 1 if it failed or was cancelled, 5 if the calendar
    excludes the period, 75 if the timeout passed.
    """
    from headgate.cli.pipelines.watch import FollowedPeriod, FollowedRun, follow
    from headgate.clock import SystemClock
    from headgate.durable.model.duration import optional_seconds

    seconds = optional_seconds(timeout, name="--timeout")
    is_run = target.startswith("run_") and date is None and schedule is None
    followed = FollowedRun(api, target) if is_run else FollowedPeriod(api, target, date, schedule)
    raise typer.Exit(follow(followed, timeout_seconds=seconds, as_json=as_json, clock=SystemClock()))


@server_command(app, "logs")
def logs(
    api: Api,
    run: RunId,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print output as it is written, until the end.")
    ] = False,
    attempt: Annotated[
        int | None, typer.Option("--attempt", metavar="N", min=1, help="Another attempt at the period of the run.")
    ] = None,
    tail: Annotated[
        int | None, typer.Option("--tail", metavar="BYTES", min=1, help="Only the last bytes. [default: all]")
    ] = None,
) -> None:
    """Print the output of a command job, or follow it."""
    offset = 0 if tail is None else -tail
    while True:
        wait = f"{_FOLLOW_SECONDS:g}s" if follow else None
        part = api.get(at("runs", run, "log"), offset=offset, limit=_PART_BYTES, attempt=attempt, wait=wait)
        if part["dropped_bytes"] and part["offset"] > offset >= 0:
            typer.echo(f"[{part['dropped_bytes']} bytes dropped: the output is larger than output_bytes_max]", err=True)
        typer.echo(part["text"], nl=False)
        offset = part["next_offset"]
        is_read = offset >= part["size"] or not part["text"]
        if is_read and (part["is_complete"] or not follow):
            return


def _run_text(run: Row) -> str:
    reason = f": {run['reason']}" if run["reason"] else ""
    return f"{run['run_id']}: {run['pipeline_id']} of {run['date']} is {run['status']}{reason}"


add_action(app, "cancel", "/runs/{run}/cancel", "Cancel a run and its job.", _run_text, run=RunId, reason=Reason)
add_action(
    app,
    "complete",
    "/runs/{run}/complete",
    "Report the outcome of a job: the callback of jobs that report their own end.",
    _run_text,
    run=RunId,
    status=Annotated[Outcome, typer.Argument(case_sensitive=False, help="Outcome of the job.")],
    reason=Option(Annotated[str, typer.Option("--reason", metavar="TEXT", help="Message of the job.")], ""),
    category=Option(
        Annotated[
            Category | None,
            typer.Option("--category", case_sensitive=False, help="Failure category, which decides about a retry."),
        ],
        None,
    ),
)


@server_command(app, "rerun")
def rerun(
    api: Api,
    pipeline: Pipeline,
    date: Date,
    reason: Reason,
    schedule: Schedule = None,
    kind: Annotated[RerunKind, typer.Option("--kind", help="Budget that the rerun is charged to.")] = RerunKind.MANUAL,
    force: Annotated[bool, typer.Option("--force", help="Rerun even if the budget is exhausted.")] = False,
    as_json: Json = False,
) -> None:
    """Request a rerun of a period, and wait a few seconds for the decision. The exit code is 3 if it is rejected.

    A period has budgets for reruns, which the definition sets. While a run is under way, the request waits for its end.
    """
    body = {"date": date, "schedule": schedule, "reason": kind.value, "note": reason, "force": force}
    answer = _decided(api, api.post(at("pipelines", pipeline, "reruns"), body))
    if as_json:
        echo_json(answer)
    else:
        typer.echo(f"{answer['rerun_id']}: {_rerun_text(answer)}", err=answer["status"] == _REJECTED)
    if answer["status"] == _REJECTED:
        raise typer.Exit(ExitCode.CONFLICT)


def _decided(api: Api, rerun: Row) -> Row:
    """Return a rerun once it is decided, or as it is after a few seconds: it may wait for the run under way."""
    clock = SystemClock()
    deadline = clock.monotonic() + _DECISION_SECONDS
    while rerun["status"] == _REQUESTED and clock.monotonic() < deadline:
        clock.sleep(_POLL_SECONDS)
        rerun = api.get(at("reruns", rerun["rerun_id"]))
    return rerun


@server_command(app, "reruns")
def reruns(
    api: Api,
    pipeline: Annotated[str | None, typer.Argument(metavar="[PIPELINE]", help="Pipeline id. [default: all]")] = None,
    limit: Limit = 50,
) -> Answer:
    """List requested reruns and the decisions on them, newest first."""
    path = "/reruns" if pipeline is None else at("pipelines", pipeline, "reruns")
    found = list(api.entries(path, "reruns", limit))
    yield found
    times = LocalTimes(api)
    rows = [
        (
            each["rerun_id"],
            each["pipeline_id"],
            each["date"],
            each["status"],
            each["reason"],
            times.text(each["pipeline_id"], each["requested_at"]),
            each["by"],
            each["decision"] or each["note"],
        )
        for each in found
    ]
    columns = ("RERUN", "PIPELINE", "DATE", "STATUS", "KIND", "REQUESTED", "BY", "DECISION")
    show_table(columns, rows, nothing="no reruns")


@server_command(app, "jobs")
def jobs(api: Api, pipeline: Pipeline, date: Date, schedule: Schedule = None, limit: Limit = 50) -> Answer:
    """List the job events of a period, newest first."""
    path = at("pipelines", pipeline, "run-logs", date, "jobs")
    found = list(api.entries(path, "entries", limit, schedule=schedule))
    yield found
    times = LocalTimes(api)
    rows = [
        (
            times.text(pipeline, each["at"]),
            each["event"],
            each["run_id"],
            each["job_id"],
            milliseconds_text(each["duration_ms"]),
            each["error"],
        )
        for each in found
    ]
    show_table(("AT", "EVENT", "RUN", "JOB", "DURATION", "ERROR"), rows, nothing="no jobs", key=2)


def _rerun_text(rerun: Row) -> str:
    text = f"{rerun['pipeline_id']} of {rerun['date']}: {rerun['status']}"
    return f"{text}, {rerun['decision']}" if rerun["decision"] else text
