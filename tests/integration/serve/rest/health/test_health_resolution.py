"""Resolution over HTTP: rules of datasets, which of them a message meets, and why."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.serve.durable_api import problem
from tests.integration.serve.health_rig import HealthApi, done, health_api, of

FIELDS = {
    "topic_pattern", "name", "resolution_type", "dataset_urn", "priority", "conditions", "enabled", "version",
    "created_at", "updated_at",
}  # fmt: skip


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HealthApi]:
    with health_api(tmp_path_factory.mktemp("resolution") / "home") as made:
        yield made


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[HealthApi]:
    with health_api(tmp_path / "home") as made:
        yield made


def _rule(api: HealthApi, urn: str, **given: Any) -> dict[str, Any]:
    return done(api.post(f"{of(urn)}/resolution-rules", given), 201)


def _resolved(api: HealthApi, **message: Any) -> str:
    return str(done(api.post("/resolve", message), 200)["resolution"]["dataset_urn"])


def test_add__as_in_the_run_book__sends_the_topic_to_the_dataset_of_the_path(api: HealthApi) -> None:
    urn = api.fresh()

    answer = api.post(
        f"{of(urn)}/resolution-rules", {"topic_pattern": "raw.payments.events", "resolution_type": "EXACT"}
    )

    made = done(answer, 201)
    assert made.keys() >= FIELDS
    assert (made["dataset_urn"], made["priority"], made["enabled"], made["version"]) == (urn, 100, True, 1)
    assert answer.headers["etag"] == '"1"'
    assert done(api.get(f"{of(urn)}/resolution-rules"), 200)["items"] == [made]
    shown = api.get(f"/resolution-rules/raw.payments.events/{made['name']}")
    assert (done(shown, 200), shown.headers["etag"]) == (made, '"1"')
    assert _resolved(api, topic="raw.payments.events") == urn


def test_resolve__of_several_kinds__the_more_particular_wins_and_says_why(api: HealthApi) -> None:
    exact, created, paid, other, wild = (api.fresh() for _ in range(5))
    _rule(api, exact, topic_pattern="res.orders.exact")
    _rule(api, wild, topic_pattern="res.*", resolution_type="WILDCARD")
    conditions = [
        {"field": "$.event_type", "operator": "EQUALS", "value": "created", "dataset_urn": created},
        {"field": "$.event_type", "operator": "EQUALS", "value": "paid", "dataset_urn": paid},
    ]
    _rule(
        api, created, topic_pattern="res.orders.*", resolution_type="CONDITIONAL", conditions=conditions,
        default_dataset_urn=other, priority=50,
    )  # fmt: skip

    assert _resolved(api, topic="res.orders.exact") == exact
    assert _resolved(api, topic="res.orders.x", payload={"event_type": "created"}) == created
    assert _resolved(api, topic="res.orders.x", payload={"event_type": "paid"}) == paid
    assert _resolved(api, topic="res.orders.x", payload={"event_type": "?"}) == other
    assert _resolved(api, topic="res.elsewhere") == wild
    response = done(api.post("/resolve/explain", {"topic": "res.orders.x", "payload": {"event_type": "paid"}}), 200)
    assert response["resolution"]["dataset_urn"] == paid
    assert any(each["outcome"] == "MATCHED" for each in response["steps"])


def test_resolve__a_topic_that_no_one_mapped__is_unknown_with_a_warning(api: HealthApi) -> None:
    response = done(api.post("/resolve", {"topic": "nobody.mapped"}), 200)["resolution"]

    assert response["dataset_urn"] == "urn:dp:unknown:nobody.mapped"
    assert response["is_mapped"] is False
    assert "UNMAPPED_TOPIC" in response["warning"]


def test_resolve__with_a_fallback__has_the_config_too(api: HealthApi) -> None:
    urn = api.fresh(owner_team="orders")
    _rule(api, urn, topic_pattern="res.config")

    response = done(api.post("/resolve", {"topic": "res.config", "fallback_on_miss": "WARN"}), 200)

    assert response["config"]["dataset"]["owner_team"] == "orders"


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"topic": ""},
        {"topic": 5},
        {"topic": "x" * 5000},
        {"topic": "t", "headers": {"a": 1}},
        {"topic": "t", "headers": []},
        {"topic": "t", "fallback_on_miss": "maybe"},
        {"topic": "t", "bogus": 1},
    ],
)
def test_resolve__a_message_that_is_wrong__is_refused(api: HealthApi, message: dict[str, Any]) -> None:
    problem(api.post("/resolve", message), 400, "bad_payload")
    problem(api.post("/resolve/explain", message), 400, "bad_payload")


@pytest.mark.parametrize("depth", [10, 100, 400, 800, 5000])
def test_resolve__a_deep_payload__is_no_error_of_the_server(api: HealthApi, depth: int) -> None:
    content = b'{"topic": "res.orders.deep", "payload": ' + b'{"a":' * depth + b"1" + b"}" * depth + b"}"

    for path in ("/resolve", "/resolve/explain"):
        assert api.post(path, content=content).status_code in (200, 400)


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"topic_pattern": ""},
        {"topic_pattern": "a b"},
        {"topic_pattern": 5},
        {"topic_pattern": "t\u0000"},
        {"resolution_type": "SOMEHOW"},
        {"topic_pattern": "wrong.*"},
        {"resolution_type": "WILDCARD"},
        {"resolution_type": "CONDITIONAL"},
        {"resolution_type": "CONDITIONAL", "conditions": []},
        {"resolution_type": "CONDITIONAL", "conditions": "x"},
        {"resolution_type": "CONDITIONAL", "conditions": [{"field": "nonsense[", "operator": "EQUALS", "value": 1}]},
        {"name": "a/b"},
        {"priority": -1},
        {"priority": 1.5},
        {"priority": True},
        {"enabled": "yes"},
        {"effective_from": "x"},
        {"effective_from": "2026-02-01T00:00:00Z", "effective_until": "2026-01-01T00:00:00Z"},
        {"description": "x" * 5000},
        {"bogus": 1},
        {"dataset_urn": "nonsense"},
    ],
)
def test_add__a_rule_that_is_wrong__is_refused_and_not_kept(api: HealthApi, wrong: dict[str, Any]) -> None:
    urn = api.fresh()
    given = {"topic_pattern": "wrong.topic", **wrong} if wrong else {}

    answer = api.post(f"{of(urn)}/resolution-rules", given)

    assert answer.status_code == 400, answer.text
    assert done(api.get(f"{of(urn)}/resolution-rules"), 200)["items"] == []


@pytest.mark.parametrize("content", [b"", b"null", b"[]", b"{", b"\xff", b'{"a":' * 3000])
def test_add__what_is_no_object_of_json__is_refused(api: HealthApi, content: bytes) -> None:
    problem(api.post(f"{of(api.fresh())}/resolution-rules", content=content), 400, "bad_payload")


def test_add__a_rule_of_another_dataset_than_the_path__is_refused(api: HealthApi) -> None:
    urn, other = api.fresh(), api.fresh()

    assert (
        api.post(f"{of(urn)}/resolution-rules", {"topic_pattern": "path.other", "dataset_urn": other}).status_code
        == 400
    )

    problem(api.get("/resolution-rules/path.other/default"), 404, "not_found")


def test_add__one_that_is_there__conflicts(api: HealthApi) -> None:
    urn = api.fresh()
    _rule(api, urn, topic_pattern="twice")

    problem(api.post(f"{of(urn)}/resolution-rules", {"topic_pattern": "twice"}), 409, "already_exists")


def test_add__under_a_key__is_done_once_for_each_dataset(api: HealthApi) -> None:
    one, other = api.fresh(), api.fresh()
    given, again = {"topic_pattern": "idem.topic"}, {"idempotency-key": "rule"}
    first = done(api.post(f"{of(one)}/resolution-rules", given, headers=again), 201)

    assert done(api.post(f"{of(one)}/resolution-rules", given, headers=again), 201) == first
    elsewhere = api.post(f"{of(other)}/resolution-rules", given, headers=again)

    assert elsewhere.status_code in (409, 422), elsewhere.text
    assert done(api.get(f"{of(other)}/resolution-rules"), 200)["items"] == []


def test_update__of_another_version__is_412_by_header_and_409_by_body(api: HealthApi) -> None:
    urn, other = api.fresh(), api.fresh()
    _rule(api, urn, topic_pattern="upd")
    path = "/resolution-rules/upd/default"

    problem(api.put(path, {"dataset_urn": other}, headers={"if-match": '"9"'}), 412, "precondition_failed")
    problem(api.put(path, {"dataset_urn": other, "expected_version": 9}), 409, "version_conflict")
    problem(api.put(path, {"dataset_urn": other, "expected_version": 0}), 409, "version_conflict")
    for wrong in (True, "1", -7, 1.5):
        problem(api.put(path, {"dataset_urn": other, "expected_version": wrong}), 400, "bad_payload")
    problem(api.put(path, {"dataset_urn": other, "topic_pattern": "else"}), 400, "bad_payload")
    problem(api.put(path, {"dataset_urn": other, "name": "else"}), 400, "bad_payload")
    problem(api.put("/resolution-rules/upd/none", {"dataset_urn": other}), 404, "not_found")
    assert _resolved(api, topic="upd") == urn
    changed = api.put(path, {"dataset_urn": other}, headers={"if-match": '"1"'})
    assert (done(changed, 200)["version"], changed.headers["etag"]) == (2, '"2"')
    assert _resolved(api, topic="upd") == other


def test_remove__as_it_was_read__is_gone(api: HealthApi) -> None:
    urn = api.fresh()
    _rule(api, urn, topic_pattern="gone")
    path = "/resolution-rules/gone/default"

    problem(api.delete(path, headers={"if-match": '"9"'}), 412, "precondition_failed")
    problem(api.ask("DELETE", path, {"expected_version": 9}), 409, "version_conflict")
    assert _resolved(api, topic="gone") == urn
    assert api.delete(path, headers={"if-match": '"1"'}).status_code == 204
    problem(api.get(path), 404, "not_found")
    problem(api.delete(path), 404, "not_found")
    assert done(api.post("/resolve", {"topic": "gone"}), 200)["resolution"]["is_mapped"] is False


def test_path__patterns_with_slashes_percent_signs_and_stars__are_found(api: HealthApi) -> None:
    urn = api.fresh()
    _rule(api, urn, topic_pattern="a/b%2F.*#x", resolution_type="WILDCARD", name="n.1")

    path = "/resolution-rules/a%2Fb%252F.%2A%23x/n.1"

    assert done(api.get(path), 200)["topic_pattern"] == "a/b%2F.*#x"
    assert api.delete(path).status_code == 204


def test_list__page_by_page_and_by_filter(alone: HealthApi) -> None:
    urn = alone.fresh()
    for number in range(5):
        _rule(alone, urn, topic_pattern=f"list.{number}", enabled=number != 3)
    found: list[str] = []
    token: str | None = None
    while True:
        page = done(
            alone.get("/resolution-rules", params={"page_size": 2, **({"page_token": token} if token else {})}), 200
        )
        found += [each["topic_pattern"] for each in page["items"]]
        token = page["next_page_token"]
        if token is None:
            break

    assert sorted(found) == [f"list.{number}" for number in range(5)]
    only = done(alone.get("/resolution-rules", params={"enabled": "false"}), 200)["items"]
    assert [each["topic_pattern"] for each in only] == ["list.3"]
    one = done(alone.get("/resolution-rules", params={"topic_pattern": "list.1"}), 200)["items"]
    assert [each["topic_pattern"] for each in one] == ["list.1"]
    token = alone.get("/resolution-rules", params={"page_size": 2}).json()["next_page_token"]
    problem(alone.get("/resolution-rules", params={"page_token": token, "enabled": "false"}), 400, "bad_cursor")
    problem(alone.get("/resolution-rules", params={"page_token": f"{token}x"}), 400, "bad_cursor")
    for query in ("enabled=maybe", "page_size=0", "bogus=1"):
        problem(alone.get(f"/resolution-rules?{query}"), 400, "bad_payload")


def test_producers__of_a_topic__are_seen_listed_and_refused(api: HealthApi) -> None:
    path = "/topics/raw.orders%2Feu/producers"
    guessed = done(api.put(f"{path}/job:etl", {"source": "INFERRED", "confidence": "low", "seen_at": api.at(-5)}), 200)
    said = done(api.put(f"{path}/job:etl", {"source": "HEADER", "seen_at": api.at(-10)}), 200)

    assert (guessed["version"], said["version"], said["topic"]) == (1, 2, "raw.orders/eu")
    assert (said["source"], said["confidence"]) == ("HEADER", "HIGH")
    assert (said["first_seen_at"], said["last_seen_at"]) == (api.at(-10), api.at(-5))
    assert done(api.get(path), 200) == {"items": [said], "next_page_token": None}
    for wrong in ({}, {"source": "RUMOUR"}, {"source": "HEADER", "seen_at": api.at(60)}):
        assert api.put(f"{path}/job:etl", wrong).status_code == 400
