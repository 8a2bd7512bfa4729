"""Serving processes: reads and writes of signals a second with one process and with several, beside a bare server.

64 connections send again as soon as they have an answer. One process and several are loaded by turns, five times, each
on the same store; one process is the server as it is by default, with its intake. The load generator is compiled and
runs on the same machine: the cores that it and the server took are printed, because on a machine with few cores they
are what limits the rates.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from bench import bare_server
from bench.health_client import PACKAGE, request
from bench.health_rows import Sizes, filled, signal_at, sizes
from bench.health_server import serving
from bench.measure import Figure
from bench.overload import SOURCES
from headgate.serve.rpc.statestore import proto as pb
from headgate.serve.runtime.process_count import available_cores

SCALE: Final = 0.05
ROUNDS: Final = 5
SECONDS: Final = 3.0
WARM_SECONDS: Final = 2.0
CONNECTIONS: Final = 64
# More than is answered in a round, so that no write repeats another.
WRITES: Final = 40_000
_RATE: Final = 1_000_000
# How far the windows of one load are after those of the load before it.
_WINDOWS_MS: Final = 1_000


class Load(NamedTuple):
    """What one load showed."""

    per_second: float
    p99_ms: float
    # Refused because the machine was busy, and failed.
    shed: int
    failed: int
    generator_cores: float
    server_cores: float


def run(rounds: int = ROUNDS, seconds: float = SECONDS) -> list[Figure]:
    """Return a figure for reads and one for writes."""
    several = max(2, available_cores())
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as folder, filled(SCALE) as home:
        generator = Path(folder) / "open_load"
        try:
            subprocess.run(["cc", "-O2", "-o", str(generator), str(SOURCES / "open_load.c")], check=True)
        except (FileNotFoundError, subprocess.CalledProcessError):
            notes = "bench/open_load.c needs a C compiler"
            return [Figure("serving processes", "not measured", "", reached=False, notes=notes)]
        found: dict[str, dict[int, list[Load]]] = {"reads": {}, "writes": {}}
        bare: list[Load] = []
        windows = itertools.count(int(1000 * time.time()), _WINDOWS_MS)
        for number in range(rounds):
            # Which goes first alternates.
            for processes in (1, several) if number % 2 else (several, 1):
                for kind, load in _loads(home, generator, processes, seconds, windows):
                    found[kind].setdefault(processes, []).append(load)
            bare.append(_bare(generator, seconds))
        return [_figure(kind, found[kind][1], found[kind][several], bare, several) for kind in found]


def _loads(
    home: Path, generator: Path, processes: int, seconds: float, windows: Iterator[int]
) -> Iterator[tuple[str, Load]]:
    size = sizes(SCALE)
    environ = {"HEADGATE_SERVE_PROCESSES": str(processes)}
    with serving(home, "up", environ=environ) as server:
        for kind in ("reads", "writes"):
            warm, measured = (_reads(size) if kind == "reads" else _writes(size, next(windows)) for _ in range(2))
            # An intake comes up under load, and caches fill.
            _load(generator, server.http.port, warm, WARM_SECONDS)
            before, began = server.cpu_seconds(), time.monotonic()
            load = _load(generator, server.http.port, measured, seconds)
            cores = (server.cpu_seconds() - before) / (time.monotonic() - began)
            yield kind, load._replace(server_cores=cores)


def _bare(generator: Path, seconds: float) -> Load:
    with bare_server.serving() as address:
        return _load(generator, address.port, [request("/", b"x" * 60)], seconds)


def _load(generator: Path, port: int, requests: Sequence[bytes], seconds: float) -> Load:
    command = [str(generator), str(port), str(_RATE), f"{seconds:g}", str(CONNECTIONS)]
    content = b"".join(b"%d\n%s" % (len(each), each) for each in requests)
    seen = json.loads(subprocess.run(command, input=content, capture_output=True, check=True).stdout)
    shed, failed = seen["shed"] + seen["limited"], seen["other"] + seen["broken"]
    return Load(seen["accepted"] / seconds, seen["accepted_p99_ms"], shed, failed, seen["own_cpu_share"], 0.0)


def _reads(size: Sizes) -> list[bytes]:
    made = []
    for place in range(0, size.signals, max(1, size.signals // 1_000)):
        dataset_urn, signal_type = signal_at(place)
        message = pb.GetSignalStateRequest(dataset_urn=dataset_urn, signal_type=signal_type)
        made.append(request(f"{PACKAGE}SignalStateService/GetSignalState", message.SerializeToString()))
    return made


def _writes(size: Sizes, began_ms: int) -> list[bytes]:
    """Return refreshes of signals, each of a later window than the ones before it."""
    made = []
    for number in range(WRITES):
        dataset_urn, signal_type = signal_at(number % size.signals)
        message = pb.UpdateSignalStateRequest(dataset_urn=dataset_urn, signal_type=signal_type, expected_version=-1)
        value = message.state
        value.state, value.score, value.slo_threshold, value.window_type = "OK", 0.999, 0.995, "TUMBLING_5MIN"
        value.window_start.FromMilliseconds(began_ms - 300_000)
        value.window_end.FromMilliseconds(began_ms + number // size.signals)
        made.append(request(f"{PACKAGE}SignalStateService/UpdateSignalState", message.SerializeToString()))
    return made


def _figure(kind: str, one: Sequence[Load], several: Sequence[Load], bare: Sequence[Load], processes: int) -> Figure:
    ratios = [theirs.per_second / ours.per_second for ours, theirs in zip(one, several, strict=True)]
    shares = [theirs.per_second / each.per_second for theirs, each in zip(several, bare, strict=True)]
    shed, failed = (sum(getattr(each, name) for each in (*one, *several)) for name in ("shed", "failed"))
    return Figure(
        f"signals, {kind} a second: {processes} serving processes beside one",
        f"{median(ratios):.2f}",
        "printed, none failed",
        failed == 0,
        f"{_rate(several)} with {processes}, {_rate(one)} with one, {_rate(bare)} by a bare server "
        f"({median(shares):.2f} of it)",
        f"rounds {min(ratios):.2f} to {max(ratios):.2f}; cores used: server {_cores(several)} and {_cores(one)}, load "
        f"generator {median(each.generator_cores for each in several):.2f}, of {os.cpu_count() or 1}; "
        f"{shed} refused, {failed} failed",
        ratios,
    )


def _rate(loads: Sequence[Load]) -> str:
    middle, p99_ms = median(each.per_second for each in loads), median(each.p99_ms for each in loads)
    return f"{middle:,.0f}/s (p99 {p99_ms:.1f} ms)"


def _cores(loads: Sequence[Load]) -> str:
    return f"{median(each.server_cores for each in loads):.2f}"
