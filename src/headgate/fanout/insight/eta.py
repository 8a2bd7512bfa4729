"""Estimates: how fast chunks end, how long they take, and when those that are left will have ended.

All of it is computed from counts and from rows that were read; nothing here reads, and the same facts always give the
same answer.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heapreplace
from itertools import pairwise
from statistics import fmean
from typing import Final

from msgspec import Struct

from headgate.fanout.model.counts import Counts
from headgate.fanout.model.rows import Chunk, Fanout, timestamp_ms
from headgate.fanout.model.states import ChunkStatus, FanoutStatus

# With fewer completions than this, nothing is foretold.
COMPLETIONS_MIN: Final = 5
POINTS_MAX: Final = 120
HISTORY_POINTS: Final = 60
# How far back a rate remembers, at least: what ended this long ago weighs about a third of what ends now.
MEMORY_SECONDS_MIN: Final = 60.0
ROUNDS: Final = 50
LANES_SIMULATED_MAX: Final = 500
CHUNKS_SIMULATED_MIN: Final = 400
CHUNKS_SIMULATED_MAX: Final = 1000
DURATIONS_MAX: Final = 500


class Point(Struct, frozen=True):
    """How many chunks had ended by a moment."""

    at_ms: int
    completed: int
    failed: int = 0

    @property
    def ended(self) -> int:
        """Chunks that had ended either way. The cancelled and the skipped tell nothing of how fast work goes."""
        return self.completed + self.failed


class Ring:
    """The latest points that someone who follows a fan-out has seen. A clock that is set back begins it anew."""

    def __init__(self, points: Iterable[Point] = (), *, capacity: int = POINTS_MAX) -> None:
        self._points: deque[Point] = deque(maxlen=capacity)
        for point in points:
            self.add(point)

    def add(self, point: Point) -> None:
        if self._points and point.at_ms < self._points[-1].at_ms:
            self._points.clear()
        if self._points and point.at_ms == self._points[-1].at_ms:
            self._points.pop()
        self._points.append(point)

    def points(self) -> list[Point]:
        """Return the points, the oldest first."""
        return list(self._points)


class Spread(Struct, frozen=True):
    """How long completed chunks took."""

    count: int
    mean_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float


class Estimate(Struct, frozen=True):
    """When the chunks of the main lane that are left will have ended, in seconds from now.

    `eta_seconds` is what is left by the rate of late; `p50_seconds` and `p90_seconds` bound it by what is likely with
    the durations that were seen and the workers that are busy now; `waves_seconds` is the plain sum of full waves of
    chunks of a middling duration. What cannot be said is None, and `unknown` says why.
    """

    remaining: int
    eta_seconds: float | None = None
    p50_seconds: float | None = None
    p90_seconds: float | None = None
    waves_seconds: float | None = None
    unknown: str | None = None


class Pace(Struct, frozen=True):
    """What an estimate goes by: how many chunks end in a second, and how long completed ones took."""

    ended_per_second: float | None
    durations_ms: Sequence[int]


def durations_of(chunks: Iterable[Chunk]) -> list[int]:
    """Return how long the completed ones among the chunks took, the shortest first."""
    return sorted(
        chunk.duration_ms for chunk in chunks if chunk.status is ChunkStatus.COMPLETED and chunk.duration_ms is not None
    )


def spread_of(durations_ms: Sequence[int]) -> Spread | None:
    """Return the percentiles of sorted durations, or None if there are none."""
    if not durations_ms:
        return None
    return Spread(
        count=len(durations_ms),
        mean_ms=fmean(durations_ms),
        p50_ms=percentile(durations_ms, 0.50),
        p95_ms=percentile(durations_ms, 0.95),
        p99_ms=percentile(durations_ms, 0.99),
        max_ms=float(durations_ms[-1]),
    )


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the value that `share` of the sorted values do not exceed, between neighbours in proportion."""
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def history(
    fanout: Fanout, counts: Counts, chunks: Sequence[Chunk], now_ms: int, *, size: int = HISTORY_POINTS
) -> list[Point]:
    """Return how the counts came to be what they are, as the rows of a sample tell it.

    So whoever looks for the first time knows a rate. Each row stands for as many as the sample leaves out; the last
    point is what the counts say.
    """
    until_ms = now_ms if fanout.finished_at is None else timestamp_ms(fanout.finished_at)
    began_ms = began_at_ms(fanout, chunks)
    last = Point(until_ms, counts.completed, counts.failed)
    if began_ms >= until_ms:
        return [last]
    completed = _ends_ms(chunks, ChunkStatus.COMPLETED)
    failed = _ends_ms(chunks, ChunkStatus.FAILED)
    points = []
    for step in range(size - 1):
        share = step / (size - 1)
        at_ms = began_ms + round(share * (until_ms - began_ms))
        ended = _share_by(completed, at_ms, share), _share_by(failed, at_ms, share)
        points.append(Point(at_ms, round(ended[0] * counts.completed), round(ended[1] * counts.failed)))
    return [*points, last]


