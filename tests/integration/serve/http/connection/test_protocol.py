"""Requests that an application answers directly: known by their heads, in their order, now or in a moment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from headgate.serve.http.connection import protocol as http_protocol
from headgate.serve.http.connection.head_cache import HEADS_MAX, HeadCache
from headgate.serve.http.connection.listener import HttpServer
from headgate.serve.http.connection.protocol import protocol_of
from headgate.serve.http.fast_path import DEFERRED, Deferred, FullResponse, RawPairs
from headgate.settings import Address
from tests.asgi_lifespan import run_lifespan

URL = b"/direct"


class App:
    """Answers with the body it was sent: directly, in a moment (`later`), or over ASGI (`usual`)."""

    def __init__(self) -> None:
        self.understands = 0
        self.waiting: list[tuple[bytes, Callable[[FullResponse], None]]] = []
        self.seen: list[tuple[str, bytes]] = []
        self.came = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await run_lifespan(receive, send)
            return
        body = b""
        while True:
            message: Any = await receive()
            body += message["body"]
            if not message["more_body"]:
                break
        self.seen.append(("usual", body))
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})

    def length_digits_max(self, url: bytes) -> int:
        return 6 if url == URL else 0

    def parsed_head(self, url: bytes, headers: RawPairs) -> object | None:
        assert url == URL
        self.understands += 1
        return dict(headers).get(b"x-kind", b"now")

    def answer_fast(
        self, parsed_head: bytes, _peer: str, body: bytes, defer: Callable[[], Callable[[FullResponse], None]]
    ) -> FullResponse | Deferred | None:
        self.seen.append((parsed_head.decode(), body))
        if parsed_head == b"usual":
            return None
        if parsed_head == b"later":
            self.waiting.append((body, defer()))
            self.came.set()
            return DEFERRED
        return _whole(body)

    def answer_next(self) -> None:
        body, answered = self.waiting.pop(0)
        answered(_whole(body))


def _whole(body: bytes) -> FullResponse:
    return FullResponse(200, b"content-length: %d\r\n" % len(body), body)


def request(body: bytes, kind: str = "now") -> bytes:
    head = f"POST /direct HTTP/1.1\r\nhost: localhost\r\nx-kind: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


class Talk:
    """A connection to a server of the app."""

    def __init__(self, server: HttpServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.server = server
        self.reader = reader
        self.writer = writer

    async def answer(self) -> bytes:
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 10)
        assert head.startswith(b"HTTP/1.1 200")
        (length,) = (line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
        return await self.reader.readexactly(int(length.partition(b":")[2]))


def talk(with_app: Callable[[App, Talk], Awaitable[None]]) -> None:
    async def run() -> None:
        app = App()
        server = HttpServer(Address("127.0.0.1", 0))
        serving = await server.start(app, grace_seconds=2)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.address.port)
        try:
            await with_app(app, Talk(server, reader, writer))
        finally:
            writer.close()
            await server.drain()
            await serving
            server.close()

    asyncio.run(run())


@contextmanager
def finds() -> Iterator[list[bool]]:
    """Note of each look whether the head was known."""
    noted: list[bool] = []
    find = HeadCache.find

    def noting(heads: HeadCache, data: bytes) -> tuple[Any, bytes] | None:
        found = find(heads, data)
        noted.append(found is not None)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HeadCache, "find", noting)
        yield noted


def test_head__sent_again__is_known_and_the_body_is_the_new_one() -> None:
    async def ask(app: App, talk: Talk) -> None:
        for body in (b"one", b"two", b"six", b"longer"):
            talk.writer.write(request(body))
            assert await talk.answer() == body
        assert app.understands == 2, "one head for each length"

    with finds() as known:
        talk(ask)
    assert known == [False, True, True, False]


def test_head__known_but_the_body_comes_later__is_answered_once() -> None:
    async def ask(app: App, talk: Talk) -> None:
        talk.writer.write(request(b"one"))
        assert await talk.answer() == b"one"
        whole = request(b"two")
        for start, end in ((0, 10), (10, len(whole) - 1), (len(whole) - 1, len(whole))):
            talk.writer.write(whole[start:end])
            await talk.writer.drain()
            await asyncio.sleep(0.01)
        assert await talk.answer() == b"two"
        assert [body for _, body in app.seen] == [b"one", b"two"]

    talk(ask)


def test_body__longer_than_what_comes_at_once__is_put_together_and_answered_directly() -> None:
    async def ask(app: App, talk: Talk) -> None:
        for letter in (b"a", b"b"):
            body = letter * 999_999
            talk.writer.write(request(body))
            assert await talk.answer() == body
        assert [kind for kind, _ in app.seen] == ["now", "now"]

    talk(ask)


def test_body__longer_than_the_application_takes__goes_the_usual_way() -> None:
    async def ask(app: App, talk: Talk) -> None:
        talk.writer.write(request(b"a" * 1_000_000))
        assert await talk.answer() == b"a" * 1_000_000
        assert [kind for kind, _ in app.seen] == ["usual"]

    talk(ask)


def test_head__known_and_not_answered_directly__is_offered_once_each_time() -> None:
    async def ask(app: App, talk: Talk) -> None:
        for body in (b"one", b"two"):
            talk.writer.write(request(body, "usual"))
            assert await talk.answer() == body
        assert app.seen == [("usual", b"one")] * 2 + [("usual", b"two")] * 2

    talk(ask)


def test_head__of_another_length_or_method__is_not_taken_for_a_known_one() -> None:
    heads = HeadCache()
    heads.learn(request(b"one"), "parsed_head", b"one")
    assert heads.find(request(b"two")) == ("parsed_head", b"two")
    assert heads.find(request(b"two") + b"x") is None
    assert heads.find(request(b"two")[:-1]) is None
    assert heads.find(request(b"two").replace(b"POST", b"PUTS")) is None
    assert heads.find(b"") is None


def test_heads__each_another__are_not_kept_for_ever() -> None:
    heads = HeadCache()
    for number in range(3 * HEADS_MAX):
        heads.learn(request(b"one", f"kind{number}"), number, b"one")
    assert len(heads._entries) <= HEADS_MAX
    assert heads.find(request(b"one", f"kind{number}")) == (number, b"one")


@pytest.mark.parametrize("warm", [False, True])
def test_later__requests_behind_it__wait_for_their_turn(warm: bool) -> None:
    async def ask(app: App, talk: Talk) -> None:
        if warm:
            talk.writer.write(request(b"now1"))
            assert await talk.answer() == b"now1"
        talk.writer.write(request(b"late", "later"))
        await app.came.wait()
        # In pieces of their own, and two in one.
        talk.writer.write(request(b"now2"))
        await asyncio.sleep(0.01)
        talk.writer.write(request(b"now3") + request(b"now4"))
        await asyncio.sleep(0.01)
        assert [body for kind, body in app.seen if kind != "later"][warm:] == [], "nothing overtakes"
        app.answer_next()
        for body in (b"late", b"now2", b"now3", b"now4"):
            assert await talk.answer() == body

    talk(ask)


def test_later__caller_has_left__the_answer_is_dropped() -> None:
    async def ask(app: App, talk: Talk) -> None:
        talk.writer.write(request(b"late", "later"))
        await app.came.wait()
        talk.writer.close()
        await talk.writer.wait_closed()
        await asyncio.sleep(0.01)
        app.answer_next()

    talk(ask)


def test_later__server_drains__is_answered_and_informed_that_it_was_the_last() -> None:
    async def ask(app: App, talk: Talk) -> None:
        talk.writer.write(request(b"late", "later"))
        await app.came.wait()
        draining = asyncio.create_task(talk.server.drain())
        await asyncio.sleep(0.15)
        app.answer_next()
        everything = await asyncio.wait_for(talk.reader.read(), 10)
        assert b"connection: close\r\n" in everything
        assert everything.endswith(b"late")
        await draining

    talk(ask)


class Wire(asyncio.Transport):
    """Keeps what is written, and whether it was closed."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.is_closed = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("127.0.0.1", 5000), "sockname": ("127.0.0.1", 8400)}.get(name, default)

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True


