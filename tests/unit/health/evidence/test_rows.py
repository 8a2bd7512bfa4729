"""Evidence as it comes from outside: both forms are taken, what is wrong is named, and what was given is kept."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headgate.errors import CorruptionError, InvalidIdError, InvalidPayloadError, UserError
from headgate.health.evidence.rows import (
    EVIDENCE_BYTES_MAX,
    Evidence,
    Result,
    Validation,
    evidence_of,
    from_outside,
    line_of,
    result,
    row_of_line,
)
from headgate.health.model.enums import Confidence
from headgate.health.model.urns import is_evidence_id

ID = "evd-01HQXY8MNP4QR7ST9VW2XYZ456"
SEED: dict[str, Any] = {
    "evidence_id": ID,
    "dataset_urn": "urn:dp:orders:order_created:v1",
    "created_at": "2026-01-15T09:58:02.312Z",
    "producer": {"producer_id": "orders-svc", "version": "v3.17", "confidence": "HIGH"},
    "source": {"topic": "raw.orders.events", "partition": 12, "offset": 847293847},
    "validation": {"result": "FAIL", "failed_gates": ["G4_CONTRACT"], "reason_codes": ["MISSING_FIELD:customer_id"]},
    "fingerprints": {"schema_fingerprint": "sha256:9f2c...", "payload_hash": "sha256:ab12..."},
    "otel": {"trace_id": "abc123def456...", "span_id": "789xyz..."},
    "payload_ref": "s3://evidence-bucket/2026/01/15/evd-01HQXY8MNP...json.gz",
    "payload_size_bytes": 2048,
}
BUS: dict[str, Any] = {
    "evidence_id": ID,
    "timestamp": "2026-01-15T10:58:02.312+01:00",
    "dataset_urn": "urn:dp:orders:created",
    "producer": {"id": "orders-svc", "confidence": "NONE", "version": "v3.17"},
    "source": {"topic": "raw.orders.events", "partition": 0, "offset": 0, "timestamp_type": "CREATE_TIME"},
    "validation": {
        "gates": [
            {"gate": "G1_SCHEMA", "result": "pass"},
            {"gate": "G4_CONTRACT", "result": "FAILED", "reason_code": "MISSING_FIELD:id", "details": {"field": "id"}},
            {"gate": "G5_PII", "result": "SKIP"},
        ]
    },
    "correlation": {"run_id": "r1", "dag_id": "d1", "job_id": "j1"},
    "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
}
NOW_MS = 1_768_471_082_312


def test_from_outside__given_the_store_s_own_form__then_the_row_has_exactly_what_was_given() -> None:
    assert row_of_line(line_of(from_outside(SEED), ID, NOW_MS)) == SEED


def test_from_outside__given_the_form_of_the_bus__then_it_is_mapped() -> None:
    found = from_outside(BUS)

    assert found.created_at == "2026-01-15T09:58:02.312Z"
    assert found.dataset_urn == "urn:dp:orders:created"
    assert found.producer is not None
    assert (found.producer.producer_id, found.producer.confidence) == ("orders-svc", Confidence.LOW)
    assert found.source is not None
    assert (found.source.partition, found.source.offset, found.source.timestamp_type) == (0, 0, "CREATE_TIME")
    assert found.validation.result is Result.FAIL
    assert found.validation.failed_gates == ("G4_CONTRACT",)
    assert found.validation.reason_codes == ("MISSING_FIELD:id",)
    assert [gate.details for gate in found.validation.gates] == ["", '{"field":"id"}', ""]
    assert found.correlation is not None
    assert found.correlation.dag_id == "d1"
    assert found.otel is not None
    assert found.otel.trace_id == BUS["trace_id"]
    assert found.signature == "MISSING_FIELD:id"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("Passed", Result.PASS),
        ("ok", Result.PASS),
        ("error", Result.FAIL),
        (" FAIL ", Result.FAIL),
        ("warning", Result.WARN),
        ("skipped", Result.SKIP),
        ("not-evaluated", Result.SKIP),
    ],
)
def test_result__given_an_alias__then_it_is_understood(said: str, expected: Result) -> None:
    assert result(said) is expected


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"evidence_id": "evd-1"}, "evidence_id"),
        ({"evidence_id": "evd-01hqxy8mnp4qr7st9vw2xyz456"}, "evidence_id"),
        ({"evidence_id": "evd-91HQXY8MNP4QR7ST9VW2XYZ456"}, "evidence_id"),
        ({"evidence_id": 7}, "evidence_id"),
        ({"dataset_urn": "orders"}, "dataset"),
        ({"dataset_urn": None}, "dataset_urn"),
        ({"created_at": "yesterday"}, "created_at"),
        ({"created_at": "2026-01-15T09:58:02"}, "created_at"),
        ({"validation": None}, "validation"),
        ({"validation": {}}, "validation.result"),
        ({"validation": {"result": "MAYBE"}}, "validation.result"),
        ({"validation": {"result": "FAIL", "reason_codes": ["X"] * 33}}, "reason_codes"),
        ({"validation": {"result": "FAIL", "reason_codes": "X"}}, "reason_codes"),
        ({"validation": {"result": "FAIL", "reason_codes": ["X" * 513]}}, "reason_codes"),
        ({"validation": {"gates": [{"result": "FAIL"}]}}, "gate"),
        ({"validation": {"gates": ["G1"]}}, "gates"),
        ({"validation": {"gates": [{"gate": "G1", "result": "FAIL", "reason_code": ["X"]}]}}, "reason_code"),
        ({"validation": {"gates": [{"gate": "G1", "result": "FAIL", "details": {"x": object()}}]}}, "details"),
        ({"producer": "orders-svc"}, "producer"),
        ({"producer": {"producer_id": "x" * 257}}, "producer_id"),
        ({"producer": {"producer_id": "x", "confidence": "SURE"}}, "confidence"),
        ({"source": {"partition": -1}}, "partition"),
        ({"source": {"offset": 2**63}}, "offset"),
        ({"source": {"partition": 2**31}}, "partition"),
        ({"otel": {"trace_id": "no spaces here"}}, "trace_id"),
        ({"payload_ref": "x" * 2049}, "payload_ref"),
        ({"payload_size_bytes": -1}, "payload_size_bytes"),
        ({"payload_size_bytes": True}, "payload_size_bytes"),
    ],
)
def test_from_outside__given_a_field_that_is_wrong__then_the_error_names_it(change: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=named):
        from_outside({**SEED, **change})


def test_row_of__given_python_values_of_wrong_types__then_they_are_refused() -> None:
    bad = Evidence(dataset_urn="urn:dp:a:b", validation=Validation(result="PERHAPS"))  # type: ignore[arg-type]

    with pytest.raises(InvalidPayloadError, match=r"validation\.result"):
        row_of_line(line_of(bad, ID, NOW_MS))


def test_row_of__given_half_a_surrogate_pair__then_it_is_refused() -> None:
    bad = Evidence(dataset_urn="urn:dp:a:b", validation=Validation(result=Result.FAIL), payload_ref="\ud800")

    with pytest.raises(InvalidPayloadError):
        row_of_line(line_of(bad, ID, NOW_MS))


def test_row_of__given_more_than_is_taken__then_it_says_how_much() -> None:
    many = Validation(result=Result.FAIL, reason_codes=tuple(f"{n}".ljust(512, "x") for n in range(32)))
    bad = Evidence(dataset_urn="urn:dp:a:b", validation=many, payload_ref="x" * 2048)

    with pytest.raises(InvalidPayloadError, match=str(EVIDENCE_BYTES_MAX)):
        row_of_line(line_of(bad, ID, NOW_MS))


def test_row_of__given_neither_id_nor_moment__then_both_are_filled_in_and_answers_are_not_stored() -> None:
    given = Evidence(dataset_urn="urn:dp:a:b", validation=Validation(result=Result.PASS), archived=True)
    given = msgspec.structs.replace(given, pinned_by=("INC-1",))

    row = row_of_line(line_of(given, ID, NOW_MS))

    assert row["evidence_id"] == ID
    assert row["created_at"] == "2026-01-15T09:58:02.312Z"
    assert row.keys() == {"evidence_id", "dataset_urn", "created_at", "validation"}


def test_row_of__given_an_id_of_another_form__then_it_is_refused() -> None:
    with pytest.raises(InvalidIdError):
        row_of_line(line_of(from_outside(SEED), "evidence 7", NOW_MS))


def test_evidence_of__given_a_row_that_someone_spoilt__then_it_is_said() -> None:
    with pytest.raises(CorruptionError, match=ID):
        evidence_of({"evidence_id": ID, "dataset_urn": 7})


def test_is_evidence_id__given_a_line_end__then_no() -> None:
    assert is_evidence_id(ID)
    assert not is_evidence_id(f"{ID}\n")
