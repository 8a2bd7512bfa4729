"""A client that resets its connection at once has no address: it is not a local program, and its request is not run.

The kernel still delivers what such a client sent, but no longer says who it was.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any

import pytest
import uvloop

from headgate.auth.authenticator import Authenticator
from headgate.serve.http.authentication import Authentication
from headgate.serve.http.connection.listener import HttpServer
from headgate.serve.runtime.thread_pool import WorkPool
from headgate.settings import Address
from tests.asgi_lifespan import run_lifespan

REQUEST = b"POST /changes HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n"
RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class App:
    """Records the clients of its requests."""

    def __init__(self) -> None:
        self.clients: list[Any] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await run_lifespan(receive, send)
            return
        self.clients.append(scope["client"])
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


@pytest.mark.parametrize("new_loop", [uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
def test_request__client_reset_the_connection_before_it_was_accepted__is_not_run(new_loop: Any) -> None:
    async def run() -> list[Any]:
        app = App()
        server = HttpServer(Address("127.0.0.1", 0))
        serving = await server.start(app, grace_seconds=1)
        # Connected by the kernel, while the loop of the server does not run.
        for _ in range(3):
            client = socket.create_connection(("127.0.0.1", server.address.port))
            client.sendall(REQUEST)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            client.close()
        # Accepted and answered after them.
        _, writer = await asyncio.open_connection("127.0.0.1", server.address.port)
        writer.write(REQUEST)
        while not any(app.clients):
            await asyncio.sleep(0.001)
        writer.close()
        await server.drain()
        await serving
        return app.clients

    with asyncio.Runner(loop_factory=new_loop) as runner:
        clients = runner.run(run())

    assert [client and client[0] for client in clients] == ["127.0.0.1"]


def test_caller__without_an_address__is_not_local() -> None:
    principals = []

    async def app(scope: Any, _receive: Any, _send: Any) -> None:
        principals.append(scope["principal"])

    async def unused(*_: Any) -> Any:
        raise AssertionError("nothing is read or sent")

    pool = WorkPool(threads_max=1)
    scope: Any = {"type": "http", "method": "POST", "path": "/changes", "headers": [], "client": None}
    try:
        asyncio.run(Authentication(app, Authenticator(), pool)(scope, unused, unused))
    finally:
        pool.close()

    assert principals == [None]
