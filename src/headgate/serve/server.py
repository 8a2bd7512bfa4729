"""Server: serves HTTP and gRPC on one event loop, from binding the ports to the end of the drain."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog
from litestar.types import ASGIApp
from msgspec.structs import replace

from headgate.auth.rate_limits import own_limiter
from headgate.bootstrap.project_folder import WATCH_SECONDS
from headgate.bootstrap.store import measure_size
from headgate.clock import Clock
from headgate.durable.sdk.app import App
from headgate.extras import Extra, install_command
from headgate.serve.app_workers import app_services, check_apps, running
from headgate.serve.application import build_http
from headgate.serve.background import Workers, sweepers
from headgate.serve.components import Components, open_components
from headgate.serve.execution_metrics import (
    COUNTED_MAX,
    COUNTED_MAX_DYNAMODB,
    StoreCollector,
    WorkerCollector,
    read_store_gauges,
)
from headgate.serve.execution_metrics import REFRESHED_EVERY_SECONDS as GAUGES_EVERY_SECONDS
from headgate.serve.fanout_metrics import FanoutCollector
from headgate.serve.hangup import on_hangup
from headgate.serve.http.authentication import cached_caller, caller
from headgate.serve.http.connection.listener import HttpServer
from headgate.serve.http.connection.tls import Tls
from headgate.serve.http.limits.caller_limits import CallerLimits
from headgate.serve.http.limits.client_address import ClientAddresses
from headgate.serve.http.limits.connection_limits import raise_descriptor_limit
from headgate.serve.http.session_cookies import SessionCookies
from headgate.serve.incident_metrics import INCIDENTS_EVERY_SECONDS, IncidentCollector
from headgate.serve.metrics import CacheCollector, HeartbeatCollector, ServerCollector, SizeCollector
from headgate.serve.metrics_history import SAMPLE_SECONDS, MetricsHistory
from headgate.serve.pipeline_metrics import REFRESHED_EVERY_SECONDS, PipelineCollector, read_gauges
from headgate.serve.probes import Phase, ServerProbes
from headgate.serve.process import Stop, freeze_heap, loop_factory, set_switch_interval
from headgate.serve.processes.server_memory import ServerMemory
from headgate.serve.processes.supervisor import ServingProcesses
from headgate.serve.protocols import check_protocols, protocols_off
from headgate.serve.rest.user_routes import AppRoutes, admits_origin
from headgate.serve.routes import http_routes
from headgate.serve.runtime.process_count import process_count
from headgate.serve.runtime.thread_pool import WorkPool
from headgate.serve.runtime.watch_hub import WatchHub
from headgate.serve.server_monitor import ServerMonitor
from headgate.serve.store_recovery import StoreRecovery
from headgate.serve.sweeper import STOP_SECONDS_MAX, Demand, Sweeper
from headgate.settings import Settings, allowed_host_names
from headgate.store.peer_changes import NO_PEERS
from headgate.telemetry import Tracing

if TYPE_CHECKING:
    from headgate.serve.rpc.dispatcher import Dispatcher
    from headgate.serve.rpc.grpc import GrpcServer

# The rest of the drain deadline is for closing the store and exporting the last spans.
_GRACE_SHARE: Final = 0.7
_SWEEP_SHARE: Final = 0.1
MEASURED_EVERY_SECONDS: Final = 60.0
ADDRESS_FILE: Final = "server.json"
_log = structlog.get_logger(__name__)


def run(
    settings: Settings,
    *,
    version: str,
    clock: Clock,
    tracing: Tracing,
    announce: Callable[[str], None],
    apps: Sequence[App] = (),
    environ: Mapping[str, str] | None = None,
) -> int:
    """Serve until a signal requests the stop, and return the exit code once the server is drained and closed.

    The exit code is 0 after a signal, and not 0 if the server could not continue.

    `announce` gets one line when both ports accept requests. The server runs the workflows and activities of the
    `apps`, and serves their routes; without an app it only shows executions. Raises `SettingsError` if a port is in use
    or two apps have something of the same name, and errors of opening the store.
    """
    check_apps(apps)
    check_protocols(settings)
    stop = Stop(deadline_seconds=settings.drain_seconds)
    stop.install()
    tls = _load_tls(settings)
    raise_descriptor_limit(settings.limits)
    processes = process_count(settings)
    memory = ServerMemory.create(processes) if processes > 1 else None
    with (
        closing(
            HttpServer(
                settings.http,
                tls=tls,
                limits=settings.limits,
                is_behind_proxy=settings.behind_proxy,
                shared=None if memory is None else memory.connections,
            )
        ) as http,
        open_components(
            # With the port that was bound, for callback URLs.
            replace(settings, http=http.address),
            version=version,
            clock=clock,
            tracing=tracing,
            app=apps[0] if apps else App("headgate"),
            environ=environ or {},
            peer_changes=NO_PEERS if memory is None else memory.changes,
        ) as components,
        closing(
            Server(
                settings,
                components,
                http,
                tls=tls,
                version=version,
                clock=clock,
                tracing=tracing,
                routes=AppRoutes(apps),
                memory=memory,
            )
        ) as server,
        running(
            app_services(
                apps[1:], components.store, clock, components.task_backends, components.service.meters, tracing
            ),
            settings,
            ["default"],
            stop.fail,
            settings.drain_seconds / 2,
        ),
        asyncio.Runner(loop_factory=loop_factory()) as runner,
    ):
        runner.run(server.serve(stop, announce))
    _log.info("stopped", action="server.stop", exit_code=int(stop.exit_code))
    return stop.exit_code


def _load_tls(settings: Settings) -> Tls | None:
    cert, key = settings.tls.cert, settings.tls.key
    return None if cert is None or key is None else Tls.load(cert, key)


class Server:
    """The HTTP and gRPC ports, the thread pool, the sweepers and the workers around the open components."""

    def __init__(
        self,
        settings: Settings,
        components: Components,
        http: HttpServer,
        *,
        tls: Tls | None,
        version: str,
        clock: Clock,
        tracing: Tracing,
        routes: AppRoutes,
        memory: ServerMemory | None = None,
    ) -> None:
        """`routes` are those of the users' apps. With a `memory`, further processes serve the ports, and share it."""
        self._settings = settings
        self._app_routes = routes
        self._components = components
        self._http = http
        self._tls = tls
        self._cookies = SessionCookies(
            is_tls=tls is not None, is_behind_proxy=settings.behind_proxy, public_url=settings.public_url
        )
        self._pool = WorkPool()
        self._processes = (
            None
            if memory is None
            else ServingProcesses(
                settings, clock, memory, version=version, cache=components.cache, registry=components.registry
            )
        )
        self._workers = Workers(
            settings,
            service=components.service,
            fanouts=components.fanouts,
            pipelines=components.pipelines,
            clock=clock,
        )
        self._sweepers = sweepers(components.store, components.health, components.pipelines, components.region)
        if components.folder is not None and settings.pipelines.watch:
            self._sweepers.append(
                Sweeper("definitions", components.folder.load_if_changed, interval_seconds=WATCH_SECONDS)
            )
        sizes = SizeCollector(lambda: measure_size(components.store))
        self._sweepers.append(
            Sweeper("store size", lambda _limit: sizes.refresh(), interval_seconds=MEASURED_EVERY_SECONDS)
        )
        # A read of DynamoDB is billed: there, the gauges of the store are read while metrics are scraped.
        self._demand = None if settings.store.backend == "sqlite" else Demand(clock.monotonic)
        service = components.pipelines.service
        runs = PipelineCollector(service.meters.reading, lambda: read_gauges(service))
        pending = StoreCollector(
            partial(
                read_store_gauges,
                components.store.store,
                clock,
                counted_max=COUNTED_MAX if settings.store.backend == "sqlite" else COUNTED_MAX_DYNAMODB,
            )
        )
        fanouts = FanoutCollector(components.service.fanouts)
        incidents = IncidentCollector(components.health.incident_listing.counts)
        self._gauges = [
            Sweeper(f"{what} gauges", lambda _limit, read=read: read(), interval_seconds=seconds, demand=self._demand)  # type: ignore[misc]
            for what, read, seconds in (
                ("pipeline", runs.refresh, REFRESHED_EVERY_SECONDS),
                ("execution", pending.refresh, GAUGES_EVERY_SECONDS),
                ("fan-out", fanouts.refresh, GAUGES_EVERY_SECONDS),
                ("incident", incidents.refresh, INCIDENTS_EVERY_SECONDS),
            )
        ]
        self._sweepers += self._gauges
        self._probes = ServerProbes(
            version=version,
            store=components.store.store,
            sweepers=self._sweepers,
            clock=clock,
            disk=settings.home if settings.store.backend == "sqlite" else None,
            worker_status=components.service.worker_status,
            faults=components.store.store.stats.faults,
            heartbeats=components.pipelines.heartbeats if settings.pipelines.watchdog else None,
            processes=self._process_counts,
        )
        self._history = MetricsHistory(components.metrics.registry, clock)
        is_local = settings.store.backend == "sqlite"
        self._monitor = ServerMonitor(self._probes, self._history, clock, home=settings.home if is_local else None)
        self._recovery = StoreRecovery(components.store.store.stats.faults, self._probes.write_and_read_back)
        components.metrics.watch_store(components.store.store.stats.snapshot)
        components.metrics.registry.register(ServerCollector(self._pool, self._sweepers))
        components.metrics.registry.register(http.shedder)
        components.metrics.registry.register(HeartbeatCollector(components.pipelines.heartbeats))
        components.metrics.registry.register(CacheCollector(components.cache.stats))
        self._limits = CallerLimits(
            settings.limits,
            clock,
            addresses=ClientAddresses(settings.client_address_header, is_behind_proxy=settings.behind_proxy),
            registry=components.metrics.registry,
            make_limiter=own_limiter if memory is None else memory.buckets.limiter,
        )
        components.metrics.registry.register(sizes)
        components.metrics.registry.register(runs)
        components.metrics.registry.register(pending)
        components.metrics.registry.register(fanouts)
        components.metrics.registry.register(incidents)
        if components.service.meters is not None:
            reading, status = components.service.meters.reading, components.service.worker_status
            components.metrics.registry.register(WorkerCollector(reading, status))
        watches = WatchHub(components.service.store, stopping=self._is_stopping)
        self._rpcs = self._build_dispatcher(watches, clock, tracing)
        self._app = self._build_app(watches, clock, tracing, version)

    async def serve(self, stop: Stop, announce: Callable[[str], None]) -> None:
        """Start everything, announce it, wait for the stop request, and drain."""
        grace_seconds = self._settings.drain_seconds * _GRACE_SHARE
        grpc = self._open_grpc()
        serving = await self._http.start(
            self._app, grace_seconds=grace_seconds, every_second=self._limits.failed_logins.flush
        )
        if grpc is not None:
            await grpc.start()
        await asyncio.to_thread(self._workers.start, stop.fail, self._components.deferred)
        # After the workers have joined: a sweep may find damage, which makes the store read-only.
        for sweeper in self._sweepers:
            sweeper.start()
        self._recovery.start()
        self._components.intake.start()
        if self._processes is not None:
            self._processes.start(
                self._http.shedder.admitting(self._app),
                listening=self._http.fileno(),
                http=self._http.address,
                grpc=self._settings.grpc if grpc is None else grpc.address,
            )
            if await self._processes.wait_ready(lambda: stop.requested):
                self._processes.serve()
            elif not stop.requested:
                _log.error("serving processes did not start; see the errors above", action="server.start")
                stop.fail()
        self._probes.phase = Phase.SERVING
        if grpc is not None:
            await grpc.set_serving()
        self._write_address()
        freeze_heap()
        set_switch_interval()
        if not stop.exit_code:
            announce(f"headgate ready  {self._addresses(grpc)}  home={self._settings.home}")
        sampling = asyncio.create_task(self._sample_metrics())
        with on_hangup(self._reload, stop=stop.request):
            await self._wait_for_stop(stop, serving)
        sampling.cancel()
        await self._drain(grpc, grace_seconds)

    async def _sample_metrics(self) -> None:
        """Keep samples of the metrics, with those of other processes, for the operations page."""
        while True:
            try:
                await self._collect_metrics()
                await asyncio.to_thread(self._history.sample)
            except Exception:  # noqa: BLE001 - top of a task: the next sample may succeed
                _log.exception("metrics not sampled", action="metrics.sample")
            await asyncio.sleep(SAMPLE_SECONDS)

    async def _collect_metrics(self) -> None:
        """Bring the metrics of the other processes up to date."""
        if self._processes is not None:
            await self._processes.collect_metrics()
        await self._components.intake.collect_metrics()

    async def _before_metrics(self) -> None:
        """Bring metrics up to date before they are scraped: also gauges that were not asked for some time."""
        if self._demand is not None and not self._demand.ask():
            await asyncio.to_thread(self._read_gauges)
        await self._collect_metrics()

    def _read_gauges(self) -> None:
        for gauges in self._gauges:
            gauges.sweep_once()

    def _process_counts(self) -> tuple[int, int]:
        return (1, 1) if self._processes is None else (self._processes.ready_count, self._processes.count)

    def _reload(self) -> None:
        folder = self._components.folder
        if folder is None:
            _log.warning("SIGHUP ignored: no folder with definitions", action="definitions.reload")
            return
        report = folder.load(by="SIGHUP")
        _log.info(
            "definitions reloaded",
            action="definitions.reload",
            definitions=len(report.definitions),
            problems=len(report.problems),
        )

    async def _wait_for_stop(self, stop: Stop, serving: asyncio.Task[None]) -> None:
        """Return when a stop is requested, or when the HTTP port ends by itself."""
        stopping = asyncio.Event()
        loop = asyncio.get_running_loop()

        def on_stop() -> None:
            # In the signal handler, so that the next readiness probe already reports draining.
            self._probes.phase = Phase.DRAINING
            loop.call_soon_threadsafe(stopping.set)

        stop.on_request(on_stop)
        waiting = asyncio.create_task(stopping.wait())
        await asyncio.wait({waiting, serving}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if not stopping.is_set():
            # The HTTP port has stopped without a request.
            stop.fail()

    async def _drain(self, grpc: GrpcServer | None, grace_seconds: float) -> None:
        for sweeper in self._sweepers:
            sweeper.request_stop()
        await asyncio.to_thread(self._workers.request_stop)
        _log.info("draining", action="server.drain", grace_seconds=grace_seconds)
        await asyncio.gather(
            self._drain_processes(grace_seconds),
            self._http.drain(),
            *(() if grpc is None else (grpc.drain(grace_seconds),)),
            asyncio.to_thread(self._workers.stop_service, grace_seconds),
            asyncio.to_thread(self._workers.stop_chunks, grace_seconds),
            asyncio.to_thread(self._workers.stop_pipelines, grace_seconds),
        )
        await self._components.intake.close()

    async def _drain_processes(self, grace_seconds: float) -> None:
        if self._processes is not None:
            draining = asyncio.create_task(self._processes.drain(grace_seconds))
            # They have been asked to accept no more.
            await asyncio.sleep(0)
            self._http.stop_listening()
            await draining

    def close(self) -> None:
        """Stop the threads. Waits for running work, but for a sweep only briefly."""
        if self._processes is not None:
            self._processes.kill()
        self._limits.failed_logins.flush(is_final=True)
        self._workers.stop_chunks()
        for sweeper in self._sweepers:
            sweeper.request_stop()
        for sweeper in self._sweepers:
            sweeper.stop(min(STOP_SECONDS_MAX, self._settings.drain_seconds * _SWEEP_SHARE))
        self._recovery.stop()
        self._pool.close()

    def _open_grpc(self) -> GrpcServer | None:
        if self._rpcs is None:
            return None
        from headgate.serve.rpc.port import open_port

        shares_port = self._processes is not None
        return open_port(self._settings, self._rpcs, self._tls, shares_port=shares_port, is_first=True)

    def _build_dispatcher(self, watches: WatchHub, clock: Clock, tracing: Tracing) -> Dispatcher | None:
        if not Extra.GRPC.is_installed:
            return None
        from headgate.serve.rpc.dispatcher import CallChecks, Dispatcher
        from headgate.serve.rpc.statestore.service import statestore_methods

        components, authenticator = self._components, self._components.authenticator
        limits, is_tls = self._limits, self._tls is not None
        return Dispatcher(
            statestore_methods(
                components.health,
                components.service.bus,
                watches=watches,
                pool=self._pool,
                local_reads=self._settings.store.backend == "sqlite",
            ),
            self._pool,
            clock=clock,
            tracing=tracing,
            registry=components.metrics.registry,
            identify=lambda call: caller(authenticator, call.headers, call.peer, is_tls=is_tls, limits=limits),
            remember=lambda call: cached_caller(authenticator, call.headers, call.peer, is_tls=is_tls),
            intake=components.intake,
            checks=CallChecks(
                self._probes.check_ready,
                lambda call, principal: limits.check_write(principal, call.peer, call.headers),
                lambda call: limits.addresses.of(call.peer, call.headers),
            ),
        )

    def _build_app(self, watches: WatchHub, clock: Clock, tracing: Tracing, version: str) -> ASGIApp:
        components = self._components
        return build_http(
            version=version,
            probes=self._probes,
            pool=self._pool,
            metrics=components.metrics,
            before_metrics=self._before_metrics,
            tracing=tracing,
            clock=clock,
            allowed_hosts=allowed_host_names(self._settings),
            allowed_origins=self._settings.allowed_origins,
            is_behind_proxy=self._settings.behind_proxy,
            routes=http_routes(
                components,
                self._pool,
                clock,
                watches=watches,
                cookies=self._cookies,
                monitor=self._monitor,
                apps=self._app_routes,
                unusable_handlers=self._workers.unusable_handlers,
            ),
            admits=admits_origin(self._app_routes),
            rpcs=self._rpcs,
            authenticator=components.authenticator,
            is_tls=self._tls is not None,
            limits=self._limits,
            cookies=self._cookies,
        )

    def _is_stopping(self) -> bool:
        return self._probes.phase is Phase.DRAINING

    def _write_address(self) -> None:
        """Write the server's URL to the home folder, for CLI commands."""
        try:
            (self._settings.home / ADDRESS_FILE).write_text(f'{{"http": "{self._url()}"}}\n')
        except OSError as exc:
            # The disk is full or read-only. Commands need --url until the next start.
            _log.warning("address not written", action="server.start", file=ADDRESS_FILE, error=exc.strerror)

    def _addresses(self, grpc: GrpcServer | None) -> str:
        """Describe where the server answers, and log the protocols that are off."""
        off = protocols_off()
        for each in off:
            _log.info("protocol off", action="server.start", protocol=each.adds, install=install_command(each))
        grpc_address = "off" if grpc is None else str(grpc.address)
        addresses = f"http={self._url()}  grpc={grpc_address}"
        return f"{addresses}  graphql=off" if Extra.GRAPHQL in off else addresses

    def _url(self) -> str:
        return f"{'http' if self._tls is None else 'https'}://{self._http.address}"
