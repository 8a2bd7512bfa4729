"""A real store in a folder of the test, and the HTTP application around it, asked without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import pytest
from litestar.types import ASGIApp, ControllerRouterHandler

from headgate.bootstrap.store import OpenedStore, open_store
from headgate.clock import SystemClock
from headgate.serve.application import build_http
from headgate.serve.probes import Phase, ServerProbes
from headgate.serve.runtime.thread_pool import WorkPool
from headgate.serve.sweeper import Sweeper
from headgate.settings import Settings
from headgate.telemetry import Metrics, Tracing
from tests.stores import lay_database


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[OpenedStore]:
    lay_database(tmp_path / "home")
    opened = open_store(Settings(home=tmp_path / "home"), SystemClock())
    yield opened
    opened.store.close()


class Application:
    """The HTTP application with everything behind it, and a way to ask it. It is built at the first question."""

    def __init__(self, opened: OpenedStore, home: Path) -> None:
        self.clock = SystemClock()
        self.sweeper = Sweeper("expired rows", lambda limit: opened.store.sweep(limit=limit), interval_seconds=60)
        self.health = ServerProbes(
            version="1.2.3",
            store=opened.store,
            sweepers=[self.sweeper],
            clock=self.clock,
            disk=home,
            faults=opened.store.stats.faults,
        )
        self.health.phase = Phase.SERVING
        self.pool = WorkPool(threads_max=2, waiting_max=2)
        self.metrics = Metrics(version="1.2.3")
        self.metrics.watch_store(opened.store.stats.snapshot)
        self.tracing = Tracing()
        self.allowed_hosts: Sequence[str] = ()
        self.routes: list[ControllerRouterHandler] = []

    @cached_property
    def _app(self) -> ASGIApp:
        return build_http(
            version="1.2.3",
            probes=self.health,
            pool=self.pool,
            metrics=self.metrics,
            tracing=self.tracing,
            clock=self.clock,
            allowed_hosts=self.allowed_hosts,
            routes=self.routes,
        )

    def session(self, talk: Callable[[httpx.AsyncClient], Any]) -> Any:
        """Run `talk` with a client of the application, in an event loop of its own."""

        async def run() -> Any:
            transport = httpx.ASGITransport(self._app)  # type: ignore[arg-type]  # two libraries, two names for ASGI
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8400") as client:
                return await talk(client)

        return asyncio.run(run())

    def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        async def talk(client: httpx.AsyncClient) -> httpx.Response:
            return await client.request(method, path, **more)

        response: httpx.Response = self.session(talk)
        return response


@pytest.fixture
def application(opened: OpenedStore, tmp_path: Path) -> Iterator[Application]:
    application = Application(opened, tmp_path / "home")
    yield application
    application.pool.close()
