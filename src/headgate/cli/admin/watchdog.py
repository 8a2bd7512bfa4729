"""`headgate watchdog`: sees what does not happen, from a process of its own."""

from __future__ import annotations

from typing import Annotated

import typer

from headgate.cli.session import Config, Home, session_of


def watchdog(
    context: typer.Context,
    home: Home = None,
    config: Config = None,
    once: Annotated[bool, typer.Option("--once", help="Look once, and exit with 1 if something could not be.")] = False,
) -> None:
    """Look for what should have happened to pipelines and has not, until a signal asks to stop.

    `headgate up` runs one as soon as there is a pipeline; more of them do no harm.
    """
    from headgate.clock import SystemClock
    from headgate.serve import watchdog_process
    from headgate.telemetry import configure_logs

    session = session_of(context)
    settings = session.settings(config, home=home)
    configure_logs(style=settings.log.format, level=settings.log.level)
    is_whole = watchdog_process.run(
        settings, clock=SystemClock(), environ=session.environ, announce=typer.echo, once=once
    )
    if not is_whole:
        raise typer.Exit(1)
