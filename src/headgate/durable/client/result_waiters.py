"""Waits: callers that want to know how something ends, and are told rather than asking over and over."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, TypeVar

from headgate.clock import Clock
from headgate.store.port import Store

T = TypeVar("T")

# How often a waiter looks for itself, should nobody tell it.
LOOK_SECONDS: Final = 0.5


class Waits:
    """Whoever waits in this process. Safe to use from many threads."""

    def __init__(self, store: Store, clock: Clock) -> None:
        # Whether someone in this process will `ring`; otherwise the store tells of commits.
        self.is_rung = False
        # Asked in place of waiting, where nothing happens unless the waiting thread makes it; False: wait after all.
        self.meanwhile: Callable[[], bool] | None = None
        self._store = store
        self._clock = clock
        self._mutex = threading.Lock()
        self._bells: dict[str, list[threading.Event]] = {}

    def ring(self, name: str) -> None:
        """Wake those who wait under this name."""
        if not self._bells:
            return
        with self._mutex:
            bells = list(self._bells.get(name, ()))
        for bell in bells:
            bell.set()

    def ring_all(self) -> None:
        """Have everyone look: another process has committed something."""
        with self._mutex:
            bells = [bell for waiting in self._bells.values() for bell in waiting]
        for bell in bells:
            bell.set()

    def until(
        self, look: Callable[[], T | None], timeout_seconds: float | None, *, rung_as: str | None = None
    ) -> T | None:
        """Return what `look` finds as soon as it finds something, or None at the time-out."""
        give_up_at = None if timeout_seconds is None else self._clock.monotonic() + timeout_seconds
        bell = threading.Event()
        if rung_as is not None:
            with self._mutex:
                self._bells.setdefault(rung_as, []).append(bell)
        try:
            while True:
                generation = self._store.generation()
                found = look()
                left = LOOK_SECONDS if give_up_at is None else min(give_up_at - self._clock.monotonic(), LOOK_SECONDS)
                if found is not None or left <= 0:
                    return found
                if self.meanwhile is not None and self.meanwhile():
                    return look()
                if rung_as is not None and self.is_rung:
                    bell.wait(left)
                    bell.clear()
                else:
                    self._store.wait(generation, left)
        finally:
            if rung_as is not None:
                self._forget(rung_as, bell)

    def _forget(self, name: str, bell: threading.Event) -> None:
        with self._mutex:
            self._bells[name].remove(bell)
            if not self._bells[name]:
                del self._bells[name]
