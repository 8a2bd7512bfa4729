"""Payload format 2.0: requests as ASGI scopes, and responses."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from headgate.aws.http.payloads import RESPONSE_BYTES_MAX, body_of, is_too_large, response_of, scope_of
from headgate.errors import InvalidPayloadError


def request(path: str = "/a", *, stage: str = "$default", **more: Any) -> dict[str, Any]:
    context = {
        "http": {"method": "POST", "path": path, "sourceIp": "203.0.113.7"},
        "stage": stage,
        "domainName": "api.example",
    }
    return {"version": "2.0", "rawPath": path, "headers": {"Host": "api.example"}, "requestContext": context, **more}


def test_scope__of_a_request__has_its_caller_and_its_address_over_https() -> None:
    scope = scope_of(request("/orders/7", rawQueryString="a=1&a=2"))

    assert (scope["method"], scope["path"], scope["query_string"]) == ("POST", "/orders/7", b"a=1&a=2")
    assert (scope["scheme"], scope["client"]) == ("https", ("203.0.113.7", 0))
    assert (b"host", b"api.example") in scope["headers"]


@pytest.mark.parametrize(
    ("path", "decoded", "raw"),
    [("/ä b", "/ä b", b"/%C3%A4%20b"), ("/a%25b", "/a%b", b"/a%25b"), ("/urn:dp:a", "/urn:dp:a", b"/urn:dp:a")],
)
def test_scope__a_path_that_the_gateway_has_decoded__is_encoded_again(path: str, decoded: str, raw: bytes) -> None:
    scope = scope_of(request(path))

    assert (scope["path"], scope["raw_path"]) == (decoded, raw)


@pytest.mark.parametrize(("path", "expected"), [("/prod/a", "/a"), ("/prod", "/")])
def test_scope__a_stage_with_a_name__is_no_part_of_the_path(path: str, expected: str) -> None:
    assert scope_of(request(path, stage="prod"))["path"] == expected


def test_scope__cookies__are_one_header_and_the_length_is_that_of_the_decoded_body() -> None:
    event = request(cookies=["a=1", "b=2"], body=base64.b64encode(b"\xff\x00").decode(), isBase64Encoded=True)

    headers = dict(scope_of(event)["headers"])

    assert (headers[b"cookie"], headers[b"content-length"]) == (b"a=1; b=2", b"2")
    assert body_of(event) == b"\xff\x00"


@pytest.mark.parametrize(
    "event", [{}, {"Records": []}, {"requestContext": {"http": {}}, "rawPath": "/", "headers": {}}]
)
def test_scope__of_an_event_that_is_no_request__names_the_format(event: dict[str, Any]) -> None:
    with pytest.raises(InvalidPayloadError, match=r"payload format 2\.0"):
        scope_of(event)


def test_body__not_base64_although_it_says_so__is_refused() -> None:
    with pytest.raises(InvalidPayloadError, match="base64"):
        body_of(request(body="???", isBase64Encoded=True))


def test_response__cookies_stay_apart__and_other_headers_of_a_name_are_joined() -> None:
    headers = [
        (b"Set-Cookie", b"a=1; Path=/"),
        (b"set-cookie", b"b=2, 3"),
        (b"vary", b"accept"),
        (b"Vary", b"origin"),
        (b"content-length", b"2"),
        (b"retry-after", b"5"),
        (b"content-type", b"application/problem+json"),
    ]

    response = response_of(503, headers, b"{}")

    assert response == {
        "statusCode": 503,
        "headers": {"vary": "accept, origin", "retry-after": "5", "content-type": "application/problem+json"},
        "cookies": ["a=1; Path=/", "b=2, 3"],
        "body": "{}",
        "isBase64Encoded": False,
    }


@pytest.mark.parametrize(
    "headers",
    [
        [(b"content-type", b"image/png")],
        [(b"content-type", b"text/html"), (b"content-encoding", b"gzip")],
        [(b"content-type", b"text/plain")],
        [],
    ],
)
def test_response__of_bytes_that_are_no_text__is_base64(headers: list[tuple[bytes, bytes]]) -> None:
    response = response_of(200, headers, b"\xff\xfe")

    assert (response["body"], response["isBase64Encoded"]) == (base64.b64encode(b"\xff\xfe").decode(), True)


def test_response__too_large_as_json__is_found() -> None:
    text = [(b"content-type", b"text/plain")]

    assert not is_too_large(response_of(200, text, b"a" * (RESPONSE_BYTES_MAX - 1000)))
    # Each of these is two characters in JSON.
    assert is_too_large(response_of(200, text, b'"' * (RESPONSE_BYTES_MAX - 1000)))
