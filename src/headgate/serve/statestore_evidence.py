"""Evidence over RPC: of what comes in, what the sample leaves out is never read beyond four of its fields."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from headgate.errors import InvalidPayloadError, NotFoundError, UserError
from headgate.health.evidence import EvidenceCache, Offer
from headgate.health.evidence_rows import Evidence, from_outside
from headgate.health.evidence_writes import Decision, Put
from headgate.health.registered_names import RegisteredNames
from headgate.health.sampling import SAMPLED_OUT, Admission
from headgate.health.urns import is_dataset_urn
from headgate.serve import statestore as pb
from headgate.serve.statestore_messages import moment_of, set_moment

BATCH_MAX: Final = 1000
_SAMPLED_OUT: Final[str] = Decision.SAMPLED_OUT.value
_TEXTS: Final = {
    "producer": ("producer_id", "version", "confidence"),
    "fingerprints": ("schema_fingerprint", "payload_hash"),
    "otel": ("trace_id", "span_id"),
    "correlation": ("run_id", "dag_id", "job_id"),
}


_PARTS: Final = (*_TEXTS.items(), ("source", ("topic", "partition", "offset", "timestamp_type")))


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
        **{part: _told(found, fields) for part, fields in _PARTS if (found := getattr(evidence, part)) is not None},
    )
    set_moment(message, "created_at", evidence.created_at)
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
    message = pb.PutEvidenceResponse()
    _fill_put(message, put)
    return message


def _fill_put(message: pb.PutEvidenceResponse, put: Put) -> None:
    message.stored, message.decision, message.evidence_id = put.stored, put.decision, put.evidence_id
    set_moment(message, "expires_at", put.expires_at)
    if put.error is not None:
        message.error_code = put.error.code.upper()
        message.error_message = put.error.message


class EvidencePort:
    """Takes and gives evidence as messages."""

    def __init__(self, cache: EvidenceCache, names: RegisteredNames) -> None:
        self._cache = cache
        self._names = names
        # One batch at a time is looked at: Python works on one anyway, and several that want it at once would each
        # have their turn before whoever answers all other calls.
        self._at_work = threading.Lock()

    def put(self, message: pb.Evidence) -> Put:
        """Take one piece. Raises as `EvidenceCache.put`, and `TransientError` if the registry cannot be asked."""
        ids, told = self._taken([message])
        answer = told.get(0) or Put(Decision.SAMPLED_OUT, ids[0])
        if answer.error is not None:
            raise answer.error
        return answer

    def put_many(self, messages: Sequence[pb.Evidence]) -> pb.BatchPutEvidenceResponse:
        """Take many pieces, each by itself, and return what became of each. Raises `InvalidPayloadError` for too many.

        If the store fails, some may be stored: offer them again, and those are duplicates.
        """
        if len(messages) > BATCH_MAX:
            raise InvalidPayloadError(f"evidence: {len(messages)} at once; send at most {BATCH_MAX}")
        ids, told = self._taken(messages)
        with self._at_work:
            return self._response(ids, told)

    def _response(self, ids: Sequence[str], told: Mapping[int, Put]) -> pb.BatchPutEvidenceResponse:
        decisions = [each.decision for each in told.values()]
        response = pb.BatchPutEvidenceResponse(
            stored=decisions.count(Decision.STORED) + decisions.count(Decision.DUPLICATE),
            sampled_out=len(ids) - len(told),
            failed=decisions.count(Decision.REFUSED),
            shed=decisions.count(Decision.SHED),
        )
        add = response.results.add
        for place, evidence_id in enumerate(ids):
            if place in told:
                _fill_put(add(), told[place])
            else:
                # Nearly all, and there is no more to say of them.
                add(decision=_SAMPLED_OUT, evidence_id=evidence_id)
        return response

    def get(self, evidence_id: str, *, include_archived: bool) -> Evidence:
        """Return a piece. Raises `NotFoundError`."""
        found = self._cache.get(evidence_id, include_archived=include_archived)
        if found is None:
            more = "" if include_archived else "; it may be archived: ask with include_archived"
            raise NotFoundError(f"evidence {evidence_id[:80]}: there is none{more}")
        return found

    def _taken(self, messages: Sequence[pb.Evidence]) -> tuple[list[str], dict[int, Put]]:
        """Take many pieces. Return their ids, and by their places what became of those that are not sampled out."""
        ids: list[str] = []
        told: dict[int, Put] = {}
        given = [message.dataset_urn for message in messages]
        registered = self._registered(given)
        # What nobody has registered keeps the name it came with.
        urns = [registered.get(name) or name for name in given]
        with self._at_work:
            if urns != given:
                for message, urn in zip(messages, urns, strict=True):
                    message.dataset_urn = urn
            kept = self._chosen(messages, urns, ids, told)
        if kept:
            told.update(zip(kept, self._cache.put_admitted(list(kept.values())), strict=True))
        return ids, told

    def _registered(self, given: Sequence[str]) -> Mapping[str, str | None]:
        """Return the name that each dataset is registered under, None for one that is not.

        What is no name is left out, and to whoever reads it.
        """
        names = self._names.at_hand()
        for each in set(given) - names.keys():
            if is_dataset_urn(each):
                names[each] = self._names.of(each)
        return names

    def _chosen(
        self, messages: Sequence[pb.Evidence], urns: Sequence[str], ids: list[str], told: dict[int, Put]
    ) -> dict[int, tuple[Evidence, Admission]]:
        """Return by their places the pieces to be stored, and note the ids of all and what became of others."""
        offers: list[Offer] = []
        for place, (message, urn) in enumerate(zip(messages, urns, strict=True)):
            evidence_id = message.evidence_id
            if not evidence_id:
                evidence_id = message.evidence_id = self._cache.new_id()
            ids.append(evidence_id)
            if message.validation.result == "PASS":
                # Nearly all: why they failed need not be looked for.
                offers.append(Offer(evidence_id, "PASS", urn, partial(_decoded, message.SerializeToString())))
                continue
            try:
                offers.append(_offer(evidence_id, message))
            except UserError as exc:
                told[place] = Put(Decision.REFUSED, evidence_id, error=exc)
        places = range(len(ids)) if not told else [place for place in range(len(ids)) if place not in told]
        kept: dict[int, tuple[Evidence, Admission]] = {}
        for place, admission in zip(places, self._cache.admit_many(offers), strict=True):
            if admission is not SAMPLED_OUT:
                self._look(place, messages[place], admission, told, kept)
        return kept

    def _look(
        self,
        place: int,
        message: pb.Evidence,
        admission: Admission | UserError,
        told: dict[int, Put],
        kept: dict[int, tuple[Evidence, Admission]],
    ) -> None:
        """Note a piece that is kept, or what became of one that is not."""
        if isinstance(admission, Admission) and not admission.is_kept:
            told[place] = Put(Decision.SHED, message.evidence_id)
            return
        try:
            if isinstance(admission, UserError):
                raise admission
            kept[place] = evidence_of(message), admission
        except UserError as exc:
            told[place] = Put(Decision.REFUSED, message.evidence_id, error=exc)


def _offer(evidence_id: str, message: pb.Evidence) -> Offer:
    """Return what is to be known of a message before the rest of it is. Raises `UserError`."""
    said = message.validation
    result = said.result or evidence_of(message).validation.result
    reasons = said.reason_codes or said.failed_gates
    offered = partial(_decoded, message.SerializeToString())
    return Offer(evidence_id, result, message.dataset_urn, offered, reasons[0] if reasons else "")


def _decoded(content: bytes) -> Evidence:
    return evidence_of(pb.Evidence.FromString(content))


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


def _told(found: object, fields: Sequence[str]) -> dict[str, Any]:
    """Return the fields of a part that are not empty."""
    return {field: value for field in fields if (value := getattr(found, field)) is not None}
