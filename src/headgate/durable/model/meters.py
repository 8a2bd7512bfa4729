"""Execution meters: counts and times of the turns and activities of one process, for metrics.

They are taken on the step path, so an observation only joins a queue, which is counted as a whole. Names of workflows
and activities come from apps; beyond `NAMES_MAX` different ones, further names are counted together.
"""

from __future__ import annotations

import itertools
import threading
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Mapping
from functools import partial
from itertools import repeat
from typing import Final, TypeVar

from msgspec import Struct

NAMES_MAX: Final = 200
OTHER: Final = "other"
# In seconds: from less than a step to a day.
BOUNDS_SECONDS: Final = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0,
    7200.0, 86_400.0,
)  # fmt: skip

# What waits is counted when it is read, and after so many turns or attempts.
_COUNTED_EACH: Final = 512

# How an attempt ended.
SUCCEEDED: Final = "succeeded"
RETRIED: Final = "retried"
FAILED: Final = "failed"
TIMED_OUT: Final = "timed_out"
EXTERNAL: Final = "external"


class SecondsReading(Struct, frozen=True):
    """A histogram at one moment: the count of each bucket (not cumulative), and the sum."""

    counts: tuple[int, ...]
    sum_seconds: float

    def buckets(self) -> list[tuple[str, float]]:
        """Return cumulative buckets, as Prometheus expects them."""
        total, found = 0, []
        for bound, count in zip((*map(str, BOUNDS_SECONDS), "+Inf"), self.counts, strict=True):
            total += count
            found.append((bound, float(total)))
        return found


class _Seconds:
    """A histogram. Any thread may `add` seconds to it: they wait in a queue until they are counted as a whole."""

    __slots__ = ("_counting", "_counts", "_observed", "_sum_seconds", "add")

    def __init__(self) -> None:
        self._observed: deque[float] = deque()
        # A step adds four times, so that nothing lies between.
        self.add = self._observed.append
        self._counting = threading.Lock()
        self._counts = [0] * (len(BOUNDS_SECONDS) + 1)
        self._sum_seconds = 0.0

    def reading(self) -> SecondsReading:
        self.count()
        with self._counting:
            return SecondsReading(tuple(self._counts), self._sum_seconds)

    def count(self) -> None:
        """Count what waits."""
        with self._counting:
            observed = _taken(self._observed)
            # Without a loop in Python for each observation.
            for place, count in Counter(map(_bucket_of, observed)).items():
                self._counts[place] += count
            self._sum_seconds += sum(observed)


class _Named(dict[str, _Seconds]):
    """Histograms by name, of a bounded number."""

    def __missing__(self, name: str) -> _Seconds:
        if len(self) >= NAMES_MAX and name != OTHER:
            return self[OTHER]
        # In one step: another thread may make it too.
        return self.setdefault(name, _Seconds())

    def readings(self) -> dict[str, SecondsReading]:
        return {name: each.reading() for name, each in self.copy().items()}


class _Counts:
    """Counts by name and value, of a bounded number of names. Any thread may `add` a pair, as to `_Seconds`."""

    __slots__ = ("_counting", "_counts", "_observed", "add")

    def __init__(self) -> None:
        self._observed: deque[tuple[str, str]] = deque()
        self.add = self._observed.append
        self._counting = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()

    def reading(self) -> dict[tuple[str, str], int]:
        self.count()
        with self._counting:
            return dict(self._counts)

    def count(self) -> None:
        """Count what waits."""
        with self._counting:
            for (name, value), count in Counter(_taken(self._observed)).items():
                self._counts[_bounded(self._counts, name, value), value] += count


_bucket_of: Final = partial(bisect_left, BOUNDS_SECONDS)
T = TypeVar("T")


def _taken(observed: deque[T]) -> list[T]:
    """Remove and return what has been observed so far. Others may be adding."""
    # Without a loop in Python.
    return list(map(deque.popleft, repeat(observed, len(observed))))


class MeterReading(Struct, frozen=True, kw_only=True):
    """All meters at one moment, by workflow or activity."""

    turns: Mapping[str, SecondsReading]
    commits: SecondsReading
    starts: Mapping[str, SecondsReading]
    timer_lag: SecondsReading
    closed: Mapping[tuple[str, str], int]
    turns_failed: Mapping[str, int]
    turn_conflicts: int
    replays: Mapping[str, int]
    replayed_turns: int
    cache_hits: int
    cache_evictions: int
    activity_waits: Mapping[str, SecondsReading]
    activity_runs: Mapping[str, SecondsReading]
    attempts: Mapping[tuple[str, str], int]
    claims_lost: int
    leases_lost: int


