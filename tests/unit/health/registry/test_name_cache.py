"""Names of datasets: looked up once in a while, however often they are asked for, and anew once something changed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headgate.clock import VirtualClock
from headgate.errors import InvalidIdError, StoreBusyError
from headgate.health.model.datasets import Dataset
from headgate.health.registry.name_cache import TRUSTED_SECONDS, NameCache

URN = "urn:dp:shop:orders:v1"
SHORT = "urn:dp:shop:orders"


class Registry:
    """What is registered, and how often it was looked at."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.registered = {URN: URN, SHORT: URN}
        self.changes = 0
        self.asked: list[str] = []
        self.calls = 0
        self.is_down = False
        self.names = NameCache(self.find, self.find_many, self.clock, lambda: self.changes)

    def find(self, urn: str) -> Dataset | None:
        if self.is_down:
            raise StoreBusyError("away")
        self.asked.append(urn)
        name = self.registered.get(urn)
        return None if name is None else Dataset(dataset_urn=name, config_version=1)

    def find_many(self, urns: Sequence[str]) -> dict[str, Dataset]:
        self.calls += 1
        return {urn: dataset for urn in urns if (dataset := self.find(urn)) is not None}


def test_of__again_and_again__is_looked_up_once_also_if_there_is_none() -> None:
    registry = Registry()

    for _ in range(100):
        assert registry.names.of(URN) == registry.names.of(SHORT) == URN
        assert registry.names.of("urn:dp:unknown:topic") is None

    assert registry.asked == [URN, SHORT, "urn:dp:unknown:topic"]


def test_of__what_changed_here_or_elsewhere_or_long_ago__is_looked_up_anew() -> None:
    registry = Registry()
    assert registry.names.of(SHORT) == URN
    registry.registered[SHORT] = "urn:dp:shop:orders:v2"

    registry.names.forget()
    assert registry.names.of(SHORT) == "urn:dp:shop:orders:v2"
    registry.registered[SHORT] = "urn:dp:shop:orders:v3"
    registry.changes += 1
    assert registry.names.of(SHORT) == "urn:dp:shop:orders:v3"
    del registry.registered[SHORT]
    registry.clock.advance(TRUSTED_SECONDS)
    assert registry.names.of(SHORT) is None


def test_of_many__known_and_unknown__those_that_are_missing_are_asked_for_together() -> None:
    registry = Registry()
    assert registry.names.of(URN) == URN

    for _ in range(2):
        found = registry.names.of_many([URN, SHORT, "urn:dp:unknown:topic", SHORT])
        assert found == {URN: URN, SHORT: URN, "urn:dp:unknown:topic": None}

    assert (registry.calls, registry.asked) == (1, [URN, SHORT, "urn:dp:unknown:topic"])
    assert registry.names.of_many([]) == {}


def test_of_many__a_thousand_read_together__are_not_all_read_again_in_one_second() -> None:
    registry = Registry()
    names = [f"urn:dp:shop:set_{number}" for number in range(1_000)]
    registry.names.of_many(names)
    asked: list[int] = []
    for _ in range(TRUSTED_SECONDS):
        registry.clock.advance(1)
        registry.asked.clear()
        registry.names.of_many(names)
        asked.append(len(registry.asked))

    assert sum(asked) >= 1_000, "nothing is trusted for longer"
    assert max(asked) < 200
    assert asked[:10] == [0] * 10, "nor is it for much less"


def test_of__changed_while_it_was_looked_up__is_not_remembered() -> None:
    registry = Registry()
    found = registry.find

    def overtaken(urn: str) -> Dataset | None:
        answer = found(urn)
        names.forget()
        return answer

    names = NameCache(overtaken, registry.find_many, registry.clock)
    assert names.of(SHORT) == URN

    assert names.at_hand() == {}


def test_of__what_is_no_name_or_cannot_be_found_out__is_not_remembered() -> None:
    registry = Registry()

    with pytest.raises(InvalidIdError):
        registry.names.of("nonsense")
    registry.is_down = True
    with pytest.raises(StoreBusyError):
        registry.names.of(URN)
    registry.is_down = False

    assert registry.names.of(URN) == URN
