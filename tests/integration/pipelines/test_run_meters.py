"""Metrics of pipelines: what the change stream counts, what is read at intervals, and the series that alarms name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from headgate.checks import metrics as check_metrics
from headgate.metric_series import Series
from headgate.pipelines.enums import ExpectationKind, ExpectationVerdict
from headgate.pipelines.events.names import EventName
from headgate.pipelines.watchdog.expectations import Expectation, ExpectationJudgement
from headgate.pipelines.watchdog.verdicts import Verdicts
from headgate.serve import fanout_metrics
from headgate.serve.pipeline_metrics import SERIES, PipelineCollector, read_gauges
from headgate.settings import PipelineSettings, Settings
from tests.pipeline_rig import DATE, Rig, pipeline, slot_of, waiting_pipeline

_SERIES = re.compile(
    r"(headgate_[a-z_]+?)(?:_total|_bucket|_count|_sum)?(?:\{([^}]*)\}|\b)(?=[\[\s)>=]|$)",
)
RULES = Path(__file__).parents[3] / "deploy/prometheus"


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig(settings=Settings(pipelines=PipelineSettings(pools={"spark": 1}))) as made:
        yield made


def scraped(rig: Rig) -> CollectorRegistry:
    registry = CollectorRegistry()
    collector = PipelineCollector(rig.pipelines.meters.reading, lambda: read_gauges(rig.pipelines))
    collector.refresh()
    registry.register(collector)
    return registry


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(name, labels)


def test_meters__run_that_waits_and_completes__counts_each_status_and_its_times(rig: Rig) -> None:
    rig.define(waiting_pipeline())
    rig.push("silver", "landed", date=DATE)
    rig.advance(30)
    rig.push("silver", "orders", count=12)
    rig.advance(10)
    rig.pipelines.jobs.complete(rig.run(slot_of()).run_id, is_success=True)
    rig.pump()

    registry = scraped(rig)

    for status in ("PENDING", "TRIGGERING", "RUNNING", "COMPLETED"):
        assert value(registry, "headgate_pipeline_runs_total", status=status) == 1, status
    assert value(registry, "headgate_pipeline_readiness_wait_seconds_sum") == pytest.approx(30, abs=1)
    assert value(registry, "headgate_pipeline_start_seconds_count") == 1
    assert value(registry, "headgate_pipeline_job_seconds_sum") == pytest.approx(10, abs=1)
    assert value(registry, "headgate_pipeline_open_runs", status="RUNNING") == 0


def test_meters__change_delivered_again__counts_no_run_twice(rig: Rig) -> None:
    rig.define(pipeline())
    rig.push("silver", "landed", date=DATE)
    run = rig.run(slot_of())
    rig.stores.runs.change(run, note="a change that keeps the status")
    rig.pump()

    assert value(scraped(rig), "headgate_pipeline_runs_total", status="RUNNING") == 1


def test_meters__open_runs_and_pools__are_read_from_the_store(rig: Rig) -> None:
    rig.jobs.keep_running()
    rig.define(pipeline("bronze", pool="spark"), pipeline("silver", pool="spark"))
    for name in ("bronze", "silver"):
        rig.push(name, "landed", date=DATE)
    rig.advance(60)

    registry = scraped(rig)

    assert value(registry, "headgate_pipeline_open_runs", status="RUNNING") == 1
    assert value(registry, "headgate_pipeline_open_runs", status="PENDING") == 1
    assert value(registry, "headgate_pipeline_oldest_pending_seconds") == pytest.approx(60, abs=1)
    used = [value(registry, f"headgate_pool_{name}", pool="spark") for name in ("slots", "slots_used", "waiting")]
    assert used == [1, 1, 1]


def test_meters__verdicts_and_warnings__are_counted_with_the_margin(rig: Rig) -> None:
    rig.define(pipeline())
    verdicts = Verdicts(rig.store, rig.clock, rig.event_writer)
    for date, verdict, margin in (
        (DATE, ExpectationVerdict.MISSED, -120.0),
        ("2026-03-02", ExpectationVerdict.MET, 90.0),
    ):
        expectation = Expectation(
            kind=ExpectationKind.COMPLETION_SLA,
            schedule_id="stream",
            date=date,
            ready_at=rig.now - timedelta(hours=1),
            due_at=rig.now - timedelta(minutes=2),
        )
        assert verdicts.judge_once("silver", expectation, ExpectationJudgement(verdict=verdict, margin_seconds=margin))
    rig.event_writer.publish(
        EventName.RUN_STUCK, slot_of(), run_id="run_1", status="RUNNING", since="2026-03-03T08:00:00Z"
    )
    rig.pump()

    registry = scraped(rig)

    kind = ExpectationKind.COMPLETION_SLA.value
    assert value(registry, "headgate_pipeline_expectations_total", kind=kind, verdict="MISSED") == 1
    assert value(registry, "headgate_pipeline_expectations_total", kind=kind, verdict="MET") == 1
    assert value(registry, "headgate_pipeline_sla_margin_seconds_bucket", le="+Inf") == 2
    assert value(registry, "headgate_pipeline_sla_margin_seconds_bucket", le="0.0") == 1
    assert value(registry, "headgate_pipeline_events_total", event="RUN_STUCK") == 1


@pytest.mark.parametrize(
    ("file", "series"),
    [
        ("pipeline-rules.yml", SERIES),
        ("check-rules.yml", check_metrics.SERIES),
        ("fanout-rules.yml", fanout_metrics.SERIES),
    ],
)
def test_rules__every_series_and_label_they_name__is_exported(file: str, series: Sequence[Series]) -> None:
    document: dict[str, Any] = yaml.safe_load((RULES / file).read_text())
    labels = {each.name: {*each.labels, "le"} for each in series}
    for rule in document["groups"][0]["rules"]:
        assert rule["annotations"]["summary"]
        assert rule["labels"]["notify"] in ("ops-alerts", "ops-critical")
        named = _SERIES.findall(rule["expr"])
        assert named, rule["alert"]
        for name, selected in named:
            assert name in labels, f"{rule['alert']}: {name}"
            used = {part.split("=")[0].rstrip("=~!") for part in selected.split(",") if part}
            assert used <= labels[name], rule["alert"]
