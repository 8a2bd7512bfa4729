"""Intake process: answers calls offloaded by the server, on the same store, until the server disconnects.

`IntakeClient` starts it with one end of a socket pair and writes the settings to its standard input.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import closing
from typing import Final

from prometheus_client import CollectorRegistry

from headgate.bootstrap.health import open_health
from headgate.bootstrap.store import AppService, open_cache, open_store
from headgate.clock import Clock, SystemClock
from headgate.durable.sdk.app import App
from headgate.health.error_alerts import ErrorAlerts
from headgate.health.metrics import HealthMeters
from headgate.health.service import HealthService
from headgate.serve.intake.connection import IntakeConnection
from headgate.serve.intake.frames import CallFrame, FailureFrame, Frame, Heartbeat, MetricsRequest, ResultFrame
from headgate.serve.process import freeze_heap, loop_factory, set_switch_interval
from headgate.serve.rpc.codec import Binary, Codec
from headgate.serve.rpc.connect_wire import Json
from headgate.serve.rpc.dispatcher import Dispatcher
from headgate.serve.rpc.errors import RpcFailure
from headgate.serve.rpc.methods import RpcCall
from headgate.serve.rpc.statestore.service import intake_methods
from headgate.serve.runtime import merged_metrics
from headgate.serve.runtime.thread_pool import WorkPool
from headgate.serve.sweeper import Sweeper
from headgate.settings import Settings
from headgate.store.cache.read_through import Cache
from headgate.telemetry import Tracing, configure_logs, watch_store

BEAT_SECONDS: Final = 1.0
ALERTS_EVERY_SECONDS: Final = 5.0
NICER: Final = 10
# One thread computes while another waits for the disk; more would contend for the interpreter lock with the event loop.
# Batches have a pool of their own, so that an incident does not queue behind them.
THREADS_MAX: Final = 2
# One batch at a time on a local disk: two in parallel delay signals and are no faster. Remote stores mostly wait.
BATCHES_MAX: Final = 1
BATCHES_REMOTE_MAX: Final = 3
_API: Final = "intake"
_CODECS: Final[dict[str, Codec]] = {each.name: each for each in (Binary(), Json())}


def main(descriptor: int) -> None:
    """Serve a socket, with the settings from standard input."""
    # The server ends this process: a signal to the process group must not interrupt its drain.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    # Reads on the server have priority.
    os.nice(NICER)
    # Trusted: written by the parent server over a private pipe.
    settings: Settings = pickle.load(sys.stdin.buffer)
    configure_logs(style=settings.log.format, level=settings.log.level)
    run(settings, socket.socket(fileno=descriptor), clock=SystemClock())


def run(settings: Settings, end: socket.socket, *, clock: Clock) -> None:
    """Answer calls until the server disconnects, then finish the calls in progress."""
    registry = CollectorRegistry()
    meters = HealthMeters(registry)
    alerts = ErrorAlerts(clock, meters)
    opened = open_store(settings, clock, observer=alerts, create=False)
    with closing(opened.store), closing(open_cache(settings, clock, answered=meters.cache_answered)) as cache:
        service = AppService(App("headgate"), opened, clock)
        meters.watch_cache(cache.stats)
        watch_store(registry, opened.store.stats.snapshot)
        health = open_health(opened, cache, clock, service, meters=meters, alerts=alerts)
        batches_max = BATCHES_MAX if settings.store.backend == "sqlite" else BATCHES_REMOTE_MAX
        sweeper = Sweeper("alerts", lambda _limit: health.refresh(), interval_seconds=ALERTS_EVERY_SECONDS)
        with closing(health), asyncio.Runner(loop_factory=loop_factory()) as runner:
            sweeper.start()
            try:
                runner.run(_serve(end, health, cache, registry, clock, batches_max=batches_max))
            finally:
                sweeper.stop()


async def _serve(
    end: socket.socket,
    health: HealthService,
    cache: Cache,
    registry: CollectorRegistry,
    clock: Clock,
    *,
    batches_max: int,
) -> None:
    pool, bulk = WorkPool(threads_max=THREADS_MAX), WorkPool(threads_max=batches_max)
    dispatcher = Dispatcher(
        intake_methods(health, pool),
        pool,
        clock=clock,
        tracing=Tracing(),
        # The server records metrics of offloaded calls.
        registry=CollectorRegistry(),
        identify=lambda call: call.principal,
        bulk=bulk,
    )
    disconnected = asyncio.Event()
    handler = _CallHandler(dispatcher, health, registry, cache, on_lost=disconnected.set)
    with cache.forwarding(handler.connection.invalidate):
        await asyncio.get_running_loop().create_unix_connection(lambda: handler.connection, sock=end)
        freeze_heap()
        set_switch_interval()
        heartbeat = asyncio.create_task(handler.send_heartbeats())
        await disconnected.wait()
        heartbeat.cancel()
        await handler.wait_idle()
    pool.close()
    bulk.close()


class _CallHandler:
    """Answers calls of its connection, each in its own task."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        health: HealthService,
        registry: CollectorRegistry,
        cache: Cache,
        *,
        on_lost: Callable[[], None],
    ) -> None:
        self.connection = IntakeConnection(cache, dispatcher.clock, on_frame=self._on_frame, on_lost=on_lost)
        self._dispatcher = dispatcher
        self._evidence = health.evidence
        self._registry = registry
        self._tasks: set[asyncio.Task[None]] = set()
        self._shed: dict[str, int] = {}

    def _on_frame(self, frame: Frame) -> None:
        if isinstance(frame, CallFrame):
            task = asyncio.create_task(self._answer(frame))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif isinstance(frame, MetricsRequest):
            self.connection.send(ResultFrame(frame.number, merged_metrics.encode_metrics(self._registry)))

    async def send_heartbeats(self) -> None:
        """Send a heartbeat every second. The first one reports that the process is ready."""
        stats = self._evidence.stats
        shed_before = 0
        while True:
            shed, changed = stats.shed, dict[str, int]()
            if shed != shed_before:
                now = self._evidence.shed_by_dataset()
                changed = {urn: count for urn, count in now.items() if self._shed.get(urn) != count}
                self._shed, shed_before = now, shed
            self.connection.send(Heartbeat(changed))
            await asyncio.sleep(BEAT_SECONDS)

    async def wait_idle(self) -> None:
        """Return once all calls in progress are done."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _answer(self, frame: CallFrame) -> None:
        clock = self._dispatcher.clock
        deadline_at = None if frame.remaining_seconds is None else clock.monotonic() + frame.remaining_seconds
        call = RpcCall({}, frame.peer, clock, deadline_at, frame.principal)
        method, codec = self._dispatcher.methods[frame.path], _CODECS[frame.codec]
        try:
            content = await self._dispatcher.unary(_API, method, frame.content, codec, call, frame.name)
        except RpcFailure as exc:
            self.connection.send(FailureFrame(frame.number, exc.code, exc.rich_status()))
        else:
            self.connection.send(ResultFrame(frame.number, content))


if __name__ == "__main__":
    main(int(sys.argv[1]))
