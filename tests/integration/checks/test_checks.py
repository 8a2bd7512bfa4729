"""Checks on a real DuckDB file: due index, lease, results, signals and incidents, in virtual time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from msgspec import convert

from headgate.checks.poller import CheckThread
from headgate.checks.state import CheckKey
from headgate.health.model.datasets import DatasetSpec
from headgate.health.model.enums import SignalState
from headgate.health.model.signals import Metrics
from headgate.pipelines.authoring.loader import load_pipeline
from headgate.pipelines.enums import Cause, RunStatus
from headgate.pipelines.runs.rows import Slot
from headgate.pipelines.runs.store import RunStart
from tests.integration.checks.rig import CheckRig, check_rig

ORDERS = "urn:dp:orders:created"
OK, WARNING, CRITICAL, UNKNOWN = (
    SignalState.OK, SignalState.WARNING, SignalState.CRITICAL, SignalState.UNKNOWN,
)  # fmt: skip
FILE = """\
dataset: urn:dp:orders:created
source:
  sql: {url: "duckdb:///shop.duckdb", table: orders}
every: 60s
checks:
  - id: customer
    null_share: {column: customer_id, max: 0.1}
  - id: key
    unique: {columns: [order_id]}
"""


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[CheckRig]:
    with check_rig(tmp_path) as made:
        yield made


def fill(rig: CheckRig, *rows: str) -> None:
    with duckdb.connect(str(rig.folder / "shop.duckdb")) as database:
        database.execute("DROP TABLE IF EXISTS orders")
        database.execute("CREATE TABLE orders (order_id BIGINT, customer_id VARCHAR, created_at TIMESTAMP)")
        for row in rows:
            database.execute(f"INSERT INTO orders VALUES {row}")


GOOD = ("(1, 'a', '2026-03-03 05:10:00')", "(2, 'b', '2026-03-03 05:20:00')")
BAD = ("(1, NULL, '2026-03-03 05:10:00')", "(1, 'b', '2026-03-03 05:20:00')")


def test_due_checks__run_once_an_interval__and_recover_with_the_data(rig: CheckRig) -> None:
    fill(rig, *GOOD)
    rig.load(FILE)

    rig.advance(5)
    assert rig.states() == {"customer": OK, "key": OK}
    assert rig.signal("DATA_QUALITY").state is OK

    fill(rig, *BAD)
    rig.advance(60)
    assert rig.states() == {"customer": CRITICAL, "key": CRITICAL}
    signal = rig.signal("DATA_QUALITY")
    assert signal.state is CRITICAL
    assert set(signal.value.failure_signatures) == {"NULL_SHARE_CHECK:customer", "UNIQUE_CHECK:key"}
    assert signal.value.incident_id is not None
    assert signal.value.evidence_sample
    assert rig.result("customer").message == "customer_id is null in 50.00% of the rows, at most 10.00%"

    fill(rig, *GOOD)
    rig.advance(60)
    assert rig.signal("DATA_QUALITY").state is OK
    assert [each.state for each in rig.result("key").history] == [OK, CRITICAL, OK]


def test_source_that_cannot_be_read__is_unknown_with_the_reason_and_never_a_pass(rig: CheckRig) -> None:
    rig.load(FILE)

    rig.advance(5)

    assert rig.states() == {"customer": UNKNOWN, "key": UNKNOWN}
    assert rig.signal("DATA_QUALITY").state is UNKNOWN
    assert "there is no file" in rig.result("key").message


def test_one_check_that_cannot_run__beside_one_that_passes__keeps_the_signal_unknown(rig: CheckRig) -> None:
    fill(rig, *GOOD)
    rig.load(FILE.replace("customer_id, max", "no_such_column, max"))

    rig.advance(5)

    assert rig.states() == {"customer": UNKNOWN, "key": OK}
    assert rig.signal("DATA_QUALITY").state is UNKNOWN


def test_two_processes__share_the_due_index__and_run_each_check_once(rig: CheckRig) -> None:
    fill(rig, *GOOD)
    rig.load(FILE)
    other = rig.second_process()

    for _ in range(180):
        rig.checks.poller.tick()
        other.poller.tick()
        rig.clock.advance(1)

    # Three minutes: the first run and three of the interval.
    assert len(rig.result("key").history) in (3, 4)


def test_process_killed_during_a_check__next_one_runs_it_after_the_lease(rig: CheckRig) -> None:
    fill(rig, *GOOD)
    rig.load(FILE)
    assert rig.checks.poller.tick() == 0
    rig.clock.advance(3)
    # The work is claimed and never run.
    assert rig.checks.poller.tick(lambda _work: None) == 2
    other = rig.second_process()
    assert other.poller.tick() == 0
    assert rig.states() == {}

    rig.clock.advance(41)

    assert other.poller.tick() == 2
    assert rig.states() == {"customer": OK, "key": OK}


def test_result_after_the_lease__is_dropped(rig: CheckRig) -> None:
    fill(rig, *GOOD)
    rig.load(FILE)
    assert rig.checks.poller.tick() == 0
    rig.clock.advance(3)
    late: list[Callable[[], None]] = []
    rig.checks.poller.tick(late.append)
    rig.clock.advance(41)
    fill(rig, *BAD)
    other = rig.second_process()
    other.poller.tick()
    fill(rig, *GOOD)

    for work in late:
        work()

    assert rig.states() == {"customer": CRITICAL, "key": CRITICAL}


def test_request__of_a_check_without_a_schedule__runs_it_once(rig: CheckRig) -> None:
    fill(rig, *GOOD)
    rig.load(FILE.replace("every: 60s\n", ""))
    rig.advance(100)
    assert rig.states() == {}

    rig.checks.service.request(rig.urn, "key", "somebody")
    rig.advance(100)

    assert rig.states() == {"key": OK}
    assert len(rig.result("key").history) == 1


def test_request__during_a_run__runs_the_check_again(rig: CheckRig) -> None:
    fill(rig, *GOOD)
    rig.load(FILE.replace("every: 60s\n", ""))
    rig.checks.service.request(rig.urn, "key", "somebody")
    works: list[Callable[[], None]] = []
    rig.checks.poller.tick(works.append)
    rig.checks.service.request(rig.urn, "key", "another")
    rig.clock.advance(1)
    works[0]()

    assert rig.checks.poller.tick() == 1


def test_removed_check__leaves_no_failing_signal(rig: CheckRig) -> None:
    fill(rig, *BAD)
    rig.load(FILE)
    rig.advance(5)
    assert rig.signal("DATA_QUALITY").state is CRITICAL

    rig.load(FILE.split("  - id: key")[0].replace("max: 0.1", "max: 0.9"))
    rig.advance(5)

    assert rig.states() == {"customer": OK}
    assert rig.signal("DATA_QUALITY").state is OK


def test_volume__of_the_last_whole_hour__is_stored_and_judged_by_its_band(rig: CheckRig) -> None:
    fill(rig, *GOOD)
    hour = int(rig.clock.seconds()) // 3600 - 1
    rig.report_volumes({hour - back: 1000.0 + back % 7 for back in range(1, 9 * 168)})
    rig.load(
        FILE.split("checks:")[0]
        + "checks:\n  - id: rows\n    volume: {column: created_at}\n  - id: usual\n    anomaly: {}\n"
    )

    rig.advance(5)

    assert rig.states()["rows"] is CRITICAL
    assert rig.result("rows").message.startswith("2 rows, expected ")
    assert rig.result("rows").message.endswith("for a Tuesday 05:00")
    assert rig.health.volumes.hourly(rig.urn)[hour] == 2.0
    assert rig.signal("VOLUME").value.metrics == Metrics(evidence_count=2)
    rig.advance(60)
    assert rig.states()["usual"] is CRITICAL
    assert rig.signal("ANOMALY").state is CRITICAL

    tested = rig.checks.service.backtest(rig.urn, "usual", 7)
    assert tested.flagged == 1
    assert tested.judged == 167
    [flagged] = [each for each in tested.hours if each.is_flagged]
    assert flagged.hour == "2026-03-03T05:00:00.000Z"


def test_freshness_schema_and_files__feed_their_own_signals(rig: CheckRig) -> None:
    fill(rig, *GOOD)
    rig.load(
        FILE.split("checks:")[0]
        + """\
