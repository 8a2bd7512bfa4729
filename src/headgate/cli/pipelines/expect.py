"""`headgate expect`: what was expected of pipelines by a time, and how it came out."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from headgate.cli.api_client import Api, asks
from headgate.cli.output import show_table
from headgate.cli.pipelines.views import Limit, Walls, pages
from headgate.cli.session import Json, echo_json
from headgate.cli.times import SinceOption, asked

app = typer.Typer(
    help="Expectations: what was to be done by a time, and was it?", no_args_is_help=True, rich_markup_mode=None
)


@app.callback()
def expectations() -> None:
    """Expectations: what was to be done by a time, and was it?"""


class Verdict(StrEnum):
    """How an expectation can come out."""

    MET = "MET"
    MISSED = "MISSED"
    WAIVED = "WAIVED"


@app.command("ls")
@asks
def ls(
    api: Api,
    pipeline: Annotated[str | None, typer.Option("--pipeline", metavar="ID", help="Of this one.")] = None,
    verdict: Annotated[
        Verdict | None,
        typer.Option("--verdict", case_sensitive=False, help="[default: MISSED, or all of one pipeline]"),
    ] = None,
    schedule: Annotated[str | None, typer.Option("--schedule", metavar="NAME", help="Of one of its schedules.")] = None,
    since: SinceOption = None,
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """List how expectations came out, those that were due last first."""
    wanted = Verdict.MISSED if verdict is None and pipeline is None else verdict
    query = {
        "pipeline": pipeline,
        "verdict": None if wanted is None else wanted.value,
        "schedule": schedule,
        "since": asked(since, "--since"),
    }
    found = list(pages(api, "/expectations", "expectations", limit, **query))
    if as_json:
        echo_json(found)
        return
    walls = Walls(api)
    rows = [
        (
            each["verdict"],
            each["pipeline_id"],
            each["date"],
            each["schedule_id"],
            each["kind"],
            walls.text(each["pipeline_id"], each["due_at"]),
            _margin(each["margin_seconds"]),
            each["reason"] or ("warned" if each["warned"] else ""),
        )
        for each in found
    ]
    columns = ("VERDICT", "PIPELINE", "DATE", "SCHEDULE", "EXPECTED", "BY", "MARGIN", "")
    show_table(columns, rows, nothing="nothing of this kind was judged", key=1)


def _margin(seconds: float | None) -> str:
    if seconds is None:
        return ""
    from headgate.cli.fanout.views import about

    return f"{about(seconds)} early" if seconds >= 0 else f"{about(-seconds)} late"
