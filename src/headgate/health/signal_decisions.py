"""What becomes of a signal when a value for it comes in: decided without looking anywhere."""

from __future__ import annotations

import enum

from msgspec import Struct
from msgspec.structs import replace

from headgate.health.moments import instant
from headgate.health.signal_values import ANY_VERSION, Signal, SignalUpdate, SignalValue
from headgate.health.vocabulary import SignalState, Tier


class Verdict(enum.StrEnum):
    """What was made of an update. The values are the error codes of the wire, but for the first two."""

    APPLIED = "APPLIED"
    DUPLICATE = "DUPLICATE"
    VERSION_CONFLICT = "VERSION_CONFLICT"
    STALE_WINDOW = "STALE_WINDOW"
    DATASET_NOT_FOUND = "DATASET_NOT_FOUND"
    INVALID = "VALIDATION_ERROR"
    REPEATED_KEY = "REPEATED_KEY"
    UNAVAILABLE = "UNAVAILABLE"

    @property
    def is_success(self) -> bool:
        return self in (Verdict.APPLIED, Verdict.DUPLICATE)


class Standing(Struct, frozen=True):
    """What the registry says of a dataset: signals carry it, so that a board needs no second look-up."""

    tier: Tier
    owner_team: str


class Decision(Struct, frozen=True):
    """What is to be done. `signal` is the signal as it then stands, or as it would have been."""

    verdict: Verdict
    signal: Signal | None = None
    is_transition: bool = False


def decide(current: Signal | None, update: SignalUpdate, standing: Standing, now_ms: int) -> Decision:
    """Return what is to become of an update in canonical form.

    A window that ended before the present one never overwrites it, whatever version was read. The same value of the
    same window again changes nothing, whatever version was expected: its first answer may have been lost.
    """
    value, expected = update.value, update.expected_version
    if current is None:
        if expected not in (0, ANY_VERSION):
            return Decision(Verdict.VERSION_CONFLICT)
        return _applied(None, update, standing, now_ms)
    if value.window_end == current.value.window_end and value.digest == current.digest:
        return Decision(Verdict.DUPLICATE, current)
    if value.window_end < current.value.window_end:
        return Decision(Verdict.STALE_WINDOW, _signal(current, update, value, standing, now_ms))
    if expected not in (ANY_VERSION, current.version):
        return Decision(Verdict.VERSION_CONFLICT, current)
    return _applied(current, update, standing, now_ms)


def _applied(current: Signal | None, update: SignalUpdate, standing: Standing, now_ms: int) -> Decision:
    kept = value = update.value
    breach_start = _breach_start(current, value)
    incident_id = None if current is None else current.value.incident_id
    if breach_start != value.breach_start or incident_id != value.incident_id:
        kept = replace(value, breach_start=breach_start, incident_id=incident_id)
    signal = _signal(current, update, kept, standing, now_ms)
    return Decision(Verdict.APPLIED, signal, is_transition=current is None or current.state is not value.state)


def _signal(
    current: Signal | None, update: SignalUpdate, value: SignalValue, standing: Standing, now_ms: int
) -> Signal:
    is_transition = current is None or current.state is not value.state
    return Signal(
        dataset_urn=update.dataset_urn,
        signal_type=update.signal_type,
        value=value,
        tier=standing.tier,
        owner_team=standing.owner_team,
        version=1 if current is None else current.version + 1,
        digest=update.value.digest,
        last_updated=instant(now_ms),
        state_changed_at=value.window_end if current is None or is_transition else current.state_changed_at,
        previous_state=_previous(current, is_transition),
    )


def _previous(current: Signal | None, is_transition: bool) -> SignalState | None:  # noqa: FBT001
    if current is None:
        return None
    return current.state if is_transition else current.previous_state


def _breach_start(current: Signal | None, value: SignalValue) -> str | None:
    """Return since when the promise is broken: as the caller says, else since the first window in which it was."""
    if value.state is SignalState.OK:
        return None
    if value.breach_start is not None or not value.state.is_breach:
        return value.breach_start
    if current is not None and current.state.is_breach and current.value.breach_start is not None:
        return current.value.breach_start
    return value.window_start
