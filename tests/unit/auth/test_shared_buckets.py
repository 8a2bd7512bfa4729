"""Shared token buckets: several processes take from one bucket, and the memory is bounded."""

from __future__ import annotations

import mmap
import os

import pytest

from headgate.auth.rate_limits import Rate
from headgate.auth.shared_buckets import MEMORY_BYTES, SETS, SharedBuckets

RATE = Rate(per_second=2.0, burst=3.0)
OFFSET = 4096


@pytest.fixture
def descriptor() -> int:
    memory = os.memfd_create("buckets")
    os.ftruncate(memory, OFFSET + MEMORY_BYTES)
    return memory


def buckets(descriptor: int) -> SharedBuckets:
    """Return the buckets as one more process sees them."""
    return SharedBuckets(mmap.mmap(descriptor, OFFSET + MEMORY_BYTES), descriptor, offset=OFFSET)


def test_buckets__two_processes__take_from_the_same_bucket(descriptor: int) -> None:
    first, second = (buckets(descriptor).limiter("login", RATE) for _ in range(2))
    taken = [each.wait_seconds("10.0.0.1", 100.0) for each in (first, second, first)]
    assert taken == [0, 0, 0]
    assert second.wait_seconds("10.0.0.1", 100.0) == 0.5
    assert first.wait_seconds("10.0.0.1", 100.5) == 0, "after the wait"
    assert first.wait_seconds("10.0.0.2", 100.0) == 0, "another key"


def test_buckets__limits_of_other_names__have_buckets_of_their_own(descriptor: int) -> None:
    shared = buckets(descriptor)
    one = Rate(1.0, 1.0)
    assert shared.limiter("caller", one).wait_seconds("ada", 1.0) == 0
    assert shared.limiter("address", one).wait_seconds("ada", 1.0) == 0
    assert shared.limiter("caller", one).wait_seconds("ada", 1.0) == 1.0


def test_buckets__more_keys_than_places__the_latest_ones_are_kept(descriptor: int) -> None:
    limiter = buckets(descriptor).limiter("login", Rate(0.001, 1.0))
    for number in range(20 * SETS):
        assert limiter.wait_seconds(str(number), float(number)) == 0
    assert limiter.wait_seconds(str(20 * SETS - 1), float(20 * SETS)) > 0
