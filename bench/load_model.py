"""Load model: the ceilings and the costs of Headgate on DynamoDB, from counted calls and AWS's documented limits.

A partition serves 1,000 write units and 3,000 read units a second. DynamoDB splits a partition that is hot, down to a
range of sort keys, which helps unless every write goes to the end of the range, as with times. An index that is
throttled throttles the writes to its table. So the ceiling of a load is the rate at which the first key that all units
share reaches the limit of a partition.
"""

from __future__ import annotations

import logging
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import structlog

from bench import load_stories
from bench.dynamodb_meter import Hit, Place
from bench.load_stories import AFTER, BEFORE, Layout, Story
from bench.measure import Figure
from headgate.health.aws_costs import PRICES_2024_11, SECONDS_A_MONTH

PARTITION_WRITES = 1_000
PARTITION_READS = 3_000
# The quota of an account for an on-demand table, which AWS raises on request.
TABLE_UNITS = 40_000
PIPELINES = 10_000
STARTED_WITHIN_SECONDS = 60
EXECUTIONS_A_SECOND = 2_000
CHUNKS = 1_000_000
CHUNKS_WITHIN_SECONDS = 20 * 60
# Operations of the state store a second, together with its reads some 70,000.
SIGNALS_A_SECOND, INCIDENTS_A_SECOND, EVIDENCE_A_SECOND = 3_000, 100, 50_000
# The load of the state store is a requirement, and met with room to spare.
HEALTH_HEADROOM = 1.2
# A key with more than this many times its share of the units is one that units have in common.
_COMMON = 2.0
# Below this correlation of sort key and time, writes are spread over the range of a key, and DynamoDB can split it.
_SPREAD = 0.3
_MILLION = 1_000_000


class Part(NamedTuple):
    """A story and how often a second its unit happens."""

    story: Story
    rate: float


class Hot(NamedTuple):
    """A key that units have in common, and its share of a partition's limit at the given rates."""

    hit: Hit
    share: float
    is_read: bool

    def __str__(self) -> str:
        return f"{self.hit.key} of {self.hit.place}{' (reads)' if self.is_read else ''}"


class Load(NamedTuple):
    """What a load comes to."""

    hottest: Hot | None
    writes: float
    reads: float
    largest: tuple[Place, float]

    @property
    def headroom(self) -> float:
        """By how much the load could grow until the first key is throttled."""
        return math.inf if self.hottest is None else 1 / self.hottest.share

    @property
    def dollars_a_second(self) -> float:
        prices = PRICES_2024_11
        return (self.writes * prices.write_million + self.reads * prices.read_million) / _MILLION


def load_of(parts: Sequence[Part]) -> Load:
    """Return what stories at these rates come to, together."""
    written: dict[Hit, float] = defaultdict(float)
    read: dict[Hit, float] = defaultdict(float)
    places: dict[Place, float] = defaultdict(float)
    reads = 0.0
    for story, rate in parts:
        a_second = rate / story.units
        for hit in _common(story.counts.written, story.units):
            if not _is_spread(story.counts.sorts[hit]):
                written[hit] += story.counts.written[hit] * a_second
        for hit in _common(story.counts.read, story.units):
            read[hit] += story.counts.read[hit] * a_second
        for hit, units in story.counts.written.items():
            places[hit.place] += units * a_second
        reads += story.counts.total_read() * a_second
    hot = [
        *(Hot(hit, units / PARTITION_WRITES, is_read=False) for hit, units in written.items()),
        *(Hot(hit, units / PARTITION_READS, is_read=True) for hit, units in read.items()),
    ]
    # Keys of one worker process are not shared by all: there are as many as there are workers.
    hot = [each for each in hot if not each.hit.key.startswith("wrk_")]
    return Load(
        max(hot, key=lambda each: each.share, default=None),
        sum(places.values()),
        reads,
        max(places.items(), key=lambda each: each[1], default=(Place(""), 0.0)),
    )


def _common(units_by_key: dict[Hit, float], count: int) -> list[Hit]:
    """Return the keys that many units use: they have more than the share of one unit."""
    totals: dict[Place, float] = defaultdict(float)
    for hit, units in units_by_key.items():
        totals[hit.place] += units
    return [hit for hit, units in units_by_key.items() if units > _COMMON * totals[hit.place] / count]


def _is_spread(sorts: Sequence[Any]) -> bool:
    """Whether the writes to a key go to all of its range at any time: its sort keys do not follow the time."""
    if len(sorts) < 20 or any(sort is None for sort in sorts):
        return False
    ranks = {value: place for place, value in enumerate(sorted(set(sorts)))}
    given = [float(ranks[sort]) for sort in sorts]
    mean, middle = sum(given) / len(given), (len(given) - 1) / 2
    above = sum((place - middle) * (rank - mean) for place, rank in enumerate(given))
    below = math.sqrt(
        sum((place - middle) ** 2 for place in range(len(given))) * sum((rank - mean) ** 2 for rank in given)
    )
    return below > 0 and abs(above / below) < _SPREAD


def run() -> list[Figure]:
    """Return the ceilings of the layout without shards, and of the present one."""
    return [*run_before(), *run_after()]


def run_before() -> list[Figure]:
    """Return the ceilings of the layout without shards, narrow indexes and single writes."""
    return _figures(BEFORE)


