"""Requests of the remote client: when they are sent again, and the errors of replies."""

from __future__ import annotations

import pytest

from headgate.durable.remote.exchange import (
    NoReplyError,
    ProblemReplyError,
    Reply,
    Request,
    Retries,
    checked,
    json_body,
    path_of,
)
from headgate.errors import (
    AlreadyStartedError,
    DeadlineExceededError,
    FatalError,
    NotFoundError,
    OutcomeUnknownError,
    ServerBusyError,
    TransientError,
)

SAFE = Request(method="GET", path="/executions/x")
UNSAFE = Request(method="POST", path="/executions", body=b"{}", is_repeatable=False)
LOST = NoReplyError("connection lost", was_sent=True)
REFUSED = NoReplyError("no server answers there", was_sent=False)


def retries(request: Request, seconds_max: float = 30.0) -> Retries:
    return Retries(request, "http://there", seconds_max=seconds_max, draw=lambda: 1.0)


def test_no_reply__safe_request__is_repeated_with_growing_pauses_until_the_time_is_up() -> None:
    found = retries(SAFE, seconds_max=1.0)

    assert [found.after_no_reply(LOST, 0.0) for _ in range(4)] == [0.1, 0.2, 0.4, 0.8]
    with pytest.raises(TransientError, match="http://there: connection lost") as ended:
        found.after_no_reply(LOST, 0.0)
    assert not isinstance(ended.value, OutcomeUnknownError)


def test_no_reply__request_that_may_have_been_carried_out__is_not_repeated() -> None:
    with pytest.raises(OutcomeUnknownError, match="may have been carried out"):
        retries(UNSAFE).after_no_reply(LOST, 0.0)
    # Never sent: it is safe to send it.
    assert retries(UNSAFE).after_no_reply(REFUSED, 0.0) == 0.1


def test_reply__busy_server__is_waited_for_as_long_as_it_asks() -> None:
    busy = Reply(503, b"", retry_after_seconds=2.0)

    assert retries(SAFE).after_reply(busy, ServerBusyError("busy"), 0.0) == 2.0
    assert retries(SAFE, seconds_max=1.0).after_reply(busy, ServerBusyError("busy"), 0.0) is None
    assert retries(SAFE).after_reply(Reply(404, b""), NotFoundError("none"), 0.0) is None
    late = DeadlineExceededError("late")
    assert retries(UNSAFE).after_reply(Reply(504, b""), late, 0.0) is None
    assert retries(SAFE).after_reply(Reply(504, b""), late, 0.0) == 0.1


def test_checked__problem__is_the_error_of_its_code() -> None:
    assert checked(Reply(202, b"{}"), "there") == b"{}"
    with pytest.raises(AlreadyStartedError, match="it exists"):
        checked(Reply(409, b'{"code": "already_started", "detail": "it exists"}'), "there")
    with pytest.raises(FatalError, match="there: unexpected reply with status 502"):
        checked(Reply(502, b"<html>"), "there")
    error = b'{"type": "ValueError", "message": "from 1", "module": "builtins", "qualname": "ValueError"}'
    body = b'{"code": "update_rejected", "detail": "no", "errors": [' + error + b"]}"
    with pytest.raises(ProblemReplyError) as refused:
        checked(Reply(422, body), "there")
    assert (refused.value.info.type, refused.value.info.message) == ("ValueError", "from 1")


def test_request__path_query_and_key__are_encoded() -> None:
    request = Request(
        method="GET",
        path=path_of("executions", "a/b c"),
        query={"tag": ["x:1", "y:2"], "limit": "5"},
        idempotency_key="k",
    )

    assert request.target == "/api/v1/executions/a%2Fb%20c?tag=x%3A1&tag=y%3A2&limit=5"
    assert request.headers() == {"idempotency-key": "k"}
    assert json_body({"a": None, "b": 1}) == b'{"b":1}'
