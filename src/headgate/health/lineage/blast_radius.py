"""Blast radius: the datasets and services downstream of a dataset, and the estimated impact of a failure.

The estimated impact is

- HIGH if a TIER_1 dataset is downstream, or more than ten datasets are;
- else UNKNOWN if the lineage does not know the dataset, or the walk reached its limit;
- else MEDIUM if the dataset has readers, and LOW if it has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from headgate.clock import Clock
from headgate.health.lineage.graph import LineageGraph, ProducerLinks
from headgate.health.model import urns
from headgate.health.model.enums import Confidence, EntityType, Impact, Tier
from headgate.health.model.timestamps import instant

EDGES_MAX: Final = 10_000
MANY_DATASETS: Final = 10
SERVICES_MAX: Final = 100
# Highest confidence first.
_RANK: Final[Mapping[Confidence, int]] = {Confidence.HIGH: 0, Confidence.MEDIUM: 1, Confidence.LOW: 2}

Tiers = Callable[[Sequence[str]], Mapping[str, Tier]]


# Not tracked by the garbage collector: an answer has thousands, and they contain no cycles.
class ReachedDataset(Struct, frozen=True, gc=False):
    """A dataset reached over `distance` producers, with the lowest confidence of the edges on the path."""

    dataset_urn: str
    distance: int
    confidence: Confidence
    tier: Tier | None = None


class ReachedEntity(Struct, frozen=True, gc=False):
    """A reader (upstream: a writer) reached over `distance` producers, itself included."""

    entity_id: str
    entity_name: str
    entity_type: EntityType
    distance: int
    confidence: Confidence


class BlastRadius(Struct, frozen=True, kw_only=True):
    """The datasets and entities reached from a dataset, highest confidence and nearest first. `complete`: it is all.

    `as_of` is when the lineage was last read; later changes by other processes may be missing. `downstream_count` is
    the number of entities, of which `downstream_services` names at most a hundred; `dataset_count` is the number of
    datasets. An upstream walk uses the same fields.
    """

    dataset_urn: str
    datasets: tuple[ReachedDataset, ...]
    entities: tuple[ReachedEntity, ...]
    tier_counts: dict[str, int]
    estimated_impact: Impact
    dataset_count: int
    downstream_count: int
    downstream_services: tuple[str, ...]
    edges_reached: int
    complete: bool
    as_of: str


class LineageStep(Struct, frozen=True):
    """A reader of a dataset and what it writes, or upstream a writer and what it reads."""

    entity_id: str
    entity_name: str
    entity_type: EntityType
    datasets: tuple[str, ...]


class DatasetsWithin(NamedTuple):
    """The datasets up to some producers from a dataset, each with its distance. `complete`: it is all of them."""

    distances: dict[str, int]
    complete: bool


class Degree(NamedTuple):
    """The number of writers and readers of a dataset."""

    writers: int
    readers: int


class BlastRadii:
    """Walks the lineage downstream and upstream of a dataset."""

    def __init__(self, graph: LineageGraph, clock: Clock, tiers: Tiers, *, edges_max: int = EDGES_MAX) -> None:
        self._graph = graph
        self._clock = clock
        self._tiers = tiers
        self._edges_max = edges_max

    def warm(self) -> None:
        """Load the graph if it is not loaded, so that the first query is fast. Raises as `downstream`."""
        self._graph.warm()

    def downstream(self, urn: str, *, edges_max: int | None = None) -> BlastRadius:
        """Return what depends on a dataset, at most a second old. Raises `InvalidIdError` and what the store raises.

        With `edges_max`, the walk stops after that many edges, nearest first, and `complete` is false.
        """
        return self._reach(urn, edges_max or self._edges_max, is_upstream=False)

    def upstream(self, urn: str) -> BlastRadius:
        """Return what a dataset depends on, at most a second old. Raises as `downstream` does."""
        return self._reach(urn, self._edges_max, is_upstream=True)

    def upstream_within(self, urn: str, hops: int) -> DatasetsWithin:
        """Return the datasets up to some producers upstream. Raises as `downstream` does."""
        return self._within(urn, hops, is_upstream=True)

    def downstream_within(self, urn: str, hops: int) -> DatasetsWithin:
        """Return the datasets up to some producers downstream. Raises as `downstream` does."""
        return self._within(urn, hops, is_upstream=False)

    def _within(self, urn: str, hops: int, *, is_upstream: bool) -> DatasetsWithin:
        with self._graph.links() as links:
            now = int(self._clock.seconds())
            walk = _Walk(links, urns.dataset_urn(urn), self._edges_max, now, is_upstream=is_upstream, distance_max=hops)
        return DatasetsWithin({each.dataset_urn: each.distance for each in walk.datasets.values()}, walk.is_complete)

    def step(self, urn: str, *, is_upstream: bool) -> list[LineageStep]:
        """Return the readers of a dataset and what they write, or upstream its writers and what they read."""
        now = int(self._clock.seconds())
        with self._graph.links() as links:
            entities = links.writers(urn) if is_upstream else links.readers(urn)
            ties = [links.producers[each] for each in sorted(entities)]
            return [
                LineageStep(
                    each.producer_id,
                    each.producer_name,
                    each.producer_type,
                    tuple(sorted(each.reads if is_upstream else each.writes)),
                )
                for each in ties
                if each.expires > now
            ]

    def degrees(self, dataset_urns: Iterable[str]) -> dict[str, Degree]:
        """Return the number of writers and readers of datasets."""
        now = int(self._clock.seconds())
        with self._graph.links() as links:

            def live(entities: Iterable[str]) -> int:
                return sum(links.producers[each].expires > now for each in entities)

            return {urn: Degree(live(links.writers(urn)), live(links.readers(urn))) for urn in dataset_urns}

    def _reach(self, urn: str, edges_max: int, *, is_upstream: bool) -> BlastRadius:
        now = self._clock.seconds()
        with self._graph.links() as links:
            walk = _Walk(links, urns.dataset_urn(urn), edges_max, int(now), is_upstream=is_upstream)
            is_known = links.knows(urn)
            as_of_ms = self._graph.as_of_ms
        tiers = self._tiers(list(walk.datasets))
        counts = {tier.value: 0 for tier in Tier}
        for tier in tiers.values():
            counts[tier.value] += 1
        entities = sorted(
            walk.entities.values(), key=lambda each: (_RANK[each.confidence], each.distance, each.entity_id)
        )
        return BlastRadius(
            dataset_urn=urn,
            datasets=_ranked_datasets(walk, tiers),
            entities=tuple(entities),
            tier_counts=counts,
            estimated_impact=_impact(walk, counts, is_known=is_known),
            dataset_count=len(walk.datasets),
            downstream_count=len(entities),
            downstream_services=tuple(dict.fromkeys(each.entity_name for each in entities))[:SERVICES_MAX],
            edges_reached=walk.edges,
            complete=walk.is_complete,
            as_of=instant(as_of_ms),
        )


class _Walk:
    """A breadth-first walk from a dataset to its readers, to what they write, and so on.

    What is reached twice counts once: at its least distance, with the highest confidence of the paths of that length.
    """

    def __init__(
        self,
        links: ProducerLinks,
        origin: str,
        edges_max: int,
        now_seconds: int,
        *,
        is_upstream: bool,
        distance_max: int | None = None,
    ) -> None:
        self.datasets: dict[str, ReachedDataset] = {}
        self.entities: dict[str, ReachedEntity] = {}
        self.edges = 0
        self.is_complete = True
        self._links = links
        self._origin = origin
        self._edges_max = edges_max
        self._now = now_seconds
        self._is_upstream = is_upstream
        self._distance_max = distance_max
        self._go()

    def _go(self) -> None:
        frontier = {self._origin: Confidence.HIGH}
        distance = 0
        while frontier and self.is_complete and distance != self._distance_max:
            distance += 1
            reached = self._entities_of(frontier)
            for entity, confidence in reached.items():
                ties = self._links.producers[entity]
                self.entities[entity] = ReachedEntity(
                    entity, ties.producer_name, ties.producer_type, distance, confidence
                )
            frontier = self._datasets_of(reached)
            for urn, confidence in frontier.items():
                self.datasets[urn] = ReachedDataset(urn, distance, confidence)

    def _entities_of(self, frontier: Mapping[str, Confidence]) -> dict[str, Confidence]:
        """Return the entities newly reached from some datasets."""
        reached: dict[str, Confidence] = {}
        for urn, confidence in frontier.items():
            nexts = self._links.writers(urn) if self._is_upstream else self._links.readers(urn)
            for entity, edge in nexts.items():
                if not self._has_room():
                    return reached
                if entity not in self.entities and self._links.producers[entity].expires > self._now:
                    reached[entity] = _surest(reached.get(entity), confidence, edge)
        return reached

    def _datasets_of(self, entities: Mapping[str, Confidence]) -> dict[str, Confidence]:
        """Return the datasets newly reached from some entities."""
        reached: dict[str, Confidence] = {}
        for entity, confidence in entities.items():
            ties = self._links.producers[entity]
            for urn, edge in (ties.reads if self._is_upstream else ties.writes).items():
                if not self._has_room():
                    return reached
                if urn not in self.datasets and urn != self._origin:
                    reached[urn] = _surest(reached.get(urn), confidence, edge)
        return reached

    def _has_room(self) -> bool:
        if self.edges >= self._edges_max:
            self.is_complete = False
            return False
        self.edges += 1
        return True


def _surest(known: Confidence | None, so_far: Confidence, edge: Confidence) -> Confidence:
    """Return the confidence after one more path."""
    way = so_far if _RANK[so_far] >= _RANK[edge] else edge
    return way if known is None or _RANK[way] < _RANK[known] else known


def _ranked_datasets(walk: _Walk, tiers: Mapping[str, Tier]) -> tuple[ReachedDataset, ...]:
    found = (replace(each, tier=tiers[urn]) if urn in tiers else each for urn, each in walk.datasets.items())
    return tuple(sorted(found, key=lambda each: (_RANK[each.confidence], each.distance, each.dataset_urn)))


def _impact(walk: _Walk, tier_counts: Mapping[str, int], *, is_known: bool) -> Impact:
    if tier_counts[Tier.TIER_1.value] or len(walk.datasets) > MANY_DATASETS:
        return Impact.HIGH
    if not is_known or not walk.is_complete:
        return Impact.UNKNOWN
    return Impact.MEDIUM if walk.entities else Impact.LOW
