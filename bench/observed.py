"""What metrics and spans cost: serial steps and a hundred executions with both on, against the same with both off."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Any, Final

import headgate as hg
from bench.measure import Figure
from bench.rows import open_at
from headgate.clock import SystemClock
from headgate.durable.model.meters import ExecutionMeters
from headgate.durable.service import Service
from headgate.serve import process
from headgate.store.blobs.folder import FolderBlobs
from headgate.store.keyring import Keyring
from headgate.store.sqlite.store import SqliteStore
from headgate.telemetry import Tracing

ROUNDS: Final = 5
# Parts of a round, by turns.
SLICES: Final = 10
GOAL: Final = 0.95
# Accepts everything, in a process of its own, as a collector does.
_SINK: Final = """
import http.server

class Sink(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()
    def log_message(self, *_):
        pass

server = http.server.HTTPServer(("127.0.0.1", 0), Sink)
print(server.server_port, flush=True)
server.serve_forever()
"""

Start = Callable[[int], Any]


def _app(name: str) -> tuple[hg.App, Start]:
    app = hg.App(name)

    @app.activity
    def step(number: int) -> int:
        return number

    @app.workflow
    async def serial(steps: int) -> int:
        total = 0
        for number in range(steps):
            total += await step(number)
        return total

    return app, serial.start


@contextmanager
def _at_work(
    app: hg.App, meters: ExecutionMeters | None, tracing: Tracing | None
) -> Iterator[tuple[Service, SqliteStore]]:
    clock = SystemClock()
    with TemporaryDirectory(prefix="headgate-bench-") as folder:
        home = Path(folder)
        store = open_at(home, clock)
        keyring = Keyring.open(home / "keys.json", clock)
        blobs = FolderBlobs(home / "blobs")
        service = Service(app, store, clock, keyring, blobs, meters=meters, tracing=tracing)
        service.start()
        try:
            yield service, store
        finally:
            service.stop()
            store.close()


@contextmanager
def _collector() -> Iterator[str]:
    sink = subprocess.Popen([sys.executable, "-c", _SINK], stdout=subprocess.PIPE, text=True)
    assert sink.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(sink.stdout.readline())}"
    finally:
        sink.terminate()
        sink.wait()
        sink.stdout.close()


def run() -> list[Figure]:
    """Return the figures."""
    plain, start_plain = _app("plain")
    observed, start_observed = _app("observed")
    with _collector() as endpoint:
        tracing = Tracing.start(service_name="bench", otlp_endpoint=endpoint)
        meters = ExecutionMeters()
        try:
            with _at_work(plain, None, None) as (_, bare), _at_work(observed, meters, tracing) as (_, ours):
                process.freeze_heap()
                sides = _Side(start_plain, bare), _Side(start_observed, ours)
                figures = [
                    _figure("serial steps", 1, 100, *sides),
                    _figure("100 executions at once", 100, 5, *sides),
                ]
        finally:
            tracing.close()
    return figures


class _Side:
    """One of both: what it took in a round, by the wall clock and in CPU time of the process."""

    def __init__(self, start: Start, store: SqliteStore) -> None:
        self._start = start
        self.store = store
        self.commits_before = store.stats.commits
        self.wall = self.cpu = 0.0

    def work(self, executions: int, steps: int) -> None:
        wall, cpu = perf_counter(), process_time()
        handles = [self._start(steps) for _ in range(executions)]
        for handle in handles:
            handle.result(600)
        self.wall += perf_counter() - wall
        self.cpu += process_time() - cpu


def _figure(name: str, executions: int, steps: int, plain: _Side, observed: _Side) -> Figure:
    """Compare both in slices by turns: what else the machine does is the same for both."""
    sides = (plain, observed)
    for side in sides:
        side.work(executions, steps)
        side.commits_before = side.store.stats.commits
    walls, cpus, rates = [], [], []
    for number in range(ROUNDS):
        for side in sides:
            side.wall = side.cpu = 0.0
        for place in range(SLICES):
            for side in sides if (number + place) % 2 else sides[::-1]:
                side.work(executions, steps)
        walls.append(plain.wall / observed.wall)
        cpus.append(plain.cpu / observed.cpu)
        rates.append([SLICES * executions * steps / side.wall for side in sides])
    operations = ROUNDS * SLICES * executions * steps
    commits = [(side.store.stats.commits - side.commits_before) / operations for side in sides]
    off, on = (statistics.median(column) for column in zip(*rates, strict=True))
    middle = statistics.median(walls)
    return Figure(
        f"{name}, metrics and spans on / off",
        f"{middle:.2f}",
        f">= {GOAL:.2f}",
        middle >= GOAL,
        f"{commits[0]:.3f} commits a step off, {commits[1]:.3f} on",
        f"{on:,.0f}/s against {off:,.0f}/s; rounds {min(walls):.2f} to {max(walls):.2f}; "
        f"by CPU time {statistics.median(cpus):.2f}",
        walls,
    )
