"""The gate over HTTP: what it says of healthy, unhealthy and unknown datasets, and the word of those who open it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headgate.auth.roles import Role
from tests.integration.serve.durable_api import problem
from tests.integration.serve.health_rig import HealthApi, done, health_api


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HealthApi]:
    with health_api(tmp_path_factory.mktemp("gate") / "home") as made:
        yield made


def _asked(api: HealthApi, *urns: str, **more: Any) -> dict[str, Any]:
    return done(api.post("/gate", {"datasets": list(urns), **more}), 200)


def test_check__of_a_dataset_that_is_well__lets_through(api: HealthApi) -> None:
    urn = api.fresh()
    api.signal("OK", urn)

    response = _asked(api, urn)

    assert response["decision"] == "allow"
    assert response.keys() >= {
        "decision", "verb", "principal", "as_of", "datasets", "reasons", "since", "until", "override_id",
        "overridable_by", "ttl_seconds", "complete",
    }  # fmt: skip
    assert (response["verb"], response["principal"], response["as_of"]) == ("read", "local", api.at())
    assert done(api.post("/gate", {"dataset": urn}), 200)["decision"] == "allow"


def test_check__of_a_critical_one__is_closed_and_says_why_since_when_and_who_may_open_it(api: HealthApi) -> None:
    urn = api.fresh(tier="TIER_1")
    incident = api.signal("CRITICAL", urn)["current"]["incident_id"]

    response = _asked(api, urn)

    assert response["decision"] == "block"
    assert response["since"] is not None
    assert set(response["overridable_by"]) == {"admin", "operator"}
    assert incident in {each.get("incident_id") for each in response["reasons"]}
    assert all(each["message"] and each["code"] and each["dataset_urn"] == urn for each in response["reasons"])


def test_check__of_several__says_the_worst(api: HealthApi) -> None:
    well, unwell, unknown = api.fresh(), api.fresh(), api.fresh()
    api.signal("OK", well)
    api.signal("CRITICAL", unwell)

    assert _asked(api, well, unknown)["decision"] == "warn"
    response = _asked(api, well, unwell, unknown)

    assert response["decision"] == "block"
    assert {each["dataset_urn"]: each["ruling"] for each in response["datasets"]} == {
        well: "allow", unwell: "block", unknown: "warn",
    }  # fmt: skip
    assert len(_asked(api, well, well)["datasets"]) == 1


@pytest.mark.parametrize(("on_unknown", "decision"), [("warn", "warn"), ("block", "block"), ("allow", "allow")])
def test_check__of_what_is_unknown__is_as_the_caller_says(api: HealthApi, on_unknown: str, decision: str) -> None:
    assert _asked(api, api.fresh(), on_unknown=on_unknown)["decision"] == decision


def test_check__of_a_signal_that_is_old__is_of_the_unknown(api: HealthApi) -> None:
    urn = api.fresh()
    api.signal("OK", urn)
    api.clock.advance(3600)

    assert _asked(api, urn, max_age="10m", on_unknown="block")["decision"] == "block"
    assert _asked(api, urn, max_age="2h", on_unknown="block")["decision"] == "allow"


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"datasets": []},
        {"datasets": None},
        {"datasets": "urn:dp:a:b"},
        {"datasets": ["nonsense"]},
        {"datasets": [5]},
        {"datasets": ["urn:dp:a:b"] * 201},
        {"dataset": "urn:dp:a:b#"},
        {"dataset": "urn:dp:a:b", "verb": "write"},
        {"dataset": "urn:dp:a:b", "on_unknown": "maybe"},
        {"dataset": "urn:dp:a:b", "max_age": "-1s"},
        {"dataset": "urn:dp:a:b", "max_age": 0},
        {"dataset": "urn:dp:a:b", "max_age": 1e300},
        {"dataset": "urn:dp:a:b", "max_age": "soon"},
        {"dataset": "urn:dp:a:b", "bogus": 1},
    ],
)
def test_check__a_question_that_is_wrong__is_refused(api: HealthApi, wrong: dict[str, Any]) -> None:
    assert api.post("/gate", wrong).status_code == 400


@pytest.mark.parametrize("content", [b"", b"null", b"[]", b"{", b'{"max_age": NaN}', b"\xff"])
def test_check__what_is_no_object_of_json__is_refused(api: HealthApi, content: bytes) -> None:
    problem(api.post("/gate", content=content), 400, "bad_payload")


def test_override__for_a_while__opens_the_gate_and_then_no_more(api: HealthApi) -> None:
    urn = api.fresh()
    api.signal("CRITICAL", urn, "VOLUME")
    operator = api.key("ann", Role.OPERATOR)

    given = {"duration": "1h", "reason": "month end", "ticket": "T-1"}
    made = done(api.post(f"/gate/overrides/{urn}", given, key=operator), 201)

    assert (made["dataset_urn"], made["actor"], made["reason"], made["ticket"]) == (urn, "ann", "month end", "T-1")
    assert made["expires_at"] == api.at(60)
    response = _asked(api, urn)
    assert (response["decision"] in ("allow", "warn"), response["override_id"]) == (True, made["override_id"])
    assert _asked(api, urn, verb="publish")["decision"] == "block"
    assert done(api.get(f"/gate/overrides/{urn}"), 200)["overrides"] == [made]
    api.clock.advance(3601)
    api.signal("CRITICAL", urn, "VOLUME")
    assert _asked(api, urn)["decision"] == "block"
    assert done(api.get(f"/gate/overrides/{urn}"), 200)["overrides"] == []


def test_override__of_one_principal__is_for_no_other(api: HealthApi) -> None:
    urn = api.fresh()
    api.signal("CRITICAL", urn)
    done(api.post(f"/gate/overrides/{urn}", {"duration": "1h", "reason": "r", "principal": "etl"}), 201)

    assert _asked(api, urn, principal="etl")["decision"] != "block"
    assert _asked(api, urn, principal="other")["decision"] == "block"
    assert _asked(api, urn)["decision"] == "block"


def test_override__taken_back__closes_the_gate(api: HealthApi) -> None:
    urn = api.fresh()
    api.signal("CRITICAL", urn)
    made = done(api.post(f"/gate/overrides/{urn}", {"duration": "1h", "reason": "r"}), 201)

    revoked = api.delete(f"/gate/overrides/{urn}/{made['override_id']}")

    assert (revoked.status_code, revoked.content) == (204, b"")
    assert _asked(api, urn)["decision"] == "block"
    problem(api.delete(f"/gate/overrides/{urn}/{made['override_id']}"), 404, "not_found")
    for name in ("%00", "a%2Fb", "x" * 500):
        assert api.delete(f"/gate/overrides/{urn}/{name}").status_code in (400, 404)


def test_override__under_a_key__is_granted_once(api: HealthApi) -> None:
    urn, other = api.fresh(), api.fresh()
    given, again = {"duration": "1h", "reason": "r"}, {"idempotency-key": "override"}
    first = done(api.post(f"/gate/overrides/{urn}", given, headers=again), 201)

    assert done(api.post(f"/gate/overrides/{urn}", given, headers=again), 201) == first

    assert len(done(api.get(f"/gate/overrides/{urn}"), 200)["overrides"]) == 1
    elsewhere = api.post(f"/gate/overrides/{other}", given, headers=again)
    assert elsewhere.status_code == 422 or elsewhere.json()["dataset_urn"] == other


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"duration": "1h"},
        {"duration": "1h", "reason": " "},
        {"duration": "0s", "reason": "r"},
        {"duration": "8d", "reason": "r"},
        {"duration": -5, "reason": "r"},
        {"duration": "x", "reason": "r"},
        {"duration": "1h", "reason": "r", "verb": "x"},
        {"duration": "1h", "reason": 5},
        {"duration": "1h", "reason": "r", "bogus": 1},
        {"duration": "1h", "reason": "x" * 20_000},
    ],
)
def test_override__that_is_wrong__is_not_granted(api: HealthApi, wrong: dict[str, Any]) -> None:
    urn = api.fresh()

    assert api.post(f"/gate/overrides/{urn}", wrong).status_code == 400

    assert done(api.get(f"/gate/overrides/{urn}"), 200)["overrides"] == []


def test_override__granted_and_taken_back__is_in_the_audit_of_the_dataset(api: HealthApi) -> None:
    urn = api.fresh()
    api.clock.advance(1)
    made = done(api.post(f"/gate/overrides/{urn}", {"duration": "1h", "reason": "month end", "ticket": "T-9"}), 201)
    api.clock.advance(1)
    assert api.delete(f"/gate/overrides/{urn}/{made['override_id']}").status_code == 204

    entries = done(api.get("/audit", params={"entity": urn}), 200)["items"]

    assert [each["action"] for each in entries] == ["gate.revoke", "gate.override", "dataset.create"]
    assert (entries[1]["reason"], entries[1]["ticket"]) == ("month end", "T-9")


def test_enforcer__may_ask_and_not_open(api: HealthApi) -> None:
    urn, key = api.fresh(), api.key("enforcer", Role.ENFORCER)

    assert done(api.post("/gate", {"dataset": urn}, key=key), 200)["principal"] == "enforcer"
    problem(api.post(f"/gate/overrides/{urn}", {"duration": "1h", "reason": "r"}, key=key), 403, "forbidden")


def test_flag__thrown_and_thrown_back__is_shown_audited_and_for_people_alone(api: HealthApi) -> None:
    path, off = "/flags/fleet.enabled", {"is_on": False, "reason": "bad deployment"}
    problem(api.get(path), 404, "not_found")
    service, enforcer = api.key("runner", Role.SERVICE), api.key("edge", Role.ENFORCER)
    problem(api.put(path, off, key=service), 403, "forbidden")

    made = api.put(path, {**off, "expected_version": 0})

    assert (done(made, 200)["is_on"], made.json()["version"], made.headers["etag"]) == (False, 1, '"1"')
    assert done(api.get(path, key=enforcer), 200) == made.json()
    assert done(api.put(path, {**off, "reason": "again"}), 200) == made.json(), "as it is already"
    problem(api.put(path, {"is_on": True, "reason": "mended", "expected_version": 0}), 409, "version_conflict")
    on = done(api.put(path, {"is_on": True, "reason": "mended"}, headers={"if-match": '"1"'}), 200)
    assert done(api.get("/flags"), 200)["flags"] == [on]
    response = done(api.get("/audit", params={"entity": "flag:fleet.enabled"}), 200)["items"]
    assert sorted((each["action"], each["reason"]) for each in response) == [
        ("flag.off", "bad deployment"), ("flag.on", "mended"),
    ]  # fmt: skip
    for name, wrong in (("a b", off), ("x", {**off, "reason": " "}), ("x", {"is_on": "maybe", "reason": "r"})):
        assert api.put(f"/flags/{name}", wrong).status_code == 400
