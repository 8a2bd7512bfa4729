"""`headgate fanout drain`: make dead chunks of what lies in a dead-letter queue, to be seen and redriven."""

from __future__ import annotations

from typing import Annotated

import typer

from headgate.cli.fanout_exits import FAILED
from headgate.cli.session import Config, Home, Json, echo_json, session_of


def drain(
    context: typer.Context,
    queue_url: Annotated[str, typer.Argument(metavar="URL", help="The dead-letter queue.")],
    limit: Annotated[int, typer.Option(min=1, help="At most so many letters.")] = 10_000,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Record the letters of an SQS dead-letter queue with their chunks, and delete them from the queue.

    A letter whose chunk runs, or that belongs to none, stays where it is; the exit code is then 2.
    """
    from headgate.clock import SystemClock
    from headgate.telemetry import configure_logs
    from headgate.wiring import drain_queue

    settings = session_of(context).settings(config, home=home)
    configure_logs(style=settings.log.format, level=settings.log.level)
    found = drain_queue(settings, SystemClock(), queue_url, letters_max=limit)
    if as_json:
        echo_json({"recorded": found.recorded, "left": found.left})
    else:
        typer.echo(f"{found.recorded} letters recorded, {len(found.left)} left")
        for message_id, why in found.left.items():
            typer.echo(f"  {message_id}: {why}")
    if found.left:
        raise typer.Exit(FAILED)
