"""Databricks trigger: starts a run of an existing job (`job_id`), or a one-time run of tasks (`tasks`).

Our key is the idempotency token: Databricks answers a repeated start with the existing run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal
from urllib.parse import urlencode

import msgspec

from headgate.durable.model.duration import Seconds
from headgate.triggers.config import Config, between, check_headers, check_url, exactly_one
from headgate.triggers.contract import (
    FailureCategory,
    Job,
    JobState,
    PollResult,
    Started,
    TriggerFailedError,
    external_id_of,
    failed,
    running,
)
from headgate.triggers.failure_patterns import category_of
from headgate.triggers.http.client import TIMEOUT_SECONDS, HttpRequest, HttpResponse, TriggerHttpClient, json_headers

_ENDED: Final = frozenset({"TERMINATED", "SKIPPED", "INTERNAL_ERROR"})
_GOOD: Final = frozenset({"SUCCESS", "SUCCESS_WITH_FAILURES"})
_GONE: Final = frozenset({"RESOURCE_DOES_NOT_EXIST", "NOT_FOUND"})
_BY_RESULT: Final = {
    "TIMEDOUT": FailureCategory.TIMEOUT,
    "CANCELED": FailureCategory.TRANSIENT,
    "UPSTREAM_CANCELED": FailureCategory.TRANSIENT,
    "MAXIMUM_CONCURRENT_RUNS_REACHED": FailureCategory.TRANSIENT,
    "EXCLUDED": FailureCategory.PERMANENT,
    "DISABLED": FailureCategory.PERMANENT,
}
# Failure categories by Databricks' own termination codes.
_BY_TYPE: Final = {
    "CLIENT_ERROR": FailureCategory.PERMANENT,
    "INTERNAL_ERROR": FailureCategory.TRANSIENT,
    "CLOUD_FAILURE": FailureCategory.TRANSIENT,
}
_OF_JOB: Final = (
    "job_parameters",
    "notebook_params",
    "python_params",
    "python_named_params",
    "jar_params",
    "spark_submit_params",
    "dbt_commands",
)
_OF_SUBMIT: Final = ("tasks", "timeout_seconds", "git_source", "environments", "queue")


class DatabricksConfig(Config, frozen=True):
    """A job, or tasks. `url` is that of the workspace."""

    url: str
    token: str | None = None
    headers: dict[str, str] = {}
    api: Literal["2.1", "2.2"] = "2.1"
    job_id: int | str | None = None
    tasks: list[dict[str, Any]] | None = None
    run_name: str | None = None
    job_parameters: dict[str, str] | None = None
    notebook_params: dict[str, str] | None = None
    python_params: list[str] | None = None
    python_named_params: dict[str, str] | None = None
    jar_params: list[str] | None = None
    spark_submit_params: list[str] | None = None
    dbt_commands: list[str] | None = None
    timeout_seconds: int | None = None
    git_source: dict[str, Any] | None = None
    environments: list[dict[str, Any]] | None = None
    queue: dict[str, Any] | None = None
    timeout: Seconds = Seconds(TIMEOUT_SECONDS)

    def __post_init__(self) -> None:
        check_url(self.url)
        check_headers(self.headers)
        between("timeout", self.timeout, 0.1, 900)
        given = exactly_one(job_id=self.job_id, tasks=self.tasks)
        if self.tasks is not None and not self.tasks:
            raise ValueError("tasks: there is none; give one at least")
        if isinstance(self.job_id, str) and not self.job_id.isdigit():
            raise ValueError(f"job_id {self.job_id[:40]!r}: give the job's number, not its name")
        strange = _OF_JOB if given == "tasks" else _OF_SUBMIT[1:4]
        wrong = [name for name in strange if getattr(self, name) is not None]
        if wrong:
            raise ValueError(f"{wrong[0]}: not allowed with {given}; leave it out")


class DatabricksKind:
    """Runs of Databricks jobs."""

    name: ClassVar[str] = "databricks"
    config_type: ClassVar[type[DatabricksConfig]] = DatabricksConfig
    secret_fields: ClassVar[frozenset[str]] = frozenset({"headers", "token"})
    is_local: ClassVar[bool] = False

    def __init__(self, outbound: TriggerHttpClient) -> None:
        self._outbound = outbound

    def start(self, job: Job[DatabricksConfig]) -> Started:
        config = job.config
        body: dict[str, Any] = {"idempotency_token": job.key}
        if config.job_id is not None:
            path = "run-now"
            body["job_id"] = int(config.job_id)
            body |= _given(config, (*_OF_JOB, "queue"))
        else:
            path = "runs/submit"
            body["run_name"] = config.run_name or f"{job.order.pipeline} {job.order.schedule} {job.order.date}"
            body |= _given(config, _OF_SUBMIT)
        answer = self._ask(config, "POST", path, body)
        if not answer.is_good:
            raise _refusal(answer)
        run_id = answer.object().get("run_id")
        if run_id is None:
            raise TriggerFailedError(
                f"{answer.where}: the start was answered without a run_id", FailureCategory.TRANSIENT
            )
        return running(str(run_id))

    def poll(self, job: Job[DatabricksConfig], metadata: Mapping[str, str]) -> PollResult:
        run_id = external_id_of(job.order, metadata)
        answer = self._ask(job.config, "GET", f"runs/get?{urlencode({'run_id': run_id})}")
        if not answer.is_good:
            if _is_gone(answer):
                return failed(FailureCategory.PERMANENT, f"Databricks has no run {run_id}")
            raise _refusal(answer)
        return judge(answer.object())

    def cancel(self, job: Job[DatabricksConfig], metadata: Mapping[str, str]) -> None:
        run_id = external_id_of(job.order, metadata)
        answer = self._ask(job.config, "POST", "runs/cancel", {"run_id": int(run_id)})
        if not answer.is_good and not _is_gone(answer):
            raise _refusal(answer)

    def _ask(
        self, config: DatabricksConfig, method: str, path: str, body: dict[str, Any] | None = None
    ) -> HttpResponse:
        proof = {} if config.token is None else {"authorization": f"Bearer {config.token}"}
        return self._outbound.ask(
            HttpRequest(
                method=method,
                url=f"{config.url.rstrip('/')}/api/{config.api}/jobs/{path}",
                headers=json_headers(proof | {name.lower(): value for name, value in config.headers.items()}),
                body=b"" if body is None else msgspec.json.encode(body),
                timeout_seconds=config.timeout,
            )
        )


def judge(run: Mapping[str, Any]) -> PollResult:
    """Return the state of a run from its `runs/get` response."""
    state = _part(run, "state")
    life, result = str(state.get("life_cycle_state") or "PENDING"), str(state.get("result_state") or "")
    if life not in _ENDED:
        return PollResult(JobState.RUNNING, reason=life)
    if life == "TERMINATED" and result in _GOOD:
        return PollResult(JobState.SUCCEEDED, reason="" if result == "SUCCESS" else result)
    details = _part(_part(run, "status"), "termination_details")
    message = str(state.get("state_message") or details.get("message") or "")
    reason = f"{result or life}: {message}" if message else result or life
    if life == "SKIPPED" and result not in _BY_RESULT:
        return failed(FailureCategory.PERMANENT, reason)
    if life == "INTERNAL_ERROR":
        return failed(FailureCategory.TRANSIENT, reason)
    category = _BY_RESULT.get(result) or _BY_TYPE.get(str(details.get("type"))) or category_of(reason)
    return failed(category, reason)


def _part(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = value.get(name)
    return found if isinstance(found, dict) else {}


def _given(config: DatabricksConfig, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(config, name) for name in names if getattr(config, name) is not None}


def _is_gone(answer: HttpResponse) -> bool:
    if answer.status not in (400, 404):
        return False
    detail = answer.object()
    return detail.get("error_code") in _GONE or "does not exist" in str(detail.get("message"))


def _refusal(answer: HttpResponse) -> TriggerFailedError:
    # A workspace at its limit of runs answers 400.
    if answer.status == 400 and b"QUOTA_EXCEEDED" in answer.body:
        return TriggerFailedError(f"{answer.where}: its quota is used up for now", FailureCategory.TRANSIENT)
    return answer.refusal()
