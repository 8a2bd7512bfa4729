"""Item values: the types that can be stored, and their canonical form on every backend.

A value is None, a bool, a number, text, bytes, a list, a map with text keys, or a non-empty set of text, numbers or
bytes. Numbers are decimal with at most 38 digits, as in DynamoDB: a whole number is read as `int`, any other as
`float`. NaN and infinities are refused.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from decimal import Decimal, localcontext
from functools import lru_cache
from typing import Any, Final

import msgspec

from headgate.errors import InvalidItemError

Item = dict[str, Any]


class TrustedItem(Item):
    """An item that is known to be canonical, so that the store does not validate its values.

    Its creator guarantees plain JSON in canonical form: ASCII text, None, bools, whole numbers of at most 63 bits,
    non-whole floats between 1e-100 and 1e100, and lists and maps of these, a few levels deep; no name is empty or
    starts with a dollar sign. It has all keys of its table within their limits, and is not changed afterwards.
    """

    __slots__ = ("text",)

    # The result of `dump`, if the creator had it: see `trusted_item`.
    text: str


def trusted_item(item: Item, text: str) -> TrustedItem:
    """Return a trusted item with its encoded text, so that it is not encoded twice."""
    trusted = TrustedItem(item)
    trusted.text = text
    return trusted


DEPTH_MAX: Final = 31  # DynamoDB allows 32 levels, of which the item itself is the first.
_INT_LIMIT: Final = 10**38
_FLOAT_MAX: Final = 9.9999999999999e125
_FLOAT_MIN: Final = 1e-130
_EXACT_INT: Final = 2.0**53
_WORD: Final = 1 << 63  # Integers beyond 64 bits are tagged in JSON.

BLOB: Final = "$blob"  # The key of the map that replaces an attribute spilled to a blob (see `spill`).
_BYTES: Final = "$bytes"
_NUMBER: Final = "$number"
_SET: Final = "$set"

_encode = msgspec.json.Encoder().encode
_encode_ordered = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.Decoder().decode


def canonical_item(item: Mapping[str, Any]) -> tuple[Item, bool]:
    """Return `item` in canonical form, and whether it holds values that need tags in JSON.

    Raises `InvalidItemError` naming the attribute that cannot be stored.
    """
    changed: dict[str, Any] | None = None
    special: list[str] = []
    for name, value in item.items():
        kind = type(value)
        if not _is_plain_name(name):
            special.append(name)
        if (kind is str and value.isascii()) or value is None or kind is bool:
            continue
        if kind is int and -_WORD < value < _WORD:
            continue
        if _is_simple(value, kind):
            if kind is not float:
                changed = dict(item) if changed is None else changed
                changed[name] = value.copy()
            continue
        stored = _canonical(value, name, 1, special)
        if stored is not value:
            changed = dict(item) if changed is None else changed
            changed[name] = stored
    plain = item if type(item) is dict else dict(item)
    return (plain if changed is None else changed), bool(special)


# Cached: the rows of a table share their attribute names.
@lru_cache(maxsize=4096, typed=True)
def _is_plain_name(name: object) -> bool:
    """Whether an attribute name needs no tag in JSON. Raises `InvalidItemError` for an invalid name."""
    if type(name) is not str or not name or not (name.isascii() or is_text(name)):
        raise InvalidItemError(f"attribute name {name!r}: it must be non-empty Unicode text")
    return name[0] != "$"


def _is_simple(value: Any, kind: type) -> bool:  # noqa: ANN401 - any storable value
    """Fast path: whether a value is surely canonical. False means that it needs the full check."""
    if kind is float:
        return 1e-100 < value < 1e100 and not value.is_integer()
    # Loops instead of `all`: a generator costs more than the few elements.
    if kind is list:
        for element in value:  # noqa: SIM110 - as above
            if type(element) is not str or not element.isascii():
                return False
        return True
    if kind is dict:
        for name, element in value.items():
            if type(element) is not int or not -_WORD < element < _WORD or type(name) is not str or not name.isascii():
                return False
            if name[:1] in ("", "$"):
                return False
        return True
    return False


def is_text(value: str) -> bool:
    """Whether a `str` is valid Unicode: lone surrogates cannot be stored."""
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def plain_text(value: str) -> str:
    """Return a plain `str` for an instance of a subclass, such as a `StrEnum` member."""
    return value if type(value) is str else str.__str__(value)


def plain_number(value: float) -> int | float:
    """Return a plain number for an instance of a subclass, such as an `IntEnum` member."""
    if type(value) is int or type(value) is float or isinstance(value, bool):
        return value
    return int(value) if isinstance(value, int) else float(value)


def is_plain(value: object) -> bool:
    """Whether a canonical value is a scalar that needs no tag in JSON."""
    kind = type(value)
    return kind is str or value is None or kind is bool or kind is float or (kind is int and -_WORD < value < _WORD)  # type: ignore[operator]


def canonical_number(value: float | int, name: str) -> int | float:
    """Return a number in canonical form. Raises `InvalidItemError` if it cannot be stored."""
    if type(value) is int:
        if -_INT_LIMIT < value < _INT_LIMIT:
            return value
        raise InvalidItemError(f"attribute {name!r}: an integer of more than 38 digits cannot be stored; use text")
    if type(value) is not float:
        raise InvalidItemError(f"attribute {name!r}: {type(value).__name__} is not a number")
    if math.isnan(value) or math.isinf(value):
        raise InvalidItemError(f"attribute {name!r}: {value} cannot be stored; leave it out or use None")
    if value.is_integer():
        whole = int(value) if abs(value) < _EXACT_INT else int(Decimal(repr(value)))
        if -_INT_LIMIT < whole < _INT_LIMIT:
            return whole
    if abs(value) > _FLOAT_MAX or (value != 0 and abs(value) < _FLOAT_MIN):
        raise InvalidItemError(f"attribute {name!r}: {value} is outside the storable range 1e-130 … 9.99e125")
    return value


def parse_number(text: str) -> int | float:
    """Parse decimal `text` into a canonical number."""
    number = Decimal(text)
    # `copy_abs` instead of `abs`, which would round to the 28 digits of the default context.
    if number.copy_abs() < _INT_LIMIT and number == number.to_integral_value():
        return int(number)
    return float(number)


def add_numbers(left: int | float, right: int | float, name: str) -> int | float:
    """Return the decimal sum, so that 0.1 + 0.2 is 0.3 on every backend."""
    if type(left) is int and type(right) is int:
        return canonical_number(left + right, name)
    with localcontext() as context:
        context.prec = 38
        return canonical_number(parse_number(str(Decimal(repr(left)) + Decimal(repr(right)))), name)


def dump(item: Item, *, special: bool) -> str:
    """Return the text form of a canonical item."""
    if type(item) is TrustedItem:
        return dump_trusted(item)
    return _encode(_tagged(item) if special else item).decode()


def dump_trusted(item: TrustedItem) -> str:
    """Return the text form of a trusted item, which its creator may have made."""
    text: str | None = getattr(item, "text", None)
    return _encode(item).decode() if text is None else text


def dump_ordered(item: Item) -> bytes:
    """Return a text form that is the same for equal items, independent of key order."""
    return _encode_ordered(_tagged(item))


def load(text: str) -> Item:
    """Return the item that `dump` wrote. Raises `msgspec.DecodeError` for corrupt text."""
    item: Item = _decode(text)
    # Every tag starts with a quoted dollar sign.
    return _untagged(item) if '"$' in text else item


def same(left: object, right: object) -> bool:
    """Whether two canonical values are equal, types included: True is not 1, and 1 is not "1"."""
    if type(left) is str and type(right) is str:
        return left == right
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, int | float) and isinstance(right, int | float):
        return left == right
    if type(left) is not type(right):
        return False
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(value, right[name]) for name, value in left.items())
    return left == right


def stored_bytes(item: Mapping[str, Any]) -> int:
    """Return the size of a canonical item by DynamoDB's rules, which apply on every backend."""
    return sum(len(name.encode()) + _value_bytes(value) for name, value in item.items())