def began_at_ms(fanout: Fanout, chunks: Iterable[Chunk]) -> int:
    """Return when work on a fan-out began, as far as its rows tell."""
    told = [fanout.started_at or "", *(chunk.started_at or "" for chunk in chunks)]
    moments = [timestamp_ms(text) for text in told if text]
    if moments:
        return min(moments)
    return timestamp_ms(fanout.created_at) if fanout.created_at else 0


def _ends_ms(chunks: Iterable[Chunk], status: ChunkStatus) -> list[int]:
    return sorted(timestamp_ms(chunk.completed_at) for chunk in chunks if chunk.status is status and chunk.completed_at)


def _share_by(ends_ms: Sequence[int], at_ms: int, elapsed: float) -> float:
    """Return which share of the ends was before a moment; without any, the share of the time."""
    return bisect_right(ends_ms, at_ms) / len(ends_ms) if ends_ms else elapsed


def rate_per_second(
    points: Sequence[Point], of: Callable[[Point], int], *, memory_seconds: float = MEMORY_SECONDS_MIN
) -> float | None:
    """Return how fast a count grows, what was lately weighing the most, or None with fewer than two moments.

    An exponentially weighted mean for points that are not evenly spaced: each stretch between two points weighs as
    much as the weight of its time, so that it does not matter how often someone looks.
    """
    if not points:
        return None
    weighed = total = 0.0
    now_ms = points[-1].at_ms
    for before, after in pairwise(points):
        seconds = (after.at_ms - before.at_ms) / 1000
        if seconds > 0:
            recent = math.exp((after.at_ms - now_ms) / 1000 / memory_seconds)
            weight = recent * -math.expm1(-seconds / memory_seconds)
            weighed += weight * max(0, of(after) - of(before)) / seconds
            total += weight
    return weighed / total if total > 0 else None


def rate_memory_seconds(points: Sequence[Point], spread: Spread | None) -> float:
    """Return how far back a rate should remember: over several chunks' durations, or a part of what is known."""
    span = (points[-1].at_ms - points[0].at_ms) / 1000 if points else 0.0
    duration = 0.0 if spread is None else spread.p50_ms / 1000
    return max(MEMORY_SECONDS_MIN, 2 * duration, span / 20)


