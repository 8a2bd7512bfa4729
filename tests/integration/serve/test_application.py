"""The routes of the server itself, and the shape of every error on every route."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from litestar import Request, get, post
from litestar.params import FromQuery
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from headgate.bootstrap.store import OpenedStore
from headgate.errors import ConflictError, CorruptionError, NotFoundError, StoreFullError, ThrottledError
from headgate.serve.http.origin_guard import BODY_BYTES_MAX
from headgate.serve.probes import Phase
from headgate.store.catalogue.tables import CONTROL
from headgate.store.model.schema import Key
from headgate.telemetry import Tracing
from tests.integration.serve.conftest import Application


def _problem(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """Check everything that all problems have in common, and return the problem."""
    body: dict[str, Any] = response.json()
    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"
    assert body["status"] == status
    assert body["code"] == code
    assert body["type"] == f"urn:headgate:error:{code}"
    assert body["title"]
    assert body["detail"]
    assert body["correlation_id"] == response.headers["x-correlation-id"]
    return body


def test_index__asked__names_the_program_and_links_to_the_rest(application: Application) -> None:
    answer = application.ask("GET", "/")

    assert answer.json()["name"] == "headgate"
    assert answer.json()["version"] == "1.2.3"
    assert all(application.ask("GET", link).status_code == 200 for link in answer.json()["links"].values())


@pytest.mark.parametrize("path", ["/health", "/health/live", "/health/ready", "/health/deep"])
def test_health__serving__every_route_says_ok_and_is_not_cached(application: Application, path: str) -> None:
    answer = application.ask("GET", path)

    assert answer.status_code == 200
    assert answer.json()["status"] == "ok"
    assert answer.json()["version"] == "1.2.3"
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.DRAINING])
def test_health__starting_or_draining__ready_and_summary_are_503_and_live_is_not(
    application: Application, phase: Phase
) -> None:
    application.health.phase = phase

    for path in ("/health/ready", "/health"):
        answer = application.ask("GET", path)
        _problem(answer, 503, phase.value)
        assert int(answer.headers["retry-after"]) >= 1
    assert application.ask("GET", "/health/live").status_code == 200


def test_health_deep__store_is_closed__is_503_and_says_which_checks_failed(
    application: Application, opened: OpenedStore
) -> None:
    opened.store.close()

    body = _problem(application.ask("GET", "/health/deep"), 503, "unhealthy")

    failed = {check["name"]: check["fact"] for check in body["checks"] if check["status"] == "failed"}
    assert failed.keys() == {"store read", "store write"}
    assert failed["store read"].startswith("store_closed: ")


def test_health_deep__home_was_removed__is_degraded_and_names_the_folder(
    application: Application, tmp_path: Path
) -> None:
    shutil.rmtree(tmp_path / "home")

    report = application.ask("GET", "/health/deep").json()

    assert report["status"] == "degraded", "reads are still served"
    checks = {each["name"]: each for each in report["checks"]}
    assert {checks[name]["status"] for name in ("store read", "store write", "disk")} == {"degraded"}
    assert f"{tmp_path / 'home'} cannot be read" in checks["disk"]["fact"]


def test_health__a_read_has_met_a_corrupt_row__is_degraded_and_names_it(
    application: Application, opened: OpenedStore, tmp_path: Path
) -> None:
    opened.store.put(CONTROL, {"PK": "DEDUP#a", "SK": "DEDUP"})
    raw = sqlite3.connect(tmp_path / "home" / "headgate.db")
    raw.execute("UPDATE \"headgate-control\" SET body = '{\"PK\": broken' WHERE pk = 'DEDUP#a'")
    raw.commit()
    raw.close()
    assert application.ask("GET", "/health").json()["status"] == "ok"

    with pytest.raises(CorruptionError):
        opened.store.get(CONTROL, Key("DEDUP#a", "DEDUP"))

    for path in ("/health", "/health/deep"):
        answer = application.ask("GET", path)
        assert answer.status_code == 200
        checks = {each["name"]: each["status"] for each in answer.json()["checks"]}
        assert checks["store corrupt row"] == "degraded", path


def test_metrics__after_requests__counts_them_by_route_and_shows_the_store(application: Application) -> None:
    async def talk(client: httpx.AsyncClient) -> str:
        await client.get("/health/deep")
        await client.get("/nothing/here/1")
        await client.request("BREW", "/nothing/here/2")
        return (await client.get("/metrics")).text

    text = application.session(talk)

    assert 'headgate_http_requests_total{method="GET",route="/health/deep",status="200"} 1.0' in text
    assert 'headgate_http_requests_total{method="GET",route="unmatched",status="404"} 1.0' in text
    assert 'method="other",route="unmatched"' in text
    assert "headgate_store_writes_total 1.0" in text
    assert "/nothing/here" not in text


def test_openapi__asked__describes_the_health_routes_and_their_problems(application: Application) -> None:
    schema = application.ask("GET", "/api/openapi.json").json()

    assert "application/problem+json" in schema["paths"]["/health/deep"]["get"]["responses"]["503"]["content"]
    assert "/metrics" not in schema["paths"]


def test_problem__no_such_path__is_404(application: Application) -> None:
    body = _problem(application.ask("GET", "/nowhere"), 404, "not_found")

    assert "/nowhere" in body["detail"]


def test_problem__wrong_method__is_405_and_says_which_are_right(application: Application) -> None:
    answer = application.ask("DELETE", "/health")

    _problem(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == "GET"


def test_problem__parameter_does_not_fit__is_400_and_names_it(application: Application) -> None:
    @get("/double")
    async def double(number: FromQuery[int]) -> int:
        return 2 * number

    application.routes = [double]

    body = _problem(application.ask("GET", "/double?number=x"), 400, "bad_request")

    assert body["errors"][0]["key"] == "number"


def test_problem__a_bug__is_500_without_its_details(application: Application) -> None:
    @get("/bug")
    async def bug() -> None:
        raise RuntimeError("the password is hunter2")

    application.routes = [bug]

    answer = application.ask("GET", "/bug")

    _problem(answer, 500, "internal")
    assert "hunter2" not in answer.text
    assert "RuntimeError" not in answer.text


@pytest.mark.parametrize(
    ("error", "status", "code", "retry_after"),
    [
        (NotFoundError("run 7: there is none"), 404, "not_found", None),
        (ConflictError("run 7: it has changed"), 409, "conflict", None),
        (ThrottledError("table t: too much"), 429, "throttled", "1"),
        (StoreFullError("disk: full; free some"), 507, "store_full", "5"),
    ],
)
def test_problem__an_error_of_ours__keeps_its_status_code_and_message(
    application: Application, error: Exception, status: int, code: str, retry_after: str | None
) -> None:
    @get("/fail")
    async def fail() -> None:
        raise error

    application.routes = [fail]

    answer = application.ask("GET", "/fail")

    assert _problem(answer, status, code)["detail"] == str(error)
    assert answer.headers.get("retry-after") == retry_after


def test_pool__more_work_than_it_takes__is_503_with_retry_after_and_the_rest_is_answered(
    application: Application,
) -> None:
    release = threading.Event()

    @get("/slow")
    async def slow() -> str:
        await application.pool.run(release.wait)
        return "done"

    application.routes = [slow]

    async def talk(client: httpx.AsyncClient) -> list[httpx.Response]:
        # Two threads and two places to wait: the fifth is one too many.
        accepted = [asyncio.create_task(client.get("/slow")) for _ in range(4)]
        while application.pool.accepted < 4:
            await asyncio.sleep(0.001)
        refused = await client.get("/slow")
        release.set()
        return [refused, *await asyncio.gather(*accepted)]

    refused, *accepted = application.session(talk)

    _problem(refused, 503, "server_busy")
    assert refused.headers["retry-after"] == "1"
    assert [answer.text for answer in accepted] == ["done"] * 4


def test_correlation_id__given_and_safe__is_echoed(application: Application) -> None:
    answer = application.ask("GET", "/", headers={"X-Correlation-Id": "order-7:retry.2"})

    assert answer.headers["x-correlation-id"] == "order-7:retry.2"


@pytest.mark.parametrize("given", [None, "x" * 65, "a b", "<script>"])
def test_correlation_id__missing_or_unsafe__is_made_anew(application: Application, given: str | None) -> None:
    headers = {} if given is None else {"X-Correlation-Id": given}

    answer = application.ask("GET", "/", headers=headers)

    assert answer.headers["x-correlation-id"].startswith("req_")


def test_body__chunked_and_over_the_limit__is_413_when_it_is_read(application: Application) -> None:
    @post("/length")
    async def length(request: Request[Any, Any, Any]) -> int:
        return len(await request.body())

    application.routes = [length]

    async def chunks(count: int) -> AsyncIterator[bytes]:
        for _ in range(count):
            yield b"x" * 65536

    within = BODY_BYTES_MAX // 65536
    assert application.ask("POST", "/length", content=chunks(within)).json() == BODY_BYTES_MAX
    _problem(application.ask("POST", "/length", content=chunks(within + 1)), 413, "request_entity_too_large")


def test_tracing__on__a_request_is_a_span_under_the_callers_trace(application: Application) -> None:
    exporter = InMemorySpanExporter()
    application.tracing = Tracing.start(service_name="headgate", otlp_endpoint="http://unused", exporter=exporter)
    trace_id = "0af7651916cd43dd8448eb211c80319c"

    application.ask(
        "GET",
        "/nowhere",
        headers={"traceparent": f"00-{trace_id}-b7ad6b7169203331-01", "X-Correlation-Id": "order-7"},
    )
    application.tracing.close()

    (span,) = exporter.get_finished_spans()
    assert span.name == "http.request"
    assert f"{span.context.trace_id:032x}" == trace_id
    assert dict(span.attributes or {}) == {
        "method": "GET",
        "path": "/nowhere",
        "correlation_id": "order-7",
        "status": 404,
    }


def test_server__what_not_every_server_needs__is_not_loaded_to_start_one() -> None:
    script = """
import sys
import headgate.serve.server
from headgate.serve.application import _Application
_Application([], openapi_config=None, logging_config=None)
late = ("boto3", "graphql", "holidays", "jinja2", "jsonata", "jsonpath", "jwt", "pydantic", "redis")
print(*(name for name in late if name in sys.modules))
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert found.stdout.split() == []
