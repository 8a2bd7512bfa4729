"""Incident decisions: pure functions from an incident and an event to the next version of the incident."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

from msgspec.structs import asdict, replace

from headgate.errors import IllegalTransitionError, InvalidPayloadError
from headgate.health.model import enums, timestamps
from headgate.health.model.datasets import DatasetProfile
from headgate.health.model.enums import Impact, IncidentStatus, Phase, Severity, SignalState, Stage, Tier
from headgate.health.model.incidents import (
    KEYS_MAX,
    LINKS_MAX,
    SAMPLES_MAX,
    SIGNATURES_MAX,
    STEPS_MAX,
    TEXT_MAX,
    TITLE_MAX,
    BlastRadius,
    Changes,
    Incident,
    IncidentReport,
    Link,
    Notification,
    Resolution,
    Step,
)
from headgate.health.model.timestamps import instant
from headgate.store.model.values import Item

# The actor of changes that no person made.
SYSTEM: Final = "headgate"
OPEN: Final = Stage(IncidentStatus.OPEN, Phase.NEW)
RESOLVED: Final = Stage(IncidentStatus.RESOLVED, Phase.RESOLVED)
CLOSED: Final = Stage(IncidentStatus.RESOLVED, Phase.CLOSED)
# A breach that returns this soon after the resolution reopens the incident instead of opening a new one.
REOPEN_MS: Final = 60 * 60 * 1000
# A breach that a person resolved while its signal was CRITICAL opens nothing for this long.
SILENCE_SECONDS: Final = 60 * 60
# An incident that recurred this often needs a longer quiet time before it resolves automatically.
FLAPS: Final = 3
QUIET_MS: Final = 5 * 60 * 1000
FLAPPING_QUIET_MS: Final = 30 * 60 * 1000
SNOOZE_MS_MAX: Final = 7 * 24 * 3600 * 1000

_CRITICAL: Final = {Tier.TIER_1: Severity.SEV_1, Tier.TIER_2: Severity.SEV_2, Tier.TIER_3: Severity.SEV_3}
_WARNING: Final = {Tier.TIER_1: Severity.SEV_2, Tier.TIER_2: Severity.SEV_3, Tier.TIER_3: Severity.SEV_3}
# Allowed status transitions, and whether each needs a reason.
_MOVES: Final[dict[tuple[IncidentStatus, IncidentStatus], bool]] = {
    (IncidentStatus.OPEN, IncidentStatus.ACKNOWLEDGED): False,
    (IncidentStatus.OPEN, IncidentStatus.RESOLVED): False,
    (IncidentStatus.ACKNOWLEDGED, IncidentStatus.ACKNOWLEDGED): False,
    (IncidentStatus.ACKNOWLEDGED, IncidentStatus.OPEN): True,
    (IncidentStatus.ACKNOWLEDGED, IncidentStatus.RESOLVED): False,
    (IncidentStatus.RESOLVED, IncidentStatus.RESOLVED): False,
    (IncidentStatus.RESOLVED, IncidentStatus.OPEN): True,
}


_TEXTS: Final = ("title", "assignee", "oncall_user", "rca_summary", "ticket", "reason")


def severity_for(state: SignalState, tier: Tier) -> Severity:
    """Return the severity of a breach of a dataset of this tier."""
    return (_CRITICAL if state is SignalState.CRITICAL else _WARNING)[tier]


def dedup_key_for(report: IncidentReport) -> str:
    """Return the deduplication key of a report: the dataset and its failure signature, or the caller's own key."""
    how = report.failure_signatures[0] if report.failure_signatures else "+".join(sorted(report.signal_types))
    # A caller's own key is prefixed with its dataset: it cannot match incidents of other datasets.
    own = report.dedup_key.removeprefix(f"{report.dataset_urn}#")
    return dedup_key(report.dataset_urn, own or how)


def dedup_key(dataset_urn: str, failure: str) -> str:
    """Return the deduplication key of a failure of a dataset."""
    return f"{dataset_urn}#{failure}"


