"""`headgate pipeline evaluate` and `simulate`: whether a period would be ready, and whether it would have been.

`headgate why`: why a period of a pipeline has not started, or what became of it.
"""

from __future__ import annotations

from typing import Any

import typer

from headgate.cli.api_client import Api, asks, at
from headgate.cli.output import show_facts, show_table
from headgate.cli.pipelines.views import Date, OptionalDate, Pipeline, Schedule, Walls, show_rules, show_tree
from headgate.cli.session import Json, echo_json


@asks
def evaluate(
    api: Api, pipeline: Pipeline, date: OptionalDate = None, schedule: Schedule = None, as_json: Json = False
) -> None:
    """Evaluate the rules and traits of a period now, as a trial: nothing is started."""
    found = api.post(at("pipelines", pipeline, "evaluate"), {"date": date, "schedule": schedule})
    if as_json:
        echo_json(found)
        return
    typer.echo(f"{found['result']}  {pipeline} of {found['date']} ({found['schedule_id']}): {found['reason']}")
    show_rules(found["rules"], Walls(api), pipeline)
    for name, trait in sorted(found["traits"].items()):
        typer.echo(f"  [{trait['status']}] trait {name}" + (f": {trait['reason']}" if trait["reason"] else ""))
    _show_blockers("warns", found["warnings"])


@asks
def simulate(api: Api, pipeline: Pipeline, date: Date, schedule: Schedule = None, as_json: Json = False) -> None:
    """Go through a past period again with the sensors that are kept: when it would have been ready, and why not before.

    Nothing is started. Runs upstream and the health of datasets are taken as they are now.
    """
    found = api.post(at("pipelines", pipeline, "simulate"), {"date": date, "schedule": schedule})
    if as_json:
        echo_json(found)
        return
    walls = Walls(api)
    typer.echo(f"{found['outcome']}  {pipeline} of {found['date']} ({found['schedule_id']}): {found['reason']}")
    show_facts({name.removesuffix("_at"): walls.text(pipeline, found[name]) for name in _MOMENTS})
    rows = [(walls.text(pipeline, each["at"]), each["result"], each["reason"]) for each in found["looks"]]
    if rows:
        show_table(("AT", "RESULT", "WHY"), rows, nothing="")
    show_rules(found["rules"], walls, pipeline)
    _show_blockers("waits for", found["blocking"])


_MOMENTS = ("opens_at", "closes_at", "ready_at")


def _show_blockers(word: str, blockers: list[dict[str, Any]]) -> None:
    for each in blockers:
        typer.echo(f"{word}: {each['name']}: {each['reason']}")


@asks
def why(
    api: Api, pipeline: Pipeline, date: OptionalDate = None, schedule: Schedule = None, as_json: Json = False
) -> None:
    """Explain why a period stands where it does: a sentence, and below it everything that was looked at.

    Also for one that never started. Times are those of the pipeline's own zone.
    """
    found = api.get(at("pipelines", pipeline, "why"), date=date, schedule=schedule)
    if as_json:
        echo_json(found)
        return
    typer.echo(found["sentence"])
    # The first line of the tree is the sentence.
    show_tree(found["tree"].get("children", ()))
