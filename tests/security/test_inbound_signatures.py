"""Acknowledgements from Slack and PagerDuty: forged, altered and old requests are refused, repeated ones do nothing."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest

from headgate.notify.inbound import ACKNOWLEDGE
from tests.acceptance.program import Server, run
from tests.unit.notify.rig import LocalService, Request

SLACK_SECRET, PAGERDUTY_SECRET = "8f742231b10e8888abcd99yyyzzz85a5", "pd-webhook-secret-0123456789"
NOTIFY = """
[notify.channels.chat]
kind = "slack"
channel = "#ops"
token = "file:{folder}/token"
signing_secret = "file:{folder}/signing"
api_url = "{url}/api"
[notify.channels.pager]
kind = "pagerduty"
routing_key = "file:{folder}/routing"
webhook_secret = "file:{folder}/webhook"
api_url = "{url}"
[forward]
plain_http = true
private_networks = ["127.0.0.0/8"]
"""


class Site:
    """A server with Slack and PagerDuty on this machine, and one open incident."""

    def __init__(self, server: Server, tools: LocalService) -> None:
        self.server, self.tools = server, tools

    def alert(self) -> dict[str, Any]:
        return self.server.get("/alerts")["alerts"][0]  # type: ignore[no-any-return]

    def post(self, tool: str, headers: dict[str, str], content: bytes) -> int:
        url = f"{self.server.url}/api/v1/notify/{tool}"
        return httpx.post(url, headers=headers, content=content, timeout=20.0).status_code

    def slack(self, alert_id: str, *, secret: str = SLACK_SECRET, ago_seconds: float = 0, alter: bool = False) -> int:
        payload = {
            "type": "block_actions",
            "user": {"id": "U1", "username": "ada"},
            "actions": [{"action_id": ACKNOWLEDGE, "value": alert_id}],
        }
        content = urlencode({"payload": json.dumps(payload)}).encode()
        at = str(int(datetime.now(UTC).timestamp() - ago_seconds))
        signature = _hmac(secret, b"v0:" + at.encode() + b":" + content)
        headers = {
            "x-slack-signature": f"v0={signature}",
            "x-slack-request-timestamp": at,
            "content-type": "application/x-www-form-urlencoded",
        }
        return self.post("slack/chat", headers, content + b"&x=1" if alter else content)

    def pagerduty(self, key: str, *, secret: str = PAGERDUTY_SECRET, at: str = "", id: str = "E1") -> int:
        event = {
            "id": id,
            "event_type": "incident.acknowledged",
            "occurred_at": at or datetime.now(UTC).isoformat(),
            "agent": {"summary": "Grace Hopper", "type": "user_reference"},
            "data": {"type": "incident", "incident_key": key},
        }
        content = json.dumps({"event": event}).encode()
        headers = {"x-pagerduty-signature": f"v1=00,v1={_hmac(secret, content)}", "content-type": "application/json"}
        return self.post("pagerduty/pager", headers, content)

    def sent(self, path: str) -> list[Any]:
        return [each.json for each in self.tools.received if each.path == path]


def _hmac(secret: str, content: bytes) -> str:
    return hmac.new(secret.encode(), content, hashlib.sha256).hexdigest()


def _answer(request: Request) -> tuple[int, dict[str, str], Any]:
    return (202, {}, {"status": "success"}) if request.path == "/v2/enqueue" else (200, {}, {"ok": True, "ts": "1.1"})


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder: Path = tmp_path_factory.mktemp("inbound")
    tools = LocalService(_answer)
    secrets = {
        "token": "xoxb-1234567890-abcdef",
        "signing": SLACK_SECRET,
        "routing": "R0123456789abcdefR0123456789abcd",
        "webhook": PAGERDUTY_SECRET,
    }
    for name, text in secrets.items():
        (folder / name).write_text(text)
    (folder / "headgate.toml").write_text(NOTIFY.format(folder=folder, url=tools.url))
    with Server(folder, "--home", str(folder / "home")) as server:
        yield Site(server, tools)
    tools.stop()


@pytest.fixture
def incident(site: Site, request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return the alert of a new incident, once it was sent to both tools."""
    urn = f"urn:dp:shop:{request.node.name.split('_')[1]}:v1"
    body = {"dataset_urn": urn, "tier": "TIER_1", "owner_team": "payments"}
    made = httpx.post(f"{site.server.url}/api/v1/datasets", json=body, timeout=20.0)
    assert made.status_code in (200, 201), made.text
    signal = run(
        "signal",
        "set",
        urn,
        "FRESHNESS",
        "CRITICAL",
        "--signature",
        "LATE:at",
        "--server",
        site.server.url,
        folder=site.server.home.parent,
    )
    assert signal.returncode == 0, signal.stderr
    _until(lambda: bool(_alert_of(site, urn)) and not _pending(_alert_of(site, urn)))
    return _alert_of(site, urn)


