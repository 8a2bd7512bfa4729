"""Supervisor of the serving processes: the first process starts them, restarts one that ends, and drains all.

A serving process that was killed leaves nothing behind: its connections are cut, its counts are cleared, the others go
on, and whatever it had acknowledged is in the store.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

import structlog
from litestar.types import ASGIApp
from msgspec.structs import replace
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from headgate.clock import Clock
from headgate.serve.processes.channel import Channel
from headgate.serve.processes.forwarding import Relay
from headgate.serve.processes.frames import (
    BodySent,
    Disconnected,
    Drain,
    Frame,
    Heartbeat,
    MetricsReply,
    MetricsRequest,
    RequestBody,
    RequestStart,
    Serve,
)
from headgate.serve.processes.server_memory import ServerMemory
from headgate.serve.processes.start import ServingStart
from headgate.serve.runtime import merged_metrics
from headgate.settings import Address, Settings
from headgate.store.cache.read_through import Cache

# Time without a heartbeat after which a process is killed: once it runs, and while it starts.
SILENT_SECONDS_MAX: Final = 8.0
START_SECONDS_MAX: Final = 60.0
METRICS_SECONDS_MAX: Final = 2.0
# Share of the drain's grace period that a process may take beyond it, to close its store.
_CLOSE_SHARE: Final = 0.15
_CHECK_SECONDS: Final = 0.5
# A check so long after the one before it is late.
_LATE_SECONDS: Final = 1.5
_POLL_SECONDS: Final = 0.02
# Pause before a process is started again: at once if it ran for a while, and longer with each failure after that.
STABLE_SECONDS: Final = 10.0
RESTART_SECONDS: Final = 0.2
RESTART_SECONDS_MAX: Final = 30.0
_log = structlog.get_logger(__name__)


def restart_pause_seconds(lived_seconds: float, failures: int) -> tuple[float, int]:
    """Return the pause before a process that has ended is started again, and its failures in a row."""
    failures = 0 if lived_seconds >= STABLE_SECONDS else failures + 1
    return min(RESTART_SECONDS_MAX, RESTART_SECONDS * 2 ** max(0, failures - 1)), failures


def is_silent(now: float, received_at: float, checked_at: float, limit_seconds: float) -> bool:
    """Whether a process is silent for longer than the limit.

    Not if this process itself was held up since its last check: heartbeats wait to be read.
    """
    return now - received_at > limit_seconds and now - checked_at < _LATE_SECONDS


class ServingProcesses:
    """The further serving processes of a server. Runs on the event loop of the first one."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        memory: ServerMemory,
        *,
        version: str,
        cache: Cache,
        registry: merged_metrics.MergedRegistry,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._memory = memory
        self._version = version
        self._cache = cache
        self._registry = registry
        self._app: ASGIApp | None = None
        self._listening = -1
        self._is_serving = False
        self._is_stopping = False
        # The same for a task that pauses before a restart.
        self._stopping = asyncio.Event()
        self._processes: dict[int, _Process] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._numbers = itertools.count()
        self._replies: dict[int, asyncio.Future[None]] = {}
        self.restarts = 0
        registry.register(_ProcessCollector(self))

    @property
    def count(self) -> int:
        """The number of processes that serve, the first one included."""
        return self._memory.processes

    @property
    def ready_count(self) -> int:
        """The number of processes that are ready, the first one included."""
        return 1 + sum(each.is_ready for each in self._processes.values())

    def start(self, app: ASGIApp, *, listening: int, http: Address, grpc: Address) -> None:
        """Start the processes. They share the socket `listening` and the gRPC port, and forward requests to `app`."""
        self._app, self._listening = app, listening
        self._settings = replace(self._settings, http=http, grpc=grpc)
        self._tasks = [asyncio.create_task(self._keep(number)) for number in range(1, self.count)]

    async def wait_ready(self, is_stopping: Callable[[], bool]) -> bool:
        """Return whether all processes became ready: not after a stop request, nor if one cannot start."""
        deadline = self._clock.monotonic() + START_SECONDS_MAX
        while self.ready_count < self.count:
            if is_stopping() or self._clock.monotonic() > deadline:
                return False
            await asyncio.sleep(_POLL_SECONDS)
        return True

    def serve(self) -> None:
        """Have the processes answer requests, also those that are started later."""
        self._is_serving = True
        for each in self._processes.values():
            each.channel.send(Serve())

    async def collect_metrics(self) -> None:
        """Refresh the metrics of the processes in the registry; keep the previous values of one that is late."""
        replies = {}
        for each in self._processes.values():
            if each.is_ready:
                number = next(self._numbers)
                replies[number] = asyncio.get_running_loop().create_future()
                each.channel.send(MetricsRequest(number))
        self._replies |= replies
        with suppress(TimeoutError):
            async with asyncio.timeout(METRICS_SECONDS_MAX):
                await asyncio.gather(*replies.values())
        for number in replies:
            del self._replies[number]

    async def drain(self, grace_seconds: float) -> None:
        """Have the processes finish their requests and exit. One that is late is killed."""
        self._is_stopping = True
        self._stopping.set()
        for each in self._processes.values():
            if each.is_ready:
                each.channel.send(Drain(grace_seconds))
            else:
                each.process.kill()
        if not self._tasks:
            return
        _done, late = await asyncio.wait(self._tasks, timeout=grace_seconds * (1 + _CLOSE_SHARE))
        if late:
            self.kill()
            await asyncio.wait(late)

    def kill(self) -> None:
        """Kill the processes that still run."""
        self._is_stopping = True
        for each in self._processes.values():
            each.process.kill()

    async def _keep(self, number: int) -> None:
        """Run a process, and start it again when it ends, until the server stops."""
        failures = 0
        while not self._is_stopping:
            started_at = self._clock.monotonic()
            try:
                status: int | str = await self._supervise(number)
            except OSError as exc:
                # The system has no process, memory or descriptor left now.
                status = f"it could not be started: {exc}"
            if self._is_stopping:
                return
            pause_seconds, failures = restart_pause_seconds(self._clock.monotonic() - started_at, failures)
            _log.warning(
                "serving process ended; it is started again",
                action="process.end",
                process=number,
                status=status,
                pause_seconds=pause_seconds,
            )
            self.restarts += 1
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause_seconds)

    async def _supervise(self, number: int) -> int:
        """Start a process, and return its exit status when it has ended."""
        assert self._app is not None, "started"
        ours, theirs = socket.socketpair()
        # The end of this pipe tells the process that this one is gone, even if its event loop is busy.
        alive_read, alive_write = os.pipe()
        start = ServingStart(settings=self._settings, process=number, processes=self.count, version=self._version)
        try:
            process = await asyncio.to_thread(
                _spawn, start, theirs.fileno(), alive_read, self._listening, self._memory.descriptor
            )
        except OSError:
            ours.close()
            os.close(alive_write)
            raise
        finally:
            theirs.close()
            os.close(alive_read)
        lost = asyncio.Event()
        channel = Channel(self._clock, on_frame=lambda frame: self._on_frame(running, frame), on_lost=lost.set)
        running = _Process(number, process, channel, Relay(self._app, channel.send))
        await asyncio.get_running_loop().create_unix_connection(lambda: channel, sock=ours)
        self._processes[number] = running
        if self._is_stopping:
            process.kill()
        try:
            await self._watch(running, lost)
        finally:
            del self._processes[number]
            running.relay.close()
            os.close(alive_write)
            status = await asyncio.to_thread(_wait_exit, process)
            self._on_ended(running)
        return status

    async def _watch(self, running: _Process, lost: asyncio.Event) -> None:
        """Return when a process has disconnected. One without a heartbeat is killed."""
        checked_at = self._clock.monotonic()
        while not lost.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(lost.wait(), _CHECK_SECONDS)
            limit_seconds = SILENT_SECONDS_MAX if running.is_ready else START_SECONDS_MAX
            before, checked_at = checked_at, self._clock.monotonic()
            if is_silent(checked_at, running.channel.received_at, before, limit_seconds):
                _log.error("serving process is silent; it is killed", action="process.kill", process=running.number)
                running.process.kill()
                await lost.wait()

    def _on_ended(self, ended: _Process) -> None:
        self._memory.connections.clear(ended.number)
        # It may have ended between a commit and its count: no caller was answered, but no process may miss it.
        self._memory.changes.count_everything()
        self._cache.on_messages_lost()
        self._registry.end_process(ended.process.pid)

    def _on_frame(self, running: _Process, frame: Frame) -> None:
        if isinstance(frame, RequestStart | RequestBody | Disconnected | BodySent):
            running.relay.on_frame(frame)
        elif isinstance(frame, Heartbeat):
            if not running.is_ready:
                running.is_ready = True
                _log.info("serving process ready", action="process.ready", process=running.number, pid=running.pid)
                if self._is_serving:
                    running.channel.send(Serve())
        elif isinstance(frame, MetricsReply):
            self._registry.update_process(running.pid, merged_metrics.decode_metrics(frame.content))
            reply = None if frame.number is None else self._replies.get(frame.number)
            if reply is not None and not reply.done():
                reply.set_result(None)


