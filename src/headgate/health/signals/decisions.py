"""Signal decisions: pure functions from the current signal and an update to the next signal, and to its report."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from headgate.health.model import freshness
from headgate.health.model.datasets import DatasetProfile
from headgate.health.model.enums import OWN_TYPE_PREFIX, STATE_OK, VOLUME, SignalState, intended_type
from headgate.health.model.incidents import IncidentReport
from headgate.health.model.signals import ANY_VERSION, APPLIED, Signal, SignalUpdate, SignalValue, UpdateVerdict
from headgate.health.model.timestamps import instant
from headgate.health.model.volume_counts import VolumeHour, counted, is_kept, window_of


class SignalDecision(Struct, frozen=True, gc=False):
    """The result of an update. `signal` is the next signal, or what a late window would have made of it.

    `volume` gets a row of its own: an hour that is over, or a late window.
    """

    verdict: UpdateVerdict
    signal: Signal | None = None
    is_transition: bool = False
    volume: VolumeHour | None = None


def decide(current: Signal | None, update: SignalUpdate, profile: DatasetProfile, now_ms: int) -> SignalDecision:
    """Return what happens to a canonical update.

    The first update of a misspelled signal type is invalid; a signal that exists is updated, whatever its type.
    A window that ended before the current one is stale, whatever version it expects. A repeated value of the current
    window is a duplicate, whatever version it expects: the first answer may have been lost.
    """
    value, expected = update.value, update.expected_version
    if current is None:
        if expected not in (0, ANY_VERSION):
            return SignalDecision(UpdateVerdict.VERSION_CONFLICT)
        if intended_type(update.signal_type) is not None:
            return SignalDecision(UpdateVerdict.INVALID)
        return _applied(None, update, profile, now_ms)
    is_same_window = value.window_end == current.value.window_end
    if is_same_window and value.digest == current.digest:
        return SignalDecision(UpdateVerdict.DUPLICATE, current)
    if value.window_end < current.value.window_end or (is_same_window and _is_known_report(current, update)):
        signal = _signal(current, update, value, profile, now_ms)
        return SignalDecision(UpdateVerdict.STALE_WINDOW, signal, volume=_still_kept(_window(update), now_ms))
    if expected not in (ANY_VERSION, current.version):
        return SignalDecision(UpdateVerdict.VERSION_CONFLICT, current)
    return _applied(current, update, profile, now_ms)


def _is_known_report(current: Signal, update: SignalUpdate) -> bool:
    """Whether an update of the same window repeats the last report before a finding of the freshness timer."""
    return not update.of_timer and freshness.is_overdue_finding(current.value)


def rejection(update: SignalUpdate, current: Signal | None, verdict: UpdateVerdict) -> str:
    """Return why an update was rejected."""
    named = f"{update.dataset_urn} {update.signal_type}"
    if verdict is UpdateVerdict.VERSION_CONFLICT:
        at = "the signal does not exist" if current is None else f"it is at version {current.version}"
        return f"{named}: you expected version {update.expected_version}, and {at}"
    if verdict is UpdateVerdict.STALE_WINDOW and current is not None:
        if update.value.window_end == current.value.window_end:
            return f"{named}: the window that ended at {update.value.window_end} was reported; send a later one"
        ends = f"{update.value.window_end}, before the current one at {current.value.window_end}"
        return f"{named}: the window ended at {ends}; it is recorded as late"
    if verdict is UpdateVerdict.INVALID:
        own = f"a type of your own that resembles it begins with {OWN_TYPE_PREFIX}"
        meant = intended_type(update.signal_type)
        return f"signal_type {update.signal_type!r} of {update.dataset_urn}: did you mean {meant}? {own}"
    return ""


def with_incident(signal: Signal, incident_id: str | None) -> Signal:
    """Return a signal linked to an incident, or to none."""
    return replace(signal, value=replace(signal.value, incident_id=incident_id))


def is_same_breach(before: Signal, after: Signal) -> bool:
    """Whether a signal keeps its state and has no failure that it had not before."""
    return before.state is after.state and _failures(before) >= _failures(after)


def report_of(signal: Signal) -> IncidentReport:
    """Return the incident report of a signal in breach."""
    value = signal.value
    return IncidentReport(
        dataset_urn=signal.dataset_urn,
        signal_types=(signal.signal_type,),
        failure_signatures=value.failure_signatures or ((value.failure_signature,) if value.failure_signature else ()),
        # The failures of a signal that adds up several come and go: they are one incident until the last has gone.
        dedup_key=signal.signal_type if value.failure_signatures else "",
        state=value.state,
        implicated_producer=value.top_producer,
        evidence_sample=value.evidence_sample,
    )


def _failures(signal: Signal) -> frozenset[str | None]:
    return frozenset(signal.value.failure_signatures or (signal.value.failure_signature,))


def _applied(current: Signal | None, update: SignalUpdate, profile: DatasetProfile, now_ms: int) -> SignalDecision:
    kept = value = update.value
    breach_start = None if value.state is STATE_OK else _breach_start(current, value)
    incident_id = None if current is None else current.value.incident_id
    if breach_start != value.breach_start or incident_id != value.incident_id:
        kept = replace(value, breach_start=breach_start, incident_id=incident_id)
    signal = _signal(current, update, kept, profile, now_ms)
    is_transition = current is None or current.value.state is not value.state
    if update.signal_type != VOLUME:
        return SignalDecision(APPLIED, signal, is_transition)
    held, window = None if current is None else current.volume, _window(update)
    hour = held if window is None else counted(held, window)
    finished = None if held is None or hour is None or held.hour == hour.hour else held
    return SignalDecision(APPLIED, replace(signal, volume=hour), is_transition, volume=_still_kept(finished, now_ms))


def _window(update: SignalUpdate) -> VolumeHour | None:
    """Return the count of an update, or None: without a number, or UNKNOWN with zero, the hour has a gap."""
    count = update.value.metrics.evidence_count
    if (
        update.signal_type != VOLUME
        or not update.is_counted
        or (update.value.state is SignalState.UNKNOWN and not count)
    ):
        return None
    return window_of(update.value.window_end, count)


def _still_kept(hour: VolumeHour | None, now_ms: int) -> VolumeHour | None:
    return hour if hour is not None and is_kept(hour, now_ms) else None


def _signal(
    current: Signal | None, update: SignalUpdate, value: SignalValue, profile: DatasetProfile, now_ms: int
) -> Signal:
    is_transition = current is None or current.value.state is not value.state
    return Signal(
        dataset_urn=update.dataset_urn,
        signal_type=update.signal_type,
        value=value,
        tier=profile.tier,
        owner_team=profile.owner_team,
        version=1 if current is None else current.version + 1,
        digest=update.value.digest,
        last_updated=instant(now_ms),
        state_changed_at=value.window_end if current is None or is_transition else current.state_changed_at,
        previous_state=_previous(current, is_transition),
        ok_until=None if current is None or value.state is STATE_OK else current.last_ok_at,
        detected_at=instant(now_ms) if current is None or is_transition else current.detected_at,
    )


def _previous(current: Signal | None, is_transition: bool) -> SignalState | None:  # noqa: FBT001
    if current is None:
        return None
    return current.state if is_transition else current.previous_state


def _breach_start(current: Signal | None, value: SignalValue) -> str | None:
    """Return the start of the breach: the caller's value, else the start of the first breached window."""
    if value.breach_start is not None or not value.state.is_breach:
        return value.breach_start
    if current is not None and current.state.is_breach and current.value.breach_start is not None:
        return current.value.breach_start
    return value.window_start
