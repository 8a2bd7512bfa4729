"""Airflow trigger: starts a DAG run by the REST API of Airflow 2 (v1) or Airflow 3 (v2).

The DAG run has our key as its id, so that a repeated start finds it. Calls authenticate with a token, with user and
password (v1), or with a token obtained for user and password and renewed when it expires (v2).
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal
from urllib.parse import quote

import msgspec

from headgate.durable.model.duration import Seconds
from headgate.triggers.config import Config, between, check_headers, check_name, check_url
from headgate.triggers.contract import (
    FailureCategory,
    Job,
    JobState,
    PollResult,
    Started,
    TriggerFailedError,
    failed,
    running,
)
from headgate.triggers.failure_patterns import category_of
from headgate.triggers.http.client import TIMEOUT_SECONDS, HttpRequest, HttpResponse, TriggerHttpClient, json_headers

_TASKS_SHOWN: Final = 5
_TOKENS_MAX: Final = 256


class AirflowConfig(Config, frozen=True):
    """A DAG and its credentials. `url` is the base URL of Airflow, without `/api`."""

    url: str
    dag_id: str
    api: Literal["v1", "v2"] = "v2"
    conf: dict[str, Any] = {}
    logical_date: str | None = None
    note: str | None = None
    headers: dict[str, str] = {}
    token: str | None = None
    username: str | None = None
    password: str | None = None
    timeout: Seconds = Seconds(TIMEOUT_SECONDS)

    def __post_init__(self) -> None:
        check_url(self.url)
        check_headers(self.headers)
        check_name("dag_id", self.dag_id)
        between("timeout", self.timeout, 0.1, 900)
        if (self.username is None) != (self.password is None):
            raise ValueError("username, password: they go together; give both, or neither")
        if self.token is not None and self.username is not None:
            raise ValueError("token, username: give only one of them")


class AirflowKind:
    """DAG runs."""

    name: ClassVar[str] = "airflow"
    config_type: ClassVar[type[AirflowConfig]] = AirflowConfig
    secret_fields: ClassVar[frozenset[str]] = frozenset({"headers", "token", "username", "password", "conf"})
    is_local: ClassVar[bool] = False

    def __init__(self, outbound: TriggerHttpClient) -> None:
        self._outbound = outbound
        self._tokens: dict[tuple[str, str, str], str] = {}
        self._lock = threading.Lock()

    def start(self, job: Job[AirflowConfig]) -> Started:
        config = job.config
        body: dict[str, Any] = {"dag_run_id": job.key, "conf": config.conf}
        if config.note is not None:
            body["note"] = config.note
        if config.logical_date is not None or config.api == "v2":
            # Airflow 3 requires an explicit null.
            body["logical_date"] = config.logical_date
        answer = self._ask(config, "POST", _runs(config), body)
        if answer.status == 409 and not self._ask(config, "GET", _run(config, job.key)).is_good:
            # Not ours: another run has the same logical date.
            raise answer.refusal()
        if not answer.is_good and answer.status != 409:
            raise answer.refusal()
        return running(job.key, dag_id=config.dag_id)

    def poll(self, job: Job[AirflowConfig], metadata: Mapping[str, str]) -> PollResult:
        del metadata
        answer = self._ask(job.config, "GET", _run(job.config, job.key))
        if answer.status == 404:
            return failed(FailureCategory.PERMANENT, f"Airflow has no run {job.key} of DAG {job.config.dag_id}")
        if not answer.is_good:
            raise answer.refusal()
        state = str(answer.object().get("state") or "queued")
        if state == "success":
            return PollResult(JobState.SUCCEEDED)
        if state == "failed":
            reason = f"DAG {job.config.dag_id} failed{self._failed_tasks(job)}"
            return failed(category_of(reason), reason)
        return PollResult(JobState.RUNNING, reason=state)

    def cancel(self, job: Job[AirflowConfig], metadata: Mapping[str, str]) -> None:
        del metadata
        found = self._ask(job.config, "GET", _run(job.config, job.key))
        if found.status == 404 or (found.is_good and found.object().get("state") in ("success", "failed")):
            return
        answer = self._ask(job.config, "PATCH", _run(job.config, job.key), {"state": "failed"})
        if not answer.is_good and answer.status != 404:
            raise answer.refusal()

    def _failed_tasks(self, job: Job[AirflowConfig]) -> str:
        """Return the names of failed tasks for the message, or an empty string."""
        try:
            answer = self._ask(job.config, "GET", f"{_run(job.config, job.key)}/taskInstances?state=failed&limit=100")
            tasks = answer.object().get("task_instances", []) if answer.is_good else []
        except TriggerFailedError:
            return ""
        names = [str(task.get("task_id")) for task in tasks if isinstance(task, dict)]
        more = f" and {len(names) - _TASKS_SHOWN} more" if len(names) > _TASKS_SHOWN else ""
        return f": tasks {', '.join(names[:_TASKS_SHOWN])}{more}" if names else ""

    def _ask(self, config: AirflowConfig, method: str, path: str, body: dict[str, Any] | None = None) -> HttpResponse:
        answer = self._send(config, method, path, body, self._authorization(config))
        if answer.status == 401 and config.api == "v2" and config.username is not None:
            # The token has expired.
            answer = self._send(config, method, path, body, self._authorization(config, renew=True))
        return answer

    def _send(
        self, config: AirflowConfig, method: str, path: str, body: dict[str, Any] | None, headers: Mapping[str, str]
    ) -> HttpResponse:
        return self._outbound.ask(
            HttpRequest(
                method=method,
                url=config.url.rstrip("/") + path,
                headers=json_headers({**headers, **{name.lower(): value for name, value in config.headers.items()}}),
                body=b"" if body is None else msgspec.json.encode(body),
                timeout_seconds=config.timeout,
            )
        )

    def _authorization(self, config: AirflowConfig, *, renew: bool = False) -> dict[str, str]:
        if config.token is not None:
            return {"authorization": f"Bearer {config.token}"}
        if config.username is None or config.password is None:
            return {}
        if config.api == "v1":
            pair = base64.b64encode(f"{config.username}:{config.password}".encode()).decode()
            return {"authorization": f"Basic {pair}"}
        who = (config.url, config.username, config.password)
        token = None if renew else self._tokens.get(who)
        if token is None:
            token = self._new_token(config, config.username, config.password)
            with self._lock:
                if len(self._tokens) >= _TOKENS_MAX:
                    self._tokens.clear()
                self._tokens[who] = token
        return {"authorization": f"Bearer {token}"}

    def _new_token(self, config: AirflowConfig, username: str, password: str) -> str:
        answer = self._send(config, "POST", "/auth/token", {"username": username, "password": password}, {})
        if not answer.is_good:
            raise answer.refusal()
        token = answer.object().get("access_token")
        if not isinstance(token, str) or not token:
            raise TriggerFailedError(
                f"{answer.where}: /auth/token gave no access_token; is it Airflow 3?", FailureCategory.PERMANENT
            )
        return token


def _runs(config: AirflowConfig) -> str:
    return f"/api/{config.api}/dags/{quote(config.dag_id, safe='')}/dagRuns"


def _run(config: AirflowConfig, run_id: str) -> str:
    return f"{_runs(config)}/{quote(run_id, safe='')}"
