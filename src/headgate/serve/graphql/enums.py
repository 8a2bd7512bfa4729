"""The words of the GraphQL schema: its enums, and its moments in time."""

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
from headgate.health.model import enums as vocabulary
from headgate.health.model.datasets import DatasetStatus
from headgate.health.model.timestamps import moment

# The enums are those of health, which the library reads by an attribute that this gives them.
_ENUMS: Final[Mapping[str, type[enum.Enum]]] = {
    "SignalStateEnum": vocabulary.SignalState,
    "IncidentStatus": vocabulary.IncidentStatus,
    "IncidentPhase": vocabulary.Phase,
    "Severity": vocabulary.Severity,
    "Tier": vocabulary.Tier,
    "EntityType": vocabulary.EntityType,
    "Confidence": vocabulary.Confidence,
    "Impact": vocabulary.Impact,
    "DatasetStatus": DatasetStatus,
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


def _given(value: Any) -> Moment:  # noqa: ANN401 - whatever a caller sends
    if not isinstance(value, str):
        raise InvalidPayloadError(f"DateTime {str(value)[:40]!r}: write text such as 2026-01-15T10:00:00Z")
    return Moment(moment(value, field="DateTime"))


SCALARS: Final[dict[object, ScalarDefinition]] = {
    Moment: strawberry.scalar(
        name="DateTime",
        description="A moment such as 2026-01-15T10:00:00.000Z. Answers are in UTC; questions may have any offset.",
        specified_by_url="https://datatracker.ietf.org/doc/html/rfc3339",
        serialize=str,
        parse_value=_given,
    )
}

# What `Int` can say on the wire. Counts above it are held there, and have a twin that is exact.
INT_MAX: Final = 2**31 - 1


F = TypeVar("F", bound=Callable[..., Any])


def reads(description: str) -> Callable[[F], F]:
    """Make a method a field that reads what it shows. It needs a rule: see `graphql_rules`."""
    made: Callable[[F], F] = strawberry.field(description=description)
    return made


def follows(description: str) -> Callable[[F], F]:
    """Make a method a subscription. It needs a rule: see `graphql_rules`."""
    made: Callable[[F], F] = strawberry.subscription(description=description)
    return made


def whole(number: int) -> int:
    """Return a number as `Int` can say it: the largest one for all that are larger."""
    return min(number, INT_MAX)


def maybe_moment(text: str | None) -> Moment | None:
    """Return a kept moment, or None for none."""
    return Moment(text) if text else None
