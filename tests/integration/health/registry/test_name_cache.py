"""Profile cache: many found by either form of their names in a few calls, and anew after a change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from msgspec.structs import replace

from headgate.errors import StoreBusyError
from headgate.health.model.enums import Tier
from headgate.health.registry.name_cache import TRUSTED_SECONDS
from headgate.health.registry.service import UNCHECKED, Registry
from headgate.store.cache import keys as cache_keys
from tests.integration.health.registry_world import SPEC, Rig

CALLS_MAX: Final = 3


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.close()


class Calls:
    """Counts the calls to the store for many rows, and refuses those for a single one."""

    def __init__(self, rig: Rig) -> None:
        self.many = 0
        rig.store.before_many = self._count
        rig.store.before_get = self._refuse

    def _count(self) -> None:
        self.many += 1

    def _refuse(self) -> None:
        raise AssertionError("one row was asked for")


def tiers(registry: Registry, *urns: str) -> dict[str, Tier]:
    return {urn: profile.tier for urn, profile in registry.profiles.of(urns).items()}


def test_of__names_in_any_form_and_state__the_same_as_each_found_by_itself(rig: Rig) -> None:
    registry = rig.registry
    registry.create("urn:dp:a:plain", replace(SPEC, tier=Tier.TIER_2), actor="jane")
    registry.create("urn:dp:a:versioned:v1", replace(SPEC, tier=Tier.TIER_3), actor="jane")
    registry.create("urn:dp:a:versioned:v2", replace(SPEC, tier=Tier.TIER_2), actor="jane")
    registry.discover("urn:dp:a:seen", None, "lineage")
    registry.discover("urn:dp:a:both", None, "lineage")
    registry.create("urn:dp:a:both:v1", replace(SPEC, tier=Tier.TIER_2), actor="jane")
    registry.create("urn:dp:a:gone", SPEC, actor="jane")
    registry.delete("urn:dp:a:gone", actor="jane")
    asked = [
        f"urn:dp:a:{name}{version}"
        for name in ("plain", "versioned", "seen", "both", "gone", "unknown")
        for version in ("", ":v1", ":v2", ":v7")
    ]

    found = rig.process().profiles.of(asked)

    by_itself = {urn: dataset for urn in asked if (dataset := registry.find(urn)) is not None}
    assert {urn: (each.tier, each.owner_team, each.dataset_urn or urn) for urn, each in found.items()} == {
        urn: (each.tier, each.owner_team, each.dataset_urn) for urn, each in by_itself.items()
    }
    assert found["urn:dp:a:versioned"].dataset_urn == "urn:dp:a:versioned:v2"
    assert found["urn:dp:a:both"].dataset_urn == "urn:dp:a:both:v1"
    assert found["urn:dp:a:plain"].dataset_urn is None, "it is the one that was asked for"
    assert "urn:dp:a:gone" not in found
    assert registry.profiles.of([]) == {}


def test_of__hundreds__a_few_calls_and_none_when_asked_again(rig: Rig) -> None:
    names = [f"urn:dp:a:set_{number}" for number in range(300)]
    for name in names[:5]:
        rig.registry.create(name, SPEC, actor="jane")
    registry = rig.process()
    calls = Calls(rig)

    assert tiers(registry, *names, *names) == dict.fromkeys(names[:5], Tier.TIER_2)

    assert 0 < calls.many <= CALLS_MAX
    before = calls.many
    assert len(tiers(registry, *names)) == 5
    assert calls.many == before, "also of those that there are none of"


def test_of__changed_here_or_elsewhere_or_long_ago__is_looked_up_anew(rig: Rig) -> None:
    name = "urn:dp:a:orders"
    here, elsewhere = rig.registry, rig.process()
    here.create(name, replace(SPEC, tier=Tier.TIER_3), actor="jane")
    assert tiers(here, name) == {name: Tier.TIER_3}

    here.update(name, replace(SPEC, tier=Tier.TIER_2), actor="jane", expected_version=UNCHECKED)
    assert tiers(here, name) == {name: Tier.TIER_2}
    elsewhere.update(name, replace(SPEC, tier=Tier.TIER_3), actor="jane", expected_version=UNCHECKED)
    assert tiers(here, name) == {name: Tier.TIER_2}, "not invalidated yet"
    rig.cache.invalidate(cache_keys.dataset_config(name))
    assert tiers(here, name) == {name: Tier.TIER_3}
    elsewhere.delete(name, actor="jane")
    rig.clock.advance(TRUSTED_SECONDS)
    assert tiers(here, name) == {}


def test_of__store_down__what_was_last_known_will_do_and_raises_for_others(rig: Rig) -> None:
    name = "urn:dp:a:orders"
    rig.registry.create(name, SPEC, actor="jane")
    assert tiers(rig.registry, name) == {name: Tier.TIER_2}
    rig.store.is_down = True
    rig.clock.advance(10 * TRUSTED_SECONDS)

    assert tiers(rig.registry, name) == {name: Tier.TIER_2}
    assert rig.registry.stats.last_known_used == 1
    with pytest.raises(StoreBusyError):
        tiers(rig.registry, name, "urn:dp:a:other")
    rig.store.is_down = False
    assert tiers(rig.registry, "urn:dp:a:other") == {}
