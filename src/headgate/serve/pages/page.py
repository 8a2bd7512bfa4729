"""Pages: what a view module declares, and what the renderer draws."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import urlencode

from msgspec import Struct, field

from headgate.serve.pages.actions import Action
from headgate.serve.pages.api_calls import ApiCaller


class PageRequest(Struct, frozen=True):
    """The path parameters of a request, and the filters of its query: a text each, or a list of choices."""

    path: Mapping[str, str]
    query: Mapping[str, Any]


class Page(Struct, frozen=True, kw_only=True):
    """A page: template, view, JSON twin and live-update stream."""

    template: str
    title: str
    view: Any
    # Links above the title, outermost first: text and address.
    crumbs: tuple[tuple[str, str], ...] = ()
    actions: tuple[Action, ...] = ()
    json: str = ""
    cli: str = ""
    # Path of the stream that reports changes to what the page shows.
    changes: str = ""
    # The entry of the navigation that is current.
    section: str = ""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


class PageRoute(Struct, frozen=True):
    """One path below `/ui`, and the view of it. Of the query, only `filters` are read; `choices` may repeat."""

    path: str
    draw: Callable[[ApiCaller, PageRequest], Page]
    filters: tuple[str, ...] = ()
    choices: frozenset[str] = frozenset()
    # The API operation without which the server does not have this page.
    needs: str = ""


# A chip of a filter: text, address, and whether it is current.
Chip = tuple[str, str, bool]


def chips(
    address: str, query: Mapping[str, Any], name: str, choices: Iterable[tuple[str, str | list[str]]]
) -> list[Chip]:
    """Return one link for each choice of a filter, which keeps the other filters. An empty value removes the filter."""
    current = query.get(name) or ""
    return [(text, filtered(address, {**query, name: value}), current == value) for text, value in choices]


def filtered(address: str, query: Mapping[str, Any]) -> str:
    """Return the address of a list with filters, from its first page on."""
    kept = {name: value for name, value in query.items() if value and name != "cursor"}
    return address + (f"?{urlencode(kept, doseq=True)}" if kept else "")


def following(address: str, query: Mapping[str, Any], cursor: str | None) -> str:
    """Return the address of the next page of a list; empty after the last."""
    return "" if cursor is None else f"{address}?{urlencode({**query, 'cursor': cursor}, doseq=True)}"
