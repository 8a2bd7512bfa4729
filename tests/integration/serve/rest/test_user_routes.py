"""An app's routes and commands in the server: everything between the wire and the handler."""

from __future__ import annotations

import asyncio
import concurrent.futures
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import msgspec
import pytest
from structlog.testing import capture_logs

from headgate.durable.http.openapi import PROBLEM_SCHEMA
from headgate.durable.http.router import Cors, HttpError, Next, Request, Response, Router
from headgate.errors import AlreadyStartedError, DefinitionError, NotFoundError, StoreIOError, ThrottledError
from headgate.serve.http.connection.listener import HttpServer
from headgate.serve.http.origin_guard import BODY_BYTES_MAX
from headgate.serve.rest.user_routes import QUERY_ARGUMENTS_MAX, AppRoutes, UserProblem, admits_origin, user_routes
from headgate.settings import Address
from headgate.telemetry import correlation_id
from tests.integration.serve.conftest import Application

PAGE = "https://shop.example"


class Order(msgspec.Struct):
    id: str
    price: int


class Report(msgspec.Struct):
    """The server has a schema of this name too."""

    lines: list[Order]


@pytest.fixture
def router() -> Router:
    return Router()


@pytest.fixture
def ask(application: Application, router: Router) -> Callable[..., httpx.Response]:
    """Serve what the router has at the first question."""

    def ask(method: str, path: str, **more: Any) -> httpx.Response:
        if not application.routes:
            application.routes = user_routes(AppRoutes([router]), application.pool)
        return application.ask(method, path, **more)

    return ask


Ask = Callable[..., httpx.Response]


def problem(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """Check everything that all problems have in common, and return the problem."""
    body: dict[str, Any] = response.json()
    assert (response.status_code, body["code"], body["status"]) == (status, code, status)
    assert response.headers["content-type"] == "application/problem+json"
    assert body["type"] == f"urn:headgate:error:{code}"
    assert body["title"]
    assert body["detail"]
    assert body["correlation_id"] == response.headers["x-correlation-id"]
    return body


def echo(request: Request) -> dict[str, Any]:
    return {
        "method": request.method,
        "path": request.path,
        "params": request.path_params,
        "query": request.query,
        "header": request.headers.get("X-Shop"),
        "body": request.text(),
        "id": request.correlation_id,
    }


# Requests


def test_request__every_part__reaches_the_handler(ask: Ask, router: Router) -> None:
    router.post("/orders/{id}/{rest:path}")(echo)

    answer = ask(
        "POST",
        "/orders/a%2Fb%20%C3%A9/x/y%2Fz?q=1&q=%E2%98%83+%2B&empty=&flag",
        content="café".encode(),
        headers={"x-shop": "s", "x-correlation-id": "order-7"},
    )

    assert answer.json() == {
        "method": "POST",
        "path": "/orders/a%2Fb%20%C3%A9/x/y%2Fz",
        "params": {"id": "a/b é", "rest": "x/y/z"},
        "query": {"q": ["1", "☃ +"], "empty": [""], "flag": [""]},
        "header": "s",
        "body": "café",
        "id": "order-7",
    }
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-correlation-id"] == "order-7"


@pytest.mark.parametrize(
    "path", ["/orders", "/orders/", "/orders/7/8", "/orders//7", "/nothing", "/rpc", "/rpc/nothing", "/orders%2F7"]
)
def test_request__no_such_path__is_404(ask: Ask, router: Router, path: str) -> None:
    router.get("/orders/{id}")(echo)
    router.command("ping")(_ping)

    assert "not found; " in problem(ask("GET", path), 404, "not_found")["detail"]


def test_request__routes_that_begin_with_a_parameter__leave_the_servers_own_alone(ask: Ask, router: Router) -> None:
    router.get("/{shop}/{rest:path}")(echo)
    router.get("/{shop}")(echo)
    router.get("/known/{id}/x")(echo)

    assert ask("GET", "/known").json()["params"] == {"shop": "known"}
    assert ask("GET", "/known/7").json()["params"] == {"shop": "known", "rest": "7"}
    assert ask("GET", "/a/b").json()["params"] == {"shop": "a", "rest": "b"}
    assert ask("GET", "/a").json()["params"] == {"shop": "a"}
    assert ask("GET", "/health").json()["status"] == "ok"
    assert ask("GET", "/").json()["name"] == "headgate"
    assert "openapi" in ask("GET", "/api/openapi.json").json()
    for path in ("/health/nothing", "/api/nothing/x", "/ui", "/metrics/x"):
        problem(ask("GET", path), 404, "not_found")
    problem(ask("DELETE", "/health"), 405, "method_not_allowed")


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/orders/%ff", "bad_path"),
        ("/orders/7?a=%ff", "bad_query"),
        ("/orders/7?" + "a&" * (QUERY_ARGUMENTS_MAX + 1), "bad_query"),
    ],
)
def test_request__cannot_be_decoded__is_400(ask: Ask, router: Router, path: str, code: str) -> None:
    router.get("/orders/{id}")(echo)

    problem(ask("GET", path), 400, code)


