"""Evidence over RPC: samples messages before decoding, so that sampled-out evidence costs four field reads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from headgate.errors import InvalidPayloadError, NotFoundError, UserError
from headgate.health.evidence.cache import EvidenceCache, Offers
from headgate.health.evidence.rows import Evidence, checked, result, validation_of
from headgate.health.evidence.sampling import Admission
from headgate.health.evidence.writes import Decision, Put
from headgate.health.model.enums import confidence
from headgate.health.model.urns import is_dataset_urn
from headgate.health.registry.name_cache import NameCache
from headgate.serve.rpc.statestore import proto as pb
from headgate.serve.rpc.statestore.messages import set_timestamp, timestamp_of

BATCH_MAX: Final = 1000
# The encoded response of one sampled-out message; concatenated copies decode as one batch response.
_SAMPLED_OUT: Final = pb.BatchPutEvidenceResponse(
    results=[pb.PutEvidenceResponse(decision=Decision.SAMPLED_OUT)]
).SerializeToString()


def evidence_of(message: pb.Evidence) -> Evidence:
    """Parse evidence. Raises `InvalidPayloadError` or `InvalidIdError`."""
    fields: dict[str, Any] = {
        "evidence_id": message.evidence_id,
        "dataset_urn": message.dataset_urn,
        "created_at": timestamp_of(message, "created_at") or "",
    }
    # Absent sub-messages read as empty.
    producer, source, otel = message.producer, message.source, message.otel
    fingerprints, correlation = message.fingerprints, message.correlation
    if producer.producer_id:
        fields["producer"] = {
            "producer_id": producer.producer_id,
            "version": producer.version or None,
            "confidence": confidence(producer.confidence) if producer.confidence else None,
        }
    if source.topic:
        fields["source"] = {
            "topic": source.topic,
            "partition": source.partition,
            "offset": source.offset,
            "timestamp_type": source.timestamp_type or None,
        }
    fields["validation"] = _validation(message)
    if fingerprints.schema_fingerprint or fingerprints.payload_hash:
        fields["fingerprints"] = {
            "schema_fingerprint": fingerprints.schema_fingerprint or None,
            "payload_hash": fingerprints.payload_hash or None,
        }
    if otel.trace_id or otel.span_id:
        fields["otel"] = {"trace_id": otel.trace_id or None, "span_id": otel.span_id or None}
    if correlation.run_id or correlation.dag_id or correlation.job_id:
        fields["correlation"] = {
            "run_id": correlation.run_id or None,
            "dag_id": correlation.dag_id or None,
            "job_id": correlation.job_id or None,
        }
    fields["payload_ref"] = message.payload_ref or None
    fields["payload_size_bytes"] = message.payload_size_bytes or None
    return checked(fields)


def evidence_message(evidence: Evidence) -> pb.Evidence:
    # Struct and message have the same fields, and protobuf accepts dicts for sub-messages.
    fields: dict[str, Any] = msgspec.to_builtins(evidence)
    fields.pop("created_at", None)
    message = pb.Evidence(**fields)
    set_timestamp(message, "created_at", evidence.created_at)
    return message


def put_message(put: Put) -> pb.PutEvidenceResponse:
    """Return the outcome of one put."""
    message = pb.PutEvidenceResponse()
    _fill_put(message, put)
    return message


def _fill_put(message: pb.PutEvidenceResponse, put: Put) -> None:
    message.stored, message.decision, message.evidence_id = put.stored, put.decision, put.evidence_id
    set_timestamp(message, "expires_at", put.expires_at)
    if put.error is not None:
        message.error_code = put.error.code.upper()
        message.error_message = put.error.message


class EvidenceAdapter:
    """Reads and writes evidence as protobuf messages."""

    def __init__(self, cache: EvidenceCache, names: NameCache) -> None:
        self._cache = cache
        self._names = names
        # Batches are processed one at a time: the interpreter lock serializes them anyway, and several at once would
        # starve the event loop.
        self._batch_lock = threading.Lock()

    def put(self, message: pb.Evidence) -> Put:
        """Put one message. Raises as `EvidenceCache.put`, and `TransientError` if the registry is unavailable."""
        ids, results = self._put([message])
        answer = results.get(0) or Put(Decision.SAMPLED_OUT, ids[0])
        if answer.error is not None:
            raise answer.error
        return answer

    def put_many(self, messages: Sequence[pb.Evidence]) -> pb.BatchPutEvidenceResponse:
        """Put many messages independently, and return each outcome. Raises `InvalidPayloadError` for too many.

        If the store fails, some may be stored: a retry reports those as duplicates.
        """
        if len(messages) > BATCH_MAX:
            raise InvalidPayloadError(f"evidence: {len(messages)} at once; send at most {BATCH_MAX}")
        ids, results = self._put(messages)
        with self._batch_lock:
            return self._response(ids, results)

    def _response(self, ids: Sequence[str], results: Mapping[int, Put]) -> pb.BatchPutEvidenceResponse:
        decisions = [each.decision for each in results.values()]
        # Nearly all are sampled out, and decoding copies is much faster than building each response.
        response = pb.BatchPutEvidenceResponse.FromString(_SAMPLED_OUT * len(ids))
        response.stored = decisions.count(Decision.STORED) + decisions.count(Decision.DUPLICATE)
        response.sampled_out = len(ids) - len(results)
        response.failed = decisions.count(Decision.REFUSED)
        response.shed = decisions.count(Decision.SHED)
        for each, evidence_id in zip(response.results, ids, strict=True):
            each.evidence_id = evidence_id
        for place, put in results.items():
            _fill_put(response.results[place], put)
        return response

    def get(self, evidence_id: str, *, include_archived: bool) -> Evidence:
        """Return evidence by id. Raises `NotFoundError`."""
        found = self._cache.get(evidence_id, include_archived=include_archived)
        if found is None:
            more = "" if include_archived else "; it may be archived: retry with include_archived"
            raise NotFoundError(f"evidence {evidence_id[:80]}: not found{more}")
        return found

    def _put(self, messages: Sequence[pb.Evidence]) -> tuple[list[str], dict[int, Put]]:
        """Put messages. Return their ids, and by index the outcomes of those not sampled out."""
        results: dict[int, Put] = {}
        # Iterating a repeated field creates new wrapper objects each time: keep one per message.
        messages = list(messages)
        names = [message.dataset_urn for message in messages]
        urns = self._registered(names)
        with self._batch_lock:
            if urns != names:
                for message, urn in zip(messages, urns, strict=True):
                    message.dataset_urn = urn
            ids = self._assign_ids(messages)
            admitted = self._admit(messages, urns, ids, results)
        if admitted:
            results.update(zip(admitted, self._cache.put_admitted(list(admitted.values())), strict=True))
        return ids, results

    def _registered(self, urns: Sequence[str]) -> list[str]:
        """Return the registered names of datasets; unregistered names are returned unchanged."""
        names: Mapping[str, str | None] = self._names.at_hand()
        try:
            return [names[name] or name for name in urns]
        except KeyError:
            # Malformed names are left to the validation.
            names = self._names.of_many(name for name in dict.fromkeys(urns) if is_dataset_urn(name))
        return [names.get(name) or name for name in urns]

    def _assign_ids(self, messages: Sequence[pb.Evidence]) -> list[str]:
        """Return the ids of the messages, and set new ids where they are missing."""
        ids = [message.evidence_id for message in messages]
        if "" in ids:
            for place, message in enumerate(messages):
                if not message.evidence_id:
                    ids[place] = message.evidence_id = self._cache.new_id()
        return ids

    def _admit(
        self, messages: Sequence[pb.Evidence], urns: Sequence[str], ids: Sequence[str], outcomes: dict[int, Put]
    ) -> dict[int, tuple[Evidence, Admission]]:
        """Return by index the evidence to store, and add the outcomes of refused and shed messages."""
        results = [message.validation.result for message in messages]
        signatures: dict[int, str] = {}
        for place, outcome in enumerate(results):
            # Nearly all pass and have no failure signature.
            if outcome != "PASS":
                try:
                    results[place], signatures[place] = _outcome(messages[place])
                except UserError as exc:
                    outcomes[place] = Put(Decision.REFUSED, ids[place], error=exc)
        admissions = self._cache.admit_many(Offers(ids, results, urns, messages, signatures, _lazy_decoder))
        admitted: dict[int, tuple[Evidence, Admission]] = {}
        for place, admission in admissions.items():
            if place not in outcomes:
                self._apply(place, messages[place], admission, outcomes, admitted)
        return admitted

    def _apply(
        self,
        place: int,
        message: pb.Evidence,
        admission: Admission | UserError,
        outcomes: dict[int, Put],
        admitted: dict[int, tuple[Evidence, Admission]],
    ) -> None:
        """Add a message to `admitted`, or its outcome to `outcomes`."""
        if isinstance(admission, UserError):
            outcomes[place] = Put(Decision.REFUSED, message.evidence_id, error=admission)
        elif not admission.is_kept:
            outcomes[place] = Put(Decision.SHED, message.evidence_id)
        else:
            try:
                admitted[place] = evidence_of(message), admission
            except UserError as exc:
                outcomes[place] = Put(Decision.REFUSED, message.evidence_id, error=exc)
                self._cache.count_refused()


def _outcome(message: pb.Evidence) -> tuple[str, str]:
    """Return the validation result and the failure signature. Raises `UserError`."""
    validation = message.validation
    reasons = validation.reason_codes or validation.failed_gates
    return validation.result or evidence_of(message).validation.result, reasons[0] if reasons else ""


def _lazy_decoder(message: pb.Evidence) -> Callable[[], Evidence]:
    """Return a function that decodes the message later, without keeping its batch alive."""
    return partial(_decoded, message.SerializeToString())


def _decoded(content: bytes) -> Evidence:
    return evidence_of(pb.Evidence.FromString(content))


def _validation(message: pb.Evidence) -> dict[str, Any]:
    validation = message.validation
    failed_gates, reason_codes = list(validation.failed_gates), list(validation.reason_codes)
    if validation.result and not validation.gates:
        # The common case: the result is explicit and there are no gates.
        return {"result": result(validation.result), "failed_gates": failed_gates, "reason_codes": reason_codes}
    if not message.HasField("validation"):
        return validation_of(None)
    gates = [
        {
            "gate": gate.gate,
            "result": gate.result,
            "reason_code": gate.reason_code or None,
            "details": gate.details or None,
        }
        for gate in validation.gates
    ]
    return validation_of(
        {
            "result": validation.result or None,
            "failed_gates": failed_gates,
            "reason_codes": reason_codes,
            "gates": gates,
        }
    )
