"""Meters: the names that alarms and dashboards know, bounded labels, and rules that ask for nothing unknown."""

from __future__ import annotations

import re
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from headgate.clock import VirtualClock
from headgate.errors import BreakerOpenError, ThrottledError
from headgate.health.error_alerts import ErrorAlerts
from headgate.health.metrics import SIGNAL_TYPES_MAX, TEAMS_MAX, HealthMeters
from headgate.health.model.enums import Severity, SignalState, Tier
from headgate.health.registry.degraded_lookup import LookupStats
from headgate.serve.rpc.dispatcher import Dispatcher
from headgate.serve.runtime.thread_pool import WorkPool
from headgate.store.cache.keys import CacheKind
from headgate.store.cache.stats import CacheStats
from headgate.store.catalogue.tables import SIGNAL_STATE
from headgate.store.dynamodb.client import Calls
from headgate.store.model.schema import Key
from headgate.store.resilience.circuit_breaker import BreakerChange, BreakerState
from headgate.store.resilience.guarded_store import GuardedStore
from headgate.store.stats import StoreStats
from headgate.telemetry import Metrics, Tracing
from tests.stores import open_sqlite

RULES = Path(__file__).parents[3] / "deploy/prometheus/statestore-rules.yml"
ALARMS = {
    "StateStore-HighThrottling": ("3m", "ops-alerts", "> 100"),
    "StateStore-HighLatency": ("5m", "ops-alerts", "> 10"),
    "StateStore-HighErrorRate": ("3m", "ops-critical", "> 0.01"),
    "StateStore-LowCacheHitRate": ("15m", "ops-alerts", "< 0.5"),
}


class Rig:
    def __init__(self) -> None:
        self.metrics = Metrics(version="test")
        self.registry: CollectorRegistry = self.metrics.registry
        self.meters = HealthMeters(self.registry)

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)

    def samples(self) -> dict[str, set[str]]:
        """The names of all samples, with the labels that each has."""
        found: dict[str, set[str]] = {}
        for family in text_string_to_metric_families(self.metrics.render().decode()):
            for sample in family.samples:
                found.setdefault(sample.name, set()).update(sample.labels)
        return found


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_signals__updates_and_transitions__are_counted_apart(rig: Rig) -> None:
    first = ("FRESHNESS", SignalState.OK, None, Tier.TIER_1)
    refreshed = ("FRESHNESS", SignalState.OK, SignalState.OK, Tier.TIER_1)
    rig.meters.signals_updated([first, refreshed])
    rig.meters.signals_updated([("FRESHNESS", SignalState.CRITICAL, SignalState.OK, Tier.TIER_1)])
    rig.meters.signal_conflicted()
    rig.meters.signal_failed()

    assert rig.value("signal_state_updates_total", signal_type="FRESHNESS", state="OK") == 2
    assert rig.value("signal_state_updates_total", signal_type="FRESHNESS", state="CRITICAL") == 1
    moved = {"from_state": "OK", "to_state": "CRITICAL", "tier": "TIER_1"}
    assert rig.value("signal_state_state_transitions_total", **moved) == 1
    assert rig.value("signal_state_update_success_total") == 3
    assert rig.value("signal_state_version_conflict_total") == 1
    assert rig.value("signal_state_update_error_total") == 1


@pytest.mark.parametrize(
    ("seconds", "bucket"),
    [
        (-1, "under_5m"), (0, "under_5m"), (299, "under_5m"), (300, "5m_to_15m"), (900, "15m_to_1h"),
        (3600, "1h_to_4h"), (4 * 3600, "4h_to_24h"), (86_400, "over_24h"), (10**9, "over_24h"),
    ],
)  # fmt: skip
def test_incidents__resolved__by_how_long_it_took(rig: Rig, seconds: float, bucket: str) -> None:
    rig.meters.incident_resolved(Severity.SEV_2, seconds)

    assert rig.value("incident_resolved_total", severity="SEV_2", resolution_time_bucket=bucket) == 1
    assert rig.value("incident_mttr_sum", severity="SEV_2") == max(0, seconds)


def test_labels__that_users_choose__are_bounded(rig: Rig) -> None:
    for number in range(3 * TEAMS_MAX):
        rig.meters.incident_created(Severity.SEV_1, f"team-{number}")
        rig.meters.signals_updated([(f"TYPE_{number}", SignalState.OK, None, Tier.TIER_3)])
    rig.meters.incident_created(Severity.SEV_1, "team-0")

    assert rig.value("incident_created_total", severity="SEV_1", owner_team="team-0") == 2
    assert rig.value("incident_created_total", severity="SEV_1", owner_team="other") == 2 * TEAMS_MAX
    text = rig.metrics.render().decode()
    assert len(re.findall(r"^incident_created_total", text, re.MULTILINE)) == TEAMS_MAX + 1
    assert len(re.findall(r"^signal_state_updates_total", text, re.MULTILINE)) == SIGNAL_TYPES_MAX + 1


