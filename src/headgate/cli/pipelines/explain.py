"""Readiness of a period: `headgate period why`, `headgate pipeline evaluate` and `headgate pipeline simulate`."""

from __future__ import annotations

from typing import Any

import typer

from headgate.cli.api_client import Api, at
from headgate.cli.commands import Answer, calls_server
from headgate.cli.options import Date, OptionalDate, Pipeline, Schedule
from headgate.cli.output import show_facts, show_table
from headgate.cli.pipelines.views import LocalTimes, show_rules, show_tree


@calls_server
def evaluate(api: Api, pipeline: Pipeline, date: OptionalDate = None, schedule: Schedule = None) -> Answer:
    """Evaluate the rules and traits of a period without starting anything."""
    found = api.post(at("pipelines", pipeline, "evaluate"), {"date": date, "schedule": schedule})
    yield found
    typer.echo(f"{found['result']}  {pipeline} of {found['date']} ({found['schedule_id']}): {found['reason']}")
    show_rules(found["rules"], LocalTimes(api), pipeline)
    for name, trait in sorted(found["traits"].items()):
        typer.echo(f"  [{trait['status']}] trait {name}" + (f": {trait['reason']}" if trait["reason"] else ""))
    _show_blockers("warns", found["warnings"])


@calls_server
def simulate(api: Api, pipeline: Pipeline, date: Date, schedule: Schedule = None) -> Answer:
    """Replay the recorded sensors of a past period and show when it would have become ready.

    Nothing is started. Upstream runs and dataset health are taken from the current state.
    """
    found = api.post(at("pipelines", pipeline, "simulate"), {"date": date, "schedule": schedule})
    yield found
    times = LocalTimes(api)
    typer.echo(f"{found['outcome']}  {pipeline} of {found['date']} ({found['schedule_id']}): {found['reason']}")
    show_facts({name.removesuffix("_at"): times.text(pipeline, found[name]) for name in _TIMES})
    rows = [(times.text(pipeline, each["at"]), each["result"], each["reason"]) for each in found["looks"]]
    if rows:
        show_table(("AT", "RESULT", "REASON"), rows, nothing="")
    show_rules(found["rules"], times, pipeline)
    _show_blockers("waits for", found["blocking"])


_TIMES = ("opens_at", "closes_at", "ready_at")


def _show_blockers(word: str, blockers: list[dict[str, Any]]) -> None:
    for each in blockers:
        typer.echo(f"{word}: {each['name']}: {each['reason']}")


@calls_server
def why(api: Api, pipeline: Pipeline, date: OptionalDate = None, schedule: Schedule = None) -> Answer:
    """Explain the status of a period, also of one that never started: a summary and the checks behind it.

    Times are in the pipeline's time zone.
    """
    found = api.get(at("pipelines", pipeline, "why"), date=date, schedule=schedule)
    yield found
    typer.echo(found["sentence"])
    # The root of the tree repeats the summary.
    show_tree(found["tree"].get("children", ()))
