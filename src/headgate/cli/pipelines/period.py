"""`headgate period`: lists, explains and overrides periods of a pipeline: hold, approve, skip, mark-success, force."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headgate.cli.api_client import Api, at
from headgate.cli.commands import Answer, Option, add_action, command_group, server_command
from headgate.cli.options import Limit, Pipeline, Reason, Schedule
from headgate.cli.output import show_facts, show_table
from headgate.cli.pipelines.explain import why
from headgate.cli.pipelines.views import LocalTimes, Row, reason_text

app = command_group("List, explain, hold, approve, skip or force periods of a pipeline.")
app.command("why")(why)
Period = Annotated[str, typer.Argument(metavar="DATE", help="Period: 2026-03-03, 2026-03-03T07, 2026-W10, …")]


@server_command(app, "ls")
def list_periods(
    api: Api,
    pipeline: Pipeline,
    dates: Annotated[str, typer.Option("--dates", metavar="PREFIX", help="Filter by prefix, such as 2026-03.")] = "",
    limit: Limit = 50,
) -> Answer:
    """List the periods of a pipeline with their status, newest first."""
    found = list(api.entries(at("pipelines", pipeline, "run-logs"), "run_logs", limit, dates=dates or None))
    yield found
    times = LocalTimes(api)
    rows = [
        (
            each["date"],
            each["schedule_id"],
            each["status"],
            each["attempts"],
            each["cause"],
            times.text(pipeline, each["begun_at"]),
            times.text(pipeline, each["ended_at"]),
            reason_text(each),
        )
        for each in found
    ]
    columns = ("DATE", "SCHEDULE", "STATUS", "ATTEMPTS", "CAUSE", "STARTED", "ENDED", "REASON")
    show_table(columns, rows, nothing="no periods; see 'headgate period why'")


@server_command(app, "show")
def show(api: Api, pipeline: Pipeline, date: Period, schedule: Schedule = None) -> Answer:
    """Show the status and the attempts of a period."""
    found = api.get(at("pipelines", pipeline, "run-logs", date), schedule=schedule)
    yield found
    times = LocalTimes(api)
    typer.echo(_period_text(found))
    names = {"begun_at": "started", "ended_at": "ended", "succeeded_at": "succeeded"}
    facts: dict[str, Any] = {label: times.text(pipeline, found[name]) for name, label in names.items()}
    show_facts({**facts, "cause": found["cause"], "run": found["run_id"], "reruns": found["reruns"]})
    rows = [
        (
            each["number"],
            each["run_id"],
            each["status"],
            each["cause"],
            times.text(pipeline, each["begun_at"]),
            times.text(pipeline, each["ended_at"]),
            reason_text(each),
        )
        for each in found["history"]
    ]
    columns = ("ATTEMPT", "RUN", "STATUS", "CAUSE", "STARTED", "ENDED", "REASON")
    show_table(columns, rows, nothing="no attempts", key=1)


def _period_text(period: Row) -> str:
    reason = reason_text(period)
    line = f"{period['pipeline_id']} of {period['date']} ({period['schedule_id']}): {period['status']}"
    return f"{line}; {reason}" if reason else line


for _name, _help in (
    ("hold", "Hold a period: its job does not start until the period is approved."),
    ("approve", "Approve a held period."),
    ("skip", "Skip a period. Downstream pipelines that wait for it keep waiting."),
    ("mark-success", "Mark a period as succeeded without a run. Downstream pipelines that wait for it proceed."),
    ("force", "Start the job of a period without waiting for readiness."),
):
    add_action(
        app,
        _name,
        f"/pipelines/{{pipeline}}/periods/{{date}}/{_name}",
        _help,
        _period_text,
        pipeline=Pipeline,
        date=Period,
        reason=Reason,
        schedule=Option(Schedule, None),
    )
