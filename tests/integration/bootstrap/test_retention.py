"""Retention settings reach the rows: each kind of row that accumulates expires after the days of its own setting."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from headgate.durable.bus.events import Event
from headgate.durable.model.retry import Retry
from headgate.errors import NotFoundError
from headgate.fanout.core.splitter import Order
from headgate.fanout.model.rows import Policy, kept_days, load_policy
from headgate.fanout.model.sources import RangeSource
from headgate.health.model.datasets import DatasetSpec
from headgate.health.model.enums import SignalState, Tier
from headgate.health.model.incidents import Changes, IncidentReport
from headgate.health.model.signals import SignalUpdate
from headgate.notify.channels.slack_threads import SlackThreads, ThreadTopic
from headgate.pipelines.definition.model import PostRun, Rule
from headgate.pipelines.runs.late_data import LateArrival
from headgate.pipelines.traits.traits import TraitPush
from headgate.serve.http.idempotency import IdempotencyStore
from headgate.serve.http.operations import Answer
from headgate.settings import RetentionSettings, Settings
from headgate.store.catalogue.tables import CONTROL, INCIDENT_INDEX, PIPELINES, SIGNAL_STATE, SUBSCRIPTIONS
from headgate.store.model.requests import Query, Range, Sort
from headgate.store.model.schema import Key
from tests.health_rig import value
from tests.integration.serve.health_rig import HealthApi
from tests.pipeline_rig import DATE, Rig, pipeline, slot_of
from tests.unit.notify.rig import a_notice

DAY: Final = 86_400
# Every setting has a number of its own, none of them the default.
RETENTION: Final = RetentionSettings(
    alerts_days=11,
    dead_letters_days=12,
    late_data_days=13,
    quarantine_days=14,
    trait_results_days=15,
    run_baselines_days=16,
    fanouts_days=17,
    signals_days=18,
    incidents_days=19,
    idempotency_hours=20,
)
URN: Final = "urn:dp:shop:orders"


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig(settings=Settings(retention=RETENTION)) as opened:
        yield opened


@pytest.fixture
def api(tmp_path: Path) -> Iterator[HealthApi]:
    found = HealthApi(tmp_path, settings=Settings(home=tmp_path, retention=RETENTION))
    yield found
    found.close()


def days_left(clock: Any, row: dict[str, Any] | None) -> float:
    assert row is not None
    return float(row["ttl"] - int(clock.seconds())) / DAY


def rows(rig: Rig, prefix: str) -> list[dict[str, Any]]:
    query = Query(table=PIPELINES, partition="PIPELINE#silver", sort=Sort(Range.BEGINS_WITH, prefix))
    return rig.store.query(query).items


# Pipelines.


def test_late_data__of_a_period__expires_after_its_setting(rig: Rig) -> None:
    rig.stores.late_data.note(
        LateArrival(**slot_of()._asdict(), sensor_key="landed", sensor_version=2, at_ms=rig.now_ms)
    )

    (row,) = rows(rig, "LATE#")
    assert days_left(rig.clock, row) == 13


def test_trait_result__of_a_period__expires_after_its_setting(rig: Rig) -> None:
    rig.pipelines.traits.push("silver", "fresh", TraitPush(status="PASS", ttl_seconds=3600, date=DATE))

    kept = {round(days_left(rig.clock, row) - 1 / 24, 3) for row in rows(rig, "TRAIT#")}
    assert kept == {15}


def test_quarantine__written_by_the_service__expires_after_its_setting(rig: Rig) -> None:
    rig.pipelines.quarantine.put("silver", DATE, 3)

    (row,) = rows(rig, "QUARANTINE#")
    assert days_left(rig.clock, row) == 14


def test_quarantine__written_by_a_job_without_an_expiry__gets_one(rig: Rig) -> None:
    rig.define(pipeline())
    rig.store.put(PIPELINES, {"PK": "PIPELINE#silver", "SK": f"QUARANTINE#{DATE}#07", "count": 3})
    rig.pump()

    (row,) = rows(rig, "QUARANTINE#")
    assert days_left(rig.clock, row) == 14
    assert row["count"] == 3


def test_quarantine__written_by_a_job_with_an_expiry__keeps_it(rig: Rig) -> None:
    own = int(rig.clock.seconds()) + 5 * DAY
    rig.define(pipeline())
    rig.store.put(PIPELINES, {"PK": "PIPELINE#silver", "SK": f"QUARANTINE#{DATE}#07", "count": 3, "ttl": own})
    rig.pump()

    (row,) = rows(rig, "QUARANTINE#")
    assert row["ttl"] == own


def test_baseline__of_a_successful_run__expires_after_its_setting(rig: Rig) -> None:
    rig.define(pipeline(post_run=PostRun(rules=(Rule(key="orders"),), drift_field="count")))
    rig.jobs.succeed()
    rig.push("silver", "orders", date=DATE, count=10)
    rig.push("silver", "landed", date=DATE)
    rig.advance("1m")

    (row,) = rows(rig, "BASELINE#")
    assert days_left(rig.clock, row) == pytest.approx(16, abs=0.01)


# Runs of pipelines that an earlier release deleted.


def test_prune__pipeline_deleted_by_an_earlier_release__is_found_once(api: HealthApi) -> None:
    definitions, store = api.pipelines.service.definitions, api.opened.store
    for name in ("gone", "used"):
        definitions.put(pipeline(name), "text", "ana")
    definitions.delete("gone", "ana")
    key = Key("PIPELINE#gone", "CONFIG")
    store.update(PIPELINES, key, remove=("GSI1PK", "GSI1SK"))

    api.pipelines.retention.prune()

    found, used = store.get(PIPELINES, key), store.get(PIPELINES, Key("PIPELINE#used", "CONFIG"))
    assert found is not None
    assert used is not None
    assert (found["GSI1PK"], found["GSI1SK"], found["deleted"]) == ("PIPELINES-DELETED", "gone", True)
    assert used["GSI1PK"] == "PIPELINES"
    assert store.get(CONTROL, Key("DEDUP#deleted-pipelines-indexed", "DEDUP")) is not None
    with pytest.raises(NotFoundError):
        definitions.get("gone")


# The bus.


def test_dead_letter__of_a_failed_delivery__expires_after_its_setting(rig: Rig) -> None:
    def handle(event: Event) -> None:
        raise ValueError("handler broke")

    rig.app.on_event("thing", name="handle", retry=Retry(attempts=1))(handle)
    rig.env.service.bus.register(list(rig.app.subscriptions.values()), rig.app.name)
    rig.env.service.bus.emit(Event(type="thing", data=5))
    rig.advance("1m")

    (letter,) = rig.env.service.bus.dead_letters("handle").letters
    row = rig.store.get(SUBSCRIPTIONS, Key("handle", f"DEAD#{letter.event_id}"))
    assert row is not None
    assert row["ttl"] == letter.dead_at_ms // 1000 + 12 * DAY


# Fan-outs.


@pytest.mark.parametrize(("own_days", "days"), [(None, 17), (3.0, 3)])
def test_fan_out__with_and_without_a_retention_of_its_own__is_deleted_after_it(
    api: HealthApi, own_days: float | None, days: int
) -> None:
    order = Order("g", 5, policy=Policy(retention_days=own_days))

    ended = api.fanouts.splitter.split(order, RangeSource(0, 0), run_id="empty")

    found = api.fanouts.queries.fanout("empty", consistent=True)
    assert ended.run_id == "empty"
    assert found.rules().retention_days == days
    assert found.attention_pk == "EXPIRING"
    assert str(found.attention_sk).startswith(api.at(days * 24 * 60)[:16])


def test_fan_out__stored_by_an_earlier_release__is_kept_for_90_days() -> None:
    assert kept_days(load_policy("{}")) == 90


# Alerts.


def test_alert__from_a_notice__expires_after_its_setting(api: HealthApi) -> None:
    api.pipelines.notifier.take(a_notice(api.service.ids.ulid(), api.now_ms))

    (alert,) = api.pipelines.alerts.ls().alerts
    query = Query(table=PIPELINES, partition="PIPELINE#orders", sort=Sort(Range.BEGINS_WITH, "ALERT#"))
    (row,) = api.opened.store.query(query).items
    latest = api.opened.store.get(CONTROL, Key(f"DEDUP#alert#{alert.dedup_key}", "DEDUP"))
    assert days_left(api.clock, row) == pytest.approx(11, abs=0.01)
    assert days_left(api.clock, latest) == 11


def test_alert__acknowledged__keeps_its_expiry(api: HealthApi) -> None:
    api.pipelines.notifier.take(a_notice(api.service.ids.ulid(), api.now_ms))
    (alert,) = api.pipelines.alerts.ls().alerts
    query = Query(table=PIPELINES, partition="PIPELINE#orders", sort=Sort(Range.BEGINS_WITH, "ALERT#"))
    (before,) = api.opened.store.query(query).items

    api.pipelines.alerts.acknowledge(alert.alert_id, by="ana")

    (after,) = api.opened.store.query(query).items
    assert after["ttl"] == before["ttl"]


# Health.


def test_signal__that_is_ok__expires_after_its_setting(api: HealthApi) -> None:
    api.health.registry.create(URN, DatasetSpec(tier=Tier.TIER_2, owner_team="shop"), actor="ana")
    update = SignalUpdate(
        dataset_urn=URN, signal_type="FRESHNESS", value=value(SignalState.OK, api.now_ms), expected_version=-1
    )
    api.health.update_signal(update)

    row = api.opened.store.get(SIGNAL_STATE, Key(URN, "FRESHNESS"))
    # Whole days, rounded up.
    assert 18 <= days_left(api.clock, row) <= 19


def test_incident__resolved__expires_after_its_setting(api: HealthApi) -> None:
    api.health.registry.create(URN, DatasetSpec(tier=Tier.TIER_2, owner_team="shop"), actor="ana")
    opened = api.health.incidents.open(IncidentReport(dataset_urn=URN, signal_types=("FRESHNESS",)), actor="ana")
    key = Key(f"INC#{opened.incident.incident_id}", "META")
    before = api.opened.store.get(INCIDENT_INDEX, key)
    api.health.incidents.change(opened.incident.incident_id, Changes(status="RESOLVED"), actor="ana")

    assert before is not None
    assert "ttl" not in before
    assert days_left(api.clock, api.opened.store.get(INCIDENT_INDEX, key)) == 19


# Requests and threads.


def test_response__by_idempotency_key__expires_after_its_hours(api: HealthApi) -> None:
    hours = RETENTION.idempotency_hours
    responses = IdempotencyStore(api.opened.store, api.clock, kept_seconds=3600 * hours)
    ran: list[int] = []

    def run() -> Answer:
        ran.append(1)
        return Answer({"n": len(ran)})

    responses.run_once("POST /x", "k", b"{}", run)
    api.clock.advance(3600 * hours - 1)
    responses.run_once("POST /x", "k", b"{}", run)
    assert len(ran) == 1

    api.clock.advance(2)
    responses.run_once("POST /x", "k", b"{}", run)
    assert len(ran) == 2


def test_alert_thread__started_in_slack__expires_after_the_setting_of_alerts(api: HealthApi) -> None:
    threads = SlackThreads(api.opened.store, api.clock, api.service.ids, kept_seconds=11 * DAY)
    threads.reply_or_start(ThreadTopic("slack", "orders", "daily", DATE), lambda _thread: "1.1")

    query = Query(table=PIPELINES, partition="PIPELINE#orders", sort=Sort(Range.BEGINS_WITH, "THREAD#"))
    (row,) = api.opened.store.query(query).items
    assert days_left(api.clock, row) == 11
