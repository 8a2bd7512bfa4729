"""A proxy in front of an AWS emulator: passes requests on, and shows each with its answer to what is made of it."""

from __future__ import annotations

import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self
from urllib.parse import urlsplit

_HOP_BY_HOP: Final = {"connection", "transfer-encoding", "content-length", "keep-alive"}
_ANSWER_SECONDS_MAX: Final = 300


class _QuietServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """A client that has gone is no error."""


class PassingProxy:
    """Passes requests on to an endpoint. Subclasses look at them, and at their answers."""

    def __init__(self, endpoint: str) -> None:
        self._target = urlsplit(endpoint)
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _pass_on(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                target = self.headers.get("X-Amz-Target", "")
                proxy.received(target, body)
                answer, content = proxy._sent(self.command, self.path, body, dict(self.headers.items()))
                if answer.status == http.HTTPStatus.OK:
                    content = proxy.answered(target, body, content)
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in _HOP_BY_HOP:
                        self.send_header(name, value)
                # The answer to HEAD has the length of what is not sent.
                length = answer.getheader("Content-Length") if self.command == "HEAD" else None
                self.send_header("Content-Length", length or str(len(content)))
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

    def received(self, target: str, body: bytes) -> None:
        """See a request before it is passed on."""

    def answered(self, target: str, body: bytes, content: bytes) -> bytes:
        """Return what a client gets for a request that the emulator has answered with `content`."""
        del target, body
        return content

    def _sent(
        self, method: str, path: str, body: bytes, headers: dict[str, str]
    ) -> tuple[http.client.HTTPResponse, bytes]:
        connection = http.client.HTTPConnection(
            str(self._target.hostname), self._target.port, timeout=_ANSWER_SECONDS_MAX
        )
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer, answer.read()
        finally:
            connection.close()
