"""The gRPC server drains: calls under way are answered, streams are notified and ended, the port is one server's."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc
import grpc.aio
import pytest

from headgate.errors import SettingsError
from headgate.serve.rpc.grpc import GrpcServer
from headgate.settings import Address

ANY_PORT = Address("127.0.0.1", 0)


class _SlowService:
    """Answers a call when asked to, and streams until it is cut off."""

    def __init__(self) -> None:
        self.called = asyncio.Event()
        self.release = asyncio.Event()

    def add_to(self, server: grpc.aio.Server) -> None:
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "Wait": grpc.unary_unary_rpc_method_handler(self._wait),
            "Stream": grpc.unary_stream_rpc_method_handler(self._stream),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Slow", handlers),))

    async def _wait(self, request: bytes, _context: Any) -> bytes:
        self.called.set()
        await self.release.wait()
        return request

    async def _stream(self, _request: bytes, context: Any) -> None:
        await context.write(b"first")
        await asyncio.Event().wait()


async def _wait(channel: grpc.aio.Channel) -> bytes:
    method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/test.Slow/Wait")
    return await method(b"hello")


def test_drain__a_call_under_way__is_answered_before_the_server_ends() -> None:
    async def scenario() -> tuple[bytes, bool]:
        slow = _SlowService()
        server = GrpcServer(ANY_PORT, [slow.add_to])
        await server.start()
        async with grpc.aio.insecure_channel(str(server.address)) as channel:
            answer = asyncio.ensure_future(_wait(channel))
            await slow.called.wait()
            draining = asyncio.create_task(server.drain(30))
            ended_early, _ = await asyncio.wait({draining}, timeout=0.3)
            slow.release.set()
            result = await answer
            await draining
        return result, bool(ended_early)

    assert asyncio.run(scenario()) == (b"hello", False)


def test_drain__a_call_outlasts_the_grace__is_cut_off() -> None:
    async def scenario() -> grpc.StatusCode:
        slow = _SlowService()
        server = GrpcServer(ANY_PORT, [slow.add_to])
        await server.start()
        async with grpc.aio.insecure_channel(str(server.address)) as channel:
            answer = asyncio.ensure_future(_wait(channel))
            await slow.called.wait()
            await server.drain(0.2)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await answer
        return caught.value.code()

    assert asyncio.run(scenario()) in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


def test_drain__only_a_stream_is_open__does_not_wait_for_it() -> None:
    async def scenario() -> float:
        slow = _SlowService()
        server = GrpcServer(ANY_PORT, [slow.add_to])
        await server.start()
        async with grpc.aio.insecure_channel(str(server.address)) as channel:
            method: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream("/test.Slow/Stream")
            stream = method(b"")
            await stream.read()
            started_at = time.monotonic()
            await server.drain(30)
            return time.monotonic() - started_at

    assert asyncio.run(scenario()) < 5


def test_bind__port_of_another_grpc_server__is_refused_and_named() -> None:
    async def scenario() -> str:
        first = GrpcServer(ANY_PORT)
        await first.start()
        with pytest.raises(SettingsError) as caught:
            GrpcServer(first.address)
        await first.drain(1)
        return f"{caught.value.message} {first.address.port}"

    message, _, port = asyncio.run(scenario()).rpartition(" ")
    assert f"port {port}" in message
    assert "--grpc HOST:PORT" in message
