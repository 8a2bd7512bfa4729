"""`headgate job`: shows jobs outside Headgate that OpenLineage and dbt report, and their runs."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from headgate.cli.api_client import Api, at
from headgate.cli.commands import Answer, command_group, server_command
from headgate.cli.options import Limit
from headgate.cli.output import show_facts, show_table
from headgate.cli.times import ago

app = command_group("Show jobs of other tools and their runs.")


class JobStateName(StrEnum):
    """State of a job."""

    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    ABORTED = "ABORTED"


@server_command(app, "ls")
def ls(
    api: Api,
    state: Annotated[JobStateName | None, typer.Option(case_sensitive=False, help="Filter by state.")] = None,
    namespace: Annotated[str | None, typer.Option(metavar="NAME", help="Filter by OpenLineage namespace.")] = None,
    search: Annotated[str | None, typer.Option(metavar="TEXT", help="Search in namespace, name and tool.")] = None,
    limit: Limit = 100,
) -> Answer:
    """List jobs, the latest first."""
    found = list(api.items("/jobs", limit, state=state and state.value, namespace=namespace, search=search))
    yield found
    rows = [
        (
            each["state"],
            each["job_id"],
            each["integration"],
            ago(each["at"]),
            _seconds(each["duration_seconds"]),
            len(each["inputs"]),
            len(each["outputs"]),
            " ".join(each["message"].split())[:100],
        )
        for each in found
    ]
    columns = ("STATE", "JOB", "TOOL", "LAST RUN", "TOOK", "INPUTS", "OUTPUTS", "MESSAGE")
    show_table(columns, rows, nothing="no jobs; send OpenLineage events or run 'headgate lineage dbt'", key=1)


@server_command(app, "show")
def show(api: Api, id: Annotated[str, typer.Argument(metavar="JOB", help="Job id of 'headgate job ls'.")]) -> Answer:
    """Show a job with its inputs, outputs, facets and last runs."""
    found = api.get(at("jobs", id))
    yield found
    job = found["job"]
    typer.echo(f"{job['state']}  {job['job_id']}  {job['integration']}")
    show_facts(
        {
            "namespace": job["namespace"],
            "name": job["name"],
            "pipeline": found["pipeline_id"],
            "inputs": list(job["inputs"]),
            "outputs": list(job["outputs"]),
            "facets": ", ".join(job["facets"]),
            "version": job["code_version"],
            "message": job["message"],
        }
    )
    typer.echo()
    rows = [
        (each["state"], each["run_id"], ago(each["started_at"]), _seconds(each["duration_seconds"]), each["message"])
        for each in found["runs"]
    ]
    show_table(("STATE", "RUN", "STARTED", "TOOK", "MESSAGE"), rows, nothing="no runs", key=1)


def _seconds(duration: float | None) -> str:
    return "" if duration is None else f"{duration:,.1f} s"
