"""The process of the intake: it answers what a server hands over, on the same store, until the server hangs up.

It is started by `intake.Intake` alone, with one end of a pair of sockets, and gets the settings on standard input.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import socket
import sys
from contextlib import closing
from typing import Final

from prometheus_client import CollectorRegistry

from headgate.bootstrap.health import open_health
from headgate.bootstrap.store import open_cache, open_service, open_store
from headgate.clock import Clock, SystemClock
from headgate.durable.sdk.app import App
from headgate.health.metrics import HealthMeters
from headgate.health.service import HealthService
from headgate.serve import process as garbage
from headgate.serve.intake.connection import Line
from headgate.serve.intake.frames import Answer, Ask, Beat, Count, Failed, Frame
from headgate.serve.process import give_way, loop_factory
from headgate.serve.rpc.codec import Binary, Codec
from headgate.serve.rpc.connect_wire import Json
from headgate.serve.rpc.dispatcher import Dispatcher
from headgate.serve.rpc.errors import RpcFailure
from headgate.serve.rpc.methods import RpcCall
from headgate.serve.rpc.statestore.service import taken_in_methods
from headgate.serve.runtime import merged_metrics as meters_elsewhere
from headgate.serve.runtime.thread_pool import WorkPool
from headgate.serve.sweeper import Sweeper
from headgate.settings import Settings
from headgate.store.cache.read_through import Cache
from headgate.telemetry import Tracing, configure_logs, watch_store

BEAT_SECONDS: Final = 1.0
TENDED_EVERY_SECONDS: Final = 5.0
NICER: Final = 10
# Enough for one to compute while another waits for the disk. More would only take the interpreter from each other and
# from the loop that has to send the answers. Batches have their own, so that an incident is not in line behind them.
THREADS_MAX: Final = 2
# Batches one after the other, where a row is written to this machine's disk: with two at once signals waited longer,
# and the batches no less. Where there is a network between, most of it is waiting.
BATCHES_MAX: Final = 1
BATCHES_ELSEWHERE_MAX: Final = 3
_API: Final = "intake"
_CODECS: Final[dict[str, Codec]] = {each.name: each for each in (Binary(), Json())}


def main(descriptor: int) -> None:
    """Serve the other end of a socket, with the settings on standard input."""
    # The server ends us: a signal to all of its group must not cut off what it still drains.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    # Who reads from the server has less time than who writes here.
    os.nice(NICER)
    # From the server that started us, over a pipe that nobody else holds.
    settings: Settings = pickle.load(sys.stdin.buffer)
    configure_logs(style=settings.log.format, level=settings.log.level)
    run(settings, socket.socket(fileno=descriptor), clock=SystemClock())


def run(settings: Settings, end: socket.socket, *, clock: Clock) -> None:
    """Answer calls until the other end hangs up, and return once what was begun is done."""
    opened = open_store(settings, clock)
    registry = CollectorRegistry()
    meters = HealthMeters(registry)
    with closing(opened.store), closing(open_cache(settings, clock, answered=meters.cache_answered)) as cache:
        service = open_service(App("headgate"), opened, clock)
        meters.watch_cache(cache.stats)
        watch_store(registry, opened.store.stats.snapshot)
        health = open_health(opened, cache, clock, service, meters=meters)
        batches_max = BATCHES_MAX if settings.store.backend == "sqlite" else BATCHES_ELSEWHERE_MAX
        tending = Sweeper("alerts", lambda _limit: health.tend(), interval_seconds=TENDED_EVERY_SECONDS)
        with closing(health), asyncio.Runner(loop_factory=loop_factory()) as runner:
            tending.start()
            try:
                runner.run(_serve(end, health, cache, registry, clock, batches_max=batches_max))
            finally:
                tending.stop()


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
        taken_in_methods(health, pool),
        pool,
        clock=clock,
        tracing=Tracing(),
        # The server counts the calls that it hands over.
        registry=CollectorRegistry(),
        identify=lambda call: call.principal,
        bulk=bulk,
    )
    answering = _Answering(dispatcher, health, registry)
    hung_up = asyncio.Event()
    line = Line(cache, clock, take=answering.take, lost=hung_up.set)
    answering.line = line
    cache.told = line.told
    await asyncio.get_running_loop().create_unix_connection(lambda: line, sock=end)
    garbage.settle()
    give_way()
    beating = asyncio.create_task(answering.beat())
    await hung_up.wait()
    beating.cancel()
    await answering.finished()
    pool.close()
    bulk.close()


class _Answering:
    """Answers calls on a line, each in a task of its own."""

    line: Line

    def __init__(self, dispatcher: Dispatcher, health: HealthService, registry: CollectorRegistry) -> None:
        self._dispatcher = dispatcher
        self._evidence = health.evidence
        self._registry = registry
        self._tasks: set[asyncio.Task[None]] = set()
        self._shed: dict[str, int] = {}

    def take(self, frame: Frame) -> None:
        """Begin to answer a frame."""
        if isinstance(frame, Ask):
            task = asyncio.create_task(self._answer(frame))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif isinstance(frame, Count):
            self.line.send(Answer(frame.number, meters_elsewhere.packed(self._registry)))

    async def beat(self) -> None:
        """Say every second that this process lives, and first of all that it is ready."""
        stats = self._evidence.stats
        shed_before = 0
        while True:
            shed, changed = stats.shed, dict[str, int]()
            if shed != shed_before:
                now = self._evidence.shed_by_dataset()
                changed = {urn: count for urn, count in now.items() if self._shed.get(urn) != count}
                self._shed, shed_before = now, shed
            self.line.send(Beat(changed))
            await asyncio.sleep(BEAT_SECONDS)

    async def finished(self) -> None:
        """Return once every call that was begun is done."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _answer(self, ask: Ask) -> None:
        clock = self._dispatcher.clock
        deadline_at = None if ask.remaining_seconds is None else clock.monotonic() + ask.remaining_seconds
        call = RpcCall({}, ask.peer, clock, deadline_at, ask.principal)
        method, codec = self._dispatcher.methods[ask.path], _CODECS[ask.codec]
        try:
            content = await self._dispatcher.unary(_API, method, ask.content, codec, call, ask.name)
        except RpcFailure as exc:
            self.line.send(Failed(ask.number, exc.code, exc.rich_status()))
        else:
            self.line.send(Answer(ask.number, content))


if __name__ == "__main__":
    main(int(sys.argv[1]))
