"""From what begins a run to its job: how long that takes for one, and how many are begun in a minute."""

from __future__ import annotations

import sqlite3
import statistics
from collections.abc import Callable
from time import perf_counter, process_time

from bench.measure import Figure
from bench.pipelines_service import LANDED, ORDERS, Bench, dates, define, load, percentile, pipeline, running
from bench.rows import ROWS, open_raw, row
from headgate.pipelines.runs.rows import Slot

P50_MS = 20.0
P99_MS = 100.0
PER_MINUTE = 1_000
_JOB_SECONDS_MAX = 60.0
# A run is over and put away once nothing was committed for so long.
_QUIET_SECONDS = 0.03


def figures() -> list[Figure]:
    return [*_latencies(200), _crowd(300)]


def trigger_to_start(count: int) -> list[float]:
    """Return how many milliseconds it took from a sensor that is handed over to its job, one after the other."""
    with running() as bench:
        return _sensors(bench, count)[0]


def _latencies(count: int) -> list[Figure]:
    with running() as bench, open_raw() as bare:
        raw: list[float] = []
        starts, acks, commits = _sensors(bench, count, also=lambda number: raw.append(_raw_ms(bare, number)))
        created = _created(bench, starts)
        used = process_time()
        markers = _markers(bench, count // 2)
        each_ms = (process_time() - used) * 1000 / (count // 2)
    bare_ms = statistics.median(raw)
    note = f"accepted p50 {statistics.median(acks):.1f} ms, run created p50 {created:.1f} ms; "
    note += f"as long as {percentile(starts, 0.5) / bare_ms:.0f} raw transactions of {bare_ms:.2f} ms; {load()}"
    counted = f"{commits:.0f} commits on the way"
    return [
        _within("sensor accepted to job started, p50", starts, 0.50, P50_MS, counted, note),
        _within("sensor accepted to job started, p99", starts, 0.99, P99_MS, f"{count} starts", load()),
        _within(
            "marker accepted to job started, p50", markers, 0.50, P50_MS, f"{each_ms:.1f} ms of a core a run", load()
        ),
        _within("marker accepted to job started, p99", markers, 0.99, P99_MS, f"{count // 2} starts", load()),
    ]


def _within(name: str, samples: list[float], share: float, goal_ms: float, counted: str, notes: str) -> Figure:
    value = percentile(samples, share)
    return Figure(name, f"{value:.1f} ms", f"<= {goal_ms:g} ms", value <= goal_ms, counted, notes, samples)


def _raw_ms(connection: sqlite3.Connection, number: int) -> float:
    """Return how many milliseconds one transaction of bare SQLite takes now, to see what the machine is like."""
    started = perf_counter()
    connection.execute(ROWS.upsert, row(number))
    return (perf_counter() - started) * 1000


def _sensors(
    bench: Bench, count: int, also: Callable[[int], object] = lambda _: None
) -> tuple[list[float], list[float], float]:
    """Push sensors one after the other; return milliseconds to the job and to the answer, and commits on the way.

    `also` is called between two of them.
    """
    _ready(bench, "silver")
    starts, acks, commits = [], [], []
    for number, date in enumerate(dates(count + 10)):
        before = bench.store.stats.commits
        pushed = perf_counter()
        bench.pipelines.sensors.push("silver", LANDED, {"date": date})
        accepted = perf_counter()
        bench.jobs.wait_for(number + 1, _JOB_SECONDS_MAX)
        if number >= 10:  # The first ones warm up.
            commits.append(bench.store.stats.commits - before)
            starts.append((bench.jobs.started_at["silver", date] - pushed) * 1000)
            acks.append((accepted - pushed) * 1000)
        _rest(bench, "silver", date)
        also(number)
    return starts, acks, statistics.median(commits)


def _markers(bench: Bench, count: int) -> list[float]:
    _ready(bench, "gold")
    known, starts = len(bench.jobs.started_at), []
    for number, date in enumerate(dates(count)):
        put = perf_counter()
        bench.pipelines.stores.markers.put(Slot("gold", "stream", date), source="bench")
        bench.jobs.wait_for(known + number + 1, _JOB_SECONDS_MAX)
        starts.append((bench.jobs.started_at["gold", date] - put) * 1000)
        _rest(bench, "gold", date)
    return starts


def _ready(bench: Bench, name: str) -> None:
    bench.pipelines.definitions.put(pipeline(name), "", "bench")
    bench.pipelines.sensors.push(name, ORDERS, {"count": 12}, is_for_all=True)
    bench.at_rest()


def _rest(bench: Bench, name: str, date: str) -> None:
    """Wait until the run is over, so that the next finds nothing in its way."""
    slot = Slot(name, "stream", date)
    until = perf_counter() + _JOB_SECONDS_MAX
    while perf_counter() < until:
        seen = bench.store.generation()
        log = bench.pipelines.stores.runs.log(slot)
        is_over = log is not None and log.status.is_done
        is_free = bench.pipelines.stores.locks.find(f"eval:{name}:stream:{date}") is None
        # Letting go of the lock is not the last that is committed.
        if bench.store.wait(seen, _QUIET_SECONDS if is_over and is_free else 1.0) == seen and is_over and is_free:
            return
    raise TimeoutError(f"{slot} is not over")


def _created(bench: Bench, starts: list[float]) -> float:
    """Return how many milliseconds after its sensor a run was created, by the clock of the rows, at the median."""
    runs = bench.pipelines.stores.runs.ls("silver", limit=len(starts)).runs
    spans = [run.created_at_ms - run.sensor_arrival_at_ms for run in runs if run.sensor_arrival_at_ms is not None]
    return statistics.median(spans)


def _crowd(count: int) -> Figure:
    """All become ready at once: the last job says how long the crowd took."""
    names = [f"crowd-{number:04d}" for number in range(count)]
    with running() as bench:
        define(bench.store, [pipeline(name) for name in names])
        for name in names:
            bench.pipelines.sensors.push(name, ORDERS, {"count": 12}, is_for_all=True)
        bench.at_rest()
        used, started = process_time(), perf_counter()
        for name in names:
            bench.pipelines.sensors.push(name, LANDED, {"date": "2026-03-03"})
        bench.jobs.wait_for(count, 600.0)
        seconds = max(bench.jobs.started_at.values()) - started
        share = (process_time() - used) / seconds
    per_minute = 60 * count / seconds
    notes = f"{count} took {seconds:.1f} s with {share:.2f} of a core; {load()}"
    return Figure(
        "pipelines that become ready at once and start, in a minute",
        f"{per_minute:,.0f}",
        f">= {PER_MINUTE:,}",
        per_minute >= PER_MINUTE,
        f"{count} pipelines",
        notes,
    )
