"""`headgate evidence`: single records that were checked: shown, listed by dataset, offered."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from headgate.cli import times as moments
from headgate.cli.api_client import Api, asks, at
from headgate.cli.health.incident_views import evidence_text
from headgate.cli.health.options import Limit, Urn
from headgate.cli.input_files import read_documents
from headgate.cli.output import compact, show_facts, show_table
from headgate.cli.session import Json, echo_json
from headgate.cli.times import SinceOption, UntilOption, ago
from headgate.errors import UserError

app = typer.Typer(help="Evidence: records that were checked.", no_args_is_help=True, rich_markup_mode=None)

_BATCH: Final = 1000
_REFUSED_SHOWN: Final = 20


@app.command("show")
@asks
def show(
    api: Api, id: Annotated[str, typer.Argument(metavar="ID", help="The piece of evidence.")], as_json: Json = False
) -> None:
    """Show a piece of evidence, also after it has left the cache for the archive."""
    found = api.get(at("evidence", id))
    if as_json:
        echo_json(found)
        return
    validation = found["validation"]
    archived = "  (from the archive)" if found.get("archived") else ""
    typer.echo(f"{validation['result']}  {found['evidence_id']}  {found['dataset_urn']}{archived}")
    told = {"evidence_id", "dataset_urn", "validation", "archived", "created_at"}
    facts = {name: compact(value) if isinstance(value, dict) else value for name, value in found.items()}
    show_facts(
        {
            "found": f"{found['created_at']} ({ago(found['created_at'])})",
            "reasons": list(validation.get("reason_codes", [])),
            "failed gates": list(validation.get("failed_gates", [])),
            **{name: value for name, value in facts.items() if name not in told},
        }
    )
    gates = validation.get("gates", [])
    if gates:
        typer.echo()
        rows = [(each["gate"], each["result"], each.get("reason_code"), each.get("details")) for each in gates]
        show_table(("GATE", "RESULT", "REASON", "DETAILS"), rows, nothing="")


@app.command("ls")
@asks
def ls(
    api: Api,
    urn: Urn,
    result: Annotated[str | None, typer.Option(metavar="RESULT", help="PASS, FAIL, WARN or SKIP.")] = None,
    since: SinceOption = None,
    until: UntilOption = None,
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """List the evidence of a dataset, newest first."""
    query = {"result": result, "from": moments.asked(since, "--since"), "to": moments.asked(until, "--until")}
    found = list(api.pages(at("datasets", urn, "evidence"), limit, **query))
    if as_json:
        echo_json(found)
        return
    rows = [
        (
            each["validation"]["result"],
            each["evidence_id"],
            ago(each["created_at"]),
            each["validation"].get("reason_codes") or each["validation"].get("failed_gates"),
            (each.get("producer") or {}).get("producer_id"),
            "pinned" if each.get("pinned_by") else "",
        )
        for each in found
    ]
    show_table(("RESULT", "EVIDENCE", "FOUND", "REASON", "PRODUCER", ""), rows, nothing="no evidence", key=1)


@app.command("contrast")
@asks
def contrast(api: Api, urn: Urn, since: SinceOption = None, until: UntilOption = None, as_json: Json = False) -> None:
    """Show the first failure of a dataset and the last success before it."""
    query = {"from": moments.asked(since, "--since"), "to": moments.asked(until, "--until")}
    found = api.get(at("datasets", urn, "evidence", "contrast"), **query)
    if as_json:
        echo_json(found)
        return
    show_facts(
        {
            "first bad": evidence_text(found["first_bad"]) or "none is known",
            "last good": evidence_text(found["last_good"]) or "none is known",
        }
    )


@app.command("put")
@asks
def put(
    api: Api,
    file: Annotated[
        str,
        typer.Option("-f", "--file", metavar="FILE", help="JSON: an object, a list, or one a line; - reads it."),
    ],
    as_json: Json = False,
) -> None:
    """Offer evidence to be kept. The exit code is 2 if some of it is refused."""
    given = read_documents(file, "--file")
    if not given:
        raise UserError(f"--file {file}: there is nothing in it")
    results: list[dict[str, Any]] = []
    for start in range(0, len(given), _BATCH):
        results += api.post("/evidence/batch", {"evidence": given[start : start + _BATCH]})["results"]
    refused = [(place, each["error"]) for place, each in enumerate(results, 1) if each["error"] is not None]
    if as_json:
        echo_json(results)
    else:
        counts = {word: sum(each["decision"] == word for each in results) for word in _DECISIONS}
        typer.echo(", ".join(f"{counts[word]} {said}" for word, said in _DECISIONS.items() if counts[word]))
        for place, error in refused[:_REFUSED_SHOWN]:
            typer.echo(f"refused: number {place}: {error}", err=True)
    if refused:
        raise typer.Exit(UserError.exit_code)


_DECISIONS: Final = {
    "STORED": "stored",
    "DUPLICATE": "stored already",
    "SAMPLED_OUT": "sampled out",
    "SHED": "shed: too many at once",
    "REFUSED": "refused",
}
