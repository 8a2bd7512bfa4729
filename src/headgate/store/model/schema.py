"""Table schema: keys, indexes, TTL, change stream, and the key patterns of the entities in a table."""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Mapping
from functools import cached_property
from typing import Final, NamedTuple

import msgspec

from headgate.errors import InvalidItemError

_FIELD: Final = re.compile(r"\{(\w+)(?::(0\d+)d)?\}")

KeyPart = str | int

PARTITION_BYTES_MAX: Final = 2048
SORT_BYTES_MAX: Final = 1024


class Key(NamedTuple):
    """The address of one item. `sort` is None exactly for tables without a sort key."""

    partition: KeyPart
    sort: KeyPart | None = None


class KeyKind(enum.StrEnum):
    """The type of a key attribute, as DynamoDB abbreviates it."""

    STRING = "S"
    NUMBER = "N"


class Billing(enum.StrEnum):
    """DynamoDB's billing mode of a table."""

    ON_DEMAND = "PAY_PER_REQUEST"
    PROVISIONED = "PROVISIONED"


class Classification(enum.StrEnum):
    """The data classification of a table."""

    INTERNAL = "INTERNAL"
    CONFIDENTIAL = "CONFIDENTIAL"


class KeyAttribute(msgspec.Struct, frozen=True):
    """A partition or sort key attribute of a table or index."""

    name: str
    kind: KeyKind = KeyKind.STRING


class Shards(msgspec.Struct, frozen=True):
    """Over how many partitions the rows of one partition value are spread, where the backend has partitions.

    `of` names the prefixes of the values that are spread; without any, all are. After `count` was changed, `earlier`
    keeps the former numbers for as long as rows that were written under them exist: readers find those too.
    """

    count: int
    of: tuple[str, ...] = ()
    earlier: tuple[int, ...] = (1,)

    @property
    def read(self) -> int:
        """The number of shards to read."""
        return max(self.count, *self.earlier) if self.earlier else self.count

    def covers(self, value: str) -> bool:
        """Whether the rows of a partition value are spread."""
        return not self.of or value.startswith(self.of)


class Index(msgspec.Struct, frozen=True):
    """A sparse secondary index: an item without all of its key attributes is not in it.

    An index may lag behind its table, so its results are hints: no claim or uniqueness check may rely on them.

    `projected` names the attributes that its rows have besides all keys and the TTL; None: they are whole items.
    DynamoDB bills an index by the size of its rows, and writes one only if an attribute of it changes (ADR-0045).
    """

    name: str
    partition: KeyAttribute
    sort: KeyAttribute | None = None
    shards: Shards | None = None
    projected: tuple[str, ...] | None = None

    def attributes(self) -> tuple[KeyAttribute, ...]:
        return (self.partition,) if self.sort is None else (self.partition, self.sort)


@functools.cache
def _field_names(*patterns: str) -> frozenset[str]:
    return frozenset(match.group(1) for pattern in patterns for match in _FIELD.finditer(pattern))


class _Piece(NamedTuple):
    """A field of a pattern with the text before it. `digits` is its zero-padded width; `is_last`: no text follows."""

    before: str
    name: str
    digits: int | None
    is_last: bool


# Cached: several keys are built for every item that is read or written.
@functools.cache
def _pieces(pattern: str) -> tuple[tuple[_Piece, ...], str]:
    """Return the fields of a pattern, and the text after the last of them."""
    pieces: list[_Piece] = []
    end = 0
    for match in _FIELD.finditer(pattern):
        digits = None if match.group(2) is None else int(match.group(2))
        pieces.append(_Piece(pattern[end : match.start()], match.group(1), digits, match.end() == len(pattern)))
        end = match.end()
    return tuple(pieces), pattern[end:]


class Entity(msgspec.Struct, frozen=True):
    """One kind of item in a table, defined by its key patterns: `PIPELINE#{id}`, `RUN#{run_id}`.

    Only the last field of a pattern may contain the separator `#`. `{n:010d}` zero-pads a number, so that text order
    is number order; a text of more digits is used unchanged.
    """

    name: str
    partition: str
    sort: str | None = None
    index_keys: Mapping[str, str] = {}

    def key(self, **fields: KeyPart) -> Key:
        """Build the key from these fields. Raises `InvalidItemError` for a missing, unknown or unsafe field."""
        partition, sort = self.partition, self.sort
        if fields.keys() != _field_names(partition, sort or ""):
            self._refuse_unknown(fields)
        return Key(self._part(partition, fields), None if sort is None else self._part(sort, fields))

    def index_attributes(self, **fields: KeyPart) -> dict[str, str]:
        """Return the attributes that place the item in the table's indexes."""
        self._refuse_unknown(fields)
        return {name: self._fill(pattern, fields) for name, pattern in self.index_keys.items()}

    def fields(self) -> frozenset[str]:
        return _field_names(self.partition, self.sort or "", *self.index_keys.values())

    def _refuse_unknown(self, fields: Mapping[str, KeyPart]) -> None:
        known = self.fields()
        if not fields.keys() <= known:
            raise InvalidItemError(f"{self.name}: no key field {sorted(fields.keys() - known)}; it has {sorted(known)}")

    def _part(self, pattern: str, fields: Mapping[str, KeyPart]) -> KeyPart:
        # A pattern of one bare field keeps the field's type, for numeric sort keys.
        pieces, rest = _pieces(pattern)
        if len(pieces) == 1 and not (pieces[0].before or rest or pieces[0].digits):
            value = fields.get(pieces[0].name, "")
            if value != "":
                return value
        return self._fill(pattern, fields)

    def _fill(self, pattern: str, fields: Mapping[str, KeyPart]) -> str:
        pieces, rest = _pieces(pattern)
        text = ""
        for piece in pieces:
            text += piece.before + self._text(piece, pattern, fields)
        return text + rest

    def _text(self, piece: _Piece, pattern: str, fields: Mapping[str, KeyPart]) -> str:
        try:
            value = fields[piece.name]
        except KeyError:
            raise InvalidItemError(f"{self.name}: key field {piece.name!r} is missing from {pattern!r}") from None
        if piece.digits is not None:
            return self._padded(piece.name, value, piece.digits)
        text = str(value)
        if not text or ("#" in text and not piece.is_last):
            raise InvalidItemError(
                f"{self.name}: key field {piece.name!r} is {text!r}; "
                f"in {pattern!r} it must be non-empty and without '#'"
            )
        return text

    def _padded(self, name: str, value: KeyPart, digits: int) -> str:
        text = f"{value:0{digits}d}" if isinstance(value, int) else value
        is_exact = len(text) == digits if isinstance(value, int) else len(text) >= digits
        if not (is_exact and text.isascii() and text.isdigit()):
            raise InvalidItemError(
                f"{self.name}: key field {name!r} is {value!r}; use a number of at most {digits} digits from 0 on, "
                "or text of at least that many digits"
            )
        return text


