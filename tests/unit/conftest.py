"""Unit tests are pure: no network, no database, no sleeping. The guard fails a test that does one of them.

A single test of an otherwise pure file may be marked `integration`; `make quick` leaves it out.
"""

from __future__ import annotations

import socket
import sqlite3
import time
from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def pure(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse network addresses, databases and sleeping.

    Functions are replaced while a test runs. An audit hook would stay in the process and show up in the stack traces
    that other tests compare.
    """
    if request.node.get_closest_marker("integration") is not None:
        return
    monkeypatch.setattr(sqlite3, "connect", _refusing("sqlite3.connect"))
    monkeypatch.setattr(time, "sleep", _refusing("time.sleep"))
    for name in ("bind", "connect"):
        monkeypatch.setattr(socket.socket, name, _local_only(name, getattr(socket.socket, name)))


def _refusing(name: str) -> Callable[..., Any]:
    def refuse(*_: object, **__: object) -> None:
        pytest.fail(f"{name} in a unit test; move the test to tests/integration")

    return refuse


def _local_only(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a socket method that takes Unix sockets only."""

    def call(self: socket.socket, address: object) -> Any:
        if isinstance(address, tuple):
            pytest.fail(f"socket.{name} {address} in a unit test; move the test to tests/integration")
        return original(self, address)

    return call