def test_request__head__is_that_of_get_without_the_body(ask: Ask, router: Router) -> None:
    router.get("/orders/{id}")(lambda: "twelve bytes")
    router.get("/broken")(_fail_with(HttpError(409)))

    answer = ask("HEAD", "/orders/7")
    broken = ask("HEAD", "/broken")

    assert (answer.status_code, answer.content, answer.headers["content-length"]) == (200, b"", "12")
    assert (broken.status_code, broken.content) == (409, b"")


def test_request__options__reports_the_methods_unless_the_app_answers(ask: Ask, router: Router) -> None:
    router.get("/orders/{id}")(echo)
    router.delete("/orders/{id}")(echo)
    router.get("/own")(echo)
    router.options("/own")(lambda: "mine")
    router.get("/plain")(echo)

    answer = ask("OPTIONS", "/orders/7")

    assert (answer.status_code, answer.content) == (204, b"")
    assert answer.headers["allow"] == "GET, HEAD, DELETE, OPTIONS"
    assert "content-length" not in answer.headers
    assert ask("OPTIONS", "/own").text == "mine"
    assert ask("OPTIONS", "/plain").headers["allow"] == "GET, HEAD, OPTIONS"


@pytest.mark.parametrize("path", ["/orders/7", "/plain", "/orders/a%2Fb"])
def test_request__another_method__is_405_and_reports_the_right_ones(ask: Ask, router: Router, path: str) -> None:
    router.get("/orders/{id}")(echo)
    router.get("/plain")(echo)

    answer = ask("DELETE", path)

    problem(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == "GET, HEAD, OPTIONS"


def test_request__no_body__is_empty(ask: Ask, router: Router) -> None:
    router.post("/length")(lambda request: len(request.body))

    assert ask("POST", "/length").json() == 0


def test_request__body_over_the_limit__is_413_whether_declared_or_not(ask: Ask, router: Router) -> None:
    router.post("/length")(lambda request: len(request.body))

    async def chunks(count: int) -> AsyncIterator[bytes]:
        for _ in range(count):
            yield b"x" * 65536

    within = BODY_BYTES_MAX // 65536
    assert ask("POST", "/length", content=chunks(within)).json() == BODY_BYTES_MAX
    problem(ask("POST", "/length", content=chunks(within + 1)), 413, "request_entity_too_large")
    problem(ask("POST", "/length", content=b"x" * (BODY_BYTES_MAX + 1)), 413, "content_too_large")


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 50_000])
def test_request__handler_reads_json_that_is_none__is_400(ask: Ask, router: Router, body: bytes) -> None:
    router.post("/orders")(lambda request: request.json())

    assert problem(ask("POST", "/orders", content=body), 400, "bad_input")["errors"][0]["source"] == "body"


