"""`headgate reload`: loads the project folder of a running server again."""

from __future__ import annotations

from typing import Any

import typer

from headgate.cli.api_client import Api
from headgate.cli.commands import calls_server
from headgate.cli.output import counted
from headgate.cli.session import Json, echo_json
from headgate.exit_codes import ExitCode


@calls_server
def reload(api: Api, as_json: Json = False) -> None:
    """Load pipelines, archetypes, probes and checks of the server's folder again. The exit code is 2 for a problem.

    A definition with a problem stays as it is in force; the others are loaded. SIGHUP to the server does the same.
    """
    report = api.post("/definition-folder/reload")
    if as_json:
        echo_json(report)
    else:
        _show(report)
    if report["problems"]:
        raise typer.Exit(ExitCode.INVALID)


def _show(report: dict[str, Any]) -> None:
    counts: dict[str, int] = {}
    for each in report["definitions"]:
        counts[each["outcome"]] = counts.get(each["outcome"], 0) + 1
        detail = f": {each['detail']}" if each["detail"] else ""
        if each["outcome"] not in ("unchanged", "failed"):
            typer.echo(f"{each['pipeline_id']}: {each['outcome']}, version {each['version']}{detail}")
    for each in report["probes"]:
        typer.echo(f"probe {each['probe_id']}: {each['outcome']} ({each['file']})")
    for each in report.get("checks", ()):
        typer.echo(f"check {each['check_id']} of {each['dataset_urn']}: {each['outcome']} ({each['file']})")
    for problem in (*report["problems"], *report.get("warnings", ())):
        typer.echo(problem, err=True)
    for each in report["gone"]:
        typer.echo(f"{each}: no longer in the folder, stays in force; delete it with 'headgate pipeline delete'")
    summary = ", ".join(f"{number} {outcome}" for outcome, number in counts.items()) or "none"
    typer.echo(f"{report['folder']}: {counted(len(report['definitions']), 'definition')}: {summary}")
