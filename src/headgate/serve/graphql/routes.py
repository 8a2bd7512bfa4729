"""GraphQL routes. The implementation is imported on the first request: many servers never get one."""

from __future__ import annotations

import threading
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from litestar import Request, Response, get, post
from litestar.types import ControllerRouterHandler

from headgate.extras import Extra, require
from headgate.health.service import HealthService
from headgate.serve.runtime.thread_pool import WorkPool
from headgate.serve.runtime.watch_hub import WatchHub

if TYPE_CHECKING:
    from headgate.serve.graphql.http import View
    from headgate.serve.graphql.limits import Limits
    from headgate.serve.graphql.websocket import Timings

PATH: Final = "/graphql"


def graphql_routes(
    health: HealthService,
    pool: WorkPool,
    watches: WatchHub,
    *,
    limits: Limits | None = None,
    timings: Timings | None = None,
) -> list[ControllerRouterHandler]:
    """Return the routes of GraphQL."""
    opening = threading.Lock()
    opened: View | None = None

    def view() -> View:
        nonlocal opened
        with opening:
            if opened is None:
                require(Extra.GRAPHQL, "GraphQL")
                from headgate.serve.graphql.http import View

                opened = View(health, pool, watches, limits, timings)
            return opened

    async def answer(request: Request[Any, Any, Any]) -> Response[Any]:
        found = await pool.run(view) if opened is None else opened
        return await found.answer(request)

    @post(PATH, status_code=HTTPStatus.OK, include_in_schema=False)
    async def graphql_post(request: Request[Any, Any, Any]) -> Response[Any]:
        return await answer(request)

    @get(PATH, include_in_schema=False)
    async def graphql_get(request: Request[Any, Any, Any]) -> Response[Any]:
        return await answer(request)

    return [graphql_post, graphql_get]
