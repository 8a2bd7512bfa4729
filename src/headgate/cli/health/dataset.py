"""`headgate dataset`: what is registered of datasets: looked up, changed, compared, taken back."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from headgate.cli.api_client import Api, Tags, asks, at, read_tags
from headgate.cli.health.dataset_names import alias, baseline, export, name_means, producers, schema, unalias
from headgate.cli.health.dataset_rules import resolve, rule_app, rules
from headgate.cli.health.options import IfVersion, Limit, Reason, Ticket, Urn
from headgate.cli.input_files import read_document
from headgate.cli.output import compact, show_facts, show_table
from headgate.cli.session import Json, echo_json
from headgate.cli.times import ago
from headgate.errors import UserError

app = typer.Typer(
    help="Datasets: who owns them and what is promised of them.", no_args_is_help=True, rich_markup_mode=None
)

File = Annotated[
    str | None,
    typer.Option("--file", "-f", metavar="FILE", help="The config: dataset.json, dataset.toml, or - for JSON."),
]
Tier = Annotated[str | None, typer.Option("--tier", metavar="1|2|3", help="How much depends on it; 1 is the most.")]
Team = Annotated[str | None, typer.Option("--team", metavar="NAME", help="Who owns it.")]
Email = Annotated[str | None, typer.Option("--email", metavar="ADDRESS", help="Where to reach them.")]
Oncall = Annotated[str | None, typer.Option("--oncall", metavar="NAME", help="The rotation that is called.")]
DisplayName = Annotated[str | None, typer.Option("--name", metavar="TEXT", help="What people call it.")]
Description = Annotated[str | None, typer.Option("--description", metavar="TEXT")]
Freshness = Annotated[
    str | None, typer.Option("--freshness", metavar="DURATION", help="How late its data may be, such as 1h.")
]
RetentionDays = Annotated[int | None, typer.Option("--retention-days", min=1, help="For how long it is kept.")]
# What the server says of a dataset, and nobody can say to it.
_ANSWERED: Final = frozenset(
    {
        "config_version", "status", "created_at", "updated_at", "updated_by", "archived_at", "approval_ticket",
        "stale", "age_seconds", "is_fallback",
    }
)  # fmt: skip


class DatasetStatus(StrEnum):
    """Whether a dataset is in use."""

    ACTIVE = "ACTIVE"
    DISCOVERED = "DISCOVERED"
    DEPRECATED = "DEPRECATED"
    DELETED = "DELETED"


@app.command("ls")
@asks
def ls(
    api: Api,
    tier: Tier = None,
    team: Team = None,
    status: Annotated[DatasetStatus | None, typer.Option(case_sensitive=False)] = None,
    source_type: Annotated[str | None, typer.Option(metavar="TYPE", help="Such as KAFKA.")] = None,
    search: Annotated[
        str | None, typer.Option(metavar="TEXT", help="In its names, its team or its description.")
    ] = None,
    limit: Limit = 100,
    as_json: Json = False,
) -> None:
    """List datasets; deleted ones only with --status DELETED."""
    wanted = None if status is None else status.value
    query: dict[str, Any] = {
        "tier": tier,
        "owner_team": team,
        "status": wanted,
        "source_type": source_type,
        "search": search,
    }
    found = list(api.pages("/datasets", limit, **query))
    if as_json:
        echo_json(found)
        return
    rows = [
        (
            _status(each),
            each.get("tier", "TIER_3"),
            each["dataset_urn"],
            each.get("owner_team", ""),
            f"v{each['config_version']}",
            ago(each.get("updated_at")),
            each.get("display_name", ""),
        )
        for each in found
    ]
    columns = ("STATUS", "TIER", "DATASET", "TEAM", "CONFIG", "CHANGED", "NAME")
    show_table(columns, rows, nothing="no datasets; register one with 'headgate dataset register'", key=2)


@app.command("show")
@asks
def show(
    api: Api,
    urn: Urn,
    version: Annotated[int | None, typer.Option(min=1, metavar="N", help="As it was then. [default: now]")] = None,
    as_json: Json = False,
) -> None:
    """Show a dataset, and how it is: its signals, the worst ones first."""
    found = api.get(at("datasets", urn), version=version)
    if as_json:
        echo_json(found)
        return
    from headgate.cli.health.signal import show_signals

    typer.echo(
        f"{_status(found)}  {found['dataset_urn']}  {found.get('tier', 'TIER_3')}  {found.get('owner_team', '')}"
    )
    told = {"dataset_urn", "tier", "owner_team", "status"}
    show_facts({name: _fact(value) for name, value in found.items() if name not in told})
    if version is None:
        typer.echo()
        show_signals(api.get(at("datasets", urn, "signals"))["signals"])


@app.command("register")
@asks
def register(  # noqa: PLR0913 - each is an option
    api: Api,
    urn: Annotated[str | None, typer.Argument(metavar="[URN]", help="Its name. [default: that of the file]")] = None,
    file: File = None,
    tier: Tier = None,
    team: Team = None,
    email: Email = None,
    oncall: Oncall = None,
    name: DisplayName = None,
    description: Description = None,
    freshness: Freshness = None,
    retention_days: RetentionDays = None,
    tag: Tags = None,
    ticket: Ticket = None,
    reason: Reason = "",
    as_json: Json = False,
) -> None:
    """Register a dataset. What is given by itself goes before what the file says."""
    given = {} if file is None else read_document(file, "--file")
    said = _said(
        tier=tier, owner_team=team, owner_email=email, oncall_rotation=oncall, display_name=name,
        description=description, retention_days=retention_days, tags=read_tags(tag) or None,
    )  # fmt: skip
    named = urn or given.get("dataset_urn")
    if not named:
        raise UserError("register: name the dataset, such as urn:dp:orders:created, or give a file that does")
    body = _overlaid(given, said, freshness)
    grounds = {"approval_ticket": ticket, "reason": reason}
    _say(api.post("/datasets", {**body, **grounds, "dataset_urn": named}), as_json=as_json)


@app.command("update")
@asks
def update(  # noqa: PLR0913 - each is an option
    api: Api,
    urn: Urn,
    file: File = None,
    tier: Tier = None,
    team: Team = None,
    email: Email = None,
    oncall: Oncall = None,
    name: DisplayName = None,
    description: Description = None,
    freshness: Freshness = None,
    retention_days: RetentionDays = None,
    tag: Tags = None,
    if_version: IfVersion = None,
    ticket: Ticket = None,
    reason: Reason = "",
    as_json: Json = False,
) -> None:
    """Change a dataset: to what the file says as a whole, or else only what is given.

    A file that 'dataset show --json' wrote is refused if the dataset was changed since.
    """
    said = _said(
        tier=tier, owner_team=team, owner_email=email, oncall_rotation=oncall, display_name=name,
        description=description, retention_days=retention_days, tags=read_tags(tag) or None,
    )  # fmt: skip
    if file is None and not said and freshness is None:
        raise UserError("update: nothing is to be changed; give --file, --tier, --team ...")
    given = api.get(at("datasets", urn)) if file is None else read_document(file, "--file")
    grounds = {
        "expected_version": given.get("config_version") if if_version is None else if_version,
        "approval_ticket": ticket,
        "reason": reason,
    }
    body = {**_overlaid(given, said, freshness), **grounds}
    # A name without a version stands for the dataset that is registered under one with it.
    body.pop("dataset_urn", None)
    changed = given.get("dataset_urn", urn) if file is None else urn
    _say(api.request("PUT", at("datasets", changed), body=body), as_json=as_json)


def _said(**fields: object) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _overlaid(given: dict[str, Any], said: dict[str, Any], freshness: str | None) -> dict[str, Any]:
    """Return a config with what was said by itself, without what only the server says."""
    from headgate.durable.model import duration

    made = {name: value for name, value in given.items() if name not in _ANSWERED} | said
    if freshness is not None:
        slos = made.get("slos") or {}
        late = {**(slos.get("freshness") or {}), "max_delay_seconds": duration.seconds(freshness, name="--freshness")}
        made["slos"] = {**slos, "freshness": late}
    return made


@app.command("versions")
@asks
def versions(api: Api, urn: Urn, limit: Limit = 20, as_json: Json = False) -> None:
    """List the versions of a dataset's config, newest first."""
    found = list(api.pages(at("datasets", urn, "versions"), limit))
    if as_json:
        echo_json(found)
        return
    rows = [
        (
            each["config_version"],
            _status(each),
            each.get("tier", "TIER_3"),
            ago(each.get("updated_at")),
            each.get("updated_by"),
            each.get("approval_ticket"),
        )
        for each in found
    ]
    show_table(("VERSION", "STATUS", "TIER", "MADE", "BY", "TICKET"), rows, nothing="no versions")


