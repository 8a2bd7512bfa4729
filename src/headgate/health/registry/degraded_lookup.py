"""Degraded lookup: answers dataset lookups with stale, last-known or default configs when the store is unavailable."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Final

import structlog
from msgspec import Struct
from msgspec.structs import replace

from headgate.clock import Clock
from headgate.errors import DatasetNotFoundError, TransientError
from headgate.health.model.datasets import ComplianceSlo, Dataset, FreshnessSlo, Slos
from headgate.health.model.enums import Tier
from headgate.health.model.urns import dataset_urn
from headgate.health.observer import HealthObserver
from headgate.health.registry.find import DatasetFinder
from headgate.health.registry.last_known import LastKnown

# Lenient defaults for an unknown dataset: a day of delay, half of the data invalid.
_log = structlog.get_logger(__name__)
LENIENT_SLOS: Final = Slos(
    freshness=FreshnessSlo(max_delay_seconds=86_400),
    contract_compliance=ComplianceSlo(min_compliance_rate=0.5),
)


class FallbackOnMiss(enum.StrEnum):
    """The answer for a dataset that is not registered: defaults with a warning, an error, or defaults alone."""

    WARN = "WARN"
    FAIL = "FAIL"
    PASS = "PASS"


class Lookup(Struct, frozen=True):
    """An answer. `warning` describes a degraded answer, which the dataset flags as well."""

    dataset: Dataset
    warning: str | None = None


class LookupStats:
    """Counters without a lock: exact for one thread, approximate for many."""

    __slots__ = ("default_config_used", "last_known_used", "not_found", "stale_cache_used")

    def __init__(self) -> None:
        self.stale_cache_used = 0
        self.last_known_used = 0
        self.default_config_used = 0
        self.not_found = 0


class Lookups:
    """Tries the registry, then a stale cache entry, then the last-known config, then defaults."""

    def __init__(self, finder: DatasetFinder, known: LastKnown, clock: Clock, observer: HealthObserver) -> None:
        self.stats = LookupStats()
        self._observer = observer
        self._finder = finder
        self._known = known
        self._clock = clock

    def find(self, urn: str) -> Dataset | None:
        """Return a dataset or None, and save the answer as last known. Raises `TransientError`."""
        found = self._finder.find(urn)
        self._note(urn, found)
        return found

    def find_many(self, urns: Sequence[str]) -> dict[str, Dataset]:
        """Return the datasets in use among these, by the given URNs, and save the answers as last known.

        During an outage, last-known configs are returned if there are some for all. Raises `TransientError` otherwise.
        """
        try:
            found = self._finder.find_many(urns)
        except TransientError:
            known = {urn: each.dataset for urn in urns if (each := self._known.recall(urn)) is not None}
            if len(known) < len(set(urns)):
                raise
            self.stats.last_known_used += len(known)
            return known
        for urn in urns:
            self._note(urn, found.get(urn))
        return found

    def lookup(self, urn: str, fallback_on_miss: FallbackOnMiss) -> Lookup:
        """Return a dataset, or its replacement.

        `fallback_on_miss` decides about an unregistered dataset. Raises `DatasetNotFoundError` for FAIL. Raises the
        `TransientError` of the store if the dataset has no last-known config and was once of TIER_1: lenient defaults
        would let through what matters most.
        """
        try:
            found = self.find(urn)
        except TransientError as exc:
            return self._without_store(urn, exc)
        if found is None:
            return self._without_dataset(urn, fallback_on_miss)
        if not found.stale:
            return Lookup(found)
        self.stats.stale_cache_used += 1
        return Lookup(found, f"dataset {urn}: the store is unavailable; this is {found.age_seconds:.0f} s old")

    def _note(self, urn: str, found: Dataset | None) -> None:
        if found is None:
            self._known.forget(urn)
        elif not found.stale:
            self._known.learn(urn, found)

    def _without_dataset(self, urn: str, fallback_on_miss: FallbackOnMiss) -> Lookup:
        self.stats.not_found += 1
        missing = DatasetNotFoundError(f"dataset {urn}: not registered; create it first")
        self._observer.on_dataset_missing(missing)
        if fallback_on_miss is FallbackOnMiss.FAIL:
            raise missing
        self.stats.default_config_used += 1
        # Debug level: callers may look up unregistered names as often as they like.
        _log.debug("using_default_config", dataset_urn=urn, reason="not registered")
        warning = f"dataset {urn}: not registered; lenient defaults are used"
        return Lookup(default_dataset(urn), None if fallback_on_miss is FallbackOnMiss.PASS else warning)

    def _without_store(self, urn: str, error: TransientError) -> Lookup:
        known = self._known.recall(urn)
        if known is not None:
            self.stats.last_known_used += 1
            age_seconds = max(0.0, self._clock.seconds() - known.at_seconds)
            warning = f"dataset {urn}: store and cache are unavailable; this was last known {age_seconds:.0f} s ago"
            return Lookup(replace(known.dataset, stale=True, age_seconds=age_seconds), warning)
        if self._known.was_tier_1(urn):
            raise error
        self.stats.default_config_used += 1
        _log.warning(
            "using_default_config", dataset_urn=urn, reason="store and cache are unavailable", error=str(error)
        )
        warning = f"dataset {urn}: store and cache are unavailable ({error}); lenient defaults are used"
        return Lookup(default_dataset(urn), warning)


def default_dataset(urn: str) -> Dataset:
    """Return the default config of an unknown dataset. Raises `InvalidIdError`."""
    return Dataset(
        dataset_urn=dataset_urn(urn), config_version=0, tier=Tier.TIER_3, slos=LENIENT_SLOS, is_fallback=True
    )
