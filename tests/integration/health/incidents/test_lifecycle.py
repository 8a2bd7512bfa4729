"""An incident beside its dataset: tier and team, flaps, silence after a resolution, blast radius, first bad record."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from headgate.clock import VirtualClock
from headgate.health.evidence.rows import Evidence, Result, Validation
from headgate.health.evidence.sampling import Rates, ResultRates
from headgate.health.incidents.decisions import REOPEN_MS
from headgate.health.lineage.specs import LineageSpec
from headgate.health.model.datasets import DatasetSpec, Source
from headgate.health.model.enums import IncidentStatus, Severity, SignalState, Tier
from headgate.health.model.incidents import Changes, Incident
from headgate.health.model.signals import ANY_VERSION, Signal, SignalUpdate
from headgate.health.model.timestamps import instant
from headgate.health.service import OPENING_EDGES_MAX, HealthOptions, HealthService
from headgate.ids import IdMaker
from headgate.store.blobs.folder import FolderBlobs
from headgate.store.cache.read_through import Cache
from headgate.store.keyring import Keyring
from headgate.store.sqlite.store import Synchronous
from tests.health_rig import CRITICAL, OK, SIGNATURE, value
from tests.stores import open_sqlite

ORDERS = "urn:dp:orders:created"


class Site:
    """Health on a store."""

    def __init__(self, folder: Path, stack: ExitStack, **options: Any) -> None:
        self.clock = VirtualClock()
        store = stack.enter_context(closing(open_sqlite(folder, clock=self.clock, synchronous=Synchronous.NORMAL)))
        everything = Rates(usual=ResultRates(passed=1.0, failed=1.0, warned=1.0, skipped=1.0))
        self.health = HealthService(
            store,
            self.clock,
            IdMaker(self.clock),
            Cache(clock=self.clock),
            Keyring.generate(self.clock),
            FolderBlobs(folder / "blobs"),
            options=HealthOptions(tier_1_needs_ticket=False, evidence_rates=everything, **options),
        )
        self.health.registry.create(ORDERS, DatasetSpec(), actor="ana")

    @property
    def now_ms(self) -> int:
        return int(self.clock.seconds() * 1000)

    def say(self, state: SignalState, kind: str = "VOLUME", *, seconds: float = 1.0, **more: Any) -> Signal:
        self.clock.advance(seconds)
        said = value(state, self.now_ms, **more)
        update = SignalUpdate(dataset_urn=ORDERS, signal_type=kind, value=said, expected_version=ANY_VERSION)
        signal = self.health.signals.update(update).signal
        assert signal is not None
        return signal

    def broken(self) -> Incident:
        return self.get(self.say(CRITICAL).value.incident_id)

    def get(self, incident_id: str | None) -> Incident:
        assert incident_id is not None
        return self.health.incidents.get(incident_id)

    def resolve(self, incident: Incident) -> Incident:
        return self.health.incidents.change(incident.incident_id, Changes(status="RESOLVED"), actor="ana")

    def readers(self, count: int, *, of: str = ORDERS, first: int = 0) -> None:
        for number in range(first, first + count):
            self.health.lineage.update(
                LineageSpec(
                    spec_id=f"lspec:job:j{number}:git:1",
                    producer_id=f"job:j{number}",
                    updated_at=instant(self.now_ms),
                    dataset_reads=(of,),
                    dataset_writes=(f"urn:dp:mart:t{number}",),
                )
            )

    def fail(self, signature: str, result: Result = Result.FAIL) -> str:
        self.clock.advance(1)
        evidence = Evidence(
            dataset_urn=ORDERS,
            created_at=instant(self.now_ms),
            validation=Validation(result=result, reason_codes=(signature,)),
        )
        return self.health.evidence.put(evidence).evidence_id


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site(tmp_path, stack)


# Tier and team.


def test_update_dataset__tier_and_team__open_incident_and_signals_follow(site: Site) -> None:
    incident = site.broken()
    assert (incident.severity, incident.owner_team) == (Severity.SEV_3, "unowned")
    spec = DatasetSpec(tier=Tier.TIER_1, owner_team="sales")
    site.health.registry.update(ORDERS, spec, expected_version=ANY_VERSION, actor="ana")
    after = site.get(incident.incident_id)
    assert (after.severity, after.owner_team, after.tier) == (Severity.SEV_1, "sales", Tier.TIER_1)
    (listed,) = site.health.signals.breaches(tier=Tier.TIER_1).signals
    assert (listed.owner_team, listed.value.incident_id) == ("sales", incident.incident_id)
    assert site.health.signals.breaches(tier=Tier.TIER_3).signals == []


def test_signal__dataset_changed_while_the_incident_was_resolved__reopens_as_it_is_now(site: Site) -> None:
    incident = site.broken()
    site.say(OK)
    site.resolve(incident)
    spec = DatasetSpec(tier=Tier.TIER_1, owner_team="sales")
    site.health.registry.update(ORDERS, spec, expected_version=ANY_VERSION, actor="ana")
    again = site.broken()
    assert (again.incident_id, again.episode) == (incident.incident_id, 2)
    assert (again.severity, again.owner_team) == (Severity.SEV_1, "sales")


def test_discover__tier_1_pipeline_with_an_owner__dataset_and_incident_are_its_own(site: Site) -> None:
    registry, mart = site.health.registry, "urn:dp:shop:mart"
    assert registry.discover(mart, Source(type="OPENLINEAGE"), "lineage").owner_team == "unowned"
    found = registry.discover(mart, Source(type="PIPELINE"), "pipelines", tier=Tier.TIER_1, owner_team="shop")
    assert (found.tier, found.owner_team, found.status) == (Tier.TIER_1, "shop", "DISCOVERED")
    again = registry.discover(mart, Source(type="PIPELINE"), "pipelines", tier=Tier.TIER_2, owner_team="other")
    assert again.owner_team == "shop", "the first owner stays"
    set_by_hand = registry.discover(ORDERS, None, "pipelines", tier=Tier.TIER_1, owner_team="shop")
    assert (set_by_hand.tier, set_by_hand.owner_team) == (Tier.TIER_3, "unowned"), "a registered one is never changed"


# Flaps.


def test_signal__flaps_in_an_open_incident__recurrences_count(site: Site) -> None:
    incident = site.broken()
    for _ in range(10):
        site.say(OK)
        site.say(CRITICAL)
        site.say(CRITICAL)
    assert site.get(incident.incident_id).recurrences == 10


def test_signal__fails_in_another_way_after_it_was_ok__is_no_flap(site: Site) -> None:
    incident = site.broken()
    site.say(OK)
    other = site.get(site.say(CRITICAL, signature="LOW:x").value.incident_id)
    assert other.incident_id != incident.incident_id
    assert (other.recurrences, site.get(incident.incident_id).recurrences) == (0, 0)


# Silence.


def test_resolve__signal_is_still_critical__says_until_when_it_is_silent_and_reopens_then(site: Site) -> None:
    incident = site.broken()
    resolved = site.resolve(incident)
    assert resolved.silenced_until == instant(site.now_ms + REOPEN_MS)
    assert f"VOLUME still CRITICAL; silent until {resolved.silenced_until}" in resolved.steps[-1].reason
    assert site.say(CRITICAL, seconds=3590).value.incident_id is None
    again = site.get(site.say(CRITICAL, seconds=20).value.incident_id)
    assert again.status is IncidentStatus.OPEN
    assert again.silenced_until is None


def test_resolve__signal_is_ok__is_not_silenced(site: Site) -> None:
    incident = site.broken()
    site.say(OK)
    assert site.resolve(incident).silenced_until is None


@pytest.mark.parametrize(("seconds", "is_silent"), [(0, False), (7200, True)])
def test_resolve__setting_of_the_silence__decides_how_long(tmp_path: Path, seconds: int, *, is_silent: bool) -> None:
    with ExitStack() as stack:
        site = Site(tmp_path, stack, silence_seconds=seconds)
        site.resolve(site.broken())
        after = site.say(CRITICAL, seconds=5000 if seconds else 1)
        assert (after.value.incident_id is None) == is_silent


# Escalation.


def test_sweep__escalation__is_in_the_timeline(site: Site) -> None:
    incident = site.broken()
    site.clock.advance(15 * 60 + 1)
    site.health.sweep()
    context = site.health.contexts.of(incident.incident_id)
    assert any("escalated to level 1" in each.what for each in context.timeline)


# Blast radius.


def test_sweep__radius_larger_than_the_first_walk__is_completed(site: Site) -> None:
    site.readers(OPENING_EDGES_MAX)
    incident = site.broken()
    assert incident.blast_radius is not None
    assert not incident.blast_radius.complete
    site.health.sweep()
    after = site.get(incident.incident_id).blast_radius
    assert after is not None
    assert (after.complete, after.downstream_count) == (True, OPENING_EDGES_MAX)
    assert after.downstream_count == site.health.blast_radii.downstream(ORDERS).downstream_count


def test_sweep__lineage_changes__radius_of_an_open_incident_follows(site: Site) -> None:
    incident = site.broken()
    site.health.sweep()
    site.readers(2)
    site.clock.advance(2)
    site.health.sweep()
    after = site.get(incident.incident_id)
    assert after.blast_radius is not None
    assert after.blast_radius.downstream_count == 2
    version = after.version
    site.clock.advance(60)
    site.health.sweep()
    assert site.get(incident.incident_id).version == version, "nothing changed, nothing is written"


# First bad.


def test_context__another_failure_came_first_and_recovered__first_bad_is_of_the_incident(site: Site) -> None:
    site.fail("SCHEMA:other")
    good = site.fail("none", Result.PASS)
    incident = site.broken()
    own = site.fail(SIGNATURE)
    site.fail(SIGNATURE)
    context = site.health.contexts.of(incident.incident_id)
    assert context.first_bad is not None
    assert (context.first_bad.evidence_id, context.last_good and context.last_good.evidence_id) == (own, good)


def test_context__no_evidence_of_its_own__has_no_first_bad(site: Site) -> None:
    site.fail("SCHEMA:other")
    assert site.health.contexts.of(site.broken().incident_id).first_bad is None
