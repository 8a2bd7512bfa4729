"""Signal helpers: rejection messages, breach comparison, the incident report of a signal, history months."""

from __future__ import annotations

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from headgate.errors import InvalidPayloadError
from headgate.health.model.incidents import IncidentReport
from headgate.health.model.signals import Signal, SignalUpdate, UpdateVerdict
from headgate.health.signals.rows import month_of

_MONTHS_MAX: Final = 120


class BreachPage(Struct, frozen=True):
    """A page of signals in breach, newest first, and the cursor of the next page."""

    signals: list[Signal]
    cursor: str | None = None


def rejection(update: SignalUpdate, current: Signal | None, verdict: UpdateVerdict) -> str:
    """Return why an update was rejected."""
    named = f"{update.dataset_urn} {update.signal_type}"
    if verdict is UpdateVerdict.VERSION_CONFLICT:
        at = "the signal does not exist" if current is None else f"it is at version {current.version}"
        return f"{named}: you expected version {update.expected_version}, and {at}"
    if verdict is UpdateVerdict.STALE_WINDOW and current is not None:
        ends = f"{update.value.window_end}, before the current one at {current.value.window_end}"
        return f"{named}: the window ended at {ends}; it is recorded as late"
    return ""


def with_incident(signal: Signal, incident_id: str | None) -> Signal:
    """Return a signal linked to an incident, or to none."""
    return replace(signal, value=replace(signal.value, incident_id=incident_id))


def is_same_breach(before: Signal, after: Signal) -> bool:
    """Whether a signal keeps its state and failure signature."""
    return before.state is after.state and before.value.failure_signature == after.value.failure_signature


def report_of(signal: Signal) -> IncidentReport:
    """Return the incident report of a signal in breach."""
    value = signal.value
    return IncidentReport(
        dataset_urn=signal.dataset_urn,
        signal_types=(signal.signal_type,),
        failure_signatures=(value.failure_signature,) if value.failure_signature else (),
        state=value.state,
        implicated_producer=value.top_producer,
        evidence_sample=value.evidence_sample,
    )


def months(since: str, until: str) -> list[str]:
    """Return the months of a period. Raises `InvalidPayloadError` for too many."""
    year, month = int(since[:4]), int(since[5:7])
    last, found = month_of(until), list[str]()
    while f"{year:04d}{month:02d}" <= last:
        found.append(f"{year:04d}{month:02d}")
        year, month = (year, month + 1) if month < 12 else (year + 1, 1)
        if len(found) > _MONTHS_MAX:
            raise InvalidPayloadError(f"history from {since} to {until}: more than {_MONTHS_MAX} months; ask for less")
    return found
