"""Head cache: parsed request heads by their bytes. Clients repeat the same head with each request."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from headgate.serve.http.fast_path import RawPairs, head_of

# Limits of the cache: entries, and bytes of one head.
HEADS_MAX: Final = 512
HEAD_BYTES_MAX: Final = 2048
_END: Final = b"\r\n\r\n"


class _Head(NamedTuple):
    parsed_head: Any
    body_bytes: int


class HeadCache:
    """Cache of parsed request heads, keyed by their bytes and shared by all connections of a server.

    Also caches the encoded default response headers, which uvicorn renews once a second.
    """

    def __init__(self) -> None:
        self._entries: dict[bytes, _Head] = {}
        self._default_headers: RawPairs = []
        self._default_head = b""
        # Declared bytes of the large bodies that are being buffered, on all connections.
        self.large_bytes = 0

    def default(self, headers: RawPairs) -> bytes:
        """Return the default response headers, encoded."""
        if headers is not self._default_headers:
            self._default_headers, self._default_head = headers, head_of(headers)
        return self._default_head

    def find(self, data: bytes) -> tuple[Any, bytes] | None:
        """Return the parsed head and the body if `data` is one complete request with a cached head."""
        end = data.find(_END) + len(_END)
        head = self._entries.get(data[:end])
        if head is None or len(data) - end != head.body_bytes:
            return None
        return head.parsed_head, data[end:]

    def learn(self, data: bytes, parsed_head: object, body: bytes) -> None:
        """Cache the head of `data` if `data` is one complete request."""
        end = data.find(_END) + len(_END)
        if end > HEAD_BYTES_MAX or data[end:] != body:
            return
        if len(self._entries) >= HEADS_MAX:
            # Heads that all differ, for example by a counter in a header, are not worth caching.
            self._entries.clear()
        self._entries[data[:end]] = _Head(parsed_head, len(body))
