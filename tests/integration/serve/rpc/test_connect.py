"""The Connect protocol as its clients speak it: JSON, gzip, GET, envelopes; and the guard before it."""

from __future__ import annotations

import asyncio
import base64
import gzip
import struct
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest

from headgate.auth.principals import LOCAL, Principal
from headgate.errors import NotFoundError, StoreBusyError, UnauthenticatedError
from headgate.serve.rpc.methods import MESSAGE_BYTES_MAX, RpcCall
from headgate.serve.rpc.statestore import proto as pb
from tests.integration.serve.rpc_ports import PACKAGE, Ports, declared, talk

GET = "SignalStateService/GetSignalState"
UPDATE = "SignalStateService/UpdateSignalState"
WATCH = "SignalStateService/Watch"
PROTO = "application/proto"
JSON = "application/json"
MESSAGE = pb.GetSignalStateRequest(dataset_urn="urn:dp:a", signal_type="VOLUME").SerializeToString()


def echo(request: pb.GetSignalStateRequest, _call: RpcCall) -> pb.SignalState:
    return pb.SignalState(dataset_urn=request.dataset_urn, signal_type=request.signal_type)


def update(request: pb.UpdateSignalStateRequest, _call: RpcCall) -> pb.UpdateSignalStateResponse:
    return pb.UpdateSignalStateResponse(success=True)


async def three(request: pb.WatchSignalsRequest, _call: RpcCall) -> AsyncIterator[pb.SignalChange]:
    for number in range(3):
        yield pb.SignalChange(cursor=f"{request.cursor}{number}")


METHODS: dict[str, Any] = {"GetSignalState_inline": echo, "UpdateSignalState": update, "Watch": three}


def ask(path: str, content: bytes, media: str = PROTO, **headers: str) -> httpx.Response:
    return talk(declared(**METHODS), lambda ports: ports.post(path, content, media, **headers))


@pytest.mark.parametrize("media", ["application/json", "application/json; charset=utf-8", "Application/JSON"])
def test_json__as_curl_sends_it__is_answered_in_json(media: str) -> None:
    answer = ask(GET, b'{"datasetUrn": "urn:dp:a", "signal_type": "VOLUME", "newer": 1}', media)

    assert answer.json() == {"datasetUrn": "urn:dp:a", "signalType": "VOLUME"}
    assert answer.headers["content-type"] == JSON
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b'{"dataset_urn": 5}', b"\xff", b'{"datasetUrn": "\\ud800"}', b"[" * 100_000, b'"x"'],
    ids=["empty", "cut off", "list", "null", "wrong type", "not UTF-8", "half a character", "deep", "text"],
)
def test_json__that_is_not_the_message__is_the_callers_fault(content: bytes) -> None:
    answer = ask(GET, content, JSON)

    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_argument")


def test_gzip__is_unpacked() -> None:
    answer = ask(GET, gzip.compress(MESSAGE), content_encoding="gzip")

    assert pb.SignalState.FromString(answer.content).dataset_urn == "urn:dp:a"


@pytest.mark.parametrize(
    ("content", "encoding", "code"),
    [
        (gzip.compress(b"\0" * (MESSAGE_BYTES_MAX + 1)), "gzip", "resource_exhausted"),
        (gzip.compress(MESSAGE)[:-4], "gzip", "invalid_argument"),
        (MESSAGE, "gzip", "invalid_argument"),
        (MESSAGE, "br", "unimplemented"),
    ],
    ids=["bomb", "cut off", "not gzip", "another packing"],
)
def test_gzip__that_cannot_be_unpacked__is_refused(content: bytes, encoding: str, code: str) -> None:
    assert ask(GET, content, content_encoding=encoding).json()["code"] == code


def test_protocol_version__another__is_refused() -> None:
    assert ask(GET, MESSAGE, connect_protocol_version="1").status_code == 200
    assert ask(GET, MESSAGE, connect_protocol_version="2").json()["code"] == "invalid_argument"


@pytest.mark.parametrize("media", ["text/plain", "", "application/grpc", "application/connect+proto"])
def test_media_type__not_spoken__is_415_and_says_which_are(media: str) -> None:
    answer = ask(GET, MESSAGE, media)

    assert answer.status_code == 415
    assert PROTO in answer.headers["accept-post"]
    assert answer.json()["code"] == "unsupported_media_type"


def get(path: str, **query: str) -> httpx.Response:
    async def scenario(ports: Ports) -> httpx.Response:
        return await ports.http.get(f"/{PACKAGE}.{path}", params=query)

    return talk(declared(**METHODS), scenario)


def test_get__of_what_has_no_side_effects__is_answered() -> None:
    packed = base64.urlsafe_b64encode(MESSAGE).decode().rstrip("=")

    as_json = get(GET, encoding="json", message='{"datasetUrn": "urn:dp:a"}', connect="v1")
    as_proto = get(GET, encoding="proto", message=packed, base64="1")

    assert as_json.json() == {"datasetUrn": "urn:dp:a"}
    assert pb.SignalState.FromString(as_proto.content).signal_type == "VOLUME"


