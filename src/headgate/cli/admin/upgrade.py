"""`headgate upgrade`: migrates the database of a home to this build and keeps a copy of the old one."""

from __future__ import annotations

from typing import Annotated

import typer

from headgate.cli.session import Config, Home, Json, echo_json, session_of
from headgate.exit_codes import ExitCode


def upgrade(
    context: typer.Context,
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; the exit code is 1 if an upgrade is needed.")
    ] = False,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Migrate the database to this version, and keep a copy of the old one beside it.

    Servers of an older version stop accepting writes afterwards and must be restarted.
    """
    from headgate.bootstrap.backup import upgrade as upgrade_home
    from headgate.clock import SystemClock

    done = upgrade_home(session_of(context).settings(config, home=home), SystemClock(), dry_run=check)
    if as_json:
        echo_json(done)
    elif done.is_current:
        typer.echo(f"{done.database}: current (format {done.after_format})")
    elif done.copy is None:
        typer.echo(f"{done.database}: needs an upgrade; run 'headgate upgrade'")
    else:
        typer.echo(f"{done.database}: upgraded; the old database is {done.copy}")
    if check and not done.is_current:
        raise typer.Exit(ExitCode.FAILED)
