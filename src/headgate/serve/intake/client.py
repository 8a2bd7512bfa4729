"""The intake as its server sees it: a second process that takes over calls which write, once there are many of them.

Python runs in one thread at a time. Where thousands of pieces of evidence a second are decoded and sampled, and
hundreds of signals written, whoever only reads would wait behind them. So these calls are handed over whole, and their
answers passed on. While there is no such process, because there is little to do, it has not come up yet or it has died,
they are answered here as ever: it changes how fast the server is, and nothing else.
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
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from headgate.auth.principals import Principal
from headgate.batch_pacer import Pace
from headgate.clock import Clock
from headgate.errors import IntakeEndedError
from headgate.serve.intake.connection import Line
from headgate.serve.intake.frames import Answer, Ask, Beat, Count, Failed, Frame
from headgate.serve.rpc.codec import Codec
from headgate.serve.rpc.errors import RpcFailure
from headgate.serve.rpc.methods import Method, RpcCall
from headgate.serve.runtime import merged_metrics as meters_elsewhere
from headgate.settings import Settings
from headgate.store.cache.read_through import Cache

# So many calls, or so much in them, within a second are worth a process.
CALLS_MANY: Final = 50
BYTES_MANY: Final = 2 * 1024 * 1024
# One that shows no sign of life for so long is ended; so is one that does not come up.
SILENT_SECONDS_MAX: Final = 8.0
START_SECONDS_MAX: Final = 60.0
AGAIN_SECONDS: Final = 5.0
COUNT_SECONDS_MAX: Final = 2.0
STOP_SECONDS_MAX: Final = 3.0
_LOOK_SECONDS: Final = 1.0
_log = structlog.get_logger(__name__)


class Pressure:
    """Tells from the calls of the last second whether there is enough to do for two."""

    def __init__(self) -> None:
        self._second = -1
        self._calls = 0
        self._bytes = 0

    def is_high(self, now: float, content_bytes: int) -> bool:
        """Count a call at `now`, and return whether there were many in this second."""
        if int(now) != self._second:
            self._second, self._calls, self._bytes = int(now), 0, 0
        self._calls += 1
        self._bytes += content_bytes
        return self._calls >= CALLS_MANY or self._bytes >= BYTES_MANY


class Intake:
    """Hands calls over to a process, and starts it when it is wanted. All on one event loop, but for `told`."""

    def __init__(self, settings: Settings, clock: Clock, cache: Cache, registry: meters_elsewhere.Summed) -> None:
        self._settings = settings
        self._clock = clock
        self._cache = cache
        self._registry = registry
        self._mode = _possible(settings)
        self._pressure = Pressure()
        self._numbers = itertools.count()
        self._pending: dict[int, Callable[[bytes | Exception], None]] = {}
        self._child: _Child | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._again_at = 0.0
        self._is_closed = False
        self._shed: dict[str, int] = {}
        self.starts = 0
        self.calls = 0
        registry.register(_IntakeCollector(self))

    @property
    def is_ready(self) -> bool:
        """Whether calls are handed over now."""
        return self._child is not None and self._child.is_ready

    def start(self) -> None:
        """Start the process now if it is to be there always."""
        if self._mode == "always":
            self._begin()

    def takes(self, content_bytes: int) -> bool:
        """Whether a call may be handed over with `ask`. If many come and there is no process yet, it is started."""
        if self._child is not None:
            return self._child.is_ready
        if self._mode != "never" and not self._is_closed:
            now = self._clock.monotonic()
            is_wanted = self._mode == "always" or self._pressure.is_high(now, content_bytes)
            if is_wanted and now >= self._again_at:
                self._begin()
        return False

    def ask(
        self,
        method: Method,
        content: bytes,
        codec: Codec,
        call: RpcCall,
        principal: Principal,
        name: str,
        told: Callable[[bytes | Exception], None],
    ) -> None:
        """Hand a call over, and have `told` called with its answer.

        Or with what it failed with: `RpcFailure`, or `IntakeEndedError` if the process ends before.
        """
        self.calls += 1
        remaining_seconds = call.remaining_seconds()
        number = next(self._numbers)
        self._send(Ask(number, method.path, codec.name, content, name, call.peer, principal, remaining_seconds), told)

    def asked(
        self, method: Method, content: bytes, codec: Codec, call: RpcCall, principal: Principal, name: str
    ) -> asyncio.Future[bytes]:
        """Hand a call over, and return what will be its answer, or raise what it failed with."""
        future, told = _awaited()
        self.ask(method, content, codec, call, principal, name, told)
        return future

    async def count(self) -> None:
        """Have what the process has counted added to the metrics. What it does not say in time is as it was."""
        child = self._child
        if child is None or not child.is_ready:
            return
        with suppress(TimeoutError, IntakeEndedError):
            async with asyncio.timeout(COUNT_SECONDS_MAX):
                counted, told = _awaited()
                self._send(Count(next(self._numbers)), told)
                content = await counted
                self._registry.heard(child.process.pid, meters_elsewhere.unpacked(content))

    def shed_of(self, dataset_urn: str) -> int:
        """Return how much evidence of a dataset was turned away there."""
        return self._shed.get(dataset_urn, 0)

    async def close(self) -> None:
        """End the process, once it has done what it was asked."""
        self._is_closed = True
        if self._child is not None:
            self._child.line.close()
        if self._keeping is not None:
            await self._keeping

    def _send(self, frame: Ask | Count, told: Callable[[bytes | Exception], None]) -> None:
        assert self._child is not None, "who asks has seen that it is there"
        self._pending[frame.number] = told
        self._child.line.send(frame)

    def _take(self, frame: Frame) -> None:
        if isinstance(frame, Answer):
            self._tell(self._pending.pop(frame.number), frame.content)
        elif isinstance(frame, Failed):
            failure = RpcFailure.from_rich_status(frame.code, frame.status)
            self._tell(self._pending.pop(frame.number), failure)
        elif isinstance(frame, Beat):
            self._shed.update(frame.shed)
            if self._child is not None and not self._child.is_ready:
                self._child.is_ready = True
                _log.info("the intake is ready", action="intake.ready", pid=self._child.process.pid)

    def _begin(self) -> None:
        if self._keeping is None or self._keeping.done():
            self._again_at = self._clock.monotonic() + AGAIN_SECONDS
            self._keeping = asyncio.create_task(self._keep())

    async def _keep(self) -> None:
        """Start a process, and stay with it until it has ended."""
        ours, theirs = socket.socketpair()
        lost = asyncio.Event()
        line = Line(self._cache, self._clock, take=self._take, lost=lost.set, pace=Pace())
        with theirs:
            process = await asyncio.to_thread(_spawned, theirs.fileno(), self._settings)
        await asyncio.get_running_loop().create_unix_connection(lambda: line, sock=ours)
        self._child = child = _Child(process, line)
        self._cache.told = line.told
        self.starts += 1
        if self._is_closed:
            line.close()
        started_at = self._clock.monotonic()
        while not lost.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(lost.wait(), _LOOK_SECONDS)
            limit_seconds = SILENT_SECONDS_MAX if child.is_ready else START_SECONDS_MAX
            if self._clock.monotonic() - max(line.heard_at, started_at) > limit_seconds:
                process.kill()
        self._child = self._cache.told = None
        self._fail_pending()
        status = await asyncio.to_thread(_ended, process)
        if not self._is_closed:
            self._again_at = self._clock.monotonic() + AGAIN_SECONDS
            _log.warning("the intake ended", action="intake.end", pid=process.pid, status=status)

    def _fail_pending(self) -> None:
        pending, self._pending = self._pending, {}
        for told in pending.values():
            self._tell(
                told,
                IntakeEndedError(
                    "the process that was answering this call has ended; what it began may be done, and the same "
                    "call again does nothing twice: send it again"
                ),
            )

    def _tell(self, told: Callable[[bytes | Exception], None], outcome: bytes | Exception) -> None:
        # By the loop: whatever goes wrong with one caller's answer must not end the line for all.
        asyncio.get_running_loop().call_soon(told, outcome)


class _Child:
    def __init__(self, process: subprocess.Popen[bytes], line: Line) -> None:
        self.process = process
        self.line = line
        self.is_ready = False


class _IntakeCollector(Collector):
    """Whether the process is there, how often it was started, and how much it was given."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake

    def collect(self) -> Iterator[Metric]:
        intake = self._intake
        yield GaugeMetricFamily("headgate_intake_up", "1: calls that write go to a second process.", intake.is_ready)
        yield CounterMetricFamily("headgate_intake_starts", "Starts of the second process.", intake.starts)
        yield CounterMetricFamily("headgate_intake_calls", "Calls that were handed over to it.", intake.calls)


def _awaited() -> tuple[asyncio.Future[bytes], Callable[[bytes | Exception], None]]:
    """Return a future, and what settles it. Nobody may wait for it any more when it is."""
    future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def told(outcome: bytes | Exception) -> None:
        if future.done():
            return
        if isinstance(outcome, bytes):
            future.set_result(outcome)
        else:
            future.set_exception(outcome)

    return future, told


def _possible(settings: Settings) -> str:
    """Return what the settings ask for, as far as this server can do it."""
    # A region's lease and the spans of a trace are kept by one process.
    if settings.region.name is not None or settings.telemetry.tracing:
        return "never"
    mode = settings.health.intake
    return "never" if mode == "auto" and _cores() == 1 else mode


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _spawned(descriptor: int, settings: Settings) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "headgate.serve.intake.process", str(descriptor)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=[descriptor])
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin:
        process.stdin.write(pickle.dumps(settings))
    return process


def _ended(process: subprocess.Popen[bytes]) -> int:
    try:
        return process.wait(STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
