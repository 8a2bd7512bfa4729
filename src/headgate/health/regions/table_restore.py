"""Table restore: compares a restored copy of a table with the live one, and swaps it in or repairs single items.

A swap changes the physical name in the setting `store.table_names`. Nothing is renamed or copied, so that swapping
back is as fast. If only some items are wrong, repairing them is better: a swap loses all writes since.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from headgate.errors import ConflictError
from headgate.store.model.conditions import VERSION, Condition, absent, all_of, equals, exists, version_is
from headgate.store.model.schema import Key, Table
from headgate.store.model.values import Item
from headgate.store.port import Store
from headgate.store.table_names import TableNames

# How many keys of each kind a report lists; it counts all.
NAMED_MAX: Final = 1000
_DIGEST_BYTES: Final = 16
_DIGEST_MODULUS: Final = 1 << (8 * _DIGEST_BYTES)


class Contents(msgspec.Struct, frozen=True):
    """The count and checksum of a table. The checksum does not depend on the order of items."""

    items: int
    checksum: str


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """How a restored table differs from the live one.

    `missing` are live only, `extra` restored only, `differing` in both with other content. The lists have the first
    keys; the counts are complete.
    """

    table: str
    in_use: Contents
    restored: Contents
    equal_count: int
    missing_count: int
    extra_count: int
    differing_count: int
    missing: tuple[Key, ...]
    extra: tuple[Key, ...]
    differing: tuple[Key, ...]

    @property
    def is_alike(self) -> bool:
        """Whether both have the same content."""
        return not (self.missing_count or self.extra_count or self.differing_count)


class _Tally:
    def __init__(self) -> None:
        self.count = 0
        self._sum = 0

    def add(self, digest: bytes) -> None:
        self.count += 1
        self._sum = (self._sum + int.from_bytes(digest)) % _DIGEST_MODULUS

    def contents(self) -> Contents:
        return Contents(self.count, self._sum.to_bytes(_DIGEST_BYTES).hex())


def compare(
    table: Table, in_use: Iterable[Item], restored: Iterable[Item], *, ignoring: Sequence[str] = ()
) -> Difference:
    """Compare two copies of a table, item by item. Takes some 200 bytes of memory for each item of the first.

    `ignoring` lists attributes that may differ, such as those that every write changes.
    """
    left, right = _Tally(), _Tally()
    digests: dict[Key, bytes] = {}
    for item in in_use:
        digest = digests[table.key_of(item)] = _digest(item, ignoring)
        left.add(digest)
    equal = 0
    extra: list[Key] = []
    differing: list[Key] = []
    for item in restored:
        key, digest = table.key_of(item), _digest(item, ignoring)
        right.add(digest)
        found = digests.pop(key, None)
        if found is None:
            extra.append(key)
        elif found != digest:
            differing.append(key)
        else:
            equal += 1
    return Difference(
        table=table.name,
        in_use=left.contents(),
        restored=right.contents(),
        equal_count=equal,
        missing_count=len(digests),
        extra_count=len(extra),
        differing_count=len(differing),
        missing=tuple(sorted(digests, key=_text)[:NAMED_MAX]),
        extra=tuple(sorted(extra, key=_text)[:NAMED_MAX]),
        differing=tuple(sorted(differing, key=_text)[:NAMED_MAX]),
    )


class RepairResult(msgspec.Struct, frozen=True):
    """The outcome of a repair, or in a dry run what it would be."""

    is_dry_run: bool
    repaired: tuple[Key, ...] = ()
    # Already correct, not in the restored copy, and changed by another writer meanwhile.
    alike: tuple[Key, ...] = ()
    absent: tuple[Key, ...] = ()
    overtaken: tuple[Key, ...] = ()


def repair(
    store: Store, table: Table, keys: Sequence[Key], restored: Callable[[Key], Item | None], *, dry_run: bool = False
) -> RepairResult:
    """Restore single items from the copy. An item that is not in the copy stays as it is.

    A repaired item gets a version above the one it replaces, so that concurrent readers get a conflict. An item that
    changes between read and write is skipped. Idempotent.
    """
    repaired: list[Key] = []
    alike: list[Key] = []
    gone: list[Key] = []
    overtaken: list[Key] = []
    for key in keys:
        wanted = restored(key)
        current = store.get(table, key, consistent=True)
        if wanted is None:
            gone.append(key)
        elif current is not None and _digest(current, (VERSION,)) == _digest(wanted, (VERSION,)):
            alike.append(key)
        elif dry_run or _put_back(store, table, wanted, current):
            repaired.append(key)
        else:
            overtaken.append(key)
    return RepairResult(dry_run, tuple(repaired), tuple(alike), tuple(gone), tuple(overtaken))


def swapped(table_names: Mapping[str, str], table: Table, physical: str, *, prefix: str = "") -> dict[str, str]:
    """Return the setting `store.table_names` in which `table` is `physical`. Raises `SettingsError`.

    Giving the default name removes the override: that is the way back.
    """
    names = {**table_names, table.name: physical}
    TableNames(prefix, names)
    if physical == prefix + table.name:
        del names[table.name]
    return names


def _put_back(store: Store, table: Table, wanted: Item, current: Item | None) -> bool:
    item = dict(wanted)
    condition: Condition = absent()
    if current is not None:
        condition = _as_read(table, current)
        if VERSION in wanted:
            item[VERSION] = max(int(wanted[VERSION]), int(current.get(VERSION, 0))) + 1
    try:
        store.put(table, item, condition=condition)
    except ConflictError:
        return False
    return True


def _as_read(table: Table, current: Item) -> Condition:
    """Return the condition that an item is as read: by its version, or by all comparable attributes."""
    if VERSION in current:
        return version_is(current[VERSION])
    plain = {
        name: value
        for name, value in current.items()
        if name not in table.key_names and isinstance(value, str | int | float | bool) and len(str(value)) < 1000
    }
    return all_of(exists(), *(equals(name, value) for name, value in list(plain.items())[:50]))


def _digest(item: Mapping[str, Any], ignoring: Sequence[str]) -> bytes:
    kept = {name: value for name, value in item.items() if name not in ignoring}
    return hashlib.blake2b(msgspec.msgpack.encode(kept, order="deterministic"), digest_size=_DIGEST_BYTES).digest()


def _text(key: Key) -> tuple[str, str]:
    return str(key.partition), str(key.sort)
