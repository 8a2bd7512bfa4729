"""Metrics endpoint of a worker process: serves `/metrics` on an address of its own, in a thread.

Without a token it listens on loopback only. The token is for the scraper: `authorization` in Prometheus.
"""

from __future__ import annotations

import asyncio
import hmac
import threading
from pathlib import Path
from typing import Any, Final

from litestar.enums import ScopeType
from litestar.types import HTTPScope, Receive, Send
from prometheus_client import CONTENT_TYPE_LATEST

from headgate.errors import SettingsError
from headgate.serve.http.connection.listener import HttpServer
from headgate.serve.http.connection.tls import Tls
from headgate.serve.http.origin_guard import OriginGuard
from headgate.serve.process import loop_factory
from headgate.settings import Address, Settings
from headgate.telemetry import Metrics

_TOKEN_CHARACTERS_MIN: Final = 16
_STOP_SECONDS: Final = 2.0
_TEXT: Final = b"text/plain; charset=utf-8"


def read_token(path: Path | None) -> bytes | None:
    """Return the token of a file; None without one. Raises `SettingsError`."""
    if path is None:
        return None
    try:
        token = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise SettingsError(f"worker.metrics_token_file = {path}: it cannot be read: {exc}") from exc
    if len(token) < _TOKEN_CHARACTERS_MIN:
        raise SettingsError(
            f"worker.metrics_token_file = {path}: the token has {len(token)} characters; "
            f"use at least {_TOKEN_CHARACTERS_MIN}, such as those of 'openssl rand -hex 32'"
        )
    return token.encode()


class MetricsApp:
    """ASGI application with the one route `GET /metrics`."""

    def __init__(self, metrics: Metrics, token: bytes | None) -> None:
        self._metrics = metrics
        self._token = token

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:  # noqa: ANN401 - also a scope of lifespan
        if scope["type"] == "lifespan":
            await _run_lifespan(receive, send)
        elif scope["type"] == ScopeType.HTTP:
            status, kind, body = await self._answer(scope)
            headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
            if status == 401:
                headers.append((b"www-authenticate", b"Bearer"))
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": body, "more_body": False})

    async def _answer(self, scope: HTTPScope) -> tuple[int, bytes, bytes]:
        if self._token is not None and not self._has_token(scope, self._token):
            return 401, _TEXT, b"the token of worker.metrics_token_file is required\n"
        if scope["path"] != "/metrics":
            return 404, _TEXT, b"only /metrics is served here\n"
        if scope["method"] != "GET":
            return 405, _TEXT, b"use GET\n"
        return 200, CONTENT_TYPE_LATEST.encode(), await asyncio.to_thread(self._metrics.render)

    def _has_token(self, scope: HTTPScope, token: bytes) -> bool:
        sent = [value for name, value in scope["headers"] if name == b"authorization"]
        return len(sent) == 1 and hmac.compare_digest(sent[0], b"Bearer " + token)


class MetricsEndpoint:
    """Serves the metrics of a process until `stop`. Raises `SettingsError` at construction if the port is in use."""

    def __init__(self, settings: Settings, address: Address, metrics: Metrics) -> None:
        tls = settings.tls
        self._http = HttpServer(
            address,
            tls=None if tls.cert is None or tls.key is None else Tls.load(tls.cert, tls.key),
            limits=settings.limits,
            is_behind_proxy=settings.behind_proxy,
            setting="worker.metrics",
        )
        app = MetricsApp(metrics, read_token(settings.worker.metrics_token_file))
        self._app = OriginGuard(app, allowed_hosts=settings.allowed_hosts, is_behind_proxy=settings.behind_proxy)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="headgate-metrics", daemon=True)

    @property
    def address(self) -> Address:
        """The address with the port that was bound."""
        return self._http.address

    def start(self) -> None:
        """Serve in a thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop serving, and close the port."""
        loop = self._loop
        if loop is not None:
            loop.call_soon_threadsafe(self._stopped.set)
            self._thread.join(_STOP_SECONDS)
        self._http.close()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self._http.start(self._app, grace_seconds=1.0)
        await self._stopped.wait()
        await self._http.drain()


async def _run_lifespan(receive: Receive, send: Any) -> None:  # noqa: ANN401 - messages of lifespan
    while True:
        message: Any = await receive()
        if message["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        elif message["type"] == "lifespan.shutdown":
            await send({"type": "lifespan.shutdown.complete"})
            return
