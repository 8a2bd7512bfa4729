"""`headgate calendar`: manages named calendars of days on which pipelines do not run."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headgate.cli.api_client import Api, at
from headgate.cli.commands import Answer, add_deletion, command_group, keep_spelling, server_command
from headgate.cli.input_files import read_document
from headgate.cli.output import counted, short, show_facts, show_table
from headgate.cli.pipelines.views import Row

app = command_group("Manage calendars of days on which pipelines do not run.")
Name = Annotated[str, typer.Argument(metavar="NAME", help="Calendar name.")]
# Fields that only the server sets.
_READ_ONLY = frozenset({"name", "version", "by", "at"})


@server_command(app, "put")
def put(
    api: Api,
    name: Name,
    file: Annotated[
        str | None, typer.Option("--file", "-f", metavar="FILE", help="Calendar in JSON or TOML; - reads JSON.")
    ] = None,
    weekends: Annotated[bool, typer.Option("--weekends", help="Exclude Saturdays and Sundays.")] = False,
    holidays: Annotated[
        str | None,
        typer.Option(
            "--holidays", metavar="PLACE", help="Exclude the holidays of a place, such as DE, DE-BY, US or NYSE."
        ),
    ] = None,
    day: Annotated[
        list[str] | None, typer.Option("--day", metavar="WEEKDAY", help="Exclude a weekday. Repeatable.")
    ] = None,
    date: Annotated[
        list[str] | None, typer.Option("--date", metavar="YYYY-MM-DD", help="Exclude a date. Repeatable.")
    ] = None,
    calendar: Annotated[
        str | None, typer.Option("--calendar", metavar="NAME", help="Include the days of another calendar.")
    ] = None,
) -> Answer:
    """Create or replace a calendar. Options take precedence over the file."""
    document = {} if file is None else read_document(file, "--file")
    body: dict[str, Any] = {field: value for field, value in document.items() if field not in _READ_ONLY}
    options = {"weekends": weekends or None, "holidays": holidays, "days": day, "dates": date, "calendar": calendar}
    body |= {field: value for field, value in options.items() if value is not None}
    stored = api.request("PUT", at("calendars", name), body=body)
    yield stored
    typer.echo(f"{name}: version {stored['version']}; excludes {_text(stored)}")


@server_command(app, "ls")
def ls(api: Api) -> Answer:
    """List calendars."""
    found = api.get("/calendars")["calendars"]
    yield found
    rows = [(each["name"], f"v{each['version']}", short(each["at"]), each["by"], _text(each)) for each in found]
    nothing = "no calendars; create one with 'headgate calendar put'"
    show_table(("CALENDAR", "VERSION", "UPDATED", "BY", "EXCLUDES"), rows, nothing=nothing)


@server_command(app, "show")
def show(api: Api, name: Name) -> Answer:
    """Show a calendar."""
    found = api.get(at("calendars", name))
    yield found
    show_facts({**found, "weekends": "yes" if found["weekends"] else None, "at": short(found["at"])})


add_deletion(app, "delete", "/calendars/{name}", "Delete a calendar that no pipeline uses.", name=Name)
keep_spelling(app, "rm", "delete")


def _text(calendar: Row) -> str:
    """Summarize the days of a calendar."""
    parts = [
        "weekends" if calendar["weekends"] else "",
        f"holidays of {calendar['holidays']}" if calendar["holidays"] else "",
        " ".join(calendar["days"]),
        counted(len(calendar["dates"]), "date") if calendar["dates"] else "",
        f"the days of {calendar['calendar']}" if calendar["calendar"] else "",
    ]
    return ", ".join(part for part in parts if part) or "no day"
