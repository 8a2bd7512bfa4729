"""Look-ups that degrade instead of failing: what an enforcer is told of a dataset when something is missing or down."""

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

# What nobody has promised is not soon broken: a day late, and half of the data wrong.
_log = structlog.get_logger(__name__)
LENIENT_SLOS: Final = Slos(
    freshness=FreshnessSlo(max_delay_seconds=86_400),
    contract_compliance=ComplianceSlo(min_compliance_rate=0.5),
)


class FallbackOnMiss(enum.StrEnum):
    """What to answer for a dataset that is not registered: defaults with a warning, an error, or defaults alone."""

    WARN = "WARN"
    FAIL = "FAIL"
    PASS = "PASS"


class Lookup(Struct, frozen=True):
    """An answer. What is not as it should be is said in `warning`, and flagged on the dataset itself."""

    dataset: Dataset
    warning: str | None = None


class LookupStats:
    """Plain integers, added to without a lock: exact for one thread, close enough for many."""

    __slots__ = ("default_config_used", "last_known_used", "not_found", "stale_cache_used")

    def __init__(self) -> None:
        self.stale_cache_used = 0
        self.last_known_used = 0
        self.default_config_used = 0
        self.not_found = 0


class Lookups:
    """Asks the registry, then what is stale, then what was last known, then defaults; and says which it was."""

    def __init__(self, finder: DatasetFinder, known: LastKnown, clock: Clock, observer: HealthObserver) -> None:
        self.stats = LookupStats()
        self._observer = observer
        self._finder = finder
        self._known = known
        self._clock = clock

    def find(self, urn: str) -> Dataset | None:
        """Return a dataset or None, and remember the answer. Raises `TransientError`."""
        found = self._finder.find(urn)
        self._note(urn, found)
        return found

    def find_many(self, urns: Sequence[str]) -> dict[str, Dataset]:
        """Return those of some datasets that are in use, by the names given, and remember the answers.

        If the store cannot be asked, what was last known of all of them will do. Raises `TransientError` if it is not.
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
        """Return a dataset, or what is to be used instead of it.

        That none is registered is an answer, which `fallback_on_miss` decides about. Raises `DatasetNotFoundError` if
        it says so, and the `TransientError` of the store if that cannot be asked, nothing is known of the dataset and
        it was once of TIER_1: lenient defaults would wave through what matters most.
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
        return Lookup(found, f"dataset {urn}: the store cannot be asked; this is {found.age_seconds:.0f} s old")

    def _note(self, urn: str, found: Dataset | None) -> None:
        if found is None:
            self._known.forget(urn)
        elif not found.stale:
            self._known.learn(urn, found)

    def _without_dataset(self, urn: str, fallback_on_miss: FallbackOnMiss) -> Lookup:
        self.stats.not_found += 1
        missing = DatasetNotFoundError(f"dataset {urn}: it is not registered; create it first")
        self._observer.on_dataset_missing(missing)
        if fallback_on_miss is FallbackOnMiss.FAIL:
            raise missing
        self.stats.default_config_used += 1
        # Not louder: anyone may ask for names that nobody has registered, as often as they like.
        _log.debug("using_default_config", dataset_urn=urn, reason="it is not registered")
        warning = f"dataset {urn}: it is not registered; lenient defaults are used"
        return Lookup(default_dataset(urn), None if fallback_on_miss is FallbackOnMiss.PASS else warning)

    def _without_store(self, urn: str, error: TransientError) -> Lookup:
        known = self._known.recall(urn)
        if known is not None:
            self.stats.last_known_used += 1
            age_seconds = max(0.0, self._clock.seconds() - known.at_seconds)
            warning = f"dataset {urn}: neither store nor cache answers; this was last known {age_seconds:.0f} s ago"
            return Lookup(replace(known.dataset, stale=True, age_seconds=age_seconds), warning)
        if self._known.was_tier_1(urn):
            raise error
        self.stats.default_config_used += 1
        _log.warning(
            "using_default_config", dataset_urn=urn, reason="neither store nor cache answers", error=str(error)
        )
        warning = f"dataset {urn}: neither store nor cache answers ({error}); lenient defaults are used"
        return Lookup(default_dataset(urn), warning)


def default_dataset(urn: str) -> Dataset:
    """Return what is assumed of a dataset of which nothing is known. Raises `InvalidIdError`."""
    return Dataset(
        dataset_urn=dataset_urn(urn), config_version=0, tier=Tier.TIER_3, slos=LENIENT_SLOS, is_fallback=True
    )