# Answers


def test_answer__of_each_kind__has_its_status_and_type(ask: Ask, router: Router) -> None:
    router.get("/json")(lambda: {"a": "é"})
    router.get("/text")(lambda: "é")
    router.get("/bytes")(lambda: b"\x00")
    router.get("/none")(lambda: None)
    cookies = [("set-cookie", "a=1"), ("Set-Cookie", "b=2"), ("X-Content-Type-Options", "nosniff")]
    router.get("/own")(lambda: Response(201, "<p>", headers=[*cookies, ("content-type", "text/html")]))

    assert ask("GET", "/json").json() == {"a": "é"}
    assert ask("GET", "/text").headers["content-type"] == "text/plain; charset=utf-8"
    assert ask("GET", "/bytes").headers["content-type"] == "application/octet-stream"
    none = ask("GET", "/none")
    assert (none.status_code, none.content, none.headers.get("content-type")) == (204, b"", None)
    own = ask("GET", "/own")
    assert (own.status_code, own.headers["content-type"], own.text) == (201, "text/html", "<p>")
    assert own.headers.get_list("set-cookie") == ["a=1", "b=2"]
    assert own.headers.get_list("x-content-type-options") == ["nosniff"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Response(headers={"x-a": "1\r\nset-cookie: admin=1"}),
        lambda: Response(headers={"x-a: 1\r\nset-cookie": "admin=1"}),
        lambda: Response(headers={"content-length": "5"}),
        lambda: Response(204, "body"),
        lambda: Response(1000),
        lambda: {"a": object()},
        lambda: HttpError(600),
    ],
)
def test_answer__cannot_be_sent__is_500_and_logged(ask: Ask, router: Router, make: Callable[[], object]) -> None:
    router.get("/a")(make)

    with capture_logs() as logs:
        answer = ask("GET", "/a")

    problem(answer, 500, "bad_output")
    assert "set-cookie" not in answer.headers
    assert [line["code"] for line in logs if line["log_level"] == "error"] == ["bad_output"]


def test_handler__sync_or_async__runs_in_the_pool_or_on_the_loop(ask: Ask, router: Router) -> None:
    async def on_loop(request: Request) -> list[str | None]:
        await asyncio.sleep(0)
        return [threading.current_thread().name, correlation_id()]

    router.get("/pool")(lambda: [threading.current_thread().name, correlation_id()])
    router.get("/loop")(on_loop)
    # Middleware blocks, so it is in the pool, but the handler behind it is not.
    router.use(lambda request, next: next(request)).get("/both")(on_loop)

    def where(path: str) -> list[str]:
        answer: list[str] = ask("GET", path, headers={"x-correlation-id": "me"}).json()
        assert answer[1] == "me"
        return answer[:1]

    assert where("/pool")[0].startswith("headgate-work")
    assert where("/loop") == where("/both") == ["MainThread"]


def test_handler__more_than_the_pool_takes__is_503_and_the_loop_stays_free(
    application: Application, router: Router
) -> None:
    release = threading.Event()
    router.get("/slow")(lambda: str(release.wait()))
    application.routes = user_routes(AppRoutes([router]), application.pool)

    async def talk(client: httpx.AsyncClient) -> list[httpx.Response]:
        accepted = [asyncio.create_task(client.get("/slow")) for _ in range(4)]
        while application.pool.accepted < 4:
            await asyncio.sleep(0.001)
        refused = await client.get("/slow")
        release.set()
        return [refused, *await asyncio.gather(*accepted)]

    refused, *accepted = application.session(talk)

    problem(refused, 503, "server_busy")
    assert refused.headers["retry-after"] == "1"
    assert [answer.text for answer in accepted] == ["True"] * 4


