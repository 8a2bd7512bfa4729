"""The intake in one process: its frames, when it is wanted, what it receives, and what is counted in two places."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import (  # type: ignore[import-untyped]  # not marked as typed
    BadRequest,
    ErrorInfo,
    RetryInfo,
)
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from headgate.auth.principals import LOCAL
from headgate.batch_pacer import FULL_BATCH, BatchPacer
from headgate.clock import VirtualClock
from headgate.serve.intake.client import BYTES_MANY, CALLS_MANY, LoadMeter
from headgate.serve.intake.connection import IntakeConnection
from headgate.serve.intake.frames import (
    CallFrame,
    FailureFrame,
    Frame,
    Heartbeat,
    InvalidateFrame,
    MetricsRequest,
    ResultFrame,
    decoder,
    invalidations,
)
from headgate.serve.rpc.errors import RpcFailure
from headgate.serve.runtime import merged_metrics
from headgate.serve.runtime.frame_stream import FrameDecoder, encode_frame
from headgate.serve.runtime.merged_metrics import MergedRegistry, decode_metrics
from headgate.store.cache import keys as cache_keys
from headgate.store.cache.read_through import Cache
from headgate.store.cache.shared import Invalidation

KEY = cache_keys.signal_state("urn:dp:a", "FRESHNESS")
GROUP = cache_keys.signal_states_of("urn:dp:a")
FRAMES: list[Frame] = [
    CallFrame(1, "/a.B/C", "proto", b"\x00" * 300_000, "req_1", "127.0.0.1:1", LOCAL, 1.5),
    InvalidateFrame([(KEY, 7), (GROUP, None)]),
    ResultFrame(1, b""),
    FailureFrame(2, "forbidden", b"\x01"),
    MetricsRequest(3),
    Heartbeat({"urn:dp:a": 2}),
]


@pytest.mark.parametrize("seed", range(5))
def test_incoming__frames_in_pieces_of_any_size__come_out_whole_and_in_order(seed: int) -> None:
    draw = random.Random(seed)
    stream = b"".join(map(encode_frame, FRAMES)) * 3
    incoming, found = FrameDecoder(decoder), list[Frame]()
    while stream:
        size = draw.choice([1, 3, 100, 65_536, 250_000])
        found += incoming.frames(stream[:size])
        stream = stream[size:]
    assert found == FRAMES * 3


def test_forgotten__key_and_group__stay_what_they_are() -> None:
    assert list(invalidations(InvalidateFrame([(KEY, 7), (GROUP, None)]))) == [
        Invalidation(KEY, 7),
        Invalidation(GROUP, None),
    ]


def test_pressure__many_calls_in_one_second__is_high() -> None:
    pressure = LoadMeter()
    assert not any(pressure.is_high(10.0 + place / 1000, 100) for place in range(CALLS_MANY - 1))
    assert pressure.is_high(10.9, 100)


def test_pressure__as_many_over_several_seconds__is_not() -> None:
    pressure = LoadMeter()
    assert not any(pressure.is_high(10.0 + place / 10, 100) for place in range(10 * CALLS_MANY))


def test_pressure__few_large_calls__is_high() -> None:
    pressure = LoadMeter()
    assert not pressure.is_high(10.0, BYTES_MANY - 1)
    assert pressure.is_high(10.5, 1)


def test_reported__what_is_written_or_invalidated_here__and_not_what_was_received() -> None:
    received: list[Invalidation] = []
    cache = Cache(clock=VirtualClock())
    with cache.forwarding(received.extend):
        cache.wrote(KEY, "a value", 3)
        cache.invalidate(GROUP)
        cache.on_invalidated(Invalidation(KEY, 9))
    cache.wrote(KEY, "a value", 10)
    assert received == [Invalidation(KEY, 3), Invalidation(GROUP, None)]


def test_failure__as_a_status_and_back__says_the_same() -> None:
    delay = Duration()
    delay.FromMilliseconds(1500)
    details = [
        ErrorInfo(reason="INVALID_PAYLOAD", domain="headgate"),
        BadRequest(field_violations=[BadRequest.FieldViolation(field="page_size", description="it is from 1 to 100")]),
        RetryInfo(retry_delay=delay),
    ]
    failure = RpcFailure("INVALID_ARGUMENT", "invalid_payload", "page_size 0: it is from 1 to 100", details)
    back = RpcFailure.from_rich_status(failure.code, failure.rich_status())
    assert (back.status, back.code, back.message, back.details) == (
        failure.status,
        failure.code,
        failure.message,
        failure.details,
    )
    assert back.retry_seconds == 1.5


def _counted(made: int) -> CollectorRegistry:
    registry = CollectorRegistry()
    counter = Counter("updates", "Updates.", ["state"], registry=registry)
    counter.labels("OK").inc(made)
    Histogram("latency", "Milliseconds.", buckets=(1, 5), registry=registry).observe(made)
    Gauge("circuit_breaker_state", "0: closed.", ["breaker"], registry=registry).labels("signals").set(made)
    Gauge("cache_hit_rate", "Percent.", registry=registry).set(made)
    return registry


def test_summed__counted_in_several_processes__counters_add_up_and_the_worst_breaker_shows() -> None:
    summed = MergedRegistry()
    for each in _counted(1)._collector_to_names:
        summed.register(each)
    Counter("own", "Only here.", registry=summed).inc(5)
    summed.update_process(11, decode_metrics(merged_metrics.encode_metrics(_counted(2))))
    summed.update_process(11, decode_metrics(merged_metrics.encode_metrics(_counted(4))))
    summed.update_process(12, decode_metrics(merged_metrics.encode_metrics(_counted(2))))
    assert summed.get_sample_value("updates_total", {"state": "OK"}) == 1 + 4 + 2
    assert summed.get_sample_value("latency_count") == 3
    assert summed.get_sample_value("latency_bucket", {"le": "5.0"}) == 3
    assert summed.get_sample_value("latency_bucket", {"le": "1.0"}) == 1
    assert summed.get_sample_value("circuit_breaker_state", {"breaker": "signals"}) == 4
    assert summed.get_sample_value("cache_hit_rate") == 1, "of this process alone"
    assert summed.get_sample_value("own_total") == 5
    assert b'updates_total{state="OK"} 7.0' in generate_latest(summed)


def test_summed__counted_elsewhere_alone__is_shown() -> None:
    summed = MergedRegistry()
    summed.update_process(11, decode_metrics(merged_metrics.encode_metrics(_counted(2))))
    assert summed.get_sample_value("updates_total", {"state": "OK"}) == 2


class Wire(asyncio.Transport):
    """Keeps what is written, a list for each time."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[list[Frame]] = []
        self.is_closed = False
        self.came = asyncio.Event()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.written.append(list(FrameDecoder(decoder).frames(b"".join(list_of_data))))
        self.came.set()

    def close(self) -> None:
        self.is_closed = True


