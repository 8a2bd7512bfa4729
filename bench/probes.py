"""Probes: a thousand that ten thousand pipelines read are looked at once an interval, and what that costs."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from time import process_time, sleep

from bench.measure import Figure
from bench.pipelines_service import define, load, pipeline, running
from headgate.clock import SystemClock
from headgate.durable.bus.egress_policy import Destinations
from headgate.durable.model.duration import Seconds
from headgate.file_roots import file_roots
from headgate.pipelines.definition.model import Readiness, Rule
from headgate.pipelines.probes.catalog import ProbeCatalog
from headgate.pipelines.probes.definitions import LoadedProbe, LoadedProbes
from headgate.pipelines.probes.endpoints import DatabaseHosts
from headgate.pipelines.probes.files import FileLooks
from headgate.pipelines.probes.http import HttpLooks
from headgate.pipelines.probes.model import FilesProbe, Probe, ProbeResult
from headgate.pipelines.probes.poller import ProbePoller, ProbeThread
from headgate.pipelines.probes.results import ProbeResults
from headgate.pipelines.probes.runner import ProbeRunner
from headgate.pipelines.probes.sql import SqlLooks
from headgate.pipelines.probes.tables import TableLooks
from headgate.triggers.http.client import TriggerHttpClient
from headgate.triggers.secret_sources import SecretSources

PIPELINES = 10_000
PROBES = 1_000
INTERVAL_SECONDS = 30.0
_INTERVALS = 2


def run() -> list[Figure]:
    """Return every figure of this group."""
    clock = SystemClock()
    with TemporaryDirectory() as folder, running() as bench:
        (Path(folder) / "data").write_text("x")
        probes = [
            Probe(id=f"probe-{number:04d}", every=Seconds(INTERVAL_SECONDS), files=FilesProbe(path="data"))
            for number in range(PROBES)
        ]
        readers = [
            pipeline(
                f"reader-{number:05d}", readiness=Readiness(rules=(Rule(key=f"probe:probe-{number % PROBES:04d}"),))
            )
            for number in range(PIPELINES)
        ]
        define(bench.store, readers)
        bench.at_rest()
        counted: list[str] = []
        lock = Lock()

        def observe(probe: Probe, result: ProbeResult) -> None:
            assert result.seen, result.reason
            with lock:
                counted.append(probe.id)

        catalog = ProbeCatalog()
        catalog.replace(LoadedProbes(probes=tuple(LoadedProbe(probe=each, source="-", line=1) for each in probes)))
        results = ProbeResults(bench.store, clock, bench.pipelines.sensors)
        thread = ProbeThread(ProbePoller(clock, catalog, _runner(folder), results, name="bench", observe=observe))
        thread.start()
        # The first looks come early, and each probe then takes its place in the interval.
        sleep(INTERVAL_SECONDS + 5)
        counted.clear()
        used = process_time()
        sleep(_INTERVALS * INTERVAL_SECONDS)
        used = process_time() - used
        looks = len(counted)
        thread.stop()
    an_interval = looks / _INTERVALS
    return [
        Figure(
            f"looks an interval of {PROBES:,} probes that {PIPELINES:,} pipelines read",
            f"{an_interval:,.0f}",
            f"<= {PROBES * 1.02:,.0f}",
            PROBES * 0.98 <= an_interval <= PROBES * 1.02,
            f"{looks:,} looks in {_INTERVALS} intervals of {INTERVAL_SECONDS:g} s",
            f"{1000 * used / max(1, looks):.1f} ms of a core a look, "
            f"{used / (_INTERVALS * INTERVAL_SECONDS):.1%} of a core; {load()}",
        )
    ]


def _runner(folder: str) -> ProbeRunner:
    clock, files, destinations = SystemClock(), file_roots([folder]), Destinations()
    return ProbeRunner(
        clock,
        SecretSources({}),
        sql=SqlLooks(clock, files, DatabaseHosts(destinations)),
        files=FileLooks(files),
        tables=TableLooks(files),
        http=HttpLooks(TriggerHttpClient(clock, destinations)),
    )
