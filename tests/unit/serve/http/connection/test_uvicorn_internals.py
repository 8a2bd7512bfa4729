"""The internals of uvicorn that `headgate.serve.http.connection.protocol` and `listener` override or read."""

from __future__ import annotations

import inspect

import pytest
import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.wsproto_impl import WSProtocol
from uvicorn.server import ServerState

PROTOCOL_METHODS = (
    "connection_made",
    "connection_lost",
    "data_received",
    "on_message_begin",
    "on_headers_complete",
    "on_body",
    "on_message_complete",
    "on_response_complete",
    "shutdown",
    "timeout_keep_alive_handler",
    "send_400_response",
    "_should_upgrade",
    "handle_websocket_upgrade",
)
WEBSOCKET_METHODS = (
    "connection_made",
    "connection_lost",
    "send",
    "handle_ping",
    "keepalive_timeout",
    "stop_keepalive",
    "shutdown",
)
WEBSOCKET_ATTRIBUTES = ("app", "client", "close_sent", "conn", "handshake_complete", "queue", "transport", "writable")
# Set in `__init__` or `on_message_begin` of the protocol.
PROTOCOL_ATTRIBUTES = (
    "client",
    "cycle",
    "expect_100_continue",
    "flow",
    "headers",
    "loop",
    "parser",
    "pipeline",
    "server_state",
    "timeout_keep_alive",
    "timeout_keep_alive_task",
    "transport",
    "url",
)


@pytest.mark.parametrize("name", PROTOCOL_METHODS)
def test_protocol__method_that_we_override__exists(name: str) -> None:
    assert callable(getattr(HttpToolsProtocol, name))


@pytest.mark.parametrize("name", WEBSOCKET_METHODS)
def test_websocket__method_that_we_override_or_call__exists(name: str) -> None:
    assert callable(getattr(WSProtocol, name))


@pytest.mark.parametrize("name", WEBSOCKET_ATTRIBUTES)
def test_websocket__attribute_that_we_read__is_set(name: str) -> None:
    assert f"self.{name}" in inspect.getsource(WSProtocol.__init__)


@pytest.mark.parametrize("name", PROTOCOL_ATTRIBUTES)
def test_protocol__attribute_that_we_read__is_set(name: str) -> None:
    assert f"self.{name}" in inspect.getsource(HttpToolsProtocol)


@pytest.mark.parametrize(
    "name",
    ["response_complete", "response_started", "disconnected", "keep_alive", "more_body", "body", "message_event"],
)
def test_cycle__attribute_that_our_stand_in_has__is_set(name: str) -> None:
    assert f"self.{name}" in inspect.getsource(RequestResponseCycle)


def test_cycle__protocol_reads_no_attribute_that_our_stand_in_lacks() -> None:
    read = {part.split("self.cycle.")[1] for part in _attribute_reads(inspect.getsource(HttpToolsProtocol))}
    assert read <= {"response_complete", "disconnected", "keep_alive", "more_body", "body", "message_event", "run_asgi"}


def _attribute_reads(source: str) -> list[str]:
    words = source.replace("(", " ").replace(")", " ").replace(",", " ").replace(":", " ").split()
    names = [word for word in words if word.startswith("self.cycle.")]
    return [".".join(name.split(".")[:3]) for name in names]


def test_state__default_headers_and_total__exist() -> None:
    state = ServerState()

    assert (state.default_headers, state.total_requests, state.connections) == ([], 0, set())


def test_flow_and_status_lines__exist() -> None:
    assert "self.read_paused" in inspect.getsource(FlowControl)
    assert "self.write_paused" in inspect.getsource(FlowControl)
    assert STATUS_LINE[200] == b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize("name", ["startup", "capture_signals", "serve", "on_tick"])
def test_server__method_that_we_override_or_call__exists(name: str) -> None:
    assert callable(getattr(uvicorn.Server, name))


@pytest.mark.parametrize(
    "name",
    ["self.lifespan.startup()", "self.lifespan.should_exit", "self.lifespan.state", "self.servers", "self.started"],
)
def test_server__startup_does_what_ours_does(name: str) -> None:
    assert name in inspect.getsource(uvicorn.Server.startup)


def test_server__main_loop__ticks_ten_times_a_second() -> None:
    assert "asyncio.sleep(0.1)" in inspect.getsource(uvicorn.Server.main_loop)