def estimate(fanout: Fanout, counts: Counts, pace: Pace, *, seed: int = 0) -> Estimate:
    """Return when the chunks of the main lane that are left will have ended."""
    remaining = counts.open
    unknown = _unknown(fanout, counts)
    if unknown is not None or remaining == 0:
        ended = None if unknown is not None else 0.0
        return Estimate(remaining, ended, ended, ended, ended, unknown)
    eta = remaining / pace.ended_per_second if pace.ended_per_second else None
    tries = _tries_per_chunk(counts)
    attempts_per_second = None if pace.ended_per_second is None else pace.ended_per_second * tries
    lanes = _lanes(fanout, counts, attempts_per_second or 0.0, pace.durations_ms)
    if lanes == 0 or not pace.durations_ms:
        return Estimate(remaining, eta, unknown=None if eta is not None else "no chunk is running, and none has ended")
    spans = makespans_seconds(
        pace.durations_ms,
        pending=round(counts.pending * tries),
        running=counts.running,
        lanes=lanes,
        attempts_per_second=attempts_per_second,
        seed=seed,
    )
    waves = math.ceil(remaining * tries / lanes) * percentile(sorted(pace.durations_ms), 0.5) / 1000
    return Estimate(remaining, eta, percentile(spans, 0.5), percentile(spans, 0.9), waves)


def _unknown(fanout: Fanout, counts: Counts) -> str | None:
    """Return why nothing can be foretold, if so."""
    if fanout.status is FanoutStatus.SPLITTING:
        return "it is still being split"
    if fanout.paused_at is not None and not fanout.is_finished:
        return "it is paused"
    if counts.open and counts.completed < COMPLETIONS_MIN:
        return f"only {counts.completed} chunks are completed; it takes {COMPLETIONS_MIN} to tell"
    return None


def _lanes(fanout: Fanout, counts: Counts, attempts_per_second: float, durations_ms: Sequence[int]) -> int:
    """Return how many chunks are worked on at a time.

    Workers that take and end chunks many at a time may have none just when someone looks: then what they got done
    tells how many it must have been.
    """
    allowed = fanout.rules().concurrency
    seen = math.ceil(attempts_per_second * fmean(durations_ms) / 1000) if durations_ms else 0
    lanes = max(counts.running, seen)
    if allowed is None:
        return lanes
    return min(lanes, allowed) if lanes else allowed


def _tries_per_chunk(counts: Counts) -> float:
    ended = counts.completed + counts.failed
    return max(1.0, (counts.attempts - counts.running) / ended) if ended else 1.0


def makespans_seconds(
    durations_ms: Sequence[int],
    *,
    pending: int,
    running: int,
    lanes: int,
    attempts_per_second: float | None = None,
    rounds: int = ROUNDS,
    seed: int = 0,
) -> list[float]:
    """Return how long chunks that are left may take, the shortest first: one answer for each round of a simulation.

    Each round draws durations anew from those that were seen, and gives chunks to workers as they become free. Of a
    large fleet, a part is simulated with its part of the work; of much work, the last chunks, which decide the tail.
    """
    # Seeded, so that the same facts give the same answer to everyone who looks.
    draw = random.Random(seed)
    part = min(1.0, LANES_SIMULATED_MAX / lanes)
    lanes = min(lanes, LANES_SIMULATED_MAX)
    work = math.ceil(pending * part)
    # The tail decides: more than each lane has once adds cost and hardly any knowledge.
    last = min(work, max(CHUNKS_SIMULATED_MIN, lanes), CHUNKS_SIMULATED_MAX)
    between_ms = _between_ms(durations_ms, lanes / part, attempts_per_second)
    spans = []
    for _ in range(rounds):
        seen = draw.choices(durations_ms, k=min(len(durations_ms), DURATIONS_MAX))
        mean_ms = fmean(seen) + between_ms
        busy = [draw.choice(seen) * draw.random() for _ in range(min(lanes, round(running * part)))]
        busy += [0.0] * (lanes - len(busy))
        heapify(busy)
        for duration_ms in draw.choices(seen, k=last):
            heapreplace(busy, busy[0] + duration_ms + between_ms)
        spans.append(((work - last) * mean_ms / lanes + max(busy)) / 1000)
    return sorted(spans)


def _between_ms(durations_ms: Sequence[int], lanes: float, attempts_per_second: float | None) -> float:
    """Return for how long a worker is not at a chunk between two, judging by how few end for so many workers."""
    if not attempts_per_second:
        return 0.0
    return max(0.0, 1000 * lanes / attempts_per_second - fmean(durations_ms))
