"""Build routing: which live workers may take the next turn of an execution."""

from __future__ import annotations

from msgspec.structs import replace

from headgate.durable.engine.build_routing import candidates, has_untried, is_mixed, obstacle, target_build
from headgate.durable.engine.deployments import Deployment
from headgate.durable.engine.membership import Member
from headgate.durable.model.history import Status
from headgate.durable.model.records import Execution

BEGUN = Execution("e", "order", Status.RUNNING, "2026-01-01T00:00:00.000Z", 3, 1, turn=2, build="v1")
NEW = replace(BEGUN, turn=0, build="")


def worker(build: str, *, workflows: tuple[str, ...] = ("order",), pinned: tuple[str, ...] = ()) -> Member:
    return Member(build, 1, 0, 10.0, app="shop", workflows=workflows, pinned=pinned, build=build)


V1, V2 = worker("v1"), worker("v2")


def builds(row: Execution, *workers: Member, **deployment: object) -> list[str]:
    deployments = {"shop": Deployment("shop", **deployment)} if deployment else {}  # type: ignore[arg-type]
    return [each.build for each in candidates(workers, row, deployments)]


def test_candidates__auto__are_all_that_serve_the_workflow() -> None:
    assert builds(BEGUN, V1, V2, worker("v3", workflows=("other",))) == ["v1", "v2"]


def test_candidates__builds_that_failed__are_left_out_while_others_are_left() -> None:
    assert builds(replace(BEGUN, failed_builds=("v1",)), V1, V2) == ["v2"]
    assert builds(replace(BEGUN, unfit_builds=("v2",)), V1, V2) == ["v1"]
    assert builds(replace(BEGUN, failed_builds=("v1",), unfit_builds=("v2",)), V1, V2) == ["v1", "v2"]


def test_candidates__current_build_failed__another_comes_before_it() -> None:
    assert builds(BEGUN, V1, V2, current="v2") == ["v2"]
    assert builds(replace(BEGUN, unfit_builds=("v2",)), V1, V2, current="v2") == ["v1"]


def test_candidates__pinned__are_those_of_its_build_whatever_failed_or_is_current() -> None:
    row = replace(BEGUN, is_pinned=True, failed_builds=("v1",))
    assert builds(row, V1, V2, current="v2", draining=("v1",)) == ["v1"]
    assert builds(row, V2) == []


def test_candidates__to_be_pinned__only_those_that_take_new_executions() -> None:
    pinning = worker("v1", pinned=("order",)), worker("v2", pinned=("order",))
    assert builds(NEW, *pinning) == ["v1", "v2"]
    assert builds(NEW, *pinning, current="v2") == ["v2"]
    assert builds(NEW, *pinning, current="v3") == []
    assert builds(NEW, *pinning, draining=("v2",)) == ["v1"]
    # One that has begun before it was pinned stays as it was.
    assert builds(BEGUN, *pinning, current="v3") == ["v1", "v2"]


def test_has_untried__pinned_execution_that_failed__is_never_tried_elsewhere() -> None:
    row = replace(BEGUN, failed_builds=("v1",))
    assert has_untried([V1, V2], row, {})
    assert not has_untried([V1], row, {})
    assert not has_untried([V1, V2], replace(row, is_pinned=True), {})


def test_target__ramp_grows__takes_more_and_loses_none() -> None:
    ids = [f"order-{number}" for number in range(500)]

    def ramped(percent: int) -> set[str]:
        deployment = Deployment("shop", current="v1", ramping="v2", ramp_percent=percent)
        return {each for each in ids if target_build(deployment, each) == "v2"}

    assert ramped(0) == set()
    assert ramped(20) < ramped(60) < ramped(100) == set(ids)
    assert 60 < len(ramped(20)) < 140


def test_obstacle__someone_may_take_it__is_none() -> None:
    assert obstacle([V1], BEGUN, {}) is None
    assert obstacle([], BEGUN, {}) == "no live worker serves workflow order; start one with its app"


def test_mixed__same_build_and_workflows__is_not() -> None:
    assert not is_mixed([])
    assert not is_mixed([V1, worker("v1")])
    assert is_mixed([V1, V2])
    assert is_mixed([V1, worker("v1", workflows=())])
