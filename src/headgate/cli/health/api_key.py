"""`headgate api-key`: issues, rotates, lists and revokes API keys. A key is printed once, when it is issued."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from headgate.cli.api_client import Api, at
from headgate.cli.commands import Answer, add_action, command_group, server_command
from headgate.cli.options import Limit, Reason
from headgate.cli.output import show_facts, show_table
from headgate.cli.session import Config, Home, Json, echo_json, session_of
from headgate.cli.times import ago
from headgate.errors import UserError

app = command_group("Manage API keys.")

Id = Annotated[str, typer.Argument(metavar="ID", help="Key id.")]
Output = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        metavar="FILE",
        help="Write the key to a new file, for --api-key-file, instead of printing it.",
    ),
]


@server_command(app, "issue")
def issue(
    api: Api,
    principal: Annotated[str, typer.Argument(metavar="PRINCIPAL", help="Principal of the key.")],
    role: Annotated[
        list[str],
        typer.Option(metavar="ROLE", help="Role: viewer, operator, service, admin, … Repeatable."),
    ],
    scope: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Datasets, such as urn:dp:orders:*. Repeatable. [default: all]"),
    ] = None,
    expires_in: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Lifetime. [default: until revoked]")
    ] = None,
    note: Annotated[str, typer.Option(metavar="TEXT", help="Purpose of the key.")] = "",
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Issue a key and print it. It cannot be printed again."""
    body = {"principal": principal, "roles": role, "scopes": scope or None, "expires_in": expires_in, "note": note}
    _require_new_file(output)
    _deliver(api.post("/api-keys", body), output, as_json=as_json)


@app.command("first")
def first(
    context: typer.Context,
    principal: Annotated[str, typer.Argument(metavar="PRINCIPAL", help="Principal of the key.")] = "admin",
    home: Home = None,
    config: Config = None,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Issue the first administrator key directly in the store, for a server that requires keys.

    Needs no server and no key: write access to the store is sufficient.
    """
    import msgspec

    from headgate.bootstrap.health import issue_first_key
    from headgate.clock import SystemClock

    _require_new_file(output)
    issued = issue_first_key(session_of(context).settings(config, home=home), SystemClock(), principal)
    about = msgspec.to_builtins(issued.about)
    _deliver({"key": about, "text": issued.key.reveal()}, output, as_json=as_json)


@server_command(app, "rotate")
def rotate(
    api: Api,
    id: Id,
    overlap: Annotated[
        str | None, typer.Option(metavar="DURATION", help="How long the old key remains valid. [default: 0s]")
    ] = None,
    reason: Reason = "",
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Replace a key and print the new one. It cannot be printed again."""
    _require_new_file(output)
    _deliver(api.post(at("api-keys", id, "rotate"), {"overlap": overlap, "reason": reason}), output, as_json=as_json)


@server_command(app, "ls")
def ls(
    api: Api,
    principal: Annotated[str | None, typer.Option(metavar="NAME", help="Filter by principal.")] = None,
    limit: Limit = 100,
) -> Answer:
    """List keys without their secrets."""
    found = list(api.items("/api-keys", limit, principal=principal))
    yield found
    rows = [
        (
            _state(each),
            each["key_id"],
            each["principal"],
            each["roles"],
            each["scopes"],
            ago(each["created_at"]),
            ago(each["last_used_at"]) or "never",
            each["note"],
        )
        for each in found
    ]
    columns = ("STATE", "KEY", "PRINCIPAL", "ROLES", "SCOPES", "CREATED", "LAST USED", "NOTE")
    show_table(columns, rows, nothing="no keys; create one with 'headgate api-key issue'", key=1)


@server_command(app, "show")
def show(api: Api, id: Id) -> Answer:
    """Show a key without its secret."""
    found = api.get(at("api-keys", id))
    yield found
    typer.echo(_key_text(found))
    show_facts({name: value for name, value in found.items() if name not in ("key_id", "principal")})


def _state(key: dict[str, Any]) -> str:
    if key["revoked_at"]:
        return "revoked"
    ends = ago(key["expires_at"])
    return "expired" if ends.endswith("ago") else f"expires {ends}" if ends else "active"


def _key_text(key: dict[str, Any]) -> str:
    return f"{_state(key)}  {key['key_id']}  {key['principal']}"


add_action(
    app, "revoke", "/api-keys/{id}", "Revoke a key immediately and permanently.", _key_text, method="DELETE", id=Id
)


def _require_new_file(output: Path | None) -> None:
    # Checked before the key is issued, because a key that cannot be written would be lost.
    if output is not None and (output.exists() or not output.parent.is_dir()):
        raise UserError(f"--output {output}: the file must not exist, and its folder must")


def _deliver(issued: dict[str, Any], output: Path | None, *, as_json: bool) -> None:
    """Print an issued key, or write it to a file that only its owner can read."""
    about, text = issued["key"], issued["text"]
    if output is not None:
        try:
            with os.fdopen(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(f"{text}\n")
        except OSError as exc:
            raise UserError(
                f"--output {output}: cannot be written: {exc.strerror}; revoke {about['key_id']} and issue another key"
            ) from exc
        if as_json:
            echo_json({"key": about, "file": str(output)})
        else:
            typer.echo(f"{about['key_id']}: key of {about['principal']} written to {output}")
        return
    if as_json:
        echo_json(issued)
        return
    typer.echo(f"{about['key_id']}: key of {about['principal']}; it cannot be printed again:", err=True)
    typer.echo(text)
