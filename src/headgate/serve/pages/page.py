"""Pages: what a view module declares, and what the renderer draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

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
