"""`headgate dataset baseline`: what is normal for the metrics of a dataset."""

from __future__ import annotations

from typing import Annotated

import typer

from headgate.cli.api import Api, asks, at
from headgate.cli.health_options import IfVersion, Urn
from headgate.cli.moments import ago
from headgate.cli.output import show_table
from headgate.cli.session import Json, echo_json
from headgate.errors import UserError


@asks
def baseline(
    api: Api,
    urn: Urn,
    metric: Annotated[
        str | None, typer.Argument(metavar="[METRIC]", help="Such as event_count. [default: list them]")
    ] = None,
    value: Annotated[float | None, typer.Option(metavar="NUMBER", help="What is normal from now on.")] = None,
    stddev: Annotated[float, typer.Option(metavar="NUMBER", min=0, help="How much it varies.")] = 0.0,
    samples: Annotated[int, typer.Option(metavar="N", min=1, help="Of how many samples that is known.")] = 1,
    if_version: IfVersion = None,
    as_json: Json = False,
) -> None:
    """Show what is normal for a dataset, or say it with --value."""
    path = at("datasets", urn, "baselines")
    if metric is None:
        if value is not None:
            raise UserError("baseline --value: name the metric, too")
        found = api.get(path)["baselines"]
    elif value is None:
        found = [api.get(path + at(metric))]
    else:
        said = {"baseline_value": value, "stddev": stddev, "sample_count": samples, "expected_version": if_version}
        found = [api.request("PUT", path + at(metric), body=said)]
    if as_json:
        echo_json(found if metric is None else found[0])
        return
    rows = [
        (each["metric"], f"{each['baseline_value']:g}", f"{each['stddev']:g}", each["sample_count"],
         ago(each["updated_at"]), f"v{each['version']}")
        for each in found
    ]  # fmt: skip
    columns = ("METRIC", "NORMAL", "VARIES BY", "SAMPLES", "WORKED OUT", "VERSION")
    show_table(columns, rows, nothing="nobody has worked out what is normal for it")