class Table(msgspec.Struct, frozen=True, dict=True):
    """One table of the catalogue, from which schemas, IAM, health checks and documentation are derived."""

    name: str
    purpose: str
    partition: KeyAttribute
    sort: KeyAttribute | None = None
    indexes: tuple[Index, ...] = ()
    ttl_attribute: str | None = None
    stream: bool = False
    billing: Billing = Billing.ON_DEMAND
    classification: Classification = Classification.INTERNAL
    entities: tuple[Entity, ...] = ()
    # On DynamoDB, the table has a stream that invokes Lambda functions. Other backends keep no changes of it.
    wakes: bool = False
    # Of the table's own partition key.
    shards: Shards | None = None
    # Most writes replace an item under its version and leave its index keys. SQLite copies the version to a column.
    refreshed: bool = False

    def __hash__(self) -> int:
        return hash(self.name)

    @cached_property
    def key_names(self) -> tuple[str, ...]:
        return (self.partition.name,) if self.sort is None else (self.partition.name, self.sort.name)

    @cached_property
    def has_text_key(self) -> bool:
        """Whether the key is one text."""
        return self.sort is None and self.partition.kind is KeyKind.STRING

    @cached_property
    def own_keys(self) -> tuple[KeyAttribute, ...]:
        """The key attributes, which every item has."""
        return (self.partition,) if self.sort is None else (self.partition, self.sort)

    @cached_property
    def sharded_attributes(self) -> dict[str, Shards]:
        """The shards of the partition attributes of indexes that have any, by name."""
        return {index.partition.name: index.shards for index in self.indexes if index.shards is not None}

    @cached_property
    def sharded_names(self) -> tuple[str, ...]:
        """The attributes whose stored values may name a shard."""
        own = () if self.shards is None else (self.partition.name,)
        return (*own, *self.sharded_attributes)

    @cached_property
    def has_shards(self) -> bool:
        """Whether the table or one of its indexes has shards."""
        return bool(self.sharded_names)

    @cached_property
    def index_keys(self) -> tuple[KeyAttribute, ...]:
        """The key attributes of all indexes, without the table's own keys."""
        return tuple(KeyAttribute(name, kind) for name, kind in self.index_attributes.items())

    @cached_property
    def index_attributes(self) -> dict[str, KeyKind]:
        """The key attributes of all indexes by name, without the table's own keys."""
        kinds = {attribute.name: attribute.kind for index in self.indexes for attribute in index.attributes()}
        return {name: kind for name, kind in kinds.items() if name not in self.key_names}

    @cached_property
    def key_bytes_max(self) -> dict[str, int]:
        """The maximum bytes of each key attribute. A sort key of a table or index has half of a partition key."""
        sorts = {sort.name for sort in (self.sort, *(index.sort for index in self.indexes)) if sort is not None}
        names = {*self.key_names, *self.index_attributes}
        return {name: SORT_BYTES_MAX if name in sorts else PARTITION_BYTES_MAX for name in names}

    def projection(self, name: str | None) -> frozenset[str] | None:
        """Return the attributes of the rows of an index; None if they are whole items, as those of the table are."""
        return None if name is None else self._projections.get(name)

    @cached_property
    def _projections(self) -> dict[str, frozenset[str]]:
        ttl = () if self.ttl_attribute is None else (self.ttl_attribute,)
        return {
            index.name: frozenset((*self.key_names, *(key.name for key in index.attributes()), *index.projected, *ttl))
            for index in self.indexes
            if index.projected is not None
        }

    def index(self, name: str) -> Index:
        """Return the index called `name`. Raises `InvalidItemError` if there is none."""
        for index in self.indexes:
            if index.name == name:
                return index
        known = [index.name for index in self.indexes]
        raise InvalidItemError(f"table {self.name}: no index {name!r}; it has {known}")

    def key_of(self, item: Mapping[str, object]) -> Key:
        """Return the key of `item`, unchecked."""
        sort = None if self.sort is None else item[self.sort.name]
        return Key(item[self.partition.name], sort)  # type: ignore[arg-type]  # checked on the way in

    def key_attributes(self, key: Key) -> dict[str, KeyPart]:
        """Return `key` as the attributes of an item."""
        if self.sort is None:
            return {self.partition.name: key.partition}
        return {self.partition.name: key.partition, self.sort.name: key.sort}  # type: ignore[dict-item]