checks:
  - id: fresh
    freshness: {column: created_at, max_age: 30m}
  - id: columns
    schema: {columns: {order_id: BIGINT, total: ""}}
"""
    )

    rig.advance(5)

    assert rig.signal("FRESHNESS").state is CRITICAL
    assert rig.signal("FRESHNESS").value.failure_signature == "FRESHNESS_CHECK:fresh"
    assert "1h10m" in rig.result("fresh").message
    assert rig.signal("SCHEMA_DRIFT").state is CRITICAL
    assert rig.result("columns").message.startswith("missing: total")


def test_try__of_a_check__stores_nothing(rig: CheckRig) -> None:
    fill(rig, *BAD)
    rig.load(FILE.replace("every: 60s\n", ""))

    outcome = rig.checks.service.try_check(rig.urn, "key")

    assert outcome.state is CRITICAL
    assert outcome.failures == 1
    rig.advance(5)
    assert rig.states() == {}


CONFIG = """\
dataset: urn:dp:orders:created
every: 60s
source:
  sql: {url: "duckdb:///shop.duckdb", table: orders}
"""


def register(rig: CheckRig, **fields: Any) -> None:
    spec = convert(fields, DatasetSpec)
    rig.health.registry.create(f"{ORDERS}:v1", spec, actor="somebody")


def test_config__required_fields_and_constraints__are_checks_of_the_table(rig: CheckRig) -> None:
    register(
        rig,
        contract_binding={
            "required_fields": ["customer_id"],
            "field_constraints": {
                "order_id": {"type": "integer", "min": 2},
                "customer_id": {"pattern": "^c", "format": "email"},
                "created_at": {"format": "date-time"},
            },
        },
    )
    fill(rig, *BAD)
    rig.load(CONFIG)

    rig.advance(5)

    assert rig.states() == {
        "config.required.customer_id": CRITICAL,
        "config.constraint.order_id": CRITICAL,
        "config.constraint.customer_id": CRITICAL,
    }
    assert rig.checks.service.not_evaluated(rig.urn) == [
        "order_id: type", "customer_id: format", "created_at: format",
    ]  # fmt: skip


def test_config__min_events_per_window__is_compared_with_the_last_reported_window(rig: CheckRig) -> None:
    register(rig, slos={"volume": {"min_events_per_window": 100}})
    rig.load("dataset: urn:dp:orders:created\nevery: 60s\n")
    rig.report_window(OK, 40)

    rig.advance(5)
    assert rig.states() == {"config.min-events": CRITICAL}
    assert rig.result("config.min-events").message.startswith("40 events in the window ")
    assert rig.signal("VOLUME").state is OK
    assert rig.signal("ANOMALY").state is CRITICAL

    rig.report_window(OK, 140)
    rig.advance(60)
    assert rig.signal("ANOMALY").state is OK


def test_config__evidence_that_names_a_required_field__counts_against_the_compliance_slo(rig: CheckRig) -> None:
    register(
        rig,
        contract_binding={"required_fields": ["customer_id"]},
        slos={"contract_compliance": {"min_compliance_rate": 0.99, "warning_compliance_rate": 0.999}},
    )
    rig.load("dataset: urn:dp:orders:created\nevery: 60s\n")
    rig.advance(5)
    assert rig.states() == {"config.contract": UNKNOWN}
    assert rig.result("config.contract").message == "no evidence and no volume in the last hour"
    hour = int(rig.clock.seconds()) // 3600 - 1
    rig.report_volumes({hour: 200.0})
    rig.report_evidence(hour, "MISSING_FIELD:customer_id", 1)
    rig.report_evidence(hour, "MISSING_FIELD:note", 5)

    rig.advance(60)
    assert rig.states() == {"config.contract": WARNING}
    assert rig.result("config.contract").message == (
        "1 of 200 records of the last hour violate the contract (customer_id): 99.50% comply, at least 99.00% expected"
    )

    rig.report_evidence(hour, "MISSING_FIELD:customer_id", 5)
    rig.advance(60)
    assert rig.signal("CONTRACT_COMPLIANCE").state is CRITICAL


def test_config__without_a_check_file__is_evaluated_on_evidence_and_volumes(rig: CheckRig) -> None:
    register(rig)
    rig.urn = f"{ORDERS}:v1"
    hour = int(rig.clock.seconds()) // 3600 - 1
    rig.report_volumes({hour - 24 * day: 1000.0 for day in range(1, 8)} | {hour: 700.0})
    rig.report_evidence(hour, "MISSING_FIELD:customer_id", 1)
    rig.report_window(OK, 40)
    promises = {
        "contract_binding": {"required_fields": ["customer_id"]},
        "slos": {"volume": {"min_events_per_window": 100, "max_deviation_percent": 20}},
    }
    spec = convert(promises, DatasetSpec)
    rig.health.registry.update(rig.urn, spec, expected_version=1, actor="somebody")

    rig.advance(5)

    assert rig.states() == {
        "config.contract": CRITICAL, "config.deviation": CRITICAL, "config.min-events": CRITICAL,
    }  # fmt: skip
    assert rig.result("config.deviation").message == "700 rows, expected 1,000 within 20 % by the median of 7 days"
    assert rig.signal("CONTRACT_COMPLIANCE").state is CRITICAL
    assert rig.signal("ANOMALY").state is CRITICAL
    assert {each.known.source for each in rig.checks.service.ls(rig.urn)} == {"config"}


def test_config__without_a_check_file_and_without_data__is_not_judged(rig: CheckRig) -> None:
    register(
        rig,
        contract_binding={"required_fields": ["customer_id"]},
        slos={"volume": {"min_events_per_window": 100, "max_deviation_percent": 20}},
    )
    rig.urn = f"{ORDERS}:v1"

    rig.advance(5)

    assert rig.states() == {}
    assert rig.health.signals.get(rig.urn, "ANOMALY", consistent=True) is None


def test_config__whose_signal_a_tool_reports__is_left_to_the_tool(rig: CheckRig) -> None:
    register(rig, slos={"volume": {"min_events_per_window": 100}})
    rig.urn = f"{ORDERS}:v1"
    rig.report_window(OK, 40)
    rig.report_signal("ANOMALY", OK)

    rig.advance(5)

    assert rig.states() == {}
    assert rig.signal("ANOMALY").state is OK


def test_config__of_many_datasets__is_planned_over_a_longer_time(rig: CheckRig) -> None:
    promise = convert({"slos": {"volume": {"min_events_per_window": 100}}}, DatasetSpec)
    for number in range(100):
        rig.health.registry.create(f"urn:dp:orders:part{number}", promise, actor="somebody")

    rig.checks.poller.tick()

    now_ms = int(rig.clock.seconds() * 1000)
    due = [each.state.due_at_ms - now_ms for each in rig.checks.service.ls() if each.state is not None]
    assert len(due) == 100
    assert 2_000 < max(due) <= 5_000


def test_config__changed_and_deleted_without_a_check_file__changes_the_checks(rig: CheckRig) -> None:
    register(rig)
    rig.urn = f"{ORDERS}:v1"
    rig.report_window(OK, 40)
    rig.advance(5)
    assert rig.checks.service.ls(rig.urn) == []

    changed = convert({"slos": {"volume": {"min_events_per_window": 100}}}, DatasetSpec)
    rig.health.registry.update(rig.urn, changed, expected_version=1, actor="somebody")
    rig.advance(40)
    assert rig.states() == {"config.min-events": CRITICAL}

    rig.health.registry.update(rig.urn, DatasetSpec(), expected_version=2, actor="somebody")
    rig.advance(40)
    assert rig.states() == {}
    assert rig.signal("ANOMALY").state is UNKNOWN


def test_config__registered_after_another_process_read_the_feed__is_kept_by_both(rig: CheckRig) -> None:
    other = rig.second_process()
    other.poller.tick()
    register(rig, slos={"volume": {"min_events_per_window": 100}})
    rig.urn = f"{ORDERS}:v1"
    rig.report_window(OK, 40)
    rig.checks.poller.tick()
    rig.clock.advance(3)

    other.poller.tick()

    assert rig.states() == {"config.min-events": CRITICAL}


def test_config__that_changes__changes_the_checks(rig: CheckRig) -> None:
    register(rig)
    rig.load("dataset: urn:dp:orders:created\nevery: 60s\n")
    rig.advance(5)
    assert rig.states() == {}

    changed = convert({"slos": {"volume": {"min_events_per_window": 1}}}, DatasetSpec)
    rig.health.registry.update(f"{ORDERS}:v1", changed, expected_version=1, actor="somebody")
    rig.advance(40)

    assert rig.states() == {"config.min-events": UNKNOWN}


@pytest.mark.parametrize("url", ["sqlite:///.headgate/headgate.db", "sqlite:////etc/other.db"])
def test_source__in_the_home_or_outside_of_the_project__is_refused(rig: CheckRig, url: str) -> None:
    rig.load(FILE.replace("duckdb:///shop.duckdb", url))

    rig.advance(5)

    assert rig.states() == {"customer": UNKNOWN, "key": UNKNOWN}
    assert "is outside of the folders that probes may read" in rig.result("key").message


def test_stop__during_a_check__waits_for_its_result(rig: CheckRig) -> None:
    fill(rig, *GOOD)
    # A query that takes a while, on any machine.
    slow = "SELECT count(*) FROM range(150000000) AS numbers, (SELECT 1) AS one WHERE range % 7 = 1"
    rig.load(
        FILE.replace("every: 60s\n", "timeout: 60s\n").split("checks:", maxsplit=1)[0]
        + f"checks:\n  - id: slow\n    sql: {{query: '{slow}', check: gte, value: 1}}\n"
    )
    rig.checks.service.request(rig.urn, "slow", "somebody")
    thread = CheckThread(rig.checks.poller)
    thread.start()
    while not rig.checks.states.of([CheckKey(ORDERS, "slow")])[CheckKey(ORDERS, "slow")].claimed_by:
        time.sleep(0.001)

    thread.stop(60)

    assert rig.states() == {"slow": OK}


def test_duration__of_a_run_that_took_too_long__is_outside_of_the_band_of_its_hour(rig: CheckRig) -> None:
    text = "id: load\nwrites: ['urn:dp:orders:created']\n"
    rig.pipelines.service.definitions.put(load_pipeline(text, "load.yaml"), text, "somebody")
    rig.load("dataset: urn:dp:orders:created\nchecks:\n  - id: slow\n    anomaly: {of: duration, pipeline: load}\n")
    rig.clock.step(-60 * 86_400)
    for day in range(60):
        complete_run(rig, f"day-{day}", 600 + day % 5)
        rig.clock.step(86_400)
    complete_run(rig, "today", 605)
    rig.clock.step(3600)
    usual = rig.checks.service.try_check(rig.urn, "slow")
    rig.clock.step(86_400 - 3600)
    complete_run(rig, "tomorrow", 3000)
    rig.clock.step(3600)
    rig.checks.service.request(rig.urn, "slow", "somebody")

    rig.advance(2)

    assert usual.state is OK, usual.reason
    assert rig.states() == {"slow": CRITICAL}
    assert rig.result("slow").message.startswith("3,000 seconds, expected ")
    assert rig.signal("ANOMALY").value.failure_signature == "ANOMALY_CHECK:slow"


def complete_run(rig: CheckRig, date: str, seconds: int) -> None:
    """Run a pipeline, which takes some seconds, and leave the clock at its start."""
    runs = rig.pipelines.service.stores.runs
    made = runs.create(RunStart(slot=Slot("load", "daily", date), cause=Cause.CRON, definition_version=1))
    run = runs.move(runs.move(made, RunStatus.TRIGGERING), RunStatus.RUNNING, job_id="job-7")
    rig.clock.step(seconds)
    runs.move(run, RunStatus.COMPLETED)
    rig.clock.step(-seconds)
