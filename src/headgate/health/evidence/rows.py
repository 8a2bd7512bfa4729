"""Evidence rows: the result of one check of one record, its validation, and its row and JSON forms.

A row has the attribute names of the public table layout, nested as there. It may also have `ttl`, and an attribute
`pin#{incident_id}` for each incident that pins it (see `pins`).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta, Struct

from headgate import typed_decode
from headgate.errors import CorruptionError, InvalidPayloadError
from headgate.health.model import enums
from headgate.health.model.enums import Confidence
from headgate.health.model.timestamps import instant, moment
from headgate.health.model.urns import dataset_urn, evidence_id
from headgate.store.model.values import Item

PREFIX: Final = "evd-"
PIN: Final = "pin#"
PIN_MARK: Final = "pin_mark"
TTL: Final = "ttl"
# So that a hundred fit one transaction, and none spills into a blob.
EVIDENCE_BYTES_MAX: Final = 16 * 1024
_SHOWN_MAX: Final = 40

Word = Annotated[str, Meta(max_length=256)]
Code = Annotated[str, Meta(min_length=1, max_length=512)]
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
# Kafka offsets and partitions.
Partition = Annotated[int, Meta(ge=0, le=2**31 - 1)]
# The standard says 32 and 16 hex digits. Others are accepted: an unusable trace id is no reason to lose evidence.
TraceId = Annotated[str, Meta(pattern=r"^[0-9A-Za-z._-]{1,64}\Z")]


class Result(enum.StrEnum):
    """The result of a check. WARN: it passed with a concern. SKIP: it was not run."""

    PASS = "PASS"
    FAIL = "FAIL"
    WARN = "WARN"
    SKIP = "SKIP"


_RESULTS: Final[Mapping[str, Result]] = {
    **{each.value: each for each in Result},
    **dict.fromkeys(("PASSED", "SUCCESS", "OK", "VALID"), Result.PASS),
    **dict.fromkeys(("FAILED", "FAILURE", "ERROR", "INVALID"), Result.FAIL),
    "WARNING": Result.WARN,
    **dict.fromkeys(("SKIPPED", "NOT_EVALUATED"), Result.SKIP),
}
# From worst to best: the result of a whole check is the worst of its gates.
_WORST_FIRST: Final = (Result.FAIL, Result.WARN, Result.PASS, Result.SKIP)


class Producer(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The producer of the record, and the confidence in that."""

    producer_id: Annotated[str, Meta(min_length=1, max_length=256)]
    version: Word | None = None
    confidence: Confidence | None = None


