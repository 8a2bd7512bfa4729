"""Built-in evaluators: on real sensors and run logs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.clock import VirtualClock
from headgate.errors import DefinitionError
from headgate.ids import IdMaker
from headgate.pipelines.enums import Cause, FailureCategory, RunStatus, TraitStatus
from headgate.pipelines.runs.rows import Slot
from headgate.pipelines.runs.store import Runs, RunStart
from headgate.pipelines.sensors import Sensors, sensor_key
from headgate.pipelines.traits.builtin import BuiltinEvaluator
from headgate.pipelines.traits.protocol import Answer, passed
from headgate.store.catalogue.tables import PIPELINES
from headgate.store.sqlite.store import SqliteStore
from headgate.triggers.contract import TriggerFailedError
from tests.unit.pipelines.evaluator_rig import NOW, NOW_MS, question, store_in, virtual_clock


class World:
    """Sensors and runs of one store, and the evaluators that look at them."""

    def __init__(self, store: SqliteStore, clock: VirtualClock) -> None:
        self.store = store
        self.clock = clock
        self.sensors = Sensors(store, clock)
        self.runs = Runs(store, clock, IdMaker(clock))
        self.evaluator = BuiltinEvaluator(self.sensors, self.runs)

    def ask(self, name: str, **config: Any) -> Answer:
        return self.evaluator.evaluate(question(f"builtin:{name}", **config))

    def push(self, **data: Any) -> None:
        self.sensors.push("orders", "load", data)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    clock = virtual_clock()
    with store_in(tmp_path, clock) as store:
        yield World(store, clock)


# upstream-job-log


def test_upstream_job_log__period_goes_through_its_life__passes_once_it_is_done(world: World) -> None:
    slot = Slot("raw", "h07", "2026-03-03")
    config = {"upstreamPipeline": "raw", "scheduleID": "h07", "date": "2026-03-03"}
    assert world.ask("upstream-job-log", **config) == Answer(
        status=TraitStatus.FAIL, reason="raw/h07/2026-03-03 has not begun"
    )
    run = world.runs.create(RunStart(slot=slot, cause=Cause.CRON))
    for status in (RunStatus.TRIGGERING, RunStatus.RUNNING):
        run = world.runs.move(run, status)
        answer = world.ask("upstream-job-log", **config)
        assert (answer.status, answer.category, answer.value["status"]) == (TraitStatus.FAIL, None, status.value)
    run = world.runs.move(run, RunStatus.COMPLETED_MONITORING)
    assert world.ask("upstream-job-log", **config).status is TraitStatus.PASS
    world.runs.move(run, RunStatus.COMPLETED)
    assert world.ask("upstream-job-log", **config).status is TraitStatus.PASS


def test_upstream_job_log__schedule_of_its_own__beats_that_of_the_run(world: World) -> None:
    run = world.runs.create(RunStart(slot=Slot("raw", "nightly", "2026-03-03"), cause=Cause.CRON))
    world.runs.move(world.runs.move(run, RunStatus.TRIGGERING), RunStatus.COMPLETED)
    config = {"upstreamPipeline": "raw", "upstreamSchedule": "nightly", "scheduleID": "h07", "date": "2026-03-03"}
    assert world.ask("upstream-job-log", **config).status is TraitStatus.PASS
    del config["upstreamSchedule"]
    assert "raw/h07/2026-03-03" in world.ask("upstream-job-log", **config).reason
    del config["scheduleID"]
    assert "raw/daily/2026-03-03" in world.ask("upstream-job-log", **config).reason


def test_upstream_job_log__without_a_date__is_refused_and_not_taken_for_today(world: World) -> None:
    with pytest.raises(DefinitionError, match="date is missing"):
        world.ask("upstream-job-log", upstreamPipeline="raw")


# sensor-threshold


@pytest.mark.parametrize(
    ("given", "config", "status"),
    [
        (5, {"min": 5}, TraitStatus.PASS),
        (4.99, {"min": 5}, TraitStatus.FAIL),
        ("7", {"min": 5, "max": "8"}, TraitStatus.PASS),  # bug 55
        (9, {"max": 8}, TraitStatus.FAIL),
        (0, {"min": 1}, TraitStatus.FAIL),  # bug 48
        (0, {"max": 0}, TraitStatus.PASS),  # bug 48
        (-1, {"min": 0}, TraitStatus.FAIL),
        ("many", {"min": 5}, TraitStatus.ERROR),
        (True, {"min": 0}, TraitStatus.ERROR),
    ],
)
def test_sensor_threshold__number__is_held_against_both_ends__bugs_48_55(
    world: World, given: object, config: dict[str, Any], status: TraitStatus
) -> None:
    world.push(value=given)
    answer = world.ask("sensor-threshold", sensorType="load", **config)
    assert answer.status is status
    assert answer.category is (FailureCategory.PERMANENT if status is TraitStatus.ERROR else None)


def test_sensor_threshold__row_of_the_period__beats_the_one_without__bug_52(world: World) -> None:
    world.sensors.push("orders", "load", {"value": 1})
    world.sensors.push("orders", "load", {"value": 100}, period="2026-03-03")
    assert world.ask("sensor-threshold", sensorType="load", min=50).status is TraitStatus.PASS


def test_sensor_threshold__only_another_period_is_known__fails_and_says_so(world: World) -> None:
    world.sensors.push("orders", "load", {"value": 100, "date": "2026-03-02"})
    answer = world.ask("sensor-threshold", sensorType="load", min=50)
    assert (answer.status, answer.category) == (TraitStatus.FAIL, None)
    assert "2026-03-02" in answer.reason


def test_sensor_threshold__flat_row_of_another_writer__is_read__d14(world: World) -> None:
    world.store.put(PIPELINES, {**PIPELINES.key_attributes(sensor_key("orders", "load")), "value": "12"})
    assert world.ask("sensor-threshold", sensorType="load", min=10).status is TraitStatus.PASS


def test_sensor_threshold__field_by_its_path__is_found(world: World) -> None:
    world.push(stats={"rows": 12})
    assert world.ask("sensor-threshold", sensorType="load", field="stats.rows", min=10).value == {"stats.rows": 12}
    assert world.ask("sensor-threshold", sensorType="load", min=10).reason == "sensor load has no value"


# sensor-freshness


@pytest.mark.parametrize(
    ("updated_at", "status"),
    [
        (NOW_MS - 60_000, TraitStatus.PASS),
        (NOW_MS // 1000 - 60, TraitStatus.PASS),  # bug 50
        (str(NOW_MS // 1000 - 60), TraitStatus.PASS),
        ("2026-03-03T07:59:00Z", TraitStatus.PASS),  # D13
        (NOW_MS - 600_000, TraitStatus.PASS),
        (NOW_MS - 601_000, TraitStatus.FAIL),
        (NOW_MS // 1000 - 601, TraitStatus.FAIL),  # bug 50
        ("2026-03-03T07:00:00Z", TraitStatus.FAIL),
        (NOW_MS + 200_000, TraitStatus.PASS),
        (NOW_MS + 3_600_000, TraitStatus.FAIL),  # D15
        ("2030-01-01T00:00:00Z", TraitStatus.FAIL),  # D15
    ],
)
def test_sensor_freshness__moment_in_any_form__is_held_against_the_age__bug_50_d13_d15(
    world: World, updated_at: object, status: TraitStatus
) -> None:
    world.push(updatedAt=updated_at)
    for age in ("10m", 600, "600"):
        assert world.ask("sensor-freshness", sensorType="load", maxAge=age).status is status


def test_sensor_freshness__says_no_moment__goes_by_when_it_was_pushed(world: World) -> None:
    world.push(count=1)
    assert world.ask("sensor-freshness", sensorType="load", maxAge="1m").status is TraitStatus.PASS
    answer = world.ask("sensor-freshness", sensorType="load", maxAge="1m", field="loaded_at")
    assert (answer.status, answer.reason) == (TraitStatus.FAIL, "sensor load has no loaded_at that is a moment")


def test_sensor_freshness__row_of_another_writer_without_a_moment__is_not_believed(world: World) -> None:
    world.store.put(PIPELINES, {**PIPELINES.key_attributes(sensor_key("orders", "load")), "count": 1})
    assert world.ask("sensor-freshness", sensorType="load", maxAge="1m").status is TraitStatus.FAIL


# window-completeness


@pytest.mark.parametrize(
    ("windows", "config", "status", "said"),
    [
        (["00", "01"], {"expectedWindows": ["00", "01"]}, TraitStatus.PASS, "all 2"),
        (["00"], {"expectedWindows": ["00", "01", "02"]}, TraitStatus.FAIL, "missing: 01, 02"),
        ({"00", "01"}, {"expectedWindows": ["00", "01"]}, TraitStatus.PASS, "all 2"),
        ({"00": True, "01": False}, {"expectedWindows": ["00", "01"]}, TraitStatus.FAIL, "missing: 01"),
        ([1, 2], {"expectedWindows": [1, 2]}, TraitStatus.PASS, "all 2"),
        (["00", "00", "01"], {"expectedCount": 3}, TraitStatus.FAIL, "2 of 3"),
        (24, {"expectedCount": 24}, TraitStatus.PASS, "24 windows"),
        ("23", {"expectedCount": "24"}, TraitStatus.FAIL, "23 of 24"),
        ([], {"expectedCount": 0}, TraitStatus.PASS, "0 windows"),
        (24, {"expectedWindows": ["00"]}, TraitStatus.ERROR, "names no windows"),
        ([], {"expectedWindows": [str(n) for n in range(9)]}, TraitStatus.FAIL, "and 4 more"),
    ],
)
def test_window_completeness__windows_in_any_form__are_counted_once(
    world: World, windows: object, config: dict[str, Any], status: TraitStatus, said: str
) -> None:
    world.push(windows=windows)
    answer = world.ask("window-completeness", sensorType="load", **config)
    assert answer.status is status
    assert said in answer.reason


# data-quality


@pytest.mark.parametrize(
    ("data", "config", "status"),
    [
        ({"nullRate": 0.01}, {"maxNullRate": 0.05}, TraitStatus.PASS),
        ({"null_rate": "0.06"}, {"maxNullRate": 0.05}, TraitStatus.FAIL),
        ({"nullRate": 0}, {"maxNullRate": 0}, TraitStatus.PASS),  # bug 48
        ({"nullRate": None}, {"maxNullRate": 0.05}, TraitStatus.FAIL),
        ({}, {"maxNullRate": 0.05}, TraitStatus.FAIL),
        ({"nullRate": 0.9, "schemaDrift": False}, {}, TraitStatus.PASS),
        ({"schemaDrift": True}, {}, TraitStatus.FAIL),
        ({"schemaDrift": "true", "nullRate": 0}, {"maxNullRate": 1}, TraitStatus.FAIL),
        ({"schema_drift": True, "nullRate": 0}, {"maxNullRate": 1, "allowSchemaDrift": True}, TraitStatus.PASS),
    ],
)
def test_data_quality__nulls_and_schema__are_both_held_against_the_config(
    world: World, data: dict[str, Any], config: dict[str, Any], status: TraitStatus
) -> None:
    world.push(**data)
    assert world.ask("data-quality", sensorType="load", **config).status is status


# What is wrong with a config.


@pytest.mark.parametrize(
    ("name", "config", "said"),
    [
        ("sensor-threshold", {"min": 1}, "sensorType is missing"),
        ("sensor-threshold", {"sensorType": "load"}, "neither min nor max"),
        ("sensor-threshold", {"sensorType": "load", "min": "low"}, 'min is "low"; give a number'),
        ("sensor-threshold", {"sensorType": 5, "min": 1}, "sensorType is 5; give a text"),
        ("sensor-freshness", {"sensorType": "load"}, "maxAge is missing"),
        ("sensor-freshness", {"sensorType": "load", "maxAge": "soon"}, "maxAge 'soon' is not a duration"),
        ("window-completeness", {"sensorType": "load"}, "neither expectedWindows nor expectedCount"),
        ("window-completeness", {"sensorType": "load", "expectedWindows": []}, "give a list of texts"),
        ("data-quality", {"sensorType": "load", "maxNullRate": 5}, "maxNullRate is 5; give a share"),
        ("data-quality", {"sensorType": "load", "allowSchemaDrift": "no"}, "give true or false"),
        ("sensor-threshold", {"sensorType": "${env:HOME}", "min": 1}, "no secrets"),
    ],
)
def test_builtin__config_is_wrong__is_refused_by_the_name_of_the_field(
    world: World, name: str, config: dict[str, Any], said: str
) -> None:
    with pytest.raises(DefinitionError, match=said):
        world.ask(name, **config)


def test_builtin__unknown_template__is_refused(world: World) -> None:
    with pytest.raises(TriggerFailedError, match="nonsense"):
        world.ask("sensor-threshold", sensorType="load-${nonsense}", min=1)


def test_builtin__unknown_name__is_a_permanent_error_with_the_names_there_are(world: World) -> None:
    answer = world.ask("sensor-treshold")
    assert (answer.status, answer.category) == (TraitStatus.ERROR, FailureCategory.PERMANENT)
    assert "sensor-threshold" in answer.reason


def test_builtin__templates_in_the_config__are_filled_in_from_the_run(world: World) -> None:
    seen: list[dict[str, Any]] = []

    def look(asked: Any) -> Answer:
        seen.append(dict(asked.config))
        return passed("")

    evaluator = BuiltinEvaluator(world.sensors, world.runs, {"look": look})
    config: dict[str, Any] = {
        "path": "/${year}/${date}/${schedule}/${pipeline}/${run_id}",
        "more": ["$${date}", {"at": "${date}"}],
    }
    evaluator.evaluate(question("builtin:look", **config))
    assert seen == [
        {"path": "/2026/2026-03-03/daily/orders/run_1", "more": ["${date}", {"at": "2026-03-03"}]},
    ]
    assert config["path"].startswith("/${year}")  # bug 57


def test_builtin__evaluators_of_ones_own__stand_beside_the_others(world: World) -> None:
    more: dict[str, Callable[[Any], Answer]] = {"mine": lambda _: passed("mine")}
    evaluator = BuiltinEvaluator(world.sensors, world.runs, more)
    assert {"mine", "sensor-threshold", "upstream-job-log"} <= set(evaluator.names)
    assert evaluator.evaluate(question("builtin:mine")).reason == "mine"
    assert NOW.timestamp() == world.clock.seconds()
