"""Web pages must not change anything on a server that is open to local programs.

The headers are those that Chromium sends; a page cannot choose `Origin`, `Sec-Fetch-*` or `Host`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.acceptance.program import Server

MACHINE = json.dumps({"StartAt": "A", "States": {"A": {"Type": "Pass", "End": True}}})
START = json.dumps({"workflow": "headgate.machine", "input": {"definition": json.loads(MACHINE)}})
RPC = "/observability.statestore.v1.SignalStateService/UpdateSignalState"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("browser")
    with Server(folder, HEADGATE_ALLOWED_ORIGINS="https://console.example") as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[httpx.Client]:
    # Chromium sends a host name, not the address of httpx.
    with httpx.Client(base_url=server.url, timeout=20) as client:
        yield client


def page(origin: str | None, site: str, media: str | None = None, mode: str = "no-cors") -> dict[str, str]:
    """Return the headers of a request that a page at `origin` makes."""
    found = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode, "Sec-Fetch-Dest": "empty"}
    if origin is not None:
        found["Origin"] = origin
    if media is not None:
        found["Content-Type"] = media
    return found


def own_origin(server: Server) -> str:
    return server.url


def other_port(server: Server) -> str:
    return "http://127.0.0.1:1" if not server.url.endswith(":1") else "http://127.0.0.1:2"


WRITES = [
    ("POST", "/api/v1/executions", START),
    ("PUT", "/api/v1/machines/evil", MACHINE),
    ("DELETE", "/api/v1/machines/evil", ""),
    ("POST", RPC, "{}"),
    ("POST", "/graphql", json.dumps({"query": "{__typename}"})),
]


@pytest.mark.parametrize(("method", "path", "body"), WRITES)
@pytest.mark.parametrize("media", ["text/plain;charset=UTF-8", "application/json"])
def test_write__page_on_another_local_port__is_403(
    server: Server, client: httpx.Client, method: str, path: str, body: str, media: str
) -> None:
    answer = client.request(method, path, content=body, headers=page(other_port(server), "same-site", media))

    assert answer.status_code == 403, answer.text
    assert answer.json()["code"] == "origin_not_allowed"


@pytest.mark.parametrize(
    ("origin", "site"),
    [
        # Another name of the same loopback, another port, another scheme.
        ("http://localhost:{port}", "cross-site"),
        ("http://localhost:3000", "cross-site"),
        ("http://127.0.0.1", "same-site"),
        ("https://127.0.0.1:{port}", "cross-site"),
        ("http://evil.example", "cross-site"),
        # A sandboxed frame, or a page with the referrer policy no-referrer.
        ("null", "cross-site"),
        ("null", "same-site"),
        (None, "cross-site"),
        (None, "same-site"),
        (None, "anything-else"),
        # A forged Origin does not get past what the browser says, and the other way round.
        ("{own}", "cross-site"),
        ("{own}", "same-site"),
        ("http://evil.example", "same-origin"),
        ("http://evil.example", "none"),
        ("chrome-extension://abcdefghijklmnop", "none"),
    ],
)
def test_write__page_of_another_origin__is_403_and_starts_nothing(
    server: Server, client: httpx.Client, origin: str | None, site: str
) -> None:
    port = server.url.rpartition(":")[2]
    shown = None if origin is None else origin.format(port=port, own=server.url)

    answer = client.post("/api/v1/executions", content=START, headers=page(shown, site, "application/json"))

    assert answer.status_code == 403, answer.text
    assert client.get("/api/v1/executions").json()["executions"] == []


@pytest.mark.parametrize(
    "media",
    [
        "text/plain",
        "text/plain;charset=UTF-8",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "text/html",
        None,
    ],
)
@pytest.mark.parametrize(("method", "path", "body"), [each for each in WRITES if each[2]])
def test_write__own_origin_with_a_type_that_the_operation_does_not_declare__is_415(
    server: Server, client: httpx.Client, method: str, path: str, body: str, media: str | None
) -> None:
    answer = client.request(method, path, content=body, headers=page(own_origin(server), "same-origin", media))

    assert answer.status_code == 415, answer.text
    assert answer.json()["code"] == "unsupported_media_type"


@pytest.mark.parametrize(
    ("origin", "site"),
    [
        ("{own}", "same-origin"),
        ("{own}", None),
        (None, "same-origin"),
        # A form or fetch of one of our pages, whose referrer policy is no-referrer.
        ("null", "same-origin"),
        (None, "none"),
        ("https://console.example", "cross-site"),
    ],
)
def test_write__own_or_configured_origin__is_accepted(
    server: Server, client: httpx.Client, origin: str | None, site: str | None
) -> None:
    shown = None if origin is None else origin.format(own=server.url)
    headers = page(shown, site or "same-origin", "application/json; charset=utf-8", "cors")
    if site is None:
        # Safari before 16.4 sends no Sec-Fetch-* headers.
        headers = {"Origin": server.url, "Content-Type": "application/json"}

    answer = client.put("/api/v1/machines/fine", content=MACHINE, headers=headers)

    assert answer.status_code in (200, 201), answer.text


def test_preflight__configured_origin__is_allowed_and_others_are_not(server: Server, client: httpx.Client) -> None:
    asked = {"Access-Control-Request-Method": "PUT", "Access-Control-Request-Headers": "content-type"}

    allowed = client.options("/api/v1/machines/x", headers={"Origin": "https://console.example", **asked})
    refused = client.options("/api/v1/machines/x", headers={"Origin": "http://evil.example", **asked})
    local = client.options("/api/v1/machines/x", headers={"Origin": other_port(server), **asked})
    rpc = client.options(RPC, headers={"Origin": "https://console.example", **asked})

    assert (allowed.status_code, rpc.status_code) == (204, 204)
    assert allowed.headers["access-control-allow-origin"] == "https://console.example"
    assert "content-type" in allowed.headers["access-control-allow-headers"]
    assert "PUT" in allowed.headers["access-control-allow-methods"]
    for answer in (refused, local):
        assert "access-control-allow-origin" not in answer.headers


def test_answer__configured_origin__may_be_read_by_the_page(client: httpx.Client) -> None:
    headers = {"Origin": "https://console.example", "Sec-Fetch-Site": "cross-site"}
    answers = [
        client.get("/api/v1/executions", headers=headers),
        client.get("/api/v1/executions/none", headers=headers),
        client.post(RPC, content=b"{}", headers={**headers, "Content-Type": "application/json"}),
    ]

    for answer in answers:
        assert answer.headers["access-control-allow-origin"] == "https://console.example"
        assert "access-control-allow-credentials" not in answer.headers
    assert "access-control-allow-origin" not in client.get("/api/v1/executions").headers


def test_websocket__upgrade_by_a_page__is_not_accepted(server: Server, client: httpx.Client) -> None:
    upgrade = {
        "Origin": other_port(server),
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }

    assert client.get("/graphql", headers=upgrade).status_code != 101


def test_rebinding__page_whose_name_points_here__is_421(server: Server, client: httpx.Client) -> None:
    port = server.url.rpartition(":")[2]
    headers = page(f"http://evil.example:{port}", "same-origin", "application/json")

    answer = client.post("/api/v1/executions", content=START, headers={**headers, "Host": f"evil.example:{port}"})

    assert answer.status_code == 421


def test_program__curl_with_its_own_content_type__works_as_before(client: httpx.Client) -> None:
    """The commands of the runbook: `curl -d` sends a form's content type, and neither Origin nor Sec-Fetch-Site."""
    form = {"Content-Type": "application/x-www-form-urlencoded", "User-Agent": "curl/8.5.0", "Accept": "*/*"}
    dataset: dict[str, Any] = {
        "dataset_urn": "urn:dp:payments:payment_processed:v1",
        "display_name": "Payments - Payment Processed",
        "tier": "TIER_1",
        "owner_team": "payments-platform",
        "source": {"type": "KAFKA", "topic": "raw.payments.events"},
        "schema_binding": {"registry": "GLUE", "schema_name": "payments.payment_processed"},
        "slos": {"freshness": {"max_delay_seconds": 120}},
    }
    rule = {"topic_pattern": "raw.payments.events", "resolution_type": "EXACT"}
    path = "/api/v1/datasets/urn:dp:payments:payment_processed:v1"

    created = client.post(
        "/api/v1/datasets", content=json.dumps(dataset), headers={**form, "Content-Type": "application/json"}
    )
    added = client.post(f"{path}/resolution-rules", content=json.dumps(rule), headers=form)
    shown = client.get(path)
    patched = client.patch("/api/v1/incidents/INC-7721", content=json.dumps({"status": "RESOLVED"}), headers=form)

    assert (created.status_code, added.status_code, shown.status_code) == (201, 201, 200)
    # There is no such incident here: the body was read and understood.
    assert patched.status_code == 404
