"""Look-ups when something is missing or down: what is answered, how it is flagged, and what is never made up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from headgate.errors import DatasetNotFoundError, InvalidIdError, StoreBusyError
from headgate.health.model.datasets import DatasetSpec
from headgate.health.model.enums import Tier
from headgate.health.registry import last_known
from headgate.health.registry.service import FallbackOnMiss
from headgate.store.cache.keys import CacheKind
from tests.integration.health.registry_world import ORDERS, SPEC, Rig

BASE = "urn:dp:orders:order_created"
DAY = 86_400.0


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with closing(Rig(tmp_path)) as rig:
        yield rig


# There is none.


def test_lookup__not_registered__follows_what_the_caller_wants(rig: Rig) -> None:
    warned = rig.registry.lookup(ORDERS)
    assert warned.warning is not None
    assert "not registered" in warned.warning
    assert warned.dataset.is_fallback
    assert (warned.dataset.tier, warned.dataset.config_version) == (Tier.TIER_3, 0)
    assert warned.dataset.schema_binding is None
    assert warned.dataset.contract_binding is None
    assert warned.dataset.slos is not None
    assert rig.registry.lookup(ORDERS, FallbackOnMiss.PASS).warning is None
    with pytest.raises(DatasetNotFoundError, match="not registered"):
        rig.registry.lookup(ORDERS, FallbackOnMiss.FAIL)
    assert (rig.registry.stats.not_found, rig.registry.stats.default_config_used) == (3, 2)
    with pytest.raises(InvalidIdError):
        rig.registry.lookup("orders")


def test_lookup__registered__is_the_dataset_without_a_word(rig: Rig) -> None:
    made = rig.registry.create(ORDERS, SPEC, actor="jane")

    found = rig.process().lookup(BASE)

    assert (found.dataset, found.warning) == (made, None)


def test_find__none__is_remembered_for_a_minute_and_a_new_one_seen_at_once_here(rig: Rig) -> None:
    other = rig.process()
    assert other.find(ORDERS) is None
    loads = rig.cache.stats.of(CacheKind.DATASET_CONFIG).loads
    assert rig.registry.find(ORDERS) is None
    asked = rig.cache.stats.of(CacheKind.DATASET_CONFIG).loads - loads
    assert rig.registry.find(ORDERS) is None
    assert rig.cache.stats.of(CacheKind.DATASET_CONFIG).loads == loads + asked, "that there is none is kept as well"

    made = rig.registry.create(ORDERS, SPEC, actor="jane")
    assert rig.registry.find(ORDERS) == made
    assert other.find(ORDERS) is None, "another process may take a minute"
    rig.clock.advance(61)
    assert other.find(ORDERS) == made


def test_find__changed_by_another_process__is_seen_within_the_limit_of_the_cache(rig: Rig) -> None:
    rig.registry.create(ORDERS, SPEC, actor="jane")
    other = rig.process()
    assert other.find(ORDERS) is not None
    rig.registry.update(ORDERS, replace(SPEC, description="new"), expected_version=1, actor="jane")

    rig.clock.advance(31)

    found = other.find(ORDERS)
    assert found is not None
    assert found.config_version == 2


# The store is down.


def test_lookup__store_is_down__stale_with_its_age_then_fresh_again(rig: Rig) -> None:
    made = rig.registry.create(ORDERS, SPEC, actor="jane")
    rig.store.is_down = True
    assert rig.registry.lookup(ORDERS).warning is None, "fresh in the cache: the store is not missed"

    rig.clock.advance(120)
    for urn in (ORDERS, ORDERS):
        found = rig.registry.lookup(urn)
        assert found.dataset == replace(made, stale=True, age_seconds=120.0)
        assert found.warning is not None
        assert "120 s old" in found.warning
    assert rig.registry.stats.stale_cache_used == 2

    rig.store.is_down = False
    rig.clock.advance(5)
    assert rig.registry.lookup(ORDERS).dataset == made


def test_lookup__store_is_down_for_longer_than_the_cache_keeps__what_was_last_known(rig: Rig) -> None:
    made = rig.registry.create(ORDERS, SPEC, actor="jane")
    rig.registry.lookup(BASE)
    rig.store.is_down = True
    rig.clock.advance(2 * DAY)

    for urn in (ORDERS, BASE):
        found = rig.registry.lookup(urn)
        assert found.dataset == replace(made, stale=True, age_seconds=2 * DAY)
        assert found.warning is not None
        assert "last known" in found.warning
    assert rig.registry.stats.last_known_used == 2


def test_lookup__all_is_down_and_nothing_known__defaults_and_flagged(rig: Rig) -> None:
    rig.registry.create(ORDERS, SPEC, actor="jane")
    fresh = rig.process()
    rig.store.is_down = True

    with capture_logs() as lines:
        found = fresh.lookup(ORDERS)

    assert found.dataset.is_fallback
    assert found.warning is not None
    assert "store and cache are unavailable" in found.warning
    assert [(line["event"], line["dataset_urn"]) for line in lines] == [("using_default_config", ORDERS)]
    assert (fresh.stats.default_config_used, fresh.stats.not_found) == (1, 0)
    assert fresh.lookup(ORDERS, FallbackOnMiss.FAIL).dataset.is_fallback, "not to know is not the same as none"


def test_lookup__all_is_down_and_it_was_once_tier_1__is_an_error(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.registry.create(ORDERS, replace(SPEC, tier=Tier.TIER_1), actor="jane", ticket="CHG-1")
    rig.registry.lookup(ORDERS)
    rig.registry.update(ORDERS, SPEC, expected_version=1, actor="jane", ticket="CHG-2")
    rig.registry.lookup(ORDERS)
    monkeypatch.setattr(last_known, "ENTRIES_MAX", 1)
    rig.registry.create("urn:dp:other:one", DatasetSpec(), actor="jane")
    rig.registry.lookup("urn:dp:other:one")
    rig.store.is_down = True
    rig.clock.advance(2 * DAY)

    with pytest.raises(StoreBusyError):
        rig.registry.lookup(ORDERS)
    assert rig.registry.stats.default_config_used == 0


def test_lookup__a_new_process_while_all_is_down__knows_what_the_last_one_did(rig: Rig) -> None:
    path = rig.folder / "known"
    first = rig.process(last_known_path=path)
    made = first.create(ORDERS, replace(SPEC, tier=Tier.TIER_1), actor="jane", ticket="CHG-1")
    first.lookup(ORDERS)
    first.close()
    assert path.stat().st_mode & 0o077 == 0
    rig.store.is_down = True
    rig.clock.advance(60)

    second = rig.process(last_known_path=path)
    assert second.lookup(ORDERS).dataset == replace(made, stale=True, age_seconds=60.0)

    path.write_bytes(path.read_bytes()[:-3])
    third = rig.process(last_known_path=path)
    assert third.lookup(ORDERS).dataset.is_fallback, "half a file is no file"


def test_known__with_a_path__is_written_by_itself_about_once_a_minute(rig: Rig) -> None:
    path = rig.folder / "known"
    registry = rig.process(last_known_path=path)
    registry.create(ORDERS, SPEC, actor="jane")
    registry.lookup(ORDERS)
    assert not path.exists()
    rig.clock.advance(61)
    registry.create("urn:dp:other:one", SPEC, actor="jane")
    registry.lookup("urn:dp:other:one")
    assert path.exists()


def test_known__on_a_disk_that_refuses__fails_no_read(rig: Rig) -> None:
    registry = rig.process(last_known_path=rig.folder / "no such folder" / "known")
    registry.create(ORDERS, SPEC, actor="jane")
    rig.clock.advance(61)

    assert registry.lookup(ORDERS).warning is None
    registry.close()


def test_lookup__deleted__is_not_what_was_last_known(rig: Rig) -> None:
    rig.registry.create(ORDERS, SPEC, actor="jane")
    rig.registry.lookup(ORDERS)
    rig.registry.delete(ORDERS, actor="jane")
    assert rig.registry.lookup(ORDERS).dataset.is_fallback
    rig.store.is_down = True
    rig.clock.advance(2 * DAY)

    assert rig.registry.lookup(ORDERS).dataset.is_fallback
