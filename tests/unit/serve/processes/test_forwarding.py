"""Forwarded requests: the application of the first process behaves as if it were asked directly."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headgate.serve.processes.forwarding import Forwarder, Relay
from headgate.serve.processes.frames import BodySent, Frame, ResponseBody, decoder
from headgate.serve.runtime.frame_stream import FrameDecoder, encode_frame

Message = dict[str, Any]
App = Callable[[Any, Any, Any], Awaitable[None]]
SCOPE = {
    "type": "http",
    "method": "POST",
    "path": "/a b",
    "raw_path": b"/a%20b",
    "query_string": b"x=1",
    "headers": [(b"host", b"localhost")],
    "scheme": "https",
    "http_version": "1.1",
    "client": ("10.0.0.9", 4711),
    "server": ("127.0.0.1", 8400),
}


class Wire:
    """A forwarder and a relay, and the frames between them as bytes."""

    def __init__(self, app: App) -> None:
        self.frames: list[Frame] = []
        self.relay = Relay(app, self._to_forwarder)
        self.forwarder = Forwarder(self._to_relay)
        self.loses: type[Frame] | None = None

    def _to_forwarder(self, frame: Any) -> None:
        self._pass(frame, self.forwarder.on_frame)

    def _to_relay(self, frame: Any) -> None:
        self._pass(frame, self.relay.on_frame)

    def _pass(self, frame: Frame, deliver: Callable[[Any], None]) -> None:
        self.frames.append(frame)
        if self.loses is not None and isinstance(frame, self.loses):
            return
        [decoded] = FrameDecoder(decoder).frames(encode_frame(frame))
        asyncio.get_running_loop().call_soon(deliver, decoded)


class Client:
    """The client of a request: the parts of its body, and what it receives."""

    def __init__(self, *parts: bytes) -> None:
        last = len(parts) - 1
        self._parts = [
            {"type": "http.request", "body": part, "more_body": place < last} for place, part in enumerate(parts)
        ]
        self.gone = asyncio.Event()
        self.received: list[Message] = []
        self.reads = asyncio.Event()
        self.reads.set()

    async def receive(self) -> Message:
        if self._parts:
            return self._parts.pop(0)
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        await self.reads.wait()
        self.received.append(message)

    @property
    def content(self) -> bytes:
        return b"".join(each.get("body", b"") for each in self.received)


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answer with the request."""
    content = b""
    while (message := await receive())["type"] == "http.request":
        content += message["body"]
        if not message["more_body"]:
            break
    about = f"{scope['method']} {scope['raw_path']} {scope['path']} {scope['query_string']} {scope['client']}"
    headers = [(b"content-type", b"text/plain")]
    await send({"type": "http.response.start", "status": 201, "headers": headers})
    await send({"type": "http.response.body", "body": about.encode(), "more_body": True})
    await send({"type": "http.response.body", "body": content, "more_body": False})


def test_forwarded__request_with_a_body_in_parts__is_answered_by_the_first_process() -> None:
    async def run() -> None:
        wire, client = Wire(echo), Client(b"one ", b"two ", b"x" * 300_000)
        await wire.forwarder(SCOPE, client.receive, client.send)  # type: ignore[arg-type]  # a scope
        assert client.received[0] == {
            "type": "http.response.start",
            "status": 201,
            "headers": [(b"content-type", b"text/plain")],
        }
        about = b"POST b'/a%20b' /a b b'x=1' ('10.0.0.9', 4711)"
        assert client.content == about + b"one two " + b"x" * 300_000

    asyncio.run(run())


def test_forwarded__client_that_does_not_read__holds_up_the_response() -> None:
    parts = 0

    async def stream(_scope: Any, _receive: Any, send: Any) -> None:
        nonlocal parts
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while parts < 100:
            parts += 1
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def run() -> None:
        wire, client = Wire(stream), Client(b"")
        client.reads.clear()
        asked = asyncio.create_task(wire.forwarder(SCOPE, client.receive, client.send))  # type: ignore[arg-type]
        for _ in range(50):
            await asyncio.sleep(0)
        assert parts == 1
        client.reads.set()
        await asked
        assert client.content == b"x" * 100

    asyncio.run(run())


def test_forwarded__client_disconnects__the_application_is_notified() -> None:
    ended = []

    async def wait(_scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        assert (await receive())["type"] == "http.request"
        ended.append((await receive())["type"])
        ended.append((await receive())["type"])
        # After a disconnect nothing is sent, and nothing fails.
        await send({"type": "http.response.body", "body": b"late", "more_body": True})

    async def run() -> None:
        wire, client = Wire(wait), Client(b"")
        asked = asyncio.create_task(wire.forwarder(SCOPE, client.receive, client.send))  # type: ignore[arg-type]
        for _ in range(20):
            await asyncio.sleep(0)
        client.gone.set()
        with pytest.raises(RuntimeError, match="did not complete"):
            await asked
        assert ended == ["http.disconnect", "http.disconnect"]
        assert client.content == b""

    asyncio.run(run())


def test_forwarded__request_cancelled__the_application_sees_a_disconnect() -> None:
    ended = asyncio.Event()

    async def wait(_scope: Any, receive: Any, _send: Any) -> None:
        while (await receive())["type"] == "http.request":
            pass
        ended.set()

    async def run() -> None:
        wire, client = Wire(wait), Client(b"")
        asked = asyncio.create_task(wire.forwarder(SCOPE, client.receive, client.send))  # type: ignore[arg-type]
        for _ in range(20):
            await asyncio.sleep(0)
        asked.cancel()
        await asyncio.wait_for(ended.wait(), 5)

    asyncio.run(run())


def test_forwarded__application_fails__the_request_fails() -> None:
    async def fail(_scope: Any, _receive: Any, _send: Any) -> None:
        raise ValueError("broken")

    async def run() -> None:
        wire, client = Wire(fail), Client(b"")
        with pytest.raises(RuntimeError, match="did not complete"):
            await wire.forwarder(SCOPE, client.receive, client.send)  # type: ignore[arg-type]

    asyncio.run(run())


def test_relay__serving_process_gone__what_waits_for_it_ends() -> None:
    ended = asyncio.Event()

    async def stream(_scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x", "more_body": True})
        assert (await receive())["type"] == "http.disconnect"
        ended.set()

    async def run() -> None:
        wire, client = Wire(stream), Client(b"")
        wire.loses = BodySent
        asked = asyncio.create_task(wire.forwarder(SCOPE, client.receive, client.send))  # type: ignore[arg-type]
        for _ in range(20):
            await asyncio.sleep(0)
        assert isinstance(wire.frames[-1], BodySent)
        assert any(isinstance(each, ResponseBody) for each in wire.frames)
        wire.relay.close()
        await asyncio.wait_for(ended.wait(), 5)
        asked.cancel()

    asyncio.run(run())
