"""Load: requests over raw connections that are kept alive, one by one or at set times, and what became of them.

Small enough that the server is what limits: a request is bytes that are ready, of an answer only the status and the
length are looked at.
"""

from __future__ import annotations

import asyncio
import gc
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from time import perf_counter, process_time
from typing import NamedTuple, TypeVar, cast

import grpc.aio
import uvloop
from msgspec import Struct

from headgate.settings import Address

CONNECTIONS = 16
PACKAGE = "/observability.statestore.v1."
_LENGTH = b"content-length: "
_OK = b"HTTP/1.1 200"
_TICK_SECONDS = 0.001
# How long what is still under way at the end may take to be answered.
_PATIENCE_SECONDS = 10.0

T = TypeVar("T")


def run(work: Awaitable[T]) -> T:
    """Run a coroutine in a loop of its own, without pauses for the collection of garbage."""

    async def awaited() -> T:
        return await work

    gc.collect()
    gc.disable()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(awaited())
    finally:
        gc.enable()


def request(path: str, content: bytes, media: str = "application/proto") -> bytes:
    """Return a POST as it goes over the wire."""
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: {media}\r\ncontent-length: {len(content)}\r\n\r\n"
    return head.encode() + content


class Connection(asyncio.Protocol):
    """A connection on which one request is under way at a time."""

    def __init__(self, answered: Callable[[Connection, bool, bytes], None], lost: Callable[[Connection], None]) -> None:
        """Call `answered` with each answer: whether it is a success, and its body; `lost` once the server has left."""
        self.intended_at = 0.0
        self._answered = answered
        self._lost = lost
        self._transport: asyncio.Transport | None = None
        self._parts: list[bytes] = []
        self._missing = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # One of uvloop's own, which says of itself only that it behaves like this.
        self._transport = cast("asyncio.Transport", transport)

    def send(self, content: bytes) -> None:
        assert self._transport is not None
        self._transport.write(content)

    def data_received(self, data: bytes) -> None:
        if self._missing > 0:
            self._parts.append(data)
            self._missing -= len(data)
        else:
            data = b"".join((*self._parts, data))
            end = data.find(b"\r\n\r\n")
            if end < 0:
                self._parts = [data]
                return
            start = data.find(_LENGTH) + len(_LENGTH)
            length = int(data[start : data.find(b"\r\n", start)])
            self._parts = [data]
            self._missing = end + 4 + length - len(data)
        if self._missing <= 0:
            whole = b"".join(self._parts)
            self._parts, self._missing = [], 0
            self._answered(self, whole.startswith(_OK), whole[whole.find(b"\r\n\r\n") + 4 :])

    def connection_lost(self, _error: Exception | None) -> None:
        self._lost(self)

    def close(self) -> None:
        self._lost = lambda _connection: None
        if self._transport is not None:
            self._transport.close()


async def one_by_one(address: Address, requests: Iterable[bytes], connections: int = CONNECTIONS) -> list[bytes]:
    """Send requests over several connections, on each the next once the last was answered; return the bodies."""
    waiting: Iterator[bytes] = iter(requests)
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    busy = connections
    bodies: list[bytes] = []

    def answered(connection: Connection, is_good: bool, body: bytes) -> None:  # noqa: FBT001
        nonlocal busy
        if not is_good and not done.done():
            done.set_exception(AssertionError(f"refused: {body[:400]!r}"))
            return
        bodies.append(body)
        following = next(waiting, None)
        if following is not None:
            connection.send(following)
            return
        busy -= 1
        if busy == 0 and not done.done():
            done.set_result(None)

    def lost(_connection: Connection) -> None:
        if not done.done():
            done.set_exception(AssertionError("the server has closed a connection"))

    opened = [
        (await loop.create_connection(lambda: Connection(answered, lost), address.host, address.port))[1]
        for _ in range(connections)
    ]
    for each in opened:
        each.send(next(waiting))
    await done
    for each in opened:
        each.close()
    return bodies


async def rpc_one_by_one(address: Address, path: str, contents: Sequence[bytes], channels: int = 4) -> None:
    """Make calls over gRPC, so many at a time as there are connections elsewhere."""
    waiting = iter(contents)
    # Or all would share one connection.
    options = [("grpc.use_local_subchannel_pool", 1)]
    opened = [grpc.aio.insecure_channel(str(address), options=options) for _ in range(channels)]

    async def caller(channel: grpc.aio.Channel) -> None:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(path)
        for content in waiting:
            await call(content)

    await asyncio.gather(*(caller(opened[number % channels]) for number in range(CONNECTIONS)))
    for each in opened:
        await each.close()


class Row(Struct):
    """What is asked at a set rate: `make` returns the next request, `took` is given the body of each good answer."""

    name: str
    rate: float
    goal_ms: float
    make: Callable[[], bytes]
    connections: int = CONNECTIONS
    took: Callable[[bytes], None] = lambda _body: None
    # How many operations a request is.
    each: int = 1
    # Whether requests are made before the first is sent: making one takes so long that others would be sent late.
    is_ahead: bool = False