def test_metrics__by_the_template__and_never_by_the_path(ask: Ask, router: Router) -> None:
    router.get("/orders/{id}")(echo)
    router.get("/files/{rest:path}")(echo)
    for path in ("/orders/1", "/orders/a%2Fb", "/files/x/y", "/orders/%ff", "/orders/1/2/3"):
        ask("GET", path)
    ask("PUT", "/orders/1")

    text = ask("GET", "/metrics").text

    assert 'headgate_http_requests_total{method="GET",route="/orders/{id}",status="200"} 2.0' in text
    assert 'headgate_http_requests_total{method="GET",route="/files/{rest:path}",status="200"} 1.0' in text
    assert 'headgate_http_requests_total{method="GET",route="unmatched",status="400"} 1.0' in text
    assert 'headgate_http_requests_total{method="GET",route="unmatched",status="404"} 1.0' in text
    assert 'headgate_http_requests_total{method="PUT",route="/orders/{id}",status="405"} 1.0' in text


# Errors


def _fail_with(error: BaseException, *, is_async: bool = False) -> Callable[[], Any]:
    def fail() -> None:
        raise error

    async def fail_later() -> None:
        await asyncio.sleep(0)
        raise error

    return fail_later if is_async else fail


def test_error__http_error__is_what_it_says(ask: Ask, router: Router) -> None:
    error = HttpError(
        402, "card 7: declined", code="declined", data={"left": 0, "tags": ["é"]}, headers={"retry-after": "9"}
    )
    router.get("/a")(_fail_with(error))
    router.get("/b")(_fail_with(HttpError(401, headers={"WWW-Authenticate": "Bearer"}), is_async=True))

    answer = ask("GET", "/a")
    body = problem(answer, 402, "declined")
    unauthorized = ask("GET", "/b")

    assert (body["detail"], body["data"]) == ("card 7: declined", {"left": 0, "tags": ["é"]})
    assert answer.headers["retry-after"] == "9"
    assert "data" not in problem(unauthorized, 401, "unauthorized")
    assert unauthorized.headers["www-authenticate"] == "Bearer"


def test_error__data_of_an_http_error_is_not_json__is_bad_output(ask: Ask, router: Router) -> None:
    router.get("/a")(_fail_with(HttpError(400, data=object())))

    problem(ask("GET", "/a"), 500, "bad_output")


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("has_middleware", [False, True])
@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("the password is hunter2"),
        KeyError("hunter2"),
        StopIteration("hunter2"),
        SystemExit("hunter2"),
        concurrent.futures.CancelledError("hunter2"),
        asyncio.CancelledError("hunter2"),
        StoreIOError("hunter2"),
        ExceptionGroup("hunter2", [ValueError("hunter2")]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_error__anything_else__is_500_logged_without_details(
    ask: Ask, router: Router, error: BaseException, is_async: bool, has_middleware: bool
) -> None:
    declaring = router.use(lambda request, next: next(request)) if has_middleware else router
    declaring.get("/a")(_fail_with(error, is_async=is_async))

    with capture_logs() as logs:
        answer = ask("GET", "/a")

    assert answer.status_code == 500
    problem(answer, 500, answer.json()["code"])
    assert "hunter2" not in answer.text
    assert [line["event"] for line in logs if line["log_level"] == "error"] == ["request failed"]
    assert ask("GET", "/").status_code == 200


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (NotFoundError("execution 7: there is none"), 404, "not_found"),
        (AlreadyStartedError("execution 7: it differs"), 409, "already_started"),
        (ThrottledError("table t: too much"), 429, "throttled"),
    ],
)
def test_error__of_headgate_itself__keeps_its_status(
    ask: Ask, router: Router, error: Exception, status: int, code: str
) -> None:
    router.get("/a")(_fail_with(error))

    assert problem(ask("GET", "/a"), status, code)["detail"] == str(error)


