"""The PagerDuty channel against a server that speaks Events API v2 as PagerDuty documents it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.clock import SystemClock
from headgate.durable.model.failures import NonRetryable
from headgate.errors import TransientError
from headgate.notify.channels.factory import open_channels
from headgate.notify.channels.pagerduty import incident_key
from headgate.notify.configuration import parse_config
from headgate.notify.enums import AlertAction, Severity
from headgate.notify.messages import Channel
from tests.stores import open_sqlite
from tests.unit.notify.rig import LocalService, Reply, Request, a_message, surroundings

KEY = "R0123456789abcdefR0123456789abcd"
Serve = Callable[[Callable[[Request], Reply | None]], LocalService]
Open = Callable[[str], Channel]


class PagerDuty:
    """Incidents by key, as the Events API keeps them."""

    def __init__(self) -> None:
        self.incidents: dict[str, str] = {}
        self.events: list[dict[str, Any]] = []

    def __call__(self, request: Request) -> Reply:
        body = request.json
        errors = []
        if request.path != "/v2/enqueue":
            return 404, {}, {}
        if body.get("routing_key") != KEY:
            errors.append("'routing_key' is invalid")
        if body.get("event_action") not in ("trigger", "acknowledge", "resolve"):
            errors.append("'event_action' is invalid")
        elif body["event_action"] == "trigger":
            payload = body.get("payload", {})
            errors += [
                f"'payload.{name}' is missing" for name in ("summary", "source", "severity") if name not in payload
            ]
            if payload.get("severity") not in ("critical", "error", "warning", "info"):
                errors.append("'payload.severity' is invalid")
            if len(payload.get("summary", "")) > 1024:
                errors.append("'payload.summary' is too long")
        if len(body.get("dedup_key", "")) > 255:
            errors.append("'dedup_key' is too long")
        if errors:
            return 400, {}, {"status": "invalid event", "message": "Event object is invalid", "errors": errors}
        states = {"trigger": "triggered", "acknowledge": "acknowledged", "resolve": "resolved"}
        self.incidents[body["dedup_key"]] = states[body["event_action"]]
        self.events.append(body)
        return 202, {}, {"status": "success", "message": "Event processed", "dedup_key": body["dedup_key"]}


@pytest.fixture
def opening(tmp_path: Path) -> Iterator[Open]:
    store = open_sqlite(tmp_path)
    (tmp_path / "key").write_text(KEY)

    def open_at(url: str) -> Channel:
        spec = {"kind": "pagerduty", "routing_key": f"file:{tmp_path / 'key'}", "api_url": url}
        return open_channels(parse_config({"channels": {"pd": spec}}), surroundings(store, SystemClock(), tmp_path))[
            "pd"
        ]

    yield open_at
    store.close()


def test_pagerduty__triggered_acknowledged_resolved__is_one_incident(opening: Open, serve: Serve) -> None:
    service = PagerDuty()
    channel = opening(serve(service).url)

    key = channel.send(a_message(link="https://headgate.example/ui/alerts/alert_01"))
    channel.send(a_message())
    assert service.incidents == {key: "triggered"}
    channel.send(a_message(action=AlertAction.ACKNOWLEDGE))
    assert service.incidents == {key: "acknowledged"}
    channel.send(a_message(action=AlertAction.RESOLVE))

    assert service.incidents == {"JOB_FAILED#orders#daily#2026-03-03": "resolved"}
    trigger, _, acknowledge, _ = service.events
    assert trigger["payload"]["severity"] == "critical"
    assert trigger["payload"]["class"] == "JOB_FAILED"
    assert trigger["payload"]["custom_details"]["detail"] == {"error": "exit 1"}
    assert trigger["payload"]["timestamp"] == "2025-06-15T15:06:40.000Z"
    assert trigger["links"] == [{"href": "https://headgate.example/ui/alerts/alert_01", "text": "Open in Headgate"}]
    assert "payload" not in acknowledge


@pytest.mark.parametrize("severity", list(Severity))
def test_pagerduty__every_severity__is_one_that_it_knows(opening: Open, serve: Serve, severity: Severity) -> None:
    service = PagerDuty()

    opening(serve(service).url).send(a_message(severity=severity, title="x" * 2_000, dedup_key="k" * 400))

    assert len(service.events) == 1


def test_pagerduty__long_keys__stay_different() -> None:
    keys = {incident_key("k" * 300 + str(number)) for number in range(10)}

    assert len(keys) == 10
    assert {len(key) for key in keys} == {255}


@pytest.mark.parametrize(
    ("reply", "error", "says"),
    [
        ((400, {}, {"status": "invalid event", "message": "Event object is invalid", "errors": ["no key"]}),
         NonRetryable, "400: .*no key.*; check the routing key"),
        ((500, {}, {}), TransientError, "answered 500"),
        ((429, {}, {}), TransientError, "429"),
        ((200, {}, {}), TransientError, "answered 200"),
    ],
)  # fmt: skip
def test_pagerduty__does_not_take_it__says_whether_it_may_be_tried_again(
    opening: Open, serve: Serve, reply: Reply, error: type[Exception], says: str
) -> None:
    channel = opening(serve(lambda _request: reply).url)

    with pytest.raises(error, match=says) as raised:
        channel.send(a_message())

    assert KEY not in str(raised.value)
