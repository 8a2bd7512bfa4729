"""Regions: one writer at a time, merging whatever the order, and two regions that live through outages."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.clock import VirtualClock
from headgate.errors import ConflictError, HeadgateError, StoreBusyError
from headgate.health.model.timestamps import instant
from headgate.health.regions.failover import Failover, FailoverPolicy, LeaseKeeper, ProbeReport
from headgate.health.regions.regions import (
    EPOCH,
    WRITER,
    Fence,
    Replica,
    WriterLease,
    known_epoch,
    merged,
    raise_epoch,
    rank,
)
from headgate.store.catalogue.tables import SIGNAL_STATE
from headgate.store.model.conditions import absent, version_is
from headgate.store.model.requests import Put, Query, Update
from headgate.store.model.schema import Key
from headgate.store.model.values import Item
from headgate.store.sqlite.store import SqliteStore, Synchronous
from tests.stores import open_sqlite

EAST, WEST = "us-east-1", "us-west-2"
ROW = {"PK": "urn:dp:a:b", "SK": "FRESHNESS", "version": 1, "window_end": instant(0)}
KEY = Key("urn:dp:a:b", "FRESHNESS")
ZOMBIE = instant(4_000_000_000_000)


class SkewedClock(VirtualClock):
    """Another region's clock: it goes with the first, a little off."""

    def __init__(self, true: VirtualClock, seconds_off: float) -> None:
        super().__init__()
        self._true = true
        self._seconds_off = seconds_off

    def seconds(self) -> float:
        return self._true.seconds() + self._seconds_off

    def monotonic(self) -> float:
        return self._true.monotonic()


class Rig:
    """An authority, a region, and a clock."""

    def __init__(self, folder: Path) -> None:
        self.clock = VirtualClock()
        for name in ("authority", "east"):
            (folder / name).mkdir()
        self.authority = open_sqlite(folder / "authority", clock=self.clock, synchronous=Synchronous.NORMAL)
        self.store = open_sqlite(folder / "east", clock=self.clock, synchronous=Synchronous.NORMAL)
        self.lease = WriterLease(self.authority, self.clock)
        self.fence = Fence(self.store, EAST, self.clock)

    def close(self) -> None:
        self.authority.close()
        self.store.close()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with closing(Rig(tmp_path)) as rig:
        yield rig


def test_lease__held__is_renewed_under_the_same_epoch_and_no_other_s(rig: Rig) -> None:
    first = rig.lease.hold(EAST)
    rig.clock.advance(30)
    second = rig.lease.hold(EAST)

    assert (first.epoch, second.epoch) == (1, 1)
    assert second.expires_ms == first.expires_ms + 30_000
    with pytest.raises(StoreBusyError, match="us-east-1 is, under epoch 1"):
        rig.lease.hold(WEST)


def test_lease__run_out__goes_to_who_asks_under_a_new_epoch(rig: Rig) -> None:
    rig.lease.hold(EAST)
    rig.clock.advance(60)

    assert rig.lease.hold(WEST).epoch == 2
    rig.clock.advance(60)
    assert rig.lease.hold(WEST).epoch == 3, "even its own: others may have written meanwhile"


def test_lease__released__need_not_run_out_and_an_old_release_does_nothing(rig: Rig) -> None:
    old = rig.lease.hold(EAST)
    new = rig.lease.hold(EAST)
    rig.lease.release(old)
    with pytest.raises(StoreBusyError):
        rig.lease.hold(WEST)

    rig.lease.release(new)

    assert rig.lease.hold(WEST).epoch == 2


def test_lease__two_who_take_it_at_once__one_gets_it(rig: Rig) -> None:
    class Late(WriterLease):
        """Someone who reads, and is overtaken before it writes."""

        def read(self) -> Any:
            found = super().read()
            WriterLease(rig.authority, rig.clock).hold(WEST)
            return found

    with pytest.raises(StoreBusyError, match=WEST):
        Late(rig.authority, rig.clock).hold(EAST)


def test_fence__writer__marks_what_it_writes(rig: Rig) -> None:
    rig.fence.enter(rig.lease.hold(EAST))
    rig.fence.transact([Put(SIGNAL_STATE, ROW, absent())])
    rig.fence.transact([Update(SIGNAL_STATE, KEY, {"version": 2}, condition=version_is(1))])

    assert rig.store.get(SIGNAL_STATE, KEY) == {**ROW, "version": 2, EPOCH: 1, WRITER: EAST}