@app.command("diff")
@asks
def diff(
    api: Api,
    urn: Urn,
    before: Annotated[int, typer.Argument(metavar="FROM", min=1, help="A version.")],
    after: Annotated[int, typer.Argument(metavar="TO", min=1, help="Another one.")],
    as_json: Json = False,
) -> None:
    """Show in what two versions of a dataset's config differ."""
    found = api.get(at("datasets", urn, "diff"), **{"from": before, "to": after})
    if as_json:
        echo_json(found)
        return
    rows = [(each["path"], _fact(each["before"]), _fact(each["after"])) for each in found["changes"]]
    show_table(("FIELD", f"v{before}", f"v{after}"), rows, nothing="they are the same")


@app.command("rollback")
@asks
def rollback(
    api: Api,
    urn: Urn,
    version: Annotated[int, typer.Argument(metavar="VERSION", min=1, help="As which it is to be again.")],
    if_version: IfVersion = None,
    ticket: Ticket = None,
    reason: Reason = "",
    as_json: Json = False,
) -> None:
    """Make the config of a dataset as it was at a version. That makes a new version."""
    body = {"version": version, "expected_version": if_version, "approval_ticket": ticket, "reason": reason}
    _say(api.post(at("datasets", urn, "rollback"), body), as_json=as_json)