def test_problem__described_for_apps__has_the_fields_that_are_sent() -> None:
    ours_alone = {"checks", "current", "current_version"}
    assert set(PROBLEM_SCHEMA["properties"]) == set(UserProblem.__struct_fields__) - ours_alone


# Middleware


def test_middleware__in_the_server__edits_short_circuits_and_shares_its_context(ask: Ask, router: Router) -> None:
    def signed_in(request: Request, next: Next) -> Response:
        if "authorization" not in request.headers:
            raise HttpError(401, "sign in")
        request.context["user"] = request.headers["authorization"]
        return next(request)

    def stamped(request: Request, next: Next) -> Response:
        response = next(request)
        response.headers["x-user"] = request.context["user"]
        return response

    private = router.use(signed_in).use(stamped)
    private.command("whoami", method="GET", path="/me")(_whoami)

    assert problem(ask("GET", "/me"), 401, "unauthorized")["detail"] == "sign in"
    answer = ask("GET", "/me", headers={"authorization": "ann"})
    assert (answer.json(), answer.headers["x-user"]) == ("ann", "ann")
    problem(ask("POST", "/rpc/whoami"), 401, "unauthorized")


def _whoami(request: Request) -> str:
    return str(request.context["user"])


# Commands


def _ping() -> str:
    return "pong"


def _charge(order: Order) -> int:
    return order.price


def test_command__by_name_and_at_its_path__one_behaviour(ask: Ask, router: Router) -> None:
    router.command("charge", method="PUT", path="/orders/{id}", status=202)(_charge)

    by_name = ask("POST", "/rpc/charge", json={"id": "7", "price": 12})
    at_path = ask("PUT", "/orders/7", json={"price": 12})

    assert (by_name.status_code, by_name.json()) == (200, 12)
    assert (at_path.status_code, at_path.json()) == (202, 12)
    for answer in (
        ask("POST", "/rpc/charge", json={"id": "7", "price": "x"}),
        ask("PUT", "/orders/7", json={"price": "x"}),
    ):
        body = problem(answer, 400, "bad_input")
        assert body["errors"] == [{"message": "Expected `int`, got `str`", "key": "price", "source": "body"}]
    problem(ask("PUT", "/orders/7", content=b"{"), 400, "bad_input")
    problem(ask("POST", "/rpc/charge", content=b""), 400, "bad_input")
    problem(ask("POST", "/rpc/charge", data={"id": "7"}), 415, "unsupported_media_type")
    assert ask("GET", "/rpc/charge").headers["allow"] == "POST, OPTIONS"


def test_command__output_is_not_what_was_declared__is_500_and_logged(ask: Ask, router: Router) -> None:
    router.command("charge")(_wrong)

    with capture_logs() as logs:
        answer = ask("POST", "/rpc/charge")

    problem(answer, 500, "bad_output")
    assert "hunter2" not in answer.text
    (line,) = [line for line in logs if line["log_level"] == "error"]
    assert "Expected `int`, got `str`" in str(line["exc_info"])


def _wrong() -> int:
    return "hunter2"  # type: ignore[return-value]


# Pages from elsewhere


def test_cors__off__nothing_is_said(ask: Ask, router: Router) -> None:
    router.get("/a")(_ping)

    answer = ask("GET", "/a", headers={"Origin": "http://localhost:3000"})

    assert not [name for name in answer.headers if name.startswith("access-control") or name == "vary"]
    assert ask("GET", "/a", headers={"Origin": PAGE}).status_code == 403


