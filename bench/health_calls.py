"""Calls of the state store over HTTP and gRPC beside bare echoes on the same server, and what a board costs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from bench import health_client
from bench.health_client import PACKAGE, one_by_one, request, rpc_one_by_one
from bench.health_rows import Sizes, settings_at, signal_at
from bench.health_server import BARE, ECHO, ECHO_RPC, Running, serving
from bench.measure import Figure, ratio
from headgate.auth.principals import LOCAL
from headgate.bootstrap.health import open_health
from headgate.bootstrap.store import AppService, open_cache, open_store
from headgate.clock import SystemClock
from headgate.durable.sdk.app import App
from headgate.serve.graphql.engine import Engine, GraphqlRequest
from headgate.serve.graphql.limits import Limits
from headgate.serve.rpc.statestore import proto as pb
from headgate.store.resilience.guarded_store import AnyStore

REQUESTS = 4_000
HTTP_MIN, GRPC_MIN = 0.50, 0.70
STORE_CALLS_MAX = 3
# How many signals are asked about in turn: a few are answered from memory, of many each is read from the store again.
FEW, MANY = 50, 50_000
_GET = f"{PACKAGE}SignalStateService/GetSignalState"
_BOARD = """{ criticalSignals(limit: 100) {
  datasetUrn signalType state score dataset { displayName ownerTeam tier } incident { incidentId title severity } } }"""

_BESIDE = {ECHO: "a Litestar echo", BARE: "an answer without any framework"}

Work = Callable[[int], int]


def run(home: Path, size: Sizes, requests: int, rounds: int) -> list[Figure]:
    """Return the figures of calls on a full store."""
    with serving(home, "echo") as server:
        figures = [
            _http(server, size, FEW, ECHO, HTTP_MIN, requests, rounds),
            _http(server, size, MANY, ECHO, HTTP_MIN, requests, rounds),
            _http(server, size, FEW, BARE, None, requests, rounds),
            _grpc(server, size, FEW, GRPC_MIN, requests // 2, rounds),
            _grpc(server, size, MANY, None, requests // 2, rounds),
        ]
    return [*figures, _board(home, size)]


def asked(size: Sizes, signals: int, count: int) -> list[bytes]:
    """Return questions for so many signals, in turn."""
    places = range(min(signals, size.signals))
    keys = (signal_at(place) for place in itertools.islice(itertools.cycle(places), count))
    return [pb.GetSignalStateRequest(dataset_urn=urn, signal_type=kind).SerializeToString() for urn, kind in keys]


class _Worked:
    """How much the server worked for each of two kinds of calls."""

    def __init__(self, server: Running) -> None:
        self._server = server
        self._spent: dict[str, list[float]] = {}

    def watch(self, name: str, count: int, work: Callable[[], object]) -> int:
        """Do some work, and note what it cost the server."""
        before = self._server.cpu_seconds()
        work()
        self._spent.setdefault(name, []).append((self._server.cpu_seconds() - before) / count)
        return count

    def cpu_per_call(self) -> str:
        # The first of each only warmed up.
        each = {name: sum(spent[1:]) / len(spent[1:]) for name, spent in self._spent.items()}
        ours, theirs = each["ours"], each["theirs"]
        return f"server CPU {1e6 * ours:.0f} and {1e6 * theirs:.0f} µs a call, {theirs / ours:.2f}"


def _where(signals: int) -> str:
    return "from memory" if signals == FEW else "from the store"


def _http(server: Running, size: Sizes, signals: int, path: str, goal: float | None, count: int, rounds: int) -> Figure:
    worked = _Worked(server)
    ours = [request(_GET, each) for each in asked(size, signals, count)]
    [answer] = health_client.run(one_by_one(server.http, ours[:1], connections=1))
    # The same bytes come back as an answer of the other has.
    theirs = [request(path, answer)] * count

    def work(name: str, requests: Sequence[bytes]) -> Work:
        return lambda _: worked.watch(name, count, lambda: health_client.run(one_by_one(server.http, requests)))

    return ratio(
        f"GetSignalState over Connect, {_where(signals)} / {_BESIDE[path]} of the same bytes",
        yardstick=work("theirs", theirs),
        subject=work("ours", ours),
        goal=goal,
        counted=worked.cpu_per_call,
        rounds=rounds,
    )


def _grpc(server: Running, size: Sizes, signals: int, goal: float | None, count: int, rounds: int) -> Figure:
    worked = _Worked(server)
    ours = asked(size, signals, count)
    [answer] = health_client.run(one_by_one(server.http, [request(_GET, ours[0])], connections=1))
    theirs = [answer] * count

    def work(name: str, path: str, contents: Sequence[bytes]) -> Work:
        return lambda _: worked.watch(
            name, count, lambda: health_client.run(rpc_one_by_one(server.grpc, path, contents))
        )

    return ratio(
        f"GetSignalState over gRPC, {_where(signals)} / an echo of gRPC of the same bytes",
        yardstick=work("theirs", ECHO_RPC, theirs),
        subject=work("ours", _GET, ours),
        goal=goal,
        counted=worked.cpu_per_call,
        rounds=rounds,
    )


class _Counted:
    """A store that counts the calls made to it."""

    def __init__(self, store: AnyStore) -> None:
        self._store = store
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the store has
        found = getattr(self._store, name)
        if not callable(found):
            return found

        def called(*given: Any, **named: Any) -> Any:  # noqa: ANN401
            self.calls.append(name)
            return found(*given, **named)

        return called


def _board(home: Path, size: Sizes) -> Figure:
    clock, settings = SystemClock(), settings_at(home)
    opened = open_store(settings, clock)
    with closing(opened.store), closing(open_cache(settings, clock)) as cache:
        counted = _Counted(opened.store)
        through = opened._replace(store=counted)
        health = open_health(through, cache, clock, AppService(App("bench"), opened, clock))
        engine = Engine(health, Limits())
        prepared = engine.prepare(GraphqlRequest(_BOARD, {}, None))

        def ask() -> dict[str, Any]:
            return engine.execute(prepared, LOCAL, clock.monotonic() + 60).content

        content = ask()
        made = list(counted.calls)
        assert "errors" not in content, content["errors"]
        signals = content["data"]["criticalSignals"]
        assert len(signals) == min(100, size.critical)
        assert all(each["dataset"] and each["incident"] for each in signals)
        times = []
        for _ in range(20):
            before = clock.monotonic()
            ask()
            times.append(1000 * (clock.monotonic() - before))
    return Figure(
        "GraphQL criticalSignals of 100 with dataset and incident",
        f"{len(made)} store calls",
        f"<= {STORE_CALLS_MAX}",
        len(made) <= STORE_CALLS_MAX,
        ", ".join(made),
        f"p50 {sorted(times)[len(times) // 2]:.1f} ms, slowest {max(times):.1f} ms",
    )
