"""RPC methods on real ports of both protocols, and clients that ask them as anyone would."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import grpc
import grpc.aio
import httpx
from google.protobuf import json_format
from google.protobuf.message import Message
from litestar import Litestar
from prometheus_client import CollectorRegistry

from headgate.auth.principals import LOCAL, Principal
from headgate.auth.roles import Permission
from headgate.auth.rules import Rule
from headgate.clock import SystemClock
from headgate.serve.http.connection.listener import HttpServer
from headgate.serve.http.origin_guard import OriginGuard
from headgate.serve.rpc.connect import Connect
from headgate.serve.rpc.dispatcher import CallChecks, Dispatcher
from headgate.serve.rpc.grpc import GrpcServer, add_methods, add_reflection
from headgate.serve.rpc.methods import Method, MethodRegistry, RpcCall, services
from headgate.serve.rpc.statestore import proto as pb
from headgate.serve.runtime.thread_pool import WorkPool
from headgate.settings import Address, LimitSettings
from headgate.telemetry import Tracing

PACKAGE = "observability.statestore.v1"
ANYONE = Rule(Permission.SIGNAL_READ)
ANY_PORT = Address("127.0.0.1", 0)
T = TypeVar("T")


def declared(**handlers: Callable[[Any, RpcCall], Any]) -> list[Method]:
    """Return methods of SignalStateService with handlers of a test. Those that end in _inline run on the loop."""
    rpcs = MethodRegistry(pb.DESCRIPTOR)
    for name, handler in handlers.items():
        if name == "Watch":
            rpcs.stream("SignalStateService", name, handler, rule=ANYONE)
        else:
            bare = name.removesuffix("_inline")
            rpcs.unary("SignalStateService", bare, handler, rule=ANYONE, inline=bare != name)
    return rpcs.methods()


class Ports:
    """Both ports while they are open."""

    def __init__(self, dispatcher: Dispatcher, grpc_server: GrpcServer, http: HttpServer) -> None:
        self.dispatcher = dispatcher
        self.grpc_server = grpc_server
        self.http_server = http
        self.channel = grpc.aio.insecure_channel(str(grpc_server.address))
        self.http = httpx.AsyncClient(base_url=f"http://{http.address}", timeout=30)

    async def grpc(self, path: str, content: bytes, **more: Any) -> bytes:
        """Return the raw answer to raw bytes. Raises `grpc.aio.AioRpcError`."""
        method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self.channel.unary_unary(f"/{PACKAGE}.{path}")
        return await method(content, **more)

    async def post(self, path: str, content: bytes, media: str = "application/proto", **headers: str) -> httpx.Response:
        """Return the answer to a body over HTTP. Underscores in names of headers stand for hyphens."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.http.post(f"/{PACKAGE}.{path}", content=content, headers={"content-type": media, **named})

    async def call(self, protocol: str, path: str, request: Message, response: type[T]) -> T:
        """Return the answer to a message over `grpc`, `proto` or `json`; a failure fails the test."""
        parse: Any = response
        if protocol == "grpc":
            return parse.FromString(await self.grpc(path, request.SerializeToString()))  # type: ignore[no-any-return]
        if protocol == "proto":
            answer = await self.post(path, request.SerializeToString())
            assert answer.status_code == 200, answer.text
            return parse.FromString(answer.content)  # type: ignore[no-any-return]
        answer = await self.post(path, json_format.MessageToJson(request).encode(), "application/json")
        assert answer.status_code == 200, answer.text
        return json_format.Parse(answer.content, parse())  # type: ignore[no-any-return]


@asynccontextmanager
async def opened_ports(
    methods: list[Method],
    *,
    identify: Callable[[RpcCall], Principal | None] = lambda _call: LOCAL,
    remember: Callable[[RpcCall], Principal | None] = lambda _call: None,
    checks: CallChecks | None = None,
    limits: LimitSettings | None = None,
) -> AsyncIterator[Ports]:
    """Serve methods on both ports."""
    clock, pool = SystemClock(), WorkPool(threads_max=4)
    dispatcher = Dispatcher(
        methods,
        pool,
        clock=clock,
        tracing=Tracing(),
        registry=CollectorRegistry(),
        identify=identify,
        remember=remember,
        checks=checks,
    )
    grpc_server = GrpcServer(
        ANY_PORT,
        [lambda server: add_methods(dispatcher, server, limits=limits), lambda server: add_reflection(methods, server)],
        names=services(methods),
    )
    http = HttpServer(ANY_PORT)
    guard = OriginGuard(Litestar([], openapi_config=None))
    serving = await http.start(Connect(guard, dispatcher, refusal=guard.refusal), grace_seconds=1)
    await grpc_server.start()
    await grpc_server.set_serving()
    ports = Ports(dispatcher, grpc_server, http)
    try:
        yield ports
    finally:
        await ports.channel.close()
        await ports.http.aclose()
        await grpc_server.drain(1)
        await http.drain()
        await serving
        http.close()
        pool.close()


def talk(methods: list[Method], scenario: Callable[[Ports], Awaitable[T]], **more: Any) -> T:
    """Return what a conversation with methods on both ports comes to."""

    async def run() -> T:
        async with opened_ports(methods, **more) as ports:
            return await scenario(ports)

    return asyncio.run(run())
