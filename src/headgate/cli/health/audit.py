"""`headgate audit`: who changed what, and whether nobody tampered with the record of it."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from headgate.cli import times as moments
from headgate.cli.api_client import Api, asks
from headgate.cli.health.options import Limit
from headgate.cli.input_files import read_documents
from headgate.cli.output import short, show_table
from headgate.cli.session import Json, echo_json
from headgate.cli.times import SinceOption, UntilOption

app = typer.Typer(help="The audit: who changed what.", no_args_is_help=True, rich_markup_mode=None)

TAMPERED_EXIT_CODE: Final = 3
_FIELDS_SHOWN: Final = 4


@app.command("ls")
@asks
def ls(
    api: Api,
    entity: Annotated[str | None, typer.Option(metavar="NAME", help="Changes of this, such as a dataset.")] = None,
    actor: Annotated[str | None, typer.Option(metavar="NAME", help="Changes by this one.")] = None,
    since: SinceOption = None,
    until: UntilOption = None,
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """List changes, newest first."""
    query: dict[str, Any] = {
        "entity": entity,
        "actor": actor,
        "from": moments.asked(since, "--since"),
        "to": moments.asked(until, "--until"),
    }
    found = list(api.pages("/audit", limit, **query))
    if as_json:
        echo_json(found)
        return
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
    show_table(("AT", "BY", "WHAT", "OF", "VERSION", "FIELDS", "WHY"), rows, nothing="no changes", key=3)


def _fields(changed: list[str]) -> str:
    more = len(changed) - _FIELDS_SHOWN
    return " ".join(changed[:_FIELDS_SHOWN]) + (f" and {more} more" if more > 0 else "")


@app.command("heads")
@asks
def heads(api: Api, as_json: Json = False) -> None:
    """Show where each chain of the audit ends. Kept elsewhere, it shows later whether entries were cut off."""
    found = api.get("/audit/heads")["heads"]
    if as_json:
        echo_json(found)
        return
    rows = [(each["chain"], each["sequence"], short(each["at"]), each["hash"]) for each in found]
    show_table(("CHAIN", "ENTRIES", "LAST", "HASH"), rows, nothing="there are no entries")


@app.command("reopen")
@asks
def reopen(
    api: Api,
    chain: Annotated[int, typer.Argument(metavar="CHAIN", min=0, help="As 'audit verify' names it.")],
    reason: Annotated[str, typer.Option(metavar="TEXT", help="What was found out about it.")],
    as_json: Json = False,
) -> None:
    """Let a chain that was tampered with take entries again, once someone has looked at it."""
    (head,) = api.post(f"/audit/chains/{chain}/reopen", {"reason": reason})["heads"]
    if as_json:
        echo_json(head)
    else:
        typer.echo(f"chain {head['chain']}: it takes entries again, after entry {head['sequence']}, which says why")


@app.command("verify")
@asks
def verify(
    api: Api,
    anchors: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="What 'audit heads --json' wrote earlier: what was cut off since shows."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check that nobody tampered with the audit. The exit code is 3 if someone did."""
    if anchors is None:
        found = api.get("/audit/verify")
    else:
        found = api.post("/audit/verify", {"heads": read_documents(anchors, "--anchors")})
    problems = found["problems"]
    if as_json:
        echo_json(found)
    else:
        entries = f"{found['entries']} entries in {found['chains']} chains"
        typer.echo(f"TAMPERED: {len(problems)} faults in {entries}" if problems else f"WHOLE: {entries}")
        for each in problems:
            typer.echo(f"{each['fault']}: chain {each['chain']}, entry {each['sequence']}: {each['fact']}")
    if problems:
        raise typer.Exit(TAMPERED_EXIT_CODE)
