"""The words of health: states, severities, statuses, tiers and signal types, and what neighbours call them.

The wire knows the seed's values and no others. What a neighbour distinguishes further is kept as a `Phase` (a status)
or folded onto the nearest value (a severity, a tier); nothing a neighbour sends is refused for its spelling alone.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple, TypeVar

from headgate.errors import InvalidPayloadError


class SignalState(enum.StrEnum):
    """How a signal of a dataset is. UNKNOWN: it could not be evaluated, which is neither good nor bad."""

    OK = "OK"
    WARNING = "WARNING"
    CRITICAL = "CRITICAL"
    UNKNOWN = "UNKNOWN"

    @property
    def is_breach(self) -> bool:
        """Whether someone should look: the signal is in breach of what was promised."""
        return self in (SignalState.WARNING, SignalState.CRITICAL)


class Severity(enum.StrEnum):
    """How urgent an incident is. SEV_1 wakes people."""

    SEV_1 = "SEV_1"
    SEV_2 = "SEV_2"
    SEV_3 = "SEV_3"


class IncidentStatus(enum.StrEnum):
    """Where an incident stands."""

    OPEN = "OPEN"
    ACKNOWLEDGED = "ACKNOWLEDGED"
    RESOLVED = "RESOLVED"


class Phase(enum.StrEnum):
    """What a status alone does not say: how far those who look after an incident have come."""

    NEW = "NEW"
    ACKNOWLEDGED = "ACKNOWLEDGED"
    INVESTIGATING = "INVESTIGATING"
    MITIGATING = "MITIGATING"
    RESOLVED = "RESOLVED"
    CLOSED = "CLOSED"


class Tier(enum.StrEnum):
    """How much depends on a dataset. TIER_1 is the most important."""

    TIER_1 = "TIER_1"
    TIER_2 = "TIER_2"
    TIER_3 = "TIER_3"


class EntityType(enum.StrEnum):
    """What writes or reads a dataset."""

    SERVICE = "SERVICE"
    JOB = "JOB"
    LAMBDA = "LAMBDA"
    NOTEBOOK = "NOTEBOOK"


class Confidence(enum.StrEnum):
    """How sure a statement is."""

    HIGH = "HIGH"
    MEDIUM = "MEDIUM"
    LOW = "LOW"


class Impact(enum.StrEnum):
    """How bad an incident is for those downstream."""

    HIGH = "HIGH"
    MEDIUM = "MEDIUM"
    LOW = "LOW"
    UNKNOWN = "UNKNOWN"


class Stage(NamedTuple):
    """A status with the phase that goes with it."""

    status: IncidentStatus
    phase: Phase


FRESHNESS: Final = "FRESHNESS"
VOLUME: Final = "VOLUME"
CONTRACT_COMPLIANCE: Final = "CONTRACT_COMPLIANCE"
SCHEMA_DRIFT: Final = "SCHEMA_DRIFT"
DATA_QUALITY: Final = "DATA_QUALITY"
ANOMALY: Final = "ANOMALY"
COST: Final = "COST"

# Other signal types are taken as they are: users measure what they like.
_SIGNAL_TYPES: Final[Mapping[str, str]] = {
    "FRESHNESS_BREACH": FRESHNESS,
    "VOLUME_ANOMALY": VOLUME,
    "CONTRACT": CONTRACT_COMPLIANCE,
    "CONTRACT_BREACH": CONTRACT_COMPLIANCE,
    "DRIFT": SCHEMA_DRIFT,
    "DRIFT_DETECTED": SCHEMA_DRIFT,
    "DQ": DATA_QUALITY,
    "DQ_BREACH": DATA_QUALITY,
    "ANOMALY_DETECTED": ANOMALY,
    "COST_ANOMALY": COST,
}
# dbt, Soda, OpenLineage, Alertmanager and PagerDuty among them.
_STATES: Final[Mapping[str, SignalState]] = {
    **{state.value: state for state in SignalState},
    **dict.fromkeys(("PASS", "PASSED", "SUCCESS", "HEALTHY", "GREEN", "RESOLVED", "INFO"), SignalState.OK),
    **dict.fromkeys(("WARN", "YELLOW", "DEGRADED"), SignalState.WARNING),
    **dict.fromkeys(("FAIL", "FAILED", "ERROR", "RED", "BREACH", "CRIT"), SignalState.CRITICAL),
    **dict.fromkeys(
        ("SKIP", "SKIPPED", "RUNTIME_ERROR", "NO_OP", "NOT_EVALUATED", "EXCLUDED", "ABORTED", "PENDING"),
        SignalState.UNKNOWN,
    ),
}
_SEVERITIES: Final[Mapping[str, Severity]] = {
    **{severity.value: severity for severity in Severity},
    **{f"SEV{level}": Severity(f"SEV_{min(level, 3)}") for level in (1, 2, 3, 4)},
    **{f"P{level}": Severity(f"SEV_{min(level, 3)}") for level in (1, 2, 3, 4)},
    "SEV_4": Severity.SEV_3,
    "CRITICAL": Severity.SEV_1,
    "ERROR": Severity.SEV_2,
    "WARNING": Severity.SEV_3,
}
_STAGES: Final[Mapping[str, Stage]] = {
    "OPEN": Stage(IncidentStatus.OPEN, Phase.NEW),
    "NEW": Stage(IncidentStatus.OPEN, Phase.NEW),
    "TRIGGERED": Stage(IncidentStatus.OPEN, Phase.NEW),
    "ACKNOWLEDGED": Stage(IncidentStatus.ACKNOWLEDGED, Phase.ACKNOWLEDGED),
    "ACKED": Stage(IncidentStatus.ACKNOWLEDGED, Phase.ACKNOWLEDGED),
    "INVESTIGATING": Stage(IncidentStatus.ACKNOWLEDGED, Phase.INVESTIGATING),
    "MITIGATING": Stage(IncidentStatus.ACKNOWLEDGED, Phase.MITIGATING),
    "RESOLVED": Stage(IncidentStatus.RESOLVED, Phase.RESOLVED),
    "CLOSED": Stage(IncidentStatus.RESOLVED, Phase.CLOSED),
}
_TIERS: Final[Mapping[str, Tier]] = {
    **{tier.value: tier for tier in Tier},
    **{f"{prefix}{level}": Tier(f"TIER_{min(level, 3)}") for prefix in ("", "TIER", "T") for level in (1, 2, 3, 4)},
    "TIER_4": Tier.TIER_3,
}
_ENTITY_TYPES: Final[Mapping[str, EntityType]] = {
    **{kind.value: kind for kind in EntityType},
    **dict.fromkeys(("DAG", "TASK", "PIPELINE", "MODEL", "SPARK", "GLUE", "AIRFLOW"), EntityType.JOB),
    **dict.fromkeys(("APPLICATION", "APP", "API"), EntityType.SERVICE),
    "FUNCTION": EntityType.LAMBDA,
}
_CONFIDENCES: Final[Mapping[str, Confidence]] = {
    **{confidence.value: confidence for confidence in Confidence},
    "NONE": Confidence.LOW,
    "EXACT": Confidence.HIGH,
    "INFERRED": Confidence.MEDIUM,
}
_IMPACTS: Final[Mapping[str, Impact]] = {impact.value: impact for impact in Impact}
_SIGNAL_TYPE: Final = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
_GIVEN_MAX: Final = 40

T = TypeVar("T")


# There are few, and each is asked about again and again.
@lru_cache(maxsize=1024)
def signal_type(given: str) -> str:
    """Return the one name of a signal type. Raises `InvalidPayloadError` for what cannot be one."""
    word = _word(given)
    found = _SIGNAL_TYPES.get(word, word)
    if not _SIGNAL_TYPE.fullmatch(found):
        raise InvalidPayloadError(
            f"signal_type {given[:_GIVEN_MAX]!r}: use capital letters, digits and _, at most 64, such as {FRESHNESS}"
        )
    return found


def signal_state(given: str) -> SignalState:
    """Return the state that a word stands for. Raises `InvalidPayloadError`."""
    return _found(_STATES, given, "state", SignalState)


def severity(given: str) -> Severity:
    """Return the severity that a word stands for. Raises `InvalidPayloadError`."""
    return _found(_SEVERITIES, given, "severity", Severity)


def stage(given: str) -> Stage:
    """Return the status and phase that a word stands for. Raises `InvalidPayloadError`."""
    return _found(_STAGES, given, "status", IncidentStatus)


def tier(given: str | int) -> Tier:
    """Return the tier that a word or number stands for. Raises `InvalidPayloadError`."""
    return _found(_TIERS, str(given), "tier", Tier)


def entity_type(given: str) -> EntityType:
    """Return the kind of writer or reader that a word stands for. Raises `InvalidPayloadError`."""
    return _found(_ENTITY_TYPES, given, "entity_type", EntityType)


def confidence(given: str) -> Confidence:
    """Return the confidence that a word stands for. Raises `InvalidPayloadError`."""
    return _found(_CONFIDENCES, given, "confidence", Confidence)


def impact(given: str) -> Impact:
    """Return the impact that a word stands for. Raises `InvalidPayloadError`."""
    return _found(_IMPACTS, given, "estimated_impact", Impact)


def _found(words: Mapping[str, T], given: str, field: str, allowed: type[enum.StrEnum]) -> T:
    # The word itself comes first: on the busiest paths it is already the right one.
    found = words.get(given) or words.get(_word(given))
    if found is None:
        names = ", ".join(each.value for each in allowed)
        raise InvalidPayloadError(f"{field} {given[:_GIVEN_MAX]!r}: not one of {names}")
    return found


def _word(given: str) -> str:
    return given.strip().upper().replace("-", "_").replace(" ", "_")
