"""Incident timers: due rows that escalate, auto-resolve, and unpin the evidence of incidents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from headgate.clock import Clock
from headgate.errors import ConflictError, NotFoundError, TransientError
from headgate.health.incidents import decisions
from headgate.health.incidents.decisions import SYSTEM
from headgate.health.incidents.rows import Sealer, TimerKind, Unsealed, due_key, due_partitions, due_put, incident_put
from headgate.health.incidents.service import Incidents
from headgate.health.incidents.writes import escalation_put
from headgate.health.model.enums import IncidentStatus
from headgate.health.model.events import EventWrites, IncidentChange, IncidentEventType, incident_event, no_event_writes
from headgate.health.model.incidents import BlastRadius, Incident, Resolution
from headgate.ids import IdMaker
from headgate.store.catalogue.tables import CONTROL
from headgate.store.model.conditions import Condition, equals
from headgate.store.model.requests import Delete, Poll, Put, Query, Range, Sort, Write
from headgate.store.model.values import Item
from headgate.store.port import Store

BATCH: Final = 100
# Evidence of a resolved incident is kept this long, for the post-mortem.
KEPT_SECONDS: Final = 30 * 86_400


class Escalation(Struct, frozen=True):
    """An unacknowledged incident that is due for its next escalation level."""

    incident_id: str
    level: int
    due_at_ms: int


class Unpin(Protocol):
    """Unpins evidence that an incident pinned up to a time."""

    def __call__(
        self, evidence_ids: Sequence[str], incident_id: str, keep_seconds: float, *, taken_until: str | None
    ) -> None: ...


class IncidentTimers:
    """Runs due timers. Safe to run in any number of processes: each row is processed once."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        ids: IdMaker,
        incidents: Incidents,
        *,
        sealer: Sealer | None = None,
        event_writes: EventWrites = no_event_writes,
        unpin: Unpin | None = None,
        blast_radius: Callable[[str], BlastRadius] | None = None,
    ) -> None:
        """Take the store and its collaborators. `blast_radius` returns the whole radius of a dataset."""
        self._store = store
        self._clock = clock
        self._ids = ids
        self._incidents = incidents
        self._sealer = sealer if sealer is not None else Unsealed()
        self._event_writes = event_writes
        self._unpin = unpin
        self._blast_radius = blast_radius

    def due_escalations(self, *, limit: int = BATCH) -> list[Escalation]:
        """Return the incidents that are due for escalation, longest overdue first."""
        return [
            Escalation(row["incident_id"], row["level"], row["due_at_ms"])
            for row in self._due(TimerKind.ESCALATION, limit)
        ]

    def next_escalations(self, incident_ids: Sequence[str]) -> dict[str, Escalation]:
        """Return the next escalation of each incident that has one: acknowledged and resolved ones have none."""
        keys = [due_key(TimerKind.ESCALATION, each) for each in incident_ids]
        rows = self._store.get_many(CONTROL, keys) if keys else []
        found = (Escalation(row["incident_id"], row["level"], row["due_at_ms"]) for row in rows if row is not None)
        return {each.incident_id: each for each in found}

    def sweep(self, *, limit: int = BATCH) -> int:
        """Run all due timers, up to a limit of each kind, and return their count.

        Raises the first `TransientError` after the other timers have run.
        """
        done = 0
        failed: TransientError | None = None
        kinds = {
            TimerKind.ESCALATION: self._escalate,
            TimerKind.RECOVERY: self._recover,
            TimerKind.PINS: self._unpin_evidence,
            TimerKind.RADIUS: self._complete_radius,
        }
        for kind, run in kinds.items():
            for row in self._due(kind, limit):
                try:
                    done += run(row)
                except TransientError as exc:
                    failed = failed or exc
        if failed is not None:
            raise failed
        return done

    def _due(self, kind: str, limit: int) -> list[Item]:
        upto = Sort(Range.AT_MOST, self._now_ms())
        pages = self._store.query_many(
            [
                Query(table=CONTROL, index="due-index", partition=partition, sort=upto, limit=limit, poll=Poll.RELAXED)
                for partition in due_partitions(kind)
            ]
        )
        found = [row for page in pages for row in page.items]
        return sorted(found, key=lambda row: row["due_at_ms"])[:limit]

    def _escalate(self, row: Item) -> int:
        incident = self._get_or_none(row)
        if incident is None or incident.status is not IncidentStatus.OPEN:
            return self._drop(row)
        now_ms = self._now_ms()
        after = decisions.escalated(incident, row["level"], now_ms)
        event_type = incident_event(
            after,
            IncidentEventType.UPDATED,
            self._ids,
            change=IncidentChange.ESCALATED,
            reason=f"escalated to level {row['level']}",
        )
        writes: list[Write] = [
            incident_put(after, self._sealer, replaces=incident.version),
            # Conditional on the row as read: another sweep or an acknowledgement in between wins.
            _if_unchanged(escalation_put(after, now_ms, row["level"]), row),
            *self._event_writes(event_type, now_ms),
        ]
        if not self._transact(writes):
            return 0
        self._incidents.on_committed(after, IncidentEventType.UPDATED)
        return 1

    def _recover(self, row: Item) -> int:
        """Resolve an incident whose signals were OK for the quiet time; extend the timer if that is longer."""
        incident = self._get_or_none(row)
        if incident is None or not incident.is_open:
            return self._drop(row)
        longer_ms = decisions.quiet_ms(incident) - decisions.QUIET_MS
        if longer_ms and not row.get("is_extended"):
            later = due_put(TimerKind.RECOVERY, incident.incident_id, row["due_at_ms"] + longer_ms, is_extended=True)
            return self._transact([_if_unchanged(later, row)])
        if not self._incidents.all_signals_ok(incident):
            # The next signal that becomes OK starts a new timer.
            return self._drop(row)

        def decide(found: Incident, now_ms: int) -> Incident:
            if not found.is_open or not self._incidents.all_signals_ok(found):
                return found
            reason = self._incidents.auto_resolve_reason(found)
            ended = decisions.moved(found, decisions.RESOLVED, SYSTEM, reason, now_ms)
            return replace(ended, resolution=Resolution(root_cause=reason, resolved_by=SYSTEM))

        self._incidents.change_by_system(incident.incident_id, decide)
        return 1

    def _unpin_evidence(self, row: Item) -> int:
        """Unpin the evidence of a resolved incident, so that it expires."""
        incident = self._get_or_none(row)
        if incident is not None and not incident.is_open and self._unpin is not None:
            self._unpin(incident.evidence_sample, incident.incident_id, KEPT_SECONDS, taken_until=incident.resolved_at)
        return self._drop(row)

    def _complete_radius(self, row: Item) -> int:
        """Walk the whole blast radius of an incident that opened with a part of it."""
        incident = self._get_or_none(row)
        if incident is not None and incident.is_open and self._blast_radius is not None:
            radius = self._blast_radius(incident.primary_dataset_urn)
            self._incidents.change_by_system(
                incident.incident_id, lambda found, now_ms: decisions.with_radius(found, radius, now_ms)
            )
        return self._drop(row)

    def _get_or_none(self, row: Item) -> Incident | None:
        try:
            return self._incidents.get(row["incident_id"])
        except NotFoundError:
            return None

    def _drop(self, row: Item) -> int:
        return self._transact([Delete(CONTROL, due_key(row["PK"].partition("#")[0], row["incident_id"]), _same(row))])

    def _transact(self, writes: Sequence[Write]) -> int:
        try:
            self._store.transact(writes)
        except ConflictError:
            return 0
        return 1

    def _now_ms(self) -> int:
        return int(self._clock.seconds() * 1000)


def _same(row: Item) -> Condition:
    return equals("due_at_ms", row["due_at_ms"])


def _if_unchanged(write: Put | Delete, row: Item) -> Put | Delete:
    """Return a write that is conditional on a due row being as read."""
    return replace(write, condition=_same(row))
