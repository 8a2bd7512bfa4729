"""Deadlines: the caller's deadline, carried in a context variable down to every store call made for it.

A context variable instead of an argument: the layers between the server, which knows the deadline, and the store do not
use it, and threads that work for a request inherit it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from headgate.clock import Clock

_deadline: ContextVar[float | None] = ContextVar("store_deadline", default=None)


@contextmanager
def deadline_within(seconds: float, clock: Clock) -> Iterator[None]:
    """Limit the waits and retries of store calls inside the block. An earlier outer deadline still applies."""
    deadline = clock.monotonic() + seconds
    outer = _deadline.get()
    token = _deadline.set(deadline if outer is None else min(outer, deadline))
    try:
        yield
    finally:
        _deadline.reset(token)


def current_deadline() -> float | None:
    """Return the current deadline on the monotonic clock, or None without one."""
    return _deadline.get()