def _value_bytes(value: object) -> int:
    match value:
        case None | bool():
            return 1
        case str():
            return len(value) if value.isascii() else len(value.encode())
        case int() | float():
            digits = len(repr(value).lstrip("-").replace(".", "").strip("0"))
            return digits // 2 + 2 + (value < 0)
        case bytes():
            return len(value)
        case list():
            return 3 + sum(1 + _value_bytes(element) for element in value)
        case dict():
            return 3 + sum(1 + len(name.encode()) + _value_bytes(element) for name, element in value.items())
        case frozenset():
            return 3 + sum(_value_bytes(element) for element in value)
    raise AssertionError(f"not a canonical value: {type(value)}")


def _canonical(value: Any, path: str, depth: int, special: list[str]) -> Any:  # noqa: ANN401 - any storable value
    if depth > DEPTH_MAX:
        raise InvalidItemError(f"attribute {path.split('.')[0]!r}: nested deeper than {DEPTH_MAX + 1} levels")
    match value:
        case None | bool():
            return value
        case str():
            return _checked_text(plain_text(value), path)
        case int() | float():
            number = canonical_number(plain_number(value), path)
            if type(number) is int and not -_WORD < number < _WORD:
                special.append(path)
            return number
        case bytes():
            special.append(path)
            return value
        case list() | tuple():
            return [_canonical(element, path, depth + 1, special) for element in value]
        case dict():
            return _canonical_map(value, path, depth, special)
        case frozenset() | set():
            special.append(path)
            return _canonical_set(value, path)
    raise InvalidItemError(
        f"attribute {path!r}: {type(value).__name__} cannot be stored; "
        "use None, bool, int, float, str, bytes, list, dict or a set"
    )