def run_after() -> list[Figure]:
    """Return the ceilings of the present layout."""
    return _figures(AFTER)


def _figures(layout: Layout) -> list[Figure]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    return [
        *_pipelines(layout),
        *_executions(layout, "functions", load_stories.executions_of_functions),
        *_executions(layout, "workers", load_stories.executions_of_workers),
        *_health(layout),
        *_chunks(layout, "functions", load_stories.chunks_of_functions),
        *_chunks(layout, "workers", load_stories.chunks_of_workers),
    ]


def _pipelines(layout: Layout) -> list[Figure]:
    rate = PIPELINES / STARTED_WITHIN_SECONDS
    story = load_stories.pipelines_on_the_hour(layout)
    load = load_of([Part(story, rate)])
    a_run = load.dollars_a_second / rate
    ceiling = rate * load.headroom
    cost = f"${a_run * PIPELINES:.2f} an hour, ${a_run * PIPELINES * 730:,.0f} a month if hourly"
    name = f"{PIPELINES:,} pipelines on the hour: all started within"
    seconds = f"{PIPELINES / ceiling:,.0f} s"
    return [_figure(layout, name, seconds, f"<= {STARTED_WITHIN_SECONDS} s", load, story, cost)]


def _executions(layout: Layout, kind: str, tell: Callable[[Layout], Story]) -> list[Figure]:
    story = tell(layout)
    load = load_of([Part(story, EXECUTIONS_A_SECOND)])
    cost = f"${load.dollars_a_second / EXECUTIONS_A_SECOND * _MILLION:.2f} a million"
    name = f"executions of one activity a second, {kind}"
    ceiling = f"{EXECUTIONS_A_SECOND * load.headroom:,.0f}/s"
    return [_figure(layout, name, ceiling, f">= {EXECUTIONS_A_SECOND:,}/s", load, story, cost)]


def _health(layout: Layout) -> list[Figure]:
    counted = load_stories.health_operations(layout)
    load = load_of(
        [
            Part(counted.refreshes, SIGNALS_A_SECOND - 2 * INCIDENTS_A_SECOND),
            Part(counted.breaches, INCIDENTS_A_SECOND),
            Part(counted.recoveries, INCIDENTS_A_SECOND),
            Part(counted.evidence, EVIDENCE_A_SECOND),
        ]
    )
    storm = load_of([Part(counted.breaches, 1.0)])
    cost = f"${load.dollars_a_second * SECONDS_A_MONTH:,.0f} a month, unsampled, without reads"
    operations = SIGNALS_A_SECOND + INCIDENTS_A_SECOND + EVIDENCE_A_SECOND
    return [
        _figure(
            layout,
            f"health: {operations:,} writes a second, and 20,000 reads, times",
            f"{load.headroom:.2f}",
            f">= {HEALTH_HEADROOM:.2f}",
            load,
            None,
            cost,
            headroom=HEALTH_HEADROOM,
        ),
        _figure(
            layout,
            "health: first breaches a second in a storm",
            f"{storm.headroom:,.0f}/s",
            f">= {INCIDENTS_A_SECOND}/s",
            load_of([Part(counted.breaches, INCIDENTS_A_SECOND)]),
            counted.breaches,
            f"${storm.dollars_a_second * _MILLION:.2f} a million",
        ),
    ]


def _chunks(layout: Layout, kind: str, tell: Callable[[Layout], Story]) -> list[Figure]:
    story = tell(layout)
    load = load_of([Part(story, 1.0)])
    ceiling = load.headroom
    fanouts = math.ceil(CHUNKS / CHUNKS_WITHIN_SECONDS / ceiling)
    cost = f"${load.dollars_a_second * _MILLION:.2f} a million chunks"
    return [
        _figure(
            layout,
            f"chunks of one fan-out a second, {kind}",
            f"{ceiling:,.0f}/s",
            "printed",
            load._replace(hottest=None),
            story,
            f"{cost}; {CHUNKS:,} in {CHUNKS_WITHIN_SECONDS // 60} min take {fanouts} fan-outs; {load.hottest}",
        )
    ]


def _figure(
    layout: Layout,
    name: str,
    value: str,
    goal: str,
    load: Load,
    story: Story | None,
    cost: str,
    *,
    headroom: float = 1.0,
) -> Figure:
    reached = layout is BEFORE or load.headroom >= headroom
    counted = ""
    if story is not None:
        calls = sum(story.counts.calls.values()) - story.counts.calls["Query, empty"]
        written, read = story.counts.total_written() / story.units, story.counts.total_read() / story.units
        counted = f"{calls / story.units:.1f} calls, {written:.1f} writes, {read:.1f} reads a unit"
    hottest = "" if load.hottest is None else f"hottest {load.hottest}, {load.hottest.share:.0%}; "
    place, units = load.largest
    quota = f"; {place} needs a quota of {units:,.0f} writes/s" if units > TABLE_UNITS else ""
    return Figure(
        f"{layout.name}: {name}",
        value,
        "printed" if layout is BEFORE else goal,
        reached,
        counted,
        f"{hottest}{cost}{quota}",
    )


if __name__ == "__main__":
    sys.exit("run: python -m bench load_model")
