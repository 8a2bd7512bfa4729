"""Guessing keys and flooding writes are answered with 429, and leave a trail without secrets."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]  # not marked as typed

from tests.acceptance.program import Server, run, until

RPC = "/observability.statestore.v1.SignalStateService/UpdateSignalState"
READ_RPC = "/observability.statestore.v1.SignalStateService/GetSignalState"
FAILURES_MAX = 5
WRITES_PER_SECOND = 1
WRONG = "hg_k0000000000000000_wrongwrongwrongwrongwrongwrongwrong"


class Site:
    """A server that requires keys, and its first key."""

    def __init__(self, server: Server, folder: Path) -> None:
        made = run("api-key", "first", "--home", server.home, "--json", folder=folder)
        assert made.returncode == 0, made.stderr
        self.key: str = json.loads(made.stdout)["text"]
        self.server = server
        self.client = httpx.Client(base_url=server.url, timeout=20)

    def get(self, key: str | None, path: str = "/api/v1/executions", **headers: str) -> httpx.Response:
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        return self.client.get(path, headers=headers)

    def call(self, path: str, key: str) -> grpc.RpcError | None:
        with grpc.insecure_channel(self.server.grpc) as channel:
            method: Any = channel.unary_unary(path)
            try:
                method(b"", timeout=20, metadata=[("authorization", f"Bearer {key}")])
            except grpc.RpcError as exc:
                return exc
        return None

    def lines(self, action: str) -> list[dict[str, Any]]:
        """Return the lines of the log with an action."""
        found = [json.loads(line) for line in self.server.stderr.splitlines() if line.startswith("{")]
        return [line for line in found if line.get("action") == action]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("callers")
    with Server(
        folder,
        HEADGATE_AUTH_REQUIRED="true",
        HEADGATE_LOG_FORMAT="json",
        HEADGATE_LIMITS_FAILED_LOGINS_PER_MINUTE=str(FAILURES_MAX),
        HEADGATE_LIMITS_WRITES_PER_SECOND_PER_CALLER=str(WRITES_PER_SECOND),
        HEADGATE_LIMITS_WRITES_PER_SECOND_PER_ADDRESS="0",
    ) as server:
        site = Site(server, folder)
        with site.client:
            yield site


def test_failed_logins__beyond_the_limit__are_429_on_every_protocol_and_a_valid_key_still_works(site: Site) -> None:
    answers = [site.get(f"{WRONG}{number}") for number in range(FAILURES_MAX + 3)]
    connect = site.client.post(
        READ_RPC, content=b"{}", headers={"Content-Type": "application/json", "Authorization": f"Bearer {WRONG}"}
    )
    called = site.call(READ_RPC, WRONG)

    assert [each.status_code for each in answers] == [401] * FAILURES_MAX + [429] * 3
    assert answers[-1].json()["code"] == "rate_limited"
    assert 1 <= int(answers[-1].headers["retry-after"]) <= 60
    assert connect.status_code == 429
    assert int(connect.headers["retry-after"]) >= 1
    assert isinstance(called, grpc.Call)
    assert called.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert _retry_seconds(called) > 0
    # From the same address.
    assert site.get(site.key).status_code == 200
    # Without credentials there is nothing to guess.
    assert site.get(None).status_code == 401


def _retry_seconds(call: Any) -> float:
    (content,) = (value for name, value in call.trailing_metadata() if name == "grpc-status-details-bin")
    for each in status_pb2.Status.FromString(content).details:
        retry = error_details_pb2.RetryInfo()
        if each.Unpack(retry):
            seconds: float = retry.retry_delay.ToTimedelta().total_seconds()
            return seconds
    return 0.0


def test_failed_logins__many__leave_one_line_and_a_count_but_no_key(site: Site) -> None:
    for number in range(50):
        site.get(f"{WRONG}{number}")

    lines = site.lines("auth.login")

    assert [(each["client"], each["level"]) for each in lines] == [("127.0.0.1", "warning")]
    failures = re.search(r"(?m)^headgate_failed_logins_total (\S+)", site.get(site.key, "/metrics").text)
    assert failures is not None
    assert float(failures.group(1)) >= 50
    assert WRONG not in site.server.stderr
    assert site.key not in site.server.stderr


def test_access_log__request__names_the_caller_and_its_address(site: Site) -> None:
    # Nothing but a configured proxy may say where a request comes from.
    site.get(site.key, "/api/v1/schedules", **{"X-Forwarded-For": "203.0.113.9"})
    site.get(None, "/api/v1/pipelines")
    site.client.post(READ_RPC, content=b"{}", headers={"Content-Type": "application/json"})

    until(lambda: len(site.lines("rpc.request")) > 0, "the lines are written")
    requests = {each["path"]: each for each in site.lines("http.request") if "path" in each}
    assert requests["/api/v1/schedules"]["client"] == "127.0.0.1"
    assert (
        requests["/api/v1/schedules"]["caller"]
        == site.get(site.key, "/api/v1/api-keys").json()["items"][0]["principal"]
    )
    assert requests["/api/v1/pipelines"]["caller"] is None
    calls = site.lines("rpc.request")
    assert (calls[-1]["caller"], calls[-1]["client"]) == (None, "127.0.0.1")


def test_writes__beyond_the_limit_of_a_caller__are_429_on_every_protocol_and_reads_go_on(site: Site) -> None:
    headers = {"Authorization": f"Bearer {site.key}", "Content-Type": "application/json"}
    body = json.dumps({"workflow": "none"})
    statuses = [
        site.client.post("/api/v1/executions", content=body, headers=headers).status_code
        for _ in range(5 * WRITES_PER_SECOND)
    ]
    connect = [site.client.post(RPC, content=b"{}", headers=headers) for _ in range(3)][-1]
    called = [site.call(RPC, site.key) for _ in range(3)][-1]
    query = site.client.post("/graphql", content=json.dumps({"query": "{__typename}"}), headers=headers)

    assert statuses[0] == 404
    assert statuses[-1] == 429
    assert connect.status_code == 429
    assert isinstance(called, grpc.Call)
    assert called.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert query.status_code == 200
    assert site.get(site.key).status_code == 200
    time.sleep(1.2 / WRITES_PER_SECOND)
    assert site.client.post("/api/v1/executions", content=body, headers=headers).status_code == 404