def test_fence__conflict_of_the_caller_s_own__is_raised_with_its_place(rig: Rig) -> None:
    rig.fence.enter(rig.lease.hold(EAST))
    rig.fence.transact([Put(SIGNAL_STATE, ROW)])

    with pytest.raises(ConflictError) as caught:
        rig.fence.transact([Put(SIGNAL_STATE, {**ROW, "SK": "VOLUME"}), Put(SIGNAL_STATE, ROW, absent())])

    assert list(caught.value.failures) == [1]
    assert rig.fence.is_open()


def test_fence__before_and_after_the_lease__lets_nothing_through(rig: Rig) -> None:
    with pytest.raises(StoreBusyError, match="there is no writer"):
        rig.fence.transact([Put(SIGNAL_STATE, ROW)])
    rig.fence.enter(rig.lease.hold(EAST))
    rig.clock.advance(54.9)
    rig.fence.fence_writes([])
    rig.clock.advance(0.2)

    with pytest.raises(StoreBusyError, match="not the writer"):
        rig.fence.transact([Put(SIGNAL_STATE, ROW)])
    assert rig.store.get(SIGNAL_STATE, KEY) is None


def test_fence__writer_that_slept_through_a_change__is_refused_by_the_epoch_beside_the_data(rig: Rig) -> None:
    rig.fence.enter(rig.lease.hold(EAST))
    prepared = rig.fence.fence_writes([Put(SIGNAL_STATE, ROW)])
    Replica(rig.store).learn_epoch(2, WEST)

    with pytest.raises(ConflictError):
        rig.store.transact(prepared)
    with pytest.raises(StoreBusyError, match="epoch is over"):
        rig.fence.transact([Put(SIGNAL_STATE, ROW)])
    assert rig.store.get(SIGNAL_STATE, KEY) is None
    assert not rig.fence.is_open()


def test_epoch__never_goes_back(rig: Rig) -> None:
    raise_epoch(rig.store, 5, WEST)
    raise_epoch(rig.store, 5, WEST)
    with pytest.raises(StoreBusyError, match="epoch 4 is over, us-west-2 writes under 5"):
        raise_epoch(rig.store, 4, EAST)
    with pytest.raises(StoreBusyError):
        raise_epoch(rig.store, 5, EAST)

    assert known_epoch(rig.store) == (5, WEST)


# Merging.

copies = st.fixed_dictionaries(
    {
        "PK": st.just("p"), "SK": st.just("s"), EPOCH: st.integers(0, 2), WRITER: st.sampled_from([EAST, WEST]),
        "version": st.integers(1, 3), "window_end": st.sampled_from([instant(0), instant(300_000)]),
        "score": st.floats(0, 1),
    }
)  # fmt: skip


@given(st.lists(copies, min_size=1, max_size=6), st.randoms())
def test_merging__any_order_and_any_repetition__ends_alike(rows: list[Item], draw: random.Random) -> None:
    def folded(given: list[Item]) -> Item | None:
        result: Item | None = None
        for row in given:
            result = merged(result, row)
        return result

    shuffled = rows + rows
    draw.shuffle(shuffled)

    assert folded(rows) == folded(shuffled) == max(rows, key=rank)


def test_merging__later_epoch__wins_over_later_window_and_version() -> None:
    old = {**ROW, EPOCH: 1, WRITER: EAST, "version": 99, "window_end": instant(10**6)}
    new = {**ROW, EPOCH: 2, WRITER: WEST}

    assert merged(old, new) is new
    assert merged({**new, "window_end": instant(300_000)}, {**new, "version": 9})["version"] == 1  # type: ignore[index]


def test_replica__row_changes_meanwhile__is_not_overwritten_by_older(rig: Rig) -> None:
    replica = Replica(rig.store)
    assert replica.take(SIGNAL_STATE, {**ROW, EPOCH: 1, WRITER: EAST})
    assert not replica.take(SIGNAL_STATE, {**ROW, EPOCH: 1, WRITER: EAST})
    assert replica.take(SIGNAL_STATE, {**ROW, EPOCH: 2, WRITER: WEST})
    assert not replica.take(SIGNAL_STATE, {**ROW, EPOCH: 1, WRITER: EAST, "version": 7})

    assert rig.store.get(SIGNAL_STATE, KEY) == {**ROW, EPOCH: 2, WRITER: WEST}


