"""What is counted of the calls of every API, under the names that dashboards and alarms know."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from headgate.clock import VirtualClock
from headgate.serve.http.access_log import AccessLog
from headgate.serve.metrics import ApiMeters
from headgate.telemetry import Tracing


def counted(route: str, status: int, **scope: Any) -> CollectorRegistry:
    """Have a request answered by a route, and return what was counted."""
    registry = CollectorRegistry()
    clock = VirtualClock()

    async def app(asked: Any, _receive: Any, send: Any) -> None:
        asked.update({"path_template": route, **scope})
        clock.advance(0.02)
        await send({"type": "http.response.start", "status": status, "headers": []})

    async def ignore(_message: Any) -> None:
        return None

    access = AccessLog(app, tracing=Tracing(), registry=registry, meters=ApiMeters(registry), clock=clock)
    asked: Any = {"type": "http", "method": "GET", "path": "/x", "headers": []}
    asyncio.run(access(asked, ignore, ignore))  # type: ignore[arg-type]
    return registry


@pytest.mark.parametrize(
    ("route", "status", "api"), [("/api/v1/datasets/{urn}", 503, "rest"), ("/graphql", 200, "graphql")]
)
def test_record__call_of_an_api__is_counted_by_route_and_status_and_timed_in_ms(
    route: str, status: int, api: str
) -> None:
    registry = counted(route, status)

    labels = {"api_type": api, "method": f"GET {route}"}
    assert registry.get_sample_value("api_request_count_total", {**labels, "status_code": str(status)}) == 1
    assert registry.get_sample_value("api_latency_sum", labels) == pytest.approx(20.0)


@pytest.mark.parametrize("route", ["/ui/datasets", "/health/live", "/orders/{id}", "unmatched"])
def test_record__what_is_no_api__is_not(route: str) -> None:
    assert "api_request_count_total" not in {
        sample.name for metric in counted(route, 200).collect() for sample in metric.samples
    }


def test_record__failure_that_http_does_not_show__counts_as_what_it_is() -> None:
    registry = counted("/graphql", 200, api_status="UNAVAILABLE")

    labels = {"api_type": "graphql", "method": "GET /graphql", "status_code": "UNAVAILABLE"}
    assert registry.get_sample_value("api_request_count_total", labels) == 1
