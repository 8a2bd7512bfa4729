"""`headgate gate`: checks whether datasets may be used, and manages gate overrides and feature flags."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from headgate.cli.api_client import Api, at
from headgate.cli.commands import Answer, calls_server, command_group, server_command
from headgate.cli.options import Ticket, Urn
from headgate.cli.output import short, show_table
from headgate.cli.session import Json, echo_json
from headgate.cli.times import ago
from headgate.errors import UserError
from headgate.exit_codes import ExitCode


class FlagState(StrEnum):
    """State of a flag."""

    ON = "on"
    OFF = "off"


@calls_server
def flag(
    api: Api,
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Flag, such as fleet.enabled. [default: all]")
    ] = None,
    state: Annotated[FlagState | None, typer.Argument(metavar="[on|off]", help="New state. [default: show it]")] = None,
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="Recorded in the audit log.")] = None,
) -> Answer:
    """Show feature flags, or set one."""
    if name is None:
        found = api.get("/flags")["flags"]
    elif state is None:
        found = [api.get(at("flags", name))]
    else:
        if not reason:
            raise UserError(f"flag {name}: --reason is required")
        found = [api.request("PUT", at("flags", name), body={"is_on": state is FlagState.ON, "reason": reason})]
    yield found if name is None else found[0]
    rows = [
        (each["name"], "on" if each["is_on"] else "off", ago(each["updated_at"]), each["updated_by"], each["reason"])
        for each in found
    ]
    show_table(("FLAG", "STATE", "SINCE", "BY", "REASON"), rows, nothing="no flags")


app = command_group(
    "Check whether datasets may be used now. Exit codes of check: 0 allow, 10 warn, 20 block, 30 unknown."
)

EXIT_CODES: Final = {
    "allow": ExitCode.OK,
    "warn": ExitCode.WARN,
    "block": ExitCode.BLOCK,
    "unknown": ExitCode.UNKNOWN,
}


class FailOn(StrEnum):
    """The mildest ruling that fails a step of CI."""

    WARN = "warn"
    UNKNOWN = "unknown"
    HOLD = "hold"
    BLOCK = "block"


FAILING: Final[Mapping[FailOn, frozenset[str]]] = {
    FailOn.WARN: frozenset({"warn", "unknown", "block"}),
    FailOn.UNKNOWN: frozenset({"unknown", "block"}),
    # What a pipeline with a rule on the dataset waits for.
    FailOn.HOLD: frozenset({"unknown", "block"}),
    FailOn.BLOCK: frozenset({"block"}),
}


class Verb(StrEnum):
    """Intended use of a dataset."""

    READ = "read"
    PUBLISH = "publish"


class OnUnknown(StrEnum):
    """Ruling on a dataset with unknown state."""

    ALLOW = "allow"
    WARN = "warn"
    BLOCK = "block"
    UNKNOWN = "unknown"


VerbOption = Annotated[Verb, typer.Option("--verb", help="Intended use: read it, or publish new data to its readers.")]
PrincipalOption = Annotated[
    str | None, typer.Option("--for", metavar="PRINCIPAL", help="Principal that uses it. [default: the caller]")
]


@server_command(app, "check")
def check(
    api: Api,
    urns: Annotated[list[str], typer.Argument(metavar="URN...", help="Datasets.")],
    verb: VerbOption = Verb.READ,
    principal: PrincipalOption = None,
    on_unknown: Annotated[
        OnUnknown, typer.Option(help="Ruling on a registered dataset with unknown state.")
    ] = OnUnknown.WARN,
    max_age: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="Maximum age of a signal's window. [default: 1d, or the freshness SLO if that is longer]",
        ),
    ] = None,
    fail_on: Annotated[
        FailOn | None,
        typer.Option(
            help="Exit with 1 for this ruling or a worse one, and otherwise with 0: for CI. Hold: block or unknown."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check whether datasets may be used now. The exit code is 0 for allow, 10 warn, 20 block, 30 unknown.

    A dataset that is not registered is unknown, or blocked with --on-unknown block. Errors have other exit codes: 2
    invalid input, 75 try again. With --fail-on the exit code is 0 or 1, as CI systems expect.
    """
    body = {
        "datasets": urns,
        "verb": verb.value,
        "principal": principal,
        "on_unknown": on_unknown.value,
        "max_age": max_age,
    }
    found = api.post("/gate", body)
    if as_json:
        echo_json(found)
    else:
        show_decision(found)
    if fail_on is None:
        raise typer.Exit(EXIT_CODES[found["decision"]])
    raise typer.Exit(ExitCode.FAILED if found["decision"] in FAILING[fail_on] else ExitCode.OK)


def show_decision(found: Mapping[str, Any]) -> None:
    """Print the ruling on each dataset and its reasons."""
    for each in found["datasets"]:
        since = f"  since {short(each['since'])} ({ago(each['since'])})" if each.get("since") else ""
        until = f"  until {short(each['until'])}" if each.get("until") else ""
        typer.echo(f"{each['ruling'].upper()}  {each['dataset_urn']}{since}{until}")
        for reason in each.get("reasons", ()):
            typer.echo(f"  {reason['ruling']}: {reason['message']}")
    if not found["complete"]:
        typer.echo("incomplete: some signals are from the cache")
    if found["overridable_by"]:
        who = " or ".join(found["overridable_by"])
        verb = "" if found["verb"] == Verb.READ else f" --verb {found['verb']}"
        typer.echo(f"override ({who}): headgate gate override URN{verb} --for-time 2h --reason ...")


@server_command(app, "override")
def override(
    api: Api,
    urn: Urn,
    for_time: Annotated[str, typer.Option(metavar="DURATION", help="Duration of the override, such as 2h.")],
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Recorded in the audit log.")],
    verb: VerbOption = Verb.READ,
    principal: Annotated[
        str | None, typer.Option("--for", metavar="PRINCIPAL", help="Only for this principal. [default: all]")
    ] = None,
    ticket: Ticket = None,
) -> Answer:
    """Override the gate for an unhealthy dataset: it warns instead of blocking, for a limited time."""
    body = {"duration": for_time, "reason": reason, "verb": verb.value, "principal": principal, "ticket": ticket}
    created = api.post(at("gate", "overrides", urn), body)
    yield created
    user, until = created.get("principal") or "all", short(created["expires_at"])
    typer.echo(f"{created['override_id']}: {user} may {created['verb']} {created['dataset_urn']} until {until}")


@server_command(app, "overrides")
def overrides(api: Api, urn: Urn) -> Answer:
    """List the active overrides of a dataset."""
    found = api.get(at("gate", "overrides", urn))["overrides"]
    yield found
    rows = [
        (
            each["override_id"],
            each["verb"],
            each.get("principal") or "all",
            ago(each["expires_at"]),
            each["actor"],
            each["reason"],
            each.get("ticket"),
        )
        for each in found
    ]
    show_table(
        ("OVERRIDE", "VERB", "PRINCIPAL", "EXPIRES", "BY", "REASON", "TICKET"), rows, nothing="no active overrides"
    )


@server_command(app, "revoke")
def revoke(
    api: Api,
    urn: Urn,
    id: Annotated[str, typer.Argument(metavar="ID", help="Override id.")],
) -> Answer:
    """Revoke an override."""
    api.request("DELETE", at("gate", "overrides", urn, id))
    yield {"revoked": id}
    typer.echo(f"{id}: revoked")


app.command("flag")(flag)