@pytest.mark.parametrize(
    "query",
    [
        {},
        {"message": "x"},
        {"encoding": "xml", "message": "x"},
        {"encoding": "proto", "base64": "1", "message": "*"},
        {"encoding": "json", "message": "{"},
    ],
)
def test_get__without_a_message__is_refused(query: dict[str, str]) -> None:
    answer = get(GET, **query)

    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_argument")


def test_get__of_what_changes_something__is_405() -> None:
    answer = get(UPDATE, encoding="json", message="{}")

    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 421),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "http://localhost:1"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
    ],
)
def test_guard__refuses_what_it_refuses_elsewhere__also_after_a_call_that_was_let_in(
    headers: dict[str, str], status: int
) -> None:
    async def scenario(ports: Ports) -> list[httpx.Response]:
        async def call(more: dict[str, str]) -> httpx.Response:
            return await ports.http.post(f"/{PACKAGE}.{GET}", content=MESSAGE, headers={"content-type": PROTO, **more})

        own = {"origin": str(ports.http.base_url).rstrip("/")}
        return [await call({}), await call(headers), await call({}), await call(own)]

    first, refused, again, own = talk(declared(**METHODS), scenario)

    assert refused.status_code == status
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.headers["x-correlation-id"].startswith("req_")
    assert [first.status_code, again.status_code, own.status_code] == [200, 200, 200]


def test_guard__host_given_twice__is_refused() -> None:
    async def scenario(ports: Ports) -> bytes:
        port = ports.http.base_url.port
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"POST /{PACKAGE}.{GET} HTTP/1.1\r\ncontent-type: {PROTO}\r\ncontent-length: 0\r\n"
        writer.write(f"{head}host: localhost\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"{head}host: evil.example\r\nhost: localhost\r\n\r\n".encode())
        answer = await reader.readline()
        writer.close()
        return answer

    assert b" 421 " in talk(declared(**METHODS), scenario)


def parts(content: bytes) -> list[tuple[int, bytes]]:
    found = []
    while content:
        flags, length = struct.unpack_from(">BI", content)
        found.append((flags, content[5 : 5 + length]))
        content = content[5 + length :]
    return found


@pytest.mark.parametrize("packed", [False, True])
def test_stream__over_connect__gives_each_answer_and_an_end(packed: bool) -> None:
    message = pb.WatchSignalsRequest(cursor="c").SerializeToString()
    body = gzip.compress(message) if packed else message
    answer = ask(
        WATCH,
        struct.pack(">BI", int(packed), len(body)) + body,
        "application/connect+proto",
        connect_content_encoding="gzip",
    )

    *messages, (end, last) = parts(answer.content)
    assert [pb.SignalChange.FromString(each).cursor for _, each in messages] == ["c0", "c1", "c2"]
    assert (end, msgspec.json.decode(last)) == (2, {})
    assert answer.headers["content-type"] == "application/connect+proto"


def test_stream__in_json__gives_json() -> None:
    body = b'{"cursor": "c"}'
    answer = ask(WATCH, struct.pack(">BI", 0, len(body)) + body, "application/connect+json")

    assert [msgspec.json.decode(each) for _, each in parts(answer.content)] == [
        {"cursor": "c0"},
        {"cursor": "c1"},
        {"cursor": "c2"},
        {},
    ]


@pytest.mark.parametrize("content", [b"", b"\0\0\0", b"\0\0\0\0\5a", b"\2\0\0\0\0", b"\0\0\0\0\1\xff"])
def test_stream__with_a_bad_envelope__ends_with_an_error(content: bytes) -> None:
    answer = ask(WATCH, content, "application/connect+proto")

    ((flags, last),) = parts(answer.content)
    found: dict[str, Any] = msgspec.json.decode(last)
    assert (answer.status_code, flags, found["error"]["code"]) == (200, 2, "invalid_argument")


# Answers that are given directly, beside the same ones over ASGI.


def _request(content: bytes = MESSAGE, path: str = GET, media: str = PROTO, **headers: str) -> bytes:
    named = {"host": "127.0.0.1", "content-type": media, "content-length": str(len(content)), "x-correlation-id": "c-7"}
    named |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"POST /{PACKAGE}.{path} HTTP/1.1", *(f"{name}: {value}" for name, value in named.items()), "", ""]
    return "\r\n".join(lines).encode() + content


