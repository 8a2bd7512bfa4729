"""`headgate aws doctor`: prints what is wrong with a deployment, and the remedy of each finding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headgate.cli.output import counted
from headgate.cli.session import Config, Home, Json, echo_json, session_of
from headgate.exit_codes import ExitCode

if TYPE_CHECKING:
    from headgate.deployment.doctor.facts import DeploymentFacts
    from headgate.deployment.doctor.findings import Finding


def doctor(
    context: typer.Context,
    name: Annotated[
        str, typer.Option(metavar="NAME", help="The Terraform variable name, which begins all names.")
    ] = "headgate",
    region: Annotated[
        str | None, typer.Option(metavar="NAME", help="Region of the deployment. [default: store.aws_region]")
    ] = None,
    table_prefix: Annotated[
        str | None, typer.Option(metavar="PREFIX", help="Prefix of every table. [default: store.table_prefix]")
    ] = None,
    hours: Annotated[int, typer.Option(min=1, max=336, metavar="HOURS", help="How far back metrics are read.")] = 24,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Diagnose a deployment on AWS: tables, capacity, hot keys, functions, mappings, queues and state machines.

    Nothing is changed. Without some permissions the rest is checked, and the refused calls are listed. The exit code is
    1 if something fails, 10 if there are only warnings or calls that were refused.
    """
    from headgate.bootstrap.store import read_deployment
    from headgate.clock import SystemClock
    from headgate.deployment.doctor.findings import Severity, findings, worst

    flags = {"store.aws_region": region, "store.table_prefix": table_prefix}
    settings = session_of(context).settings(config, home=home, **flags)
    facts = read_deployment(settings, SystemClock(), name=name, hours=hours)
    found = findings(facts)
    if as_json:
        echo_json({"region": facts.region, "name": facts.name, "findings": found, "facts": facts})
    else:
        _print(facts, found)
    match worst(found):
        case Severity.FAIL:
            raise typer.Exit(ExitCode.FAILED)
        case Severity.WARN | Severity.UNKNOWN:
            raise typer.Exit(ExitCode.WARN)
        case None:
            return


def _print(facts: DeploymentFacts, found: Sequence[Finding]) -> None:
    for each in found:
        typer.echo(f"{each.severity:8}{each.subject}: {each.fact}")
        typer.echo(f"{'':8}remedy: {each.remedy}")
    typer.echo(f"checked in {facts.region}: {', '.join(_checked(facts))}; {counted(len(found), 'finding')}")


def _checked(facts: DeploymentFacts) -> list[str]:
    existing = sum(1 for table in facts.tables if table.exists)
    groups: dict[str, Sequence[Any] | None] = {
        "function": facts.functions,
        "mapping": facts.mappings,
        "queue": facts.queues,
        "state machine": facts.machines,
    }
    return [
        counted(existing, "table"),
        *(counted(len(group), noun) for noun, group in groups.items() if group is not None),
    ]
