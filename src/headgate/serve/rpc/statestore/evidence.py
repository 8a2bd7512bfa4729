"""Evidence over RPC: of what comes in, what the sample leaves out is never read beyond four of its fields."""

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
from headgate.serve.rpc.statestore.messages import moment_of, set_moment

BATCH_MAX: Final = 1000
# The answer to one piece that is left out. What is written one after the other is read as one answer to all of them.
_SAMPLED_OUT: Final = pb.BatchPutEvidenceResponse(
    results=[pb.PutEvidenceResponse(decision=Decision.SAMPLED_OUT)]
).SerializeToString()


def evidence_of(message: pb.Evidence) -> Evidence:
    """Return what a message says. Raises `InvalidPayloadError` or `InvalidIdError`."""
    given: dict[str, Any] = {
        "evidence_id": message.evidence_id,
        "dataset_urn": message.dataset_urn,
        "created_at": moment_of(message, "created_at") or "",
    }
    # A part that is not there reads as one that is empty.
    producer, source, otel = message.producer, message.source, message.otel
    fingerprints, correlation = message.fingerprints, message.correlation
    if producer.producer_id:
        given["producer"] = {
            "producer_id": producer.producer_id,
            "version": producer.version or None,
            "confidence": confidence(producer.confidence) if producer.confidence else None,
        }
    if source.topic:
        given["source"] = {
            "topic": source.topic,
            "partition": source.partition,
            "offset": source.offset,
            "timestamp_type": source.timestamp_type or None,
        }
    given["validation"] = _validation(message)
    if fingerprints.schema_fingerprint or fingerprints.payload_hash:
        given["fingerprints"] = {
            "schema_fingerprint": fingerprints.schema_fingerprint or None,
            "payload_hash": fingerprints.payload_hash or None,
        }
    if otel.trace_id or otel.span_id:
        given["otel"] = {"trace_id": otel.trace_id or None, "span_id": otel.span_id or None}
    if correlation.run_id or correlation.dag_id or correlation.job_id:
        given["correlation"] = {
            "run_id": correlation.run_id or None,
            "dag_id": correlation.dag_id or None,
            "job_id": correlation.job_id or None,
        }
    given["payload_ref"] = message.payload_ref or None
    given["payload_size_bytes"] = message.payload_size_bytes or None
    return checked(given)


def evidence_message(evidence: Evidence) -> pb.Evidence:
    """Return evidence as a message."""
    # Both have the same parts under the same names, and Protobuf takes a dict for a part that it has.
    said: dict[str, Any] = msgspec.to_builtins(evidence)
    said.pop("created_at", None)
    message = pb.Evidence(**said)
    set_moment(message, "created_at", evidence.created_at)
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

    def __init__(self, cache: EvidenceCache, names: NameCache) -> None:
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
        # Nearly all are sampled out. Protobuf reads them much faster than they are made one by one.
        response = pb.BatchPutEvidenceResponse.FromString(_SAMPLED_OUT * len(ids))
        response.stored = decisions.count(Decision.STORED) + decisions.count(Decision.DUPLICATE)
        response.sampled_out = len(ids) - len(told)
        response.failed = decisions.count(Decision.REFUSED)
        response.shed = decisions.count(Decision.SHED)
        for each, evidence_id in zip(response.results, ids, strict=True):
            each.evidence_id = evidence_id
        for place, put in told.items():
            _fill_put(response.results[place], put)
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
        told: dict[int, Put] = {}
        # Protobuf makes another object of a message whenever it is come to: from here on each has one.
        messages = list(messages)
        given = [message.dataset_urn for message in messages]
        urns = self._registered(given)
        with self._at_work:
            if urns != given:
                for message, urn in zip(messages, urns, strict=True):
                    message.dataset_urn = urn
            ids = self._identified(messages)
            kept = self._chosen(messages, urns, ids, told)
        if kept:
            told.update(zip(kept, self._cache.put_admitted(list(kept.values())), strict=True))
        return ids, told

    def _registered(self, given: Sequence[str]) -> list[str]:
        """Return the names that datasets are registered under, and those that nobody has registered as they came."""
        names: Mapping[str, str | None] = self._names.at_hand()
        try:
            return [names[name] or name for name in given]
        except KeyError:
            # What is no name is left out, and to whoever reads it.
            names = self._names.of_many(name for name in dict.fromkeys(given) if is_dataset_urn(name))
        return [names.get(name) or name for name in given]

    def _identified(self, messages: Sequence[pb.Evidence]) -> list[str]:
        """Return the ids of pieces, and give those one that have none."""
        ids = [message.evidence_id for message in messages]
        if "" in ids:
            for place, message in enumerate(messages):
                if not message.evidence_id:
                    ids[place] = message.evidence_id = self._cache.new_id()
        return ids

    def _chosen(
        self, messages: Sequence[pb.Evidence], urns: Sequence[str], ids: Sequence[str], told: dict[int, Put]
    ) -> dict[int, tuple[Evidence, Admission]]:
        """Return by their places the pieces to be stored, and note what became of those that are refused or shed."""
        results = [message.validation.result for message in messages]
        signatures: dict[int, str] = {}
        for place, said in enumerate(results):
            # Nearly all pass: why they failed need not be looked for.
            if said != "PASS":
                try:
                    results[place], signatures[place] = _outcome(messages[place])
                except UserError as exc:
                    told[place] = Put(Decision.REFUSED, ids[place], error=exc)
        admissions = self._cache.admit_many(Offers(ids, results, urns, messages, signatures, _packed))
        kept: dict[int, tuple[Evidence, Admission]] = {}
        for place, admission in admissions.items():
            if place not in told:
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
        if isinstance(admission, UserError):
            told[place] = Put(Decision.REFUSED, message.evidence_id, error=admission)
        elif not admission.is_kept:
            told[place] = Put(Decision.SHED, message.evidence_id)
        else:
            try:
                kept[place] = evidence_of(message), admission
            except UserError as exc:
                told[place] = Put(Decision.REFUSED, message.evidence_id, error=exc)
                self._cache.count_refused()


def _outcome(message: pb.Evidence) -> tuple[str, str]:
    """Return what a check said, and the signature of what went wrong. Raises `UserError`."""
    said = message.validation
    reasons = said.reason_codes or said.failed_gates
    return said.result or evidence_of(message).validation.result, reasons[0] if reasons else ""


def _packed(message: pb.Evidence) -> Callable[[], Evidence]:
    """Return what decodes a message later, without keeping alive the batch it came in."""
    return partial(_decoded, message.SerializeToString())


def _decoded(content: bytes) -> Evidence:
    return evidence_of(pb.Evidence.FromString(content))


def _validation(message: pb.Evidence) -> dict[str, Any]:
    said = message.validation
    failed_gates, reason_codes = list(said.failed_gates), list(said.reason_codes)
    if said.result and not said.gates:
        # All but a few, and there is nothing to be told from the gates.
        return {"result": result(said.result), "failed_gates": failed_gates, "reason_codes": reason_codes}
    if not message.HasField("validation"):
        return validation_of(None)
    gates = [
        {
            "gate": gate.gate,
            "result": gate.result,
            "reason_code": gate.reason_code or None,
            "details": gate.details or None,
        }
        for gate in said.gates
    ]
    return validation_of(
        {"result": said.result or None, "failed_gates": failed_gates, "reason_codes": reason_codes, "gates": gates}
    )
