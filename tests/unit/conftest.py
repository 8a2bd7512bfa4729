"""Unit tests are pure: no network, no database, no sleeping. The guard fails a test that does one of them.

A single test of an otherwise pure file may be marked `integration`; `make quick` leaves it out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

_GUARDED = False
_VIOLATIONS: list[str] = []


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if not _GUARDED:
        return
    if event in ("socket.connect", "socket.bind") and isinstance(args[1], tuple):
        _VIOLATIONS.append(f"{event} {args[1]}")
    elif event == "sqlite3.connect":
        _VIOLATIONS.append(f"{event} {args[0]}")
    elif event == "time.sleep" and args[0] > 0:
        _VIOLATIONS.append(f"{event} {args[0]:g} s")


# A hook cannot be removed. It is idle while other tests run in this process.
sys.addaudithook(_hook)


@pytest.fixture(autouse=True)
def pure(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that uses the network, opens a database or sleeps."""
    global _GUARDED
    if request.node.get_closest_marker("integration") is not None:
        yield
        return
    _VIOLATIONS.clear()
    _GUARDED = True
    yield
    _GUARDED = False
    assert not _VIOLATIONS, f"not pure: {_VIOLATIONS}; move the test to tests/integration"
