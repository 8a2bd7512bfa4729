"""Blast radius: what is reached, in which order, within which bounds, and what follows from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest

from headgate.clock import VirtualClock
from headgate.errors import InvalidIdError
from headgate.health.lineage.blast_radius import BlastRadii, BlastRadius
from headgate.health.lineage.graph import RELOAD_SECONDS, SKEW_MS, LineageGraph
from headgate.health.lineage.service import Lineage
from headgate.health.lineage.specs import LineageSpec
from headgate.health.model.enums import Confidence, Impact, Tier
from headgate.health.model.timestamps import instant
from headgate.store.model.requests import Page, Query
from headgate.store.sqlite.store import SqliteStore, Synchronous
from tests.stores import open_sqlite

RAW: Final = "urn:dp:d:raw"


def urn(name: str) -> str:
    return f"urn:dp:d:{name}"


class Rig:
    """A lineage, and two processes that look at it."""

    def __init__(self, store: SqliteStore, clock: VirtualClock) -> None:
        self.clock = clock
        self.store = store
        self.tier_of: dict[str, Tier] = {}
        self.graph = LineageGraph(store, clock)
        self.lineage = Lineage(store, clock)
        self.radii = BlastRadii(self.graph, clock, self._tiers)
        self.small = BlastRadii(LineageGraph(store, clock), clock, self._tiers, edges_max=5)

    def job(self, name: str, reads: str, writes: str = "", confidence: Confidence = Confidence.HIGH) -> None:
        self.clock.advance(2)
        spec = LineageSpec(
            spec_id=f"lspec:job:{name}:git:{int(self.clock.seconds())}",
            producer_id=f"job:{name}",
            updated_at=instant(int(self.clock.seconds() * 1000)),
            dataset_reads=tuple(urn(each) for each in reads.split()),
            dataset_writes=tuple(urn(each) for each in writes.split()),
            confidence=confidence,
        )
        self.lineage.update(spec)

    def _tiers(self, urns: Sequence[str]) -> Mapping[str, Tier]:
        return {each: self.tier_of[each] for each in urns if each in self.tier_of}


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    clock = VirtualClock()
    store = open_sqlite(tmp_path, clock=clock, synchronous=Synchronous.NORMAL)
    yield Rig(store, clock)
    store.close()


def reached(radius: BlastRadius) -> list[tuple[str, int]]:
    return [(each.dataset_urn.removeprefix("urn:dp:d:"), each.distance) for each in radius.datasets]


def test_downstream__a_chain_with_a_branch__is_reached_nearest_first(rig: Rig) -> None:
    rig.job("a", "raw", "clean")
    rig.job("b", "clean", "mart report")
    rig.job("c", "mart")

    radius = rig.radii.downstream(RAW)

    assert reached(radius) == [("clean", 1), ("mart", 2), ("report", 2)]
    assert [(each.entity_id, each.distance) for each in radius.entities] == [("job:a", 1), ("job:b", 2), ("job:c", 3)]
    assert (radius.dataset_count, radius.downstream_count, radius.complete) == (3, 3, True)
    assert radius.downstream_services == ("a", "b", "c")


def test_downstream__cycles__are_gone_round_once(rig: Rig) -> None:
    rig.job("a", "raw mart", "clean raw")
    rig.job("b", "clean", "mart")
    rig.job("self", "mart", "mart")

    radius = rig.radii.downstream(RAW)

    assert reached(radius) == [("clean", 1), ("mart", 2)]
    assert radius.complete


def test_downstream__ways_of_different_confidence__count_by_their_least_sure_edge(rig: Rig) -> None:
    rig.job("sure", "raw", "x")
    rig.job("unsure", "raw", "x y", Confidence.LOW)
    rig.job("after", "y", "z")
    rig.job("half", "x", "w", Confidence.MEDIUM)

    radius = rig.radii.downstream(RAW)

    assert [(each.dataset_urn[-1], each.confidence) for each in radius.datasets] == [
        ("x", Confidence.HIGH), ("w", Confidence.MEDIUM), ("y", Confidence.LOW), ("z", Confidence.LOW),
    ]  # fmt: skip
    assert [each.entity_name for each in radius.entities] == ["sure", "half", "unsure", "after"]


def test_upstream__is_the_other_way_round(rig: Rig) -> None:
    rig.job("a", "raw", "clean")
    rig.job("b", "clean other", "mart")

    radius = rig.radii.upstream(urn("mart"))

    assert reached(radius) == [("clean", 1), ("other", 1), ("raw", 2)]
    assert [each.entity_id for each in radius.entities] == ["job:b", "job:a"]


def test_downstream__more_than_the_bound__says_that_it_is_not_complete(rig: Rig) -> None:
    for number in range(4):
        rig.job(f"p{number}", "raw", f"x{number}")

    radius = rig.small.downstream(RAW)

    assert not radius.complete
    assert radius.edges_reached == 5
    assert radius.estimated_impact is Impact.UNKNOWN
    assert rig.radii.downstream(RAW, edges_max=5) == radius
    assert rig.radii.downstream(RAW).complete


def test_downstream__as_many_as_the_bound__is_complete(rig: Rig) -> None:
    rig.job("p", "raw", "a b c d")

    assert rig.small.downstream(RAW).complete


# The impact.


def test_impact__a_dataset_that_no_one_spoke_of__is_unknown(rig: Rig) -> None:
    rig.job("a", "raw", "clean")

    assert rig.radii.downstream(urn("elsewhere")).estimated_impact is Impact.UNKNOWN


def test_impact__a_leaf__is_low(rig: Rig) -> None:
    rig.job("a", "raw", "clean")

    assert rig.radii.downstream(urn("clean")).estimated_impact is Impact.LOW


def test_impact__a_reader_that_writes_nothing__is_medium(rig: Rig) -> None:
    rig.job("dashboard", "raw")

    assert rig.radii.downstream(RAW).estimated_impact is Impact.MEDIUM


@pytest.mark.parametrize(("count", "impact"), [(10, Impact.MEDIUM), (11, Impact.HIGH)])
def test_impact__many_datasets__is_high(rig: Rig, count: int, impact: Impact) -> None:
    rig.job("a", "raw", " ".join(f"x{number}" for number in range(count)))

    assert rig.radii.downstream(RAW).estimated_impact is impact


def test_impact__one_of_the_first_tier__is_high_even_if_there_is_more(rig: Rig) -> None:
    rig.tier_of = {urn("a0"): Tier.TIER_1, urn("a1"): Tier.TIER_2}
    rig.job("a", "raw", "a0 a1 a2 a3 a4 a5")

    radius = rig.small.downstream(RAW)

    assert (radius.estimated_impact, radius.complete) == (Impact.HIGH, False)
    assert radius.tier_counts == {"TIER_1": 1, "TIER_2": 1, "TIER_3": 0}
    assert radius.datasets[0].tier is Tier.TIER_1


# The graph as it changes.


def test_downstream__after_a_change_by_another_process__shows_it_within_a_second(rig: Rig) -> None:
    rig.job("a", "raw", "clean")
    rig.radii.downstream(RAW)

    rig.job("a", "raw", "cleaner")
    rig.job("b", "cleaner", "mart")

    assert reached(rig.radii.downstream(RAW)) == [("cleaner", 1), ("mart", 2)]


def test_downstream__within_a_second__asks_the_store_nothing(rig: Rig) -> None:
    rig.job("a", "raw", "clean")
    first = rig.radii.downstream(RAW)
    asked = rig.store.stats.queries + rig.store.stats.reads
    rig.clock.advance(0.5)

    assert rig.radii.downstream(RAW).datasets == first.datasets
    assert rig.store.stats.queries + rig.store.stats.reads == asked


def test_downstream__long_after_the_last_change__reads_no_row_anew(rig: Rig) -> None:
    for number in range(5):
        rig.job(f"p{number}", "raw", f"x{number}")
    rig.radii.downstream(RAW)
    rig.clock.advance(SKEW_MS / 1000 + 1)
    rig.radii.downstream(RAW)
    rows: list[int] = []

    class Counting:
        def query(self, query: Query) -> Page:
            page = rig.store.query(query)
            rows.append(len(page.items))
            return page

    rig.graph._store = Counting()  # type: ignore[assignment]  # all that the graph asks of a store
    rig.clock.advance(2)

    assert rig.radii.downstream(RAW).dataset_count == 5
    assert rows == [0]


def test_downstream__a_producer_that_no_longer_reads__is_not_reached(rig: Rig) -> None:
    rig.job("a", "raw", "clean")
    rig.radii.downstream(RAW)

    rig.job("a", "other", "clean")

    assert rig.radii.downstream(RAW).entities == ()


def test_downstream__a_change_by_a_clock_that_is_behind__is_seen_too(rig: Rig) -> None:
    rig.job("a", "raw", "clean")
    rig.radii.downstream(RAW)

    rig.clock.step(-20)
    rig.job("late", "raw", "x")
    rig.clock.step(20)

    assert reached(rig.radii.downstream(RAW)) == [("clean", 1), ("x", 1)]


def test_downstream__a_producer_not_known_for_ninety_days__is_not_reached(rig: Rig) -> None:
    rig.job("a", "raw", "clean")
    rig.radii.downstream(RAW)

    rig.clock.advance(90 * 24 * 3600 + 1)

    assert rig.radii.downstream(RAW).entities == ()


def test_downstream__an_hour_later__is_read_anew_and_the_same(rig: Rig) -> None:
    rig.job("a", "raw", "clean")
    before = rig.radii.downstream(RAW)

    rig.clock.advance(RELOAD_SECONDS + 1)

    assert rig.radii.downstream(RAW).datasets == before.datasets


def test_downstream__of_what_is_no_urn__is_refused(rig: Rig) -> None:
    with pytest.raises(InvalidIdError):
        rig.radii.downstream("orders")


def test_warm__no_one_has_asked_yet__the_first_question_finds_everything_read(rig: Rig) -> None:
    rig.job("a", "raw", "clean")
    rig.radii.warm()
    before = rig.store.stats.queries
    rig.radii.warm()

    radius = rig.radii.downstream(RAW)

    assert reached(radius) == [("clean", 1)]
    assert rig.store.stats.queries == before


def test_downstream__tiers_of_some__are_reported_those_alone(rig: Rig) -> None:
    rig.job("a", "raw", "clean mart")
    rig.tier_of[urn("mart")] = Tier.TIER_2

    radius = rig.radii.downstream(RAW)

    assert {each.dataset_urn: each.tier for each in radius.datasets} == {urn("clean"): None, urn("mart"): Tier.TIER_2}


def test_downstream__right_after_a_spec_of_this_process__has_it(rig: Rig) -> None:
    assert rig.radii.downstream(RAW).dataset_count == 0
    looked_at = instant(int(rig.clock.seconds() * 1000))
    rig.clock.advance(0.5)
    spec = LineageSpec(
        spec_id="lspec:job:a:git:1",
        producer_id="job:a",
        updated_at=instant(int(rig.clock.seconds() * 1000)),
        dataset_reads=(RAW,),
        dataset_writes=(urn("clean"),),
    )

    Lineage(rig.store, rig.clock, rig.graph).update(spec)
    radius = rig.radii.downstream(RAW)

    assert reached(radius) == [("clean", 1)]
    assert radius.as_of == looked_at, "what others did since then is not known"
    rig.clock.advance(2)
    assert reached(rig.radii.downstream(RAW)) == [("clean", 1)]
    assert rig.radii.downstream(RAW).as_of == instant(int(rig.clock.seconds() * 1000))


def test_downstream__what_others_wrote_a_moment_ago__is_not_said_to_be_known(rig: Rig) -> None:
    rig.radii.downstream(RAW)
    looked_at = instant(int(rig.clock.seconds() * 1000))
    rig.clock.advance(0.9)

    assert rig.radii.downstream(RAW).as_of == rig.radii.upstream(RAW).as_of == looked_at
