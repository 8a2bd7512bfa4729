"""`headgate backup`: writes a consistent backup of a home to one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headgate.cli.session import Config, Home, Json, echo_json, session_of


def backup(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write, or a folder for it. Must not exist.")],
    with_keys: Annotated[
        bool,
        typer.Option("--with-keys", help="Include keys.json, which decrypts the data: store the file accordingly."),
    ] = False,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Back up a home to one file, also while the server runs.

    The file has the database as of one commit, the blobs it references and a manifest with counts and digests.
    """
    from headgate import __version__
    from headgate.bootstrap.backup import back_up
    from headgate.clock import SystemClock

    settings = session_of(context).settings(config, home=home)
    done = back_up(settings, SystemClock(), file, build=__version__, with_keys=with_keys)
    if as_json:
        echo_json(done)
        return
    manifest = done.manifest
    typer.echo(
        f"wrote {done.file}: {done.bytes} bytes, {sum(manifest.rows.values())} rows, {len(manifest.files)} files"
    )
    if not with_keys:
        typer.echo("without keys: a restore needs keys.json of this home; store a copy of it elsewhere")
    if manifest.blobs_in is not None:
        typer.echo(f"blobs are in bucket {manifest.blobs_in}, not in this file; enable versioning there")
    for name in manifest.missing_blobs:
        typer.echo(f"warning: blob {name} is missing from the home, but a row references it", err=True)
    if done.not_included:
        typer.echo(f"not included: {', '.join(done.not_included)}")
