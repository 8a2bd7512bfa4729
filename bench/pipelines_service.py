"""Pipelines at work in this process: the store, a worker and the loops, with jobs that note when they were started."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from tempfile import TemporaryDirectory
from time import perf_counter, process_time, sleep
from typing import Any

import headgate as hg
from headgate.bootstrap.store import AppService, open_store
from headgate.clock import SystemClock
from headgate.pipelines.background_threads import PipelineLoops
from headgate.pipelines.catalog.rows import StoredPipeline, change_writes, moment_text
from headgate.pipelines.definition.model import Pipeline, Readiness, Rule, Schedule, SensorTrigger, TriggerSpec
from headgate.pipelines.service import PipelineService
from headgate.settings import Settings
from headgate.store.model.conditions import absent
from headgate.store.port import Store
from headgate.store.resilience.guarded_store import AnyStore
from headgate.triggers.contract import JobState, PollResult, Started, TriggerOrder, completed

LANDED = "landed"
ORDERS = "orders"
SETTLE_SECONDS_MAX = 120.0
_LOOK_SECONDS = 0.02
_BATCH = 500


class Jobs:
    """Jobs that are done when they are started. `started_at` has when each was, by pipeline and date."""

    def __init__(self) -> None:
        self.started_at: dict[tuple[str, str], float] = {}
        self._changed = threading.Condition()

    def start(self, order: TriggerOrder) -> Started:
        now = perf_counter()
        with self._changed:
            self.started_at.setdefault((order.pipeline, order.date), now)
            self._changed.notify_all()
        return completed(f"job-{order.key}")

    def poll(self, order: TriggerOrder, metadata: Mapping[str, str]) -> PollResult:
        del order, metadata
        return PollResult(JobState.SUCCEEDED)

    def cancel(self, order: TriggerOrder, metadata: Mapping[str, str]) -> None:
        del order, metadata

    def wait_for(self, count: int, seconds_max: float) -> None:
        """Return once so many jobs were started. Raises `TimeoutError`."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.started_at) >= count, seconds_max):
                raise TimeoutError(f"{len(self.started_at)} of {count} jobs were started within {seconds_max:g} s")


class Bench:
    """What one benchmark works with."""

    def __init__(self, app: hg.App, service: AppService, store: AnyStore, pipelines: PipelineService) -> None:
        self.app = app
        self.service = service
        self.store = store
        self.pipelines = pipelines
        self.jobs: Jobs = pipelines.trigger  # type: ignore[assignment]  # it was given one

    def at_rest(self) -> None:
        """Return once nothing was committed for half a second."""
        until = perf_counter() + SETTLE_SECONDS_MAX
        while perf_counter() < until:
            commits = self.store.stats.commits
            sleep(0.5)
            if self.store.stats.commits == commits:
                return
        raise TimeoutError(f"there is no rest within {SETTLE_SECONDS_MAX:g} s")


@contextmanager
def running(*, work: bool = True, loops: bool = True, live_max: int | None = None) -> Iterator[Bench]:
    """Give pipelines at work on a store in a folder of its own, power-safe.

    With `live_max`, no more executions than this stay in memory, as if there were very many others.
    """
    clock = SystemClock()
    app = hg.App("bench-pipelines")
    with TemporaryDirectory(prefix="headgate-bench-") as home:
        opened = open_store(Settings.load({}, None, {"home": home}), clock)
        with closing(opened.store):
            service = AppService(app, opened, clock)
            pipelines = PipelineService(opened.store, clock, service.ids, service.bus, service.asl, Jobs())
            pipelines.register({"EvaluatorFunctionArn": _nothing, "sla_monitor_arn": _no_sla}, reads_are_local=True)
            looping = PipelineLoops(pipelines)
            if work:
                _start(service, live_max)
            if loops:
                looping.start()
            try:
                yield Bench(app, service, opened.store, pipelines)
            finally:
                if loops:
                    looping.stop()
                service.stop()
                app.bind(None, None)


def _start(service: AppService, live_max: int | None) -> None:
    service.start()
    threads = service._threads
    assert threads is not None, "it has just begun"
    if live_max is not None:
        # It is no setting: users have no reason to change it.
        threads._worker.engine._live_max = live_max


def _nothing(_: dict[str, Any]) -> dict[str, Any]:
    return {}


def _no_sla(_: dict[str, Any]) -> dict[str, Any]:
    return {"warningAt": "", "breachAt": ""}


def pipeline(name: str, **fields: Any) -> Pipeline:  # noqa: ANN401 - the fields of a definition
    """Return a pipeline that a sensor begins and that waits for ten orders."""
    given: dict[str, Any] = {
        "schedules": (Schedule(sensor=SensorTrigger(key=LANDED)),),
        "readiness": Readiness(rules=(Rule(key=ORDERS, check="gte", field="count", value=10),)),
        "trigger": TriggerSpec(type="bench"),
        **fields,
    }
    return Pipeline(id=name, **given)


def define(store: Store, pipelines: Iterable[Pipeline]) -> None:
    """Define new pipelines, many to a commit: how fast definitions come is not what is measured here."""
    at = moment_text(SystemClock().now())
    every = [
        change_writes(StoredPipeline(pipeline=each, version=1, digest=each.id, by="bench", at=at), "", None, absent())
        for each in pipelines
    ]
    for start in range(0, len(every), _BATCH):
        for refusal in store.transact_many(every[start : start + _BATCH]):
            if refusal is not None:
                raise refusal


def dates(count: int) -> list[str]:
    """Return so many days, all long over."""
    return [f"{2000 + n // 336}-{1 + n // 28 % 12:02d}-{1 + n % 28:02d}" for n in range(count)]


def processor_share(seconds: float) -> float:
    """Return which share of a core this process uses in the next seconds."""
    started, used = perf_counter(), process_time()
    sleep(seconds)
    return (process_time() - used) / (perf_counter() - started)


def load() -> str:
    """Return how busy the machine is, for a reader who wonders about a figure."""
    return f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"


def percentile(samples: list[float], share: float) -> float:
    """Return the sample that this share of the others does not exceed."""
    return sorted(samples)[int(share * (len(samples) - 1))]