class Source(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Where the record was read."""

    topic: Word | None = None
    partition: Partition | None = None
    offset: Count | None = None
    timestamp_type: Word | None = None


class Gate(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The result of one gate of the check. `details` is text, or JSON as text."""

    gate: Code
    result: Result
    reason_code: Code | None = None
    details: Annotated[str, Meta(max_length=2048)] = ""


class Validation(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The result of the check, and its reasons."""

    result: Result
    failed_gates: Annotated[tuple[Code, ...], Meta(max_length=32)] = ()
    reason_codes: Annotated[tuple[Code, ...], Meta(max_length=32)] = ()
    gates: Annotated[tuple[Gate, ...], Meta(max_length=32)] = ()


class Fingerprints(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Hashes that identify schema and content without revealing them."""

    schema_fingerprint: Word | None = None
    payload_hash: Word | None = None


class Otel(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The trace of the check."""

    trace_id: TraceId | None = None
    span_id: TraceId | None = None


class Correlation(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The run that produced the record."""

    run_id: Word | None = None
    dag_id: Word | None = None
    job_id: Word | None = None


class Evidence(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """An item of evidence. It gets an id if it has none, and the current time if it has no `created_at`.

    `payload_ref` is the location of the record. It is stored as given and never followed.
    """

    evidence_id: str = ""
    dataset_urn: str
    created_at: str = ""
    producer: Producer | None = None
    source: Source | None = None
    validation: Validation
    fingerprints: Fingerprints | None = None
    otel: Otel | None = None
    correlation: Correlation | None = None
    payload_ref: Annotated[str, Meta(max_length=2048)] | None = None
    payload_size_bytes: Count | None = None
    # Set on answers only: the incidents that pin it, and whether it came from the archive.
    pinned_by: tuple[str, ...] = ()
    archived: bool = False

    @property
    def signature(self) -> str:
        """The failure signature: the first reason, or else the first failed gate."""
        validation = self.validation
        if validation.reason_codes:
            return validation.reason_codes[0]
        return validation.failed_gates[0] if validation.failed_gates else ""


T = TypeVar("T", bound=Struct)

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(Evidence).decode
_read: Final = msgspec.json.Decoder().decode


def result(given: str) -> Result:
    """Return the result of a word. Raises `InvalidPayloadError`."""
    found = _RESULTS.get(given) or _RESULTS.get(given.strip().upper().replace("-", "_"))
    if found is None:
        names = ", ".join(each.value for each in Result)
        raise InvalidPayloadError(f"validation.result {given[:_SHOWN_MAX]!r}: not one of {names}")
    return found


def line_of(evidence: Evidence, made_id: str, now_ms: int) -> bytes:
    """Return evidence as one line of JSON. Raises `InvalidIdError` or `InvalidPayloadError`, naming the field."""
    evidence_id(made_id)
    dataset_urn(evidence.dataset_urn)
    given = evidence.created_at
    try:
        created_at = moment(given, field="created_at") if given else instant(now_ms)
        line = _encode(
            msgspec.structs.replace(evidence, evidence_id=made_id, created_at=created_at, pinned_by=(), archived=False)
        )
        # A struct built in Python is not validated on construction.
        _decode(line)
    except (msgspec.ValidationError, UnicodeEncodeError, TypeError) as exc:
        raise InvalidPayloadError(f"evidence {made_id}: {exc}") from exc
    size = len(line)
    if size > EVIDENCE_BYTES_MAX:
        raise InvalidPayloadError(
            f"evidence {made_id}: {size} bytes, at most {EVIDENCE_BYTES_MAX}; store large content behind payload_ref"
        )
    return line


def evidence_of(row: Mapping[str, Any]) -> Evidence:
    """Return the evidence of a row. Raises `CorruptionError` for an invalid row."""
    try:
        found = typed_decode.convert(row, Evidence)
    except msgspec.ValidationError as exc:
        raise CorruptionError(f"evidence {row.get('evidence_id')!r}: invalid row: {exc}") from exc
    if PIN_MARK not in row:
        return found
    pins = tuple(sorted(name.removeprefix(PIN) for name in row if name.startswith(PIN)))
    return msgspec.structs.replace(found, pinned_by=pins)


def content_of(row: Mapping[str, Any]) -> Item:
    """Return the content of a row, without its ttl and pins."""
    return {name: value for name, value in row.items() if name not in (TTL, PIN_MARK) and not name.startswith(PIN)}


def archived_evidence(line: bytes) -> Evidence:
    """Return the evidence of an archived line. Raises `msgspec.DecodeError` if the line is corrupt."""
    return msgspec.structs.replace(_decode(line), archived=True)


def row_of_line(line: bytes) -> Item:
    """Return the row of a line."""
    row: Item = _read(line)
    return row


def from_outside(given: Mapping[str, Any]) -> Evidence:
    """Return evidence in this store's form, given in that form or in the form of the evidence bus.

    The bus has `timestamp` for `created_at`, `producer.id` for `producer_id`, results of single gates, and a bare
    `trace_id`. Missing values are left out. Raises `InvalidPayloadError` or `InvalidIdError`.
    """
    shaped = {
        "evidence_id": given.get("evidence_id") or "",
        "dataset_urn": given.get("dataset_urn"),
        "created_at": given.get("created_at") or given.get("timestamp") or "",
        "producer": _producer(_map(given, "producer")),
        "source": _part(_map(given, "source"), Source),
        "validation": validation_of(_map(given, "validation")),
        "fingerprints": _part(_map(given, "fingerprints"), Fingerprints),
        "otel": _otel(given),
        "correlation": _part(_map(given, "correlation"), Correlation),
        "payload_ref": given.get("payload_ref"),
        "payload_size_bytes": given.get("payload_size_bytes"),
    }
    evidence = checked({name: value for name, value in shaped.items() if value is not None})
    if not evidence.created_at:
        return evidence
    return msgspec.structs.replace(evidence, created_at=moment(evidence.created_at, field="created_at"))


def checked(given: Mapping[str, Any]) -> Evidence:
    """Return evidence with all parts in this store's form and a canonical timestamp.

    Raises `InvalidPayloadError` or `InvalidIdError`.
    """
    try:
        evidence = typed_decode.convert(given, Evidence)
    except msgspec.ValidationError as exc:
        raise InvalidPayloadError(f"evidence {str(given.get('evidence_id', ''))[:_SHOWN_MAX]!r}: {exc}") from exc
    if evidence.evidence_id:
        evidence_id(evidence.evidence_id)
    dataset_urn(evidence.dataset_urn)
    return evidence


def _map(given: Mapping[str, Any], field: str) -> Mapping[str, Any] | None:
    found = given.get(field)
    if found is not None and not isinstance(found, Mapping):
        raise InvalidPayloadError(f"evidence: {field} is {type(found).__name__}; give an object")
    return found


def _part(given: Mapping[str, Any] | None, kind: type[T]) -> dict[str, Any] | None:
    """Return the known fields of a part, or None."""
    if given is None:
        return None
    return {name: given[name] for name in kind.__struct_fields__ if given.get(name) is not None} or None


def _producer(given: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if given is None or not (given.get("producer_id") or given.get("id")):
        return None
    part = {"producer_id": given.get("producer_id") or given["id"], "version": given.get("version")}
    confidence = given.get("confidence")
    if confidence:
        part["confidence"] = enums.confidence(str(confidence))
    return {name: value for name, value in part.items() if value is not None}


def _otel(given: Mapping[str, Any]) -> dict[str, Any] | None:
    part = dict(_part(_map(given, "otel"), Otel) or {})
    for name in ("trace_id", "span_id"):
        if name not in part and given.get(name):
            part[name] = given[name]
    return part or None


def validation_of(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a validation in this store's form. Raises `InvalidPayloadError`."""
    if given is None:
        raise InvalidPayloadError("evidence: validation is missing; give at least its result")
    gates = [_gate(gate) for gate in _sequence(given, "gates")]
    given_result = given.get("result")
    if given_result is None and not gates:
        raise InvalidPayloadError("evidence: validation.result is missing; write PASS, FAIL, WARN or SKIP")
    failed = [gate for gate in gates if gate["result"] is Result.FAIL]
    reasons = [gate["reason_code"] for gate in failed if "reason_code" in gate]
    return {
        "result": _worst(gate["result"] for gate in gates) if given_result is None else result(str(given_result)),
        "failed_gates": _sequence(given, "failed_gates") or [gate["gate"] for gate in failed],
        "reason_codes": _sequence(given, "reason_codes") or list(dict.fromkeys(reasons)),
        "gates": gates,
    }


def _gate(given: object) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise InvalidPayloadError(f"evidence: validation.gates holds {type(given).__name__}; give objects")
    part = _part(given, Gate) or {}
    part["result"] = result(str(given.get("result", "")))
    details = part.get("details")
    if details is not None and not isinstance(details, str):
        part["details"] = _as_json(details)
    try:
        typed_decode.convert(part, Gate)
    except msgspec.ValidationError as exc:
        raise InvalidPayloadError(f"evidence: validation.gates: {exc}") from exc
    return part


def _as_json(details: object) -> str:
    try:
        return msgspec.json.encode(details).decode()
    except (TypeError, ValueError) as exc:
        raise InvalidPayloadError(f"evidence: validation.gates: details cannot be written as JSON: {exc}") from exc


def _sequence(given: Mapping[str, Any], field: str) -> list[Any]:
    found = given.get(field) or []
    if not isinstance(found, list | tuple):
        raise InvalidPayloadError(f"evidence: validation.{field} is {type(found).__name__}; give a list")
    return list(found)


def _worst(results: Iterable[Result]) -> Result:
    present = set(results)
    return next(each for each in _WORST_FIRST if each in present)
