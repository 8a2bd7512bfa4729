"""`headgate workflow`: which workflows there are. And which workers serve them."""

from __future__ import annotations

import typer

from headgate.cli.api import Api, asks
from headgate.cli.output import short, show_table
from headgate.cli.session import Json, echo_json

app = typer.Typer(help="Workflows that can be started.", no_args_is_help=True, rich_markup_mode=None)


@app.command("ls")
@asks
def ls(api: Api, as_json: Json = False) -> None:
    """List workflows: those of the server's app, and those that workers elsewhere serve."""
    found = api.get("/workflows")["workflows"]
    if as_json:
        echo_json(found)
        return
    rows = [
        (
            each["name"],
            each["live_workers"],
            "" if each["loaded"] else "not loaded by the server",
            each.get("description"),
        )
        for each in found
    ]
    show_table(("WORKFLOW", "LIVE WORKERS", "", ""), rows, nothing="no workflows; start the server with --app")


@asks
def workers_ls(api: Api, as_json: Json = False) -> None:
    """List workers: where they run, what they serve, and whether they are alive."""
    found = api.get("/workers")["workers"]
    if as_json:
        echo_json(found)
        return
    rows = [
        (
            each["id"],
            "alive" if each["alive"] else "dead",
            each["app"],
            f"{each['host']} {each['pid']}",
            each["queues"],
            short(each["started_at"]),
        )
        for each in found
    ]
    show_table(("WORKER", "", "APP", "HOST PID", "QUEUES", "STARTED"), rows, nothing="no workers")
