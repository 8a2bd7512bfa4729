"""RPC methods as gRPC serves them, and reflection: what there is, told to whoever asks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf import text_format
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2  # type: ignore[import-untyped]  # it has no stubs
from grpc_reflection.v1alpha import reflection, reflection_pb2  # type: ignore[import-untyped]

from headgate.serve.rpc import Method, RpcCall, combined, services
from headgate.serve.rpc_codec import Binary
from headgate.serve.rpc_dispatch import CORRELATION, Dispatcher
from headgate.serve.rpc_failures import RpcFailure

API: Final = "grpc"
_BINARY: Final = Binary()
_STATUSES: Final = {status.name: status for status in grpc.StatusCode}
_ALPHA: Final = "grpc.reflection.v1alpha"
_STABLE: Final = "grpc.reflection.v1"
_REFLECT: Final = "ServerReflection"


def add_methods(dispatcher: Dispatcher, server: grpc.aio.Server) -> None:
    """Let `server` answer the methods of `dispatcher`."""
    by_service: dict[str, dict[str, grpc.RpcMethodHandler[bytes, bytes]]] = {}
    for method in dispatcher.methods.values():
        handlers = by_service.setdefault(method.service, {})
        # Without a deserializer of gRPC's own, which would call a malformed message the server's fault.
        handlers[method.name] = (
            grpc.unary_stream_rpc_method_handler(_stream(dispatcher, method))
            if method.is_stream
            else grpc.unary_unary_rpc_method_handler(_unary(dispatcher, method))
        )
    for service, handlers in by_service.items():
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))


def add_reflection(methods: Iterable[Method], server: grpc.aio.Server) -> None:
    """Let `server` tell which services and messages there are, under the present name of reflection and the old one."""
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
    # The messages of both are the same; only the name of the service is not.
    handler = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    for package in (_STABLE, _ALPHA):
        added = grpc.method_handlers_generic_handler(f"{package}.{_REFLECT}", {"ServerReflectionInfo": handler})
        server.add_generic_rpc_handlers((added,))


def _unary(dispatcher: Dispatcher, method: Method) -> Callable[[bytes, Any], Any]:
    async def answer(content: bytes, context: Any) -> bytes:  # noqa: ANN401 - whatever gRPC gives
        call, name = _call(dispatcher, context)
        try:
            return await dispatcher.unary(API, method, content, _BINARY, call, name)
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
    headers: dict[str, str] = combined(context.invocation_metadata(), ", ")
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


def _add_file(pool: DescriptorPool, file: FileDescriptor) -> None:
    for needed in file.dependencies:
        _add_file(pool, needed)
    pool.AddSerializedFile(file.serialized_pb)


def _stable_reflection() -> FileDescriptorProto:
    """Return the description of reflection under its present name, which the library does not have yet."""
    alpha = FileDescriptorProto.FromString(reflection_pb2.DESCRIPTOR.serialized_pb)
    text = text_format.MessageToString(alpha).replace(_ALPHA, _STABLE).replace("v1alpha/", "v1/")
    return text_format.Parse(text, FileDescriptorProto())
