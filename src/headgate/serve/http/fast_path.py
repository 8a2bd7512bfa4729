"""Fast path: the protocol between the HTTP listener and an application that answers small requests without ASGI.

An ASGI task and its messages cost as much as many answers do. An application that implements `FastPathApp` skips them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, runtime_checkable

RawPairs: TypeAlias = list[tuple[bytes, bytes]]


class FullResponse(NamedTuple):
    """A complete response. `head` holds the encoded header lines, including the content length."""

    status: int
    head: bytes
    content: bytes


def head_of(headers: RawPairs) -> bytes:
    """Return headers as encoded header lines."""
    return b"".join([b"%s: %s\r\n" % pair for pair in headers])


class Deferred(enum.Enum):
    """Marker: the response follows through a callback."""

    DEFERRED = enum.auto()


DEFERRED: Final = Deferred.DEFERRED


@runtime_checkable
class FastPathApp(Protocol):
    """An ASGI application that can also answer some requests directly. All others reach it over ASGI."""

    def length_digits_max(self, url: bytes) -> int:
        """Return the maximum content-length digits of a fast-path POST to `url`; 0 disables the fast path."""

    def parsed_head(self, url: bytes, headers: RawPairs) -> object | None:
        """Parse a request head for `answer_fast`, or return None if the request must go over ASGI.

        The result is reused for every request with identical head bytes. Header names are in lower case.
        """

    def answer_fast(
        self,
        parsed_head: Any,  # noqa: ANN401 - the result of `parsed_head`
        peer: str,
        body: bytes,
        defer: Callable[[], Callable[[FullResponse], None]],
    ) -> FullResponse | Deferred | None:
        """Return the response, `DEFERRED`, or None if the request must go over ASGI. Never blocks or raises.

        Before it returns `DEFERRED` it calls `defer` once, for the callback that takes the response on the event loop.
        `peer` is `address:port`, or empty.
        """
