"""Estimates: throughput, durations, and the remaining time of a fan-out.

Pure functions of counts and rows that were read: the same input always gives the same result.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Final

from msgspec import Struct

from headgate.fanout.insight.makespans import LaneWork, makespans_seconds, percentile
from headgate.fanout.model.counts import Counts
from headgate.fanout.model.rows import MAIN_LANE, Chunk, Fanout, Policy, slow_timeout, timestamp_ms
from headgate.fanout.model.states import ChunkStatus, FanoutStatus

# Minimum of completions for an estimate.
COMPLETIONS_MIN: Final = 3
# The band: percentiles of the simulation, and by how much it is wider, since workers are not always equally fast.
BAND: Final = (0.05, 0.95)
MARGIN: Final = 0.1
SECONDS_MIN: Final = 1.0
# Without a running chunk for this long, or three times the longest chunk, no worker takes the chunks.
IDLE_SECONDS: Final = 15.0
# A chunk that runs this many times longer than any other, and at least this long, is hung.
HUNG_FACTOR: Final = 3.0
HUNG_SECONDS_MIN: Final = 10.0
# Workers claim chunks in batches if they are shorter than this.
SHORT_SECONDS: Final = 0.5
# An en dash: "4-7 min" with the dash of ranges.
_DASH: Final = "\u2013"
_UNITS: Final = ((1, "s"), (60, "min"), (3600, "h"), (86_400, "d"))
# The largest number in a unit; 120 s, then 3 min.
_UNIT_MAX: Final = 120
POINTS_MAX: Final = 120
HISTORY_POINTS: Final = 60
# Minimum time constant of the rate: a completion this long ago has about a third of the weight.
MEMORY_SECONDS_MIN: Final = 60.0


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


class LaneEstimate(Struct, frozen=True):
    """The remaining time of a lane, as `Estimate`."""

    lane: str
    remaining: int
    low_seconds: float | None
    high_seconds: float | None
    text: str
    unknown: str | None = None


class Estimate(Struct, frozen=True):
    """The remaining time of a fan-out, in seconds from now.

    `low_seconds` and `high_seconds` are the 5th and 95th percentile of a simulation with the observed durations, the
    running times of running chunks and the current number of workers; `eta_seconds` is its median. The lanes run side
    by side, each with workers of its own. Unknown values are None, and `unknown` is the reason. `text` is the same for
    people: "4 to 7 min" with a dash, or "unknown: …".
    """

    remaining: int
    eta_seconds: float | None
    low_seconds: float | None
    high_seconds: float | None
    text: str
    unknown: str | None = None
    lanes: list[LaneEstimate] = []


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


def estimate(fanout: Fanout, lanes: Sequence[LaneWork], *, seed: int = 0) -> Estimate:
    """Return the estimate of the remaining time of a fan-out."""
    is_open = [work for work in lanes if work.open + work.expected]
    remaining = sum(work.open for work in is_open)
    reason = _held(fanout)
    if not is_open and (reason is None or fanout.is_finished):
        return Estimate(0, 0.0, 0.0, 0.0, "nothing")
    if reason is not None:
        return Estimate(remaining, None, None, None, f"unknown: {reason}", reason)
    policy = fanout.rules()
    spans = {work.lane: _lane_spans(work, policy, seed) for work in is_open}
    found = [_lane_estimate(work, spans[work.lane]) for work in is_open]
    unknown = next((lane for lane in found if lane.unknown is not None), None)
    if unknown is not None:
        known = "".join(f" ({lane.lane} lane {lane.text})" for lane in found if lane.unknown is None)
        return Estimate(remaining, None, None, None, f"{unknown.text}{known}", unknown.unknown, found)
    # Each span is a sorted simulation: the lanes end independently of each other, and the last one counts.
    middle = max(percentile(span, 0.5) for span in spans.values() if not isinstance(span, str))
    low = max(lane.low_seconds or 0.0 for lane in found)
    high = max(lane.high_seconds or 0.0 for lane in found)
    return Estimate(remaining, min(max(middle, low), high), low, high, band_text(low, high), None, found)


def _lane_estimate(work: LaneWork, spans: Sequence[float] | str) -> LaneEstimate:
    if isinstance(spans, str):
        return LaneEstimate(work.lane, work.open, None, None, f"unknown: {spans}", spans)
    low = (1 - MARGIN) * percentile(spans, BAND[0])
    high = max(SECONDS_MIN, (1 + MARGIN) * percentile(spans, BAND[1]), _overdue_ms(work) / 1000)
    return LaneEstimate(work.lane, work.open, low, high, band_text(low, high))


def _lane_spans(work: LaneWork, policy: Policy, seed: int) -> Sequence[float] | str:
    """Return simulated remaining times of a lane, shortest first, or why there are none."""
    unknown = _too_little(work)
    if unknown is not None:
        return unknown
    timeout_seconds = policy.timeout_seconds if work.lane == MAIN_LANE else slow_timeout(policy)
    workers = _workers(work, policy)
    hung = _hung(work, workers, timeout_seconds)
    if hung is not None:
        return hung
    return makespans_seconds(work, lanes=workers, policy=policy, timeout_seconds=timeout_seconds, seed=seed)


def _held(fanout: Fanout) -> str | None:
    """Return why the fan-out as a whole has no estimate, or None."""
    if fanout.is_finished:
        return None
    if fanout.status is FanoutStatus.SPLITTING:
        return "it is still being split"
    if fanout.cancelled_at is not None:
        return "it is being cancelled"
    return "it is paused" if fanout.paused_at is not None else None


def _too_little(work: LaneWork) -> str | None:
    """Return why the remaining time of a lane cannot be estimated, or None."""
    where = "" if work.lane == MAIN_LANE else f" of the {work.lane} lane"
    longest = work.durations_ms[-1] / 1000 if work.durations_ms else 0.0
    is_idle = not work.running and 0 < work.pending != work.retrying
    if is_idle and work.idle_seconds > max(IDLE_SECONDS, 3 * longest):
        return f"no chunk{where} is running: no worker takes them"
    if work.completed < COMPLETIONS_MIN:
        return f"{work.completed} chunks{where} are completed; an estimate needs {COMPLETIONS_MIN}"
    if not work.durations_ms:
        return f"no completed chunk{where} that was read has a duration"
    return None


def _hung(work: LaneWork, workers: int, timeout_seconds: float) -> str | None:
    """Return why a hung chunk leaves the end unknown, or None.

    A chunk that has outlived all others several times over tells nothing about its own end. It does not matter while
    the other chunks take longer than that.
    """
    longest_ms = work.durations_ms[-1]
    limit_ms = max(HUNG_FACTOR * longest_ms, 1000 * HUNG_SECONDS_MIN)
    hung_ms = [age for age in work.ages_ms if age > limit_ms]
    if not hung_ms:
        return None
    free = workers - len(hung_ms)
    rest_ms = (work.pending + work.expected) * fmean(work.durations_ms) / free if free > 0 else 0.0
    if rest_ms > max(hung_ms):
        return None
    return (
        f"{work.oldest_chunk_id or 'a chunk'} has been running for {time_text(max(hung_ms) / 1000)}, and the others "
        f"took at most {time_text(longest_ms / 1000)}; its time-out is {time_text(timeout_seconds)}"
    )


def _overdue_ms(work: LaneWork) -> int:
    """Return the running time of the oldest chunk that has outlived all completed ones, or 0.

    Such a chunk may need as long again as it has been running.
    """
    return max((age for age in work.ages_ms if age > work.durations_ms[-1]), default=0)


def _workers(work: LaneWork, policy: Policy) -> int:
    """Return the number of chunks that run at a time.

    Workers that claim and finish short chunks in batches may have none running at the moment; the throughput then
    gives it.
    """
    mean_ms = fmean(work.durations_ms)
    seen = math.ceil((work.attempts_per_second or 0.0) * mean_ms / 1000)
    lanes = max(1, work.running)
    if not work.running or mean_ms < 1000 * SHORT_SECONDS:
        lanes = max(lanes, seen)
    return lanes if policy.concurrency is None else max(1, min(lanes, policy.concurrency))


def band_text(low_seconds: float, high_seconds: float) -> str:
    """Return a band in the unit that fits its upper end, rounded outwards: "under 5 s", "about 2 h"."""
    size, unit = next((unit for unit in _UNITS if high_seconds <= _UNIT_MAX * unit[0]), _UNITS[-1])
    low, high = math.floor(low_seconds / size), max(1, math.ceil(high_seconds / size))
    if low == 0:
        return f"under {high} {unit}"
    return f"about {high} {unit}" if low >= high else f"{low}{_DASH}{high} {unit}"


def time_text(seconds: float) -> str:
    """Return a duration in the unit that fits it: "70 s", "15 min"."""
    if seconds < 1:
        return f"{max(1, round(1000 * seconds))} ms"
    size, unit = next((unit for unit in _UNITS if seconds <= _UNIT_MAX * unit[0]), _UNITS[-1])
    return f"{seconds / size:.3g} {unit}"
