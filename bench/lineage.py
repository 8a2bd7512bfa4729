"""Blast radius in a lineage of 100,000 edges: how long it takes to reach 10,000 of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.measure import Figure, seconds
from bench.rows import open_at
from headgate.clock import Clock, SystemClock, VirtualClock
from headgate.health.lineage.blast_radius import EDGES_MAX, BlastRadii
from headgate.health.lineage.graph import LineageGraph
from headgate.health.lineage.service import Lineage
from headgate.health.lineage.specs import LineageSpec
from headgate.health.model.timestamps import instant
from headgate.store.port import Store

PRODUCERS = 10_000
READS, WRITES = 8, 2
GOAL_MS = 100.0
TIMES = 50


def run() -> list[Figure]:
    clock = SystemClock()
    # Some time after the last change, as most questions are asked, and moved by hand.
    later = VirtualClock(clock.seconds() + 3600)
    with TemporaryDirectory(prefix="headgate-bench-") as folder:
        store = open_at(Path(folder), clock)
        _fill(store, clock)
        radii = BlastRadii(LineageGraph(store, later), later, lambda _urns: {})
        first = seconds(lambda: radii.downstream(_dataset(0)))
        reached = radii.downstream(_dataset(0)).edges_reached
        assert reached == EDGES_MAX

        def asked() -> None:
            # A second later, so that the graph is brought up to date each time.
            later.advance(1)
            radii.downstream(_dataset(0))

        figures = [_figure(first, asked, reached)]
        store.close()
    return figures


def _figure(first: float, ask: Callable[[], None], reached: int) -> Figure:
    times = sorted(1000 * seconds(ask) for _ in range(TIMES))
    worst = times[-1]
    return Figure(
        f"blast radius: {reached:,} edges of {PRODUCERS * (READS + WRITES):,}",
        f"{times[len(times) // 2]:.1f} ms, slowest of {TIMES}: {worst:.1f} ms",
        f"<= {GOAL_MS:.0f} ms",
        worst <= GOAL_MS,
        notes=f"{1000 * first:.0f} ms for the first question, which reads the graph",
    )


def _fill(store: Store, clock: Clock) -> None:
    lineage = Lineage(store, clock)
    draw = random.Random(1)
    for number in range(PRODUCERS):
        lineage.update(
            LineageSpec(
                spec_id=f"lspec:job:p{number}:git:9f31c2d",
                producer_id=f"job:p{number}",
                updated_at=instant(int(clock.seconds() * 1000)),
                dataset_reads=tuple(_dataset(max(0, number * WRITES - draw.randrange(1, 4_000))) for _ in range(READS)),
                dataset_writes=tuple(_dataset(number * WRITES + each) for each in range(WRITES)),
            )
        )


def _dataset(number: int) -> str:
    return f"urn:dp:bench:t{number}"
