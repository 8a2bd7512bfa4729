"""RPC methods of signals, evidence and incidents, with the permissions they require."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Final

from msgspec.structs import replace

from headgate.auth.principals import Principal, may, require
from headgate.auth.roles import Permission
from headgate.auth.rules import Reach, Rule, found
from headgate.errors import InvalidPayloadError, NotFoundError, StoreBusyError, UserError
from headgate.health.incidents.listing import PAGE_MAX
from headgate.health.model import enums
from headgate.health.model.incidents import Changes, Incident
from headgate.health.model.signals import ANY_VERSION, Signal, SignalUpdate, UpdateResult, UpdateVerdict, no_update
from headgate.health.service import HealthService
from headgate.health.signals.writer import BATCH_MAX
from headgate.serve.rest.health.dataset_names import NamedDatasets
from headgate.serve.rpc.methods import MethodRegistry, RpcCall
from headgate.serve.rpc.statestore import proto as pb
from headgate.serve.rpc.statestore.evidence import EvidenceAdapter, evidence_message, put_message
from headgate.serve.rpc.statestore.messages import (
    changes_of,
    filter_of,
    incident_message,
    report_of,
    resolution_of,
    result_message,
    signal_message,
    update_of,
)
from headgate.serve.runtime.thread_pool import WorkPool

PAGE_DEFAULT: Final = 50
MASK: Final = "***"
MESSAGES_MAX: Final = 20_000
_P = Permission


class SignalMethods:
    """SignalStateService."""

    SERVICE: Final = "SignalStateService"

    def __init__(self, health: HealthService, pool: WorkPool) -> None:
        self._health = health
        self._signals = health.signals
        self._readable = NamedDatasets(health, _P.SIGNAL_READ)
        self._writable = NamedDatasets(health, _P.SIGNAL_WRITE)
        self._pool = pool
        # Cached message per signal, valid while the signal is unchanged.
        self._messages: dict[tuple[str, str], tuple[Signal, pb.SignalState]] = {}

    def declare(self, rpcs: MethodRegistry, *, local_reads: bool) -> None:
        """Declare the methods. With `local_reads` a row read is faster than a thread switch, so reads run inline."""
        writing, reading = found(_P.SIGNAL_WRITE), found(_P.SIGNAL_READ)
        rpcs.unary_async(self.SERVICE, "UpdateSignalState", self.update, rule=writing, intake=True)
        rpcs.unary(self.SERVICE, "BatchUpdateSignalState", self.update_many, rule=writing, intake=True, bulk=True)
        rpcs.unary(self.SERVICE, "GetSignalState", self.get, rule=reading, inline=local_reads)
        rpcs.unary(self.SERVICE, "GetDatasetSignals", self.of_dataset, rule=reading, inline=local_reads)

    async def update(self, request: pb.UpdateSignalStateRequest, call: RpcCall) -> pb.UpdateSignalStateResponse:
        if not call.principal.is_unlimited:
            # The signal writer resolves the registered name.
            await self._pool.run(partial(self._writable.require, [request.dataset_urn], call.principal))
        update = update_of(request)
        with self._health.updating_signal(update) as noted:
            # Many updates share one commit; none holds a thread.
            result = noted(await self._pool.from_callback(partial(self._health.coalescer.submit, update)))
        if result.verdict is UpdateVerdict.UNAVAILABLE:
            # As a gRPC status that clients retry.
            raise StoreBusyError(result.message)
        if result.verdict is UpdateVerdict.INVALID:
            raise InvalidPayloadError(result.message)
        return result_message(result)

    def update_many(
        self, request: pb.BatchUpdateSignalStateRequest, call: RpcCall
    ) -> pb.BatchUpdateSignalStateResponse:
        self._writable.require((each.dataset_urn for each in request.updates), call.principal)
        if len(request.updates) > BATCH_MAX:
            raise InvalidPayloadError(f"updates: {len(request.updates)} at once; send at most {BATCH_MAX}")
        results: list[UpdateResult | None] = []
        valid: list[SignalUpdate] = []
        for each in request.updates:
            try:
                valid.append(update_of(each))
                results.append(None)
            except UserError as exc:
                results.append(UpdateResult(UpdateVerdict.INVALID, message=exc.message))
        answers = iter(self._signals.update_many(valid))
        messages = [result_message(next(answers) if result is None else result) for result in results]
        succeeded = sum(message.success for message in messages)
        return pb.BatchUpdateSignalStateResponse(
            results=messages, success_count=succeeded, failure_count=len(messages) - succeeded
        )

    def get(self, request: pb.GetSignalStateRequest, call: RpcCall) -> pb.SignalState:
        urn = self._readable.seen(request.dataset_urn, call.principal)
        key = urn, _signal_type(request.signal_type)
        signal = self._signals.get(*key, consistent=request.consistent)
        if signal is None:
            raise NotFoundError(no_update(*key))
        cached = self._messages.get(key)
        # A re-read signal may be an equal object.
        if cached is not None and (cached[0] is signal or cached[0] == signal):
            return cached[1]
        message = signal_message(signal)
        if len(self._messages) >= MESSAGES_MAX:
            self._messages.clear()
        self._messages[key] = signal, message
        return message

    def of_dataset(self, request: pb.GetDatasetSignalsRequest, call: RpcCall) -> pb.GetDatasetSignalsResponse:
        urn = self._readable.seen(request.dataset_urn, call.principal)
        kinds = [enums.signal_type(each) for each in request.signal_types]
        signals: Sequence[Signal] = self._signals.of_dataset(urn, kinds, consistent=request.consistent)
        return pb.GetDatasetSignalsResponse(signals=[signal_message(each) for each in signals])


class EvidenceMethods:
    """EvidenceCacheService."""

    SERVICE: Final = "EvidenceCacheService"

    def __init__(self, health: HealthService) -> None:
        self._cache = health.evidence
        self._port = EvidenceAdapter(health.evidence, health.registry.names)
        self._writable = NamedDatasets(health, _P.EVIDENCE_WRITE)

    def declare(self, rpcs: MethodRegistry, *, local_reads: bool) -> None:
        """Declare the methods. With `local_reads` a row read is faster than a thread switch, so reads run inline."""
        writing = found(_P.EVIDENCE_WRITE)
        rpcs.unary(self.SERVICE, "PutEvidence", self.put, rule=writing, intake=True)
        rpcs.unary(self.SERVICE, "BatchPutEvidence", self.put_many, rule=writing, intake=True, bulk=True)
        fast = self.get_row if local_reads else None
        rpcs.unary(self.SERVICE, "GetEvidence", self.get, rule=found(_P.EVIDENCE_READ), fast=fast)

    def put(self, request: pb.PutEvidenceRequest, call: RpcCall) -> pb.PutEvidenceResponse:
        if not request.HasField("evidence"):
            raise InvalidPayloadError("evidence: missing")
        self._writable.require([request.evidence.dataset_urn], call.principal)
        return put_message(self._port.put(request.evidence))

    def put_many(self, request: pb.BatchPutEvidenceRequest, call: RpcCall) -> pb.BatchPutEvidenceResponse:
        self._writable.require((each.dataset_urn for each in request.evidence), call.principal)
        return self._port.put_many(request.evidence)

    def get_row(self, request: pb.GetEvidenceRequest, call: RpcCall) -> pb.Evidence | None:
        """Return evidence from the store, or None: the archive is too slow for the event loop."""
        evidence = self._cache.get(request.evidence_id, include_archived=False)
        if evidence is None:
            return None
        require(call.principal, _P.EVIDENCE_READ, evidence.dataset_urn)
        return evidence_message(evidence)

    def get(self, request: pb.GetEvidenceRequest, call: RpcCall) -> pb.Evidence:
        evidence = self._port.get(request.evidence_id, include_archived=request.include_archived)
        require(call.principal, _P.EVIDENCE_READ, evidence.dataset_urn)
        return evidence_message(evidence)


class IncidentMethods:
    """IncidentService."""

    SERVICE: Final = "IncidentService"

    def __init__(self, health: HealthService) -> None:
        self._incidents = health.incidents
        self._listing = health.incident_listing
        self._readable = NamedDatasets(health, _P.INCIDENT_READ)
        self._writable = NamedDatasets(health, _P.INCIDENT_WRITE)

    def declare(self, rpcs: MethodRegistry) -> None:
        """Declare the methods."""
        rpcs.unary(self.SERVICE, "CreateIncident", self.create, rule=found(_P.INCIDENT_WRITE), intake=True)
        # A copilot may set the root cause only; the method refuses other changes.
        rpcs.unary(self.SERVICE, "UpdateIncident", self.update, rule=found(_P.INCIDENT_ANNOTATE), intake=True)
        rpcs.unary(self.SERVICE, "GetIncident", self.get, rule=found(_P.INCIDENT_READ))
        rpcs.unary(self.SERVICE, "ResolveIncident", self.resolve, rule=found(_P.INCIDENT_WRITE), intake=True)
        rpcs.unary(self.SERVICE, "ListIncidents", self.ls, rule=Rule(_P.INCIDENT_READ, Reach.FILTERED))

    def create(self, request: pb.CreateIncidentRequest, call: RpcCall) -> pb.Incident:
        self._writable.require([request.dataset_urn], call.principal)
        opened = self._incidents.open(report_of(request), actor=call.principal.name)
        return masked_incident(opened.incident, call.principal, joined=not opened.is_new)

    def get(self, request: pb.GetIncidentRequest, call: RpcCall) -> pb.Incident:
        incident = self._incidents.get(request.incident_id, consistent=request.consistent)
        require(call.principal, _P.INCIDENT_READ, incident.primary_dataset_urn)
        return masked_incident(incident, call.principal)

    def update(self, request: pb.UpdateIncidentRequest, call: RpcCall) -> pb.Incident:
        changes = changes_of(request)
        permission = _P.INCIDENT_ANNOTATE if _annotates(changes) else _P.INCIDENT_WRITE
        return self._change(request.incident_id, changes, request.expected_version, permission, call)

    def resolve(self, request: pb.ResolveIncidentRequest, call: RpcCall) -> pb.Incident:
        changes = Changes(status="RESOLVED", resolution=resolution_of(request.resolution))
        return self._change(request.incident_id, changes, request.expected_version, _P.INCIDENT_WRITE, call)

    def ls(self, request: pb.ListIncidentsRequest, call: RpcCall) -> pb.ListIncidentsResponse:
        limit = request.page_size or PAGE_DEFAULT
        if not 1 <= limit <= PAGE_MAX:
            raise InvalidPayloadError(f"page_size {limit}: must be 1 to {PAGE_MAX}")
        principal: Principal = call.principal
        wanted = filter_of(request)
        if wanted.dataset_urn is not None:
            wanted = replace(wanted, dataset_urn=self._readable.one(wanted.dataset_urn, principal))
        page = self._listing.ls(wanted, limit=limit, cursor=request.page_token or None)
        seen = [each for each in page.incidents if principal.reaches(each.primary_dataset_urn)]
        return pb.ListIncidentsResponse(
            incidents=[masked_incident(each, principal) for each in seen], next_page_token=page.cursor or ""
        )

    def _change(
        self, incident_id: str, changes: Changes, expected_version: int, permission: Permission, call: RpcCall
    ) -> pb.Incident:
        incident = self._incidents.get(incident_id)
        require(call.principal, permission, incident.primary_dataset_urn)
        expected = _expected(expected_version)
        changed = self._incidents.change(incident_id, changes, actor=call.principal.name, expected_version=expected)
        return masked_incident(changed, call.principal)


# Few distinct values, parsed on every call.
_signal_type: Final = lru_cache(maxsize=256)(enums.signal_type)


def masked_incident(incident: Incident, principal: Principal, *, joined: bool = False) -> pb.Incident:
    """Return the message with on-call user and notification ids masked unless the principal may read them."""
    message = incident_message(incident, joined=joined)
    if may(principal, _P.SECRET_FIELDS_READ):
        return message
    if message.oncall_user:
        message.oncall_user = MASK
    for field, _ in message.notification_state.ListFields():
        setattr(message.notification_state, field.name, MASK)
    return message


def _annotates(changes: Changes) -> bool:
    """Whether only the root cause changes."""
    return changes == Changes(rca_summary=changes.rca_summary, reason=changes.reason)


def _expected(version: int) -> int | None:
    """Return the expected version, or None for any. Raises `InvalidPayloadError`."""
    if version == ANY_VERSION:
        return None
    if version <= 0:
        raise InvalidPayloadError("expected_version: send the version you read, or -1 for any")
    return version
