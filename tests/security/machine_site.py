"""A server with authentication, a key for each role, and helpers that attack it with state machines."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final

import httpx

from headgate.auth.roles import Permission, Role, permissions_of
from tests.acceptance.program import Server, run

FOREIGN: Final = "urn:dp:b:secret:v1"
SECRET: Final = "the title that a key scoped to another dataset must not read"
DAY: Final = "2026-01-05"
APP: Final = """
import headgate as hg

app = hg.App("shop")


@app.workflow
async def idle(note: str = "") -> str:
    return await hg.wait_signal("go", type=str)


@app.activity
def echo(event: dict) -> dict:
    return event
"""
WAIT_SECONDS: Final = 20.0


class Site:
    """The server, and one client for each role. The key of `service` is scoped to other datasets than `FOREIGN`."""

    def __init__(self, folder: Path, server: Server, environ: Mapping[str, str]) -> None:
        self.folder = folder
        self.server = server
        self.marker = folder / "pwned"
        # The id of an incident of a dataset outside the scope of the service key.
        self.incident = ""
        self._numbers = count(1)
        first = run("api-key", "first", "--home", server.home, "--json", folder=folder, **environ)
        assert first.returncode == 0, first.stderr
        self.admin = self._client(_key_in(json.loads(first.stdout)))
        self.clients = {role: self._client(self._key_of(role)) for role in Role}
        self.clients[Role.ADMIN] = self.admin

    def _key_of(self, role: Role) -> str:
        body: dict[str, Any] = {"principal": f"a-{role.value}", "roles": [role.value]}
        if role is Role.SERVICE:
            body["scopes"] = ["urn:dp:a:*"]
        made = self.admin.post("/api-keys", json=body)
        assert made.status_code == 201, made.text
        return str(made.json()["text"])

    def _client(self, key: str) -> httpx.Client:
        headers = {"authorization": f"Bearer {key}"}
        return httpx.Client(base_url=f"{self.server.url}/api/v1", headers=headers, timeout=30)

    def close(self) -> None:
        for client in {id(each): each for each in (*self.clients.values(), self.admin)}.values():
            client.close()

    def name(self, stem: str = "m") -> str:
        """Return a name that was not used before."""
        return f"{stem}-{next(self._numbers)}"

    def may_write_executions(self, role: Role) -> bool:
        return Permission.EXECUTION_WRITE in permissions_of([role])

    def run_machine(self, role: Role, definition: dict[str, Any]) -> dict[str, Any]:
        """Store and start a machine as a role; return the first refusal, or the ended execution."""
        client, name = self.clients[role], self.name()
        put = client.put(f"/machines/{name}", json=definition)
        if put.status_code >= 400:
            return {**put.json(), "status": "REFUSED", "http": put.status_code}
        started = client.post(f"/machines/{name}/executions", json={"input": {}})
        if started.status_code >= 400:
            return {**started.json(), "status": "REFUSED", "http": started.status_code}
        return self.ended(started.json()["id"])

    def ended(self, execution_id: str) -> dict[str, Any]:
        """Return a machine's execution once it has ended."""
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            found: dict[str, Any] = self.admin.get(f"/machine-executions/{execution_id}").json()
            if found["status"] != "RUNNING":
                return found
            assert time.monotonic() < deadline, found
            time.sleep(0.02)

    def force(self, role: Role, pipeline: str, *, date: str = DAY) -> int:
        """Force a run of a pipeline as a role, and return the status of the answer."""
        body = {"date": date, "reason": "attack", "force": True}
        return self.clients[role].post(f"/pipelines/{pipeline}/runs", json=body).status_code

    def run_status(self, pipeline: str, *, date: str = DAY) -> dict[str, Any]:
        """Return the run of a period once it has ended."""
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            runs = self.admin.get(f"/pipelines/{pipeline}/runs").json().get("runs", [])
            found: list[dict[str, Any]] = [each for each in runs if each["date"] == date]
            if found and found[0]["status"] in ("COMPLETED", "FAILED", "FAILED_FINAL", "CANCELLED", "EXPIRED"):
                return found[0]
            assert time.monotonic() < deadline, runs
            time.sleep(0.05)


def _key_in(value: Any) -> str:
    texts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for each in texts:
        found = each if isinstance(each, str) and each.startswith("hg") else _key_in(each)
        if found:
            return str(found)
    return ""


def command_definition(pipeline: str, marker: Path) -> str:
    """Return a definition, as text, whose trigger creates a file."""
    return json.dumps({"id": pipeline, "trigger": {"type": "command", "config": {"command": ["touch", str(marker)]}}})


def task(resource: str, parameters: Any = None) -> dict[str, Any]:
    """Return a machine of one Task."""
    state: dict[str, Any] = {"Type": "Task", "Resource": resource, "End": True}
    if parameters is not None:
        state["Parameters"] = parameters
    return {"StartAt": "T", "States": {"T": state}}


def config_item(pipeline: str, marker: Path) -> dict[str, Any]:
    """Return the row of a pipeline as attribute values of DynamoDB."""
    return {
        "PK": {"S": f"PIPELINE#{pipeline}"},
        "SK": {"S": "CONFIG"},
        "GSI1PK": {"S": "PIPELINES"},
        "GSI1SK": {"S": pipeline},
        "config": {"S": command_definition(pipeline, marker)},
    }


@contextmanager
def opened(folder: Path, *arguments: str, **environ: str) -> Iterator[Site]:
    """Give a site: an app, a folder with pipelines, authentication required, one dataset with an incident."""
    (folder / "pipelines").mkdir(parents=True, exist_ok=True)
    (folder / "app.py").write_text(APP)
    options = {"HEADGATE_AUTH_REQUIRED": "true", "HEADGATE_PIPELINES_WATCHDOG": "false", **environ}
    with Server(folder, "--app", "app:app", "--pipelines", "pipelines", *arguments, **options) as server:
        site = Site(folder, server, options)
        try:
            yield site
        finally:
            site.close()


def report_incident(site: Site) -> str:
    """Report an incident of a dataset outside the scope of the service key, and return its id."""
    made = site.admin.post("/datasets", json={"dataset_urn": FOREIGN})
    assert made.status_code == 201, made.text
    reported = site.admin.post(
        "/incidents", json={"dataset_urn": FOREIGN, "signal_type": "FRESHNESS", "title": SECRET, "severity": "SEV_2"}
    )
    assert reported.status_code in (200, 201), reported.text
    found = reported.json()
    return str(found.get("incident_id") or found["incident"]["incident_id"])
