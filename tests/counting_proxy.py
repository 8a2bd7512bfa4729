"""A proxy in front of an AWS emulator that counts the DynamoDB calls which pass through it."""

from __future__ import annotations

import http.client
import json
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import urlsplit

_HOP_BY_HOP = {"connection", "transfer-encoding", "content-length", "keep-alive"}


class _QuietServer(ThreadingHTTPServer):
    def handle_error(self, *_: Any) -> None:
        """A client that has gone is no error."""


class CountingProxy:
    """Passes requests on to `endpoint`. `counts` has the calls so far by operation, table and index."""

    def __init__(self, endpoint: str) -> None:
        self.counts: Counter[str] = Counter()
        self._target = urlsplit(endpoint)
        self._lock = threading.Lock()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _pass_on(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                proxy._count(self.headers.get("X-Amz-Target", ""), body)
                connection = http.client.HTTPConnection(str(proxy._target.hostname), proxy._target.port, timeout=30)
                try:
                    connection.request(self.command, self.path, body, dict(self.headers.items()))
                    answer = connection.getresponse()
                    content = answer.read()
                finally:
                    connection.close()
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in _HOP_BY_HOP:
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_PUT = do_HEAD = do_DELETE = _pass_on

            def log_message(self, *_: Any) -> None:
                pass

        self._server = _QuietServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def taken(self) -> Counter[str]:
        """Return the counts so far, and begin again."""
        with self._lock:
            taken, self.counts = self.counts, Counter()
        return taken

    def _count(self, target: str, body: bytes) -> None:
        service, _, operation = target.partition(".")
        if not service.startswith("DynamoDB"):
            return
        given = json.loads(body or b"{}")
        about = given.get("TableName") or " ".join(given.get("RequestItems", {})) or ""
        with self._lock:
            self.counts[" ".join(filter(None, (operation, about, given.get("IndexName"))))] += 1
