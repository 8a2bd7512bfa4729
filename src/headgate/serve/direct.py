"""What an application may do for the HTTP port beside ASGI: answer small requests at once, without a task of their own.

A task, two messages and their checks cost as much as many an answer itself.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

RawPairs: TypeAlias = list[tuple[bytes, bytes]]


class Whole(NamedTuple):
    """A whole answer. Its headers say how long it is, and are fit to be sent as they are."""

    status: int
    headers: RawPairs
    content: bytes


@runtime_checkable
class DirectApp(Protocol):
    """An application that can answer at once. What it leaves, and everything else, it is asked over ASGI."""

    def takes(self, url: bytes) -> bool:
        """Whether a POST to this address is worth asking `direct` about."""

    def direct(self, url: bytes, headers: RawPairs, client: tuple[str, int] | None, body: bytes) -> Whole | None:
        """Return the answer, or None. It neither blocks nor raises; the names of headers are in lower case."""
