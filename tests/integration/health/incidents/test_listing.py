"""Lists of incidents: every filter in every combination as a naive look at all of them, paged over ties."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest

from headgate.durable.model.records import instant
from headgate.errors import CursorError, UserError
from headgate.health.incidents.listing import IncidentFilter
from headgate.health.model.datasets import DatasetProfile
from headgate.health.model.enums import IncidentStatus, Severity, Tier
from headgate.health.model.incidents import Changes, Incident, Resolution
from tests.health_rig import ORDERS, PAYMENTS, Rig, trouble
from tests.integration.health.conftest import MakeRig

OPEN, ACKNOWLEDGED, RESOLVED = IncidentStatus


def listed(rig: Rig, wanted: IncidentFilter, limit: int) -> list[Incident]:
    found: list[Incident] = []
    cursor: str | None = None
    for _ in range(500):
        page = rig.listing.ls(wanted, limit=limit, cursor=cursor)
        assert len(page.incidents) <= limit
        found += page.incidents
        cursor = page.cursor
        if cursor is None:
            return found
    raise AssertionError("the cursors never end")


def naive(incidents: list[Incident], wanted: IncidentFilter) -> list[str]:
    kept = [
        each
        for each in incidents
        if (not wanted.statuses or each.status in wanted.statuses)
        and (not wanted.severities or each.severity in wanted.severities)
        and wanted.dataset_urn in (None, each.primary_dataset_urn)
        and wanted.owner_team in (None, each.owner_team)
        and (wanted.failure_signature is None or wanted.failure_signature in each.failure_signatures)
        and (wanted.signal_type is None or wanted.signal_type in each.signal_types)
        and wanted.since <= each.created_at <= wanted.until
    ]
    return [each.incident_id for each in sorted(kept, key=lambda each: (each.created_at, each.incident_id))[::-1]]


@pytest.fixture
def full(make_rig: MakeRig) -> tuple[Rig, list[Incident]]:
    """Incidents of two datasets and teams in all statuses and severities, several of one millisecond."""
    draw = random.Random(1)
    rig = make_rig(
        profiles={ORDERS: DatasetProfile(Tier.TIER_1, "team-a"), PAYMENTS: DatasetProfile(Tier.TIER_2, "team-b")}
    )
    ids = []
    for number in range(36):
        if number % 5 == 0:
            rig.clock.advance(1)
        urn = (ORDERS, PAYMENTS)[number % 2]
        kinds = draw.sample(["FRESHNESS", "VOLUME"], draw.randint(1, 2))
        signatures = [("A:x", "B:y"), ("A:x",), ("B:y", "A:x")][number % 3]
        given = trouble(
            urn, *kinds, failure_signatures=signatures, severity=list(Severity)[number % 3], dedup_key=f"k{number}"
        )
        incident_id = rig.incidents.open(given, actor="a").incident.incident_id
        ids.append(incident_id)
        if number % 4 == 1:
            rig.incidents.change(incident_id, Changes(status="ACKNOWLEDGED"), actor="ana")
        if number % 4 == 2:
            rig.incidents.change(incident_id, Changes(status="RESOLVED"), actor="ana")
    return rig, [rig.incidents.get(each) for each in ids]


def test_ls__every_combination_of_filters__is_what_a_look_at_all_of_them_gives(
    full: tuple[Rig, list[Incident]],
) -> None:
    rig, incidents = full
    moments = sorted({each.created_at for each in incidents})
    choices = itertools.product(
        [(), (OPEN,), (OPEN, ACKNOWLEDGED), (RESOLVED,)],
        [(), (Severity.SEV_1,), (Severity.SEV_1, Severity.SEV_3)],
        [None, ORDERS],
        [None, "team-b", "nobody"],
        [None, "A:x", "B:y"],
        [None, "VOLUME"],
        [("", "9999"), (moments[2], moments[4])],
    )
    for number, (statuses, severities, urn, team, signature, kind, (since, until)) in enumerate(choices):
        wanted = IncidentFilter(
            statuses=statuses,
            severities=severities,
            dataset_urn=urn,
            owner_team=team,
            failure_signature=signature,
            signal_type=kind,
            since=since,
            until=until,
        )
        found = [each.incident_id for each in listed(rig, wanted, (3, 7, 50)[number % 3])]
        assert found == naive(incidents, wanted), wanted


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 100])
def test_ls__ties__each_incident_once_newest_first(full: tuple[Rig, list[Incident]], limit: int) -> None:
    rig, incidents = full
    found = [each.incident_id for each in listed(rig, IncidentFilter(), limit)]
    assert found == naive(incidents, IncidentFilter())


def test_ls__a_status_twice__lists_nothing_twice(full: tuple[Rig, list[Incident]]) -> None:
    rig, incidents = full
    wanted = IncidentFilter(statuses=(OPEN, OPEN), severities=(Severity.SEV_1, Severity.SEV_1))
    assert [each.incident_id for each in listed(rig, wanted, 5)] == naive(incidents, wanted)


def test_ls__cursor_of_another_question__is_refused(full: tuple[Rig, list[Incident]]) -> None:
    rig, _ = full
    cursor = rig.listing.ls(IncidentFilter(dataset_urn=ORDERS), limit=2).cursor
    assert cursor is not None
    for other in (
        IncidentFilter(dataset_urn=PAYMENTS),
        IncidentFilter(dataset_urn=ORDERS, severities=(Severity.SEV_1,)),
        IncidentFilter(dataset_urn=ORDERS, signal_type="VOLUME"),
        IncidentFilter(),
    ):
        with pytest.raises(CursorError):
            rig.listing.ls(other, limit=2, cursor=cursor)


@pytest.mark.parametrize("limit", [0, -5])
def test_ls__a_limit_of_nothing__is_bad_input(full: tuple[Rig, list[Incident]], limit: int) -> None:
    with pytest.raises(UserError):
        full[0].listing.ls(IncidentFilter(), limit=limit)


def test_ls__moves_while_it_is_paged__is_not_lost(full: tuple[Rig, list[Incident]]) -> None:
    """What changes its status between two pages may turn up or not; what does not is there exactly once."""
    rig, incidents = full
    wanted = IncidentFilter(statuses=(OPEN,))
    page = rig.listing.ls(wanted, limit=4)
    found = [each.incident_id for each in page.incidents]
    moved = naive(incidents, wanted)[6]
    rig.incidents.change(moved, Changes(status="ACKNOWLEDGED"), actor="ana")
    while page.cursor is not None:
        page = rig.listing.ls(wanted, limit=4, cursor=page.cursor)
        found += [each.incident_id for each in page.incidents]
    assert found == [each for each in naive(incidents, wanted) if each != moved]


def test_counts__of_each_status_and_severity(full: tuple[Rig, list[Incident]]) -> None:
    rig, incidents = full
    counts = rig.listing.counts()
    for status in (OPEN, ACKNOWLEDGED):
        assert counts[status.value] == Counter(each.severity.value for each in incidents if each.status is status)


def test_recovery__mean_time_by_severity_without_merged_ones(rig: Rig) -> None:
    for seconds, severity, wrong in (
        (10, Severity.SEV_1, False),
        (30, Severity.SEV_1, True),
        (50, Severity.SEV_2, False),
    ):
        opened = rig.incidents.open(trouble(ORDERS, severity=severity, dedup_key=f"k{seconds}"), actor="a").incident
        rig.clock.advance(seconds)
        resolution = Resolution(root_cause="x", false_positive=wrong)
        rig.incidents.change(opened.incident_id, Changes(status="RESOLVED", resolution=resolution), actor="ana")
    kept = rig.incidents.open(trouble(ORDERS, dedup_key="kept"), actor="a").incident
    gone = rig.incidents.open(trouble(ORDERS, dedup_key="gone"), actor="a").incident
    rig.clock.advance(1000)
    rig.incidents.merge(gone.incident_id, kept.incident_id, actor="ana")
    found = rig.listing.recovery(IncidentFilter())
    assert (found.resolved, found.mttr_seconds, found.false_positives, found.complete) == (3, 30.0, 1, True)
    assert found.by_severity == {"SEV_1": 20.0, "SEV_2": 50.0}


def test_recovery__nothing_resolved__is_no_time(rig: Rig) -> None:
    found = rig.listing.recovery(IncidentFilter(since=instant(rig.now_ms)))
    assert (found.resolved, found.mttr_seconds, found.by_severity) == (0, None, {})
