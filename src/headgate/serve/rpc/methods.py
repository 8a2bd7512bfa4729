"""RPC methods: each declared once, with its messages read from the compiled .proto, and served over every protocol."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

from google.protobuf import message_factory
from google.protobuf.descriptor import FileDescriptor, MethodDescriptor
from google.protobuf.descriptor_pb2 import MethodOptions
from google.protobuf.message import Message

from headgate.auth.principals import LOCAL, Principal
from headgate.auth.rules import Rule
from headgate.clock import Clock
from headgate.errors import DeadlineExceededError, DefinitionError

# What one message may be at most, unpacked, whichever way it comes in.
MESSAGE_BYTES_MAX: Final = 4 * 1024 * 1024
T = TypeVar("T", str, bytes)


@dataclass(slots=True)
class RpcCall:
    """What there is to know of a call besides its message. `principal` is who calls, known before a handler is."""

    headers: Mapping[str, str]
    peer: str
    clock: Clock
    # On the monotonic clock; None: the caller waits for as long as it takes.
    deadline_at: float | None = None
    principal: Principal = LOCAL

    def remaining_seconds(self) -> float | None:
        """Return how long the caller still waits, at least 0, or None if it did not say."""
        return None if self.deadline_at is None else max(0.0, self.deadline_at - self.clock.monotonic())

    def check_deadline(self) -> None:
        """Raise `DeadlineExceededError` if nobody waits for the answer any more."""
        if self.deadline_at is not None and self.deadline_at <= self.clock.monotonic():
            raise DeadlineExceededError("the caller's deadline has passed; allow more time, or ask for less")


def combined(pairs: Iterable[tuple[T, T]], separator: T) -> dict[T, T]:
    """Return headers by name; the values of one that was given twice are one value, so that none is overlooked."""
    pairs = list(pairs)
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    for name in found:
        found[name] = separator.join([value for key, value in pairs if key == name])
    return found


Unary: TypeAlias = Callable[[Any, RpcCall], Message]
Awaited: TypeAlias = Callable[[Any, RpcCall], Awaitable[Message]]
Quick: TypeAlias = Callable[[Any, RpcCall], Message | None]
Streaming: TypeAlias = Callable[[Any, RpcCall], AsyncIterator[Message]]


@dataclass(frozen=True, eq=False)
class Method:
    """One method. `inline` handlers are quick enough for the event loop; others run in a thread of the pool.

    One that `is_awaited` is a coroutine function: it needs no thread while it waits. `quick` may answer on the event
    loop what is at hand, and returns None for what is not: then the handler is asked. `rule` is what the caller must
    be allowed. One that `is_taken_in` may be answered by another process on the same store. One that `is_bulk` carries
    hundreds of values, and must not be in the way of those that carry one.
    """

    service: str
    name: str
    request: type[Message]
    response: type[Message]
    handler: Callable[[Any, RpcCall], Any]
    rule: Rule
    is_stream: bool = False
    has_side_effects: bool = True
    inline: bool = False
    is_awaited: bool = False
    quick: Quick | None = None
    is_taken_in: bool = False
    is_bulk: bool = False
    # What metrics and spans call it.
    label: str = field(init=False)
    path: str = field(init=False)

    @property
    def is_direct(self) -> bool:
        """Whether it may be answered on the event loop, always or now and then."""
        return not self.is_stream and (self.inline or self.quick is not None)

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", f"{self.service.rpartition('.')[2]}/{self.name}")
        object.__setattr__(self, "path", f"/{self.service}/{self.name}")


class Declarations:
    """Collects methods of the services in one .proto file. What is not declared is not served."""

    def __init__(self, file: FileDescriptor) -> None:
        self._file = file
        self._methods: dict[str, Method] = {}

    def unary(
        self,
        service: str,
        name: str,
        handler: Unary,
        *,
        rule: Rule,
        inline: bool = False,
        quick: Quick | None = None,
        taken_in: bool = False,
        bulk: bool = False,
    ) -> None:
        """Declare a method with one answer. Raises `DefinitionError` if the file has none of that name and kind."""
        begun = self._begun(service, name, is_stream=False)
        self._add(begun(handler=handler, rule=rule, inline=inline, quick=quick, is_taken_in=taken_in, is_bulk=bulk))

    def awaited(self, service: str, name: str, handler: Awaited, *, rule: Rule, taken_in: bool = False) -> None:
        """Declare a method whose one answer the coroutine function `handler` returns. Raises `DefinitionError`."""
        begun = self._begun(service, name, is_stream=False)
        self._add(begun(handler=handler, rule=rule, is_awaited=True, is_taken_in=taken_in))

    def stream(self, service: str, name: str, handler: Streaming, *, rule: Rule) -> None:
        """Declare a method whose answers the async generator `handler` yields. Raises `DefinitionError`."""
        self._add(self._begun(service, name, is_stream=True)(handler=handler, rule=rule, inline=True))

    def methods(self) -> list[Method]:
        """Return what was declared."""
        return list(self._methods.values())

    def _begun(self, service: str, name: str, *, is_stream: bool) -> partial[Method]:
        """Return a method as far as the file says it. Raises `DefinitionError`."""
        found = self._find(service, name)
        if found.server_streaming is not is_stream or found.client_streaming:
            raise DefinitionError(f"rpc {service}/{name}: it is of another kind in {self._file.name}")
        return partial(
            Method,
            service=found.containing_service.full_name,
            name=name,
            request=message_factory.GetMessageClass(found.input_type),
            response=message_factory.GetMessageClass(found.output_type),
            is_stream=is_stream,
            has_side_effects=found.GetOptions().idempotency_level != MethodOptions.NO_SIDE_EFFECTS,
        )

    def _add(self, method: Method) -> None:
        if self._methods.setdefault(method.path, method) is not method:
            raise DefinitionError(f"rpc {method.label}: it is declared twice")

    def _find(self, service: str, name: str) -> MethodDescriptor:
        try:
            return self._file.services_by_name[service].methods_by_name[name]
        except KeyError as exc:
            raise DefinitionError(f"rpc {service}/{name}: there is none in {self._file.name}") from exc


def services(methods: Iterable[Method]) -> list[str]:
    """Return the full names of the services that have a method, once each."""
    return list(dict.fromkeys(method.service for method in methods))
