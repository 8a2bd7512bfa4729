"""Span export: sends finished spans to a collector over OTLP/HTTP, from a thread of its own.

Turns and activities record thousands of spans a second. The span objects of the SDK cost more than a step does, so a
span is a plain structure here until the thread encodes it.
"""

from __future__ import annotations

import http.client
import struct
import threading
import urllib.request
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final

import structlog
from msgspec import Struct

Attribute = str | int | float | bool

QUEUE_MAX: Final = 50_000
BATCH_MAX: Final = 2_000
FLUSH_SECONDS: Final = 1.0
_LINKS_MAX: Final = 16
# Spans that are encoded in one go, in some 100 microseconds, and the pause after them.
_PORTION: Final = 50
_PAUSE_SECONDS: Final = 0.0001
_log = structlog.get_logger(__name__)


class SpanRecord(Struct, frozen=True):
    """A span that is over. `context` and `parent` are W3C trace contexts, `parent` empty for a root."""

    name: str
    context: str
    parent: str
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Attribute]
    is_error: bool = False
    links: Sequence[str] = ()
    # Further attributes, as names and texts by turns. They are encoded once for all spans that have the same.
    labels: tuple[str, ...] = ()

    def all_attributes(self) -> dict[str, Attribute]:
        """Return the labels and the attributes."""
        return {**dict(zip(self.labels[::2], self.labels[1::2], strict=True)), **self.attributes}


class SpanExport:
    """A bounded queue of spans and the thread that sends them. While the collector is away, spans are dropped."""

    def __init__(self, url: str, *, service_name: str, timeout_seconds: float, queue_max: int = QUEUE_MAX) -> None:
        self._url = url
        self._queue_max = queue_max
        self._service_name = service_name
        self._timeout_seconds = timeout_seconds
        self._records: deque[SpanRecord] = deque()
        self._stopping = threading.Event()
        self._is_failing = False
        self.dropped = 0
        self._thread = threading.Thread(target=self._run, name="headgate-spans", daemon=True)
        self._thread.start()

    def put(self, record: SpanRecord) -> None:
        """Queue a span; drop it if the queue is full."""
        if len(self._records) >= self._queue_max:
            self.dropped += 1
        else:
            self._records.append(record)

    def close(self) -> None:
        """Send what is queued, within the time-out of one request, and stop."""
        self._stopping.set()
        self._thread.join(2 * self._timeout_seconds)

    def _run(self) -> None:
        while not self._stopping.wait(FLUSH_SECONDS):
            self._flush()
        self._flush()

    def _flush(self) -> None:
        # What is queued meanwhile waits for the next time, or each request would carry the few spans of the last one.
        left = len(self._records)
        while left:
            count = min(left, BATCH_MAX)
            left -= count
            batch = [self._records.popleft() for _ in range(count)]
            try:
                self._send(encode(batch, self._service_name, self._pause))
            except (OSError, http.client.HTTPException, ValueError, struct.error) as exc:
                self.dropped += len(batch)
                if not self._is_failing:
                    _log.warning("spans cannot be sent; dropped until the collector answers", error=str(exc))
                self._is_failing = True
                return
            if self._is_failing:
                _log.info("spans are sent again", dropped=self.dropped)
            self._is_failing = False

    def _pause(self) -> None:
        """Hand the interpreter over: a step that returns from the disk would wait for the whole batch."""
        self._stopping.wait(_PAUSE_SECONDS)

    def _send(self, body: bytes) -> None:
        headers = {"content-type": "application/x-protobuf", "user-agent": "headgate"}
        request = urllib.request.Request(self._url, data=body, headers=headers, method="POST")
        with urllib.request.urlopen(request, timeout=self._timeout_seconds) as response:
            response.read()


# The wire format of the messages of opentelemetry-proto, written by hand: the generated classes take several times as
# long, and that would be the largest part of what a span costs. Fields: trace.v1.Span, common.v1.KeyValue, AnyValue.
_KIND_INTERNAL: Final = b"\x30\x01"
_ERROR: Final = b"\x7a\x02\x18\x02"
_times: Final = struct.Struct("<BQBQ")
_double: Final = struct.Struct("<BBd")


