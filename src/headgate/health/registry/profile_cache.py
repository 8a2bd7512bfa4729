"""Profile cache: tier and owner of datasets by requested URN, loaded in batches and cached briefly.

The signal writer needs those of a whole batch, and a lineage walk those of all datasets it reaches; one store call for
each would be too slow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from headgate.clock import Clock
from headgate.health.model.datasets import Dataset, DatasetProfile
from headgate.health.registry.name_cache import TtlCache


class ProfileCache:
    """Profiles of datasets in use. Safe to use from many threads."""

    def __init__(
        self, find_many: Callable[[Sequence[str]], Mapping[str, Dataset]], clock: Clock, changes: Callable[[], int]
    ) -> None:
        """Take `find_many`, which returns datasets in use, and `changes`, a counter of changes by other processes."""
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


def _profile(requested: str, dataset: Dataset | None) -> DatasetProfile | None:
    if dataset is None:
        return None
    name = dataset.dataset_urn
    return DatasetProfile(dataset.tier, dataset.owner_team, None if name == requested else name)
