"""Gate API: check whether datasets may be used, and manage overrides."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

from headgate.auth import rules
from headgate.auth.roles import Permission
from headgate.auth.rules import Reach, Rule
from headgate.durable.model.duration import seconds
from headgate.errors import InvalidPayloadError
from headgate.health.gate.decisions import GateQuestion, OnUnknown, Override, Verb
from headgate.health.gate.gate import DATASETS_MAX, GateAnswer
from headgate.health.service import HealthService
from headgate.serve.http.operations import Answer, Call, NoQuery, Operation
from headgate.serve.rest.health.dataset_names import NamedDatasets
from headgate.serve.rest.health.models import FullReason, Name
from headgate.serve.rest.parameters import DatasetUrn, Duration

_OVERRIDES: Final = "/gate/overrides/{dataset_urn}"


class GateBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """Datasets and intended use. `principal` is the consumer; by default the caller.

    `max_age` is counted from the end of a signal's window; by default a day, or the freshness SLO if that is longer.
    """

    datasets: Annotated[list[DatasetUrn], Meta(max_length=DATASETS_MAX)] = []
    dataset: DatasetUrn | None = None
    verb: Verb = Verb.READ
    principal: Name | None = None
    on_unknown: OnUnknown = OnUnknown.WARN
    max_age: Duration | None = None


class OverrideBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """Consumer, duration and reason of an override."""

    duration: Duration
    reason: FullReason
    verb: Verb = Verb.READ
    principal: Name | None = None
    ticket: Name | None = None


class Overrides(Struct, frozen=True):
    """Active overrides."""

    overrides: list[Override]


def gate_operations(health: HealthService) -> list[Operation]:
    """Return the operations on the gate."""
    return _Gate(health).operations()


class _Gate:
    def __init__(self, health: HealthService) -> None:
        self._gatekeeper = health.gatekeeper
        self._overrides = health.overrides
        self._asked = NamedDatasets(health, Permission.GATE_CHECK)

    def operations(self) -> list[Operation]:
        asks = Rule(Permission.GATE_CHECK, Reach.FOUND)
        grants = rules.named(Permission.GATE_OVERRIDE, "path.dataset_urn")
        return [
            Operation(
                "POST",
                "/gate",
                "Check the gate",
                self.check,
                {200: GateAnswer},
                body=GateBody,
                rule=asks,
            ),
            Operation(
                "GET",
                _OVERRIDES,
                "List overrides of a dataset",
                self.ls,
                {200: Overrides},
                rule=rules.named(Permission.GATE_CHECK, "path.dataset_urn"),
            ),
            Operation(
                "POST",
                _OVERRIDES,
                "Override the gate of a dataset",
                self.grant,
                {201: Override},
                body=OverrideBody,
                rule=grants,
                repeatable=True,
            ),
            Operation(
                "DELETE",
                f"{_OVERRIDES}/{{override_id}}",
                "Revoke an override",
                self.revoke,
                {204: None},
                rule=grants,
            ),
        ]

    def check(self, call: Call[GateBody, NoQuery]) -> Answer:
        body = call.body
        question = GateQuestion(
            principal=body.principal or call.principal.name,
            verb=body.verb,
            on_unknown=body.on_unknown,
            age_seconds_max=None if body.max_age is None else seconds(body.max_age, name="max_age"),
        )
        asked = [*body.datasets, *([] if body.dataset is None else [body.dataset])]
        if not asked:
            raise InvalidPayloadError("datasets: name at least one")
        self._asked.require(asked, call.principal)
        return Answer(self._gatekeeper.check(asked, question))

    def ls(self, call: Call[None, NoQuery]) -> Answer:
        return Answer(Overrides(self._overrides.ls(call.path["dataset_urn"])))

    def grant(self, call: Call[OverrideBody, NoQuery]) -> Answer:
        body = call.body
        made = self._overrides.grant(
            call.path["dataset_urn"],
            body.verb,
            seconds=seconds(body.duration),
            reason=body.reason,
            actor=call.principal.name,
            principal=body.principal,
            ticket=body.ticket,
        )
        return Answer(made, 201)

    def revoke(self, call: Call[None, NoQuery]) -> Answer:
        self._overrides.revoke(call.path["dataset_urn"], call.path["override_id"], actor=call.principal.name)
        return Answer(status=204)
