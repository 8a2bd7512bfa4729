"""Faults that no emulator produces, put between a botocore client and its server.

A fault takes the place of one HTTP exchange: it sees the request that is about to be sent and returns the
answer in its stead, raises what a broken connection raises, or lets the request through by returning None.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.exceptions import ConnectionClosedError, EndpointConnectionError
from botocore.httpsession import URLLib3Session

Fault = Callable[[AWSPreparedRequest], AWSResponse | None]


class Faults:
    """The faults that wait for the next requests of one client, by operation."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._waiting: dict[str, deque[Fault]] = {}
        self.requests: dict[str, list[dict[str, Any]]] = {}

    def inject(self, operation: str, *faults: Fault) -> None:
        """Let the next requests of `operation` meet `faults`, one each, in order."""
        if operation not in self._waiting:
            service = self._client.meta.service_model.service_id.hyphenize()
            self._client.meta.events.register(f"before-send.{service}.{operation}", self._meet)
        self._waiting.setdefault(operation, deque()).extend(faults)
        self.requests.setdefault(operation, [])

    def left(self, operation: str) -> int:
        """How many faults were not met yet."""
        return len(self._waiting[operation])

    def _meet(self, request: AWSPreparedRequest, event_name: str, **_: object) -> AWSResponse | None:
        operation = event_name.rpartition(".")[2]
        self.requests[operation].append(json.loads(_body(request)))
        waiting = self._waiting[operation]
        return waiting.popleft()(request) if waiting else None


def refused(code: str, message: str = "injected", *, status: int = 400, **fields: object) -> Fault:
    """An answer that says no."""
    return _answer(status, {"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": message, **fields})


def canceled(*reasons: str | dict[str, Any]) -> Fault:
    """A cancelled transaction, with a reason for each of its writes: a code, or all that is said of it."""
    spelled = [reason if isinstance(reason, dict) else {"Code": reason, "Message": "injected"} for reason in reasons]
    codes = ", ".join(reason["Code"] for reason in spelled)
    return refused("TransactionCanceledException", f"Transaction cancelled [{codes}]", CancellationReasons=spelled)


def answered(body: dict[str, Any]) -> Fault:
    """An answer that says yes."""
    return _answer(200, body)


def computed(make: Callable[[dict[str, Any]], dict[str, Any]]) -> Fault:
    """An answer that says yes and is made from the request."""
    return lambda request: answered(make(json.loads(_body(request))))(request)


def narrowed(
    narrow: Callable[[dict[str, Any]], dict[str, Any]],
    complete: Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]],
) -> Fault:
    """A server that carries out a part of the request, and an answer that is made of the request and of the part's."""

    def meet(request: AWSPreparedRequest) -> AWSResponse | None:
        asked = json.loads(_body(request))
        request.body = json.dumps(narrow(asked)).encode()
        request.headers["Content-Length"] = str(len(request.body))
        return answered(complete(asked, json.loads(_sent(request))))(request)

    return meet


def unreached(request: AWSPreparedRequest) -> AWSResponse | None:
    """A connection that could not be made."""
    raise EndpointConnectionError(endpoint_url=request.url)


def lost(request: AWSPreparedRequest) -> AWSResponse | None:
    """A request that got through, and an answer that did not come back."""
    _sent(request)
    raise ConnectionClosedError(endpoint_url=request.url)


def dropped(request: AWSPreparedRequest) -> AWSResponse | None:
    """A connection that broke before the request got through, which looks the same from here."""
    raise ConnectionClosedError(endpoint_url=request.url)


def lost_before(fault: Fault, then: Callable[[], object]) -> Fault:
    """A fault, after which somebody else does something before the next attempt."""

    def meet(request: AWSPreparedRequest) -> AWSResponse | None:
        try:
            return fault(request)
        finally:
            then()

    return meet


def cut_short(body: bytes) -> Fault:
    """An answer whose body ends in the middle."""
    return lambda request: _response(request.url, 200, body)


def damaged(request: AWSPreparedRequest) -> AWSResponse | None:
    """An answer that lost a byte although its checksum did not."""
    session = URLLib3Session()
    whole = session.send(request)
    session.close()
    return AWSResponse(request.url, whole.status_code, whole.headers, _Body(whole.content[:-1]))  # type: ignore[arg-type]


def _sent(request: AWSPreparedRequest) -> bytes:
    session = URLLib3Session()
    try:
        return session.send(request).content
    finally:
        session.close()


def _body(request: AWSPreparedRequest) -> str | bytes:
    assert isinstance(request.body, str | bytes)
    return request.body


class _Body:
    """The raw body of a response, as botocore reads it."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def stream(self, *_: object, **__: object) -> Iterator[bytes]:
        yield self._content


def _answer(status: int, body: dict[str, Any]) -> Fault:
    content = json.dumps(body).encode()
    return lambda request: _response(request.url, status, content)


def _response(url: str, status: int, content: bytes) -> AWSResponse:
    return AWSResponse(url, status, {"content-type": "application/x-amz-json-1.0"}, _Body(content))  # type: ignore[arg-type]
