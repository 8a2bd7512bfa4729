"""A registry on a real store, with a store in between that can fail, die or be overtaken when a test says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from headgate.clock import VirtualClock
from headgate.durable.bus.bus import Bus
from headgate.errors import StoreBusyError
from headgate.health.audit.log import Audit
from headgate.health.model.datasets import DatasetSpec, FreshnessSlo, SchemaBinding, Slos, Source
from headgate.health.model.enums import Tier
from headgate.health.registry.service import Registry
from headgate.ids import IdMaker
from headgate.store.cache.read_through import Cache
from headgate.store.cache.shared import SharedLayer
from headgate.store.keyring import Keyring
from headgate.store.model.requests import Page, Query, Write
from headgate.store.model.values import Item
from headgate.store.sqlite.store import Synchronous
from tests.stores import open_sqlite

ORDERS = "urn:dp:orders:order_created:v1"
SPEC = DatasetSpec(
    display_name="Orders - Order Created Events",
    tier=Tier.TIER_2,
    owner_team="orders-platform",
    source=Source(type="KAFKA", topic="raw.orders.events", cluster="main-msk-cluster"),
    schema_binding=SchemaBinding(registry="GLUE", schema_name="orders.order_created"),
    slos=Slos(freshness=FreshnessSlo(max_delay_seconds=300)),
)


class CrashError(Exception):
    """The process is gone."""


class Between:
    """The store, with what a test wants to happen on the way to it."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.is_down = False
        self.before_get: Callable[[], None] = lambda: None
        self.before_many: Callable[[], None] = lambda: None
        self.before_write: Callable[[], None] = lambda: None
        self.after_write: Callable[[], None] = lambda: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def get(self, *args: Any, **options: Any) -> Item | None:
        self._check()
        self.before_get()
        found: Item | None = self._store.get(*args, **options)
        return found

    def get_many(self, *args: Any, **options: Any) -> list[Item | None]:
        self._check()
        self.before_many()
        found: list[Item | None] = self._store.get_many(*args, **options)
        return found

    def query_many(self, queries: Sequence[Query]) -> list[Page]:
        self._check()
        found: list[Page] = self._store.query_many(queries)
        return found

    def query(self, query: Query) -> Page:
        self._check()
        found: Page = self._store.query(query)
        return found

    def transact(self, writes: Sequence[Write], *, token: str | None = None) -> None:
        self._check()
        self.before_write()
        self._store.transact(writes, token=token)
        self.after_write()

    def _check(self) -> None:
        if self.is_down:
            raise StoreBusyError("the store is down")


def once(act: Callable[[], object]) -> Callable[[], None]:
    """Return what does something the first time that it is called."""
    left = [act]

    def do() -> None:
        if left:
            left.pop()()

    return do


class Rig:
    """One store, and registries on it as so many processes have them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = VirtualClock()
        self.ids = IdMaker(self.clock)
        self.sqlite = open_sqlite(folder, clock=self.clock, synchronous=Synchronous.NORMAL)
        self.store = Between(self.sqlite)
        self.keyring = Keyring.generate(self.clock)
        self.bus = Bus(self.sqlite, self.clock, self.ids)
        self.audit = Audit(self.store, self.clock, self.ids, self.keyring)
        self.cache = self.new_cache()
        self.registry = self.process(cache=self.cache)

    def new_cache(self, shared: SharedLayer | None = None) -> Cache:
        return Cache(clock=self.clock, shared=shared, jitter=lambda: 0.0)

    def process(self, *, cache: Cache | None = None, **options: Any) -> Registry:
        return Registry(
            self.store,
            self.clock,
            self.ids,
            cache or self.new_cache(),
            Audit(self.store, self.clock, self.ids, self.keyring),
            self.keyring,
            event_writes=self.bus.event_writes,
            **options,
        )

    def close(self) -> None:
        self.sqlite.close()
