"""GraphQL enums, the DateTime scalar, and field decorators."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final, NewType, TypeVar

import strawberry
from strawberry.types.scalar import ScalarDefinition

from headgate.errors import InvalidPayloadError
from headgate.health.evidence import rows as evidence_rows
from headgate.health.gate import decisions as gate_decisions
from headgate.health.incident_context import Happening
from headgate.health.model import enums
from headgate.health.model.datasets import DatasetStatus, OnSilence, OnUpstream
from headgate.health.model.timestamps import moment

# The enums of health, which strawberry recognizes by an attribute that is set here.
_ENUMS: Final[Mapping[str, type[enum.Enum]]] = {
    "SignalStateEnum": enums.SignalState,
    "IncidentStatus": enums.IncidentStatus,
    "IncidentPhase": enums.Phase,
    "Severity": enums.Severity,
    "Tier": enums.Tier,
    "EntityType": enums.EntityType,
    "Confidence": enums.Confidence,
    "Impact": enums.Impact,
    "DatasetStatus": DatasetStatus,
    "OnSilence": OnSilence,
    "OnUpstream": OnUpstream,
    "EvidenceResult": evidence_rows.Result,
    "Happening": Happening,
    "GateVerb": gate_decisions.Verb,
    "GateRuling": gate_decisions.Ruling,
    "GateOnUnknown": gate_decisions.OnUnknown,
    "GateReasonCode": gate_decisions.Code,
}
for _name, _kind in _ENUMS.items():
    strawberry.enum(_kind, name=_name, description=inspect.getdoc(_kind))

Moment = NewType("Moment", str)


def _given(value: Any) -> Moment:  # noqa: ANN401 - user input
    if not isinstance(value, str):
        raise InvalidPayloadError(f"DateTime {str(value)[:40]!r}: write text such as 2026-01-15T10:00:00Z")
    return Moment(moment(value, field="DateTime"))


SCALARS: Final[dict[object, ScalarDefinition]] = {
    Moment: strawberry.scalar(
        name="DateTime",
        description="A time such as 2026-01-15T10:00:00.000Z. Output is in UTC; input may have any offset.",
        specified_by_url="https://datatracker.ietf.org/doc/html/rfc3339",
        serialize=str,
        parse_value=_given,
    )
}

# The range of `Int`. Larger counts are clamped, and have an exact twin.
INT_MAX: Final = 2**31 - 1


F = TypeVar("F", bound=Callable[..., Any])


def reads(description: str) -> Callable[[F], F]:
    """Declare a field that reads. It needs a rule in `schema`."""
    made: Callable[[F], F] = strawberry.field(description=description)
    return made


def follows(description: str) -> Callable[[F], F]:
    """Declare a subscription. It needs a rule in `schema`."""
    made: Callable[[F], F] = strawberry.subscription(description=description)
    return made


def whole(number: int) -> int:
    """Clamp a number to the range of `Int`."""
    return min(number, INT_MAX)


def maybe_moment(text: str | None) -> Moment | None:
    """Return a stored time, or None."""
    return Moment(text) if text else None
