"""What a serving process answers itself: every operation on health but those on checks, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import pytest

from headgate.bootstrap.health import open_keys
from headgate.serve.http.operations import Operation, OperationHandler
from headgate.serve.processes.local_requests import LocalRequests
from headgate.serve.rest.health.routes import health_routes
from headgate.serve.rest.routes import api_routes
from headgate.serve.runtime.thread_pool import WorkPool
from tests.integration.serve.health_rig import ORDERS, HealthApi


@pytest.fixture
def api(tmp_path: Path) -> Iterator[HealthApi]:
    with closing(HealthApi(tmp_path)) as api:
        yield api


def _includes(requests: LocalRequests, method: str, path: str) -> bool:
    return requests.includes({"type": "http", "method": method, "path": path, "raw_path": path.encode()})


def _path(operation: Operation) -> str:
    """Return a path of an operation, with the name of a dataset for each parameter."""
    return "/".join(
        quote(ORDERS) if part.startswith("{") else part for part in operation.template.documented.split("/")
    )


def _operations(routes: list[object]) -> list[Operation]:
    return [each for route in routes if isinstance(route, OperationHandler) for each in route.operations]


def test_local__operations_on_health__all_but_those_on_checks(api: HealthApi) -> None:
    pool, keys = WorkPool(), open_keys(api.opened, api.clock, api.health)
    local = health_routes(api.health, keys, pool)
    requests = LocalRequests(local, ["/a.Service/Method"])
    own = {(each.method, each.template.documented) for each in _operations([*local])}
    everything = _operations([*health_routes(api.health, keys, pool, checks=api.checks.service)])
    answers = {
        (each.method, each.template.documented): _includes(requests, each.method, _path(each)) for each in everything
    }
    assert len(own) > 50
    assert {place for place, is_local in answers.items() if is_local} == own
    assert {place.split("/")[-1] for _, place in answers.keys() - own} >= {"checks", "expected-volumes"}
    pool.close()


def test_local__other_requests__are_those_of_the_first_process(api: HealthApi) -> None:
    pool, keys = WorkPool(), open_keys(api.opened, api.clock, api.health)
    requests = LocalRequests(health_routes(api.health, keys, pool), ["/a.Service/Method"])
    others = _operations([*api_routes(api.service, pool, fanouts=api.fanouts, pipelines=api.pipelines.service)])
    assert len(others) > 50
    assert not [each.path for each in others if _includes(requests, each.method, _path(each))]
    for path in (
        "/",
        "/health",
        "/health/ready",
        "/metrics",
        "/ui",
        "/ui/changes",
        "/openapi.json",
        "/api/v1/settings",
    ):
        assert not _includes(requests, "GET", path), path
    assert not _includes(requests, "GET", "/api/v1/datasets/%zz/%"), "which the first process refuses"
    assert not _includes(requests, "DELETE", "/api/v1/signals"), "so does it a method that there is not"
    assert _includes(requests, "POST", "/a.Service/Method")
    assert _includes(requests, "POST", "/graphql")
    pool.close()