class Hours:
    """A loop's time, and what is to be called when: as far as a connection asks for it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.set_up: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_soon(self, call: Callable[[], None]) -> None:
        call()

    def call_later(self, seconds: float, call: Callable[[], None]) -> Timer:
        timer = (self.now + seconds, call)
        self.set_up.append(timer)
        return Timer(self.set_up, timer)

    def pass_to(self, now: float) -> None:
        self.now = now
        for timer in [each for each in self.set_up if each[0] <= now]:
            self.set_up.remove(timer)
            timer[1]()


class Timer:
    def __init__(self, set_up: list[tuple[float, Callable[[], None]]], timer: tuple[float, Callable[[], None]]) -> None:
        self._set_up = set_up
        self._timer = timer

    def cancel(self) -> None:
        if self._timer in self._set_up:
            self._set_up.remove(self._timer)


def connection(app: App) -> tuple[http_protocol.HttpProtocol, Wire, Hours]:
    config = uvicorn.Config(app, lifespan="off", log_config=None, timeout_keep_alive=5)
    config.load()
    # What uvicorn wraps around an application for its logs would hide what this one can do.
    config.app = app
    hours, wire = Hours(), Wire()
    protocol = protocol_of(HeadCache())(config, ServerState(), {}, _loop=hours)
    protocol.connection_made(wire)
    return protocol, wire, hours


def test_connection__idle_for_some_seconds__is_closed_and_not_before() -> None:
    protocol, wire, hours = connection(App())
    protocol.data_received(request(b"one"))
    hours.pass_to(4.0)
    protocol.data_received(request(b"two"))
    assert len(wire.written) == 2
    assert len(hours.set_up) == 1, "one timer, however many answers"
    hours.pass_to(5.0)
    assert not wire.is_closed
    hours.pass_to(8.9)
    assert not wire.is_closed
    hours.pass_to(9.0)
    assert wire.is_closed


def test_connection__answer_takes_longer_than_it_may_be_idle__is_kept_and_waits_anew_after_it() -> None:
    app = App()
    protocol, wire, hours = connection(app)
    protocol.data_received(request(b"one"))
    hours.pass_to(1.0)
    protocol.data_received(request(b"late", "later"))
    hours.pass_to(60.0)
    assert not wire.is_closed
    app.answer_next()
    assert wire.written[-1].endswith(b"late")
    hours.pass_to(64.9)
    assert not wire.is_closed
    hours.pass_to(65.0)
    assert wire.is_closed
