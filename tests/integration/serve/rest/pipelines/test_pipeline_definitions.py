"""Pipelines over HTTP: defined, checked, compared, versioned and taken away; and who may do that."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.auth.roles import Role
from headgate.pipelines.authoring.archetypes import read_archetypes
from headgate.store.catalogue.tables import PIPELINES
from tests.integration.serve.durable_api import problem
from tests.integration.serve.pipeline_rig import SILVER, PipelineApi, done, pipeline_api

YAML = """\
id: silver
owner: data
schedules:
  - cron: 0 6 * * *
trigger:
  type: http
  config:
    url: https://jobs.example.org/silver
"""


@pytest.fixture
def api(tmp_path: Path) -> Iterator[PipelineApi]:
    with pipeline_api(tmp_path) as made:
        yield made


def _yaml(text: str) -> dict[str, Any]:
    return {"content": text, "headers": {"content-type": "application/yaml"}}


def test_put__new_same_and_other__counts_versions(api: PipelineApi) -> None:
    key = api.key("ada", Role.ADMIN)

    first = api.put("/pipelines/silver", SILVER, key=key, params={"reason": "we need it"})
    again = api.put("/pipelines/silver", SILVER)
    other = api.put("/pipelines/silver", {**SILVER, "owner": "data"})

    assert (first.status_code, first.json()["version"], first.headers["etag"]) == (201, 1, '"1"')
    assert (first.json()["by"], first.json()["reason"], first.json()["source"]) == ("ada", "we need it", "api")
    assert first.headers["location"] == "/api/v1/pipelines/silver?version=1"
    assert (again.status_code, again.json()["version"]) == (200, 1)
    assert (other.status_code, other.json()["version"], other.json()["owner"]) == (201, 2, "data")
    assert done(api.get("/pipelines/silver"))["definition"]["owner"] == "data"
    assert "owner" not in done(api.get("/pipelines/silver?version=1"))["definition"]
    assert [each["version"] for each in done(api.get("/pipelines/silver/versions"))["pipelines"]] == [2, 1]
    assert [each["id"] for each in done(api.get("/pipelines"))["pipelines"]] == ["silver"]
    # The event is in the transaction of the change: the same again is no event.
    assert api.events() == ["PIPELINE_DEFINED", "PIPELINE_DEFINED"]


def test_put__with_an_archetype_of_the_project__has_its_traits(api: PipelineApi, tmp_path: Path) -> None:
    text, source = "name: own-load\nrequired_traits: [{type: landed, evaluator: push}]\n", "own.yaml"
    before = api.put("/pipelines/silver", {**SILVER, "archetype": "own-load"})
    archetypes = {each.name: each for each in read_archetypes(text, source)[0]}

    with pipeline_api(tmp_path, archetypes=archetypes) as other:
        kept = done(other.put("/pipelines/silver", {**SILVER, "archetype": "own-load"}), 201)

    assert (before.status_code, "own-load" in before.text) == (400, True)
    assert kept["definition"]["readiness"]["traits"]["landed"]["evaluator"] == "push"


def test_delete__of_a_pipeline__is_reported_with_who_did_it(api: PipelineApi) -> None:
    api.put("/pipelines/silver", SILVER)
    api.delete("/pipelines/silver", key=api.key("ada", Role.ADMIN))

    assert api.events() == ["PIPELINE_DEFINED", "PIPELINE_DELETED"]


def test_put__a_rule_that_must_not_hold__is_shown_as_it_was_written(api: PipelineApi) -> None:
    rules = [{"not": {"key": "hold"}}]

    kept = done(api.put("/pipelines/silver", {**SILVER, "readiness": {"rules": rules}}), 201)

    assert kept["definition"]["readiness"]["rules"] == rules


def test_put__as_yaml__is_the_same_as_json(api: PipelineApi) -> None:
    kept = done(api.put("/pipelines/silver", **_yaml(YAML)), 201)

    assert kept["schedules"] == ["cron"]
    assert kept["definition"]["trigger"] == {"type": "http", "config": {"url": "https://jobs.example.org/silver"}}


def test_put__if_match__changes_only_what_was_seen(api: PipelineApi) -> None:
    tag = api.put("/pipelines/silver", SILVER).headers["etag"]

    second = api.put("/pipelines/silver", {**SILVER, "tier": 1}, headers={"if-match": tag})
    late = api.put("/pipelines/silver", {**SILVER, "tier": 2}, headers={"if-match": tag})

    assert second.json()["version"] == 2
    problem(late, 412, "precondition_failed")
    problem(api.delete("/pipelines/silver", headers={"if-match": tag}), 412, "precondition_failed")
    assert done(api.get("/pipelines/silver"))["tier"] == 1


def test_put__bad_definition__names_line_field_and_what_is_allowed(api: PipelineApi) -> None:
    bad = YAML.replace("cron: 0 6 * * *", "cron: 0 66 * * *").replace("owner", "ownr")

    found = problem(api.put("/pipelines/silver", **_yaml(bad)), 400, "bad_definition")

    by_field = {each["field"]: each for each in found["errors"]}
    assert by_field["ownr"]["line"] == 2
    assert by_field["ownr"]["suggestion"] == "owner"
    assert by_field["schedules[0].cron"]["line"] == 4
    assert api.get("/pipelines/silver").status_code == 404


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        (YAML.replace("id: silver", "id: gold"), "'silver' in the path"),
        (f"{YAML}---\n{YAML.replace('id: silver', 'id: gold')}", "2 definitions"),
        ("", "no definition"),
        ("id: [", "body"),
    ],
)
def test_put__not_this_pipeline_alone__is_refused(api: PipelineApi, text: str, fact: str) -> None:
    found = problem(api.put("/pipelines/silver", **_yaml(text)), 400, "bad_definition")

    assert fact in found["detail"]
    assert done(api.get("/pipelines"))["pipelines"] == []


def test_put__body_that_is_no_text__is_refused(api: PipelineApi) -> None:
    found = problem(api.put("/pipelines/silver", content=b"id: \xff"), 400, "bad_payload")

    assert "UTF-8" in found["detail"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"trigger": {"type": "command", "config": {"command": ["rm", "-rf", "/"]}}}, "trigger.type"),
        (
            {"readiness": {"traits": {"fresh": {"evaluator": "command:rm -rf /"}}}},
            "readiness.traits.fresh.evaluator",
        ),
    ],
)
def test_put__program_of_the_server__is_taken_from_its_own_files_only(
    api: PipelineApi, change: dict[str, Any], field: str
) -> None:
    body = {**SILVER, **change}

    found = problem(api.put("/pipelines/silver", body), 400, "bad_definition")
    checked = done(api.post("/pipelines/validate", body))

    assert [each["field"] for each in found["errors"]] == [field]
    assert api.get("/pipelines/silver").status_code == 404
    # As a file of the server's it would be right.
    assert checked["valid"] is True
    assert [each["field"] for each in checked["warnings"]] == [field]


def test_put__circle_with_one_that_is_kept__is_refused(api: PipelineApi) -> None:
    api.defined({**SILVER, "id": "gold", "schedules": [{"upstream": [{"pipeline": "silver"}]}]})

    found = problem(
        api.put("/pipelines/silver", {**SILVER, "schedules": [{"upstream": [{"pipeline": "gold"}]}]}),
        400,
        "bad_definition",
    )

    assert "circle: gold → silver → gold" in found["detail"]
    assert api.put("/pipelines/silver", SILVER).status_code == 201


def test_put__upstream_that_is_not_known__is_a_warning(api: PipelineApi) -> None:
    api.defined({**SILVER, "id": "bronze"})
    body = {**SILVER, "schedules": [{"upstream": [{"pipeline": "bronce"}]}]}

    kept = done(api.put("/pipelines/silver", body), 201)
    known = done(api.put("/pipelines/silver", {**body, "schedules": [{"upstream": [{"pipeline": "bronze"}]}]}), 201)

    assert "bronce" in kept["warnings"][0]["fact"]
    assert known["warnings"] == []


def test_validate__several_documents__says_everything_and_keeps_nothing(api: PipelineApi) -> None:
    text = f"{YAML}---\nid: gold\ntrigger:\n  type: htp\n"

    checked = done(api.post("/pipelines/validate", **_yaml(text)))

    assert (checked["valid"], checked["pipelines"]) == (False, ["silver"])
    assert [(each["line"], each["field"]) for each in checked["problems"]] == [(12, "trigger.type")]
    assert "http" in checked["problems"][0]["allowed"]
    assert done(api.get("/pipelines"))["pipelines"] == []


def test_plan__changed_and_new__says_what_would_differ(api: PipelineApi) -> None:
    api.defined()

    changed = done(api.post("/pipelines/plan", {**SILVER, "tier": 1}))
    same = done(api.post("/pipelines/plan", SILVER))
    new = done(api.post("/pipelines/plan", {**SILVER, "id": "gold"}))

    assert changed["changes"] == [{"pipeline_id": "silver", "is_new": False, "lines": ["+ tier: 1"]}]
    assert same["changes"][0]["lines"] == []
    assert new["changes"][0]["is_new"] is True
    assert new["changes"][0]["lines"][0] == "+ pipeline gold"
    assert done(api.get("/pipelines/silver"))["version"] == 1


def test_diff__two_versions__are_compared_by_field(api: PipelineApi) -> None:
    api.put("/pipelines/silver", SILVER)
    api.put("/pipelines/silver", {**SILVER, "owner": "data"})

    last = done(api.get("/pipelines/silver/diff"))
    back = done(api.get("/pipelines/silver/diff?from=2&to=1"))

    assert last == {"pipeline_id": "silver", "from": 1, "to": 2, "changes": ["+ owner: data"]}
    assert (back["from"], back["to"], back["changes"]) == (2, 1, ["- owner: data"])
    assert done(api.get("/pipelines/silver/diff?to=1"))["changes"] == ["+ pipeline silver"]


def test_delete__one_that_is_there__leaves_its_versions(api: PipelineApi) -> None:
    api.defined()

    assert api.delete("/pipelines/silver", params={"reason": "gone"}).status_code == 204
    problem(api.get("/pipelines/silver"), 404, "not_found")
    problem(api.delete("/pipelines/silver"), 404, "not_found")
    assert done(api.get("/pipelines"))["pipelines"] == []
    versions = done(api.get("/pipelines/silver/versions"))["pipelines"]
    assert [(each["version"], each["deleted"], each["reason"]) for each in versions] == [
        (2, True, "gone"),
        (1, False, ""),
    ]
    assert done(api.put("/pipelines/silver", SILVER), 201)["version"] == 3


def test_list__a_row_that_is_no_definition__is_reported_and_hides_no_other(api: PipelineApi) -> None:
    api.defined()
    bad = {"PK": "PIPELINE#bad", "SK": "CONFIG", "GSI1PK": "PIPELINES", "GSI1SK": "bad", "config": "{", "version": 1}
    api.service.store.put(PIPELINES, bad)

    listed = done(api.get("/pipelines"))

    assert [each["id"] for each in listed["pipelines"]] == ["silver"]
    assert [each["pipeline_id"] for each in listed["bad"]] == ["bad"]


@pytest.mark.parametrize(
    ("path", "status", "code", "word"),
    [
        ("/pipelines/none", 404, "not_found", "none"),
        ("/pipelines/none/versions", 404, "not_found", "none"),
        ("/pipelines/none/diff", 404, "not_found", "none"),
        ("/pipelines/silver?version=0", 400, "bad_payload", "version"),
        ("/pipelines/silver?version=9", 404, "not_found", "version 9"),
        ("/pipelines?limit=0", 400, "bad_payload", "limit"),
        ("/pipelines?nonsense=1", 400, "bad_payload", "nonsense"),
        ("/pipelines?cursor=x", 400, "bad_cursor", "cursor"),
        ("/pipelines/a%23b", 404, "not_found", "a#b"),
    ],
)
def test_read__what_cannot_be__names_it(api: PipelineApi, path: str, status: int, code: str, word: str) -> None:
    api.defined()

    assert word in problem(api.get(path), status, code)["detail"]


@pytest.mark.parametrize(
    ("role", "method", "path", "is_allowed"),
    [
        (Role.VIEWER, "GET", "/pipelines", True),
        (Role.VIEWER, "POST", "/pipelines/validate", True),
        (Role.VIEWER, "POST", "/pipelines/silver/sensors/x", False),
        (Role.VIEWER, "POST", "/pipelines/silver/pause", False),
        (Role.OPERATOR, "POST", "/pipelines/silver/pause", True),
        (Role.OPERATOR, "POST", "/pipelines/silver/runs", True),
        (Role.OPERATOR, "PUT", "/pipelines/silver", False),
        (Role.OPERATOR, "PUT", "/calendars/x", False),
        (Role.SERVICE, "POST", "/pipelines/silver/sensors/x", True),
        (Role.SERVICE, "PUT", "/pipelines/silver", False),
        (Role.ADMIN, "PUT", "/pipelines/silver", True),
        (Role.ENFORCER, "GET", "/pipelines", False),
    ],
)
def test_roles__each__may_do_what_it_is_there_for(
    api: PipelineApi, role: Role, method: str, path: str, is_allowed: bool
) -> None:
    answer = api.ask(method, path, {} if method != "GET" else None, key=api.key("someone", role))

    assert (answer.status_code != 403) is is_allowed, answer.text


def test_document__every_operation__has_a_name_of_its_own_and_examples(api: PipelineApi) -> None:
    document = done(api.get("http://127.0.0.1:8400/api/openapi.json"))

    operations = [each for path in document["paths"].values() for each in path.values()]
    ids = [each["operationId"] for each in operations]
    assert len(ids) == len(set(ids))
    put = document["paths"]["/api/v1/pipelines/{id}"]["put"]
    assert {"application/json", "application/yaml"} <= put["requestBody"]["content"].keys()
    assert put["requestBody"]["content"]["application/json"]["schema"]["examples"][0]["id"] == "silver-orders"
    start = document["paths"]["/api/v1/pipelines/{id}/runs"]["post"]
    assert "Idempotency-Key" in {each["name"] for each in start["parameters"]}
    start_run = document["components"]["schemas"]["pipelines.StartRun"]["properties"]
    assert "2026-03-03" in start_run["date"]["examples"]
