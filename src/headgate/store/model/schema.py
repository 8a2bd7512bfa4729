"""What a table is: keys, indexes, expiry, stream, and the patterns of the entities that live in it."""

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
    """The type of a key attribute, in DynamoDB's letters."""

    STRING = "S"
    NUMBER = "N"


class Billing(enum.StrEnum):
    """How DynamoDB charges for a table; the other backends ignore it."""

    ON_DEMAND = "PAY_PER_REQUEST"
    PROVISIONED = "PROVISIONED"


class Classification(enum.StrEnum):
    """How carefully the contents of a table are to be treated."""

    INTERNAL = "INTERNAL"
    CONFIDENTIAL = "CONFIDENTIAL"


class KeyAttribute(msgspec.Struct, frozen=True):
    """An attribute that a table or an index is keyed by."""

    name: str
    kind: KeyKind = KeyKind.STRING


class Index(msgspec.Struct, frozen=True):
    """A secondary index. It holds only the items that carry all of its key attributes (it is sparse), and whole.

    Its answers are hints: they may lag behind the table, so nothing is claimed or kept unique from them.
    """

    name: str
    partition: KeyAttribute
    sort: KeyAttribute | None = None

    def attributes(self) -> tuple[KeyAttribute, ...]:
        return (self.partition,) if self.sort is None else (self.partition, self.sort)


@functools.cache
def _field_names(*patterns: str) -> frozenset[str]:
    return frozenset(match.group(1) for pattern in patterns for match in _FIELD.finditer(pattern))


class _Piece(NamedTuple):
    """A field of a pattern with the text before it. `digits`: it is padded to so many; `is_last`: nothing follows."""

    before: str
    name: str
    digits: int | None
    is_last: bool


# Keys are made several times for every item that is read or written.
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
    """One kind of item in a table, given by the patterns of its keys: `PIPELINE#{id}`, `RUN#{run_id}`.

    A field in the middle of a pattern must not contain the `#` that separates it from the next one;
    the last field of a pattern may, because nothing follows it. `{n:010d}` zero-pads a number, so
    that text order is number order; text of more digits is taken as it is, for those who pad further.
    """

    name: str
    partition: str
    sort: str | None = None
    index_keys: Mapping[str, str] = {}

    def key(self, **fields: KeyPart) -> Key:
        """Return the key for these fields. Raises `InvalidItemError` for a missing, unknown or unsafe field."""
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
        # A pattern that is one bare field keeps the field's type, for sort keys that are numbers.
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
                f"{self.name}: key field {name!r} is {value!r}; give a number from 0 of at most {digits} digits, "
                "or digits that are padded further, so that text order is number order"
            )
        return text


class Table(msgspec.Struct, frozen=True, dict=True):
    """One table of the catalogue. Every backend's schema, IAM, health check and document derives from it."""

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
    # Its rows wake functions of AWS, which hear of them by a stream of DynamoDB. No other store has changes of it.
    wakes: bool = False

    def __hash__(self) -> int:
        return hash(self.name)

    @cached_property
    def key_names(self) -> tuple[str, ...]:
        return (self.partition.name,) if self.sort is None else (self.partition.name, self.sort.name)

    @cached_property
    def own_keys(self) -> tuple[KeyAttribute, ...]:
        """The attributes that every item must have."""
        return (self.partition,) if self.sort is None else (self.partition, self.sort)

    @cached_property
    def index_keys(self) -> tuple[KeyAttribute, ...]:
        """The attributes of `index_attributes`, as they are declared."""
        return tuple(KeyAttribute(name, kind) for name, kind in self.index_attributes.items())

    @cached_property
    def index_attributes(self) -> dict[str, KeyKind]:
        """Every attribute that some index is keyed by, the table's own keys excluded."""
        found = {attribute.name: attribute.kind for index in self.indexes for attribute in index.attributes()}
        return {name: kind for name, kind in found.items() if name not in self.key_names}

    @cached_property
    def key_bytes_max(self) -> dict[str, int]:
        """How long each key attribute may be. A sort key, of the table or of an index, has half of a partition key."""
        sorts = {sort.name for sort in (self.sort, *(index.sort for index in self.indexes)) if sort is not None}
        names = {*self.key_names, *self.index_attributes}
        return {name: SORT_BYTES_MAX if name in sorts else PARTITION_BYTES_MAX for name in names}

    def index(self, name: str) -> Index:
        """Return the index called `name`. Raises `InvalidItemError` if there is none."""
        for index in self.indexes:
            if index.name == name:
                return index
        known = [index.name for index in self.indexes]
        raise InvalidItemError(f"table {self.name}: no index {name!r}; it has {known}")

    def key_of(self, item: Mapping[str, object]) -> Key:
        """Return the key that `item` carries, without checking it."""
        sort = None if self.sort is None else item[self.sort.name]
        return Key(item[self.partition.name], sort)  # type: ignore[arg-type]  # checked on the way in

    def key_attributes(self, key: Key) -> dict[str, KeyPart]:
        """Return `key` as the attributes of an item."""
        if self.sort is None:
            return {self.partition.name: key.partition}
        return {self.partition.name: key.partition, self.sort.name: key.sort}  # type: ignore[dict-item]
