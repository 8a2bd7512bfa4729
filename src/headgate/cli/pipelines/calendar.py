"""`headgate calendar`: days on which pipelines are dormant, kept by name."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headgate.cli.api_client import Api, asks, at
from headgate.cli.input_files import read_document
from headgate.cli.output import short, show_facts, show_table
from headgate.cli.pipelines.files import counted
from headgate.cli.pipelines.views import Row
from headgate.cli.session import Json, echo_json

app = typer.Typer(help="Calendars: days on which pipelines are dormant.", no_args_is_help=True, rich_markup_mode=None)
Name = Annotated[str, typer.Argument(metavar="NAME", help="The calendar.")]
# What the server says of a calendar, and nobody can say to it.
_ANSWERED = frozenset({"name", "version", "by", "at"})


@app.command("put")
@asks
def put(
    api: Api,
    name: Name,
    file: Annotated[
        str | None, typer.Option("--file", "-f", metavar="FILE", help="A calendar in JSON or TOML, or - for JSON.")
    ] = None,
    weekends: Annotated[bool, typer.Option("--weekends", help="Saturdays and Sundays.")] = False,
    holidays: Annotated[
        str | None, typer.Option("--holidays", metavar="PLACE", help="Such as DE, DE-BY, US or NYSE.")
    ] = None,
    day: Annotated[list[str] | None, typer.Option("--day", metavar="WEEKDAY", help="Repeatable.")] = None,
    date: Annotated[list[str] | None, typer.Option("--date", metavar="YYYY-MM-DD", help="Repeatable.")] = None,
    calendar: Annotated[str | None, typer.Option("--calendar", metavar="NAME", help="And the days of that.")] = None,
    as_json: Json = False,
) -> None:
    """Keep a calendar. What is given by itself goes before what the file says; they are all of its days."""
    given = {} if file is None else read_document(file, "--file")
    body: dict[str, Any] = {field: value for field, value in given.items() if field not in _ANSWERED}
    said = {"weekends": weekends or None, "holidays": holidays, "days": day, "dates": date, "calendar": calendar}
    body |= {field: value for field, value in said.items() if value is not None}
    _say(api.request("PUT", at("calendars", name), body=body), as_json=as_json)


@app.command("ls")
@asks
def ls(api: Api, as_json: Json = False) -> None:
    """List calendars."""
    found = api.get("/calendars")["calendars"]
    if as_json:
        echo_json(found)
        return
    rows = [(each["name"], f"v{each['version']}", short(each["at"]), each["by"], _text(each)) for each in found]
    nothing = "no calendars; keep one with 'headgate calendar put'"
    show_table(("CALENDAR", "VERSION", "KEPT", "BY", "DORMANT ON"), rows, nothing=nothing)


@app.command("show")
@asks
def show(api: Api, name: Name, as_json: Json = False) -> None:
    """Show a calendar."""
    found = api.get(at("calendars", name))
    if as_json:
        echo_json(found)
        return
    show_facts({**found, "weekends": "yes" if found["weekends"] else None, "at": short(found["at"])})


@app.command("rm")
@asks
def rm(api: Api, name: Name, as_json: Json = False) -> None:
    """Forget a calendar that no pipeline goes by."""
    api.request("DELETE", at("calendars", name))
    if as_json:
        echo_json({"deleted": name})
    else:
        typer.echo(f"{name}: it is forgotten")


def _say(calendar: Row, *, as_json: bool) -> None:
    if as_json:
        echo_json(calendar)
    else:
        typer.echo(f"{calendar['name']}: version {calendar['version']}; dormant on {_text(calendar)}")


def _text(calendar: Row) -> str:
    """Return the days of a calendar in a few words."""
    parts = [
        "weekends" if calendar["weekends"] else "",
        f"holidays of {calendar['holidays']}" if calendar["holidays"] else "",
        " ".join(calendar["days"]),
        counted(len(calendar["dates"]), "date") if calendar["dates"] else "",
        f"the days of {calendar['calendar']}" if calendar["calendar"] else "",
    ]
    return ", ".join(part for part in parts if part) or "no day"
