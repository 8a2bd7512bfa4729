"""Alerts: what fails too often is logged, counted and reported on the bus, by the parts as wired together."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from headgate.bootstrap.health import open_health
from headgate.durable.bus.event_log import first_id
from headgate.durable.bus.events import Event
from headgate.errors import DatasetNotFoundError, StoreBusyError, ThrottledError
from headgate.health.error_alerts import WAITING_MAX, ErrorAlerts
from headgate.health.metrics import HealthMeters
from headgate.health.model.enums import SignalState
from headgate.health.model.incidents import IncidentReport
from headgate.health.model.signals import SignalUpdate
from headgate.health.registry.degraded_lookup import FallbackOnMiss
from headgate.store.catalogue.tables import CONTROL
from headgate.store.model.conditions import absent
from headgate.telemetry import Tracing, correlated
from tests.health_rig import value
from tests.integration.serve.health_rig import ORDERS, HealthApi, health_api

ROW = {"PK": "QUOTA#x", "SK": "now"}


class Rig:
    """Health as the server opens it, with its meters."""

    def __init__(self, api: HealthApi) -> None:
        self.api = api
        self.registry = CollectorRegistry()
        self.meters = HealthMeters(self.registry)
        self.watch = ErrorAlerts(api.clock, self.meters)
        self.health = open_health(
            api.opened,
            api.cache,
            api.clock,
            api.service,
            meters=self.meters,
            alerts=self.watch,
            tracing=Tracing(),
        )

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)

    def alerts(self) -> list[dict[str, Any]]:
        page = self.api.service.bus.tail(first_id(self.api.now_ms - 3_600_000), limit=1000)
        return [each.event.data for each in page if each.event.type == "headgate.alert.error_rate"]

    def say(self, urn: str, expected_version: int = -1, **more: Any) -> None:
        said = value(SignalState.OK, self.api.now_ms)
        self.health.update_signal(
            SignalUpdate(dataset_urn=urn, signal_type="VOLUME", value=said, expected_version=expected_version, **more)
        )


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with health_api(tmp_path / "home") as api:
        made = Rig(api)
        yield made
        made.health.close()


def test_alerts__datasets_that_is_unknown__are_reported_once_their_threshold_is_passed(rig: Rig) -> None:
    for number in range(100):
        rig.say(f"urn:dp:nobody:d{number}")
    rig.health.sweep()
    assert rig.alerts() == []

    rig.say("urn:dp:nobody:last")
    rig.say("urn:dp:nobody:after")
    rig.health.sweep()
    rig.health.sweep()

    (result,) = rig.alerts()
    assert (result["event_type"], result["error_type"], result["category"]) == (
        "ERROR_RATE_EXCEEDED",
        DatasetNotFoundError.code,
        "DATA",
    )
    assert result["alert_threshold_per_minute"] == 100
    assert rig.value("error_rate_alerts_total", error=DatasetNotFoundError.code, category="DATA") == 1


def test_alerts__lookups_that_miss__count_as_well(rig: Rig) -> None:
    for number in range(101):
        rig.health.registry.lookup(f"urn:dp:nobody:d{number}", FallbackOnMiss.PASS)

    assert rig.value("error_rate_alerts_total", error=DatasetNotFoundError.code, category="DATA") == 1
    assert rig.value("default_config_used_total") == 101


def test_alerts__conflicts__are_let_be_until_a_thousand_a_minute(rig: Rig) -> None:
    store = rig.health.store
    store.put(CONTROL, ROW)
    for _ in range(1001):
        with pytest.raises(Exception, match="QUOTA#x"):
            store.put(CONTROL, ROW, condition=absent())

    assert rig.value("error_rate_alerts_total", error="conflict", category="CLIENT") == 1
    assert rig.value("dynamodb_errors_total", table=CONTROL.name, operation="put", code="conflict") is None


def test_alerts__attempts_that_the_backend_refuses__count_though_they_are_made_again(rig: Rig) -> None:
    from tests.unit.store.resilience.test_error_policy import answer

    for _ in range(101):
        rig.watch.on_attempt_failed(answer("ThrottlingException"))

    assert rig.value("error_rate_alerts_total", error="ThrottlingException", category="TRANSIENT") == 1


def test_alerts__the_bus_fails__are_reported_the_next_time(rig: Rig) -> None:
    events: list[Event] = []
    is_down = True

    def emit(event: Event) -> None:
        if is_down:
            raise StoreBusyError("down")
        events.append(event)

    alerts = ErrorAlerts(rig.api.clock)
    for _ in range(101):
        alerts.on_failed("t", "get", ThrottledError("x"))
    with pytest.raises(StoreBusyError):
        alerts.publish(emit)
    is_down = False

    assert alerts.publish(emit) == 1
    assert [each.subject for each in events] == ["throttled"]
    assert alerts.publish(emit) == 0
    assert alerts.per_minute() == {"throttled": 101}
    assert WAITING_MAX >= 1


def test_incidents__that_cannot_be_opened__are_counted(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.api.dataset(ORDERS)

    def transact(*_given: object, **_more: object) -> None:
        raise StoreBusyError("no answer")

    monkeypatch.setattr(rig.api.opened.store, "transact", transact)
    trouble = IncidentReport(dataset_urn=ORDERS, signal_types=("FRESHNESS",), failure_signatures=("LATE",))
    with pytest.raises(StoreBusyError):
        rig.health.incidents.open(trouble, actor="jane")

    assert rig.value("incident_creation_failed_total") == 1


def test_span__of_an_update__names_the_backend(rig: Rig, tmp_path: Path) -> None:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    spans = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(spans))
    with health_api(tmp_path / "other") as api:
        health = open_health(api.opened, api.cache, api.clock, api.service, tracing=Tracing(provider))
        health.registry.discover(ORDERS, None, "jane")
        other = Rig.__new__(Rig)
        other.api, other.health = api, health
        other.say(ORDERS)

    (span,) = spans.get_finished_spans()
    assert span.name == "SignalStateRepository.updateSignalState"
    assert span.attributes is not None
    assert (span.attributes["db.system"], span.attributes["db.operation"]) == ("sqlite", "UpdateItem")


def test_log__of_updates__has_a_line_for_each_under_the_names_that_others_look_for(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.health.registry.discover(ORDERS, None, "jane")
    caplog.set_level(logging.DEBUG, logger="statestore.service")
    with capture_logs() as lines:
        rig.say(ORDERS)
        rig.api.clock.advance(60)
        rig.say(ORDERS, expected_version=7)
        rig.say("urn:dp:nobody:knows:v1")

    assert [(line["event"], line["dataset_urn"]) for line in lines if line["event"].startswith("signal_state")] == [
        ("signal_state_update_started", ORDERS),
        ("signal_state_update_completed", ORDERS),
        ("signal_state_update_started", ORDERS),
        ("signal_state_update_conflict", ORDERS),
        ("signal_state_update_started", "urn:dp:nobody:knows:v1"),
        ("signal_state_update_failed", "urn:dp:nobody:knows:v1"),
    ]


def test_log__update_that_another_request_applies__has_the_correlation_id_of_its_own(rig: Rig) -> None:
    rig.health.registry.discover(ORDERS, None, "jane")
    rig.say(ORDERS)
    rig.api.clock.advance(60)
    with capture_logs() as lines, correlated("req_leader"):
        rig.say(ORDERS, expected_version=7, correlation_id="req_mine")

    (line,) = (each for each in lines if each["event"] == "signal_state_update_conflict")
    assert line["correlation_id"] == "req_mine"


def test_meters__of_an_open_state_store__show_its_guards_and_its_inbox(rig: Rig) -> None:
    rig.say("urn:dp:nobody:d")

    states = [each.value for family in rig.registry.collect() for each in family.samples if _is_breaker(each.name)]
    assert set(states) == {0.0}
    assert rig.value("openlineage_oldest_event_seconds") == 0
    assert rig.value("evidence_offered_total") == 0
    assert rig.value("evidence_outcomes_total", outcome="shed_pass") == 0


def _is_breaker(sample: str) -> bool:
    return sample == "circuit_breaker_state"
