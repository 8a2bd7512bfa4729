"""A fenced store: reads anywhere, writes only where the lease is; and two regions that settle who that is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from headgate.clock import VirtualClock
from headgate.errors import ConflictError, StoreBusyError
from headgate.health.regions.agent import (
    PROBE_SECONDS,
    RegionAgent,
    RegionProbe,
    RegionPulse,
    lag_seconds,
    read_replication,
    read_reports,
)
from headgate.health.regions.failover import Failover, LeaseKeeper, read_state
from headgate.health.regions.fenced_store import FencedStore
from headgate.health.regions.regions import EPOCH, WRITER, Fence, Replica, WriterLease, raise_epoch
from headgate.store.catalogue.tables import AUDIT, CONTROL, HEALTH_CHECK, REGION_PULSE
from headgate.store.model.conditions import absent
from headgate.store.model.requests import Delete, Put, Query
from headgate.store.model.schema import Key
from headgate.store.sqlite.store import Synchronous
from tests.stores import open_sqlite

EAST, WEST = "us-east-1", "us-west-2"
KEY = Key("QUOTA#x", "now")
ROW = {"PK": "QUOTA#x", "SK": "now", "used": 1}


class Region:
    """One region: its store, its fence, and what its process does all the time."""

    def __init__(self, name: str, folder: Path, rig: Rig) -> None:
        self.store = open_sqlite(folder, clock=rig.clock, synchronous=Synchronous.NORMAL)
        self.fence = Fence(self.store, name, rig.clock)
        self.fenced = FencedStore(self.store, self.fence)
        keeper = LeaseKeeper(rig.authority, WriterLease(rig.authority, rig.clock), self.fence, name, EAST)
        other = WEST if name == EAST else EAST
        pulse = RegionPulse(self.store, rig.authority, rig.clock, region=name, other=other)
        self.duty = rig.duty(name, keeper, pulse)


class Rig:
    def __init__(self, folder: Path) -> None:
        self.clock = VirtualClock()
        for name in ("authority", EAST, WEST):
            (folder / name).mkdir()
        self.authority = open_sqlite(folder / "authority", clock=self.clock, synchronous=Synchronous.NORMAL)
        self.down: set[str] = set()
        self.moved: list[str] = []
        self.east, self.west = (Region(name, folder / name, self) for name in (EAST, WEST))
        self.third = self.duty("third", None)

    def replicate(self, source: Region, target: Region) -> None:
        """Copy the pulses of a region, as global tables do."""
        for name in (EAST, WEST):
            row = source.store.get(HEALTH_CHECK, REGION_PULSE.key(region=name))
            if row is not None:
                Replica(target.store).take(HEALTH_CHECK, row)

    def duty(self, observer: str, keeper: LeaseKeeper | None, pulse: RegionPulse | None = None) -> RegionAgent:
        return RegionAgent(
            self.authority,
            self.clock,
            regions=(EAST, WEST),
            probe=RegionProbe(self.authority, self.clock, observer, lambda region: region not in self.down),
            failover=Failover(
                self.authority,
                self.clock,
                WriterLease(self.authority, self.clock),
                regions=(EAST, WEST),
                move_traffic=self.moved.append,
            ),
            keeper=keeper,
            pulse=pulse,
        )

    def close(self) -> None:
        for store in (self.authority, self.east.store, self.west.store):
            store.close()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with closing(Rig(tmp_path)) as made:
        made.east.duty.run_due()
        made.west.duty.run_due()
        yield made


def test_fenced__the_writer__does_all_that_a_store_does_and_marks_it(rig: Rig) -> None:
    store = rig.east.fenced
    store.put(CONTROL, ROW, condition=absent())
    assert store.update(CONTROL, KEY, set={"used": 2})["used"] == 2
    store.transact([Put(CONTROL, {**ROW, "SK": "later"})])
    store.batch_write([Put(CONTROL, {**ROW, "SK": "batched"})])
    outcomes = store.transact_many([[Put(CONTROL, {**ROW, "SK": "many"})], [Put(CONTROL, ROW, absent())]])
    received: list[BaseException | None] = []
    store.submit([Put(CONTROL, ROW, absent())], received.append)

    found = store.get(CONTROL, KEY, consistent=True)
    assert found is not None
    assert (found[EPOCH], found[WRITER]) == (1, EAST)
    assert len(store.query(Query(table=CONTROL, partition="QUOTA#x")).items) == 4
    assert outcomes[0] is None
    assert isinstance(outcomes[1], ConflictError)
    with pytest.raises(ConflictError) as raised:
        store.put(CONTROL, ROW, condition=absent())
    assert raised.value.current is not None
    assert store.delete(CONTROL, KEY) is not None
    assert store.get(CONTROL, KEY, consistent=True) is None


def test_fenced__entries_of_the_audit__are_as_they_were_sealed(rig: Rig) -> None:
    row = {"PK": "AUDIT#0", "SK": "000000000001"}
    rig.east.fenced.transact([Put(AUDIT, row)])

    assert rig.east.store.get(AUDIT, Key("AUDIT#0", "000000000001")) == row


def test_fenced__the_other_region__reads_and_writes_nothing(rig: Rig) -> None:
    store = rig.west.fenced
    assert store.get(CONTROL, KEY) is None
    received: list[BaseException | None] = []
    store.submit([Put(CONTROL, ROW)], received.append)

    assert [type(each) for each in received] == [StoreBusyError]
    for write in (
        lambda: store.put(CONTROL, ROW),
        lambda: store.update(CONTROL, KEY, set={"a": 1}),
        lambda: store.delete(CONTROL, KEY),
        lambda: store.transact([Put(CONTROL, ROW)]),
        lambda: store.transact_many([[Put(CONTROL, ROW)]]),
        lambda: store.batch_write([Delete(CONTROL, KEY)]),
    ):
        with pytest.raises(StoreBusyError, match="not the writer"):
            write()


def test_fenced__a_writer_whose_epoch_has_passed__is_refused_by_every_way(rig: Rig) -> None:
    raise_epoch(rig.east.store, 2, WEST)

    outcomes = rig.east.fenced.transact_many([[Put(CONTROL, ROW)]])

    assert [type(each) for each in outcomes] == [StoreBusyError]
    rig.east.duty.run_due()
    with pytest.raises(StoreBusyError):
        rig.east.fenced.batch_write([Put(CONTROL, ROW)])
    assert rig.east.store.get(CONTROL, KEY, consistent=True) is None


def test_regions__the_home_one_goes_down__the_other_takes_over_once_two_observers_agree(rig: Rig) -> None:
    rig.third.run_due()
    rig.down.add(EAST)
    for _ in range(8):
        rig.clock.advance(30)
        rig.third.run_due()
        # The process of the region that is down does nothing any more.
        rig.west.duty.run_due()

    assert rig.moved == [WEST]
    rig.west.fenced.put(CONTROL, ROW)
    assert rig.west.store.get(CONTROL, KEY) is not None
    with pytest.raises(StoreBusyError):
        rig.east.fenced.put(CONTROL, ROW)
    reports = read_reports(rig.authority)
    assert reports[EAST]["third"].failures >= 3
    assert reports[WEST]["third"].failures == 0


def test_regions__failover_after_replication_stopped__states_what_is_lost_and_how_long_it_took(rig: Rig) -> None:
    for _ in range(3):
        rig.clock.advance(10)
        rig.east.duty.run_due()
        rig.replicate(rig.east, rig.west)
        rig.west.duty.run_due()
        rig.third.run_due()
    assert lag_seconds(read_replication(rig.authority)[WEST]) == 0
    # Replication stops 40 seconds before the region is down.
    for _ in range(4):
        rig.clock.advance(10)
        rig.east.duty.run_due()
        rig.west.duty.run_due()
        rig.third.run_due()
    assert lag_seconds(read_replication(rig.authority)[WEST]) == 30
    rig.down.add(EAST)
    outage_at = rig.clock.seconds()
    while not rig.moved:
        rig.clock.advance(10)
        rig.third.run_due()
        rig.west.duty.run_due()

    state = read_state(rig.authority, EAST)
    assert state.lost_ms is not None
    assert state.recovery_ms is not None
    # The first probe after the outage is up to a period of probes late.
    assert 40_000 <= state.lost_ms <= 40_000 + 1000 * PROBE_SECONDS
    took_ms = 1000 * (rig.clock.seconds() - outage_at)
    assert took_ms - 1000 * PROBE_SECONDS <= state.recovery_ms <= took_ms
    failover = Failover(
        rig.authority, rig.clock, WriterLease(rig.authority, rig.clock), regions=(EAST, WEST), move_traffic=print
    )
    assert state.recovery_ms <= 1000 * failover.recovery_seconds_max(PROBE_SECONDS)


def test_regions__one_observer_alone__moves_nothing(rig: Rig) -> None:
    rig.down.add(EAST)
    for _ in range(8):
        rig.clock.advance(30)
        rig.third.run_due()

    assert rig.moved == []


def test_lease__two_processes_of_one_region__both_write(rig: Rig, tmp_path: Path) -> None:
    lease = WriterLease(rig.authority, rig.clock)
    stale = lease.read()
    assert stale is not None
    lease.hold(EAST)

    assert lease._write(stale, EAST, is_renewal=True).region == EAST
    with pytest.raises(StoreBusyError):
        lease._write(stale, WEST, is_renewal=False)
