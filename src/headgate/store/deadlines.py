"""Deadlines: how long whoever asked still waits, known to every store call that is made for them.

Carried by the context and not by arguments: between whoever knows how long a caller waits and the store lie layers that
do not care, and threads that work for a request inherit it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from headgate.clock import Clock

_ends_at: ContextVar[float | None] = ContextVar("store_ends_at", default=None)


@contextmanager
def due_within(seconds: float, clock: Clock) -> Iterator[None]:
    """Let no store call made inside wait or be tried again past this deadline, nor past one that holds already."""
    ends_at = clock.monotonic() + seconds
    outer = _ends_at.get()
    token = _ends_at.set(ends_at if outer is None else min(outer, ends_at))
    try:
        yield
    finally:
        _ends_at.reset(token)


def ends_at() -> float | None:
    """Return until when whoever asked waits, on the monotonic clock, or None if they did not say."""
    return _ends_at.get()
