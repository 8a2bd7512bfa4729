"""Dataset aliases: maps a namespace and name, as lineage tools use them, to a dataset URN."""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec
from msgspec import Struct

from headgate import typed_decode
from headgate.auth.audit_entry import AuditEntry, AuditLog
from headgate.clock import Clock
from headgate.errors import ConflictError, DatasetNotFoundError, InvalidPayloadError, NotFoundError, StoreBusyError
from headgate.health.model.datasets import DatasetStatus
from headgate.health.model.timestamps import instant
from headgate.health.registry.rows import latest_key
from headgate.store.cache import keys as cache_keys
from headgate.store.cache.read_through import Cache, Loaded
from headgate.store.catalogue.tables import DATASET_NAME, DATASET_NAMED, DATASET_REGISTRY
from headgate.store.model.conditions import absent, all_of, differs, exists, version_is
from headgate.store.model.requests import Check, Delete, Put, Query, Range, Sort, Write
from headgate.store.model.schema import Key
from headgate.store.port import Store

NAMESPACE_BYTES_MAX: Final = 1024
NAME_BYTES_MAX: Final = 1024
ATTEMPTS_MAX: Final = 32
_PREFIX: Final = "NAME#"


class Alias(Struct, frozen=True, kw_only=True):
    """An alias. `dataset_urn` is None once it was removed."""

    namespace: str
    name: str
    dataset_urn: str | None
    why: str
    updated_by: str
    updated_at: str
    version: int


class AliasIndex:
    """Reads and writes aliases. Safe to use from many threads."""

    def __init__(self, store: Store, clock: Clock, cache: Cache, audit: AuditLog) -> None:
        self._store = store
        self._clock = clock
        self._cache = cache
        self._audit = audit

    def put(self, namespace: str, name: str, urn: str | None, *, why: str, actor: str) -> Alias:
        """Point an alias at a dataset, or remove it with None. Repeating it changes nothing.

        Raises `DatasetNotFoundError` if the dataset is not registered, `InvalidPayloadError` for an empty or too long
        name, and `NotFoundError` for a removal of an alias that does not exist.
        """
        key = _key(namespace, name)
        for _ in range(ATTEMPTS_MAX):
            held = self._read(key)
            if urn is None and (held is None or held.dataset_urn is None):
                raise NotFoundError(f"name {name!r} of {namespace!r}: not an alias of a dataset")
            if held is not None and held.dataset_urn == urn:
                return held
            alias = Alias(
                namespace=namespace,
                name=name,
                dataset_urn=urn,
                why=why,
                updated_by=actor,
                updated_at=instant(int(self._clock.seconds() * 1000)),
                version=1 if held is None else held.version + 1,
            )
            if self._commit(alias, held):
                # The row of a removed alias stays, because cached versions must never decrease.
                self._cache.wrote(_cache_key(namespace, name), urn, alias.version)
                return alias
        raise StoreBusyError(f"name {name!r} of {namespace!r}: too many conflicts with other writers; try again")

    def get(self, namespace: str, name: str) -> str | None:
        """Return the dataset of an alias, or None. The answer may be as old as the cache allows."""
        key = _key(namespace, name)

        def load() -> Loaded[str] | None:
            held = self._read(key)
            return None if held is None or held.dataset_urn is None else Loaded(held.dataset_urn, held.version)

        return self._cache.get(_cache_key(namespace, name), load, str).value

    def of(self, urn: str) -> list[Alias]:
        """Return the aliases of a dataset, by namespace and name."""
        found: list[Alias] = []
        cursor: str | None = None
        while True:
            page = self._store.query(
                Query(
                    table=DATASET_REGISTRY,
                    partition=urn,
                    sort=Sort(Range.BEGINS_WITH, _PREFIX),
                    cursor=cursor,
                    consistent=True,
                )
            )
            found += [typed_decode.convert(item, Alias) for item in page.items]
            cursor = page.cursor
            if cursor is None:
                return sorted(found, key=lambda alias: (alias.namespace, alias.name))

    def _read(self, key: Key) -> Alias | None:
        item = self._store.get(DATASET_REGISTRY, key, consistent=True)
        return None if item is None else typed_decode.convert(item, Alias)

    def _commit(self, alias: Alias, held: Alias | None) -> bool:
        """Try the write once. Return False after a conflict."""
        fields = msgspec.to_builtins(alias)
        own = {**fields, **DATASET_REGISTRY.key_attributes(_key(alias.namespace, alias.name))}
        unchanged = absent() if held is None else version_is(held.version)
        writes: list[Write] = [Put(DATASET_REGISTRY, own, unchanged)]
        if alias.dataset_urn is not None:
            is_registered = all_of(exists(), differs("status", DatasetStatus.DELETED.value))
            writes += [
                Check(DATASET_REGISTRY, latest_key(alias.dataset_urn), is_registered),
                Put(DATASET_REGISTRY, {**fields, **DATASET_REGISTRY.key_attributes(_mirror(alias, alias.dataset_urn))}),
            ]
        if held is not None and held.dataset_urn is not None:
            writes.append(Delete(DATASET_REGISTRY, _mirror(alias, held.dataset_urn)))
        entry = AuditEntry(
            actor=alias.updated_by,
            action="dataset.alias" if alias.dataset_urn is not None else "dataset.unalias",
            entity=alias.dataset_urn or (held.dataset_urn if held is not None else None) or alias.name,
            before_version=None if held is None else held.version,
            after_version=alias.version,
            changed=(f"name {_digest(alias.namespace, alias.name)}",),
            reason=alias.why,
        )
        try:
            self._audit.commit(writes, entry)
        except ConflictError as exc:
            if 1 in exc.failures and 0 not in exc.failures:
                raise DatasetNotFoundError(
                    f"dataset {alias.dataset_urn}: not registered; create it before its alias"
                ) from exc
            return False
        return True


def _mirror(alias: Alias, urn: str) -> Key:
    return DATASET_NAMED.key(dataset_urn=urn, digest=_digest(alias.namespace, alias.name))


def _digest(namespace: str, name: str) -> str:
    return hashlib.blake2b(msgspec.json.encode([namespace, name]), digest_size=12).hexdigest()


def _key(namespace: str, name: str) -> Key:
    limits = (("namespace", namespace, NAMESPACE_BYTES_MAX), ("name", name, NAME_BYTES_MAX))
    for field, text, bytes_max in limits:
        if not text or len(text.encode(errors="surrogatepass")) > bytes_max:
            raise InvalidPayloadError(f"{field} {text[:60]!r}: give 1 to {bytes_max} bytes of text")
    return DATASET_NAME.key(namespace=namespace, name=name)


def _cache_key(namespace: str, name: str) -> cache_keys.Key:
    # Shares the cache of dataset configs under a key that no dataset has: URNs have no '#', config versions start at 1.
    return cache_keys.dataset_config(f"#{_digest(namespace, name)}", 0)
