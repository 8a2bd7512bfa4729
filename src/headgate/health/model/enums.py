"""Vocabulary of health: states, severities, statuses, tiers and signal types, with the synonyms of other tools.

The wire uses these values only. A finer status of another tool becomes a `Phase`; a finer severity or tier becomes the
nearest value. Signal types are open: users define their own. A new one that is a misspelled known type is rejected.
"""

from __future__ import annotations

import difflib
import enum
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple, TypeVar

from headgate.errors import InvalidPayloadError


class SignalState(enum.StrEnum):
    """The state of a signal. UNKNOWN: it could not be evaluated, which is neither good nor bad."""

    OK = "OK"
    WARNING = "WARNING"
    CRITICAL = "CRITICAL"
    UNKNOWN = "UNKNOWN"

    @property
    def is_breach(self) -> bool:
        """Whether the signal breaches its SLO."""
        return self in (SignalState.WARNING, SignalState.CRITICAL)


# As a constant, because an attribute of an enum class is slow to read and every update of a signal reads it often.
STATE_OK: Final = SignalState.OK


class Severity(enum.StrEnum):
    """The urgency of an incident. SEV_1 pages people."""

    SEV_1 = "SEV_1"
    SEV_2 = "SEV_2"
    SEV_3 = "SEV_3"


class IncidentStatus(enum.StrEnum):
    """The status of an incident."""

    OPEN = "OPEN"
    ACKNOWLEDGED = "ACKNOWLEDGED"
    RESOLVED = "RESOLVED"


class Phase(enum.StrEnum):
    """The progress of work on an incident, finer than its status."""

    NEW = "NEW"
    ACKNOWLEDGED = "ACKNOWLEDGED"
    INVESTIGATING = "INVESTIGATING"
    MITIGATING = "MITIGATING"
    RESOLVED = "RESOLVED"
    CLOSED = "CLOSED"


class Tier(enum.StrEnum):
    """The importance of a dataset. TIER_1 is the highest."""

    TIER_1 = "TIER_1"
    TIER_2 = "TIER_2"
    TIER_3 = "TIER_3"


class EntityType(enum.StrEnum):
    """The kind of process that writes or reads a dataset."""

    SERVICE = "SERVICE"
    JOB = "JOB"
    LAMBDA = "LAMBDA"
    NOTEBOOK = "NOTEBOOK"


class Confidence(enum.StrEnum):
    """The confidence in a statement."""

    HIGH = "HIGH"
    MEDIUM = "MEDIUM"
    LOW = "LOW"


class Impact(enum.StrEnum):
    """The downstream impact of an incident."""

    HIGH = "HIGH"
    MEDIUM = "MEDIUM"
    LOW = "LOW"
    UNKNOWN = "UNKNOWN"


class Stage(NamedTuple):
    """A status and its phase."""

    status: IncidentStatus
    phase: Phase


FRESHNESS: Final = "FRESHNESS"
VOLUME: Final = "VOLUME"
CONTRACT_COMPLIANCE: Final = "CONTRACT_COMPLIANCE"
SCHEMA_DRIFT: Final = "SCHEMA_DRIFT"
DATA_QUALITY: Final = "DATA_QUALITY"
ANOMALY: Final = "ANOMALY"
COST: Final = "COST"
# The runs of jobs outside Headgate that write the dataset.
JOB_RUN: Final = "JOB_RUN"

_KNOWN_TYPES: Final = (FRESHNESS, VOLUME, CONTRACT_COMPLIANCE, SCHEMA_DRIFT, DATA_QUALITY, ANOMALY, COST)
# A type with this prefix is a user's own, however similar it is to a known one.
OWN_TYPE_PREFIX: Final = "X_"
# Other signal types pass unchanged: users define their own.
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
# Synonyms of dbt, Soda, OpenLineage, Alertmanager and PagerDuty, among others.
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
# From this similarity on, a type is a misspelling: FRESHNES, VOLUMES and DATAQUALITY are, UNIQUENESS is not.
_MISSPELLED_RATIO: Final = 0.8
# Every other word of two or three letters resembles an abbreviation such as DQ.
_COMPARED_LENGTH_MIN: Final = 4
_GIVEN_MAX: Final = 40

T = TypeVar("T")


# Few distinct values, looked up on every update.
@lru_cache(maxsize=1024)
def signal_type(given: str) -> str:
    """Return the canonical name of a signal type. Raises `InvalidPayloadError` for an invalid one."""
    word = _word(given)
    found = _SIGNAL_TYPES.get(word, word)
    if not _SIGNAL_TYPE.fullmatch(found):
        raise InvalidPayloadError(
            f"signal_type {given[:_GIVEN_MAX]!r}: use capital letters, digits and _, at most 64, such as {FRESHNESS}"
        )
    return found


@lru_cache(maxsize=1024)
def intended_type(signal_type: str) -> str | None:
    """Return the known type that a canonical name misspells, or None.

    A known type with a prefix or suffix (`FRESHNESS_EU`) is a user's own, and so is everything that begins with `X_`.
    """
    if signal_type.startswith(OWN_TYPE_PREFIX) or len(signal_type) < _COMPARED_LENGTH_MIN:
        return None
    padded = f"_{signal_type}_"
    if any(f"_{known}_" in padded for known in _KNOWN_TYPES):
        return None
    words = [each for each in (*_KNOWN_TYPES, *_SIGNAL_TYPES) if len(each) >= _COMPARED_LENGTH_MIN]
    found = difflib.get_close_matches(signal_type, words, 1, _MISSPELLED_RATIO)
    return _SIGNAL_TYPES.get(found[0], found[0]) if found else None


def signal_state(given: str) -> SignalState:
    """Return the state of a word. Raises `InvalidPayloadError`."""
    return _found(_STATES, given, "state", SignalState)


def severity(given: str) -> Severity:
    """Return the severity of a word. Raises `InvalidPayloadError`."""
    return _found(_SEVERITIES, given, "severity", Severity)


def stage(given: str) -> Stage:
    """Return the status and phase of a word. Raises `InvalidPayloadError`."""
    return _found(_STAGES, given, "status", IncidentStatus)


def tier(given: str | int) -> Tier:
    """Return the tier of a word or number. Raises `InvalidPayloadError`."""
    return _found(_TIERS, str(given), "tier", Tier)


def entity_type(given: str) -> EntityType:
    """Return the entity type of a word. Raises `InvalidPayloadError`."""
    return _found(_ENTITY_TYPES, given, "entity_type", EntityType)


def confidence(given: str) -> Confidence:
    """Return the confidence of a word. Raises `InvalidPayloadError`."""
    return _found(_CONFIDENCES, given, "confidence", Confidence)


def impact(given: str) -> Impact:
    """Return the impact of a word. Raises `InvalidPayloadError`."""
    return _found(_IMPACTS, given, "estimated_impact", Impact)


def _found(words: Mapping[str, T], given: str, field: str, allowed: type[enum.StrEnum]) -> T:
    # The exact word first: on the hot path it is canonical already.
    found = words.get(given) or words.get(_word(given))
    if found is None:
        names = ", ".join(each.value for each in allowed)
        raise InvalidPayloadError(f"{field} {given[:_GIVEN_MAX]!r}: not one of {names}")
    return found


def _word(given: str) -> str:
    return given.strip().upper().replace("-", "_").replace(" ", "_")
