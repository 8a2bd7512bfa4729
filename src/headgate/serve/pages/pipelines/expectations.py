"""Expectation page: what was due and whether it happened, and the slots that are due next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from headgate.pipelines.enums import ExpectationVerdict
from headgate.serve.pages.api_calls import ApiCaller, Section, twin
from headgate.serve.pages.labels import command, options
from headgate.serve.pages.live_updates import ALL_PIPELINES, changes_of
from headgate.serve.pages.page import Chip, Page, PageRequest, PageRoute, chips, following
from headgate.serve.pages.pipelines.runs import RANGES, since

ADDRESS: Final = "/ui/expectations"
LISTED: Final = 50
UPCOMING_MAX: Final = 30
UPCOMING_HOURS: Final = 24
FILTERS: Final = ("verdict", "pipeline", "owner", "tier", "within", "cursor")
_VERDICTS: Final = (
    ("Missed", ExpectationVerdict.MISSED.value),
    ("Open", ExpectationVerdict.OPEN.value),
    ("Met", ExpectationVerdict.MET.value),
    ("Waived", ExpectationVerdict.WAIVED.value),
)


class ExpectationList(Struct, frozen=True, kw_only=True):
    """A page of verdicts, and the next slots."""

    expectations: list[Any]
    upcoming: Section
    chips: list[Chip]
    filters: Mapping[str, Any]
    verdict: str
    more: str
    upcoming_cli: str
    ranges: tuple[str, ...] = tuple(RANGES)
    hours: int = UPCOMING_HOURS


def expectation_list(api: ApiCaller, query: Mapping[str, Any]) -> ExpectationList:
    """Return a page of verdicts, of missed ones unless the query names another. Raises as the API operation."""
    expectations, cursor = api.found("GET /expectations", "expectations", query={**since(api, query), "limit": LISTED})
    selected = {name: query[name] for name in ("pipeline", "owner", "tier") if name in query}
    upcoming = {**selected, "hours": UPCOMING_HOURS, "limit": UPCOMING_MAX}
    words = options((f"--{name}", value) for name, value in selected.items())
    return ExpectationList(
        expectations=expectations,
        upcoming=api.section("GET /upcoming", query=upcoming),
        chips=chips(ADDRESS, query, "verdict", _VERDICTS),
        filters={name: query.get(name, "") for name in FILTERS},
        verdict=query["verdict"],
        more=following(ADDRESS, query, cursor),
        upcoming_cli=command("schedule", "upcoming", *words),
    )


def _list(api: ApiCaller, request: PageRequest) -> Page:
    query = {"verdict": ExpectationVerdict.MISSED.value, **request.query}
    given = (
        ("--verdict", query["verdict"]),
        ("--pipeline", query.get("pipeline")),
        ("--owner", query.get("owner")),
        ("--tier", query.get("tier")),
        ("--since", query.get("within")),
    )
    return Page(
        template="expectations.html",
        title="Expectations",
        view=expectation_list(api, query),
        json=twin("/expectations", since(api, query)),
        cli=command("expect", "ls", *options(given)),
        changes=changes_of(of=ALL_PIPELINES),
        section="expectations",
    )


PAGES: Final = (PageRoute("/expectations", _list, FILTERS, needs="GET /expectations"),)
