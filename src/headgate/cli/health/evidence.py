"""`headgate evidence`: shows, lists and uploads evidence (validation results of single records)."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from headgate.cli.api_client import Api, at
from headgate.cli.commands import Answer, command_group, server_command
from headgate.cli.health.incident_views import evidence_text
from headgate.cli.input_files import read_documents
from headgate.cli.options import Limit, SinceOption, UntilOption, Urn
from headgate.cli.output import compact, show_facts, show_table
from headgate.cli.session import Json, echo_json
from headgate.cli.times import ago, past_time
from headgate.errors import UserError
from headgate.exit_codes import ExitCode

app = command_group("Manage evidence: validation results of single records.")

_BATCH: Final = 1000
_REFUSED_SHOWN: Final = 20


@server_command(app, "show")
def show(api: Api, id: Annotated[str, typer.Argument(metavar="ID", help="Evidence id.")]) -> Answer:
    """Show a piece of evidence from the cache or the archive."""
    found = api.get(at("evidence", id))
    yield found
    validation = found["validation"]
    archived = "  (from the archive)" if found.get("archived") else ""
    typer.echo(f"{validation['result']}  {found['evidence_id']}  {found['dataset_urn']}{archived}")
    shown = {"evidence_id", "dataset_urn", "validation", "archived", "created_at"}
    facts = {name: compact(value) if isinstance(value, dict) else value for name, value in found.items()}
    show_facts(
        {
            "created": f"{found['created_at']} ({ago(found['created_at'])})",
            "reasons": list(validation.get("reason_codes", [])),
            "failed gates": list(validation.get("failed_gates", [])),
            **{name: value for name, value in facts.items() if name not in shown},
        }
    )
    gates = validation.get("gates", [])
    if gates:
        typer.echo()
        rows = [(each["gate"], each["result"], each.get("reason_code"), each.get("details")) for each in gates]
        show_table(("GATE", "RESULT", "REASON", "DETAILS"), rows, nothing="")


@server_command(app, "ls")
def ls(
    api: Api,
    urn: Urn,
    result: Annotated[
        str | None, typer.Option(metavar="RESULT", help="Filter by result: PASS, FAIL, WARN or SKIP.")
    ] = None,
    since: SinceOption = None,
    until: UntilOption = None,
    limit: Limit = 50,
) -> Answer:
    """List the evidence of a dataset, newest first."""
    query = {"result": result, "from": past_time(since, "--since"), "to": past_time(until, "--until")}
    found = list(api.items(at("datasets", urn, "evidence"), limit, **query))
    yield found
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
    show_table(("RESULT", "EVIDENCE", "CREATED", "REASON", "PRODUCER", ""), rows, nothing="no evidence", key=1)


@server_command(app, "contrast")
def contrast(api: Api, urn: Urn, since: SinceOption = None, until: UntilOption = None) -> Answer:
    """Show the first failed record of a dataset and the last good one before it."""
    query = {"from": past_time(since, "--since"), "to": past_time(until, "--until")}
    found = api.get(at("datasets", urn, "evidence", "contrast"), **query)
    yield found
    show_facts(
        {
            "first bad": evidence_text(found["first_bad"]) or "unknown",
            "last good": evidence_text(found["last_good"]) or "unknown",
        }
    )


@server_command(app, "put")
def put(
    api: Api,
    file: Annotated[
        str,
        typer.Option("-f", "--file", metavar="FILE", help="JSON object, list or lines; - for standard input."),
    ],
    as_json: Json = False,
) -> None:
    """Upload evidence. The exit code is 2 if some of it is refused."""
    documents = read_documents(file, "--file")
    if not documents:
        raise UserError(f"--file {file}: the file is empty")
    results: list[dict[str, Any]] = []
    for start in range(0, len(documents), _BATCH):
        results += api.post("/evidence/batch", {"evidence": documents[start : start + _BATCH]})["results"]
    refused = [(index, each["error"]) for index, each in enumerate(results, 1) if each["error"] is not None]
    if as_json:
        echo_json(results)
    else:
        counts = {decision: sum(each["decision"] == decision for each in results) for decision in _DECISIONS}
        typer.echo(
            ", ".join(f"{counts[decision]} {label}" for decision, label in _DECISIONS.items() if counts[decision])
        )
        for index, error in refused[:_REFUSED_SHOWN]:
            typer.echo(f"refused: item {index}: {error}", err=True)
    if refused:
        raise typer.Exit(ExitCode.INVALID)


_DECISIONS: Final = {
    "STORED": "stored",
    "DUPLICATE": "already stored",
    "SAMPLED_OUT": "sampled out",
    "SHED": "shed by the rate limit",
    "REFUSED": "refused",
}
