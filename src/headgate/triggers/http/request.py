"""HTTP trigger: one request, which is the job itself, or starts one that is polled or calls back at its end.

Synchronous: a 2xx answer is the end of the job. Polled: an answer 202 with Location, or a `status` in the config, names
a URL whose answers tell the state. Callback: the job gets a URL and a token, and reports itself.

The run's key is sent as `Idempotency-Key` with every attempt, so that receivers can detect repetitions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal
from urllib.parse import quote, urlsplit

import msgspec

from headgate.clock import Clock
from headgate.durable.model.duration import Seconds
from headgate.triggers.config import Config, between, check_headers, check_url
from headgate.triggers.contract import (
    FailureCategory,
    Job,
    JobState,
    PollResult,
    Started,
    TriggerFailedError,
    completed,
    running,
    shown,
)
from headgate.triggers.http.client import TIMEOUT_SECONDS, TRIES, HttpRequest, HttpResponse, TriggerHttpClient
from headgate.triggers.http.job_status import (
    StatusConfig,
    check_path,
    judge,
    location_of,
    retry_after_seconds,
    value_at,
)

_TIMEOUT_SECONDS_MAX: Final = 900.0
_RETRIES_MAX: Final = 10
_ACCEPTED: Final = 202
_STATUS_URL: Final = "status_url"
_POLL_AT: Final = "poll_at_seconds"
_JOB_ID: Final = "job_id"
# Filled in by the trigger itself, from the answer to the request.
_LATE: Final = "${job_id}"
CALLBACK_HEADER: Final = "headgate-callback"
CALLBACK_TOKEN_HEADER: Final = "headgate-callback-token"


class HttpConfig(Config, frozen=True):
    """A request. A body other than text is sent as JSON; by default, it is a description of the run."""

    url: str
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"] = "POST"
    headers: dict[str, str] = {}
    body: Any = None
    timeout: Seconds = Seconds(TIMEOUT_SECONDS)
    # Further attempts after a 5xx, a 429 or a broken connection.
    retries: int = TRIES - 1
    # JSONPath to the job's id in the answer, for ${job_id} in `status.url` and `cancel_url`.
    job_id: str | None = None
    status: StatusConfig | None = None
    # Whether an answer 202 counts as the end of the job.
    accepts_202: bool = False
    # Where to cancel a job that is polled or calls back. Sent as POST.
    cancel_url: str | None = None

    def __post_init__(self) -> None:
        check_url(self.url)
        check_headers(self.headers)
        between("timeout", self.timeout, 0.1, _TIMEOUT_SECONDS_MAX)
        between("retries", self.retries, 0, _RETRIES_MAX)
        check_path("job_id", self.job_id)
        if self.cancel_url is not None:
            check_url(self.cancel_url)
        if self.status is not None and self.accepts_202:
            raise ValueError("accepts_202: it contradicts status, by which the job is polled; give one of the two")
        if _LATE in msgspec.json.encode([self.url, self.headers, self.body]).decode():
            raise ValueError(f"{_LATE}: it is known after the request only; use it in status.url or cancel_url")
        late = [url for url in (self.cancel_url, self.status and self.status.url) if url and _LATE in url]
        if late and self.job_id is None:
            raise ValueError(f"job_id: {_LATE} is used; give the JSONPath to the id in the answer, such as $.id")


class HttpKind:
    """Jobs behind a URL."""

    name: ClassVar[str] = "http"
    config_type: ClassVar[type[HttpConfig]] = HttpConfig
    secret_fields: ClassVar[frozenset[str]] = frozenset({"headers", "body"})
    is_local: ClassVar[bool] = False
    late_names: ClassVar[frozenset[str]] = frozenset({_JOB_ID})

    def __init__(self, outbound: TriggerHttpClient, clock: Clock) -> None:
        self._outbound = outbound
        self._clock = clock

    def start(self, job: Job[HttpConfig]) -> Started:
        config = job.config
        content_type, body = _body(job)
        answer = self._outbound.ask(
            HttpRequest(
                method=config.method,
                url=config.url,
                headers=_headers(job) | content_type | {n.lower(): v for n, v in config.headers.items()},
                body=body,
                timeout_seconds=config.timeout,
                # The receiver may ignore the key, and a slow job may have started.
                is_idempotent=config.method in ("GET", "PUT", "DELETE"),
            ),
            tries=config.retries + 1,
        )
        if not answer.is_good:
            raise answer.refusal()
        detail = {"status": str(answer.status)}
        job_id = _job_id(config, answer)
        if job_id:
            detail[_JOB_ID] = job_id
        status_url = _status_url(job, answer, job_id)
        if status_url is not None:
            detail[_STATUS_URL] = status_url
            wait_seconds = retry_after_seconds(answer, self._clock.now())
            if wait_seconds:
                detail[_POLL_AT] = str(round(self._clock.seconds() + wait_seconds))
        if status_url is not None or job.order.callback_url is not None:
            return running(job_id or job.key, **detail)
        if answer.status == _ACCEPTED and not config.accepts_202:
            raise TriggerFailedError(
                f"{answer.where}: answered 202 without Location, so that the end of the job would never be known; "
                "set callback: true, give status, or set accepts_202 if the answer is the end of the job",
                FailureCategory.PERMANENT,
                was_started=True,
            )
        return completed(job_id or job.key, **detail)

    def poll(self, job: Job[HttpConfig], metadata: Mapping[str, str]) -> PollResult:
        url = metadata.get(_STATUS_URL)
        if url is None:
            if job.order.callback_url is not None:
                return PollResult(JobState.RUNNING, reason="it reports its end itself")
            return PollResult(JobState.SUCCEEDED, reason="it had ended when the request was answered")
        left_seconds = float(metadata.get(_POLL_AT, 0)) - self._clock.seconds()
        if left_seconds > 0:
            return PollResult(JobState.RUNNING, check_after_seconds=left_seconds)
        timeout_seconds = min(job.config.timeout, TIMEOUT_SECONDS)
        request = HttpRequest(method="GET", url=url, headers=_poll_headers(job, url), timeout_seconds=timeout_seconds)
        return judge(self._outbound.ask(request), job.config.status, self._clock.now())

    def cancel(self, job: Job[HttpConfig], metadata: Mapping[str, str]) -> None:
        if job.config.cancel_url is None:
            return
        url = _filled(job.config.cancel_url, metadata.get(_JOB_ID, ""))
        headers = _headers(job) | {name.lower(): value for name, value in job.config.headers.items()}
        answer = self._outbound.ask(HttpRequest(method="POST", url=url, headers=headers))
        if not answer.is_good and answer.status not in (404, 409, 410):
            raise answer.refusal()


def _job_id(config: HttpConfig, answer: HttpResponse) -> str:
    if config.job_id is None:
        return ""
    value = value_at(config.job_id, answer)
    if value is None or isinstance(value, bool | dict | list) or not str(value):
        raise TriggerFailedError(
            f"{answer.where}: job_id {config.job_id} finds no id in its answer; correct the path",
            FailureCategory.PERMANENT,
            was_started=True,
        )
    return shown(str(value))


def _status_url(job: Job[HttpConfig], answer: HttpResponse, job_id: str) -> str | None:
    """Return where the job is polled, or None if it is not."""
    config = job.config
    if config.status is not None:
        if config.status.url is not None:
            return _filled(config.status.url, job_id)
        return location_of(answer, config.url)
    if answer.status != _ACCEPTED or config.accepts_202 or job.order.callback_url is not None:
        return None
    return location_of(answer, config.url)


def _filled(url: str, job_id: str) -> str:
    return url.replace(_LATE, quote(job_id, safe=""))


def _poll_headers(job: Job[HttpConfig], url: str) -> dict[str, str]:
    """Return the headers of a poll. Those of the config may be secrets: a Location on another host gets none."""
    config = job.config
    is_chosen = config.status is not None and config.status.url is not None
    own = {"accept": "application/json", "headgate-run-id": job.order.run_id}
    if not is_chosen and _origin(url) != _origin(config.url):
        return own
    return own | {name.lower(): value for name, value in config.headers.items()}


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc.lower()


def _headers(job: Job[HttpConfig]) -> dict[str, str]:
    headers = {"idempotency-key": job.key, "headgate-run-id": job.order.run_id}
    if job.order.callback_url is not None:
        headers[CALLBACK_HEADER] = job.order.callback_url
    if job.order.callback_token is not None:
        headers[CALLBACK_TOKEN_HEADER] = job.order.callback_token
    return headers


def _body(job: Job[HttpConfig]) -> tuple[dict[str, str], bytes]:
    order, body = job.order, job.config.body
    if body is None and job.config.method in ("GET", "DELETE"):
        return {}, b""
    if isinstance(body, str):
        return {"content-type": "text/plain; charset=utf-8"}, body.encode()
    if body is None:
        body = {"pipeline": order.pipeline, "schedule": order.schedule, "date": order.date, "run_id": order.run_id}
    return {"content-type": "application/json"}, msgspec.json.encode(body)
