"""Lines of the embedded metric format: what was counted since the last write, by the names of the catalogue."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from headgate.clock import VirtualClock
from headgate.embedded_metrics import (
    ACTIVE_INCIDENTS,
    METRICS,
    NAMESPACE,
    EmbeddedMetrics,
    registry_source,
    store_source,
)
from headgate.health.metrics import HealthMeters
from headgate.health.model.enums import Severity, SignalState, Tier
from headgate.serve.metrics import ApiMeters
from headgate.store.cache.keys import CacheKind
from headgate.store.cache.stats import CacheStats
from headgate.store.stats import StoreStats

NOW = 2_208_988_800

Line = dict[str, Any]


class World:
    """A registry with every meter of a process, and the lines that are written of it."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.meters = HealthMeters(self.registry)
        self.api = ApiMeters(self.registry)
        self.cache = CacheStats()
        self.meters.watch_cache(self.cache)
        self.store = StoreStats()
        self.meters.watch_store(self.store)
        self._written: list[str] = []
        self.embedded = EmbeddedMetrics([registry_source(self.registry)], VirtualClock(NOW), self._written.append)

    def look_up(self, outcome: str) -> None:
        """Count a lookup in the cache."""
        counts = self.cache.of(CacheKind.SIGNAL_STATE)
        setattr(counts, outcome, getattr(counts, outcome) + 1)

    def flush(self) -> list[Line]:
        self.embedded.flush()
        lines = [json.loads(each) for each in self._written]
        self._written.clear()
        return lines


@pytest.fixture
def world() -> World:
    return World()


def values(lines: list[Line], name: str) -> list[Any]:
    return [each[name] for each in lines if name in each]


def test_flush__everything_counted__is_written_by_its_name_unit_and_dimensions(world: World) -> None:
    signal = ("FRESHNESS", SignalState.CRITICAL, SignalState.OK, Tier.TIER_1)
    count: dict[str, Callable[[], object]] = {
        "dynamodb_read_latency": lambda: world.meters.answered("signal-state", "get", 0.004),
        "dynamodb_write_latency": lambda: world.meters.answered("signal-state", "put", 0.004),
        "dynamodb_throttle_count": lambda: world.store.count_throttle("put_item", "table signal-state"),
        "dynamodb_consumed_capacity": lambda: world.store.count_capacity("signal-state", "WRITE", 2.5),
        "signal_state_updates": lambda: world.meters.signals_updated([signal]),
        "signal_state_state_transitions": lambda: world.meters.signals_updated([signal]),
        "incident_created": lambda: world.meters.incident_created(Severity.SEV_1, "orders"),
        "incident_resolved": lambda: world.meters.incident_resolved(Severity.SEV_1, 90.0),
        "incident_mttr": lambda: world.meters.incident_resolved(Severity.SEV_1, 90.0),
        "cache_hit_rate": lambda: world.look_up("hits_l1"),
        "cache_latency": lambda: world.meters.cache_answered("l2", "get", 0.001),
        "api_request_count": lambda: world.api.record("REST", "GET /x", "200", 0.01),
        "api_latency": lambda: world.api.record("REST", "GET /x", "200", 0.01),
    }

    # The number of active incidents is read from the table: FunctionMetrics.gauge writes it.
    assert {METRICS[series].name for series in count} == {each.name for each in METRICS.values()} - {ACTIVE_INCIDENTS}
    for series, once in count.items():
        world.flush()
        once()
        metric = METRICS[series]
        lines = [each for each in world.flush() if metric.name in each]
        assert len(lines) == 1, series
        (described,) = lines[0]["_aws"]["CloudWatchMetrics"]
        assert described["Namespace"] == NAMESPACE
        assert described["Metrics"] == [{"Name": metric.name, "Unit": metric.unit}]
        assert tuple(map(tuple, described["Dimensions"])) == metric.dimensions
        assert {name for each in metric.dimensions for name in each} <= {*lines[0]}
        assert all(isinstance(lines[0][name], str) for each in metric.dimensions for name in each)
        assert lines[0]["_aws"]["Timestamp"] == NOW * 1000


def test_flush__counted_before__is_not_written_again(world: World) -> None:
    world.store.count_capacity("signal-state", "WRITE", 2.5)
    first = world.flush()
    world.store.count_capacity("signal-state", "WRITE", 1.0)

    assert values(first, "dynamodb.consumed_capacity") == [2.5]
    assert values(world.flush(), "dynamodb.consumed_capacity") == [1.0]
    assert world.flush() == []


def test_flush__latencies__are_upper_bounds_of_their_buckets_and_a_hundred_a_line(world: World) -> None:
    for seconds in (0.0004, 0.003, 0.003, 60.0):
        world.meters.answered("signal-state", "get", seconds)

    assert values(world.flush(), "dynamodb.read_latency") == [[0.5, 5.0, 5.0, 20_000.0]]
    for _ in range(150):
        world.meters.answered("signal-state", "get", 0.003)
    assert [len(each) for each in values(world.flush(), "dynamodb.read_latency")] == [100, 50]


def test_flush__cache__its_hit_rate_is_that_of_the_lookups_since_the_last_write(world: World) -> None:
    for name in ("hits_l1", "misses_l1", "misses_l1", "misses_l1"):
        world.look_up(name)
    assert values(world.flush(), "cache.hit_rate") == [25.0]

    world.look_up("hits_l1")

    assert values(world.flush(), "cache.hit_rate") == [100.0]


def test_flush__statuses__are_written_as_their_class(world: World) -> None:
    for status in ("503", "UNAVAILABLE", "NOT_FOUND", "201"):
        world.api.record("REST", "PUT /x", status, 0.01)

    lines = [each for each in world.flush() if "api.request_count" in each]

    assert sorted(each["status_code"] for each in lines) == ["2xx", "5xx", "5xx", "NOT_FOUND"]


def test_flush__statistics_of_a_store_alone__are_written_as_from_a_registry(world: World) -> None:
    written: list[str] = []
    alone = EmbeddedMetrics([store_source(world.store)], VirtualClock(NOW), written.append)
    world.store.count_throttle("transact_write_items", "tables a, b")
    world.store.count_capacity("a", "READ", 3.0)

    alone.flush()

    assert sorted(map(json.loads, written), key=str) == sorted(world.flush(), key=str)
    assert json.loads(written[0])["table"] == "a+b"
