"""Typed decoding: thread-safe msgspec decoding of types that are only known at run time.

msgspec (as of 0.22) builds the type information of a Struct on first use and publishes it to other threads half built:
two threads that decode a type for the first time dereference null pointers, and the interpreter dies of SIGSEGV.
Servers and workers decode in threads, also users' types, which no import of ours could prepare.

This module therefore prepares a type, with every type in it, under one lock before its first use and remembers it;
after that, decoding takes no lock. Decoders created while a module is imported need none of this.

Errors are msgspec's: `msgspec.ValidationError` for a value that does not fit the type, `msgspec.DecodeError` for
bytes that are not JSON or MessagePack, `TypeError` for an unsupported type.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar, overload

import msgspec

T = TypeVar("T")
Hook = Callable[[type, Any], Any]

# Prepared types, each by itself. The stored object is the one to decode with: msgspec prepares two equal generic types
# (`Page[Item]` written twice) separately. The size is bounded by the number of types in the program.
_prepared: Final[dict[object, object]] = {}
# Reentrant: preparing a type evaluates its annotations, which is user code.
_preparing: Final = threading.RLock()
# A fork waits for the lock: the child would otherwise inherit a held lock and a half-built type.
os.register_at_fork(before=_preparing.acquire, after_in_parent=_preparing.release, after_in_child=_preparing.release)


@overload
def convert(
    value: object, kind: type[T], *, strict: bool = ..., dec_hook: Hook | None = ..., str_keys: bool = ...
) -> T: ...
@overload
def convert(
    value: object, kind: object, *, strict: bool = ..., dec_hook: Hook | None = ..., str_keys: bool = ...
) -> Any: ...  # noqa: ANN401 - of the given kind
def convert(value: object, kind: object, **options: Any) -> object:
    """Convert a value to a type, as `msgspec.convert`. Raises `msgspec.ValidationError` if it does not fit."""
    # Options are passed on only if given: msgspec takes twice as long when its defaults are passed explicitly.
    return msgspec.convert(value, _prepare(kind), **options)


@overload
def from_json(content: bytes | str, kind: type[T]) -> T: ...
@overload
def from_json(content: bytes | str, kind: object) -> Any: ...  # noqa: ANN401 - of the given kind
def from_json(content: bytes | str, kind: object) -> object:
    """Decode JSON as a type. Raises `msgspec.DecodeError`, of which `msgspec.ValidationError` is a subclass."""
    return msgspec.json.decode(content, type=_prepare(kind))


@overload
def from_msgpack(content: bytes, kind: type[T]) -> T: ...
@overload
def from_msgpack(content: bytes, kind: object) -> Any: ...  # noqa: ANN401 - of the given kind
def from_msgpack(content: bytes, kind: object) -> object:
    """Decode MessagePack as a type. Raises `msgspec.DecodeError`, of which `msgspec.ValidationError` is a subclass."""
    return msgspec.msgpack.decode(content, type=_prepare(kind))


@overload
def json_decoder(kind: type[T], *, dec_hook: Hook | None = ...) -> msgspec.json.Decoder[T]: ...
@overload
def json_decoder(kind: object, *, dec_hook: Hook | None = ...) -> msgspec.json.Decoder[Any]: ...
def json_decoder(kind: object, *, dec_hook: Hook | None = None) -> msgspec.json.Decoder[Any]:
    """Return a reusable JSON decoder for a type that is only known at run time."""
    with _preparing:
        return msgspec.json.Decoder(kind, dec_hook=dec_hook)


@overload
def msgpack_decoder(kind: type[T]) -> msgspec.msgpack.Decoder[T]: ...
@overload
def msgpack_decoder(kind: object) -> msgspec.msgpack.Decoder[Any]: ...
def msgpack_decoder(kind: object) -> msgspec.msgpack.Decoder[Any]:
    """Return a reusable MessagePack decoder for a type that is only known at run time."""
    with _preparing:
        return msgspec.msgpack.Decoder(kind)


def _prepare(kind: object) -> object:
    """Return the prepared type: `kind` itself, or an equal one that was prepared earlier."""
    try:
        return _prepared[kind]
    except (KeyError, TypeError):
        pass
    with _preparing:
        msgspec.json.Decoder(kind)
        try:
            return _prepared.setdefault(kind, kind)
        except TypeError:  # unhashable, so it is prepared on every call
            return kind
