"""Name cache: the registered URN of a requested one, and its profile, cached briefly.

Thousands of calls a second need the name. The signal writer needs the profiles of a whole batch, and a lineage walk
those of all datasets it reaches; one store call for each would be too slow.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Generic, TypeVar
from zlib import crc32

from headgate.clock import Clock
from headgate.health.model.datasets import Dataset, DatasetProfile
from headgate.health.model.urns import dataset_urn

# The trust time of a cached answer. Entries that were read together expire apart, so that they are not all reloaded at
# once while callers wait.
TRUSTED_SECONDS: Final = 30
_LESS_SECONDS_MAX: Final = 15
NAMES_MAX: Final = 65_536
# No dataset is registered under the URN.
_UNKNOWN: Final = "?"

V = TypeVar("V")


class TtlCache(Generic[V]):
    """Answers by requested URN, with a time to live. Safe to use from many threads.

    All are dropped when a dataset changes in this process, or another process reports a change.
    """

    def __init__(self, clock: Clock, changes: Callable[[], int]) -> None:
        """Take `changes`, a counter of changes by other processes."""
        self._clock = clock
        self._changes = changes
        self._lock = threading.Lock()
        self._seen = -1
        self._values: dict[str, V] = {}
        # The URNs that expire in each second, and the last second that was processed.
        self._due: defaultdict[int, list[str]] = defaultdict(list)
        self._done = 0

    def at_hand(self) -> dict[str, V]:
        """Return the current entries. Entries may expire right after."""
        changes = self._changes()
        if changes != self._seen or len(self._values) >= NAMES_MAX:
            self._seen = changes
            self.forget()
        second = int(self._clock.monotonic())
        if second != self._done:
            self._forget_due(second)
        return self._values

    def keep(self, at_hand: dict[str, V], found: Mapping[str, V]) -> None:
        """Add answers that were loaded after `at_hand` was returned, unless something changed since."""
        with self._lock:
            if at_hand is not self._values:
                return
            at_hand.update(found)
            second = int(self._clock.monotonic())
            for name in found:
                self._due[second + TRUSTED_SECONDS - crc32(name.encode()) % _LESS_SECONDS_MAX].append(name)

    def forget(self) -> None:
        """Drop everything: a dataset changed."""
        with self._lock:
            self._values = {}
            self._due.clear()

    def _forget_due(self, second: int) -> None:
        with self._lock:
            for each in [each for each in self._due if each <= second]:
                for name in self._due.pop(each):
                    self._values.pop(name, None)
            self._done = second


class NameCache:
    """Requested URNs with their registered URN, or None. Safe to use from many threads."""

    def __init__(
        self,
        find: Callable[[str], Dataset | None],
        find_many: Callable[[Sequence[str]], Mapping[str, Dataset]],
        clock: Clock,
        changes: Callable[[], int] = lambda: 0,
    ) -> None:
        """Take functions that find datasets in use, and `changes`, a counter of changes by other processes."""
        self._find = find
        self._find_many = find_many
        self._remembered: TtlCache[str | None] = TtlCache(clock, changes)
        self.forget = self._remembered.forget

    def at_hand(self) -> Mapping[str, str | None]:
        """Return the current entries, for callers with many lookups; `of_many` loads the missing ones."""
        return self._remembered.at_hand()

    def of(self, given: str) -> str | None:
        """Return the registered URN of a dataset, or None. Raises `InvalidIdError` and `TransientError`."""
        names = self._remembered.at_hand()
        try:
            return names[given]
        except KeyError:
            found = self._find(dataset_urn(given))
        name = None if found is None else found.dataset_urn
        self._remembered.keep(names, {given: name})
        return name

    def of_many(self, given: Iterable[str]) -> dict[str, str | None]:
        """Return the registered URN of each dataset, or None, with few store calls. Raises as `of` does."""
        names = self._remembered.at_hand()
        known = {name: names.get(name, _UNKNOWN) for name in given}
        requested = {name: dataset_urn(name) for name, registered in known.items() if registered is _UNKNOWN}
        if not requested:
            return known
        datasets = self._find_many(list(dict.fromkeys(requested.values())))
        found = {name: datasets[urn].dataset_urn if urn in datasets else None for name, urn in requested.items()}
        self._remembered.keep(names, found)
        return known | found


class ProfileCache:
    """Tier and owner of datasets in use, loaded in batches. Safe to use from many threads."""

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
    freshness = None if dataset.slos is None else dataset.slos.freshness
    registered = None if name == requested else name
    return DatasetProfile(dataset.tier, dataset.owner_team, registered, freshness, dataset.gate)
