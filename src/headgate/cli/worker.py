"""`headgate worker`: another process that advances executions and runs activities on the same store."""

from __future__ import annotations

from typing import Annotated

import typer

from headgate.cli.session import Config, Home, session_of


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
    from headgate.clock import SystemClock
    from headgate.serve.worker_process import run
    from headgate.telemetry import configure_logs
    from headgate.wiring import load_app

    settings = session_of(context).settings(config, home=home)
    configure_logs(style=settings.log.format, level=settings.log.level)
    run(settings, load_app(app), clock=SystemClock(), queues=queue or ["default"], announce=typer.echo)
