"""The band of the remaining time, against simulated runs whose end is known."""

from __future__ import annotations

import random
from collections.abc import Callable
from heapq import heapify, heappop, heappush

import pytest
from msgspec import Struct

from headgate.fanout.insight.eta import Estimate, history
from headgate.fanout.insight.progress import Facts, progress_of
from headgate.fanout.insight.samples import Sample
from headgate.fanout.model.counts import Counts
from headgate.fanout.model.rows import Chunk, Policy, timestamp
from headgate.fanout.model.states import Disposition
from tests.unit.fanout.made_rows import T0, made_chunk, made_fanout

CASES = 150
POLICY = Policy(max_attempts=3, backoff_seconds=1.0, timeout_seconds=3600.0)
Draw = Callable[[random.Random], float]
KINDS: dict[str, Draw] = {
    "alike": lambda draw: draw.gauss(1.0, 0.02),
    "uniform": lambda draw: draw.uniform(0.5, 1.5),
    "exponential": lambda draw: draw.expovariate(1.0),
    "lognormal": lambda draw: draw.lognormvariate(0.0, 0.7),
    "two kinds": lambda draw: draw.gauss(1.0, 0.1) if draw.random() < 0.9 else draw.gauss(6.0, 0.5),
}


class Attempt(Struct):
    """An attempt at a chunk of a simulated run, in milliseconds since its begin."""

    chunk: int
    number: int
    begin_ms: int
    end_ms: int
    is_failed: bool


class Run(Struct):
    """A simulated run."""

    chunks: int
    attempts: list[Attempt]

    @property
    def end_ms(self) -> int:
        return max(attempt.end_ms for attempt in self.attempts)


def simulated(draw: random.Random, kind: str) -> Run:
    """Return a run of workers that take chunks from a queue; failed ones return to it after a pause."""
    chunks, workers = draw.randrange(20, 400), draw.randrange(1, 33)
    scale_ms = 1000 * 10 ** draw.uniform(-0.5, 2)
    failing = draw.choice([0.0, 0.0, 0.05, 0.2])
    free = [0] * workers
    heapify(free)
    queue: list[tuple[int, int, int]] = [(0, chunk, 1) for chunk in range(chunks)]
    attempts = []
    while queue:
        due_ms, chunk, number = heappop(queue)
        begin_ms = max(due_ms, heappop(free))
        end_ms = begin_ms + max(1, round(scale_ms * abs(KINDS[kind](draw))))
        is_failed = draw.random() < failing
        heappush(free, end_ms)
        attempts.append(Attempt(chunk, number, begin_ms, end_ms, is_failed))
        if is_failed and number < POLICY.max_attempts:
            heappush(queue, (end_ms + round(1000 * 2.0 ** (number - 1)), chunk, number + 1))
    return Run(chunks, attempts)


def estimated(run: Run, at_ms: int) -> Estimate:
    """Return the estimate from the rows as they were at a time of the run."""
    latest: dict[int, Attempt] = {}
    begun = [attempt for attempt in run.attempts if attempt.begin_ms <= at_ms]
    for attempt in begun:
        if attempt.chunk not in latest or attempt.number > latest[attempt.chunk].number:
            latest[attempt.chunk] = attempt
    rows = [_row(chunk, latest.get(chunk), at_ms) for chunk in range(run.chunks)]
    found = {each: sum(1 for row in rows if row.disposition is each) for each in Disposition}
    counts = Counts(
        total=run.chunks,
        attempts=len(begun),
        **{each.bucket: count for each, count in found.items() if count},
    )
    running = [row for row in rows if row.disposition is Disposition.RUNNING]
    fanout, now_ms = made_fanout(POLICY, started_at=timestamp(T0)), T0 + at_ms
    points = history(fanout, counts, rows, now_ms)
    return progress_of(fanout, counts, Facts(Sample(rows, True), running, points, now_ms)).estimate


def _row(chunk: int, attempt: Attempt | None, at_ms: int) -> Chunk:
    if attempt is None:
        return made_chunk(chunk, Disposition.QUEUED)
    begin_ms, duration_ms = T0 + attempt.begin_ms, attempt.end_ms - attempt.begin_ms
    if attempt.end_ms > at_ms:
        return made_chunk(chunk, Disposition.RUNNING, begin_ms=begin_ms, attempt=attempt.number)
    disposition = Disposition.DONE
    if attempt.is_failed:
        disposition = Disposition.RETRYING if attempt.number < POLICY.max_attempts else Disposition.DEAD
    return made_chunk(chunk, disposition, begin_ms=begin_ms, duration_ms=duration_ms, attempt=attempt.number)


@pytest.mark.parametrize("kind", list(KINDS))
def test_band__simulated_runs__contains_the_true_end_in_four_of_five(kind: str) -> None:
    draw = random.Random(kind)
    inside = known = 0
    widths = []
    for _ in range(CASES // len(KINDS)):
        run = simulated(draw, kind)
        at_ms = round(draw.uniform(0.05, 0.98) * run.end_ms)
        found, left = estimated(run, at_ms), (run.end_ms - at_ms) / 1000
        if found.low_seconds is None or found.high_seconds is None:
            continue
        known += 1
        inside += found.low_seconds <= left <= found.high_seconds
        widths.append(found.high_seconds / max(1.0, found.low_seconds))
    print(
        f"{kind}: {inside} of {known} known, {CASES // len(KINDS)} cases; width {sorted(widths)[len(widths) // 2]:.2f}"
    )

    assert known >= 0.7 * CASES / len(KINDS)
    assert inside >= 0.8 * known