def opened(
    report: IncidentReport, links: tuple[Link, ...], incident_id: str, profile: DatasetProfile, actor: str, now_ms: int
) -> Incident:
    """Return the incident that a report opens, with its linked signals."""
    at = instant(now_ms)
    signature, *more = report.failure_signatures or (report.state.value,)
    failures = f"{signature} and {len(more)} more" if more else signature
    samples = _union((), report.evidence_sample, SAMPLES_MAX)
    return Incident(
        incident_id=incident_id,
        status=IncidentStatus.OPEN,
        phase=Phase.NEW,
        severity=report.severity or severity_for(report.state, profile.tier),
        title=report.title or f"{', '.join(report.signal_types) or 'Trouble'} on {report.dataset_urn} - {failures}",
        created_at=at,
        updated_at=at,
        primary_dataset_urn=report.dataset_urn,
        dedup_key=dedup_key_for(report),
        tier=profile.tier,
        owner_team=profile.owner_team,
        version=1,
        signal_types=report.signal_types,
        failure_signatures=_union((), report.failure_signatures, SIGNATURES_MAX),
        implicated_producer=report.implicated_producer,
        blast_radius=report.blast_radius,
        primary_evidence_id=report.primary_evidence_id or (samples[0] if samples else None),
        evidence_sample=samples,
        oncall_user=report.oncall_user,
        trace_id=report.trace_id,
        episode_started_at=at,
        links=links[:LINKS_MAX],
        links_complete=len(links) <= LINKS_MAX,
        severity_is_set=report.severity is not None,
        steps=(Step(at=at, actor=actor, status=IncidentStatus.OPEN, phase=Phase.NEW, reason="opened"),),
    )


def joined(
    incident: Incident,
    report: IncidentReport,
    links: tuple[Link, ...],
    profile: DatasetProfile,
    now_ms: int,
    *,
    is_flap: bool = False,
) -> Incident:
    """Return an open incident extended by a further report, or the same object if nothing is new.

    `is_flap`: the signal was OK in between, and its failure is back.
    """
    current = incident if incident.primary_dataset_urn != report.dataset_urn else aligned(incident, profile, now_ms)
    severity = report.severity or severity_for(report.state, profile.tier)
    everything = tuple(dict.fromkeys((*incident.links, *links)))
    grown = replace(
        current,
        signal_types=_union(incident.signal_types, report.signal_types, SIGNATURES_MAX),
        failure_signatures=_union(incident.failure_signatures, report.failure_signatures, SIGNATURES_MAX),
        evidence_sample=_union(incident.evidence_sample, report.evidence_sample, SAMPLES_MAX),
        severity=min(current.severity, severity),
        severity_is_set=current.severity_is_set or (report.severity is not None and severity < current.severity),
        recurrences=incident.recurrences + is_flap,
        version=incident.version,
        updated_at=incident.updated_at,
        links=everything[:LINKS_MAX],
        links_complete=incident.links_complete and len(everything) <= LINKS_MAX,
        implicated_producer=incident.implicated_producer or report.implicated_producer,
        blast_radius=report.blast_radius or incident.blast_radius,
        primary_evidence_id=incident.primary_evidence_id or report.primary_evidence_id,
        trace_id=incident.trace_id or report.trace_id,
    )
    return incident if grown == incident else _next(grown, now_ms)


def aligned(incident: Incident, profile: DatasetProfile, now_ms: int) -> Incident:
    """Return an incident with the tier and team that its dataset has now, or the same object if it has them.

    The severity follows the tier, unless it was set.
    """
    if (incident.tier, incident.owner_team) == (profile.tier, profile.owner_team):
        return incident
    severity = incident.severity
    if not incident.severity_is_set and profile.tier is not incident.tier:
        is_warning = severity is _WARNING[incident.tier] and severity is not _CRITICAL[incident.tier]
        severity = severity_for(SignalState.WARNING if is_warning else SignalState.CRITICAL, profile.tier)
    after = replace(incident, tier=profile.tier, owner_team=profile.owner_team, severity=severity)
    moves = [
        f"{name} {before} to {now}"
        for name, before, now in (
            ("tier", incident.tier, after.tier),
            ("team", incident.owner_team, after.owner_team),
            ("severity", incident.severity, after.severity),
        )
        if before != now
    ]
    return _stepped(_next(after, now_ms), SYSTEM, f"its dataset changed: {', '.join(moves)}", instant(now_ms))