@app.command("deprecate")
@asks
def deprecate(
    api: Api, urn: Urn, if_version: IfVersion = None, ticket: Ticket = None, reason: Reason = "", as_json: Json = False
) -> None:
    """Say that a dataset should not be used any more: the gate warns of it."""
    _say(api.post(at("datasets", urn, "deprecate"), _grounds(if_version, ticket, reason)), as_json=as_json)


@app.command("delete")
@asks
def delete(
    api: Api, urn: Urn, if_version: IfVersion = None, ticket: Ticket = None, reason: Reason = "", as_json: Json = False
) -> None:
    """Mark a dataset as deleted: the gate blocks it. It can be restored."""
    answer = api.request("DELETE", at("datasets", urn), body=_grounds(if_version, ticket, reason))
    _say(answer, as_json=as_json)


@app.command("restore")
@asks
def restore(
    api: Api, urn: Urn, if_version: IfVersion = None, ticket: Ticket = None, reason: Reason = "", as_json: Json = False
) -> None:
    """Take back a deletion or a deprecation."""
    _say(api.post(at("datasets", urn, "restore"), _grounds(if_version, ticket, reason)), as_json=as_json)


def _grounds(if_version: int | None, ticket: str | None, reason: str) -> dict[str, Any]:
    return {"expected_version": if_version, "approval_ticket": ticket, "reason": reason}


@app.command("changes")
@asks
def changes(
    api: Api,
    after: Annotated[
        str | None, typer.Option(metavar="CHECKPOINT", help="Those after this one. [default: from the beginning]")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=100, help="How many at most.")] = 100,
    as_json: Json = False,
) -> None:
    """List datasets in the order in which they changed, and the checkpoint to go on from."""
    found = api.get("/dataset-changes", after=after, limit=limit)
    if as_json:
        echo_json(found)
        return
    rows = [
        (
            each["status"],
            each["dataset_urn"],
            f"v{each['config_version']}",
            ago(each["updated_at"]),
            each["updated_by"],
            each["changed_fields"],
        )
        for each in found["changes"]
    ]
    columns = ("STATUS", "DATASET", "CONFIG", "CHANGED", "BY", "FIELDS")
    show_table(columns, rows, nothing="no changes", key=1)
    typer.echo(f"go on with --after {found['checkpoint']}")


def _status(dataset: dict[str, Any]) -> str:
    return str(dataset.get("status", DatasetStatus.ACTIVE.value))


def _fact(value: object) -> object:
    if isinstance(value, dict) and not all(isinstance(each, str) for each in value.values()):
        return compact(value)
    return value


def _say(dataset: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        echo_json(dataset)
    else:
        where = f"config version {dataset['config_version']}"
        typer.echo(f"{dataset['dataset_urn']}: {_status(dataset)}, {dataset.get('tier', 'TIER_3')}, {where}")


app.command("alias")(alias)
app.command("unalias")(unalias)
app.command("name")(name_means)
app.command("export")(export)
app.command("schema")(schema)
app.command("baseline")(baseline)
app.command("producers")(producers)
app.command("resolve")(resolve)
app.command("rules")(rules)
app.add_typer(rule_app, name="rule")
