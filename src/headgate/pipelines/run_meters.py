"""Run meters: counts and times of runs, verdicts and events, taken from the change stream, for metrics.

The stream delivers a change at least once, and one server of several receives it. Sums over all servers are therefore
right, up to changes that were delivered twice around a crash. No label names a pipeline: there may be very many.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from headgate.errors import CorruptionError
from headgate.pipelines.enums import RunStatus
from headgate.pipelines.runs.rows import Run, run_of
from headgate.store.model.requests import Change

# Bounds in seconds: of short steps of the engine, of waits and jobs, and of the time left before a deadline.
FAST_BOUNDS: Final = (0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)
LONG_BOUNDS: Final = (0.05, 0.25, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3_600.0, 14_400.0, 43_200.0, 86_400.0)
MARGIN_BOUNDS: Final = (-86_400.0, -14_400.0, -3_600.0, -900.0, -60.0, 0.0, 60.0, 900.0, 3_600.0, 14_400.0, 86_400.0)
_PIPELINE: Final = "PIPELINE#"


class Tally(Struct, frozen=True):
    """A histogram: counts per bucket (not cumulative) and the sum of its values in seconds."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum_seconds: float

    def buckets(self) -> Sequence[tuple[str, float]]:
        """Return cumulative buckets, as Prometheus expects them."""
        names = [*(str(bound) for bound in self.bounds), "+Inf"]
        return [(name, float(sum(self.counts[: place + 1]))) for place, name in enumerate(names)]


class _Histogram:
    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum_seconds = 0.0

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum_seconds += seconds

    def tally(self) -> Tally:
        return Tally(self._bounds, tuple(self._counts), self._sum_seconds)


class MeterReading(Struct, frozen=True, kw_only=True):
    """The values of all meters at one time."""

    runs: Mapping[str, int]
    events: Mapping[str, int]
    verdicts: Mapping[tuple[str, str], int]
    readiness_wait: Tally
    trigger: Tally
    start: Tally
    job: Tally
    sla_margin: Tally


class RunMeters:
    """Counts what the change stream reports. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: Counter[str] = Counter()
        self._events: Counter[str] = Counter()
        self._verdicts: Counter[tuple[str, str]] = Counter()
        self._readiness_wait = _Histogram(LONG_BOUNDS)
        self._trigger = _Histogram(FAST_BOUNDS)
        self._start = _Histogram(LONG_BOUNDS)
        self._job = _Histogram(LONG_BOUNDS)
        self._sla_margin = _Histogram(MARGIN_BOUNDS)

    def on_change(self, change: Change) -> None:
        """Count a change of the pipelines table. Rows of other kinds count nothing."""
        item = change.new
        if item is None or not str(change.key.partition).startswith(_PIPELINE):
            return
        sort = str(change.key.sort)
        if sort.startswith("RUN#"):
            self._on_run(item, change.old)
        elif sort.startswith("EXPECT#") and change.old is None and "verdict" in item:
            self._on_verdict(item)
        elif sort.startswith("EVENT#") and change.old is None:
            with self._lock:
                self._events[str(item.get("name", ""))] += 1

    def _on_run(self, item: Mapping[str, Any], before: Mapping[str, Any] | None) -> None:
        if before is not None and before.get("status") == item.get("status"):
            return
        try:
            run = run_of(item)
        except CorruptionError:
            # The router reports it.
            return
        with self._lock:
            self._runs[run.status.value] += 1
            if run.status is RunStatus.TRIGGERING:
                self._readiness_wait.add(_seconds(run.created_at_ms, run.triggered_at_ms))
            elif run.status is RunStatus.RUNNING:
                self._on_started(run)
            elif run.duration_ms is not None and before is not None and not _is_ended(before):
                self._job.add(run.duration_ms / 1000)

    def _on_started(self, run: Run) -> None:
        started_at_ms = run.started_at_ms or run.updated_at_ms
        self._trigger.add(_seconds(run.triggered_at_ms or started_at_ms, started_at_ms))
        self._start.add(_seconds(run.sensor_arrival_at_ms or run.created_at_ms, started_at_ms))

    def _on_verdict(self, item: Mapping[str, Any]) -> None:
        kind, margin = str(item.get("kind", "")), item.get("margin_seconds")
        with self._lock:
            self._verdicts[kind, str(item["verdict"])] += 1
            if kind.endswith("-sla") and isinstance(margin, int | float):
                self._sla_margin.add(float(margin))

    def reading(self) -> MeterReading:
        """Return the current values."""
        with self._lock:
            return MeterReading(
                runs=dict(self._runs),
                events=dict(self._events),
                verdicts=dict(self._verdicts),
                readiness_wait=self._readiness_wait.tally(),
                trigger=self._trigger.tally(),
                start=self._start.tally(),
                job=self._job.tally(),
                sla_margin=self._sla_margin.tally(),
            )


def _seconds(from_ms: int, to_ms: int | None) -> float:
    return 0.0 if to_ms is None else max(0, to_ms - from_ms) / 1000


def _is_ended(item: Mapping[str, Any]) -> bool:
    return item.get("status") in (RunStatus.COMPLETED_MONITORING.value, RunStatus.COMPLETED.value)
