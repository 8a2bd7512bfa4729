"""Pinned executions stay with the build of their first turn; the deployment of an app chooses where new ones begin."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec import Raw
from msgspec.structs import replace

import headgate as hg
from headgate.durable.client.blocked_on import BlockedOn, WaitsForWorker
from headgate.durable.engine.deployments import Deployments
from headgate.durable.model.history import Status
from headgate.durable.model.worker_limits import WorkerLimits
from headgate.errors import DefinitionError
from tests.integration.durable.worker.fleets import Declare, Fleet

SLOTS = 2
IDS = [f"order-{number}" for number in range(12)]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(tmp_path)
    yield made
    made.close()


def shop(step: str) -> Declare:
    """Code whose activities depend on the build, without a patch: no other build can continue an execution."""

    def declare(app: hg.App) -> None:
        @app.activity
        def do(step: str) -> str:
            return step

        @app.workflow(versioning="pinned")
        async def order() -> list[str]:
            done = [await do(step)]
            await hg.wait_signal("go")
            return [*done, await do(step)]

        @app.workflow(versioning="pinned")
        async def kept() -> list[str]:
            await hg.wait_signal("go")
            return [await do(step)]

        @app.workflow
        async def moving() -> list[str]:
            await hg.wait_signal("go")
            return [await do("any")]

        @app.workflow(versioning="pinned")
        async def parent() -> list[list[str]]:
            return [await kept(), await moving()]

        @app.workflow(versioning="pinned")
        async def lap(left: int) -> str:
            await hg.wait_signal("go")
            if left:
                hg.continue_as_new(left - 1)
            return step

    return declare


def start(fleet: Fleet, *ids: str, workflow: str = "order", input: bytes = b"null") -> None:
    for each in ids:
        fleet.client.start(workflow, Raw(input), execution_id=each)
    fleet.run()


def go(fleet: Fleet, *ids: str) -> None:
    for each in ids:
        fleet.client.signal(each, "go")
    fleet.run()


def set_current(fleet: Fleet, build: str, **others: Any) -> None:
    Deployments(fleet.store).change("shop", lambda before: replace(before, current=build, **others))
    fleet.refresh()


def waits(fleet: Fleet, execution_id: str) -> list[str]:
    found = BlockedOn(fleet.store, fleet.clock).waits(fleet.client.get(execution_id))
    return [each.fact for each in found if isinstance(each, WaitsForWorker)]


def test_pinned__workers_of_two_builds__every_turn_is_taken_by_the_first(fleet: Fleet) -> None:
    fleet.join("v1", shop("one"))
    start(fleet, *IDS)
    fleet.join("v2", shop("two"))
    go(fleet, *IDS)
    assert {str(fleet.result(each)) for each in IDS} == {str(["one", "one"])}
    rows = [fleet.client.get(each) for each in IDS]
    assert {(row.build, row.is_pinned, row.unfit_builds) for row in rows} == {("v1", True, ())}


def test_pinned__no_worker_of_its_build_left__waits_says_why_and_continues_when_one_is_back(fleet: Fleet) -> None:
    fleet.join("v1", shop("one"))
    start(fleet, "order")
    fleet.join("v2", shop("two"))
    fleet.leave("v1")
    go(fleet, "order")
    version = fleet.client.get("order").version
    fleet.advance(60)
    row = fleet.client.get("order")
    assert (row.status, row.version) == (Status.RUNNING, version), "nothing is tried and nothing written"
    (fact,) = waits(fleet, "order")
    assert fact.startswith("no live worker has build v1, to which the execution is pinned; start one with --build v1")
    fleet.join("v1-again", shop("one"), build="v1")
    fleet.advance(5)
    assert fleet.result("order") == ["one", "one"]


def test_current__set__takes_new_executions_and_the_others_keep_theirs(fleet: Fleet) -> None:
    fleet.join("v1", shop("one"))
    fleet.join("v2", shop("two"))
    set_current(fleet, "v1")
    start(fleet, *IDS[:6])
    set_current(fleet, "v2")
    start(fleet, *IDS[6:])
    assert [fleet.client.get(each).build for each in IDS] == ["v1"] * 6 + ["v2"] * 6
    go(fleet, *IDS)
    assert {fleet.status(each) for each in IDS} == {Status.SUCCEEDED}


def test_current__no_live_worker_has_it__new_pinned_executions_wait_and_say_why(fleet: Fleet) -> None:
    fleet.join("v1", shop("one"))
    set_current(fleet, "v2")
    start(fleet, "order")
    start(fleet, "auto", workflow="moving")
    fleet.advance(10)
    assert fleet.client.get("order").turn == 0
    (fact,) = waits(fleet, "order")
    assert fact.startswith("new executions of app shop start on build v2, and no live worker has it; start one, or")
    # An auto-upgraded execution is not bound to a build.
    assert (fleet.client.get("auto").build, waits(fleet, "auto")) == ("v1", [])
    fleet.join("v2", shop("two"))
    fleet.advance(5)
    assert fleet.client.get("order").build == "v2"


def test_auto__current_changes__its_next_turn_is_taken_by_the_current_build(fleet: Fleet) -> None:
    fleet.join("v1", shop("one"))
    fleet.join("v2", shop("two"))
    set_current(fleet, "v1")
    start(fleet, *IDS, workflow="moving")
    assert {fleet.client.get(each).build for each in IDS} == {"v1"}
    set_current(fleet, "v2")
    go(fleet, *IDS)
    assert {(fleet.client.get(each).build, fleet.client.get(each).is_pinned) for each in IDS} == {("v2", False)}


def test_ramp__a_share_of_new_executions__begins_on_the_ramping_build(fleet: Fleet) -> None:
    fleet.join("v1", shop("one"))
    fleet.join("v2", shop("two"))
    set_current(fleet, "v1", ramping="v2", ramp_percent=30)
    ids = [f"order-{number}" for number in range(100)]
    start(fleet, *ids)
    ramped = {each for each in ids if fleet.client.get(each).build == "v2"}
    assert 10 < len(ramped) < 50
    set_current(fleet, "v1", ramping="v2", ramp_percent=100)
    start(fleet, *[f"later-{number}" for number in range(10)])
    assert {fleet.client.get(f"later-{number}").build for number in range(10)} == {"v2"}


def test_drained_build__takes_no_new_execution_and_finishes_its_own(fleet: Fleet) -> None:
    fleet.join("v1", shop("one"))
    start(fleet, *IDS[:4])
    fleet.join("v2", shop("two"))
    set_current(fleet, "", draining=("v1",))
    start(fleet, *IDS[4:])
    assert [fleet.client.get(each).build for each in IDS] == ["v1"] * 4 + ["v2"] * 8
    go(fleet, *IDS)
    assert {fleet.status(each) for each in IDS} == {Status.SUCCEEDED}
    fleet.leave("v2")
    start(fleet, "late")
    (fact,) = waits(fleet, "late")
    assert fact.startswith("every live build of app shop is drained and takes no new executions")


def test_children_of_a_pinned_parent__pinned_ones_share_its_build_and_auto_ones_do_not(fleet: Fleet) -> None:
    fleet.join("v1", shop("one"))
    set_current(fleet, "v1")
    start(fleet, "parent", workflow="parent")
    fleet.join("v2", shop("two"))
    set_current(fleet, "v2")
    (pinned,) = fleet.client.list(parent_id="parent").executions
    assert (pinned.build, pinned.is_pinned) == ("v1", True)
    go(fleet, pinned.execution_id)
    auto = next(each for each in fleet.client.list(parent_id="parent").executions if each.workflow == "moving")
    assert (auto.build, auto.is_pinned) == ("v2", False)
    go(fleet, auto.execution_id)
    fleet.advance(5)
    assert fleet.result("parent") == [["one"], ["any"]]


def test_continue_as_new__pinned_execution__keeps_its_build(fleet: Fleet) -> None:
    fleet.join("v1", shop("one"))
    start(fleet, "lap", workflow="lap", input=b"1")
    fleet.join("v2", shop("two"))
    set_current(fleet, "v2")
    go(fleet, "lap")
    row = fleet.client.get("lap")
    assert (row.run, row.build, row.is_pinned) == (2, "v1", True)
    go(fleet, "lap")
    assert fleet.result("lap") == "one"


def test_activity_of_a_pinned_execution__its_worker_is_full__runs_on_any_worker_that_has_it(fleet: Fleet) -> None:
    fleet.join("v1", shop("one"), limits=WorkerLimits(prefetch_max=SLOTS))
    fleet.join("v2", shop("two"))
    set_current(fleet, "v1")
    first, second = fleet.workers["v1"], fleet.workers["v2"]
    for number in range(SLOTS):
        fleet.client.start("order", Raw(b"null"), execution_id=f"before-{number}")
    first.poll()
    first.turn()
    assert len(first.queue) == SLOTS, "its slots are in use"
    fleet.client.start("order", Raw(b"null"), execution_id="order")
    first.poll()
    first.turn()
    second.poll()
    assert [each.execution_id for each in second.queue] == ["order"]
    fleet.run()
    assert fleet.client.get("order").build == "v1"


def test_terminate__pinned_execution_without_a_worker__any_worker_ends_it(fleet: Fleet) -> None:
    fleet.join("v1", shop("one"))
    start(fleet, "order")
    fleet.join("v2", shop("two"))
    fleet.join("v3", shop("three"))
    fleet.leave("v1")
    fleet.client.terminate("order")
    fleet.advance(5)
    assert fleet.status("order") is Status.TERMINATED


def test_versioning__unknown__is_refused_with_what_is_allowed() -> None:
    app = hg.App("shop")
    with pytest.raises(DefinitionError, match=r"workflow order: versioning 'latest': use one of \['auto', 'pinned'\]"):

        @app.workflow(versioning=cast("Any", "latest"))
        async def order() -> None: ...
