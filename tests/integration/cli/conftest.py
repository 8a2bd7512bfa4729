"""Fixtures of the command line tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.cli.http_peer import Peer


@pytest.fixture
def peer() -> Iterator[Peer]:
    server = Peer()
    yield server
    server.close()
