"""The HTTP port: what comes in over a socket and never gets to the application."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import msgspec
import pytest

from headgate.serve.http.connection.listener import HttpServer
from headgate.settings import Address
from tests.integration.serve.conftest import Application


def exchange(application: Application, *requests: bytes) -> list[tuple[int, dict[str, str], bytes]]:
    """Send each over a connection of its own, and return status, headers and body of the answers."""

    async def one(port: int, request: bytes) -> tuple[int, dict[str, str], bytes]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        head, _, body = (await asyncio.wait_for(reader.read(), 10)).partition(b"\r\n\r\n")
        writer.close()
        await writer.wait_closed()
        first, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        return int(first.split()[1]), headers, body

    async def talk(_client: httpx.AsyncClient) -> list[tuple[int, dict[str, str], bytes]]:
        server = HttpServer(Address("127.0.0.1", 0))
        serving = await server.start(application._app, grace_seconds=1)
        try:
            return [await one(server.address.port, request) for request in requests]
        finally:
            await server.drain()
            await serving
            server.close()

    answers: list[tuple[int, dict[str, str], bytes]] = application.session(talk)
    return answers


@pytest.mark.parametrize(
    ("request_bytes", "reason"),
    [
        (b"FOO /api/v1/executions HTTP/1.1\r\nhost: localhost\r\n\r\n", "Invalid method"),
        (b"GET / HTTP/9.9\r\nhost: localhost\r\n\r\n", "Invalid HTTP version"),
        (b"GET / HTTP/1.1\r\nhost: localhost\r\nbad header\r\n\r\n", "Invalid header token"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "Invalid method"),
    ],
    ids=["unknown method", "unknown version", "bad header", "TLS"],
)
def test_request__that_is_not_http__is_400_in_the_shape_of_every_error(
    application: Application, request_bytes: bytes, reason: str
) -> None:
    ((status, headers, body),) = exchange(application, request_bytes)

    found: dict[str, Any] = msgspec.json.decode(body)
    assert (status, found["status"], found["code"]) == (400, 400, "bad_request")
    assert headers["content-type"] == "application/problem+json"
    assert headers["content-length"] == str(len(body))
    assert headers["connection"] == "close"
    assert headers["x-content-type-options"] == "nosniff"
    assert found["type"] == "urn:headgate:error:bad_request"
    assert reason in found["detail"]
    assert found["correlation_id"] == headers["x-correlation-id"] != ""


def test_request__after_one_that_was_not_http__is_answered(application: Application) -> None:
    (refused, _, _), (status, _, _) = exchange(
        application,
        b"FOO / HTTP/1.1\r\n\r\n",
        b"GET /health/live HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
    )

    assert (refused, status) == (400, 200)
