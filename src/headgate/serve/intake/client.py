"""Intake client: starts the intake process under write load and offloads write calls to it.

Python runs one thread at a time: decoding thousands of evidence rows a second would delay every read. The client
passes such calls on undecoded and returns the answers. While the process is not running, the server answers the calls
itself, with the same results.
"""

from __future__ import annotations

import asyncio
import itertools
import pickle
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import structlog
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from headgate.auth.principals import Principal
from headgate.batch_pacer import BatchPacer
from headgate.clock import Clock
from headgate.errors import IntakeEndedError
from headgate.serve.intake.connection import IntakeConnection
from headgate.serve.intake.frames import CallFrame, FailureFrame, Frame, Heartbeat, MetricsRequest, ResultFrame
from headgate.serve.runtime import merged_metrics
from headgate.serve.runtime.process_count import available_cores, process_count
from headgate.settings import Settings
from headgate.store.cache.read_through import Cache

if TYPE_CHECKING:
    # Their libraries are an extra. Without it there are no calls.
    from headgate.serve.rpc.codec import Codec
    from headgate.serve.rpc.methods import Method, RpcCall

# Load within one second that starts the process.
CALLS_MANY: Final = 50
BYTES_MANY: Final = 2 * 1024 * 1024
# Heartbeat timeout of a running process, and start timeout. After either the process is killed.
SILENT_SECONDS_MAX: Final = 8.0
START_SECONDS_MAX: Final = 60.0
RESTART_SECONDS: Final = 5.0
COUNT_SECONDS_MAX: Final = 2.0
STOP_SECONDS_MAX: Final = 3.0
_CHECK_SECONDS: Final = 1.0
_log = structlog.get_logger(__name__)


class LoadMeter:
    """Measures the write load of the current second."""

    def __init__(self) -> None:
        self._second = -1
        self._calls = 0
        self._bytes = 0

    def is_high(self, now: float, content_bytes: int) -> bool:
        """Count a call, and return whether the load of this second is high."""
        if int(now) != self._second:
            self._second, self._calls, self._bytes = int(now), 0, 0
        self._calls += 1
        self._bytes += content_bytes
        return self._calls >= CALLS_MANY or self._bytes >= BYTES_MANY


