"""What an application may do for the HTTP port beside ASGI: answer small requests without a task of their own.

A task, two messages and their checks cost as much as many an answer itself.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, runtime_checkable

RawPairs: TypeAlias = list[tuple[bytes, bytes]]


class Whole(NamedTuple):
    """A whole answer. Its headers are as they are sent, each line with its end, and say how long it is."""

    status: int
    head: bytes
    content: bytes


def head_of(headers: RawPairs) -> bytes:
    """Return headers as they are sent."""
    return b"".join([b"%s: %s\r\n" % pair for pair in headers])


class Later(enum.Enum):
    """Says that the answer comes in a moment."""

    LATER = enum.auto()


LATER: Final = Later.LATER


@runtime_checkable
class DirectApp(Protocol):
    """An application that can answer directly. What it leaves, and everything else, it is asked over ASGI."""

    def length_digits_max(self, url: bytes) -> int:
        """Return how many digits the length of a POST to this address may have for `understood` to be asked, or 0."""

    def understood(self, url: bytes, headers: RawPairs) -> object | None:
        """Return what `direct` is to be given of a request with this head, or None if that is none for `direct`.

        What was understood once holds for every request with the same head. The names of headers are in lower case.
        """

    def direct(
        self,
        understood: Any,  # noqa: ANN401 - what `understood` has returned
        peer: str,
        body: bytes,
        later: Callable[[], Callable[[Whole], None]],
    ) -> Whole | Later | None:
        """Return the answer, or `LATER` after `later` was asked whom to give it to, once and on the event loop.

        None: the request is to be asked over ASGI. It neither blocks nor raises. `peer` is `address:port`, or empty.
        """
