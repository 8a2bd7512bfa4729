"""Databricks, against a server that speaks its Jobs API as documented."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.triggers.contract import FailureCategory, JobState, TriggerFailedError, TriggerOrder
from headgate.triggers.http.databricks import judge
from headgate.triggers.registry import TriggerKinds
from tests.integration.triggers.emulators import Databricks
from tests.unit.triggers.rigs import RUN_ID, Api, kinds, order, serving

TASKS = [{"task_key": "load", "notebook_task": {"notebook_path": "/load", "base_parameters": {"day": "${date}"}}}]


class World:
    def __init__(self, databricks: Databricks, api: Api, registry: TriggerKinds) -> None:
        self.databricks = databricks
        self.api = api
        self.registry = registry

    def order(self, **config: Any) -> TriggerOrder:
        return order("databricks", {"url": self.api.url, "token": "${env:HG_SECRET_DB}", **config})


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    databricks = Databricks()
    with serving(databricks.answer) as api:
        yield World(databricks, api, kinds(tmp_path, environ={"HG_SECRET_DB": Databricks.token}))


def test_start__job_by_number__runs_with_its_parameters_and_our_token(world: World) -> None:
    # D2, D20: the call has the job and a token, and the number of the run comes back.
    started = world.registry.start(world.order(job_id="17", job_parameters={"day": "${day_compact}"}))

    assert started.external_id == "455644833"
    assert world.api.asked[0].path == "/api/2.1/jobs/run-now"
    assert world.api.asked[0].json() == {
        "job_id": 17,
        "idempotency_token": RUN_ID,
        "job_parameters": {"day": "20260303"},
    }


def test_start__tasks__are_submitted_as_one_run(world: World) -> None:
    # D20
    world.registry.start(world.order(tasks=TASKS, timeout_seconds=600))

    body = world.api.asked[0].json()
    assert world.api.asked[0].path == "/api/2.1/jobs/runs/submit"
    assert body["tasks"][0]["notebook_task"]["base_parameters"] == {"day": "2026-03-03T07"}
    assert (body["run_name"], body["timeout_seconds"]) == ("orders hourly 2026-03-03T07", 600)


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_start__repeated_or_answer_lost__is_one_run(world: World, lost: int) -> None:
    # D20
    world.databricks.lost_answers = lost

    first = world.registry.start(world.order(job_id=17))
    second = world.registry.start(world.order(job_id=17))

    assert first == second
    assert len(world.databricks.runs) == 1


def test_poll__with_the_token__says_how_the_run_is(world: World) -> None:
    # D3
    metadata = world.registry.start(world.order(job_id=17)).metadata
    running = world.registry.poll(world.order(job_id=17), metadata)
    world.databricks.runs[455644833]["state"] = {"life_cycle_state": "TERMINATED", "result_state": "SUCCESS"}
    ended = world.registry.poll(world.order(job_id=17), metadata)

    assert (running.state, ended.state) == (JobState.RUNNING, JobState.SUCCEEDED)
    assert {asked.headers["authorization"] for asked in world.api.asked} == {f"Bearer {Databricks.token}"}


@pytest.mark.parametrize(
    ("life", "result", "details", "state", "category"),
    [
        ("PENDING", None, None, JobState.RUNNING, None),
        ("QUEUED", None, None, JobState.RUNNING, None),
        ("BLOCKED", None, None, JobState.RUNNING, None),
        ("TERMINATING", None, None, JobState.RUNNING, None),
        ("TERMINATED", "SUCCESS", None, JobState.SUCCEEDED, None),
        ("TERMINATED", "SUCCESS_WITH_FAILURES", None, JobState.SUCCEEDED, None),
        ("TERMINATED", "FAILED", None, JobState.FAILED, FailureCategory.TRANSIENT),
        # D27: Databricks says whose fault it was.
        ("TERMINATED", "FAILED", {"type": "CLIENT_ERROR"}, JobState.FAILED, FailureCategory.PERMANENT),
        ("TERMINATED", "FAILED", {"type": "CLOUD_FAILURE"}, JobState.FAILED, FailureCategory.TRANSIENT),
        ("TERMINATED", "TIMEDOUT", {"type": "CLIENT_ERROR"}, JobState.FAILED, FailureCategory.TIMEOUT),
        ("TERMINATED", "CANCELED", None, JobState.FAILED, FailureCategory.TRANSIENT),
        ("TERMINATED", "DISABLED", None, JobState.FAILED, FailureCategory.PERMANENT),
        ("SKIPPED", None, None, JobState.FAILED, FailureCategory.PERMANENT),
        ("SKIPPED", "MAXIMUM_CONCURRENT_RUNS_REACHED", None, JobState.FAILED, FailureCategory.TRANSIENT),
        ("INTERNAL_ERROR", "FAILED", None, JobState.FAILED, FailureCategory.TRANSIENT),
        (None, None, None, JobState.RUNNING, None),
    ],
)
def test_judge__every_state_of_the_api__has_a_meaning(
    life: str | None,
    result: str | None,
    details: dict[str, str] | None,
    state: JobState,
    category: FailureCategory | None,
) -> None:
    polled = judge(
        {"state": {"life_cycle_state": life, "result_state": result}, "status": {"termination_details": details}}
    )

    assert (polled.state, polled.category) == (state, category)


def test_judge__answer_without_a_state__is_still_running() -> None:
    # bug 42
    assert judge({}).state is JobState.RUNNING
    assert judge({"state": None, "status": None}).state is JobState.RUNNING


def test_poll__run_that_does_not_exist__has_failed(world: World) -> None:
    polled = world.registry.poll(world.order(job_id=17), {"external_id": "1"})

    assert (polled.state, polled.category) == (JobState.FAILED, FailureCategory.PERMANENT)


def test_poll__id_that_was_not_kept__is_refused_and_no_crash(world: World) -> None:
    # bug 32
    with pytest.raises(TriggerFailedError, match="the id of its databricks job was not stored") as caught:
        world.registry.poll(world.order(job_id=17), {})

    assert caught.value.category is FailureCategory.PERMANENT


def test_start__job_that_does_not_exist__fails_for_good(world: World) -> None:
    with pytest.raises(TriggerFailedError, match="Job 404 does not exist") as caught:
        world.registry.start(world.order(job_id=404))

    assert caught.value.category is FailureCategory.PERMANENT


@pytest.mark.parametrize("body", [b"<html>login</html>", b"[]", b"{}"])
def test_start__answer_that_is_none__is_transient(world: World, body: bytes) -> None:
    # bug 42
    world.api.answer = lambda _: (200, body)

    with pytest.raises(TriggerFailedError) as caught:
        world.registry.start(world.order(job_id=17))

    assert caught.value.category is FailureCategory.TRANSIENT


def test_cancel__run_under_way__is_asked_for_by_number(world: World) -> None:
    metadata = world.registry.start(world.order(job_id=17)).metadata

    world.registry.cancel(world.order(job_id=17), metadata)

    assert world.databricks.cancelled == [455644833]