async def _answers(ports: Ports, pieces: list[bytes], count: int) -> list[tuple[bytes, dict[bytes, bytes], bytes]]:
    """Send pieces over one connection, each by itself, and return what the answers are but for when they were given."""
    url = ports.http.base_url
    reader, writer = await asyncio.open_connection(url.host, url.port)
    found = []
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0.01 if len(pieces) > 1 else 0)
    for _ in range(count):
        first, *lines = (
            (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)).removesuffix(b"\r\n\r\n").split(b"\r\n")
        )
        headers = dict(line.split(b": ", 1) for line in lines)
        headers.pop(b"date")
        found.append((first, headers, await reader.readexactly(int(headers[b"content-length"]))))
    writer.close()
    await writer.wait_closed()
    return found


class _Counted:
    """A handler that fails where it is asked to, and counts."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, request: pb.GetSignalStateRequest, call: RpcCall) -> pb.SignalState:
        self.calls += 1
        if request.dataset_urn == "urn:dp:none":
            raise NotFoundError("signal urn:dp:none: there is none")
        if request.dataset_urn == "urn:dp:busy":
            raise StoreBusyError("the store is away")
        if request.dataset_urn == "urn:dp:bug":
            raise ZeroDivisionError
        return echo(request, call)


@pytest.mark.parametrize(
    "request_bytes",
    [
        _request(),
        _request(b'{"datasetUrn": "urn:dp:a"}', media=JSON),
        _request(b'{"datasetUrn": 5}', media=JSON),
        _request(b"\xff\xff"),
        _request(pb.GetSignalStateRequest(dataset_urn="urn:dp:none").SerializeToString()),
        _request(pb.GetSignalStateRequest(dataset_urn="urn:dp:busy").SerializeToString()),
        _request(pb.GetSignalStateRequest(dataset_urn="urn:dp:bug").SerializeToString()),
        _request(connect_timeout_ms="0"),
        _request(connect_timeout_ms="soon"),
        _request(media="text/plain"),
        _request(gzip.compress(MESSAGE), content_encoding="gzip"),
        _request(authorization="Bearer known"),
        _request(authorization="Bearer unknown"),
        _request(origin="https://evil.example"),
        _request(connection="close"),
        _request(expect="200-ok"),
        _request(pb.GetSignalStateRequest(dataset_urn="a" * 20_000).SerializeToString()),
        _request(path=UPDATE),
    ],
    ids=[
        "proto", "json", "wrong type", "no message", "not found", "unavailable", "a bug", "no time", "bad time",
        "media", "gzip", "remembered", "refused", "origin", "close", "expect", "large", "in a thread",
    ],
)  # fmt: skip
def test_direct__whatever_is_asked__is_answered_as_over_asgi_and_asked_once(request_bytes: bytes) -> None:
    def known(call: RpcCall) -> Principal | None:
        given = call.headers.get("authorization")
        if given == "Bearer unknown":
            raise UnauthenticatedError("API key: it is not known here")
        return LOCAL if given else None

    handler = _Counted()

    async def scenario(ports: Ports) -> list[Any]:
        # The guard has to let the host through once.
        await _answers(ports, [_request()], 1)
        received = []
        for _ in range(2):
            handler.calls = 0
            received.append((await _answers(ports, [request_bytes], 1), handler.calls))
            ports.dispatcher.fast_methods.clear()
        return received

    directly, usually = talk(
        declared(GetSignalState_inline=handler, UpdateSignalState=update), scenario, remember=known
    )

    assert directly == usually


def test_direct__many_in_one_piece_or_one_in_many__are_answered_in_their_order() -> None:
    def asked(name: str) -> bytes:
        return _request(pb.GetSignalStateRequest(dataset_urn=name).SerializeToString())

    async def scenario(ports: Ports) -> list[bytes]:
        await _answers(ports, [_request()], 1)
        piece = asked("urn:dp:a") + _request(path=UPDATE) + asked("urn:dp:b") + asked("urn:dp:c")
        whole = await _answers(ports, [piece], 4)
        split = await _answers(ports, [piece[:40], piece[40:-3], piece[-3:]], 4)
        assert [each[2] for each in whole] == [each[2] for each in split]
        return [whole[place][2] for place in (0, 2, 3)]

    bodies = talk(declared(**METHODS), scenario)

    assert [pb.SignalState.FromString(body).dataset_urn for body in bodies] == ["urn:dp:a", "urn:dp:b", "urn:dp:c"]


def test_direct__server_drains_before_the_body_is_there__is_answered_still() -> None:
    async def scenario(ports: Ports) -> bytes:
        await _answers(ports, [_request()], 1)
        url = ports.http.base_url
        reader, writer = await asyncio.open_connection(url.host, url.port)
        asked = _request()
        writer.write(asked[:-5])
        await asyncio.sleep(0.05)
        draining = asyncio.create_task(ports.http_server.drain())
        await asyncio.sleep(0.2)
        writer.write(asked[-5:])
        answer = await asyncio.wait_for(reader.read(), 10)
        writer.close()
        await draining
        return answer

    answer = talk(declared(**METHODS), scenario)

    assert answer.startswith(b"HTTP/1.1 200")
    assert b"connection: close" in answer
