"""Which name a dataset is registered under, remembered for a moment: thousands of calls a second ask."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Generic, TypeVar
from zlib import crc32

from headgate.clock import Clock
from headgate.health.model.datasets import Dataset
from headgate.health.model.urns import dataset_urn

# As long as this process trusts what it has read of a dataset. What was read together is not to be read together again,
# while everyone waits: some of it is trusted for less.
TRUSTED_SECONDS: Final = 30
_LESS_SECONDS_MAX: Final = 15
NAMES_MAX: Final = 65_536
# No dataset is registered under it.
_UNKNOWN: Final = "?"

V = TypeVar("V")


class TtlCache(Generic[V]):
    """What was found out of datasets, by the names they were asked for. Safe to use from many threads.

    Each is forgotten after a while, and all of it at once when a dataset changed here or another process said so.
    """

    def __init__(self, clock: Clock, changes: Callable[[], int]) -> None:
        """Take `changes`, a number that grows when others change a dataset."""
        self._clock = clock
        self._changes = changes
        self._lock = threading.Lock()
        self._seen = -1
        self._values: dict[str, V] = {}
        # Which names are to be forgotten in which second, and the second for which that was last done.
        self._due: defaultdict[int, list[str]] = defaultdict(list)
        self._done = 0

    def at_hand(self) -> dict[str, V]:
        """Return what is remembered now. Any of it may be gone a moment later."""
        changes = self._changes()
        if changes != self._seen or len(self._values) >= NAMES_MAX:
            self._seen = changes
            self.forget()
        second = int(self._clock.monotonic())
        if second != self._done:
            self._forget_due(second)
        return self._values

    def keep(self, at_hand: dict[str, V], found: Mapping[str, V]) -> None:
        """Remember what was found out since `at_hand` was returned, unless something has changed since."""
        with self._lock:
            if at_hand is not self._values:
                return
            at_hand.update(found)
            second = int(self._clock.monotonic())
            for name in found:
                self._due[second + TRUSTED_SECONDS - crc32(name.encode()) % _LESS_SECONDS_MAX].append(name)

    def forget(self) -> None:
        """Remember nothing: a dataset was changed."""
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
    """Names as callers give them, each with the one that is registered or None. Safe to use from many threads."""

    def __init__(
        self,
        find: Callable[[str], Dataset | None],
        find_many: Callable[[Sequence[str]], Mapping[str, Dataset]],
        clock: Clock,
        changes: Callable[[], int] = lambda: 0,
    ) -> None:
        """Take what finds datasets that are in use, and `changes`, a number that grows when others change them."""
        self._find = find
        self._find_many = find_many
        self._remembered: TtlCache[str | None] = TtlCache(clock, changes)
        self.forget = self._remembered.forget

    def at_hand(self) -> Mapping[str, str | None]:
        """Return what is remembered now, for those who look up many. What is missing is to be asked of `of_many`."""
        return self._remembered.at_hand()

    def of(self, given: str) -> str | None:
        """Return the name that a dataset is registered under, or None. Raises `InvalidIdError` and `TransientError`."""
        names = self._remembered.at_hand()
        try:
            return names[given]
        except KeyError:
            found = self._find(dataset_urn(given))
        name = None if found is None else found.dataset_urn
        self._remembered.keep(names, {given: name})
        return name

    def of_many(self, given: Iterable[str]) -> dict[str, str | None]:
        """Return the name that each is registered under, or None, with few calls to the store. Raises as `of` does."""
        names = self._remembered.at_hand()
        known = {name: names.get(name, _UNKNOWN) for name in given}
        asked = {name: dataset_urn(name) for name, registered in known.items() if registered is _UNKNOWN}
        if not asked:
            return known
        datasets = self._find_many(list(dict.fromkeys(asked.values())))
        found = {name: datasets[urn].dataset_urn if urn in datasets else None for name, urn in asked.items()}
        self._remembered.keep(names, found)
        return known | found
