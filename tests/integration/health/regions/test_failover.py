"""Failover: who must agree, that it happens once for each outage, and that a crash in the middle is made good."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from headgate.clock import VirtualClock
from headgate.errors import IllegalTransitionError
from headgate.health.regions.failover import (
    Failover,
    FailoverDecision,
    FailoverMove,
    FailoverPhase,
    FailoverPolicy,
    FailoverState,
    ProbeReport,
    RegionVerdict,
)
from headgate.health.regions.failover import verdict as verdict_of
from headgate.health.regions.regions import WriterLease
from headgate.store.sqlite.store import Synchronous
from tests.stores import open_sqlite

EAST, WEST = "us-east-1", "us-west-2"
POLICY = FailoverPolicy()


class CrashError(Exception):
    """The process is gone."""


class Rig:
    def __init__(self, folder: Path) -> None:
        self.clock = VirtualClock()
        self.authority = open_sqlite(folder, clock=self.clock, synchronous=Synchronous.NORMAL)
        self.lease = WriterLease(self.authority, self.clock)
        self.moved: list[str] = []
        self.moves: list[FailoverState] = []
        self.crash_at_traffic = False
        self.failover = self.another()
        self.down: dict[str, int] = {EAST: 0, WEST: 0}

    def another(self) -> Failover:
        return Failover(
            self.authority, self.clock, self.lease,
            regions=(EAST, WEST), move_traffic=self._move, on_moved=self.moves.append,
        )  # fmt: skip

    def close(self) -> None:
        self.authority.close()

    def _move(self, region: str) -> None:
        if self.crash_at_traffic:
            raise CrashError
        self.moved.append(region)

    def reports(self) -> dict[str, dict[str, ProbeReport]]:
        """Of three observers, as many find a region down as `down` says."""
        now_ms = round(1000 * self.clock.seconds())
        return {
            region: {f"o{number}": ProbeReport(3 if number < down else 0, now_ms) for number in range(3)}
            for region, down in self.down.items()
        }

    def look(self, times: int = 1) -> FailoverDecision:
        for _ in range(times):
            self.clock.advance(30)
            decision = self.failover.evaluate(self.reports())
        return decision


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with closing(Rig(tmp_path)) as rig:
        yield rig


@pytest.mark.parametrize(
    ("failures", "said"),
    [
        ((3, 3, 0), RegionVerdict.DOWN),
        ((3, 3, 3), RegionVerdict.DOWN),
        ((3, 2, 2), RegionVerdict.UNSURE),
        ((3, 0, 0), RegionVerdict.UP),
        ((0, 0, 0), RegionVerdict.UP),
        ((1, 1, 0), RegionVerdict.UNSURE),
        ((3, 0), RegionVerdict.UNSURE),
        ((), RegionVerdict.UNSURE),
    ],
)
def test_verdict__is_that_of_a_quorum(failures: tuple[int, ...], said: RegionVerdict) -> None:
    reports = {str(number): ProbeReport(count, 0) for number, count in enumerate(failures)}

    assert verdict_of(reports, POLICY, 0) is said


def test_verdict__old_reports__say_nothing() -> None:
    reports = {"o1": ProbeReport(9, 0), "o2": ProbeReport(9, 0), "o3": ProbeReport(9, 60_000)}

    assert verdict_of(reports, POLICY, 90_000) is RegionVerdict.DOWN
    assert verdict_of(reports, POLICY, 90_001) is RegionVerdict.UNSURE


def test_failover__one_observer_alone__moves_nothing(rig: Rig) -> None:
    rig.down[EAST] = 1

    assert rig.look(20).move_to is None
    assert rig.moved == []


def test_failover__outage__happens_once_however_often_it_is_looked_at(rig: Rig) -> None:
    rig.lease.hold(EAST)
    rig.down[EAST] = 3
    assert "lease has not expired yet" in rig.look().reason
    assert rig.look(100).move_to is None

    state = rig.failover.state()
    assert (state.active, state.failovers, state.latched_for) == (WEST, 1, EAST)
    assert rig.moved == [WEST]
    assert [result.active for result in rig.moves] == [WEST]
    lease = rig.lease.read()
    assert lease is not None
    assert (lease.region, lease.epoch) == (WEST, 2)


def test_failover__several_controllers__one_acts(rig: Rig) -> None:
    rig.down[EAST] = 2
    others = [rig.another() for _ in range(3)]

    for _ in range(10):
        rig.clock.advance(30)
        for controller in [rig.failover, *others]:
            controller.evaluate(rig.reports())

    assert rig.moved == [WEST]
    assert rig.failover.state().failovers == 1


def test_failover__nowhere_to_go__stays(rig: Rig) -> None:
    rig.down = {EAST: 3, WEST: 2}

    assert "no region to move to" in rig.look().reason
    assert rig.failover.state().active == EAST


def test_failover__the_other_region_fails_too__is_left_to_people(rig: Rig) -> None:
    rig.down[EAST] = 3
    rig.look(2)
    rig.down[WEST] = 3

    assert "a person must decide" in rig.look(100).reason
    assert rig.moved == [WEST]


def test_failover__second_outage_after_calm__has_its_own(rig: Rig) -> None:
    rig.down[EAST] = 3
    rig.look(2)
    rig.down[EAST] = 0
    rig.look(40)
    rig.down[WEST] = 3
    rig.clock.advance(60)

    assert rig.look(3).state.active == EAST
    assert rig.failover.state().failovers == 2


def test_failover__failed_region_flaps__keeps_the_latch(rig: Rig) -> None:
    rig.down[EAST] = 3
    rig.look(2)
    for _ in range(10):
        rig.down[EAST] = 0
        rig.look(20)
        rig.down[EAST] = 3
        rig.look(1)

    assert rig.failover.state().latched_for == EAST


def test_failover__crash_after_the_lease_moved__is_carried_on_by_the_next(rig: Rig) -> None:
    rig.down[EAST] = 3
    rig.crash_at_traffic = True
    with pytest.raises(CrashError):
        rig.look()
    assert rig.failover.state().phase is FailoverPhase.MOVING
    rig.crash_at_traffic = False
    # Even if the region looks well again: half of a move is worse than a whole one.
    rig.down[EAST] = 0
    rig.failover = rig.another()

    rig.look()

    state = rig.failover.state()
    assert (state.active, state.phase, state.failovers) == (WEST, FailoverPhase.STEADY, 1)
    assert rig.moved == [WEST]


def test_drill__reports_what_would_happen_and_does_nothing(rig: Rig) -> None:
    decision = rig.failover.drill(rig.reports())

    assert decision.move_to == WEST
    assert decision.state.move is FailoverMove.FAILOVER
    assert (rig.moved, rig.lease.read(), rig.failover.state().version) == ([], None, 0)

    rig.down[WEST] = 3
    assert rig.failover.drill(rig.reports()).move_to is None


def test_failback__too_early__says_all_that_is_missing(rig: Rig) -> None:
    with pytest.raises(IllegalTransitionError, match="us-east-1 is the writer already"):
        rig.failover.fail_back(rig.reports(), 0)
    rig.down[EAST] = 3
    rig.look(2)

    with pytest.raises(IllegalTransitionError, match=r"is not UP; .*was not healthy.*just moved; .*30 s behind"):
        rig.failover.fail_back(rig.reports(), 30)
    assert rig.failover.state().phase is FailoverPhase.STEADY


def test_failback__home_is_well_and_caught_up__moves_home(rig: Rig) -> None:
    rig.down[EAST] = 3
    rig.look(2)
    rig.down[EAST] = 0
    rig.look(60)

    assert rig.failover.fail_back(rig.reports(), 1).move_to == EAST

    state = rig.failover.state()
    assert (state.active, state.failovers, state.latched_for) == (EAST, 1, None)
    assert rig.moved == [WEST, EAST]
