"""A server to measure, as a process of its own: as `headgate up` runs it, or with bare echoes beside its methods.

`python -m bench.health_server HOME up|echo [PROFILE]` says on standard output where it listens, serves until its
standard input ends, and then writes to PROFILE where all of its threads spent their time.
"""

from __future__ import annotations

import asyncio
import cProfile
import json
import os
import pstats
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from time import thread_time
from types import FrameType
from typing import Any, NamedTuple

import grpc
import grpc.aio
import uvloop
from litestar import Request, Response, post
from litestar.types import ASGIApp, Receive, Scope, Send

from bench.health_rows import settings_at
from headgate.auth.authenticator import Authenticator
from headgate.bootstrap.health import open_health, open_keys
from headgate.bootstrap.store import AppService, open_cache, open_store
from headgate.clock import SystemClock
from headgate.durable.sdk.app import App
from headgate.health.metrics import HealthMeters
from headgate.serve import server
from headgate.serve.application import build_http
from headgate.serve.http.authentication import cached_caller, caller
from headgate.serve.http.connection.listener import HttpServer
from headgate.serve.probes import Phase, ServerProbes
from headgate.serve.rest.health.routes import health_routes
from headgate.serve.rpc.dispatcher import Dispatcher
from headgate.serve.rpc.grpc import GrpcServer, add_methods
from headgate.serve.rpc.statestore.service import statestore_methods
from headgate.serve.runtime.thread_pool import WorkPool
from headgate.serve.runtime.watch_hub import WatchHub
from headgate.settings import Address
from headgate.telemetry import Metrics, Tracing, configure_logs

ECHO = "/echo"
BARE = "/bare"
ECHO_RPC = "/bench.Echo/Echo"
_TICKS = os.sysconf("SC_CLK_TCK")
_PROTO = "application/proto"
_STOP_SECONDS = 30.0
_ARGUMENTS = 3


class Running(NamedTuple):
    """A server that runs."""

    http: Address
    grpc: Address
    pid: int

    def cpu_seconds(self) -> float:
        """Return how much it and its children have worked since they started, in all of their threads."""
        return sum(int(each[11]) + int(each[12]) for each in _family(self.pid)) / _TICKS


def _family(pid: int) -> Iterator[list[str]]:
    """Go through what the kernel says of a process and of its children."""
    for file in Path("/proc").glob("[0-9]*/stat"):
        # It may end while it is looked at.
        with suppress(FileNotFoundError, ProcessLookupError):
            fields = file.read_text().rpartition(")")[2].split()
            if pid in (int(file.parent.name), int(fields[1])):
                yield fields


@contextmanager
def serving(
    home: Path,
    mode: str,
    profile: Path | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    log: Path | None = None,
) -> Iterator[Running]:
    """Give a server on the store at `home`. It ends with the block, or with this process.

    With `log`, its log lines and alerts are appended to that file instead of printed.
    """
    command = [sys.executable, "-m", "bench.health_server", str(home), mode, *([str(profile)] if profile else [])]
    with (
        nullcontext(None) if log is None else log.open("a") as errors,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, **(environ or {})},
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        try:
            yield Running(address_of(said["http"]), address_of(said["grpc"]), process.pid)
        finally:
            process.stdin.close()
            process.wait(_STOP_SECONDS)


def top(profile: Path, lines: int = 12) -> list[str]:
    """Return the functions in which most of the time was spent, the dearest first."""
    stats: Any = pstats.Stats(str(profile))
    # A thread that still waits at the end is taken to have worked all the time.
    entries = [each for each in stats.stats.items() if "'acquire'" not in each[0][2]]
    total = sum(own for _, (_, _, own, _, _) in entries)
    found = []
    for (file, line, name), (_, calls, own, whole, _) in sorted(entries, key=lambda each: -each[1][2]):
        place = name if file == "~" else f"{'/'.join(Path(file).parts[-2:])}:{line} {name}"
        found.append(f"{own / total:6.1%} itself, {whole:7.2f} s with what it calls, {calls:>9,} times  {place}")
    return found[:lines]


def parted(profile: Path, parts: Sequence[tuple[str, Sequence[str]]]) -> list[tuple[str, float]]:
    """Return which share of the time was spent in each part, the greatest first, and in all others together.

    A part is known by pieces of the paths of its files. Time in C code counts for its caller.
    """
    stats: Any = pstats.Stats(str(profile))
    spent: dict[str, float] = {}
    for (file, _, name), (_, _, own, _, callers) in stats.stats.items():
        if "'acquire'" in name:
            continue
        if file != "~":
            callers = {(file, 0, ""): (0, 0, own, 0)}
        for (path, _, _), (_, _, time, _) in callers.items():
            part = next((part for part, pieces in parts if any(piece in path for piece in pieces)), "others")
            spent[part] = spent.get(part, 0.0) + time
    total = sum(spent.values())
    return sorted(((part, time / total) for part, time in spent.items()), key=lambda each: -each[1])


def address_of(text: str) -> Address:
    """Return the address in a line that a server announces."""
    host, _, port = text.removeprefix("http://").rpartition(":")
    return Address(host, int(port))


