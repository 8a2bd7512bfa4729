"""RPC methods: declared once against the compiled .proto file, served over gRPC and Connect."""

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

# Maximum size of one uncompressed message, on every protocol.
MESSAGE_BYTES_MAX: Final = 4 * 1024 * 1024
T = TypeVar("T", str, bytes)


@dataclass(slots=True)
class RpcCall:
    """A call without its message. The dispatcher sets `principal` before it calls the handler."""

    headers: Mapping[str, str]
    peer: str
    clock: Clock
    # On the monotonic clock; None: no deadline.
    deadline_at: float | None = None
    principal: Principal = LOCAL
    # The name of the authenticated caller, for the log; also of a caller that is refused.
    caller: str | None = None

    def remaining_seconds(self) -> float | None:
        """Return the time until the deadline, at least 0, or None without a deadline."""
        return None if self.deadline_at is None else max(0.0, self.deadline_at - self.clock.monotonic())

    def check_deadline(self) -> None:
        """Raise `DeadlineExceededError` if the deadline has passed."""
        if self.deadline_at is not None and self.deadline_at <= self.clock.monotonic():
            raise DeadlineExceededError("the caller's deadline has passed; allow more time, or request less")


def merge_headers(pairs: Iterable[tuple[T, T]], separator: T) -> dict[T, T]:
    """Return headers by name; repeated headers are joined with `separator`."""
    pairs = list(pairs)
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    for name in found:
        found[name] = separator.join([value for key, value in pairs if key == name])
    return found


UnaryHandler: TypeAlias = Callable[[Any, RpcCall], Message]
AsyncHandler: TypeAlias = Callable[[Any, RpcCall], Awaitable[Message]]
FastHandler: TypeAlias = Callable[[Any, RpcCall], Message | None]
StreamHandler: TypeAlias = Callable[[Any, RpcCall], AsyncIterator[Message]]


@dataclass(frozen=True, eq=False)
class Method:
    """One method. `inline` handlers run on the event loop, `is_async` handlers are coroutines, others run in the pool.

    `fast` answers on the event loop if it can, and returns None to fall back to `handler`. `rule` authorizes callers.
    A method that `runs_in_intake` may be offloaded to the intake process. An `is_bulk` method carries hundreds of
    values and runs in a pool of its own where there is one.
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
    is_async: bool = False
    fast: FastHandler | None = None
    runs_in_intake: bool = False
    is_bulk: bool = False
    # The name in metrics and spans.
    label: str = field(init=False)
    path: str = field(init=False)

    @property
    def is_direct(self) -> bool:
        """Whether it may be answered on the event loop."""
        return not self.is_stream and (self.inline or self.fast is not None)

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", f"{self.service.rpartition('.')[2]}/{self.name}")
        object.__setattr__(self, "path", f"/{self.service}/{self.name}")


class MethodRegistry:
    """Methods of the services in one .proto file. Methods that are not declared are not served."""

    def __init__(self, file: FileDescriptor) -> None:
        self._file = file
        self._methods: dict[str, Method] = {}

    def unary(
        self,
        service: str,
        name: str,
        handler: UnaryHandler,
        *,
        rule: Rule,
        inline: bool = False,
        fast: FastHandler | None = None,
        intake: bool = False,
        bulk: bool = False,
    ) -> None:
        """Declare a unary method. Raises `DefinitionError` if the file has none of that name and kind."""
        method = self._partial(service, name, is_stream=False)
        self._add(method(handler=handler, rule=rule, inline=inline, fast=fast, runs_in_intake=intake, is_bulk=bulk))

    def unary_async(self, service: str, name: str, handler: AsyncHandler, *, rule: Rule, intake: bool = False) -> None:
        """Declare a unary method with a coroutine function as handler. Raises `DefinitionError`."""
        method = self._partial(service, name, is_stream=False)
        self._add(method(handler=handler, rule=rule, is_async=True, runs_in_intake=intake))

    def stream(self, service: str, name: str, handler: StreamHandler, *, rule: Rule) -> None:
        """Declare a server-streaming method with an async generator as handler. Raises `DefinitionError`."""
        self._add(self._partial(service, name, is_stream=True)(handler=handler, rule=rule, inline=True))

    def methods(self) -> list[Method]:
        return list(self._methods.values())

    def _partial(self, service: str, name: str, *, is_stream: bool) -> partial[Method]:
        """Return a constructor with the fields from the file filled in. Raises `DefinitionError`."""
        found = self._find(service, name)
        if found.server_streaming is not is_stream or found.client_streaming:
            raise DefinitionError(f"rpc {service}/{name}: {self._file.name} declares another kind of method")
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
            raise DefinitionError(f"rpc {method.label}: declared twice")

    def _find(self, service: str, name: str) -> MethodDescriptor:
        try:
            return self._file.services_by_name[service].methods_by_name[name]
        except KeyError as exc:
            raise DefinitionError(f"rpc {service}/{name}: not found in {self._file.name}") from exc


def services(methods: Iterable[Method]) -> list[str]:
    """Return the full names of the services, without duplicates."""
    return list(dict.fromkeys(method.service for method in methods))