def test_cors__preflight_and_answers__report_the_page_that_is_allowed(
    application: Application, ask: Ask, router: Router
) -> None:
    application.allowed_hosts = ["shop.example", "other.example"]
    router.cors = Cors(origins=[PAGE], max_age="1h")
    router.get("/orders/{id}")(
        lambda: Response(200, "x", headers={"Access-Control-Allow-Origin": "*", "Vary": "accept"})
    )
    router.options("/orders/{id}")(lambda: "never asked")
    router.get("/broken")(_fail_with(RuntimeError()))
    asked = {"Access-Control-Request-Method": "GET"}

    preflight = ask("OPTIONS", "/orders/7", headers={"Origin": PAGE, **asked})
    answer = ask("GET", "/orders/7", headers={"Origin": PAGE})

    assert preflight.status_code == 204
    assert preflight.headers["access-control-allow-origin"] == PAGE
    assert preflight.headers["access-control-allow-methods"] == "GET, HEAD, OPTIONS"
    assert preflight.headers["access-control-allow-headers"] == "authorization, content-type"
    assert preflight.headers["access-control-max-age"] == "3600"
    assert answer.headers.get_list("access-control-allow-origin") == [PAGE]
    assert answer.headers.get_list("vary") == ["accept", "origin"]
    for path in ("/broken", "/orders/7/8/9"):
        assert ask("GET", path, headers={"Origin": PAGE}).headers["access-control-allow-origin"] == PAGE
    refused = ask("OPTIONS", "/orders/7", headers={"Origin": "https://other.example", **asked})
    assert not [name for name in refused.headers if name.startswith("access-control")]
    assert "access-control-allow-origin" not in ask("GET", "/health", headers={"Origin": PAGE}).headers


@pytest.mark.parametrize(
    ("path", "origin", "is_admitted"),
    [
        ("/orders/7", PAGE, True),
        ("/orders/a%2Fb", PAGE, True),
        ("/orders/7", "https://evil.example", False),
        ("/orders/7", f"{PAGE}.evil.example", False),
        ("/orders/7", "null", False),
        ("/orders/7/8", PAGE, False),
        ("/orders/%ff", PAGE, False),
        ("/api/openapi.json", PAGE, False),
        ("/health", PAGE, False),
        ("/", PAGE, False),
    ],
)
def test_admits_origin__only_allowed_pages_at_paths_of_the_app(
    router: Router, path: str, origin: str, is_admitted: bool
) -> None:
    router.get("/orders/{id}")(_ping)
    scope: Any = {"type": "http", "raw_path": path.encode(), "path": path}
    admits = admits_origin(AppRoutes([router]))

    assert admits(scope, origin) is False
    router.cors = Cors(origins=[PAGE])
    assert admits(scope, origin) is is_admitted


# Several apps


def test_two_apps__routes_of_both__are_served_each_with_its_own_policy(application: Application) -> None:
    application.allowed_hosts = ["shop.example"]
    shop, billing = Router(), Router()
    shop.cors = Cors(origins=[PAGE])
    shop.get("/orders/{id}")(lambda: "an order")
    billing.get("/orders/open")(lambda: "open orders")
    billing.post("/orders/{id}")(lambda: "billed")
    apps = AppRoutes([shop, billing])
    application.routes = user_routes(apps, application.pool)

    page = {"origin": PAGE}
    assert application.ask("GET", "/orders/7", headers=page).text == "an order"
    assert application.ask("GET", "/orders/7", headers=page).headers["access-control-allow-origin"] == PAGE
    opened = application.ask("GET", "/orders/open", headers=page)
    assert (opened.text, "access-control-allow-origin" in opened.headers) == ("open orders", False)
    assert application.ask("POST", "/orders/7").text == "billed"
    assert set(application.ask("OPTIONS", "/orders/7").headers["allow"].split(", ")) >= {"GET", "POST"}
    for method, is_admitted in (("GET", True), ("POST", False)):
        asked = {**page, "access-control-request-method": method}
        preflight = application.ask("OPTIONS", "/orders/7", headers=asked)
        assert ("access-control-allow-methods" in preflight.headers) is is_admitted
        scope: Any = {"type": "http", "method": method, "raw_path": b"/orders/7", "path": "/orders/7", "headers": []}
        assert admits_origin(apps)(scope, PAGE) is is_admitted
    paths = application.ask("GET", "/api/openapi.json").json()["paths"]
    assert {"get", "post"} <= paths["/orders/{id}"].keys()


