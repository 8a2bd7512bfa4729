"""Forwarding: a serving process passes requests that it does not answer itself to the first process, and back.

Pages, pipelines, workflows, metrics and probes need what only the first process has: the user's app, its worker, open
pages and definitions. `Forwarder` is the ASGI application of the serving process, `Relay` runs that of the first one.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import structlog
from litestar.types import ASGIApp, Receive, Scope, Send

from headgate.serve.processes.frames import (
    BodySent,
    BodyWanted,
    Disconnected,
    Frame,
    RequestBody,
    RequestStart,
    ResponseAborted,
    ResponseBody,
    ResponseStart,
)

_ASGI: Final = {"version": "3.0", "spec_version": "2.3"}
_DISCONNECT: Final = {"type": "http.disconnect"}
_log = structlog.get_logger(__name__)


class Forwarder:
    """ASGI application that has the first process answer. Runs on one event loop."""

    def __init__(self, send: Callable[[Frame], None]) -> None:
        self._send = send
        self._numbers = itertools.count()
        self._open: dict[int, asyncio.Queue[Frame]] = {}

    def on_frame(self, frame: BodyWanted | ResponseStart | ResponseBody | ResponseAborted) -> None:
        """Take a frame of the first process."""
        frames = self._open.get(frame.number)
        if frames is not None:
            frames.put_nowait(frame)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        number, frames = next(self._numbers), asyncio.Queue[Frame]()
        self._open[number] = frames
        self._send(_start(number, scope))
        reading: asyncio.Task[None] | None = None
        is_over = False
        try:
            while not is_over:
                frame = await frames.get()
                if isinstance(frame, BodyWanted):
                    # Beside the response: a client may disconnect at any time.
                    reading = asyncio.create_task(self._read(number, receive))
                else:
                    is_over = await self._pass_on(frame, send)
        finally:
            del self._open[number]
            if reading is not None:
                reading.cancel()
            if not is_over:
                self._send(Disconnected(number))

    async def _read(self, number: int, receive: Receive) -> None:
        message: Any = await receive()
        if message["type"] == "http.request":
            self._send(RequestBody(number, message.get("body", b""), message.get("more_body", False)))
        else:
            self._send(Disconnected(number))

    async def _pass_on(self, frame: Frame, send: Send) -> bool:
        """Pass a part of the response to the client, and return whether it was the last."""
        if isinstance(frame, ResponseStart):
            await send({"type": "http.response.start", "status": frame.status, "headers": frame.headers})
            return False
        if isinstance(frame, ResponseBody):
            await send({"type": "http.response.body", "body": frame.content, "more_body": frame.has_more})
            self._send(BodySent(frame.number))
            return not frame.has_more
        # The connection is closed, or the response is an internal error, as by an exception here.
        raise RuntimeError("the first process did not complete the response")


def _start(number: int, scope: Any) -> RequestStart:  # noqa: ANN401 - an ASGI scope
    client, server = scope.get("client"), scope.get("server")
    return RequestStart(
        number,
        scope["method"],
        scope["path"],
        scope["raw_path"],
        scope["query_string"],
        list(scope["headers"]),
        scope["scheme"],
        scope["http_version"],
        None if client is None else tuple(client),
        None if server is None else tuple(server),
    )


class Relay:
    """Runs the application of the first process for the requests of one serving process, on one event loop."""

    def __init__(self, app: ASGIApp, send: Callable[[Frame], None]) -> None:
        self._app = app
        self._send = send
        self._open: dict[int, _Exchange] = {}
        # The loop holds only weak references to tasks.
        self._tasks: set[asyncio.Task[None]] = set()

    def on_frame(self, frame: RequestStart | RequestBody | Disconnected | BodySent) -> None:
        """Take a frame of the serving process."""
        if isinstance(frame, RequestStart):
            exchange = self._open[frame.number] = _Exchange(frame.number, self._send)
            task = asyncio.create_task(self._run(exchange, _scope(frame)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif (known := self._open.get(frame.number)) is not None:
            known.on_frame(frame)

    def close(self) -> None:
        """Treat every client as disconnected: the serving process is gone."""
        for exchange in list(self._open.values()):
            exchange.on_frame(Disconnected(exchange.number))

    async def _run(self, exchange: _Exchange, scope: Any) -> None:  # noqa: ANN401 - an ASGI scope
        try:
            await self._app(scope, exchange.receive, exchange.send)
        except Exception:  # noqa: BLE001 - top of a task, as uvicorn's for a request of its own
            _log.exception("request failed", action="http.request", path=scope["path"])
        finally:
            del self._open[exchange.number]
            if not exchange.is_complete:
                self._send(ResponseAborted(exchange.number))


class _Exchange:
    """The request and response of one forwarded request."""

    def __init__(self, number: int, send: Callable[[Frame], None]) -> None:
        self.number = number
        self.is_complete = False
        self._send = send
        self._parts: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._is_wanted = False
        self._is_gone = False
        self._passed_on = asyncio.Event()

    def on_frame(self, frame: RequestBody | Disconnected | BodySent) -> None:
        if isinstance(frame, BodySent):
            self._passed_on.set()
            return
        self._is_wanted = False
        if isinstance(frame, Disconnected):
            self._is_gone = True
            self._passed_on.set()
            self._parts.put_nowait(_DISCONNECT)
        else:
            self._parts.put_nowait({"type": "http.request", "body": frame.content, "more_body": frame.has_more})

    async def receive(self) -> Any:  # noqa: ANN401 - an ASGI message
        """Return the next part of the body, or the disconnect of the client, also again."""
        with suppress(asyncio.QueueEmpty):
            return self._parts.get_nowait()
        if self._is_gone or self.is_complete:
            return _DISCONNECT
        # A call that was cancelled has left a request for the next part behind.
        if not self._is_wanted:
            self._is_wanted = True
            self._send(BodyWanted(self.number))
        return await self._parts.get()

    async def send(self, message: Any) -> None:  # noqa: ANN401 - an ASGI message
        """Send a part of the response, and return when the serving process has passed it on."""
        if self._is_gone or self.is_complete:
            return
        if message["type"] == "http.response.start":
            headers = [(bytes(name), bytes(value)) for name, value in message.get("headers", [])]
            self._send(ResponseStart(self.number, message["status"], headers))
            return
        has_more = message.get("more_body", False)
        self.is_complete = not has_more
        self._passed_on.clear()
        self._send(ResponseBody(self.number, bytes(message.get("body", b"")), has_more))
        if has_more:
            await self._passed_on.wait()


def _scope(frame: RequestStart) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": _ASGI,
        "http_version": frame.http_version,
        "method": frame.method,
        "scheme": frame.scheme,
        "path": frame.path,
        "raw_path": frame.raw_path,
        "query_string": frame.query,
        "root_path": "",
        "headers": frame.headers,
        "client": frame.client,
        "server": frame.server,
        "state": {},
    }
