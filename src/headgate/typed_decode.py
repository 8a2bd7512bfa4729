"""Reading values as types: the one place where a type is given to msgspec at run time, safely from any thread.

msgspec (as of 0.22) works out how a Struct is read when it is first asked to, and shows the description to other
threads while it is half finished. Two threads that read the same type for the first time at once read through null
pointers, and the interpreter dies of SIGSEGV. Servers, workers and chunk workers all read from threads, also the types
of users, which no import of ours could make ready.

Therefore a type is described here under one lock before it is first used, together with every type in it, and
remembered; from then on it is read without a lock. Decoders that a module makes while it is imported need none of this.

What is read and raised is msgspec's: `msgspec.ValidationError` for a value that does not fit the type,
`msgspec.DecodeError` for bytes that are not JSON or MessagePack, `TypeError` for a type that cannot be read.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar, overload

import msgspec

T = TypeVar("T")
Hook = Callable[[type, Any], Any]

# Every type that is described, by itself. It is the described object that is read with: of two equal generic types
# (`Page[Item]` written twice) msgspec describes each anew. It grows with the types of a program, not with its work.
_described: Final[dict[object, object]] = {}
# Reentrant: describing a type evaluates its annotations, which is code of the user.
_describing: Final = threading.RLock()
# No fork in the middle of it: the child would keep a lock that nobody releases and a type that nobody finishes.
os.register_at_fork(before=_describing.acquire, after_in_parent=_describing.release, after_in_child=_describing.release)


@overload
def convert(
    value: object, kind: type[T], *, strict: bool = ..., dec_hook: Hook | None = ..., str_keys: bool = ...
) -> T: ...
@overload
def convert(
    value: object, kind: object, *, strict: bool = ..., dec_hook: Hook | None = ..., str_keys: bool = ...
) -> Any: ...  # noqa: ANN401 - of the given kind
def convert(value: object, kind: object, **options: Any) -> object:
    """`msgspec.convert`: the value as that type. Raises `msgspec.ValidationError` if it does not fit."""
    # Options are handed on as they came: msgspec takes twice as long when it is told its own defaults.
    return msgspec.convert(value, _ready(kind), **options)


@overload
def from_json(content: bytes | str, kind: type[T]) -> T: ...
@overload
def from_json(content: bytes | str, kind: object) -> Any: ...  # noqa: ANN401 - of the given kind
def from_json(content: bytes | str, kind: object) -> object:
    """Read JSON as that type. Raises `msgspec.DecodeError`, of which `msgspec.ValidationError` is a kind."""
    return msgspec.json.decode(content, type=_ready(kind))


@overload
def from_msgpack(content: bytes, kind: type[T]) -> T: ...
@overload
def from_msgpack(content: bytes, kind: object) -> Any: ...  # noqa: ANN401 - of the given kind
def from_msgpack(content: bytes, kind: object) -> object:
    """Read MessagePack as that type. Raises `msgspec.DecodeError`, of which `msgspec.ValidationError` is a kind."""
    return msgspec.msgpack.decode(content, type=_ready(kind))


@overload
def json_decoder(kind: type[T]) -> msgspec.json.Decoder[T]: ...
@overload
def json_decoder(kind: object) -> msgspec.json.Decoder[Any]: ...
def json_decoder(kind: object) -> msgspec.json.Decoder[Any]:
    """A decoder of JSON to keep, for a type that is not known before the program runs."""
    with _describing:
        return msgspec.json.Decoder(kind)


@overload
def msgpack_decoder(kind: type[T]) -> msgspec.msgpack.Decoder[T]: ...
@overload
def msgpack_decoder(kind: object) -> msgspec.msgpack.Decoder[Any]: ...
def msgpack_decoder(kind: object) -> msgspec.msgpack.Decoder[Any]:
    """A decoder of MessagePack to keep, for a type that is not known before the program runs."""
    with _describing:
        return msgspec.msgpack.Decoder(kind)


def _ready(kind: object) -> object:
    """The type to read with, described: it, or the equal one that came first."""
    try:
        return _described[kind]
    except (KeyError, TypeError):
        pass
    with _describing:
        msgspec.json.Decoder(kind)
        try:
            return _described.setdefault(kind, kind)
        except TypeError:  # it cannot be hashed, and is looked at each time
            return kind
