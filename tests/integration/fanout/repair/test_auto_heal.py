"""Healing: what the policy does about dead chunks, and that it comes to an end by itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from headgate.errors import DefinitionError
from headgate.fanout.core.attempts import AttemptFailure, AttemptResult
from headgate.fanout.core.maintenance import FanoutMaintenance
from headgate.fanout.local.claims import Claims
from headgate.fanout.model.rows import MAIN_LANE, SLOW_LANE, Chunk, Fanout, Policy, run_key
from headgate.fanout.model.sources import LinesSource
from headgate.fanout.model.states import Disposition, FanoutStatus
from headgate.fanout.repair import auto_heal
from headgate.fanout.repair.auto_heal import HealAction, HealDecision, Healer, heal_decision
from headgate.store.catalogue.tables import FANOUT
from tests.integration.fanout.worlds import RUN, World, crash_everywhere, once

FIRST = "chunk-0000000"


class Rig(World):
    def __init__(self, folder: Path, *, shards: int = 1) -> None:
        super().__init__(folder, shards=shards)
        self.healer = Healer(self.store, self.clock, self.ids, draw=lambda: 0.0)
        self.maintenance = FanoutMaintenance(
            self.sqlite,
            self.clock,
            self.ids,
            heal=lambda fanout: self.healer.heal(fanout.run_id).healed,
            draw=lambda: 0.0,
        )
        self.sent: list[str] = []
        # Which items fail, and in the main lane alone.
        self.bad: set[int] = set()
        self.slow: set[int] = set()

    def send(self, fanout: Fanout) -> Fanout:
        self.sent.append(fanout.run_id)
        return fanout

    def work(self) -> int:
        """Have both lanes do what is due, and return how many chunks that was."""
        done = 0
        for lane in (MAIN_LANE, SLOW_LANE):
            claims = Claims(self.sqlite, self.clock, self.ids, worker=lane, lane=lane, draw=lambda: 0.0)
            for claim in claims.take(1000, {}):
                done += 1
                own = set(range(claim.chunk.start, claim.chunk.start + claim.chunk.items))
                if own & self.bad:
                    self.tracker.fail(claim, AttemptFailure("ValueError", "bad item"))
                elif lane == MAIN_LANE and own & self.slow:
                    self.tracker.fail(claim, AttemptFailure("TIMEOUT", "too slow"))
                else:
                    self.tracker.complete(claim, AttemptResult())
        return done

    def work_to_the_end(self, rounds_max: int = 200) -> Fanout:
        for _ in range(rounds_max):
            self.work()
            self.check()
            self.tend()
            self.check()
            if self.fanout().is_finished:
                return self.fanout()
            self.clock.advance(1000)
        pytest.fail("it goes on for ever")


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with closing(Rig(tmp_path)) as rig:
        yield rig
        rig.check()


# The decision.


def dead(*, lane: str = "chunk", **values: Any) -> Chunk:
    chunk = Chunk(
        run_id=RUN,
        sk=f"{'CHUNK' if lane == 'chunk' else 'SLOW'}#{lane}-0000005",
        status=Disposition.DEAD.status,
        disposition=Disposition.DEAD,
        created_at="2026-01-01T00:00:00.000Z",
        start=5,
        items=4,
        token="t",
        error_class="TIMEOUT",
    )
    return replace(chunk, **values)


@pytest.mark.parametrize(
    ("chunk", "policy", "expected"),
    [
        (dead(), Policy(), None),
        (
            dead(),
            Policy(heal_redrives_max=2),
            HealDecision(HealAction.RETRY, "it died of TIMEOUT: it is retried (1 of 2)"),
        ),
        (
            dead(heals=1),
            Policy(heal_redrives_max=2),
            HealDecision(HealAction.RETRY, "it died of TIMEOUT: it is retried (2 of 2)"),
        ),
        (dead(heals=2), Policy(heal_redrives_max=2), None),
        (dead(), Policy(heal_redrives_max=1, heal_on=("OOM",)), None),
        (
            dead(error_class="urllib3.ReadTimeout"),
            Policy(heal_redrives_max=1, heal_on=("ReadTimeout", "OOM")),
            HealDecision(HealAction.RETRY, "it died of urllib3.ReadTimeout: it is retried (1 of 1)"),
        ),
        (dead(error_class=None), Policy(heal_redrives_max=1, heal_on=("OOM",)), None),
        (
            dead(),
            Policy(heal_redrives_max=1, heal_action="slow-lane"),
            HealDecision(HealAction.SLOW_LANE, "it died of TIMEOUT: the slow lane runs it (1 of 1)"),
        ),
        (
            dead(lane="slow"),
            Policy(heal_redrives_max=1, heal_action="slow-lane"),
            HealDecision(HealAction.RETRY, "it died of TIMEOUT: it is retried (1 of 1)"),
        ),
        (
            dead(heals=7),
            Policy(heal_redrives_max=1, heal_action="split"),
            HealDecision(HealAction.SPLIT, "it died of TIMEOUT: its 4 items are split in two, and both halves run"),
        ),
        (
            dead(items=1),
            Policy(heal_redrives_max=1, heal_action="split"),
            HealDecision(HealAction.SPLIT, "it died of TIMEOUT: item 5 is the one that fails, and is quarantined"),
        ),
        (
            dead(lane="slow"),
            Policy(heal_redrives_max=1, heal_action="split"),
            HealDecision(HealAction.RETRY, "it died of TIMEOUT: it is retried (1 of 1)"),
        ),
        (
            dead(error_class=None),
            Policy(heal_redrives_max=1, heal_action="quarantine"),
            HealDecision(HealAction.QUARANTINE, "it died of an unknown error: it is quarantined"),
        ),
        (dead(disposition=Disposition.QUARANTINED), Policy(heal_redrives_max=1), None),
        (dead(disposition=Disposition.CANCELLED), Policy(heal_redrives_max=1), None),
    ],
)
def test_remedy__for_a_chunk_and_a_policy__is_this(chunk: Chunk, policy: Policy, expected: HealDecision | None) -> None:
    assert heal_decision(chunk, policy) == expected


def test_remedy__an_action_that_is_none__is_refused_with_those_there_are() -> None:
    with pytest.raises(DefinitionError, match="'pray': choose from retry, slow-lane, split, quarantine"):
        heal_decision(dead(), Policy(heal_redrives_max=1, heal_action="pray"))


# Doing it.


def test_heal__dry__says_a_sentence_for_each_chunk_and_does_nothing(rig: Rig) -> None:
    rig.split(3, max_attempts=1, heal_redrives_max=1, heal_on=("TIMEOUT",))
    rig.kill(FIRST, error_class="TIMEOUT")
    rig.kill("chunk-0000001", error_class="ValueError")
    before = rig.snapshot()

    healed = rig.healer.heal(RUN, dry_run=True)

    assert (healed.is_dry_run, healed.healed, healed.left) == (True, 1, 1)
    assert [(one.chunk_id, one.action, one.reason) for one in healed.treated] == [
        (FIRST, HealAction.RETRY, "it died of TIMEOUT: it is retried (1 of 1)")
    ]
    assert rig.snapshot() == before


def test_heal__retry__has_all_tries_again_after_a_longer_pause_each_time(rig: Rig) -> None:
    rig.split(1, max_attempts=2, heal_redrives_max=2, backoff_seconds=10.0, backoff_factor=2.0)
    pauses = []
    for heals in (1, 2):
        rig.kill(FIRST)
        now_ms = rig.queries.now_ms()

        assert rig.healer.heal(RUN).healed == 1

        chunk = rig.row(FIRST)
        assert (chunk.disposition, chunk.heals, chunk.redrives) == (Disposition.QUEUED, heals, 0)
        assert chunk.attempt == chunk.tried == 2 * heals
        pauses.append(int((chunk.queue_sk or "").partition("#")[0]) - now_ms)
    assert pauses == [20_000, 40_000]
    rig.kill(FIRST)

    healed = rig.healer.heal(RUN)

    assert (healed.healed, healed.left) == (0, 1)
    assert rig.row(FIRST).disposition is Disposition.DEAD


def test_heal__retry__what_was_a_passing_trouble_succeeds(rig: Rig) -> None:
    rig.split(6, size=2, max_attempts=2, heal_redrives_max=1)
    rig.bad = {3}
    while rig.row("chunk-0000002").disposition is not Disposition.DEAD:
        rig.work()
        rig.clock.advance(1000)
    rig.bad = set()

    assert rig.work_to_the_end().status is FanoutStatus.SUCCEEDED


def test_heal__retry__what_stays_broken_ends(rig: Rig) -> None:
    rig.split(6, size=2, max_attempts=2, heal_redrives_max=3)
    rig.bad = {3}

    ended = rig.work_to_the_end()

    chunk = rig.row("chunk-0000002")
    assert ended.status is FanoutStatus.PARTIAL
    assert (chunk.attempt, chunk.heals) == (8, 3)


def test_heal__slow_lane__is_tried_once_by_the_workers_of_the_slow_lane(rig: Rig) -> None:
    rig.split(4, size=2, max_attempts=3, heal_redrives_max=2, heal_action="slow-lane", heal_on=("TIMEOUT",))
    rig.kill(FIRST, error_class="TIMEOUT")

    assert [one.action for one in rig.healer.heal(RUN).treated] == [HealAction.SLOW_LANE]

    rig.clock.advance(1000)
    assert rig.row(FIRST).queue_pk == f"{RUN}#slow"
    assert [chunk.chunk_id for chunk in rig.queries.queued(RUN, MAIN_LANE)] == ["chunk-0000002"]
    counts = rig.counts()
    assert (counts.queued, counts.slow_total) == (2, 0), "it is still a chunk of the main lane"
    failed = rig.fail(FIRST, "TIMEOUT")
    assert failed.disposition is Disposition.DEAD, "one try"
    assert rig.healer.heal(RUN).healed == 1
    assert rig.fail(FIRST, "TIMEOUT").disposition is Disposition.DEAD
    assert rig.healer.heal(RUN).left == 1


def test_heal__slow_lane__what_only_needed_longer_succeeds(rig: Rig) -> None:
    rig.split(20, size=2, max_attempts=1, heal_redrives_max=1, heal_action="slow-lane", heal_on=("TIMEOUT",))
    rig.slow = {7, 12}

    assert rig.work_to_the_end().status is FanoutStatus.SUCCEEDED
    assert rig.row("chunk-0000006").worker == SLOW_LANE


def test_heal__slow_lane_of_a_queue__is_a_retry_for_there_is_none(rig: Rig) -> None:
    rig.split(2, max_attempts=1, queue_url="https://sqs/q", heal_redrives_max=1, heal_action="slow-lane")
    rig.kill(FIRST)
    rig.healer = Healer(rig.store, rig.clock, rig.ids, send=rig.send, draw=lambda: 0.0)

    healed = rig.healer.heal(RUN)

    assert [one.action for one in healed.treated] == [HealAction.RETRY]
    assert rig.sent == [RUN]
    chunk = rig.row(FIRST)
    assert (chunk.disposition, chunk.queue_pk, chunk.tried) == (Disposition.WAITING, None, 1)


@pytest.mark.parametrize("action", ["retry", "split"])
def test_heal__a_queue_and_no_one_to_send__leaves_the_chunks_waiting_for_the_caller_that_can(
    rig: Rig, action: str
) -> None:
    rig.split(2, size=2, max_attempts=1, queue_url="https://sqs/q", heal_redrives_max=1, heal_action=action)
    rig.kill(FIRST)

    assert rig.healer.heal(RUN).healed == 1
    assert set(rig.dispositions().values()) == {"WAITING"}
    rig.healer = Healer(rig.store, rig.clock, rig.ids, send=rig.send, draw=lambda: 0.0)
    assert rig.healer.heal(RUN).healed == 0
    assert rig.sent == [RUN]


@pytest.mark.parametrize("bad", [{0}, {499}, {250}, {17, 18}, {3, 333, 499}])
def test_heal__split__finds_the_bad_items_by_itself(rig: Rig, bad: set[int]) -> None:
    rig.split(500, size=100, max_attempts=2, heal_redrives_max=1, heal_action="split")
    rig.bad = bad

    ended = rig.work_to_the_end()

    aside = list(rig.queries.every_in_disposition(RUN, Disposition.QUARANTINED))
    assert {chunk.start for chunk in aside} == bad
    assert all(chunk.items == 1 for chunk in aside)
    errors = [msgspec.json.decode(chunk.item_errors or "") for chunk in aside]
    assert {key for one in errors for key in one} == set(map(str, bad))
    assert ended.status is FanoutStatus.PARTIAL
    counts = rig.counts()
    assert (counts.items_ok, counts.items_failed, counts.items_total) == (500 - len(bad), len(bad), 500)
    assert ended.chunks_total == counts.total


def test_heal__quarantine__puts_the_dead_aside(rig: Rig) -> None:
    rig.split(3, max_attempts=1, heal_redrives_max=1, heal_action="quarantine", heal_on=("ValueError",))
    rig.kill(FIRST)
    rig.kill("chunk-0000001", error_class="OOM")

    rig.healer.heal(RUN)

    assert list(rig.dispositions().values()) == ["QUARANTINED", "DEAD", "QUEUED"]
    rig.complete("chunk-0000002")
    assert rig.tend().status is FanoutStatus.PARTIAL


def test_heal__an_input_that_is_gone__is_named_and_the_others_are_healed(rig: Rig, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_text("a\nb\n")
    rig.split(LinesSource(path), max_attempts=1, heal_redrives_max=1)
    first, second = (chunk.chunk_id for chunk in rig.rows())
    rig.kill(first, second)
    rig.sqlite.update(FANOUT, rig.row(second).key, set={"input": '["b"]'})
    path.unlink()

    healed = rig.healer.heal(RUN)

    assert [one.chunk_id for one in healed.treated] == [second]
    assert [one.chunk_id for one in healed.refused] == [first]
    assert "No such file" in healed.refused[0].reason


def test_heal__split_of_an_input_that_is_gone__is_named(rig: Rig, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_text("a\nb\n")
    rig.split(LinesSource(path), 2, max_attempts=1, heal_redrives_max=1, heal_action="split")
    (chunk,) = rig.rows()
    rig.kill(chunk.chunk_id)
    path.unlink()

    healed = rig.healer.heal(RUN)

    assert (healed.healed, [one.chunk_id for one in healed.refused]) == (0, [chunk.chunk_id])


@pytest.mark.parametrize("action", ["retry", "split"])
def test_heal__a_chunk_that_was_redriven_meanwhile__is_overtaken(rig: Rig, action: str) -> None:
    rig.split(2, size=2, max_attempts=1, heal_redrives_max=1, heal_action=action)
    rig.kill(FIRST)
    other = Healer(rig.sqlite, rig.clock, rig.ids)
    rig.crashing.before_write = once(lambda: other.heal(RUN))

    healed = rig.healer.heal(RUN)

    assert (healed.healed, healed.overtaken) == (0, 1)
    assert rig.row(FIRST).heals == 1


def test_heal__while_it_is_being_cancelled__is_left_off_with_the_reason(rig: Rig) -> None:
    rig.split(2, max_attempts=1, heal_redrives_max=1)
    rig.kill(FIRST)
    rig.control.cancel(RUN)

    healed = rig.healer.heal(RUN)

    assert (healed.healed, healed.skipped_reason) == (
        0,
        "fan-out run: it is being cancelled; try again when it has ended",
    )


def test_heal__cancelled_just_before_the_write__is_left_off_with_the_reason(rig: Rig) -> None:
    rig.split(2, max_attempts=1, heal_redrives_max=1)
    rig.kill(FIRST)
    rig.crashing.before_write = once(lambda: rig.control.cancel(RUN))

    healed = rig.healer.heal(RUN)

    assert healed.healed == 0
    assert "it was cancelled meanwhile" in (healed.skipped_reason or "")
    assert rig.row(FIRST).disposition is Disposition.DEAD


def test_heal__a_policy_that_makes_no_sense__is_left_off_with_the_reason(rig: Rig) -> None:
    rig.split(2, max_attempts=1)
    text = msgspec.json.encode(Policy(max_attempts=1, heal_redrives_max=1, heal_action="pray")).decode()
    rig.sqlite.update(FANOUT, run_key(RUN), set={"policy": text})
    rig.kill(FIRST)

    healed = rig.healer.heal(RUN)

    assert (healed.healed, healed.unseen) == (0, 1)
    assert healed.skipped_reason == "heal_action is 'pray': choose from retry, slow-lane, split, quarantine"


def test_heal__quarantine_in_a_fanout_that_was_cancelled__leaves_it_cancelled(rig: Rig) -> None:
    rig.split(2, max_attempts=1, heal_redrives_max=1, heal_action="quarantine")
    rig.kill(FIRST)
    rig.control.cancel(RUN, reason="no more")
    rig.tend()

    assert rig.healer.heal(RUN).healed == 1

    ended = rig.tend()
    assert (ended.status, ended.reason, ended.counts["quarantined"]) == (FanoutStatus.CANCELLED, "no more", 1)


def test_heal__a_fanout_that_has_ended__by_hand_opens_it(rig: Rig) -> None:
    rig.split(1, max_attempts=1)
    rig.kill(FIRST)
    assert rig.tend().status is FanoutStatus.FAILED
    text = msgspec.json.encode(Policy(max_attempts=1, heal_redrives_max=1)).decode()
    rig.sqlite.update(FANOUT, run_key(RUN), set={"policy": text})

    rig.healer.heal(RUN)

    assert rig.fanout().status is FanoutStatus.RUNNING
    rig.complete(FIRST)
    assert rig.tend().status is FanoutStatus.SUCCEEDED


def test_heal__very_many__names_the_first_and_counts_all(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto_heal, "NAMED_MAX", 2)
    monkeypatch.setattr(auto_heal, "BATCH", 3)
    rig.split(8, max_attempts=1, heal_redrives_max=1)
    rig.kill(*(f"chunk-{number:07d}" for number in range(8)))

    healed = rig.healer.heal(RUN)

    assert (healed.healed, len(healed.treated)) == (8, 2)


@pytest.mark.parametrize("dry_run", [False, True])
def test_heal__a_chunk_that_an_index_does_not_show_yet__is_counted_as_unseen(rig: Rig, dry_run: bool) -> None:
    rig.split(4, max_attempts=1, heal_redrives_max=1, heal_on=("TIMEOUT",))
    rig.kill(FIRST, error_class="TIMEOUT")
    rig.kill("chunk-0000001", error_class="OOM")
    rig.kill("chunk-0000002", error_class="TIMEOUT")
    row = rig.row("chunk-0000002")
    rig.sqlite.update(FANOUT, row.key, remove=["attention_pk", "attention_sk"])

    healed = rig.healer.heal(RUN, dry_run=dry_run)

    assert (healed.healed, healed.left, healed.unseen) == (1, 1, 1)
    shown = {"attention_pk": row.attention_pk, "attention_sk": row.attention_sk}
    rig.sqlite.update(FANOUT, row.key, set=shown)
    again = rig.healer.heal(RUN, dry_run=dry_run)
    assert (again.healed, again.unseen) == (2 if dry_run else 1, 0)


@pytest.mark.parametrize("action", list(HealAction))
def test_heal__a_crash_at_any_write__a_second_call_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: HealAction
) -> None:
    monkeypatch.setattr(auto_heal, "BATCH", 2)

    def build(folder: Path) -> World:
        rig = Rig(folder, shards=2)
        rig.split(11, size=2, max_attempts=1, heal_redrives_max=1, heal_action=action.value)
        rig.kill(FIRST, "chunk-0000004", "chunk-0000006", "chunk-0000010")
        return rig

    def act(world: World) -> None:
        assert isinstance(world, Rig)
        world.healer.heal(RUN)

    assert crash_everywhere(tmp_path, build, act) >= 2
