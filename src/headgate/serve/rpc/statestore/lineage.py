"""Lineage over RPC: update lineage specs, list writers and readers."""

from __future__ import annotations

from typing import Any, Final

from headgate.auth.principals import Principal, require
from headgate.auth.roles import Permission
from headgate.auth.rules import Reach, Rule, found
from headgate.errors import InvalidPayloadError
from headgate.health.lineage.service import PAGE, PAGE_MAX, Entries
from headgate.health.lineage.specs import TTL_SECONDS, LineageSpec, check_new
from headgate.health.model import enums, urns
from headgate.health.model.enums import Confidence, EntityType
from headgate.health.model.timestamps import instant
from headgate.health.service import HealthService
from headgate.serve.rest.health.dataset_names import NamedDatasets
from headgate.serve.rest.health.lineage_specs import registered_spec
from headgate.serve.rpc.methods import MethodRegistry, RpcCall
from headgate.serve.rpc.statestore import proto as pb
from headgate.serve.rpc.statestore.messages import set_timestamp, timestamp_of

_P = Permission
_SIDES: Final = ("dataset_writes", "dataset_reads", "column_writes", "column_reads")


class LineageMethods:
    """LineageIndexService."""

    SERVICE: Final = "LineageIndexService"

    def __init__(self, health: HealthService) -> None:
        self._lineage = health.lineage
        self._clock = health.clock
        self._registered = health.registered
        self._readable = NamedDatasets(health, _P.LINEAGE_READ)

    def declare(self, rpcs: MethodRegistry) -> None:
        """Declare the methods."""
        rpcs.unary(self.SERVICE, "UpdateLineage", self.update, rule=found(_P.LINEAGE_WRITE))
        reading = found(_P.LINEAGE_READ)
        rpcs.unary(self.SERVICE, "GetWriters", self.writers, rule=reading)
        rpcs.unary(self.SERVICE, "GetReaders", self.readers, rule=reading)
        rpcs.unary(self.SERVICE, "ListByProducer", self.by_producer, rule=Rule(_P.LINEAGE_READ, Reach.FILTERED))
        rpcs.unary(self.SERVICE, "GetSpec", self.spec, rule=found(_P.LINEAGE_READ))

    def update(self, request: pb.UpdateLineageRequest, call: RpcCall) -> pb.UpdateLineageResponse:
        now_ms = int(self._clock.seconds() * 1000)
        spec = registered_spec(spec_of(request, now_ms), self._registered)
        for side in _SIDES:
            for target in getattr(spec, side):
                require(call.principal, _P.LINEAGE_WRITE, _dataset(target))
        applied = self._lineage.update(spec)
        return pb.UpdateLineageResponse(
            outcome=applied.outcome, spec_id=applied.spec_id, added=applied.added, removed=applied.removed
        )

    def writers(self, request: pb.GetLineageRequest, call: RpcCall) -> pb.GetLineageResponse:
        urn = self._named(request, call)
        read = self._lineage.column_writers if _is_column(urn) else self._lineage.writers
        return _entries_message(read(urn, limit=_limit(request.page_size), cursor=request.page_token or None))

    def readers(self, request: pb.GetLineageRequest, call: RpcCall) -> pb.GetLineageResponse:
        urn = self._named(request, call)
        read = self._lineage.column_readers if _is_column(urn) else self._lineage.readers
        return _entries_message(read(urn, limit=_limit(request.page_size), cursor=request.page_token or None))

    def _named(self, request: pb.GetLineageRequest, call: RpcCall) -> str:
        if not request.urn:
            raise InvalidPayloadError("urn: missing; name a dataset (urn:dp:…) or a column (urn:col:…)")
        return self._readable.either(request.urn, call.principal)

    def by_producer(self, request: pb.ListByProducerRequest, call: RpcCall) -> pb.ListByProducerResponse:
        whole = self._lineage.by_producer(request.producer_id)
        seen = {side: _reached(getattr(whole, side), call.principal) for side in _SIDES}
        return pb.ListByProducerResponse(producer_id=whole.producer_id, complete=whole.complete, **seen)

    def spec(self, request: pb.GetLineageSpecRequest, call: RpcCall) -> pb.LineageSpec:
        spec = self._lineage.spec(request.spec_id)
        for side in _SIDES:
            for target in getattr(spec, side):
                require(call.principal, _P.LINEAGE_READ, _dataset(target))
        message = pb.LineageSpec(
            spec_id=spec.spec_id,
            producer_id=spec.producer_id,
            producer_name=spec.producer_name,
            producer_type=spec.producer_type,
            confidence=spec.confidence,
            commit=spec.commit or "",
            partial=not spec.is_complete,
            **{side: getattr(spec, side) for side in _SIDES},
        )
        set_timestamp(message, "updated_at", spec.updated_at)
        return message


def spec_of(message: pb.UpdateLineageRequest, now_ms: int) -> LineageSpec:
    """Parse the lineage spec of a producer. Raises `InvalidPayloadError`."""
    entities = {each.entity_id: each for side in _SIDES for each in getattr(message, side) if each.entity_id}
    producer_id = message.producer_id or next(iter(entities), "")
    if not producer_id or entities.keys() - {producer_id}:
        raise InvalidPayloadError(
            f"producer_id {producer_id[:80]!r}: a request describes one producer; name it, "
            "and send no other entity_id in its entries"
        )
    entity = entities.get(producer_id)
    kind = message.producer_type or (entity.entity_type if entity is not None else "")
    spec = LineageSpec(
        spec_id=message.spec_id,
        producer_id=producer_id,
        updated_at=timestamp_of(message, "updated_at") or instant(now_ms),
        producer_name=message.producer_name or (entity.entity_name if entity is not None else ""),
        producer_type=enums.entity_type(kind) if kind else EntityType.JOB,
        confidence=enums.confidence(message.confidence) if message.confidence else Confidence.HIGH,
        commit=message.commit or None,
        dataset_reads=tuple(each.dataset_urn for each in message.dataset_reads),
        dataset_writes=tuple(each.dataset_urn for each in message.dataset_writes),
        column_reads=tuple(each.column_urn for each in message.column_reads),
        column_writes=tuple(each.column_urn for each in message.column_writes),
        ttl_seconds=message.ttl_seconds or TTL_SECONDS,
        is_complete=not message.partial,
    )
    return check_new(spec)


def _entries_message(page: Entries) -> pb.GetLineageResponse:
    message = pb.GetLineageResponse(next_page_token=page.cursor or "")
    for entry in page.entries:
        added = message.entries.add(
            entity_id=entry.entity_id,
            entity_name=entry.entity_name,
            entity_type=entry.entity_type,
            confidence=entry.confidence,
            spec_id=entry.spec_id,
            commit=entry.commit or "",
            urn=entry.target,
        )
        set_timestamp(added, "updated_at", entry.updated_at)
    return message


def _limit(given: int) -> int:
    if not 0 <= given <= PAGE_MAX:
        raise InvalidPayloadError(f"page_size {given}: must be 1 to {PAGE_MAX}, or 0 for {PAGE}")
    return given or PAGE


def _is_column(urn: str) -> bool:
    return urn.startswith(urns.COLUMN_PREFIX)


def _dataset(urn: str) -> str:
    return urns.column(urn).dataset_urn if _is_column(urn) else urn


def _reached(targets: Any, principal: Principal) -> list[str]:  # noqa: ANN401 - a tuple of texts
    return [each for each in targets if principal.is_unlimited or principal.reaches(_dataset(each))]
