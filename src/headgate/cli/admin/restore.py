"""`headgate restore`: creates a home from a backup after verifying it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headgate.cli.session import Config, Home, Json, echo_json, session_of


def restore(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Backup that 'headgate backup' wrote.")],
    keys: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="keys.json of the backed-up home, for a backup without keys."),
    ] = None,
    allow_audit_faults: Annotated[
        bool, typer.Option("--allow-audit-faults", help="Restore although the audit log does not verify.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Verify the backup without creating the home.")] = False,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Create a home from a backup. The home must be empty or missing.

    Digests, row counts and audit chains are verified first; the home then appears whole or not at all.
    """
    from headgate.bootstrap.backup import restore as restore_home
    from headgate.clock import SystemClock

    settings = session_of(context).settings(config, home=home)
    done = restore_home(
        settings, SystemClock(), file, keys=keys, allow_audit_faults=allow_audit_faults, dry_run=dry_run
    )
    if as_json:
        echo_json(done)
        return
    manifest, audit = done.manifest, done.audit
    verified = (
        f"{len(manifest.files)} files, {sum(manifest.rows.values())} rows and {audit.entries} audit entries "
        f"as of {manifest.created_at}"
    )
    typer.echo(f"verified {file}: {verified}" if dry_run else f"restored {done.home}: {verified}")
    for problem in audit.problems:
        typer.echo(f"warning: {problem.fault}: {problem.fact}", err=True)
    for name in manifest.missing_blobs:
        typer.echo(f"warning: blob {name} was missing when the backup was written", err=True)
    if not dry_run:
        typer.echo(f"next: headgate up --home {done.home}")
