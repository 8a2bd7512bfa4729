"""Makespans: the remaining time of a lane, simulated from observed durations and running times."""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from heapq import heapify, heapreplace
from statistics import fmean
from typing import Final

from msgspec import Struct

from headgate.fanout.core.attempts import retry_delay_seconds
from headgate.fanout.model.rows import MAIN_LANE, Policy

ROUNDS: Final = 50
LANES_SIMULATED_MAX: Final = 500
CHUNKS_SIMULATED_MIN: Final = 400
CHUNKS_SIMULATED_MAX: Final = 1000
DURATIONS_MAX: Final = 500
# The tail of chunks that have outlived all others (Pareto).
OVERDUE_SHAPE: Final = 1.5


class LaneWork(Struct, frozen=True, kw_only=True):
    """What is known of the open chunks of a lane."""

    lane: str = MAIN_LANE
    pending: int = 0
    # Those of the pending that wait for a retry.
    retrying: int = 0
    # Chunks that others are going to put into this lane.
    expected: int = 0
    running: int = 0
    # Running times of running chunks that were read, and the chunk that has been running the longest.
    ages_ms: Sequence[int] = ()
    oldest_chunk_id: str | None = None
    completed: int = 0
    # Durations of completed chunks that were read, shortest first.
    durations_ms: Sequence[int] = ()
    # Attempts per ended chunk.
    tries: float = 1.0
    attempts_per_second: float | None = None
    # Since a chunk of the lane began or ended.
    idle_seconds: float = 0.0

    @property
    def open(self) -> int:
        """Chunks that have not ended."""
        return self.pending + self.running


class Lifetimes(Struct, frozen=True):
    """Durations of chunks: completed ones, with the running times of running ones as lower bounds (Kaplan-Meier)."""

    # Shortest first, with cumulative weights.
    values_ms: Sequence[int]
    cumulative: Sequence[float]
    # The probability that a chunk takes longer than all completed ones, and the mean of the excess.
    beyond: float
    excess_ms: float

    @property
    def longest_ms(self) -> int:
        return self.values_ms[-1]


def lifetimes(durations_ms: Sequence[int], ages_ms: Sequence[int], *, completed: int, running: int) -> Lifetimes:
    """Return the distribution of durations. The first chunks to end are the short ones; the running ones correct it.

    `completed` and `running` are the numbers of chunks of which the durations and ages are a sample.
    """
    weight = max(1.0, completed / len(durations_ms))
    censored = sorted(ages_ms)
    censored_weight = max(1.0, running / len(ages_ms)) if ages_ms else 0.0
    at_risk = weight * len(durations_ms) + censored_weight * len(censored)
    survival, place = 1.0, 0
    values, cumulative, total = [], [], 0.0
    for duration in durations_ms:
        while place < len(censored) and censored[place] < duration:
            at_risk -= censored_weight
            place += 1
        step = survival * min(1.0, weight / at_risk)
        survival -= step
        total += step
        at_risk = max(weight, at_risk - weight)
        values.append(duration)
        cumulative.append(total)
    longest, middle = values[-1], percentile(values, 0.5)
    above = [value - middle for value in values if value > middle]
    overdue = [age - longest for age in censored if age > longest]
    excess = max(fmean(above) if above else 0.0, float(max(overdue, default=0)))
    unseen = 1 / (len(values) + 1) if excess else 0.0
    return Lifetimes(values, cumulative, max(survival if overdue else 0.0, unseen), excess)


def makespans_seconds(
    work: LaneWork,
    *,
    lanes: int,
    policy: Policy,
    timeout_seconds: float = math.inf,
    rounds: int = ROUNDS,
    seed: int = 0,
) -> list[float]:
    """Return simulated remaining times, shortest first, one per round.

    Each round draws durations from the observed ones and assigns chunks to workers as they become free. A running chunk
    gets a duration longer than its running time. Of a large fleet, a fraction is simulated with its share of the work;
    of much work, the last chunks, which decide the tail.
    """
    # Seeded, so that the same input gives the same estimate.
    draw = random.Random(seed)
    known = lifetimes(work.durations_ms, work.ages_ms, completed=work.completed, running=work.running)
    part = min(1.0, LANES_SIMULATED_MAX / lanes)
    between_ms = _between_ms(work, lanes)
    lanes = min(lanes, LANES_SIMULATED_MAX)
    pending = math.ceil((work.pending + work.expected) * part)
    # The tail decides: more chunks per lane cost time and hardly change the result.
    last = min(pending, max(CHUNKS_SIMULATED_MIN, lanes), CHUNKS_SIMULATED_MAX)
    spans = []
    for _ in range(rounds):
        one = _Round(draw, known, policy, timeout_seconds)
        ages = work.ages_ms if len(work.ages_ms) <= lanes else draw.choices(work.ages_ms, k=lanes)
        unread = max(0, min(lanes, math.ceil(work.running * part)) - len(ages))
        left = [*(one.remaining_ms(age) for age in ages), *(one.part_ms() for _ in range(unread))]
        busy = [*left, *[0.0] * (lanes - len(left))]
        heapify(busy)
        # Waiting for a retry holds no worker.
        ends_ms = max((end_ms + sum(one.further_attempts(work.tries)) for end_ms in left), default=0.0)
        for duration_ms, pause_ms in one.attempts(last, work.tries):
            end_ms = busy[0] + duration_ms + between_ms
            heapreplace(busy, end_ms)
            ends_ms = max(ends_ms, end_ms + pause_ms)
        mean_ms = one.mean_ms() * work.tries + between_ms
        spans.append(((pending - last) * mean_ms / lanes + max(ends_ms, *busy)) / 1000)
    return sorted(spans)


