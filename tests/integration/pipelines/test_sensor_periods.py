"""Which period a sensor value belongs to: the one that it names, the one in which it arrives, or all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headgate.durable.model.duration import Seconds
from headgate.errors import InvalidPayloadError
from headgate.pipelines.definition.model import (
    Period,
    Pipeline,
    PostRun,
    Readiness,
    Rule,
    Schedule,
    SensorTrigger,
)
from headgate.pipelines.enums import RunStatus, SensorPeriod
from headgate.pipelines.rules.rules import compile_readiness
from headgate.pipelines.runs.rows import Slot
from headgate.store.catalogue.tables import PIPELINES
from tests.pipeline_rig import Rig, pipeline

READY = Rule(key="source", check="equals", field="status", value="ready")


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig("2026-11-17T05:00:00+00:00") as opened:
        yield opened


def gated(cron: str, rule: Rule = READY, **fields: Any) -> Pipeline:
    readiness = Readiness(rules=(rule,), window=Seconds(4 * 3600), interval=Seconds(300))
    return pipeline(schedules=(Schedule(cron=cron),), readiness=readiness, **fields)


def seen(rig: Rig, date: str, pipe: Pipeline | None = None) -> object:
    """Return the value that the readiness rules of a period read."""
    defined = pipe or rig.known.newest("silver")[0]
    facts = rig.pipelines.facts.gather(
        defined, Slot("silver", "cron", date), compile_readiness(defined.readiness).needs, rig.now
    )
    sensor = facts.sensors.get("source")
    return None if sensor is None else sensor.data["status"]


def test_push__without_a_period__opens_the_gate_of_its_own_period_only(rig: Rig) -> None:
    rig.define(gated("0 6 * * *"))
    rig.push("silver", "source", status="ready")

    assert seen(rig, "2026-11-17") == "ready"
    assert seen(rig, "2026-11-30") is None
    assert seen(rig, "2026-11-16") is None


def test_push__the_same_value_in_the_next_period__starts_that_period_at_once(rig: Rig) -> None:
    rig.define(pipeline(schedules=(Schedule(sensor=SensorTrigger(key="source")),), readiness=Readiness(rules=(READY,))))
    rig.jobs.succeed()
    rig.push("silver", "source", status="ready")
    rig.advance("1m")
    rig.advance("24h")
    rig.push("silver", "source", status="ready")

    begun = {log.date: log.status for log in rig.stores.runs.logs("silver").logs}
    assert begun == {"2026-11-17": RunStatus.COMPLETED, "2026-11-18": RunStatus.RUNNING}


def test_push__the_same_value_again_in_its_period__starts_nothing_more(rig: Rig) -> None:
    rig.define(pipeline(schedules=(Schedule(sensor=SensorTrigger(key="source")),)))
    rig.jobs.succeed()
    rig.push("silver", "source", status="ready")
    rig.advance("1h")
    rig.push("silver", "source", status="ready")
    rig.advance("1h")

    assert [log.attempts for log in rig.stores.runs.logs("silver").logs] == [1]


def test_push__for_all_periods__holds_for_every_one_until_it_is_replaced(rig: Rig) -> None:
    rig.define(gated("0 6 * * *"))
    rig.push("silver", "source", status="no")
    rig.advance("1m")
    rig.pipelines.sensors.push("silver", "source", {"status": "ready"}, is_for_all=True)

    assert [seen(rig, date) for date in ("2026-11-16", "2026-11-17", "2026-11-30")] == ["ready"] * 3

    rig.advance("1m")
    rig.push("silver", "source", status="no")
    assert [seen(rig, date) for date in ("2026-11-17", "2026-11-30")] == ["no", None]


def test_push__for_all_periods_and_for_one__is_refused(rig: Rig) -> None:
    rig.define(gated("0 6 * * *"))
    for data, period in (({"date": "2026-11-17"}, None), ({}, "2026-11-17")):
        with pytest.raises(InvalidPayloadError, match="leave one of the two out"):
            rig.pipelines.sensors.push("silver", "source", data, period=period, is_for_all=True)


def test_delete__a_value_without_a_period_of_its_own__closes_the_gate_of_its_period(rig: Rig) -> None:
    rig.define(gated("0 6 * * *"))
    rig.push("silver", "source", status="ready")

    assert rig.pipelines.sensors.delete("silver", "source")
    assert seen(rig, "2026-11-17") is None


def test_push__of_an_earlier_period__leaves_the_value_of_a_waiting_one(rig: Rig) -> None:
    rig.define(gated("0 6 * * *"))
    rig.push("silver", "source", status="ready")
    rig.push("silver", "source", "2026-11-16", status="no")

    assert (seen(rig, "2026-11-16"), seen(rig, "2026-11-17")) == ("no", "ready")


def test_push__after_midnight_while_the_run_of_the_day_before_waits__belongs_to_that_run(rig: Rig) -> None:
    rig.define(gated("0 22 * * *"))
    rig.advance_to("2026-11-18T00:30:00+00:00")
    assert rig.status(Slot("silver", "cron", "2026-11-17")) is RunStatus.PENDING

    rig.push("silver", "source", status="ready")
    assert rig.status(Slot("silver", "cron", "2026-11-17")) is RunStatus.RUNNING

    rig.advance_to("2026-11-18T22:30:00+00:00")
    assert rig.status(Slot("silver", "cron", "2026-11-18")) is RunStatus.PENDING


def test_push__of_an_hourly_pipeline__belongs_to_the_hour_that_runs_now(rig: Rig) -> None:
    rig.define(gated("5 * * * *", period=Period.HOURLY))
    rig.advance_to("2026-11-17T08:10:00+00:00")
    rig.push("silver", "source", status="ready")
    assert rig.status(Slot("silver", "cron", "2026-11-17T07")) is RunStatus.RUNNING

    rig.advance_to("2026-11-17T09:10:00+00:00")
    assert rig.status(Slot("silver", "cron", "2026-11-17T08")) is RunStatus.PENDING


def test_push__of_a_post_run_sensor_after_midnight__belongs_to_the_run_that_expects_it(rig: Rig) -> None:
    post_run = PostRun(rules=(Rule(key="audit"),), sensor_timeout=Seconds(2 * 3600))
    rig.define(pipeline(schedules=(Schedule(cron="0 23 * * *"),), post_run=post_run))
    rig.jobs.succeed()
    rig.advance_to("2026-11-18T00:15:00+00:00")
    assert rig.status(Slot("silver", "cron", "2026-11-17")) is RunStatus.COMPLETED

    assert rig.pipelines.sensors.push("silver", "audit", {"rows": 3}).period == "2026-11-17"
    rig.advance("2h")
    assert rig.pipelines.sensors.push("silver", "audit", {"rows": 3}).period == "2026-11-18"


def test_read__a_rule_for_any_period__takes_the_newest_value(rig: Rig) -> None:
    any_period = Rule(key="source", check="equals", field="status", value="ready", period=SensorPeriod.ANY)
    rig.define(gated("0 6 * * *", any_period))
    rig.push("silver", "source", "2026-11-16", status="old")
    rig.push("silver", "source", status="ready")

    assert [seen(rig, date) for date in ("2026-11-16", "2026-11-17", "2026-11-30")] == ["ready"] * 3


def test_read__a_rule_on_the_age__takes_a_recent_value_of_the_period_before(rig: Rig) -> None:
    recent = Rule(key="source", check="age_lt", value="24h")
    rig.define(gated("0 6 * * *", recent))
    rig.push("silver", "source", status="ready")
    assert seen(rig, "2026-11-18") == "ready"

    own = Rule(key="source", check="age_lt", value="24h", period=SensorPeriod.OWN)
    for bound in (gated("0 6 * * *", own), gated("0 6 * * *", Rule(all=(recent, READY)))):
        assert seen(rig, "2026-11-18", bound) is None


@pytest.mark.parametrize(
    "row",
    [
        {"data": {"status": "ready"}},
        {"status": "ready"},
        # As an earlier release stored a push without a period.
        {"data": {"status": "ready"}, "version": 1, "changed_at_ms": 1, "pushed_at_ms": 1, "pushed_by": "ana"},
    ],
)
def test_read__a_row_of_another_program_or_an_earlier_release__holds_for_all(rig: Rig, row: dict[str, object]) -> None:
    rig.define(gated("0 6 * * *"))
    rig.store.put(PIPELINES, {"PK": "PIPELINE#silver", "SK": "SENSOR#source", **row})

    assert [seen(rig, date) for date in ("2026-11-17", "2026-11-30")] == ["ready"] * 2


def test_read__a_row_of_another_program_over_a_push_of_ours__is_the_newest_value(rig: Rig) -> None:
    rig.define(gated("0 6 * * *"))
    rig.push("silver", "source", status="no")
    rig.store.put(PIPELINES, {"PK": "PIPELINE#silver", "SK": "SENSOR#source", "data": {"status": "ready"}})

    assert seen(rig, "2026-11-17") == "ready"
