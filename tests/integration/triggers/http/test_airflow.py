"""Airflow by both of its APIs, against a server that speaks them as documented."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.triggers.contract import FailureCategory, JobState, StartStatus, TriggerFailedError, TriggerOrder
from headgate.triggers.registry import TriggerKinds
from tests.integration.triggers.emulators import PASSWORD, USER, Airflow
from tests.unit.triggers.rigs import RUN_ID, Api, kinds, order, serving

DAG = "load orders"


class World:
    def __init__(self, airflow: Airflow, api: Api, registry: TriggerKinds) -> None:
        self.airflow = airflow
        self.api = api
        self.registry = registry

    def order(self, **config: Any) -> TriggerOrder:
        given = {
            "url": self.api.url,
            "dag_id": DAG,
            "api": self.airflow.api,
            "username": USER,
            "password": "${env:HG_SECRET_AIRFLOW}",
            "conf": {"day": "${day_compact}"},
            **config,
        }
        return order("airflow", given)

    def run(self) -> dict[str, Any]:
        return self.airflow.runs[DAG, RUN_ID]


@pytest.fixture(params=["v1", "v2"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    airflow = Airflow(request.param)
    with serving(airflow.answer) as api:
        yield World(airflow, api, kinds(tmp_path, environ={"HG_SECRET_AIRFLOW": PASSWORD}))


def test_start__dag_that_exists__runs_under_our_id(world: World) -> None:
    # D2: the id of every kind is found where it is looked for.
    started = world.registry.start(world.order())

    assert (started.status, started.external_id) == (StartStatus.RUNNING, RUN_ID)
    assert started.metadata == {"external_id": RUN_ID, "dag_id": DAG}
    assert world.run()["conf"] == {"day": "20260303"}


def test_start__again_for_the_same_run__finds_the_first(world: World) -> None:
    # D20
    first = world.registry.start(world.order())
    second = world.registry.start(world.order())

    assert first == second
    assert len(world.airflow.runs) == 1


def test_start__answer_lost__starts_nothing_twice(world: World) -> None:
    # D20
    world.airflow.lost_answers = 1

    started = world.registry.start(world.order())

    assert started.external_id == RUN_ID
    assert len(world.airflow.runs) == 1


def test_start__other_run_with_the_same_logical_date__is_not_taken_for_ours(world: World) -> None:
    date = "2026-03-03T07:00:00Z"
    world.airflow.runs[DAG, "scheduled"] = {"logical_date": date, "state": "running"}

    with pytest.raises(TriggerFailedError, match="answered 409") as caught:
        world.registry.start(world.order(logical_date=date))

    assert caught.value.category is FailureCategory.PERMANENT


def test_poll__as_the_run_goes_on__says_how_it_is_with_proof_of_who_asks(world: World) -> None:
    # D3: polls are refused without a proof of identity.
    asked = world.order()
    metadata = world.registry.start(asked).metadata
    seen = []
    for state in ("queued", "running", "success"):
        world.run()["state"] = state
        seen.append(world.registry.poll(asked, metadata).state)

    assert seen == [JobState.RUNNING, JobState.RUNNING, JobState.SUCCEEDED]
    polls = [asked for asked in world.api.asked if asked.method == "GET"]
    assert all("authorization" in poll.headers for poll in polls)


def test_poll__failed__names_the_tasks(world: World) -> None:
    metadata = world.registry.start(world.order()).metadata
    world.run()["state"] = "failed"
    world.airflow.failed_tasks = ["extract", "load"]

    polled = world.registry.poll(world.order(), metadata)

    assert (polled.state, polled.category) == (JobState.FAILED, FailureCategory.TRANSIENT)
    assert polled.reason == "DAG load orders failed: tasks extract, load"


def test_poll__run_that_was_deleted__has_failed(world: World) -> None:
    # bugs 33, 42: neither polled for ever nor a crash.
    metadata = world.registry.start(world.order()).metadata
    world.airflow.runs.clear()

    polled = world.registry.poll(world.order(), metadata)

    assert (polled.state, polled.category) == (JobState.FAILED, FailureCategory.PERMANENT)


def test_poll__airflow_away_for_a_moment__says_nothing_of_the_job(world: World) -> None:
    metadata = world.registry.start(world.order()).metadata
    world.api.answer = lambda _: (503, b"deploying")

    with pytest.raises(TriggerFailedError) as caught:
        world.registry.poll(world.order(), metadata)

    assert caught.value.category is FailureCategory.TRANSIENT


def test_poll__answer_without_a_state__is_still_running(world: World) -> None:
    # bug 42
    metadata = world.registry.start(world.order()).metadata
    world.run()["state"] = None

    assert world.registry.poll(world.order(), metadata).state is JobState.RUNNING


def test_cancel__run_under_way__is_set_to_failed_and_one_that_has_ended_is_left(world: World) -> None:
    metadata = world.registry.start(world.order()).metadata
    world.registry.cancel(world.order(), metadata)
    after_first = world.run()["state"]
    world.run()["state"] = "success"
    world.registry.cancel(world.order(), metadata)

    assert (after_first, world.run()["state"]) == ("failed", "success")


def test_start__dag_that_does_not_exist__fails_for_good(world: World) -> None:
    with pytest.raises(TriggerFailedError, match="answered 404") as caught:
        world.registry.start(world.order(dag_id="nothing"))

    assert caught.value.category is FailureCategory.PERMANENT


def test_start__wrong_password__fails_for_good_and_does_not_quote_it(tmp_path: Path, world: World) -> None:
    registry = kinds(tmp_path, environ={"HG_SECRET_AIRFLOW": "wrong-one"})

    with pytest.raises(TriggerFailedError, match="answered 401") as caught:
        registry.start(world.order())

    assert caught.value.category is FailureCategory.PERMANENT
    assert "wrong-one" not in str(caught.value)
    assert "Basic" not in str(caught.value)


def test_token__of_v2_that_ran_out__is_had_anew(tmp_path: Path) -> None:
    # D3
    airflow = Airflow("v2")
    with serving(airflow.answer) as api:
        world = World(airflow, api, kinds(tmp_path, environ={"HG_SECRET_AIRFLOW": PASSWORD}))
        metadata = world.registry.start(world.order()).metadata
        world.registry.poll(world.order(), metadata)
        given_before = airflow.tokens_given
        airflow.token = "jwt-2"
        polled = world.registry.poll(world.order(), metadata)

    assert (given_before, airflow.tokens_given) == (1, 2)
    assert polled.state is JobState.RUNNING


def test_token__given_outright__is_used(tmp_path: Path) -> None:
    airflow = Airflow("v2")
    with serving(airflow.answer) as api:
        config = {"url": api.url, "dag_id": DAG, "token": "${env:HG_SECRET_JWT}"}
        kinds(tmp_path, environ={"HG_SECRET_JWT": "jwt-1"}).start(order("airflow", config))

    assert airflow.tokens_given == 0
    assert len(airflow.runs) == 1
