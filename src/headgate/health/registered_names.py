"""Which name a dataset is registered under, remembered for a moment: thousands of calls a second ask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

from headgate.clock import Clock
from headgate.health.datasets import Dataset
from headgate.health.urns import dataset_urn

# As long as this process trusts what it has read of a dataset.
TRUSTED_SECONDS: Final = 30.0
NAMES_MAX: Final = 65_536

V = TypeVar("V")


class Remembered(Generic[V]):
    """What was found out of datasets, by the names they were asked for. Safe to use from many threads.

    All of it is forgotten at once: after a while, when a dataset changed here, and when another process said so.
    """

    def __init__(self, clock: Clock, changes: Callable[[], int]) -> None:
        """Take `changes`, a number that grows when others change a dataset."""
        self._clock = clock
        self._changes = changes
        self._seen = -1
        self._until = 0.0
        self._values: dict[str, V] = {}

    def at_hand(self) -> dict[str, V]:
        """Return what is remembered now.

        Whoever finds something out adds it to what they were given before they asked: if anything has changed since,
        that is not looked at any more.
        """
        changes, now = self._changes(), self._clock.monotonic()
        if changes != self._seen or now >= self._until or len(self._values) >= NAMES_MAX:
            self._seen, self._until, self._values = changes, now + TRUSTED_SECONDS, {}
        return self._values

    def forget(self) -> None:
        """Remember nothing: a dataset was changed."""
        self._values = {}


class RegisteredNames:
    """Names as callers give them, each with the one that is registered or None. Safe to use from many threads."""

    def __init__(
        self, find: Callable[[str], Dataset | None], clock: Clock, changes: Callable[[], int] = lambda: 0
    ) -> None:
        """Take `find`, which says what is registered, and `changes`, a number that grows when others change that."""
        self._find = find
        self._remembered: Remembered[str | None] = Remembered(clock, changes)
        self.forget = self._remembered.forget

    def at_hand(self) -> dict[str, str | None]:
        """Return what is remembered now, for those who look up many at once. What is missing is to be asked of `of`."""
        return self._remembered.at_hand()

    def of(self, given: str) -> str | None:
        """Return the name that a dataset is registered under, or None. Raises `InvalidIdError` and `TransientError`."""
        names = self.at_hand()
        try:
            return names[given]
        except KeyError:
            found = self._find(dataset_urn(given))
        name = names[given] = None if found is None else found.dataset_urn
        return name
