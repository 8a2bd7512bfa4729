"""What may become of an incident: every move that is legal, every one that is not, and what each leaves behind."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from headgate.durable.model.records import instant
from headgate.errors import IllegalTransitionError, InvalidPayloadError
from headgate.health.incidents import decisions as decisions
from headgate.health.model.datasets import DatasetProfile
from headgate.health.model.enums import IncidentStatus, Severity, SignalState, Tier, stage
from headgate.health.model.incidents import (
    SAMPLES_MAX,
    SIGNATURES_MAX,
    STEPS_MAX,
    TEXT_MAX,
    Changes,
    Incident,
    Notification,
    Resolution,
)
from headgate.health.model.signals import Producer
from tests.health_rig import CRITICAL, ORDERS, SIGNATURE, WARNING, evidence_id, trouble

NOW_MS = 1_750_000_000_000
STANDING = DatasetProfile(Tier.TIER_1, "team-a")
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def opened(**more: Any) -> Incident:
    return decisions.opened(
        trouble(ORDERS, **more), (), "INC-1", DatasetProfile(Tier.TIER_1, "team-a"), "engine", NOW_MS
    )


def brought_to(phase: str) -> Incident:
    """An incident in a phase, by the legal way there."""
    ways = {
        "NEW": (),
        "ACKNOWLEDGED": ("ACKNOWLEDGED",),
        "INVESTIGATING": ("ACKNOWLEDGED", "INVESTIGATING"),
        "MITIGATING": ("ACKNOWLEDGED", "MITIGATING"),
        "RESOLVED": ("RESOLVED",),
        "CLOSED": ("RESOLVED", "CLOSED"),
    }
    incident = opened()
    for number, each in enumerate(ways[phase], 1):
        incident = decisions.moved(incident, stage(each), "ana", "because", NOW_MS + number * 1000)
    assert incident.phase == phase
    return incident


# From where, to where: "yes", "reason" if it takes one, "no", or "same" where nothing changes.
MOVES = {
    ("NEW", "OPEN"): "same",
    ("NEW", "ACKNOWLEDGED"): "yes",
    ("NEW", "INVESTIGATING"): "yes",
    ("NEW", "MITIGATING"): "yes",
    ("NEW", "RESOLVED"): "yes",
    ("NEW", "CLOSED"): "yes",
    ("ACKNOWLEDGED", "OPEN"): "reason",
    ("ACKNOWLEDGED", "ACKNOWLEDGED"): "same",
    ("ACKNOWLEDGED", "INVESTIGATING"): "yes",
    ("ACKNOWLEDGED", "MITIGATING"): "yes",
    ("ACKNOWLEDGED", "RESOLVED"): "yes",
    ("ACKNOWLEDGED", "CLOSED"): "yes",
    ("INVESTIGATING", "OPEN"): "reason",
    ("INVESTIGATING", "ACKNOWLEDGED"): "yes",
    ("INVESTIGATING", "INVESTIGATING"): "same",
    ("INVESTIGATING", "MITIGATING"): "yes",
    ("INVESTIGATING", "RESOLVED"): "yes",
    ("INVESTIGATING", "CLOSED"): "yes",
    ("MITIGATING", "OPEN"): "reason",
    ("MITIGATING", "ACKNOWLEDGED"): "yes",
    ("MITIGATING", "INVESTIGATING"): "yes",
    ("MITIGATING", "MITIGATING"): "same",
    ("MITIGATING", "RESOLVED"): "yes",
    ("MITIGATING", "CLOSED"): "yes",
    ("RESOLVED", "OPEN"): "reason",
    ("RESOLVED", "ACKNOWLEDGED"): "no",
    ("RESOLVED", "INVESTIGATING"): "no",
    ("RESOLVED", "MITIGATING"): "no",
    ("RESOLVED", "RESOLVED"): "same",
    ("RESOLVED", "CLOSED"): "yes",
    ("CLOSED", "OPEN"): "no",
    ("CLOSED", "ACKNOWLEDGED"): "no",
    ("CLOSED", "INVESTIGATING"): "no",
    ("CLOSED", "MITIGATING"): "no",
    ("CLOSED", "RESOLVED"): "no",
    ("CLOSED", "CLOSED"): "same",
}


@pytest.mark.parametrize(("before", "to", "legal"), [(*move, legal) for move, legal in MOVES.items()])
def test_moved__every_move__is_as_the_table_says(before: str, to: str, legal: str) -> None:
    incident = brought_to(before)
    if legal == "no":
        with pytest.raises(IllegalTransitionError, match="INC-1"):
            decisions.moved(incident, stage(to), "bob", "a good reason", NOW_MS + DAY_MS)
        return
    if legal == "same":
        assert decisions.moved(incident, stage(to), "bob", "", NOW_MS + DAY_MS) is incident
        return
    if legal == "reason":
        for empty in ("", "  \n"):
            with pytest.raises(InvalidPayloadError, match="reason"):
                decisions.moved(incident, stage(to), "bob", empty, NOW_MS + DAY_MS)
    reason = "a good reason" if legal == "reason" else ""
    moved = decisions.moved(incident, stage(to), "bob", reason, NOW_MS + DAY_MS)
    assert (moved.status, moved.phase) == stage(to)
    assert moved.version == incident.version + 1
    assert moved.updated_at == instant(NOW_MS + DAY_MS)
    assert (moved.steps[-1].actor, moved.steps[-1].reason, moved.steps[-1].at) == ("bob", reason, moved.updated_at)
    assert len(moved.steps) == len(incident.steps) + 1
    # What a move must keep true of any incident.
    assert (moved.resolved_at is not None) == (moved.status is IncidentStatus.RESOLVED)
    assert moved.is_open == (moved.status is not IncidentStatus.RESOLVED)
    assert moved.created_at == incident.created_at


def test_table__every_phase_and_status__is_in_it() -> None:
    assert len(MOVES) == 36


def test_moved__reopened__is_the_next_episode() -> None:
    resolved = replace(brought_to("RESOLVED"), escalation_level=2, resolution=Resolution(root_cause="x"))
    again = decisions.moved(resolved, decisions.OPEN, "ana", "it is not over", NOW_MS + HOUR_MS)
    assert again.episode == 2
    assert again.episode_started_at == instant(NOW_MS + HOUR_MS)
    assert again.resolved_at is None
    assert again.resolution is None
    assert again.acknowledged_at is None
    assert again.escalation_level == 0


def test_moved__merged_away__goes_nowhere() -> None:
    _, gone = decisions.merged(replace(opened(), incident_id="INC-2"), opened(), "ana", "", NOW_MS)
    assert gone.merged_into == "INC-2"
    for to in ("OPEN", "ACKNOWLEDGED", "RESOLVED"):
        with pytest.raises(IllegalTransitionError):
            decisions.moved(gone, stage(to), "ana", "why", NOW_MS)


def test_moved__acknowledged_twice__keeps_when_it_was_first() -> None:
    first = brought_to("ACKNOWLEDGED")
    later = decisions.moved(first, stage("INVESTIGATING"), "bob", "", NOW_MS + HOUR_MS)
    assert later.acknowledged_at == first.acknowledged_at == instant(NOW_MS + 1000)


def test_moved__acknowledged__is_no_longer_snoozed() -> None:
    snoozed = decisions.snoozed(opened(), instant(NOW_MS + HOUR_MS), "ana", "", NOW_MS)
    assert decisions.moved(snoozed, stage("ACKNOWLEDGED"), "ana", "", NOW_MS).snoozed_until is None


def test_steps__many_moves__keep_the_last_and_stay_bounded() -> None:
    incident = opened()
    for number in range(200):
        incident = decisions.moved(incident, stage("ACKNOWLEDGED"), "a", "", NOW_MS + number)
        incident = decisions.moved(incident, stage("OPEN"), "a", f"no {number}", NOW_MS + number)
    assert len(incident.steps) == STEPS_MAX
    assert incident.steps[-1].reason == "no 199"


@pytest.mark.parametrize(("state", "tier", "severity"), [
    (CRITICAL, Tier.TIER_1, Severity.SEV_1),
    (CRITICAL, Tier.TIER_2, Severity.SEV_2),
    (CRITICAL, Tier.TIER_3, Severity.SEV_3),
    (WARNING, Tier.TIER_1, Severity.SEV_2),
    (WARNING, Tier.TIER_2, Severity.SEV_3),
    (WARNING, Tier.TIER_3, Severity.SEV_3),
])  # fmt: skip
def test_severity__of_state_and_tier__is_as_promised(state: SignalState, tier: Tier, severity: Severity) -> None:
    assert decisions.severity_for(state, tier) is severity
    profile = DatasetProfile(tier, "t")
    assert decisions.opened(trouble(ORDERS, state=state), (), "INC-1", profile, "e", NOW_MS).severity is severity


def test_severity__the_caller_says__is_as_it_says() -> None:
    assert opened(severity=Severity.SEV_3).severity is Severity.SEV_3


def test_opened__says_what_broke_where_and_how() -> None:
    incident = opened(evidence_sample=(evidence_id(1), evidence_id(2)))
    assert incident.title == f"FRESHNESS on {ORDERS} - {SIGNATURE}"
    assert (incident.status, incident.version, incident.episode) == (IncidentStatus.OPEN, 1, 1)
    assert incident.created_at == incident.updated_at == incident.episode_started_at == instant(NOW_MS)
    assert incident.primary_evidence_id == evidence_id(1)
    assert (incident.owner_team, incident.tier) == ("team-a", Tier.TIER_1)
    assert incident.resolved_at is None


def test_opened__more_samples_than_are_kept__are_cut() -> None:
    incident = opened(
        evidence_sample=tuple(evidence_id(n) for n in range(200)),
        failure_signatures=tuple(f"S{n}" for n in range(200)),
    )
    assert len(incident.evidence_sample) == SAMPLES_MAX
    assert len(incident.failure_signatures) == SIGNATURES_MAX


def test_dedup_key__of_one_trouble__does_not_depend_on_the_order_of_its_signals() -> None:
    one = decisions.dedup_key_for(trouble(ORDERS, "A", "B", failure_signatures=()))
    other = decisions.dedup_key_for(trouble(ORDERS, "B", "A", failure_signatures=()))
    assert one == other


def test_dedup_key__other_dataset_or_signature__differs() -> None:
    keys = {
        decisions.dedup_key_for(trouble(urn, failure_signatures=(signature,)))
        for urn in ("urn:dp:a", "urn:dp:a:v1")
        for signature in ("X", "X:y")
    }
    assert len(keys) == 4


def test_joined__nothing_new__is_the_same_incident() -> None:
    incident = opened(evidence_sample=(evidence_id(1),))
    assert (
        decisions.joined(incident, trouble(ORDERS, evidence_sample=(evidence_id(1),)), (), STANDING, NOW_MS + 1)
        is incident
    )


def test_joined__something_new__adds_it_and_keeps_the_rest() -> None:
    incident = opened(implicated_producer=Producer(producer_id="job:first"), evidence_sample=(evidence_id(1),))
    more = trouble(
        ORDERS,
        "VOLUME",
        failure_signatures=("LOW:x",),
        evidence_sample=(evidence_id(2), evidence_id(1)),
        implicated_producer=Producer(producer_id="job:second"),
    )
    grown = decisions.joined(incident, more, (), STANDING, NOW_MS + 5)
    assert grown.signal_types == ("FRESHNESS", "VOLUME")
    assert grown.failure_signatures == (SIGNATURE, "LOW:x")
    assert grown.evidence_sample == (evidence_id(1), evidence_id(2))
    assert grown.implicated_producer == Producer(producer_id="job:first")
    assert (grown.version, grown.updated_at) == (2, instant(NOW_MS + 5))
    assert (grown.status, grown.created_at) == (incident.status, incident.created_at)


def test_joined__a_worse_trouble__makes_it_more_urgent_and_a_lesser_one_does_not() -> None:
    warned = opened(state=WARNING)
    assert warned.severity is Severity.SEV_2
    assert decisions.joined(warned, trouble(ORDERS, state=CRITICAL), (), STANDING, NOW_MS).severity is Severity.SEV_1
    assert decisions.joined(opened(), trouble(ORDERS, state=WARNING), (), STANDING, NOW_MS).severity is Severity.SEV_1
    urgent = trouble(ORDERS, severity=Severity.SEV_1)
    assert decisions.joined(warned, urgent, (), STANDING, NOW_MS).severity is Severity.SEV_1


def test_recurred__is_an_episode_of_its_own_and_counts() -> None:
    resolved = replace(brought_to("RESOLVED"), escalation_level=3, snoozed_until=instant(NOW_MS))
    again = decisions.recurred(resolved, trouble(ORDERS, "VOLUME"), (), STANDING, NOW_MS + HOUR_MS)
    assert (again.status, again.episode, again.recurrences) == (IncidentStatus.OPEN, 2, 1)
    assert (again.resolved_at, again.acknowledged_at, again.resolution, again.snoozed_until) == (None, None, None, None)
    assert again.escalation_level == 0
    assert again.episode_started_at == instant(NOW_MS + HOUR_MS)
    assert again.version == resolved.version + 1
    assert again.created_at == resolved.created_at
    assert "VOLUME" in again.signal_types


def test_quiet__flapping__takes_longer() -> None:
    incident = opened()
    steady = decisions.quiet_ms(incident)
    assert all(decisions.quiet_ms(replace(incident, recurrences=count)) == steady for count in range(decisions.FLAPS))
    assert decisions.quiet_ms(replace(incident, recurrences=decisions.FLAPS)) > steady


def test_mttr__is_of_the_last_episode() -> None:
    assert decisions.mttr_seconds(opened()) is None
    resolved = decisions.moved(opened(), decisions.RESOLVED, "a", "", NOW_MS + 90_000)
    assert decisions.mttr_seconds(resolved) == 90.0
    again = decisions.moved(resolved, decisions.OPEN, "a", "x", NOW_MS + DAY_MS)
    assert decisions.mttr_seconds(again) is None
    over = decisions.moved(again, decisions.RESOLVED, "a", "", NOW_MS + DAY_MS + 10_000)
    assert decisions.mttr_seconds(over) == 10.0


# What people change.


def test_changed__nothing__is_the_same_incident() -> None:
    incident = opened()
    assert decisions.changed(incident, Changes(), "ana", NOW_MS + 1) is incident
    assert decisions.changed(incident, Changes(status="open", title=incident.title), "ana", NOW_MS + 1) is incident


def test_changed__everything_at_once__is_one_version() -> None:
    changes = Changes(
        status="investigating",
        severity="sev-2",
        title="Orders are late",
        assignee="ana",
        oncall_user="bob",
        rca_summary="The disk was full.",
        ticket="OPS-1",
        notification_state=Notification(slack_thread_ts="1.2"),
    )
    changed = decisions.changed(opened(), changes, "ana", NOW_MS + 7)
    assert (changed.version, changed.updated_at) == (2, instant(NOW_MS + 7))
    assert (changed.status, changed.phase) == stage("INVESTIGATING")
    assert changed.severity is Severity.SEV_2
    assert (changed.title, changed.assignee, changed.oncall_user) == ("Orders are late", "ana", "bob")
    assert changed.rca_summary == "The disk was full."
    assert changed.notification_state == Notification(slack_thread_ts="1.2", jira_ticket="OPS-1")


def test_changed__ticket__keeps_where_else_people_were_reported() -> None:
    result = decisions.changed(opened(), Changes(notification_state=Notification(slack_thread_ts="1.2")), "a", NOW_MS)
    changed = decisions.changed(result, Changes(ticket="OPS-1"), "a", NOW_MS)
    assert changed.notification_state == Notification(slack_thread_ts="1.2", jira_ticket="OPS-1")


def test_changed__resolved_as_the_runbook_does__says_by_whom() -> None:
    resolution = Resolution(root_cause="disk", mitigation="more disk", false_positive=True)
    changed = decisions.changed(opened(), Changes(status="RESOLVED", resolution=resolution), "ana", NOW_MS + 9)
    assert changed.resolution == replace(resolution, resolved_by="ana")
    assert changed.resolved_at == instant(NOW_MS + 9)


def test_changed__resolution_of_an_open_incident_without_status__is_refused() -> None:
    with pytest.raises(InvalidPayloadError, match="status"):
        decisions.changed(opened(), Changes(resolution=Resolution(root_cause="x")), "ana", NOW_MS)


@pytest.mark.parametrize("status", ["ACKNOWLEDGED", None])
@pytest.mark.parametrize("phase", ["NEW", "RESOLVED"])
def test_changed__resolution__is_taken_or_refused_and_never_dropped(phase: str, status: str | None) -> None:
    given = Resolution(root_cause="found it later", resolved_by="ana")
    try:
        changed = decisions.changed(brought_to(phase), Changes(status=status, resolution=given), "ana", NOW_MS + DAY_MS)
    except (InvalidPayloadError, IllegalTransitionError):
        return
    assert changed.resolution == given


@pytest.mark.parametrize("field", ["title", "assignee", "oncall_user", "rca_summary", "ticket", "reason"])
def test_changed__text_that_is_too_long__is_refused(field: str) -> None:
    with pytest.raises(InvalidPayloadError, match=field):
        decisions.changed(opened(), replace(Changes(), **{field: "x" * (TEXT_MAX + 1)}), "ana", NOW_MS)


@pytest.mark.parametrize("field", ["root_cause", "mitigation", "reason"])
def test_changed__resolution_that_is_too_long__is_refused(field: str) -> None:
    """A row of more than 400 KB could not be stored, and the caller would get an error of the store."""
    changes = Changes(status="RESOLVED", resolution=replace(Resolution(), **{field: "x" * 500_000}))
    with pytest.raises(InvalidPayloadError):
        decisions.changed(opened(), changes, "ana", NOW_MS)


@pytest.mark.parametrize("changes", [Changes(status="SOLVED"), Changes(severity="SEV_9"), Changes(title="")])
def test_changed__what_is_no_word_of_ours__is_refused(changes: Changes) -> None:
    with pytest.raises(InvalidPayloadError):
        decisions.changed(opened(), changes, "ana", NOW_MS)


def test_snoozed__open__until_a_moment_that_lies_ahead() -> None:
    until = instant(NOW_MS + HOUR_MS)
    incident = decisions.snoozed(opened(), until, "ana", "", NOW_MS)
    assert (incident.snoozed_until, incident.version) == (until, 2)


@pytest.mark.parametrize("until", [instant(NOW_MS), instant(NOW_MS - 1), instant(NOW_MS + 8 * DAY_MS), "soon"])
def test_snoozed__until_a_moment_that_is_none__is_refused(until: str) -> None:
    with pytest.raises(InvalidPayloadError):
        decisions.snoozed(opened(), until, "ana", "", NOW_MS)


@pytest.mark.parametrize("phase", ["RESOLVED", "CLOSED"])
def test_snoozed__over__is_refused(phase: str) -> None:
    with pytest.raises(IllegalTransitionError):
        decisions.snoozed(brought_to(phase), instant(NOW_MS + HOUR_MS), "ana", "", NOW_MS)


def test_merged__takes_over_everything_of_the_other() -> None:
    into = replace(opened(severity=Severity.SEV_3), incident_id="INC-2")
    other = opened(failure_signatures=("LOW:x",), evidence_sample=(evidence_id(3),))
    kept, gone = decisions.merged(into, replace(other, signal_types=("VOLUME",)), "ana", "one cause", NOW_MS + 1)
    assert kept.signal_types == ("FRESHNESS", "VOLUME")
    assert kept.failure_signatures == (SIGNATURE, "LOW:x")
    assert kept.evidence_sample == (evidence_id(3),)
    assert kept.severity is Severity.SEV_1
    assert kept.merged_from == ("INC-1",)
    assert (kept.version, gone.version) == (2, 2)
    assert (gone.status, gone.merged_into) == (IncidentStatus.RESOLVED, "INC-2")
    assert gone.resolved_at == instant(NOW_MS + 1)


@pytest.mark.parametrize("which", [0, 1])
def test_merged__one_that_is_over__is_refused(which: int) -> None:
    pair = [replace(opened(), incident_id="INC-2"), opened()]
    pair[which] = decisions.moved(pair[which], decisions.RESOLVED, "a", "", NOW_MS)
    with pytest.raises(IllegalTransitionError):
        decisions.merged(pair[0], pair[1], "ana", "", NOW_MS)


def test_merged__into_itself__is_refused() -> None:
    with pytest.raises(IllegalTransitionError):
        decisions.merged(opened(), opened(), "ana", "", NOW_MS)


# What follows the dataset, and what a person set.


@pytest.mark.parametrize(("state", "tier", "severity"), [
    (CRITICAL, Tier.TIER_1, Severity.SEV_1), (WARNING, Tier.TIER_1, Severity.SEV_2),
    (CRITICAL, Tier.TIER_2, Severity.SEV_2), (WARNING, Tier.TIER_3, Severity.SEV_3),
])  # fmt: skip
def test_aligned__tier_and_team_changed__severity_and_owner_follow_with_a_step(
    state: SignalState, tier: Tier, severity: Severity
) -> None:
    before = decisions.opened(
        trouble(ORDERS, state=state), (), "INC-1", DatasetProfile(Tier.TIER_2, "unowned"), "ana", NOW_MS
    )
    after = decisions.aligned(before, DatasetProfile(tier, "sales"), NOW_MS + 5)
    assert (after.tier, after.owner_team, after.severity) == (tier, "sales", severity)
    assert after.version == before.version + 1
    assert "team unowned to sales" in after.steps[-1].reason
    assert decisions.aligned(after, DatasetProfile(tier, "sales"), NOW_MS + 6) is after


def test_aligned__severity_that_a_person_set__stays() -> None:
    lowered = decisions.changed(opened(), Changes(severity="SEV_3"), "ana", NOW_MS)
    after = decisions.aligned(lowered, DatasetProfile(Tier.TIER_2, "sales"), NOW_MS)
    assert (after.severity, after.owner_team) == (Severity.SEV_3, "sales")


def test_recurred__dataset_has_another_tier_and_team_now__the_episode_has_them() -> None:
    low = decisions.opened(trouble(ORDERS), (), "INC-1", DatasetProfile(Tier.TIER_3, "unowned"), "ana", NOW_MS)
    resolved = decisions.moved(low, decisions.RESOLVED, "ana", "", NOW_MS + 1)
    again = decisions.recurred(resolved, trouble(ORDERS), (), DatasetProfile(Tier.TIER_1, "sales"), NOW_MS + 2)
    assert (again.severity, again.tier, again.owner_team) == (Severity.SEV_1, Tier.TIER_1, "sales")


def test_joined__flap__counts_a_recurrence_each_time() -> None:
    incident = opened()
    for count in range(1, 11):
        incident = decisions.joined(incident, trouble(ORDERS), (), STANDING, NOW_MS + count, is_flap=True)
        assert incident.recurrences == count


def test_escalated__has_a_step_of_its_own() -> None:
    after = decisions.escalated(opened(), 2, NOW_MS + 5)
    assert (after.escalation_level, after.steps[-1].reason) == (2, "escalated to level 2")
    assert (after.steps[-1].actor, after.steps[-1].at) == ("headgate", instant(NOW_MS + 5))
