"""Overload: each API, and all at once, asked for ten times what the server can do.

The yardstick is the peak of the same run: what the server answers to 64 connections that send again as soon as they
have an answer. Then requests are due at ten times that rate whether the server keeps up or not, and afterwards at a
tenth of it. Latencies count from when a request was due. A request that is due while all 1,000 connections wait for an
answer is not sent, and counts as unanswered. gRPC has 500 calls in progress, on 10 connections: refusing a call costs
its library as much as answering it, so that more calls only wait longer. The load generators are compiled
(`open_load.c`, `open_load_grpc.c`); the share of a core that they took is printed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple
from urllib.request import Request, urlopen

from google.protobuf.json_format import ParseDict

from bench.measure import Figure
from headgate.serve.rpc.statestore import proto as pb

SOURCES: Final = Path(__file__).parent
URN: Final = "urn:dp:orders:created:v1"
SIGNALS: Final = "/observability.statestore.v1.SignalStateService"
SIGNAL: Final[dict[str, Any]] = {
    "state": "OK", "score": 1.0, "slo_threshold": 0.9, "window_type": "TUMBLING_5MIN",
    "window_start": "2026-01-15T09:55:00Z", "window_end": "2026-01-15T10:00:00Z",
    "metrics": {"evidence_count": 1, "pass_count": 1, "fail_count": 0},
}  # fmt: skip
ROUNDS: Final = 5
SECONDS: Final = 2.5
TIMES: Final = 10
CLOSED_CONNECTIONS: Final = 64
OPEN_CONNECTIONS: Final = 1_000
# Connections, and calls in progress on each.
GRPC_CLOSED: Final = (4, 16)
GRPC_OPEN: Final = (10, 50)
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


class _Api(NamedTuple):
    """An API and the requests made to it."""

    name: str
    # Each returns a request to the server at a port, as the generator reads it.
    requests: Sequence[Callable[[int], bytes]]
    is_grpc: bool = False


def run() -> list[Figure]:
    """Return two figures for each API, and for all of HTTP at once."""
    apis = [
        _Api("Connect reads", [_connect]),
        _Api("REST reads", [_rest]),
        _Api("REST writes", [_write]),
        _Api("GraphQL", [_graphql]),
    ]
    everything = _Api("all at once", [each for api in apis for each in api.requests])
    return [*_measured([*apis, everything], "open_load"), *run_grpc()]


def run_grpc() -> list[Figure]:
    """Return two figures for reads and for writes over gRPC."""
    apis = [_Api("gRPC reads", [_grpc_read], is_grpc=True), _Api("gRPC writes", [_grpc_write], is_grpc=True)]
    return _measured(apis, "open_load_grpc", "-lnghttp2")


def _measured(apis: Sequence[_Api], program: str, *libraries: str) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as folder:
        generator = Path(folder) / program
        try:
            command = ["cc", "-O2", "-o", str(generator), str(SOURCES / f"{program}.c"), *libraries]
            subprocess.run(command, check=True)
        except (FileNotFoundError, subprocess.CalledProcessError):
            needs = "a C compiler and Debian's libnghttp2-dev" if libraries else "a C compiler"
            notes = f"bench/{program}.c needs {needs}"
            return [Figure(f"overload, {each.name}", "not measured", "", reached=False, notes=notes) for each in apis]
        figures = []
        for api in apis:
            rounds = [_round(Path(folder), generator, number, api) for number in range(ROUNDS)]
            figures += _figures(api.name, rounds)
        return figures


def _round(folder: Path, generator: Path, number: int, api: _Api) -> Round:
    with _serving(folder / f"home-{number}-{time.monotonic_ns()}") as ports:
        port = ports.grpc if api.is_grpc else ports.http
        texts = [each(port) for each in api.requests]
        requests = b"".join(b"%d\n%s" % (len(text), text) for text in texts)

        def load(rate: float, places: Sequence[int]) -> Load:
            command = [str(generator), str(port), f"{rate:.0f}", f"{SECONDS:g}", *map(str, places)]
            ended = subprocess.run(command, input=requests, capture_output=True, check=True)
            return _load(json.loads(ended.stdout))

        few, many = (GRPC_CLOSED, GRPC_OPEN) if api.is_grpc else ((CLOSED_CONNECTIONS,), (OPEN_CONNECTIONS,))
        load(200, few)
        peak = load(1_000_000, few)
        over = load(TIMES * peak.accepted_per_second, many)
        time.sleep(BACK_SECONDS)
        return Round(peak, over, load(peak.accepted_per_second / TIMES, few))


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
            f"{accepted:.0f} ms, {'none refused' if shed < 0 else f'{shed:.0f} ms'}, {after:.0f} ms",
            f"<= {ACCEPTED_MS_MAX:g}, {SHED_MS_MAX:g}, {ACCEPTED_MS_MAX:g} ms",
            accepted <= ACCEPTED_MS_MAX and shed <= SHED_MS_MAX and after <= ACCEPTED_MS_MAX,
        ),
    ]


class _Ports(NamedTuple):
    http: int
    grpc: int


@contextmanager
def _serving(home: Path) -> Iterator[_Ports]:
    program = str(Path(sys.executable).with_name("headgate"))
    command = [program, "up", "--home", str(home), "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert server.stdout is not None
        announced = server.stdout.readline()
        http, grpc = (int(announced.split(f"{key}127.0.0.1:")[1].split()[0]) for key in ("http=http://", "grpc="))
        _send(http, "POST", "/api/v1/datasets", {"dataset_urn": URN, "owner_team": "team-a"})
        _send(http, "PUT", f"/api/v1/datasets/{URN}/signals/FRESHNESS", SIGNAL)
        yield _Ports(http, grpc)
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
    return _http(port, "POST", f"{SIGNALS}/GetSignalState", {"dataset_urn": URN, "signal_type": "FRESHNESS"})


def _rest(port: int) -> bytes:
    return _http(port, "GET", f"/api/v1/datasets/{URN}/signals/FRESHNESS")


def _write(port: int) -> bytes:
    return _http(port, "PUT", f"/api/v1/datasets/{URN}/signals/FRESHNESS", SIGNAL)


def _graphql(port: int) -> bytes:
    return _http(port, "POST", "/graphql", {"query": f'{{ dataset(urn: "{URN}") {{ urn tier }} }}'})


def _grpc_read(_port: int) -> bytes:
    message = pb.GetSignalStateRequest(dataset_urn=URN, signal_type="FRESHNESS")
    return f"{SIGNALS}/GetSignalState\n".encode() + message.SerializeToString()


def _grpc_write(_port: int) -> bytes:
    state = {**SIGNAL, "metrics": {key: str(value) for key, value in SIGNAL["metrics"].items()}}
    message = pb.UpdateSignalStateRequest(dataset_urn=URN, signal_type="FRESHNESS", expected_version=-1)
    ParseDict(state, message.state)
    return f"{SIGNALS}/UpdateSignalState\n".encode() + message.SerializeToString()
