"""Tolerated failures: how many there may be, and what happens once there are more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.errors import DefinitionError
from headgate.fanout.core.maintenance import FanoutMaintenance
from headgate.fanout.model.counts import Counts, final_status
from headgate.fanout.model.events import EVENT_PREFIX
from headgate.fanout.model.rows import Policy
from headgate.fanout.model.states import Disposition, FanoutStatus
from headgate.fanout.model.tolerance import exceeded_reason
from headgate.fanout.repair.auto_heal import Healer
from headgate.fanout.repair.redrive import ChunkSelection, Redriver
from headgate.store.catalogue.tables import FANOUT
from headgate.store.model.requests import Query, Range, Sort
from tests.integration.fanout.worlds import RUN, CrashError, World
from tests.unit.fanout.made_rows import made_fanout


@pytest.fixture(params=[1, 4], ids=["one counter", "four counters"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "world", shards=request.param)
    yield made
    made.check()
    made.close()


def _chunk(number: int) -> str:
    return f"chunk-{number:07d}"


def _events(world: World) -> list[str]:
    sort = Sort(Range.BEGINS_WITH, EVENT_PREFIX)
    found = world.sqlite.query(Query(table=FANOUT, partition=RUN, sort=sort, consistent=True)).items
    return [item["kind"] for item in found]


@pytest.mark.parametrize(
    ("policy", "counts", "reason"),
    [
        (Policy(), Counts(total=9, dead=9), None),
        (Policy(tolerated_failures=2), Counts(total=9, dead=1, quarantined=1), None),
        (
            Policy(tolerated_failures=2),
            Counts(total=9, dead=1, quarantined=1, slow_dead=1),
            "3 chunks failed, and 2 are tolerated",
        ),
        (Policy(tolerated_failures=0), Counts(total=9, dead=1), "1 chunk failed, and 0 are tolerated"),
        # 0.29 times 100 is a little less than 29.
        (Policy(tolerated_failure_share=0.29), Counts(total=100, dead=29), None),
        (
            Policy(tolerated_failure_share=0.29),
            Counts(total=100, dead=30),
            "30 of 100 chunks failed, and 29 % are tolerated",
        ),
        (Policy(tolerated_failures=50, tolerated_failure_share=0.1), Counts(total=100, dead=11), "11 of 100 chunks"),
        (
            Policy(tolerated_failures=5, each=True),
            Counts(total=2, done=2, items_total=40, items_failed=6),
            "6 items failed, and 5 are tolerated",
        ),
    ],
)
def test_exceeded__count_and_share__say_what_is_too_much(policy: Policy, counts: Counts, reason: str | None) -> None:
    found = exceeded_reason(policy, counts.failures(policy), is_split=True)

    assert (found is None) == (reason is None)
    assert (found or "").startswith(reason or "")


def test_exceeded__share_of_what_is_still_split__is_not_known() -> None:
    policy = Policy(tolerated_failure_share=0.1)

    assert exceeded_reason(policy, Counts(total=5, dead=5).failures(policy), is_split=False) is None


@pytest.mark.parametrize(
    ("numbers", "status"),
    [
        ({"done": 8, "dead": 1}, FanoutStatus.SUCCEEDED),
        ({"done": 7, "dead": 2}, FanoutStatus.SUCCEEDED),
        ({"done": 6, "dead": 3}, FanoutStatus.FAILED),
        ({"done": 8, "deferred": 1, "slow_total": 1, "slow_dead": 1}, FanoutStatus.SUCCEEDED),
        ({"done": 8, "deferred": 1, "slow_total": 1, "slow_running": 1}, FanoutStatus.PARTIAL),
        ({"done": 8, "cancelled": 1}, FanoutStatus.PARTIAL),
        ({"done": 9, "items_failed": 1}, FanoutStatus.PARTIAL),
    ],
)
def test_verdict__two_failures_are_tolerated__succeeds_with_two_and_fails_with_three(
    numbers: dict[str, int], status: FanoutStatus
) -> None:
    fanout = made_fanout(Policy(tolerated_failures=2))

    assert final_status(fanout, Counts(total=9, **numbers)) is status


def test_failures__within_the_limit__it_ends_as_succeeded(world: World) -> None:
    world.split(5, max_attempts=1, tolerated_failures=1)
    world.kill(_chunk(0))
    for number in range(1, 5):
        world.complete(_chunk(number))

    assert world.tend().status is FanoutStatus.SUCCEEDED


def test_failures__beyond_the_limit__it_fails_and_the_rest_is_cancelled(world: World) -> None:
    world.split(6, max_attempts=1, tolerated_failures=1)
    running = world.claim(_chunk(5))
    world.kill(_chunk(0), _chunk(1))

    stopped = world.tend()

    assert stopped.cancelled_at == stopped.exceeded_at is not None
    assert stopped.reason == "2 chunks failed, and 1 is tolerated"
    assert not stopped.is_finished
    assert world.tracker.heartbeat(running).fanout.cancelled_at is not None

    world.tracker.release(running)
    world.tend()
    ended = world.tend()

    assert ended.status is FanoutStatus.FAILED
    assert world.counts().cancelled == 4
    assert _events(world) == ["stopped: too many failures", "ended as FAILED"]


def test_failures__beyond_the_limit_with_pause__waits_for_a_person_and_then_goes_on(world: World) -> None:
    world.split(4, max_attempts=1, tolerated_failure_share=0.25, failures_action="pause")
    world.kill(_chunk(0), _chunk(1))

    paused = world.tend()

    assert paused.paused_at == paused.exceeded_at is not None
    assert paused.reason == "2 of 4 chunks failed, and 25 % are tolerated"

    world.control.resume(RUN)
    assert world.tend().paused_at is None
    world.complete(_chunk(2))
    world.complete(_chunk(3))
    assert world.tend().status is FanoutStatus.FAILED
    assert _events(world) == ["paused: too many failures", "resumed", "ended as FAILED"]


def test_failures__limit_raised_while_paused__is_judged_by_the_new_one(world: World) -> None:
    world.split(6, max_attempts=1, tolerated_failures=0, failures_action="pause")
    world.kill(_chunk(0))
    assert world.tend().paused_at is not None

    world.control.tune(RUN, tolerated_failures=2)
    world.control.resume(RUN)
    resumed = world.tend()
    # The reason was that of the old limit.
    assert (resumed.paused_at, resumed.reason) == (None, None)
    world.kill(_chunk(1), _chunk(2))

    assert world.tend().paused_at is not None


def test_failures__redriven_and_done__it_succeeds(world: World) -> None:
    world.split(4, max_attempts=1, tolerated_failures=0)
    world.kill(_chunk(0))
    world.tend()
    assert world.tend().status is FanoutStatus.FAILED

    Redriver(world.sqlite, world.clock, world.ids).redrive(RUN, ChunkSelection(all=True))
    reopened = world.fanout()
    assert (reopened.exceeded_at, reopened.cancelled_at, reopened.reason) == (None, None, None)
    for number in range(4):
        world.complete(_chunk(number))

    assert world.tend().status is FanoutStatus.SUCCEEDED


def test_failures__dead_chunks_that_are_healed__do_not_count(world: World) -> None:
    world.split(3, max_attempts=1, tolerated_failures=0, heal_redrives_max=1)
    healer = Healer(world.sqlite, world.clock, world.ids)

    def heal(fanout: Any) -> int:
        return healer.heal(fanout.run_id).healed

    maintenance = FanoutMaintenance(world.sqlite, world.clock, world.ids, heal=heal)
    world.kill(_chunk(0))
    maintenance.chunk_ended(RUN)
    assert world.fanout().exceeded_at is None

    maintenance.maintain(RUN)
    assert world.row(_chunk(0)).disposition is Disposition.QUEUED
    world.kill(_chunk(0))
    maintenance.maintain(RUN)

    assert world.fanout().exceeded_at is not None


@pytest.mark.parametrize("is_applied", [False, True])
def test_failures__process_dies_at_the_decision__it_is_made_once(world: World, is_applied: bool) -> None:
    world.split(6, max_attempts=1, tolerated_failures=0)
    world.kill(_chunk(0))
    world.crashing.crash_at, world.crashing.is_applied = world.crashing.writes + 1, is_applied
    with pytest.raises(CrashError):
        FanoutMaintenance(world.store, world.clock, world.ids).maintain(RUN)

    for _ in range(3):
        world.clock.advance(5)
        world.tend()

    assert world.fanout().status is FanoutStatus.FAILED
    assert _events(world) == ["stopped: too many failures", "ended as FAILED"]


@pytest.mark.parametrize(
    ("policy", "field"),
    [
        ({"tolerated_failures": -1}, "tolerated_failures"),
        ({"tolerated_failure_share": 1.5}, "tolerated_failure_share"),
        ({"failures_action": "shrug"}, "failures_action"),
    ],
)
def test_split__limit_out_of_range__names_the_field(world: World, policy: dict[str, Any], field: str) -> None:
    with pytest.raises(DefinitionError, match=f"{field} is .*: it must be"):
        world.split(2, **policy)
    world.split(1)
