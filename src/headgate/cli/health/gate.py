"""`headgate gate`: may this be used now, why not, and letting it be used all the same.

`headgate gate flag`: switches that programs look at.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from headgate.cli.api_client import Api, asks, at
from headgate.cli.health.options import Ticket, Urn
from headgate.cli.output import short, show_table
from headgate.cli.session import Json, echo_json
from headgate.cli.times import ago
from headgate.errors import UserError


class Way(StrEnum):
    """Which way a switch is thrown."""

    ON = "on"
    OFF = "off"


@asks
def flag(
    api: Api,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Such as fleet.enabled. [default: all]")] = None,
    way: Annotated[Way | None, typer.Argument(metavar="[on|off]", help="Throw it. [default: show it]")] = None,
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="Why; the audit keeps it.")] = None,
    as_json: Json = False,
) -> None:
    """Show the switches that programs look at, or throw one."""
    if name is None:
        found = api.get("/flags")["flags"]
    elif way is None:
        found = [api.get(at("flags", name))]
    else:
        if not reason:
            raise UserError(f"flag {name}: say why with --reason")
        found = [api.request("PUT", at("flags", name), body={"is_on": way is Way.ON, "reason": reason})]
    if as_json:
        echo_json(found if name is None else found[0])
        return
    rows = [
        (each["name"], "on" if each["is_on"] else "off", ago(each["updated_at"]), each["updated_by"], each["reason"])
        for each in found
    ]
    show_table(("FLAG", "IS", "SINCE", "BY", "WHY"), rows, nothing="no flag was ever set")


app = typer.Typer(
    help="The gate: may datasets be used now? Exit codes of check: 0 allow, 10 warn, 20 block, 30 unknown.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

EXIT_CODES: Final[Mapping[str, int]] = {"allow": 0, "warn": 10, "block": 20, "unknown": 30}


class Verb(StrEnum):
    """What someone wants to do with a dataset."""

    READ = "read"
    PUBLISH = "publish"


class OnUnknown(StrEnum):
    """What is said of a dataset whose state is not known."""

    ALLOW = "allow"
    WARN = "warn"
    BLOCK = "block"
    UNKNOWN = "unknown"


What = Annotated[Verb, typer.Option("--verb", help="To read it, or to let others read what was written.")]
For = Annotated[str | None, typer.Option("--for", metavar="PRINCIPAL", help="Who uses it. [default: whoever asks]")]


@app.command("check")
@asks
def check(
    api: Api,
    urns: Annotated[list[str], typer.Argument(metavar="URN...", help="The datasets.")],
    verb: What = Verb.READ,
    principal: For = None,
    on_unknown: Annotated[OnUnknown, typer.Option(help="What to say if nothing is known of one.")] = OnUnknown.WARN,
    max_age: Annotated[
        str | None, typer.Option(metavar="DURATION", help="A signal that is older says nothing. [default: 1d]")
    ] = None,
    as_json: Json = False,
) -> None:
    """Say whether datasets may be used now. The exit code is 0 to allow, 10 to warn, 20 to block, 30 if unknown.

    Errors have other codes: 2 fix the input, 75 try again.
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
    raise typer.Exit(EXIT_CODES[found["decision"]])


def show_decision(found: Mapping[str, Any]) -> None:
    """Print what the gate says of each dataset, and why."""
    for each in found["datasets"]:
        since = f"  since {short(each['since'])} ({ago(each['since'])})" if each.get("since") else ""
        until = f"  until {short(each['until'])}" if each.get("until") else ""
        typer.echo(f"{each['ruling'].upper()}  {each['dataset_urn']}{since}{until}")
        for reason in each.get("reasons", ()):
            typer.echo(f"  {reason['ruling']}: {reason['message']}")
    if not found["complete"]:
        typer.echo("not all could be asked now: some of it is from memory")
    if found["overridable_by"]:
        who = " or ".join(found["overridable_by"])
        verb = "" if found["verb"] == Verb.READ else f" --verb {found['verb']}"
        typer.echo(f"to use it all the same ({who}): headgate gate override URN{verb} --for-time 2h --reason ...")


@app.command("override")
@asks
def override(
    api: Api,
    urn: Urn,
    for_time: Annotated[str, typer.Option(metavar="DURATION", help="For how long, such as 2h.")],
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why; the audit keeps it.")],
    verb: What = Verb.READ,
    principal: Annotated[
        str | None, typer.Option("--for", metavar="PRINCIPAL", help="Only for this one. [default: for all]")
    ] = None,
    ticket: Ticket = None,
    as_json: Json = False,
) -> None:
    """Let a dataset be used for a while although it is not well: the gate warns instead of blocking it."""
    body = {"duration": for_time, "reason": reason, "verb": verb.value, "principal": principal, "ticket": ticket}
    made = api.post(at("gate", "overrides", urn), body)
    if as_json:
        echo_json(made)
    else:
        whom = made.get("principal") or "all"
        until = short(made["expires_at"])
        typer.echo(
            f"{made['override_id']}: {made['dataset_urn']} may be used to {made['verb']} by {whom} until {until}"
        )


@app.command("overrides")
@asks
def overrides(api: Api, urn: Urn, as_json: Json = False) -> None:
    """List the overrides of a dataset that are in force."""
    found = api.get(at("gate", "overrides", urn))["overrides"]
    if as_json:
        echo_json(found)
        return
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
    show_table(("OVERRIDE", "VERB", "FOR", "ENDS", "BY", "WHY", "TICKET"), rows, nothing="no overrides are in force")


@app.command("revoke")
@asks
def revoke(
    api: Api,
    urn: Urn,
    id: Annotated[str, typer.Argument(metavar="ID", help="The override.")],
    as_json: Json = False,
) -> None:
    """Take an override back."""
    api.request("DELETE", at("gate", "overrides", urn, id))
    if as_json:
        echo_json({"revoked": id})
    else:
        typer.echo(f"{id}: it is taken back")


app.command("flag")(flag)
