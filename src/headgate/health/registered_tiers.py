"""Tiers of datasets by either form of their names, many at a time, and remembered for a moment.

Whoever goes down a lineage asks for those of all that lies there, and an incident that opens does. To find each of them
by itself would cost a call to the store for each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from headgate.clock import Clock
from headgate.health.datasets import Dataset
from headgate.health.registered_names import Remembered
from headgate.health.vocabulary import Tier


class RegisteredTiers:
    """Tiers of the datasets that are registered. Safe to use from many threads."""

    def __init__(
        self, find_many: Callable[[Sequence[str]], Mapping[str, Dataset]], clock: Clock, changes: Callable[[], int]
    ) -> None:
        """Take `find_many`, which returns those that are in use, and `changes`, which grows when others change them."""
        self._find_many = find_many
        self._remembered: Remembered[Tier | None] = Remembered(clock, changes)
        self.forget = self._remembered.forget

    def of(self, dataset_urns: Sequence[str]) -> dict[str, Tier]:
        """Return the tier of each dataset that is registered. Raises `TransientError`."""
        tiers = self._remembered.at_hand()
        unknown = [urn for urn in dict.fromkeys(dataset_urns) if urn not in tiers]
        if unknown:
            found = self._find_many(unknown)
            tiers.update((urn, found[urn].tier if urn in found else None) for urn in unknown)
        return {urn: tier for urn in dataset_urns if (tier := tiers[urn]) is not None}
