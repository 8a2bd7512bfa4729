"""The gRPC port: a server with the standard health service, and an orderly end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc  # type: ignore[import-untyped]  # it has no stubs

from headgate.errors import SettingsError
from headgate.serve.rpc import MESSAGE_BYTES_MAX
from headgate.serve.tls import Tls
from headgate.settings import Address

_OPTIONS: Final = [
    # Without this a second server on the same port would start and silently take half of the calls.
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
]
# How long streams, which never end by themselves, get to see that the server stops.
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
    ) -> None:
        """Bind to `address`, and let each of `services` add itself to the server besides health.

        Health answers for each of the services in `names`. Raises `SettingsError` if the port is taken or the address
        is not this machine's.
        """
        self._names = ("", *names)
        self._health = health.aio.HealthServicer()
        self._calls = _Calls()
        self._server = grpc.aio.server(options=_OPTIONS, interceptors=[self._calls])
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
            raise SettingsError(
                f"grpc = {address}: cannot listen there; stop what listens on port {address.port}, "
                "or choose another with --grpc HOST:PORT (port 0 picks a free one)"
            ) from exc
        self.address = Address(address.host, port)

    async def start(self) -> None:
        await self._report(health_pb2.HealthCheckResponse.NOT_SERVING)
        await self._server.start()

    async def set_serving(self) -> None:
        await self._report(health_pb2.HealthCheckResponse.SERVING)

    async def drain(self, grace_seconds: float) -> None:
        """Report not serving, refuse new calls, let those under way finish, then end the streams."""
        await self._health.enter_graceful_shutdown()
        stopping = asyncio.create_task(self._server.stop(grace_seconds))
        await self._calls.wait_idle(grace_seconds)
        await self._server.stop(_STREAM_SECONDS)
        await stopping

    async def _report(self, status: int) -> None:
        for name in self._names:
            await self._health.set(name, status)


class _Calls(grpc.aio.ServerInterceptor):
    """Counts the calls under way that will end by themselves, which are those with a single response."""

    def __init__(self) -> None:
        self._under_way = 0
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

    def _counted(self, behaviour: Any) -> Callable[..., Awaitable[Any]]:  # noqa: ANN401 - whatever the service has
        async def counted(request: Any, context: Any) -> Any:  # noqa: ANN401
            self._under_way += 1
            self._idle.clear()
            try:
                return await behaviour(request, context)
            finally:
                self._under_way -= 1
                if self._under_way == 0:
                    self._idle.set()

        return counted
