"""A seeded history of writes, clock jumps, lost answers and restarts, against a model that is plain dictionaries.

After every step the store must agree with the model: by key, by query, by index, and by replaying its
change stream from the beginning.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from headgate.clock import VirtualClock
from headgate.errors import ConflictError
from headgate.store.catalogue.tables import SIGNAL_STATE
from headgate.store.model.conditions import (
    Condition,
    absent,
    all_of,
    any_of,
    at_most,
    equals,
    exists,
    holds,
    version_is,
)
from headgate.store.model.requests import ChangeKind, Check, Delete, Put, Query, Update, Write
from headgate.store.model.schema import Key
from headgate.store.port import Store

DATASETS = [f"urn:dp:d{number}" for number in range(4)]
SIGNALS = ["FRESHNESS", "VOLUME"]
KEYS = [Key(dataset, signal) for dataset in DATASETS for signal in SIGNALS]
TABLE = SIGNAL_STATE
# The port remembers a token for ten minutes. The model states the number itself, so that a change of it is noticed.
TOKEN_SECONDS = 600

Items = dict[Key, dict[str, Any]]


@dataclass
class Model:
    """What the store should hold. Expired items stay until something replaces or sweeps them."""

    clock: VirtualClock
    items: Items = field(default_factory=dict)

    def live(self, key: Key) -> dict[str, Any] | None:
        item = self.items.get(key)
        if item is None or ("ttl" in item and item["ttl"] <= self.clock.seconds()):
            return None
        return item

    def admits(self, write: Write) -> bool:
        key = write.table.key_of(write.item) if isinstance(write, Put) else write.key
        current = self.live(key)
        if isinstance(write, Update) and current is None:
            return False
        return write.condition is None or holds(write.condition, current)

    def apply(self, write: Write) -> None:
        match write:
            case Put():
                self.items[write.table.key_of(write.item)] = dict(write.item)
            case Update():
                item = {**self.items[write.key], **write.set}
                for name, amount in write.add.items():
                    item[name] = item.get(name, 0) + amount
                self.items[write.key] = {name: value for name, value in item.items() if name not in write.remove}
            case Delete():
                self.items.pop(write.key, None)


@dataclass(frozen=True)
class AppliedToken:
    """A transaction that was applied under a token, and when the store forgets the token."""

    token: str
    writes: list[Write]
    expires_at_seconds: float


class Simulation:
    """One seeded run. `reopen` gives a new store over the same state, as after a crash."""

    def __init__(self, seed: int, clock: VirtualClock, reopen: Callable[[], Store]) -> None:
        self.chance = random.Random(seed)
        self.clock = clock
        self.model = Model(clock)
        self.store = reopen()
        self._reopen = reopen
        self._applied_tokens: list[AppliedToken] = []
        self._counter = 0

    def step(self) -> str:
        """Do one random thing, check everything, and return what it was."""
        action = self.chance.choices(
            [self.put, self.update, self.delete, self.transact, self.repeat, self.jump, self.restart, self.sweep],
            weights=[20, 20, 8, 20, 8, 10, 3, 5],
        )[0]
        result = action()
        self.check()
        return result

    def put(self) -> str:
        write = Put(TABLE, self.item(self.key()), self.condition())
        return self.attempt(
            f"put {write}", [write], lambda: self.store.put(TABLE, write.item, condition=write.condition)
        )

    def update(self) -> str:
        write = self.random_update(versioned=self.chance.random() < 0.7)
        return self.attempt(
            f"update {write}",
            [write],
            lambda: self.store.update(
                TABLE, write.key, set=write.set, add=write.add, remove=write.remove, condition=write.condition
            ),
        )

    def delete(self) -> str:
        write = Delete(TABLE, self.key(), self.condition())
        return self.attempt(
            f"delete {write}", [write], lambda: self.store.delete(TABLE, write.key, condition=write.condition)
        )

    def transact(self) -> str:
        keys = self.chance.sample(KEYS, self.chance.randint(1, 5))
        writes = [self.random_write(key) for key in keys]
        self._counter += 1
        token = f"token-{self._counter}" if self.chance.random() < 0.5 else None
        return self.send(writes, token)

    def send(self, writes: list[Write], token: str | None) -> str:
        """Send a transaction that the store must treat as new."""
        outcome = self.attempt(f"transact {writes} {token}", writes, lambda: self.store.transact(writes, token=token))
        if token is not None and outcome.startswith("applied"):
            self._applied_tokens.append(AppliedToken(token, writes, self.clock.seconds() + TOKEN_SECONDS))
        return outcome

    def repeat(self) -> str:
        """Send an applied transaction again, as after a lost answer.

        Within ten minutes it must succeed and change nothing. Later the token is forgotten and the transaction is new.
        """
        self._applied_tokens = self._applied_tokens[-3:]
        if not self._applied_tokens:
            return "nothing to repeat"
        applied = self.chance.choice(self._applied_tokens)
        if self.clock.seconds() >= applied.expires_at_seconds:
            self._applied_tokens.remove(applied)
            return self.send(applied.writes, applied.token)
        self.store.transact(applied.writes, token=applied.token)
        return f"repeated {applied.token}"

    def jump(self) -> str:
        seconds = self.chance.choice([1, 30, 90])
        if self.chance.random() < 0.1:
            seconds += 700
        self.clock.advance(seconds)
        return f"clock + {seconds}"

    def restart(self) -> str:
        self.store.close()
        self.store = self._reopen()
        return "restarted"

    def sweep(self) -> str:
        return f"swept {self.store.sweep(limit=self.chance.randint(1, 10))}"

    def attempt(self, operation: str, writes: list[Write], call: Callable[[], object]) -> str:
        refused = {place: write for place, write in enumerate(writes) if not self.model.admits(write)}
        try:
            call()
        except ConflictError as exc:
            assert set(exc.failures) == set(refused), operation
            for place, write in refused.items():
                key = TABLE.key_of(write.item) if isinstance(write, Put) else write.key
                assert exc.failures[place] == self.model.live(key), operation
            return f"refused {operation}"
        assert not refused, operation
        for write in writes:
            self.model.apply(write)
        return f"applied {operation}"

    def check(self) -> None:
        for key in KEYS:
            assert self.store.get(TABLE, key, consistent=True) == self.model.live(key), key
        for dataset in DATASETS:
            page = self.store.query(Query(table=TABLE, partition=dataset, consistent=True))
            expected = [self.model.live(Key(dataset, signal)) for signal in SIGNALS]
            assert page.items == [item for item in expected if item is not None]
        breached = self.store.query(Query(table=TABLE, index="breach-index", partition="BREACH")).items
        live = [item for item in map(self.model.live, KEYS) if item is not None and "breach_pk" in item]
        # Items with one sort key come in an order of the backend's own.
        assert [item["breach_sk"] for item in breached] == sorted(item["breach_sk"] for item in live)
        assert sorted(breached, key=TABLE.key_of) == sorted(live, key=TABLE.key_of)

    def check_stream(self) -> None:
        """Replay the change stream from its beginning and compare with what is stored."""
        replayed: Items = {}
        while True:
            batch = self.store.changes(TABLE, "replayer", limit=7)
            for change in batch.changes:
                assert replayed.get(change.key) == change.old, "each change starts from the one before"
                if change.kind is ChangeKind.REMOVE:
                    del replayed[change.key]
                else:
                    assert change.new is not None
                    replayed[change.key] = change.new
            self.store.checkpoint(TABLE, "replayer", batch.position)
            if not batch.changes:
                break
        live = {key: item for key in KEYS if (item := self.model.live(key)) is not None}
        assert {key: item for key, item in replayed.items() if key in live} == live
        assert all(self.model.live(key) is None for key in replayed.keys() - live.keys())

    def key(self) -> Key:
        return self.chance.choice(KEYS)

    def item(self, key: Key) -> dict[str, Any]:
        item = {**TABLE.key_attributes(key), "state": self.chance.choice(["OK", "CRITICAL"]), "count": 0}
        item["version"] = self.chance.randint(1, 3)
        if self.chance.random() < 0.4:
            item["ttl"] = int(self.clock.seconds()) + self.chance.choice([-5, 20, 60, 500])
        if self.chance.random() < 0.4:
            item |= {"breach_pk": "BREACH", "breach_sk": str(self.chance.randint(1, 3))}
        return item

    def condition(self) -> Condition | None:
        return self.chance.choice(
            [
                None,
                None,
                absent(),
                exists(),
                version_is(self.chance.randint(1, 3)),
                equals("state", "OK"),
                any_of(absent(), at_most("ttl", int(self.clock.seconds()) + 30)),
                all_of(exists(), equals("state", "CRITICAL")),
            ]
        )

    def random_update(self, *, versioned: bool, key: Key | None = None) -> Update:
        version = self.chance.randint(1, 3)
        changes: dict[str, Any] = {"version": version % 3 + 1, "state": self.chance.choice(["OK", "CRITICAL"])}
        remove: tuple[str, ...] = ()
        if self.chance.random() < 0.3:
            remove = ("breach_pk", "breach_sk")
        elif self.chance.random() < 0.3:
            changes |= {"breach_pk": "BREACH", "breach_sk": str(self.chance.randint(1, 3))}
        return Update(
            TABLE,
            key or self.key(),
            changes,
            {"count": self.chance.randint(1, 5)} if versioned else {},
            remove,
            version_is(version) if versioned else None,
        )

    def random_write(self, key: Key) -> Write:
        match self.chance.randrange(4):
            case 0:
                return Put(TABLE, self.item(key), self.condition())
            case 1:
                return self.random_update(versioned=True, key=key)
            case 2:
                return Delete(TABLE, key, self.condition())
        return Check(TABLE, key, self.condition() or exists())