def silenced(incident: Incident, signal_types: Sequence[str], until_ms: int) -> Incident:
    """Return a resolved incident whose signals are still CRITICAL, with the end of its silence in its last step."""
    until = instant(until_ms)
    *earlier, last = incident.steps
    note = f"{', '.join(signal_types)} still CRITICAL; silent until {until}"
    step = replace(last, reason=f"{last.reason}; {note}" if last.reason else note)
    return replace(incident, silenced_until=until, steps=(*earlier, step))


def escalated(incident: Incident, level: int, now_ms: int) -> Incident:
    """Return an unacknowledged incident at its next escalation level."""
    after = replace(incident, escalation_level=level, snoozed_until=None)
    return _stepped(_next(after, now_ms), SYSTEM, f"escalated to level {level}", instant(now_ms))


def with_radius(incident: Incident, radius: BlastRadius, now_ms: int) -> Incident:
    """Return an open incident with its current blast radius, or the same object if nothing differs.

    A radius that a report gave stays while the lineage does not know the dataset.
    """
    is_unknown = radius.estimated_impact is Impact.UNKNOWN and not radius.downstream_count
    if not incident.is_open or incident.blast_radius == radius or is_unknown:
        return incident
    return _next(replace(incident, blast_radius=radius), now_ms)


def without_links(incident: Incident, links: Collection[Link], now_ms: int) -> Incident:
    """Return an incident without these links."""
    return _next(replace(incident, links=tuple(each for each in incident.links if each not in links)), now_ms)


def recurred(
    incident: Incident, report: IncidentReport, links: tuple[Link, ...], profile: DatasetProfile, now_ms: int
) -> Incident:
    """Return a resolved incident reopened by a recurrence, as its next episode, with the severity of its tier."""
    at = instant(now_ms)
    again = replace(
        joined(incident, report, (), profile, now_ms),
        severity=report.severity or severity_for(report.state, profile.tier),
        severity_is_set=report.severity is not None,
        silenced_until=None,
        # The resolution unlinked all signals; each links itself again with its next update.
        links=links[:LINKS_MAX],
        links_complete=len(links) <= LINKS_MAX,
        status=IncidentStatus.OPEN,
        phase=Phase.NEW,
        resolved_at=None,
        acknowledged_at=None,
        resolution=None,
        escalation_level=0,
        snoozed_until=None,
        episode=incident.episode + 1,
        episode_started_at=at,
        recurrences=incident.recurrences + 1,
        version=incident.version + 1,
        updated_at=at,
    )
    return _stepped(again, SYSTEM, "it broke out again", at)


def moved(incident: Incident, to: Stage, actor: str, reason: str, now_ms: int) -> Incident:
    """Return an incident in another status or phase. Raises `IllegalTransitionError` for a forbidden transition."""
    if (incident.status, incident.phase) == to:
        return incident
    needs_reason = _MOVES.get((incident.status, to.status))
    is_closed = incident.is_closed
    if needs_reason is None or (is_closed and to != CLOSED):
        allowed = sorted({after.value for before, after in _MOVES if before is incident.status})
        raise IllegalTransitionError(
            f"incident {incident.incident_id}: it is {incident.status} ({incident.phase}) and cannot become {to.status}"
            + (
                "; it is closed for good, open another"
                if is_closed
                else f"; from there it can become {', '.join(allowed)}"
            )
        )
    if needs_reason and not reason.strip():
        raise InvalidPayloadError(
            f"incident {incident.incident_id}: the change from {incident.status} to {to.status} needs a reason"
        )
    at = instant(now_ms)
    resolves = to.status is IncidentStatus.RESOLVED and incident.is_open
    reopens = to.status is IncidentStatus.OPEN and not incident.is_open
    acknowledged_at = incident.acknowledged_at
    if to.status is IncidentStatus.ACKNOWLEDGED:
        acknowledged_at = acknowledged_at or at
    changed = replace(
        incident,
        status=to.status,
        phase=to.phase,
        resolved_at=at if resolves else None if reopens else incident.resolved_at,
        acknowledged_at=None if reopens else acknowledged_at,
        episode=incident.episode + 1 if reopens else incident.episode,
        episode_started_at=at if reopens else incident.episode_started_at,
        escalation_level=0 if reopens else incident.escalation_level,
        resolution=None if reopens else incident.resolution,
        silenced_until=None if reopens else incident.silenced_until,
        snoozed_until=None if to.status is not IncidentStatus.OPEN else incident.snoozed_until,
    )
    return _stepped(_next(changed, now_ms), actor, reason, at)