def encode(records: Sequence[SpanRecord], service_name: str, pause: Callable[[], object] = lambda: None) -> bytes:
    """Return spans as the body of an OTLP request (ExportTraceServiceRequest). Calls `pause` after every portion."""
    scope = _block(0x0A, _block(0x0A, b"headgate"))
    portions: list[bytes] = []
    for start in range(0, len(records), _PORTION):
        portions.append(b"".join([_span(record) for record in records[start : start + _PORTION]]))
        pause()
    spans = b"".join(portions)
    resource = _block(0x0A, _block(0x0A, _key_value("service.name", service_name)))
    return _block(0x0A, resource + _block(0x12, scope + spans))


def _span(record: SpanRecord) -> bytes:
    """Return a span as a field of its scope."""
    context, start_ns, end_ns = record.context, record.start_ns, record.end_ns
    # Ids with their tags, in one conversion.
    above = f"2208{record.parent[36:52]}" if record.parent else ""
    ids = bytes.fromhex(f"0a10{context[3:35]}1208{context[36:52]}{above}")
    times = _times.pack(0x39, start_ns, 0x41, end_ns if end_ns > start_ns else start_ns)
    span = ids + _head(record.name, record.labels) + times
    for name, value in record.attributes.items():
        if type(value) is int and 0 <= value < 0x80:
            span += _small_number(name, value)
        elif type(value) is int and 0 <= value < 0x4000:
            span += b"%b\x12\x03\x18%c%c" % (_small_key(name, 5), value & 0x7F | 0x80, value >> 7)
        else:
            span += _block(0x4A, _key_value(name, value))
    for link in record.links[:_LINKS_MAX]:
        span += _block(0x6A, bytes.fromhex(f"0a10{link[3:35]}1208{link[36:52]}"))
    if record.is_error:
        span += _ERROR
    size = len(span)
    # As `_block` does for the size of nearly all spans.
    return b"\x12%c%c%b" % (size & 0x7F | 0x80, size >> 7, span) if 0x80 <= size < 0x4000 else _block(0x12, span)


@lru_cache(maxsize=4096)
def _head(name: str, labels: tuple[str, ...]) -> bytes:
    """Return the name, the kind and the labels of a span."""
    texts = [_block(0x4A, _key_value(*each)) for each in zip(labels[::2], labels[1::2], strict=True)]
    return b"".join((_block(0x2A, name.encode()), _KIND_INTERNAL, *texts))


@lru_cache(maxsize=1024)
def _small_number(name: str, value: int) -> bytes:
    """Return an attribute whose value has one byte."""
    return b"%b\x12\x02\x18%c" % (_small_key(name, 4), value)


@lru_cache(maxsize=256)
def _small_key(name: str, value_bytes: int) -> bytes:
    """Return the begin of an attribute whose value, with its tags, has so many bytes."""
    key = _key(name)
    return bytes((0x4A, len(key) + value_bytes)) + key


@lru_cache(maxsize=256)
def _key(name: str) -> bytes:
    return _block(0x0A, name.encode())


def _key_value(name: str, value: Attribute) -> bytes:
    key = _key(name)
    match value:
        case bool():
            return key + b"\x12\x02\x10" + (b"\x01" if value else b"\x00")
        case int():
            return key + _block(0x12, b"\x18" + _varint(value & 0xFFFF_FFFF_FFFF_FFFF))
        case float():
            return key + b"\x12" + _double.pack(9, 0x21, value)
        case _:
            return key + _block(0x12, _block(0x0A, value.encode()))


def _block(tag: int, content: bytes) -> bytes:
    """Return a field with a length."""
    size = len(content)
    if size < 0x80:
        return bytes((tag, size)) + content
    if size < 0x4000:
        return bytes((tag, size & 0x7F | 0x80, size >> 7)) + content
    return bytes((tag,)) + _varint(size) + content


def _varint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
