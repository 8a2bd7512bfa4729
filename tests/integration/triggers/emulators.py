"""Emulators of the REST APIs that triggers speak: paths, proofs of identity, bodies and errors as documented."""

from __future__ import annotations

import base64
import itertools
import re
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.unit.triggers.rigs import Asked, Reply

USER, PASSWORD = "headgate", "s3cret-passw0rd"


class Airflow:
    """DAG runs: v1 of Airflow 2 with basic auth, v2 of Airflow 3 with tokens from /auth/token."""

    def __init__(self, api: str) -> None:
        self.api = api
        self.runs: dict[tuple[str, str], dict[str, Any]] = {}
        self.dags = {"load orders"}
        self.failed_tasks: list[str] = []
        self.token = "jwt-1"
        self.tokens_given = 0
        # How many of the next starts are acted upon and then not answered.
        self.lost_answers = 0

    def answer(self, asked: Asked) -> Reply | None:
        where = urlsplit(asked.path)
        if self.api == "v2" and where.path == "/auth/token":
            return self._login(asked)
        if not self._is_known(asked):
            return 401, self._problem(401, "Unauthorized", f"no: {asked.headers.get('authorization')}")
        match = re.fullmatch(rf"/api/{self.api}/dags/([^/]+)/dagRuns(?:/([^/]+))?(/taskInstances)?", where.path)
        if match is None:
            return 404, self._problem(404, "Not Found", "no such path")
        dag_id, run_id = unquote(match.group(1)), match.group(2)
        if dag_id not in self.dags:
            return 404, self._problem(404, "DAG not found", f"DAG with dag_id: '{dag_id}' not found")
        if run_id is None:
            return self._trigger(dag_id, asked)
        return self._one(dag_id, unquote(run_id), asked, is_tasks=match.group(3) is not None)

    def _login(self, asked: Asked) -> Reply:
        if asked.json() != {"username": USER, "password": PASSWORD}:
            return 401, {"detail": "Invalid credentials"}
        self.tokens_given += 1
        return 201, {"access_token": self.token}

    def _is_known(self, asked: Asked) -> bool:
        pair = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        return asked.headers.get("authorization") == (f"Basic {pair}" if self.api == "v1" else f"Bearer {self.token}")

    def _trigger(self, dag_id: str, asked: Asked) -> Reply | None:
        body = asked.json()
        if self.api == "v2" and "logical_date" not in body:
            return 422, {"detail": [{"type": "missing", "loc": ["body", "logical_date"], "msg": "Field required"}]}
        run_id, date = body["dag_run_id"], body.get("logical_date")
        same_date = date is not None and any(run["logical_date"] == date for run in self.runs.values())
        if (dag_id, run_id) in self.runs or same_date:
            return 409, self._problem(409, "Conflict", f"DAGRun with DAG ID: '{dag_id}' and the same id or date exists")
        run = {"dag_id": dag_id, "dag_run_id": run_id, "state": "queued", "logical_date": date, "conf": body["conf"]}
        self.runs[dag_id, run_id] = run
        if self.lost_answers:
            self.lost_answers -= 1
            return None
        return 200, run

    def _one(self, dag_id: str, run_id: str, asked: Asked, *, is_tasks: bool) -> Reply:
        run = self.runs.get((dag_id, run_id))
        if run is None:
            return 404, self._problem(404, "DAGRun not found", f"DAGRun with run_id: '{run_id}' was not found")
        if is_tasks:
            tasks = [{"task_id": name, "state": "failed"} for name in self.failed_tasks]
            return 200, {"task_instances": tasks, "total_entries": len(tasks)}
        if asked.method == "PATCH":
            if asked.json().get("state") not in ("queued", "success", "failed"):
                return 400, self._problem(400, "Bad Request", "state")
            run["state"] = asked.json()["state"]
        return 200, run

    def _problem(self, status: int, title: str, detail: str) -> dict[str, Any]:
        if self.api == "v2":
            return {"detail": detail}
        return {"detail": detail, "status": status, "title": title, "type": "about:blank"}


class Databricks:
    """Jobs API 2.1: run-now, runs/submit, runs/get and runs/cancel, with a personal access token."""

    token = "dapi-0123456789"

    def __init__(self) -> None:
        self.runs: dict[int, dict[str, Any]] = {}
        self.by_token: dict[str, int] = {}
        self.numbers = itertools.count(455_644_833)
        self.lost_answers = 0
        self.cancelled: list[int] = []

    def answer(self, asked: Asked) -> Reply | None:
        if asked.headers.get("authorization") != f"Bearer {self.token}":
            return 401, {"error_code": "UNAUTHENTICATED", "message": f"not {asked.headers.get('authorization')}"}
        where = urlsplit(asked.path)
        match asked.method, where.path.removeprefix("/api/2.1/jobs/"):
            case "POST", "run-now":
                return self._start(asked.json(), "job_id")
            case "POST", "runs/submit":
                return self._start(asked.json(), "tasks")
            case "GET", "runs/get":
                return self._get(int(parse_qs(where.query)["run_id"][0]))
            case "POST", "runs/cancel":
                self.cancelled.append(asked.json()["run_id"])
                return 200, {}
        return 404, {"error_code": "ENDPOINT_NOT_FOUND", "message": "no such path"}

    def _start(self, body: dict[str, Any], needed: str) -> Reply | None:
        if needed not in body:
            return 400, {"error_code": "INVALID_PARAMETER_VALUE", "message": f"Missing required field: {needed}"}
        if body.get("job_id") == 404:
            return 400, {"error_code": "INVALID_PARAMETER_VALUE", "message": "Job 404 does not exist."}
        token = body["idempotency_token"]
        assert len(token) <= 64
        if token not in self.by_token:
            run_id = next(self.numbers)
            self.by_token[token] = run_id
            self.runs[run_id] = {"run_id": run_id, "state": {"life_cycle_state": "PENDING"}, "asked": body}
        if self.lost_answers:
            self.lost_answers -= 1
            return None
        return 200, {"run_id": self.by_token[token], "number_in_job": self.by_token[token]}

    def _get(self, run_id: int) -> Reply:
        if run_id not in self.runs:
            return 400, {"error_code": "INVALID_PARAMETER_VALUE", "message": f"Run {run_id} does not exist."}
        return 200, self.runs[run_id]
