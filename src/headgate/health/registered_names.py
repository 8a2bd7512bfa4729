"""Which name a dataset is registered under, remembered for a moment: thousands of calls a second ask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from headgate.clock import Clock
from headgate.health.datasets import Dataset
from headgate.health.urns import dataset_urn

# As long as this process trusts what it has read of a dataset.
TRUSTED_SECONDS: Final = 30.0
NAMES_MAX: Final = 65_536


class RegisteredNames:
    """Names as callers give them, each with the one that is registered or None. Safe to use from many threads.

    All of it is forgotten at once: after a while, when a dataset changed here, and when another process said so.
    """

    def __init__(
        self, find: Callable[[str], Dataset | None], clock: Clock, changes: Callable[[], int] = lambda: 0
    ) -> None:
        """Take `find`, which says what is registered, and `changes`, a number that grows when others change that."""
        self._find = find
        self._clock = clock
        self._changes = changes
        self._seen = -1
        self._until = 0.0
        self._names: dict[str, str | None] = {}

    def at_hand(self) -> dict[str, str | None]:
        """Return what is remembered now, for those who look up many at once. What is missing is to be asked of `of`."""
        changes, now = self._changes(), self._clock.monotonic()
        if changes != self._seen or now >= self._until:
            self._seen, self._until, self._names = changes, now + TRUSTED_SECONDS, {}
        return self._names

    def of(self, given: str) -> str | None:
        """Return the name that a dataset is registered under, or None. Raises `InvalidIdError` and `TransientError`."""
        names = self.at_hand()
        try:
            return names[given]
        except KeyError:
            found = self._find(dataset_urn(given))
        if len(names) >= NAMES_MAX:
            names.clear()
        # Into what was taken before the question: if something has changed since, that is not looked at any more.
        name = names[given] = None if found is None else found.dataset_urn
        return name

    def forget(self) -> None:
        """Remember nothing: a dataset was changed."""
        self._names = {}
