"""`headgate dataset resolve`, `rules` and `rule`: resolution rules, which map topics to datasets."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from headgate.cli.api_client import Api, at, read_json
from headgate.cli.commands import Answer, calls_server, command_group, keep_spelling, server_command
from headgate.cli.input_files import read_document
from headgate.cli.options import IfVersion, Limit, Reason, Urn
from headgate.cli.output import show_table
from headgate.errors import UserError

rule_app = command_group("Manage rules that map topics to datasets.")

Pattern = Annotated[str, typer.Argument(metavar="PATTERN", help="Topic, or a WILDCARD pattern with * and ?.")]


class RuleType(StrEnum):
    """Type of a rule, in the order of precedence."""

    EXACT = "EXACT"
    CONDITIONAL = "CONDITIONAL"
    WILDCARD = "WILDCARD"


@calls_server
def resolve(
    api: Api,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic of the message.")],
    payload: Annotated[
        str | None, typer.Option(metavar="JSON", help="Message: JSON, @file, or - for standard input.")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME:VALUE", help="Header of the message. Repeatable.")
    ] = None,
    schema_id: Annotated[str | None, typer.Option(metavar="ID", help="Schema of the message.")] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Show the outcome of each rule.")] = False,
) -> Answer:
    """Resolve a message to its dataset and print the URN."""
    body = {
        "topic": topic,
        "payload": read_json(payload, "--payload"),
        "headers": _headers(header),
        "schema_id": schema_id,
    }
    found = api.post("/resolve/explain" if explain else "/resolve", body)
    yield found
    resolution = found["resolution"]
    typer.echo(resolution["dataset_urn"])
    if not resolution["is_mapped"]:
        typer.echo(f"no rule matches this topic; add one with 'headgate dataset rule add URN {topic}'", err=True)
    if resolution.get("warning"):
        typer.echo(resolution["warning"], err=True)
    if explain:
        typer.echo()
        rows = [(each["outcome"], _key(each["rule"]), each["why"]) for each in found["steps"]]
        show_table(("OUTCOME", "RULE", "REASON"), rows, nothing="no rules evaluated", key=1)
        if found["others"]:
            typer.echo(f"and {found['others']} rules for other topics")


@calls_server
def rules(
    api: Api,
    urn: Annotated[str | None, typer.Argument(metavar="[URN]", help="Dataset. [default: all]")] = None,
    limit: Limit = 100,
) -> Answer:
    """List the rules of a dataset, or all rules."""
    found = list(
        api.items("/resolution-rules", limit)
        if urn is None
        else api.get(at("datasets", urn, "resolution-rules"))["items"]
    )
    yield found
    rows = [
        (
            each["topic_pattern"],
            each.get("name", "default"),
            "enabled" if each.get("enabled", True) else "disabled",
            each.get("resolution_type", RuleType.EXACT.value),
            each.get("priority", 100),
            _datasets(each),
        )
        for each in found
    ]
    columns = ("TOPIC", "RULE", "STATUS", "TYPE", "PRIORITY", "DATASET")
    show_table(columns, rows, nothing="no rules; add one with 'headgate dataset rule add'")


@server_command(rule_app, "add")
def add(
    api: Api,
    urn: Urn,
    pattern: Annotated[
        str | None, typer.Argument(metavar="[PATTERN]", help="Topic, or a pattern with * and ?.")
    ] = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Rule name, if a pattern has several rules.")] = None,
    type: Annotated[
        RuleType | None,
        typer.Option(case_sensitive=False, help="Rule type. [default: WILDCARD for a pattern, else EXACT]"),
    ] = None,
    priority: Annotated[int | None, typer.Option(help="Order among rules of the same type, lowest first.")] = None,
    schema_id: Annotated[str | None, typer.Option(metavar="ID", help="Match only messages of this schema.")] = None,
    file: Annotated[
        str | None,
        typer.Option("--file", "-f", metavar="FILE", help="Rule in JSON or TOML, for example with conditions."),
    ] = None,
) -> Answer:
    """Add a rule that maps a topic to a dataset."""
    document: dict[str, Any] = {} if file is None else read_document(file, "--file")
    topic = pattern or document.get("topic_pattern")
    if not topic:
        raise UserError("rule add: a topic is required, as an argument or as topic_pattern in the file")
    kind = type or (RuleType.WILDCARD if not document and any(each in topic for each in "*?") else None)
    options = {
        "topic_pattern": topic,
        "name": name,
        "resolution_type": None if kind is None else kind.value,
        "priority": priority,
        "schema_id": schema_id,
    }
    body = {**document, **{field: value for field, value in options.items() if value is not None}}
    rule = api.post(at("datasets", urn, "resolution-rules"), body)
    yield rule
    typer.echo(f"{rule['topic_pattern']}: rule {rule.get('name', 'default')} maps to {_datasets(rule)}")


@server_command(rule_app, "delete")
def rm(
    api: Api,
    pattern: Pattern,
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="Rule name.")] = "default",
    if_version: IfVersion = None,
    reason: Reason = "",
) -> Answer:
    """Delete a rule."""
    body = {"expected_version": if_version, "reason": reason}
    api.request("DELETE", at("resolution-rules", pattern, name), body=body)
    yield {"removed": {"topic_pattern": pattern, "name": name}}
    typer.echo(f"{pattern}: rule {name} deleted")


keep_spelling(rule_app, "rm", "delete")


def _headers(texts: list[str] | None) -> dict[str, str]:
    headers = {}
    for text in texts or []:
        name, separator, value = text.partition(":")
        if not separator:
            raise UserError(f"--header {text!r}: write NAME:VALUE")
        headers[name.strip()] = value.strip()
    return headers


def _datasets(rule: dict[str, Any]) -> str:
    urns = [*(each["dataset_urn"] for each in rule.get("conditions", [])), rule.get("dataset_urn")]
    return " ".join(dict.fromkeys(each for each in (*urns, rule.get("default_dataset_urn")) if each))


def _key(rule: dict[str, Any] | None) -> str:
    return "(header)" if rule is None else f"{rule['topic_pattern']} {rule['name']}"
