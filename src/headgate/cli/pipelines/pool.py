"""`headgate pool`: shows and frees the slots of pools, which limit how many jobs run at once across pipelines."""

from __future__ import annotations

from typing import Annotated

import typer

from headgate.cli.api_client import Api, at
from headgate.cli.commands import Answer, command_group, server_command
from headgate.cli.options import Reason
from headgate.cli.output import show_table
from headgate.cli.pipelines.views import LocalTimes, Row

app = command_group("Show and free the slots of pools.")
Name = Annotated[str, typer.Argument(metavar="POOL", help="Pool name, as declared in pipelines.pools.")]
RunId = Annotated[str, typer.Argument(metavar="RUN", help="Run id, run_…")]


@server_command(app, "ls")
def ls(api: Api) -> Answer:
    """List the declared pools with their use."""
    found = api.get("/pools")["pools"]
    yield found
    rows = [(each["name"], each["size"], each["used"], each["waiting"], _holders(each)) for each in found]
    nothing = "no pools; declare them in headgate.toml, under [pipelines.pools]"
    show_table(("POOL", "SIZE", "USED", "WAITING", "HOLDERS"), rows, nothing=nothing)


@server_command(app, "show")
def show(api: Api, name: Name) -> Answer:
    """Show the runs that hold slots of a pool, and those that wait for them."""
    found = api.get(at("pools", name))
    yield found
    size = "not declared any more" if found["size"] is None else f"{found['used']} of {found['size']} slots in use"
    typer.echo(f"{found['name']}: {size}, {found['waiting']} waiting")
    times = LocalTimes(api)
    rows = [
        (
            "HOLDS" if each["claimed"] else "OFFERED",
            each["run_id"],
            each["pipeline_id"],
            each["date"],
            each["slots"],
            times.text(each["pipeline_id"], each["granted_at"]),
            times.text(each["pipeline_id"], each["expires_at"]),
        )
        for each in found["leases"]
    ]
    rows += [
        (
            f"WAITS {each['place']}",
            each["run_id"],
            each["pipeline_id"],
            each["date"],
            each["slots"],
            times.text(each["pipeline_id"], each["queued_at"]),
            "",
        )
        for each in found["queue"]
    ]
    show_table(("STATE", "RUN", "PIPELINE", "DATE", "SLOTS", "SINCE", "LEASE UNTIL"), rows, nothing="no runs", key=1)


@server_command(app, "free")
def free(api: Api, name: Name, run: RunId, reason: Reason) -> Answer:
    """Free the slots of a run, for example after its job ended unseen. The job itself is not cancelled."""
    freed = api.post(at("pools", name, "free"), {"run_id": run, "reason": reason})
    yield freed
    typer.echo(f"{name}: {freed['slots']} slots of {freed['run_id']} are free")


def _holders(pool: Row) -> str:
    return ", ".join(f"{each['pipeline_id']} of {each['date']}" for each in pool["leases"])