class Waits(BatchPacer):
    """Lets the first group leave at once, and the next so many seconds later."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def pause_seconds(self, now: float, waiting: int) -> float:
        return self._seconds if self._started_at and waiting < FULL_BATCH else 0.0


def on_a_line(pace: BatchPacer | None, work: Callable[[IntakeConnection, Wire], Awaitable[None]]) -> None:
    async def run() -> None:
        wire, clock = Wire(), VirtualClock()
        clock.advance(100)
        line = IntakeConnection(Cache(clock=clock), clock, on_frame=lambda _frame: None, pace=pace)
        line.connection_made(wire)
        await work(line, wire)

    asyncio.run(run())


def test_line__without_a_pace__every_frame_leaves_at_once() -> None:
    async def send(line: IntakeConnection, wire: Wire) -> None:
        line.send(MetricsRequest(1))
        line.send(MetricsRequest(2))
        assert wire.written == [[MetricsRequest(1)], [MetricsRequest(2)]]

    on_a_line(None, send)


def test_line__many_frames__leave_together_a_moment_after_those_before_them() -> None:
    async def send(line: IntakeConnection, wire: Wire) -> None:
        line.send(MetricsRequest(1))
        assert wire.written == [[MetricsRequest(1)]]
        wire.came.clear()
        line.send(MetricsRequest(2))
        line.send(MetricsRequest(3))
        assert len(wire.written) == 1
        await asyncio.wait_for(wire.came.wait(), 10)
        assert wire.written[1:] == [[MetricsRequest(2), MetricsRequest(3)]]

    on_a_line(Waits(0.005), send)


def test_line__enough_frames__leave_at_once() -> None:
    async def send(line: IntakeConnection, wire: Wire) -> None:
        line.send(MetricsRequest(0))
        for number in range(1, FULL_BATCH + 2):
            line.send(MetricsRequest(number))
        assert [len(frames) for frames in wire.written] == [1, FULL_BATCH]

    on_a_line(Waits(3600), send)


def test_line__something_to_forget_while_frames_wait__all_leaves_in_its_order() -> None:
    async def send(line: IntakeConnection, wire: Wire) -> None:
        line.send(MetricsRequest(1))
        line.send(MetricsRequest(2))
        wire.came.clear()
        line.invalidate([Invalidation(KEY, 7)])
        await asyncio.wait_for(wire.came.wait(), 10)
        [waited, forget] = wire.written[1]
        assert waited == MetricsRequest(2)
        assert isinstance(forget, InvalidateFrame)

    on_a_line(Waits(3600), send)


def test_line__closed_while_frames_wait__they_leave_first() -> None:
    async def send(line: IntakeConnection, wire: Wire) -> None:
        line.send(MetricsRequest(1))
        line.send(MetricsRequest(2))
        line.close()
        assert wire.written == [[MetricsRequest(1)], [MetricsRequest(2)]]
        assert wire.is_closed

    on_a_line(Waits(3600), send)
