"""The API of Headgate itself: every route under `/api/v1`."""

from __future__ import annotations

from collections.abc import Callable

from litestar.types import ControllerRouterHandler

from headgate.durable.service import Service
from headgate.serve.activities import activity_routes
from headgate.serve.events import event_routes
from headgate.serve.executions import execution_routes
from headgate.serve.pool import WorkPool
from headgate.serve.schedules import schedule_routes
from headgate.serve.watching import Watches
from headgate.serve.workers import worker_routes


def api_routes(
    service: Service, pool: WorkPool, *, stopping: Callable[[], bool] = lambda: False
) -> list[ControllerRouterHandler]:
    """Return the routes of every part that this server offers.

    Once `stopping` says so, requests that only wait come to an end.
    """
    watches = Watches(service.store, stopping=stopping)
    return [
        *execution_routes(service, pool, watches=watches),
        *event_routes(service, pool, watches=watches),
        *activity_routes(service, pool),
        *schedule_routes(service, pool),
        *worker_routes(service, pool),
    ]
