"""Registry over RPC: dataset configurations, resolution, listing and a change stream."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any, Final

import msgspec
from google.protobuf import json_format

from headgate.auth.principals import Principal, require
from headgate.auth.roles import Permission
from headgate.auth.rules import Reach, Rule, found
from headgate.errors import InvalidPayloadError
from headgate.health.model import enums, urns
from headgate.health.model.datasets import Dataset, DatasetStatus, Slos
from headgate.health.registry.change_feed import Change
from headgate.health.registry.degraded_lookup import FallbackOnMiss, Lookup
from headgate.health.registry.listing import DatasetFilter
from headgate.health.resolution.resolver import RuleKey
from headgate.health.service import HealthService
from headgate.serve.rest.health.dataset_names import NamedDatasets
from headgate.serve.rpc.methods import MethodRegistry, RpcCall
from headgate.serve.rpc.statestore import proto as pb
from headgate.serve.rpc.statestore.messages import set_timestamp
from headgate.serve.rpc.statestore.watch import HEARTBEAT_SECONDS, PAGE, POLL_SECONDS, WatchScope
from headgate.serve.runtime.thread_pool import WorkPool
from headgate.serve.runtime.watch_hub import WatchHub

CACHE_SECONDS: Final = 300
PAGE_DEFAULT: Final = 50
MESSAGES_MAX: Final = 10_000
_FEED_PAGE: Final = 1000
_P = Permission


class RegistryMethods:
    """RegistryService."""

    SERVICE: Final = "RegistryService"

    def __init__(self, health: HealthService, watches: WatchHub, pool: WorkPool) -> None:
        self._registry = health.registry
        self._resolver = health.resolver
        self._readable = NamedDatasets(health, _P.DATASET_READ)
        self._watches = watches
        self._pool = pool
        self._clock = health.clock
        # Cached response per dataset, valid while the registry cache returns the same object.
        self._configs: dict[str, tuple[Lookup, pb.GetConfigResponse]] = {}

    def declare(self, rpcs: MethodRegistry, *, local_reads: bool) -> None:
        """Declare the methods."""
        rpcs.unary(self.SERVICE, "GetConfig", self.get, rule=found(_P.DATASET_READ), inline=local_reads)
        # The dataset is not known yet, so reading rules is the permission. Not inline: payloads can be large.
        rpcs.unary(self.SERVICE, "ResolveDataset", self.resolve, rule=Rule(_P.RULE_READ, Reach.FOUND))
        listed = Rule(_P.DATASET_READ, Reach.FILTERED)
        rpcs.unary(self.SERVICE, "ListDatasets", self.ls, rule=listed)
        rpcs.stream(self.SERVICE, "WatchChanges", self.watch, rule=listed)

    def get(self, request: pb.GetConfigRequest, call: RpcCall) -> pb.GetConfigResponse:
        urn = urns.dataset_urn(request.dataset_urn)
        if request.version:
            urn = self._readable.one(urn, call.principal)
            found = Lookup(self._registry.get(urn, version=request.version))
        else:
            found = self._registry.lookup(urn, _fallback(request.fallback_on_miss))
        if not call.principal.is_unlimited:
            require(call.principal, _P.DATASET_READ, found.dataset.dataset_urn)
        cached = self._configs.get(urn)
        if cached is not None and cached[0].dataset is found.dataset and cached[0].warning == found.warning:
            return cached[1]
        dataset = found.dataset
        message = pb.GetConfigResponse(
            config=dataset_message(dataset),
            stale=dataset.stale,
            age_seconds=dataset.age_seconds,
            is_fallback=dataset.is_fallback,
            warning=found.warning or "",
            cache_ttl_seconds=CACHE_SECONDS,
        )
        if len(self._configs) >= MESSAGES_MAX:
            self._configs.clear()
        self._configs[urn] = found, message
        return message

    def resolve(self, request: pb.ResolveDatasetRequest, call: RpcCall) -> pb.ResolveDatasetResponse:
        arguments = (request.topic, _payload(request), dict(request.headers), request.schema_id or None)
        if request.explain:
            explained = self._resolver.explain(*arguments)
            found, steps = explained.resolution, explained.steps
        else:
            found, steps = self._resolver.resolve(*arguments), []
        require(call.principal, _P.RULE_READ, found.dataset_urn)
        message = pb.ResolveDatasetResponse(
            dataset_urn=found.dataset_urn,
            unmapped=not found.is_mapped,
            snapshot_id=found.snapshot,
            warning=found.warning or "",
            **_rule(found.rule),
        )
        for step in steps:
            message.explanation.add(outcome=step.outcome, why=step.why, **_rule(step.rule))
        return message

    def ls(self, request: pb.ListDatasetsRequest, call: RpcCall) -> pb.ListDatasetsResponse:
        wanted = DatasetFilter(
            tier=enums.tier(request.tier) if request.tier else None,
            owner_team=request.owner_team or None,
            status=_status(request.status) if request.status else None,
            source_type=request.source_type or None,
            search=request.search or None,
        )
        page = self._registry.ls(wanted, limit=request.page_size or PAGE_DEFAULT, cursor=request.page_token or None)
        principal: Principal = call.principal
        seen = [dataset_message(each) for each in page.datasets if principal.reaches(each.dataset_urn)]
        return pb.ListDatasetsResponse(datasets=seen, next_page_token=page.cursor or "")

    async def watch(self, request: pb.WatchConfigRequest, call: RpcCall) -> AsyncIterator[pb.ConfigChange]:
        wanted = await self._pool.run(partial(WatchScope.of, self._readable, request.dataset_urns, call.principal))
        cursor = request.cursor or await self._pool.run(self._now)
        sent_at = self._clock.monotonic()
        while not self._watches.is_stopping:
            found = await self._pool.run(partial(self._registry.changes, cursor, limit=PAGE))
            before, cursor = cursor, found.checkpoint
            seen = [each for each in found.changes if wanted.has(each.dataset_urn)]
            for place, change in enumerate(seen, 1):
                # A client that disconnects within a page resumes at its start and misses nothing.
                yield change_message(change, cursor if place == len(seen) else before)
                sent_at = self._clock.monotonic()
            if self._clock.monotonic() - sent_at >= HEARTBEAT_SECONDS:
                yield pb.ConfigChange(cursor=cursor, heartbeat=True)
                sent_at = self._clock.monotonic()
            if not found.has_more:
                await self._watches.committed(POLL_SECONDS)

    def _now(self) -> str:
        """Return the checkpoint after the last change."""
        found = self._registry.changes(None, limit=_FEED_PAGE)
        while found.has_more:
            found = self._registry.changes(found.checkpoint, limit=_FEED_PAGE)
        return found.checkpoint


def change_message(change: Change, cursor: str) -> pb.ConfigChange:
    message = pb.ConfigChange(
        dataset_urn=change.dataset_urn,
        changed_fields=change.changed_fields,
        config_version=change.config_version,
        updated_by=change.updated_by,
        cursor=cursor,
        status=change.status,
    )
    set_timestamp(message, "timestamp", change.updated_at)
    return message


def dataset_message(dataset: Dataset) -> pb.DatasetConfig:
    message = pb.DatasetConfig(
        dataset_urn=dataset.dataset_urn,
        display_name=dataset.display_name,
        description=dataset.description,
        tier=dataset.tier,
        owner_team=dataset.owner_team,
        owner_email=dataset.owner_email or "",
        oncall_rotation=dataset.oncall_rotation or "",
        retention_days=dataset.retention_days,
        tags=dataset.tags,
        config_version=dataset.config_version,
        status=dataset.status,
        updated_by=dataset.updated_by,
    )
    for field in ("created_at", "updated_at", "archived_at"):
        set_timestamp(message, field, getattr(dataset, field))
    for part in ("source", "schema_binding", "pii_policy", "gate"):
        _fill(getattr(message, part), getattr(dataset, part))
    if dataset.contract_binding is not None:
        contract = dataset.contract_binding
        message.contract_binding.contract_id = contract.contract_id or ""
        message.contract_binding.required_fields.extend(contract.required_fields)
        for name, constraints in contract.field_constraints.items():
            message.contract_binding.field_constraints[name].update(constraints)
    if dataset.slos is not None:
        _fill_slos(message.slos, dataset.slos)
    return message


def _fill_slos(message: pb.SloConfig, slos: Slos) -> None:
    message.SetInParent()
    _fill(message.freshness, slos.freshness)
    _fill(message.volume, slos.volume)
    _fill(message.contract_compliance, slos.contract_compliance)


def _fill(message: Any, part: Any) -> None:  # noqa: ANN401 - a struct and a message with the same fields
    if part is None:
        return
    message.SetInParent()
    for field in part.__struct_fields__:
        value = getattr(part, field)
        if isinstance(value, tuple):
            getattr(message, field).extend(value)
        elif value is not None:
            setattr(message, field, value)


def _payload(request: pb.ResolveDatasetRequest) -> object:
    if request.HasField("payload"):
        return json_format.MessageToDict(request.payload)
    if not request.payload_json:
        return None
    try:
        return msgspec.json.decode(request.payload_json)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise InvalidPayloadError(f"payload_json: not JSON: {exc}") from exc


def _rule(rule: RuleKey | None) -> dict[str, Any]:
    return {} if rule is None else {"rule_topic_pattern": rule.topic_pattern, "rule_name": rule.name}


def _fallback(given: str) -> FallbackOnMiss:
    try:
        return FallbackOnMiss(given.strip().upper()) if given else FallbackOnMiss.WARN
    except ValueError as exc:
        names = ", ".join(FallbackOnMiss)
        raise InvalidPayloadError(f"fallback_on_miss {given[:40]!r}: not one of {names}") from exc


def _status(given: str) -> DatasetStatus:
    try:
        return DatasetStatus(given.strip().upper())
    except ValueError as exc:
        raise InvalidPayloadError(f"status {given[:40]!r}: not one of {', '.join(DatasetStatus)}") from exc
