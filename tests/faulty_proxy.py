"""A proxy in front of an AWS emulator that throttles, fails and loses a share of the calls while it is asked to."""

from __future__ import annotations

import http.client
import json
import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self
from urllib.parse import urlsplit

_HOP_BY_HOP: Final = {"connection", "transfer-encoding", "content-length", "keep-alive"}
# Throttled before it is carried out; failed before it is carried out; carried out, and the connection breaks.
KINDS: Final = ("throttled", "failed", "lost")


class _QuietServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """A client that has gone is no error."""


class FaultyProxy:
    """Passes requests on to `endpoint`. `met` counts the faults by kind and service."""

    def __init__(self, endpoint: str, seed: int = 7) -> None:
        self.met: Counter[str] = Counter()
        self._target = urlsplit(endpoint)
        self._random = random.Random(seed)
        self._share = 0.0
        self._lock = threading.Lock()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _pass_on(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                service, _, operation = self.headers.get("X-Amz-Target", "").partition(".")
                kind = proxy._fault(service)
                if kind == "throttled":
                    self._answer(400, [], _refused(_throttling(service), operation))
                elif kind == "failed":
                    self._answer(500, [], _refused("InternalServerError", operation))
                else:
                    answer, content = proxy._sent(self.command, self.path, body, dict(self.headers.items()))
                    if kind == "lost":
                        self.close_connection = True
                        self.connection.close()
                        return
                    self._answer(answer.status, answer.getheaders(), content)

            def _answer(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
                self.send_response(status)
                for name, value in headers:
                    if name.lower() not in _HOP_BY_HOP:
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_PUT = do_HEAD = do_DELETE = _pass_on

            def log_message(self, *_: Any) -> None:
                pass

        self._server = _QuietServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @contextmanager
    def failing(self, share: float) -> Iterator[None]:
        """Let a share of the calls of DynamoDB, SQS, Step Functions and Scheduler meet a fault."""
        self._share = share
        try:
            yield
        finally:
            self._share = 0.0

    def _fault(self, service: str) -> str | None:
        # Calls of S3 and Lambda have no target.
        if not service or not self._share:
            return None
        with self._lock:
            if self._random.random() >= self._share:
                return None
            kind = self._random.choice(KINDS)
            self.met[kind] += 1
            return kind

    def _sent(
        self, method: str, path: str, body: bytes, headers: dict[str, str]
    ) -> tuple[http.client.HTTPResponse, bytes]:
        connection = http.client.HTTPConnection(str(self._target.hostname), self._target.port, timeout=930)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer, answer.read()
        finally:
            connection.close()


def _throttling(service: str) -> str:
    return "ProvisionedThroughputExceededException" if service.startswith("DynamoDB") else "ThrottlingException"


def _refused(code: str, operation: str) -> bytes:
    return json.dumps({"__type": f"com.amazonaws#{code}", "message": f"{operation}: injected"}).encode()