def _canonical_map(value: dict[Any, Any], path: str, depth: int, special: list[str]) -> dict[str, Any]:
    for name in value:
        if not isinstance(name, str) or not name:
            raise InvalidItemError(f"attribute {path!r}: map key {name!r} is not non-empty text")
        _checked_text(name, path)
        if name.startswith("$"):
            if name == BLOB:
                raise InvalidItemError(f"attribute {path!r}: the map key {BLOB!r} is reserved for spilled values")
            special.append(path)
    return {name: _canonical(element, f"{path}.{name}", depth + 1, special) for name, element in value.items()}


def _canonical_set(value: set[Any] | frozenset[Any], path: str) -> frozenset[Any]:
    if not value:
        raise InvalidItemError(f"attribute {path!r}: an empty set cannot be stored; leave the attribute out")
    kinds = {_set_kind(element, path) for element in value}
    if len(kinds) != 1:
        raise InvalidItemError(
            f"attribute {path!r}: a set holds only text, only numbers or only bytes, not {sorted(kinds)}"
        )
    if kinds == {"number"}:
        return frozenset(canonical_number(plain_number(element), path) for element in value)
    if kinds == {"text"}:
        return frozenset(_checked_text(plain_text(element), path) for element in value)
    return frozenset(value)


def _checked_text(text: str, path: str) -> str:
    if not is_text(text):
        raise InvalidItemError(f"attribute {path!r}: text with a lone surrogate cannot be stored: {text[:40]!r}")
    return text


def _set_kind(element: object, path: str) -> str:
    if isinstance(element, str):
        return "text"
    if isinstance(element, bytes):
        return "bytes"
    if isinstance(element, int | float) and not isinstance(element, bool):
        return "number"
    raise InvalidItemError(f"attribute {path!r}: {type(element).__name__} cannot be in a set")


def _tagged(value: Any) -> Any:  # noqa: ANN401
    match value:
        case bool():
            return value
        case int() if not -_WORD < value < _WORD:
            return {_NUMBER: str(value)}
        case bytes():
            return {_BYTES: base64.b64encode(value).decode()}
        case frozenset():
            return {_SET: [_tagged(element) for element in sorted(value)]}
        case list():
            return [_tagged(element) for element in value]
        case dict():
            return {f"${name}" if name[0] == "$" else name: _tagged(element) for name, element in value.items()}
    return value


def _untagged(value: Any) -> Any:  # noqa: ANN401
    match value:
        case list():
            return [_untagged(element) for element in value]
        case {"$bytes": str() as text} if len(value) == 1:
            return base64.b64decode(text)
        case {"$number": str() as text} if len(value) == 1:
            return int(text)
        case {"$set": list() as elements} if len(value) == 1:
            return frozenset(_untagged(element) for element in elements)
        case dict():
            return {name[1:] if name.startswith("$") else name: _untagged(element) for name, element in value.items()}
    return value