# Two regions.


class Region:
    """A region: its data, its clock, its fence, and the keeper of its lease."""

    def __init__(self, name: str, folder: Path, world: World, seconds_off: float) -> None:
        folder.mkdir()
        self.name = name
        self.world = world
        self.is_cut_off = False
        self.store: SqliteStore = open_sqlite(folder, clock=world.clock, synchronous=Synchronous.NORMAL)
        clock = SkewedClock(world.clock, seconds_off)
        self.fence = Fence(self.store, name, clock)
        lease = WriterLease(world.authority, clock)
        self.keeper = LeaseKeeper(world.authority, lease, self.fence, name, EAST)
        self.replica = Replica(self.store)
        # Rows that are on their way here, with the moment from which on they may arrive.
        self.arriving: list[tuple[float, Item]] = []

    def write(self, key: Key) -> None:
        """Refresh a signal as an engine does: read, then compare and swap. Accepted rows are on the record."""
        current = self.store.get(SIGNAL_STATE, key, consistent=True)
        version = 1 if current is None else current["version"] + 1
        row = {
            "PK": key.partition, "SK": key.sort, "version": version,
            "window_end": instant(round(1000 * self.world.clock.seconds())), "score": self.world.draw.random(),
        }  # fmt: skip
        self.commit(self.fence.fence_writes([Put(SIGNAL_STATE, row, _at(current))]))

    def commit(self, writes: Any) -> None:
        self.store.transact(writes)
        self.world.committed(self, dict(writes[0].item))

    def contents(self) -> dict[Key, Item]:
        pages = [self.store.query(Query(table=SIGNAL_STATE, partition=urn)) for urn in self.world.urns]
        return {SIGNAL_STATE.key_of(item): item for page in pages for item in page.items}


def _at(current: Item | None) -> Any:
    return absent() if current is None else version_is(current["version"])