def test_store__calls__are_timed_in_milliseconds_and_failures_named(rig: Rig) -> None:
    rig.meters.answered("t", "get", 0.004)
    rig.meters.answered("t", "put", 0.03)
    rig.meters.failed("t", "put", ThrottledError("x"))
    rig.meters.failed("t", "get", BreakerOpenError("x"))
    rig.meters.changed(BreakerChange("get on t", BreakerState.CLOSED, BreakerState.OPEN))
    rig.meters.changed(BreakerChange("get on t", BreakerState.OPEN, BreakerState.HALF_OPEN))
    rig.meters.changed(BreakerChange("get on t", BreakerState.HALF_OPEN, BreakerState.CLOSED))

    assert rig.value("dynamodb_read_latency_sum", table="t", operation="get") == pytest.approx(4)
    assert rig.value("dynamodb_write_latency_bucket", table="t", operation="put", le="50.0") == 1
    assert rig.value("dynamodb_write_latency_bucket", table="t", operation="put", le="20.0") == 0
    assert rig.value("dynamodb_throttle_total", table="t") == 1
    assert rig.value("dynamodb_errors_total", table="t", operation="get", code="breaker_open") == 1
    assert rig.value("circuit_breaker_opened_total", breaker="get on t") == 1
    assert rig.value("circuit_breaker_closed_total", breaker="get on t") == 1


def test_store__throttled_attempts__are_counted_by_table_and_operation(rig: Rig) -> None:
    from tests.unit.store.resilience.test_error_policy import PassingClock, answer

    stats = StoreStats()
    rig.meters.watch_store(stats)
    alerts = ErrorAlerts(VirtualClock())

    def put_item(**_request: object) -> None:
        raise answer("ThrottlingException")

    with pytest.raises(ThrottledError):
        Calls(PassingClock(), stats, 60, alerts).write(put_item, {}, "table signals")

    assert rig.value("dynamodb_throttle_count_total", table="signals", operation="put_item") == 6
    assert alerts.per_minute() == {"ThrottlingException": 6}


def test_store__what_calls_cost__is_counted_by_table_and_kind(rig: Rig) -> None:
    stats = StoreStats()
    rig.meters.watch_store(stats)
    calls = Calls(VirtualClock(0), stats, 60)
    asked: list[dict[str, Any]] = []

    def query(**request: object) -> dict[str, Any]:
        asked.append(request)
        return {"ConsumedCapacity": {"TableName": "prod-signals", "CapacityUnits": 1.5}}

    def transact_write_items(**_request: object) -> dict[str, Any]:
        return {"ConsumedCapacity": [{"TableName": name, "CapacityUnits": 4.0} for name in ("prod-signals", "events")]}

    def describe_table(**request: object) -> dict[str, Any]:
        asked.append(request)
        return {"ConsumedCapacity": {"TableName": "never", "CapacityUnits": 1.0}}

    calls.read(query, {"TableName": "prod-signals"}, "table prod-signals")
    calls.read(query, {"TableName": "prod-signals"}, "table prod-signals")
    calls.write(transact_write_items, {}, "tables")
    calls.read(describe_table, {}, "table never")

    assert [each.get("ReturnConsumedCapacity") for each in asked] == ["TOTAL", "TOTAL", None]
    assert rig.value("dynamodb_consumed_capacity_total", table="prod-signals", capacity_type="READ") == 3
    assert rig.value("dynamodb_consumed_capacity_total", table="prod-signals", capacity_type="WRITE") == 4
    assert rig.value("dynamodb_consumed_capacity_total", table="events", capacity_type="WRITE") == 4
    assert rig.value("dynamodb_consumed_capacity_total", table="never", capacity_type="READ") is None


