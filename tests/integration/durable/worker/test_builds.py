"""Builds: a turn that fails with the code of one worker is tried by others, and stuck executions are released."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import Raw

import headgate as hg
from headgate.durable.client.patches import open_patches
from headgate.durable.engine.stuck import ATTEMPTS_MAX, STUCK_EVENT
from headgate.durable.model.history import Status
from tests.integration.durable.worker.fleets import Fleet

IDS = [f"order-{number}" for number in range(12)]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(tmp_path)
    yield made
    made.close()


def old(app: hg.App) -> None:
    @app.activity
    def do(step: str) -> str:
        return step

    @app.workflow
    async def order() -> list[str]:
        await hg.wait_signal("go")
        done = [await do("charge")]
        await hg.wait_signal("on")
        return [*done, await do("ship")]


def new(app: hg.App) -> None:
    @app.activity
    def do(step: str) -> str:
        return step

    @app.workflow
    async def order() -> list[str]:
        await hg.wait_signal("go")
        done = [await do("check")] if hg.patched("check-first") else []
        done.append(await do("charge"))
        await hg.wait_signal("on")
        return [*done, await do("ship")]


def unlike(app: hg.App) -> None:
    """Code that fits no history of the others, without a patch."""

    @app.workflow
    async def order() -> list[str]:
        hg.set_tags({"stage": "begun"})
        await hg.wait_signal("go")
        return []


def broken(app: hg.App) -> None:
    """Code that breaks a rule in its second turn."""

    @app.workflow(check=False)
    async def order() -> list[str]:
        await hg.wait_signal("go")
        open("/etc/hostname")  # noqa: PTH123, SIM115
        return []


def start(fleet: Fleet) -> None:
    for each in IDS:
        fleet.client.start("order", Raw(b"null"), execution_id=each)
    fleet.run()


def signal(fleet: Fleet, name: str) -> None:
    for each in IDS:
        fleet.client.signal(each, name)


def test_turn_that_does_not_fit__another_build_alive__is_tried_there_at_once_and_once_a_build(fleet: Fleet) -> None:
    fleet.join("new", new)
    start(fleet)
    signal(fleet, "go")
    fleet.run()
    # From here on the history has a mark that the old code does not know.
    fleet.join("old", old)
    signal(fleet, "on")
    # No time passes.
    fleet.run()
    assert {fleet.status(each) for each in IDS} == {Status.SUCCEEDED}
    assert {str(fleet.result(each)) for each in IDS} == {str(["check", "charge", "ship"])}
    tried = [each for each in IDS if fleet.client.get(each).unfit_builds]
    assert tried, "rendezvous gives some to the old worker"
    assert {fleet.client.get(each).unfit_builds for each in tried} == {("old",)}


def test_turn_that_does_not_fit__later_turns__are_left_to_the_build_that_fits(fleet: Fleet) -> None:
    fleet.join("new", new)
    start(fleet)
    signal(fleet, "go")
    fleet.run()
    fleet.join("old", old)
    # Each of these is a turn of its own.
    for _ in range(3):
        signal(fleet, "unheard")
        fleet.advance(5)
    versions = {each: fleet.client.get(each).version for each in IDS}
    turns = {each: fleet.client.get(each).turn for each in IDS}
    signal(fleet, "unheard")
    fleet.advance(5)
    for each in IDS:
        row = fleet.client.get(each)
        # A turn and nothing else was written.
        assert row.version - versions[each] == row.turn - turns[each] == 1


def test_turn_that_fits_no_build__live_ones_tried__is_stuck_with_every_build_recorded(fleet: Fleet) -> None:
    fleet.join("new", new)
    start(fleet)
    signal(fleet, "go")
    fleet.run()
    fleet.join("old", old)
    fleet.join("unlike", unlike)
    fleet.leave("new")
    signal(fleet, "on")
    fleet.advance(60)
    rows = [fleet.client.get(each) for each in IDS]
    assert {row.status for row in rows} == {Status.STUCK}
    assert {row.failures for row in rows} == {ATTEMPTS_MAX}
    assert {frozenset(row.unfit_builds) for row in rows} == {frozenset({"old", "unlike"})}


def test_turn_that_fits_none_of_many_builds__each_tried_once__is_retried_with_delays(fleet: Fleet) -> None:
    fleet.join("new", new)
    fleet.client.start("order", Raw(b"null"), execution_id="order-0")
    fleet.run()
    fleet.client.signal("order-0", "go")
    fleet.run()
    for number in range(ATTEMPTS_MAX + 1):
        fleet.join(f"unlike-{number}", unlike)
    fleet.leave("new")
    fleet.client.signal("order-0", "on")
    fleet.run()
    row = fleet.client.get("order-0")
    assert len(row.unfit_builds) == ATTEMPTS_MAX + 1
    assert (row.status, row.failures) == (Status.RUNNING, 1)
    assert row.retry_at_ms is not None
    fleet.advance(300)
    assert fleet.client.get("order-0").status is Status.STUCK


def test_stuck__worker_whose_code_fits_joins__is_released_by_itself(fleet: Fleet) -> None:
    fleet.join("new", new)
    start(fleet)
    signal(fleet, "go")
    fleet.run()
    fleet.join("old", old)
    fleet.leave("new")
    signal(fleet, "on")
    fleet.advance(60)
    assert {fleet.status(each) for each in IDS} == {Status.STUCK}
    fleet.join("new", new)
    fleet.advance(5)
    assert {fleet.status(each) for each in IDS} == {Status.SUCCEEDED}


def test_stuck__worker_with_code_that_fails_too_joins__one_attempt_and_stuck_again(fleet: Fleet) -> None:
    fleet.join("old", old)
    start(fleet)
    fleet.join("unlike", unlike)
    fleet.leave("old")
    signal(fleet, "go")
    fleet.advance(60)
    before = {each: fleet.client.get(each) for each in IDS}
    assert {row.status for row in before.values()} == {Status.STUCK}
    # The same build again changes nothing, another is tried once.
    fleet.leave("unlike")
    fleet.join("unlike-again", unlike, build="unlike")
    fleet.advance(130)
    assert {each: fleet.client.get(each) for each in IDS} == before
    fleet.join("unlike-2", unlike)
    fleet.advance(130)
    for each in IDS:
        row = fleet.client.get(each)
        assert (row.status, row.failures) == (Status.STUCK, ATTEMPTS_MAX + 1)
        assert row.unfit_builds == ("unlike", "unlike-2")
        # The release and the attempt.
        assert row.version == before[each].version + 2
    assert len(fleet.services["unlike-2"].bus.tail(None, type=STUCK_EVENT, limit=1000)) == 2 * len(IDS)


def test_stuck_by_a_code_error__fixed_code_joins__is_released_and_the_failure_is_forgotten(fleet: Fleet) -> None:
    fleet.join("broken", broken)
    start(fleet)
    signal(fleet, "go")
    fleet.advance(60)
    assert {fleet.client.get(each).failed_builds for each in IDS} == {("broken",)}
    assert {fleet.status(each) for each in IDS} == {Status.STUCK}
    fleet.leave("broken")
    fleet.join("old", old)
    fleet.advance(5)
    assert {fleet.status(each) for each in IDS} == {Status.RUNNING}
    assert {fleet.client.get(each).failed_builds for each in IDS} == {()}
    signal(fleet, "on")
    fleet.advance(5)
    assert {fleet.status(each) for each in IDS} == {Status.SUCCEEDED}


def test_stuck__marked_just_after_a_worker_joined__is_found_by_its_second_sweep(fleet: Fleet) -> None:
    fleet.join("broken", broken)
    start(fleet)
    signal(fleet, "go")
    fleet.advance(40)
    blind = fleet.workers.pop("broken")
    fleet.join("old", old)
    fleet.workers["old"].poll()
    # It takes its last attempt without having read the row of the other.
    blind.fleet.refresh = lambda: None  # type: ignore[method-assign]
    fleet.clock.advance(10)
    blind.poll()
    while blind.engine.has_work:
        blind.turn()
    assert Status.STUCK in {fleet.status(each) for each in IDS}
    blind.leave()
    fleet.advance(15)
    assert {fleet.status(each) for each in IDS} == {Status.RUNNING}
    assert {fleet.client.get(each).turn for each in IDS} == {3}


def test_redrive__every_build_failed__all_are_tried_again(fleet: Fleet) -> None:
    fleet.join("broken", broken)
    start(fleet)
    signal(fleet, "go")
    fleet.advance(60)
    fleet.client.redrive(IDS[0])
    row = fleet.client.get(IDS[0])
    assert (row.status, row.failures, row.failed_builds) == (Status.RUNNING, 0, ())


def test_worker_without_the_workflow__beside_one_with_it__delays_nothing(fleet: Fleet) -> None:
    fleet.join("old", old)

    def nothing(app: hg.App) -> None:
        @app.workflow
        async def other() -> None: ...

    fleet.join("nothing", nothing, app="reports")
    start(fleet)
    signal(fleet, "go")
    signal(fleet, "on")
    fleet.run()
    assert {fleet.status(each) for each in IDS} == {Status.SUCCEEDED}


def test_patches__no_open_execution_has_the_mark__the_code_of_a_live_worker_names_it(fleet: Fleet) -> None:
    fleet.join("old", old)
    start(fleet)
    signal(fleet, "go")
    fleet.run()
    fleet.join("new", new)
    now_ms = int(fleet.clock.seconds() * 1000)
    (only,) = open_patches(fleet.store, now_ms)
    assert (only.workflow, only.patch, only.without_mark, only.with_mark) == ("order", "check-first", len(IDS), 0)
    assert only.oldest_without_mark in IDS
    signal(fleet, "on")
    fleet.run()
    (none_left,) = open_patches(fleet.store, now_ms)
    assert none_left.without_mark == 0
    fleet.leave("new")
    assert open_patches(fleet.store, now_ms) == []
