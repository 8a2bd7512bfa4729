"""Exchange: requests and replies of the API as data, the error of a reply, and when a request is sent again. Pure."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote, urlencode

import msgspec
from msgspec import Raw, Struct

from headgate import typed_decode
from headgate.durable.model.failures import ErrorInfo
from headgate.errors import (
    DeadlineExceededError,
    FatalError,
    OutcomeUnknownError,
    TransientError,
)
from headgate.problem_errors import error_of

PREFIX: Final = "/api/v1"
# The longest that the server holds one request.
WAIT_SECONDS_MAX: Final = 50.0
FIRST_PAUSE_SECONDS: Final = 0.1
PAUSE_SECONDS_MAX: Final = 5.0
_SUCCESS: Final = range(200, 300)


class Request(Struct, frozen=True, kw_only=True):
    """A request of the API."""

    method: str
    path: str
    query: Mapping[str, str | Sequence[str]] = {}
    body: bytes | None = None
    # Whether sending it twice has the effect of sending it once.
    is_repeatable: bool = True
    idempotency_key: str = ""
    # How long the server may hold it, besides the time limit of the client.
    wait_seconds: float = 0.0

    @property
    def target(self) -> str:
        """The path with the query."""
        query = urlencode(self.query, doseq=True)
        return f"{PREFIX}{self.path}" + (f"?{query}" if query else "")

    def headers(self) -> dict[str, str]:
        """Return the headers of this request."""
        headers = {} if self.body is None else {"content-type": "application/json"}
        return headers if not self.idempotency_key else {**headers, "idempotency-key": self.idempotency_key}


class Reply(Struct, frozen=True):
    """A reply of the API."""

    status: int
    content: bytes
    retry_after_seconds: float = 0.0


class Problem(Struct, frozen=True):
    """The part of a problem document that the client reads. `errors` of user code have the fields of `ErrorInfo`."""

    code: str
    detail: str
    errors: list[Raw] = []


class NoReplyError(Exception):
    """A request without a reply. `was_sent` is whether the server may have carried it out."""

    def __init__(self, fact: str, *, was_sent: bool) -> None:
        super().__init__(fact)
        self.was_sent = was_sent


class ProblemReplyError(Exception):
    """A reply with a problem that is not an error of Headgate itself: user code raised it."""

    def __init__(self, problem: Problem, info: ErrorInfo) -> None:
        super().__init__(problem.detail)
        self.problem = problem
        self.info = info


_USER_CODE: Final = frozenset({"update_rejected", "update_failed", "query_failed"})


def path_of(*segments: str) -> str:
    """Return the path of these segments, with slashes in a segment escaped."""
    return "".join(f"/{quote(segment, safe='')}" for segment in segments)


def moment_text(moment: datetime | None) -> str | None:
    """Return a time for a query; one without a zone is in UTC."""
    if moment is None:
        return None
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).isoformat()


def json_body(members: Mapping[str, object]) -> bytes:
    """Return a body without the members that are None."""
    return msgspec.json.encode({name: value for name, value in members.items() if value is not None})


def checked(reply: Reply, url: str) -> bytes:
    """Return the content of a successful reply. Raises the error of any other."""
    if reply.status in _SUCCESS:
        return reply.content
    try:
        problem = typed_decode.from_json(reply.content, Problem)
    except msgspec.DecodeError:
        raise FatalError(f"{url}: unexpected reply with status {reply.status}; check the address") from None
    if problem.code in _USER_CODE and problem.errors:
        raise ProblemReplyError(problem, typed_decode.from_json(problem.errors[0], ErrorInfo))
    raise error_of(reply.status, problem.code, problem.detail)


class Retries:
    """Decides whether and when one request is sent again. The time is passed in."""

    def __init__(
        self, request: Request, url: str, *, seconds_max: float, draw: Callable[[], float] = random.random
    ) -> None:
        self._request = request
        self._url = url
        self._seconds_max = seconds_max
        self._draw = draw
        self._attempt = 0

    def after_reply(self, reply: Reply, error: Exception, elapsed_seconds: float) -> float | None:
        """Return the pause before the next attempt; None if the error is to be raised."""
        if not isinstance(error, TransientError):
            return None
        if isinstance(error, DeadlineExceededError) and not self._request.is_repeatable:
            return None
        return self._pause(elapsed_seconds, reply.retry_after_seconds)

    def after_no_reply(self, error: NoReplyError, elapsed_seconds: float) -> float:
        """Return the pause before the next attempt. Raises `OutcomeUnknownError`, or `TransientError` at the end."""
        if error.was_sent and not self._request.is_repeatable:
            raise OutcomeUnknownError(
                f"{self._url}: {error}, and the request may have been carried out; read the state before sending again"
            ) from error
        pause_seconds = self._pause(elapsed_seconds)
        if pause_seconds is None:
            raise TransientError(f"{self._url}: {error}; the server is not reachable, try again later") from error
        return pause_seconds

    def _pause(self, elapsed_seconds: float, at_least: float = 0.0) -> float | None:
        ceiling = min(PAUSE_SECONDS_MAX, FIRST_PAUSE_SECONDS * 2**self._attempt)
        self._attempt += 1
        # Full jitter, so that many clients do not come back together.
        pause_seconds = max(at_least, ceiling * self._draw())
        return pause_seconds if elapsed_seconds + pause_seconds <= self._seconds_max else None