class _Process:
    def __init__(self, number: int, process: subprocess.Popen[bytes], channel: Channel, relay: Relay) -> None:
        self.number = number
        self.process = process
        self.pid = process.pid
        self.channel = channel
        self.relay = relay
        self.is_ready = False


class _ProcessCollector(Collector):
    """Metrics of the serving processes: those that are ready, and restarts."""

    def __init__(self, processes: ServingProcesses) -> None:
        self._processes = processes

    def collect(self) -> Iterator[Metric]:
        ready, restarts = self._processes.ready_count, self._processes.restarts
        yield GaugeMetricFamily("headgate_serving_processes", "Processes that serve the ports and are ready.", ready)
        yield CounterMetricFamily("headgate_serving_process_restarts", "Serving processes started again.", restarts)


def _spawn(start: ServingStart, channel: int, alive: int, listening: int, memory: int) -> subprocess.Popen[bytes]:
    descriptors = [channel, alive, listening, memory]
    command = [sys.executable, "-m", "headgate.serve.processes.process", *map(str, descriptors)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=descriptors)
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin:
        process.stdin.write(pickle.dumps(start))
    return process


def _wait_exit(process: subprocess.Popen[bytes]) -> int:
    # It has disconnected, and exits by itself.
    try:
        return process.wait(SILENT_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
