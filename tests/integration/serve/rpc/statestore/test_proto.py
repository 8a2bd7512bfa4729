"""The state store over RPC: signals, incidents, evidence, lineage, registry and gate on a real store and real ports."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message
from grpc_tools import protoc  # type: ignore[import-untyped]  # it has no stubs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headgate.auth.principals import Principal
from headgate.auth.roles import Role
from headgate.bootstrap.store import OpenedStore
from headgate.clock import SystemClock
from headgate.errors import FatalError, HeadgateError
from headgate.health.model.datasets import DatasetSpec
from headgate.health.model.enums import Tier
from headgate.health.resolution.resolver import RuleSpec
from headgate.serve.rpc.methods import RpcCall
from headgate.serve.rpc.statestore import proto as pb
from headgate.serve.rpc.statestore.evidence import EvidenceAdapter
from headgate.serve.rpc.statestore.messages import update_of
from tests.integration.serve.graphql_board import ORDERS, open_board
from tests.integration.serve.health_rpcs import NOW, URN, HealthRpcs, health_rpcs, update
from tests.integration.serve.rpc_ports import PACKAGE, Ports, talk

SIGNALS = "SignalStateService"
INCIDENTS = "IncidentService"
EVIDENCE = "EvidenceCacheService"
PROTOCOLS = pytest.mark.parametrize("protocol", ["grpc", "proto", "json"])


@pytest.fixture
def rpcs(opened: OpenedStore) -> Iterator[HealthRpcs]:
    with health_rpcs(opened) as found:
        yield found


def evidence(result: str = "FAIL", **more: Any) -> pb.Evidence:
    return pb.Evidence(
        dataset_urn=URN,
        created_at=NOW,
        producer=pb.ProducerInfo(producer_id="job:orders", version="1.2", confidence="HIGH"),
        source=pb.SourceInfo(topic="raw.orders", partition=0, offset=42),
        validation=pb.ValidationResult(
            result=result, failed_gates=["G4_CONTRACT"], reason_codes=["MISSING_FIELD:customer_id"]
        ),
        fingerprints=pb.Fingerprints(schema_fingerprint="abc", payload_hash="def"),
        otel=pb.OtelContext(trace_id="0" * 32, span_id="1" * 16),
        payload_ref="s3://bucket/key",
        payload_size_bytes=7,
        **more,
    )


async def code_of(ports: Ports, path: str, request: Any) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await ports.grpc(path, request.SerializeToString())
    return caught.value.code().name


# Signals.


@PROTOCOLS
def test_signal__set_and_read__is_what_was_said(rpcs: HealthRpcs, protocol: str) -> None:
    async def scenario(ports: Ports) -> tuple[pb.UpdateSignalStateResponse, pb.SignalState]:
        said = update("CRITICAL")
        done = await ports.call(protocol, f"{SIGNALS}/UpdateSignalState", said, pb.UpdateSignalStateResponse)
        asked = pb.GetSignalStateRequest(dataset_urn=URN, signal_type="freshness")
        return done, await ports.call(protocol, f"{SIGNALS}/GetSignalState", asked, pb.SignalState)

    done, found = talk(rpcs.methods, scenario)

    assert (done.success, done.new_version, done.duplicate) == (True, 1, False)
    assert (found.dataset_urn, found.signal_type, found.version) == (URN, "FRESHNESS", 1)
    assert (found.tier, found.owner_team) == ("TIER_2", "orders")
    value, said = found.value, update("CRITICAL").state
    assert value.incident_id.startswith("INC-")
    assert value.breach_start == said.window_start
    value.ClearField("incident_id")
    value.ClearField("breach_start")
    assert value == said


def test_signal__expected_at_another_version__reports_the_present_one(rpcs: HealthRpcs) -> None:
    async def scenario(ports: Ports) -> list[pb.UpdateSignalStateResponse]:
        asked = [update(expected=0, minutes=-9), update("WARNING", expected=0, minutes=-4)]
        path = f"{SIGNALS}/UpdateSignalState"
        return [await ports.call("grpc", path, each, pb.UpdateSignalStateResponse) for each in asked]

    first, second = talk(rpcs.methods, scenario)

    assert first.success
    assert (second.success, second.error_code, second.current_version) == (False, "VERSION_CONFLICT", 1)
    assert (second.current.value.state, second.current.version) == ("OK", 1)
    assert "version" in second.error_message


def test_signal__late_and_repeated__is_reported_so(rpcs: HealthRpcs) -> None:
    async def scenario(ports: Ports) -> list[pb.UpdateSignalStateResponse]:
        path = f"{SIGNALS}/UpdateSignalState"
        asked = [update(minutes=-1), update(minutes=-1, expected=0), update("WARNING", minutes=-6)]
        return [await ports.call("proto", path, each, pb.UpdateSignalStateResponse) for each in asked]

    first, again, late = talk(rpcs.methods, scenario)

    assert (first.duplicate, again.success, again.duplicate, again.new_version) == (False, True, True, 1)
    assert (late.success, late.error_code, late.current_version) == (False, "STALE_WINDOW", 1)


@PROTOCOLS
def test_signals__in_a_batch__are_each_answered_in_their_order(rpcs: HealthRpcs, protocol: str) -> None:
    no_window = pb.UpdateSignalStateRequest(dataset_urn=URN, signal_type="COST", state=pb.SignalStateValue(state="OK"))
    asked = pb.BatchUpdateSignalStateRequest(
        updates=[
            update(),
            pb.UpdateSignalStateRequest(dataset_urn=URN, signal_type="VOLUME"),
            update(kind="VOLUME"),
            update(urn="urn:dp:nobody:knows"),
            no_window,
            update("NONSENSE", kind="COST"),
        ]
    )

    done = talk(
        rpcs.methods,
        lambda ports: ports.call(
            protocol, f"{SIGNALS}/BatchUpdateSignalState", asked, pb.BatchUpdateSignalStateResponse
        ),
    )

    assert [each.error_code for each in done.results] == [
        "",
        "VALIDATION_ERROR",
        "",
        "DATASET_NOT_FOUND",
        "VALIDATION_ERROR",
        "VALIDATION_ERROR",
    ]
    assert (done.success_count, done.failure_count) == (2, 4)


def test_signal__with_no_metrics__is_a_gap_and_with_a_count_of_nothing_is_not() -> None:
    said = update(kind="VOLUME")
    assert update_of(said).is_counted
    said.state.metrics.CopyFrom(pb.SignalMetrics())
    assert update_of(said).is_counted
    said.state.ClearField("metrics")
    assert not update_of(said).is_counted


def test_signals__of_a_dataset__are_all_or_those_asked_for(rpcs: HealthRpcs) -> None:
    async def scenario(ports: Ports) -> list[list[str]]:
        for kind in ("FRESHNESS", "VOLUME", "COST"):
            await ports.grpc(f"{SIGNALS}/UpdateSignalState", update(kind=kind).SerializeToString())
        found = []
        for kinds in ([], ["volume_anomaly", "COST"]):
            asked = pb.GetDatasetSignalsRequest(dataset_urn=URN, signal_types=kinds)
            answer = await ports.call("json", f"{SIGNALS}/GetDatasetSignals", asked, pb.GetDatasetSignalsResponse)
            found.append(sorted(each.signal_type for each in answer.signals))
        return found

    assert talk(rpcs.methods, scenario) == [["COST", "FRESHNESS", "VOLUME"], ["COST", "VOLUME"]]


def test_signal__changed_after_it_was_read__is_read_as_it_is(rpcs: HealthRpcs) -> None:
    async def scenario(ports: Ports) -> list[str]:
        found = []
        for minutes, state in ((-9, "OK"), (-4, "WARNING"), (-1, "OK")):
            await ports.grpc(f"{SIGNALS}/UpdateSignalState", update(state, minutes=minutes).SerializeToString())
            asked = pb.GetSignalStateRequest(dataset_urn=URN, signal_type="FRESHNESS")
            for _ in range(2):
                answer = await ports.call("proto", f"{SIGNALS}/GetSignalState", asked, pb.SignalState)
                found.append(answer.value.state)
        return found

    assert talk(rpcs.methods, scenario) == ["OK", "OK", "WARNING", "WARNING", "OK", "OK"]


@pytest.mark.parametrize(
    ("path", "request_", "code"),
    [
        (f"{SIGNALS}/GetSignalState", pb.GetSignalStateRequest(dataset_urn=URN, signal_type="COST"), "NOT_FOUND"),
        (f"{SIGNALS}/GetSignalState", pb.GetSignalStateRequest(dataset_urn="x", signal_type="C"), "INVALID_ARGUMENT"),
        (f"{SIGNALS}/UpdateSignalState", pb.UpdateSignalStateRequest(dataset_urn=URN), "INVALID_ARGUMENT"),
        (f"{INCIDENTS}/GetIncident", pb.GetIncidentRequest(incident_id="INC-none"), "NOT_FOUND"),
        (f"{INCIDENTS}/CreateIncident", pb.CreateIncidentRequest(dataset_urn=URN), "INVALID_ARGUMENT"),
        (f"{INCIDENTS}/ResolveIncident", pb.ResolveIncidentRequest(incident_id="INC-none"), "NOT_FOUND"),
        (f"{INCIDENTS}/ListIncidents", pb.ListIncidentsRequest(page_size=101), "INVALID_ARGUMENT"),
        (f"{INCIDENTS}/ListIncidents", pb.ListIncidentsRequest(page_token="forged"), "INVALID_ARGUMENT"),
        (f"{EVIDENCE}/GetEvidence", pb.GetEvidenceRequest(evidence_id="evd-none"), "NOT_FOUND"),
        (f"{EVIDENCE}/PutEvidence", pb.PutEvidenceRequest(), "INVALID_ARGUMENT"),
    ],
)
def test_request__that_cannot_be_met__says_why(rpcs: HealthRpcs, path: str, request_: Any, code: str) -> None:
    assert talk(rpcs.methods, lambda ports: code_of(ports, path, request_)) == code


# Incidents.


@PROTOCOLS
def test_incident__through_its_life__is_reported_at_each_step(rpcs: HealthRpcs, protocol: str) -> None:
    async def scenario(ports: Ports) -> list[pb.Incident]:
        create = pb.CreateIncidentRequest(
            dataset_urn=URN,
            signal_type="VOLUME",
            severity="SEV-2",
            failure_signatures=["MISSING_FIELD:customer_id"],
            oncall_user="ana",
            blast_radius=pb.BlastRadius(downstream_count=2, downstream_services=["a", "b"], estimated_impact="HIGH"),
        )
        opened = await ports.call(protocol, f"{INCIDENTS}/CreateIncident", create, pb.Incident)
        joined = await ports.call(protocol, f"{INCIDENTS}/CreateIncident", create, pb.Incident)
        change = pb.UpdateIncidentRequest(
            incident_id=opened.incident_id,
            incident=pb.Incident(status="INVESTIGATING", assignee="bo", title="not this"),
            expected_version=joined.version,
        )
        change.update_mask.FromJsonString("status,assignee")
        taken = await ports.call(protocol, f"{INCIDENTS}/UpdateIncident", change, pb.Incident)
        resolve = pb.ResolveIncidentRequest(
            incident_id=opened.incident_id,
            resolution=pb.Resolution(root_cause="a bad deploy", false_positive=False),
            expected_version=-1,
        )
        resolved = await ports.call(protocol, f"{INCIDENTS}/ResolveIncident", resolve, pb.Incident)
        asked = pb.GetIncidentRequest(incident_id=opened.incident_id, consistent=True)
        return [
            opened,
            joined,
            taken,
            resolved,
            await ports.call(protocol, f"{INCIDENTS}/GetIncident", asked, pb.Incident),
        ]

    opened, joined, taken, resolved, found = talk(rpcs.methods, scenario)

    assert (opened.status, opened.severity, opened.owner_team, opened.oncall_user) == ("OPEN", "SEV_2", "orders", "ana")
    assert (opened.joined, joined.joined, joined.incident_id) == (False, True, opened.incident_id)
    assert (taken.status, taken.phase, taken.assignee) == ("ACKNOWLEDGED", "INVESTIGATING", "bo")
    assert taken.title == opened.title
    assert (resolved.status, resolved.resolution.root_cause) == ("RESOLVED", "a bad deploy")
    assert resolved.resolved_at.seconds > 0
    assert found == resolved


def test_incident__expected_at_another_version__is_aborted(rpcs: HealthRpcs) -> None:
    async def scenario(ports: Ports) -> tuple[str, str]:
        create = pb.CreateIncidentRequest(dataset_urn=URN, signal_type="VOLUME", failure_signatures=["A:b"])
        opened = await ports.call("grpc", f"{INCIDENTS}/CreateIncident", create, pb.Incident)
        change = pb.UpdateIncidentRequest(
            incident_id=opened.incident_id, incident=pb.Incident(title="x"), expected_version=opened.version + 1
        )
        unsaid = pb.UpdateIncidentRequest(incident_id=opened.incident_id, incident=pb.Incident(title="x"))
        path = f"{INCIDENTS}/UpdateIncident"
        return await code_of(ports, path, change), await code_of(ports, path, unsaid)

    assert talk(rpcs.methods, scenario) == ("ABORTED", "INVALID_ARGUMENT")


def test_incident__changed_in_what_cannot_be__is_refused(rpcs: HealthRpcs) -> None:
    change = pb.UpdateIncidentRequest(incident_id="INC-1", incident=pb.Incident(incident_id="INC-2"))
    change.update_mask.FromJsonString("incidentId")

    assert talk(rpcs.methods, lambda ports: code_of(ports, f"{INCIDENTS}/UpdateIncident", change)) == "INVALID_ARGUMENT"


def test_incidents__listed__are_those_asked_for(rpcs: HealthRpcs) -> None:
    async def scenario(ports: Ports) -> list[list[str]]:
        for number in range(3):
            create = pb.CreateIncidentRequest(
                dataset_urn=URN, signal_type="VOLUME", severity="SEV_1", failure_signatures=[f"A:{number}"]
            )
            await ports.grpc(f"{INCIDENTS}/CreateIncident", create.SerializeToString())
        pages = []
        token = ""
        while True:
            asked = pb.ListIncidentsRequest(status=["OPEN"], severity=["P1"], page_size=2, page_token=token)
            page = await ports.call("json", f"{INCIDENTS}/ListIncidents", asked, pb.ListIncidentsResponse)
            pages.append([each.failure_signatures[0] for each in page.incidents])
            token = page.next_page_token
            if not token:
                return pages

    pages = talk(rpcs.methods, scenario)

    assert [each for page in pages for each in page] == ["A:2", "A:1", "A:0"]
    assert len(pages[0]) == 2


# Who may do what.


def principal(role: Role, *scopes: str) -> Principal:
    return Principal(role.value, frozenset({role}), scopes or ("*",))


def test_right__of_another_dataset__is_denied_and_not_listed(rpcs: HealthRpcs) -> None:
    create = pb.CreateIncidentRequest(dataset_urn=URN, signal_type="VOLUME", failure_signatures=["A:b"])

    async def as_all(ports: Ports) -> str:
        return (await ports.call("grpc", f"{INCIDENTS}/CreateIncident", create, pb.Incident)).incident_id

    incident_id = talk(rpcs.methods, as_all)

    async def as_other(ports: Ports) -> tuple[str, str, int]:
        asked = pb.GetIncidentRequest(incident_id=incident_id)
        listed = await ports.call(
            "grpc", f"{INCIDENTS}/ListIncidents", pb.ListIncidentsRequest(), pb.ListIncidentsResponse
        )
        signal = pb.GetSignalStateRequest(dataset_urn=URN, signal_type="VOLUME")
        return (
            await code_of(ports, f"{INCIDENTS}/GetIncident", asked),
            await code_of(ports, f"{SIGNALS}/GetSignalState", signal),
            len(listed.incidents),
        )

    other = principal(Role.VIEWER, "urn:dp:payments:*")
    found = talk(rpcs.methods, as_other, identify=lambda _call: other)
    assert found == ("PERMISSION_DENIED", "PERMISSION_DENIED", 0)


def test_right__of_a_viewer__shows_no_secret_fields(rpcs: HealthRpcs) -> None:
    create = pb.CreateIncidentRequest(
        dataset_urn=URN, signal_type="VOLUME", failure_signatures=["A:b"], oncall_user="ana"
    )

    async def as_all(ports: Ports) -> pb.Incident:
        return await ports.call("grpc", f"{INCIDENTS}/CreateIncident", create, pb.Incident)

    opened = talk(rpcs.methods, as_all)
    asked = pb.GetIncidentRequest(incident_id=opened.incident_id)
    seen = talk(
        rpcs.methods,
        lambda ports: ports.call("grpc", f"{INCIDENTS}/GetIncident", asked, pb.Incident),
        identify=lambda _call: principal(Role.VIEWER),
    )

    assert (opened.oncall_user, seen.oncall_user) == ("ana", "***")


def test_right__of_a_copilot__is_to_say_the_cause_alone(rpcs: HealthRpcs) -> None:
    create = pb.CreateIncidentRequest(dataset_urn=URN, signal_type="VOLUME", failure_signatures=["A:b"])

    async def as_all(ports: Ports) -> str:
        return (await ports.call("grpc", f"{INCIDENTS}/CreateIncident", create, pb.Incident)).incident_id

    incident_id = talk(rpcs.methods, as_all)

    async def as_copilot(ports: Ports) -> tuple[str, str]:
        path = f"{INCIDENTS}/UpdateIncident"
        cause = pb.UpdateIncidentRequest(
            incident_id=incident_id, incident=pb.Incident(rca_summary="a bad deploy"), expected_version=-1
        )
        more = pb.UpdateIncidentRequest(
            incident_id=incident_id, incident=pb.Incident(rca_summary="x", status="RESOLVED"), expected_version=-1
        )
        done = await ports.call("grpc", path, cause, pb.Incident)
        return done.rca_summary, await code_of(ports, path, more)

    found = talk(rpcs.methods, as_copilot, identify=lambda _call: principal(Role.RCA_COPILOT))
    assert found == ("a bad deploy", "PERMISSION_DENIED")


# Evidence.


@PROTOCOLS
def test_evidence__put_and_read__is_what_was_said(rpcs: HealthRpcs, protocol: str) -> None:
    async def scenario(ports: Ports) -> tuple[pb.PutEvidenceResponse, pb.PutEvidenceResponse, pb.Evidence]:
        said = pb.PutEvidenceRequest(evidence=evidence())
        put = await ports.call(protocol, f"{EVIDENCE}/PutEvidence", said, pb.PutEvidenceResponse)
        said.evidence.evidence_id = put.evidence_id
        again = await ports.call(protocol, f"{EVIDENCE}/PutEvidence", said, pb.PutEvidenceResponse)
        asked = pb.GetEvidenceRequest(evidence_id=put.evidence_id)
        return put, again, await ports.call(protocol, f"{EVIDENCE}/GetEvidence", asked, pb.Evidence)

    put, again, found = talk(rpcs.methods, scenario)

    assert (put.stored, put.decision, again.decision) == (True, "STORED", "DUPLICATE")
    assert put.expires_at.seconds > NOW.timestamp()
    assert found == evidence(evidence_id=put.evidence_id)


def test_evidence__in_a_batch__is_each_answered_in_its_order(rpcs: HealthRpcs) -> None:
    passed = [evidence("PASS") for _ in range(200)]
    for each in passed:
        each.validation.ClearField("failed_gates")
        each.validation.ClearField("reason_codes")
    bad = [evidence("PERHAPS"), pb.Evidence(dataset_urn=URN), evidence(evidence_id="mine")]
    asked = pb.BatchPutEvidenceRequest(evidence=[*passed, *bad, evidence()])

    done = talk(
        rpcs.methods,
        lambda ports: ports.call("proto", f"{EVIDENCE}/BatchPutEvidence", asked, pb.BatchPutEvidenceResponse),
    )

    assert [each.decision for each in done.results[200:]] == ["REFUSED", "REFUSED", "REFUSED", "STORED"]
    assert all(each.error_message for each in done.results[200:203])
    assert done.sampled_out > 150
    assert (done.failed, done.stored + done.sampled_out) == (3, 201)
    assert len({each.evidence_id for each in done.results}) == 204
    stats = rpcs.health.evidence.stats
    assert (stats.offered, stats.refused, stats.sampled_out) == (204, 3, done.sampled_out)


def test_evidence__good_but_not_valid__does_not_keep_a_failure_from_being_stored(rpcs: HealthRpcs) -> None:
    async def scenario(ports: Ports) -> list[str]:
        found = []
        for each in (
            evidence("PASS"),
            evidence("PASS", evidence_id="mine"),
            evidence("PASS", evidence_id="mine"),
            evidence(),
        ):
            asked = pb.BatchPutEvidenceRequest(evidence=[each])
            done = await ports.call("grpc", f"{EVIDENCE}/BatchPutEvidence", asked, pb.BatchPutEvidenceResponse)
            found.append(done.results[0].decision)
        return found

    assert talk(rpcs.methods, scenario)[-1] == "STORED"


def test_evidence__too_much_at_once__is_refused(rpcs: HealthRpcs) -> None:
    asked = pb.BatchPutEvidenceRequest(evidence=[evidence() for _ in range(1001)])

    assert talk(rpcs.methods, lambda ports: code_of(ports, f"{EVIDENCE}/BatchPutEvidence", asked)) == "INVALID_ARGUMENT"


# Lineage, registry and gate.


def test_lineage__reported_and_asked__is_known_from_both_ends(rpcs: HealthRpcs) -> None:
    async def scenario(ports: Ports) -> tuple[Any, ...]:
        column = f"urn:col:{URN}:customer_id"
        result = pb.UpdateLineageRequest(
            spec_id="lspec:orders-job:git:abc123",
            dataset_writes=[
                pb.DatasetLineageEntry(
                    dataset_urn=URN, entity_id="job:orders-job", entity_name="Orders", entity_type="JOB"
                )
            ],
            column_writes=[pb.ColumnLineageEntry(column_urn=column)],
            confidence="MEDIUM",
        )
        done = await ports.call("json", "LineageIndexService/UpdateLineage", result, pb.UpdateLineageResponse)
        found = [
            await ports.call(
                "grpc", "LineageIndexService/GetWriters", pb.GetLineageRequest(urn=urn), pb.GetLineageResponse
            )
            for urn in (URN, column)
        ]
        producer = await ports.call(
            "grpc",
            "LineageIndexService/ListByProducer",
            pb.ListByProducerRequest(producer_id="job:orders-job"),
            pb.ListByProducerResponse,
        )
        spec = await ports.call(
            "grpc", "LineageIndexService/GetSpec", pb.GetLineageSpecRequest(spec_id=result.spec_id), pb.LineageSpec
        )
        return done, found, producer, spec

    done, (writers, column_writers), producer, spec = talk(rpcs.methods, scenario)

    assert (done.outcome, done.added) == ("APPLIED", 2)
    assert [(each.entity_id, each.confidence) for each in writers.entries] == [("job:orders-job", "MEDIUM")]
    assert len(column_writers.entries) == 1
    assert (list(producer.dataset_writes), producer.complete) == ([URN], True)
    assert (spec.producer_name, list(spec.dataset_writes)) == ("Orders", [URN])


def test_config__of_a_dataset_no_one_registered__is_as_the_caller_wants_it(rpcs: HealthRpcs) -> None:
    async def scenario(ports: Ports) -> tuple[Any, ...]:
        path = "RegistryService/GetConfig"
        known = await ports.call("json", path, pb.GetConfigRequest(dataset_urn=URN), pb.GetConfigResponse)
        warned = await ports.call("grpc", path, pb.GetConfigRequest(dataset_urn="urn:dp:no:one"), pb.GetConfigResponse)
        failing = pb.GetConfigRequest(dataset_urn="urn:dp:no:one", fallback_on_miss="FAIL")
        return known, warned, await code_of(ports, path, failing)

    known, warned, failed = talk(rpcs.methods, scenario)

    assert (known.config.tier, known.config.owner_team, known.is_fallback) == ("TIER_2", "orders", False)
    assert (warned.is_fallback, warned.config.tier, bool(warned.warning)) == (True, "TIER_3", True)
    assert failed == "NOT_FOUND"


def test_resolution__of_a_topic__follows_the_rules_and_explains_itself(rpcs: HealthRpcs) -> None:
    rpcs.health.resolver.add(
        RuleSpec(topic_pattern="raw.orders", name="orders", dataset_urn=URN), actor="test", reason="test"
    )

    async def scenario(ports: Ports) -> tuple[Any, ...]:
        path = "RegistryService/ResolveDataset"
        known = pb.ResolveDatasetRequest(topic="raw.orders", payload_json=b'{"a": 1}', explain=True)
        other = pb.ResolveDatasetRequest(topic="raw.other")
        bad = pb.ResolveDatasetRequest(topic="raw.orders", payload_json=b"{")
        return (
            await ports.call("json", path, known, pb.ResolveDatasetResponse),
            await ports.call("grpc", path, other, pb.ResolveDatasetResponse),
            await code_of(ports, path, bad),
        )

    known, other, bad = talk(rpcs.methods, scenario)

    assert (known.dataset_urn, known.unmapped, known.rule_name) == (URN, False, "orders")
    assert [step.outcome for step in known.explanation if step.rule_name == "orders"] == ["MATCHED"]
    assert (other.dataset_urn, other.unmapped, bool(other.warning)) == ("urn:dp:unknown:raw.other", True, True)
    assert bad == "INVALID_ARGUMENT"


def test_config__changed__is_reported_to_those_who_watch(rpcs: HealthRpcs) -> None:
    async def scenario(ports: Ports) -> list[pb.ConfigChange]:
        method: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = ports.channel.unary_stream(
            f"/{PACKAGE}.RegistryService/WatchChanges"
        )
        stream = method(pb.WatchConfigRequest(dataset_urns=[URN]).SerializeToString())
        reading = asyncio.ensure_future(stream.read())
        found: list[pb.ConfigChange] = []
        for number in range(200):
            # The watch begins at some moment after the call: until then changes are not its business.
            spec = DatasetSpec(tier=Tier.TIER_2, owner_team=f"team-{number}")
            await asyncio.to_thread(
                rpcs.health.registry.update, URN, spec, expected_version=-1, actor="test", reason="test"
            )
            done, _ = await asyncio.wait({reading}, timeout=0.1)
            if done:
                found.append(pb.ConfigChange.FromString(await reading))  # type: ignore[arg-type]
                break
        stream.cancel()
        return found

    (change,) = talk(rpcs.methods, scenario)

    assert (change.dataset_urn, list(change.changed_fields)) == (URN, ["owner_team"])
    assert change.cursor


def test_gate__while_a_signal_is_critical__blocks_and_says_why(rpcs: HealthRpcs) -> None:
    async def scenario(ports: Ports) -> list[pb.CheckResponse]:
        asked = pb.CheckRequest(dataset_urn=[URN], verb="read")
        found = []
        for minutes, state in ((-4, "OK"), (-1, "CRITICAL")):
            await ports.grpc(f"{SIGNALS}/UpdateSignalState", update(state, minutes=minutes).SerializeToString())
            found.append(await ports.call("json", "GateService/Check", asked, pb.CheckResponse))
        return found

    well, ill = talk(rpcs.methods, scenario)

    assert (well.decision, ill.decision) == ("allow", "block")
    assert {"SIGNAL_CRITICAL"} <= {reason.code for reason in ill.reasons}
    assert "operator" in ill.overridable_by
    assert (ill.complete, ill.datasets[0].dataset_urn) == (True, URN)


# Watching.


def test_watch__of_signals__reports_changes_and_goes_on_from_a_cursor(rpcs: HealthRpcs) -> None:
    async def scenario(ports: Ports) -> tuple[list[str], list[pb.SignalChange], str]:
        method: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = ports.channel.unary_stream(
            f"/{PACKAGE}.{SIGNALS}/Watch"
        )

        async def send(state: str, minutes: int) -> None:
            await ports.grpc(f"{SIGNALS}/UpdateSignalState", update(state, minutes=minutes).SerializeToString())

        async def read(stream: Any) -> pb.SignalChange:
            return pb.SignalChange.FromString(await asyncio.wait_for(stream.read(), 20))

        await send("OK", -9)
        first = method(pb.WatchSignalsRequest(dataset_urns=[URN], cursor="evt_" + "0" * 26).SerializeToString())
        seen = [await read(first)]
        await send("WARNING", -4)
        seen.append(await read(first))
        first.cancel()
        await send("OK", -1)
        again = method(pb.WatchSignalsRequest(cursor=seen[0].cursor).SerializeToString())
        rest = [await read(again), await read(again)]
        again.cancel()
        bad = method(pb.WatchSignalsRequest(cursor="nonsense").SerializeToString())
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await bad.read()
        return [each.signal.value.state for each in seen], rest, caught.value.code().name

    states, rest, refused = talk(rpcs.methods, scenario)

    assert states == ["OK", "WARNING"]
    assert len({each.cursor for each in rest}) == 2
    assert [each.signal.value.state for each in rest] == ["WARNING", "OK"], "each transition once, as it was"
    assert [each.signal.version for each in rest] == [2, 3]
    assert rest[0].signal.value.window_end.ToJsonString() < rest[1].signal.value.window_end.ToJsonString()
    assert refused == "INVALID_ARGUMENT"


def test_watch__of_incidents__shows_those_in_reach(rpcs: HealthRpcs) -> None:
    async def scenario(ports: Ports) -> pb.IncidentChange:
        await ports.grpc(f"{SIGNALS}/UpdateSignalState", update("CRITICAL").SerializeToString())
        method: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = ports.channel.unary_stream(
            f"/{PACKAGE}.{INCIDENTS}/Watch"
        )
        stream = method(pb.WatchIncidentsRequest(cursor="evt_" + "0" * 26).SerializeToString())
        return pb.IncidentChange.FromString(await asyncio.wait_for(stream.read(), 20))  # type: ignore[arg-type]

    change = talk(rpcs.methods, scenario)

    assert (change.event_type, change.incident.primary_dataset_urn) == ("INCIDENT_CREATED", URN)


# Strangers.


def test_client__of_another_team__talks_to_ours(rpcs: HealthRpcs, tmp_path: Path) -> None:
    here = Path(__file__).parent
    compiled = tmp_path / "neighbour.binpb"
    arguments = ["protoc", f"-I{here}", "--include_imports", f"--descriptor_set_out={compiled}", "neighbour.proto"]
    included = Path(protoc.__file__).parent / "_proto"
    assert protoc.main([*arguments, f"-I{included}"]) == 0
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(compiled.read_bytes()).file:
        pool.AddSerializedFile(file.SerializeToString())

    def theirs(name: str) -> Any:
        return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))

    async def call(ports: Ports, path: str, request: Any, response: str) -> Any:
        return theirs(response).FromString(await ports.grpc(path, request.SerializeToString()))

    async def scenario(ports: Ports) -> tuple[Any, ...]:
        value = theirs("SignalStateValue")(
            state="CRITICAL",
            score=0.1,
            window_start=NOW - timedelta(minutes=5),
            window_end=NOW,
            failure_signature="MISSING_FIELD:x",
        )
        said = theirs("UpdateSignalStateRequest")(dataset_urn=URN, signal_type="VOLUME", state=value)
        done = await call(ports, f"{SIGNALS}/UpdateSignalState", said, "UpdateSignalStateResponse")
        asked = theirs("GetSignalStateRequest")(dataset_urn=URN, signal_type="VOLUME")
        signal = await call(ports, f"{SIGNALS}/GetSignalState", asked, "SignalState")
        incident = await call(
            ports,
            f"{INCIDENTS}/GetIncident",
            theirs("GetIncidentRequest")(incident_id=signal.value.incident_id),
            "Incident",
        )
        proof = theirs("Evidence")(dataset_urn=URN, validation=theirs("ValidationResult")(result="FAIL"))
        put = await call(
            ports, f"{EVIDENCE}/PutEvidence", theirs("PutEvidenceRequest")(evidence=proof), "PutEvidenceResponse"
        )
        return done, signal, incident, put

    done, signal, incident, put = talk(rpcs.methods, scenario)

    assert (done.success, done.new_version) == (True, 1)
    assert (signal.value.state, signal.value.score, signal.version) == ("CRITICAL", 0.1, 1)
    assert incident.status == "OPEN"
    assert (put.stored, put.decision) == (True, "STORED")


def test_bytes__of_any_kind__are_never_the_servers_fault(rpcs: HealthRpcs) -> None:
    chance = random.Random(7)
    contents = [b"", b"\0", b"\xff" * 20, b"{}", *(chance.randbytes(chance.randrange(1, 60)) for _ in range(12))]

    async def scenario(ports: Ports) -> set[str]:
        bad = set()
        for method in rpcs.methods:
            path = method.path.removeprefix(f"/{PACKAGE}.")
            if method.is_stream:
                continue
            for content in contents:
                try:
                    await ports.grpc(path, content)
                except grpc.aio.AioRpcError as exc:
                    if exc.code().name in ("INTERNAL", "UNKNOWN", "DATA_LOSS"):
                        bad.add(f"grpc {path} {content!r} {exc.details()}")
                for media in ("application/proto", "application/json"):
                    answer = await ports.post(path, content, media)
                    if answer.status_code >= 500:
                        bad.add(f"{media} {path} {content!r} {answer.text}")
        return bad

    assert talk(rpcs.methods, scenario) == set()


def _filled(draw: Any, message: Any, depth: int = 0) -> Any:
    """Fill a message with anything that its types allow."""
    texts = st.sampled_from(["", URN, "urn:dp:x", "\0", "\N{SNOWMAN}" * 40, "OK", "INC-1", "evd-1", "read", "a" * 3000])
    kinds: dict[int, Any] = {1: st.floats(), 5: st.integers(-(2**31), 2**31 - 1), 8: st.booleans(), 9: texts}
    kinds[3] = st.integers(-(2**63), 2**63 - 1)
    for field in message.DESCRIPTOR.fields:
        if not draw(st.booleans()):
            continue
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        if is_map or (field.message_type is not None and depth > 2):
            continue
        if field.message_type is not None:
            target = getattr(message, field.name)
            _filled(draw, target.add() if field.is_repeated else target, depth + 1)
            if not field.is_repeated:
                target.SetInParent()
        elif field.is_repeated:
            getattr(message, field.name).extend(draw(st.lists(kinds[field.type], max_size=3)))
        elif field.type in kinds:
            setattr(message, field.name, draw(kinds[field.type]))
    return message


@given(st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_message__of_any_content__is_never_the_servers_fault(rpcs: HealthRpcs, data: st.DataObject) -> None:

    method = data.draw(st.sampled_from([each for each in rpcs.methods if not each.is_stream]))
    message = _filled(data.draw, method.request())

    async def handled() -> Message:
        answer = method.handler(message, RpcCall({}, "", SystemClock()))
        found: Message = await answer if method.is_async else answer
        return found

    try:
        asyncio.run(handled()).SerializeToString()
    except HeadgateError as exc:
        assert not isinstance(exc, FatalError), f"{method.label}: {exc!r}"


def test_put_many__evidence_of_a_hundred_datasets__is_not_a_hundred_calls_to_the_registry(tmp_path: Path) -> None:
    with open_board(tmp_path) as board:
        board.register(ORDERS)
        port = EvidenceAdapter(board.health.evidence, board.process().registry.names)
        board.store.calls.clear()
        names = [ORDERS.removesuffix(":v1"), *(f"urn:dp:shop:set_{number}" for number in range(100))]

        answer = port.put_many([pb.Evidence(dataset_urn=name, validation={"result": "PASS"}) for name in names])

        assert (len(answer.results), answer.failed) == (101, 0)
        assert sum(board.store.calls.values()) <= 6
