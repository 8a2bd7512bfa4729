"""Delivery lease: one deployment delivers alerts at a time, and keeps doing so across restarts and new settings."""

from __future__ import annotations

import pytest

from headgate.notify.delivery_lease import DeliveryLease, may_take

HELD = DeliveryLease("functions", "aaaa", until_ms=1_000)


@pytest.mark.parametrize(
    ("stored", "holder", "digest", "now_ms", "is_taken"),
    [
        (None, "servers", "bbbb", 0, True),
        (HELD, "servers", "bbbb", 999, False),
        (HELD, "servers", "bbbb", 1_000, True),
        (HELD, "servers", "aaaa", 0, True),
        (HELD, "functions", "bbbb", 0, True),
    ],
    ids=["free", "of-another", "expired", "same-configuration", "own-with-new-configuration"],
)
def test_may_take__lease_of_another_configuration__is_respected_until_it_expires(
    stored: DeliveryLease | None, holder: str, digest: str, now_ms: int, is_taken: bool
) -> None:
    assert may_take(stored, holder, digest, now_ms) is is_taken
