"""`headgate open`: opens the page of an id in the browser."""

from __future__ import annotations

import webbrowser
from typing import Annotated, Final

import typer

from headgate.cli.api_client import Api, at
from headgate.cli.commands import calls_server
from headgate.cli.navigation.listed_ids import PAGED, page_of
from headgate.errors import InvalidIdError, NotFoundError, UserError

# The nouns that are asked for first, by how an id begins. Then all others are.
_PREFIXES: Final = {"urn:": ("dataset",), "INC-": ("incident",), "alert_": ("alert",), "run_": ("run", "fanout")}
# Every id of these begins so.
_ALWAYS_PREFIXED: Final = frozenset({"dataset", "incident", "alert"})


@calls_server
def open_page(
    api: Api,
    name: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="Id of anything that has a page. [default: the front page]")
    ] = None,
    part: Annotated[
        str | None, typer.Argument(metavar="[PART]", help="A chunk of the fan-out, or a period of the pipeline.")
    ] = None,
    noun: Annotated[
        str | None, typer.Option(metavar="NOUN", help="What the id names, such as pipeline, if several things have it.")
    ] = None,
    print_only: Annotated[bool, typer.Option("--print", help="Print the address and open nothing.")] = False,
) -> None:
    """Open the page of an id in the browser: a pipeline, run, dataset, incident, execution or fan-out.

    Alerts, backfills, jobs, schedules and state machines have pages too. The kind of the id is found by asking the
    server. The address is printed where there is no browser.
    """
    address = api.url + (page(api, name, part, noun) if name else "/ui")
    if print_only or not webbrowser.open(address):
        typer.echo(address)


def page(api: Api, name: str, part: str | None = None, noun: str | None = None) -> str:
    """Return the path of the page of an id, or of a part of it. Raises `NotFoundError` and `UserError`."""
    if noun is not None and noun not in PAGED:
        raise UserError(f"--noun {noun}: has no pages; use one of: {', '.join(PAGED)}")
    likely = next((nouns for start, nouns in _PREFIXES.items() if name.startswith(start)), ())
    asked = [noun] if noun else dict.fromkeys((*likely, *(each for each in PAGED if each not in _ALWAYS_PREFIXED)))
    found = next((each for each in asked if _has(api, each, name)), None)
    if found is None:
        raise NotFoundError(f"{name}: the server has nothing of this id; 'headgate <noun> ls' lists what there is")
    if part is None:
        return page_of(found, name)
    if found == "pipeline":
        # The page shows any period, also one that has not begun.
        return f"{page_of(found, name)}?date={at(part)[1:]}"
    if found != "fanout":
        raise UserError(f"{name} {part}: only chunks of fan-outs and periods of pipelines have pages; leave out {part}")
    if not _has(api, "chunk", name, part):
        raise NotFoundError(f"{part}: {name} has no such chunk; 'headgate chunk ls {name}' lists them")
    return page_of("chunk", name, part)


def _has(api: Api, noun: str, *names: str) -> bool:
    """Whether the server has an entry of this name. Raises errors that do not answer this."""
    try:
        # Below the API the paths are those of the pages.
        api.get(page_of(noun, *names).removeprefix("/ui"))
    except (NotFoundError, InvalidIdError):
        return False
    return True
