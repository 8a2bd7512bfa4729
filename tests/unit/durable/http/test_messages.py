"""Requests, responses, headers and errors on their own."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.durable.http.router import BadInputError, BadOutputError, Headers, HttpError, Request, Response
from tests.unit.durable.http_app import (
    Colour,
    Line,
    Order,
    problems_of,
)


@pytest.mark.parametrize("value", ["a\r\nset-cookie: b=c", "a\nb", "a\rb", "a\x00b", "☃", "\x7f", 5, None])
def test_headers__value_would_be_more_than_one_line__refused(value: Any) -> None:
    with pytest.raises(BadOutputError):
        Response(headers={"x-a": value})
    response = Response()
    with pytest.raises(BadOutputError):
        response.headers["x-a"] = value
    with pytest.raises(BadOutputError):
        HttpError(400, headers={"x-a": value})
    assert "x-a" not in response.headers


@pytest.mark.parametrize("name", ["", "a b", "a:b", "a\r\nb", "é", "a\x00", 5, None])
def test_headers__name_is_not_one__refused(name: Any) -> None:
    with pytest.raises(BadOutputError):
        Response(headers={name: "value"})


def test_headers__any_case_and_repeated__read_and_changed_by_name() -> None:
    headers = Headers([("Set-Cookie", "a=1"), ("X-A", "1"), ("set-cookie", "b=2")])

    assert headers["SET-COOKIE"] == "a=1, b=2"
    assert headers.all("Set-Cookie") == ["a=1", "b=2"]
    assert ("x-a" in headers, headers.get("X-b"), len(headers), list(headers)) == (True, None, 2, ["set-cookie", "x-a"])

    headers["x-A"] = "2"
    del headers["Set-Cookie"]
    assert headers.pairs() == [("x-a", "2")]
    with pytest.raises(KeyError):
        del headers["set-cookie"]


def test_headers__shown__do_not_report_their_values() -> None:
    request = Request(headers=Headers({"Authorization": "Bearer hunter2"}))

    assert "hunter2" not in repr(request)
    assert "hunter2" not in repr(Response(headers={"set-cookie": "hunter2"}))


def test_request__made_by_hand__has_defaults_of_its_own() -> None:
    first, second = Request(), Request()
    first.context["user"] = "ann"
    first.query["a"] = ["1"]

    assert second.context == {}
    assert second.query == {}
    assert Request(headers={"X-A": "1"}).headers["x-a"] == "1"  # type: ignore[arg-type]


def test_request_arg__repeated_or_missing__is_the_first_or_the_default() -> None:
    request = Request(query={"a": ["1", "2"], "b": [""]})

    assert (request.arg("a"), request.arg("b"), request.arg("c"), request.arg("c", "x")) == ("1", "", None, "x")


@pytest.mark.parametrize(
    "body", [b"", b"{", b"{} x", b"\xff", b'"\xff"', b"NaN", b"[" * 100_000, b'"\\ud800"', b"\xef\xbb\xbf{}"]
)
def test_request_json__is_not_json__is_bad_input(body: bytes) -> None:
    with pytest.raises(BadInputError) as caught:
        Request(body=body).json()

    assert caught.value.status == 400
    assert problems_of(caught) == [("body", "")]


def test_request_json__as_a_type__fits_or_says_where_not() -> None:
    assert Request(body=b'{"sku":"x"}').json(Line) == Line("x")

    with pytest.raises(BadInputError) as caught:
        Request(body=b'{"orderId":"1","totalPrice":2,"lines":[{"sku":3}]}').json(Order)

    assert problems_of(caught) == [("body", "lines[0].sku")]


def test_request_json__a_long_value_is_wrong__is_not_repeated_whole() -> None:
    with pytest.raises(BadInputError) as caught:
        Request(body=b'"' + b"x" * 100_000 + b'"').json(Colour)

    assert len(caught.value.message) < 1000


def test_request_text__in_its_charset__or_utf8() -> None:
    latin = Headers({"content-type": "text/plain; charset=ISO-8859-1"})

    assert Request(body="é".encode()).text() == "é"
    assert Request(body=b"\xe9", headers=latin).text() == "é"
    with pytest.raises(BadInputError):
        Request(body=b"\xe9").text()
    with pytest.raises(HttpError) as caught:
        Request(body=b"x", headers=Headers({"content-type": "text/plain; charset=klingon"})).text()
    assert caught.value.status == 415


def test_http_error__without_a_message_or_code__takes_those_of_the_status() -> None:
    error = HttpError(404)

    assert (error.status, error.message, error.code, error.data) == (404, "Not Found", "not_found", None)
    assert HttpError(418).code == "im_a_teapot"


@pytest.mark.parametrize("status", [0, 200, 302, 399, 420, 600, "404", None])
def test_http_error__status_is_not_an_error__refused(status: Any) -> None:
    with pytest.raises(BadOutputError):
        HttpError(status)
