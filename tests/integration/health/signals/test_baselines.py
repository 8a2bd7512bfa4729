"""Baselines: the latest is kept, versions have no gaps, and what is no number is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from headgate.clock import VirtualClock
from headgate.errors import InvalidPayloadError, NotFoundError, VersionConflictError
from headgate.health.signals.baselines import Baselines
from headgate.store.sqlite.store import Synchronous
from tests.stores import open_sqlite

ORDERS = "urn:dp:orders:created:v1"


@pytest.fixture
def baselines(tmp_path: Path) -> Iterator[Baselines]:
    clock = VirtualClock()
    with closing(open_sqlite(tmp_path, clock=clock, synchronous=Synchronous.NORMAL)) as store:
        yield Baselines(store, clock)


def put(baselines: Baselines, metric: str, value: float, **more: int) -> int:
    return baselines.put(ORDERS, metric, baseline_value=value, stddev=2.5, sample_count=168, **more).version


def test_baseline__said_again_and_changed__has_versions_without_gaps(baselines: Baselines) -> None:
    assert put(baselines, "event_count", 1000, expected_version=0) == 1
    assert put(baselines, "event_count", 1000) == 1, "the same again"
    assert put(baselines, "event_count", 1200, expected_version=1) == 2
    put(baselines, "delay_seconds", 30)

    assert [each.metric for each in baselines.of(ORDERS)] == ["delay_seconds", "event_count"]
    assert baselines.get(ORDERS, "event_count").baseline_value == 1200


def test_baseline__of_another_version__is_refused(baselines: Baselines) -> None:
    put(baselines, "event_count", 1000)

    with pytest.raises(VersionConflictError, match="at version 1, not 0"):
        put(baselines, "event_count", 1100, expected_version=0)


def test_baseline__that_no_one_worked_out__is_not_found(baselines: Baselines) -> None:
    assert baselines.of(ORDERS) == []
    with pytest.raises(NotFoundError, match="event_count"):
        baselines.get(ORDERS, "event_count")


@pytest.mark.parametrize(
    ("value", "stddev", "samples"), [(float("nan"), 1, 1), (1, float("inf"), 1), (1, -1, 1), (1, 1, 0)]
)
def test_baseline__no_numbers__are_refused(baselines: Baselines, value: float, stddev: float, samples: int) -> None:
    with pytest.raises(InvalidPayloadError, match="baseline"):
        baselines.put(ORDERS, "m", baseline_value=value, stddev=stddev, sample_count=samples)
