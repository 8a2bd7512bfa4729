"""The sensor keys that a pipeline reads."""

from __future__ import annotations

import pytest

from headgate.pipelines.definition.model import Pipeline, PostRun, Readiness, Rule, Schedule, SensorTrigger, Trait
from headgate.pipelines.operations.sensor_pushes import unknown_key
from headgate.pipelines.rules.sensor_keys import reads_sensor, sensor_keys

READER = Pipeline(
    id="reader",
    schedules=(Schedule(name="daily", sensor=SensorTrigger(key="landed")),),
    readiness=Readiness(
        rules=(
            Rule(all=(Rule(key="orders-export", check="exists"),)),
            Rule(key="counts", field="n", check="equals", other="ledger.n"),
        ),
        traits={
            "fresh": Trait(evaluator="builtin:sensor-freshness", config={"sensorType": "rates", "maxAge": "1h"}),
            "whole": Trait(evaluator="builtin:window-completeness", config={"sensorType": "hours-${schedule}-x"}),
        },
    ),
    post_run=PostRun(rules=(Rule(key="after", check="exists"),)),
)


def test_sensor_keys__rules_schedules_and_traits__are_all_read() -> None:
    assert sensor_keys(READER) == ["after", "counts", "landed", "ledger", "orders-export", "rates"]


@pytest.mark.parametrize("key", ["landed", "orders-export", "ledger#eu", "rates", "hours-daily-x", "probe:files"])
def test_reads_sensor__key_of_the_definition__is_read(key: str) -> None:
    assert reads_sensor(READER, key)


@pytest.mark.parametrize("key", ["orders-exprt", "orders-export-eu", "hours-daily", "hours--x", "n"])
def test_reads_sensor__any_other_key__is_not_read(key: str) -> None:
    assert not reads_sensor(READER, key)


def test_unknown_key__near_another__suggests_it_and_names_the_option() -> None:
    assert unknown_key(READER, "orders-exprt") == (
        "sensor 'orders-exprt': reader does not read this key; did you mean orders-export? "
        "To push it anyway, give --new (API: new)"
    )


def test_unknown_key__pipeline_without_sensors__says_so() -> None:
    assert "it reads no sensors. To push it anyway" in unknown_key(Pipeline(id="bare"), "x")
