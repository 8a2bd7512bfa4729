"""Sensors, traits and markers over HTTP: pushed, read, forgotten, and what follows from them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.auth.roles import Role
from tests.integration.serve.durable_api import problem
from tests.integration.serve.pipeline_rig import SILVER, TODAY, PipelineApi, done, pipeline_api


@pytest.fixture
def api(tmp_path: Path) -> Iterator[PipelineApi]:
    with pipeline_api(tmp_path) as made:
        made.defined()
        yield made


# Sensors.


def test_push__first_and_again__counts_versions_and_says_who(api: PipelineApi) -> None:
    key = api.key("loader", Role.SERVICE)

    first = api.post("/pipelines/silver/sensors/orders", {"data": {"count": 3}}, key=key)
    api.env.clock.advance(60)
    same = done(api.post("/pipelines/silver/sensors/orders", {"data": {"count": 3}}))
    other = done(api.post("/pipelines/silver/sensors/orders", {"data": {"count": 4}}))

    assert (first.status_code, first.json()["by"], first.headers["etag"]) == (201, "loader", '"1"')
    assert (same["version"], same["changed_at"]) == (2, first.json()["changed_at"])
    assert (other["version"], other["data"], other["changed_at"]) == (3, {"count": 4}, same["pushed_at"])
    assert done(api.get("/pipelines/silver/sensors/orders"))["version"] == 3


def test_push__of_a_period__is_kept_beside_the_others(api: PipelineApi) -> None:
    done(api.post("/pipelines/silver/sensors/orders", {"data": {"count": 1}, "period": "20250614"}), 201)
    done(api.post("/pipelines/silver/sensors/orders", {"data": {"count": 2}, "period": TODAY}), 201)

    shown = done(api.get(f"/pipelines/silver/sensors/orders?period={TODAY}"))
    listed = done(api.get("/pipelines/silver/sensors?key=orders"))

    assert (shown["data"], shown["period"], shown["is_of_period"]) == ({"count": 2}, TODAY, True)
    assert [(each["period"], each["data"]) for each in listed["sensors"]] == [
        ("2025-06-14", {"count": 1}),
        (TODAY, {"count": 2}),
    ]
    problem(api.get("/pipelines/silver/sensors/orders"), 404, "not_found")


def test_list__more_than_the_limit__says_that_it_is_cut(api: PipelineApi) -> None:
    for key in ("a", "b", "c"):
        done(api.post(f"/pipelines/silver/sensors/{key}", {"data": {}, "new": True}), 201)

    cut = done(api.get("/pipelines/silver/sensors?limit=2"))
    whole = done(api.get("/pipelines/silver/sensors?limit=3"))

    assert ([each["key"] for each in cut["sensors"]], cut["is_cut"]) == (["a", "b"], True)
    assert whole["is_cut"] is False


def test_push__key_with_a_slash__is_one_key(api: PipelineApi) -> None:
    done(api.post("/pipelines/silver/sensors/raw%2Forders", {"data": {"count": 1}, "new": True}), 201)

    assert done(api.get("/pipelines/silver/sensors/raw%2Forders"))["key"] == "raw/orders"


def test_push__same_idempotency_key__is_said_once(api: PipelineApi) -> None:
    headers = {"idempotency-key": "one"}

    first = api.post("/pipelines/silver/sensors/orders", {"data": {"count": 1}}, headers=headers)
    again = api.post("/pipelines/silver/sensors/orders", {"data": {"count": 1}}, headers=headers)
    other = api.post("/pipelines/silver/sensors/orders", {"data": {"count": 2}}, headers=headers)

    assert (first.status_code, again.status_code, again.json()) == (201, 201, first.json())
    assert again.headers["idempotency-replayed"] == "true"
    problem(other, 422, "idempotency_key_reused")
    assert done(api.get("/pipelines/silver/sensors/orders"))["version"] == 1


@pytest.mark.parametrize(
    ("path", "body", "status", "word"),
    [
        ("/pipelines/none/sensors/x", {"data": {}}, 404, "none"),
        ("/pipelines/silver/sensors/orders", {}, 400, "data"),
        ("/pipelines/silver/sensors/orders", {"data": [1]}, 400, "data"),
        ("/pipelines/silver/sensors/orders", {"data": {"": 1}}, 400, "data"),
        ("/pipelines/silver/sensors/orders", {"data": {}, "period": "yesterday"}, 400, "period"),
        ("/pipelines/silver/sensors/orders", {"data": {}, "nonsense": 1}, 400, "nonsense"),
        (f"/pipelines/silver/sensors/{'x' * 300}", {"data": {}}, 400, "sensor key"),
        ("/pipelines/silver/sensors/orders%232025-06-14", {"data": {}, "period": TODAY}, 400, "period"),
    ],
)
def test_push__what_cannot_be__names_the_field(
    api: PipelineApi, path: str, body: dict[str, Any], status: int, word: str
) -> None:
    found = problem(api.post(path, body), status, "not_found" if status == 404 else "bad_payload")

    assert word in found["detail"]


def test_push__key_that_no_rule_reads__is_refused_with_the_nearest_name(api: PipelineApi) -> None:
    found = problem(api.post("/pipelines/silver/sensors/ordres", {"data": {"count": 1}}), 400, "unknown_sensor")

    assert "did you mean orders?" in found["detail"]
    assert done(api.get("/pipelines/silver/sensors"))["sensors"] == []


def test_push__key_like_no_other__names_the_keys_that_are_read(api: PipelineApi) -> None:
    found = problem(api.post("/pipelines/silver/sensors/zzz%232025-06-14", {"data": {}}), 400, "unknown_sensor")

    assert "'zzz'" in found["detail"]
    assert "it reads landed, orders" in found["detail"]


def test_push__new_key__is_stored_and_known_from_then_on(api: PipelineApi) -> None:
    done(api.post("/pipelines/silver/sensors/rates", {"data": {"n": 1}, "new": True}), 201)

    done(api.post("/pipelines/silver/sensors/rates", {"data": {"n": 2}}))
    done(api.post("/pipelines/silver/sensors/rates", {"data": {"n": 3}, "period": "2025-06-14"}), 201)


def test_push__part_of_a_key_that_is_read__is_stored(api: PipelineApi) -> None:
    done(api.post("/pipelines/silver/sensors/orders%23eu", {"data": {"count": 1}}), 201)


def test_push__the_sensor_that_begins_a_run__begins_it(api: PipelineApi) -> None:
    done(api.post("/pipelines/silver/sensors/orders", {"data": {"count": 12}}), 201)
    done(api.post("/pipelines/silver/sensors/landed", {"data": {"date": TODAY}}), 201)
    api.settle()

    (run,) = done(api.get("/pipelines/silver/runs"))["runs"]
    assert (run["date"], run["cause"], run["status"]) == (TODAY, "sensor", "RUNNING")
    assert api.jobs.started == [run["run_id"]]


def test_delete__sensor__is_forgotten_and_begins_nothing(api: PipelineApi) -> None:
    done(api.post("/pipelines/silver/sensors/landed", {"data": {"count": 1}, "period": "2025-06-14"}), 201)
    api.settle()
    path = "/pipelines/silver/sensors/landed?period=2025-06-14"

    assert api.delete(path).status_code == 204
    problem(api.delete(path), 404, "not_found")
    api.settle()
    # The push began one; the stream reports the deletion as well.
    assert api.events().count("EXECUTION_STARTED") == 1


# Traits.


def test_trait__pushed__holds_for_a_while(api: PipelineApi) -> None:
    key = api.key("checker", Role.SERVICE)
    body = {"status": "PASS", "ttl": "10m", "value": {"rows": 12}, "reason": "12 rows"}

    pushed = done(api.post("/pipelines/silver/traits/volume", body, key=key))
    api.env.clock.advance(601)
    later = done(api.get("/pipelines/silver/traits/volume"))

    assert (pushed["status"], pushed["value"], pushed["by"]) == ("PASS", {"rows": 12}, "checker")
    assert (later["status"], later["found"]) == ("STALE", "PASS")
    assert [each["trait_type"] for each in done(api.get("/pipelines/silver/traits"))["traits"]] == ["volume"]
    assert "TRAIT_PUSHED" in api.events()


def test_trait__history__counts_the_same_finding(api: PipelineApi) -> None:
    for status in ("FAIL", "FAIL", "PASS"):
        done(api.post("/pipelines/silver/traits/volume", {"status": status}))
        api.env.clock.advance(1)

    history = done(api.get("/pipelines/silver/traits/volume/history"))

    assert [(each["status"], each["count"]) for each in history["lines"]] == [("PASS", 1), ("FAIL", 2)]


@pytest.mark.parametrize(
    ("path", "body", "word"),
    [
        ("volume", {"status": "STALE"}, "status"),
        ("volume", {}, "status"),
        ("volume", {"status": "PASS", "ttl": "soon"}, "ttl"),
        ("volume", {"status": "PASS", "ttl": -1}, "ttl"),
        ("volume", {"status": "PASS", "date": "2025-06"}, "date"),
        ("volume", {"status": "PASS", "date": TODAY, "schedule": "none"}, "schedule"),
        ("vol%20ume", {"status": "PASS"}, "trait"),
        ("volume", {"status": "PASS", "value": "x" * 70_000}, "value"),
    ],
)
def test_trait__what_cannot_be__names_the_field(api: PipelineApi, path: str, body: dict[str, Any], word: str) -> None:
    answer = api.post(f"/pipelines/silver/traits/{path}", body)

    assert answer.status_code == 400, answer.text
    assert word in answer.json()["detail"]


def test_trait__unknown__is_not_found(api: PipelineApi) -> None:
    problem(api.get("/pipelines/silver/traits/volume"), 404, "not_found")
    problem(api.get("/pipelines/silver/traits/volume/history"), 404, "not_found")
    problem(api.get("/pipelines/none/traits"), 404, "not_found")
    problem(api.post("/pipelines/none/traits/volume", {"status": "PASS"}), 404, "not_found")


# Markers.


def test_marker__put_twice__asks_once_and_again_asks_once_more(api: PipelineApi) -> None:
    key = api.key("ada", Role.OPERATOR)

    first = done(api.post("/pipelines/silver/markers", {"date": TODAY}, key=key), 201)
    same = done(api.post("/pipelines/silver/markers", {"date": TODAY, "schedule": "stream"}))
    more = done(api.post("/pipelines/silver/markers", {"date": "20250615", "again": True}), 201)
    api.settle()

    assert (first["version"], first["by"], first["source"], first["is_new"]) == (1, "ada", "api", True)
    assert (same["version"], same["is_new"]) == (1, False)
    assert (more["version"], more["date"]) == (2, TODAY)
    assert [each["version"] for each in done(api.get("/pipelines/silver/markers?dates=2025-06"))["markers"]] == [2]
    assert [each["cause"] for each in done(api.get("/pipelines/silver/runs"))["runs"]] == ["marker"]


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({}, "date"),
        ({"date": "2025-W24"}, "date"),
        ({"date": "2025-02-30"}, "date"),
        ({"date": TODAY, "schedule": "hourly"}, "use stream"),
    ],
)
def test_marker__what_cannot_be__names_the_field(api: PipelineApi, body: dict[str, Any], word: str) -> None:
    assert word in problem(api.post("/pipelines/silver/markers", body), 400, "bad_payload")["detail"]


def test_marker__several_schedules__one_must_be_named(api: PipelineApi) -> None:
    api.defined(
        SILVER, id="gold", schedules=[{"name": "early", "cron": "0 6 * * *"}, {"name": "late", "cron": "0 18 * * *"}]
    )

    found = problem(api.post("/pipelines/gold/markers", {"date": TODAY}), 400, "bad_payload")

    assert "early, late" in found["detail"]
    assert done(api.post("/pipelines/gold/markers", {"date": TODAY, "schedule": "late"}), 201)["schedule_id"] == "late"