def _alert_of(site: Site, urn: str) -> dict[str, Any]:
    found = [each for each in site.server.get("/alerts")["alerts"] if urn in each["text"]]
    return found[0] if found else {}


def _pending(alert: dict[str, Any]) -> bool:
    return any(each["state"] == "PENDING" for each in alert["deliveries"])


def _until(condition: Callable[[], bool]) -> None:
    from tests.acceptance.program import until

    until(condition, "the state")


def _status(site: Site, alert: dict[str, Any]) -> tuple[str, str]:
    found = site.server.get(f"/alerts/{alert['alert_id']}")
    return found["status"], found["acknowledged_by"]


def test_slack__forged_altered_or_old__is_refused_and_the_genuine_one_counts_for_the_incident(
    site: Site, incident: dict[str, Any]
) -> None:
    alert_id = incident["alert_id"]

    assert site.slack(alert_id, secret="x" * 32) == 401
    assert site.slack(alert_id, alter=True) == 401
    assert site.slack(alert_id, ago_seconds=600) == 401
    assert site.slack(alert_id, ago_seconds=-600) == 401
    assert site.post("slack/chat", {}, b"payload={}") == 401
    assert site.post("slack/pager", {}, b"payload={}") == 401
    assert _status(site, incident) == ("OPEN", "")

    assert site.slack(alert_id) == 204
    assert site.slack(alert_id) == 204, "a repeated one changes nothing"

    assert _status(site, incident) == ("ACKNOWLEDGED", "ada (Slack)")
    found = incident["detail"]["incident"]
    _until(lambda: site.server.get(f"/incidents/{found}")["status"] == "ACKNOWLEDGED")
    _until(lambda: "acknowledge" in [each["event_action"] for each in site.sent("/v2/enqueue")])
    buttons = [
        block for body in site.sent("/api/chat.postMessage") for block in body["blocks"] if block["type"] == "actions"
    ]
    assert alert_id in [each["elements"][0]["value"] for each in buttons]


def test_pagerduty__forged_old_or_repeated__is_refused_and_the_genuine_one_counts_once(
    site: Site, incident: dict[str, Any]
) -> None:
    key = f"INCIDENT#{incident['detail']['incident']}"
    assert key in [each["dedup_key"] for each in site.sent("/v2/enqueue")]

    assert site.pagerduty(key, secret="y" * 28) == 401
    assert site.pagerduty(key, at="2020-01-01T00:00:00Z") == 401
    assert site.pagerduty(key, at="yesterday") == 401
    assert site.post("pagerduty/pager", {}, b"{}") == 401
    assert _status(site, incident) == ("OPEN", "")

    assert site.pagerduty("INCIDENT#unknown", id="E0") == 204
    assert site.pagerduty(key) == 204
    assert site.pagerduty(key) == 204

    assert _status(site, incident) == ("ACKNOWLEDGED", "Grace Hopper (PagerDuty)")
    audit = run("audit", "ls", "--json", "--server", site.server.url, folder=site.server.home.parent).stdout
    assert audit.count("Grace Hopper (PagerDuty)") >= 1
