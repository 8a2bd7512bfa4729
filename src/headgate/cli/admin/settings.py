"""`headgate settings`: the settings in effect on a server, each with its source."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headgate.cli.api_client import Api
from headgate.cli.commands import Answer, command_group, server_command
from headgate.cli.output import show_facts, show_table
from headgate.errors import NotFoundError

app = command_group("Show the settings in effect on a server. Secrets are not shown.")


@server_command(app, "ls")
def ls(
    api: Api,
    every: Annotated[bool, typer.Option("--all", help="List settings that have their default as well.")] = False,
) -> Answer:
    """List the settings with their sources: file, environment or command line."""
    found = api.get("/settings")
    shown = [each for each in found["settings"] if every or each["origin"] != "default"]
    yield {**found, "settings": shown}
    typer.echo(f"headgate {found['version']}  home {found['home']}  store {found['store']['backend']}")
    rows = [(each["name"], _text(each["value"]), each["source"]) for each in shown]
    show_table(("SETTING", "VALUE", "SOURCE"), rows, nothing="every setting has its default; list them with --all")


@server_command(app, "show")
def show(api: Api, name: Annotated[str, typer.Argument(metavar="NAME", help="Such as store.backend.")]) -> Answer:
    """Show a setting with its source, default and description."""
    found = next((each for each in api.get("/settings")["settings"] if each["name"] == name), None)
    if found is None:
        raise NotFoundError(f"setting {name[:80]}: there is none; 'headgate settings ls --all' lists them")
    yield found
    typer.echo(f"{found['name']} = {_text(found['value'])}")
    show_facts({key: found[key] for key in ("source", "default", "variable", "description")})


def _text(value: Any) -> str:  # noqa: ANN401 - any value of a setting
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ",".join(value) or "-"
    return " ".join(f"{name}={each}" for name, each in value.items()) or "-" if isinstance(value, dict) else str(value)
