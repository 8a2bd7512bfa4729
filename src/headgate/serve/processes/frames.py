"""Frames between the first serving process and a further one: start and stop, metrics, and requests that are forwarded.

A forwarded request is its ASGI messages. Either side sends the next part of a body only when the other has asked for it
or has passed on the part before, so that a slow client holds up its own request and nothing else.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

Headers: TypeAlias = list[tuple[bytes, bytes]]


class Heartbeat(Struct, frozen=True, array_like=True, tag=1):
    """From a serving process, every second. The first one reports that both of its ports are open."""


class Serve(Struct, frozen=True, array_like=True, tag=2):
    """To a serving process: the server is ready, and requests may be answered."""


class Drain(Struct, frozen=True, array_like=True, tag=3):
    """To a serving process: accept no more, finish requests in progress, and exit."""

    grace_seconds: float


class MetricsRequest(Struct, frozen=True, array_like=True, tag=4):
    """To a serving process: a request for its metrics."""

    number: int


class MetricsReply(Struct, frozen=True, array_like=True, tag=5):
    """The metrics of a serving process, encoded by `merged_metrics`. Without a number: its last ones."""

    number: int | None
    content: bytes


class RequestStart(Struct, frozen=True, array_like=True, tag=6):
    """A request to answer."""

    number: int
    method: str
    path: str
    raw_path: bytes
    query: bytes
    headers: Headers
    scheme: str
    http_version: str
    client: tuple[str, int] | None
    server: tuple[str, int | None] | None


class BodyWanted(Struct, frozen=True, array_like=True, tag=7):
    """The next part of a request's body is needed, or the news that the client has disconnected."""

    number: int


class RequestBody(Struct, frozen=True, array_like=True, tag=8):
    """A part of the body of a request."""

    number: int
    content: bytes
    has_more: bool


class Disconnected(Struct, frozen=True, array_like=True, tag=9):
    """The client of a request has disconnected."""

    number: int


class ResponseStart(Struct, frozen=True, array_like=True, tag=10):
    """Status and headers of a response."""

    number: int
    status: int
    headers: Headers


class ResponseBody(Struct, frozen=True, array_like=True, tag=11):
    """A part of the body of a response."""

    number: int
    content: bytes
    has_more: bool


class BodySent(Struct, frozen=True, array_like=True, tag=12):
    """A part of a response was passed on to the client."""

    number: int


class ResponseAborted(Struct, frozen=True, array_like=True, tag=13):
    """A request ended without a complete response."""

    number: int


ForServing: TypeAlias = Serve | Drain | MetricsRequest | BodyWanted | ResponseStart | ResponseBody | ResponseAborted
ForFirst: TypeAlias = Heartbeat | MetricsReply | RequestStart | RequestBody | Disconnected | BodySent
Frame: TypeAlias = ForServing | ForFirst
decoder: Final = msgspec.msgpack.Decoder(Frame)
