"""Incidents reach people through the alert channels, and acknowledgements go both ways."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self, cast

import pytest

from headgate.bootstrap.alerts import NOTIFY_FILE, open_alerts, subscribe_incidents
from headgate.bootstrap.store import OpenedStore
from headgate.durable.bus.event_log import first_id
from headgate.durable.bus.events import Event
from headgate.feedback.incident_alerts import IncidentAlerts
from headgate.health.model.datasets import DatasetSpec
from headgate.health.model.enums import IncidentStatus, Tier
from headgate.health.model.incidents import Changes, Incident, IncidentReport, Resolution
from headgate.notify.enums import AlertStatus
from headgate.settings import Settings
from tests.integration.feedback.feedback_rig import ORDERS, LoopRig, writer
from tests.pipeline_rig import DATE, slot_of

NOTIFY = """
[channels.tier1]
kind = "file"
path = "tier1.jsonl"
[channels.rest]
kind = "file"
path = "rest.jsonl"
[[routes]]
tiers = ["TIER_1"]
channels = ["tier1"]
[defaults]
page = ["rest"]
notify = ["rest"]
"""


class AlertRig(LoopRig):
    """A server with pipelines, health and alerts to two files."""

    def __enter__(self) -> Self:
        super().__enter__()
        (self._folder / NOTIFY_FILE).write_text(NOTIFY)
        nothing = cast("Any", None)
        opened = OpenedStore(cast("Any", self.store), nothing, nothing, nothing, Settings(home=self._folder))
        service = self.env.service
        self.alerting = open_alerts(opened, service, self.pipelines, service.clock)
        subscribe_incidents(self.app, self.alerting, self.health, service.clock)
        service.bus.register(list(self.app.subscriptions.values()), self.app.name)
        self.listener = IncidentAlerts(self.health, self.alerting.notifier, self.alerting.alerts, service.clock)
        return self

    def open_incident(self, tier: Tier = Tier.TIER_1) -> Incident:
        spec = DatasetSpec(tier=tier, owner_team="payments")
        self.health.registry.create(ORDERS, spec, actor="ann", ticket="CHG-1")
        report = IncidentReport(dataset_urn=ORDERS, signal_types=("FRESHNESS",), title="orders are stale")
        incident = self.health.incidents.open(report, actor="ann").incident
        self.env.run()
        return incident

    def wait(self, duration: str) -> None:
        """Let time pass with the timers of incidents."""
        self.env.clock.advance({"16m": 960.0, "31m": 1860.0}[duration])
        self.health.sweep()
        self.env.run()

    def sent(self, channel: str = "tier1") -> list[tuple[str, str]]:
        path = self._folder / f"{channel}.jsonl"
        lines = path.read_text().splitlines() if path.is_file() else []
        return [(each["action"], each["event"]) for each in map(json.loads, lines)]

    def incident_events(self) -> list[Event]:
        found = self.env.service.bus.tail(first_id(0), type="headgate.incident.*", limit=100)
        return [each.event for each in found]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[AlertRig]:
    with AlertRig(tmp_path) as opened:
        yield opened


def test_incident__opened_and_escalated__is_sent_by_its_tier_and_resolved_with_it(rig: AlertRig) -> None:
    incident = rig.open_incident()
    assert rig.sent() == [("trigger", "INCIDENT_OPENED")]
    [alert] = rig.alerting.alerts.ls().alerts
    assert (alert.incident_id, alert.team, alert.severity.value) == (incident.incident_id, "payments", "critical")
    assert f"headgate incident show {incident.incident_id}" in alert.hint

    rig.wait("16m")
    assert rig.sent()[1:] == [("trigger", "INCIDENT_ESCALATED")]

    rig.health.incidents.change(
        incident.incident_id, Changes(status="RESOLVED", resolution=Resolution(root_cause="fixed")), actor="bob"
    )
    rig.env.run()
    assert sorted(rig.sent()[2:]) == [("resolve", "INCIDENT_ESCALATED"), ("resolve", "INCIDENT_OPENED")]
    assert {each.status for each in rig.alerting.alerts.ls().alerts} == {AlertStatus.RESOLVED}
    assert rig.sent("rest") == []


def test_incident__reopened_by_a_person__alerts_again(rig: AlertRig) -> None:
    incident = rig.open_incident(Tier.TIER_3)
    resolved = Changes(status="RESOLVED", resolution=Resolution(root_cause="fixed"))
    rig.health.incidents.change(incident.incident_id, resolved, actor="bob")
    rig.env.run()
    rig.health.incidents.change(incident.incident_id, Changes(status="OPEN", reason="not fixed"), actor="bob")
    rig.env.run()

    assert rig.sent("rest") == [
        ("trigger", "INCIDENT_OPENED"),
        ("resolve", "INCIDENT_OPENED"),
        ("trigger", "INCIDENT_REOPENED"),
    ]


def test_incident__acknowledged__so_are_its_alerts_and_it_escalates_no_further(rig: AlertRig) -> None:
    incident = rig.open_incident()

    rig.health.incidents.change(incident.incident_id, Changes(status="ACKNOWLEDGED", reason="on it"), actor="bob")
    rig.env.run()
    rig.wait("31m")

    assert rig.sent() == [("trigger", "INCIDENT_OPENED"), ("acknowledge", "INCIDENT_OPENED")]
    [alert] = rig.alerting.alerts.ls().alerts
    assert (alert.acknowledged_by, alert.note) == ("bob", "on it")


def test_alert__acknowledged__so_is_its_incident_under_the_persons_name(rig: AlertRig) -> None:
    incident = rig.open_incident()
    rig.wait("16m")
    alert = rig.alerting.alerts.ls().alerts[0]
    assert alert.event == "INCIDENT_ESCALATED"

    rig.alerting.alerts.acknowledge(alert.alert_id, by="carol", note="looking")
    rig.env.run()

    found = rig.health.incidents.get(incident.incident_id)
    assert (found.status, found.steps[-1].actor) == (IncidentStatus.ACKNOWLEDGED, "carol")
    assert {each.acknowledged_by for each in rig.alerting.alerts.ls().alerts} == {"carol"}, "one cause, one thread"
    assert [each for each in rig.sent() if each[0] == "acknowledge"] == [("acknowledge", "INCIDENT_ESCALATED")]


def test_events__repeated_and_out_of_order__leave_no_open_alert_and_no_second_message(rig: AlertRig) -> None:
    incident = rig.open_incident()
    rig.health.incidents.change(
        incident.incident_id, Changes(status="RESOLVED", resolution=Resolution(root_cause="fixed")), actor="bob"
    )
    rig.env.run()
    before = rig.sent()

    for event in reversed(rig.incident_events()):
        rig.listener.on_incident(event)
    rig.env.run()

    assert rig.sent() == before == [("trigger", "INCIDENT_OPENED"), ("resolve", "INCIDENT_OPENED")]


def test_run_fails__run_and_incident__are_one_thread(rig: AlertRig) -> None:
    rig.define(writer())
    rig.jobs.fail(reason="disk full")
    rig.push("bronze", "landed", date=DATE)
    rig.advance("1m")

    alerts = rig.alerting.alerts.ls().alerts
    assert {"PIPELINE_FAILED", "INCIDENT_OPENED"} <= {each.event for each in alerts}
    slot = slot_of("bronze")
    assert {each.thread for each in alerts} == {f"PERIOD#{slot.pipeline_id}#{slot.schedule_id}#{DATE}"}
    thread = rig.alerting.alerts.thread(alerts[0].thread)
    assert set(thread.open) == {each.alert_id for each in alerts}
