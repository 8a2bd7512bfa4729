"""Invoker: applications that answer, stream, fail, or take too long."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headgate.auth.principals import Principal
from headgate.auth.roles import Role
from headgate.aws.http.iam_callers import iam_caller
from headgate.aws.http.invoker import RECONNECT, Invoker, refusal
from headgate.errors import ServerBusyError, UnauthenticatedError
from tests.unit.aws.http.test_payloads import request

App = Callable[[Any, Any, Any], Any]


@pytest.fixture
def invoke() -> Iterator[Callable[..., dict[str, Any]]]:
    opened: list[Invoker] = []

    def call(app: App, event: dict[str, Any] | None = None, *, seconds: float = 20.0, **more: Any) -> dict[str, Any]:
        opened.append(Invoker(app, stream_seconds=more.pop("stream_seconds", 5.0), margin_seconds=0.0))
        return opened[-1](request() if event is None else event, left_seconds=seconds, **more)

    yield call
    for each in opened:
        each.close()


async def start(send: Any, content_type: bytes = b"text/plain", status: int = 200) -> None:
    headers = [(b"content-type", content_type)]
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def echo(scope: Any, receive: Any, send: Any) -> None:
    message = await receive()
    assert not message["more_body"]
    await start(send)
    await send({"type": "http.response.body", "body": message["body"][:2], "more_body": True})
    await send({"type": "http.response.body", "body": message["body"][2:]})


def test_answer__in_parts__is_one_response(invoke: Any) -> None:
    assert invoke(echo, request(body="hello"))["body"] == "hello"


def test_principal__given__is_that_of_the_request(invoke: Any) -> None:
    async def name(scope: Any, receive: Any, send: Any) -> None:
        await start(send)
        await send({"type": "http.response.body", "body": scope["principal"].name.encode()})

    assert invoke(name, principal=Principal("ana", frozenset({Role.VIEWER})))["body"] == "ana"


def test_stream__with_events__ends_after_them_and_says_when_to_connect_again(invoke: Any) -> None:
    ended: list[str] = []

    async def stream(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await start(send, b"text/event-stream; charset=utf-8")
        await send({"type": "http.response.body", "body": b"event: ready\ndata: 1\n\n", "more_body": True})
        assert (await receive())["type"] == "http.disconnect"
        ended.append("end received")

    response = invoke(stream)

    assert response["body"] == f"event: ready\ndata: 1\n\n{RECONNECT.decode()}"
    assert ended == ["end received"]


def test_stream__without_events__ends_after_its_time(invoke: Any) -> None:
    async def silent(scope: Any, receive: Any, send: Any) -> None:
        await start(send, b"text/event-stream")
        await send({"type": "http.response.body", "body": b": alive\n\n", "more_body": True})
        await asyncio.Event().wait()

    response = invoke(silent, stream_seconds=0.01)

    assert (response["statusCode"], response["body"]) == (200, f": alive\n\n{RECONNECT.decode()}")


def test_answer__not_in_time__is_a_problem_with_retry_after(invoke: Any) -> None:
    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.Event().wait()

    response = invoke(slow, seconds=0.01)

    assert (response["statusCode"], response["headers"]["retry-after"]) == (504, "1")
    assert json.loads(response["body"])["code"] == "deadline_exceeded"


def test_answer__begun_but_not_whole_in_time__is_no_response(invoke: Any) -> None:
    async def endless(scope: Any, receive: Any, send: Any) -> None:
        await start(send)
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        await asyncio.Event().wait()

    assert invoke(endless, seconds=0.01)["statusCode"] == 504


def test_answer__larger_than_a_function_may_return__is_a_problem(invoke: Any) -> None:
    async def large(scope: Any, receive: Any, send: Any) -> None:
        await start(send, b"application/octet-stream")
        await send({"type": "http.response.body", "body": bytes(5_000_000)})

    response = invoke(large)

    assert response["statusCode"] == 413
    assert json.loads(response["body"])["code"] == "response_too_large"


def test_application__that_fails_without_a_response__fails_the_function(invoke: Any) -> None:
    async def broken(scope: Any, receive: Any, send: Any) -> None:
        raise ZeroDivisionError("broken")

    with pytest.raises(ZeroDivisionError):
        invoke(broken)


def test_refusal__of_a_transient_error__has_retry_after() -> None:
    response = refusal(ServerBusyError("full"))

    assert (response["statusCode"], response["headers"]["content-type"]) == (503, "application/problem+json")
    assert int(response["headers"]["retry-after"]) >= 1


def test_iam_caller__not_verified_by_the_gateway__is_refused() -> None:
    unverified: list[dict[str, Any]] = [
        {},
        {"requestContext": {}},
        {"requestContext": {"authorizer": {"jwt": {"claims": {}}}}},
    ]
    for event in unverified:
        with pytest.raises(UnauthenticatedError, match="AWS_IAM"):
            iam_caller(event)


def test_iam_caller__verified__is_its_arn_and_no_admin() -> None:
    arn = "arn:aws:sts::1:assumed-role/shop/i-1"

    caller = iam_caller({"requestContext": {"authorizer": {"iam": {"userArn": arn}}}})

    assert (caller.name, caller.roles) == (arn, frozenset({Role.SERVICE}))
