"""The sync client is the async one without `async`."""

from __future__ import annotations

from tests.sync_client import TARGET, generated


def test_sync_client__generated_again__is_the_same() -> None:
    assert TARGET.read_text() == generated(), "run python -m tests.sync_client"
