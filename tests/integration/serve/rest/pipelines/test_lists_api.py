"""Lists over all pipelines and pools over HTTP: what is filtered, how it pages, and who may free a slot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.auth.roles import Role
from tests.integration.serve.durable_api import problem
from tests.integration.serve.pipeline_rig import SILVER, TODAY, PipelineApi, done, pipeline_api

OPEN: dict[str, Any] = {**SILVER, "readiness": {"rules": []}, "pool": "spark"}


@pytest.fixture
def api(tmp_path: Path) -> Iterator[PipelineApi]:
    with pipeline_api(tmp_path) as made:
        for number, name in enumerate(("bronze", "silver", "gold"), 1):
            made.defined(OPEN, id=name, owner="lake" if number < 3 else "bi", tier=number)
        yield made


def land(api: PipelineApi, *names: str) -> None:
    for name in names:
        done(api.post(f"/pipelines/{name}/sensors/landed", {"data": {"date": TODAY}}), 201)
        api.settle()
        api.env.clock.advance(1)


def listed(api: PipelineApi, **params: Any) -> list[str]:
    """Return the pipelines of all runs that match, over all pages."""
    found: list[str] = []
    cursor: str | None = None
    while True:
        page = done(api.get("/runs", params={**params, **({} if cursor is None else {"cursor": cursor})}))
        found += [each["pipeline_id"] for each in page["runs"]]
        cursor = page["cursor"]
        if cursor is None:
            return found


def test_runs__of_all_pipelines__are_latest_first_and_page(api: PipelineApi) -> None:
    land(api, "bronze", "silver", "gold")

    assert listed(api) == ["gold", "silver", "bronze"]
    assert listed(api, limit=1) == ["gold", "silver", "bronze"]
    page = done(api.get("/runs", params={"limit": 2}))
    assert [each["pipeline_id"] for each in page["runs"]] == ["gold", "silver"]
    assert page["cursor"]


def test_runs__filters__by_status_owner_tier_pipeline_and_time(api: PipelineApi) -> None:
    land(api, "bronze", "silver", "gold")
    (running,) = done(api.get("/runs", params={"status": "RUNNING"}))["runs"]
    api.env.clock.advance(3 * 86_400)
    api.pipelines.manual.cancel(running["run_id"], by="ada", reason="test")
    api.settle()

    assert running["pipeline_id"] == "bronze"
    assert listed(api, status="CANCELLED") == ["bronze"]
    assert listed(api, status=["PENDING", "RUNNING"]) == ["gold", "silver"]
    assert listed(api, status="RUNNING") == ["silver"]
    assert listed(api, owner="lake") == ["silver", "bronze"]
    assert listed(api, owner="lake", tier=2) == ["silver"]
    assert listed(api, pipeline="gold") == ["gold"]
    assert listed(api, pipeline="gold", status="FAILED") == []
    assert listed(api, since=api.env.clock.now().isoformat()) == []
    problem(api.get("/runs", params={"cursor": "nonsense"}), 400, "bad_payload")
    assert api.get("/runs", params={"pipeline": "none"}).status_code == 404


def test_backfills__of_all_pipelines__are_listed_by_state_and_owner(api: PipelineApi) -> None:
    body = {"from": "2025-06-01", "to": "2025-06-02", "reason": "late source"}
    first = done(api.post("/pipelines/bronze/backfills", body), 202)["backfill_id"]
    second = done(api.post("/pipelines/gold/backfills", body), 202)["backfill_id"]
    done(api.post(f"/backfills/{first}/cancel", {"reason": "no"}))

    def ids(**params: Any) -> list[str]:
        return [each["backfill_id"] for each in done(api.get("/backfills", params=params))["backfills"]]

    assert ids() == [second, first]
    assert done(api.get("/backfills"))["cursor"] is None
    assert done(api.get("/backfills", params={"limit": 2}))["cursor"] is None
    page = done(api.get("/backfills", params={"limit": 1}))
    assert ids(limit=1, cursor=page["cursor"]) == [first]
    assert ids(state="CANCELLED") == [first]
    assert ids(owner="bi") == [second]
    assert ids(pipeline="bronze") == [first]
    problem(api.get("/backfills", params={"cursor": "x"}), 400, "bad_payload")


def test_upcoming__of_all_pipelines__is_in_order_and_names_what_stops_a_slot(api: PipelineApi) -> None:
    api.defined(OPEN, id="night", schedules=[{"cron": "0 3 * * *"}], owner="lake", tier=1)
    api.defined(OPEN, id="noon", schedules=[{"cron": "0 12 * * *"}], owner="bi", tier=2)
    done(api.post("/pipelines/noon/pause", {"reason": "migration"}))

    found = done(api.get("/upcoming", params={"hours": 48}))

    assert found["is_complete"] is True
    assert {each["pipeline_id"] for each in found["slots"]} == {"night", "noon"}
    assert [each["at"] for each in found["slots"]] == sorted(each["at"] for each in found["slots"])
    assert {each["obstacle"] for each in found["slots"] if each["pipeline_id"] == "noon"} == {"paused: migration"}
    only = done(api.get("/upcoming", params={"owner": "lake", "limit": 1, "hours": 48}))
    assert ([each["pipeline_id"] for each in only["slots"]], only["is_complete"]) == (["night"], False)


def test_pools__in_use__show_holders_and_queue_and_an_operator_frees_a_slot(api: PipelineApi) -> None:
    land(api, "bronze", "silver")
    (spark, wide) = done(api.get("/pools"))["pools"]
    assert (wide["size"], wide["used"]) == (8, 0)
    assert (spark["used"], spark["waiting"]) == (1, 1)
    (holder,) = spark["leases"]
    assert (holder["pipeline_id"], holder["claimed"]) == ("bronze", True)
    assert [(each["place"], each["pipeline_id"]) for each in spark["queue"]] == [(1, "silver")]
    why = done(api.get("/pipelines/silver/why", params={"date": TODAY}))
    assert why["standing"] == "queued"
    assert f"pool spark has 1 of 1 slots in use by bronze of {TODAY} ({holder['run_id']})" in why["sentence"]

    body = {"run_id": holder["run_id"], "reason": "its job ended unseen"}
    assert api.post("/pools/spark/free", body, key=api.key("vi", Role.VIEWER)).status_code == 403
    freed = done(api.post("/pools/spark/free", body, key=api.key("op", Role.OPERATOR)))
    api.settle()

    assert freed["pipeline_id"] == "bronze"
    assert [each["pipeline_id"] for each in done(api.get("/pools/spark"))["leases"]] == ["silver"]
    assert api.post("/pools/spark/free", body).status_code == 404
    assert api.get("/pools/none").status_code == 404


def test_define__unknown_pool_or_too_many_slots__is_refused_with_the_nearest(api: PipelineApi) -> None:
    unknown = api.put("/pipelines/late", {**OPEN, "id": "late", "pool": "sprak"})
    wide = api.put("/pipelines/late", {**OPEN, "id": "late", "slots": 2})
    alone = api.put("/pipelines/late", {**SILVER, "id": "late", "slots": 2})

    assert unknown.status_code == 400
    assert "there is no pool 'sprak'" in unknown.text
    assert "spark" in unknown.text
    assert "pool spark has 1 slots, and a run would need 2" in wide.text
    assert "it names no pool" in alone.text
