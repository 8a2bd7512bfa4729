"""Standings of datasets by either form of their names, many at a time, and remembered for a moment.

Whoever takes over signals asks for those of a whole group, and whoever goes down a lineage, as an incident does that
opens, for those of all that lies there. To find each by itself would cost a call to the store for each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from headgate.clock import Clock
from headgate.health.model.datasets import Dataset, DatasetProfile
from headgate.health.registry.name_cache import TtlCache


class ProfileCache:
    """Standings of the datasets that are in use. Safe to use from many threads."""

    def __init__(
        self, find_many: Callable[[Sequence[str]], Mapping[str, Dataset]], clock: Clock, changes: Callable[[], int]
    ) -> None:
        """Take `find_many`, which returns those that are in use, and `changes`, which grows when others change them."""
        self._find_many = find_many
        self._remembered: TtlCache[DatasetProfile | None] = TtlCache(clock, changes)
        self.forget = self._remembered.forget

    def of(self, dataset_urns: Sequence[str]) -> dict[str, DatasetProfile]:
        """Return the profile of each dataset that is in use. Raises `TransientError`."""
        at_hand = self._remembered.at_hand()
        profiles: dict[str, DatasetProfile | None] = {}
        unknown: list[str] = []
        for urn in dict.fromkeys(dataset_urns):
            try:
                profiles[urn] = at_hand[urn]
            except KeyError:
                unknown.append(urn)
        if unknown:
            datasets = self._find_many(unknown)
            found = {urn: _profile(urn, datasets.get(urn)) for urn in unknown}
            self._remembered.keep(at_hand, found)
            profiles |= found
        return {urn: profile for urn, profile in profiles.items() if profile is not None}


def _profile(asked: str, dataset: Dataset | None) -> DatasetProfile | None:
    if dataset is None:
        return None
    name = dataset.dataset_urn
    return DatasetProfile(dataset.tier, dataset.owner_team, None if name == asked else name)
