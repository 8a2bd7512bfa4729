"""The server: one event loop for HTTP and gRPC, from the first socket to the last answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import closing, nullcontext
from functools import partial
from typing import Final, NamedTuple

import structlog

from headgate.auth.api_keys import ApiKeys
from headgate.auth.authenticator import Authenticator
from headgate.bootstrap.health import OpenRegion, open_authenticator, open_health, open_keys, open_region
from headgate.bootstrap.pipelines import OpenPipelines, apply_folder, audited, open_engine, open_pipelines
from headgate.bootstrap.store import (
    AppService,
    OpenedStore,
    join_fanouts,
    open_cache,
    open_service,
    open_store,
)
from headgate.clock import Clock
from headgate.durable.sdk.app import App
from headgate.fanout.background_threads import Background
from headgate.fanout.service import FanoutService
from headgate.health.metrics import HealthMeters
from headgate.health.regions.agent import KEEP_SECONDS
from headgate.health.service import HealthService
from headgate.pipelines.background_threads import PipelineLoops
from headgate.pipelines.watchdog.heartbeats import Who
from headgate.serve import process as garbage
from headgate.serve.application import build_http
from headgate.serve.graphql.routes import graphql_routes
from headgate.serve.http.authentication import caller, known_caller
from headgate.serve.http.listener import HttpServer
from headgate.serve.http.tls import Tls
from headgate.serve.intake.client import Intake
from headgate.serve.metrics import CacheCollector, ServerCollector
from headgate.serve.pages.api_calls import PipelinesAsked
from headgate.serve.pages.routes import page_routes
from headgate.serve.probes import Health, Phase
from headgate.serve.process import Stop, give_way, loop_factory
from headgate.serve.rest.health.routes import health_routes
from headgate.serve.rest.pipelines.alerts import alert_routes
from headgate.serve.rest.routes import api_routes
from headgate.serve.rest.user_routes import admits_origin, user_routes
from headgate.serve.rpc.dispatcher import Dispatcher
from headgate.serve.rpc.grpc import GrpcServer, add_methods, add_reflection
from headgate.serve.rpc.methods import services
from headgate.serve.rpc.statestore.service import statestore_methods
from headgate.serve.runtime.merged_metrics import Summed
from headgate.serve.runtime.thread_pool import WorkPool
from headgate.serve.runtime.watch_hub import Watches
from headgate.serve.sweeper import STOP_SECONDS_MAX, Sweeper
from headgate.serve.watchdog_process import WatchdogChild
from headgate.settings import Settings
from headgate.store.cache.read_through import Cache
from headgate.telemetry import Metrics, Tracing

ROWS_SWEPT_EVERY_SECONDS: Final = 60.0
# Looking for unreferenced blobs means looking at every old blob, and a day late is early enough.
BLOBS_SWEPT_EVERY_SECONDS: Final = 3600.0
INCIDENTS_EVERY_SECONDS: Final = 5.0
EVENTS_EVERY_SECONDS: Final = 1.0
ARCHIVED_EVERY_SECONDS: Final = 60.0
TIDIED_EVERY_SECONDS: Final = 6 * 3600.0
# The rest of the deadline is for closing the store and exporting the last spans after the last answer.
_GRACE_SHARE: Final = 0.7
# How often the server and its watchdog show each other that they live.
_BEAT_SECONDS: Final = 60.0
_SWEEP_SHARE: Final = 0.1
ADDRESS_FILE: Final = "server.json"
_log = structlog.get_logger(__name__)


def run(
    settings: Settings,
    *,
    version: str,
    clock: Clock,
    tracing: Tracing,
    announce: Callable[[str], None],
    app: App | None = None,
    environ: Mapping[str, str] | None = None,
) -> None:
    """Serve until a signal asks to stop, and return once everything is finished and let go.

    `announce` is given one line when everything listens. With an `app`, its routes are served, its workflows
    advanced and its activities run; without one, executions of others can be looked at. Raises `SettingsError`
    if a port cannot be had, and whatever opening the store raises.
    """
    stop = Stop(deadline_seconds=settings.drain_seconds)
    stop.install()
    tls = (
        None if settings.tls.cert is None or settings.tls.key is None else Tls.load(settings.tls.cert, settings.tls.key)
    )
    http = HttpServer(settings.http, tls=tls)
    try:
        opened = open_store(settings, clock)
        registry = Summed()
        metrics = Metrics(version=version, registry=registry)
        meters = HealthMeters(metrics.registry)
        cached = open_cache(settings, clock, answered=meters.cache_answered)
        with closing(opened.store), closing(cached) as cache:
            # Some backends open without asking anyone, and a server whose store is out of reach is not ready.
            opened.store.check_health()
            service = open_service(app if app is not None else App("headgate"), opened, clock)
            fanouts = join_fanouts(service, opened, clock)
            meters.watch_cache(cache.stats)
            region = open_region(opened, clock, service, meters)
            fence = None if region is None else region.fence
            health = open_health(opened, cache, clock, service, meters=meters, tracing=tracing, fence=fence)
            keys = open_keys(opened, clock, health)
            pipelines = open_pipelines(
                service,
                opened,
                fanouts,
                clock,
                environ=environ or {},
                health=health,
                commit=lambda writes, change: health.audit.commit(writes, audited(change)),
                engine=open_engine(settings, clock, service.ids),
            )
            # Before the first event, lest nobody is told of it.
            service.bus.register(list(service.app.subscriptions.values()), service.app.name)
            if settings.pipelines.folder is not None:
                apply_folder(pipelines, settings.pipelines.folder)
            authenticator = open_authenticator(settings, clock, keys)
            intake = Intake(settings, clock, cache, registry)
            health.evidence.shed_elsewhere = intake.shed_of
            parts = Parts(service, fanouts, health, pipelines, keys, authenticator, metrics, cache, intake, tls, region)
            server = Server(settings, opened, http, parts, version=version, clock=clock, tracing=tracing)
            apart = nullcontext() if region is None else closing(region)
            with apart, closing(health), closing(server), asyncio.Runner(loop_factory=loop_factory()) as runner:
                runner.run(server.serve(stop, announce))
    finally:
        http.close()
    _log.info("stopped", action="server.stop")


class Parts(NamedTuple):
    """What a server serves."""

    service: AppService
    fanouts: FanoutService
    health: HealthService
    pipelines: OpenPipelines
    keys: ApiKeys
    authenticator: Authenticator
    metrics: Metrics
    cache: Cache
    intake: Intake
    tls: Tls | None
    region: OpenRegion | None = None


class Server:
    """HTTP, gRPC, the pool, the sweepers and the workers around one open store."""

    def __init__(
        self,
        settings: Settings,
        opened: OpenedStore,
        http: HttpServer,
        parts: Parts,
        *,
        version: str,
        clock: Clock,
        tracing: Tracing,
    ) -> None:
        service, fanouts, metrics = parts.service, parts.fanouts, parts.metrics
        self._settings = settings
        self._service = service
        self._fanouts = fanouts
        self._tls = parts.tls
        self._intake = parts.intake
        self._background: Background | None = None
        self._watchdog = WatchdogChild(settings)
        self._pipelines = parts.pipelines
        self._clock = clock
        self._beats_at = 0.0
        # Where functions on Lambda begin and watch pipelines, nobody here does.
        is_elsewhere = settings.pipelines.state_machine_arn is not None
        self._loops = None if is_elsewhere else PipelineLoops(parts.pipelines.service, also=self._tend_pipelines)
        self._http = http
        self._pool = WorkPool()
        self._sweepers = [*_sweepers(opened), *_upkeep(parts.health), *_duties(parts.region)]
        disk = settings.home if settings.store.backend == "sqlite" else None
        self._health = Health(
            version=version,
            store=opened.store,
            sweepers=self._sweepers,
            clock=clock,
            disk=disk,
            pulse=service.pulse,
        )
        metrics.watch_store(opened.store.stats.snapshot)
        metrics.registry.register(ServerCollector(self._pool, self._sweepers))
        metrics.registry.register(CacheCollector(parts.cache.stats))
        is_tls = parts.tls is not None
        watches = Watches(service.store, stopping=self._is_stopping)
        self._rpcs = Dispatcher(
            statestore_methods(
                parts.health,
                service.bus,
                watches=watches,
                pool=self._pool,
                quick_reads=settings.store.backend == "sqlite",
            ),
            self._pool,
            clock=clock,
            tracing=tracing,
            registry=metrics.registry,
            identify=lambda call: caller(parts.authenticator, call.headers, call.peer, is_tls=is_tls),
            remember=lambda call: known_caller(parts.authenticator, call.headers, call.peer, is_tls=is_tls),
            intake=parts.intake,
        )
        self._app = build_http(
            version=version,
            health=self._health,
            pool=self._pool,
            metrics=metrics,
            counted=parts.intake.count,
            tracing=tracing,
            clock=clock,
            allowed_hosts=settings.allowed_hosts,
            routes=[
                *api_routes(
                    service,
                    self._pool,
                    fanouts=fanouts,
                    pipelines=parts.pipelines.service,
                    calendars=parts.pipelines.calendars,
                    check_trait=parts.pipelines.evaluators.check,
                    unusable_handlers=self._unusable_handlers,
                    stopping=self._is_stopping,
                ),
                *alert_routes(
                    parts.pipelines.alerts,
                    parts.pipelines.mutes,
                    parts.pipelines.deliverer,
                    clock,
                    self._pool,
                    channels=parts.pipelines.channels,
                ),
                *health_routes(parts.health, parts.keys, self._pool),
                *graphql_routes(parts.health, self._pool, watches),
                *page_routes(parts.health, self._pool, watches, PipelinesAsked(parts.pipelines.service, service.bus)),
                *user_routes(service.app, self._pool),
            ],
            admits=admits_origin(service.app),
            rpcs=self._rpcs,
            authenticator=parts.authenticator,
            is_tls=is_tls,
        )

    async def serve(self, stop: Stop, announce: Callable[[str], None]) -> None:
        """Start everything, announce it, wait for the wish to stop, and drain."""
        grace_seconds = self._settings.drain_seconds * _GRACE_SHARE
        stopping = asyncio.Event()
        loop = asyncio.get_running_loop()
        methods = self._rpcs.methods.values()
        grpc = GrpcServer(
            self._settings.grpc,
            [partial(add_methods, self._rpcs), partial(add_reflection, methods)],
            names=services(methods),
            tls=self._tls,
        )
        serving = await self._http.start(self._app, grace_seconds=grace_seconds)
        await grpc.start()
        for sweeper in self._sweepers:
            sweeper.start()
        await asyncio.to_thread(self._start_service, stop)
        self._intake.start()
        self._health.phase = Phase.SERVING
        await grpc.set_serving()
        self._write_address()
        garbage.settle()
        give_way()
        announce(f"headgate ready  http={self._url()}  grpc={grpc.address}  home={self._settings.home}")

        def drain_soon() -> None:
            # From the signal handler, so that the very next answer says it.
            self._health.phase = Phase.DRAINING
            loop.call_soon_threadsafe(stopping.set)

        stop.on_request(drain_soon)
        waiting = asyncio.create_task(stopping.wait())
        await asyncio.wait({waiting, serving}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        for sweeper in self._sweepers:
            sweeper.request_stop()
        _log.info("draining", action="server.drain", grace_seconds=grace_seconds)
        await asyncio.gather(
            self._http.drain(),
            grpc.drain(grace_seconds),
            asyncio.to_thread(self._service.stop, grace_seconds),
            asyncio.to_thread(self._stop_background, grace_seconds),
            asyncio.to_thread(self._stop_pipelines, grace_seconds),
        )
        await self._intake.close()

    def _is_stopping(self) -> bool:
        return self._health.phase is Phase.DRAINING

    def _start_service(self, stop: Stop) -> None:
        if self._service.app.workflows or self._service.app.activity_names():
            worker = self._settings.worker
            self._service.start(
                threads_max=worker.threads_max,
                lease_seconds=worker.lease_seconds,
                turn_seconds=worker.turn_seconds,
                on_fatal=lambda _error: stop.request(),
            )
        if self._loops is not None:
            self._loops.start()
        fanout = self._settings.fanout
        self._background = Background(
            self._fanouts,
            processes=fanout.processes,
            trusted=fanout.handlers,
            on_fatal=lambda _error: stop.request(),
        )
        self._background.start()

    def _tend_pipelines(self) -> None:
        """Do what pipelines need every few seconds beside their own loops."""
        self._pipelines.notifier.tick()
        self._pipelines.backfilling.tick()
        if not self._settings.pipelines.watchdog or not self._pipelines.service.clockwork.has_pipelines:
            return
        self._watchdog.start()
        now = self._clock.monotonic()
        if now >= self._beats_at:
            self._beats_at = now + _BEAT_SECONDS
            own = self._pipelines.heartbeats.beat(Who.SERVER)
            self._pipelines.heartbeats.watch(own, Who.WATCHDOG)

    def _stop_pipelines(self, grace_seconds: float) -> None:
        self._watchdog.stop()
        if self._loops is not None:
            self._loops.stop(grace_seconds)

    def _unusable_handlers(self) -> dict[str, str]:
        return {} if self._background is None else self._background.unusable

    def _stop_background(self, grace_seconds: float = 0.0) -> None:
        if self._background is not None:
            self._background.stop(grace_seconds)

    def _write_address(self) -> None:
        """Say in the home folder where this server is, for the commands that talk to it."""
        (self._settings.home / ADDRESS_FILE).write_text(f'{{"http": "{self._url()}"}}\n')

    def _url(self) -> str:
        return f"{'http' if self._tls is None else 'https'}://{self._http.address}"

    def close(self) -> None:
        """Stop the threads. Blocks until what they are doing is done, but for a sweep not for long."""
        self._stop_background()
        for sweeper in self._sweepers:
            sweeper.request_stop()
        for sweeper in self._sweepers:
            sweeper.stop(min(STOP_SECONDS_MAX, self._settings.drain_seconds * _SWEEP_SHARE))
        self._pool.close()


def _sweepers(opened: OpenedStore) -> list[Sweeper]:
    store, spill = opened.store, opened.spill
    rows = Sweeper("expired rows", lambda limit: store.sweep(limit=limit), interval_seconds=ROWS_SWEPT_EVERY_SECONDS)
    blobs: Sweeper = Sweeper(
        "unreferenced blobs",
        # There may be very many, and a server that stops must not look at all of them first.
        lambda limit: spill.sweep(store, limit=limit, stop=lambda: blobs.is_stopping),
        interval_seconds=BLOBS_SWEPT_EVERY_SECONDS,
    )
    return [rows, blobs]


def _upkeep(health: HealthService) -> list[Sweeper]:
    """Return what looks after health: reminders and recoveries, what was accepted and put off, the archive."""
    return [
        Sweeper("incidents", lambda limit: health.sweep(limit=limit), interval_seconds=INCIDENTS_EVERY_SECONDS),
        Sweeper("openlineage events", lambda limit: health.drain(limit=limit), interval_seconds=EVENTS_EVERY_SECONDS),
        Sweeper("old evidence and secrets", lambda _limit: health.tidy(), interval_seconds=TIDIED_EVERY_SECONDS),
        Sweeper("evidence to archive", lambda _limit: health.archive(), interval_seconds=ARCHIVED_EVERY_SECONDS),
    ]


def _duties(region: OpenRegion | None) -> list[Sweeper]:
    """Return what keeps the lease of a region and watches both, if there are two."""
    if region is None:
        return []
    duty = region.duty

    def tend(_limit: int) -> int:
        decision = duty.tend()
        return int(decision is not None and decision.move_to is not None)

    return [Sweeper("regions", tend, interval_seconds=KEEP_SECONDS)]
