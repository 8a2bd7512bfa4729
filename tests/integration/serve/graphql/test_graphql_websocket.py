"""GraphQL subscriptions on a WebSocket: the messages and close codes of `graphql-transport-ws`, over a real port."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from headgate.auth.principals import Principal
from headgate.auth.roles import Role
from headgate.health.model.enums import SignalState
from headgate.serve.graphql.websocket import MESSAGES, SUBSCRIPTIONS_MAX, Timings
from headgate.serve.http.connection.listener import HttpServer
from headgate.serve.http.connection.websocket_protocol import MESSAGE_BYTES_MAX
from headgate.serve.probes import Phase
from headgate.settings import Address, LimitSettings
from tests.integration.serve.graphql_board import ORDERS, STOCK, Board, open_board

PROTOCOL = "graphql-transport-ws"
SIGNALS = "subscription { signalChanged { datasetUrn state } }"
Talk = Callable[[str], Awaitable[Any]]


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Board]:
    with open_board(tmp_path) as board:
        yield board


def served(board: Board, talk: Talk, **more: Any) -> Any:
    """Serve the board on a port, and return the result of `talk` with its address."""

    async def run() -> Any:
        server = HttpServer(Address("127.0.0.1", 0), **more)
        await server.start(board.app, grace_seconds=5)
        try:
            async with asyncio.timeout(20):
                return await talk(f"127.0.0.1:{server.address.port}")
        finally:
            await server.drain()
            server.close()

    return asyncio.run(run())


@asynccontextmanager
async def connected(address: str, *, is_initialised: bool = True, **more: Any) -> AsyncIterator[ClientConnection]:
    async with connect(f"ws://{address}/graphql", subprotocols=more.pop("protocols", [PROTOCOL]), **more) as socket:
        if is_initialised:
            await send_message(socket, type="connection_init")
            assert await received(socket) == {"type": "connection_ack"}
        yield socket


async def send_message(socket: ClientConnection, **message: Any) -> None:
    await socket.send(json.dumps(message))


async def received(socket: ClientConnection) -> Any:
    return json.loads(await socket.recv())


async def follow(socket: ClientConnection, identifier: str = "1", query: str = SIGNALS) -> None:
    await send_message(socket, id=identifier, type="subscribe", payload={"query": query})


async def closed(socket: ClientConnection) -> tuple[int, str]:
    """Return code and reason with which the server closes the connection."""
    with pytest.raises(ConnectionClosed) as caught:
        while True:
            await socket.recv()
    assert caught.value.rcvd is not None
    return caught.value.rcvd.code, caught.value.rcvd.reason


async def followed(board: Board, subscribers: int = 1) -> None:
    """Return once subscriptions wait for changes."""
    while len(board.watches._watches) < subscribers:
        await asyncio.sleep(0.01)


def test_subscriptions__two_on_one_connection__each_gets_its_own_until_it_is_completed(board: Board) -> None:
    board.register(ORDERS)
    board.register(STOCK)
    of_stock = f'subscription {{ signalChanged(datasetUrn: "{STOCK}") {{ datasetUrn }} }}'

    async def talk(address: str) -> Any:
        async with connected(address) as socket:
            assert socket.subprotocol == PROTOCOL
            await follow(socket, "stock", of_stock)
            await followed(board)
            await asyncio.to_thread(board.signal, STOCK)
            first = await received(socket)
            await send_message(socket, id="stock", type="complete")
            # The id is free again.
            await follow(socket, "stock", SIGNALS)
            await send_message(socket, type="ping", payload={"n": 1})
            pong = await received(socket)
            second = asyncio.create_task(received(socket))
            for state in itertools.cycle((SignalState.CRITICAL, SignalState.OK)):
                # Until the new subscription has its position in the log.
                await asyncio.to_thread(board.signal, ORDERS, "FRESHNESS", state)
                await asyncio.wait({second}, timeout=0.2)
                if second.done():
                    break
            return first, pong, await second

    first, pong, second = served(board, talk)

    assert first == {"type": "next", "id": "stock", "payload": {"data": {"signalChanged": {"datasetUrn": STOCK}}}}
    assert pong == {"type": "pong"}
    assert (second["type"], second["id"]) == ("next", "stock")
    assert second["payload"]["data"]["signalChanged"]["datasetUrn"] == ORDERS


def test_scope__caller_of_one_dataset__gets_nothing_of_others(board: Board) -> None:
    board.register(ORDERS)
    board.register(STOCK)
    board.principal = Principal("vera", frozenset({Role.VIEWER}), ("urn:dp:stock:*",))

    async def talk(address: str) -> Any:
        async with connected(address) as socket:
            await follow(socket)
            await followed(board)
            await asyncio.to_thread(board.signal, ORDERS)
            await asyncio.to_thread(board.signal, STOCK)
            got = await received(socket)
            await follow(socket, "2", f'subscription {{ signalChanged(datasetUrn: "{ORDERS}") {{ state }} }}')
            return got, await received(socket)

    got, refused = served(board, talk)

    assert got["payload"]["data"]["signalChanged"]["datasetUrn"] == STOCK
    assert (refused["type"], refused["id"]) == ("error", "2")
    assert refused["payload"][0]["extensions"]["code"] == "forbidden"


@pytest.mark.parametrize(
    ("query", "code"),
    [("{ __typename }", "bad_payload"), ("subscription { nothing }", "bad_query"), ("{", "bad_query")],
)
def test_subscribe__no_subscription__is_an_error_and_the_connection_stays(board: Board, query: str, code: str) -> None:
    async def talk(address: str) -> Any:
        async with connected(address) as socket:
            await follow(socket, "1", query)
            refused = await received(socket)
            await follow(socket, "1")
            await followed(board)
            return refused

    refused = served(board, talk)

    assert (refused["type"], refused["id"]) == ("error", "1")
    assert refused["payload"][0]["extensions"]["code"] == code


SUBSCRIBE = {"type": "subscribe", "id": "1", "payload": {"query": SIGNALS}}
INIT = {"type": "connection_init"}


@pytest.mark.parametrize(
    ("messages", "code"),
    [
        ([SUBSCRIBE], 4401),
        ([INIT, INIT], 4429),
        ([INIT, SUBSCRIBE, SUBSCRIBE], 4409),
        ([INIT, {**SUBSCRIBE, "id": ""}], 4400),
        ([INIT, {**SUBSCRIBE, "id": "x" * 200}], 4400),
        ([INIT, {**SUBSCRIBE, "payload": {"query": 1}}], 4400),
        ([INIT, {"type": "start"}], 4400),
        ([INIT, ["subscribe"]], 4400),
        ([INIT, "[" * 100_000], 4400),
        ([INIT, b"\x00"], 4400),
        ([INIT, " " * (MESSAGE_BYTES_MAX + 1)], 1009),
        ([INIT, *[{"type": "pong"}] * int(MESSAGES.burst * 30)], 4429),
    ],
    ids=lambda value: str(value)[:40],
)
def test_messages__that_break_the_protocol__close_the_connection(board: Board, messages: list[Any], code: int) -> None:
    async def talk(address: str) -> Any:
        async with connected(address, is_initialised=False) as socket:
            for each in messages:
                try:
                    await socket.send(each if isinstance(each, str | bytes) else json.dumps(each))
                except ConnectionClosed:
                    break
            return await closed(socket)

    assert served(board, talk)[0] == code


def test_subscriptions__more_than_a_connection_may_have__are_refused(board: Board) -> None:
    async def talk(address: str) -> Any:
        async with connected(address) as socket:
            for number in range(SUBSCRIPTIONS_MAX + 1):
                await follow(socket, str(number))
            return await received(socket)

    refused = served(board, talk)

    assert (refused["type"], refused["id"]) == ("error", str(SUBSCRIPTIONS_MAX))
    assert "at most 16 subscriptions" in refused["payload"][0]["message"]


def test_init__never_sent__closes_after_its_time(board: Board) -> None:
    board.serve(board.health, timings=Timings(init_seconds=0.1))

    async def talk(address: str) -> Any:
        async with connected(address, is_initialised=False) as socket:
            return await closed(socket)

    assert served(board, talk) == (4408, "Connection initialisation timeout")


def test_duration__is_limited__the_client_connects_again(board: Board) -> None:
    board.serve(board.health, timings=Timings(init_seconds=0.1, check_seconds=0.05, seconds_max=0.2))

    async def talk(address: str) -> Any:
        async with connected(address) as socket:
            return await closed(socket)

    assert served(board, talk)[0] == 1001


def test_stop__of_the_server__closes_with_going_away(board: Board) -> None:
    async def run() -> Any:
        server = HttpServer(Address("127.0.0.1", 0))
        await server.start(board.app, grace_seconds=5)
        async with connected(f"127.0.0.1:{server.address.port}") as socket:
            await follow(socket)
            await followed(board)
            draining = asyncio.create_task(server.drain())
            found = await closed(socket)
            await draining
        server.close()
        return found

    assert asyncio.run(run())[0] == 1001


@pytest.mark.parametrize("protocols", [None, ["graphql-ws"]])
def test_handshake__another_subprotocol__is_refused_and_names_ours(board: Board, protocols: Any) -> None:
    async def talk(address: str) -> Any:
        with pytest.raises(InvalidStatus) as caught:
            async with connected(address, protocols=protocols):
                pass
        return caught.value.response

    response = served(board, talk)

    assert response.status_code == 400
    assert b"offer graphql-transport-ws" in response.body


def test_handshake__another_path__is_not_accepted(board: Board) -> None:
    async def talk(address: str) -> Any:
        for path in ("/", "/health", "/graphql/", "/api/v1/executions", "/ui"):
            with pytest.raises(InvalidStatus):
                await connect(f"ws://{address}{path}", subprotocols=[PROTOCOL])  # type: ignore[list-item]

    served(board, talk)


def test_origin__any_but_our_own__is_refused(board: Board) -> None:
    async def talk(address: str) -> Any:
        async with connected(address, origin=f"http://{address}"):
            pass
        for origin in ("http://127.0.0.1:1", f"https://{address}", "https://evil.example", "null"):
            with pytest.raises(InvalidStatus) as caught:
                async with connected(address, origin=origin):
                    pass
            assert caught.value.response.status_code == 403

    served(board, talk)


def test_handshake__server_is_not_ready__is_503(board: Board) -> None:
    board.probes.phase = Phase.DRAINING

    async def talk(address: str) -> Any:
        with pytest.raises(InvalidStatus) as caught:
            async with connected(address):
                pass
        return caught.value.response.status_code

    assert served(board, talk) == 503


def test_bytes__sent_with_the_handshake__are_not_read_as_requests(board: Board) -> None:
    head = (
        "GET /graphql HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        f"Sec-WebSocket-Protocol: {PROTOCOL}\r\n\r\n"
    )

    async def talk(address: str) -> Any:
        host, _, port = address.partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(head.encode() + b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 4000)
        await writer.drain()
        answer = await reader.readuntil(b"\r\n\r\n")
        rest = await reader.read(65_536)
        writer.close()
        return answer, rest

    board.serve(board.health, timings=Timings(init_seconds=0.1))
    answer, rest = served(board, talk)

    assert answer.startswith(b"HTTP/1.1 101 ")
    # The close frame of a connection that was not initialised.
    assert rest.startswith(b"\x88")
    assert b"HTTP/1.1" not in rest


def test_connections__of_one_address__are_counted_and_given_back(board: Board) -> None:
    async def talk(address: str) -> Any:
        for _ in range(5):
            async with connected(address), connected(address):
                with pytest.raises(InvalidStatus) as caught:
                    async with connected(address):
                        pass
                assert caught.value.response.status_code == 503
        async with httpx.AsyncClient() as client:
            return (await client.get(f"http://{address}/health/live")).status_code

    assert served(board, talk, limits=LimitSettings(connections_per_address=2)) == 200