def changed(incident: Incident, changes: Changes, actor: str, now_ms: int) -> Incident:
    """Return an incident with a person's changes, or the same object if nothing differs.

    Raises `IllegalTransitionError`, and `InvalidPayloadError` for invalid values.
    """
    _check_texts(incident, changes)
    after = replace(incident, **_plain_changes(incident, changes))
    if changes.status is not None:
        to = enums.stage(changes.status)
        reason = changes.reason or (changes.resolution.root_cause if changes.resolution else "")
        after = moved(after, to, actor, reason, now_ms)
    if changes.resolution is not None:
        if after.is_open:
            raise InvalidPayloadError(
                f"incident {incident.incident_id}: a resolution needs status RESOLVED; set status to RESOLVED"
            )
        resolution = changes.resolution
        after = replace(after, resolution=replace(resolution, resolved_by=resolution.resolved_by or actor))
    if after == incident:
        return incident
    return replace(after, version=incident.version + 1, updated_at=instant(now_ms))


def _plain_changes(incident: Incident, changes: Changes) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for name in ("title", "assignee", "oncall_user", "rca_summary"):
        given = getattr(changes, name)
        if given is not None:
            plain[name] = given
    if changes.severity is not None:
        plain["severity"] = enums.severity(changes.severity)
        plain["severity_is_set"] = True
    notification = incident.notification_state
    if changes.notification_state is not None:
        # Fields that are not given keep their values.
        given = {name: text for name, text in asdict(changes.notification_state).items() if text is not None}
        notification = replace(notification or Notification(), **given)
    if changes.ticket is not None:
        notification = replace(notification or Notification(), jira_ticket=changes.ticket)
    if notification != incident.notification_state:
        plain["notification_state"] = notification
    return plain


def _check_texts(incident: Incident, changes: Changes) -> None:
    texts = {name: getattr(changes, name) for name in _TEXTS}
    for part in (changes.resolution, changes.notification_state):
        texts |= {} if part is None else {name: getattr(part, name) for name in part.__struct_fields__}
    for name, text in texts.items():
        if isinstance(text, str) and len(text) > TEXT_MAX:
            raise InvalidPayloadError(f"incident {incident.incident_id}: {name} is longer than {TEXT_MAX:,} characters")
    if changes.title is not None and not 0 < len(changes.title) <= TITLE_MAX:
        raise InvalidPayloadError(f"incident {incident.incident_id}: title must have 1 to {TITLE_MAX:,} characters")


def snoozed(incident: Incident, until: str, actor: str, reason: str, now_ms: int) -> Incident:
    """Return an open incident with its escalation suspended until a time. Raises `IllegalTransitionError`."""
    if not incident.is_open:
        raise IllegalTransitionError(
            f"incident {incident.incident_id}: it is RESOLVED; only an open one can be snoozed"
        )
    until_ms = timestamps.milliseconds(until)
    if not now_ms < until_ms <= now_ms + SNOOZE_MS_MAX:
        raise InvalidPayloadError(
            f"incident {incident.incident_id}: until {until} must be in the next {SNOOZE_MS_MAX // 86_400_000} days"
        )
    return _stepped(_next(replace(incident, snoozed_until=until), now_ms), actor, reason or "snoozed", instant(now_ms))


