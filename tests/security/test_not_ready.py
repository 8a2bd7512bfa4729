"""Until the server is ready, every route but the probes answers 503 with Retry-After."""

from __future__ import annotations

import http.client
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.acceptance.program import PROGRAM
from tests.ports import free_port

RPC = "/observability.statestore.v1.SignalStateService/GetSignalState"
DEFINITION = """
id: orders
trigger:
  type: workflow
  config: {workflow: load, input: "${date}"}
"""
ROUTES = [
    ("POST", "/api/v1/pipelines/orders/runs", '{"date":"2026-01-05","reason":"first"}', "application/json"),
    ("GET", "/api/v1/executions", "", ""),
    ("POST", "/graphql", '{"query":"{__typename}"}', "application/json"),
    ("POST", RPC, "{}", "application/json"),
    ("GET", "/ui", "", ""),
    ("GET", "/", "", ""),
    ("GET", "/no/such/route", "", ""),
]
PROBES = ["/health/live", "/health/ready", "/health"]


def _connected(port: int, process: subprocess.Popen[bytes]) -> http.client.HTTPConnection:
    """Connect as soon as the port listens, which is before the server opens its store."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and process.poll() is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        try:
            connection.connect()
        except ConnectionRefusedError:
            time.sleep(0.005)
        else:
            return connection
    raise AssertionError("the port never listened")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "orders.yaml").write_text(DEFINITION)
    return tmp_path


@contextmanager
def _starting(folder: Path, port: int, rpc_port: int) -> Iterator[subprocess.Popen[bytes]]:
    ports = ["--http", f"127.0.0.1:{port}", "--grpc", f"127.0.0.1:{rpc_port}"]
    environ = {"PATH": os.environ["PATH"], "HEADGATE_PIPELINES_WATCHDOG": "false"}
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(
            [PROGRAM, "up", *ports, "--pipelines", "pipelines"],
            cwd=folder,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=log,
        ) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def _answer(connection: http.client.HTTPConnection) -> tuple[int, str | None, bytes]:
    answer = connection.getresponse()
    return answer.status, answer.headers["retry-after"], answer.read()


def test_first_boot__requests_before_the_server_is_ready__are_503_on_every_route(folder: Path) -> None:
    port, rpc_port = free_port(), free_port()
    with _starting(folder, port, rpc_port) as process, ExitStack() as stack:
        # Sent before the event loop runs, and so answered before everything else.
        waiting = [stack.enter_context(closing(_connected(port, process))) for _ in (*ROUTES, *PROBES)]
        for connection, (method, path, body, media) in zip(waiting, ROUTES, strict=False):
            connection.request(method, path, body or None, {"Content-Type": media} if media else {})
        for connection, path in zip(waiting[len(ROUTES) :], PROBES, strict=True):
            connection.request("GET", path)
        answers = [_answer(connection) for connection in waiting]
        assert [status for status, _, _ in answers] == [503] * len(ROUTES) + [200, 503, 503]
        for _, retry_after, content in answers[: len(ROUTES)]:
            assert int(retry_after or 0) >= 1
            assert b"the server is starting" in content

        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"headgate ready")
        ready = stack.enter_context(closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)))
        ready.request(*ROUTES[0][:3], {"Content-Type": ROUTES[0][3]})
        assert _answer(ready)[0] == 202
        with grpc.insecure_channel(f"127.0.0.1:{rpc_port}") as channel, pytest.raises(grpc.RpcError) as refused:
            call: Any = channel.unary_unary(RPC)
            call(b"", timeout=20)
        # Served: the answer is about the request.
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
