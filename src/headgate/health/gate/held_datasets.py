"""Held datasets: which datasets the gate holds while one upstream of them is unhealthy.

When that dataset recovers, pipelines that wait for one of these are evaluated at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from headgate.health.gate.decisions import GatePolicy
from headgate.health.lineage.blast_radius import DatasetsWithin
from headgate.health.model.datasets import UPSTREAM_HOPS_MAX, DatasetProfile, OnUpstream


class HeldDatasets:
    """Finds held datasets downstream. Safe to use from many threads."""

    def __init__(
        self,
        policy: GatePolicy,
        within: Callable[[str, int], DatasetsWithin],
        profiles: Callable[[Sequence[str]], Mapping[str, DatasetProfile]],
    ) -> None:
        """Take the server's policy, the datasets up to some producers downstream of one, and their profiles."""
        self._policy = policy
        self._within = within
        self._profiles = profiles

    def by(self, dataset_urn: str) -> list[str]:
        """Return the registered datasets that trouble of this one holds, nearest first. Raises what the store raises.

        The lineage is at most a second old. Of a very large one the nearest are returned.
        """
        near = self._within(dataset_urn, UPSTREAM_HOPS_MAX).distances
        profiles = self._profiles(list(near))
        return [urn for urn, distance in near.items() if urn in profiles and self._is_held(profiles[urn], distance)]

    def _is_held(self, profile: DatasetProfile, distance: int) -> bool:
        meaning, hops = self._policy.on_upstream(profile.gate)
        return meaning is OnUpstream.HOLD and distance <= hops
