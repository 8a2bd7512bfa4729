"""What pages cost, counted: calls to the store do not grow with what exists, nor pages beyond what they may weigh."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from headgate.health.lineage.service import Lineage
from headgate.health.lineage.specs import LineageSpec
from headgate.health.model.timestamps import instant
from headgate.serve.pages.board import CARDS_MAX
from headgate.serve.pages.health.lineage import ALL_NODES_MAX, NODES_MAX
from headgate.serve.pages.routes import Assets
from tests.integration.serve.pages.test_routes import ORIGIN, Site, graph_of
from tests.integration.serve.pages.test_routes import site as site

CHAIN = 30


def _urn(number: int) -> str:
    return f"urn:dp:chain:t{number:04d}:v1"


def _tie(site: Site, number: int, reads: tuple[str, ...], writes: tuple[str, ...]) -> None:
    """Have a job that reads and writes datasets."""
    lineage = Lineage(site.opened.store, site.clock)
    job = f"job:j{number}"
    lineage.update(
        LineageSpec(
            spec_id=f"lspec:{job}:git:9f31c2d",
            producer_id=job,
            updated_at=instant(site.now_ms),
            dataset_reads=reads,
            dataset_writes=writes,
        )
    )


def _chain(site: Site, jobs: int) -> None:
    for number in range(jobs):
        _tie(site, number, (_urn(number),), (_urn(number + 1),))
    site.clock.advance(5)


def _graph(site: Site, number: int, steps: str = "") -> Any:
    query = f"dataset={quote(_urn(number), safe='')}" + (f"&steps={steps}" if steps else "")
    return graph_of(site.page(f"/ui/lineage?{query}"))


def test_lineage__steps__are_how_far_the_graph_goes_both_ways(site: Site) -> None:
    _chain(site, CHAIN)
    middle = CHAIN // 2

    # A step is a job and a dataset; the dataset itself is one more.
    sizes = {steps: len(_graph(site, middle, steps)["nodes"]) for steps in ("", "2", "3", "all")}

    assert sizes == {"": 5, "2": 9, "3": 13, "all": 2 * CHAIN + 1}
    answer = site.get(f"{ORIGIN}/ui/lineage?dataset={quote(_urn(0), safe='')}&steps=9")
    assert answer.status_code == 400
    assert "use one of 1, 2, 3, all" in answer.text


def test_lineage__more_than_is_drawn__says_so_and_draws_the_nearest(site: Site) -> None:
    for number in range(NODES_MAX):
        _tie(site, number, (_urn(0),), (_urn(number + 1),))
    site.clock.advance(5)

    nearest, whole = _graph(site, 0), _graph(site, 0, "all")

    assert (len(nearest["nodes"]), nearest["is_complete"]) == (NODES_MAX, False)
    assert (len(whole["nodes"]), whole["is_complete"]) == (2 * NODES_MAX + 1, True)
    assert ALL_NODES_MAX > 2 * NODES_MAX


@pytest.mark.parametrize("steps", ["2", "all"])
def test_lineage__of_many_nodes__asks_the_store_for_all_at_once(
    site: Site, monkeypatch: pytest.MonkeyPatch, steps: str
) -> None:
    _chain(site, CHAIN)
    calls: list[str] = []
    store = type(site.health.store)
    for name in ("get", "get_many", "query", "query_many"):
        monkeypatch.setattr(store, name, _counted(getattr(store, name), name, calls))

    for _ in range(2):
        calls.clear()
        _graph(site, 0, steps)

    # The name of the dataset, its writers, the signals of all datasets, and the definitions of all jobs.
    assert len(calls) <= 5, calls


def _counted(call: Any, name: str, calls: list[str]) -> Any:
    def counted(*given: Any, **more: Any) -> Any:
        calls.append(name)
        return call(*given, **more)

    return counted


def test_board__more_incidents_than_cards__asks_the_store_no_more_often(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    store = type(site.health.store)
    for name in ("get", "get_many", "query", "query_many"):
        monkeypatch.setattr(store, name, _counted(getattr(store, name), name, calls))

    def have(count: int) -> int:
        """Have this many open incidents, and return the calls of the page."""
        for number in range(count):
            urn = f"urn:dp:board:t{number:02d}:v1"
            if site.get(f"/datasets/{quote(urn, safe='')}").status_code == 404:
                site.dataset(urn)
                site.signal("CRITICAL", urn)
        site.page("/ui")
        calls.clear()
        page = site.page("/ui")
        assert page.count("Acknowledge</button>") == min(count, CARDS_MAX)
        return len(calls)

    # Both beyond what the page counts in its time range, which takes a further read.
    few, many = have(CARDS_MAX + 12), have(CARDS_MAX + 20)

    assert many <= few
    # The lists, the counts of the rail and the latest changes; none for a card.
    assert many <= 20, calls


def test_page__first_visit__scripts_and_styles_are_small(site: Site) -> None:
    page = site.page("/ui")
    sizes = {name: len(content) for name, content in Assets().files.items()}

    assert len(page) < 30_000
    assert sum(sizes.values()) < 150_000, sizes
