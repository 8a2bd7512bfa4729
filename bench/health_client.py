"""Calls one by one: requests over raw connections that are kept alive, each once the one before it was answered.

Small enough that the server is what limits: a request is bytes that are ready, of an answer only the status and the
length are looked at.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import TypeVar, cast

import grpc.aio
import uvloop

from headgate.settings import Address

CONNECTIONS = 16
PACKAGE = "/observability.statestore.v1."
_LENGTH = b"content-length: "
_OK = b"HTTP/1.1 200"
_END = b"\r\n\r\n"

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


class Incoming:
    """Puts an answer together from the pieces in which it comes."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._missing = 0

    def take(self, data: bytes) -> bytes | None:
        """Return the answer if it is whole with this piece, else None."""
        if self._missing > 0:
            self._parts.append(data)
            self._missing -= len(data)
        else:
            data = b"".join((*self._parts, data))
            self._parts = [data]
            end = data.find(_END)
            if end < 0:
                return None
            start = data.find(_LENGTH) + len(_LENGTH)
            length = int(data[start : data.find(b"\r\n", start)])
            self._missing = end + len(_END) + length - len(data)
        if self._missing > 0:
            return None
        whole = b"".join(self._parts)
        self._parts, self._missing = [], 0
        return whole


def read(answer: bytes) -> tuple[bool, bytes]:
    """Return whether an answer is a success, and its body."""
    return answer.startswith(_OK), answer[answer.find(_END) + len(_END) :]


class Connection(asyncio.Protocol):
    """A connection on which one request is under way at a time."""

    def __init__(self, answered: Callable[[Connection, bool, bytes], None], lost: Callable[[Connection], None]) -> None:
        """Call `answered` with each answer: whether it is a success, and its body; `lost` once the server has left."""
        self._answered = answered
        self._lost = lost
        self._transport: asyncio.Transport | None = None
        self._incoming = Incoming()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # One of uvloop's own, which says of itself only that it behaves like this.
        self._transport = cast("asyncio.Transport", transport)

    def send(self, content: bytes) -> None:
        assert self._transport is not None
        self._transport.write(content)

    def data_received(self, data: bytes) -> None:
        answer = self._incoming.take(data)
        if answer is not None:
            self._answered(self, *read(answer))

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
