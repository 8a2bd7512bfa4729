"""Evidence over RPC: of what comes in, what the sample leaves out is never read beyond four of its fields."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from headgate.errors import InvalidPayloadError, NotFoundError, UserError
from headgate.health.evidence import EvidenceCache, Offer
from headgate.health.evidence_intake import Decision, Put
from headgate.health.evidence_rows import Evidence, from_outside
from headgate.health.sampling import Admission
from headgate.serve import statestore as pb
from headgate.serve.statestore_messages import moment_of, set_moment

BATCH_MAX: Final = 1000
_TEXTS: Final = {
    "producer": ("producer_id", "version", "confidence"),
    "fingerprints": ("schema_fingerprint", "payload_hash"),
    "otel": ("trace_id", "span_id"),
    "correlation": ("run_id", "dag_id", "job_id"),
}


def evidence_of(message: pb.Evidence) -> Evidence:
    """Return what a message says. Raises `InvalidPayloadError` or `InvalidIdError`."""
    given: dict[str, Any] = {
        "evidence_id": message.evidence_id,
        "dataset_urn": message.dataset_urn,
        "created_at": moment_of(message, "created_at"),
        "payload_ref": message.payload_ref or None,
        "payload_size_bytes": message.payload_size_bytes or None,
        **{part: _texts(message, part) for part in _TEXTS if message.HasField(part)},
    }
    if message.source.topic:
        source = message.source
        given["source"] = {
            "topic": source.topic,
            "partition": source.partition,
            "offset": source.offset,
            "timestamp_type": source.timestamp_type or None,
        }
    if message.HasField("validation"):
        given["validation"] = _validation(message.validation)
    return from_outside(given)


def evidence_message(evidence: Evidence) -> pb.Evidence:
    """Return evidence as a message."""
    message = pb.Evidence(
        evidence_id=evidence.evidence_id,
        dataset_urn=evidence.dataset_urn,
        payload_ref=evidence.payload_ref or "",
        payload_size_bytes=evidence.payload_size_bytes or 0,
        pinned_by=evidence.pinned_by,
        archived=evidence.archived,
    )
    set_moment(message, "created_at", evidence.created_at)
    for part, fields in (*_TEXTS.items(), ("source", ("topic", "partition", "offset", "timestamp_type"))):
        found = getattr(evidence, part)
        if found is not None:
            _fill(getattr(message, part), found, fields)
    said = evidence.validation
    message.validation.result = said.result
    message.validation.failed_gates.extend(said.failed_gates)
    message.validation.reason_codes.extend(said.reason_codes)
    for gate in said.gates:
        message.validation.gates.add(
            gate=gate.gate, result=gate.result, reason_code=gate.reason_code or "", details=gate.details
        )
    return message


def put_message(put: Put) -> pb.PutEvidenceResponse:
    """Return what became of a piece of evidence."""
    if put.decision is Decision.SAMPLED_OUT:
        # Nearly all, and there is no more to say of them.
        return pb.PutEvidenceResponse(decision=put.decision, evidence_id=put.evidence_id)
    message = pb.PutEvidenceResponse(stored=put.stored, decision=put.decision, evidence_id=put.evidence_id)
    set_moment(message, "expires_at", put.expires_at)
    if put.error is not None:
        message.error_code = put.error.code.upper()
        message.error_message = put.error.message
    return message


class EvidencePort:
    """Takes and gives evidence as messages."""

    def __init__(self, cache: EvidenceCache) -> None:
        self._cache = cache

    def put(self, message: pb.Evidence) -> Put:
        """Take one piece. Raises as `EvidenceCache.put`."""
        [answer] = self.put_many([message])
        if answer.error is not None:
            raise answer.error
        return answer

    def put_many(self, messages: Sequence[pb.Evidence]) -> list[Put]:
        """Take many pieces, each by itself, and return what became of each. Raises `InvalidPayloadError` for too many.

        If the store fails, some may be stored: offer them again, and those are duplicates.
        """
        if len(messages) > BATCH_MAX:
            raise InvalidPayloadError(f"evidence: {len(messages)} at once; send at most {BATCH_MAX}")
        answers: list[Put] = []
        kept: list[tuple[Evidence, Admission]] = []
        places: list[int] = []
        for place, (message, admission) in enumerate(zip(messages, self._admissions(messages), strict=True)):
            try:
                if isinstance(admission, UserError):
                    raise admission
                if admission.is_kept:
                    kept.append((evidence_of(message), admission))
                    places.append(place)
            except UserError as exc:
                answers.append(Put(Decision.REFUSED, message.evidence_id, error=exc))
                continue
            answers.append(_unkept(admission, message.evidence_id))
        if kept:
            for place, answer in zip(places, self._cache.put_admitted(kept), strict=True):
                answers[place] = answer
        return answers

    def get(self, evidence_id: str, *, include_archived: bool) -> Evidence:
        """Return a piece. Raises `NotFoundError`."""
        found = self._cache.get(evidence_id, include_archived=include_archived)
        if found is None:
            more = "" if include_archived else "; it may be archived: ask with include_archived"
            raise NotFoundError(f"evidence {evidence_id[:80]}: there is none{more}")
        return found

    def _admissions(self, messages: Sequence[pb.Evidence]) -> list[Admission | UserError]:
        """Give each message an id, and return for each whether it is kept, or what is wrong with it."""
        offers = [self._offer(message) for message in messages]
        decided = iter(self._cache.admit_many([each for each in offers if isinstance(each, Offer)]))
        return [next(decided) if isinstance(each, Offer) else each for each in offers]

    def _offer(self, message: pb.Evidence) -> Offer | UserError:
        if not message.evidence_id:
            message.evidence_id = self._cache.new_id()
        said = message.validation
        try:
            result = said.result or evidence_of(message).validation.result
        except UserError as exc:
            return exc
        offered = partial(_decoded, message.SerializeToString())
        if result == "PASS":
            # Nearly all: why they failed need not be looked for.
            return Offer(message.evidence_id, result, message.dataset_urn, offered)
        reasons = said.reason_codes or said.failed_gates
        return Offer(message.evidence_id, result, message.dataset_urn, offered, reasons[0] if reasons else "")


def _decoded(content: bytes) -> Evidence:
    return evidence_of(pb.Evidence.FromString(content))


def _unkept(admission: Admission, evidence_id: str) -> Put:
    return Put(Decision.SHED if admission.is_shed else Decision.SAMPLED_OUT, evidence_id)


def _texts(message: pb.Evidence, part: str) -> dict[str, str | None]:
    found = getattr(message, part)
    return {field: getattr(found, field) or None for field in _TEXTS[part]}


def _validation(message: pb.ValidationResult) -> dict[str, Any]:
    return {
        "result": message.result or None,
        "failed_gates": list(message.failed_gates),
        "reason_codes": list(message.reason_codes),
        "gates": [
            {
                "gate": gate.gate,
                "result": gate.result,
                "reason_code": gate.reason_code or None,
                "details": gate.details or None,
            }
            for gate in message.gates
        ],
    }


def _fill(message: Any, found: Any, fields: Sequence[str]) -> None:  # noqa: ANN401 - any part of evidence
    message.SetInParent()
    for field in fields:
        value = getattr(found, field)
        if value is not None:
            setattr(message, field, value)
