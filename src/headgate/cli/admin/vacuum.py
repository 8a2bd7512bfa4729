"""`headgate vacuum`: gives free space of the database file back to the file system."""

from __future__ import annotations

from typing import Annotated

import typer

from headgate.cli.session import Config, Home, Json, echo_json, session_of


def vacuum(
    context: typer.Context,
    full: Annotated[
        bool, typer.Option("--full", help="Rewrite the whole file; needs the server stopped and room for a copy.")
    ] = False,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Give the free space of the database back to the file system, also while the server runs.

    A file that an earlier version created is rewritten once, with the server stopped.
    """
    from headgate.bootstrap.backup import reclaim_space

    done = reclaim_space(session_of(context).settings(config, home=home), full=full)
    if as_json:
        echo_json(done)
        return
    freed = done.before_bytes - done.after_bytes
    typer.echo(f"{done.database}: {freed} bytes given back, {done.after_bytes} left, {done.free_bytes} of them free")
