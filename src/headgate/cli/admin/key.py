"""`headgate key`: lists and rotates the secret keys of a home. The secrets are never printed."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from headgate.cli.commands import command_group
from headgate.cli.output import show_table
from headgate.cli.session import Config, Home, Json, echo_json, session_of

if TYPE_CHECKING:
    from headgate.store.keyring import Keyring

app = command_group("List and rotate the keys that sign cursors and tokens and encrypt fields.")


@app.command("ls")
def ls(context: typer.Context, home: Home = None, config: Config = None, as_json: Json = False) -> None:
    """List the keys with their purpose, age and status."""
    keys = _rows(_open(_path(context, config, home)))
    if as_json:
        echo_json(keys)
        return
    rows = [(row["purpose"], row["id"], row["created_at"], row["retired_at"] or "active") for row in keys]
    show_table(("PURPOSE", "ID", "CREATED", "RETIRED"), rows, nothing="no keys", key=1)


@app.command("rotate")
def rotate(
    context: typer.Context,
    purpose: Annotated[Literal["cursor", "token", "field"], typer.Argument(help="Purpose of the key.")],
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Create a new active key. The previous one still verifies and decrypts existing data."""
    from headgate.clock import SystemClock
    from headgate.store.keyring import Purpose

    path = _path(context, config, home)
    with _access(path), _rotation_lock(path.parent):
        before = _open(path)
        after = before.rotated(Purpose(purpose), SystemClock())
        after.save(path)
    retired, active = before.keys(Purpose(purpose))[-1].id, after.keys(Purpose(purpose))[-1].id
    if as_json:
        echo_json({"purpose": purpose, "active": active, "retired": retired})
    else:
        typer.echo(f"{purpose}: key {active} active, key {retired} retired; restart running servers to use it")


@app.command("accept-loss")
def accept_loss(
    context: typer.Context,
    reason: Annotated[str, typer.Option("--reason", help="Recorded in the audit log.")],
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Accept that keys are lost, and use the present ones from now on.

    Prefer to restore keys.json from a backup. Encrypted fields that cannot be read are removed, tokens that were issued
    are void, and the audit log is sealed again. Stop all servers of the home first.
    """
    from contextlib import closing

    from headgate.bootstrap.key_check import accept_lost_keys
    from headgate.bootstrap.store import open_store
    from headgate.clock import SystemClock

    clock = SystemClock()
    opened = open_store(session_of(context).settings(config, home=home), clock, accept_new_keys=True)
    with closing(opened.store):
        lost = accept_lost_keys(opened, clock, reason=reason)
    if as_json:
        echo_json({"lost": lost})
    elif lost:
        typer.echo(f"loss of keys {', '.join(lost)} accepted; the server can be started")
    else:
        typer.echo("no key is lost; nothing was changed")


def _path(context: typer.Context, config: Path | None, home: str | None) -> Path:
    from headgate.bootstrap.store import keys_path
    from headgate.errors import NotFoundError

    path = keys_path(session_of(context).settings(config, home=home))
    with _access(path):
        exists = path.exists()
    if not exists:
        raise NotFoundError(f"{path}: no keys yet; 'headgate up' creates them, or choose another home with --home")
    return path


def _open(path: Path) -> Keyring:
    from headgate.clock import SystemClock
    from headgate.store.keyring import Keyring

    with _access(path):
        return Keyring.open(path, SystemClock())


def _rows(keyring: Keyring) -> list[dict[str, Any]]:
    from headgate.store.keyring import Purpose

    return [
        {"purpose": purpose, "id": key.id, "created_at": key.created_at, "retired_at": key.retired_at}
        for purpose in Purpose
        for key in keyring.keys(purpose)
    ]


@contextmanager
def _access(path: Path) -> Iterator[None]:
    """Convert an `OSError` to a `SettingsError` with the path."""
    from headgate.errors import SettingsError

    try:
        yield
    except OSError as exc:
        raise SettingsError(
            f"{path}: cannot be used: {exc.strerror}; grant this user access, or choose another home with --home"
        ) from exc


@contextmanager
def _rotation_lock(home: Path) -> Iterator[None]:
    """Hold an exclusive lock, because one of two concurrent rotations would be lost."""
    descriptor = os.open(home, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
