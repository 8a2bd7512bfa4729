"""A dataset that is named without its version is the one that is registered, whichever way it is named."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from google.protobuf import json_format

from headgate.auth.principals import LOCAL, Principal
from headgate.auth.roles import Role
from headgate.serve.graphql.engine import Engine, GraphqlRequest
from headgate.serve.graphql.limits import Limits
from headgate.serve.rpc.statestore import proto as pb
from headgate.serve.rpc.statestore.service import statestore_methods
from headgate.serve.runtime.watch_hub import WatchHub
from tests.integration.serve.durable_api import problem
from tests.integration.serve.health_rig import HealthApi, done, evidence_id, health_api, of
from tests.integration.serve.rpc_ports import PACKAGE, Ports, talk

URN = "urn:dp:shop:orders:v1"
SHORT = "urn:dp:shop:orders"
BARE = "urn:dp:shop:stock"
NAMES = pytest.mark.parametrize("name", [URN, SHORT])


class Names:
    """The application, and ways to ask it over RPC and GraphQL besides."""

    def __init__(self, api: HealthApi) -> None:
        self.api = api
        self.principal = LOCAL
        self.engine = Engine(api.health, Limits())
        watches = WatchHub(api.service.store)
        self.methods = statestore_methods(api.health, api.service.bus, watches=watches, pool=api.pool, local_reads=True)

    def rpcs(self, *asked: tuple[str, dict[str, Any]]) -> list[httpx.Response]:
        """Return the answers to calls over Connect with JSON, one after the other."""

        async def scenario(ports: Ports) -> list[httpx.Response]:
            return [await ports.post(path, msgspec.json.encode(body), "application/json") for path, body in asked]

        return talk(self.methods, scenario, identify=lambda _call: self.principal)

    def rpc(self, path: str, **body: Any) -> dict[str, Any]:
        """Return the answer to a call; a failure fails the test."""
        [answer] = self.rpcs((path, body))
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def refused(self, path: str, **body: Any) -> dict[str, Any]:
        """Return what a call fails with, its reason as `reason`."""
        [answer] = self.rpcs((path, body))
        assert answer.status_code != 200, answer.text
        found: dict[str, Any] = answer.json()
        reasons = [each["debug"]["reason"] for each in found["details"] if "reason" in each.get("debug", {})]
        return {**found, "reason": reasons[0] if reasons else None}

    def graphql(self, query: str, **variables: Any) -> dict[str, Any]:
        """Return the whole answer of GraphQL."""
        prepared = self.engine.prepare(GraphqlRequest(query, variables))
        return self.engine.execute(prepared, self.principal, self.api.clock.monotonic() + 10).content

    def data(self, query: str, **variables: Any) -> dict[str, Any]:
        content = self.graphql(query, **variables)
        assert "errors" not in content, content
        found: dict[str, Any] = content["data"]
        return found

    def update(self, name: str, state: str = "CRITICAL", kind: str = "VOLUME", minutes: float = 0.0) -> dict[str, Any]:
        value = self.api.value(state, minutes=minutes)
        return {"dataset_urn": name, "signal_type": kind, "state": value, "expected_version": -1}

    def evidence(self, number: int, name: str) -> dict[str, Any]:
        return self.api.evidence(number, name)


@pytest.fixture
def names(tmp_path: Path) -> Iterator[Names]:
    with health_api(tmp_path / "home") as api:
        api.dataset(URN)
        yield Names(api)


def scoped(*scopes: str) -> Principal:
    return Principal("scoped", frozenset({Role.ADMIN}), scopes)


# Writing.


def test_unversioned__written_over_rpc__is_kept_under_the_registered_name(names: Names) -> None:
    said = names.rpc("SignalStateService/UpdateSignalState", **names.update(SHORT))
    batch = names.rpc("SignalStateService/BatchUpdateSignalState", updates=[names.update(SHORT, kind="FRESHNESS")])
    names.rpc("EvidenceCacheService/PutEvidence", evidence=names.evidence(1, SHORT))
    put = names.rpc(
        "EvidenceCacheService/BatchPutEvidence", evidence=[names.evidence(2, SHORT), names.evidence(3, URN)]
    )
    opened = names.rpc(
        "IncidentService/CreateIncident", dataset_urn=SHORT, signal_type="SCHEMA", failure_signatures=["BAD:x"]
    )
    column = f"urn:col:{SHORT}:id"
    names.rpc(
        "LineageIndexService/UpdateLineage",
        spec_id="lspec:u:git:1",
        producer_id="job:u",
        dataset_writes=[{"dataset_urn": SHORT}],
        dataset_reads=[{"dataset_urn": SHORT}],
        column_writes=[{"column_urn": column}],
        column_reads=[{"column_urn": column}],
    )

    assert said["success"]
    assert batch["successCount"] == 1
    assert put["stored"] == 2
    assert opened["primaryDatasetUrn"] == URN
    api = names.api
    assert {each["signal_type"] for each in done(api.get(f"{of(URN)}/signals"), 200)["signals"]} == {
        "VOLUME",
        "FRESHNESS",
    }
    for number in (1, 2, 3):
        assert done(api.get(f"/evidence/{evidence_id(number)}"), 200)["dataset_urn"] == URN
    assert len(done(api.get(f"{of(URN)}/evidence"), 200)["items"]) == 3
    store = api.health
    assert store.signals.of_dataset(SHORT) == []
    assert store.lineage.writers(SHORT).entries == []
    assert len(store.lineage.writers(URN).entries) == 1
    assert len(store.lineage.column_readers(f"urn:col:{URN}:id").entries) == 1


def test_unversioned__two_forms_in_one_batch__are_one_signal(names: Names) -> None:
    updates = [names.update(SHORT, minutes=-6), names.update(URN, minutes=-1)]

    done_ = names.rpc("SignalStateService/BatchUpdateSignalState", updates=updates)

    assert done_["successCount"] == 2
    [signal] = names.api.health.signals.of_dataset(URN)
    assert signal.version == 2


# Reading.


@pytest.fixture
def full(names: Names) -> Names:
    api = names.api
    api.signal("CRITICAL", URN, "VOLUME")
    done(api.post("/evidence", api.evidence(1, URN)), 201)
    column = f"urn:col:{URN}:id"
    spec = {
        "producer_id": "job:u", "updated_at": api.at(), "dataset_writes": [URN], "dataset_reads": [URN],
        "column_writes": [column], "column_reads": [column],
    }  # fmt: skip
    done(api.put("/lineage/specs/lspec:u:git:1", spec), 200)
    return names


@NAMES
def test_unversioned__read_over_rpc__is_what_is_kept_under_the_registered_name(full: Names, name: str) -> None:
    signal = full.rpc("SignalStateService/GetSignalState", dataset_urn=name, signal_type="VOLUME")
    signals = full.rpc("SignalStateService/GetDatasetSignals", dataset_urn=name)
    listed = full.rpc("IncidentService/ListIncidents", dataset_urn=name)
    config = full.rpc("RegistryService/GetConfig", dataset_urn=name)
    versioned = full.rpc("RegistryService/GetConfig", dataset_urn=name, version="1")
    gate = full.rpc("GateService/Check", dataset_urn=[name])

    assert signal["datasetUrn"] == URN
    assert len(signals["signals"]) == len(listed["incidents"]) == 1
    assert config["config"]["datasetUrn"] == versioned["config"]["datasetUrn"] == URN
    assert gate["datasets"][0]["datasetUrn"] == URN
    for question in ("GetWriters", "GetReaders"):
        assert len(full.rpc(f"LineageIndexService/{question}", urn=name)["entries"]) == 1
        assert len(full.rpc(f"LineageIndexService/{question}", urn=f"urn:col:{name}:id")["entries"]) == 1


@NAMES
def test_unversioned__read_over_graphql__is_what_is_kept_under_the_registered_name(full: Names, name: str) -> None:
    query = """query($urn: String!, $column: String!, $from: DateTime!, $to: DateTime!) {
      signalState(datasetUrn: $urn, signalType: "VOLUME") { datasetUrn }
      datasetSignals(datasetUrn: $urn) { datasetUrn }
      signalHistory(datasetUrn: $urn, signalType: "VOLUME", from: $from, to: $to) { state }
      volumeHistory(datasetUrn: $urn) { eventCount }
      incidents(filter: {datasetUrn: $urn}) { edges { node { primaryDatasetUrn } } }
      dataset(urn: $urn) { urn }
      datasetWriters(datasetUrn: $urn) { entityId }
      datasetReaders(datasetUrn: $urn) { entityId }
      columnWriters(columnUrn: $column) { entityId }
      columnReaders(columnUrn: $column) { entityId }
      blastRadius(datasetUrn: $urn) { downstreamCount }
      gate(datasetUrns: [$urn]) { datasets { datasetUrn } }
    }"""
    api = full.api

    found = full.data(query, urn=name, column=f"urn:col:{name}:id", **{"from": api.at(-60), "to": api.at()})

    assert found["signalState"] == {"datasetUrn": URN}
    assert found["datasetSignals"] == [{"datasetUrn": URN}]
    assert len(found["signalHistory"]) == 1
    assert any(each["eventCount"] for each in found["volumeHistory"])
    assert found["incidents"]["edges"][0]["node"] == {"primaryDatasetUrn": URN}
    assert found["dataset"] == {"urn": URN}
    for field in ("datasetWriters", "datasetReaders", "columnWriters", "columnReaders"):
        assert len(found[field]) == 1, field
    assert found["blastRadius"]["downstreamCount"] == 1
    assert found["gate"]["datasets"] == [{"datasetUrn": URN}]


@NAMES
def test_unversioned__read_over_rest__is_what_is_kept_under_the_registered_name(full: Names, name: str) -> None:
    api = full.api

    assert len(done(api.get(f"/columns/urn:col:{name}:id/writers"), 200)["items"]) == 1
    assert len(done(api.get(f"/columns/urn:col:{name}:id/readers"), 200)["items"]) == 1
    assert done(api.get(f"{of(name)}/downstream"), 200)["downstream_count"] == 1
    audited = done(api.get("/audit", params={"entity": name}), 200)["items"]
    assert [each["action"] for each in audited] == ["dataset.create"]
    (incident,) = done(api.get("/incidents", params={"dataset_urn": name}), 200)["items"]
    done(api.patch(f"/incidents/{incident['incident_id']}", {"status": "RESOLVED"}), 200)
    assert done(api.get("/incidents/stats", params={"dataset_urn": name}), 200)["resolved"] == 1


def test_audit__of_a_deleted_dataset_by_its_unversioned_name__is_reported(full: Names) -> None:
    done(full.api.delete(of(URN)), 200)

    actions = [each["action"] for each in done(full.api.get("/audit", params={"entity": SHORT}), 200)["items"]]

    assert "dataset.delete" in actions


@NAMES
def test_unversioned__watched__reports_the_registered_one(names: Names, name: str) -> None:
    async def scenario(ports: Ports) -> pb.SignalChange:
        request = pb.WatchSignalsRequest(dataset_urns=[name], cursor="evt_00000000000000000000000000")
        watch: Any = ports.channel.unary_stream(f"/{PACKAGE}.SignalStateService/Watch")
        stream = watch(request.SerializeToString())
        content = await asyncio.wait_for(stream.read(), 10)
        stream.cancel()
        return pb.SignalChange.FromString(content)

    names.api.signal("CRITICAL", URN, "VOLUME")
    change = talk(names.methods, scenario)

    assert json_format.MessageToDict(change)["signal"]["datasetUrn"] == URN


# Who may.


def asked_of(names: Names, name: str) -> list[tuple[str, dict[str, Any]]]:
    """Every call that names a dataset."""
    column = f"urn:col:{name}:id"
    return [
        ("SignalStateService/UpdateSignalState", names.update(name)),
        ("SignalStateService/BatchUpdateSignalState", {"updates": [names.update(name)]}),
        ("SignalStateService/GetSignalState", {"dataset_urn": name, "signal_type": "VOLUME"}),
        ("SignalStateService/GetDatasetSignals", {"dataset_urn": name}),
        ("EvidenceCacheService/PutEvidence", {"evidence": names.evidence(1, name)}),
        ("EvidenceCacheService/BatchPutEvidence", {"evidence": [names.evidence(2, name)]}),
        ("IncidentService/CreateIncident", {"dataset_urn": name, "signal_type": "VOLUME"}),
        ("IncidentService/ListIncidents", {"dataset_urn": name}),
        (
            "LineageIndexService/UpdateLineage",
            {"spec_id": "lspec:a:git:1", "producer_id": "job:a", "dataset_reads": [{"dataset_urn": name}]},
        ),
        (
            "LineageIndexService/UpdateLineage",
            {"spec_id": "lspec:b:git:1", "producer_id": "job:b", "column_reads": [{"column_urn": column}]},
        ),
        ("LineageIndexService/GetWriters", {"urn": name}),
        ("LineageIndexService/GetReaders", {"urn": column}),
        ("RegistryService/GetConfig", {"dataset_urn": name}),
        ("RegistryService/GetConfig", {"dataset_urn": name, "version": "1"}),
        ("GateService/Check", {"dataset_urn": [name]}),
    ]


def test_scope__of_the_registered_name__lets_it_be_named_without_its_version(full: Names) -> None:
    full.principal = scoped(URN)

    for (path, _), answer in zip(asked_of(full, SHORT), full.rpcs(*asked_of(full, SHORT)), strict=True):
        assert answer.status_code != 403, f"{path}: {answer.text}"


def test_scope__of_another_form_of_the_name__does_not_reach_what_is_registered_under_this_one(names: Names) -> None:
    names.api.dataset(BARE)
    names.api.signal("CRITICAL", BARE, "VOLUME")
    names.principal = scoped(f"{BARE}:v1")

    for (path, _), answer in zip(
        asked_of(names, f"{BARE}:v1"), names.rpcs(*asked_of(names, f"{BARE}:v1")), strict=True
    ):
        assert answer.status_code == 403, f"{path}: {answer.status_code} {answer.text}"
    assert names.api.health.evidence.get(evidence_id(1)) is None


@pytest.mark.parametrize("name", ["urn:dp:other:thing:v1", "urn:dp:other:thing"])
def test_scope__a_foreign_dataset__is_refused_by_every_call_that_names_it(names: Names, name: str) -> None:
    names.api.dataset("urn:dp:other:thing:v1")
    names.principal = scoped("urn:dp:shop:*")

    for (path, _), answer in zip(asked_of(names, name), names.rpcs(*asked_of(names, name)), strict=True):
        assert answer.status_code == 403, f"{path}: {answer.status_code} {answer.text}"
    assert names.api.health.signals.of_dataset("urn:dp:other:thing:v1") == []


def test_scope__over_rest__is_judged_by_the_registered_name_also_in_bodies_and_queries(names: Names) -> None:
    api = names.api
    api.dataset(BARE)
    key = api.key("scoped", Role.ADMIN, scopes=(URN, f"{BARE}:v1"))
    other = f"{BARE}:v1"

    assert done(api.post("/gate", {"dataset": SHORT}, key=key), 200)["datasets"][0]["dataset_urn"] == URN
    assert done(api.get("/incidents", params={"dataset_urn": SHORT}, key=key), 200)["items"] == []
    assert done(api.get(f"/columns/urn:col:{SHORT}:id/writers", key=key), 200)["items"] == []
    given = {"dataset_urn": SHORT, "signal_type": "VOLUME"}
    done(api.post("/incidents", given, key=key), 201)
    done(api.post("/evidence/batch", {"evidence": [api.evidence(1, SHORT)]}, key=key), 200)
    updates = [{**api.value(), "dataset_urn": SHORT, "signal_type": "VOLUME"}]
    assert done(api.post("/signals/batch", {"updates": updates}, key=key), 200)["success_count"] == 1

    problem(api.post("/gate", {"dataset": other}, key=key), 403, "forbidden")
    problem(api.get("/incidents", params={"dataset_urn": other}, key=key), 403, "forbidden")
    problem(api.get(f"/columns/urn:col:{other}:id/writers", key=key), 403, "forbidden")
    problem(api.post("/incidents", {**given, "dataset_urn": other}, key=key), 403, "forbidden")


def test_scope__over_graphql__is_judged_by_the_registered_name(full: Names) -> None:
    full.principal = scoped(URN)
    query = """query($urn: String!) {
      datasetSignals(datasetUrn: $urn) { datasetUrn }
      gate(datasetUrns: [$urn]) { decision }
    }"""

    assert full.data(query, urn=SHORT)["datasetSignals"] == [{"datasetUrn": URN}]
    full.principal = scoped(SHORT + ":v2")
    assert all(each["extensions"]["code"] == "forbidden" for each in full.graphql(query, urn=SHORT)["errors"])


# Not registered.


@pytest.mark.parametrize("name", ["urn:dp:nobody:knows:v1", "urn:dp:nobody:knows"])
def test_unregistered__over_rpc__is_refused_for_signals_and_incidents(names: Names, name: str) -> None:
    asked: list[tuple[str, dict[str, Any]]] = [
        ("SignalStateService/GetSignalState", {"dataset_urn": name, "signal_type": "VOLUME"}),
        ("SignalStateService/GetDatasetSignals", {"dataset_urn": name}),
        ("IncidentService/CreateIncident", {"dataset_urn": name, "signal_type": "VOLUME"}),
    ]

    for path, body in asked:
        refused = names.refused(path, **body)
        assert (refused["code"], refused["reason"]) == ("not_found", "DATASET_NOT_FOUND"), path
    said = names.rpc("SignalStateService/UpdateSignalState", **names.update(name))
    assert (said.get("success", False), said["errorCode"]) == (False, "DATASET_NOT_FOUND")


@pytest.mark.parametrize(("on_unknown", "decision"), [("allow", "unknown"), ("warn", "unknown"), ("block", "block")])
def test_unregistered__asked_of_the_gate__is_the_same_over_each_api(
    names: Names, on_unknown: str, decision: str
) -> None:
    name = "urn:dp:nobody:knows"
    query = """query($urn: String!, $on: GateOnUnknown!) {
      gate(datasetUrns: [$urn], onUnknown: $on) { decision reasons { code message } }
    }"""

    over_rest = done(names.api.post("/gate", {"dataset": name, "on_unknown": on_unknown}), 200)
    over_rpc = names.rpc("GateService/Check", dataset_urn=[name], on_unknown=on_unknown)
    over_graphql = names.data(query, urn=name, on=on_unknown.upper())["gate"]

    for answer in (over_rest, over_rpc, over_graphql):
        assert answer["decision"].lower() == decision
        (reason,) = answer["reasons"]
        assert reason["code"] == "DATASET_NOT_FOUND"
        assert f"headgate dataset register {name}" in reason["message"]


def test_misspelled_type__written_over_rpc__is_refused_with_the_nearest_name(names: Names) -> None:
    refused = names.refused("SignalStateService/UpdateSignalState", **names.update(URN, kind="VOLUM"))
    batch = names.rpc("SignalStateService/BatchUpdateSignalState", updates=[names.update(URN, kind="VOLUM")])

    assert (refused["code"], "did you mean VOLUME?" in refused["message"]) == ("invalid_argument", True)
    (result,) = batch["results"]
    assert (result["errorCode"], "did you mean VOLUME?" in result["errorMessage"]) == ("VALIDATION_ERROR", True)
    assert done(names.api.get(f"{of(URN)}/signals"), 200)["signals"] == []


def test_unregistered__evidence__is_kept_under_the_name_it_came_with(names: Names) -> None:
    put = names.rpc("EvidenceCacheService/BatchPutEvidence", evidence=[names.evidence(1, "urn:dp:unknown:raw.topic")])

    assert put["stored"] == 1
    kept = names.api.health.evidence.get(evidence_id(1))
    assert kept is not None
    assert kept.dataset_urn == "urn:dp:unknown:raw.topic"


def test_registered__after_it_was_asked_for__is_found_at_once(names: Names) -> None:
    names.refused("SignalStateService/GetDatasetSignals", dataset_urn="urn:dp:later:on")

    names.api.dataset("urn:dp:later:on:v1")

    assert names.rpc("SignalStateService/UpdateSignalState", **names.update("urn:dp:later:on"))["success"]
    assert len(names.rpc("SignalStateService/GetDatasetSignals", dataset_urn="urn:dp:later:on")["signals"]) == 1


# Deleted.


@pytest.mark.parametrize("on_unknown", ["allow", "warn", "block"])
@pytest.mark.parametrize(("registered", "asked"), [(URN, SHORT), (URN, URN), (BARE, f"{BARE}:v1"), (BARE, BARE)])
def test_gate__a_deleted_dataset__blocks_whatever_name_asks(
    names: Names, registered: str, asked: str, on_unknown: str
) -> None:
    if registered == BARE:
        names.api.dataset(BARE)
    done(names.api.delete(of(registered)), 200)

    response = done(names.api.post("/gate", {"dataset": asked, "on_unknown": on_unknown}), 200)

    assert response["decision"] == "block"
    assert response["reasons"][0]["code"] == "DATASET_DELETED"
    over_rpc = names.rpc("GateService/Check", dataset_urn=[asked], on_unknown=on_unknown)
    assert over_rpc["decision"] == "block"


def test_restore__by_the_unversioned_name__brings_back_what_was_deleted(names: Names) -> None:
    api = names.api
    done(api.delete(of(SHORT)), 200)
    key = api.key("scoped", Role.ADMIN, scopes=(f"{SHORT}:v2",))

    problem(api.post(f"{of(SHORT)}/restore", {}, key=key), 403, "forbidden")
    assert done(api.post(f"{of(SHORT)}/restore", {}), 200)["dataset_urn"] == URN
    assert done(api.get(of(SHORT)), 200)["status"] == "ACTIVE"


def test_gate__the_newest_version_deleted__is_about_the_one_that_is_left(names: Names) -> None:
    names.api.dataset("urn:dp:shop:orders:v2")
    done(names.api.delete(of("urn:dp:shop:orders:v2")), 200)

    response = done(names.api.post("/gate", {"dataset": SHORT}), 200)

    assert response["datasets"][0]["dataset_urn"] == URN


# What is wrong is named by the field that it is in.


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("GateService/Check", {}, "dataset_urn"),
        ("GateService/Check", {"dataset_urn": [URN], "age_seconds_max": 1e12}, "age_seconds_max"),
        ("LineageIndexService/GetWriters", {}, "urn"),
        ("LineageIndexService/GetReaders", {}, "urn"),
    ],
)
def test_refusal__over_rpc__names_the_field(names: Names, path: str, body: dict[str, Any], field: str) -> None:
    refused = names.refused(path, **body)

    violations = [each["debug"].get("fieldViolations", []) for each in refused["details"]]
    assert [each["field"] for some in violations for each in some] == [field]
