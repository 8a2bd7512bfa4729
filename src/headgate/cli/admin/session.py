"""`headgate session`: lists who is signed in to the pages, and ends sessions."""

from __future__ import annotations

from typing import Annotated

import typer

from headgate.cli.api_client import Api
from headgate.cli.commands import Answer, add_action, command_group, server_command
from headgate.cli.options import Limit
from headgate.cli.output import show_table
from headgate.cli.times import ago

app = command_group("List who is signed in to the pages, and end sessions.")
Id = Annotated[str, typer.Argument(metavar="ID", help="Session id.")]


@server_command(app, "ls")
def ls(api: Api, limit: Limit = 100) -> Answer:
    """List sessions, latest first."""
    found = list(api.items("/sessions", limit))
    yield found
    rows = [
        (
            each["sign_in_id"],
            each["principal"],
            each["roles"],
            "key " + each["key_id"] if each["key_id"] else each["credential"],
            ago(each["signed_in_at"]),
            ago(each["last_seen_at"]),
            ago(each["expires_at"]),
        )
        for each in found
    ]
    columns = ("SESSION", "PRINCIPAL", "ROLES", "BY", "SIGNED IN", "LAST SEEN", "EXPIRES")
    show_table(columns, rows, nothing="no sessions: pages were not signed in to")


add_action(
    app,
    "end",
    "/sessions/{id}",
    "End a session: the person has to sign in again.",
    "{answer[sign_in_id]}: session of {answer[principal]} ended",
    method="DELETE",
    id=Id,
)
