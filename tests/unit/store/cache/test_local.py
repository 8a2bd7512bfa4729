"""L1 by itself: what belongs to a group is forgotten with it, whatever happened to its keys before."""

from __future__ import annotations

import random

import pytest

from headgate.store.cache.keys import Group, Key, group_of
from headgate.store.cache.local import Entry, LocalLayer
from headgate.store.cache.stats import CacheStats

KEYS = [Key(f"ss:urn{group}:{kind}") for group in range(4) for kind in range(5)]


@pytest.mark.parametrize("seed", range(5))
def test_groups__after_anything__hold_every_answer_and_floor_and_nothing_else(seed: int) -> None:
    draw, now = random.Random(seed), 0.0
    layer = LocalLayer(8, 5.0, CacheStats())
    for step in range(2_000):
        now += draw.random()
        key = draw.choice(KEYS)
        match draw.randrange(6):
            case 0 | 1 | 2:
                layer.put(key, Entry(step, draw.randrange(50), now, now + 1, now + draw.randrange(1, 20)), now)
            case 3:
                layer.find(key, now)
            case 4:
                layer.drop(key, draw.choice([None, draw.randrange(50)]), now)
            case 5:
                layer.drop_group(group_of(key))
                assert not any(group_of(each) == group_of(key) for each in (*layer._entries, *layer._floors))
        there: dict[Group, set[Key]] = {}
        for each in (*layer._entries, *layer._floors):
            there.setdefault(group_of(each), set()).add(each)
        assert layer._groups == there
