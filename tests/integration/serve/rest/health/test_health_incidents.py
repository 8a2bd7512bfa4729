"""Incidents over HTTP: opened or joined, changed under their version, listed, merged, and shown as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.serve.durable_api import problem
from tests.integration.serve.health_rig import SIGNATURE, HealthApi, done, evidence_id, health_api, of

FIELDS = {
    "incident_id", "status", "severity", "title", "created_at", "updated_at", "resolved_at", "primary_dataset_urn",
    "signal_types", "failure_signatures", "implicated_producer", "blast_radius", "notification_state",
    "primary_evidence_id", "evidence_sample", "rca_summary", "owner_team", "oncall_user", "version",
}  # fmt: skip
# As in the run book.
RESOLUTION = {
    "root_cause": "Deployment v3.17 removed required field",
    "mitigation": "Rolled back to v3.16",
    "resolved_by": "john.doe@company.com",
    "false_positive": False,
}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HealthApi]:
    with health_api(tmp_path_factory.mktemp("incidents") / "home") as made:
        yield made


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[HealthApi]:
    with health_api(tmp_path / "home") as made:
        yield made


def _opened(api: HealthApi, **more: Any) -> str:
    return f"/incidents/{api.incident(api.fresh(), **more)['incident_id']}"


def test_create__with_everything__is_shown_so(api: HealthApi) -> None:
    urn = api.fresh(owner_team="orders", tier="TIER_1")
    given = {
        "dataset_urn": urn,
        "signal_types": ["FRESHNESS", "VOLUME"],
        "failure_signatures": [SIGNATURE],
        "severity": "SEV_1",
        "title": "No orders",
        "implicated_producer": {"producer_id": "orders-service", "version": "v3.17", "confidence": "HIGH"},
        "blast_radius": {"downstream_count": 3, "downstream_services": ["a", "b"], "estimated_impact": "HIGH"},
        "primary_evidence_id": evidence_id(1),
        "evidence_sample": [evidence_id(1), evidence_id(2)],
        "oncall_user": "ann",
        "trace_id": "0af7651916cd43dd8448eb211c80319c",
    }

    answer = api.post("/incidents", given)

    made = done(answer, 201)
    assert made.keys() >= FIELDS
    assert (made["status"], made["severity"], made["title"], made["owner_team"]) == (
        "OPEN",
        "SEV_1",
        "No orders",
        "orders",
    )
    assert made["signal_types"] == ["FRESHNESS", "VOLUME"]
    assert made["blast_radius"]["downstream_count"] == 3
    assert made["blast_radius"]["estimated_impact"] == "HIGH"
    assert made["implicated_producer"]["version"] == "v3.17"
    assert (made["primary_evidence_id"], made["oncall_user"]) == (evidence_id(1), "ann")
    assert answer.headers["etag"] == '"1"'
    assert done(api.get("http://127.0.0.1:8400" + answer.headers["location"]), 200) == made


def test_create__least__has_a_title_and_an_owner_from_what_is_known(api: HealthApi) -> None:
    urn = api.fresh(owner_team="orders")

    made = api.incident(urn)

    assert made["title"] == f"FRESHNESS on {urn} - {SIGNATURE}"
    assert made["owner_team"] == "orders"
    assert {"downstream_count", "downstream_services", "estimated_impact"} <= made["blast_radius"].keys()
    assert made["incident_id"].startswith("INC-")


def test_create__for_the_same_trouble__joins_the_one_that_is_open(api: HealthApi) -> None:
    urn = api.fresh()
    first = api.incident(urn)
    given = {"dataset_urn": urn, "signal_type": "VOLUME", "failure_signatures": [SIGNATURE]}

    joined = done(api.post("/incidents", given), 200)

    assert joined["incident_id"] == first["incident_id"]
    assert set(joined["signal_types"]) == {"FRESHNESS", "VOLUME"}
    answers = api.at_once(*[("POST", "/incidents", {**given, "failure_signatures": ["RACE:x"]}, {})] * 8)
    assert sorted(each.status_code for each in answers) == [200] * 7 + [201]
    assert len({each.json()["incident_id"] for each in answers}) == 1


def test_create__under_a_key__is_done_once(api: HealthApi) -> None:
    urn = api.fresh()
    given = {"dataset_urn": urn, "signal_type": "FRESHNESS", "failure_signatures": [SIGNATURE]}
    first = done(api.post("/incidents", given, headers={"idempotency-key": "inc"}), 201)
    done(api.patch(f"/incidents/{first['incident_id']}", {"status": "RESOLVED"}), 200)

    again = api.post("/incidents", given, headers={"idempotency-key": "inc"})

    assert done(again, 201) == first
    assert again.headers["idempotency-replayed"] == "true"
    assert done(api.get(f"/incidents/{first['incident_id']}"), 200)["status"] == "RESOLVED"
    problem(
        api.post("/incidents", {**given, "title": "x"}, headers={"idempotency-key": "inc"}),
        422,
        "idempotency_key_reused",
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"signal_type": "", "failure_signatures": []},
        {"severity": "SEV_9"},
        {"signal_type": "a b#c"},
        {"failure_signatures": ["with#hash"]},
        {"failure_signatures": "X:y"},
        {"failure_signatures": [f"X:{number}" for number in range(51)]},
        {"evidence_sample": ["a b"]},
        {"primary_evidence_id": "x" * 2000},
        {"title": "x" * 2000},
        {"blast_radius": {"downstream_count": -1}},
        {"blast_radius": {"estimated_impact": "ENORMOUS"}},
        {"blast_radius": {"bogus": 1}},
        {"blast_radius": {"downstream_count": 10**40}},
        {"implicated_producer": {}},
        {"oncall_user": 5},
        {"bogus": 1},
        {"dataset_urn": "nonsense"},
        {"dataset_urn": 5},
        {"dedup_key": "x" * 2000},
        {"signal_types": [f"S{number}" for number in range(500)]},
    ],
)
def test_create__with_a_wrong_field__opens_nothing(api: HealthApi, wrong: dict[str, Any]) -> None:
    urn = api.fresh()
    given = {"dataset_urn": urn, "signal_type": "FRESHNESS", "failure_signatures": [SIGNATURE], **wrong}

    assert api.post("/incidents", given).status_code == 400

    assert done(api.get("/incidents", params={"dataset_urn": urn}), 200)["items"] == []


def test_create__of_what_is_not_registered__is_404(api: HealthApi) -> None:
    given = {"dataset_urn": "urn:dp:nobody:knows:v1", "signal_type": "FRESHNESS"}

    problem(api.post("/incidents", given), 404, "dataset_not_found")


def test_resolve__as_in_the_run_book__is_resolved_for_that_reason(api: HealthApi) -> None:
    urn = api.fresh()
    signal = api.signal("CRITICAL", urn)
    path = f"/incidents/{signal['current']['incident_id']}"

    answer = api.patch(path, {"status": "RESOLVED", "resolution": RESOLUTION})

    resolved = done(answer, 200)
    assert resolved["status"] == "RESOLVED"
    assert resolved["resolved_at"] is not None
    assert resolved["resolution"].items() >= RESOLUTION.items()
    assert answer.headers["etag"] == f'"{resolved["version"]}"'
    assert done(api.get(f"{of(urn)}/signals/FRESHNESS", params={"consistent": "true"}), 200)["incident_id"] is None
    problem(api.patch(path, {"status": "ACKNOWLEDGED"}), 409, "illegal_transition")
    problem(api.patch(path, {"status": "OPEN"}), 400, "bad_payload")
    assert done(api.patch(path, {"status": "OPEN", "reason": "it came back"}), 200)["status"] == "OPEN"


def test_resolve__signal_is_still_critical__answers_with_the_end_of_the_silence(api: HealthApi) -> None:
    path = f"/incidents/{api.signal('CRITICAL', api.fresh())['current']['incident_id']}"

    resolved = done(api.patch(path, {"status": "RESOLVED"}), 200)

    assert resolved["silenced_until"] > resolved["resolved_at"]
    assert f"silent until {resolved['silenced_until']}" in resolved["steps"][-1]["reason"]
    assert done(api.patch(path, {"status": "OPEN", "reason": "not yet"}), 200)["silenced_until"] is None


def test_change__of_another_version__is_412_by_header_and_409_by_body(api: HealthApi) -> None:
    path = _opened(api)

    problem(api.patch(path, {"title": "x"}, headers={"if-match": '"9"'}), 412, "precondition_failed")
    problem(api.patch(path, {"title": "x"}, headers={"if-match": 'W/"1"'}), 412, "precondition_failed")
    problem(api.patch(path, {"title": "x", "expected_version": 9}), 409, "version_conflict")
    problem(api.patch(path, {"title": "x", "expected_version": 2}, headers={"if-match": '"1"'}), 400, "bad_payload")
    problem(api.post(f"{path}/snooze", {"duration": "1h"}, headers={"if-match": '"9"'}), 412, "precondition_failed")
    into = _opened(api).removeprefix("/incidents/")
    problem(api.post(f"{path}/merge", {"into": into}, headers={"if-match": '"9"'}), 412, "precondition_failed")

    assert done(api.get(path), 200)["version"] == 1
    assert done(api.patch(path, {"title": "x"}, headers={"if-match": '"1"'}), 200)["version"] == 2


def test_change__by_many_of_one_version__is_made_once(api: HealthApi) -> None:
    path = _opened(api)

    answers = api.at_once(*[("PATCH", path, {"assignee": f"a{n}"}, {"if-match": '"1"'}) for n in range(6)])

    assert sorted(each.status_code for each in answers) == [200] + [412] * 5
    assert done(api.get(path), 200)["version"] == 2


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"reason": "only"},
        {"status": None},
        {"status": "MEH"},
        {"severity": "SEV_0"},
        {"title": ""},
        {"title": "x" * 5000},
        {"title": 5},
        {"resolution": RESOLUTION},
        {"status": "RESOLVED", "resolution": {"bogus": 1}},
        {"status": "RESOLVED", "resolution": {"false_positive": "no"}},
        {"notification_state": {"pagerduty": "x"}},
        {"notification_state": []},
        {"bogus": 1},
        {"expected_version": 0, "title": "x"},
        {"rca_summary": "x" * 20_000},
    ],
)
def test_change__that_is_wrong__changes_nothing(api: HealthApi, wrong: dict[str, Any]) -> None:
    path = _opened(api)
    response = {"pagerduty_incident_id": "PD1", "slack_thread_ts": "1.2", "jira_ticket": "J-1"}
    before = done(api.patch(path, {"notification_state": response}), 200)

    problem(api.patch(path, wrong), 400, "bad_payload")

    assert done(api.get(path), 200) == before


@pytest.mark.parametrize("name", ["INC-none", "%00", "a%2Fb", "x" * 3000, "%25", "stats%2F"])
def test_unknown__incident__is_404_everywhere(api: HealthApi, name: str) -> None:
    path = f"/incidents/{name}"

    for method, rest, body in (
        ("GET", "", None),
        ("GET", "/context", None),
        ("PATCH", "", {"title": "x"}),
        ("POST", "/snooze", {"duration": "1h"}),
        ("POST", "/merge", {"into": "INC-none"}),
    ):
        problem(api.ask(method, path + rest, body), 404, "not_found")


@pytest.mark.parametrize("name", ["INC-7721"])
def test_id__of_the_form_of_the_run_book__is_looked_up(api: HealthApi, name: str) -> None:
    problem(api.get(f"/incidents/{name}"), 404, "not_found")


def test_snooze__for_a_while_or_until_a_moment__is_noted(api: HealthApi) -> None:
    path = _opened(api)

    assert done(api.post(f"{path}/snooze", {"duration": "1h"}), 200)["snoozed_until"] == api.at(60)
    assert done(api.post(f"{path}/snooze", {"until": api.at(30), "reason": "lunch"}), 200)["snoozed_until"] == api.at(
        30
    )
    for wrong in (
        {}, {"until": api.at(30), "duration": "1h"}, {"duration": "0s"}, {"duration": -1}, {"duration": "x"},
        {"duration": 1e300}, {"until": "2020-01-01T00:00:00Z"}, {"until": "8999-01-01T00:00:00Z"}, {"bogus": 1},
    ):  # fmt: skip
        assert api.post(f"{path}/snooze", wrong).status_code == 400, wrong
    assert done(api.get(path), 200)["snoozed_until"] == api.at(30)


def test_merge__into_another__closes_the_one_and_keeps_the_other(api: HealthApi) -> None:
    one, other = _opened(api), _opened(api)
    other_id = other.removeprefix("/incidents/")

    problem(api.post(f"{other}/merge", {"into": other_id}), 409, "illegal_transition")
    problem(api.post(f"{one}/merge", {"into": "INC-none"}), 404, "not_found")
    problem(api.post(f"{one}/merge", {}), 400, "bad_payload")
    kept = done(api.post(f"{one}/merge", {"into": other_id, "reason": "the same"}), 200)

    assert kept["incident_id"] == other_id
    assert done(api.get(one), 200)["merged_into"] == other_id
    assert done(api.get(one), 200)["status"] == "RESOLVED"


def test_context__of_an_incident__reports_all_that_is_known(api: HealthApi) -> None:
    urn, reader = api.fresh(owner_team="orders"), api.fresh()
    spec = {"producer_id": "job:c", "updated_at": api.at(), "dataset_reads": [urn], "dataset_writes": [reader]}
    done(api.put("/lineage/specs/lspec:c:git:1", spec), 200)
    assert api.post("/evidence", api.evidence(41, urn, result="PASS", created_at=api.at(-20))).status_code in (200, 201)
    done(api.post("/evidence", api.evidence(42, urn, created_at=api.at(-1))), 201)
    signal = api.signal("CRITICAL", urn, evidence_sample=[evidence_id(42), evidence_id(49)])
    # Longer than lineage that was looked at is remembered.
    api.clock.advance(600)

    response = done(api.get(f"/incidents/{signal['current']['incident_id']}/context"), 200)

    assert response["incident"]["primary_dataset_urn"] == urn
    assert response["dataset"]["owner_team"] == "orders"
    assert [each["signal_type"] for each in response["signals"]] == ["FRESHNESS"]
    assert response["signals"][0]["state"] == "CRITICAL", "signals are shown as everywhere else"
    assert [each["evidence_id"] for each in response["evidence"]] == [evidence_id(42)]
    assert response["first_bad"]["evidence_id"] == evidence_id(42)
    assert [each["entity_id"] for each in response["readers"]] == ["job:c"]
    assert response["blast_radius"]["dataset_count"] == 1
    assert response["complete"] is False
    assert any(evidence_id(49) in each["why"] for each in response["missing"])
    assert [each["at"] for each in response["timeline"]] == sorted(each["at"] for each in response["timeline"])
    assert {each["kind"] for each in response["timeline"]} >= {"signal", "incident"}


def _listed(api: HealthApi, **query: Any) -> list[str]:
    found: list[str] = []
    token: str | None = None
    while True:
        page = done(
            api.get("/incidents", params={**query, "page_size": 2, **({"page_token": token} if token else {})}), 200
        )
        found += [each["title"] for each in page["items"]]
        token = page["next_page_token"]
        if token is None:
            return found


def test_list__by_every_filter__page_by_page__newest_first(alone: HealthApi) -> None:
    urns = [alone.fresh(owner_team=f"team-{number}") for number in range(2)]
    for number in range(9):
        alone.clock.advance(60)
        made = alone.incident(
            urns[number % 2], failure_signatures=[f"X:{number}"], severity=f"SEV_{number % 3 + 1}", title=f"t{number}"
        )
        if number < 3:
            done(alone.patch(f"/incidents/{made['incident_id']}", {"status": "RESOLVED"}), 200)

    assert _listed(alone) == [f"t{number}" for number in range(8, -1, -1)]
    assert _listed(alone, status="OPEN") == ["t8", "t7", "t6", "t5", "t4", "t3"]
    assert _listed(alone, status=["OPEN", "RESOLVED"], severity=["SEV_1", "SEV_2"]) == [
        "t7",
        "t6",
        "t4",
        "t3",
        "t1",
        "t0",
    ]
    assert _listed(alone, severity="SEV_1", status="OPEN") == ["t6", "t3"]
    assert _listed(alone, dataset_urn=urns[0]) == ["t8", "t6", "t4", "t2", "t0"]
    assert _listed(alone, owner_team="team-1") == ["t7", "t5", "t3", "t1"]
    assert _listed(alone, failure_signature="X:4") == ["t4"]
    assert _listed(alone, **{"from": alone.at(-2)}) == ["t8", "t7", "t6"]
    assert _listed(alone, to=alone.at(-7)) in (["t1", "t0"], ["t0"])
    assert _listed(alone, status="ACKNOWLEDGED") == []
    stats = done(alone.get("/incidents/stats"), 200)
    assert stats["resolved"] == 3
    assert done(alone.get("/incidents/escalations"), 200).keys() == {"escalations"}
    token = alone.get("/incidents", params={"page_size": 2}).json()["next_page_token"]
    for query in (
        {"status": "OPEN"},
        {"dataset_urn": urns[0]},
        {"severity": "SEV_1"},
        {"signal_type": "VOLUME"},
        {"from": alone.at(-5)},
    ):
        problem(alone.get("/incidents", params={"page_token": token, **query}), 400, "bad_cursor")
    problem(alone.get("/incidents", params={"page_token": f"{token[:-3]}AAA"}), 400, "bad_cursor")


@pytest.mark.parametrize(
    "query",
    [
        "status=MEH",
        "severity=9",
        "from=x",
        "to=2026-01-15",
        "page_size=0",
        "bogus=1",
        "dataset_urn=nonsense",
        "dataset_urn=%00",
    ],
)
def test_list__a_query_that_is_wrong__is_refused(api: HealthApi, query: str) -> None:
    answer = api.get(f"/incidents?{query}")

    assert answer.status_code == 400, answer.text
    assert "table" not in answer.json()["detail"]


def test_list__a_time_that_ends_before_it_begins__has_nothing_in_it(api: HealthApi) -> None:
    answer = api.get("/incidents", params={"from": "2026-02-01T00:00:00Z", "to": "2026-01-01T00:00:00Z"})

    assert answer.status_code == 400 or answer.json()["items"] == []
    assert "table" not in answer.text


def test_create__in_the_words_of_the_contract__is_opened(api: HealthApi) -> None:
    urn = api.fresh()
    given = {"primary_dataset_urn": urn, "signal_types": ["FRESHNESS"], "failure_signatures": ["LATE:x"]}

    assert done(api.post("/incidents", given), 201)["primary_dataset_urn"] == urn
    assert done(api.post("/incidents", {**given, "dataset_urn": urn}), 200)["primary_dataset_urn"] == urn
    problem(api.post("/incidents", {**given, "dataset_urn": "urn:dp:other:one"}), 400, "bad_payload")
    problem(api.post("/incidents", {"signal_type": "FRESHNESS"}), 400, "bad_payload")
