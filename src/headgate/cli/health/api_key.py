"""`headgate api-key`: keys that programs and people call the server with. Each is shown once, when it is made."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from headgate.cli.api_client import Api, asks, at
from headgate.cli.health.options import Limit, Reason
from headgate.cli.output import show_facts, show_table
from headgate.cli.session import Config, Home, Json, echo_json, session_of
from headgate.cli.times import ago
from headgate.errors import UserError

app = typer.Typer(help="Keys to call the server with.", no_args_is_help=True, rich_markup_mode=None)

Id = Annotated[str, typer.Argument(metavar="ID", help="The key, by its id.")]
Output = Annotated[
    Path | None,
    typer.Option(
        "-o", "--output", metavar="FILE", help="Write the key to a new file for --api-key-file, and do not show it."
    ),
]


@app.command("issue")
@asks
def issue(
    api: Api,
    principal: Annotated[str, typer.Argument(metavar="PRINCIPAL", help="Who calls with it.")],
    role: Annotated[
        list[str],
        typer.Option(metavar="ROLE", help="Such as viewer, operator, service or admin; may be given repeatedly."),
    ],
    scope: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Which datasets, such as urn:dp:orders:*; repeatable. [default: all]"),
    ] = None,
    expires_in: Annotated[
        str | None, typer.Option(metavar="DURATION", help="For how long it is good. [default: until it is revoked]")
    ] = None,
    note: Annotated[str, typer.Option(metavar="TEXT", help="What it is for.")] = "",
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Make a key, and print it. It cannot be shown again."""
    body = {"principal": principal, "roles": role, "scopes": scope or None, "expires_in": expires_in, "note": note}
    _refuse_present(output)
    _give(api.post("/api-keys", body), output, as_json=as_json)


@app.command("first")
def first(
    context: typer.Context,
    principal: Annotated[str, typer.Argument(metavar="PRINCIPAL", help="Who calls with it.")] = "admin",
    home: Home = None,
    config: Config = None,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Make a key for an administrator in the store itself: for a server that asks everyone for one.

    It needs no server, and no key: whoever can write the store may do anything to it as it is.
    """
    import msgspec

    from headgate.bootstrap.health import issue_first_key
    from headgate.clock import SystemClock

    _refuse_present(output)
    made = issue_first_key(session_of(context).settings(config, home=home), SystemClock(), principal)
    about = msgspec.to_builtins(made.about)
    _give({"key": about, "text": made.key.reveal()}, output, as_json=as_json)


@app.command("rotate")
@asks
def rotate(
    api: Api,
    id: Id,
    overlap: Annotated[
        str | None, typer.Option(metavar="DURATION", help="For how long the old one is good, too. [default: 0s]")
    ] = None,
    reason: Reason = "",
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Replace a key with a new one, and print that. It cannot be shown again."""
    _refuse_present(output)
    _give(api.post(at("api-keys", id, "rotate"), {"overlap": overlap, "reason": reason}), output, as_json=as_json)


@app.command("ls")
@asks
def ls(
    api: Api,
    principal: Annotated[str | None, typer.Option(metavar="NAME", help="Those of this one.")] = None,
    limit: Limit = 100,
    as_json: Json = False,
) -> None:
    """List keys. The keys themselves are not shown."""
    found = list(api.pages("/api-keys", limit, principal=principal))
    if as_json:
        echo_json(found)
        return
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
    columns = ("STATE", "KEY", "PRINCIPAL", "ROLES", "SCOPES", "MADE", "USED", "NOTE")
    show_table(columns, rows, nothing="no keys; make one with 'headgate api-key issue'", key=1)


@app.command("show")
@asks
def show(api: Api, id: Id, as_json: Json = False) -> None:
    """Show what is known of a key."""
    found = api.get(at("api-keys", id))
    if as_json:
        echo_json(found)
        return
    typer.echo(f"{_state(found)}  {found['key_id']}  {found['principal']}")
    show_facts({name: value for name, value in found.items() if name not in ("key_id", "principal")})


@app.command("revoke")
@asks
def revoke(api: Api, id: Id, as_json: Json = False) -> None:
    """Make a key worthless, at once and for good."""
    found = api.request("DELETE", at("api-keys", id))
    if as_json:
        echo_json(found)
    else:
        typer.echo(f"{_state(found)}  {found['key_id']}  {found['principal']}")


def _state(key: dict[str, Any]) -> str:
    if key["revoked_at"]:
        return "revoked"
    ends = ago(key["expires_at"])
    return "expired" if ends.endswith("ago") else f"ends {ends}" if ends else "good"


def _refuse_present(output: Path | None) -> None:
    # Before the key is made: one that nobody gets to see would be lost.
    if output is not None and (output.exists() or not output.parent.is_dir()):
        raise UserError(f"--output {output}: it is there already, or its folder is not; name a new file")


def _give(made: dict[str, Any], output: Path | None, *, as_json: bool) -> None:
    """Hand over a key that was just made: to a file for its owner alone, or to standard output."""
    about, text = made["key"], made["text"]
    if output is not None:
        try:
            with os.fdopen(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(f"{text}\n")
        except OSError as exc:
            raise UserError(
                f"--output {output}: it cannot be written: {exc.strerror}; revoke {about['key_id']}, and make another"
            ) from exc
        if as_json:
            echo_json({"key": about, "file": str(output)})
        else:
            typer.echo(f"{about['key_id']}: a key for {about['principal']} is in {output}")
        return
    if as_json:
        echo_json(made)
        return
    typer.echo(f"{about['key_id']}: a key for {about['principal']}; it cannot be shown again:", err=True)
    typer.echo(text)
