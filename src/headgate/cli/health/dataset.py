"""`headgate dataset`: registers, updates, versions and deletes datasets."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from headgate.cli.api_client import Api, at, read_tags
from headgate.cli.commands import Answer, Option, OptionGroup, add_action, command_group, server_command
from headgate.cli.health.contract import import_contract
from headgate.cli.health.dataset_names import alias, baseline, export, producers, resolve_name, schema, unalias
from headgate.cli.health.dataset_rules import resolve, rule_app, rules
from headgate.cli.input_files import read_document
from headgate.cli.options import IfVersion, Limit, Reason, Tags, Ticket, Urn
from headgate.cli.output import compact, show_facts, show_table
from headgate.cli.times import ago
from headgate.errors import UserError

app = command_group("Manage datasets: owners, SLOs and configuration versions.")

File = Annotated[
    str | None,
    typer.Option("--file", "-f", metavar="FILE", help="Configuration: dataset.json, dataset.toml, or - for JSON."),
]
_MESSAGE_LENGTH: Final = 120
# Fields that only the server sets.
READ_ONLY: Final = frozenset(
    {
        "config_version", "status", "created_at", "updated_at", "updated_by", "archived_at", "approval_ticket",
        "stale", "age_seconds", "is_fallback", "field_sources", "merged_into",
    }
)  # fmt: skip


Tier = Annotated[str | None, typer.Option("--tier", metavar="1|2|3", help="Tier; 1 is the most important.")]
Team = Annotated[str | None, typer.Option("--team", metavar="NAME", help="Owner team.")]


@dataclass(frozen=True)
class ConfigOptions(OptionGroup):
    """Configuration of a dataset, from a file and options."""

    file: Annotated[
        str | None,
        typer.Option(
            "--file", "-f", metavar="FILE", help="Configuration: JSON, .toml, or - for JSON on standard input."
        ),
    ] = None
    tier: Tier = None
    team: Team = None
    email: Annotated[str | None, typer.Option("--email", metavar="ADDRESS", help="E-mail address of the owner.")] = None
    oncall: Annotated[str | None, typer.Option("--oncall", metavar="NAME", help="On-call rotation.")] = None
    name: Annotated[str | None, typer.Option("--name", metavar="TEXT", help="Display name.")] = None
    description: Annotated[str | None, typer.Option("--description", metavar="TEXT", help="Description.")] = None
    freshness: Annotated[
        str | None, typer.Option("--freshness", metavar="DURATION", help="Freshness SLO: maximum delay, such as 1h.")
    ] = None
    retention_days: Annotated[int | None, typer.Option("--retention-days", min=1, help="Retention in days.")] = None
    tag: Tags = None

    def document(self) -> dict[str, Any]:
        """Return the content of the file; empty without a file."""
        return {} if self.file is None else read_document(self.file, "--file")

    def fields(self) -> dict[str, Any]:
        """Return the configuration fields that are set by options other than the freshness."""
        fields = {
            "tier": self.tier,
            "owner_team": self.team,
            "owner_email": self.email,
            "oncall_rotation": self.oncall,
            "display_name": self.name,
            "description": self.description,
            "retention_days": self.retention_days,
            "tags": read_tags(self.tag) or None,
        }
        return {name: value for name, value in fields.items() if value is not None}

    def applied_to(self, document: dict[str, Any]) -> dict[str, Any]:
        """Return a configuration with the options applied, without the fields that only the server sets."""
        from headgate.durable.model import duration

        config = {name: value for name, value in document.items() if name not in READ_ONLY} | self.fields()
        if self.freshness is not None:
            slos = config.get("slos") or {}
            delay = duration.seconds(self.freshness, name="--freshness")
            config["slos"] = {**slos, "freshness": {**(slos.get("freshness") or {}), "max_delay_seconds": delay}}
        return config


class DatasetStatus(StrEnum):
    """Status of a dataset."""

    ACTIVE = "ACTIVE"
    DISCOVERED = "DISCOVERED"
    DEPRECATED = "DEPRECATED"
    DELETED = "DELETED"


@server_command(app, "ls")
def ls(
    api: Api,
    tier: Tier = None,
    team: Team = None,
    status: Annotated[DatasetStatus | None, typer.Option(case_sensitive=False, help="Filter by status.")] = None,
    source_type: Annotated[
        str | None, typer.Option(metavar="TYPE", help="Filter by source type, such as KAFKA.")
    ] = None,
    search: Annotated[str | None, typer.Option(metavar="TEXT", help="Search in names, team and description.")] = None,
    limit: Limit = 100,
) -> Answer:
    """List datasets. Deleted ones are listed only with --status DELETED."""
    query: dict[str, Any] = {
        "tier": tier,
        "owner_team": team,
        "status": status and status.value,
        "source_type": source_type,
        "search": search,
    }
    found = list(api.items("/datasets", limit, **query))
    yield found
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
    columns = ("STATUS", "TIER", "DATASET", "TEAM", "CONFIG", "UPDATED", "NAME")
    show_table(columns, rows, nothing="no datasets; register one with 'headgate dataset register'", key=2)


@server_command(app, "show")
def show(
    api: Api,
    urn: Urn,
    version: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Configuration version. [default: newest]")
    ] = None,
) -> Answer:
    """Show a dataset and its signals, worst first."""
    found = api.get(at("datasets", urn), version=version)
    yield found
    from headgate.cli.health.signal import show_signals

    typer.echo(
        f"{_status(found)}  {found['dataset_urn']}  {found.get('tier', 'TIER_3')}  {found.get('owner_team', '')}"
    )
    shown = {"dataset_urn", "tier", "owner_team", "status"}
    show_facts({name: _fact(value) for name, value in found.items() if name not in shown})
    if version is None:
        typer.echo()
        show_signals(api.get(at("datasets", urn, "signals"))["signals"])


@server_command(app, "tests")
def reported_results(
    api: Api,
    urn: Urn,
    test: Annotated[str | None, typer.Option("--test", metavar="ID", help="One test or job, with its history.")] = None,
) -> Answer:
    """List the tests and jobs that tools report about a dataset, worst first."""
    results = api.get(at("datasets", urn, "results"), history=0 if test is None else 30)["results"]
    found = [each for each in results if test in (None, each["test_id"])]
    if test is not None and not found:
        raise UserError(f"test {test} of {urn}: no result; 'headgate dataset tests {urn}' lists the tests")
    yield found
    rows = [
        (each["state"], each["test_id"], ago(each["since"]), ago(each["at"]), each["source"], _line(each["message"]))
        for each in found
    ]
    show_table(("STATE", "TEST", "SINCE", "LAST", "SOURCE", "MESSAGE"), rows, nothing="no results", key=1)
    for each in found if test is not None else []:
        typer.echo(f"\n{each['message'] or 'no message'}\n")
        past = [(one["state"], ago(one["at"]), one["run_id"], _line(one["message"])) for one in each["history"]]
        show_table(("STATE", "AT", "RUN", "MESSAGE"), past, nothing="no history")


@server_command(app, "fields")
def fields(api: Api, urn: Urn) -> Answer:
    """List the fields of a dataset that tools observed, with the columns they derive from."""
    found = api.get(at("datasets", urn, "fields"))
    yield found
    rows = [
        (
            each["name"],
            each["type"],
            _line(each["description"]),
            ", ".join(map(_origin, each["origins"])),
            each["source"],
        )
        for each in found["fields"]
    ]
    show_table(("FIELD", "TYPE", "DESCRIPTION", "DERIVED FROM", "SOURCE"), rows, nothing="no fields reported")
    changes = [
        (
            ago(each["at"]),
            ", ".join(each["added"]),
            ", ".join(each["removed"]),
            ", ".join(map(_retyped, each["retyped"])),
        )
        for each in found["changes"]
    ]
    if changes:
        typer.echo()
        show_table(("CHANGED", "ADDED", "REMOVED", "RETYPED"), changes, nothing="no changes")


def _origin(origin: dict[str, str]) -> str:
    return f"{origin['dataset_urn']}.{origin['column']}"


def _retyped(change: dict[str, str]) -> str:
    return f"{change['name']} {change['before']} -> {change['after']}"


def _line(message: str) -> str:
    """Return a message on one line."""
    return " ".join(message.split())[:_MESSAGE_LENGTH]


@server_command(app, "duplicates")
def duplicates(api: Api) -> Answer:
    """List datasets that seem to be one table, with the dataset to merge each into."""
    found = api.get("/dataset-duplicates")
    yield found
    rows = [(each["dataset_urn"], each["into_urn"], each["reason"]) for each in found["duplicates"]]
    show_table(("DATASET", "MERGE INTO", "REASON"), rows, nothing="no duplicates")
    if not found["complete"]:
        typer.echo("the list is incomplete")


@server_command(app, "merge")
def merge(
    api: Api,
    urn: Urn,
    into: Annotated[str, typer.Argument(metavar="INTO", help="Dataset that gets the history.")],
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Recorded in the audit log.")],
    ticket: Ticket = None,
) -> Answer:
    """Merge a dataset into another one with its names, signals, incidents, evidence and lineage."""
    body = {"into_urn": into, "reason": reason, "approval_ticket": ticket}
    found = api.post(at("datasets", urn, "merge"), {name: value for name, value in body.items() if value is not None})
    yield found
    counts = ("names", "signals", "transitions", "results", "incidents", "evidence", "producers")
    typer.echo(f"{found['dataset_urn']} is merged into {found['into_urn']}")
    show_facts({name: found[name] for name in counts})


@server_command(app, "register")
def register(
    api: Api,
    config: ConfigOptions,
    urn: Annotated[str | None, typer.Argument(metavar="[URN]", help="Dataset. [default: that of the file]")] = None,
    ticket: Ticket = None,
    reason: Reason = "",
) -> Answer:
    """Register a dataset. Options take precedence over the file."""
    document = config.document()
    name = urn or document.get("dataset_urn")
    if not name:
        raise UserError("register: a URN such as urn:dp:orders:created is required, as an argument or in the file")
    approval = {"approval_ticket": ticket, "reason": reason}
    answer = api.post("/datasets", {**config.applied_to(document), **approval, "dataset_urn": name})
    yield answer
    typer.echo(_dataset_text(answer))


@server_command(app, "update")
def update(
    api: Api,
    urn: Urn,
    config: ConfigOptions,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace the whole configuration with that of the file.")
    ] = False,
    if_version: IfVersion = None,
    ticket: Ticket = None,
    reason: Reason = "",
) -> Answer:
    """Update a dataset: change the fields of the file and of the options, and leave the others as they are.

    In the file, null resets a field. --replace sends the file as the whole configuration; it must state every field
    that is set. A file written by 'dataset show --json' is refused if the dataset has changed since.
    """
    if config.file is None and not config.fields() and config.freshness is None:
        raise UserError("update: no changes; give --file, --tier, --team or another option")
    if replace and config.file is None:
        raise UserError("update: --replace needs the whole configuration; give --file")
    document = config.document()
    conditions = {
        "expected_version": document.get("config_version") if if_version is None else if_version,
        "approval_ticket": ticket,
        "reason": reason,
    }
    given = {name: value for name, value in conditions.items() if value is not None}
    body = {**config.applied_to(document), **given}
    body.pop("dataset_urn", None)
    answer = api.request("PUT" if replace else "PATCH", at("datasets", urn), body=body, keeps_null=True)
    yield answer
    typer.echo(_dataset_text(answer))


server_command(app, "import-contract")(import_contract)


@server_command(app, "versions")
def versions(api: Api, urn: Urn, limit: Limit = 20) -> Answer:
    """List the configuration versions of a dataset, newest first."""
    found = list(api.items(at("datasets", urn, "versions"), limit))
    yield found
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
    show_table(("VERSION", "STATUS", "TIER", "UPDATED", "BY", "TICKET"), rows, nothing="no versions")


@server_command(app, "diff")
def diff(
    api: Api,
    urn: Urn,
    before: Annotated[int, typer.Argument(metavar="FROM", min=1, help="Version.")],
    after: Annotated[int, typer.Argument(metavar="TO", min=1, help="Version to compare it with.")],
) -> Answer:
    """Compare two configuration versions of a dataset."""
    found = api.get(at("datasets", urn, "diff"), **{"from": before, "to": after})
    yield found
    rows = [(each["path"], _fact(each["before"]), _fact(each["after"])) for each in found["changes"]]
    show_table(("FIELD", f"v{before}", f"v{after}"), rows, nothing="no differences")


@server_command(app, "changes")
def changes(
    api: Api,
    after: Annotated[
        str | None, typer.Option(metavar="CHECKPOINT", help="Only changes after this checkpoint. [default: all]")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=100, help="Maximum number of results.")] = 100,
) -> Answer:
    """List changed datasets in order, and the checkpoint to continue from."""
    found = api.get("/dataset-changes", after=after, limit=limit)
    yield found
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
    columns = ("STATUS", "DATASET", "CONFIG", "UPDATED", "BY", "FIELDS")
    show_table(columns, rows, nothing="no changes", key=1)
    typer.echo(f"continue with --after {found['checkpoint']}")


def _status(dataset: dict[str, Any]) -> str:
    return str(dataset.get("status", DatasetStatus.ACTIVE.value))


def _fact(value: object) -> object:
    if isinstance(value, dict) and not all(isinstance(each, str) for each in value.values()):
        return compact(value)
    return value


def _dataset_text(dataset: dict[str, Any]) -> str:
    tier, version = dataset.get("tier", "TIER_3"), dataset["config_version"]
    return f"{dataset['dataset_urn']}: {_status(dataset)}, {tier}, config version {version}"


_CONDITIONS: Final[dict[str, Any]] = {
    "if_version": Option(IfVersion, None, field="expected_version"),
    "ticket": Option(Ticket, None, field="approval_ticket"),
    "reason": Option(Reason, ""),
}
add_action(
    app,
    "rollback",
    "/datasets/{urn}/rollback",
    "Restore an earlier configuration of a dataset as a new version.",
    _dataset_text,
    urn=Urn,
    version=Annotated[int, typer.Argument(metavar="VERSION", min=1, help="Version to restore.")],
    **_CONDITIONS,
)
add_action(
    app,
    "deprecate",
    "/datasets/{urn}/deprecate",
    "Deprecate a dataset: the gate warns about it.",
    _dataset_text,
    urn=Urn,
    **_CONDITIONS,
)
add_action(
    app,
    "delete",
    "/datasets/{urn}",
    "Delete a dataset: the gate blocks it. It can be restored.",
    _dataset_text,
    method="DELETE",
    urn=Urn,
    **_CONDITIONS,
)
add_action(
    app,
    "restore",
    "/datasets/{urn}/restore",
    "Restore a deleted or deprecated dataset.",
    _dataset_text,
    urn=Urn,
    **_CONDITIONS,
)
app.command("alias")(alias)
app.command("unalias")(unalias)
app.command("name")(resolve_name)
app.command("export")(export)
app.command("schema")(schema)
app.command("baseline")(baseline)
app.command("producers")(producers)
app.command("resolve")(resolve)
app.command("rules")(rules)
app.add_typer(rule_app, name="rule")
