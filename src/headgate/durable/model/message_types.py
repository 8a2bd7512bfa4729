"""Message types: declared signals, queries and updates, with the types of what they carry.

A declaration takes the place of the name wherever a message is sent or received, so that both ends have the same type.
"""

from __future__ import annotations

import builtins
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Final, Generic, overload

from msgspec import Raw

from headgate.durable.model import payload
from headgate.durable.model.names import check_signal_name

if TYPE_CHECKING:
    # With defaults, so that a bare `Handle` or `Signal` stays a complete annotation.
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Any)
    A = TypeVar("A", default=Any)
    R = TypeVar("R", default=Any)
    R_co = TypeVar("R_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    T = TypeVar("T")
    A = TypeVar("A")
    R = TypeVar("R")
    R_co = TypeVar("R_co", covariant=True)


class Signal(Generic[T]):
    """A signal: `hg.Signal("approved", Approval)`, or `hg.Signal("go")` without a payload."""

    @overload
    def __init__(self: Signal[None], name: str) -> None: ...

    @overload
    def __init__(self: Signal[T], name: str, type: builtins.type[T]) -> None: ...

    @overload
    def __init__(self: Signal[Any], name: str, type: UnionType) -> None: ...

    def __init__(self, name: str, type: object = NoneType) -> None:
        self.name = check_signal_name(name)
        self.input = type

    def __repr__(self) -> str:
        return f"<signal {self.name}>"


class Query(Generic[A, R]):
    """A query: `hg.Query("progress", returns=Progress)`, with the type of its argument second if it has one."""

    @overload
    def __init__(self: Query[None, R], name: str, *, returns: builtins.type[R]) -> None: ...

    @overload
    def __init__(self: Query[A, R], name: str, type: builtins.type[A], *, returns: builtins.type[R]) -> None: ...

    @overload
    def __init__(
        self: Query[Any, Any], name: str, type: builtins.type[Any] | UnionType = ..., *, returns: UnionType
    ) -> None: ...

    def __init__(self, name: str, type: object = NoneType, *, returns: object) -> None:
        self.name = check_signal_name(name)
        self.input = type
        self.returns = returns

    def __repr__(self) -> str:
        return f"<query {self.name}>"


class Update(Generic[A, R]):
    """An update: `hg.Update("set_limit", int, returns=Limit)`; without `returns` its answer is None."""

    @overload
    def __init__(self: Update[None, None], name: str) -> None: ...

    @overload
    def __init__(self: Update[A, None], name: str, type: builtins.type[A]) -> None: ...

    @overload
    def __init__(self: Update[None, R], name: str, *, returns: builtins.type[R]) -> None: ...

    @overload
    def __init__(self: Update[A, R], name: str, type: builtins.type[A], *, returns: builtins.type[R]) -> None: ...

    @overload
    def __init__(
        self: Update[Any, Any],
        name: str,
        type: builtins.type[Any] | UnionType = ...,
        *,
        returns: builtins.type[Any] | UnionType = ...,
    ) -> None: ...

    def __init__(self, name: str, type: object = NoneType, *, returns: object = NoneType) -> None:
        self.name = check_signal_name(name)
        self.input = type
        self.returns = returns

    def __repr__(self) -> str:
        return f"<update {self.name}>"


Message = Signal[Any] | Query[Any, Any] | Update[Any, Any]
_KINDS: Final = (Signal, Query, Update)


def name_of(message: str | Message) -> str:
    """Return the name of a message that is given by its name or its declaration."""
    # A name of another type is refused where names are checked.
    return message.name if isinstance(message, _KINDS) else message


def pack(message: str | Message, value: object, *, what: str) -> Raw:
    """Return what a message carries as JSON. Raises `InvalidPayloadError` for a value that its type does not allow."""
    raw = payload.encode(value, what=what)
    if isinstance(message, _KINDS):
        # Decoded as the receiver does, which could not refuse it any more.
        payload.decode(raw, message.input, what=what)
    return raw


def signature_of(message: str | Message) -> payload.Signature | None:
    """Return the signature of a handler of this message; None if the handler's own annotations decide."""
    if not isinstance(message, _KINDS) or message.input is NoneType:
        return None
    return payload.Signature.of_one(message.input)
