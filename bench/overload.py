"""Overload: each API, and all at once, asked for ten times what the server can do.

The yardstick is the peak of the same run: what the server answers to 64 connections that send again as soon as they
have an answer. Then requests are due at ten times that rate whether the server keeps up or not, and afterwards at a
tenth of it. Latencies count from when a request was due. A request that is due while all 1,000 connections wait for an
answer is not sent, and counts as unanswered. The load generator is compiled (`open_load.c`); the share of a core that
it took is printed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple
from urllib.request import Request, urlopen

from bench.measure import Figure

SOURCE: Final = Path(__file__).with_name("open_load.c")
URN: Final = "urn:dp:orders:created:v1"
SIGNAL: Final = {
    "state": "OK", "score": 1.0, "slo_threshold": 0.9, "window_type": "TUMBLING_5MIN",
    "window_start": "2026-01-15T09:55:00Z", "window_end": "2026-01-15T10:00:00Z",
    "metrics": {"evidence_count": 1, "pass_count": 1, "fail_count": 0},
}  # fmt: skip
ROUNDS: Final = 5
SECONDS: Final = 2.5
TIMES: Final = 10
CLOSED_CONNECTIONS: Final = 64
OPEN_CONNECTIONS: Final = 1_000
GOODPUT_MIN: Final = 0.8
ACCEPTED_MS_MAX: Final = 250.0
SHED_MS_MAX: Final = 100.0
# How long after the end of the overload the server has to be back to normal.
BACK_SECONDS: Final = 2.0


class Load(NamedTuple):
    """What the generator saw."""

    accepted_per_second: float
    accepted_p99_ms: float
    shed: int
    shed_p99_ms: float
    other: int
    unanswered: int
    generator_share: float


class Round(NamedTuple):
    """Peak, overload and the time after it."""

    peak: Load
    over: Load
    after: Load

    @property
    def goodput(self) -> float:
        """The share of the peak that is still answered under overload."""
        return self.over.accepted_per_second / self.peak.accepted_per_second


def run() -> list[Figure]:
    """Return two figures for each API and for all at once."""
    if shutil.which("cc") is None:
        return [Figure("overload", "not measured", "", reached=False, notes="no C compiler for bench/open_load.c")]
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as folder:
        generator = Path(folder) / "open_load"
        subprocess.run(["cc", "-O2", "-o", str(generator), str(SOURCE)], check=True)
        kinds = {"Connect reads": [_connect], "REST reads": [_rest], "REST writes": [_write], "GraphQL": [_graphql]}
        kinds["all at once"] = [each for (each,) in kinds.values()]
        figures = []
        for name, asked in kinds.items():
            rounds = [_round(Path(folder), generator, number, asked) for number in range(ROUNDS)]
            figures += _figures(name, rounds)
        return figures


def _round(folder: Path, generator: Path, number: int, asked: Sequence[Any]) -> Round:
    with _serving(folder / f"home-{number}-{time.monotonic_ns()}") as port:
        requests = b"".join(b"%d\n%s" % (len(text), text) for text in (each(port) for each in asked))

        def load(rate: float, connections: int) -> Load:
            command = [str(generator), str(port), f"{rate:.0f}", f"{SECONDS:g}", str(connections)]
            ended = subprocess.run(command, input=requests, capture_output=True, check=True)
            return _load(json.loads(ended.stdout))

        load(200, CLOSED_CONNECTIONS)
        peak = load(1_000_000, CLOSED_CONNECTIONS)
        over = load(TIMES * peak.accepted_per_second, OPEN_CONNECTIONS)
        time.sleep(BACK_SECONDS)
        return Round(peak, over, load(peak.accepted_per_second / TIMES, CLOSED_CONNECTIONS))


def _load(seen: dict[str, Any]) -> Load:
    answered = seen["accepted"] + seen["shed"] + seen["limited"] + seen["other"]
    return Load(
        accepted_per_second=seen["accepted"] / SECONDS,
        accepted_p99_ms=seen["accepted_p99_ms"],
        shed=seen["shed"] + seen["limited"],
        shed_p99_ms=seen["shed_p99_ms"],
        other=seen["other"] + seen["broken"] + seen["without_retry_after"],
        unanswered=int(seen["due"]) - answered,
        generator_share=seen["own_cpu_share"],
    )


def _figures(name: str, rounds: Sequence[Round]) -> list[Figure]:
    goodput = median(each.goodput for each in rounds)
    accepted = median(each.over.accepted_p99_ms for each in rounds)
    shed = median(each.over.shed_p99_ms for each in rounds)
    after = median(each.after.accepted_p99_ms for each in rounds)
    peak = median(each.peak.accepted_per_second for each in rounds)
    due = median(TIMES * each.peak.accepted_per_second for each in rounds)
    unanswered = median(each.over.unanswered / (SECONDS * TIMES * each.peak.accepted_per_second) for each in rounds)
    share = median(each.over.generator_share for each in rounds)
    others = sum(each.over.other for each in rounds)
    return [
        Figure(
            f"overload, {name}: goodput at {due:,.0f}/s asked",
            f"{goodput:.2f} of the peak of {peak:,.0f}/s",
            f">= {GOODPUT_MIN:g}",
            goodput >= GOODPUT_MIN,
            f"{unanswered:.0%} had no free connection or no answer in time; {others} other answers",
            f"load generator {share:.2f} of a core",
            [each.goodput for each in rounds],
        ),
        Figure(
            f"overload, {name}: p99 of accepted, of refused, accepted after",
            f"{accepted:.0f} ms, {shed:.0f} ms, {after:.0f} ms",
            f"<= {ACCEPTED_MS_MAX:g}, {SHED_MS_MAX:g}, {ACCEPTED_MS_MAX:g} ms",
            accepted <= ACCEPTED_MS_MAX and shed <= SHED_MS_MAX and after <= ACCEPTED_MS_MAX,
        ),
    ]


@contextmanager
def _serving(home: Path) -> Iterator[int]:
    program = str(Path(sys.executable).with_name("headgate"))
    command = [program, "up", "--home", str(home), "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline().split("http=http://127.0.0.1:")[1].split()[0])
        _send(port, "POST", "/api/v1/datasets", {"dataset_urn": URN, "owner_team": "team-a"})
        _send(port, "PUT", f"/api/v1/datasets/{URN}/signals/FRESHNESS", SIGNAL)
        yield port
    finally:
        server.terminate()
        server.wait()


def _send(port: int, method: str, path: str, body: dict[str, Any]) -> None:
    headers = {"content-type": "application/json"}
    request = Request(f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(), headers, method=method)
    urlopen(request).close()


def _http(port: int, method: str, path: str, body: dict[str, Any] | None = None) -> bytes:
    content = b"" if body is None else json.dumps(body).encode()
    fields = f"content-type: application/json\r\ncontent-length: {len(content)}\r\n" if content else ""
    return f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n{fields}\r\n".encode() + content


def _connect(port: int) -> bytes:
    path = "/observability.statestore.v1.SignalStateService/GetSignalState"
    return _http(port, "POST", path, {"dataset_urn": URN, "signal_type": "FRESHNESS"})


def _rest(port: int) -> bytes:
    return _http(port, "GET", f"/api/v1/datasets/{URN}/signals/FRESHNESS")


def _write(port: int) -> bytes:
    return _http(port, "PUT", f"/api/v1/datasets/{URN}/signals/FRESHNESS", SIGNAL)


def _graphql(port: int) -> bytes:
    return _http(port, "POST", "/graphql", {"query": f'{{ dataset(urn: "{URN}") {{ urn tier }} }}'})
