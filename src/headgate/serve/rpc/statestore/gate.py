"""Gate over RPC: whether datasets may be read or published now."""

from __future__ import annotations

import enum
from typing import Final, TypeVar

from headgate.auth.roles import Permission
from headgate.auth.rules import found
from headgate.errors import InvalidPayloadError
from headgate.health.gate.decisions import AGE_SECONDS_LONGEST, GateQuestion, OnUnknown, Verb
from headgate.health.gate.gate import DATASETS_MAX, GateAnswer
from headgate.health.service import HealthService
from headgate.serve.rest.health.dataset_names import NamedDatasets
from headgate.serve.rpc.methods import MethodRegistry, RpcCall
from headgate.serve.rpc.statestore import proto as pb
from headgate.serve.rpc.statestore.messages import set_timestamp

E = TypeVar("E", bound=enum.StrEnum)


class GateMethods:
    """GateService."""

    SERVICE: Final = "GateService"

    def __init__(self, health: HealthService) -> None:
        self._gatekeeper = health.gatekeeper
        self._datasets = NamedDatasets(health, Permission.GATE_CHECK)

    def declare(self, rpcs: MethodRegistry, *, local_reads: bool) -> None:
        """Declare the methods."""
        rpcs.unary(self.SERVICE, "Check", self.check, rule=found(Permission.GATE_CHECK), inline=local_reads)

    def check(self, request: pb.CheckRequest, call: RpcCall) -> pb.CheckResponse:
        """Check whether datasets may be used. Raises `InvalidPayloadError` or `InvalidIdError`."""
        if not 1 <= len(request.dataset_urn) <= DATASETS_MAX:
            raise InvalidPayloadError(f"dataset_urn: {len(request.dataset_urn)} given; send 1 to {DATASETS_MAX}")
        self._datasets.require(request.dataset_urn, call.principal)
        age = request.age_seconds_max or None
        if age is not None and not 0 < age <= AGE_SECONDS_LONGEST:
            raise InvalidPayloadError(
                f"age_seconds_max {age}: must be 1 to {AGE_SECONDS_LONGEST}, or 0 for the default"
            )
        question = GateQuestion(
            principal=request.principal or call.principal.name,
            verb=_parsed(request.verb, Verb.READ, "verb"),
            on_unknown=_parsed(request.on_unknown, OnUnknown.WARN, "on_unknown"),
            age_seconds_max=age,
        )
        return answer_message(self._gatekeeper.check(request.dataset_urn, question))


def answer_message(answer: GateAnswer) -> pb.CheckResponse:
    message = pb.CheckResponse(
        decision=answer.decision,
        overridable_by=answer.overridable_by,
        override_id=answer.override_id or "",
        ttl_seconds=answer.ttl_seconds,
        complete=answer.complete,
    )
    for field in ("since", "until", "as_of"):
        set_timestamp(message, field, getattr(answer, field))
    for reason in answer.reasons:
        entry = message.reasons.add(
            code=reason.code,
            decision=reason.ruling,
            dataset_urn=reason.dataset_urn,
            signal_type=reason.signal_type or "",
            incident_id=reason.incident_id or "",
            message=reason.message,
            upstream_urn=reason.upstream_urn or "",
        )
        set_timestamp(entry, "since", reason.since)
    for ruling in answer.datasets:
        ruled = message.datasets.add(
            dataset_urn=ruling.dataset_urn, decision=ruling.ruling, override_id=ruling.override_id or ""
        )
        set_timestamp(ruled, "since", ruling.since)
        set_timestamp(ruled, "until", ruling.until)
    return message


def _parsed(given: str, default: E, field: str) -> E:
    try:
        return type(default)(given.strip().lower()) if given else default
    except ValueError as exc:
        raise InvalidPayloadError(f"{field} {given[:40]!r}: not one of {', '.join(type(default))}") from exc
