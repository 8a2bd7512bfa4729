"""The registry and resolution on every backend, and with Redis between processes, up, down and coming back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest
import redis
from msgspec.structs import replace

from headgate.clock import SystemClock, VirtualClock
from headgate.durable.bus.bus import Bus
from headgate.errors import StoreBusyError, VersionConflictError
from headgate.health.audit.log import Audit
from headgate.health.model.datasets import ComplianceSlo, ContractBinding, DatasetSpec, DatasetStatus, Slos, Source
from headgate.health.model.enums import Tier
from headgate.health.registry.service import DatasetFilter, Datasets, Registry
from headgate.health.resolution.resolver import Condition, Resolver, RuleSpec
from headgate.ids import IdMaker
from headgate.store.cache.read_through import Cache
from headgate.store.cache.redis import RedisLayer
from headgate.store.catalogue.tables import AUDIT, CONTROL, DATASET_REGISTRY, DATASET_RESOLUTION, EVENTS, SUBSCRIPTIONS
from headgate.store.keyring import Keyring
from headgate.store.model.schema import Key
from headgate.store.port import Store
from headgate.store.sqlite.store import SqliteStore, Synchronous
from tests.contract.conftest import AnyStore, Eventually, contents
from tests.integration.health.registry_world import Between
from tests.redis_server import RedisServer
from tests.stores import open_sqlite

TABLES: Final = (DATASET_REGISTRY, DATASET_RESOLUTION, AUDIT, EVENTS, SUBSCRIPTIONS, CONTROL)
BASE: Final = "urn:dp:orders:created"
ORDERS: Final = f"{BASE}:v1"
SPEC: Final = DatasetSpec(
    tier=Tier.TIER_2,
    owner_team="orders",
    source=Source(type="KAFKA", topic="raw.orders"),
    contract_binding=ContractBinding(contract_id="c", field_constraints={"amount": {"min": 0.5, "max": 10}}),
    slos=Slos(contract_compliance=ComplianceSlo(min_compliance_rate=1.0)),
)


class Process:
    """What one process has of the registry and of resolution."""

    def __init__(
        self, store: Store, clock: VirtualClock | SystemClock, keyring: Keyring, cache: Cache | None = None
    ) -> None:
        ids = IdMaker(clock)
        self.bus = Bus(store, clock, ids)
        self.audit = Audit(store, clock, ids, keyring)
        self.cache = cache or Cache(clock=clock)
        self.registry = Registry(store, clock, ids, self.cache, self.audit, keyring, event_writes=self.bus.event_writes)
        self.resolver = Resolver(store, clock, ids, self.cache, self.audit, self.registry.get)


@pytest.fixture
def process(store: AnyStore, clock: VirtualClock, keyring: Keyring) -> Process:
    return Process(store, clock, keyring)


def test_versions__created_updated_rolled_back_deleted__each_is_kept(
    store: AnyStore, process: Process, clock: VirtualClock
) -> None:
    registry = process.registry
    first = registry.create(ORDERS, SPEC, actor="jane")
    clock.advance(1)
    second = registry.update(ORDERS, replace(SPEC, description="two"), expected_version=1, actor="jane")
    assert registry.update(ORDERS, replace(SPEC, description="two"), expected_version=1, actor="jane") == second
    with pytest.raises(VersionConflictError) as caught:
        registry.update(ORDERS, SPEC, expected_version=1, actor="joe")
    assert caught.value.current is not None
    assert caught.value.current["config_version"] == 2
    third = registry.rollback(ORDERS, 1, actor="joe")
    gone = registry.delete(ORDERS, actor="joe")

    kept = [item["SK"] for item in contents(store, DATASET_REGISTRY, ORDERS)]
    assert kept == ["CONFIG#LATEST", "CONFIG#v000001", "CONFIG#v000002", "CONFIG#v000003"]
    assert registry.history(ORDERS).versions[0] == gone
    assert registry.get(ORDERS, version=1) == replace(first, archived_at=second.updated_at)
    assert registry.get(ORDERS, version=3).contract_binding == first.contract_binding == third.contract_binding
    assert [change.path for change in registry.diff(ORDERS, 1, 4)] == ["status"]
    assert process.audit.verify().problems == []


def test_ls__an_index_that_lags__shows_each_dataset_once_in_the_end(process: Process, eventually: Eventually) -> None:
    registry = process.registry
    urns = [f"urn:dp:d:{number:02d}" for number in range(9)]
    for number, urn in enumerate(urns):
        spec = replace(SPEC, tier=list(Tier)[number % 3], owner_team=f"t{number % 2}")
        registry.create(urn, spec, actor="jane", ticket="CHG-1")
    registry.update(urns[1], replace(SPEC, tier=Tier.TIER_3), expected_version=1, actor="jane")
    registry.delete(urns[8], actor="jane")

    def listed(wanted: DatasetFilter) -> list[str]:
        seen: list[str] = []
        page = Datasets([], None)
        while True:
            page = registry.ls(wanted, limit=3, cursor=page.cursor)
            seen += [each.dataset_urn for each in page.datasets]
            if page.cursor is None:
                return seen

    def agree(wanted: DatasetFilter, expected: list[str]) -> None:
        eventually(lambda: listed(wanted), lambda found: found == expected)

    agree(DatasetFilter(), urns[:8])
    agree(DatasetFilter(tier=Tier.TIER_2), [urns[4], urns[7]])
    agree(DatasetFilter(owner_team="orders"), [urns[1]])
    agree(DatasetFilter(status=DatasetStatus.DELETED), [urns[8]])


def test_changes__no_index_involved__are_complete_at_once(process: Process) -> None:
    registry = process.registry
    urns = [f"urn:dp:d:{number:02d}" for number in range(5)]
    for urn in urns:
        registry.create(urn, SPEC, actor="jane")
    exported = [each.dataset_urn for each in registry.export().datasets]
    checkpoint = registry.changes().checkpoint
    registry.deprecate(urns[2], actor="jane")
    registry.deprecate(urns[0], actor="jane")

    assert sorted(exported) == urns
    assert sorted(change.dataset_urn for change in registry.changes(checkpoint).changes) == [urns[0], urns[2]]


def test_names__both_forms_and_names_elsewhere__find_the_dataset(
    store: AnyStore, process: Process, clock: VirtualClock, keyring: Keyring
) -> None:
    registry = process.registry
    registry.create(ORDERS, SPEC, actor="jane")
    second = registry.create(f"{BASE}:v2", SPEC, actor="jane")
    registry.create("urn:dp:plain", SPEC, actor="jane")
    registry.alias("kafka://main", "raw.orders", BASE, why="topic", actor="jane")
    other = Process(store, clock, keyring).registry

    assert other.find(BASE) == second
    plain = other.find("urn:dp:plain:v4")
    assert plain is not None
    assert plain.dataset_urn == "urn:dp:plain"
    assert set(other.profiles.of([BASE, "urn:dp:plain:v4", "urn:dp:none"])) == {BASE, "urn:dp:plain:v4"}
    assert other.named("kafka://main", "raw.orders") == f"{BASE}:v2"
    assert [alias.why for alias in other.aliases(f"{BASE}:v2")] == ["topic"]


def test_update__many_at_once__versions_without_gaps(
    store: AnyStore, process: Process, clock: VirtualClock, keyring: Keyring
) -> None:
    process.registry.create(ORDERS, SPEC, actor="jane")
    processes = [Process(store, clock, keyring) for _ in range(3)]

    def change(number: int) -> int:
        registry = processes[number % 3].registry
        spec = replace(SPEC, description=f"by {number}")
        return registry.update(ORDERS, spec, expected_version=-1, actor=f"a{number}").config_version

    with ThreadPoolExecutor(6) as pool:
        made = sorted(pool.map(change, range(12)))

    assert made == list(range(2, 14))
    history = process.registry.history(ORDERS, limit=100).versions
    assert [each.config_version for each in history] == list(range(13, 0, -1))
    assert len({each.description for each in history}) == 13


def test_discover__many_at_once__one_row(
    store: AnyStore, process: Process, clock: VirtualClock, keyring: Keyring
) -> None:
    processes = [Process(store, clock, keyring) for _ in range(4)]

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda each: each.registry.discover(ORDERS, None, "lineage"), processes))

    assert {(each.config_version, each.status) for each in found} == {(1, DatasetStatus.DISCOVERED)}
    assert [item["SK"] for item in contents(store, DATASET_REGISTRY, ORDERS)] == ["CONFIG#LATEST"]


def test_resolve__an_index_that_lags__own_rules_at_once_and_others_in_the_end(
    store: AnyStore, process: Process, clock: VirtualClock, keyring: Keyring, eventually: Eventually
) -> None:
    process.registry.create(ORDERS, SPEC, actor="jane")
    resolver = process.resolver
    other = Process(store, clock, keyring).resolver
    assert not resolver.resolve("t").is_mapped
    assert not other.resolve("t").is_mapped

    rule = resolver.add(RuleSpec(topic_pattern="t", dataset_urn=ORDERS), actor="jane")
    assert resolver.resolve("t").is_mapped
    condition = Condition(field="$.a", operator="BETWEEN", value=[0.5, 2], dataset_urn=ORDERS)
    resolver.add(RuleSpec(topic_pattern="raw.*", resolution_type="CONDITIONAL", conditions=(condition,)), actor="jane")
    assert resolver.resolve("raw.x", {"a": 1}).is_mapped
    assert not resolver.resolve("raw.x", {"a": 3}).is_mapped
    clock.advance(61)
    eventually(lambda: other.resolve("raw.x", {"a": 1}), lambda found: found.is_mapped)
    eventually(lambda: other.snapshot(), lambda found: found == resolver.snapshot())
    eventually(lambda: [each.topic_pattern for each in other.of_dataset(ORDERS)], lambda found: found == ["raw.*", "t"])

    resolver.remove(rule.topic_pattern, rule.name, actor="jane")
    assert not resolver.resolve("t").is_mapped, "also while an index still shows it"
    clock.advance(61)
    eventually(lambda: other.resolve("t"), lambda found: not found.is_mapped)
    eventually(lambda: other.ls().rules, lambda found: len(found) == 1)


def test_rows__of_the_registry__carry_the_documented_keys(store: AnyStore, process: Process) -> None:
    process.registry.create(ORDERS, SPEC, actor="jane")
    process.resolver.add(RuleSpec(topic_pattern="raw.orders", dataset_urn=ORDERS), actor="jane")

    assert store.get(DATASET_REGISTRY, Key(ORDERS, "CONFIG#LATEST"), consistent=True) is not None
    assert store.get(DATASET_RESOLUTION, Key("TOPIC#raw.orders", "RULE#default"), consistent=True) is not None


# Redis.

CLOCK: Final = SystemClock()


class RedisWorld:
    """Processes that share a Redis, and a store that can be taken away."""

    def __init__(self, folder: Path, server: RedisServer) -> None:
        self.server = server
        self.store: SqliteStore = open_sqlite(folder, clock=CLOCK, synchronous=Synchronous.NORMAL)
        self.between = Between(self.store)
        self.keyring = Keyring.generate(CLOCK)
        self._caches: list[Cache] = []

    def process(self, timeout_seconds: float = 2.0) -> Process:
        layer = RedisLayer(url=self.server.url, clock=CLOCK, timeout_seconds=timeout_seconds)
        cache = Cache(clock=CLOCK, shared=layer)
        self._caches.append(cache)
        return Process(self.between, CLOCK, self.keyring, cache)

    def close(self) -> None:
        for cache in self._caches:
            cache.close()
        self.store.close()


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[RedisWorld]:
    with RedisServer.start(tmp_path / "redis") as server:
        world = RedisWorld(tmp_path, server)
        yield world
        world.close()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 15
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.01)


def version_of(process: Process, urn: str = ORDERS) -> int:
    found = process.registry.find(urn)
    return 0 if found is None else found.config_version


def test_redis__a_change__is_seen_by_other_processes_long_before_their_own_limit(shared: RedisWorld) -> None:
    first, second = shared.process(), shared.process()
    assert version_of(second) == version_of(second, BASE) == 0
    first.registry.create(ORDERS, SPEC, actor="jane")
    until(lambda: version_of(second) == version_of(second, BASE) == 1)
    first.registry.update(ORDERS, replace(SPEC, description="x"), expected_version=1, actor="jane")
    until(lambda: version_of(second, BASE) == 2)
    assert not second.resolver.resolve("t").is_mapped
    first.resolver.add(RuleSpec(topic_pattern="t", dataset_urn=ORDERS), actor="jane")
    until(lambda: second.resolver.resolve("t").is_mapped)
    first.registry.alias("ns", "n", ORDERS, why="x", actor="jane")
    until(lambda: second.registry.named("ns", "n") == ORDERS)


def test_redis__gone__neither_reads_nor_writes_fail(shared: RedisWorld) -> None:
    process = shared.process()
    process.registry.create(ORDERS, SPEC, actor="jane")
    shared.server.kill()

    assert shared.process().registry.lookup(ORDERS).warning is None
    made = process.registry.update(ORDERS, replace(SPEC, description="x"), expected_version=1, actor="jane")
    assert version_of(process) == made.config_version == 2
    assert shared.process().registry.lookup("urn:dp:no:such").dataset.is_fallback

    shared.server.restart()
    until(lambda: version_of(process) == 2)
    assert version_of(shared.process()) == 2


def test_redis__takes_no_writes__reads_are_answered_by_the_store(shared: RedisWorld) -> None:
    process = shared.process()
    with redis.Redis.from_url(shared.server.url) as admin:
        admin.config_set("maxmemory", "1")
        admin.config_set("maxmemory-policy", "noeviction")
    made = process.registry.create(ORDERS, SPEC, actor="jane")

    found = shared.process().registry.lookup(ORDERS)

    assert (found.dataset, found.warning) == (made, None)


def test_redis__hangs__reads_are_answered_by_the_store(shared: RedisWorld) -> None:
    shared.process().registry.create(ORDERS, SPEC, actor="jane")
    late = shared.process(timeout_seconds=0.1)
    shared.server.pause()

    found = late.registry.lookup(ORDERS)

    shared.server.resume()
    assert (found.dataset.config_version, found.warning) == (1, None)


def test_redis__store_is_down__a_process_that_never_asked_it_is_answered(shared: RedisWorld) -> None:
    made = shared.process().registry.create(ORDERS, SPEC, actor="jane")
    shared.between.is_down = True
    late = shared.process()

    found = late.registry.lookup(ORDERS).dataset
    assert replace(found, stale=False, age_seconds=0.0) == made, "flagged, if it has not begun to listen yet"
    with pytest.raises(StoreBusyError):
        late.registry.find("urn:dp:other")
    shared.server.kill()
    fallback = shared.process().registry.lookup(ORDERS)
    assert fallback.dataset.is_fallback
    assert fallback.warning is not None
