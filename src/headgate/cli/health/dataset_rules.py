"""`headgate dataset resolve|rules|rule`: which dataset a message belongs to, and the rules that say so."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from headgate.cli.api_client import Api, asks, at, read_json
from headgate.cli.health.options import IfVersion, Limit, Reason, Urn
from headgate.cli.input_files import read_document
from headgate.cli.output import show_table
from headgate.cli.session import Json, echo_json
from headgate.errors import UserError

rule_app = typer.Typer(help="Rules that say which topic is which dataset.", no_args_is_help=True, rich_markup_mode=None)

Pattern = Annotated[
    str, typer.Argument(metavar="PATTERN", help="A topic; with * for any characters and ? for one of type WILDCARD.")
]


class RuleType(StrEnum):
    """What a rule is. The earlier ones are asked first."""

    EXACT = "EXACT"
    CONDITIONAL = "CONDITIONAL"
    WILDCARD = "WILDCARD"


@asks
def resolve(
    api: Api,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Where the message was found.")],
    payload: Annotated[
        str | None, typer.Option(metavar="JSON", help="The message: JSON, @file, or - for standard input.")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME:VALUE", help="A header of it; may be given repeatedly.")
    ] = None,
    schema_id: Annotated[str | None, typer.Option(metavar="ID", help="The schema it follows.")] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Say what each rule made of it.")] = False,
    as_json: Json = False,
) -> None:
    """Find the dataset that a message belongs to, and print its name."""
    body = {
        "topic": topic,
        "payload": read_json(payload, "--payload"),
        "headers": _headers(header),
        "schema_id": schema_id,
    }
    found = api.post("/resolve/explain" if explain else "/resolve", body)
    if as_json:
        echo_json(found)
        return
    resolution = found["resolution"]
    typer.echo(resolution["dataset_urn"])
    if not resolution["is_mapped"]:
        typer.echo(f"no rule knows this topic; add one with 'headgate dataset rule add URN {topic}'", err=True)
    if resolution.get("warning"):
        typer.echo(resolution["warning"], err=True)
    if explain:
        typer.echo()
        rows = [(each["outcome"], _key(each["rule"]), each["why"]) for each in found["steps"]]
        show_table(("OUTCOME", "RULE", "WHY"), rows, nothing="no rule was looked at", key=1)
        if found["others"]:
            typer.echo(f"and {found['others']} whose pattern is for other topics")


@asks
def rules(
    api: Api,
    urn: Annotated[str | None, typer.Argument(metavar="[URN]", help="Those of a dataset. [default: all]")] = None,
    limit: Limit = 100,
    as_json: Json = False,
) -> None:
    """List the rules of a dataset, or all rules."""
    found = list(
        api.pages("/resolution-rules", limit)
        if urn is None
        else api.get(at("datasets", urn, "resolution-rules"))["items"]
    )
    if as_json:
        echo_json(found)
        return
    rows = [
        (
            each["topic_pattern"],
            each.get("name", "default"),
            "in force" if each.get("enabled", True) else "switched off",
            each.get("resolution_type", RuleType.EXACT.value),
            each.get("priority", 100),
            _datasets(each),
        )
        for each in found
    ]
    columns = ("TOPIC", "RULE", "", "TYPE", "PRIORITY", "DATASET")
    show_table(columns, rows, nothing="no rules; add one with 'headgate dataset rule add'")


@rule_app.command("add")
@asks
def add(
    api: Api,
    urn: Urn,
    pattern: Annotated[
        str | None, typer.Argument(metavar="[PATTERN]", help="A topic, or a pattern of some with * and ?.")
    ] = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Several rules of a pattern need names.")] = None,
    type: Annotated[
        RuleType | None, typer.Option(case_sensitive=False, help="[default: WILDCARD for a pattern, else EXACT]")
    ] = None,
    priority: Annotated[int | None, typer.Option(help="Of rules of one type the lower goes first.")] = None,
    schema_id: Annotated[str | None, typer.Option(metavar="ID", help="Only for messages of this schema.")] = None,
    file: Annotated[
        str | None,
        typer.Option("--file", "-f", metavar="FILE", help="The rule in JSON or TOML, such as with conditions."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Add a rule that says which topic is a dataset."""
    given: dict[str, Any] = {} if file is None else read_document(file, "--file")
    topic = pattern or given.get("topic_pattern")
    if not topic:
        raise UserError("rule add: name the topic, or give a file that does as topic_pattern")
    kind = type or (RuleType.WILDCARD if not given and any(each in topic for each in "*?") else None)
    said = {
        "topic_pattern": topic,
        "name": name,
        "resolution_type": None if kind is None else kind.value,
        "priority": priority,
        "schema_id": schema_id,
    }
    body = {**given, **{field: value for field, value in said.items() if value is not None}}
    made = api.post(at("datasets", urn, "resolution-rules"), body)
    if as_json:
        echo_json(made)
    else:
        typer.echo(f"{made['topic_pattern']}: rule {made.get('name', 'default')} leads to {_datasets(made)}")


@rule_app.command("rm")
@asks
def rm(
    api: Api,
    pattern: Pattern,
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="Which rule of the pattern.")] = "default",
    if_version: IfVersion = None,
    reason: Reason = "",
    as_json: Json = False,
) -> None:
    """Remove a rule."""
    body = {"expected_version": if_version, "reason": reason}
    api.request("DELETE", at("resolution-rules", pattern, name), body=body)
    if as_json:
        echo_json({"removed": {"topic_pattern": pattern, "name": name}})
    else:
        typer.echo(f"{pattern}: rule {name} is removed")


def _headers(given: list[str] | None) -> dict[str, str]:
    found = {}
    for text in given or []:
        name, separator, value = text.partition(":")
        if not separator:
            raise UserError(f"--header {text!r}: write NAME:VALUE")
        found[name.strip()] = value.strip()
    return found


def _datasets(rule: dict[str, Any]) -> str:
    named = [*(each["dataset_urn"] for each in rule.get("conditions", [])), rule.get("dataset_urn")]
    return " ".join(dict.fromkeys(each for each in (*named, rule.get("default_dataset_urn")) if each))


def _key(rule: dict[str, Any] | None) -> str:
    return "(header)" if rule is None else f"{rule['topic_pattern']} {rule['name']}"
