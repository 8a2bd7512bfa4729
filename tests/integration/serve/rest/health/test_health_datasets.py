"""Datasets over HTTP: registered, changed, paged, compared, rolled back, and found by other names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from headgate.auth.roles import Role
from tests.integration.serve.durable_api import problem
from tests.integration.serve.health_rig import HealthApi, done, health_api, of

FIELDS = {
    "dataset_urn", "display_name", "description", "tier", "owner_team", "owner_email", "oncall_rotation", "source",
    "schema_binding", "contract_binding", "slos", "pii_policy", "retention_days", "tags", "status", "config_version",
    "created_at", "updated_at", "updated_by",
}  # fmt: skip
# As in the run book.
PAYMENT: dict[str, Any] = {
    "display_name": "Payments - Payment Processed",
    "tier": "TIER_1",
    "owner_team": "payments-platform",
    "source": {"type": "KAFKA", "topic": "raw.payments.events"},
    "schema_binding": {"registry": "GLUE", "schema_name": "payments.payment_processed"},
    "slos": {
        "freshness": {"max_delay_seconds": 120},
        "volume": {"min_events_per_window": 1000},
        "contract_compliance": {"min_compliance_rate": 0.99},
    },
}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HealthApi]:
    with health_api(tmp_path_factory.mktemp("datasets") / "home") as made:
        yield made


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[HealthApi]:
    """A server whose lists hold what the test put there."""
    with health_api(tmp_path / "home") as made:
        yield made


def _walk(api: HealthApi, path: str, **query: Any) -> tuple[list[dict[str, Any]], int]:
    """Go through all pages, and return what is on them and how many there are."""
    found: list[dict[str, Any]] = []
    token: str | None = None
    for number in range(1, 100):
        page = done(api.get(path, params={**query, **({} if token is None else {"page_token": token})}), 200)
        found += page["items"]
        token = page["next_page_token"]
        if token is None:
            return found, number
    raise AssertionError("there is no last page")


def test_create__as_in_the_run_book__is_answered_with_everything_and_where_it_is(api: HealthApi) -> None:
    urn = "urn:dp:payments:payment_processed:v1"

    answer = api.post("/datasets", {"dataset_urn": urn, **PAYMENT})

    made = done(answer, 201)
    assert made.keys() >= FIELDS
    assert {name: made[name] for name in ("display_name", "tier", "owner_team")} == {
        name: PAYMENT[name] for name in ("display_name", "tier", "owner_team")
    }
    assert made["source"]["topic"] == "raw.payments.events"
    assert made["slos"]["freshness"]["max_delay_seconds"] == 120
    assert (made["config_version"], made["status"], made["updated_by"]) == (1, "ACTIVE", "local")
    assert answer.headers["etag"] == '"1"'
    assert done(api.get("http://127.0.0.1:8400" + answer.headers["location"]), 200) == made
    assert done(api.get(of(urn), params={"version": "LATEST"}), 200) == made


def test_create__one_that_is_there__conflicts_and_changes_nothing(api: HealthApi) -> None:
    urn = api.fresh(owner_team="first")

    problem(api.post("/datasets", {"dataset_urn": urn, "owner_team": "second"}), 409, "already_exists")

    assert api.get(of(urn)).json()["owner_team"] == "first"
    assert api.get(of(urn)).headers["etag"] == '"1"'


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"   ",
        b"null",
        b"[]",
        b'"text"',
        b"{",
        b"\xff\xfe",
        b'{"dataset_urn": "urn:dp:bad:one", "tier": NaN}',
        b'{"dataset_urn": "urn:dp:bad:one", "retention_days": Infinity}',
        b'{"dataset_urn": "urn:dp:bad:one", "slos": {"freshness": {"max_delay_seconds": 1e999}}}',
        b'{"dataset_urn": "urn:dp:bad:one", "display_name": "\\ud800"}',
        b'{"dataset_urn": "urn:dp:bad:one", "tags": ' + b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"}",
        b"[" * 100_000,
    ],
)
def test_create__what_is_no_object_of_json__is_refused(api: HealthApi, content: bytes) -> None:
    answer = api.post("/datasets", content=content)

    assert 400 <= answer.status_code < 500, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem(api.get(of("urn:dp:bad:one")), 404, "dataset_not_found")


@pytest.mark.parametrize(
    "given",
    [
        {"dataset_urn": "orders"},
        {"dataset_urn": "urn:dp:"},
        {"dataset_urn": "urn:dp:bad:one#x"},
        {"dataset_urn": "urn:dp:bad:" + "x" * 600},
        {"dataset_urn": "urn:dp:bad:one\u0000"},
        {"dataset_urn": 7},
        {"dataset_urn": None},
        {"dataset_urn": "urn:dp:bad:one", "tier": "TIER_9"},
        {"dataset_urn": "urn:dp:bad:one", "tier": True},
        {"dataset_urn": "urn:dp:bad:one", "owner_team": " "},
        {"dataset_urn": "urn:dp:bad:one", "owner_team": 5},
        {"dataset_urn": "urn:dp:bad:one", "retention_days": 0},
        {"dataset_urn": "urn:dp:bad:one", "retention_days": 1.5},
        {"dataset_urn": "urn:dp:bad:one", "retention_days": 10**40},
        {"dataset_urn": "urn:dp:bad:one", "tags": {"a": 1}},
        {"dataset_urn": "urn:dp:bad:one", "bogus": 1},
        {"dataset_urn": "urn:dp:bad:one", "display_name": "x" * 2000},
        {"dataset_urn": "urn:dp:bad:one", "source": "kafka"},
        {"dataset_urn": "urn:dp:bad:one", "slos": {"freshness": {"max_delay_seconds": 0}}},
        {"dataset_urn": "urn:dp:bad:one", "slos": {"freshnes": {"max_delay_seconds": 1}}},
        {"dataset_urn": "urn:dp:bad:one", "slos": {"freshness": {"max_delay_seconds": 1, "bogus": 1}}},
        {"dataset_urn": "urn:dp:bad:one", "source": {"typ": "KAFKA"}},
        {"dataset_urn": "urn:dp:bad:one", "expected_version": 7},
    ],
)
def test_create__with_a_wrong_field__is_refused_whole(api: HealthApi, given: dict[str, Any]) -> None:
    answer = api.post("/datasets", given)

    assert answer.status_code in (400, 409), answer.text
    problem(answer, answer.status_code, answer.json()["code"])
    problem(api.get(of("urn:dp:bad:one")), 404, "dataset_not_found")


def test_create__a_body_over_the_limit__is_refused_before_it_is_read(api: HealthApi) -> None:
    problem(api.post("/datasets", content=b"x" * (8 * 1024 * 1024 + 1)), 413, "content_too_large")


def test_create__a_config_of_hundreds_of_kilobytes__is_kept_whole(api: HealthApi) -> None:
    constraints = {f"field_{number}": {"pattern": "x" * 900} for number in range(420)}
    given = {"dataset_urn": "urn:dp:large:one", "contract_binding": {"field_constraints": constraints}}

    done(api.post("/datasets", given, headers={"idempotency-key": "large"}), 201)

    again = api.post("/datasets", given, headers={"idempotency-key": "large"})
    assert done(again, 201)["contract_binding"]["field_constraints"] == constraints
    assert again.headers["idempotency-replayed"] == "true"
    assert api.get(of("urn:dp:large:one")).json()["contract_binding"]["field_constraints"] == constraints


def test_idempotency__the_same_again__is_answered_as_the_first_time(api: HealthApi) -> None:
    given = {"dataset_urn": "urn:dp:idem:same", "owner_team": "a"}
    first = api.post("/datasets", given, headers={"idempotency-key": '"k-same"'})

    second = api.post("/datasets", given, headers={"idempotency-key": "k-same"})

    assert done(second, 201) == done(first, 201)
    assert second.headers["etag"] == first.headers["etag"] == '"1"'
    assert second.headers["location"] == first.headers["location"]
    assert "idempotency-replayed" not in first.headers
    assert second.headers["idempotency-replayed"] == "true"
    assert api.get(of("urn:dp:idem:same")).json()["config_version"] == 1


def test_idempotency__another_body__is_422_and_changes_nothing(api: HealthApi) -> None:
    again = {"idempotency-key": "k-other"}
    done(api.post("/datasets", {"dataset_urn": "urn:dp:idem:one"}, headers=again), 201)

    problem(api.post("/datasets", {"dataset_urn": "urn:dp:idem:two"}, headers=again), 422, "idempotency_key_reused")

    problem(api.get(of("urn:dp:idem:two")), 404, "dataset_not_found")


def test_idempotency__after_an_error__the_request_may_be_repaired_under_its_key(api: HealthApi) -> None:
    again = {"idempotency-key": "k-error"}
    problem(
        api.post("/datasets", {"dataset_urn": "urn:dp:idem:error", "tier": "nine"}, headers=again), 400, "bad_payload"
    )

    done(api.post("/datasets", {"dataset_urn": "urn:dp:idem:error"}, headers=again), 201)


def test_idempotency__at_the_same_time__is_done_once_and_the_others_are_asked_to_come_back(api: HealthApi) -> None:
    asked = ("POST", "/datasets", {"dataset_urn": "urn:dp:idem:race"}, {"idempotency-key": "k-race"})

    answers = api.at_once(*[asked] * 8)

    done_ones = [each for each in answers if each.status_code == 201]
    refused = [each for each in answers if each.status_code != 201]
    assert sum("idempotency-replayed" not in each.headers for each in done_ones) == 1
    assert all(each.json()["code"] == "still_running" and each.headers["retry-after"] for each in refused)
    assert api.get(of("urn:dp:idem:race")).json()["config_version"] == 1
    assert api.post(*asked[1:3], headers=asked[3]).headers["idempotency-replayed"] == "true"


def test_idempotency__of_someone_else__is_another_request(api: HealthApi) -> None:
    given, again = {"dataset_urn": "urn:dp:idem:who"}, {"idempotency-key": "k-who"}
    done(api.post("/datasets", given, headers=again, key=api.key("ann", Role.ADMIN)), 201)

    problem(api.post("/datasets", given, headers=again, key=api.key("bob", Role.ADMIN)), 409, "already_exists")


@pytest.mark.parametrize("key", ["", '""', "x" * 300, "a\tb"])
def test_idempotency__a_key_that_is_none__is_refused(api: HealthApi, key: str) -> None:
    problem(
        api.post("/datasets", {"dataset_urn": "urn:dp:idem:bad"}, headers={"idempotency-key": key}), 400, "bad_payload"
    )

    problem(api.get(of("urn:dp:idem:bad")), 404, "dataset_not_found")


def test_update__as_it_was_read__makes_the_next_version_and_keeps_the_last(api: HealthApi) -> None:
    urn = api.fresh(owner_team="a", display_name="before")
    tag = api.get(of(urn)).headers["etag"]

    changed = api.put(of(urn), {"owner_team": "b", "display_name": "after"}, headers={"if-match": tag})

    assert done(changed, 200)["config_version"] == 2
    assert changed.headers["etag"] == '"2"'
    for version in ("1", "v1", "CONFIG#v1"):
        old = api.get(of(urn), params={"version": version})
        assert (done(old, 200)["display_name"], old.headers["etag"]) == ("before", '"1"')
        assert old.json()["archived_at"]
    versions = done(api.get(f"{of(urn)}/versions"), 200)
    assert [each["config_version"] for each in versions["items"]] == [2, 1]
    diff = done(api.get(f"{of(urn)}/diff", params={"from": 1, "to": 2}), 200)
    assert {(each["path"], each["before"], each["after"]) for each in diff["changes"]} == {
        ("owner_team", "a", "b"),
        ("display_name", "before", "after"),
    }


def test_update__of_another_version__says_412_by_header_and_409_by_body(api: HealthApi) -> None:
    urn = api.fresh(owner_team="a")

    by_header = api.put(of(urn), {"owner_team": "b"}, headers={"if-match": '"9"'})
    by_body = api.put(of(urn), {"owner_team": "b", "expected_version": 9})
    as_absent = api.put(of(urn), {"owner_team": "b", "expected_version": 0})
    weak = api.put(of(urn), {"owner_team": "b"}, headers={"if-match": 'W/"1"'})
    twice = api.put(of(urn), {"owner_team": "b", "expected_version": 1}, headers={"if-match": '"2"'})

    problem(by_header, 412, "precondition_failed")
    problem(by_body, 409, "version_conflict")
    problem(as_absent, 409, "version_conflict")
    problem(weak, 412, "precondition_failed")
    problem(twice, 400, "bad_payload")
    assert api.get(of(urn)).json()["owner_team"] == "a"


@pytest.mark.parametrize("tag", ['"x"', "", '"-1"', '"99999999999999999999999"', '"1'])
def test_update__if_match_that_is_no_tag_of_ours__does_not_match(api: HealthApi, tag: str) -> None:
    urn = api.fresh(owner_team="a")

    assert api.put(of(urn), {"owner_team": "b"}, headers={"if-match": tag}).status_code in (400, 412)

    assert api.get(of(urn)).json()["owner_team"] == "a"


@pytest.mark.parametrize("tag", ["*", '"1"', '"7", "1"'])
def test_update__if_match_that_has_the_tag__changes_it(api: HealthApi, tag: str) -> None:
    urn = api.fresh(owner_team="a")

    assert done(api.put(of(urn), {"owner_team": "b"}, headers={"if-match": tag}), 200)["owner_team"] == "b"


def test_update__the_caller_that_is_second__loses(api: HealthApi) -> None:
    urn = api.fresh()
    asked = [("PUT", of(urn), {"owner_team": f"team-{n}"}, {"if-match": '"1"'}) for n in range(6)]

    answers = api.at_once(*asked)

    assert sorted(each.status_code for each in answers) == [200] + [412] * 5
    (winner,) = [each.json()["owner_team"] for each in answers if each.status_code == 200]
    assert api.get(of(urn)).json()["owner_team"] == winner
    assert len(api.get(f"{of(urn)}/versions").json()["items"]) == 2


def test_update__the_body_names_another_dataset__is_refused(api: HealthApi) -> None:
    urn, other = api.fresh(owner_team="a"), api.fresh(owner_team="a")

    problem(api.put(of(urn), {"dataset_urn": other, "owner_team": "b"}), 400, "bad_payload")

    assert [api.get(of(each)).json()["owner_team"] for each in (urn, other)] == ["a", "a"]


@pytest.mark.parametrize("content", [b"", b"  "])
def test_update__without_a_body__is_no_error_of_the_server(api: HealthApi, content: bytes) -> None:
    assert api.put(of(api.fresh()), content=content).status_code in (200, 400)


def test_unknown__dataset__is_404_everywhere(api: HealthApi) -> None:
    path = of("urn:dp:nobody:knows:v1")

    for method, rest, body in (
        ("GET", "", None),
        ("PUT", "", {"owner_team": "a"}),
        ("DELETE", "", None),
        ("POST", "/deprecate", {}),
        ("POST", "/restore", {}),
        ("POST", "/rollback", {"version": 1}),
        ("GET", "/versions", None),
        ("GET", "/diff?from=1&to=2", None),
        ("PUT", "/aliases", {"namespace": "a", "name": "b"}),
        ("POST", "/resolution-rules", {"topic_pattern": "t"}),
    ):
        problem(api.ask(method, path + rest, body), 404, "dataset_not_found")


@pytest.mark.parametrize("name", ["%00", "a%2Fb", "%25", "urn%3Adp%3Aa%0Ab", "x" * 3000, "urn:dp:a b", "%E2%82%AC"])
def test_path__what_is_no_urn__is_refused(api: HealthApi, name: str) -> None:
    problem(api.get(f"/datasets/{name}"), 400, "bad_id")
    problem(api.get(f"/datasets/{name}/signals"), 400, "bad_id")
    problem(api.get(f"/datasets/{name}?fallback_on_miss=WARN"), 400, "bad_id")


def test_path__not_utf_8__is_refused(api: HealthApi) -> None:
    problem(api.get("/datasets/%ff"), 400, "bad_payload")


def test_versions__of_none__are_404_and_of_no_number_400(api: HealthApi) -> None:
    urn = api.fresh()

    for version in ("0", "2", "999999999"):
        problem(api.get(of(urn), params={"version": version}), 404, "dataset_not_found")
    for version in ("", "x", "-1", "1.0", "٣", "9" * 30):
        problem(api.get(of(urn), params={"version": version}), 400, "bad_payload")


def test_lifecycle__deleted_and_restored__is_gone_and_back(api: HealthApi) -> None:
    urn = api.fresh(owner_team="a")

    assert done(api.post(f"{of(urn)}/deprecate", {"reason": "old"}), 200)["status"] == "DEPRECATED"
    problem(api.delete(of(urn), headers={"if-match": '"1"'}), 412, "precondition_failed")
    assert done(api.delete(of(urn)), 200)["status"] == "DELETED"
    problem(api.get(of(urn)), 404, "dataset_not_found")
    problem(api.put(of(urn), {"owner_team": "b"}), 404, "dataset_not_found")
    assert done(api.post(f"{of(urn)}/restore", {}), 200)["status"] == "ACTIVE"
    assert done(api.get(of(urn)), 200)["owner_team"] == "a"


def test_rollback__to_an_earlier_version__is_a_new_version_as_that_one_was(api: HealthApi) -> None:
    urn = api.fresh(owner_team="a")
    done(api.put(of(urn), {"owner_team": "b"}), 200)

    problem(api.post(f"{of(urn)}/rollback", {"version": 1}, headers={"if-match": '"1"'}), 412, "precondition_failed")
    problem(api.post(f"{of(urn)}/rollback", {"version": 9}), 404, "dataset_not_found")
    rolled = done(api.post(f"{of(urn)}/rollback", {"version": 1}, headers={"if-match": '"2"'}), 200)

    assert (rolled["owner_team"], rolled["config_version"]) == ("a", 3)


def test_unversioned__the_registered_one_is_meant_wherever_it_is_named(api: HealthApi) -> None:
    urn = api.fresh(owner_team="a")
    short = urn.removesuffix(":v1")
    done(api.post(f"{of(short)}/resolution-rules", {"topic_pattern": f"raw.{urn}"}), 201)
    done(api.put(f"{of(short)}/aliases", {"namespace": "n", "name": urn}), 200)
    done(api.put(f"{of(short)}/signals/VOLUME", api.value("CRITICAL")), 200)
    done(api.post("/evidence", api.evidence(1, short)), 201)
    spec = {"producer_id": "job:u", "updated_at": api.at(), "dataset_writes": [short], "dataset_reads": [short]}
    done(api.put("/lineage/specs/lspec:u:git:1", spec), 200)

    for name in (urn, short):
        path = of(name)
        assert done(api.get(path), 200)["dataset_urn"] == urn
        assert len(done(api.get(f"{path}/versions"), 200)["items"]) == 1
        assert len(done(api.get(f"{path}/resolution-rules"), 200)["items"]) == 1
        assert len(done(api.get(f"{path}/aliases"), 200)["aliases"]) == 1
        assert len(done(api.get(f"{path}/signals"), 200)["signals"]) == 1
        assert len(done(api.get(f"{path}/evidence"), 200)["items"]) == 1, "evidence"
        assert done(api.get(f"{path}/evidence/contrast"), 200)["first_bad"] is not None
        assert len(done(api.get(f"{path}/writers"), 200)["items"]) == 1, "writers"
        assert len(done(api.get(f"{path}/readers"), 200)["items"]) == 1
        assert len(done(api.get("/incidents", params={"dataset_urn": name}), 200)["items"]) == 1
        assert done(api.post("/gate", {"dataset": name}), 200)["datasets"][0]["dataset_urn"] == urn
    assert done(api.put(of(short), {"owner_team": "b"}), 200)["dataset_urn"] == urn
    assert done(api.delete(of(short)), 200)["dataset_urn"] == urn


def test_names__of_producers__find_the_dataset(api: HealthApi) -> None:
    urn = api.fresh()
    name = {"namespace": "kafka://broker:9092", "name": "raw/orders 100%"}

    problem(api.get("/dataset-names", params=name), 404, "dataset_not_found")
    done(api.put(f"{of(urn)}/aliases", {**name, "why": "seen"}), 200)

    assert done(api.get("/dataset-names", params=name), 200)["dataset_urn"] == urn
    (alias,) = done(api.get(f"{of(urn)}/aliases"), 200)["aliases"]
    assert {key: alias[key] for key in ("namespace", "name", "why", "updated_by")} == {
        **name, "why": "seen", "updated_by": "local",
    }  # fmt: skip
    problem(api.get("/dataset-names", params={"namespace": "", "name": "x"}), 400, "bad_payload")


def test_fallback__of_what_is_not_there__is_reported_as_such(api: HealthApi) -> None:
    path = of("urn:dp:nobody:knows:v1")

    warned = api.get(path, params={"fallback_on_miss": "WARN"})

    assert done(warned, 200)["is_fallback"] is True
    assert "not registered" in warned.headers["warning"]
    assert "warning" not in api.get(path, params={"fallback_on_miss": "PASS"}).headers
    problem(api.get(path, params={"fallback_on_miss": "FAIL"}), 404, "dataset_not_found")
    problem(api.get(path, params={"fallback_on_miss": "maybe"}), 400, "bad_payload")


def _many(api: HealthApi) -> None:
    for number in range(12):
        tier, team = f"TIER_{number % 3 + 1}", f"team-{number % 2}"
        api.dataset(f"urn:dp:list:d{number:02d}", tier=tier, owner_team=team, display_name=f"number {number}")


def test_list__page_by_page__shows_each_once(alone: HealthApi) -> None:
    _many(alone)

    everything, pages = _walk(alone, "/datasets", page_size=5)
    assert [each["dataset_urn"] for each in everything] == [f"urn:dp:list:d{number:02d}" for number in range(12)]
    assert pages == 3
    assert len(_walk(alone, "/datasets", page_size=2, tier="TIER_1")[0]) == 4
    assert len(_walk(alone, "/datasets", page_size=100, owner_team="team-1")[0]) == 6
    assert len(_walk(alone, "/datasets", page_size=1, tier="TIER_2", owner_team="team-1")[0]) == 2
    assert len(_walk(alone, "/datasets", page_size=3, search="number 1")[0]) == 3
    assert len(done(alone.get("/datasets"), 200)["items"]) == 12


def test_list__a_cursor_that_was_altered_or_is_of_another_question__is_refused(alone: HealthApi) -> None:
    _many(alone)
    token = alone.get("/datasets", params={"page_size": 5}).json()["next_page_token"]

    def ask(path: str = "/datasets", **query: Any) -> httpx.Response:
        return alone.get(path, params={"page_token": token, **query})

    done(ask(), 200)
    problem(alone.get("/datasets", params={"page_token": f"{token[:-3]}AAA"}), 400, "bad_cursor")
    problem(alone.get("/datasets", params={"page_token": "nonsense"}), 400, "bad_cursor")
    problem(alone.get("/datasets", params={"page_token": ""}), 400, "bad_cursor")
    for query in (
        {"tier": "TIER_1"},
        {"owner_team": "team-1"},
        {"search": "d0"},
        {"status": "ACTIVE"},
        {"source_type": "KAFKA"},
    ):
        problem(ask(**query), 400, "bad_cursor")
    for path in ("/signals", "/incidents", "/audit", "/api-keys", "/lineage/dead-letters", "/resolution-rules"):
        problem(ask(path), 400, "bad_cursor")


@pytest.mark.parametrize(
    "query",
    [
        "page_size=0",
        "page_size=101",
        "page_size=-1",
        "page_size=x",
        "tier=TIER_9",
        "bogus=1",
        "tier=1&tier=2",
        "status=x",
    ],
)
def test_list__a_query_that_is_wrong__is_refused(api: HealthApi, query: str) -> None:
    problem(api.get(f"/datasets?{query}"), 400, "bad_payload")


def test_feed__from_a_checkpoint__reports_what_came_after(alone: HealthApi) -> None:
    alone.dataset("urn:dp:feed:one")
    first = done(alone.get("/dataset-changes"), 200)
    alone.dataset("urn:dp:feed:two")
    done(alone.put(of("urn:dp:feed:one"), {"owner_team": "b"}), 200)

    later = done(alone.get("/dataset-changes", params={"after": first["checkpoint"]}), 200)

    assert [each["dataset_urn"] for each in first["changes"]] == ["urn:dp:feed:one"]
    assert {each["dataset_urn"] for each in later["changes"]} >= {"urn:dp:feed:one", "urn:dp:feed:two"}
    problem(alone.get("/dataset-changes", params={"after": "x"}), 400, "bad_cursor")


def test_methods__that_there_are_not__are_405_with_those_there_are(api: HealthApi) -> None:
    answer = api.ask("POST", of("urn:dp:a:b"), {})

    problem(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == "DELETE, GET, PATCH, PUT"


def test_name__taken_back__means_nothing_any_more(api: HealthApi) -> None:
    urn = api.fresh()
    name = {"namespace": "kafka://prod", "name": f"topic of {urn}"}
    done(api.put(f"{of(urn)}/aliases", name), 200)
    assert done(api.get("/dataset-names", params=name), 200)["dataset_urn"] == urn
    key = api.key("elsewhere", Role.CONTROL_PLANE, scopes=("urn:dp:elsewhere:*",))
    problem(api.delete("/dataset-names", params=name, key=key), 403, "forbidden")

    gone = done(api.delete("/dataset-names", params={**name, "why": "renamed"}), 200)

    assert (gone["dataset_urn"], gone["why"]) == (None, "renamed")
    problem(api.get("/dataset-names", params=name), 404, "dataset_not_found")
    problem(api.delete("/dataset-names", params=name), 404, "not_found")
    assert done(api.get(f"{of(urn)}/aliases"), 200)["aliases"] == []


def test_export__chunk_by_chunk__has_everything_and_where_to_go_on(tmp_path: Path) -> None:
    with health_api(tmp_path / "home") as api:
        urns = {api.fresh() for _ in range(5)}
        done(api.delete(of(sorted(urns)[0])), 200)
        found: dict[str, dict[str, Any]] = {}
        asked: dict[str, str] = {"limit": "2"}
        while True:
            chunk = done(api.get("/dataset-export", params=asked), 200)
            found |= {each["dataset_urn"]: each for each in chunk["datasets"]}
            asked["after"] = chunk["checkpoint"]
            if not chunk["has_more"]:
                break

        assert found.keys() == urns
        assert found[sorted(urns)[0]]["status"] == "DELETED"
        late = api.fresh()
        after = done(api.get("/dataset-export", params={"after": asked["after"]}), 200)
        assert [each["dataset_urn"] for each in after["datasets"]] == [late]


def test_update__with_what_was_read__changes_nothing_but_what_was_changed(api: HealthApi) -> None:
    urn = api.fresh(owner_team="a", description="x", slos={"freshness": {"max_delay_seconds": 60}})
    read = done(api.get(of(urn)), 200)

    changed = done(api.put(of(urn), {**read, "description": "y"}), 200)

    assert (changed["description"], changed["config_version"]) == ("y", 2)
    assert {**changed, "description": "x"}.keys() == read.keys()
    assert changed["slos"] == read["slos"]
    problem(api.put(of(urn), {**changed, "status": "DEPRECATED"}), 400, "bad_payload")
    problem(api.put(of(urn), {**changed, "nonsense": 1}), 400, "bad_payload")


# Whole configurations and patches.

FULL = {
    "display_name": "Orders",
    "tier": "TIER_1",
    "owner_team": "orders",
    "slos": {"freshness": {"max_delay_seconds": 60}, "volume": {"min_events_per_window": 5}},
    "tags": {"a": "1", "b": "2"},
}


def test_put__leaves_out_what_is_set__is_refused_with_the_fields_and_the_remedy(api: HealthApi) -> None:
    urn = api.fresh(**FULL)

    refused = api.put(of(urn), {"description": "x"})
    partly = api.put(of(urn), {**FULL, "slos": {"freshness": {"max_delay_seconds": 60}}})

    problem(refused, 400, "bad_payload")
    detail = refused.json()["detail"]
    assert "leaves out display_name, tier, owner_team, slos, tags, which would be reset" in detail
    assert "PATCH" in detail
    assert "leaves out slos.volume, which" in partly.json()["detail"]
    assert done(api.get(of(urn)), 200)["config_version"] == 1


def test_put__states_everything__replaces_it(api: HealthApi) -> None:
    urn = api.fresh(**FULL)

    changed = done(api.put(of(urn), {**FULL, "tier": "TIER_3", "slos": None, "tags": {}}), 200)

    assert (changed["tier"], changed["slos"], changed["tags"]) == ("TIER_3", None, {})


@pytest.mark.parametrize("media", ["application/merge-patch+json", "application/json"])
def test_patch__some_fields__changes_them_and_keeps_the_others(api: HealthApi, media: str) -> None:
    urn = api.fresh(**FULL)
    slos = {"freshness": {"warning_delay_seconds": 30}, "volume": None}
    given = {"description": "x", "slos": slos, "tags": {"a": None}}

    answer = api.patch(of(urn), content=json.dumps(given).encode(), headers={"content-type": media})

    changed = done(answer, 200)
    assert (changed["description"], changed["tier"], changed["owner_team"]) == ("x", "TIER_1", "orders")
    freshness = changed["slos"]["freshness"]
    assert (freshness["max_delay_seconds"], freshness["warning_delay_seconds"]) == (60, 30)
    assert (changed["slos"]["volume"], changed["tags"]) == (None, {"b": "2"})
    assert answer.headers["etag"] == '"2"'
    versions = done(api.get(f"{of(urn)}/versions"), 200)["items"]
    assert [each["config_version"] for each in versions] == [2, 1]


def test_patch__null__resets_a_field_to_its_default(api: HealthApi) -> None:
    urn = api.fresh(**FULL)

    changed = done(api.patch(of(urn), {"tier": None, "owner_team": None, "slos": None}), 200)

    assert (changed["tier"], changed["owner_team"], changed["slos"]) == ("TIER_3", "unowned", None)
    assert changed["display_name"] == "Orders"


def test_patch__of_another_version__says_which_is_current(api: HealthApi) -> None:
    urn = api.fresh(owner_team="a")
    done(api.patch(of(urn), {"owner_team": "b", "expected_version": 1}), 200)

    late = api.patch(of(urn), {"owner_team": "c", "expected_version": 1})
    by_header = api.patch(of(urn), {"owner_team": "c"}, headers={"if-match": '"1"'})
    whole = api.put(of(urn), {"owner_team": "c", "expected_version": 7})

    for answer, status in ((late, 409), (by_header, 412), (whole, 409)):
        assert (answer.status_code, answer.json()["current_version"]) == (status, 2)
    assert api.post("/datasets", {"dataset_urn": urn}).json()["current_version"] == 2
    again = done(api.patch(of(urn), {"owner_team": "b", "expected_version": 1}), 200)
    assert again["config_version"] == 2, "a repeated request changes nothing"


@pytest.mark.parametrize(
    ("patch", "said"),
    [
        ({"nonsense": 1}, "nonsense"),
        ({"slos": {"freshness": {"bogus": 1}}}, "bogus"),
        ({"slos": {"freshness": {"warning_delay_seconds": 5}}}, "max_delay_seconds"),
        ({"retention_days": 0}, "retention_days"),
        ({"owner_team": " "}, "owner_team"),
        ({"status": "DELETED"}, "status"),
        ({"dataset_urn": "urn:dp:other:one"}, "dataset_urn"),
    ],
)
def test_patch__invalid__is_refused_naming_the_field(api: HealthApi, patch: dict[str, Any], said: str) -> None:
    answer = api.patch(of(api.fresh()), patch)
    problem(answer, 400, "bad_payload")
    assert said in answer.json()["detail"]


def test_patch__many_at_once__each_is_applied_to_the_current_version(api: HealthApi) -> None:
    urn = api.fresh()
    answers = api.at_once(*[("PATCH", of(urn), {"tags": {f"t{n}": "x"}}, {}) for n in range(6)])
    assert all(each.status_code == 200 for each in answers)
    found = done(api.get(of(urn)), 200)
    assert (sorted(found["tags"]), found["config_version"]) == ([f"t{n}" for n in range(6)], 7)


def test_patch__discovered_dataset__registers_it_and_writes_the_audit_log(alone: HealthApi) -> None:
    urn = "urn:dp:found:one"
    alone.health.registry.discover(urn, None, "lineage")
    changed = done(alone.patch(of(urn), {"owner_team": "a", "reason": "ours"}), 200)
    assert changed["status"] == "ACTIVE"
    entries = done(alone.get("/audit", params={"entity": urn}), 200)["items"]
    assert next((each["action"], each["reason"]) for each in entries) == ("dataset.update", "ours")


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ({"pattern": "(((("}, "customer_id.pattern '((((': not a regular expression"),
        ({"pattern": "x" * 1_025}, "customer_id.pattern: write a regular expression"),
        ({"pattern": 5}, "customer_id.pattern: write a regular expression"),
        ({"min": "low"}, "customer_id.min 'low': write a number"),
    ],
)
def test_register__field_constraint_that_no_value_can_be_checked_against__is_refused(
    api: HealthApi, rules: dict[str, Any], said: str
) -> None:
    contract = {"field_constraints": {"customer_id": rules, "total": {"type": "number", "min": 0}}}
    refused = api.post("/datasets", {"dataset_urn": "urn:dp:bad:pattern", "contract_binding": contract})
    problem(refused, 400, "bad_payload")
    assert said in refused.json()["detail"]
    problem(api.patch(of(api.fresh()), {"contract_binding": contract}), 400, "bad_payload")