class _Round:
    """One round of a simulation: durations drawn from a redrawn sample, since the sample itself is one of many."""

    def __init__(self, draw: random.Random, known: Lifetimes, policy: Policy, timeout_seconds: float) -> None:
        self._draw = draw
        self._known = known
        self._policy = policy
        self._timeout_ms = 1000 * timeout_seconds
        size = min(len(known.values_ms), DURATIONS_MAX)
        self._seen = sorted(draw.choices(known.values_ms, cum_weights=known.cumulative, k=size))

    def mean_ms(self) -> float:
        """Return the mean duration of an attempt."""
        return fmean(self._seen) + self._known.beyond * self._known.excess_ms

    def part_ms(self) -> float:
        """Return how long a chunk runs on of which it is not known when it began."""
        return self._draw.choice(self._seen) * self._draw.random()

    def attempts(self, count: int, tries: float) -> Iterator[tuple[float, float]]:
        """Yield the total duration of the attempts at each of `count` chunks, and the pauses between them."""
        draw, known = self._draw, self._known
        for value in draw.choices(self._seen, k=count):
            duration = float(value)
            if known.beyond and draw.random() < known.beyond:
                duration = known.longest_ms + self._excess_ms()
            again_ms, pause_ms = self.further_attempts(tries)
            yield min(duration, self._timeout_ms) + again_ms, pause_ms

    def further_attempts(self, tries: float) -> tuple[float, float]:
        """Return the duration of the attempts at a chunk after the first one, and the pauses before them."""
        duration_ms = pause_ms = 0.0
        again, attempt = 1 - 1 / tries, 1
        while again and attempt < self._policy.max_attempts and self._draw.random() < again:
            duration_ms += self._draw.choice(self._seen)
            pause_ms += 1000 * retry_delay_seconds(self._policy, attempt, self._draw.random())
            attempt += 1
        return duration_ms, pause_ms

    def remaining_ms(self, age_ms: int) -> float:
        """Return how long a chunk runs on that has been running for `age_ms`."""
        draw, known = self._draw, self._known
        if age_ms >= known.longest_ms:
            # It has outlived all others: the longer it runs, the longer it is going to.
            left = age_ms * (draw.paretovariate(OVERDUE_SHAPE) - 1)
        elif draw.random() < known.beyond:
            left = known.longest_ms - age_ms + self._excess_ms()
        else:
            first = bisect_right(self._seen, age_ms)
            longer = self._seen[first:] or [known.longest_ms]
            left = draw.choice(longer) - age_ms
        if age_ms + left > self._timeout_ms:
            # The time-out ends the attempt, and the next one takes as long as others.
            return max(0.0, self._timeout_ms - age_ms) + draw.choice(self._seen)
        return left

    def _excess_ms(self) -> float:
        return self._draw.expovariate(1 / self._known.excess_ms) if self._known.excess_ms else 0.0


def _between_ms(work: LaneWork, lanes: int) -> float:
    """Return the idle time of a worker between two chunks, derived from the throughput per worker."""
    if not work.attempts_per_second:
        return 0.0
    mean_ms = fmean(work.durations_ms)
    # The running chunks are partly done; without that part, workers with long chunks would seem to idle.
    partly = sum(min(1.0, age / mean_ms) for age in work.ages_ms) if mean_ms else 0.0
    per_second = work.attempts_per_second * (1 + partly / max(1, work.completed))
    return max(0.0, 1000 * lanes / per_second - mean_ms)


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the interpolated percentile of sorted values."""
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])
