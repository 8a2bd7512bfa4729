"""Head cache: request heads by their bytes. Clients repeat the same head with each request."""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from headgate.serve.http.fast_path import RawPairs, head_of

# Limits of the cache: entries, and bytes of one head.
HEADS_MAX: Final = 512
HEAD_BYTES_MAX: Final = 2048
_END: Final = b"\r\n\r\n"
# A whole head, with its URL; and what makes a request more than a plain one.
_PLAIN: Final = re.compile(rb"(?:GET|POST|PUT|PATCH|DELETE) (/[^ ]*) HTTP/1\.1\r\n(?:[^\r\n]+\r\n)+\r\n")
_UNUSUAL: Final = re.compile(rb"\r\n(?:[ \t]|transfer-encoding|expect|upgrade|connection)", re.IGNORECASE)
_LENGTHS: Final = re.compile(rb"\r\ncontent-length([^\r\n]*)", re.IGNORECASE)
_LENGTH: Final = re.compile(rb": *([0-9]{1,5})")


class _Head(NamedTuple):
    parsed_head: Any
    body_bytes: int


class PlainHead(NamedTuple):
    """A head that says where its request ends without an HTTP parser."""

    url: bytes
    body_bytes: int


class HeadCache:
    """Cache of parsed request heads, keyed by their bytes and shared by all connections of a server.

    Also caches the encoded default response headers, which uvicorn renews once a second.
    """

    def __init__(self) -> None:
        self._entries: dict[bytes, _Head] = {}
        # None for heads that are not plain.
        self._plain: dict[bytes, PlainHead | None] = {}
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

    def plain_url(self, data: bytes) -> bytes | None:
        """Return the URL if `data` is exactly one plain request, whose end is certain without parsing it."""
        end = data.find(_END) + len(_END)
        head = data[:end]
        try:
            plain = self._plain[head]
        except KeyError:
            plain = _plain_head(head)
            if end <= HEAD_BYTES_MAX:
                if len(self._plain) >= HEADS_MAX:
                    self._plain.clear()
                self._plain[head] = plain
        return plain.url if plain is not None and len(data) - end == plain.body_bytes else None


def _plain_head(head: bytes) -> PlainHead | None:
    plain = _PLAIN.fullmatch(head)
    if plain is None or _UNUSUAL.search(head) is not None:
        return None
    declared = _LENGTHS.findall(head)
    if not declared:
        return PlainHead(plain[1], 0)
    length = _LENGTH.fullmatch(declared[0])
    return None if length is None or len(declared) > 1 else PlainHead(plain[1], int(length[1]))
