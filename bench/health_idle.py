"""What a server costs while nothing happens, with 10,000 datasets whose freshness SLO has a timer each.

Each dataset has reported once and promises a report a day, so that timers become due now and then and move on. The
yardstick is the same server on an empty home. CPU of the server and of its children counts, watchdog included.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import sleep

from bench.health_server import Running, address_of
from bench.health_signals import opened
from bench.measure import Figure
from headgate.health.model.datasets import DatasetSpec, FreshnessSlo, Slos
from headgate.health.model.enums import FRESHNESS, SignalState
from headgate.health.model.signals import ANY_VERSION, SignalUpdate, SignalValue
from headgate.health.model.timestamps import instant
from headgate.health.service import HealthService
from headgate.health.signals.writer import BATCH_MAX

DATASETS = 10_000
SHARE_MAX = 0.01
SETTLE_SECONDS, SECONDS = 20.0, 40.0
_DAY_MS = 86_400_000
_THREADS = 16


def run(datasets: int = DATASETS, settle_seconds: float = SETTLE_SECONDS, seconds: float = SECONDS) -> list[Figure]:
    """Return the share of a core that an idle server takes."""
    with TemporaryDirectory(prefix="headgate-bench-") as folder:
        full, empty = Path(folder) / "full", Path(folder) / "empty"
        with opened(full) as (health, _):
            _register(health, datasets)
        shares = {}
        for home in (empty, full):
            with _serving(home) as server:
                sleep(settle_seconds)
                before = server.cpu_seconds()
                sleep(seconds)
                shares[home] = (server.cpu_seconds() - before) / seconds
    return [
        Figure(
            f"idle with {datasets:,} datasets that have a freshness timer",
            f"{shares[full]:.2%} of a core",
            f"< {SHARE_MAX:.0%}",
            shares[full] < SHARE_MAX,
            f"on an empty home {shares[empty]:.2%}",
            f"server and children, in {seconds:g} s",
        )
    ]


def _register(health: HealthService, datasets: int) -> None:
    spec = DatasetSpec(
        owner_team="team-a",
        slos=Slos(freshness=FreshnessSlo(max_delay_seconds=86_400.0, warning_delay_seconds=43_200.0)),
    )
    urns = [f"urn:dp:bench:idle{number:05d}:v1" for number in range(datasets)]
    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(lambda urn: health.registry.create(urn, spec, actor="bench"), urns))
    now_ms = int(1000 * health.clock.seconds())
    for start in range(0, datasets, BATCH_MAX):
        # Spread over half a day, so that timers are due at different times.
        ends = [instant(now_ms - number * _DAY_MS // 2 // datasets) for number in range(start, start + BATCH_MAX)]
        updates = [
            SignalUpdate(
                dataset_urn=urn,
                signal_type=FRESHNESS,
                value=SignalValue(state=SignalState.OK, score=1.0, window_start=end, window_end=end),
                expected_version=ANY_VERSION,
            )
            for urn, end in zip(urns[start:], ends, strict=False)
        ]
        assert all(each.is_success for each in health.signals.update_many(updates))


@contextmanager
def _serving(home: Path) -> Iterator[Running]:
    """Give a server as the program starts it, with its watchdog."""
    program = str(Path(sys.executable).with_name("headgate"))
    command = [program, "up", "--home", str(home), "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            words = dict(word.partition("=")[::2] for word in process.stdout.readline().split() if "=" in word)
            yield Running(address_of(words["http"]), address_of(words["grpc"]), process.pid)
        finally:
            process.terminate()
            process.wait()
