"""Incident service: opens, joins, changes, reopens and merges incidents, each change in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final

from msgspec.structs import replace

from headgate.auth.audit_entry import AuditLog
from headgate.clock import Clock
from headgate.errors import (
    ConflictError,
    DatasetNotFoundError,
    FatalError,
    IllegalTransitionError,
    NotFoundError,
    OutcomeUnknownError,
    StoreBusyError,
    TransientError,
    VersionConflictError,
)
from headgate.health.incidents import decisions
from headgate.health.incidents.decisions import QUIET_MS, SILENCE_SECONDS, SYSTEM, auto_resolve_reason, links_ever
from headgate.health.incidents.reports import audit_entry, change_of, checked, event_type_of, verb_of
from headgate.health.incidents.rows import (
    KEPT_SECONDS,
    Sealer,
    TimerKind,
    Unsealed,
    dedup_key_of,
    due_put,
    incident_key,
    incident_of,
    incident_put,
)
from headgate.health.incidents.writes import (
    IncidentDrafts,
    IncidentPlan,
    Opened,
    are_all_ok,
    companions,
    link_writes,
    unlink_writes,
)
from headgate.health.model import timestamps
from headgate.health.model.datasets import DatasetProfile
from headgate.health.model.enums import SignalState
from headgate.health.model.events import EventWrites, IncidentChange, IncidentEventType, incident_event, no_event_writes
from headgate.health.model.incidents import BlastRadius, Changes, Incident, IncidentReport, Link
from headgate.health.model.signals import signal_key
from headgate.health.observer import HealthObserver, NullObserver
from headgate.ids import IdMaker
from headgate.store.cache import keys as cache_keys
from headgate.store.cache.read_through import Cache
from headgate.store.catalogue.tables import CONTROL, INCIDENT_INDEX, SIGNAL_STATE
from headgate.store.model.conditions import Condition, absent, all_of, any_of, equals, version_is
from headgate.store.model.requests import Check, Put, Write
from headgate.store.model.values import Item
from headgate.store.port import Store

ATTEMPTS_MAX: Final = 20
ID_LENGTH_MAX: Final = 128

PinWrites = Callable[[Sequence[str], str, int], list[Write]]


class Incidents:
    """Incidents of one store. Safe to use from many threads."""

    def __init__(  # noqa: PLR0913 - its collaborators
        self,
        store: Store,
        clock: Clock,
        ids: IdMaker,
        cache: Cache,
        audit: AuditLog,
        *,
        sealer: Sealer | None = None,
        event_writes: EventWrites = no_event_writes,
        pin_writes: PinWrites = lambda _ids, _incident, _now: [],
        blast_radius: Callable[[str], BlastRadius | None] = lambda _urn: None,
        profile: Callable[[str], DatasetProfile | None] = lambda _urn: None,
        observer: HealthObserver | None = None,
        kept_seconds: int = KEPT_SECONDS,
        silence_seconds: int = SILENCE_SECONDS,
    ) -> None:
        """Take the store and its collaborators.

        A breach that a person resolves while it lasts opens nothing for `silence_seconds`.
        """
        self._store = store
        self._clock = clock
        self._ids = ids
        self._cache = cache
        self._audit = audit
        self._sealer = sealer if sealer is not None else Unsealed()
        self._event_writes = event_writes
        self._pin_writes = pin_writes
        self._blast_radius = blast_radius
        self._profile = profile
        self._observer = observer if observer is not None else NullObserver()
        self._kept_seconds = kept_seconds
        self._silence_ms = silence_seconds * 1000

    def _put(self, incident: Incident, *, replaces: int | None = None) -> Put:
        return incident_put(incident, self._sealer, replaces=replaces, kept_seconds=self._kept_seconds)

    # Reads.

    def get(self, incident_id: str, *, consistent: bool = True) -> Incident:
        """Return an incident. Raises `NotFoundError`."""
        is_id = len(incident_id) <= ID_LENGTH_MAX
        row = self._store.get(INCIDENT_INDEX, incident_key(incident_id), consistent=consistent) if is_id else None
        if row is None:
            raise NotFoundError(f"incident {incident_id[:80]}: not found; 'headgate incident ls' lists incidents")
        return incident_of(row, self._sealer)

    def get_many(self, incident_ids: Sequence[str], *, consistent: bool = False) -> list[Incident | None]:
        """Return incidents in the order of their ids, None for each that does not exist."""
        keys = [incident_key(each) for each in incident_ids]
        rows = self._store.get_many(INCIDENT_INDEX, keys, consistent=consistent) if keys else []
        return [None if row is None else incident_of(row, self._sealer) for row in rows]

    def silenced_by(self, dedup_keys: Sequence[str]) -> dict[str, Incident]:
        """Return the resolved incidents that keep a breach silent now, by deduplication key."""
        rows = self._store.get_many(CONTROL, [dedup_key_of(each) for each in dedup_keys]) if dedup_keys else []
        ids = {key: row["incident_id"] for key, row in zip(dedup_keys, rows, strict=True) if row and not row["is_open"]}
        found = {each.incident_id: each for each in self.get_many([*dict.fromkeys(ids.values())]) if each is not None}
        now = timestamps.instant(self._now_ms())
        held = {key: found[incident_id] for key, incident_id in ids.items() if incident_id in found}
        return {
            key: each for key, each in held.items() if each.silenced_until is not None and each.silenced_until > now
        }

    def all_signals_ok(self, incident: Incident) -> bool:
        """Whether every linked signal of an incident is OK. False if the incident does not hold all of its links."""
        if not incident.links_complete:
            return False
        return are_all_ok(incident.links, self._signals(incident.links), incident.incident_id)

    def auto_resolve_reason(self, incident: Incident) -> str:
        """Return why an incident is resolved automatically: its signals are OK, or moved to another incident."""
        links = links_ever(incident)
        return auto_resolve_reason(incident, links, self._signals(links))

    # Opening.

    def open(self, report: IncidentReport, *, actor: str) -> Opened:
        """Open an incident for a report, or join the open one with its deduplication key, in one transaction.

        Raises `DatasetNotFoundError`, `InvalidPayloadError` or `InvalidIdError` for an invalid report, and
        `StoreBusyError` after too many conflicts with other writers.
        """
        try:
            return self._open(report, actor)
        except (TransientError, FatalError):
            self._observer.on_incident_open_failed()
            raise

    def _open(self, report: IncidentReport, actor: str) -> Opened:
        report = checked(report)
        profile = self._profile(report.dataset_urn)
        if profile is None:
            raise DatasetNotFoundError(f"dataset {report.dataset_urn}: not registered; register it first")
        if profile.dataset_urn is not None:
            report = replace(report, dataset_urn=profile.dataset_urn)
        links = tuple(Link(report.dataset_urn, each) for each in report.signal_types)
        for _ in range(ATTEMPTS_MAX):
            now_ms = self._now_ms()
            rows = self._signals(links)
            rows_by_link = [(link, row) for link, row in zip(links, rows, strict=True) if row is not None]
            plan = self.plan(report, profile, now_ms, tuple(link for link, _ in rows_by_link), actor=actor)
            assert plan is not None
            writes = [
                *plan.writes,
                *self._link_writes(plan.incident, rows_by_link, now_ms),
                *self._unlink_from_others(plan.incident, rows_by_link, now_ms),
            ]
            if all(isinstance(each, Check) for each in writes):
                return Opened(plan.incident, is_new=False)
            verb = "open" if plan.is_new else "join"
            entry = audit_entry(actor, f"incident.{verb}", None if plan.is_new else plan.incident, plan.incident, "")
            try:
                self._audit.commit(writes, entry)
            except OutcomeUnknownError:
                if plan.is_new and self._get_or_none(plan.incident.incident_id) is not None:
                    return self._opened(plan)
                continue
            except ConflictError:
                continue
            return self._opened(plan)
        raise StoreBusyError(f"incident of {report.dataset_urn}: {ATTEMPTS_MAX} conflicting writes; try again")

    def plan(
        self,
        report: IncidentReport,
        profile: DatasetProfile,
        now_ms: int,
        links: tuple[Link, ...],
        *,
        actor: str = SYSTEM,
        is_new: bool = True,
        flaps: str | None = None,
        drafts: IncidentDrafts | None = None,
    ) -> IncidentPlan | None:
        """Return the writes that open, join or reopen the incident of a report, for a transaction of the caller.

        The caller links `links` in the same transaction. After a conflict, call it again: another writer opened or
        changed the incident. `is_new` false: the breach lasts since before; then None is returned while the incident
        is silenced. `flaps` is the incident whose
        breach is back after the signal was OK.
        """
        key = decisions.dedup_key_for(report)
        known = None if drafts is None else drafts.by_dedup_key(key)
        condition: Condition = absent() if known is None else equals("incident_id", known.incident_id)
        if known is None:
            dedup = self._store.get(CONTROL, dedup_key_of(key), consistent=True)
            known = None if dedup is None else self._get_or_none(dedup["incident_id"])
            condition = _is_as_read(dedup)
        if known is None or known.is_closed:
            plan = self._opening(report, links, profile, now_ms, actor, condition)
        elif known.is_open:
            plan = self._joining(known, report, links, profile, now_ms, is_flap=flaps == known.incident_id)
        elif is_new or _is_silence_over(known, now_ms):
            plan = self._reopening(known, report, links, profile, now_ms)
        else:
            return None
        if drafts is not None:
            drafts.note(plan.incident)
        return plan

    def leaving(self, incident: Incident, links: Collection[Link], now_ms: int) -> tuple[Incident, list[Write]]:
        """Return an incident without some links, and the writes that unlink them, for a transaction of the caller."""
        after = decisions.without_links(incident, links, now_ms)
        writes: list[Write] = [
            self._put(after, replaces=incident.version),
            *companions(incident, after, now_ms),
            due_put(TimerKind.RECOVERY, incident.incident_id, now_ms + QUIET_MS),
        ]
        return after, writes

    def on_committed(self, incident: Incident, event_type: IncidentEventType) -> None:
        """Drop the cached signals of a committed incident, whose links changed, and notify the observer."""
        for urn in incident.dataset_urns:
            self._cache.invalidate(cache_keys.signal_states_of(urn))
        self._observer.on_incident_changed(incident, event_type)

    def on_plan_committed(self, plan: IncidentPlan) -> None:
        """Report the incident of a plan whose writes are durable."""
        if plan.writes_incident:
            self.on_committed(plan.incident, IncidentEventType.CREATED if plan.is_new else IncidentEventType.UPDATED)

    def _opened(self, plan: IncidentPlan) -> Opened:
        self.on_plan_committed(plan)
        return Opened(plan.incident, plan.is_new)

    def _opening(
        self,
        report: IncidentReport,
        links: tuple[Link, ...],
        profile: DatasetProfile,
        now_ms: int,
        actor: str,
        condition: Condition,
    ) -> IncidentPlan:
        if report.blast_radius is None:
            report = replace(report, blast_radius=self._blast_radius(report.dataset_urn))
        incident = decisions.opened(report, links, f"INC-{self._ids.ulid()}", profile, actor, now_ms)
        writes: list[Write] = [
            self._put(incident),
            *companions(None, incident, now_ms, as_read={incident.dedup_key: condition}),
            *self._incident_event_writes(incident, IncidentEventType.CREATED, IncidentChange.OPENED, now_ms),
            *self._pin_writes(incident.evidence_sample, incident.incident_id, now_ms),
        ]
        return IncidentPlan(incident, is_new=True, writes=writes)

    def _joining(
        self,
        known: Incident,
        report: IncidentReport,
        links: tuple[Link, ...],
        profile: DatasetProfile,
        now_ms: int,
        *,
        is_flap: bool,
    ) -> IncidentPlan:
        incident = decisions.joined(known, report, links, profile, now_ms, is_flap=is_flap)
        if incident is known:
            # The incident is not written, but must still be open when the signal that joins it commits.
            still = Check(INCIDENT_INDEX, incident_key(known.incident_id), version_is(known.version))
            return IncidentPlan(known, is_new=False, writes=[still])
        fresh = [each for each in incident.evidence_sample if each not in known.evidence_sample]
        change = IncidentChange.RAISED if incident.severity < known.severity else IncidentChange.JOINED
        writes: list[Write] = [
            self._put(incident, replaces=known.version),
            *companions(known, incident, now_ms),
            *self._incident_event_writes(incident, IncidentEventType.UPDATED, change, now_ms, "joined"),
            *self._pin_writes(fresh, incident.incident_id, now_ms),
        ]
        return IncidentPlan(incident, is_new=False, writes=writes)

    def _reopening(
        self,
        known: Incident,
        report: IncidentReport,
        links: tuple[Link, ...],
        profile: DatasetProfile,
        now_ms: int,
    ) -> IncidentPlan:
        if report.blast_radius is None:
            report = replace(report, blast_radius=self._blast_radius(report.dataset_urn))
        incident = decisions.recurred(known, report, links, profile, now_ms)
        writes: list[Write] = [
            self._put(incident, replaces=known.version),
            *companions(known, incident, now_ms),
            *self._incident_event_writes(
                incident, IncidentEventType.UPDATED, IncidentChange.REOPENED, now_ms, "it broke out again"
            ),
            *self._pin_writes(incident.evidence_sample, incident.incident_id, now_ms),
        ]
        return IncidentPlan(incident, is_new=False, writes=writes)

    def _link_writes(self, incident: Incident, rows_by_link: Sequence[tuple[Link, Item]], now_ms: int) -> list[Write]:
        """Return the writes that link signals to an incident. If all of them are OK, start its recovery timer."""
        held = [(link, row) for link, row in rows_by_link if link in incident.links]
        links, rows = [link for link, _ in held], [row for _, row in held]
        writes = link_writes(links, rows, incident.incident_id)
        given = [{**row, "incident_id": incident.incident_id} for row in rows]
        if given and are_all_ok(links, given, incident.incident_id):
            # No later signal change would start the timer. The timer checks the other links when it fires.
            writes.append(due_put(TimerKind.RECOVERY, incident.incident_id, now_ms + QUIET_MS))
        return writes

    def _unlink_from_others(
        self, incident: Incident, rows_by_link: Sequence[tuple[Link, Item]], now_ms: int
    ) -> list[Write]:
        """Return the writes that unlink signals from the other open incidents that hold them."""
        taken: dict[str, list[Link]] = {}
        for link, row in rows_by_link:
            holder = row.get("incident_id")
            if holder not in (None, incident.incident_id) and link in incident.links:
                taken.setdefault(holder, []).append(link)
        holders = self.get_many(list(taken), consistent=True)
        writes: list[Write] = []
        for each in holders:
            if each is not None and each.is_open:
                writes += self.leaving(each, taken[each.incident_id], now_ms)[1]
        return writes

    # Changes.

    def change(
        self, incident_id: str, changes: Changes, *, actor: str, expected_version: int | None = None
    ) -> Incident:
        """Change an incident on request of a person, with all rows that depend on it, and return it.

        Raises `NotFoundError`, `VersionConflictError` if `expected_version` is not current, `IllegalTransitionError`,
        and `InvalidPayloadError`.
        """

        def decide(incident: Incident, now_ms: int) -> Incident:
            return decisions.changed(incident, changes, actor, now_ms)

        return self._change(incident_id, decide, actor, expected_version, changes.reason)

    def snooze(
        self, incident_id: str, until: str, *, actor: str, reason: str = "", expected_version: int | None = None
    ) -> Incident:
        """Suspend the escalation of an open incident until a time. Raises as `change` does."""

        def decide(incident: Incident, now_ms: int) -> Incident:
            return decisions.snoozed(incident, until, actor, reason, now_ms)

        return self._change(incident_id, decide, actor, expected_version, reason)

    def change_by_system(self, incident_id: str, decide: Callable[[Incident, int], Incident]) -> Incident:
        """Change an incident on behalf of the system, without an audit entry. Raises as `change` does.

        A resolution is conditional on the linked signals being OK; after a conflict, `decide` is called again.
        """
        return self._change(incident_id, decide, None, None, "")

    def merge(
        self, incident_id: str, into_id: str, *, actor: str, reason: str = "", expected_version: int | None = None
    ) -> Incident:
        """Close an incident into another one, which gets its links, and return that one. Raises as `change` does."""
        for _ in range(ATTEMPTS_MAX):
            now_ms = self._now_ms()
            into, other = self.get(into_id), self.get(incident_id)
            if into_id in other.merged_from:
                # Merged the other way round between the two reads.
                into = self.get(into_id)
            _check_version(other, expected_version)
            kept, gone = decisions.merged(into, other, actor, reason, now_ms)
            entry = audit_entry(actor, "incident.merge", other, gone, reason or f"into {into_id}")
            try:
                self._audit.commit(self._merge_writes(into, other, kept, gone, now_ms), entry)
            except OutcomeUnknownError:
                if self.get(incident_id).merged_into != into_id:
                    continue
            except ConflictError:
                continue
            self.on_committed(gone, IncidentEventType.RESOLVED)
            self.on_committed(kept, IncidentEventType.UPDATED)
            return kept
        raise StoreBusyError(f"incident {incident_id}: {ATTEMPTS_MAX} conflicts with other writers; try again")

    def _merge_writes(
        self, into: Incident, other: Incident, kept: Incident, gone: Incident, now_ms: int
    ) -> list[Write]:
        # The deduplication rows of the closed incident lead to the other one from now on.
        theirs = {key: any_of(absent(), equals("incident_id", other.incident_id)) for key in other.keys}
        without_keys = replace(gone, dedup_key="", merged_keys=())
        closing = [each for each in companions(other, without_keys, now_ms) if not _is_dedup(each)]
        fresh = [each for each in kept.evidence_sample if each not in into.evidence_sample]
        return [
            self._put(kept, replaces=into.version),
            self._put(gone, replaces=other.version),
            *companions(into, kept, now_ms, as_read=theirs),
            *closing,
            *unlink_writes(other.links, self._signals(other.links), other.incident_id, kept.incident_id),
            *self._pin_writes(fresh, kept.incident_id, now_ms),
            *self._incident_event_writes(kept, IncidentEventType.UPDATED, IncidentChange.MERGED, now_ms, "merged"),
            *self._incident_event_writes(gone, IncidentEventType.RESOLVED, IncidentChange.RESOLVED, now_ms, "merged"),
        ]

    def _change(
        self,
        incident_id: str,
        decide: Callable[[Incident, int], Incident],
        actor: str | None,
        expected_version: int | None,
        reason: str,
    ) -> Incident:
        for _ in range(ATTEMPTS_MAX):
            now_ms = self._now_ms()
            before = self.get(incident_id)
            _check_version(before, expected_version)
            after = decide(before, now_ms)
            if after is before:
                return before
            rows = self._signals(after.links) if before.is_open != after.is_open else []
            if actor is not None and before.is_open and not after.is_open:
                after = self._silenced(after, rows, now_ms)
            writes = self._change_writes(before, after, rows, now_ms, reason, of_system=actor is None)
            try:
                if actor is None:
                    self._store.transact(writes)
                else:
                    self._audit.commit(
                        writes, audit_entry(actor, f"incident.{verb_of(before, after)}", before, after, reason)
                    )
            except OutcomeUnknownError:
                if self.get(incident_id) != after:
                    continue
            except ConflictError as exc:
                _check_duplicate(exc, writes, after)
                continue
            self.on_committed(after, event_type_of(before, after))
            return after
        raise StoreBusyError(f"incident {incident_id}: {ATTEMPTS_MAX} conflicts with other writers; try again")

    def _silenced(self, resolved: Incident, rows: Sequence[Item | None], now_ms: int) -> Incident:
        """Return an incident that a person resolved; silenced if one of its signals is still CRITICAL."""
        still = [
            row["SK"]
            for row in rows
            if row is not None
            and row["state"] == SignalState.CRITICAL
            and row.get("incident_id") == resolved.incident_id
        ]
        if not still or resolved.is_closed:
            return resolved
        return decisions.silenced(resolved, still, now_ms + self._silence_ms)

    def _change_writes(
        self,
        before: Incident,
        after: Incident,
        rows: Sequence[Item | None],
        now_ms: int,
        reason: str,
        *,
        of_system: bool,
    ) -> list[Write]:
        writes: list[Write] = [
            self._put(after, replaces=before.version),
            *companions(before, after, now_ms),
        ]
        if before.is_open and not after.is_open:
            writes += unlink_writes(after.links, rows, after.incident_id, None, must_be_ok=of_system)
        elif after.is_open and not before.is_open:
            # Signals that are linked to another incident by now stay rows_by_link.
            rows_by_link = [
                (link, row)
                for link, row in zip(after.links, rows, strict=True)
                if row is not None and row.get("incident_id") in (None, after.incident_id)
            ]
            writes += self._link_writes(after, rows_by_link, now_ms)
            writes += self._pin_writes(after.evidence_sample, after.incident_id, now_ms)
        kind, change = event_type_of(before, after), change_of(before, after)
        return [*writes, *self._incident_event_writes(after, kind, change, now_ms, reason)]

    def _incident_event_writes(
        self, incident: Incident, event_type: IncidentEventType, change: IncidentChange, now_ms: int, reason: str = ""
    ) -> list[Write]:
        event = incident_event(incident, event_type, self._ids, change=change, reason=reason)
        return self._event_writes(event, now_ms)

    def _signals(self, links: Sequence[Link]) -> list[Item | None]:
        keys = [signal_key(link.dataset_urn, link.signal_type) for link in links]
        return self._store.get_many(SIGNAL_STATE, keys, consistent=True) if keys else []

    def _get_or_none(self, incident_id: str) -> Incident | None:
        row = self._store.get(INCIDENT_INDEX, incident_key(incident_id), consistent=True)
        return None if row is None else incident_of(row, self._sealer)

    def _now_ms(self) -> int:
        return int(self._clock.seconds() * 1000)


def _check_version(incident: Incident, expected_version: int | None) -> None:
    if expected_version is not None and incident.version != expected_version:
        raise VersionConflictError(
            f"incident {incident.incident_id}: you read version {expected_version}, and it is at {incident.version} "
            "now; read it again",
            current={"version": incident.version},
        )


def _is_silence_over(resolved: Incident, now_ms: int) -> bool:
    """Whether a breach that outlasted the resolution reopens the incident. Earlier builds stored no end."""
    until = resolved.silenced_until
    return until is not None and timestamps.milliseconds(until) <= now_ms


def _is_as_read(dedup: Item | None) -> Condition:
    """Return the condition that a deduplication row is as it was read."""
    if dedup is None:
        return absent()
    return all_of(equals("incident_id", dedup["incident_id"]), equals("is_open", dedup["is_open"]))


def _is_dedup(write: Write) -> bool:
    key = write.item["PK"] if isinstance(write, Put) else write.key.partition
    return str(key).startswith("DEDUP#")


def _check_duplicate(conflict: ConflictError, writes: Sequence[Write], after: Incident) -> None:
    """Raise `IllegalTransitionError` if the conflict is another open incident with the same deduplication key."""
    for index, current in conflict.failures.items():
        if current is None or not _is_dedup(writes[index]) or current.get("incident_id") == after.incident_id:
            continue
        raise IllegalTransitionError(
            f"incident {after.incident_id}: {current.get('incident_id')} is open for the same failure; "
            "work on that one, or merge them"
        ) from conflict
