"""The gate over RPC."""

from __future__ import annotations

import enum
from typing import Final, TypeVar

from headgate.auth.roles import Permission
from headgate.auth.rules import found
from headgate.errors import InvalidPayloadError
from headgate.health.gate.decisions import AGE_SECONDS_LONGEST, AGE_SECONDS_MAX, GateQuestion, OnUnknown, Verb
from headgate.health.gate.gate import DATASETS_MAX, GateAnswer
from headgate.health.service import HealthService
from headgate.serve.rest.health.dataset_names import NamedDatasets
from headgate.serve.rpc.methods import MethodRegistry, RpcCall
from headgate.serve.rpc.statestore import proto as pb
from headgate.serve.rpc.statestore.messages import set_moment

E = TypeVar("E", bound=enum.StrEnum)


class GateMethods:
    """GateService."""

    SERVICE: Final = "GateService"

    def __init__(self, health: HealthService) -> None:
        self._gatekeeper = health.gatekeeper
        self._asked = NamedDatasets(health, Permission.GATE_CHECK)

    def declare(self, rpcs: MethodRegistry, *, local_reads: bool) -> None:
        """Declare the methods."""
        rpcs.unary(self.SERVICE, "Check", self.check, rule=found(Permission.GATE_CHECK), inline=local_reads)

    def check(self, request: pb.CheckRequest, call: RpcCall) -> pb.CheckResponse:
        """Say whether some datasets may be used. Raises `InvalidPayloadError` or `InvalidIdError`."""
        if not 1 <= len(request.dataset_urn) <= DATASETS_MAX:
            raise InvalidPayloadError(
                f"dataset_urn: {len(request.dataset_urn)} given; ask about 1 to {DATASETS_MAX} at once"
            )
        self._asked.require(request.dataset_urn, call.principal)
        age = request.age_seconds_max or AGE_SECONDS_MAX
        if not 0 < age <= AGE_SECONDS_LONGEST:
            raise InvalidPayloadError(f"age_seconds_max {age}: it is 1 to {AGE_SECONDS_LONGEST}, or 0 for a day")
        question = GateQuestion(
            principal=request.principal or call.principal.name,
            verb=_word(request.verb, Verb.READ, "verb"),
            on_unknown=_word(request.on_unknown, OnUnknown.WARN, "on_unknown"),
            age_seconds_max=age,
        )
        return answer_message(self._gatekeeper.check(request.dataset_urn, question))


def answer_message(answer: GateAnswer) -> pb.CheckResponse:
    """Return what the gate says as a message."""
    message = pb.CheckResponse(
        decision=answer.decision,
        overridable_by=answer.overridable_by,
        override_id=answer.override_id or "",
        ttl_seconds=answer.ttl_seconds,
        complete=answer.complete,
    )
    for field in ("since", "until", "as_of"):
        set_moment(message, field, getattr(answer, field))
    for reason in answer.reasons:
        said = message.reasons.add(
            code=reason.code,
            decision=reason.ruling,
            dataset_urn=reason.dataset_urn,
            signal_type=reason.signal_type or "",
            incident_id=reason.incident_id or "",
            message=reason.message,
        )
        set_moment(said, "since", reason.since)
    for ruling in answer.datasets:
        ruled = message.datasets.add(
            dataset_urn=ruling.dataset_urn, decision=ruling.ruling, override_id=ruling.override_id or ""
        )
        set_moment(ruled, "since", ruling.since)
        set_moment(ruled, "until", ruling.until)
    return message


def _word(given: str, default: E, field: str) -> E:
    try:
        return type(default)(given.strip().lower()) if given else default
    except ValueError as exc:
        raise InvalidPayloadError(f"{field} {given[:40]!r}: not one of {', '.join(type(default))}") from exc
