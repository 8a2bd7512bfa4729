"""`headgate workflow`, `headgate workers` and `headgate worker`: lists workflows and workers, and runs a worker."""

from __future__ import annotations

from typing import Annotated

import typer

from headgate.cli.api_client import Api
from headgate.cli.commands import Answer, calls_server, command_group, server_command
from headgate.cli.output import short, show_table
from headgate.cli.session import Config, Home, session_of

app = command_group("List workflows.")


@server_command(app, "ls")
def ls(api: Api) -> Answer:
    """List the workflows of the server's app and of other workers."""
    found = api.get("/workflows")["workflows"]
    yield found
    rows = [
        (
            each["name"],
            each["live_workers"],
            "" if each["loaded"] else "not loaded by the server",
            each.get("description"),
        )
        for each in found
    ]
    show_table(
        ("WORKFLOW", "LIVE WORKERS", "", "DESCRIPTION"), rows, nothing="no workflows; start the server with --app"
    )


@server_command(app, "patches")
def patches(api: Api) -> Answer:
    """List the patches of open executions, to see which code can be removed.

    The old branch of a patch can go when no execution is without its mark; the call of hg.deprecate_patch when none is
    with the mark of hg.patched.
    """
    found = api.get("/workflows/patches")["patches"]
    yield found
    rows = [
        (
            each["workflow"],
            each["patch"],
            each["without_mark"],
            each["with_mark"],
            each["with_deprecated_mark"],
            each.get("oldest_without_mark") or each.get("oldest_with_mark"),
        )
        for each in found
    ]
    titles = ("WORKFLOW", "PATCH", "WITHOUT", "PATCHED", "DEPRECATED", "WAIT FOR")
    show_table(titles, rows, nothing="no open execution has marked a patch")


@calls_server
def workers_ls(api: Api) -> Answer:
    """List workers, their queues and whether they are alive."""
    found = api.get("/workers")["workers"]
    yield found
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
    show_table(("WORKER", "STATUS", "APP", "HOST PID", "QUEUES", "STARTED"), rows, nothing="no workers")


def worker(
    context: typer.Context,
    app: Annotated[str, typer.Option(metavar="MODULE:APP", help="App whose workflows and activities to run.")],
    home: Home = None,
    config: Config = None,
    queue: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Activity queue to serve. Repeatable. [default: default]")
    ] = None,
) -> None:
    """Run the workflows and activities of an app in a process of its own, on the same store as the server.

    Prints one line when it is ready. SIGTERM finishes running activities and releases the rest.
    """
    from headgate.bootstrap.store import load_app
    from headgate.clock import SystemClock
    from headgate.serve.worker_process import run
    from headgate.telemetry import configure_logs

    settings = session_of(context).settings(config, home=home)
    configure_logs(style=settings.log.format, level=settings.log.level)
    exit_code = run(settings, load_app(app), clock=SystemClock(), queues=queue or ["default"], announce=typer.echo)
    if exit_code:
        raise typer.Exit(exit_code)