class ExecutionMeters:
    """Meters of one process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._observed = itertools.count(1)
        self._turns = _Named()
        self._commits = _Seconds()
        self._starts = _Named()
        self._timer_lag = _Seconds()
        self._closed = _Counts()
        self._turns_failed: Counter[str] = Counter()
        self._turn_conflicts = 0
        self._replays: Counter[str] = Counter()
        self._replayed_turns = 0
        self._cache_hits = 0
        self._cache_misses = 0
        self._cache_evictions = 0
        self._waits = _Named()
        self._runs = _Named()
        self._attempts = _Counts()
        self._claims_lost = 0
        self._leases_lost = 0

    # Turns.

    def on_turn(self, workflow: str, seconds: float, *, was_cached: bool) -> None:
        """Count a turn that was computed in `seconds`, its replay included."""
        self._turns[workflow].add(seconds)
        if not was_cached:
            with self._lock:
                self._cache_misses += 1
        self._count_in_time()

    def on_commit(self, seconds: float) -> None:
        """Count a commit of one or more turns."""
        self._commits.add(seconds)

    def on_started(self, workflow: str, latency_seconds: float) -> None:
        """Count an execution whose code begins, so long after it was due."""
        self._starts[workflow].add(max(0.0, latency_seconds))

    def on_timer(self, lag_seconds: float) -> None:
        """Count a timer that fired, so long after it was due."""
        self._timer_lag.add(max(0.0, lag_seconds))

    def on_closed(self, workflow: str, status: str) -> None:
        """Count an execution that ended."""
        self._closed.add((workflow, status))

    def on_turn_failed(self, workflow: str) -> None:
        """Count a turn that could not be computed."""
        with self._lock:
            name = workflow if workflow in self._turns_failed or len(self._turns_failed) < NAMES_MAX else OTHER
            self._turns_failed[name] += 1

    def on_turn_conflict(self) -> None:
        """Count a turn that another worker has overtaken."""
        with self._lock:
            self._turn_conflicts += 1

    def on_replayed(self, workflow: str, turns: int) -> None:
        """Count an execution that was not in memory, and the turns that were replayed for it."""
        with self._lock:
            name = workflow if workflow in self._replays or len(self._replays) < NAMES_MAX else OTHER
            self._replays[name] += 1
            self._replayed_turns += turns

    def on_evicted(self) -> None:
        """Count an open execution that left memory."""
        with self._lock:
            self._cache_evictions += 1

    # Activities.

    def on_begun(self, activity: str, wait_seconds: float) -> None:
        """Count a first attempt that begins, so long after it was scheduled."""
        self._waits[activity].add(wait_seconds if wait_seconds > 0.0 else 0.0)

    def on_ran(self, activity: str, seconds: float) -> None:
        """Count an attempt that returned or raised after `seconds`."""
        self._runs[activity].add(seconds)

    def on_attempt(self, activity: str, outcome: str) -> None:
        """Count an attempt whose end is stored."""
        self._attempts.add((activity, outcome))
        self._count_in_time()

    def on_claim_lost(self) -> None:
        """Count an attempt whose result was refused, because another worker holds the claim."""
        with self._lock:
            self._claims_lost += 1

    def on_lease_lost(self) -> None:
        """Count a lease of this worker that expired."""
        with self._lock:
            self._leases_lost += 1

    def _count_in_time(self) -> None:
        """Count what waits, so that it stays little without a reader."""
        # Of one thread for every value: each number is given out once.
        if next(self._observed) % _COUNTED_EACH == 0:
            for each in (self._commits, self._timer_lag, self._closed, self._attempts):
                each.count()
            for named in (self._turns, self._starts, self._waits, self._runs):
                for each in named.copy().values():
                    each.count()

    def reading(self) -> MeterReading:
        """Return a copy of all meters."""
        turns = self._turns.readings()
        with self._lock:
            # A turn that ends right now may be counted already, or only its miss. Counts do not go down.
            hits = sum(sum(each.counts) for each in turns.values()) - self._cache_misses
            self._cache_hits = max(self._cache_hits, hits)
            return MeterReading(
                turns=turns,
                commits=self._commits.reading(),
                starts=self._starts.readings(),
                timer_lag=self._timer_lag.reading(),
                closed=self._closed.reading(),
                turns_failed=dict(self._turns_failed),
                turn_conflicts=self._turn_conflicts,
                replays=dict(self._replays),
                replayed_turns=self._replayed_turns,
                cache_hits=self._cache_hits,
                cache_evictions=self._cache_evictions,
                activity_waits=self._waits.readings(),
                activity_runs=self._runs.readings(),
                attempts=self._attempts.reading(),
                claims_lost=self._claims_lost,
                leases_lost=self._leases_lost,
            )


def _bounded(counts: Mapping[tuple[str, str], int], name: str, value: str) -> str:
    """Return the name to count under: `OTHER` for a new one if there are too many. `value` has few values."""
    if (name, value) in counts:
        return name
    return name if len({each for each, _ in counts} | {name}) <= NAMES_MAX else OTHER
