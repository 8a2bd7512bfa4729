"""Incident writes: plans that open or join an incident, and the links, index rows and timers that go with a change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from headgate.health.incidents.rows import TimerKind, dedup_write, due_delete, due_put, open_delete, open_put
from headgate.health.model.enums import IncidentStatus, SignalState
from headgate.health.model.incidents import Incident, Link
from headgate.health.model.signals import signal_key
from headgate.health.model.timestamps import milliseconds
from headgate.store.catalogue.tables import SIGNAL_STATE
from headgate.store.model.conditions import Condition, absent, all_of, any_of, equals, version_is
from headgate.store.model.requests import Check, Delete, Put, Update, Write
from headgate.store.model.values import Item

# An unacknowledged incident escalates to the next level after this many minutes since it opened.
ESCALATION_MINUTES: Final = (0, 15, 30, 60)
_MINUTE_MS: Final = 60_000


def companions(
    before: Incident | None, after: Incident, now_ms: int, *, as_read: Mapping[str, Condition] | None = None
) -> list[Write]:
    """Return the writes beside the incident row for a change from `before` to `after`, except signal links and events.

    `as_read` maps deduplication keys to conditions on their rows as read; rows of other keys must be absent or belong
    to this incident.
    """
    was_open = before is not None and before.is_open
    writes: list[Write] = []
    if was_open != after.is_open or (before is not None and before.is_closed != after.is_closed) or as_read:
        mine = any_of(absent(), equals("incident_id", after.incident_id))
        writes += [dedup_write(after, key, now_ms, (as_read or {}).get(key, mine)) for key in after.keys]
    listed = set(before.dataset_urns) if before is not None and was_open else set[str]()
    wanted = set(after.dataset_urns) if after.is_open else set[str]()
    writes += [open_put(after, urn) for urn in sorted(wanted - listed)]
    writes += [open_delete(after, urn) for urn in sorted(listed - wanted)]
    if after.is_open and not was_open:
        writes.append(escalation_put(after, now_ms, 0))
        if after.blast_radius is not None and not after.blast_radius.complete:
            # The walk was bounded, so that it did not delay the signal; the timer completes it.
            writes.append(due_put(TimerKind.RADIUS, after.incident_id, now_ms))
        if before is not None:
            writes.append(due_delete(TimerKind.PINS, after.incident_id))
    elif was_open and not after.is_open:
        writes += [
            due_delete(TimerKind.ESCALATION, after.incident_id),
            due_delete(TimerKind.RECOVERY, after.incident_id),
        ]
        writes.append(due_put(TimerKind.PINS, after.incident_id, now_ms))
    elif before is not None and after.is_open:
        is_rescheduled = (before.status, before.snoozed_until) != (after.status, after.snoozed_until)
        writes += [_escalation_after_change(after, now_ms)] if is_rescheduled else []
    return writes


def escalation_put(incident: Incident, now_ms: int, level: int) -> Put | Delete:
    """Return the write of the next escalation timer, or its delete after the last level."""
    if level + 1 >= len(ESCALATION_MINUTES):
        return due_delete(TimerKind.ESCALATION, incident.incident_id)
    wait_ms = (ESCALATION_MINUTES[level + 1] - ESCALATION_MINUTES[level]) * _MINUTE_MS
    return due_put(TimerKind.ESCALATION, incident.incident_id, now_ms + wait_ms, level=level + 1)


def _escalation_after_change(incident: Incident, now_ms: int) -> Put | Delete:
    """Return the escalation timer after a change of status or snooze; an acknowledged incident has none."""
    if incident.status is IncidentStatus.ACKNOWLEDGED:
        return due_delete(TimerKind.ESCALATION, incident.incident_id)
    if incident.snoozed_until is not None:
        level = min(incident.escalation_level + 1, len(ESCALATION_MINUTES) - 1)
        return due_put(TimerKind.ESCALATION, incident.incident_id, milliseconds(incident.snoozed_until), level=level)
    return escalation_put(incident, now_ms, incident.escalation_level)


def link_writes(links: Sequence[Link], rows: Sequence[Item | None], incident_id: str) -> list[Write]:
    """Return the writes that link signals to an incident; those already linked are only checked."""
    return [_link_write(link, row, incident_id) for link, row in zip(links, rows, strict=True)]


def unlink_writes(
    links: Sequence[Link], rows: Sequence[Item | None], incident_id: str, to: str | None, *, must_be_ok: bool = False
) -> list[Write]:
    """Return the writes that unlink signals from an incident, or link them to the incident `to`.

    Each is conditional on the signal as read, so a signal that joins the incident meanwhile causes a conflict; with
    `must_be_ok`, also on the signal being OK.
    """
    return [
        _unlink_write(link, row, incident_id, to, must_be_ok=must_be_ok) for link, row in zip(links, rows, strict=True)
    ]


def are_all_ok(links: Sequence[Link], rows: Sequence[Item | None], incident_id: str) -> bool:
    """Whether all signals linked to an incident are OK; missing ones and those of other incidents are ignored."""
    return all(
        row is None or row.get("incident_id") != incident_id or row["state"] == SignalState.OK
        for _, row in zip(links, rows, strict=True)
    )


def _link_write(link: Link, row: Item | None, incident_id: str) -> Write:
    key = signal_key(link.dataset_urn, link.signal_type)
    if row is None:
        return Check(SIGNAL_STATE, key, absent())
    if row.get("incident_id") == incident_id:
        return Check(SIGNAL_STATE, key, version_is(row["version"]))
    return _link_update(row, incident_id, version_is(row["version"]))


def _unlink_write(link: Link, row: Item | None, incident_id: str, to: str | None, *, must_be_ok: bool) -> Write:
    key = signal_key(link.dataset_urn, link.signal_type)
    if row is None:
        return Check(SIGNAL_STATE, key, absent())
    as_read: Condition = version_is(row["version"])
    if row.get("incident_id") != incident_id:
        return Check(SIGNAL_STATE, key, as_read)
    return _link_update(row, to, all_of(as_read, equals("state", SignalState.OK.value)) if must_be_ok else as_read)


def _link_update(row: Item, incident_id: str | None, condition: Condition) -> Update:
    return Update(
        SIGNAL_STATE,
        signal_key(row["PK"], row["SK"]),
        set={"incident_id": incident_id, "version": row["version"] + 1},
        condition=condition,
    )


class Opened(Struct, frozen=True):
    """The incident of a report. `is_new`: the report opened it; otherwise the report joined or reopened it."""

    incident: Incident
    is_new: bool


class IncidentPlan(Struct, frozen=True):
    """The writes that open, join or reopen an incident, conditional on the rows as read."""

    incident: Incident
    is_new: bool
    writes: list[Write]

    @property
    def writes_incident(self) -> bool:
        """Whether the incident row is written, and not only checked."""
        return any(not isinstance(each, Check) for each in self.writes)


class IncidentDrafts:
    """Incidents as earlier transactions of the same batch will leave them."""

    def __init__(self) -> None:
        self._incidents: dict[str, Incident] = {}
        self._by_dedup_key: dict[str, Incident] = {}

    def note(self, incident: Incident) -> None:
        self._incidents[incident.incident_id] = incident
        self._by_dedup_key.update(dict.fromkeys(incident.keys, incident))

    def incident(self, incident_id: str) -> Incident | None:
        return self._incidents.get(incident_id)

    def by_dedup_key(self, dedup_key: str) -> Incident | None:
        found = self._by_dedup_key.get(dedup_key)
        return None if found is None else self._incidents[found.incident_id]
