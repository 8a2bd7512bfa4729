"""`headgate gate flag`: switches that programs look at."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from headgate.cli.api import Api, asks, at
from headgate.cli.moments import ago
from headgate.cli.output import show_table
from headgate.cli.session import Json, echo_json
from headgate.errors import UserError


class Way(StrEnum):
    """Which way a switch is thrown."""

    ON = "on"
    OFF = "off"


@asks
def flag(
    api: Api,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Such as fleet.enabled. [default: all]")] = None,
    way: Annotated[Way | None, typer.Argument(metavar="[on|off]", help="Throw it. [default: show it]")] = None,
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="Why; the audit keeps it.")] = None,
    as_json: Json = False,
) -> None:
    """Show the switches that programs look at, or throw one."""
    if name is None:
        found = api.get("/flags")["flags"]
    elif way is None:
        found = [api.get(at("flags", name))]
    else:
        if not reason:
            raise UserError(f"flag {name}: say why with --reason")
        found = [api.request("PUT", at("flags", name), body={"is_on": way is Way.ON, "reason": reason})]
    if as_json:
        echo_json(found if name is None else found[0])
        return
    rows = [
        (each["name"], "on" if each["is_on"] else "off", ago(each["updated_at"]), each["updated_by"], each["reason"])
        for each in found
    ]
    show_table(("FLAG", "IS", "SINCE", "BY", "WHY"), rows, nothing="no flag was ever set")
