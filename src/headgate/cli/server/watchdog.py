"""`headgate watchdog`: runs the process that detects missed pipeline expectations."""

from __future__ import annotations

from typing import Annotated

import typer

from headgate.cli.session import Config, Home, session_of
from headgate.exit_codes import ExitCode


def watchdog(
    context: typer.Context,
    home: Home = None,
    config: Config = None,
    once: Annotated[
        bool, typer.Option("--once", help="Check once; the exit code is 1 if a check could not run.")
    ] = False,
    settings_from_stdin: Annotated[bool, typer.Option("--settings-from-stdin", hidden=True)] = False,
) -> None:
    """Detect missed schedules, deadlines and sensors of pipelines, and alert on them.

    `headgate up` runs a watchdog once there is a pipeline. A home has one: a newer watchdog takes over, and the older
    one ends.
    """
    from headgate.clock import SystemClock
    from headgate.serve import watchdog_process
    from headgate.telemetry import configure_logs

    session = session_of(context)
    # A server passes its own settings on, so that its watchdog opens the same store.
    settings = watchdog_process.read_settings() if settings_from_stdin else session.settings(config, home=home)
    configure_logs(style=settings.log.format, level=settings.log.level)
    is_complete = watchdog_process.run(
        settings,
        clock=SystemClock(),
        environ=session.environ,
        announce=typer.echo,
        once=once,
        create=not settings_from_stdin,
    )
    if not is_complete:
        raise typer.Exit(ExitCode.FAILED)
