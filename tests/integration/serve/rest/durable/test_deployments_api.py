"""Deployments over HTTP: what each build holds, which one takes new executions, and moving pinned executions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from headgate.durable.engine.deployments import Deployments
from headgate.durable.engine.membership import Fleet
from headgate.durable.model.records import Execution
from tests.integration.serve.durable_api import Api, problem, serving


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with serving(tmp_path) as made:
        yield made


def join(api: Api, build: str) -> Fleet:
    """Register a worker of the app with another build."""
    service = api.env.service
    fleet = Fleet(service.store, service.clock, service.ids, build=build, host=build)
    fleet.join("shop", ["pay", "order"], ["charge"], ["default"])
    api.env.worker.fleet.refresh()
    return fleet


def pin(api: Api, execution_id: str, build: str) -> Execution:
    """Have an execution stay with a build, as if its first turn had been taken there."""
    row = api.env.service.client.get(execution_id)
    pinned = replace(row, version=row.version + 1, build=build, is_pinned=True)
    api.env.service.store.transact([pinned.replacing(row.version)])
    return pinned


def versions(api: Api) -> dict[str, Any]:
    (shop,) = api.get("/deployments").json()["deployments"]
    return {each["build"]: each for each in shop["versions"]}


def test_deployments__open_executions__are_counted_by_build_and_workflow(api: Api) -> None:
    own = api.env.worker.build
    first, second = (api.started("order", "tea", id=f"order-{number}") for number in (1, 2))
    api.env.run()
    pin(api, second, "v1")
    found = versions(api)
    assert set(found) == {own, "v1"}
    assert (found[own]["state"], found[own]["live_workers"], found[own]["auto"]) == ("ACTIVE", 1, 1)
    assert found[own]["workflows"] == [{"workflow": "order", "pinned": 0, "auto": 1, "oldest": first}]
    assert (found["v1"]["state"], found["v1"]["pinned"], found["v1"]["can_go"]) == ("DRAINING", 1, False)
    assert found["v1"]["fact"] == (
        "1 pinned execution without a worker: start one with --build v1, or move them with 'headgate deploy move v1'"
    )
    api.env.service.client.terminate(second)
    api.env.run()
    assert set(versions(api)) == {own}


def test_set_current__live_build__takes_new_executions_and_the_other_can_go(api: Api) -> None:
    join(api, "v2")
    own = api.env.worker.build
    answer = api.post("/deployments/shop/current", {"build": "v2", "reason": "release 2"})
    assert (answer.status_code, answer.json()["current"]) == (200, "v2")
    found = versions(api)
    assert {build: each["state"] for build, each in found.items()} == {own: "DRAINED", "v2": "CURRENT"}
    assert found[own]["can_go"]
    assert found[own]["fact"] == "safe to remove: no open execution is pinned to it"
    answer = api.post("/deployments/shop/current", {"build": None})
    assert {each["state"] for each in answer.json()["versions"]} == {"ACTIVE"}


def test_set_current__build_without_a_worker__is_refused_unless_forced(api: Api) -> None:
    refused = problem(api.post("/deployments/shop/current", {"build": "v9"}), 409, "conflict")
    assert "no live worker has build v9; live builds:" in refused["detail"]
    forced = api.post("/deployments/shop/current", {"build": "v9", "force": True})
    (version,) = [each for each in forced.json()["versions"] if each["build"] == "v9"]
    assert version["fact"] == "takes new executions, and has no live worker: new pinned executions wait; start one"


def test_set_current__none_for_an_app_of_which_nothing_is_left__is_listed_no_more(api: Api) -> None:
    problem(api.post("/deployments/gone/current", {"build": None}), 404, "not_found")
    api.post("/deployments/gone/current", {"build": "v9", "force": True})
    answer = api.post("/deployments/gone/current", {"build": None})
    assert (answer.status_code, answer.json()) == (200, {"app": "gone", "current": "", "versions": []})
    assert [each["app"] for each in api.get("/deployments").json()["deployments"]] == ["shop"]


def test_ramp__beside_a_current_build__takes_a_share_until_it_ends(api: Api) -> None:
    join(api, "v2")
    problem(api.post("/deployments/shop/ramp", {"build": "v2", "percent": 10}), 409, "conflict")
    api.post("/deployments/shop/current", {"build": api.env.worker.build})
    api.post("/deployments/shop/ramp", {"build": "v2", "percent": 10})
    assert (versions(api)["v2"]["state"], versions(api)["v2"]["ramp_percent"]) == ("RAMPING", 10)
    api.post("/deployments/shop/ramp", {"build": "v2", "percent": 0})
    assert versions(api)["v2"]["state"] == "DRAINED"


def test_ramp__zero_for_a_build_that_has_no_share__leaves_the_ramp_of_another(api: Api) -> None:
    join(api, "v2"), join(api, "v3")
    api.post("/deployments/shop/current", {"build": api.env.worker.build})
    api.post("/deployments/shop/ramp", {"build": "v2", "percent": 30})
    api.post("/deployments/shop/drain", {"build": "v3"})

    refused = problem(api.post("/deployments/shop/ramp", {"build": "v3", "percent": 0}), 409, "conflict")

    assert "build v3 has no share" in refused["detail"]
    assert versions(api)["v2"]["ramp_percent"] == 30


def test_ramp__ended_for_a_drained_build__leaves_it_drained(api: Api) -> None:
    join(api, "v2")
    api.post("/deployments/shop/current", {"build": api.env.worker.build})
    api.post("/deployments/shop/drain", {"build": "v2"})
    api.post("/deployments/shop/ramp", {"build": "v2", "percent": 0})
    api.post("/deployments/shop/current", {"build": None})

    assert versions(api)["v2"]["state"] == "DRAINED"


def test_drain__unknown_build__is_refused_and_old_ones_are_forgotten(api: Api) -> None:
    refused = problem(api.post("/deployments/shop/drain", {"build": "v9"}), 404, "not_found")
    assert f"no live worker or open execution has build v9; builds: {api.env.worker.build}" in refused["detail"]
    problem(api.post("/deployments/shop/drain", {"build": "v9", "undo": True}), 404, "not_found")
    Deployments(api.env.service.store).change("shop", lambda before: replace(before, draining=("v0", "v00")))
    join(api, "v2")
    api.post("/deployments/shop/drain", {"build": "v2"})
    assert Deployments(api.env.service.store).all()["shop"].draining == ("v2",)


def test_deployments__more_than_a_page_of_apps__are_all_read(api: Api) -> None:
    deployments = Deployments(api.env.service.store)
    for number in range(501):
        deployments.change(f"app{number:03}", lambda before: replace(before, current="v1"))

    assert len(deployments.all()) == 501


def test_drain__build_with_pinned_executions__is_draining_until_they_ended(api: Api) -> None:
    other = join(api, "v2")
    execution_id = api.started("order", "tea")
    api.env.run()
    pin(api, execution_id, "v2")
    api.post("/deployments/shop/drain", {"build": "v2"})
    assert versions(api)["v2"]["fact"] == "keep its workers: 1 pinned execution is open"
    other.leave()
    api.env.worker.fleet.refresh()
    api.env.service.client.terminate(execution_id)
    api.env.run()
    join(api, "v2")
    assert (versions(api)["v2"]["state"], versions(api)["v2"]["can_go"]) == ("DRAINED", True)
    api.post("/deployments/shop/drain", {"build": "v2", "undo": True})
    assert versions(api)["v2"]["state"] == "ACTIVE"
    api.post("/deployments/shop/current", {"build": "v2"})
    problem(api.post("/deployments/shop/drain", {"build": "v2"}), 409, "conflict")


def test_move__pinned_executions_of_a_build_that_is_gone__go_on_elsewhere(api: Api) -> None:
    own = api.env.worker.build
    one, two = (api.started("order", "tea", id=f"order-{number}") for number in (1, 2))
    api.env.run()
    for each in (one, two):
        pin(api, each, "v1")
    api.env.service.client.signal(one, "add", Raw(b'"stop"'))
    api.env.advance("1m")
    shown = api.get(f"/executions/{one}").json()
    assert (shown["status"], shown["build"], shown["pinned"]) == ("RUNNING", "v1", True)
    assert shown["waits_for"][0]["fact"].startswith("no live worker has build v1")
    problem(api.post("/deployments/shop/move", {"build": "v1", "to": "v7"}), 409, "conflict")
    assert api.post("/deployments/shop/move", {"build": "v1", "to": own}).json() == {"moved": 2}
    api.env.advance("1m")
    assert api.get(f"/executions/{one}").json()["status"] == "SUCCEEDED"
    assert api.post("/deployments/shop/move", {"build": own, "to": None}).json() == {"moved": 1}
    assert "pinned" not in api.get(f"/executions/{two}").json()


def test_show__unknown_app__is_404(api: Api) -> None:
    problem(api.get("/deployments/nothing"), 404, "not_found")
