"""`headgate audit`: lists audit entries and verifies their hash chains."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from headgate.cli.api_client import Api
from headgate.cli.commands import Answer, command_group, server_command
from headgate.cli.input_files import read_documents
from headgate.cli.options import Limit, SinceOption, UntilOption
from headgate.cli.output import short, show_table
from headgate.cli.session import Json, echo_json
from headgate.cli.times import past_time
from headgate.exit_codes import ExitCode

app = command_group("List and verify the audit log.")

_FIELDS_SHOWN: Final = 4


@server_command(app, "ls")
def ls(
    api: Api,
    entity: Annotated[str | None, typer.Option(metavar="NAME", help="Filter by entity, such as a dataset.")] = None,
    actor: Annotated[str | None, typer.Option(metavar="NAME", help="Filter by actor.")] = None,
    since: SinceOption = None,
    until: UntilOption = None,
    limit: Limit = 50,
) -> Answer:
    """List audit entries, newest first."""
    query: dict[str, Any] = {
        "entity": entity,
        "actor": actor,
        "from": past_time(since, "--since"),
        "to": past_time(until, "--until"),
    }
    found = list(api.items("/audit", limit, **query))
    yield found
    rows = [
        (
            short(each["at"]),
            each["actor"],
            each["action"],
            each["entity"],
            "" if each["after_version"] is None else f"v{each['after_version']}",
            _fields(each["changed"]),
            " ".join(text for text in (each["ticket"], each["reason"]) if text),
        )
        for each in found
    ]
    show_table(("AT", "BY", "ACTION", "ENTITY", "VERSION", "FIELDS", "REASON"), rows, nothing="no entries", key=3)


def _fields(changed: list[str]) -> str:
    more = len(changed) - _FIELDS_SHOWN
    return " ".join(changed[:_FIELDS_SHOWN]) + (f" and {more} more" if more > 0 else "")


@server_command(app, "heads")
def heads(api: Api) -> Answer:
    """List the head of each audit chain. A saved copy lets 'audit verify --anchors' detect truncation."""
    found = api.get("/audit/heads")["heads"]
    yield found
    rows = [(each["chain"], each["sequence"], short(each["at"]), each["hash"]) for each in found]
    show_table(("CHAIN", "ENTRIES", "LAST", "HASH"), rows, nothing="no entries")


@server_command(app, "reopen")
def reopen(
    api: Api,
    chain: Annotated[int, typer.Argument(metavar="CHAIN", min=0, help="Chain number; see 'audit verify'.")],
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="Result of the investigation. Recorded in the audit log.")
    ],
) -> Answer:
    """Reopen a chain that was tampered with, after an investigation."""
    (head,) = api.post(f"/audit/chains/{chain}/reopen", {"reason": reason})["heads"]
    yield head
    typer.echo(f"chain {head['chain']}: reopened after entry {head['sequence']}")


@server_command(app, "verify")
def verify(
    api: Api,
    anchors: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Earlier output of 'audit heads --json', to detect truncated entries."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Verify the hash chains of the audit log. The exit code is 1 if they were tampered with."""
    if anchors is None:
        found = api.get("/audit/verify")
    else:
        found = api.post("/audit/verify", {"heads": read_documents(anchors, "--anchors")})
    problems = found["problems"]
    if as_json:
        echo_json(found)
    else:
        entries = f"{found['entries']} entries in {found['chains']} chains"
        pruned = found.get("anchors", [])
        if pruned:
            entries += f", after {sum(each['count'] for each in pruned)} pruned ones in {len(pruned)} signed anchors"
        typer.echo(f"TAMPERED: {len(problems)} faults in {entries}" if problems else f"OK: {entries}")
        for each in pruned:
            typer.echo(f"chain {each['chain']}: pruned to entry {each['sequence']} of {each['at']}, {each['hash']}")
        for each in problems:
            typer.echo(f"{each['fault']}: chain {each['chain']}, entry {each['sequence']}: {each['fact']}")
    if problems:
        raise typer.Exit(ExitCode.FAILED)
