"""Pipelines behind the HTTP application, in virtual time: the lifecycle runs, and jobs run where the test says."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import httpx
from litestar.types import ASGIApp

import headgate as hg
from headgate.auth.api_keys import ApiKeys
from headgate.auth.authenticator import Authenticator
from headgate.auth.principals import LOCAL
from headgate.auth.roles import Role
from headgate.health.audit.log import Audit
from headgate.pipelines.authoring.archetypes import Archetype
from headgate.pipelines.catalog.calendar_store import CalendarStore
from headgate.pipelines.probes.catalog import ProbeCatalog
from headgate.pipelines.probes.results import ProbeResults
from headgate.pipelines.service import PipelineService
from headgate.serve.application import build_http
from headgate.serve.http.operations import Operation
from headgate.serve.probes import Phase, ServerProbes
from headgate.serve.rest.pipelines.pipelines import pipeline_routes
from headgate.serve.rest.pipelines.probes import probe_operations
from headgate.serve.runtime.thread_pool import WorkPool
from headgate.store.catalogue.tables import PIPELINES
from headgate.store.keyring import Keyring
from headgate.telemetry import Metrics, Tracing
from headgate.triggers.config import Config
from headgate.triggers.contract import FailureCategory, Job, JobState, PollResult, Started, failed, running
from headgate.triggers.local.command import CommandKind
from headgate.triggers.registry import TriggerKinds
from headgate.triggers.secret_sources import SecretSources
from tests.probe_rig import runner

TODAY = "2025-06-15"
SILVER: dict[str, Any] = {
    "id": "silver",
    "schedules": [{"sensor": {"key": "landed"}}],
    "readiness": {"rules": [{"key": "orders", "check": "gte", "field": "count", "value": 10}]},
    "trigger": {"type": "http", "config": {"url": "https://jobs.example.org/silver"}},
}


class JobConfig(Config, frozen=True):
    """Where a job is."""

    url: str


class Jobs:
    """A place where jobs run: what was started there and what ended, and how those are that have not."""

    name: ClassVar[str] = "http"
    config_type: ClassVar[type[JobConfig]] = JobConfig
    secret_fields: ClassVar[frozenset[str]] = frozenset()
    is_local: ClassVar[bool] = False

    def __init__(self) -> None:
        self.started: list[str] = []
        self.cancelled: list[str] = []
        self.state = JobState.RUNNING

    def start(self, job: Job[JobConfig]) -> Started:
        if job.key not in self.started:
            self.started.append(job.key)
        return running(f"job-{job.key}")

    def poll(self, job: Job[JobConfig], metadata: Mapping[str, str]) -> PollResult:
        if self.state is JobState.FAILED:
            return failed(FailureCategory.PERMANENT, "it broke")
        return PollResult(self.state)

    def cancel(self, job: Job[JobConfig], metadata: Mapping[str, str]) -> None:
        self.cancelled.append(job.key)


class PipelineApi:
    """The application, its services, and a way to ask it. `key` of a question is the text of an API key."""

    def __init__(
        self, env: hg.testing.Environment, home: Path, *, archetypes: Mapping[str, Archetype] | None = None
    ) -> None:
        self.env = env
        self.service = service = env.service
        # The test drives the worker: the threads that answer requests must not.
        service.notifier.attach(None)
        self.jobs = Jobs()
        kinds = TriggerKinds([self.jobs, CommandKind(env.clock, home / "commands", {})], SecretSources({}))
        calendars = CalendarStore(service.store, env.clock)
        self.pipelines = PipelineService(
            service.store,
            env.clock,
            service.ids,
            service.bus,
            service.asl,
            kinds,
            calendars=calendars.all,
            pools={"spark": 1, "wide": 8},
            keyring=Keyring.generate(env.clock),
            public_url="http://127.0.0.1:8400",
        )
        self.pipelines.project.archetypes = archetypes
        self.pipelines.register(
            {
                "EvaluatorFunctionArn": lambda _event: {},
                "sla_monitor_arn": lambda _event: {"warningAt": "", "breachAt": ""},
            },
        )
        self.pipelines.put_machine()
        audit = Audit(service.store, env.clock, service.ids, Keyring.generate(env.clock))
        self._keys = ApiKeys(service.store, env.clock, service.ids, audit)
        self.pool = WorkPool(threads_max=4, waiting_max=50)
        server_health = ServerProbes(version="1.2.3", store=service.store, sweepers=[], clock=env.clock, disk=home)
        server_health.phase = Phase.SERVING
        self.app: ASGIApp = build_http(
            version="1.2.3",
            probes=server_health,
            pool=self.pool,
            metrics=Metrics(version="1.2.3"),
            tracing=Tracing(),
            clock=env.clock,
            routes=pipeline_routes(
                self.pipelines, service.bus, self.pool, calendars=calendars, probes=self._probe_operations(home)
            ),
            authenticator=Authenticator(self._keys),
        )

    def _probe_operations(self, home: Path) -> list[Operation]:
        """Return the operations on probes, of which there are none."""
        store, clock = self.service.store, self.env.clock
        results = ProbeResults(store, clock, self.pipelines.sensors)
        return probe_operations(ProbeCatalog(), results, runner(home, clock=clock), self.pipelines.known, clock)

    # Asking.

    def ask(self, method: str, path: str, body: Any = None, *, key: str | None = None, **more: Any) -> httpx.Response:
        """Ask one thing; `body` is sent as JSON, and `content` among the rest as it is."""
        headers = {**({} if key is None else {"authorization": f"Bearer {key}"}), **more.pop("headers", {})}
        sent = more if body is None else {"json": body, **more}

        async def run() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)  # type: ignore[arg-type]  # two libraries, two names for ASGI
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8400/api/v1") as client:
                return await client.request(method, path, headers=headers, **sent)

        return asyncio.run(run())

    def get(self, path: str, **more: Any) -> httpx.Response:
        return self.ask("GET", path, **more)

    def post(self, path: str, body: Any = None, **more: Any) -> httpx.Response:
        return self.ask("POST", path, body, **more)

    def put(self, path: str, body: Any = None, **more: Any) -> httpx.Response:
        return self.ask("PUT", path, body, **more)

    def delete(self, path: str, **more: Any) -> httpx.Response:
        return self.ask("DELETE", path, **more)

    def key(self, name: str, *roles: Role) -> str:
        """Make a key, and return its text."""
        return self._keys.issue(name, roles, ("*",), issuer=LOCAL).key.reveal()

    # Having things happen.

    def defined(self, definition: Mapping[str, Any] = SILVER, **changes: Any) -> str:
        """Define a pipeline, and return its path."""
        body = {**definition, **changes}
        answer = self.put(f"/pipelines/{body['id']}", body)
        assert answer.status_code in (200, 201), answer.text
        return f"/pipelines/{body['id']}"

    def settle(self) -> None:
        """Have everything happen that can without time passing: changes received, executions advanced."""
        store = self.service.store
        while True:
            self.env.run()
            batch = store.changes(PIPELINES, "router", limit=100)
            for change in batch.changes:
                self.pipelines.router.on_change(change)
            store.checkpoint(PIPELINES, "router", batch.position)
            self.env.run()
            if not batch.changes:
                return

    def events(self, pipeline: str = "silver") -> list[str]:
        """The names of what happened, the first first."""
        found = self.get(f"/pipelines/{pipeline}/events", params={"oldest_first": True}).json()["events"]
        return [each["name"] for each in found]


@contextmanager
def pipeline_api(home: Path, *, archetypes: Mapping[str, Archetype] | None = None) -> Iterator[PipelineApi]:
    with hg.testing.Environment(hg.App("pipes"), replay_always=False) as env:
        made = PipelineApi(env, home, archetypes=archetypes)
        try:
            yield made
        finally:
            made.pool.close()


def done(response: httpx.Response, status: int = 200) -> dict[str, Any]:
    """Check that something was done, and return what was answered."""
    assert response.status_code == status, f"{response.status_code} {response.text}"
    body: dict[str, Any] = response.json()
    return body
