"""A client that has not authenticated cannot use up the server's memory, connections or time.

Raw sockets against a real server. Memory is the resident set of the process; `/health/live` must answer during every
attack.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.acceptance.program import Server, until

HEAD = b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n"
SENT_BYTES = 64 * 1024 * 1024
GROWTH_BYTES_MAX = 16 * 1024 * 1024
LIVE_SECONDS_MAX = 1.0
CONNECTIONS_PER_ADDRESS = 400
HALF_OPEN = 300


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(
        tmp_path_factory.mktemp("limits"),
        HEADGATE_LIMITS_HEADER_SECONDS="2",
        HEADGATE_LIMITS_BODY_SECONDS="2",
        HEADGATE_LIMITS_IDLE_SECONDS="2",
        HEADGATE_LIMITS_CONNECTIONS_PER_ADDRESS=str(CONNECTIONS_PER_ADDRESS),
    ) as server:
        # The first requests load modules.
        assert _live_seconds(server) < 20
        yield server


def _connect(server: Server) -> socket.socket:
    host, _, port = server.url.removeprefix("http://").rpartition(":")
    return socket.create_connection((host, int(port)), timeout=20)


def _resident_bytes(server: Server) -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{server.process.pid}/status").read_text())
    assert found is not None
    return int(found.group(1)) * 1024


def _live_seconds(server: Server) -> float:
    host, _, port = server.url.removeprefix("http://").rpartition(":")
    started = time.monotonic()
    connection = http.client.HTTPConnection(host, int(port), timeout=20)
    connection.request("GET", "/health/live")
    assert connection.getresponse().status == 200
    connection.close()
    return time.monotonic() - started


def _received(connection: socket.socket) -> bytes:
    """Return everything until the server closes the connection."""
    content = b""
    with suppress(ConnectionResetError):
        while part := connection.recv(65536):
            content += part
    return content


def _status(content: bytes) -> int:
    return int(content.split(b" ", 2)[1])


def _code(content: bytes) -> str:
    code: str = json.loads(content.partition(b"\r\n\r\n")[2])["code"]
    return code


def _flood(connection: socket.socket, opening: bytes, part: bytes) -> int:
    """Send `part` again and again, until the server closes the connection; return the bytes that it took."""
    connection.sendall(opening)
    sent = 0
    with suppress(ConnectionResetError, BrokenPipeError):
        while sent < SENT_BYTES:
            connection.sendall(part)
            sent += len(part)
    return sent


@pytest.mark.parametrize(
    ("opening", "part", "status"),
    [
        (HEAD + b"x-endless: ", b"a" * 65536, 431),
        (HEAD + b"x", b"a" * 65536, 431),
        (HEAD, b"x-many: y\r\n" * 5000, 431),
        (b"GET /", b"a" * 65536, 414),
        (b"GET /?", b"a=b&" * 16384, 414),
        (b"POST /api/v1/executions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\nx: ", b"a" * 65536, 431),
        # Behind a small request, in one connection.
        (HEAD + b"\r\n" + HEAD + b"x-endless: ", b"a" * 65536, 431),
        # Trailers and extensions of chunks.
        (
            b"POST /health HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx: ",
            b"a" * 65536,
            431,
        ),
        (
            b"POST /health HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n0\r\n",
            b"x-many: y\r\n" * 5000,
            431,
        ),
    ],
    ids=["value", "name", "count", "path", "query", "post", "pipelined", "trailer", "trailers"],
)
def test_head__endless__is_refused_in_bounded_memory(server: Server, opening: bytes, part: bytes, status: int) -> None:
    before = _resident_bytes(server)
    with _connect(server) as connection:
        sent = _flood(connection, opening, part)
        assert _live_seconds(server) < LIVE_SECONDS_MAX
        answer = _received(connection)

    # What the two kernels buffer, not what the server took.
    assert sent < SENT_BYTES / 2
    assert _resident_bytes(server) - before < GROWTH_BYTES_MAX
    # A client that still sends may get a reset instead.
    if answer:
        assert f" {status} ".encode() in answer


@pytest.mark.parametrize(
    ("request_bytes", "status", "code"),
    [
        (HEAD + b"x: y\r\n" * 200 + b"\r\n", 431, "too_many_headers"),
        (HEAD + b"x: " + b"a" * 40_000 + b"\r\n\r\n", 431, "headers_too_large"),
        (b"GET /" + b"a" * 9_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n", 414, "request_line_too_long"),
        (HEAD + b"x: y\r\n" * 90 + b"connection: close\r\n\r\n", 200, None),
        (HEAD + b"connection: close\r\nx: " + b"a" * 30_000 + b"\r\n\r\n", 200, None),
        (b"GET /health/live?" + b"a" * 8_000 + b" HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n", 200, None),
    ],
    ids=["count", "bytes", "line", "count allowed", "bytes allowed", "line allowed"],
)
@pytest.mark.parametrize("parts", [1, 7])
def test_head__limit__is_the_same_in_one_packet_and_in_many(
    server: Server, request_bytes: bytes, status: int, code: str | None, parts: int
) -> None:
    with _connect(server) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        size = -(-len(request_bytes) // parts)
        with suppress(ConnectionResetError, BrokenPipeError):
            for start in range(0, len(request_bytes), size):
                connection.sendall(request_bytes[start : start + size])
                time.sleep(0.005 if parts > 1 else 0)
        answer = _received(connection)

    assert _status(answer) == status
    assert code is None or _code(answer) == code


def _ended_after(connection: socket.socket, drip: bytes = b"") -> float:
    """Return when the server closed the connection, while `drip` is sent ten times a second."""
    started = time.monotonic()
    connection.settimeout(0.1)
    while time.monotonic() - started < 15:
        try:
            if drip:
                connection.sendall(drip)
            if connection.recv(65536) == b"":
                break
        except TimeoutError:
            continue
        except (ConnectionResetError, BrokenPipeError):
            break
    return time.monotonic() - started


def test_slow_clients__silent_or_dripping__are_closed_in_time(server: Server) -> None:
    post = b"POST /api/v1/executions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    attacks = {
        "silent": (b"", b""),
        "line break only": (b"\r\n", b""),
        "half a head": (HEAD, b""),
        "dripping head": (HEAD + b"x: ", b"a"),
        "stalled body": (post + b"content-length: 1000\r\n\r\n{", b""),
        "dripping body": (post + b"content-length: 100000\r\n\r\n{", b" "),
        "stalled chunk": (post + b"transfer-encoding: chunked\r\n\r\nff\r\n{", b""),
        "idle after a request": (HEAD + b"\r\n", b""),
    }
    with ExitStack() as stack:
        connections = {name: stack.enter_context(_connect(server)) for name in attacks}
        for name, (opening, _) in attacks.items():
            connections[name].sendall(opening)
        # All at once: each but the dripping ones waits for the server only.
        dripping = [name for name, (_, drip) in attacks.items() if drip]
        started = time.monotonic()
        while dripping and time.monotonic() - started < 12:
            for name in list(dripping):
                try:
                    connections[name].sendall(attacks[name][1])
                except (ConnectionResetError, BrokenPipeError):
                    dripping.remove(name)
            time.sleep(0.1)
        assert dripping == []
        for name, connection in connections.items():
            assert _ended_after(connection) < 8, name
    assert _live_seconds(server) < LIVE_SECONDS_MAX


def test_slow_body__that_makes_progress__is_read_to_its_end(server: Server) -> None:
    body = json.dumps({"workflow": "none", "input": "x" * 12_000}).encode()
    head = (
        "POST /api/v1/executions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"connection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    with _connect(server) as connection:
        connection.sendall(head.encode())
        # Longer than the time-out in total.
        for start in range(0, len(body), 2000):
            connection.sendall(body[start : start + 2000])
            time.sleep(0.5)
        assert _status(_received(connection)) == 404


def test_connections__one_address_holds_many__further_ones_get_503_until_it_closes_some(server: Server) -> None:
    until(lambda: _status_of_live(server) == 200, "earlier connections are closed")
    with ExitStack() as stack:
        held = [stack.enter_context(_connect(server)) for _ in range(CONNECTIONS_PER_ADDRESS)]
        for connection in held:
            connection.sendall(HEAD)
        until(lambda: _status_of_live(server) == 503, "the limit applies")
        with _connect(server) as further:
            refused = _received(further)
        assert _status(refused) == 503
        assert b"retry-after: " in refused
        assert _code(refused) == "too_many_connections"
    until(lambda: _status_of_live(server) == 200, "the connections were released")


def _status_of_live(server: Server) -> int:
    with _connect(server) as connection:
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(HEAD + b"connection: close\r\n\r\n")
        return _status(_received(connection) or b"HTTP/1.1 0 ")


def test_health__during_many_half_open_requests__answers_within_a_second(server: Server) -> None:
    before = _resident_bytes(server)
    with ExitStack() as stack:
        for _ in range(HALF_OPEN):
            connection = stack.enter_context(_connect(server))
            connection.sendall(HEAD + b"x: " + b"a" * 20_000)
        assert _live_seconds(server) < LIVE_SECONDS_MAX
        # Two limits for each connection at most.
        assert _resident_bytes(server) - before < HALF_OPEN * 2 * 32_768 + GROWTH_BYTES_MAX
