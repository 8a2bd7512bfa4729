"""`headgate workflow`: which workflows there are. And which workers serve them.

`headgate worker`: another process that advances executions and runs activities on the same store.
"""

from __future__ import annotations

from typing import Annotated

import typer

from headgate.cli.api_client import Api, asks
from headgate.cli.output import short, show_table
from headgate.cli.session import Config, Home, Json, echo_json, session_of

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


def worker(
    context: typer.Context,
    app: Annotated[str, typer.Option(metavar="MODULE:APP", help="The app whose workflows and activities are run.")],
    home: Home = None,
    config: Config = None,
    queue: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A queue to take activities from. [default: default]")
    ] = None,
) -> None:
    """Run an app's workflows and activities until a signal asks to stop, beside other processes on the same store.

    When it has begun, one line on standard output says so. SIGTERM lets what runs end and gives back the rest.
    """
    from headgate.bootstrap.store import load_app
    from headgate.clock import SystemClock
    from headgate.serve.worker_process import run
    from headgate.telemetry import configure_logs

    settings = session_of(context).settings(config, home=home)
    configure_logs(style=settings.log.format, level=settings.log.level)
    run(settings, load_app(app), clock=SystemClock(), queues=queue or ["default"], announce=typer.echo)
