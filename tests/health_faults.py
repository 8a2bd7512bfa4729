"""Stores that misbehave at one call: what others do in its middle, an answer that is lost, a call that fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from headgate.errors import HeadgateError, OutcomeUnknownError, StoreBusyError
from headgate.store.catalogue.tables import INCIDENT_INDEX
from headgate.store.model.requests import Put, Write
from headgate.store.port import Store


@dataclass
class Interrupted:
    """Does something once, just before the first call of a kind; nothing after that."""

    store: Store
    method: str
    act: Callable[[], object] | None

    def __getattr__(self, name: str) -> Any:
        inner = getattr(self.store, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            if name == self.method and self.act is not None:
                act, self.act = self.act, None
                act()
            return inner(*args, **kwargs)

        return call


@dataclass
class Failing:
    """Fails the first calls of a kind. With `is_done`, what was asked for happens all the same."""

    store: Store
    method: str
    error: HeadgateError
    is_done: bool = False
    times: int = 1

    def __getattr__(self, name: str) -> Any:
        inner = getattr(self.store, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            if name != self.method or self.times == 0:
                return inner(*args, **kwargs)
            self.times -= 1
            if self.is_done:
                inner(*args, **kwargs)
            raise self.error

        return call


@dataclass
class Refusing:
    """Refuses every transaction that writes the first incident it is ever asked to resolve, and no other."""

    store: Store
    poisoned: str | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def transact(self, writes: Sequence[Write], *, token: str | None = None) -> None:
        resolved = [
            str(write.item["incident_id"])
            for write in writes
            if isinstance(write, Put) and write.table is INCIDENT_INDEX and write.item["status"] == "RESOLVED"
        ]
        if resolved and self.poisoned in (None, *resolved):
            self.poisoned = resolved[0]
            raise StoreBusyError("simulated: the store is always busy for this one")
        self.store.transact(writes, token=token)


def interrupted(store: Store, method: str, act: Callable[[], object]) -> Store:
    return cast("Store", Interrupted(store, method, act))


def failing(store: Store, method: str, error: HeadgateError, *, times: int = 1) -> Store:
    return cast("Store", Failing(store, method, error, times=times))


def answer_lost(store: Store, method: str) -> Store:
    return cast("Store", Failing(store, method, OutcomeUnknownError("simulated: the answer was lost"), is_done=True))
