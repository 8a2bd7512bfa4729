"""An OTLP/HTTP receiver: decodes requests with the service definitions of opentelemetry-proto, as a collector does."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


class ReceivedSpan(NamedTuple):
    """A span as it arrived."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    attributes: dict[str, str]
    links: tuple[str, ...]
    is_error: bool
    start_ns: int
    end_ns: int


class Receiver:
    """The spans that have arrived at `url`."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._lock = threading.Lock()
        self._spans: list[ReceivedSpan] = []
        self.requests = 0

    def add(self, body: bytes) -> None:
        """Add the spans of a request. Raises `DecodeError` if it is not one."""
        request = ExportTraceServiceRequest.FromString(body)
        spans = [span for each in request.resource_spans for scope in each.scope_spans for span in scope.spans]
        with self._lock:
            self.requests += 1
            for span in spans:
                attributes = {
                    each.key: str(getattr(each.value, str(each.value.WhichOneof("value")))) for each in span.attributes
                }
                links = tuple(link.trace_id.hex() for link in span.links)
                ids = (span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex())
                times = (span.start_time_unix_nano, span.end_time_unix_nano)
                self._spans.append(ReceivedSpan(span.name, *ids, attributes, links, span.status.code == 2, *times))

    def spans(self, name: str = "") -> list[ReceivedSpan]:
        """Return the spans of a name, or all, by their start."""
        with self._lock:
            return sorted((each for each in self._spans if name in ("", each.name)), key=lambda each: each.start_ns)


@contextmanager
def receiving() -> Iterator[Receiver]:
    """Run a receiver on a free port."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            assert self.path == "/v1/traces"
            receiver.add(body)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver = Receiver(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()
