"""Audit page: who changed what and why, and the verification of the log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from headgate.serve.pages.api_calls import ApiCaller, Section, twin
from headgate.serve.pages.labels import command, options
from headgate.serve.pages.page import Page, PageRequest, PageRoute, filtered

ADDRESS: Final = "/ui/audit"
LISTED: Final = 50
FILTERS: Final = ("actor", "entity", "from", "to", "verify")


class AuditPage(Struct, frozen=True, kw_only=True):
    """A page of entries. `report` is the result of a verification, if one was requested."""

    entries: list[Any]
    filters: Mapping[str, Any]
    is_filtered: bool
    next_page_token: str | None
    verify: str
    report: Section | None


def audit_page(api: ApiCaller, query: Mapping[str, Any]) -> AuditPage:
    """Return a page of the log. Raises as the API operation."""
    wanted = {name: value for name, value in query.items() if name != "verify"}
    found = api.call("GET /audit", query={**wanted, "page_size": LISTED})
    return AuditPage(
        entries=found["items"],
        filters={name: query.get(name, "") for name in FILTERS if name != "verify"},
        is_filtered=bool(wanted),
        next_page_token=found["next_page_token"],
        verify=filtered(ADDRESS, {**wanted, "verify": "true"}),
        report=api.section("GET /audit/verify") if query.get("verify") else None,
    )


def _page(api: ApiCaller, request: PageRequest) -> Page:
    query = request.query
    given = (
        ("--actor", query.get("actor")),
        ("--entity", query.get("entity")),
        ("--since", query.get("from")),
        ("--until", query.get("to")),
    )
    return Page(
        template="audit.html",
        title="Audit",
        view=audit_page(api, query),
        json=twin("/audit", {name: value for name, value in query.items() if name != "verify"}),
        cli=command("audit", "ls", *options(given)),
        section="audit",
    )


PAGES: Final = (PageRoute("/audit", _page, FILTERS, needs="GET /audit"),)
