"""What GraphQL answers: every query with data, as few reads as there can be, and to each what they may see."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.auth.principals import Principal
from headgate.auth.roles import Role
from headgate.durable.model.records import instant
from headgate.errors import StoreBusyError
from headgate.health.model.enums import SignalState, Tier
from headgate.health.model.signals import SignalUpdate, SignalValue
from tests.integration.serve.graphql_board import COLUMN, ORDERS, SHIPPED, STOCK, Board, open_board

SIGNAL = """
  datasetUrn signalType state previousState score sloThreshold breachStart windowStart windowEnd
  metrics { evidenceCount passCount failCount complianceRate exactEvidenceCount }
  failureSignature topProducer { producerId version confidence deployedAt } evidenceSample incidentId tier ownerTeam
  lastUpdated
"""
INCIDENT = """
  incidentId status severity title createdAt updatedAt resolvedAt primaryDatasetUrn signalTypes failureSignatures
  implicatedProducer { producerId } blastRadius { downstreamCount downstreamServices estimatedImpact }
  notificationState { pagerdutyIncidentId slackThreadTs jiraTicket } evidenceSample rcaSummary ownerTeam oncallUser
"""
ENTRY = "entityId entityName entityType confidence specId commit updatedAt"


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Board]:
    with open_board(tmp_path) as board:
        yield board


def viewer(*scopes: str, role: Role = Role.VIEWER) -> Principal:
    return Principal("vera", frozenset({role}), scopes)


def test_signal_state__a_signal__is_all_there_with_dataset_and_incident(board: Board) -> None:
    board.register(ORDERS)
    signal = board.signal()

    found = board.data(
        f'query($urn: String!) {{ signalState(datasetUrn: $urn, signalType: "freshness") {{ {SIGNAL}'
        " dataset { urn displayName tier } incident { incidentId dataset { urn } relatedSignals { signalType } } } }",
        urn=ORDERS,
    )["signalState"]

    assert found["state"] == "CRITICAL"
    assert found["metrics"] == {
        "evidenceCount": 10,
        "passCount": 9,
        "failCount": 1,
        "complianceRate": 0.9,
        "exactEvidenceCount": 10.0,
    }
    assert found["topProducer"] == {
        "producerId": "job:orders",
        "version": "1.2",
        "confidence": "HIGH",
        "deployedAt": None,
    }
    assert found["lastUpdated"] == signal.last_updated
    assert found["dataset"] == {"urn": ORDERS, "displayName": "Orders", "tier": "TIER_1"}
    assert found["incident"] == {
        "incidentId": signal.value.incident_id,
        "dataset": {"urn": ORDERS},
        "relatedSignals": [{"signalType": "FRESHNESS"}],
    }


def test_signal_state__none__is_null(board: Board) -> None:
    assert board.data(f'{{ signalState(datasetUrn: "{ORDERS}", signalType: "VOLUME") {{ state }} }}') == {
        "signalState": None
    }


def test_metrics__more_than_int_can_say__are_held_there_and_exact_beside(board: Board) -> None:
    board.register(ORDERS)
    board.signal(count=3_000_000_000)

    [found] = board.data(
        f'{{ datasetSignals(datasetUrn: "{ORDERS}") {{ metrics {{ evidenceCount exactEvidenceCount passCount }} }} }}'
    )["datasetSignals"]

    assert found["metrics"] == {
        "evidenceCount": 2**31 - 1,
        "exactEvidenceCount": 3_000_000_000.0,
        "passCount": 2**31 - 1,
    }


def test_critical_signals__states_and_tiers__only_critical_of_the_tier(board: Board) -> None:
    board.register(ORDERS)
    board.register(STOCK, Tier.TIER_2)
    board.signal()
    board.signal(kind="VOLUME", state=SignalState.WARNING)
    board.signal(STOCK)

    everything = board.data(f"{{ criticalSignals {{ {SIGNAL} }} }}")["criticalSignals"]
    second = board.data("{ criticalSignals(tier: TIER_2, limit: 5) { datasetUrn } }")["criticalSignals"]
    one = board.data("{ criticalSignals(limit: 1) { datasetUrn } }")["criticalSignals"]

    assert {each["datasetUrn"] for each in everything} == {ORDERS, STOCK}
    assert second == [{"datasetUrn": STOCK}]
    assert len(one) == 1


def test_signal_history__two_transitions__come_in_their_order(board: Board) -> None:
    board.register(ORDERS)
    board.signal(state=SignalState.OK)
    board.signal()

    found = board.data(
        f'{{ signalHistory(datasetUrn: "{ORDERS}", signalType: "FRESHNESS", from: "2020-01-01T00:00:00+02:00",'
        ' to: "2029-01-01T00:00:00Z") { state previousState score windowStart windowEnd changedAt version'
        " failureSignature incidentId late } }"
    )["signalHistory"]

    assert [(each["state"], each["previousState"]) for each in found] == [("OK", None), ("CRITICAL", "OK")]
    assert found[1]["version"] == 2


def test_volume_history__of_a_day__has_what_was_counted_and_gaps(board: Board) -> None:
    board.register(ORDERS)
    board.signal(kind="VOLUME", state=SignalState.WARNING, count=2**40)
    query = f'query($days: Int!) {{ volumeHistory(datasetUrn: "{ORDERS}", days: $days) {{ hour eventCount }} }}'

    found = board.data(query, days=1)["volumeHistory"]

    assert len(found) == 24
    assert [each["eventCount"] for each in found if each["eventCount"] is not None] == [2**40]
    assert board.data(f'{{ signalState(datasetUrn: "{ORDERS}", signalType: "VOLUME") {{ lastOkAt }} }}') == {
        "signalState": {"lastOkAt": None}
    }
    assert board.code(query, days=15) == "bad_payload"


@pytest.mark.parametrize(("moment", "code"), [("yesterday", "bad_payload"), ("2026-01-01T00:00:00", "bad_payload")])
def test_signal_history__what_is_no_moment__is_refused(board: Board, moment: str, code: str) -> None:
    query = (
        'query($from: DateTime!) { signalHistory(datasetUrn: "urn:dp:a:b", signalType: "COST", from: $from,'
        ' to: "2029-01-01T00:00:00Z") { state } }'
    )

    assert board.code(query.replace("($from: DateTime!)", "").replace("$from", f'"{moment}"')) == code
    assert board.code(query, **{"from": moment}) == code
    assert board.code(query, **{"from": 7}) == code


def test_incident__all_fields__are_there(board: Board) -> None:
    board.register(ORDERS)
    proof = board.proof()
    incident = board.incident_of(board.signal(evidence=[proof]))
    board.tell(incident)

    found = board.data(
        f"query($id: ID!) {{ incident(incidentId: $id) {{ {INCIDENT} dataset {{ urn }} relatedSignals {{ {SIGNAL} }}"
        " evidence { evidenceId result } } }",
        id=incident.incident_id,
    )["incident"]

    assert found["status"] == "OPEN"
    assert found["severity"] == "SEV_1"
    assert found["oncallUser"] == "bob@example.com"
    assert found["notificationState"] == {
        "pagerdutyIncidentId": None,
        "slackThreadTs": None,
        "jiraTicket": "OPS-7",
    }
    assert found["relatedSignals"][0]["incidentId"] == incident.incident_id
    assert found["evidence"] == [{"evidenceId": proof, "result": "FAIL"}]
    assert board.data('{ incident(incidentId: "INC-none") { title } }') == {"incident": None}


def test_active_incidents__one_is_over__the_others_are_listed(board: Board) -> None:
    board.register(ORDERS)
    board.register(STOCK, Tier.TIER_3)
    board.signal()
    board.signal(STOCK)

    found = board.data(f"{{ activeIncidents {{ {INCIDENT} }} }}")["activeIncidents"]
    urgent = board.data("{ activeIncidents(severity: SEV_1) { primaryDatasetUrn } }")["activeIncidents"]

    assert {each["primaryDatasetUrn"] for each in found} == {ORDERS, STOCK}
    assert urgent == [{"primaryDatasetUrn": ORDERS}]


def _opened(board: Board, count: int) -> list[str]:
    urns = [f"urn:dp:many:set{number:03d}:v1" for number in range(count)]
    for urn in urns:
        board.register(urn, owner="many")
        board.signal(urn)
    return urns


def test_incidents__pages__each_incident_once_by_any_cursor(board: Board) -> None:
    _opened(board, 7)
    query = (
        'query($after: String, $first: Int!) { incidents(filter: {status: [OPEN], ownerTeam: "many"},'
        " pagination: {first: $first, after: $after}) { edges { cursor node { incidentId primaryDatasetUrn } }"
        " pageInfo { hasNextPage endCursor } totalEstimate } }"
    )

    whole = board.data(query, first=100)["incidents"]
    ids = [each["node"]["incidentId"] for each in whole["edges"]]
    assert len(ids) == 7
    assert whole["totalEstimate"] == 7
    assert whole["pageInfo"]["hasNextPage"] is False
    seen: list[str] = []
    after = None
    for _ in range(4):
        page = board.data(query, first=3, after=after)["incidents"]
        seen += [each["node"]["incidentId"] for each in page["edges"]]
        after = page["pageInfo"]["endCursor"]
        if not page["pageInfo"]["hasNextPage"]:
            break
    assert seen == ids
    for place, edge in enumerate(whole["edges"]):
        rest = board.data(query, first=100, after=edge["cursor"])["incidents"]["edges"]
        assert [each["node"]["incidentId"] for each in rest] == ids[place + 1 :]


def test_incidents__a_status_ten_thousand_times__is_read_once(board: Board) -> None:
    board.register(ORDERS)
    board.signal()
    query = "query($s: [IncidentStatus!]) { incidents(filter: {status: $s}) { edges { node { status } } } }"

    found = board.data(query, s=["OPEN"] * 10_000)["incidents"]

    assert found["edges"] == [{"node": {"status": "OPEN"}}]


def test_incidents__a_cursor_that_was_made_up__is_refused(board: Board) -> None:
    query = "query($after: String) { incidents(filter: {}, pagination: {after: $after}) { totalEstimate } }"

    assert board.code(query, after="nonsense") == "bad_cursor"
    assert board.code(query, after="WyJmb3JnZWQiXQ") == "bad_cursor"
    assert board.code(query, after="A" * 10_000) == "bad_cursor"


def test_dataset__by_either_name__with_all_that_belongs_to_it(board: Board) -> None:
    board.register(ORDERS)
    board.lineage()
    board.signal()
    query = f"""query($urn: String!) {{ dataset(urn: $urn) {{
      urn displayName tier ownerTeam status schemaBinding {{ registry schemaName }} source {{ type topic }}
      contractBinding {{ requiredFields fieldConstraints }} slos {{ maxDelaySeconds minComplianceRate onSilence }}
      gate {{ upstream upstreamHops }}
      tags {{ key value }} configVersion signals {{ state }} openIncidents {{ title }}
      writers {{ {ENTRY} }} readers {{ entityId }} versions {{ configVersion updatedBy }} }} }}"""

    found = board.data(query, urn=ORDERS)["dataset"]

    assert board.data(query, urn="urn:dp:orders:created")["dataset"] == found
    assert found["schemaBinding"] == {"registry": "glue", "schemaName": "orders"}
    assert found["contractBinding"] == {"requiredFields": ["id"], "fieldConstraints": {"id": {"minLength": 1}}}
    assert found["slos"] == {"maxDelaySeconds": 900.0, "minComplianceRate": None, "onSilence": "WARN"}
    assert found["gate"] == {"upstream": "HOLD", "upstreamHops": None}
    assert found["tags"] == [{"key": "domain", "value": "sales"}]
    assert found["signals"] == [{"state": "CRITICAL"}]
    assert len(found["openIncidents"]) == 1
    assert [each["commit"] for each in found["writers"]] == ["abc123"]
    assert len(found["readers"]) == 1
    assert found["versions"] == [{"configVersion": 1, "updatedBy": "ann"}]
    assert board.data(query, urn=STOCK)["dataset"] is None


def test_datasets__filters__find_what_they_say(board: Board) -> None:
    board.register(ORDERS)
    board.register(SHIPPED, Tier.TIER_2)
    board.register(STOCK, Tier.TIER_3, owner="stock-team")
    board.signal()

    def urns(filter: str) -> list[str]:
        found = board.data(f"{{ datasets(filter: {filter}) {{ edges {{ node {{ urn }} }} }} }}")["datasets"]
        return [each["node"]["urn"] for each in found["edges"]]

    assert urns("{}") == [ORDERS, SHIPPED, STOCK]
    assert urns("{tier: [TIER_2]}") == [SHIPPED]
    assert urns("{tier: [TIER_1, TIER_3]}") == [ORDERS, STOCK]
    assert urns('{ownerTeam: "stock-team"}') == [STOCK]
    assert urns("{inBreach: true}") == [ORDERS]
    assert urns("{inBreach: false}") == [SHIPPED, STOCK]
    assert urns('{search: "LEVEL"}') == [STOCK]
    assert urns('{sourceType: "kafka"}') == [ORDERS, SHIPPED, STOCK]
    assert urns('{sourceType: "S3"}') == []


def test_datasets__pages_with_a_filter_that_leaves_some_out__each_once(board: Board) -> None:
    urns = _opened(board, 6)
    for urn in urns[::2]:
        board.signal(urn, state=SignalState.OK)
    query = (
        "query($after: String) { datasets(filter: {inBreach: true}, pagination: {first: 2, after: $after})"
        " { edges { cursor node { urn } } pageInfo { hasNextPage endCursor } } }"
    )

    first = board.data(query)["datasets"]
    second = board.data(query, after=first["edges"][-1]["cursor"])["datasets"]
    also = board.data(query, after=first["pageInfo"]["endCursor"])["datasets"]

    assert [each["node"]["urn"] for each in first["edges"] + second["edges"]] == urns[1::2]
    assert [each["node"] for each in also["edges"]] == [each["node"] for each in second["edges"]]


def test_lineage__writers_and_readers_of_datasets_and_columns(board: Board) -> None:
    board.register(ORDERS)
    board.lineage()

    found = board.data(
        f"""{{ datasetWriters(datasetUrn: "{ORDERS}") {{ {ENTRY} }} datasetReaders(datasetUrn: "{ORDERS}") {{ {ENTRY} }}
        columnWriters(columnUrn: "{COLUMN}") {{ {ENTRY} }} columnReaders(columnUrn: "{COLUMN}") {{ {ENTRY} }}
        blastRadius(datasetUrn: "{ORDERS}") {{ downstreamCount downstreamDatasets estimatedImpact complete }} }}"""
    )

    assert [each["entityType"] for each in found["datasetWriters"] + found["columnWriters"]] == ["JOB", "JOB"]
    assert [each["entityType"] for each in found["datasetReaders"] + found["columnReaders"]] == ["SERVICE", "SERVICE"]
    assert found["blastRadius"]["downstreamDatasets"] == [SHIPPED]
    assert found["blastRadius"]["downstreamCount"] == 1


def test_blast_radius__a_hundred_datasets_downstream__are_not_looked_up_one_by_one(board: Board) -> None:
    board.register(ORDERS)
    board.lineage([f"urn:dp:reports:daily_{number}" for number in range(100)])
    board.health = board.process()
    board.health.blast_radii.warm()
    board.store.calls.clear()

    incident = board.incident_of(board.signal())

    assert incident.blast_radius is not None
    assert len(incident.blast_radius.downstream_datasets) == 100
    assert sum(board.store.calls.values()) <= 12


def test_evidence__some_ids__in_their_order_and_null_for_what_is_not_there(board: Board) -> None:
    board.register(ORDERS)
    proof = board.proof()
    missing = "evd-01HQXY8MNP4QR7ST9VW2XYZ456"

    found = board.data(
        "query($ids: [ID!]!) { evidence(ids: $ids) { evidenceId datasetUrn createdAt result failedGates reasonCodes"
        " gates { gate result } producer { producerId } source { offset } payloadSizeBytes archived } }",
        ids=[missing, proof, "what"],
    )["evidence"]

    assert found[0] is None
    assert found[1]["evidenceId"] == proof
    assert found[1]["reasonCodes"] == ["MISSING_FIELD:id"]
    assert found[2] is None


def test_incident_context__the_whole_story(board: Board) -> None:
    board.register(ORDERS)
    board.lineage()
    incident = board.incident_of(board.signal(evidence=[board.proof()]))

    found = board.data(
        "query($id: ID!) { incidentContext(id: $id) { incident { incidentId } dataset { urn } signals { state }"
        " evidence { result } firstBad { evidenceId } lastGood { evidenceId } writers { entityId }"
        " readers { entityId } blastRadius { downstreamCount } timeline { at kind what } missing { part why }"
        " complete asOf } }",
        id=incident.incident_id,
    )["incidentContext"]

    assert found["incident"] == {"incidentId": incident.incident_id}
    assert found["signals"] == [{"state": "CRITICAL"}]
    assert {"SIGNAL", "INCIDENT", "CONFIG"} <= {each["kind"] for each in found["timeline"]}
    assert found["complete"] is True
    assert board.data('{ incidentContext(id: "INC-none") { complete } }') == {"incidentContext": None}


def test_gate__a_critical_signal__blocks_and_says_why(board: Board) -> None:
    board.register(ORDERS)
    board.signal()

    found = board.data(
        f'{{ gate(datasetUrns: ["{ORDERS}"], verb: READ) {{ decision verb principal reasons {{ code message }}'
        " datasets { datasetUrn ruling } overridableBy ttlSeconds complete } }"
    )["gate"]

    assert found["decision"] == "BLOCK"
    assert "SIGNAL_CRITICAL" in {each["code"] for each in found["reasons"]}
    assert found["datasets"] == [{"datasetUrn": ORDERS, "ruling": "BLOCK"}]
    assert found["overridableBy"] == ["admin", "operator"]


# How often the store is asked.


def test_reads__a_hundred_critical_signals_with_dataset_and_incident__three_calls_on_a_cold_cache(board: Board) -> None:
    _opened(board, 100)
    board.serve(board.process())
    board.store.calls.clear()

    found = board.data("{ criticalSignals { datasetUrn state dataset { urn tier } incident { incidentId title } } }")[
        "criticalSignals"
    ]

    assert len(found) == 100
    assert all(each["dataset"] is not None and each["incident"] is not None for each in found)
    assert sum(board.store.calls.values()) <= 3, board.store.calls
    assert board.store.on_the_loop == 0


def test_reads__datasets_with_all_that_belongs_to_them__as_many_calls_as_kinds(board: Board) -> None:
    _opened(board, 20)
    board.serve(board.process())
    board.store.calls.clear()

    found = board.data(
        "{ datasets(filter: {}, pagination: {first: 20}) { edges { node { urn signals { state dataset { urn } }"
        " openIncidents { incidentId relatedSignals { state } } writers { entityId } readers { entityId } } } } }"
    )["datasets"]

    assert len(found["edges"]) == 20
    assert all(each["node"]["openIncidents"] for each in found["edges"])
    assert sum(board.store.calls.values()) <= 7, board.store.calls


# Who may see what.


def test_scopes__lists__leave_out_what_is_not_in_scope(board: Board) -> None:
    board.register(ORDERS)
    board.register(STOCK, Tier.TIER_2)
    board.signal()
    board.signal(STOCK)
    board.principal = viewer("urn:dp:stock:*")

    found = board.data(
        "{ criticalSignals { datasetUrn } activeIncidents { primaryDatasetUrn }"
        " incidents(filter: {}) { edges { node { primaryDatasetUrn } } }"
        " datasets(filter: {}) { edges { node { urn } } } }"
    )

    assert found["criticalSignals"] == [{"datasetUrn": STOCK}]
    assert found["activeIncidents"] == [{"primaryDatasetUrn": STOCK}]
    assert [each["node"]["primaryDatasetUrn"] for each in found["incidents"]["edges"]] == [STOCK]
    assert [each["node"]["urn"] for each in found["datasets"]["edges"]] == [STOCK]


@pytest.mark.parametrize(
    "query",
    [
        f'{{ signalState(datasetUrn: "{ORDERS}", signalType: "COST") {{ state }} }}',
        f'{{ dataset(urn: "{ORDERS}") {{ urn }} }}',
        f'{{ datasetWriters(datasetUrn: "{ORDERS}") {{ entityId }} }}',
        f'{{ columnReaders(columnUrn: "{COLUMN}") {{ entityId }} }}',
        f'{{ blastRadius(datasetUrn: "{ORDERS}") {{ downstreamCount }} }}',
        f'{{ gate(datasetUrns: ["{STOCK}", "{ORDERS}"]) {{ decision }} }}',
        f'{{ incidents(filter: {{datasetUrn: "{ORDERS}"}}) {{ totalEstimate }} }}',
    ],
)
def test_scopes__a_dataset_that_is_not_in_scope__is_forbidden(board: Board, query: str) -> None:
    board.register(ORDERS)
    board.principal = viewer("urn:dp:stock:*")

    assert board.code(query) == "forbidden"


def test_scopes__what_is_found_of_another_dataset__is_forbidden(board: Board) -> None:
    board.register(ORDERS)
    proof = board.proof()
    incident = board.incident_of(board.signal(evidence=[proof]))
    board.principal = viewer("urn:dp:stock:*")

    assert board.code(f'{{ incident(incidentId: "{incident.incident_id}") {{ title }} }}') == "forbidden"
    assert board.code(f'{{ incidentContext(id: "{incident.incident_id}") {{ complete }} }}') == "forbidden"
    answer = board.ask(f'{{ evidence(ids: ["{proof}", "evd-01HQXY8MNP4QR7ST9VW2XYZ456"]) {{ result }} }}')
    assert answer["data"] == {"evidence": [None, None]}
    assert [each["path"] for each in answer["errors"]] == [["evidence", 0]]


def test_roles__a_field_that_the_role_may_not_read__is_null_and_the_rest_is_there(board: Board) -> None:
    board.register(ORDERS)
    board.signal()
    board.principal = viewer("*", role=Role.SIGNAL_ENGINE)

    answer = board.ask("{ criticalSignals { state dataset { urn } incident { title } } }")

    assert answer["data"]["criticalSignals"] == [{"state": "CRITICAL", "dataset": {"urn": ORDERS}, "incident": None}]
    [error] = answer["errors"]
    assert error["extensions"] == {"code": "forbidden", "retryable": False}
    assert error["path"] == ["criticalSignals", 0, "incident"]


@pytest.mark.parametrize(
    ("role", "oncall", "ticket"),
    [(Role.VIEWER, "***", "***"), (Role.OPERATOR, "bob@example.com", "OPS-7")],
)
def test_secret_fields__by_role__are_masked_or_shown(board: Board, role: Role, oncall: str, ticket: str) -> None:
    board.register(ORDERS)
    board.tell(board.incident_of(board.signal()))
    board.principal = viewer("*", role=role)

    [found] = board.data("{ activeIncidents { oncallUser notificationState { jiraTicket slackThreadTs } } }")[
        "activeIncidents"
    ]

    assert found == {"oncallUser": oncall, "notificationState": {"jiraTicket": ticket, "slackThreadTs": None}}


def test_principal__no_one_known__401_as_everywhere(board: Board) -> None:
    board.principal = None

    answer = board.http("POST", json={"query": "{ __typename }"})

    assert answer.status_code == 401
    assert answer.json()["code"] == "unauthenticated"


# Unexpected errors, and a store that is unavailable for a while.


def test_store__cannot_be_asked__datasets_are_remembered_and_the_rest_is_worth_another_try(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_given: Any, **_more: Any) -> Any:
        raise StoreBusyError("the store is away; try again")

    board.register(ORDERS)
    for name in ("get", "get_many", "query", "query_many"):
        monkeypatch.setattr(board.store, name, away, raising=False)

    answer = board.ask(f'{{ dataset(urn: "{ORDERS}") {{ urn }} activeIncidents {{ title }} }}')
    known = board.data(f'{{ dataset(urn: "{ORDERS}") {{ urn }} }}')

    assert answer["data"] is None
    assert [each["extensions"] for each in answer["errors"]] == [{"code": "store_busy", "retryable": True}]
    assert known == {"dataset": {"urn": ORDERS}}


def test_errors__a_bug__reports_nothing_of_itself(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_given: Any, **_more: Any) -> Any:
        raise RuntimeError("the password is hunter2")

    monkeypatch.setattr(board.health.signals, "get", broken)

    error = board.error(f'{{ signalState(datasetUrn: "{ORDERS}", signalType: "COST") {{ state }} }}')

    assert error["extensions"]["code"] == "internal"
    assert error["extensions"]["correlation_id"].startswith("req")
    assert "hunter2" not in str(error)


def test_compliance__of_a_critical_signal_that_no_one_counted_for__is_what_was_measured(board: Board) -> None:
    board.register(STOCK)
    now_ms = int(board.clock.seconds() * 1000)
    value = SignalValue(
        state=SignalState.CRITICAL,
        score=0.25,
        window_start=instant(now_ms - 300_000),
        window_end=instant(now_ms),
        failure_signature="LATE:x",
    )
    board.health.signals.update(SignalUpdate(dataset_urn=STOCK, signal_type="FRESHNESS", value=value))

    query = (
        'query($urn: String!) { signalState(datasetUrn: $urn, signalType: "FRESHNESS") { metrics { complianceRate } } }'
    )
    found = board.data(query, urn=STOCK)

    assert found["signalState"]["metrics"]["complianceRate"] == 0.25