class IntakeClient:
    """Offloads calls to the intake process, and starts it on demand. Runs on one event loop."""

    def __init__(self, settings: Settings, clock: Clock, cache: Cache, registry: merged_metrics.MergedRegistry) -> None:
        self._settings = settings
        self._clock = clock
        self._cache = cache
        self._registry = registry
        self._mode = _effective_mode(settings)
        self._load = LoadMeter()
        self._numbers = itertools.count()
        self._pending: dict[int, Callable[[bytes | Exception], None]] = {}
        self._child: _Child | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._restart_at = 0.0
        self._is_closed = False
        self._shed: dict[str, int] = {}
        self.starts = 0
        self.calls = 0
        registry.register(_IntakeCollector(self))

    @property
    def is_ready(self) -> bool:
        """Whether the process accepts calls now."""
        return self._child is not None and self._child.is_ready

    def start(self) -> None:
        """Start the process now in mode "always"."""
        if self._mode == "always":
            self._ensure_started()

    def accepts(self, content_bytes: int) -> bool:
        """Whether a call may be submitted now. Counts the load, and starts the process once it is high."""
        if self._child is not None:
            return self._child.is_ready
        if self._mode != "never" and not self._is_closed:
            now = self._clock.monotonic()
            is_wanted = self._mode == "always" or self._load.is_high(now, content_bytes)
            if is_wanted and now >= self._restart_at:
                self._ensure_started()
        return False

    def submit(
        self,
        method: Method,
        content: bytes,
        codec: Codec,
        call: RpcCall,
        principal: Principal,
        name: str,
        on_result: Callable[[bytes | Exception], None],
    ) -> None:
        """Submit a call. `on_result` gets the answer, an `RpcFailure`, or `IntakeEndedError` if the process exits."""
        self.calls += 1
        remaining_seconds = call.remaining_seconds()
        number = next(self._numbers)
        frame = CallFrame(number, method.path, codec.name, content, name, call.peer, principal, remaining_seconds)
        self._send(frame, on_result)

    def call(
        self, method: Method, content: bytes, codec: Codec, call: RpcCall, principal: Principal, name: str
    ) -> asyncio.Future[bytes]:
        """Submit a call, and return a future of its answer or failure."""
        future, on_result = _result_future()
        self.submit(method, content, codec, call, principal, name, on_result)
        return future

    async def collect_metrics(self) -> None:
        """Refresh the metrics of the process in the registry; keep the previous values on a timeout."""
        child = self._child
        if child is None or not child.is_ready:
            return
        with suppress(TimeoutError, IntakeEndedError):
            async with asyncio.timeout(COUNT_SECONDS_MAX):
                metrics, on_result = _result_future()
                self._send(MetricsRequest(next(self._numbers)), on_result)
                content = await metrics
                self._registry.update_process(child.process.pid, merged_metrics.decode_metrics(content))

    def shed_count(self, dataset_urn: str) -> int:
        """Return how many evidence rows of a dataset the process has shed."""
        return self._shed.get(dataset_urn, 0)

    async def close(self) -> None:
        """Close the connection and wait until the process has finished its calls and exited."""
        self._is_closed = True
        if self._child is not None:
            self._child.connection.close()
        if self._supervisor is not None:
            await self._supervisor

    def _send(self, frame: CallFrame | MetricsRequest, on_result: Callable[[bytes | Exception], None]) -> None:
        assert self._child is not None, "callers check `is_ready` first"
        self._pending[frame.number] = on_result
        self._child.connection.send(frame)

    def _on_frame(self, frame: Frame) -> None:
        if isinstance(frame, ResultFrame):
            _schedule(self._pending.pop(frame.number), frame.content)
        elif isinstance(frame, FailureFrame):
            from headgate.serve.rpc.errors import RpcFailure

            failure = RpcFailure.from_rich_status(frame.code, frame.status)
            _schedule(self._pending.pop(frame.number), failure)
        elif isinstance(frame, Heartbeat):
            self._shed.update(frame.shed)
            if self._child is not None and not self._child.is_ready:
                self._child.is_ready = True
                _log.info("intake ready", action="intake.ready", pid=self._child.process.pid)

    def _ensure_started(self) -> None:
        if self._supervisor is None or self._supervisor.done():
            self._restart_at = self._clock.monotonic() + RESTART_SECONDS
            self._supervisor = asyncio.create_task(self._supervise())

    async def _supervise(self) -> None:
        """Start a process, and supervise it until it exits."""
        ours, theirs = socket.socketpair()
        lost = asyncio.Event()
        connection = IntakeConnection(
            self._cache, self._clock, on_frame=self._on_frame, on_lost=lost.set, pace=BatchPacer()
        )
        with theirs:
            process = await asyncio.to_thread(_spawn, theirs.fileno(), self._settings)
        await asyncio.get_running_loop().create_unix_connection(lambda: connection, sock=ours)
        self._child = child = _Child(process, connection)
        self.starts += 1
        if self._is_closed:
            connection.close()
        started_at = self._clock.monotonic()
        with self._cache.forwarding(connection.invalidate):
            while not lost.is_set():
                with suppress(TimeoutError):
                    await asyncio.wait_for(lost.wait(), _CHECK_SECONDS)
                limit_seconds = SILENT_SECONDS_MAX if child.is_ready else START_SECONDS_MAX
                if self._clock.monotonic() - max(connection.received_at, started_at) > limit_seconds:
                    process.kill()
        self._child = None
        self._registry.end_process(process.pid)
        self._fail_pending()
        status = await asyncio.to_thread(_wait_exit, process)
        if not self._is_closed:
            self._restart_at = self._clock.monotonic() + RESTART_SECONDS
            _log.warning("intake process exited", action="intake.end", pid=process.pid, status=status)

    def _fail_pending(self) -> None:
        pending, self._pending = self._pending, {}
        for on_result in pending.values():
            _schedule(
                on_result,
                IntakeEndedError(
                    "the intake process exited during this call, which may have taken effect; retry it: "
                    "calls are idempotent"
                ),
            )


class _Child:
    def __init__(self, process: subprocess.Popen[bytes], connection: IntakeConnection) -> None:
        self.process = process
        self.connection = connection
        self.is_ready = False


class _IntakeCollector(Collector):
    """Metrics of the intake: up, starts, calls."""

    def __init__(self, intake: IntakeClient) -> None:
        self._intake = intake

    def collect(self) -> Iterator[Metric]:
        intake = self._intake
        yield GaugeMetricFamily("headgate_intake_up", "1: write calls go to a second process.", intake.is_ready)
        yield CounterMetricFamily("headgate_intake_starts", "Starts of the second process.", intake.starts)
        yield CounterMetricFamily("headgate_intake_calls", "Calls offloaded to it.", intake.calls)


def _schedule(on_result: Callable[[bytes | Exception], None], outcome: bytes | Exception) -> None:
    # Through the loop: an exception in one callback must not break the connection for all.
    asyncio.get_running_loop().call_soon(on_result, outcome)


def _result_future() -> tuple[asyncio.Future[bytes], Callable[[bytes | Exception], None]]:
    """Return a future and the callback that settles it unless it was cancelled."""
    future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def on_result(outcome: bytes | Exception) -> None:
        if future.done():
            return
        if isinstance(outcome, bytes):
            future.set_result(outcome)
        else:
            future.set_exception(outcome)

    return future, on_result


def _effective_mode(settings: Settings) -> str:
    """Return the configured mode, or "never" where this server cannot run an intake."""
    # The region lease and trace spans live in one process. Several serving processes handle writes themselves.
    if settings.region.name is not None or settings.telemetry.tracing or process_count(settings) > 1:
        return "never"
    mode = settings.health.intake
    return "never" if mode == "auto" and available_cores() == 1 else mode


def _spawn(descriptor: int, settings: Settings) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "headgate.serve.intake.process", str(descriptor)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=[descriptor])
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin:
        process.stdin.write(pickle.dumps(settings))
    return process


def _wait_exit(process: subprocess.Popen[bytes]) -> int:
    try:
        return process.wait(STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