def test_two_apps__path_with_options_alone__answers_405_to_other_methods(application: Application) -> None:
    shop, billing = Router(), Router()
    shop.options("/orders")(lambda: "what there is")
    billing.get("/bills")(lambda: "bills")
    application.routes = user_routes(AppRoutes([shop, billing]), application.pool)

    answered = application.ask("GET", "/orders")

    problem(answered, 405, "method_not_allowed")


def test_two_apps__same_method_and_path__are_refused(application: Application) -> None:
    shop, billing = Router(), Router()
    for router in (shop, billing):
        router.get("/orders/{id}")(_ping)
    with pytest.raises(DefinitionError, match="GET /orders/"):
        AppRoutes([shop, billing])


# The document


def references(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        value = list(value.values())
    if isinstance(value, list):
        for member in value:
            yield from references(member)


def test_openapi__of_the_server__has_the_apps_routes_beside_its_own(ask: Ask, router: Router) -> None:
    router.get("/orders/{id}", summary="One order")(_report)
    router.get("/files/{rest:path}")(echo)
    router.delete("/orders/{id}")(echo)
    router.options("/orders/{id}")(echo)
    router.command("charge", method="PUT", path="/orders/{id}")(_charge)
    router.command("live")(_ping)

    document = ask("GET", "/api/openapi.json").json()

    paths, schemas = document["paths"], document["components"]["schemas"]
    assert {path: sorted(item) for path, item in paths.items() if not path.startswith("/health")} == {
        "/": ["get"],
        "/orders/{id}": ["delete", "get", "options", "put"],
        "/files/{rest}": ["get"],
        "/rpc/charge": ["post"],
        "/rpc/live": ["post"],
    }
    assert paths["/orders/{id}"]["get"]["summary"] == "One order"
    reported = paths["/orders/{id}"]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    assert reported == {"$ref": "#/components/schemas/app.Report"}
    assert list(schemas["app.Report"]["properties"]) == ["lines"]
    assert "checks" in schemas["server.Report"]["properties"]
    assert {reference.removeprefix("#/components/schemas/") for reference in references(document)} <= set(schemas)
    ids = [operation["operationId"] for item in paths.values() for operation in item.values()]
    assert len(set(ids)) == len(ids)
    assert ask("GET", "/api/openapi.json").json() == document


def _report(request: Request) -> Report:
    return Report([])


# Over a socket


def test_over_a_socket__raw_paths_and_methods__arrive_as_they_were_sent(
    application: Application, router: Router
) -> None:
    router.get("/files/{rest:path}")(lambda request: request.path_params["rest"])
    router.get("/orders/{id}")(lambda request: request.path_params["id"])
    application.routes = user_routes(AppRoutes([router]), application.pool)

    async def talk(_client: httpx.AsyncClient) -> list[tuple[int, str]]:
        server = HttpServer(Address("127.0.0.1", 0))
        serving = await server.start(application._app, grace_seconds=1)
        try:
            return [
                await _exchange(server.address.port, line)
                for line in ("GET /orders/a%2Fb", "GET /files/a/../b", "GET /files/a%2f..%2fb", "HEAD /orders/7")
            ]
        finally:
            await server.drain()
            await serving
            server.close()

    assert application.session(talk) == [(200, "a/b"), (404, "not_found"), (404, "not_found"), (200, "")]


async def _exchange(port: int, line: str) -> tuple[int, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{line} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    is_problem = b"problem+json" in head
    return int(head.split()[1]), msgspec.json.decode(body)["code"] if is_problem else body.decode()


def test_import__the_declarations__load_no_server() -> None:
    import subprocess

    script = "import headgate.durable.http.router, sys; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert {"litestar", "uvicorn", "sqlite3", "boto3"} & set(done.stdout.split()) == set()