def merged(into: Incident, other: Incident, actor: str, reason: str, now_ms: int) -> tuple[Incident, Incident]:
    """Return the incident that stays open, and the other one, closed into it. Raises `IllegalTransitionError`."""
    for each in (into, other):
        if not each.is_open:
            raise IllegalTransitionError(f"incident {each.incident_id}: it is RESOLVED; only open incidents are merged")
    if into.incident_id == other.incident_id:
        raise IllegalTransitionError(f"incident {into.incident_id}: it cannot be merged into itself")
    links = tuple(dict.fromkeys((*into.links, *other.links)))
    keys = tuple(dict.fromkeys((*into.merged_keys, *other.keys)))
    if len(links) > LINKS_MAX or len(keys) > KEYS_MAX:
        raise IllegalTransitionError(
            f"incident {other.incident_id}: merged with {into.incident_id} it has {len(links)} signals and "
            f"{len(keys)} deduplication keys, over the limits of {LINKS_MAX} and {KEYS_MAX}; keep them apart"
        )
    why = reason or f"merged into {into.incident_id}"
    kept = replace(
        into,
        signal_types=_union(into.signal_types, other.signal_types, SIGNATURES_MAX),
        failure_signatures=_union(into.failure_signatures, other.failure_signatures, SIGNATURES_MAX),
        evidence_sample=_union(into.evidence_sample, other.evidence_sample, SAMPLES_MAX),
        severity=min(into.severity, other.severity),
        merged_from=_union(into.merged_from, (other.incident_id,), SIGNATURES_MAX),
        merged_keys=keys,
        links=links,
        links_complete=into.links_complete and other.links_complete,
        merged_datasets=_union(into.merged_datasets, other.dataset_urns, SIGNATURES_MAX),
    )
    gone = replace(
        moved(other, CLOSED, actor, why, now_ms),
        links=(),
        merged_into=into.incident_id,
        resolution=Resolution(root_cause=why, resolved_by=actor),
    )
    kept = _stepped(_next(kept, now_ms), actor, f"{other.incident_id} was merged into it", instant(now_ms))
    return kept, gone


def quiet_ms(incident: Incident) -> int:
    """Return how long all signals must be OK before the incident resolves automatically."""
    return FLAPPING_QUIET_MS if incident.recurrences >= FLAPS else QUIET_MS


def mttr_seconds(incident: Incident) -> float | None:
    """Return how long the last episode took to resolve, or None if it is open."""
    if incident.resolved_at is None:
        return None
    began = incident.episode_started_at or incident.created_at
    return max(0.0, (timestamps.milliseconds(incident.resolved_at) - timestamps.milliseconds(began)) / 1000)


def _next(incident: Incident, now_ms: int) -> Incident:
    return replace(incident, version=incident.version + 1, updated_at=instant(now_ms))


def _stepped(incident: Incident, actor: str, reason: str, at: str) -> Incident:
    step = Step(at=at, actor=actor, status=incident.status, phase=incident.phase, reason=reason)
    return replace(incident, steps=(*incident.steps, step)[-STEPS_MAX:])


def _union(have: tuple[str, ...], more: tuple[str, ...], count_max: int) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*have, *more)))[:count_max]


ALL_OK: Final = "all its signals are OK again"
_OTHERS_OK: Final = "its other signals are OK again"


def links_ever(incident: Incident) -> tuple[Link, ...]:
    """Return the links of an incident, and the signals of its dataset that it may have had."""
    had = (Link(incident.primary_dataset_urn, each) for each in incident.signal_types)
    return tuple(dict.fromkeys((*incident.links, *had)))


def auto_resolve_reason(incident: Incident, links: Sequence[Link], rows: Sequence[Item | None]) -> str:
    """Return why an incident with only OK links is resolved, from the rows of all signals it ever had."""
    still_failing = [
        _moved_away(incident, link, row)
        for link, row in zip(links, rows, strict=True)
        if row is not None and row["state"] != SignalState.OK and row.get("incident_id") != incident.incident_id
    ]
    if not still_failing:
        return ALL_OK
    is_all = len(still_failing) == sum(row is not None for row in rows)
    return "; ".join(still_failing if is_all else [*still_failing, _OTHERS_OK])


def _moved_away(incident: Incident, link: Link, row: Item) -> str:
    is_own = link.dataset_urn == incident.primary_dataset_urn
    named = link.signal_type if is_own else f"{link.signal_type} of {link.dataset_urn}"
    other, signature = row.get("incident_id"), row.get("failure_signature")
    if other is None:
        return f"{named} is {row['state']} and no longer linked to this incident"
    return f"{named} fails with {signature} now: see {other}"
