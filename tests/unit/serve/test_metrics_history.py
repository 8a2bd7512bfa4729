"""Metrics history: rates, latencies and gauges of samples, a ring of fixed size, and what was counted by table."""

from __future__ import annotations

import math

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from headgate.clock import VirtualClock
from headgate.serve.metrics_history import Measure, MetricsHistory, quantile


class Server:
    """A registry with some of the metrics that a server has."""

    def __init__(self, *, samples_max: int = 10) -> None:
        self.clock = VirtualClock(1_000.0)
        registry = CollectorRegistry()
        self.reads = Counter("headgate_store_reads", "Reads.", registry=registry)
        self.queries = Counter("headgate_store_queries", "Queries.", registry=registry)
        self.size = Gauge("headgate_store_bytes", "Size.", registry=registry)
        self.lookups = Counter("cache_lookups", "Lookups.", ["cache_layer", "table", "outcome"], registry=registry)
        self.requests = Counter("api_request_count", "Calls.", ["api_type", "method", "status_code"], registry=registry)
        self.writes = Histogram(
            "dynamodb_write_latency", "Writes.", ["table", "operation"], buckets=(1, 10, 100), registry=registry
        )
        self.transitions = Counter(
            "signal_state_state_transitions", "Moves.", ["from_state", "to_state", "tier"], registry=registry
        )
        self.history = MetricsHistory(registry, self.clock, samples_max=samples_max)

    def sample(self, *, after_seconds: float = 0.0) -> None:
        self.clock.advance(after_seconds)
        self.history.sample()


def test_sample__first__has_gauges_and_no_rates() -> None:
    server = Server()
    server.size.set(4096)
    server.reads.inc(5)

    server.sample()

    (found,) = server.history.samples()
    assert found[Measure.STORE_BYTES] == 4096
    assert math.isnan(found[Measure.READS])


def test_sample__later__has_rates_since_the_one_before() -> None:
    server = Server()
    server.sample()
    server.reads.inc(30)
    server.queries.inc(15)
    server.requests.labels("rest", "GET /x", "200").inc(15)
    server.requests.labels("rest", "GET /x", "503").inc(3)

    server.sample(after_seconds=15)

    found = server.history.samples()[-1]
    assert found[Measure.READS] == 3.0
    assert (found[Measure.REQUESTS], found[Measure.ERRORS]) == (1.2, 0.2)
    assert found[Measure.WRITES] == 0.0


def test_sample__lookups__only_the_first_layer_counts() -> None:
    server = Server()
    server.sample()
    server.lookups.labels("l1", "signals", "hit").inc(9)
    server.lookups.labels("l1", "signals", "miss").inc(1)
    server.lookups.labels("l2", "signals", "miss").inc(1)

    server.sample(after_seconds=10)

    assert server.history.samples()[-1][Measure.CACHE_HIT_PERCENT] == pytest.approx(90.0)


def test_sample__transaction_of_several_tables__counts_for_each() -> None:
    server = Server()
    server.sample()
    for _ in range(100):
        server.writes.labels("observability-signal-state+observability-incident-index", "transact").observe(5)

    server.sample(after_seconds=15)

    found = server.history.samples()[-1]
    assert 9 < found[Measure.SIGNAL_WRITE_P99] <= 10
    assert found[Measure.INCIDENT_WRITE_P99] == found[Measure.SIGNAL_WRITE_P99]
    assert math.isnan(found[Measure.EVIDENCE_WRITE_P99])


def test_samples__more_than_the_ring_holds__the_oldest_are_dropped() -> None:
    server = Server(samples_max=3)

    for _ in range(5):
        server.sample(after_seconds=15)

    times = [each.at_ms for each in server.history.samples()]
    assert times == [1_045_000, 1_060_000, 1_075_000]
    assert [each.at_ms for each in server.history.samples(since_ms=1_060_000)] == times[1:]


def test_changes__transitions__are_those_of_the_last_hour() -> None:
    server = Server()
    assert server.history.changes() is None
    server.transitions.labels("OK", "CRITICAL", "TIER_1").inc(7)
    server.sample()
    server.transitions.labels("OK", "CRITICAL", "TIER_1").inc(1)
    server.transitions.labels("OK", "CRITICAL", "TIER_2").inc(2)
    server.sample(after_seconds=15)

    changes = server.history.changes()

    assert changes is not None
    assert changes.transitions == {("OK", "CRITICAL"): 3.0}
    for _ in range(20):
        server.sample(after_seconds=300)
    later = server.history.changes()
    assert later is not None
    assert later.transitions == {}


@pytest.mark.parametrize(
    ("now", "before", "expected"),
    [
        ({}, {}, None),
        ({1.0: 5, 10.0: 5, math.inf: 5}, {1.0: 5, 10.0: 5, math.inf: 5}, None),
        ({1.0: 0, 10.0: 100, math.inf: 100}, {}, 9.91),
        ({1.0: 100, 10.0: 200, math.inf: 200}, {1.0: 100, 10.0: 100, math.inf: 100}, 9.91),
        ({1.0: 0, 10.0: 0, math.inf: 7}, {}, 10.0),
    ],
)
def test_quantile__between_two_readings__is_interpolated(
    now: dict[float, float], before: dict[float, float], expected: float | None
) -> None:
    found = quantile(0.99, now, before)

    assert found == (None if expected is None else pytest.approx(expected))
