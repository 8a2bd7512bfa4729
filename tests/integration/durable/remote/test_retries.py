"""Remote client: requests to a server that refuses, is busy, or breaks the connection after it has acted."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

import headgate as hg
from headgate.errors import OutcomeUnknownError


class Scripted(ThreadingHTTPServer):
    """Answers each request by the next entry of a script: a status with a body, or None to break the connection."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script: list[tuple[int, Any] | None] = []
        self.received: list[tuple[str, Any, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Scripted

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.server.received.append((self.path, json.loads(content), self.headers.get("idempotency-key", "")))
        answer = self.server.script.pop(0)
        if answer is None:
            self.close_connection = True
            return
        status, body = answer
        encoded = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(encoded)))
        self.end_headers()
        self.wfile.write(encoded)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Scripted]:
    made = Scripted()
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


BUSY = (503, {"code": "server_busy", "detail": "busy"})
CREATED = (201, {"id": "x", "workflow": "w", "created": True})


def test_start__busy_server_and_lost_answer__is_sent_again_under_the_same_id(server: Scripted) -> None:
    found = {"id": "x", "workflow": "w", "created": False}
    server.script = [BUSY, None, (200, found)]

    with hg.Client(server.url) as client:
        handle = client.start_by_name("w", 1)

    ids = {body["id"] for _, body, _ in server.received}
    assert (len(server.received), len(ids)) == (3, 1)
    # Nothing else can have started it.
    assert handle.was_started


def test_start__that_replaces_an_execution__is_not_repeated_after_a_lost_answer(server: Scripted) -> None:
    server.script = [BUSY, None, CREATED]

    with hg.Client(server.url) as client, pytest.raises(OutcomeUnknownError):
        client.start_by_name("w", 1, id="x", reuse="terminate")

    assert len(server.received) == 2


def test_messages__lost_answers__are_repeated_with_their_keys(server: Scripted) -> None:
    server.script = [None, (202, {"id": "x"}), None, (202, {"id": "x"}), None, (200, {"id": "u", "result": 5})]

    with hg.Client(server.url) as client:
        handle = client.handle("x")
        handle.signal("go", 1)
        handle.cancel("enough")
        assert handle.update("limit", 1) == 5

    signals, cancels, updates = (server.received[place : place + 2] for place in (0, 2, 4))
    assert signals[0][1]["id"] == signals[1][1]["id"]
    assert cancels[0][2] == cancels[1][2] != ""
    assert updates[0][1]["id"] == updates[1][1]["id"]
