"""`headgate open`: opens the page of an id in the browser."""

from __future__ import annotations

import webbrowser
from typing import Annotated, Final

import typer

from headgate.cli.api_client import Api
from headgate.cli.commands import calls_server
from headgate.cli.navigation.listed_ids import LISTINGS, page_of
from headgate.errors import NotFoundError, UserError

# The nouns that are asked for first, by how an id begins. Then all others are, in this order.
_PREFIXES: Final = {"urn:": ("dataset",), "INC-": ("incident",), "alert_": ("alert",), "run_": ("run", "fanout")}
_ASKED: Final = ("pipeline", "execution", "fanout", "schedule", "machine", "backfill", "job", "run")


@calls_server
def open_page(
    api: Api,
    name: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="Id of anything that has a page. [default: the front page]")
    ] = None,
    noun: Annotated[
        str | None, typer.Option(metavar="NOUN", help="What the id names, such as pipeline, if several things have it.")
    ] = None,
    print_only: Annotated[bool, typer.Option("--print", help="Print the address and open nothing.")] = False,
) -> None:
    """Open the page of an id in the browser: a pipeline, run, dataset, incident, execution or fan-out.

    The kind of the id is found by asking the server. The address is printed where there is no browser.
    """
    address = api.url + (page(api, name, noun) if name else "/ui")
    if print_only or not webbrowser.open(address):
        typer.echo(address)


def page(api: Api, name: str, noun: str | None) -> str:
    """Return the path of the page of an id. Raises `NotFoundError`, or `UserError` for a noun without pages."""
    paged = [each for each, listing in LISTINGS.items() if listing.page]
    if noun is not None and noun not in paged:
        raise UserError(f"--noun {noun}: has no pages; use one of: {', '.join(paged)}")
    likely = next((nouns for start, nouns in _PREFIXES.items() if name.startswith(start)), ())
    for each in [noun] if noun else dict.fromkeys((*likely, *_ASKED)):
        path = page_of(each, name)
        if path is not None and api.exists(LISTINGS[each].path, name):
            return path
    raise NotFoundError(f"{name}: the server has nothing of this id; 'headgate <noun> ls' lists what there is")
