"""A dataset is deleted: its signals are listed no more and its incidents end; restored, it is as it was."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from headgate.clock import VirtualClock
from headgate.durable.bus.bus import Bus
from headgate.durable.bus.event_log import first_id
from headgate.errors import TransientError
from headgate.health.audit.log import Audit
from headgate.health.incidents.listing import IncidentFilter
from headgate.health.model.datasets import DatasetSpec
from headgate.health.model.enums import IncidentStatus, SignalState
from headgate.health.model.incidents import Changes
from headgate.health.model.signals import Signal, SignalUpdate, UpdateVerdict
from headgate.health.registry.service import Registry
from headgate.health.retirement import LOOK_AGAIN_MS
from headgate.health.service import HealthService
from headgate.ids import IdMaker
from headgate.store.blobs.folder import FolderBlobs
from headgate.store.cache.read_through import Cache
from headgate.store.keyring import Keyring
from headgate.store.port import Store
from headgate.store.sqlite.store import Synchronous
from tests.health_rig import CRITICAL, OK, ORDERS, PAYMENTS, WARNING, value
from tests.integration.health.registry_world import Between, CrashError
from tests.stores import open_sqlite

LATER_SECONDS = LOOK_AGAIN_MS / 1000 + 1


class Rig:
    """Processes on one store, each with a memory of its own."""

    def __init__(self, folder: Path) -> None:
        self.clock = VirtualClock()
        self.folder = folder
        self.store = open_sqlite(folder, clock=self.clock, synchronous=Synchronous.NORMAL)
        self.ids = IdMaker(self.clock)
        self.keyring = Keyring.generate(self.clock)
        self.started_ms = int(self.clock.seconds() * 1000) - 1
        self.bus = Bus(self.store, self.clock, self.ids)
        self.health = self.process(self.store)
        for urn in (ORDERS, PAYMENTS):
            self.health.registry.create(urn, DatasetSpec(owner_team="team-a"), actor="ann")

    def process(self, store: Any) -> HealthService:
        return HealthService(
            cast("Store", store),
            self.clock,
            self.ids,
            Cache(clock=self.clock),
            self.keyring,
            FolderBlobs(self.folder / "evidence"),
            event_writes=lambda event, now_ms: self.bus.event_writes(event, now_ms),
        )

    def registry_alone(self, store: Any) -> Registry:
        """The registry of a process that dies before it retires anything."""
        audit = Audit(store, self.clock, self.ids, self.keyring)
        return Registry(
            store,
            self.clock,
            self.ids,
            Cache(clock=self.clock),
            audit,
            self.keyring,
            event_writes=lambda event, now_ms: self.bus.event_writes(event, now_ms),
        )

    def say(self, state: SignalState = CRITICAL, urn: str = ORDERS, kind: str = "VOLUME", **more: Any) -> UpdateVerdict:
        self.clock.advance(1)
        said = value(state, int(self.clock.seconds() * 1000), **more)
        return self.health.signals.update(
            SignalUpdate(dataset_urn=urn, signal_type=kind, value=said, expected_version=-1)
        ).verdict

    def listed(self) -> list[tuple[str, str]]:
        found = self.health.signals.breaches(states=(CRITICAL, WARNING, SignalState.UNKNOWN)).signals
        return sorted((each.dataset_urn, each.signal_type) for each in found)

    def statuses(self, urn: str = ORDERS) -> list[IncidentStatus]:
        page = self.health.incident_listing.ls(IncidentFilter(dataset_urn=urn), limit=50)
        return [each.status for each in page.incidents]

    def signal(self, kind: str = "VOLUME") -> Signal:
        found = self.health.signals.get(ORDERS, kind, consistent=True)
        assert found is not None
        return found

    def events(self) -> list[str]:
        return [each.event.data["event_type"] for each in self.bus.tail(first_id(self.started_ms), limit=1000)]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.health.close()
    rig.store.close()


def check_retired(rig: Rig) -> None:
    assert rig.listed() == []
    assert set(rig.statuses()) == {IncidentStatus.RESOLVED}
    assert rig.events().count("INCIDENT_RESOLVED") == len(rig.statuses())
    assert rig.signal().value.incident_id is None


def test_delete__with_a_critical_signal_and_its_incident__lists_neither_any_more(rig: Rig) -> None:
    rig.say()
    rig.say(WARNING, kind="FRESHNESS")
    [incident_id] = {each.value.incident_id for each in rig.health.signals.of_dataset(ORDERS)} - {None}
    rig.say(urn=PAYMENTS)

    rig.health.registry.delete(ORDERS, actor="ann")

    assert rig.listed() == [(PAYMENTS, "VOLUME")]
    assert rig.statuses(PAYMENTS) == [IncidentStatus.OPEN]
    assert incident_id is not None
    incident = rig.health.incidents.get(incident_id)
    assert (incident.status, incident.resolution and incident.resolution.root_cause) == ("RESOLVED", "dataset deleted")
    assert (incident.steps[-1].actor, incident.steps[-1].reason) == ("ann", "dataset deleted")
    [entry] = rig.health.audit.ls(incident_id).entries
    assert (entry.actor, entry.action, entry.reason) == ("ann", "incident.resolve", "dataset deleted")
    assert rig.events().count("INCIDENT_RESOLVED") == 1
    assert rig.say(OK) is UpdateVerdict.DATASET_NOT_FOUND


def test_delete__of_a_process_that_died_right_after__is_finished_by_upkeep(rig: Rig) -> None:
    rig.say()

    rig.registry_alone(rig.store).delete(ORDERS, actor="ann")
    assert rig.statuses() == [IncidentStatus.OPEN]
    rig.clock.advance(LATER_SECONDS)
    rig.health.sweep()

    check_retired(rig)
    rig.health.sweep()
    assert rig.events().count("INCIDENT_RESOLVED") == 1


@pytest.mark.parametrize("writes", range(4))
def test_delete__a_crash_after_some_writes__is_finished_by_upkeep(rig: Rig, writes: int) -> None:
    rig.say()
    rig.say(kind="SCHEMA", signature="OTHER:x")
    between = Between(rig.store)
    done = 0

    def count() -> None:
        nonlocal done
        done += 1
        if done > writes:
            raise CrashError

    dying = rig.process(between)
    between.before_write = count
    with pytest.raises(CrashError):
        dying.registry.delete(ORDERS, actor="ann")
    if not writes:
        assert rig.listed(), "not even deleted"
        return

    rig.clock.advance(LATER_SECONDS)
    rig.health.sweep()

    check_retired(rig)


def test_delete__while_the_store_is_busy__is_done_and_upkeep_does_the_rest(rig: Rig) -> None:
    rig.say()
    between = Between(rig.store)
    between.after_write = lambda: setattr(between, "is_down", True)

    deleted = rig.process(between).registry.delete(ORDERS, actor="ann")

    assert deleted.status == "DELETED"
    rig.clock.advance(LATER_SECONDS)
    rig.health.sweep()
    check_retired(rig)


def test_delete__a_value_that_another_process_still_took__is_not_listed_for_long(rig: Rig) -> None:
    other = rig.process(rig.store)
    rig.say()
    assert other.profile(ORDERS) is not None
    rig.health.registry.delete(ORDERS, actor="ann")
    rig.clock.advance(1)
    said = value(CRITICAL, int(rig.clock.seconds() * 1000), signature="LATE:x")
    late = SignalUpdate(dataset_urn=ORDERS, signal_type="VOLUME", value=said, expected_version=-1)
    assert other.signals.update(late).verdict is UpdateVerdict.APPLIED

    rig.clock.advance(LATER_SECONDS)
    rig.health.sweep()

    check_retired(rig)


def test_restore__what_was_not_ok__is_listed_again_and_watched_as_before(rig: Rig) -> None:
    rig.say()
    rig.health.registry.delete(ORDERS, actor="ann")

    rig.health.registry.restore(ORDERS, actor="ann")

    assert rig.listed() == [(ORDERS, "VOLUME")]
    assert rig.say() is UpdateVerdict.APPLIED
    assert sorted(rig.statuses()) == [IncidentStatus.OPEN, IncidentStatus.RESOLVED]
    rig.clock.advance(LATER_SECONDS)
    rig.health.sweep()
    assert rig.listed() == [(ORDERS, "VOLUME")]
    assert rig.say(OK) is UpdateVerdict.APPLIED
    assert rig.listed() == []


def test_create__of_one_that_was_deleted__lists_what_was_not_ok_again(rig: Rig) -> None:
    rig.say()
    rig.health.registry.delete(ORDERS, actor="ann")

    rig.health.registry.create(ORDERS, DatasetSpec(owner_team="team-b"), actor="bob")

    assert rig.listed() == [(ORDERS, "VOLUME")]


def test_delete__with_an_incident_that_others_share__leaves_it_to_them(rig: Rig) -> None:
    rig.say()
    rig.say(urn=PAYMENTS)
    mine, theirs = (rig.health.signals.of_dataset(each)[0].value.incident_id for each in (ORDERS, PAYMENTS))
    assert mine is not None
    assert theirs is not None
    rig.health.incidents.merge(mine, theirs, actor="ann")

    rig.health.registry.delete(ORDERS, actor="ann")

    assert rig.health.incidents.get(theirs).is_open
    assert rig.listed() == [(PAYMENTS, "VOLUME")]
    assert rig.signal().value.incident_id is None
    rig.say(OK, urn=PAYMENTS)
    rig.clock.advance(301)
    rig.health.sweep()
    assert not rig.health.incidents.get(theirs).is_open


def test_delete__an_incident_that_someone_resolved_at_the_same_time__stays_resolved(rig: Rig) -> None:
    rig.say()
    incident_id = rig.signal().value.incident_id
    assert incident_id is not None
    rig.health.incidents.change(incident_id, Changes(status="RESOLVED"), actor="bob")

    rig.health.registry.delete(ORDERS, actor="ann")

    assert rig.listed() == []
    assert rig.health.incidents.get(incident_id).steps[-1].actor == "bob"


def test_sweep__with_the_store_away__fails_and_is_tried_again(rig: Rig) -> None:
    rig.say()
    between = Between(rig.store)
    process = rig.process(between)
    rig.registry_alone(between).delete(ORDERS, actor="ann")
    rig.clock.advance(LATER_SECONDS)
    between.is_down = True
    with pytest.raises(TransientError):
        process.retirement.sweep()
    between.is_down = False

    process.retirement.sweep()

    check_retired(rig)
