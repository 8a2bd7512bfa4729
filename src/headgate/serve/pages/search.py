"""Search: pages, pipelines, datasets, incidents, runs, executions and fan-outs by name or id, for the palette."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from msgspec import Struct

from headgate.errors import HeadgateError
from headgate.serve.pages.api_calls import ApiCaller, segment
from headgate.serve.pages.navigation import NavItem

FOUND_MAX: Final = 20
# Candidates read of each kind.
READ_MAX: Final = 500


class Hit(Struct, frozen=True):
    """One answer: its kind, its name, a remark, and its page."""

    kind: str
    label: str
    href: str
    note: str = ""


class Hits(Struct, frozen=True):
    """Answers, best first."""

    items: list[Hit]


def search(api: ApiCaller, text: str, pages: Iterable[NavItem]) -> Hits:
    """Return what a name or a part of it may mean, of what the caller may read; without a text, the `pages`."""
    wanted = text.strip().lower()
    found = [Hit("page", each.label, each.address) for each in pages if wanted in each.label.lower()]
    if not wanted:
        return Hits(found)
    found += _by_id(api, text.strip())
    for source in (_pipelines, _datasets, _incidents, _fanouts):
        found += _read(source, api, wanted)
    unique: dict[str, Hit] = {}
    for each in found:
        unique.setdefault(each.href, each)
    # A name that begins with the text comes before one that holds it.
    ordered = sorted(unique.values(), key=lambda each: not each.label.lower().startswith(wanted))
    return Hits(ordered[:FOUND_MAX])


def _read(source: Callable[[ApiCaller, str], Iterator[Hit]], api: ApiCaller, wanted: str) -> list[Hit]:
    try:
        return list(source(api, wanted))
    except HeadgateError:
        # The caller may not read this kind, or it cannot be read now: the others are still worth showing.
        return []


def _pipelines(api: ApiCaller, wanted: str) -> Iterator[Hit]:
    if api.pipelines is None:
        return
    for each in api.call("GET /pipelines")["pipelines"]:
        if wanted in each["id"].lower():
            yield Hit("pipeline", each["id"], f"/ui/pipelines/{segment(each['id'])}", each.get("owner") or "")


def _datasets(api: ApiCaller, wanted: str) -> Iterator[Hit]:
    for each in api.listed("GET /datasets", most=FOUND_MAX, query={"search": wanted}).items:
        yield Hit("dataset", each["dataset_urn"], f"/ui/datasets/{segment(each['dataset_urn'])}", each["tier"] or "")


def _incidents(api: ApiCaller, wanted: str) -> Iterator[Hit]:
    for each in api.listed("GET /incidents", most=READ_MAX, query={"status": ["OPEN", "ACKNOWLEDGED"]}).items:
        if wanted in f"{each['title']} {each['incident_id']}".lower():
            yield Hit("incident", each["title"], f"/ui/incidents/{segment(each['incident_id'])}", each["status"])


def _fanouts(api: ApiCaller, wanted: str) -> Iterator[Hit]:
    for each in api.call("GET /fanouts", query={"limit": 100})["fanouts"]:
        if wanted in each["run_id"].lower():
            yield Hit("fan-out", each["run_id"], f"/ui/fanouts/{segment(each['run_id'])}", each["status"])


def _by_id(api: ApiCaller, text: str) -> Iterator[Hit]:
    """Yield what has exactly this id."""
    for kind, operation, name, page in (
        ("run", "GET /runs/{run_id}", "run_id", "/ui/runs"),
        ("execution", "GET /executions/{id}", "id", "/ui/executions"),
        ("fan-out", "GET /fanouts/{id}", "id", "/ui/fanouts"),
    ):
        try:
            api.call(operation, path={name: text})
        except HeadgateError:
            continue
        yield Hit(kind, text, f"{page}/{segment(text)}")
