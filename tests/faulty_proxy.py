"""A proxy in front of an AWS emulator that throttles, fails and loses a share of the calls while it is asked to.

It can also deliver a share of the messages of SQS twice, late, or not at all.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import random
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self
from urllib.parse import urlsplit

_HOP_BY_HOP: Final = {"connection", "transfer-encoding", "content-length", "keep-alive"}
# Throttled before it is carried out; failed before it is carried out; carried out, and the connection breaks.
KINDS: Final = ("throttled", "failed", "lost")
# Batches of messages that SQS has accepted: sent twice; sent later, so that others overtake them; not sent.
DELIVERIES: Final = ("doubled", "late", "dropped")
_SENDS: Final = "AmazonSQS.SendMessageBatch"
_LATE_SECONDS: Final = 5.0


class _QuietServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, proxy: FaultyProxy) -> None:
        self.proxy = proxy
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, *_: Any) -> None:
        """A client that has gone is no error."""


class _Handler(BaseHTTPRequestHandler):
    server: _QuietServer
    protocol_version = "HTTP/1.1"

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        target = self.headers.get("X-Amz-Target", "")
        delivery = self.server.proxy.delivery() if target == _SENDS else None
        if delivery in ("late", "dropped"):
            self._mislay(body, is_late=delivery == "late")
            return
        if delivery == "doubled":
            self.server.proxy.sent(self.command, self.path, body, dict(self.headers.items()))
        self._meet(target, body)

    def _mislay(self, body: bytes, *, is_late: bool) -> None:
        if is_late:
            request = (self.command, self.path, body, dict(self.headers.items()))
            threading.Timer(_LATE_SECONDS, self.server.proxy.sent, request).start()
        self._answer(200, [], _accepted(body))

    def _meet(self, target: str, body: bytes) -> None:
        service, _, operation = target.partition(".")
        kind = self.server.proxy.fault(service)
        if kind == "throttled":
            self._answer(400, [], _refused(_throttling(service), operation))
        elif kind == "failed":
            self._answer(500, [], _refused("InternalServerError", operation))
        else:
            answer, content = self.server.proxy.sent(self.command, self.path, body, dict(self.headers.items()))
            if service:
                self.server.proxy.show(self.client_address[1])
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


class FaultyProxy:
    """Passes requests on to `endpoint`. `met` counts the faults by kind and service."""

    def __init__(self, endpoint: str, seed: int = 7) -> None:
        self.met: Counter[str] = Counter()
        self._target = urlsplit(endpoint)
        self._random = random.Random(seed)
        self._share = 0.0
        self._deliveries_share = 0.0
        self._see: Callable[[int], None] | None = None
        self._lock = threading.Lock()
        self._server = _QuietServer(self)
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

    @contextmanager
    def misdelivering(self, share: float) -> Iterator[None]:
        """Deliver a share of the batches of messages twice, late or not at all."""
        self._deliveries_share = share
        try:
            yield
        finally:
            self._deliveries_share = 0.0

    @contextmanager
    def showing(self, see: Callable[[int], None]) -> Iterator[None]:
        """Show each call that was carried out, and is not answered yet, as the port of its caller."""
        self._see = see
        try:
            yield
        finally:
            self._see = None

    def show(self, port: int) -> None:
        if see := self._see:
            see(port)

    def delivery(self) -> str | None:
        with self._lock:
            if self._random.random() >= self._deliveries_share:
                return None
            kind = self._random.choice(DELIVERIES)
            self.met[kind] += 1
            return kind

    def fault(self, service: str) -> str | None:
        # Calls of S3 and Lambda have no target.
        if not service or not self._share:
            return None
        with self._lock:
            if self._random.random() >= self._share:
                return None
            kind = self._random.choice(KINDS)
            self.met[kind] += 1
            return kind

    def sent(
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


def _accepted(body: bytes) -> bytes:
    """Return what SQS answers when it has accepted all messages of a batch."""
    successful = [
        {
            "Id": each["Id"],
            "MessageId": str(uuid.uuid4()),
            "MD5OfMessageBody": hashlib.md5(each["MessageBody"].encode(), usedforsecurity=False).hexdigest(),
        }
        for each in json.loads(body)["Entries"]
    ]
    return json.dumps({"Successful": successful, "Failed": []}).encode()


def _refused(code: str, operation: str) -> bytes:
    return json.dumps({"__type": f"com.amazonaws#{code}", "message": f"{operation}: injected"}).encode()
