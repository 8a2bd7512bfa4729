"""Shards of a partition value: the entries of one value are spread over several partitions by a digest of their keys.

Shard 0 is the plain value and shard n is `value*n`, so that rows of a store without shards are rows of shard 0. A
reader reads every shard up to the highest number that was ever written; so the number can be raised, or lowered for
writes, and rows written under another number are found.
"""

from __future__ import annotations

import zlib
from typing import Final

from msgspec.structs import replace

from headgate.errors import InvalidItemError
from headgate.store.model.requests import Change
from headgate.store.model.schema import Key, KeyPart, Shards, Table
from headgate.store.model.values import Item, TrustedItem

# In no name of a workflow, queue or type of event.
SEPARATOR: Final = "*"


def shard_of(value: str) -> tuple[str, int]:
    """Return the plain value and the shard of a stored value."""
    plain, separator, number = value.rpartition(SEPARATOR)
    return (plain, int(number)) if separator and plain and number.isascii() and number.isdigit() else (value, 0)


def in_shard(value: str, number: int) -> str:
    """Return the stored value of a shard."""
    return f"{value}{SEPARATOR}{number}" if number else value


def plain_value(value: KeyPart) -> KeyPart:
    """Return a stored value without its shard."""
    return shard_of(value)[0] if isinstance(value, str) and SEPARATOR in value else value


def stored_partitions(shards: Shards | None, value: KeyPart) -> list[KeyPart]:
    """Return the stored values of all shards of a plain value, the plain one first."""
    if shards is None or not isinstance(value, str) or not shards.covers(value):
        return [value]
    return [in_shard(value, number) for number in range(shards.read)]


def stored_key(table: Table, key: Key) -> Key:
    """Return the key under which a row is written, or the key itself if it is already stored so."""
    return stored_keys(table, key)[0]


def stored_keys(table: Table, key: Key) -> list[Key]:
    """Return the keys under which a row may be stored: the present one, then those of earlier numbers of shards."""
    shards = table.shards
    if shards is None or not isinstance(key.partition, str) or SEPARATOR in key.partition:
        return [key]
    digest = zlib.crc32(str(key.sort).encode())
    numbers = dict.fromkeys(digest % count for count in (shards.count, *shards.earlier))
    return [Key(in_shard(key.partition, number), key.sort) for number in numbers]


def stored_values(table: Table, key: Key, values: Item) -> Item:
    """Return attributes of the row `key` as they are written. Raises `InvalidItemError` for a value like a shard."""
    changed: Item | None = None
    for name, shards in table.sharded_attributes.items():
        value = values.get(name)
        if not isinstance(value, str) or not shards.covers(value):
            continue
        if shard_of(value)[1]:
            raise InvalidItemError(
                f"table {table.name}: {name!r} is {value!r}; it must not end with {SEPARATOR!r} and a number, "
                "which stand for a shard"
            )
        number = zlib.crc32(f"{key.partition}\0{key.sort}".encode()) % shards.count
        if number:
            changed = dict(values) if changed is None else changed
            changed[name] = in_shard(value, number)
    return values if changed is None else changed


def stored_item(table: Table, item: Item) -> Item:
    """Return an item as it is written."""
    if not table.has_shards:
        return item
    key = table.key_of(item)
    stored = stored_values(table, key, item)
    place = stored_key(table, key)
    if place != key:
        stored = {**stored, table.partition.name: place.partition}
    # The creator of a trusted item vouches for its values, and a shard changes none of their kinds.
    return TrustedItem(stored) if type(item) is TrustedItem and stored is not item else stored


def plain_item(table: Table, item: Item) -> Item:
    """Return a stored item without shards."""
    changed: Item | None = None
    for name in table.sharded_names:
        value = item.get(name)
        if isinstance(value, str) and SEPARATOR in value:
            plain = shard_of(value)[0]
            if plain != value:
                changed = dict(item) if changed is None else changed
                changed[name] = plain
    return item if changed is None else changed


def plain_key(table: Table, key: Key) -> Key:
    """Return a stored key without its shard."""
    return key if table.shards is None else Key(plain_value(key.partition), key.sort)


def plain_change(change: Change) -> Change:
    """Return a change of stored rows as one of plain rows."""
    table = change.table
    if not table.has_shards:
        return change
    return replace(
        change,
        key=plain_key(table, change.key),
        old=None if change.old is None else plain_item(table, change.old),
        new=None if change.new is None else plain_item(table, change.new),
    )