class Told(NamedTuple):
    """What became of a row."""

    row: Row
    asked: float
    held: float
    p50_ms: float
    p99_ms: float
    failed: int

    @property
    def is_held(self) -> bool:
        """Whether nothing failed, all was answered, and soon enough."""
        return self.failed == 0 and self.held >= 0.99 * self.asked and self.p99_ms <= self.row.goal_ms


class Loaded(NamedTuple):
    """What became of all rows, and how much of this machine's cores making the load took."""

    rows: list[Told]
    seconds: float
    own_cpu: float


async def at_set_times(address: Address, rows: Sequence[Row], seconds: float, warm_seconds: float = 1.0) -> Loaded:
    """Ask at set times, whether the server keeps up or not, and measure from when each was to be sent.

    What is to be sent in the first seconds only warms up, and is not counted.
    """
    senders = [_Sender(row) for row in rows]
    for sender in senders:
        sender.prepare(warm_seconds + seconds)
        await sender.connect(address)
    started_at = perf_counter()
    counted_from, ends_at = started_at + warm_seconds, started_at + warm_seconds + seconds
    cpu = 0.0
    for sender in senders:
        sender.begin(started_at, counted_from)
    while (now := perf_counter()) < ends_at:
        if now < counted_from:
            cpu = process_time()
        for sender in senders:
            sender.send_due(now)
        await asyncio.sleep(_TICK_SECONDS)
    own_cpu = (process_time() - cpu) / seconds
    for sender in senders:
        await sender.finish(ends_at + _PATIENCE_SECONDS)
    return Loaded([sender.told(seconds) for sender in senders], seconds, own_cpu)


class _Sender:
    """Sends the requests of one row."""

    def __init__(self, row: Row) -> None:
        self._row = row
        self._idle: deque[Connection] = deque()
        self._late: deque[float] = deque()
        self._made: deque[bytes] = deque()
        self._under_way = 0
        self._latencies: list[float] = []
        self._failed = 0
        self._asked = 0
        self._next_at = self._counted_from = 0.0
        self._first_failure = b""
        self._last_at = 0.0
        self._address: Address
        self._opening: asyncio.Future[None] | None = None

    def prepare(self, seconds: float) -> None:
        """Make what will be sent, if it is to be made ahead."""
        if self._row.is_ahead:
            self._made.extend(self._row.make() for _ in range(int(seconds * self._row.rate / self._row.each) + 1))

    async def connect(self, address: Address) -> None:
        self._address = address
        for _ in range(self._row.connections):
            await self._open()

    async def _open(self) -> None:
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: Connection(self._answered, self._lost), self._address.host, self._address.port
        )
        self._idle.append(connection)

    def _lost(self, connection: Connection) -> None:
        """Open another: a server lets go of connections that were idle for some seconds."""
        if connection in self._idle:
            self._idle.remove(connection)
        else:
            self._under_way -= 1
            self._failed += 1
            self._first_failure = self._first_failure or b"the connection was closed"
        self._opening = asyncio.ensure_future(self._open())

    def begin(self, started_at: float, counted_from: float) -> None:
        self._next_at, self._counted_from = started_at, counted_from

    def send_due(self, now: float) -> None:
        """Send what is due, or let it wait for a connection: since when it was to be sent is remembered."""
        step = self._row.each / self._row.rate
        while self._next_at <= now:
            self._late.append(self._next_at)
            if self._next_at >= self._counted_from:
                self._asked += 1
            self._next_at += step
        while self._late and self._idle:
            self._send(self._idle.popleft(), self._late.popleft())

    def _send(self, connection: Connection, intended_at: float) -> None:
        connection.intended_at = intended_at
        self._under_way += 1
        connection.send(self._made.popleft() if self._made else self._row.make())

    def _answered(self, connection: Connection, is_good: bool, body: bytes) -> None:  # noqa: FBT001
        self._under_way -= 1
        if is_good:
            self._row.took(body)
        if connection.intended_at >= self._counted_from:
            self._last_at = perf_counter()
            if is_good:
                self._latencies.append(self._last_at - connection.intended_at)
            else:
                self._failed += 1
                self._first_failure = self._first_failure or body
        if self._late:
            self._send(connection, self._late.popleft())
        else:
            self._idle.append(connection)

    async def finish(self, until: float) -> None:
        """Wait for what is under way, and close the connections."""
        while (self._under_way or self._late) and perf_counter() < until:
            await asyncio.sleep(_TICK_SECONDS)
        for connection in self._idle:
            connection.close()

    def told(self, seconds: float) -> Told:
        if self._first_failure:
            print(f"{self._row.name}: refused, such as {self._first_failure[:300]!r}")
        each, done = self._row.each, sorted(self._latencies)
        p50, p99 = (1000 * done[int(share * (len(done) - 1))] if done else float("inf") for share in (0.5, 0.99))
        # A server that cannot keep up answers some long after the last was to be sent.
        took = max(seconds, self._last_at - self._counted_from)
        return Told(self._row, each * self._asked / seconds, each * len(done) / took, p50, p99, self._failed)
