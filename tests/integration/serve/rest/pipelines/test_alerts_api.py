"""Alerts over HTTP: who may see and settle them, what is silenced for how long, and whether a channel works."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from headgate.auth.api_keys import ApiKeys
from headgate.auth.authenticator import Authenticator
from headgate.auth.principals import LOCAL
from headgate.auth.roles import Role
from headgate.health.audit.log import Audit
from headgate.notify.enums import Severity
from headgate.serve.application import build_http
from headgate.serve.probes import Phase, ServerProbes
from headgate.serve.rest.pipelines.alerts import alert_routes
from headgate.serve.runtime.thread_pool import WorkPool
from headgate.store.keyring import Keyring
from headgate.telemetry import Metrics, Tracing
from tests.unit.notify.rig import World


class AlertApi:
    """The application around alerts that really go out, to files."""

    def __init__(self, folder: Path) -> None:
        self.world = world = World(folder)
        self.pool = WorkPool(threads_max=4, waiting_max=50)
        audit = Audit(world.store, world.clock, world.ids, Keyring.generate(world.clock))
        self._keys = ApiKeys(world.store, world.clock, world.ids, audit)
        health = ServerProbes(version="1.2.3", store=world.store, sweepers=[], clock=world.clock, disk=folder)
        health.phase = Phase.SERVING
        routes = alert_routes(
            world.alerts, world.mutes, world.deliverer, world.clock, self.pool, channels=list(world.channels)
        )
        self.app = build_http(
            version="1.2.3",
            probes=health,
            pool=self.pool,
            metrics=Metrics(version="1.2.3"),
            tracing=Tracing(),
            clock=world.clock,
            routes=routes,
            authenticator=Authenticator(self._keys),
        )

    def ask(self, method: str, path: str, body: Any = None, *, key: str | None = None, **more: Any) -> httpx.Response:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        sent = more if body is None else {"json": body, **more}

        async def run() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)  # type: ignore[arg-type]  # two libraries, two names for ASGI
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8400/api/v1") as client:
                return await client.request(method, path, headers=headers, **sent)

        return asyncio.run(run())

    def key(self, *roles: Role) -> str:
        return self._keys.issue("ann", roles, ("*",), issuer=LOCAL).key.reveal()

    def close(self) -> None:
        self.pool.close()
        self.world.close()


@pytest.fixture
def api(tmp_path: Path) -> Iterator[AlertApi]:
    made = AlertApi(tmp_path)
    yield made
    made.close()


def listed(api: AlertApi, **query: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api.ask("GET", "/alerts", params=query).json()["alerts"]
    return found


def test_alerts__of_two_pipelines__are_listed_latest_first_and_narrowed(api: AlertApi) -> None:
    api.world.emit(api.world.notice())
    api.world.advance(60)
    api.world.emit(api.world.notice(pipeline_id="returns"))

    assert [each["pipeline_id"] for each in listed(api)] == ["returns", "orders"]
    assert [each["pipeline_id"] for each in listed(api, pipeline="orders")] == ["orders"]
    assert listed(api, status="RESOLVED") == []
    later = api.world.clock.now().isoformat()
    assert [each["pipeline_id"] for each in listed(api, since=later)] == ["returns"]
    (first,) = listed(api, pipeline="orders")
    assert (first["status"], first["count"], first["acknowledged_at"]) == ("OPEN", 1, None)
    assert [(each["channel"], each["action"], each["state"]) for each in first["deliveries"]] == [
        ("ops", "trigger", "SENT")
    ]


def test_ack__by_one_with_a_name__reports_the_channel_and_who_it_was(api: AlertApi) -> None:
    api.world.emit(api.world.notice())
    (alert,) = listed(api)

    answer = api.ask("POST", f"/alerts/{alert['alert_id']}/ack", {"note": "on it"}, key=api.key(Role.OPERATOR))
    api.world.run()

    assert (answer.status_code, answer.json()["status"]) == (200, "ACKNOWLEDGED")
    assert (answer.json()["acknowledged_by"], answer.json()["note"]) == ("ann", "on it")
    assert api.ask("GET", f"/alerts/{alert['alert_id']}").json()["acknowledged_by"] == "ann"
    assert api.world.titles()[-1].startswith("acknowledged by ann")
    assert [change.action for change in api.world.audited] == ["alert.acknowledge"]


@pytest.mark.parametrize(
    "method_path", ["GET /alerts/alert_01M7J1SW5J0HF0FBVWNQKJ1JVH", "POST /alerts/alert_01M7J1SW5J0HF0FBVWNQKJ1JVH/ack"]
)
def test_alert__that_is_not_there__is_not_found(api: AlertApi, method_path: str) -> None:
    method, path = method_path.split()

    answer = api.ask(method, path)

    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


def test_mute__for_a_while__silences_what_fits_until_it_is_taken_back(api: AlertApi) -> None:
    made = api.ask("POST", "/alert-mutes", {"pipeline": "ord*", "duration": "2h", "reason": "migration"})
    api.world.emit(api.world.notice())
    (alert,) = listed(api)

    assert made.status_code == 201
    mute = made.json()
    assert (mute["by"], mute["reason"], mute["event"]) == ("local", "migration", "*")
    assert (alert["status"], alert["muted_by"]) == ("MUTED", mute["mute_id"])
    assert api.world.titles() == []
    assert [each["mute_id"] for each in api.ask("GET", "/alert-mutes").json()["mutes"]] == [mute["mute_id"]]

    gone = api.ask("DELETE", f"/alert-mutes/{mute['mute_id']}", params={"reason": "over"})
    api.world.emit(api.world.notice(dedup_key="another"))
    again = api.ask("DELETE", f"/alert-mutes/{mute['mute_id']}")

    assert (gone.status_code, again.status_code) == (204, 404)
    assert len(api.world.titles()) == 1
    assert [change.action for change in api.world.audited] == ["alert.mute", "alert.unmute"]


def test_mute__up_to_a_severity__lets_what_is_worse_through(api: AlertApi) -> None:
    until = "2025-06-15T18:00:00Z"
    assert until > api.world.clock.now().isoformat()
    api.ask("POST", "/alert-mutes", {"until": until, "severity_max": "warning", "reason": "noise"})
    api.world.emit(api.world.notice(severity=Severity.WARNING, dedup_key="a"))
    api.world.emit(api.world.notice(severity=Severity.CRITICAL, dedup_key="b"))

    assert sorted(each["status"] for each in listed(api)) == ["MUTED", "OPEN"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"reason": "x"}, "one of until and duration"),
        ({"reason": "x", "duration": "1h", "until": "2025-06-15T18:00:00Z"}, "one of until and duration"),
        ({"duration": "1h"}, "reason"),
        ({"reason": "", "duration": "1h"}, "reason"),
        ({"reason": "x", "duration": "91d"}, "within 90 days"),
        ({"reason": "x", "until": "2020-01-01T00:00:00Z"}, "after now"),
        ({"reason": "x", "duration": "soon"}, "duration"),
        ({"reason": "x", "duration": "1h", "severity_max": "bad"}, "severity_max"),
    ],
)
def test_mute__that_cannot_be__is_refused_with_what_is_wrong(api: AlertApi, body: dict[str, Any], said: str) -> None:
    answer = api.ask("POST", "/alert-mutes", body)

    assert (answer.status_code, said in answer.json()["detail"]) == (400, True), answer.text
    assert api.ask("GET", "/alert-mutes").json() == {"mutes": []}


def test_channel__that_works__takes_a_test(api: AlertApi) -> None:
    answer = api.ask("POST", "/alert-channels/ops/test")

    assert (answer.status_code, answer.json()["channel"]) == (200, "ops")
    (response,) = api.world.sent()
    assert "This is a test of the channel ops" in response["title"]
    assert api.ask("GET", "/alert-channels").json() == {
        "channels": [{"name": "backup", "failing": False}, {"name": "ops", "failing": False}]
    }
    assert listed(api) == []


def test_channel__that_does_not_work_or_is_not_there__says_so(api: AlertApi) -> None:
    api.world.break_channel("ops")

    broken = api.ask("POST", "/alert-channels/ops/test")
    missing = api.ask("POST", "/alert-channels/nobody/test")

    assert broken.status_code in (400, 503), broken.text
    assert "ops" in broken.json()["detail"]
    assert (missing.status_code, "there are ['backup', 'ops']" in missing.json()["detail"]) == (404, True)


READS = ("GET /alerts", "GET /alerts/x", "GET /alert-mutes", "GET /alert-channels")
WRITES = ("POST /alerts/x/ack", "POST /alert-mutes", "DELETE /alert-mutes/x", "POST /alert-channels/ops/test")


@pytest.mark.parametrize(
    ("role", "allowed"),
    [
        (Role.ENFORCER, ()),
        (Role.VIEWER, READS),
        (Role.OPERATOR, (*READS, *WRITES)),
        (Role.SERVICE, (*READS, *WRITES)),
        (Role.ADMIN, (*READS, *WRITES)),
    ],
)
def test_rules__each_role__may_do_what_it_is_for(api: AlertApi, role: Role, allowed: tuple[str, ...]) -> None:
    key = api.key(role)

    admitted = [each for each in (*READS, *WRITES) if api.ask(*each.split(), key=key).status_code != 403]

    assert admitted == list(allowed)
