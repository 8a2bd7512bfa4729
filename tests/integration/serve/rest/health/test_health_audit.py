"""The audit and the API keys over HTTP: what was changed by whom, that it was not tampered with, and who may call."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.auth.roles import Role
from headgate.health.audit.hash_chain import head_key
from headgate.store.catalogue.tables import AUDIT
from tests.integration.serve.durable_api import problem
from tests.integration.serve.health_rig import ORDERS, HealthApi, done, health_api, of


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HealthApi]:
    with health_api(tmp_path_factory.mktemp("audit") / "home") as made:
        yield made


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[HealthApi]:
    with health_api(tmp_path / "home") as made:
        yield made


def _walk(api: HealthApi, **query: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    token: str | None = None
    while True:
        page = done(
            api.get("/audit", params={**query, "page_size": 2, **({"page_token": token} if token else {})}), 200
        )
        found += page["items"]
        token = page["next_page_token"]
        if token is None:
            return found


def test_audit__of_changes__reports_who_what_and_which_version(alone: HealthApi) -> None:
    ann = alone.key("ann", Role.ADMIN)
    urn = "urn:dp:audit:one:v1"
    done(alone.post("/datasets", {"dataset_urn": urn, "reason": "new", "approval_ticket": "T-1"}, key=ann), 201)
    alone.clock.advance(60)
    done(alone.put(of(urn), {"owner_team": "b", "reason": "moved"}), 200)
    alone.clock.advance(60)
    incident = alone.incident(urn)
    done(alone.patch(f"/incidents/{incident['incident_id']}", {"status": "ACKNOWLEDGED"}, key=ann), 200)

    everything = _walk(alone)
    of_one = [each for each in everything if each["entity"].endswith(urn)]

    assert [(each["actor"], each["before_version"], each["after_version"]) for each in of_one] == [
        ("local", 1, 2),
        ("ann", None, 1),
    ] or [(each["actor"], each["before_version"], each["after_version"]) for each in of_one] == [
        ("local", 1, 2),
        ("ann", 0, 1),
    ]
    assert (of_one[1]["reason"], of_one[1]["ticket"]) == ("new", "T-1")
    assert "owner_team" in of_one[0]["changed"]
    assert any(each["action"].startswith("incident.") and each["actor"] == "ann" for each in everything)
    assert any(each["action"] == "key.issue" for each in everything)
    assert {each["id"] for each in _walk(alone, actor="ann")} == {
        each["id"] for each in everything if each["actor"] == "ann"
    }
    assert [each["id"] for each in _walk(alone, entity=of_one[0]["entity"])] == [each["id"] for each in of_one]
    assert all(each["at"] >= alone.at(-1) for each in _walk(alone, **{"from": alone.at(-1)}))
    report = done(alone.get("/audit/verify"), 200)
    assert report["problems"] == []
    assert report["entries"] == len(everything)


def test_audit__what_was_refused__is_not_in_it(alone: HealthApi) -> None:
    urn = "urn:dp:audit:two:v1"
    alone.dataset(urn)
    before = len(_walk(alone))

    problem(alone.put(of(urn), {"owner_team": "x"}, headers={"if-match": '"9"'}), 412, "precondition_failed")
    problem(alone.post("/datasets", {"dataset_urn": urn}), 409, "already_exists")

    assert len(_walk(alone)) == before


def test_audit__signals_and_evidence__are_not_what_people_answer_for(alone: HealthApi) -> None:
    urn = "urn:dp:audit:three:v1"
    alone.dataset(urn)
    before = len(_walk(alone))

    alone.signal("WARNING", urn)
    done(alone.post("/evidence", alone.evidence(1, urn)), 201)
    done(alone.post("/lineage", alone.run_event()), 201)

    assert len(_walk(alone)) == before


@pytest.mark.parametrize("query", ["from=x", "to=2026", "page_size=0", "page_size=101", "bogus=1", "page_token=x"])
def test_audit__a_query_that_is_wrong__is_refused(api: HealthApi, query: str) -> None:
    assert api.get(f"/audit?{query}").status_code == 400


def test_audit__a_cursor_of_another_question__is_refused(alone: HealthApi) -> None:
    for number in range(4):
        alone.dataset(f"urn:dp:audit:d{number}")
    token = alone.get("/audit", params={"page_size": 2}).json()["next_page_token"]

    for query in ({"actor": "local"}, {"entity": "x"}, {"from": alone.at(-1)}):
        problem(alone.get("/audit", params={"page_token": token, **query}), 400, "bad_cursor")


def test_keys__made_shown_rotated_and_revoked(api: HealthApi) -> None:
    given = {
        "principal": "etl",
        "roles": ["viewer", "signal-engine"],
        "scopes": ["urn:dp:orders:*"],
        "note": "for etl",
        "expires_in": "30d",
    }

    answer = api.post("/api-keys", given)

    made = done(answer, 201)
    assert answer.headers["cache-control"] == "no-store"
    about, text = made["key"], made["text"]
    assert about["roles"] == ["signal_engine", "viewer"]
    assert about["scopes"] == ["urn:dp:orders:*"]
    assert about["expires_at"] == api.at(30 * 24 * 60)
    path = f"/api-keys/{about['key_id']}"
    assert text not in api.get(path).text + api.get("/api-keys").text + api.get("/audit").text
    assert "digest" not in done(api.get(path), 200)
    assert api.get("/datasets", key=text).status_code == 200
    rotated = done(api.post(f"{path}/rotate", {"overlap": "1h"}), 201)["text"]
    assert rotated != text
    assert [api.get("/datasets", key=each).status_code for each in (text, rotated)] == [200, 200]
    api.clock.advance(3601)
    assert [api.get("/datasets", key=each).status_code for each in (text, rotated)] == [401, 200]
    assert done(api.delete(path), 200)["revoked_at"] is not None
    problem(api.get("/datasets", key=rotated), 401, "unauthenticated")
    assert done(api.delete(path), 200)["revoked_at"] is not None
    problem(api.post(f"{path}/rotate", {}), 409, "version_conflict")


def test_keys__that_have_expired__are_refused(api: HealthApi) -> None:
    text = done(api.post("/api-keys", {"principal": "short", "roles": ["viewer"], "expires_in": "1m"}), 201)["text"]
    assert api.get("/datasets", key=text).status_code == 200

    api.clock.advance(61)

    problem(api.get("/datasets", key=text), 401, "unauthenticated")


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"principal": "p"},
        {"principal": "p", "roles": []},
        {"principal": "p", "roles": ["king"]},
        {"principal": "", "roles": ["viewer"]},
        {"principal": "local", "roles": ["viewer"]},
        {"principal": "a\u0000b", "roles": ["viewer"]},
        {"principal": "x" * 300, "roles": ["viewer"]},
        {"principal": "p", "roles": ["viewer"], "scopes": ["[a-z]*"]},
        {"principal": "p", "roles": ["viewer"], "scopes": ["a b"]},
        {"principal": "p", "roles": ["viewer"], "scopes": ["*"] * 5 + [f"urn:dp:{n}" for n in range(200)]},
        {"principal": "p", "roles": ["viewer"], "expires_in": "0s"},
        {"principal": "p", "roles": ["viewer"], "expires_in": 1e300},
        {"principal": "p", "roles": ["viewer"], "bogus": 1},
    ],
)
def test_keys__that_cannot_be__are_not_made(api: HealthApi, wrong: dict[str, Any]) -> None:
    before = len(done(api.get("/api-keys"), 200)["items"])

    assert api.post("/api-keys", wrong).status_code == 400

    assert len(done(api.get("/api-keys"), 200)["items"]) == before


@pytest.mark.parametrize("name", ["none", "%00", "a%2Fb", "%25"])
def test_keys__that_are_not_there__are_404(api: HealthApi, name: str) -> None:
    problem(api.get(f"/api-keys/{name}"), 404, "not_found")
    problem(api.delete(f"/api-keys/{name}"), 404, "not_found")
    problem(api.post(f"/api-keys/{name}/rotate", {}), 404, "not_found")


@pytest.mark.parametrize(
    "sent", ["Bearer", "Bearer ", "Bearer a b", "Basic x", "hgk_x", "Bearer hgk_x", "Bearer eyJ.e.e"]
)
def test_credentials__that_are_none__are_refused_though_none_would_do(api: HealthApi, sent: str) -> None:
    answer = api.get("/datasets", headers={"authorization": sent})

    problem(answer, 401, "unauthenticated")
    assert answer.headers["www-authenticate"].startswith("Bearer")


def test_credentials__in_clear_from_another_machine__are_refused_and_so_is_who_has_none(api: HealthApi) -> None:
    key = api.key("far", Role.VIEWER)

    problem(api.get("/datasets", key=key, peer="203.0.113.9"), 401, "unauthenticated")
    problem(api.get("/datasets", peer="203.0.113.9"), 401, "unauthenticated")
    # What a proxy is said to have seen is not believed where none was set.
    forged = {"x-forwarded-proto": "https", "x-forwarded-for": "127.0.0.1"}
    problem(api.get("/datasets", key=key, peer="203.0.113.9", headers=forged), 401, "unauthenticated")
    assert api.get("/datasets", key=key).status_code == 200
    assert api.get("http://127.0.0.1:8400/health", peer="203.0.113.9").status_code == 200


def test_schemas__of_the_appendix__are_served_by_their_names(api: HealthApi) -> None:
    names = {
        "signal-state-schema.json", "incident-index-schema.json", "dataset-registry-schema.json",
        "evidence-cache-schema.json", "lineage-index-schema.json",
    }  # fmt: skip

    assert set(done(api.get("/schemas"), 200)["schemas"]) == names
    for name in names:
        schema = done(api.get(f"/schemas/{name}"), 200)
        assert schema["$schema"].startswith("https://json-schema.org/draft/2020-12/")
        assert schema["$id"].endswith(name)
    problem(api.get("/schemas/other.json"), 404, "not_found")


def test_audit__heads_kept_elsewhere__show_what_was_cut_off(alone: HealthApi) -> None:
    alone.dataset(ORDERS)
    heads = done(alone.get("/audit/heads"), 200)["heads"]
    assert [head["sequence"] for head in heads] == [1]
    assert done(alone.post("/audit/verify", {"heads": heads}), 200)["problems"] == []
    later = [{**heads[0], "sequence": 9, "hash": "f" * 64}]

    problems = done(alone.post("/audit/verify", {"heads": later}), 200)["problems"]

    assert {each["chain"] for each in problems} == {heads[0]["chain"]}


def test_audit__a_chain_that_was_tampered_with__takes_entries_again_once_someone_has_looked(alone: HealthApi) -> None:
    alone.dataset(ORDERS)
    (head,) = done(alone.get("/audit/heads"), 200)["heads"]
    row = alone.opened.store.get(AUDIT, head_key(head["chain"]))
    assert row is not None
    alone.opened.store.put(AUDIT, {**row, "seal": "forged"})
    problem(alone.get("/audit/heads"), 500, "corruption")

    (sealed,) = done(alone.post(f"/audit/chains/{head['chain']}/reopen", {"reason": "an exercise"}), 200)["heads"]

    assert sealed["sequence"] == 2
    assert done(alone.get("/audit/heads"), 200)["heads"] == [sealed]
    entry = done(alone.get("/audit"), 200)["items"][0]
    assert (entry["action"], entry["reason"]) == ("audit.reopen", "an exercise")
    problem(alone.post("/audit/chains/99/reopen", {"reason": "x"}), 404, "not_found")
    problem(alone.post("/audit/chains/first/reopen", {"reason": "x"}), 404, "not_found")
    assert alone.post("/audit/chains/1/reopen", {"reason": ""}).status_code in (400, 422)
