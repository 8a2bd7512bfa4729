"""Who may ask what: every route has a rule, every role may do what it is for, and no caller leaves its scope."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from litestar import Litestar

from headgate.auth.principals import Principal
from headgate.auth.roles import MATRIX, Role, roles_with
from headgate.auth.rules import Reach
from headgate.errors import ForbiddenError
from headgate.serve.http.operations import OperationHandler
from headgate.serve.rpc.methods import Method, RpcCall
from headgate.serve.rpc.statestore import proto as pb
from headgate.serve.rpc.statestore.service import statestore_methods
from headgate.serve.runtime.watch_hub import WatchHub
from tests.integration.serve.durable_api import problem
from tests.integration.serve.health_rig import (
    ORDERS,
    PAYMENTS,
    SIGNATURE,
    SPEC_ID,
    HealthApi,
    done,
    evidence_id,
    health_api,
    of,
)

ORIGIN: Final = "http://127.0.0.1:8400"
# Public methods: version, health, and reflection.
PUBLIC: Final = {
    "GET /",
    "GET /health",
    "GET /health/live",
    "GET /health/ready",
    "GET /api",
    "GET /api/openapi.json",
}

_D: Final = "/api/v1/datasets/{dataset_urn}"
_I: Final = "/api/v1/incidents/{incident_id}"
_X: Final = "/api/v1/executions"
_F: Final = "/api/v1/fanouts/{id}"
_C: Final = "/api/v1/fanouts/{id}/chunks/{chunk_id}"
_S: Final = "/api/v1/schedules"
_M: Final = "/api/v1/machines/{name}"
_E: Final = "/api/v1/machine-executions/{id}"

_P: Final = "/api/v1/pipelines/{id}"
_O: Final = f"{_P}/periods/{{date}}"
_B: Final = "/api/v1/backfills/{backfill_id}"

READ_DATASETS: Final = {
    "GET /api/v1/datasets", "GET /api/v1/dataset-changes", "GET /api/v1/dataset-names", f"GET {_D}",
    f"GET {_D}/versions", f"GET {_D}/fields", f"GET {_D}/diff", f"GET {_D}/aliases",
    "GET /api/v1/schemas", "GET /api/v1/schemas/{name}",
    "GET /api/v1/dataset-export", "GET /api/v1/dataset-duplicates", "GET /api/v1/flags", "GET /api/v1/flags/{name}",
}  # fmt: skip
WRITE_DATASETS: Final = {
    "POST /api/v1/datasets", f"PUT {_D}", f"PATCH {_D}", f"DELETE {_D}", f"POST {_D}/deprecate", f"POST {_D}/restore",
    f"POST {_D}/rollback", f"POST {_D}/merge", f"PUT {_D}/aliases", "DELETE /api/v1/dataset-names",
}  # fmt: skip
READ_RULES: Final = {
    "POST /api/v1/resolve", "POST /api/v1/resolve/explain", f"GET {_D}/resolution-rules",
    "GET /api/v1/resolution-rules", "GET /api/v1/resolution-rules/{topic_pattern}/{name}",
    "GET /api/v1/topics/{topic}/producers",
}  # fmt: skip
WRITE_RULES: Final = {
    f"POST {_D}/resolution-rules", "PUT /api/v1/resolution-rules/{topic_pattern}/{name}",
    "DELETE /api/v1/resolution-rules/{topic_pattern}/{name}", "PUT /api/v1/topics/{topic}/producers/{producer_id}",
}  # fmt: skip
READ_SIGNALS: Final = {
    "GET /api/v1/checks", f"GET {_D}/checks", f"GET {_D}/checks/{{check}}", f"POST {_D}/checks/{{check}}/backtest",
    f"GET {_D}/expected-volumes",
    "GET /api/v1/signals", f"GET {_D}/signals", f"GET {_D}/signals/{{signal_type}}",
    f"GET {_D}/signals/{{signal_type}}/history", f"GET {_D}/baselines", f"GET {_D}/baselines/{{metric}}",
    f"GET {_D}/volume-history", f"GET {_D}/results",
}  # fmt: skip
WRITE_SIGNALS: Final = {
    f"POST {_D}/checks/{{check}}/run",
    f"POST {_D}/checks/{{check}}/try",
    "POST /api/v1/signals/batch",
    f"PUT {_D}/signals/{{signal_type}}",
    f"PUT {_D}/baselines/{{metric}}",
}
READ_INCIDENTS: Final = {
    "GET /api/v1/incidents", "GET /api/v1/incidents/stats", "GET /api/v1/incidents/escalations", f"GET {_I}",
    f"GET {_I}/context", "GET /api/v1/alert-quotas/{team}",
}  # fmt: skip
WRITE_INCIDENTS: Final = {
    "POST /api/v1/incidents",
    f"POST {_I}/snooze",
    f"POST {_I}/merge",
    "POST /api/v1/alert-quotas/{team}/acquire",
}
# The one that says what caused an incident may be asked by fewer; what else it changes is asked for again.
ANNOTATE: Final = {f"PATCH {_I}"}
READ_EVIDENCE: Final = {"GET /api/v1/evidence/{evidence_id}", f"GET {_D}/evidence", f"GET {_D}/evidence/contrast"}
WRITE_EVIDENCE: Final = {"POST /api/v1/evidence", "POST /api/v1/evidence/batch"}
READ_LINEAGE: Final = {
    f"GET {_D}/writers", f"GET {_D}/readers", f"GET {_D}/downstream", f"GET {_D}/upstream",
    "GET /api/v1/columns/{column_urn}/writers", "GET /api/v1/columns/{column_urn}/readers",
    "GET /api/v1/jobs", "GET /api/v1/jobs/{job_id}",
    "GET /api/v1/lineage/producers/{producer_id}", "GET /api/v1/lineage/specs/{spec_id}",
    "GET /api/v1/lineage/specs",
    "GET /api/v1/lineage/dead-letters",
}  # fmt: skip
WRITE_LINEAGE: Final = {
    "PUT /api/v1/lineage/specs/{spec_id}", "POST /api/v1/lineage", "POST /api/v1/lineage/batch",
    "POST /api/v1/lineage/dbt", "POST /api/v1/lineage/dead-letters/{event_id}/redrive",
    "DELETE /api/v1/lineage/dead-letters/{event_id}",
}  # fmt: skip
GATE: Final = {"POST /api/v1/gate", "GET /api/v1/gate/overrides/{dataset_urn}"}
OVERRIDE: Final = {
    "POST /api/v1/gate/overrides/{dataset_urn}", "DELETE /api/v1/gate/overrides/{dataset_urn}/{override_id}",
    "PUT /api/v1/flags/{name}", f"POST {_D}/signals/reset",
}  # fmt: skip
AUDIT: Final = {
    "GET /api/v1/audit", "GET /api/v1/audit/verify", "POST /api/v1/audit/verify", "GET /api/v1/audit/heads",
}  # fmt: skip
REOPEN: Final = {"POST /api/v1/audit/chains/{chain}/reopen"}
KEYS: Final = {
    "GET /api/v1/api-keys", "POST /api/v1/api-keys", "GET /api/v1/api-keys/{key_id}",
    "POST /api/v1/api-keys/{key_id}/rotate", "DELETE /api/v1/api-keys/{key_id}", "GET /api/v1/sessions",
    "DELETE /api/v1/sessions/{sign_in_id}",
}  # fmt: skip
SETTINGS: Final = {"GET /api/v1/settings"}
READ_WORK: Final = {
    "GET /api/v1/workflows", "GET /api/v1/workflows/patches",
    f"GET {_X}", f"GET {_X}/{{id}}", f"GET {_X}/{{id}}/history", f"GET {_X}/{{id}}/logs",
    f"GET {_X}/{{id}}/failures",
    f"GET {_X}/{{id}}/result", f"GET {_X}/{{id}}/updates/{{update_id}}", f"GET {_X}/{{id}}/watch",
    "GET /api/v1/events", "GET /api/v1/events/tail", "GET /api/v1/subscriptions",
    "GET /api/v1/subscriptions/{name}/replays", "GET /api/v1/dead-letters",
    "GET /api/v1/dead-letters/{subscription}/{event_id}", f"GET {_S}", f"GET {_S}/{{id}}", f"GET {_S}/{{id}}/preview",
    "GET /api/v1/deployments", "GET /api/v1/deployments/{app}",
    "GET /api/v1/workers", "GET /api/v1/fanouts", f"GET {_F}", f"GET {_F}/summary", f"GET {_F}/errors",
    f"GET {_F}/items", f"GET {_F}/cells", f"GET {_C}/logs",
    f"GET {_F}/events", f"GET {_F}/compare/{{other}}", f"GET {_F}/plots/{{name}}", "GET /api/v1/campaigns/{id}",
    f"GET {_F}/chunks", f"GET {_C}", f"GET {_F}/stuck", f"GET {_F}/failures", f"GET {_F}/dead-letters",
    f"GET {_F}/watch", "GET /api/v1/machines", f"GET {_M}", f"GET {_M}/versions", f"GET {_M}/graph",
    f"GET {_M}/executions", f"GET {_E}", f"GET {_E}/history", "POST /api/v1/machines/validate", "GET /metrics",
    "GET /health/deep",
}  # fmt: skip
# To ask an execution something changes nothing of it.
QUERY_WORK: Final = {f"POST {_X}/{{id}}/queries"}
WRITE_WORK: Final = {
    f"POST {_X}", f"POST {_X}/signal-with-start", f"POST {_X}/{{id}}/signals", f"POST {_X}/{{id}}/cancel",
    f"POST {_X}/{{id}}/terminate", f"POST {_X}/{{id}}/redrive", f"POST {_X}/{{id}}/retry", f"POST {_X}/bulk",
    *(f"POST /api/v1/deployments/{{app}}/{verb}" for verb in ("current", "ramp", "drain", "move")),
    f"POST {_X}/{{id}}/reset", f"POST {_X}/{{id}}/retry-from-failure",
    f"POST {_X}/{{id}}/updates", "POST /api/v1/events", "POST /api/v1/subscriptions/{name}/retire",
    "POST /api/v1/subscriptions/{name}/replay", "POST /api/v1/subscriptions/{name}/replays/{id}/stop",
    "POST /api/v1/dead-letters/redeliver", "POST /api/v1/dead-letters/purge", "POST /api/v1/activities/complete",
    "POST /api/v1/activities/fail", "POST /api/v1/activities/heartbeat", f"POST {_S}", f"PUT {_S}/{{id}}",
    f"DELETE {_S}/{{id}}", f"POST {_S}/{{id}}/pause", f"POST {_S}/{{id}}/resume", f"POST {_S}/{{id}}/trigger",
    f"POST {_S}/{{id}}/backfill", f"POST {_S}/{{id}}/stop-backfills", "POST /api/v1/fanouts", f"POST {_C}/start",
    f"POST {_C}/heartbeat", f"POST {_C}/complete", f"POST {_C}/fail", f"POST {_C}/release", f"POST {_F}/pause",
    f"POST {_F}/resume", f"POST {_F}/cancel", f"POST {_F}/tune", f"POST {_F}/skip", f"POST {_F}/redrive",
    f"POST {_F}/heal", f"POST {_F}/bisect", f"POST {_F}/reconcile", f"PUT {_M}", f"POST {_M}/executions",
    f"POST {_E}/stop", f"POST {_E}/redrive", "POST /api/v1/tasks/success", "POST /api/v1/tasks/failure",
    "POST /api/v1/tasks/heartbeat",
}  # fmt: skip

READ_PIPELINES: Final = {
    "GET /api/v1/pipelines", "POST /api/v1/pipelines/validate", "POST /api/v1/pipelines/plan", f"GET {_P}",
    f"GET {_P}/versions", f"GET {_P}/diff", f"GET {_P}/readiness", f"GET {_P}/why", f"GET {_P}/evaluations",
    f"POST {_P}/simulate",
    f"GET {_P}/sensors", f"GET {_P}/sensors/{{key}}", f"GET {_P}/traits", f"GET {_P}/traits/{{type}}",
    f"GET {_P}/traits/{{type}}/history", f"GET {_P}/markers", f"GET {_P}/runs", "GET /api/v1/runs/{run_id}",
    "GET /api/v1/runs/{run_id}/log",
    f"GET {_P}/run-logs", f"GET {_P}/run-logs/{{date}}", f"GET {_P}/run-logs/{{date}}/jobs", f"GET {_P}/reruns",
    "GET /api/v1/reruns", "GET /api/v1/reruns/{rerun_id}", f"GET {_P}/control", f"GET {_P}/backfills", f"GET {_B}",
    f"GET {_P}/events", "GET /api/v1/pipeline-events", "GET /api/v1/expectations", "GET /api/v1/calendars",
    "GET /api/v1/calendars/{name}", "GET /api/v1/runs", "GET /api/v1/backfills", "GET /api/v1/upcoming",
    "GET /api/v1/pools", "GET /api/v1/pools/{name}", "GET /api/v1/definition-folder",
    "GET /api/v1/probes", "GET /api/v1/probes/{probe}",
}  # fmt: skip
PUSH_PIPELINES: Final = {
    f"POST {_P}/sensors/{{key}}", f"POST {_P}/traits/{{type}}", f"POST {_P}/markers", f"POST {_P}/runs",
    "POST /api/v1/runs/{run_id}/complete", f"POST {_P}/evaluate",
}  # fmt: skip
CONTROL_PIPELINES: Final = {
    f"POST {_P}/pause", f"POST {_P}/resume", f"POST {_O}/hold", f"POST {_O}/approve", f"POST {_O}/skip",
    f"POST {_O}/mark-success", f"POST {_O}/force", "POST /api/v1/runs/{run_id}/cancel", f"POST {_P}/reruns",
    f"POST {_P}/backfills", f"POST {_B}/pause", f"POST {_B}/resume", f"POST {_B}/cancel",
    f"DELETE {_P}/sensors/{{key}}", "POST /api/v1/pools/{name}/free",
    "POST /api/v1/probes/{probe}/try",
}  # fmt: skip
DEFINE_PIPELINES: Final = {
    f"PUT {_P}",
    f"DELETE {_P}",
    "PUT /api/v1/calendars/{name}",
    "DELETE /api/v1/calendars/{name}",
    "POST /api/v1/definition-folder/reload",
}

READ_ALERTS: Final = {
    "GET /api/v1/alerts", "GET /api/v1/alerts/{alert_id}", "GET /api/v1/alert-mutes", "GET /api/v1/alert-channels",
}  # fmt: skip
WRITE_ALERTS: Final = {
    "POST /api/v1/alerts/{alert_id}/ack", "POST /api/v1/alert-mutes", "DELETE /api/v1/alert-mutes/{mute_id}",
    "POST /api/v1/alert-channels/{name}/test",
}  # fmt: skip

# Admitted by a token of the run, whatever else the caller may do.
BY_TOKEN: Final = {"POST /api/v1/callbacks/{run_id}"}
# Admitted by the signature of the caller over the body.
BY_SIGNATURE: Final = {"POST /api/v1/notify/slack/{channel}", "POST /api/v1/notify/pagerduty/{channel}"}

# These go on answering.
STREAMS: Final = {"GET /api/v1/events/tail"}

READ_HEALTH: Final = READ_DATASETS | READ_RULES | READ_SIGNALS | READ_INCIDENTS | READ_EVIDENCE | READ_LINEAGE
WRITE_HEALTH: Final = (
    WRITE_DATASETS | WRITE_RULES | WRITE_SIGNALS | WRITE_INCIDENTS | ANNOTATE | WRITE_EVIDENCE | WRITE_LINEAGE
)
PIPELINES: Final = READ_PIPELINES | PUSH_PIPELINES | CONTROL_PIPELINES | DEFINE_PIPELINES
ALL: Final = (
    READ_HEALTH
    | WRITE_HEALTH
    | GATE
    | OVERRIDE
    | AUDIT
    | REOPEN
    | KEYS
    | SETTINGS
    | READ_WORK
    | QUERY_WORK
    | WRITE_WORK
    | PIPELINES
    | READ_ALERTS
    | WRITE_ALERTS
)
# What people answer for.
PERSONAL: Final = OVERRIDE | AUDIT | REOPEN | KEYS | SETTINGS | DEFINE_PIPELINES

ALLOWED: Final[dict[Role, set[str]]] = {
    Role.SIGNAL_ENGINE: READ_SIGNALS | WRITE_SIGNALS | READ_EVIDENCE | WRITE_EVIDENCE | READ_DATASETS | READ_RULES,
    Role.ALERTING_ENGINE: READ_SIGNALS | READ_EVIDENCE | READ_INCIDENTS | WRITE_INCIDENTS | ANNOTATE | READ_DATASETS
    | READ_LINEAGE,
    Role.RCA_COPILOT: READ_HEALTH | ANNOTATE,
    Role.LINEAGE_INGESTOR: READ_LINEAGE | WRITE_LINEAGE | READ_DATASETS,
    Role.CONTROL_PLANE: READ_DATASETS | WRITE_DATASETS | READ_RULES | WRITE_RULES | READ_LINEAGE | READ_SIGNALS | AUDIT
    | READ_PIPELINES | PUSH_PIPELINES,
    Role.ENFORCER: READ_DATASETS | READ_RULES | GATE,
    Role.VIEWER: READ_HEALTH | READ_WORK | GATE | READ_PIPELINES | READ_ALERTS,
    Role.OPERATOR: READ_HEALTH | READ_WORK | QUERY_WORK | WRITE_WORK | GATE | WRITE_INCIDENTS | ANNOTATE | OVERRIDE
    | AUDIT | READ_PIPELINES | PUSH_PIPELINES | CONTROL_PIPELINES | READ_ALERTS | WRITE_ALERTS,
    Role.SERVICE: ALL - PERSONAL,
    Role.ADMIN: ALL,
}  # fmt: skip

# Which roles may call which method of the state store.
_ENGINES: Final = {Role.SIGNAL_ENGINE, Role.SERVICE, Role.ADMIN}
_ALERTING: Final = {Role.ALERTING_ENGINE, Role.OPERATOR, Role.SERVICE, Role.ADMIN}
_LOOKING: Final = {Role.RCA_COPILOT, Role.VIEWER, Role.OPERATOR, Role.SERVICE, Role.ADMIN}
_OF_SIGNALS: Final = _LOOKING | {Role.SIGNAL_ENGINE, Role.ALERTING_ENGINE, Role.CONTROL_PLANE}
_OF_LINEAGE: Final = _LOOKING | {Role.LINEAGE_INGESTOR, Role.ALERTING_ENGINE, Role.CONTROL_PLANE}
_OF_INCIDENTS: Final = _LOOKING | {Role.ALERTING_ENGINE}
METHODS: Final[dict[str, set[Role]]] = {
    "SignalStateService/UpdateSignalState": _ENGINES,
    "SignalStateService/BatchUpdateSignalState": _ENGINES,
    "SignalStateService/GetSignalState": _OF_SIGNALS,
    "SignalStateService/GetDatasetSignals": _OF_SIGNALS,
    "SignalStateService/Watch": _OF_SIGNALS,
    "EvidenceCacheService/PutEvidence": _ENGINES,
    "EvidenceCacheService/BatchPutEvidence": _ENGINES,
    "EvidenceCacheService/GetEvidence": _LOOKING | {Role.SIGNAL_ENGINE, Role.ALERTING_ENGINE},
    "IncidentService/CreateIncident": _ALERTING,
    "IncidentService/UpdateIncident": _ALERTING | {Role.RCA_COPILOT},
    "IncidentService/GetIncident": _OF_INCIDENTS,
    "IncidentService/ResolveIncident": _ALERTING,
    "IncidentService/ListIncidents": _OF_INCIDENTS,
    "IncidentService/Watch": _OF_INCIDENTS,
    "LineageIndexService/UpdateLineage": {Role.LINEAGE_INGESTOR, Role.SERVICE, Role.ADMIN},
    "LineageIndexService/GetWriters": _OF_LINEAGE,
    "LineageIndexService/GetReaders": _OF_LINEAGE,
    "LineageIndexService/ListByProducer": _OF_LINEAGE,
    "LineageIndexService/GetSpec": _OF_LINEAGE,
    "RegistryService/GetConfig": set(Role),
    "RegistryService/ListDatasets": set(Role),
    "RegistryService/WatchChanges": set(Role),
    "RegistryService/ResolveDataset": _LOOKING | {Role.SIGNAL_ENGINE, Role.CONTROL_PLANE, Role.ENFORCER},
    "GateService/Check": {Role.ENFORCER, Role.VIEWER, Role.OPERATOR, Role.SERVICE, Role.ADMIN},
}


@pytest.fixture
def api(tmp_path: Path) -> Iterator[HealthApi]:
    with health_api(tmp_path / "home") as made:
        yield made


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HealthApi]:
    """A server where everyone must say who they are. What is asked of it names nothing that there is."""
    with health_api(tmp_path_factory.mktemp("guarded") / "home", is_whole=True, is_required=True) as made:
        yield made


def _framework(api: HealthApi) -> Litestar:
    app: Any = api.app
    while not isinstance(app, Litestar):
        app = app._app
    return app


def _served(api: HealthApi) -> set[str]:
    """Everything that is served, written as in the document; what only refuses is not among it."""
    found = set()
    for route in _framework(api).routes:
        for handler in getattr(route, "route_handlers", ()):
            if isinstance(handler, OperationHandler):
                found |= {f"{each.method} {each.template.documented}" for each in handler.operations}
            else:
                found |= {f"{method} {route.path}" for method in handler.http_methods if method != "OPTIONS"}
    return found


def _asked(name: str) -> tuple[str, str]:
    method, path = name.split(" ")
    return method, ORIGIN + re.sub(r"\{[a-z_]+\}", "x", path)


def _content(method: str) -> dict[str, Any]:
    return {} if method == "GET" else {"content": b"{}", "headers": {"content-type": "application/json"}}


def test_table__all_that_is_served__is_in_it(shared: HealthApi) -> None:
    served = _served(shared)

    assert served - ALL - PUBLIC - BY_TOKEN - BY_SIGNATURE == set(), "served without a rule"
    assert (ALL | PUBLIC | BY_TOKEN | BY_SIGNATURE) - served == set(), "said, and not served"
    documented = {
        f"{method.upper()} {path}"
        for path, methods in shared.get(f"{ORIGIN}/api/openapi.json").json()["paths"].items()
        for method in methods
    }
    assert documented == served - {"GET /metrics", "GET /api", "GET /api/openapi.json"}


def test_table__without_credentials__only_what_is_public_answers(guarded: HealthApi) -> None:
    async def talk(client: httpx.AsyncClient) -> None:
        for name in sorted(ALL | PUBLIC | BY_TOKEN | BY_SIGNATURE):
            method, url = _asked(name)
            answer = await client.request(method, url, **_content(method))
            if name in PUBLIC:
                assert answer.status_code in (200, 404), f"{name}: {answer.status_code}"
            else:
                problem(answer, 401, "unauthenticated")

    guarded.session(talk)


@pytest.mark.parametrize("role", list(Role))
def test_table__every_role__may_do_what_it_is_there_for_and_no_more(guarded: HealthApi, role: Role) -> None:
    key = guarded.key(f"the-{role}", role)
    wrong: list[str] = []

    async def talk(client: httpx.AsyncClient) -> None:
        client.headers["authorization"] = f"Bearer {key}"
        for name in sorted(ALL):
            method, url = _asked(name)
            try:
                async with asyncio.timeout(None if name not in STREAMS else 0.3):
                    answer = await client.request(method, url, **_content(method))
            except TimeoutError:
                # It is a subscription, and no event occurs.
                answer = httpx.Response(200)
            is_allowed = answer.status_code not in (401, 403)
            if is_allowed is not (name in ALLOWED[role]) or answer.status_code >= 500:
                wrong.append(f"{name}: {answer.status_code} {answer.text[:120]}")

    guarded.session(talk)
    assert not wrong, "\n".join(wrong)


def test_rules__roles_with_the_permission_of_each_operation__are_those_of_the_table(shared: HealthApi) -> None:
    """The rules make the page `docs/reference/access.md`; the test above tries the table."""
    operations = [
        each for handler in shared.routes if isinstance(handler, OperationHandler) for each in handler.operations
    ]

    assert len(operations) > 200
    for each in operations:
        name = f"{each.method} {each.template.documented}"
        if name in BY_TOKEN:
            assert each.rule is None
            assert each.admit is not None
            continue
        if name in BY_SIGNATURE:
            assert each.rule is None
            assert each.verify is not None
            continue
        assert each.rule is not None
        assert set(roles_with(each.rule.permission)) == {role for role in Role if name in ALLOWED[role]}, name


def test_table__a_key_without_roles_that_count__may_do_nothing(guarded: HealthApi) -> None:
    key = guarded.key("nobody-much", Role.ENFORCER, scopes=())

    assert guarded.get(f"{of(ORDERS)}", key=key).status_code == 403
    assert guarded.get("/datasets", key=key).json() == {"items": [], "next_page_token": None}
    problem(guarded.get("/datasets", key="hgk_nonsense"), 401, "unauthenticated")
    problem(guarded.get("/datasets", headers={"authorization": "Basic eDp5"}), 401, "unauthenticated")
    assert guarded.get("/datasets").headers["www-authenticate"].startswith("Bearer")


def _methods(api: HealthApi) -> list[Method]:
    return statestore_methods(
        api.health, api.service.bus, watches=WatchHub(api.service.store), pool=api.pool, local_reads=True
    )


def test_methods__those_of_batches__are_out_of_the_way_of_others(api: HealthApi) -> None:
    assert {each.name for each in _methods(api) if each.is_bulk} == {"BatchUpdateSignalState", "BatchPutEvidence"}


def test_methods__all_of_the_state_store__have_the_rule_of_the_table(api: HealthApi) -> None:
    found = {f"{each.service.rpartition('.')[2]}/{each.name}": each for each in _methods(api)}

    assert found.keys() == METHODS.keys()
    for name, method in found.items():
        allowed = {role for role in Role if method.rule.permission in MATRIX[role]}
        assert allowed == METHODS[name], name
    declared = {
        f"{service.name}/{each.name}" for service in pb.DESCRIPTOR.services_by_name.values() for each in service.methods
    }
    assert declared == METHODS.keys()


def test_methods__a_request_that_names_a_foreign_dataset__is_refused_before_anything_is_done(api: HealthApi) -> None:
    """That it is so for each of them, by any name, over the ports: `test_health_names`."""
    one = Principal("scoped", frozenset({Role.ADMIN}), ("urn:dp:orders:*",))
    by_name = {each.name: each for each in _methods(api)}
    call = RpcCall(headers={}, peer="ipv4:127.0.0.1:1", clock=api.clock, principal=one)
    foreign = pb.UpdateSignalStateRequest(dataset_urn=PAYMENTS, signal_type="FRESHNESS")
    asked: list[tuple[str, Any]] = [
        ("UpdateSignalState", foreign),
        ("BatchUpdateSignalState", pb.BatchUpdateSignalStateRequest(updates=[foreign])),
        ("GetSignalState", pb.GetSignalStateRequest(dataset_urn=PAYMENTS)),
        ("PutEvidence", pb.PutEvidenceRequest(evidence=pb.Evidence(dataset_urn=PAYMENTS))),
        ("CreateIncident", pb.CreateIncidentRequest(dataset_urn=PAYMENTS)),
        ("GetConfig", pb.GetConfigRequest(dataset_urn=PAYMENTS)),
    ]

    async def ask(method: Method, request: Any) -> None:
        method.rule.admit(one, request)
        answer = method.handler(request, call)
        if method.is_async:
            await answer

    for name, request in asked:
        with pytest.raises(ForbiddenError):
            asyncio.run(ask(by_name[name], request))
    assert not any(each.rule.reach is Reach.NAMED for each in by_name.values()), "a rule knows no registered names"


def test_methods__resolve_of_a_foreign_topic__does_not_report_where_it_leads(both: HealthApi) -> None:
    one = Principal("scoped", frozenset({Role.ENFORCER}), ("urn:dp:orders:*",))
    (method,) = [each for each in _methods(both) if each.name == "ResolveDataset"]
    call = RpcCall(headers={}, peer="ipv4:127.0.0.1:1", clock=both.clock, principal=one)
    handler: Any = method.handler

    def ask(topic: str) -> str:
        request = pb.ResolveDatasetRequest(topic=topic, explain=True)
        try:
            method.rule.admit(one, request)
            return str(handler(request, call))
        except ForbiddenError:
            return "refused"

    assert ORDERS in ask("raw.1")
    assert PAYMENTS not in ask("raw.2")


# Scopes.


def _furnish(api: HealthApi) -> HealthApi:
    """Have two datasets with a bit of everything, one of which is in no scope."""
    for number, urn in enumerate((ORDERS, PAYMENTS), 1):
        api.dataset(urn, display_name=f"name of {urn}")
        api.signal("CRITICAL", urn)
        done(api.post("/evidence", api.evidence(number, urn)), 201)
        done(api.post(f"{of(urn)}/resolution-rules", {"topic_pattern": f"raw.{number}"}), 201)
        done(api.put(f"{of(urn)}/aliases", {"namespace": "warehouse", "name": f"table-{number}"}), 200)
    return api


@pytest.fixture
def both(api: HealthApi) -> HealthApi:
    return _furnish(api)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HealthApi]:
    """The same for tests that are refused everything, and so change nothing."""
    with health_api(tmp_path_factory.mktemp("shared") / "home", is_whole=True) as made:
        yield _furnish(made)


def _everything(api: HealthApi) -> str:
    return api.key("limited", Role.ADMIN, scopes=("urn:dp:orders:*",))


def _incident_of(api: HealthApi, urn: str) -> str:
    (found,) = api.get("/incidents", params={"dataset_urn": urn}).json()["items"]
    return str(found["incident_id"])


def test_scope__lists__show_what_is_reached(shared: HealthApi) -> None:
    key = _everything(shared)

    assert [each["dataset_urn"] for each in shared.get("/datasets", key=key).json()["items"]] == [ORDERS]
    assert {each["dataset_urn"] for each in shared.get("/signals", key=key).json()["items"]} == {ORDERS}
    assert {each["primary_dataset_urn"] for each in shared.get("/incidents", key=key).json()["items"]} == {ORDERS}
    problem(shared.get("/incidents", key=key, params={"dataset_urn": PAYMENTS}), 403, "forbidden")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "", None),
        ("PUT", "", {"owner_team": "eve"}),
        ("DELETE", "", None),
        ("POST", "/deprecate", {}),
        ("POST", "/restore", {}),
        ("POST", "/rollback", {"version": 1}),
        ("POST", "/merge", {"into_urn": "urn:dp:mine:x", "reason": "eve"}),
        ("GET", "/versions", None),
        ("GET", "/diff?from=1&to=1", None),
        ("GET", "/aliases", None),
        ("GET", "/fields", None),
        ("PUT", "/aliases", {"namespace": "n", "name": "n"}),
        ("GET", "/resolution-rules", None),
        ("POST", "/resolution-rules", {"topic_pattern": "raw.mine"}),
        ("GET", "/signals", None),
        ("GET", "/signals/FRESHNESS", None),
        ("GET", "/signals/FRESHNESS/history", None),
        ("GET", "/volume-history", None),
        ("GET", "/results", None),
        ("PUT", "/signals/FRESHNESS", "value"),
        ("POST", "/signals/reset", {"reason": "eve"}),
        ("GET", "/evidence", None),
        ("GET", "/evidence/contrast", None),
        ("GET", "/writers", None),
        ("GET", "/readers", None),
        ("GET", "/downstream", None),
        ("GET", "/upstream", None),
    ],
)
def test_scope__all_below_a_foreign_dataset__is_refused_and_nothing_changes(
    shared: HealthApi, method: str, path: str, body: Any
) -> None:
    key = _everything(shared)
    before = shared.get(of(PAYMENTS)).json()

    for urn in (PAYMENTS, PAYMENTS.removesuffix(":v1")):
        given = shared.value("OK", minutes=1) if body == "value" else body
        problem(shared.ask(method, of(urn) + path, given, key=key), 403, "forbidden")

    assert shared.get(of(PAYMENTS)).json() == before
    assert shared.get(f"{of(PAYMENTS)}/signals/FRESHNESS").json()["state"] == "CRITICAL"


def test_scope__a_foreign_incident__cannot_be_seen_changed_or_merged(shared: HealthApi) -> None:
    key = _everything(shared)
    mine, foreign = _incident_of(shared, ORDERS), _incident_of(shared, PAYMENTS)
    before = shared.get(f"/incidents/{foreign}").json()

    for method, path, body in (
        ("GET", "", None),
        ("GET", "/context", None),
        ("PATCH", "", {"rca_summary": "eve"}),
        ("PATCH", "", {"status": "RESOLVED"}),
        ("POST", "/snooze", {"duration": "1h"}),
        ("POST", "/merge", {"into": mine}),
    ):
        problem(shared.ask(method, f"/incidents/{foreign}{path}", body, key=key), 403, "forbidden")
    problem(shared.post(f"/incidents/{mine}/merge", {"into": foreign}, key=key), 403, "forbidden")
    problem(shared.get("/incidents/stats", key=key), 403, "forbidden")
    problem(shared.get("/incidents/escalations", key=key), 403, "forbidden")

    assert shared.get(f"/incidents/{foreign}").json() == before
    assert shared.get(f"/incidents/{mine}").json()["status"] == "OPEN"


def test_scope__an_incident_joined_by_its_key__is_not_that_of_a_foreign_dataset(both: HealthApi) -> None:
    key = _everything(both)
    foreign = both.get(f"/incidents/{_incident_of(both, PAYMENTS)}").json()

    answer = both.post(
        "/incidents",
        {"dataset_urn": ORDERS, "signal_type": "VOLUME", "dedup_key": foreign["dedup_key"], "evidence_sample": []},
        key=key,
    )

    assert PAYMENTS not in answer.text.replace(foreign["dedup_key"], "")
    assert both.get(f"/incidents/{foreign['incident_id']}").json() == foreign


def test_scope__the_context_of_an_incident__has_no_foreign_evidence(both: HealthApi) -> None:
    key = _everything(both)
    problem(both.get(f"/evidence/{evidence_id(2)}", key=key), 403, "forbidden")
    given = {
        "dataset_urn": ORDERS,
        "signal_type": "VOLUME",
        "failure_signatures": ["OTHER:x"],
        "evidence_sample": [evidence_id(1), evidence_id(2)],
    }

    opened = both.post("/incidents", given, key=key)
    response = both.get(f"/incidents/{opened.json().get('incident_id', 'none')}/context", key=key)

    assert opened.status_code in (201, 403)
    if opened.status_code == 201:
        assert PAYMENTS not in {each["dataset_urn"] for each in response.json()["evidence"]}


def test_scope__evidence__of_a_foreign_dataset_is_neither_taken_nor_shown(shared: HealthApi) -> None:
    key = _everything(shared)

    problem(shared.post("/evidence", shared.evidence(7, PAYMENTS), key=key), 403, "forbidden")
    batch = {"evidence": [shared.evidence(8), shared.evidence(9, PAYMENTS)]}
    problem(shared.post("/evidence/batch", batch, key=key), 403, "forbidden")

    for number in (7, 8, 9):
        problem(shared.get(f"/evidence/{evidence_id(number)}"), 404, "not_found")


def test_scope__signals_of_which_one_is_foreign__are_refused_together(shared: HealthApi) -> None:
    key = _everything(shared)
    updates = [{**shared.value(minutes=1), "dataset_urn": urn, "signal_type": "VOLUME"} for urn in (ORDERS, PAYMENTS)]

    problem(shared.post("/signals/batch", {"updates": updates}, key=key), 403, "forbidden")

    problem(shared.get(f"{of(ORDERS)}/signals/VOLUME"), 404, "not_found")


def test_scope__the_gate__asked_about_several_of_which_one_is_foreign__is_refused(shared: HealthApi) -> None:
    key = _everything(shared)

    problem(shared.post("/gate", {"datasets": [ORDERS, PAYMENTS]}, key=key), 403, "forbidden")
    problem(shared.post("/gate", {"dataset": PAYMENTS}, key=key), 403, "forbidden")
    grant = {"duration": "1h", "reason": "because"}
    problem(shared.post(f"/gate/overrides/{PAYMENTS}", grant, key=key), 403, "forbidden")
    problem(shared.get(f"/gate/overrides/{PAYMENTS}", key=key), 403, "forbidden")

    assert shared.get(f"/gate/overrides/{PAYMENTS}").json() == {"overrides": []}


@pytest.mark.parametrize(
    "rule",
    [
        {"topic_pattern": "raw.mine", "dataset_urn": PAYMENTS},
        {
            "topic_pattern": "raw.mine",
            "resolution_type": "CONDITIONAL",
            "conditions": [{"field": "$.a", "operator": "EQUALS", "value": 1, "dataset_urn": PAYMENTS}],
        },
        {
            "topic_pattern": "raw.mine",
            "resolution_type": "CONDITIONAL",
            "conditions": [{"field": "$.a", "operator": "EQUALS", "value": 1, "dataset_urn": ORDERS}],
            "default_dataset_urn": PAYMENTS,
        },
    ],
)
def test_scope__a_rule_of_a_dataset__cannot_lead_into_a_foreign_one(both: HealthApi, rule: dict[str, Any]) -> None:
    answer = both.post(f"{of(ORDERS)}/resolution-rules", rule, key=_everything(both))

    assert answer.status_code in (400, 403), answer.text
    assert both.get("/resolution-rules", params={"topic_pattern": "raw.mine"}).json()["items"] == []


def test_scope__rules_of_all__are_for_those_who_reach_all(shared: HealthApi) -> None:
    key = _everything(shared)

    problem(shared.get("/resolution-rules", key=key), 403, "forbidden")
    problem(shared.get("/resolution-rules/raw.2/default", key=key), 403, "forbidden")
    problem(shared.put("/resolution-rules/raw.2/default", {"dataset_urn": ORDERS}, key=key), 403, "forbidden")
    problem(shared.delete("/resolution-rules/raw.2/default", key=key), 403, "forbidden")


def test_scope__resolve__does_not_report_what_is_known_of_a_foreign_dataset(shared: HealthApi) -> None:
    key = _everything(shared)

    response = shared.post("/resolve", {"topic": "raw.2", "fallback_on_miss": "WARN"}, key=key)
    explained = shared.post("/resolve/explain", {"topic": "raw.2"}, key=key)

    assert "name of" not in response.text
    assert response.status_code == 403 or response.json()["config"] is None
    assert explained.status_code == 403 or PAYMENTS not in explained.text
    assert done(shared.post("/resolve", {"topic": "raw.1", "fallback_on_miss": "WARN"}, key=key), 200)["config"]


def test_scope__a_name_that_stands_for_a_foreign_dataset__is_not_taken_over(both: HealthApi) -> None:
    key = _everything(both)
    name = {"namespace": "warehouse", "name": "table-2"}

    answer = both.put(f"{of(ORDERS)}/aliases", name, key=key)

    assert answer.status_code in (403, 409), answer.text
    assert both.get("/dataset-names", params=name).json()["dataset_urn"] == PAYMENTS
    problem(both.get("/dataset-names", params=name, key=key), 403, "forbidden")


def test_scope__lineage__of_foreign_datasets_is_not_written(both: HealthApi) -> None:
    key = _everything(both)
    spec = {
        "spec_id": SPEC_ID,
        "producer_id": "job:orders-etl",
        "updated_at": both.at(),
        "dataset_writes": [PAYMENTS],
        "dataset_reads": [ORDERS],
    }

    answer = both.put(f"/lineage/specs/{SPEC_ID}", spec, key=key)

    problem(answer, 403, "forbidden")
    assert both.get(f"{of(PAYMENTS)}/writers").json()["items"] == []


def test_scope__an_event_about_a_foreign_dataset__does_not_change_it(both: HealthApi) -> None:
    key = _everything(both)
    dropped = {"lifecycleStateChange": {"_producer": "p", "_schemaURL": "s", "lifecycleStateChange": "DROP"}}
    outputs = [{"namespace": "warehouse", "name": "table-2", "facets": dropped}]

    both.post("/lineage", both.run_event(outputs=outputs), key=key)
    both.post("/lineage/batch", [both.run_event("other", outputs=outputs)], key=key)
    both.health.drain()

    assert both.get(of(PAYMENTS)).json().get("status", "ACTIVE") == "ACTIVE"
    assert both.get(f"{of(PAYMENTS)}/writers").json()["items"] == []


def test_scope__what_is_about_all_datasets__is_for_those_who_reach_all(shared: HealthApi) -> None:
    key = _everything(shared)

    for path in (
        "/events", "/events/tail", "/dead-letters", "/subscriptions", "/audit", "/audit/verify", "/dataset-changes",
        "/lineage/dead-letters", "/lineage/producers/x", f"/lineage/specs/{SPEC_ID}",
        "/lineage/specs?commit=0a1b2c3",
    ):  # fmt: skip
        problem(shared.get(path, key=key), 403, "forbidden")


def test_scope__an_answer_that_was_given_before__is_not_given_for_another_dataset(both: HealthApi) -> None:
    given = {"duration": "1h", "reason": "because"}
    again = {"idempotency-key": "the-same"}
    done(both.post(f"/gate/overrides/{PAYMENTS}", given, headers=again), 201)

    answer = both.post(f"/gate/overrides/{ORDERS}", given, headers=again)

    assert answer.status_code == 422 or answer.json()["dataset_urn"] == ORDERS, answer.text
    if answer.status_code == 201:
        assert len(both.get(f"/gate/overrides/{ORDERS}").json()["overrides"]) == 1


def test_scope__without_a_version__is_what_the_dataset_is_registered_as(both: HealthApi) -> None:
    key = both.key("unversioned", Role.ADMIN, scopes=("urn:dp:payments:settled",))
    urn = "urn:dp:payments:settled"

    listed = both.get("/datasets", key=key).json()["items"]
    shown = both.get(of(urn), key=key)
    changed = both.put(f"{of(urn)}/signals/VOLUME", both.value("WARNING"), key=key)

    assert (shown.status_code == 200) is bool(listed), "a list says that it is out of scope, and a look does not"
    assert (changed.status_code == 200) is bool(listed)


def test_scope__keys__cannot_be_had_with_more_rights_than_ones_own(both: HealthApi) -> None:
    key = _everything(both)
    strong = both.keys.issue("boss", [Role.ADMIN], issuer=Principal("x", frozenset({Role.ADMIN}), ("*",)))

    problem(both.post("/api-keys", {"principal": "eve", "roles": ["admin"]}, key=key), 403, "forbidden")
    problem(both.post(f"/api-keys/{strong.about.key_id}/rotate", {}, key=key), 403, "forbidden")
    problem(both.delete(f"/api-keys/{strong.about.key_id}", key=key), 403, "forbidden")
    given = {"principal": "less", "roles": ["viewer"], "scopes": ["urn:dp:orders:*"]}
    assert both.post("/api-keys", given, key=key).status_code == 201


def test_annotate__by_one_who_may_say_the_cause__takes_the_summary_and_nothing_else(both: HealthApi) -> None:
    key = both.key("copilot", Role.RCA_COPILOT)
    path = f"/incidents/{_incident_of(both, ORDERS)}"

    assert done(both.patch(path, {"rca_summary": "a deployment"}, key=key), 200)["rca_summary"] == "a deployment"
    for more in ({"status": "RESOLVED"}, {"assignee": "me"}, {"rca_summary": "x", "title": "y"}, {"ticket": "T"}):
        problem(both.patch(path, more, key=key), 403, "forbidden")
    assert both.get(path).json()["rca_summary"] == "a deployment"


def test_secrets__for_those_who_are_not_on_call__are_masked_wherever_an_incident_is_shown(both: HealthApi) -> None:
    path = f"/incidents/{_incident_of(both, ORDERS)}"
    result = {"pagerduty_incident_id": "PD-SECRET", "slack_thread_ts": "17.SECRET", "jira_ticket": "J-SECRET"}
    done(both.patch(path, {"oncall_user": "ann@SECRET", "notification_state": result}), 200)
    copilot, operator = both.key("copilot", Role.RCA_COPILOT), both.key("operator", Role.OPERATOR)

    answers = [
        both.get(path, key=copilot),
        both.get("/incidents", key=copilot),
        both.get(f"{path}/context", key=copilot),
        both.patch(path, {"rca_summary": "x"}, key=copilot),
    ]

    assert all(each.status_code == 200 for each in answers)
    assert not any("SECRET" in each.text for each in answers)
    assert both.get(path, key=operator).text.count("SECRET") == 4
    assert SIGNATURE in answers[0].text
