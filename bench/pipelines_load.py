"""Ten thousand pipelines: what they cost while nothing is due, while all wait, and in a tick of the watchdog."""

from __future__ import annotations

import statistics
from datetime import datetime, timedelta
from time import perf_counter, process_time, sleep

from bench.measure import Figure
from bench.pipelines_service import LANDED, Bench, define, load, pipeline, processor_share, running
from headgate.bootstrap.watchdog import build_watchdog
from headgate.clock import SystemClock
from headgate.durable.model.duration import Seconds
from headgate.pipelines.definition.model import Pipeline, Readiness, Rule, Schedule
from headgate.pipelines.runs.rows import Slot
from headgate.pipelines.watchdog.liveness_check import Lifecycle
from headgate.pipelines.watchdog.watchdog import Watchdog

COUNT = 10_000
IDLE_SHARE_MAX = 0.02
EVALUATING_SHARE_MAX = 0.15
INTERVAL_SECONDS = 300.0
_DUE = 100
_TICKS = 5
_QUIET_SHARE = 0.1
_DATE = "2026-03-03"


def figures() -> list[Figure]:
    return [*_idle(COUNT), _evaluating(120), *_ticks(COUNT)]


def _idle(count: int, seconds: float = 20.0) -> list[Figure]:
    """All are loaded, and none has anything to do for the next hours."""
    with running() as bench:
        started, used = perf_counter(), process_time()
        define(bench.store, _of_the_clock(count))
        _quiet(bench)
        loaded = f"loaded in {perf_counter() - started:.1f} s, {process_time() - used:.1f} s of a core"
        share = processor_share(seconds)
    return [
        Figure(
            f"processor of {count:,} pipelines that wait for their time",
            f"{share:.2%} of a core",
            f"<= {IDLE_SHARE_MAX:.0%}",
            share <= IDLE_SHARE_MAX,
            f"over {seconds:g} s",
            f"{loaded}; {load()}",
        )
    ]


def _of_the_clock(count: int) -> list[Pipeline]:
    """Return pipelines that are due once a day, half a day from now."""
    at = SystemClock().now() + timedelta(hours=12)
    schedule = Schedule(cron=f"{at.minute} {at.hour} * * *")
    return [pipeline(f"idle-{number:05d}", schedules=(schedule,)) for number in range(count)]


def _quiet(bench: Bench) -> None:
    """Wait until the clockwork has looked at every schedule, and nothing is left to do."""
    until = perf_counter() + 600
    while perf_counter() < until:
        if processor_share(2.0) < _QUIET_SHARE and bench.pipelines.cron_scheduler.has_pipelines:
            return
    raise TimeoutError("there is no rest")


def _evaluating(count: int, interval_seconds: float = 20.0, rounds: int = 2) -> Figure:
    """All are inside their window and are looked at again and again; the cost of one look is counted.

    None stays in memory between two looks, as none of ten thousand would.
    """
    with running(live_max=count // 2) as bench:
        names = [f"waiting-{number:04d}" for number in range(count)]
        rules = (Rule(key="orders", check="gte", field="count", value=10),)
        readiness = Readiness(rules=rules, interval=Seconds(interval_seconds), window=Seconds(3_600))
        define(bench.store, [pipeline(name, readiness=readiness) for name in names])
        bench.at_rest()
        for name in names:
            bench.pipelines.sensors.push(name, LANDED, {"date": _DATE})
        _all_wait(bench, names)
        looks, used, commits = _looks(bench, names), process_time(), bench.store.stats.commits
        sleep(rounds * interval_seconds)
        used, looked = process_time() - used, _looks(bench, names) - looks
        commits = bench.store.stats.commits - commits
    each_ms = 1000 * used / looked
    share = each_ms / 1000 * COUNT / INTERVAL_SECONDS
    return Figure(
        f"processor of {COUNT:,} pipelines that are looked at every 5 min",
        f"{share:.1%} of a core",
        f"<= {EVALUATING_SHARE_MAX:.0%}",
        share <= EVALUATING_SHARE_MAX,
        f"{looked} looks, {commits / looked:.1f} commits each",
        f"{each_ms:.1f} ms of a core a look x {COUNT / INTERVAL_SECONDS:.1f} a second; {load()}",
    )


def _all_wait(bench: Bench, names: list[str]) -> None:
    until = perf_counter() + 300
    while perf_counter() < until:
        if all(bench.pipelines.evaluations.ls(_slot(name), limit=1).evaluations for name in names):
            return
        sleep(0.5)
    raise TimeoutError("not all wait")


def _looks(bench: Bench, names: list[str]) -> int:
    return sum(len(bench.pipelines.evaluations.ls(_slot(name), limit=1000).evaluations) for name in names)


def _slot(name: str) -> Slot:
    return Slot(name, "stream", _DATE)


def _ticks(count: int) -> list[Figure]:
    """A tick costs by what is due, not by what exists."""
    few_ms, _ = _tick_costs(_DUE)
    many_ms, due_ms = _tick_costs(count)
    grown = many_ms / few_ms
    return [
        Figure(
            f"watchdog tick with nothing due, of {count:,} / of {_DUE} pipelines",
            f"{grown:.2f}",
            "<= 2.00",
            grown <= 2.0,
            f"{_TICKS} ticks",
            f"{many_ms:.1f} ms against {few_ms:.1f} ms of a core; {load()}",
        ),
        Figure(
            f"watchdog tick of {count:,} pipelines, {_DUE} due",
            f"{due_ms:.1f} ms of a core",
            "printed",
            reached=True,
            counted=f"{(due_ms - many_ms) / _DUE:.2f} ms for each that is due",
            notes=load(),
        ),
    ]


def _tick_costs(count: int) -> tuple[float, float]:
    """Return the milliseconds of a core for a tick with nothing due, and for one with a hundred."""
    now = SystemClock().now().replace(second=0, microsecond=0)
    soon, later = now + timedelta(hours=2), now + timedelta(hours=12)
    with running(work=False, loops=False) as bench:
        define(
            bench.store,
            [
                pipeline(f"watched-{number:05d}", schedules=(_daily(soon if number < _DUE else later),))
                for number in range(count)
            ],
        )
        watchdog = _watchdog(bench)
        # The first reads every definition and the changes that brought them, the second what the first has written.
        for minute in range(1, 4):
            watchdog.tick(now + timedelta(minutes=minute))
        idle = [_cost_ms(watchdog, now + timedelta(minutes=3 + minute)) for minute in range(1, _TICKS + 1)]
        due = _cost_ms(watchdog, soon + timedelta(hours=3))
    return statistics.median(idle), due


def _daily(at: datetime) -> Schedule:
    return Schedule(cron=f"{at.minute} {at.hour} * * *")


def _watchdog(bench: Bench) -> Watchdog:
    service = bench.pipelines
    lifecycle = Lifecycle(is_open=lambda _: False, orchestrate=service.orchestrator, end_job=service.jobs.end_job)
    return build_watchdog(service, lifecycle)


def _cost_ms(watchdog: Watchdog, now: datetime) -> float:
    used = process_time()
    report = watchdog.tick(now)
    assert not report.is_degraded, report.failed
    return (process_time() - used) * 1000