def test_cache__hit_rate__is_in_percent_by_layer_and_table(rig: Rig) -> None:
    stats = CacheStats()
    counts = stats.of(CacheKind.DATASET_CONFIG)
    counts.hits_l1, counts.misses_l1, counts.hits_l2, counts.misses_l2, counts.stale_served = 6, 4, 3, 1, 2
    rig.meters.watch_cache(stats)
    rig.meters.cache_answered("l2", "get", 0.001)

    registry = "observability-dataset-registry"
    assert rig.value("cache_hit_rate", cache_layer="l1", table=registry) == 60
    assert rig.value("cache_hit_rate", cache_layer="l2", table=registry) == 75
    assert rig.value("cache_hit_rate", cache_layer="l1", table="observability-signal-state") is None
    assert rig.value("cache_lookups_total", cache_layer="l1", table=registry, outcome="miss") == 4
    assert rig.value("stale_cache_used_total", table=registry) == 2
    assert rig.value("cache_latency_sum", cache_layer="l2", operation="get") == 1


def test_degradation__is_counted(rig: Rig) -> None:
    lookups = LookupStats()
    rig.meters.watch_lookups(lookups)
    lookups.default_config_used, lookups.last_known_used = 1, 2
    lookups.stale_cache_used, lookups.not_found = 3, 4
    rig.meters.incident_creation_failed()
    rig.meters.failed_over("us-west-2")

    assert rig.value("default_config_used_total") == 1
    assert rig.value("last_known_config_used_total") == 2
    assert rig.value("stale_config_used_total") == 3
    assert rig.value("config_not_found_total") == 4
    assert rig.value("incident_creation_failed_total") == 1
    assert rig.value("region_failover_triggered_total", to_region="us-west-2") == 1


def test_guards__those_that_hold_calls_back__are_shown_as_they_are_now(rig: Rig, tmp_path: Path) -> None:
    clock = VirtualClock()
    with closing(open_sqlite(tmp_path, clock=clock)) as behind:
        store = GuardedStore(behind, clock)
        rig.meters.watch_guards(store.breakers, store.limiters)
        assert store.get(SIGNAL_STATE, Key("urn:dp:a:b", "VOLUME")) is None

        (breaker,), (limiter,) = store.breakers(), store.limiters()
        assert rig.value("circuit_breaker_state", breaker=breaker.name) == 0
        assert rig.value("store_limiter_rate", table=SIGNAL_STATE.name) is None
        breaker.state, limiter.rate = BreakerState.OPEN, 40.0

        assert rig.value("circuit_breaker_state", breaker=breaker.name) == 2
        assert rig.value("store_limiter_rate", table=SIGNAL_STATE.name) == 40


def test_inbox__how_long_events_wait__is_read_when_asked_for(rig: Rig) -> None:
    waited = [0.0]
    rig.meters.watch_inbox(lambda: waited[0])
    waited[0] = 12.5

    assert rig.value("openlineage_oldest_event_seconds") == 12.5


def test_counting__is_cheap(rig: Rig) -> None:
    def seconds() -> float:
        began_at = time.perf_counter()
        for _ in range(1000):
            rig.meters.signals_updated([("FRESHNESS", SignalState.OK, SignalState.OK, Tier.TIER_1)])
        return (time.perf_counter() - began_at) / 1000

    best = min(seconds() for _ in range(5))
    print(f"counting an update takes {best * 1e6:.2f} us")
    assert best < 20e-6


# The rules.


def rules() -> list[dict[str, Any]]:
    document = yaml.safe_load(RULES.read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


def test_rules__are_the_four_alarms_with_their_thresholds() -> None:
    assert {rule["alert"] for rule in rules()} == set(ALARMS)
    for rule in rules():
        duration, notify, threshold = ALARMS[rule["alert"]]
        assert rule["for"] == duration
        assert rule["labels"]["notify"] == notify
        assert rule["expr"].endswith(threshold)
        assert rule["annotations"]["summary"]


def test_rules__every_metric_and_label_they_name__exists(rig: Rig) -> None:
    clock, pool = VirtualClock(), WorkPool()
    dispatcher = Dispatcher([], pool, clock=clock, tracing=Tracing(), registry=rig.registry)
    dispatcher.meters.record("grpc", "m", "OK", 0.001)
    pool.close()
    stats, throttles = CacheStats(), StoreStats()
    throttles.count_throttle("put_item", "table t")
    rig.meters.watch_cache(stats)
    rig.meters.watch_store(throttles)
    rig.meters.answered("t", "get", 0.001)
    samples = rig.samples()

    for rule in rules():
        asked = re.findall(r"([a-z_]+)(?:\{([^}]*)\})?\[\d+m\]", rule["expr"])
        assert asked, rule["alert"]
        for name, matchers in asked:
            assert name in samples, f"{rule['alert']} asks for {name}"
            labels = re.findall(r"(\w+)\s*(?:=~|!=|=)", matchers)
            assert set(labels) <= samples[name], f"{rule['alert']} asks for labels of {name} that it does not have"
