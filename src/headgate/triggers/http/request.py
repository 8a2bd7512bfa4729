"""HTTP trigger: one request, which is the job itself, or starts one that calls back at its end.

The run's key is sent as `Idempotency-Key` with every attempt, so that receivers can detect repetitions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal

import msgspec

from headgate.durable.model.duration import Seconds
from headgate.triggers.config import Config, between, check_headers, check_url
from headgate.triggers.contract import (
    Job,
    JobState,
    PollResult,
    Started,
    completed,
    running,
)
from headgate.triggers.http.client import TIMEOUT_SECONDS, TRIES, HttpRequest, TriggerHttpClient

_TIMEOUT_SECONDS_MAX: Final = 900.0
_RETRIES_MAX: Final = 10
CALLBACK_HEADER: Final = "headgate-callback"


class HttpConfig(Config, frozen=True):
    """A request. A body other than text is sent as JSON; by default, it is a description of the run."""

    url: str
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"] = "POST"
    headers: dict[str, str] = {}
    body: Any = None
    timeout: Seconds = Seconds(TIMEOUT_SECONDS)
    # Further attempts after a 5xx, a 429 or a broken connection.
    retries: int = TRIES - 1
    # Where to cancel a job that calls back. Sent as POST.
    cancel_url: str | None = None

    def __post_init__(self) -> None:
        check_url(self.url)
        check_headers(self.headers)
        between("timeout", self.timeout, 0.1, _TIMEOUT_SECONDS_MAX)
        between("retries", self.retries, 0, _RETRIES_MAX)
        if self.cancel_url is not None:
            check_url(self.cancel_url)


class HttpKind:
    """Jobs behind a URL."""

    name: ClassVar[str] = "http"
    config_type: ClassVar[type[HttpConfig]] = HttpConfig
    secret_fields: ClassVar[frozenset[str]] = frozenset({"headers", "body"})
    is_local: ClassVar[bool] = False

    def __init__(self, outbound: TriggerHttpClient) -> None:
        self._outbound = outbound

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
        return running(job.key, **detail) if job.order.callback_url is not None else completed(job.key, **detail)

    def poll(self, job: Job[HttpConfig], metadata: Mapping[str, str]) -> PollResult:
        del metadata
        if job.order.callback_url is not None:
            return PollResult(JobState.RUNNING, reason="it reports its end itself")
        return PollResult(JobState.SUCCEEDED, reason="it had ended when the request was answered")

    def cancel(self, job: Job[HttpConfig], metadata: Mapping[str, str]) -> None:
        del metadata
        if job.config.cancel_url is None:
            return
        headers = _headers(job) | {name.lower(): value for name, value in job.config.headers.items()}
        request = HttpRequest(method="POST", url=job.config.cancel_url, headers=headers)
        answer = self._outbound.ask(request)
        if not answer.is_good and answer.status not in (404, 409, 410):
            raise answer.refusal()


def _headers(job: Job[HttpConfig]) -> dict[str, str]:
    headers = {"idempotency-key": job.key, "headgate-run-id": job.order.run_id}
    if job.order.callback_url is not None:
        headers[CALLBACK_HEADER] = job.order.callback_url
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
