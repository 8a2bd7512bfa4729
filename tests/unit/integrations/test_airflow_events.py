"""Run events of Airflow tasks: one run for all tries, one job for each mapped index, and events that Headgate takes."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from headgate.health.ingest.effects import Effect, ResultEffect, SpecUpdate
from headgate.health.ingest.events import parse
from headgate.health.ingest.names import NameResolver
from headgate.health.ingest.translate import translate
from headgate.health.model.enums import SignalState
from headgate_airflow.events import Datasets, RunEventType, TaskInstance, run_event

RAW: Final = "urn:dp:shop:raw:v1"
ORDERS: Final = "urn:dp:shop:orders:v1"
AT: Final = datetime(2026, 1, 5, 6, tzinfo=UTC)
TASK: Final = TaskInstance("shop", "load", "scheduled__2026-01-05", interval_start=AT, interval_end=AT)
DATASETS: Final = Datasets(inputs=[RAW, ("postgres://db:5432", "shop.public.raw")], outputs=[ORDERS])


def effects(event: dict[str, Any]) -> list[Effect]:
    return translate(parse(json.dumps(event).encode()), NameResolver(), lambda _urn: None)


def results(event: dict[str, Any]) -> list[ResultEffect]:
    return [each for each in effects(event) if isinstance(each, ResultEffect)]


def test_run_event__complete__is_the_result_of_the_outputs_and_their_lineage() -> None:
    event = run_event(RunEventType.COMPLETE, TASK, DATASETS, AT, namespace="airflow")

    (result,) = results(event)
    assert (result.dataset_urn, result.state) == (ORDERS, SignalState.OK)
    (lineage,) = [each for each in effects(event) if isinstance(each, SpecUpdate)]
    assert lineage.reads == {RAW, "urn:dp:postgres+db@5432:shop.public.raw"}
    assert lineage.writes == {ORDERS}
    assert lineage.producer_id == "job:airflow.shop.load"


def test_run_event__fail__has_the_error_text() -> None:
    error = ValueError("column amount is missing")

    (result,) = results(run_event(RunEventType.FAIL, TASK, DATASETS, AT, namespace="airflow", error=error))

    assert (result.state, result.message) == (SignalState.CRITICAL, "ValueError: column amount is missing")


def test_run_event__failed_try_that_is_retried__decides_nothing() -> None:
    event = run_event(RunEventType.RUNNING, TASK, DATASETS, AT, namespace="airflow", error="try 1 failed")

    assert results(event) == []


def test_run_event__same_task_instance__is_one_run_and_the_same_bytes() -> None:
    first, second = (
        json.dumps(run_event(RunEventType.COMPLETE, TASK, DATASETS, AT, namespace="airflow")) for _ in range(2)
    )
    start = run_event(RunEventType.START, TASK, DATASETS, AT, namespace="airflow")

    assert first == second
    assert start["run"]["runId"] == json.loads(first)["run"]["runId"]
    others = [replace(TASK, run_id="manual__1"), replace(TASK, map_index=0), replace(TASK, task_id="load2")]
    assert len({TASK.run_uuid, *(each.run_uuid for each in others)}) == 4


def test_run_event__mapped_indexes__are_jobs_of_their_own() -> None:
    """Otherwise the success of one index would hide the failure of another."""
    assert [replace(TASK, map_index=index).job_name for index in (0, 1)] == ["shop.load.0", "shop.load.1"]


def test_run_event__long_error__is_bounded() -> None:
    event = run_event(RunEventType.FAIL, TASK, DATASETS, AT, namespace="airflow", error="x" * 100_000)

    assert len(event["run"]["facets"]["errorMessage"]["message"]) == 2_000
