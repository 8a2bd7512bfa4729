"""An app with a bit of everything, driven by hand, and the HTTP application around it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from litestar.types import ASGIApp

import headgate as hg
from headgate.bootstrap.store import AppService
from headgate.serve.application import build_http
from headgate.serve.probes import Phase, ServerProbes
from headgate.serve.rest.routes import api_routes
from headgate.serve.runtime.thread_pool import WorkPool
from headgate.telemetry import Metrics, Tracing


class Shop:
    """The app, and what its activities left behind."""

    def __init__(self) -> None:  # noqa: C901 - one function declares it all
        self.app = app = hg.App("shop")
        self.tokens: list[str] = []
        self.received: list[Any] = []
        self.is_broken = False

        @app.activity(retry=hg.Retry(attempts=3, first=10.0, jitter=0))
        def charge(amount: int) -> str:
            if amount < 0:
                raise ValueError(f"cannot charge {amount}")
            return f"receipt-{amount}"

        @app.activity(retry=hg.Retry(attempts=2, first=1.0, jitter=0))
        def ask_bank(amount: int) -> str:
            self.tokens.append(hg.activity().token)
            answer: str = hg.complete_later()
            return answer

        @app.workflow
        async def pay(amount: int) -> str:
            """Charge once."""
            hg.log("paying")
            return await charge(amount)

        @app.workflow
        async def bank(amount: int) -> str:
            try:
                return await ask_bank(amount)
            except hg.ActivityFailure as failure:
                return f"{failure.type}: {failure.message} {failure.data}"

        @app.workflow(timeout="1d")
        async def order(item: str) -> list[Any]:
            seen: list[Any] = []
            limit = {"most": 10}
            hg.on_query("seen", lambda: seen)
            hg.on_query("broken", lambda: 1 / 0)

            def set_limit(most: int) -> int:
                limit["most"] = most
                return most

            def check_limit(most: int) -> None:
                if most < 0:
                    raise ValueError("most: from 0")

            hg.on_update("limit", set_limit, validator=check_limit)
            while len(seen) < limit["most"]:
                seen.append(await hg.wait_signal("add"))
                if seen[-1] == "stop":
                    break
            return [item, *seen]

        @app.workflow
        async def nap(seconds: float) -> str:
            await hg.sleep(seconds)
            return "rested"

        @app.workflow
        async def family(count: int) -> int:
            children = [nap.options(id=f"child-{number}")(3600.0) for number in range(count)]
            for child in children:
                await child
            return count

        @app.workflow(check=False)
        async def fragile() -> str:
            if self.is_broken:
                Path("somewhere").read_text()  # refused: that belongs into an activity
            return "whole"

        @app.on_event("order.created", retry=hg.Retry(attempts=1))
        def hear(event: hg.Event) -> None:
            if self.is_broken:
                raise ValueError("no ears")
            self.received.append(event.data)

        self.workflows = app.workflows


class Api:
    """The HTTP application around an app whose worker is driven by hand."""

    def __init__(
        self, env: hg.testing.Environment, shop: Shop, home: Path, *, service: AppService | None = None
    ) -> None:
        """Answer with a `service` of its own if one is given, beside that of the environment."""
        self.env = env
        self.shop = shop
        self.service = service or env.service
        # The test drives the worker: the threads that answer requests must not.
        self.service.notifier.attach(None)
        self.pool = WorkPool(threads_max=4, waiting_max=50)
        self.health = ServerProbes(version="1.2.3", store=self.service.store, sweepers=[], clock=env.clock, disk=home)
        self.health.phase = Phase.SERVING
        self._app: ASGIApp = build_http(
            version="1.2.3",
            probes=self.health,
            pool=self.pool,
            metrics=Metrics(version="1.2.3"),
            tracing=Tracing(),
            clock=env.clock,
            routes=api_routes(self.service, self.pool, stopping=lambda: self.health.phase is Phase.DRAINING),
        )

    def session(self, talk: Callable[[httpx.AsyncClient], Awaitable[Any]]) -> Any:
        """Run `talk` with a client of the application, in an event loop of its own."""

        async def run() -> Any:
            transport = httpx.ASGITransport(self._app)  # type: ignore[arg-type]  # two libraries, two names for ASGI
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8400/api/v1") as client:
                return await talk(client)

        return asyncio.run(run())

    def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        async def talk(client: httpx.AsyncClient) -> httpx.Response:
            return await client.request(method, path, **more)

        response: httpx.Response = self.session(talk)
        return response

    def get(self, path: str, **more: Any) -> httpx.Response:
        return self.ask("GET", path, **more)

    def post(self, path: str, body: Any = None, **more: Any) -> httpx.Response:
        return self.ask("POST", path, json=body, **more) if body is not None else self.ask("POST", path, **more)

    def started(self, workflow: str, input: Any = None, **more: Any) -> str:
        """Start an execution, run what can happen at once, and return its id."""
        answer = self.post("/executions", {"workflow": workflow, "input": input, **more})
        assert answer.status_code == 201, answer.text
        self.env.run()
        identifier: str = answer.json()["id"]
        return identifier


@contextmanager
def serving(home: Path) -> Iterator[Api]:
    """Serve a new app on a store of its own."""
    shop = Shop()
    with hg.testing.Environment(shop.app) as env:
        api = Api(env, shop, home)
        yield api
        api.pool.close()


def problem(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """Check everything that all problems have in common, and return the problem."""
    body: dict[str, Any] = response.json()
    assert (response.status_code, body["code"], body["status"]) == (status, code, status), response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert body["type"] == f"urn:headgate:error:{code}"
    assert body["correlation_id"] == response.headers["x-correlation-id"]
    assert body["detail"]
    return body
