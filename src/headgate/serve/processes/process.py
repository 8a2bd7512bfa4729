"""Serving process: answers requests about health on the ports of the server, and forwards all others.

The first process starts it (`supervisor.py`) with its listening socket, and writes the start to its standard input. It
ends with the first process.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from typing import TYPE_CHECKING, Final

from litestar.types import ASGIApp
from prometheus_client import CollectorRegistry

from headgate.auth.authenticator import Authenticator
from headgate.bootstrap.health import open_authenticator, open_health, open_keys, open_sessions
from headgate.bootstrap.store import AppService, open_cache, open_store
from headgate.bootstrap.tracing import open_tracing
from headgate.clock import Clock, SystemClock
from headgate.durable.sdk.app import App
from headgate.exit_codes import ExitCode
from headgate.extras import Extra
from headgate.health.error_alerts import ErrorAlerts
from headgate.health.metrics import HealthMeters
from headgate.health.service import HealthService
from headgate.serve.application import build_http
from headgate.serve.graphql.routes import graphql_routes
from headgate.serve.http.audited_operations import OperationAudit
from headgate.serve.http.authentication import cached_caller, caller
from headgate.serve.http.connection.listener import HttpServer
from headgate.serve.http.connection.tls import Tls
from headgate.serve.http.limits.caller_limits import CallerLimits
from headgate.serve.http.limits.client_address import ClientAddresses
from headgate.serve.http.limits.connection_limits import raise_descriptor_limit
from headgate.serve.http.session_cookies import SessionCookies
from headgate.serve.probes import Phase, ServerProbes
from headgate.serve.process import freeze_heap, loop_factory, set_switch_interval
from headgate.serve.processes.channel import Channel
from headgate.serve.processes.forwarding import Forwarder
from headgate.serve.processes.frames import (
    BodyWanted,
    Drain,
    Frame,
    Heartbeat,
    MetricsReply,
    MetricsRequest,
    ResponseAborted,
    ResponseBody,
    ResponseStart,
    Serve,
)
from headgate.serve.processes.local_requests import LocalRequests, SplitApplication
from headgate.serve.processes.server_memory import ServerMemory
from headgate.serve.processes.start import ServingStart
from headgate.serve.rest.audited_actions import AUDITED
from headgate.serve.rest.health.routes import health_routes
from headgate.serve.runtime import merged_metrics
from headgate.serve.runtime.thread_pool import WorkPool
from headgate.serve.runtime.watch_hub import WatchHub
from headgate.serve.store_recovery import StoreRecovery
from headgate.serve.sweeper import Sweeper
from headgate.settings import Settings, allowed_host_names
from headgate.telemetry import Metrics, Tracing, configure_logs

if TYPE_CHECKING:
    from headgate.serve.rpc.dispatcher import Dispatcher
    from headgate.serve.rpc.grpc import GrpcServer

BEAT_SECONDS: Final = 1.0
ALERTS_EVERY_SECONDS: Final = 5.0


def main(channel: int, alive: int, listening: int, memory: int) -> None:
    """Serve until the first process asks for the end, with the start from standard input."""
    # The first process ends this one: a signal to the process group must not interrupt the drain.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_exit_with_parent, args=(alive,), name="headgate-parent", daemon=True).start()
    # Trusted: written by the first process over a private pipe.
    start: ServingStart = pickle.load(sys.stdin.buffer)
    configure_logs(style=start.settings.log.format, level=start.settings.log.level)
    run(start, socket.socket(fileno=channel), socket.socket(fileno=listening), memory, clock=SystemClock())


def _exit_with_parent(alive: int) -> None:
    """Exit at once when the first process is gone: the ports must be free for the next server.

    In a thread of its own, so that no busy event loop can delay it. Requests in progress have not been answered.
    """
    os.read(alive, 1)
    os._exit(ExitCode.FATAL)


def run(start: ServingStart, end: socket.socket, listening: socket.socket, descriptor: int, *, clock: Clock) -> None:
    """Open the store and serve both ports until the first process asks for the end."""
    settings = start.settings
    raise_descriptor_limit(settings.limits)
    tls = settings.tls
    memory = ServerMemory(descriptor, process=start.process, processes=start.processes)
    with ExitStack() as stack:
        tracing = stack.enter_context(closing(open_tracing(settings.telemetry)))
        http = HttpServer(
            settings.http,
            tls=None if tls.cert is None or tls.key is None else Tls.load(tls.cert, tls.key),
            limits=settings.limits,
            is_behind_proxy=settings.behind_proxy,
            shared=memory.connections,
            listening=listening,
        )
        stack.enter_context(closing(http))
        serving = _open(start, memory, http, clock, tracing, stack)
        runner = stack.enter_context(asyncio.Runner(loop_factory=loop_factory()))
        runner.run(serving.serve(end))


def _open(
    start: ServingStart, memory: ServerMemory, http: HttpServer, clock: Clock, tracing: Tracing, stack: ExitStack
) -> ServingProcess:
    """Open everything that a serving process needs. The stack closes it."""
    settings = start.settings
    metrics = Metrics(version=start.version, registry=CollectorRegistry())
    meters = HealthMeters(metrics.registry)
    alerts = ErrorAlerts(clock, meters)
    opened = open_store(settings, clock, observer=alerts, create=False)
    stack.enter_context(closing(opened.store))
    cache = open_cache(settings, clock, answered=meters.cache_answered, peer_changes=memory.changes)
    stack.enter_context(closing(cache))
    meters.watch_cache(cache.stats)
    metrics.watch_store(opened.store.stats.snapshot)
    metrics.registry.register(http.shedder)
    service = AppService(App("headgate"), opened, clock)
    health = open_health(opened, cache, clock, service, meters=meters, alerts=alerts, tracing=tracing)
    stack.enter_context(closing(health))
    keys = open_keys(opened, clock, health, memory.changes)
    sessions = open_sessions(settings, opened, clock, health, keys, memory.changes)
    sweeper = Sweeper("alerts", lambda _limit: health.refresh(), interval_seconds=ALERTS_EVERY_SECONDS)
    probes = ServerProbes(
        version=start.version,
        store=opened.store,
        sweepers=[sweeper],
        clock=clock,
        disk=None,
        faults=opened.store.stats.faults,
    )
    recovery = StoreRecovery(opened.store.stats.faults, probes.write_and_read_back)
    pool = WorkPool()
    for started in (sweeper, recovery):
        started.start()
        stack.callback(started.stop)
    stack.callback(pool.close)
    authenticator = open_authenticator(settings, clock, keys, sessions)
    limits = CallerLimits(
        settings.limits,
        clock,
        addresses=ClientAddresses(settings.client_address_header, is_behind_proxy=settings.behind_proxy),
        registry=metrics.registry,
        make_limiter=memory.buckets.limiter,
    )
    stack.callback(limits.failed_logins.flush, is_final=True)
    watches = WatchHub(service.store, stopping=lambda: probes.phase is Phase.DRAINING)
    rpcs = _dispatcher(settings, health, service, authenticator, limits, probes, pool, watches, metrics, clock, tracing)
    routes = [
        *health_routes(
            health,
            keys,
            pool,
            auditing=OperationAudit(health.actions, AUDITED),
            idempotency_seconds=3600 * settings.retention.idempotency_hours,
        ),
        *graphql_routes(health, pool, watches),
    ]
    app = build_http(
        version=start.version,
        probes=probes,
        pool=pool,
        metrics=metrics,
        tracing=tracing,
        clock=clock,
        allowed_hosts=allowed_host_names(settings),
        allowed_origins=settings.allowed_origins,
        is_behind_proxy=settings.behind_proxy,
        routes=routes,
        rpcs=rpcs,
        authenticator=authenticator,
        is_tls=settings.tls.cert is not None,
        limits=limits,
        cookies=SessionCookies(
            is_tls=settings.tls.cert is not None,
            is_behind_proxy=settings.behind_proxy,
            public_url=settings.public_url,
        ),
    )
    make_app = partial(SplitApplication, app, LocalRequests(routes, () if rpcs is None else rpcs.methods))
    return ServingProcess(settings, http, make_app, rpcs, probes, limits, metrics, clock)


def _dispatcher(  # noqa: PLR0913 - one argument for each part of the process
    settings: Settings,
    health: HealthService,
    service: AppService,
    authenticator: Authenticator,
    limits: CallerLimits,
    probes: ServerProbes,
    pool: WorkPool,
    watches: WatchHub,
    metrics: Metrics,
    clock: Clock,
    tracing: Tracing,
) -> Dispatcher | None:
    if not Extra.GRPC.is_installed:
        return None
    from headgate.serve.rpc.dispatcher import CallChecks, Dispatcher
    from headgate.serve.rpc.statestore.service import statestore_methods

    is_tls = settings.tls.cert is not None
    return Dispatcher(
        statestore_methods(
            health, service.bus, watches=watches, pool=pool, local_reads=settings.store.backend == "sqlite"
        ),
        pool,
        clock=clock,
        tracing=tracing,
        registry=metrics.registry,
        identify=lambda call: caller(authenticator, call.headers, call.peer, is_tls=is_tls, limits=limits),
        remember=lambda call: cached_caller(authenticator, call.headers, call.peer, is_tls=is_tls),
        checks=CallChecks(
            probes.check_ready,
            lambda call, principal: limits.check_write(principal, call.peer, call.headers),
            lambda call: limits.addresses.of(call.peer, call.headers),
        ),
    )


class ServingProcess:
    """The event loop of a serving process, from its first heartbeat to the end of its drain."""

    def __init__(
        self,
        settings: Settings,
        http: HttpServer,
        make_app: Callable[[ASGIApp], SplitApplication],
        rpcs: Dispatcher | None,
        probes: ServerProbes,
        limits: CallerLimits,
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._http = http
        self._make_app = make_app
        self._rpcs = rpcs
        self._probes = probes
        self._limits = limits
        self._metrics = metrics
        self._clock = clock
        self._grpc: GrpcServer | None = None
        self._forwarder: Forwarder | None = None
        self._channel: Channel | None = None
        self._setting: asyncio.Task[None] | None = None
        self._draining = asyncio.Event()
        self._grace_seconds = settings.drain_seconds

    async def serve(self, end: socket.socket) -> None:
        """Serve both ports, and drain when the first process asks for it."""
        channel = self._channel = Channel(self._clock, on_frame=self._on_frame, on_lost=self._on_lost)
        forwarder = self._forwarder = Forwarder(channel.send)
        grpc = self._grpc = self._open_grpc()
        await asyncio.get_running_loop().create_unix_connection(lambda: channel, sock=end)
        await self._http.start(
            self._make_app(forwarder), grace_seconds=self._grace_seconds, every_second=self._limits.failed_logins.flush
        )
        if grpc is not None:
            await grpc.start()
        freeze_heap()
        set_switch_interval()
        beating = asyncio.create_task(self._send_heartbeats(channel))
        await self._draining.wait()
        if grpc is not None:
            await asyncio.gather(self._http.drain(), grpc.drain(self._grace_seconds))
        else:
            await self._http.drain()
        beating.cancel()
        channel.send(MetricsReply(None, merged_metrics.encode_metrics(self._metrics.registry)))
        channel.close()

    def _open_grpc(self) -> GrpcServer | None:
        if self._rpcs is None:
            return None
        from headgate.serve.rpc.port import open_port

        tls = self._settings.tls
        loaded = None if tls.cert is None or tls.key is None else Tls.load(tls.cert, tls.key)
        return open_port(self._settings, self._rpcs, loaded, shares_port=True, is_first=False)

    async def _send_heartbeats(self, channel: Channel) -> None:
        while True:
            channel.send(Heartbeat())
            await asyncio.sleep(BEAT_SECONDS)

    def _on_frame(self, frame: Frame) -> None:
        assert self._channel is not None
        assert self._forwarder is not None
        if isinstance(frame, BodyWanted | ResponseStart | ResponseBody | ResponseAborted):
            self._forwarder.on_frame(frame)
        elif isinstance(frame, MetricsRequest):
            self._channel.send(MetricsReply(frame.number, merged_metrics.encode_metrics(self._metrics.registry)))
        elif isinstance(frame, Serve):
            self._probes.phase = Phase.SERVING
            if self._grpc is not None:
                self._setting = asyncio.create_task(self._grpc.set_serving())
        elif isinstance(frame, Drain):
            self._probes.phase = Phase.DRAINING
            self._grace_seconds = frame.grace_seconds
            self._draining.set()

    def _on_lost(self) -> None:
        self._probes.phase = Phase.DRAINING
        self._draining.set()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
