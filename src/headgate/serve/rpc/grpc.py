"""gRPC port: serves the RPC methods with health checking, reflection and graceful shutdown."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf import text_format
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import (  # type: ignore[import-untyped]  # it has no stubs
    health,
    health_pb2,
    health_pb2_grpc,
)
from grpc_reflection.v1alpha import reflection, reflection_pb2  # type: ignore[import-untyped]

from headgate.errors import ServerBusyError, SettingsError
from headgate.serve.http.connection.tls import Tls
from headgate.serve.rpc.codec import Binary
from headgate.serve.rpc.dispatcher import CORRELATION, Dispatcher
from headgate.serve.rpc.errors import RpcFailure, failure
from headgate.serve.rpc.methods import MESSAGE_BYTES_MAX, Method, RpcCall, merge_headers, services
from headgate.settings import Address, LimitSettings

API: Final = "grpc"
_BINARY: Final = Binary()
_STATUSES: Final = {status.name: status for status in grpc.StatusCode}
_ALPHA: Final = "grpc.reflection.v1alpha"
_STABLE: Final = "grpc.reflection.v1"
_REFLECT: Final = "ServerReflection"
# How long a call beyond the limit waits for a place before it is refused.
WAIT_SECONDS: Final = 0.03
_BUSY: Final = failure(
    ServerBusyError("the server is overloaded and did not start the call; retry in a moment"),
    health_pb2.HealthCheckRequest,
)
_BUSY_TRAILERS: Final = (
    ("grpc-status-details-bin", _BUSY.rich_status()),
    ("headgate-code", _BUSY.code),
    # Read by the retry policies of gRPC clients.
    ("grpc-retry-pushback-ms", str(round(1000 * (_BUSY.retry_seconds or 0)))),
)


def add_methods(dispatcher: Dispatcher, server: grpc.aio.Server, *, limits: LimitSettings | None = None) -> None:
    """Register the methods of `dispatcher`. A unary call beyond `limits.in_flight` waits briefly, then is refused."""
    gate = CallGate((LimitSettings() if limits is None else limits).in_flight)
    by_service: dict[str, dict[str, grpc.RpcMethodHandler[bytes, bytes]]] = {}
    for method in dispatcher.methods.values():
        handlers = by_service.setdefault(method.service, {})
        # Raw bytes: gRPC's deserializer would report a malformed message as a server error.
        handlers[method.name] = (
            grpc.unary_stream_rpc_method_handler(_stream(dispatcher, method))
            if method.is_stream
            else grpc.unary_unary_rpc_method_handler(_unary(dispatcher, method, gate))
        )
    for service, handlers in by_service.items():
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))


def add_reflection(methods: Iterable[Method], server: grpc.aio.Server) -> None:
    """Register server reflection, under its stable name and v1alpha."""
    methods = list(methods)
    pool = DescriptorPool()
    for file in [method.request.DESCRIPTOR.file for method in methods] + [health_pb2.DESCRIPTOR]:
        _add_file(pool, file)
    _add_file(pool, reflection_pb2.DESCRIPTOR)
    pool.Add(_stable_reflection())
    names = [
        *services(methods),
        health_pb2.DESCRIPTOR.services_by_name["Health"].full_name,
        f"{_STABLE}.{_REFLECT}",
        f"{_ALPHA}.{_REFLECT}",
    ]
    servicer = reflection.aio.ReflectionServicer(names, pool=pool)
    # Both versions have the same messages; only the service name differs.
    handler = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    for package in (_STABLE, _ALPHA):
        added = grpc.method_handlers_generic_handler(f"{package}.{_REFLECT}", {"ServerReflectionInfo": handler})
        server.add_generic_rpc_handlers((added,))


class CallGate:
    """Limits the unary calls in progress. A stream may last for hours, and waits for its client.

    A refusal costs gRPC's library as much as a short answer. A call beyond the limit therefore waits for a place first:
    clients with a bounded number of calls send fewer, and most of those that wait are answered.
    """

    def __init__(self, calls_max: int, *, wait_seconds: float = WAIT_SECONDS) -> None:
        self._calls_max = calls_max
        self._wait_seconds = wait_seconds
        self._calls = 0
        # Calls without a place, in order, with the times when they are refused.
        self._waiting: deque[tuple[float, asyncio.Future[bool]]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    async def enter(self) -> bool:
        """Count a call, and return whether it has a place. `leave` uncounts it."""
        if self._calls < self._calls_max:
            self._calls += 1
            return True
        loop = asyncio.get_running_loop()
        place: asyncio.Future[bool] = loop.create_future()
        self._waiting.append((loop.time() + self._wait_seconds, place))
        if self._timer is None:
            self._timer = loop.call_later(self._wait_seconds, self._refuse, loop)
        try:
            return await place
        except asyncio.CancelledError:
            if not place.cancelled() and place.result():
                self.leave()
            raise

    def leave(self) -> None:
        """Pass the place of a call that has ended to the one that waits longest."""
        while self._waiting:
            _, place = self._waiting.popleft()
            if not place.done():
                place.set_result(True)
                return
        self._calls -= 1

    def _refuse(self, loop: asyncio.AbstractEventLoop) -> None:
        """Refuse the calls whose time is over."""
        now = loop.time()
        self._timer = None
        while self._waiting and (self._waiting[0][0] <= now or self._waiting[0][1].done()):
            _, place = self._waiting.popleft()
            if not place.done():
                place.set_result(False)
        if self._waiting:
            self._timer = loop.call_at(self._waiting[0][0], self._refuse, loop)


def _unary(dispatcher: Dispatcher, method: Method, gate: CallGate) -> Callable[[bytes, Any], Any]:
    is_inline = method.is_direct and method.path.encode() in dispatcher.fast_methods

    async def answer(content: bytes, context: Any) -> bytes:  # noqa: ANN401 - untyped in gRPC
        call, name = _call(dispatcher, context)
        try:
            if is_inline:
                encoded = dispatcher.answer_inline(API, method, content, _BINARY, call, name)
                if encoded is not None:
                    return encoded
            if not await gate.enter():
                # Counted, but not logged: under overload each call would be a line.
                dispatcher.meters.record(API, method.label, _BUSY.status, 0.0)
                return await _refuse(context, name)
            try:
                return await dispatcher.unary(API, method, content, _BINARY, call, name)
            finally:
                gate.leave()
        except RpcFailure as exc:
            return await _abort(context, exc, name)

    return answer


def _stream(dispatcher: Dispatcher, method: Method) -> Callable[[bytes, Any], Any]:
    async def answer(content: bytes, context: Any) -> AsyncIterator[bytes]:  # noqa: ANN401
        call, name = _call(dispatcher, context)
        try:
            async for each in dispatcher.stream(API, method, content, _BINARY, call, name):
                yield each
        except RpcFailure as exc:
            await _abort(context, exc, name)

    return answer


def _call(dispatcher: Dispatcher, context: Any) -> tuple[RpcCall, str]:  # noqa: ANN401
    headers: dict[str, str] = merge_headers(context.invocation_metadata(), ", ")
    remaining = context.time_remaining()
    deadline_at = None if remaining is None else dispatcher.clock.monotonic() + remaining
    call = RpcCall(headers, context.peer(), dispatcher.clock, deadline_at)
    return call, dispatcher.correlation(headers.get(CORRELATION))


async def _abort(context: Any, failed: RpcFailure, name: str) -> bytes:  # noqa: ANN401
    trailers = (
        ("grpc-status-details-bin", failed.rich_status()),
        ("headgate-code", failed.code),
        (CORRELATION, name),
    )
    aborted: bytes = await context.abort(_STATUSES[failed.status], failed.message, trailers)
    return aborted


async def _refuse(context: Any, name: str) -> bytes:  # noqa: ANN401
    refused: bytes = await context.abort(_STATUSES[_BUSY.status], _BUSY.message, (*_BUSY_TRAILERS, (CORRELATION, name)))
    return refused


def _add_file(pool: DescriptorPool, file: FileDescriptor) -> None:
    for needed in file.dependencies:
        _add_file(pool, needed)
    pool.AddSerializedFile(file.serialized_pb)


def _stable_reflection() -> FileDescriptorProto:
    """Return the v1 descriptor of reflection, which the library does not include yet."""
    alpha = FileDescriptorProto.FromString(reflection_pb2.DESCRIPTOR.serialized_pb)
    text = text_format.MessageToString(alpha).replace(_ALPHA, _STABLE).replace("v1alpha/", "v1/")
    return text_format.Parse(text, FileDescriptorProto())


# Bounds of a connection: graceful for calls in progress, whose streams may last.
_AGE_SECONDS: Final = 3600
_PING_SECONDS: Final = 60
_PING_ANSWER_SECONDS: Final = 20
_PING_STRIKES_MAX: Final = 2


def _options(limits: LimitSettings, *, shares_port: bool) -> list[tuple[str, int]]:
    return [
        ("grpc.so_reuseport", int(shares_port)),
        ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
        ("grpc.max_metadata_size", limits.header_bytes),
        ("grpc.absolute_max_metadata_size", limits.header_bytes),
        ("grpc.max_concurrent_streams", limits.grpc_streams),
        ("grpc.server_handshake_timeout_ms", _milliseconds(limits.header_seconds)),
        ("grpc.max_connection_idle_ms", _milliseconds(limits.grpc_idle_seconds)),
        ("grpc.max_connection_age_ms", _milliseconds(_AGE_SECONDS)),
        # Finds peers that are gone, and closes connections that ping too often.
        ("grpc.keepalive_time_ms", _milliseconds(_PING_SECONDS)),
        ("grpc.keepalive_timeout_ms", _milliseconds(_PING_ANSWER_SECONDS)),
        ("grpc.http2.max_ping_strikes", _PING_STRIKES_MAX),
    ]


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


# Time for streams, which never end by themselves, to see the shutdown.
_STREAM_SECONDS: Final = 0.2


class GrpcServer:
    """Serves gRPC on one address."""

    def __init__(
        self,
        address: Address,
        services: Sequence[Callable[[grpc.aio.Server], None]] = (),
        *,
        names: Sequence[str] = (),
        tls: Tls | None = None,
        limits: LimitSettings | None = None,
        shares_port: bool = False,
    ) -> None:
        """Bind to `address` and register `services` and health. The health service reports for each name in `names`.

        With `shares_port`, other serving processes of this server bind to the port too; call `check_free` first.
        Raises `SettingsError` if the port is in use or the address is not local.
        """
        self._names = ("", *names)
        self._health = health.aio.HealthServicer()
        self._calls = _Calls()
        options = _options(limits or LimitSettings(), shares_port=shares_port)
        self._server = grpc.aio.server(options=options, interceptors=[self._calls])
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        for add_to in services:
            add_to(self._server)
        try:
            port = (
                self._server.add_insecure_port(str(address))
                if tls is None
                else self._server.add_secure_port(str(address), tls.grpc_credentials())
            )
        except RuntimeError as exc:
            raise _in_use(address) from exc
        self.address = Address(address.host, port)

    async def start(self) -> None:
        await self._report(health_pb2.HealthCheckResponse.NOT_SERVING)
        await self._server.start()

    async def set_serving(self) -> None:
        await self._report(health_pb2.HealthCheckResponse.SERVING)

    async def drain(self, grace_seconds: float) -> None:
        """Report NOT_SERVING, refuse new calls, wait for unary calls in progress, then end the streams."""
        await self._health.enter_graceful_shutdown()
        stopping = asyncio.create_task(self._server.stop(grace_seconds))
        await self._calls.wait_idle(grace_seconds)
        await self._server.stop(_STREAM_SECONDS)
        await stopping

    async def _report(self, status: int) -> None:
        for name in self._names:
            await self._health.set(name, status)


def check_free(address: Address) -> None:
    """Raise `SettingsError` if anything listens on the port, also a server that shares it between its processes.

    The library serves only on sockets that it has bound, so that each serving process binds to the port with
    SO_REUSEPORT. With that alone, a second server on the port would silently take a part of the calls.
    """
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
            probe.listen(1)
    except (OSError, UnicodeError) as exc:
        raise _in_use(address) from exc


def _in_use(address: Address) -> SettingsError:
    return SettingsError(
        f"grpc = {address}: cannot listen; stop the process that listens on port {address.port}, "
        "or choose another with --grpc HOST:PORT (port 0 picks a free one)"
    )


class _Calls(grpc.aio.ServerInterceptor):
    """Counts unary calls in progress: those that end by themselves."""

    def __init__(self) -> None:
        self._in_progress = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        handler = await continuation(handler_call_details)
        if handler is None or handler.response_streaming:
            return handler
        wrap = (
            grpc.stream_unary_rpc_method_handler if handler.request_streaming else grpc.unary_unary_rpc_method_handler
        )
        behaviour = handler.stream_unary if handler.request_streaming else handler.unary_unary
        return wrap(self._counted(behaviour), handler.request_deserializer, handler.response_serializer)

    async def wait_idle(self, timeout_seconds: float) -> None:
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_seconds)
        except TimeoutError:
            return

    def _counted(self, behaviour: Any) -> Callable[..., Awaitable[Any]]:  # noqa: ANN401 - untyped in gRPC
        async def counted(request: Any, context: Any) -> Any:  # noqa: ANN401
            self._in_progress += 1
            self._idle.clear()
            try:
                return await behaviour(request, context)
            finally:
                self._in_progress -= 1
                if self._in_progress == 0:
                    self._idle.set()

        return counted
