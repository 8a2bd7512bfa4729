"""Job status over HTTP: decides from the answer of a status URL whether a job is running, has succeeded or has failed.

A status that no rule covers is "cannot tell", never "done": the run keeps waiting, and the error names the remedy.
"""

from __future__ import annotations

from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

import msgspec

from headgate import typed_decode
from headgate.triggers.config import Config, check_url
from headgate.triggers.contract import (
    FailureCategory,
    JobState,
    PollResult,
    TriggerFailedError,
    failed,
    shown,
)
from headgate.triggers.failure_patterns import category_of
from headgate.triggers.http.client import HttpResponse

# States of services that follow a convention, in lower case.
RUNNING: Final = (
    "accepted", "created", "in_progress", "in-progress", "inprogress", "notstarted", "pending", "processing", "queued",
    "running", "scheduled", "started", "starting", "submitted", "waiting",
)  # fmt: skip
SUCCEEDED: Final = ("complete", "completed", "done", "finished", "ok", "succeeded", "success", "successful")
FAILED: Final = ("aborted", "canceled", "cancelled", "error", "errored", "failed", "failure", "timedout", "timed_out")
RETRY_AFTER_SECONDS_MAX: Final = 3_600.0
_URL_CHARS_MAX: Final = 2_000
# Where a status without a `path` is looked for.
_USUAL_PATHS: Final = ("status", "state")
_ACCEPTED: Final = 202
_SEE_OTHER: Final = 303
_GONE: Final = frozenset({404, 410})


class StatusConfig(Config, frozen=True):
    """How a job is polled. Without a `url`, at the Location of the answer to the request."""

    url: str | None = None
    # JSONPath to the state of the job in the answer; without it the status code and the usual names decide.
    path: str | None = None
    # Values of the state, compared without regard to case.
    running: tuple[str, ...] = RUNNING
    succeeded: tuple[str, ...] = SUCCEEDED
    failed: tuple[str, ...] = FAILED
    # JSONPath to the message of a failure.
    reason: str | None = None

    def __post_init__(self) -> None:
        if self.url is not None:
            check_url(self.url)
        check_path("status.path", self.path)
        check_path("status.reason", self.reason)
        for name in ("running", "succeeded", "failed"):
            if not getattr(self, name):
                raise ValueError(f"status.{name}: give at least one value")
        groups = [{each.lower() for each in group} for group in (self.running, self.succeeded, self.failed)]
        twice = (groups[0] & groups[1]) | (groups[0] & groups[2]) | (groups[1] & groups[2])
        if twice:
            raise ValueError(f"status: {', '.join(sorted(twice))} is in two of running, succeeded and failed")


def check_path(field: str, path: str | None) -> None:
    """Raise `ValueError` for an invalid JSONPath."""
    if path is None:
        return
    # Imported on first use: it takes longer than the rest of the triggers.
    import jsonpath
    from jsonpath.exceptions import JSONPathError

    try:
        jsonpath.compile(path)
    except JSONPathError as exc:
        raise ValueError(f"{field} {path[:80]!r}: it is no JSONPath ({exc}); write one such as $.job.state") from exc


def value_at(path: str, response: HttpResponse) -> Any:  # noqa: ANN401 - any JSON
    """Return the first value that a JSONPath finds in an answer; None if it finds nothing, or no JSON."""
    try:
        document = typed_decode.from_json(response.body, Any)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(document, dict | list):
        return None
    import jsonpath

    return next(iter(jsonpath.findall(path, document)), None)


def location_of(response: HttpResponse, requested_url: str) -> str | None:
    """Return the URL of an answer's Location, which may be relative to the request; None without one."""
    location = response.headers.get("location", "").strip()
    if not location:
        return None
    url = urljoin(requested_url, location)
    if len(url) > _URL_CHARS_MAX or urlsplit(url).scheme not in ("http", "https"):
        raise TriggerFailedError(
            f"{response.where}: its Location is no URL that can be polled: {shown(location[:80])}",
            FailureCategory.PERMANENT,
            was_started=True,
        )
    return url


def retry_after_seconds(response: HttpResponse, now: datetime) -> float | None:
    """Return the time that an answer asks to wait, up to an hour: seconds or a date in Retry-After."""
    text = response.headers.get("retry-after", "").strip()
    if not text:
        return None
    try:
        seconds = float(text) if text.isdigit() else (parsedate_to_datetime(text) - now).total_seconds()
    except (ValueError, TypeError):
        return None
    return min(max(0.0, seconds), RETRY_AFTER_SECONDS_MAX)


def judge(response: HttpResponse, config: StatusConfig | None, now: datetime) -> PollResult:
    """Return the state of a job from the answer of its status URL. Raises `TriggerFailedError` if it cannot tell."""
    if response.status in _GONE:
        return failed(
            FailureCategory.PERMANENT, f"{response.where}: answered {response.status}: it no longer knows the job"
        )
    if response.status == _SEE_OTHER:
        # The result is elsewhere, so there is one.
        return PollResult(JobState.SUCCEEDED, reason="answered 303")
    if not response.is_good:
        raise response.refusal()
    how = StatusConfig() if config is None else config
    state = _state(response, how)
    running = PollResult(JobState.RUNNING, check_after_seconds=retry_after_seconds(response, now))
    if state is None:
        if response.status == _ACCEPTED:
            return running
        if how.path is not None:
            raise TriggerFailedError(
                f"{response.where}: status.path {how.path} finds nothing in its answer; correct the path",
                FailureCategory.TRANSIENT,
            )
        return PollResult(JobState.SUCCEEDED, reason=f"answered {response.status}")
    if _is_in(state, how.running):
        return running
    if _is_in(state, how.succeeded):
        return PollResult(JobState.SUCCEEDED, reason=state)
    if _is_in(state, how.failed):
        reason = _reason(response, how)
        return failed(category_of(reason), f"{response.where}: the job is {state}" + (f": {reason}" if reason else ""))
    raise TriggerFailedError(
        f"{response.where}: the state {shown(state)!r} is in none of running, succeeded and failed; "
        "add it to one of them in status",
        FailureCategory.TRANSIENT,
    )


def _state(response: HttpResponse, how: StatusConfig) -> str | None:
    if how.path is not None:
        return _text(value_at(how.path, response))
    found = (value_at(f"$.{name}", response) for name in _USUAL_PATHS)
    return next((value for value in found if isinstance(value, str) and value), None)


def _text(value: Any) -> str | None:  # noqa: ANN401 - any JSON
    if value is None or isinstance(value, dict | list):
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


def _is_in(state: str, values: tuple[str, ...]) -> bool:
    return state.lower() in (value.lower() for value in values)


def _reason(response: HttpResponse, how: StatusConfig) -> str:
    value = None if how.reason is None else value_at(how.reason, response)
    return shown(value if isinstance(value, str) else msgspec.json.encode(value).decode()) if value else ""
