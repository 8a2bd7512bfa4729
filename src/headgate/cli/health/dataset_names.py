"""`headgate dataset` commands for aliases, exports, JSON Schemas, baselines and topic producers."""

from __future__ import annotations

from typing import Annotated

import typer

from headgate.cli.api_client import Api, at
from headgate.cli.commands import Answer, calls_server
from headgate.cli.options import IfVersion, Limit, Urn
from headgate.cli.output import show_table
from headgate.cli.session import echo_json
from headgate.cli.times import ago
from headgate.errors import UserError

Namespace = Annotated[str, typer.Argument(metavar="NAMESPACE", help="Namespace of the producer, such as kafka://prod.")]
AliasName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the dataset in the namespace.")]


@calls_server
def alias(
    api: Api,
    urn: Urn,
    namespace: Annotated[
        str | None, typer.Argument(metavar="[NAMESPACE]", help="Namespace of the producer, such as kafka://prod.")
    ] = None,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Name of the dataset in the namespace.")] = None,
    why: Annotated[str | None, typer.Option(metavar="TEXT", help="Recorded in the audit log.")] = None,
) -> Answer:
    """Add a producer's name for a dataset, or list its names."""
    if namespace is None:
        found = api.get(at("datasets", urn, "aliases"))["aliases"]
        yield found
        rows = [
            (each["namespace"], each["name"], ago(each["updated_at"]), each["updated_by"], each["why"])
            for each in found
        ]
        show_table(("NAMESPACE", "NAME", "ADDED", "BY", "REASON"), rows, nothing="no aliases")
        return
    if name is None:
        raise UserError(f"alias {namespace}: NAME is required")
    body = {"namespace": namespace, "name": name, "why": why}
    answer = api.request("PUT", at("datasets", urn, "aliases"), body=body)
    yield answer
    typer.echo(f"{answer['dataset_urn']}: alias {answer['namespace']} {answer['name']} added")


@calls_server
def unalias(
    api: Api,
    namespace: Namespace,
    name: AliasName,
    why: Annotated[str | None, typer.Option(metavar="TEXT", help="Recorded in the audit log.")] = None,
) -> Answer:
    """Remove a producer's name for a dataset."""
    answer = api.request("DELETE", "/dataset-names", query={"namespace": namespace, "name": name, "why": why})
    yield answer
    typer.echo(f"{answer['namespace']} {answer['name']}: alias removed")


@calls_server
def resolve_name(api: Api, namespace: Namespace, name: AliasName) -> Answer:
    """Print the dataset of a producer's name."""
    found = api.get("/dataset-names", namespace=namespace, name=name)
    yield found
    typer.echo(found["dataset_urn"])


@calls_server
def export(
    api: Api,
    after: Annotated[
        str | None, typer.Option(metavar="CHECKPOINT", help="Only changes after this checkpoint. [default: everything]")
    ] = None,
) -> None:
    """Export every dataset, including deleted ones, as JSON lines. The last checkpoint goes to standard error."""
    while True:
        chunk = api.get("/dataset-export", after=after)
        for each in chunk["datasets"]:
            echo_json(each)
        after = chunk["checkpoint"]
        if not chunk["has_more"]:
            break
    typer.echo(f"continue with --after {after}", err=True)


@calls_server
def schema(
    api: Api,
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="Schema, such as signal-state-schema.json. [default: list them]"),
    ] = None,
) -> Answer:
    """Print a JSON Schema of the health records, or list the schemas."""
    if name is not None:
        found = api.get(at("schemas", name))
        yield found
        echo_json(found)
        return
    found = api.get("/schemas")["schemas"]
    yield found
    typer.echo("\n".join(found))


@calls_server
def baseline(
    api: Api,
    urn: Urn,
    metric: Annotated[
        str | None, typer.Argument(metavar="[METRIC]", help="Metric, such as event_count. [default: list them]")
    ] = None,
    value: Annotated[float | None, typer.Option(metavar="NUMBER", help="New baseline value.")] = None,
    stddev: Annotated[float, typer.Option(metavar="NUMBER", min=0, help="Standard deviation.")] = 0.0,
    samples: Annotated[int, typer.Option(metavar="N", min=1, help="Number of samples.")] = 1,
    if_version: IfVersion = None,
) -> Answer:
    """Show the metric baselines of a dataset, or set one with --value."""
    path = at("datasets", urn, "baselines")
    if metric is None:
        if value is not None:
            raise UserError("baseline --value: METRIC is required")
        found = api.get(path)["baselines"]
    elif value is None:
        found = [api.get(path + at(metric))]
    else:
        body = {"baseline_value": value, "stddev": stddev, "sample_count": samples, "expected_version": if_version}
        found = [api.request("PUT", path + at(metric), body=body)]
    yield found if metric is None else found[0]
    rows = [
        (each["metric"], f"{each['baseline_value']:g}", f"{each['stddev']:g}", each["sample_count"],
         ago(each["updated_at"]), f"v{each['version']}")
        for each in found
    ]  # fmt: skip
    columns = ("METRIC", "BASELINE", "STDDEV", "SAMPLES", "UPDATED", "VERSION")
    show_table(columns, rows, nothing="no baselines")


@calls_server
def producers(
    api: Api,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic, such as raw.orders.")],
    add: Annotated[str | None, typer.Option(metavar="ID", help="Add this producer.")] = None,
    limit: Limit = 100,
) -> Answer:
    """List the producers of a topic, or add one with --add."""
    path = at("topics", topic, "producers")
    if add is not None:
        found = [api.request("PUT", path + at(add), body={"source": "MANUAL"})]
    else:
        found = list(api.items(path, limit))
    yield found
    rows = [(each["producer_id"], each["source"], each["confidence"], ago(each["last_seen_at"])) for each in found]
    show_table(("PRODUCER", "SOURCE", "CONFIDENCE", "LAST SEEN"), rows, nothing="no known producers")
