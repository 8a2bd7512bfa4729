"""What metrics and spans cost: serial steps and a hundred executions with both on, against the same with both off."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import headgate as hg
from bench.measure import Figure, ratio
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
                figures = [
                    _figure("serial steps", 1, 1_000, (start_plain, bare), (start_observed, ours)),
                    _figure("100 executions at once", 100, 20, (start_plain, bare), (start_observed, ours)),
                ]
        finally:
            tracing.close()
    return figures


def _figure(
    name: str, executions: int, steps: int, plain: tuple[Start, SqliteStore], observed: tuple[Start, SqliteStore]
) -> Figure:
    def work(start: Start) -> int:
        handles = [start(steps) for _ in range(executions)]
        for handle in handles:
            handle.result(600)
        return executions * steps

    before = [store.stats.commits for _, store in (plain, observed)]

    def counted() -> str:
        operations = (ROUNDS + 1) * executions * steps
        commits = [
            (store.stats.commits - first) / operations
            for first, (_, store) in zip(before, (plain, observed), strict=True)
        ]
        return f"{commits[0]:.3f} commits a step off, {commits[1]:.3f} on"

    return ratio(
        f"{name}, metrics and spans on / off",
        yardstick=lambda _: work(plain[0]),
        subject=lambda _: work(observed[0]),
        goal=GOAL,
        counted=counted,
        rounds=ROUNDS,
    )
