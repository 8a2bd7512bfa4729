"""Estimates: throughput, durations, and the remaining time of a fan-out.

Pure functions of counts and rows that were read: the same input always gives the same result.
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

# Minimum of completions for an estimate.
COMPLETIONS_MIN: Final = 5
POINTS_MAX: Final = 120
HISTORY_POINTS: Final = 60
# Minimum time constant of the rate: a completion this long ago has about a third of the weight.
MEMORY_SECONDS_MIN: Final = 60.0
ROUNDS: Final = 50
LANES_SIMULATED_MAX: Final = 500
CHUNKS_SIMULATED_MIN: Final = 400
CHUNKS_SIMULATED_MAX: Final = 1000
DURATIONS_MAX: Final = 500


class Point(Struct, frozen=True):
    """The number of ended chunks at a time."""

    at_ms: int
    completed: int
    failed: int = 0

    @property
    def ended(self) -> int:
        """Completed and failed chunks. Cancelled and skipped ones say nothing about throughput."""
        return self.completed + self.failed


class Ring:
    """The latest points seen by a follower. It restarts if the clock is set back."""

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
        """Return the points, oldest first."""
        return list(self._points)


class Spread(Struct, frozen=True):
    """Percentiles of the durations of completed chunks."""

    count: int
    mean_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float


class Estimate(Struct, frozen=True):
    """The remaining time of the main lane, in seconds from now.

    `eta_seconds` extrapolates the recent rate. `p50_seconds` and `p90_seconds` come from a simulation with the observed
    durations and the current number of workers. `waves_seconds` is the number of full waves times the median duration.
    Unknown values are None, and `unknown` is the reason.
    """

    remaining: int
    eta_seconds: float | None = None
    p50_seconds: float | None = None
    p90_seconds: float | None = None
    waves_seconds: float | None = None
    unknown: str | None = None


class Pace(Struct, frozen=True):
    """The input of an estimate: chunks ended per second, and durations of completed ones."""

    ended_per_second: float | None
    durations_ms: Sequence[int]


def durations_of(chunks: Iterable[Chunk]) -> list[int]:
    """Return the durations of completed chunks, shortest first."""
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
    """Return the interpolated percentile of sorted values."""
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def history(
    fanout: Fanout, counts: Counts, chunks: Sequence[Chunk], now_ms: int, *, size: int = HISTORY_POINTS
) -> list[Point]:
    """Return past points reconstructed from the times in sampled rows, so that a first look has a rate.

    Each row is weighted for the rows that the sample leaves out; the last point is that of the counts.
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
    """Return when work on a fan-out began, according to its rows."""
    times = [fanout.started_at or "", *(chunk.started_at or "" for chunk in chunks)]
    moments = [timestamp_ms(text) for text in times if text]
    if moments:
        return min(moments)
    return timestamp_ms(fanout.created_at) if fanout.created_at else 0


def _ends_ms(chunks: Iterable[Chunk], status: ChunkStatus) -> list[int]:
    return sorted(timestamp_ms(chunk.completed_at) for chunk in chunks if chunk.status is status and chunk.completed_at)


def _share_by(ends_ms: Sequence[int], at_ms: int, elapsed: float) -> float:
    """Return the share of ends before a time; without any ends, the share of the elapsed time."""
    return bisect_right(ends_ms, at_ms) / len(ends_ms) if ends_ms else elapsed


def rate_per_second(
    points: Sequence[Point], of: Callable[[Point], int], *, memory_seconds: float = MEMORY_SECONDS_MIN
) -> float | None:
    """Return the exponentially weighted rate of a count, or None with fewer than two points.

    Points may be unevenly spaced: each interval is weighted by its time, so that the polling frequency has no effect.
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
    """Return the time constant of the rate: several chunk durations, bounded by the known history."""
    span = (points[-1].at_ms - points[0].at_ms) / 1000 if points else 0.0
    duration = 0.0 if spread is None else spread.p50_ms / 1000
    return max(MEMORY_SECONDS_MIN, 2 * duration, span / 20)


def estimate(fanout: Fanout, counts: Counts, pace: Pace, *, seed: int = 0) -> Estimate:
    """Return the estimate of the remaining time of the main lane."""
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
    """Return why no estimate is possible, or None."""
    if fanout.status is FanoutStatus.SPLITTING:
        return "it is still being split"
    if fanout.paused_at is not None and not fanout.is_finished:
        return "it is paused"
    if counts.open and counts.completed < COMPLETIONS_MIN:
        return f"only {counts.completed} chunks are completed; an estimate needs {COMPLETIONS_MIN}"
    return None


def _lanes(fanout: Fanout, counts: Counts, attempts_per_second: float, durations_ms: Sequence[int]) -> int:
    """Return the number of chunks that run at a time.

    Workers that claim and finish chunks in batches may have none running at the moment; the throughput then gives it.
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
    """Return simulated remaining times, shortest first, one per round.

    Each round draws durations from the observed ones and assigns chunks to workers as they become free. Of a large
    fleet, a fraction is simulated with its share of the work; of much work, the last chunks, which decide the tail.
    """
    # Seeded, so that the same input gives the same estimate.
    draw = random.Random(seed)
    part = min(1.0, LANES_SIMULATED_MAX / lanes)
    lanes = min(lanes, LANES_SIMULATED_MAX)
    work = math.ceil(pending * part)
    # The tail decides: more chunks per lane cost time and hardly change the result.
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
    """Return the idle time of a worker between two chunks, derived from the throughput per worker."""
    if not attempts_per_second:
        return 0.0
    return max(0.0, 1000 * lanes / attempts_per_second - fmean(durations_ms))
