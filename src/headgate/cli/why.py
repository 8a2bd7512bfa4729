"""`headgate why`: why a period of a pipeline has not started, or what became of it."""

from __future__ import annotations

import typer

from headgate.cli.api import Api, asks, at
from headgate.cli.pipeline_options import OptionalDate, Pipeline, Schedule
from headgate.cli.pipeline_views import show_tree
from headgate.cli.session import Json, echo_json


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
