"""`headgate dataset`: what else datasets are called, all of them as lines of JSON, and the forms they are kept in.

`headgate dataset baseline`: what is normal for the metrics of a dataset.

`headgate dataset producers`: who sends to a topic.
"""

from __future__ import annotations

from typing import Annotated

import typer

from headgate.cli.api_client import Api, asks, at
from headgate.cli.health.options import IfVersion, Limit, Urn
from headgate.cli.output import show_table
from headgate.cli.session import Json, echo_json
from headgate.cli.times import ago
from headgate.errors import UserError

Namespace = Annotated[str, typer.Argument(metavar="NAMESPACE", help="Such as kafka://prod.")]
NameThere = Annotated[str, typer.Argument(metavar="NAME", help="What it is called there.")]


@asks
def alias(
    api: Api,
    urn: Urn,
    namespace: Annotated[str | None, typer.Argument(metavar="[NAMESPACE]", help="Such as kafka://prod.")] = None,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="What it is called there.")] = None,
    why: Annotated[str | None, typer.Option(metavar="TEXT", help="For whoever asks later.")] = None,
    as_json: Json = False,
) -> None:
    """Give a dataset the name that a producer calls it by, or list such names."""
    if namespace is None:
        found = api.get(at("datasets", urn, "aliases"))["aliases"]
        if as_json:
            echo_json(found)
            return
        rows = [
            (each["namespace"], each["name"], ago(each["updated_at"]), each["updated_by"], each["why"])
            for each in found
        ]
        show_table(("NAMESPACE", "NAME", "GIVEN", "BY", "WHY"), rows, nothing="it has no other names")
        return
    if name is None:
        raise UserError(f"alias {namespace}: say what the dataset is called there, too")
    body = {"namespace": namespace, "name": name, "why": why}
    answer = api.request("PUT", at("datasets", urn, "aliases"), body=body)
    if as_json:
        echo_json(answer)
    else:
        typer.echo(f"{answer['dataset_urn']}: {answer['namespace']} {answer['name']} means it")


@asks
def unalias(
    api: Api,
    namespace: Namespace,
    name: NameThere,
    why: Annotated[str | None, typer.Option(metavar="TEXT", help="For whoever asks later.")] = None,
    as_json: Json = False,
) -> None:
    """Let a name that a producer uses mean no dataset any more."""
    answer = api.request("DELETE", "/dataset-names", query={"namespace": namespace, "name": name, "why": why})
    if as_json:
        echo_json(answer)
    else:
        typer.echo(f"{answer['namespace']} {answer['name']}: it means no dataset any more")


@asks
def name_means(api: Api, namespace: Namespace, name: NameThere, as_json: Json = False) -> None:
    """Say which dataset a producer's name means."""
    found = api.get("/dataset-names", namespace=namespace, name=name)
    if as_json:
        echo_json(found)
    else:
        typer.echo(found["dataset_urn"])


@asks
def export(
    api: Api,
    after: Annotated[
        str | None, typer.Option(metavar="CHECKPOINT", help="Only what changed after this one. [default: everything]")
    ] = None,
) -> None:
    """Write every dataset, deleted ones too, as a line of JSON each. Where to go on from is told at the end."""
    while True:
        chunk = api.get("/dataset-export", after=after)
        for each in chunk["datasets"]:
            echo_json(each)
        after = chunk["checkpoint"]
        if not chunk["has_more"]:
            break
    typer.echo(f"go on with --after {after}", err=True)


@asks
def schema(
    api: Api,
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Such as signal-state-schema.json. [default: list them]")
    ] = None,
    as_json: Json = False,
) -> None:
    """Print the JSON Schema of what is kept of health, or list the schemas there are."""
    if name is not None:
        echo_json(api.get(at("schemas", name)))
        return
    found = api.get("/schemas")["schemas"]
    if as_json:
        echo_json(found)
    else:
        typer.echo("\n".join(found))


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


@asks
def producers(
    api: Api,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Such as raw.orders.")],
    add: Annotated[str | None, typer.Option(metavar="ID", help="Say that this one sends to it.")] = None,
    limit: Limit = 100,
    as_json: Json = False,
) -> None:
    """List who sends to a topic, how that is known, and when they were last seen; or say it with --add."""
    path = at("topics", topic, "producers")
    if add is not None:
        found = [api.request("PUT", path + at(add), body={"source": "MANUAL"})]
    else:
        found = list(api.pages(path, limit))
    if as_json:
        echo_json(found)
        return
    rows = [(each["producer_id"], each["source"], each["confidence"], ago(each["last_seen_at"])) for each in found]
    show_table(("PRODUCER", "KNOWN BY", "CONFIDENCE", "LAST SEEN"), rows, nothing="nobody is known to send to it")
