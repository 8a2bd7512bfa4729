"""Feature flag API: read and set flags."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

from headgate.auth.roles import Permission
from headgate.auth.rules import Reach, Rule
from headgate.health.gate.flags import Flag
from headgate.health.model.signals import ANY_VERSION
from headgate.health.service import HealthService
from headgate.serve.http.operations import Answer, Call, NoQuery, Operation
from headgate.serve.http.preconditions import etag, matching
from headgate.serve.http.problem import Problem
from headgate.serve.rest.health.models import FullReason

_READ: Final = Rule(Permission.DATASET_READ)
# Like a gate override: for accountable operators.
_WRITE: Final = Rule(Permission.GATE_OVERRIDE, Reach.ALL)


class FlagBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """Value of a flag, and the reason."""

    is_on: bool
    reason: FullReason
    expected_version: Annotated[int, Meta(ge=ANY_VERSION)] | None = None


class FlagList(Struct, frozen=True):
    """All flags."""

    flags: list[Flag]


def flag_operations(health: HealthService) -> list[Operation]:
    """Return the operations on flags."""
    return _Flags(health).operations()


class _Flags:
    def __init__(self, health: HealthService) -> None:
        self._flags = health.flags

    def operations(self) -> list[Operation]:
        one = "/flags/{name}"
        changed = {200: Flag, 409: Problem, 412: Problem}
        return [
            Operation("GET", "/flags", "List flags", self.ls, {200: FlagList}, rule=_READ),
            Operation("GET", one, "Show a flag", self.show, {200: Flag}, rule=_READ),
            Operation("PUT", one, "Set a flag", self.put, changed, body=FlagBody, rule=_WRITE),
        ]

    def ls(self, _call: Call[None, NoQuery]) -> Answer:
        return Answer(FlagList(self._flags.ls()))

    def show(self, call: Call[None, NoQuery]) -> Answer:
        return _shown(self._flags.get(call.path["name"]))

    def put(self, call: Call[FlagBody, NoQuery]) -> Answer:
        body = call.body

        def change(version: int | None) -> Flag:
            return self._flags.put(
                call.path["name"],
                is_on=body.is_on,
                actor=call.principal.name,
                reason=body.reason,
                expected_version=ANY_VERSION if version is None else version,
            )

        return _shown(matching(call.headers, body.expected_version, change))


def _shown(flag: Flag) -> Answer:
    return Answer(flag, headers=etag(flag.version))
