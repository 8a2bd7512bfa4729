"""Row codec: stores structs as rows, with their fields as attributes beside the keys."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct

from headgate import typed_decode
from headgate.errors import CorruptionError, InvalidPayloadError
from headgate.store.catalogue.tables import PIPELINES
from headgate.store.model.schema import Key
from headgate.store.model.values import Item

S = TypeVar("S", bound=Struct)

REASON_MAX: Final = 1_024
_FRACTION: Final = 10**6


def row(key: Key, struct: Struct, **more: Any) -> Item:  # noqa: ANN401  # index keys and times, as the store takes them
    """Encode a struct as the item of a key. None values are left out."""
    attributes = {**msgspec.to_builtins(struct), **more, **PIPELINES.key_attributes(key)}
    return {name: value for name, value in attributes.items() if value is not None}


def struct_of(item: Mapping[str, Any], kind: type[S]) -> S:
    """Decode a struct from an item; unknown attributes are ignored.

    Raises `CorruptionError` for an item of another kind.
    """
    try:
        return typed_decode.convert({name: item[name] for name in _names(kind) if name in item}, kind)
    except msgspec.ValidationError as exc:
        where = (item.get("PK"), item.get("SK"))
        raise CorruptionError(f"row {where}: it is not a {kind.__name__}, {exc}; check for other writers") from exc


def row_digest(*parts: str) -> int:
    """Return a number for a key with a time, so that rows of one millisecond differ.

    The same fields always give the same number, so that recording an event twice is idempotent.
    """
    digest = hashlib.blake2b("\x00".join(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % _FRACTION


def required(what: str, name: str, text: str) -> str:
    """Return a required text, stripped. Raises `InvalidPayloadError`."""
    stripped = text.strip()
    if not stripped or len(stripped) > REASON_MAX:
        raise InvalidPayloadError(f"{what}: {name} is missing, or longer than {REASON_MAX} characters; give one")
    return stripped


@cache
def _names(kind: type[Struct]) -> tuple[str, ...]:
    return tuple(field.encode_name for field in msgspec.structs.fields(kind))
