"""Spill: moves large attributes of oversized items into blobs, and restores them on reading.

A spilled attribute is stored as `{"$blob": name, "bytes": size}`. The blob is written before the row that references
it, so a crash leaves an unreferenced blob and never a dangling reference. The blob's name contains the hour of writing
and a digest of the content: writing again within the hour is idempotent, and no row starts to reference a name of an
earlier hour. An older blob without a reference therefore stays unreferenced, except by images in a change stream, for
a day.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Final, Protocol

import msgspec

from headgate import typed_decode
from headgate.clock import Clock
from headgate.errors import CorruptionError, InvalidItemError, NotFoundError
from headgate.store.blobs.folder import Blobs
from headgate.store.catalogue.tables import named
from headgate.store.faults import StoreFaults
from headgate.store.model.requests import Change
from headgate.store.model.schema import Key, Table
from headgate.store.model.validation import ITEM_BYTES_MAX
from headgate.store.model.values import BLOB, Item, canonical_item, dump, load, stored_bytes

PREFIX: Final = "spill/"
CONDEMNED: Final = "spill-condemned/"
# The text of a reference in a stored item, where `values` escapes the dollar sign of a map key by doubling it.
REFERENCE: Final = f'"${BLOB}"'
# Smaller attributes are not spilled: the reference itself takes about 150 bytes.
SPILL_BYTES_MIN: Final = 16 * 1024
# An update does not know the rest of the item, so it spills by the size of the value.
UPDATE_SPILL_BYTES: Final = 64 * 1024
# A writer may name its blob in one hour and write its row in the next.
_SETTLED_SECONDS: Final = 2 * 3600
# Old images in change streams may reference a blob for a day after its row was overwritten.
_KEPT_SECONDS: Final = 26 * 3600


class RawItems(Protocol):
    """A store that returns items as stored, with blob references, as the sweep needs."""

    def get_raw(self, table: Table, key: Key) -> Item | None:
        """Return an item as stored, also if expired, by a consistent read."""


class _Header(msgspec.Struct, frozen=True, array_like=True):
    table: str
    key: Key
    attribute: str


class Spill:
    """Fits items into the size limit by spilling attributes to blobs."""

    def __init__(self, blobs: Blobs, clock: Clock) -> None:
        self._blobs = blobs
        self._clock = clock
        # The conditions of the store that uses the blobs: the store and this record them in one place.
        self.faults = StoreFaults()

    def fit(self, table: Table, item: Item) -> Item:
        """Spill the largest attributes of `item` until it fits or none is left."""
        size = stored_bytes(item)
        if size <= ITEM_BYTES_MAX:
            return item
        fitted = dict(item)
        for name, bytes_saved in _largest_first(table, item):
            if size <= ITEM_BYTES_MAX:
                break
            fitted[name] = self._spill(table, table.key_of(item), name, item[name])
            size += stored_bytes({name: fitted[name]}) - bytes_saved
        return fitted

    def fit_update(self, table: Table, key: Key, values: Item) -> Item:
        """Spill the large values of an update."""
        if not any(map(_may_be_large, values.values())):
            return values
        large = [name for name, size in _largest_first(table, values) if size >= UPDATE_SPILL_BYTES]
        return {**values, **{name: self._spill(table, key, name, values[name]) for name in large}} if large else values

    def restore(self, item: Item) -> Item:
        """Return `item` with its spilled attributes restored. Raises `CorruptionError` if a blob is missing."""
        if not any(_is_reference(value) for value in item.values()):
            return item
        return {name: self._read(value[BLOB]) if _is_reference(value) else value for name, value in item.items()}

    def restore_change(self, change: Change) -> Change:
        """Return `change` with both images restored."""
        old = None if change.old is None else self.restore(change.old)
        new = None if change.new is None else self.restore(change.new)
        return msgspec.structs.replace(change, old=old, new=new)

    def sweep(self, items: RawItems, *, limit: int = 1000, stop: Callable[[], bool] | None = None) -> int:
        """Delete up to `limit` blobs that have been unreferenced for more than a day; return their number.

        An unreferenced blob is first condemned by a marker with the time, and deleted by a later sweep if it is still
        unreferenced. `stop` is called between blobs and ends the sweep early when it returns True.
        """
        deleted = 0
        condemned = set()
        for marker in self._blobs.list(CONDEMNED):
            _, since, name = marker.split("/")
            blob = _condemned_blob(name)
            condemned.add(blob)
            if (
                deleted >= limit
                or since >= _hour(self._clock.seconds() - _KEPT_SECONDS)
                or (stop is not None and stop())
            ):
                continue
            # Checked again: a writer with a wrong clock, or a suspended one, may have referenced it since.
            if not self._is_referenced(items, blob):
                self._blobs.delete(blob)
                deleted += 1
            self._blobs.delete(marker)
        self._condemn(items, condemned, stop)
        return deleted

    def _condemn(self, items: RawItems, condemned: set[str], stop: Callable[[], bool] | None) -> None:
        for name in self._blobs.list(PREFIX):
            is_young = name.split("/")[1] >= _hour(self._clock.seconds() - _SETTLED_SECONDS)
            if is_young or (stop is not None and stop()):
                break
            if name not in condemned and not self._is_referenced(items, name):
                self._blobs.put(self._marker(name), b"")

    def _is_referenced(self, items: RawItems, name: str) -> bool:
        try:
            header, _ = _split(name, self._blobs.get(name))
            item = items.get_raw(named(header.table), header.key)
        except NotFoundError:
            # Deleted by a concurrent sweep.
            return False
        except (CorruptionError, InvalidItemError, msgspec.DecodeError):
            # Corrupt, or of a table that this build does not know: leave it alone.
            return True
        return item is not None and any(_is_reference(value) and value[BLOB] == name for value in item.values())

    def _marker(self, name: str) -> str:
        return f"{CONDEMNED}{_hour(self._clock.seconds())}/{name.removeprefix(PREFIX).replace('/', '-')}"

    def _spill(self, table: Table, key: Key, attribute: str, value: Any) -> dict[str, Any]:  # noqa: ANN401
        header = msgspec.json.encode(_Header(table.name, key, attribute))
        stored, special = canonical_item({"value": value})
        content = header + b"\n" + dump(stored, special=special).encode()
        name = f"{PREFIX}{_hour(self._clock.seconds())}/{hashlib.sha256(content).hexdigest()}"
        self._blobs.put(name, content)
        return {BLOB: name, "bytes": len(content)}

    def _read(self, name: str) -> Any:  # noqa: ANN401
        try:
            return load(_split(name, self._blobs.get(name))[1].decode())["value"]
        except NotFoundError as exc:
            missing = CorruptionError(f"blob {name} is missing, but a row references it; restore it from a backup")
            self.faults.record(missing)
            raise missing from exc
        except CorruptionError as exc:
            self.faults.record(exc)
            raise


def _condemned_blob(name: str) -> str:
    return PREFIX + name.replace("-", "/", 1)


def _is_reference(value: object) -> bool:
    return type(value) is dict and BLOB in value


def _split(name: str, content: bytes) -> tuple[_Header, bytes]:
    if hashlib.sha256(content).hexdigest() != name.rpartition("/")[2]:
        raise CorruptionError(f"blob {name}: its content does not match its digest; restore it from a backup")
    head, _, body = content.partition(b"\n")
    return typed_decode.from_json(head, _Header), body


def _may_be_large(value: object) -> bool:
    """Whether a value may be large, estimated without measuring it."""
    if type(value) is str:
        return 4 * len(value) >= SPILL_BYTES_MIN
    return isinstance(value, bytes | list | dict | frozenset)


def _largest_first(table: Table, item: Item) -> Iterator[tuple[str, int]]:
    fixed = {*table.key_names, *table.index_attributes, table.ttl_attribute}
    sizes = {
        name: stored_bytes({name: value})
        for name, value in item.items()
        if name not in fixed and _may_be_large(value) and not _is_reference(value)
    }
    large = {name: size for name, size in sizes.items() if size >= SPILL_BYTES_MIN}
    return iter(sorted(large.items(), key=lambda entry: (-entry[1], entry[0])))


def _hour(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y%m%d%H")