def _up(home: Path, begin: Callable[[], None]) -> None:
    """Be `headgate up`, until standard input ends. `begin` is called once it listens."""

    def announce(line: str) -> None:
        words = dict(word.partition("=")[::2] for word in line.split() if "=" in word)
        begin()
        _say(words["http"], words["grpc"])
        _at_end_of_input(lambda: os.kill(os.getpid(), signal.SIGTERM))

    server.run(settings_at(home), version="bench", clock=SystemClock(), tracing=Tracing(), announce=announce)


def _echo(home: Path, begin: Callable[[], None]) -> None:
    """Serve the methods of the state store and bare echoes on the same ports."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, ExitStack() as opened:
        runner.run(_serve_echo(home, opened, begin))


async def _serve_echo(home: Path, stack: ExitStack, begin: Callable[[], None]) -> None:
    """Serve what `serve.server` does, as far as the methods of the state store need it."""
    clock, settings = SystemClock(), settings_at(home)
    opened = open_store(settings, clock)
    stack.enter_context(closing(opened.store))
    cache = stack.enter_context(closing(open_cache(settings, clock)))
    metrics, pool = Metrics(version="bench"), stack.enter_context(closing(WorkPool()))
    service = AppService(App("bench"), opened, clock)
    health = open_health(opened, cache, clock, service, meters=HealthMeters(metrics.registry))
    keys = open_keys(opened, clock, health)
    authenticator = Authenticator(keys)
    rpcs = Dispatcher(
        statestore_methods(health, service.bus, watches=WatchHub(opened.store), pool=pool, local_reads=True),
        pool,
        clock=clock,
        tracing=Tracing(),
        registry=metrics.registry,
        identify=lambda call: caller(authenticator, call.headers, call.peer, is_tls=False),
        remember=lambda call: cached_caller(authenticator, call.headers, call.peer, is_tls=False),
    )
    status = ServerProbes(version="bench", store=opened.store, sweepers=[], clock=clock, disk=home)
    status.phase = Phase.SERVING
    app = build_http(
        version="bench",
        probes=status,
        pool=pool,
        metrics=metrics,
        tracing=Tracing(),
        clock=clock,
        routes=[*health_routes(health, keys, pool), _echo_route],
        rpcs=rpcs,
        authenticator=authenticator,
    )
    http = HttpServer(settings.http)
    stack.callback(http.close)
    rpc_server = GrpcServer(settings.grpc, [partial(add_methods, rpcs), _add_echo])
    await http.start(_beside_bare(app), grace_seconds=1.0)
    await rpc_server.start()
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    _at_end_of_input(lambda: loop.call_soon_threadsafe(ended.set))
    begin()
    _say(str(http.address), str(rpc_server.address))
    await ended.wait()
    await asyncio.gather(http.drain(), rpc_server.drain(1.0))


@post(ECHO, status_code=200, media_type=_PROTO)
async def _echo_route(request: Request[Any, Any, Any]) -> Response[bytes]:
    return Response(await request.body(), media_type=_PROTO)


def _beside_bare(app: ASGIApp) -> ASGIApp:
    """Answer one path without any framework at all: what is left is the HTTP server."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("path") != BARE:
            await app(scope, receive, send)
            return
        message: Any = await receive()
        body = message.get("body", b"")
        headers = [(b"content-type", _PROTO.encode()), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})

    return answer


def _add_echo(rpc_server: grpc.aio.Server) -> None:
    async def echo(content: bytes, _context: object) -> bytes:
        return content

    _, service, name = ECHO_RPC.split("/")
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {name: grpc.unary_unary_rpc_method_handler(echo)}
    rpc_server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))


def _say(http: str, rpc: str) -> None:
    print(json.dumps({"http": http, "grpc": rpc}), flush=True)


def _at_end_of_input(stop: Callable[[], object]) -> None:
    def wait() -> None:
        sys.stdin.read()
        stop()

    threading.Thread(target=wait, daemon=True).start()


class _Profiles:
    """Where the time of all threads that are started later, and of this one from `begin` on, goes."""

    def __init__(self) -> None:
        # By the time that each thread itself has worked: waiting is no cost.
        self._own = cProfile.Profile(thread_time)
        self._others: list[cProfile.Profile] = []

    def begin(self) -> None:
        threading.setprofile(self._begin_other)
        self._own.enable()

    def write(self, path: Path) -> None:
        self._own.disable()
        stats = pstats.Stats(self._own)
        for each in self._others:
            stats.add(each)
        stats.dump_stats(path)

    def _begin_other(self, _frame: FrameType, _event: str, _argument: object) -> None:
        # In the new thread, which is profiled from here on in place of this function.
        self._others.append(cProfile.Profile(thread_time))
        self._others[-1].enable()


def main() -> None:
    home, mode = Path(sys.argv[1]), sys.argv[2]
    configure_logs(style="console", level="warning")
    serve = {"up": _up, "echo": _echo}[mode]
    if len(sys.argv) == _ARGUMENTS:
        serve(home, lambda: None)
        return
    profiles = _Profiles()
    # All in one process, or half of it would not be seen.
    os.environ["HEADGATE_HEALTH_INTAKE"] = "never"
    serve(home, profiles.begin)
    profiles.write(Path(sys.argv[_ARGUMENTS]))


if __name__ == "__main__":
    main()
