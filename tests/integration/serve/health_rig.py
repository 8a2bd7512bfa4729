"""The whole HTTP application as `headgate up` builds it, around real services on a store of the test, asked without a
socket; and what tests say to it again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
from litestar.types import ASGIApp

from headgate.auth.authenticator import Authenticator
from headgate.auth.principals import LOCAL
from headgate.auth.roles import Role
from headgate.bootstrap.alerts import audited
from headgate.bootstrap.checks import open_check_basis, open_checks
from headgate.bootstrap.health import open_health, open_keys, open_sessions
from headgate.bootstrap.pipelines import open_pipelines
from headgate.bootstrap.store import AppService, open_cache, open_store
from headgate.clock import VirtualClock
from headgate.durable.model.records import instant
from headgate.durable.sdk.app import App
from headgate.serve.application import build_http
from headgate.serve.http.audited_operations import OperationAudit
from headgate.serve.probes import Phase, ServerProbes
from headgate.serve.rest.audited_actions import AUDITED
from headgate.serve.rest.health.routes import health_routes
from headgate.serve.rest.pipelines.alerts import alert_routes
from headgate.serve.rest.routes import api_routes
from headgate.serve.rest.server.sessions import session_routes
from headgate.serve.rest.server.settings import settings_routes
from headgate.serve.runtime.thread_pool import WorkPool
from headgate.settings import Settings
from headgate.telemetry import Metrics, Tracing
from tests.stores import lay_database

ORDERS = "urn:dp:orders:created:v1"
PAYMENTS = "urn:dp:payments:settled:v1"
SIGNATURE = "MISSING_FIELD:customer_id"
START_SECONDS = 1_768_471_200.0  # 2026-01-15T10:00:00Z
SPEC_ID = "lspec:orders-etl:git:0a1b2c3"

T = TypeVar("T")


class HealthApi:
    """The application, its services, and a way to ask it. `key` of a question is the text of an API key."""

    def __init__(
        self, home: Path, *, is_whole: bool = False, is_required: bool = False, settings: Settings | None = None
    ) -> None:
        """Open everything; `is_whole`: with the routes of executions, fan-outs and the rest besides those of health."""
        self.clock = VirtualClock(START_SECONDS)
        self.settings = settings if settings is not None else Settings(home=home)
        lay_database(self.settings.home)
        self.opened = open_store(self.settings, self.clock)
        self.cache = open_cache(self.settings, self.clock)
        self.service = AppService(App("headgate"), self.opened, self.clock)
        self.fanouts = self.service.fanouts
        self.health = open_health(self.opened, self.cache, self.clock, self.service)
        self.pipelines = open_pipelines(
            self.service,
            self.opened,
            self.clock,
            environ={},
            commit=lambda writes, change: self.health.audit.commit(writes, audited(change)),
        )
        self.checks = open_checks(
            open_check_basis(self.health, self.opened.store, self.clock),
            self.service.app,
            self.pipelines.service,
            self.health,
            self.pipelines.probes.runner,
            self.pipelines.calendars,
            self.clock,
            name="rig",
        )
        self.keys = open_keys(self.opened, self.clock, self.health)
        self.sessions = open_sessions(self.settings, self.opened, self.clock, self.health, self.keys)
        self.pool = WorkPool(threads_max=8, waiting_max=200)
        self.server_health = ServerProbes(
            version="1.2.3", store=self.opened.store, sweepers=[], clock=self.clock, disk=self.settings.home
        )
        self.server_health.phase = Phase.SERVING
        auditing = OperationAudit(self.health.actions, AUDITED)
        self.routes = [
            *(
                api_routes(
                    self.service,
                    self.pool,
                    fanouts=self.fanouts,
                    pipelines=self.pipelines.service,
                    calendars=self.pipelines.calendars,
                    probes=self.pipelines.probes,
                    auditing=auditing,
                )
                if is_whole
                else []
            ),
            *(
                alert_routes(
                    self.pipelines.alerts,
                    self.pipelines.mutes,
                    self.pipelines.deliverer,
                    self.clock,
                    self.pool,
                    channels=self.pipelines.channels,
                    inbound=self.pipelines.inbound_acks,
                    auditing=auditing,
                )
                if is_whole
                else []
            ),
            *health_routes(self.health, self.keys, self.pool, checks=self.checks.service, auditing=auditing),
            *settings_routes(self.settings, self.pool, version="1.2.3"),
            *session_routes(self.sessions, self.pool, auditing=auditing),
        ]
        self.app: ASGIApp = build_http(
            version="1.2.3",
            probes=self.server_health,
            pool=self.pool,
            metrics=Metrics(version="1.2.3"),
            tracing=Tracing(),
            clock=self.clock,
            routes=self.routes,
            authenticator=Authenticator(self.keys, is_required=is_required),
        )
        self._runner = asyncio.Runner()
        self._made = 0

    @property
    def now_ms(self) -> int:
        return int(self.clock.seconds() * 1000)

    def at(self, minutes: float = 0.0) -> str:
        """The moment so many minutes from now."""
        return instant(self.now_ms + int(minutes * 60_000))

    # Asking.

    def session(self, talk: Callable[[httpx.AsyncClient], Awaitable[T]], *, peer: str = "127.0.0.1") -> T:
        async def run() -> T:
            transport = httpx.ASGITransport(self.app, client=(peer, 5000), raise_app_exceptions=False)  # type: ignore[arg-type]  # two libraries, two names for ASGI
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8400/api/v1") as client:
                return await talk(client)

        return self._runner.run(run())

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        peer: str = "127.0.0.1",
        **more: Any,
    ) -> httpx.Response:
        """Ask one thing; `body` is sent as JSON, and `content` among the rest as it is."""
        given = {**({} if key is None else {"authorization": f"Bearer {key}"}), **(headers or {})}
        sent = more if body is None else {"json": body, **more}

        async def talk(client: httpx.AsyncClient) -> httpx.Response:
            return await client.request(method, path, headers=given, **sent)

        return self.session(talk, peer=peer)

    def get(self, path: str, **more: Any) -> httpx.Response:
        return self.ask("GET", path, **more)

    def post(self, path: str, body: Any = None, **more: Any) -> httpx.Response:
        return self.ask("POST", path, body, **more)

    def put(self, path: str, body: Any = None, **more: Any) -> httpx.Response:
        return self.ask("PUT", path, body, **more)

    def patch(self, path: str, body: Any = None, **more: Any) -> httpx.Response:
        return self.ask("PATCH", path, body, **more)

    def delete(self, path: str, **more: Any) -> httpx.Response:
        return self.ask("DELETE", path, **more)

    def at_once(self, *asked: tuple[str, str, Any, Mapping[str, str]]) -> list[httpx.Response]:
        """Ask several things at the same time: method, path, body and headers of each."""

        async def talk(client: httpx.AsyncClient) -> list[httpx.Response]:
            return await asyncio.gather(
                *(
                    client.request(method, path, json=body, headers=dict(headers))
                    for method, path, body, headers in asked
                )
            )

        return self.session(talk)

    def key(self, name: str, *roles: Role, scopes: Sequence[str] = ("*",)) -> str:
        """Make a key, and return its text."""
        return self.keys.issue(name, roles, scopes, issuer=LOCAL).key.reveal()

    # Having things to ask about.

    def fresh(self, **spec: Any) -> str:
        """Register a dataset that no other test knows of, and return its name."""
        self._made += 1
        urn = f"urn:dp:domain-{self._made}:created:v1"
        self.dataset(urn, **spec)
        return urn

    def dataset(self, urn: str = ORDERS, **spec: Any) -> dict[str, Any]:
        return done(self.post("/datasets", {"dataset_urn": urn, "owner_team": "team-a", **spec}), 201)

    def signal(
        self, state: str = "CRITICAL", urn: str = ORDERS, kind: str = "FRESHNESS", **more: Any
    ) -> dict[str, Any]:
        return done(self.put(f"{of(urn)}/signals/{kind}", self.value(state, **more)), 200)

    def value(self, state: str = "CRITICAL", *, minutes: float = 0.0, **more: Any) -> dict[str, Any]:
        """What an engine says of the five minutes that ended so many minutes from now."""
        given: dict[str, Any] = {
            "state": state,
            "score": 0.102,
            "slo_threshold": 0.95,
            "window_start": self.at(minutes - 5),
            "window_end": self.at(minutes),
            "window_type": "TUMBLING_5MIN",
            "metrics": {"evidence_count": 1247, "pass_count": 127, "fail_count": 1120},
        }
        if state in ("WARNING", "CRITICAL"):
            given["failure_signature"] = SIGNATURE
        return {**given, **more}

    def evidence(self, number: int = 1, urn: str = ORDERS, *, result: str = "FAIL", **more: Any) -> dict[str, Any]:
        """A piece of evidence in the form of the store."""
        failed = {"failed_gates": ["G4_CONTRACT"], "reason_codes": [SIGNATURE]} if result == "FAIL" else {}
        return {
            "evidence_id": evidence_id(number),
            "dataset_urn": urn,
            "created_at": self.at(-1),
            "producer": {"producer_id": "orders-service", "version": "v3.17", "confidence": "HIGH"},
            "source": {"topic": "raw.orders.events", "partition": 7, "offset": 1_882_341},
            "validation": {"result": result, **failed},
            **more,
        }

    def incident(self, urn: str = ORDERS, **more: Any) -> dict[str, Any]:
        """An incident that someone opened by hand."""
        given = {"dataset_urn": urn, "signal_type": "FRESHNESS", "failure_signatures": [SIGNATURE], **more}
        return done(self.post("/incidents", given), 201)

    def run_event(self, name: str = "orders_etl", *, kind: str = "COMPLETE", **more: Any) -> dict[str, Any]:
        """An OpenLineage event of a run that reads one table and writes another."""
        return {
            "eventType": kind,
            "eventTime": self.at(),
            "producer": "https://example.org/etl",
            "schemaURL": "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent",
            "run": {"runId": "0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b"},
            "job": {"namespace": "etl", "name": name},
            "inputs": [{"namespace": "warehouse", "name": "raw.orders"}],
            "outputs": [{"namespace": "warehouse", "name": "clean.orders"}],
            **more,
        }

    def spec(
        self, *, reads: Sequence[str] = (PAYMENTS,), writes: Sequence[str] = (ORDERS,), **more: Any
    ) -> dict[str, Any]:
        """What a producer writes and reads."""

        def entries(urns: Sequence[str]) -> list[dict[str, str]]:
            return [
                {"dataset_urn": urn, "entity_id": "job:orders-etl", "entity_name": "orders-etl", "entity_type": "JOB"}
                for urn in urns
            ]

        return {
            "spec_id": SPEC_ID,
            "dataset_reads": entries(reads),
            "dataset_writes": entries(writes),
            "confidence": "HIGH",
            "commit": "0a1b2c3",
            "updated_at": self.at(),
            **more,
        }

    def close(self) -> None:
        self._runner.close()
        self.pool.close()
        self.health.close()
        self.cache.close()
        self.opened.store.close()


@contextmanager
def health_api(home: Path, **more: Any) -> Iterator[HealthApi]:
    api = HealthApi(home, **more)
    try:
        yield api
    finally:
        api.close()


def of(urn: str) -> str:
    """The path of a dataset."""
    return f"/datasets/{quote(urn, safe='')}"


def evidence_id(number: int) -> str:
    return f"evd-01HQXY8MNP4QR7ST9V{number:08d}"


def done(response: httpx.Response, status: int) -> dict[str, Any]:
    """Check that something was done, and return what was answered."""
    assert response.status_code == status, f"{response.status_code} {response.text}"
    assert response.headers["content-type"].startswith("application/json")
    body: dict[str, Any] = response.json()
    return body
