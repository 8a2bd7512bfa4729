"""Overload: requests beyond the limit are refused at once on connections that stay usable; the rest is answered."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvloop

from headgate.serve.http.connection.listener import HttpServer
from headgate.serve.http.limits.load_shedder import HOLD_SECONDS, LoadShedder
from headgate.settings import Address, LimitSettings
from tests.asgi_lifespan import run_lifespan


class App:
    """Answers when it is allowed to; `/stream` begins its response at once and ends it then."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.paths: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await run_lifespan(receive, send)
            return
        self.paths.append(scope["path"])
        start = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]}
        if scope["path"] == "/stream":
            await send(start)
        if scope["path"] != "/quick":
            await self.may_answer.wait()
        if scope["path"] != "/stream":
            await send(start)
        await send({"type": "http.response.body", "body": b"ok", "more_body": False})


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    def send(self, path: str, method: str = "GET", body: bytes = b"", more: str = "") -> None:
        length = f"content-length: {len(body)}\r\n" if body else ""
        self._writer.write(f"{method} {path} HTTP/1.1\r\nhost: localhost\r\n{length}{more}\r\n".encode() + body)

    async def status(self) -> int:
        head = await asyncio.wait_for(self._reader.readuntil(b"\r\n\r\n"), 5)
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:-2])
        await self._reader.readexactly(int(fields[b"content-length"]))
        status = int(head.split()[1])
        assert (status == 503) == (b"retry-after" in fields)
        return status

    async def begun(self) -> None:
        await asyncio.wait_for(self._reader.readuntil(b"\r\n\r\n"), 5)


def serve(with_clients: Callable[[App, HttpServer, Callable[[], Awaitable[Client]]], Awaitable[None]]) -> None:
    async def run() -> None:
        app, clients = App(), list[asyncio.StreamWriter]()
        # No pass of a slow machine is too long: only tasks in flight are limited.
        shedder = LoadShedder(in_flight_max=2, pass_cpu_seconds=60.0, pass_seconds=60.0)
        server = HttpServer(Address("127.0.0.1", 0), limits=LimitSettings(in_flight=2), shedder=shedder)
        serving = await server.start(app, grace_seconds=1)

        async def connect() -> Client:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.address.port)
            clients.append(writer)
            return Client(reader, writer)

        try:
            await with_clients(app, server, connect)
        finally:
            app.may_answer.set()
            for writer in clients:
                writer.close()
            await server.drain()
            await serving

    asyncio.run(run())


async def _busy(app: App, connect: Callable[[], Awaitable[Client]], count: int) -> list[Client]:
    clients = [await connect() for _ in range(count)]
    for client in clients:
        client.send("/slow")
    while len(app.paths) < count:
        await asyncio.sleep(0.001)
    return clients


def test_request__beyond_the_limit__is_refused_at_once_and_its_connection_stays_usable() -> None:
    async def check(app: App, server: HttpServer, connect: Callable[[], Awaitable[Client]]) -> None:
        busy = await _busy(app, connect, 2)
        late = await connect()
        late.send("/late", "POST", b"x" * 5_000)
        assert await late.status() == 503
        late.send("/late")
        assert await late.status() == 503
        app.may_answer.set()
        assert [await each.status() for each in busy] == [200, 200]
        late.send("/late")
        assert await late.status() == 200
        assert sum(server.shedder.shed_counts.values()) == 2

    serve(check)


def test_request__with_a_body_of_a_batch__is_refused_with_an_answer_and_not_by_a_reset() -> None:
    async def check(app: App, _server: HttpServer, connect: Callable[[], Awaitable[Client]]) -> None:
        await _busy(app, connect, 2)
        late = await connect()
        # More than the socket buffers hold: a server that closes now would reset the connection.
        late.send("/late", "POST", b"x" * 900_000)
        assert await late.status() == 503
        app.may_answer.set()
        late.send("/late")
        assert await late.status() == 200

    serve(check)


def test_probe__server_overloaded__is_answered_and_a_page_is_refused_first() -> None:
    async def check(app: App, _server: HttpServer, connect: Callable[[], Awaitable[Client]]) -> None:
        await _busy(app, connect, 1)
        page, probe = await connect(), await connect()
        page.send("/ui")
        assert await page.status() == 503
        await _busy(app, connect, 1)
        probe.send("/health/live")
        app.may_answer.set()
        assert await probe.status() == 200

    serve(check)


def test_streams__that_have_begun__do_not_count() -> None:
    async def check(_app: App, _server: HttpServer, connect: Callable[[], Awaitable[Client]]) -> None:
        for _ in range(5):
            stream = await connect()
            stream.send("/stream")
            await stream.begun()
        quick = await connect()
        quick.send("/quick")
        assert await quick.status() == 200

    serve(check)


def test_connections__many_at_once__are_accepted_in_a_few_passes_of_the_loop() -> None:
    async def run() -> int:
        app = App()
        server = HttpServer(
            Address("127.0.0.1", 0), shedder=LoadShedder(in_flight_max=1_000, pass_cpu_seconds=60.0, pass_seconds=60.0)
        )
        serving = await server.start(app, grace_seconds=1)
        # Connected by the kernel, while the loop of the server does not run.
        clients = [socket.create_connection(("127.0.0.1", server.address.port)) for _ in range(200)]
        for client in clients:
            client.sendall(b"GET /quick HTTP/1.1\r\nhost: localhost\r\n\r\n")
        passes = 0
        while len(app.paths) < len(clients):
            await asyncio.sleep(0)
            passes += 1
        for client in clients:
            client.close()
        await server.drain()
        await serving
        return passes

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(run()) < 100


def test_body__expected_or_long__is_refused_without_reading_it() -> None:
    async def check(app: App, _server: HttpServer, connect: Callable[[], Awaitable[Client]]) -> None:
        await _busy(app, connect, 2)
        waits, long = await connect(), await connect()
        waits.send("/late", "POST", more="content-length: 10\r\nexpect: 100-continue\r\n")
        assert await waits.status() == 503
        long.send("/late", "POST", more="content-length: 5000000\r\n")
        assert await long.status() == 503

    serve(check)


@pytest.mark.parametrize(
    "framing",
    [
        "content-length: 100000\r\n",
        "content-length:\t50\r\n",
        "content-length: 50 \r\n",
        "content-length: 0\r\ncontent-length: 50\r\n",
        "transfer-encoding : chunked\r\n",
    ],
    ids=["long", "tab", "space", "twice", "chunked"],
)
def test_head__alone_with_a_body_to_come__its_body_is_no_request(framing: str) -> None:
    async def check(app: App, _server: HttpServer, connect: Callable[[], Awaitable[Client]]) -> None:
        busy = await _busy(app, connect, 2)
        late = await connect()
        late.send("/late", "POST", more=framing)
        # Longer than a refusal is held back.
        await asyncio.sleep(2 * HOLD_SECONDS)
        app.may_answer.set()
        assert [await each.status() for each in busy] == [200, 200]
        # The body, which looks like a request.
        late.send("/smuggled")
        await asyncio.sleep(2 * HOLD_SECONDS)
        assert app.paths == ["/slow", "/slow"]

    serve(check)
