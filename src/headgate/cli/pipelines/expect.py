"""`headgate expect`: lists expectations of pipelines (a run or sensor due by a time) and their verdicts."""

from __future__ import annotations

from enum import StrEnum
from itertools import islice
from typing import Annotated, Any

import typer

from headgate.cli.api_client import Api
from headgate.cli.commands import Answer, command_group, server_command
from headgate.cli.options import Limit, OwnerOption, SinceOption, TierOption
from headgate.cli.output import show_cut, show_table
from headgate.cli.pipelines.views import LocalTimes
from headgate.cli.times import duration_text, past_time

app = command_group("List expectations of pipelines and their verdicts.")


@app.callback()
def expectations() -> None:
    """List expectations of pipelines and their verdicts."""


class Verdict(StrEnum):
    """Verdict on an expectation."""

    MET = "MET"
    MISSED = "MISSED"
    WAIVED = "WAIVED"


@server_command(app, "ls")
def ls(
    api: Api,
    pipeline: Annotated[str | None, typer.Option("--pipeline", metavar="ID", help="Filter by pipeline.")] = None,
    verdict: Annotated[
        Verdict | None,
        typer.Option(
            "--verdict", case_sensitive=False, help="Filter by verdict. [default: MISSED, or all with --pipeline]"
        ),
    ] = None,
    schedule: Annotated[str | None, typer.Option("--schedule", metavar="NAME", help="Filter by schedule.")] = None,
    owner: OwnerOption = None,
    tier: TierOption = None,
    since: SinceOption = None,
    limit: Limit = 50,
) -> Answer:
    """List expectations and their verdicts, latest due time first."""
    selected = Verdict.MISSED if verdict is None and pipeline is None else verdict
    query: dict[str, Any] = {
        "pipeline": pipeline,
        "verdict": None if selected is None else selected.value,
        "schedule": schedule,
        "owner": owner,
        "tier": tier,
        "since": past_time(since, "--since"),
    }
    # One more than is shown, to know whether there are more.
    found = list(islice(api.entries("/expectations", "expectations", **query), limit + 1))
    has_more, found = len(found) > limit, found[:limit]
    yield found
    times = LocalTimes(api)
    rows = [
        (
            each["verdict"],
            each["pipeline_id"],
            each["date"],
            each["schedule_id"],
            each["kind"],
            times.text(each["pipeline_id"], each["due_at"]),
            _margin(each["margin_seconds"]),
            each["reason"] or ("warned" if each["warned"] else ""),
        )
        for each in found
    ]
    columns = ("VERDICT", "PIPELINE", "DATE", "SCHEDULE", "EXPECTATION", "DUE", "MARGIN", "REASON")
    show_table(columns, rows, nothing="no matching verdicts", key=1)
    show_cut(limit, is_cut=has_more)


def _margin(seconds: float | None) -> str:
    if seconds is None:
        return ""

    return f"{duration_text(seconds)} early" if seconds >= 0 else f"{duration_text(-seconds)} late"