class World:
    """Two regions, an authority in a third, three observers, and a network that loses its way."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.draw = random.Random(seed)
        self.clock = VirtualClock()
        self.urns = [f"urn:dp:sim:d{number}" for number in range(4)]
        (folder / "authority").mkdir()
        self.authority = open_sqlite(folder / "authority", clock=self.clock, synchronous=Synchronous.NORMAL)
        self.regions = {
            EAST: Region(EAST, folder / "east", self, self.draw.uniform(-2, 2)),
            WEST: Region(WEST, folder / "west", self, self.draw.uniform(-2, 2)),
        }
        self.accepted: list[Item] = []
        self.refused = 0
        self.zombies: list[tuple[Region, Any]] = []
        self.traffic: list[str] = []
        self.reports: dict[str, dict[str, ProbeReport]] = {EAST: {}, WEST: {}}
        lease = WriterLease(self.authority, self.clock)
        policy = FailoverPolicy(cooldown_seconds=120, calm_seconds=60)
        self.failover = Failover(
            self.authority, self.clock, lease, regions=(EAST, WEST), policy=policy, move_traffic=self.traffic.append
        )
        self.reasons: set[str] = set()

    def close(self) -> None:
        for region in self.regions.values():
            region.store.close()
        self.authority.close()

    def committed(self, region: Region, row: Item) -> None:
        self.accepted.append(row)
        other = self.regions[WEST if region.name == EAST else EAST]
        for _ in range(self.draw.choice([1, 1, 1, 2, 3])):
            other.arriving.append((self.clock.seconds() + self.draw.uniform(0, 8), row))

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self.clock.advance(1)
            self._tick()
            writers = [region.name for region in self.regions.values() if region.fence.is_open()]
            assert len(writers) <= 1, f"two writers: {writers}"

    def _tick(self) -> None:
        now = int(self.clock.monotonic())
        for region in self.regions.values():
            if now % 10 == 0 and not region.is_cut_off:
                region.keeper.keep()
            for _ in range(self.draw.randrange(3)):
                self._attempt(region)
            if not any(each.is_cut_off for each in self.regions.values()):
                self._deliver(region)
        if now % 10 == 5:
            self._observe()
            self.reasons.add(self.failover.evaluate(self.reports).reason)

    def _attempt(self, region: Region) -> None:
        key = Key(self.draw.choice(self.urns), "FRESHNESS")
        try:
            if self.draw.random() < 0.05 and region.fence.is_open():
                # It would win over everything if epochs did not count.
                row = {"PK": key.partition, "SK": key.sort, "version": 10**6, "window_end": ZOMBIE}
                self.zombies.append((region, region.fence.fence_writes([Put(SIGNAL_STATE, row)])))
            region.write(key)
        except StoreBusyError:
            self.refused += 1
        except ConflictError:
            # The row came from elsewhere meanwhile, or the epoch has passed.
            self.refused += 1

    def _deliver(self, region: Region) -> None:
        due = [row for at, row in region.arriving if at <= self.clock.seconds()]
        region.arriving = [entry for entry in region.arriving if entry[0] > self.clock.seconds()]
        self.draw.shuffle(due)
        for row in due:
            region.replica.take(SIGNAL_STATE, row)
        for other in self.regions.values():
            epoch = known_epoch(other.store)
            if epoch is not None:
                region.replica.learn_epoch(*epoch)

    def _observe(self) -> None:
        now_ms = round(1000 * self.clock.seconds())
        for name, region in self.regions.items():
            for observer in ("o1", "o2", "o3"):
                earlier = self.reports[name].get(observer, ProbeReport(0, 0))
                # The third observer is wrong every now and then.
                is_wrong = observer == "o3" and self.draw.random() < 0.3
                failures = earlier.failures + 1 if region.is_cut_off is not is_wrong else 0
                self.reports[name][observer] = ProbeReport(failures, now_ms)


@pytest.mark.parametrize("seed", range(3))
def test_two_regions__outages_partitions_and_a_failback__one_writer_and_equal_copies(tmp_path: Path, seed: int) -> None:
    with closing(World(tmp_path, seed)) as world:
        east, west = world.regions[EAST], world.regions[WEST]
        world.run(60)
        assert east.fence.is_open()

        east.is_cut_off = True
        world.run(200)
        assert west.fence.is_open()
        assert not east.fence.is_open()
        written_under_2 = {SIGNAL_STATE.key_of(row) for row in world.accepted if row[EPOCH] == 2}
        assert written_under_2

        # A writer in the lost region finishes its write under the old epoch, which that region does not know is over.
        zombies = [(region, writes) for region, writes in world.zombies if region is east]
        east.commit(zombies[0][1])
        assert SIGNAL_STATE.key_of(zombies[0][1][0].item) in written_under_2
        east.is_cut_off = False
        world.run(60)
        for region, writes in zombies[1:]:
            with pytest.raises(ConflictError):
                region.store.transact(writes)
        assert world.failover.state().failovers == 1, "one outage, one failover"
        assert world.traffic == [WEST]

        # It stays where it is until people want it back.
        world.run(200)
        assert west.fence.is_open()
        assert world.failover.fail_back(world.reports, lag_seconds=0).move_to is None, "the lease is given up first"
        world.run(60)
        assert east.fence.is_open()
        assert world.failover.state().active == EAST
        world.run(130)

        # A second outage is another matter, and has its own failover.
        east.is_cut_off = True
        world.run(200)
        east.is_cut_off = False
        world.run(40)
        assert world.failover.state().failovers == 2
        assert world.traffic == [WEST, EAST, WEST]

        for region in world.regions.values():
            region.keeper.keep = lambda: False  # type: ignore[method-assign]
            region.fence.leave()
        world.run(30)
        assert all(not region.arriving for region in world.regions.values())
        copies_east, copies_west = east.contents(), west.contents()

    assert copies_east == copies_west, "healed, both are equal"
    assert all(row["window_end"] != ZOMBIE for row in copies_east.values()), "nothing of a past epoch survives a later"
    best: dict[Key, Item] = {}
    for row in world.accepted:
        key = SIGNAL_STATE.key_of(row)
        best[key] = row if key not in best else max(best[key], row, key=rank)
    assert copies_east == best, "what stays is the greatest of what was accepted, and nothing that was refused"
    assert world.refused > 100, "both regions tried to write all the time"
    assert {row[EPOCH] for row in world.accepted} == {1, 2, 3, 4}


def test_two_regions__authority_out_of_reach__the_writer_stops_in_time(tmp_path: Path) -> None:
    with closing(World(tmp_path, 1)) as world:
        world.run(30)
        assert world.regions[EAST].fence.is_open()
        world.authority.close()
        with pytest.raises(HeadgateError):
            world.regions[EAST].keeper.keep()

        world.clock.advance(60)

        assert not world.regions[EAST].fence.is_open()
