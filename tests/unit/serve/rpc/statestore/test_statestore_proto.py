"""The .proto file: what is compiled is what is written, and what others have compiled before stays true."""

from __future__ import annotations

import importlib.resources
from pathlib import Path
from typing import Final

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool
from grpc_tools import protoc  # type: ignore[import-untyped]  # it has no stubs

from headgate.serve.rpc.statestore import proto as pb

SERVE: Final = Path(pb.__file__).parent
NAME: Final = "observability/statestore/v1/statestore.proto"
# What was promised first, number by number: programs that were built from it must go on to work.
PROMISED: Final = {
    "UpdateSignalStateRequest": {"dataset_urn": 1, "signal_type": 2, "state": 3, "expected_version": 4},
    "SignalStateValue": {
        "state": 1, "score": 2, "slo_threshold": 3, "breach_start": 4, "window_start": 5, "window_end": 6,
        "window_type": 7, "metrics": 8, "failure_signature": 9, "top_producer": 10, "evidence_sample": 11,
        "incident_id": 12,
    },
    "SignalMetrics": {"evidence_count": 1, "pass_count": 2, "fail_count": 3},
    "ProducerInfo": {"producer_id": 1, "version": 2, "confidence": 3},
    "UpdateSignalStateResponse": {"success": 1, "new_version": 2, "error_code": 3, "error_message": 4},
    "BatchUpdateSignalStateRequest": {"updates": 1},
    "BatchUpdateSignalStateResponse": {"results": 1, "success_count": 2, "failure_count": 3},
    "PutEvidenceRequest": {"evidence": 1},
    "Evidence": {
        "evidence_id": 1, "dataset_urn": 2, "created_at": 3, "producer": 4, "source": 5, "validation": 6,
        "fingerprints": 7, "otel": 8, "payload_ref": 9, "payload_size_bytes": 10,
    },
}  # fmt: skip
METHODS: Final = {
    "SignalStateService": ["UpdateSignalState", "BatchUpdateSignalState", "GetSignalState", "GetDatasetSignals"],
    "EvidenceCacheService": ["PutEvidence", "BatchPutEvidence", "GetEvidence"],
    "IncidentService": ["CreateIncident", "UpdateIncident", "GetIncident", "ResolveIncident"],
}


def compile_proto(folder: Path) -> None:
    included = str(importlib.resources.files("grpc_tools") / "_proto")
    arguments = [
        "protoc",
        f"-I{Path(NAME).parent}={SERVE}",
        f"-I{included}",
        "--include_imports",
        f"--descriptor_set_out={folder / 'statestore.binpb'}",
        f"--pyi_out={folder}",
        NAME,
    ]
    assert protoc.main(arguments) == 0


def test_compiled__again__is_what_is_kept(tmp_path: Path) -> None:
    compile_proto(tmp_path)

    assert (tmp_path / "statestore.binpb").read_bytes() == (SERVE / "statestore.binpb").read_bytes(), "run make proto"
    typed = (tmp_path / NAME).with_name("statestore_pb2.pyi")
    assert typed.read_text() == (SERVE / "proto.pyi").read_text(), "run make proto"


@pytest.mark.parametrize("message", PROMISED)
def test_message__promised_before__keeps_its_numbers(message: str) -> None:
    found = pb.DESCRIPTOR.message_types_by_name[message]

    numbers = {field.name: field.number for field in found.fields}
    assert {name: numbers[name] for name in PROMISED[message]} == PROMISED[message]


@pytest.mark.parametrize("service", METHODS)
def test_service__promised_before__keeps_its_methods(service: str) -> None:
    found = pb.DESCRIPTOR.services_by_name[service]

    assert found.full_name == f"observability.statestore.v1.{service}"
    assert set(METHODS[service]) <= set(found.methods_by_name)
    assert not any(found.methods_by_name[name].server_streaming for name in METHODS[service])


def test_messages__of_an_app_with_its_own_stubs__do_not_clash() -> None:
    files = descriptor_pb2.FileDescriptorSet.FromString((SERVE / "statestore.binpb").read_bytes())
    for theirs in files.file:
        if theirs.package == "observability.statestore.v1":
            theirs.name = "their/own/copy.proto"
        descriptor_pool.Default().AddSerializedFile(theirs.SerializeToString())

    assert descriptor_pool.Default().FindFileByName("their/own/copy.proto") is not None
    assert pb.SignalState.FromString(pb.SignalState(version=1).SerializeToString()).version == 1
