from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from headgate.clock import VirtualClock
from headgate.durable.model.declarations import Declarations, Limits
from headgate.durable.model.history import CancelRequested, Event, Started, TerminateRequested, load_event
from headgate.durable.model.records import MESSAGES
from headgate.durable.schedules.cron import Recurrence
from headgate.durable.schedules.schedules import BACKFILLS_MAX, Schedules
from headgate.durable.schedules.slots import (
    SLOTS_MAX,
    STARTS_MAX,
    Backfill,
    CatchUp,
    Fire,
    Overlap,
    Schedule,
    Skip,
    Skipped,
    Spec,
    decide,
    milliseconds,
    moment,
)
from headgate.errors import (
    ConflictError,
    CursorError,
    DefinitionError,
    InvalidIdError,
    InvalidPayloadError,
    InvalidScheduleError,
    NotFoundError,
    PayloadTooLargeError,
    UserError,
)
from headgate.ids import IdMaker
from headgate.store.catalogue.tables import EXECUTIONS, INBOXES, SCHEDULES
from headgate.store.model.requests import Query, Range, Sort
from headgate.store.model.schema import Key
from headgate.store.sqlite.store import SqliteStore
from tests.stores import open_sqlite

CREATED = datetime(2026, 11, 16, 0, 30, tzinfo=UTC)
CREATED_MS = milliseconds(CREATED)
HOUR_MS = 3_600_000
HOURLY = Spec(workflow="report", recurrence=Recurrence("@hourly"))


def slot_ms(hour: int) -> int:
    """Return the slot of an hour of the day; hours above 23 are on the days after."""
    return CREATED_MS - HOUR_MS // 2 + hour * HOUR_MS


def slot_id(hour: int) -> str:
    return f"s/{moment(slot_ms(hour)):%Y-%m-%dT%H:%M:%SZ}"


def schedule(spec: Spec = HOURLY, **state: Any) -> Schedule:
    return Schedule(
        schedule_id="s",
        spec=spec,
        created_at_ms=CREATED_MS,
        **{"judged_through_ms": CREATED_MS, **state},
        version=1,
        revision=1,
    )


def policy(overlap: Overlap = Overlap.SKIP, catchup: CatchUp = CatchUp.ALL, **more: Any) -> Spec:
    return replace(HOURLY, overlap=overlap, catchup=catchup, **more)


class TestDecide:
    def test_decide__before_the_first_slot__does_nothing_and_is_due_at_it(self) -> None:
        decision = decide(schedule(), slot_ms(1) - 1, [])

        assert (decision.starts, decision.skips) == ((), ())
        assert decision.judged_through_ms == CREATED_MS
        assert decision.due_at_ms == slot_ms(1)

    def test_decide__at_a_slot__starts_it_under_an_id_made_of_the_slot(self) -> None:
        decision = decide(schedule(), slot_ms(1), [])

        assert [start.execution_id for start in decision.starts] == ["s/2026-11-16T01:00:00Z"]
        assert decision.open_ids == ("s/2026-11-16T01:00:00Z",)
        assert decision.judged_through_ms == slot_ms(1)
        assert decision.due_at_ms == slot_ms(2)

    def test_decide__a_clock_that_went_back__judges_nothing_again(self) -> None:
        decision = decide(schedule(judged_through_ms=slot_ms(5)), slot_ms(3), [])

        assert (decision.starts, decision.skips) == ((), ())
        assert decision.judged_through_ms == slot_ms(5)
        assert decision.due_at_ms == slot_ms(6)

    @pytest.mark.parametrize(
        ("catchup", "started", "skipped"),
        [
            (CatchUp.NONE, [], Skipped.LATE),
            (CatchUp.LAST, [4], Skipped.SUPERSEDED),
            (CatchUp.ALL, [1, 2, 3, 4], None),
        ],
    )
    def test_decide__after_downtime__every_slot_has_a_verdict_of_the_catch_up_policy(
        self, catchup: CatchUp, started: list[int], skipped: Skipped | None
    ) -> None:
        decision = decide(schedule(policy(Overlap.ALLOW, catchup)), slot_ms(4) + HOUR_MS // 2, [])

        assert [start.slot_ms for start in decision.starts] == [slot_ms(hour) for hour in started]
        expected = [slot_ms(hour) for hour in range(1, 5) if hour not in started]
        assert [skip.slot_ms for skip in decision.skips] == expected
        assert all(skip.reason is skipped for skip in decision.skips)
        assert decision.judged_through_ms == slot_ms(4)

    @pytest.mark.parametrize("catchup", CatchUp)
    def test_decide__a_slot_within_a_minute__is_on_time_for_every_catch_up_policy(self, catchup: CatchUp) -> None:
        decision = decide(schedule(policy(catchup=catchup)), slot_ms(1) + 60_000, [])

        assert [start.slot_ms for start in decision.starts] == [slot_ms(1)]

    @pytest.mark.parametrize("catchup", [CatchUp.LAST, CatchUp.ALL])
    def test_decide__slots_out_of_the_catch_up_window__are_too_old(self, catchup: CatchUp) -> None:
        spec = policy(Overlap.ALLOW, catchup, catchup_window_seconds=3600)

        late = decide(schedule(spec), slot_ms(3) + 2 * HOUR_MS - 1, [])
        far_too_late = decide(schedule(replace(spec, recurrence=Recurrence("@daily"))), slot_ms(26), [])

        assert [(skip.slot_ms, skip.reason) for skip in late.skips][:2] == [
            (slot_ms(1), Skipped.TOO_OLD),
            (slot_ms(2), Skipped.TOO_OLD),
        ]
        assert late.starts[-1].slot_ms == slot_ms(4)
        assert [skip.reason for skip in far_too_late.skips] == [Skipped.TOO_OLD]
        assert far_too_late.starts == ()

    def test_decide__more_starts_than_fit__are_made_over_several_decisions(self) -> None:
        now_ms = slot_ms(STARTS_MAX + 3)
        first = decide(schedule(policy(Overlap.ALLOW)), now_ms, [])
        second = decide(schedule(policy(Overlap.ALLOW), judged_through_ms=first.judged_through_ms), now_ms, [])

        assert len(first.starts) == STARTS_MAX
        assert first.due_at_ms is not None
        assert first.due_at_ms <= now_ms
        assert [start.slot_ms for start in second.starts] == [slot_ms(STARTS_MAX + extra) for extra in (1, 2, 3)]

    @pytest.mark.parametrize("overlap", [Overlap.ALLOW, Overlap.TERMINATE_OTHER])
    def test_decide__more_missed_slots_than_are_judged_at_once__starts_only_the_very_last(
        self, overlap: Overlap
    ) -> None:
        spec = replace(policy(overlap, CatchUp.LAST), recurrence=Recurrence("* * * * *"))
        now_ms = CREATED_MS + (SLOTS_MAX + 5) * 60_000 + 59_999
        first = decide(schedule(spec), now_ms, [])
        second = decide(schedule(spec, judged_through_ms=first.judged_through_ms), now_ms, [])

        assert first.starts == ()
        assert len(first.skips) == SLOTS_MAX
        assert len(second.skips) == 4
        assert [start.slot_ms for start in second.starts] == [CREATED_MS + (SLOTS_MAX + 5) * 60_000]

    def test_decide__skip__leaves_slots_out_and_names_what_is_open(self) -> None:
        decision = decide(schedule(policy(), open_ids=("s/old",)), slot_ms(2), ["s/old"])

        assert decision.skips == (
            Skip(slot_ms(1), Skipped.OVERLAP, "s/old"),
            Skip(slot_ms(2), Skipped.OVERLAP, "s/old"),
        )
        assert decision.starts == ()

    def test_decide__skip_and_several_slots_at_once__starts_one(self) -> None:
        decision = decide(schedule(policy()), slot_ms(3), [])

        assert [start.slot_ms for start in decision.starts] == [slot_ms(1)]
        assert decision.skips == tuple(Skip(slot_ms(hour), Skipped.OVERLAP, slot_id(1)) for hour in (2, 3))

    def test_decide__buffer_one__keeps_the_first_slot_and_leaves_out_the_others(self) -> None:
        decision = decide(schedule(policy(Overlap.BUFFER_ONE)), slot_ms(3), ["s/old"])

        assert decision.starts == ()
        assert decision.buffered_ms == slot_ms(1)
        assert [skip.reason for skip in decision.skips] == [Skipped.BUFFER_FULL, Skipped.BUFFER_FULL]
        assert decision.due_at_ms == slot_ms(3) + 2_000

    def test_decide__a_buffered_slot_and_nothing_open__starts_it(self) -> None:
        waiting = schedule(policy(Overlap.BUFFER_ONE), judged_through_ms=slot_ms(3), buffered_ms=slot_ms(1))

        decision = decide(waiting, slot_ms(3) + 5_000, [])

        assert [start.execution_id for start in decision.starts] == [slot_id(1)]
        assert decision.buffered_ms is None
        assert decision.due_at_ms == slot_ms(4)

    @pytest.mark.parametrize("overlap", [Overlap.CANCEL_OTHER, Overlap.TERMINATE_OTHER])
    def test_decide__cancel_and_terminate__end_what_is_open_and_start_the_newest(self, overlap: Overlap) -> None:
        decision = decide(schedule(policy(overlap)), slot_ms(2), ["s/a", "s/b"])

        assert decision.ends == ("s/a", "s/b")
        assert [start.slot_ms for start in decision.starts] == [slot_ms(2)]
        assert decision.skips == (Skip(slot_ms(1), Skipped.SUPERSEDED),)
        assert decision.open_ids == (slot_id(2),)

    def test_decide__paused__skips_every_slot_and_what_was_buffered(self) -> None:
        paused = schedule(paused=True, buffered_ms=slot_ms(0))

        decision = decide(paused, slot_ms(2), [])

        assert [(skip.slot_ms, skip.reason) for skip in decision.skips] == [
            (slot_ms(hour), Skipped.PAUSED) for hour in (0, 1, 2)
        ]
        assert decision.starts == ()
        assert decision.due_at_ms is None

    def test_decide__past_the_end__is_never_due_again(self) -> None:
        spec = replace(HOURLY, recurrence=Recurrence("@hourly", end=moment(slot_ms(2))))

        assert decide(schedule(spec), slot_ms(1), []).due_at_ms is None

    def test_decide__jitter__is_waited_for_and_keeps_the_id_of_the_slot(self) -> None:
        jittered = schedule(replace(HOURLY, recurrence=Recurrence("@hourly", jitter_seconds=1800)))
        due_ms = decide(jittered, slot_ms(1), []).due_at_ms
        assert due_ms is not None

        early, prompt = decide(jittered, due_ms - 1, []), decide(jittered, due_ms, [])

        assert slot_ms(1) < due_ms <= slot_ms(1) + 1_800_000
        assert (early.starts, early.judged_through_ms) == ((), CREATED_MS)
        assert [start.execution_id for start in prompt.starts] == [slot_id(1)]

    def test_decide__backfill_one_by_one__starts_the_next_when_nothing_is_open(self) -> None:
        backfill = Backfill(slot_ms(-5), slot_ms(-2), slot_ms(-5) - 1)
        busy = decide(schedule(backfills=(backfill,)), CREATED_MS, ["s/old"])
        free = decide(schedule(backfills=(backfill,)), CREATED_MS, [])

        assert (busy.starts, busy.backfills, busy.due_at_ms) == ((), (backfill,), CREATED_MS + 2_000)
        assert [(start.slot_ms, start.is_due) for start in free.starts] == [(slot_ms(-5), False)]
        assert free.backfills == (replace(backfill, done_through_ms=slot_ms(-5)),)

    def test_decide__backfill_side_by_side__starts_all_before_its_end_and_is_done(self) -> None:
        backfill = Backfill(slot_ms(-5), slot_ms(-2), slot_ms(-5) - 1, one_by_one=False)

        first = decide(schedule(backfills=(backfill,)), CREATED_MS, ["s/old"])
        second = decide(schedule(backfills=first.backfills), CREATED_MS, [])

        assert [start.slot_ms for start in first.starts] == [slot_ms(hour) for hour in (-5, -4, -3)]
        assert (second.starts, second.backfills, second.due_at_ms) == ((), (), slot_ms(1))

    def test_decide__backfill_of_slots_that_are_open_or_just_starting__does_not_start_them_again(self) -> None:
        backfill = Backfill(slot_ms(-3), slot_ms(0), slot_ms(-3) - 1, one_by_one=False)
        spec = policy(Overlap.ALLOW)
        waiting = schedule(spec, backfills=(backfill,), buffered_ms=slot_ms(-2))

        decision = decide(waiting, CREATED_MS, [slot_id(-3)])

        assert [(start.slot_ms, start.is_due) for start in decision.starts] == [
            (slot_ms(-2), True),
            (slot_ms(-1), False),
        ]
        assert decision.open_ids == (slot_id(-3), slot_id(-2), slot_id(-1))

    def test_decide__backfill_while_others_are_ended__waits_for_the_next_decision(self) -> None:
        backfill = Backfill(slot_ms(-3), slot_ms(0), slot_ms(-3) - 1, one_by_one=False)
        waiting = schedule(policy(Overlap.TERMINATE_OTHER), backfills=(backfill,))

        decision = decide(waiting, slot_ms(1), [slot_id(-3)])

        assert decision.ends == (slot_id(-3),)
        assert [start.slot_ms for start in decision.starts] == [slot_ms(1)]
        assert (decision.backfills, decision.due_at_ms) == ((backfill,), slot_ms(1))


class Plant:
    """Schedules on a real store, with the hands to look at and to end what they started."""

    def __init__(self, store: SqliteStore, clock: VirtualClock) -> None:
        self.store = store
        self.clock = clock
        self.schedules = Schedules(store, clock, IdMaker(clock))

    def go(self, ms: int) -> None:
        self.clock.step(ms / 1000 - self.clock.seconds())

    def fire(self, ms: int) -> list[str]:
        """Let it be `ms`, and fire until nothing is due any more."""
        self.go(ms)
        started: list[str] = []
        for _ in range(100):
            due_ms = self.schedules.next_due_ms()
            if due_ms is None or due_ms > ms:
                return started
            started += self.schedules.fire_due(ms)
        raise AssertionError("it is always due")

    def end(self, execution_id: str) -> None:
        self.store.update(EXECUTIONS, Key(execution_id), set={"status": "SUCCEEDED"})

    def execution(self, execution_id: str) -> dict[str, Any]:
        item = self.store.get(EXECUTIONS, Key(execution_id), consistent=True)
        assert item is not None
        return item

    def mail(self, execution_id: str) -> list[Event]:
        page = self.store.query(Query(table=INBOXES, partition=execution_id, sort=Sort(Range.BEGINS_WITH, MESSAGES)))
        return [load_event(item["body"]) for item in page.items]


@pytest.fixture
def plant(tmp_path: Path) -> Iterator[Plant]:
    clock = VirtualClock(CREATED_MS / 1000)
    store = open_sqlite(tmp_path, clock=clock)
    yield Plant(store, clock)
    store.close()


class TestFire:
    def test_fire__a_due_slot__starts_the_workflow_with_input_and_tags(self, plant: Plant) -> None:
        plant.schedules.create("s", replace(HOURLY, input='{"day": 1}', tags={"team": "blue"}, timeout_seconds=60))

        assert plant.fire(slot_ms(1)) == [slot_id(1)]

        execution = plant.execution(slot_id(1))
        assert execution["workflow"] == "report"
        assert execution["tags"] == {
            "team": "blue",
            "headgate.schedule": "s",
            "headgate.slot": "2026-11-16T01:00:00Z",
        }
        assert execution["timeout_at_ms"] == slot_ms(1) + 60_000
        (started,) = plant.mail(slot_id(1))
        assert isinstance(started, Started)
        assert bytes(started.input) == b'{"day": 1}'

    def test_fire__twice_and_by_two__starts_a_slot_once(self, plant: Plant) -> None:
        other = Schedules(plant.store, plant.clock, IdMaker(plant.clock))
        plant.schedules.create("s", HOURLY)

        assert plant.schedules.fire_due(slot_ms(1)) == [slot_id(1)]
        assert other.fire_due(slot_ms(1)) == []
        assert plant.schedules.fire_due(slot_ms(1)) == []
        assert len(plant.mail(slot_id(1))) == 1

    def test_fire__an_execution_of_the_slot_exists__counts_as_started(self, plant: Plant) -> None:
        spec = policy(Overlap.ALLOW)
        plant.schedules.create("s", spec)
        plant.fire(slot_ms(1))
        plant.schedules.delete("s")
        plant.go(CREATED_MS)
        plant.schedules.create("s", spec)

        assert plant.fire(slot_ms(2)) == [slot_id(1), slot_id(2)]

        assert len(plant.mail(slot_id(1))) == 1
        assert plant.schedules.get("s").started_count == 2
        assert [fire.execution_id for fire in plant.schedules.get("s").fires] == [slot_id(1), slot_id(2)]

    def test_fire__skip__waits_for_the_end_of_what_is_open(self, plant: Plant) -> None:
        plant.schedules.create("s", policy())

        assert plant.fire(slot_ms(1)) == [slot_id(1)]
        assert plant.fire(slot_ms(2)) == []
        plant.end(slot_id(1))
        assert plant.fire(slot_ms(3)) == [slot_id(3)]

        found = plant.schedules.get("s")
        assert found.fires[1] == Fire("2026-11-16T02:00:00Z", slot_ms(2), None, Skipped.OVERLAP, slot_id(1))
        assert (found.started_count, found.skipped_count) == (2, 1)

    def test_fire__a_stuck_execution__is_open(self, plant: Plant) -> None:
        plant.schedules.create("s", policy())
        plant.fire(slot_ms(1))
        plant.store.update(EXECUTIONS, Key(slot_id(1)), set={"status": "STUCK"})

        assert plant.fire(slot_ms(2)) == []

    def test_fire__buffer_one__starts_the_waiting_slot_soon_after_the_end(self, plant: Plant) -> None:
        plant.schedules.create("s", policy(Overlap.BUFFER_ONE))
        plant.fire(slot_ms(1))
        assert plant.fire(slot_ms(2)) == []
        assert plant.fire(slot_ms(2) + 2_000) == []
        plant.end(slot_id(1))

        assert plant.fire(slot_ms(2) + 4_000) == [slot_id(2)]
        assert plant.schedules.next_due_ms() == slot_ms(3)

    @pytest.mark.parametrize(
        ("overlap", "kind"),
        [(Overlap.CANCEL_OTHER, CancelRequested), (Overlap.TERMINATE_OTHER, TerminateRequested)],
    )
    def test_fire__cancel_and_terminate__report_the_open_one_once_and_start_the_next(
        self, plant: Plant, overlap: Overlap, kind: type[Event]
    ) -> None:
        plant.schedules.create("s", policy(overlap))
        for hour in (1, 2, 3):
            assert plant.fire(slot_ms(hour)) == [slot_id(hour)]

        assert [type(event) for event in plant.mail(slot_id(1))] == [Started, kind]
        assert [type(event) for event in plant.mail(slot_id(2))] == [Started, kind]
        assert [type(event) for event in plant.mail(slot_id(3))] == [Started]

    def test_fire__what_is_to_be_cancelled_ends_meanwhile__starts_and_writes_nothing_to_it(
        self, plant: Plant, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plant.schedules.create("s", policy(Overlap.CANCEL_OTHER))
        plant.fire(slot_ms(1))
        get_many = plant.store.get_many

        def then_it_ends(*args: Any, **kwargs: Any) -> list[dict[str, Any] | None]:
            found = get_many(*args, **kwargs)
            plant.end(slot_id(1))
            return found

        monkeypatch.setattr(plant.store, "get_many", then_it_ends)

        assert plant.fire(slot_ms(2)) == [slot_id(2)]
        assert [type(event) for event in plant.mail(slot_id(1))] == [Started]

    def test_fire__more_schedules_than_the_limit__takes_the_longest_due_first(self, plant: Plant) -> None:
        plant.schedules.create("late", HOURLY)
        plant.schedules.create("early", replace(HOURLY, recurrence=Recurrence("45 * * * *")))

        assert plant.schedules.fire_due(slot_ms(1), limit=1) == ["early/2026-11-16T00:45:00Z"]
        assert plant.schedules.fire_due(slot_ms(1), limit=1) == ["late/2026-11-16T01:00:00Z"]

    def test_fire__a_schedule_that_cannot_be_read_any_more__is_paused_and_others_go_on(self, plant: Plant) -> None:
        plant.schedules.create("broken", replace(HOURLY, recurrence=Recurrence("0 * * * *", "Europe/Berlin")))
        plant.schedules.backfill("broken", moment(slot_ms(-3)), moment(slot_ms(0)))
        plant.schedules.create("s", HOURLY)
        item = plant.store.get(SCHEDULES, Key("broken"), consistent=True)
        assert item is not None
        item["spec"]["recurrence"]["zone"] = "Europe/Atlantis"
        plant.store.put(SCHEDULES, item)

        assert plant.fire(slot_ms(1)) == [slot_id(1)]

        broken = plant.schedules.get("broken")
        assert broken.paused
        assert "Europe/Atlantis" in broken.reason

    def test_fire__an_index_that_lags_behind__writes_nothing(
        self, plant: Plant, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plant.schedules.create("s", HOURLY)
        plant.schedules.create("gone", HOURLY)
        plant.schedules.create("paused", HOURLY)
        due = Query(table=SCHEDULES, index="due-index", partition="SCHEDULES")
        stale = plant.store.query(due)
        assert len(stale.items) == 3
        plant.schedules.fire_due(slot_ms(1))
        plant.schedules.delete("gone")
        plant.schedules.pause("paused")
        before = [plant.schedules.get("s"), plant.schedules.get("paused")]
        monkeypatch.setattr(plant.store, "query", lambda _: stale)

        assert plant.schedules.fire_due(slot_ms(1)) == []

        assert [plant.schedules.get("s"), plant.schedules.get("paused")] == before

    def test_next_due__no_schedule_or_all_paused__is_none(self, plant: Plant) -> None:
        assert plant.schedules.next_due_ms() is None
        plant.schedules.create("s", HOURLY)
        assert plant.schedules.next_due_ms() == slot_ms(1)
        plant.schedules.pause("s")
        assert plant.schedules.next_due_ms() is None


class TestLimits:
    """Each way to start an execution gives it the limits that its workflow is declared with, in whichever app."""

    def test_fire__a_workflow_of_another_app__has_the_limits_it_is_declared_with(self, plant: Plant) -> None:
        plant.schedules.create("s", HOURLY)
        Declarations(plant.store).declare("reports", {"report": Limits(60.0, 3600.0)})

        plant.fire(slot_ms(1))

        execution = plant.execution(slot_id(1))
        assert execution["timeout_at_ms"] == slot_ms(1) + 60_000
        assert execution["retention_seconds"] == 3600.0
        # What the user said stays what the user said, so that limits which are declared anew take effect.
        assert plant.schedules.get("s").spec == HOURLY

    def test_fire__limits_declared_anew__count_from_the_next_slot_on(self, plant: Plant) -> None:
        plant.schedules.create("s", replace(HOURLY, overlap=Overlap.ALLOW))
        for hour, timeout_seconds in ((1, 60.0), (2, 120.0)):
            Declarations(plant.store).declare("reports", {"report": Limits(timeout_seconds, None)})
            plant.fire(slot_ms(hour))

        found = [plant.execution(slot_id(hour))["timeout_at_ms"] - slot_ms(hour) for hour in (1, 2)]
        assert found == [60_000, 120_000]

    def test_fire__limits_that_the_schedule_has_itself__stand(self, plant: Plant) -> None:
        plant.schedules.create("s", replace(HOURLY, timeout_seconds=5))
        Declarations(plant.store).declare("reports", {"report": Limits(60.0, 3600.0)})

        plant.fire(slot_ms(1))

        assert plant.execution(slot_id(1))["timeout_at_ms"] == slot_ms(1) + 5_000
        assert plant.execution(slot_id(1))["retention_seconds"] == 3600.0

    def test_fire__a_workflow_of_this_app__has_the_limits_of_the_code_that_is_loaded(self, plant: Plant) -> None:
        schedules = Schedules(plant.store, plant.clock, IdMaker(plant.clock), limits_of=lambda _: (30.0, None))
        Declarations(plant.store).declare("reports", {"report": Limits(60.0, 3600.0)})
        schedules.create("s", HOURLY)
        plant.go(slot_ms(1))

        schedules.fire_due(slot_ms(1))

        assert plant.execution(slot_id(1))["timeout_at_ms"] == slot_ms(1) + 30_000
        assert "retention_seconds" not in plant.execution(slot_id(1))

    def test_trigger_and_backfill__a_workflow_of_another_app__have_its_limits_too(self, plant: Plant) -> None:
        plant.schedules.create("s", HOURLY)
        Declarations(plant.store).declare("reports", {"report": Limits(60.0, None)})

        fire = plant.schedules.trigger("s", request_id="r")
        plant.schedules.backfill("s", moment(slot_ms(-2)), moment(slot_ms(-1)), Overlap.ALLOW)
        plant.fire(CREATED_MS)

        assert fire.execution_id is not None
        for started in (fire.execution_id, slot_id(-2)):
            assert plant.execution(started)["timeout_at_ms"] == CREATED_MS + 60_000

    def test_fire__no_one_has_declared_the_workflow__is_without_limits(self, plant: Plant) -> None:
        plant.schedules.create("s", HOURLY)

        plant.fire(slot_ms(1))

        assert "timeout_at_ms" not in plant.execution(slot_id(1))

    def test_declare__as_it_is_already__writes_nothing(self, plant: Plant) -> None:
        declarations = Declarations(plant.store)
        limits = {f"w{number}": Limits(None, float(number)) for number in range(250)}
        declarations.declare("reports", limits)
        before = plant.store.stats.snapshot()

        declarations.declare("reports", limits)
        assert plant.store.stats.snapshot()["commits"] == before["commits"]
        declarations.declare("reports", {"w7": Limits(7.0, 7.0)})

        assert declarations.limits("w7") == Limits(7.0, 7.0)
        assert declarations.limits("w249") == Limits(None, 249.0)
        assert declarations.limits("nobody") == Limits()


class TestCreate:
    def test_create__again__changes_nothing(self, plant: Plant) -> None:
        first = plant.schedules.create("s", HOURLY)
        plant.go(slot_ms(3))

        assert plant.schedules.create("s", HOURLY) == first

    def test_create__another_of_the_id__conflicts(self, plant: Plant) -> None:
        plant.schedules.create("s", HOURLY)

        with pytest.raises(ConflictError, match="schedule s: it exists and is different"):
            plant.schedules.create("s", policy(Overlap.ALLOW))

    @pytest.mark.parametrize(
        ("spec", "error"),
        [
            (replace(HOURLY, recurrence=Recurrence("nonsense")), InvalidScheduleError),
            (replace(HOURLY, overlap="sometimes"), InvalidScheduleError),
            (replace(HOURLY, catchup_window_seconds=-1), InvalidScheduleError),
            (replace(HOURLY, timeout_seconds=float("nan")), InvalidScheduleError),
            (replace(HOURLY, workflow="no such name"), DefinitionError),
            (replace(HOURLY, input="{"), InvalidPayloadError),
            (replace(HOURLY, input=f'"{"x" * 300_000}"'), PayloadTooLargeError),
            (replace(HOURLY, tags={"a b": "c"}), InvalidIdError),
        ],
    )
    def test_create__what_cannot_be__is_refused_and_nothing_stored(
        self, plant: Plant, spec: Spec, error: type[UserError]
    ) -> None:
        with pytest.raises(error):
            plant.schedules.create("s", spec)

        assert plant.store.get(SCHEDULES, Key("s"), consistent=True) is None

    def test_create__policies_given_as_text__are_understood(self, plant: Plant) -> None:
        created = plant.schedules.create("s", replace(HOURLY, overlap="allow", catchup="none"))

        assert (created.spec.overlap, created.spec.catchup) == (Overlap.ALLOW, CatchUp.NONE)
        assert plant.schedules.get("s") == created

    @pytest.mark.parametrize("schedule_id", ["", "a/b", "a b", "-a", "a" * 129, "a#b"])
    def test_create__an_id_that_cannot_be__is_refused(self, plant: Plant, schedule_id: str) -> None:
        with pytest.raises(InvalidIdError):
            plant.schedules.create(schedule_id, HOURLY)

    def test_create__the_longest_id__has_slots_that_can_be_started_and_triggered(self, plant: Plant) -> None:
        plant.schedules.create("a" * 128, HOURLY)

        assert plant.fire(slot_ms(1)) == [f"{'a' * 128}/2026-11-16T01:00:00Z"]
        assert plant.schedules.trigger("a" * 128).execution_id is not None

    def test_ls__all_fit__has_no_cursor_on_the_last_page(self, plant: Plant) -> None:
        assert plant.schedules.ls().cursor is None
        for name in "abc":
            plant.schedules.create(name, HOURLY, paused=name == "c")

        assert [each.schedule_id for each in plant.schedules.ls().schedules][-1] == "c"
        assert plant.schedules.ls().cursor is None
        assert plant.schedules.ls(limit=2).cursor is not None
        plant.schedules.delete("c")
        assert plant.schedules.ls(limit=2).cursor is None

    def test_ls__many__has_each_once_and_paused_ones_last(self, plant: Plant) -> None:
        for name in "abcde":
            plant.schedules.create(name, HOURLY, paused=name in "bd")

        found: list[str] = []
        cursor: str | None = None
        while True:
            page = plant.schedules.ls(limit=2, cursor=cursor)
            found += [each.schedule_id for each in page.schedules]
            cursor = page.cursor
            if cursor is None:
                break

        assert sorted(found) == list("abcde")
        assert set(found[-2:]) == {"b", "d"}
        with pytest.raises(CursorError):
            plant.schedules.ls(cursor="ELSEWHERE|")

    def test_delete__it_is_gone_and_what_it_started_is_not(self, plant: Plant) -> None:
        plant.schedules.create("s", HOURLY)
        plant.fire(slot_ms(1))

        plant.schedules.delete("s")

        assert plant.fire(slot_ms(2)) == []
        assert plant.execution(slot_id(1))["status"] == "RUNNING"
        with pytest.raises(NotFoundError):
            plant.schedules.delete("s")
        with pytest.raises(NotFoundError):
            plant.schedules.get("s")


class TestUpdate:
    def test_update__another_recurrence__judges_the_slots_before_by_the_old_one(self, plant: Plant) -> None:
        plant.schedules.create("s", policy(Overlap.ALLOW))
        plant.go(slot_ms(2) + HOUR_MS * 3 // 4)

        plant.schedules.update("s", replace(policy(Overlap.ALLOW), recurrence=Recurrence("*/10 * * * *")))

        assert [fire.execution_id for fire in plant.schedules.get("s").fires] == [slot_id(1), slot_id(2)]
        assert plant.fire(slot_ms(3)) == ["s/2026-11-16T02:50:00Z", "s/2026-11-16T03:00:00Z"]

    def test_update__another_recurrence_during_jitter__does_not_lose_the_slot(self, plant: Plant) -> None:
        plant.schedules.create("s", replace(HOURLY, recurrence=Recurrence("@hourly", jitter_seconds=3000)))
        plant.go(slot_ms(1) + 1)

        plant.schedules.update("s", replace(HOURLY, recurrence=Recurrence("@daily")))

        assert [fire.execution_id for fire in plant.schedules.get("s").fires] == [slot_id(1)]

    def test_update__other_policies__keep_the_slots_and_take_effect(self, plant: Plant) -> None:
        plant.schedules.create("s", policy())
        plant.fire(slot_ms(1))
        plant.go(slot_ms(2) - 1)

        plant.schedules.update("s", policy(Overlap.ALLOW, workflow="other"))

        assert plant.fire(slot_ms(2)) == [slot_id(2)]
        assert plant.execution(slot_id(2))["workflow"] == "other"

    def test_update__an_old_revision__conflicts_but_firing_moves_no_revision(self, plant: Plant) -> None:
        created = plant.schedules.create("s", HOURLY)
        plant.fire(slot_ms(1))
        updated = plant.schedules.update("s", policy(Overlap.ALLOW), revision=created.revision)

        for change in (
            lambda: plant.schedules.update("s", HOURLY, revision=created.revision),
            lambda: plant.schedules.pause("s", revision=created.revision),
            lambda: plant.schedules.resume("s", revision=created.revision),
            lambda: plant.schedules.delete("s", revision=created.revision),
        ):
            with pytest.raises(ConflictError, match="revision 2, not 1"):
                change()
        assert plant.schedules.get("s") == updated

    def test_pause_and_resume__slots_between__are_skipped_as_paused(self, plant: Plant) -> None:
        plant.schedules.create("s", policy())
        plant.schedules.pause("s", "maintenance")
        assert plant.fire(slot_ms(2)) == []
        assert plant.schedules.get("s").reason == "maintenance"
        plant.go(slot_ms(2) + 1)

        resumed = plant.schedules.resume("s")

        assert [(fire.slot, fire.skipped) for fire in resumed.fires] == [
            ("2026-11-16T01:00:00Z", Skipped.PAUSED),
            ("2026-11-16T02:00:00Z", Skipped.PAUSED),
        ]
        assert (resumed.paused, resumed.reason, resumed.skipped_count) == (False, "", 2)
        assert plant.fire(slot_ms(3)) == [slot_id(3)]

    def test_resume__after_a_long_pause__judges_every_slot(self, plant: Plant) -> None:
        plant.schedules.create("s", replace(HOURLY, recurrence=Recurrence("* * * * *")), paused=True)
        plant.go(CREATED_MS + 2_500 * 60_000)

        resumed = plant.schedules.resume("s")

        assert resumed.skipped_count == 2_500
        assert len(resumed.fires) == 20

    def test_preview__a_schedule__has_the_slots_to_come(self, plant: Plant) -> None:
        plant.schedules.create("s", replace(HOURLY, recurrence=Recurrence("@hourly", jitter_seconds=60)), paused=True)

        found = plant.schedules.preview("s", 3)

        assert [milliseconds(each.slot) for each in found] == [slot_ms(1), slot_ms(2), slot_ms(3)]
        assert all(timedelta(0) <= each.due - each.slot <= timedelta(minutes=1) for each in found)
        with pytest.raises(InvalidScheduleError):
            plant.schedules.preview("s", 0)


class TestTrigger:
    def test_trigger__paused_or_not__starts_besides_the_slots(self, plant: Plant) -> None:
        plant.schedules.create("s", HOURLY, paused=True)

        fire = plant.schedules.trigger("s")

        assert fire.execution_id is not None
        assert fire.execution_id.startswith("s/trigger-")
        assert len(plant.mail(fire.execution_id)) == 1
        found = plant.schedules.get("s")
        assert (found.fires, found.started_count, found.judged_through_ms) == ((fire,), 0, CREATED_MS)

    def test_trigger__the_same_request__starts_once(self, plant: Plant) -> None:
        plant.schedules.create("s", HOURLY)

        first = plant.schedules.trigger("s", request_id="r1", overlap=Overlap.SKIP)
        second = plant.schedules.trigger("s", request_id="r1", overlap=Overlap.SKIP)

        assert first.execution_id == second.execution_id == "s/trigger-r1"
        assert len(plant.mail("s/trigger-r1")) == 1

    def test_trigger__skip_and_something_open__starts_nothing_and_says_why(self, plant: Plant) -> None:
        plant.schedules.create("s", HOURLY)
        plant.fire(slot_ms(1))

        fire = plant.schedules.trigger("s", overlap=Overlap.SKIP)

        assert (fire.execution_id, fire.skipped, fire.blocked_by) == (None, Skipped.OVERLAP, slot_id(1))
        assert fire.by_hand
        assert plant.schedules.get("s").fires[-1] == fire

    def test_trigger__terminate__ends_what_is_open(self, plant: Plant) -> None:
        plant.schedules.create("s", HOURLY)
        plant.fire(slot_ms(1))

        fire = plant.schedules.trigger("s", overlap=Overlap.TERMINATE_OTHER)

        assert [type(event) for event in plant.mail(slot_id(1))] == [Started, TerminateRequested]
        assert plant.schedules.get("s").open_ids == (fire.execution_id,)

    def test_trigger__buffer_one_or_an_impossible_request__is_refused(self, plant: Plant) -> None:
        plant.schedules.create("s", HOURLY)

        with pytest.raises(InvalidScheduleError):
            plant.schedules.trigger("s", overlap=Overlap.BUFFER_ONE)
        with pytest.raises(InvalidIdError):
            plant.schedules.trigger("s", request_id="a b")
        with pytest.raises(NotFoundError):
            plant.schedules.trigger("other")


class TestBackfill:
    def test_backfill__side_by_side__starts_every_slot_of_the_range_once(self, plant: Plant) -> None:
        plant.schedules.create("s", HOURLY, paused=True)
        since, until = moment(slot_ms(-12)), moment(slot_ms(0))

        plant.schedules.backfill("s", since, until, Overlap.ALLOW)
        started = plant.fire(CREATED_MS)
        plant.schedules.backfill("s", since, until, Overlap.ALLOW)
        plant.fire(CREATED_MS)

        assert started == [slot_id(hour) for hour in range(-12, 0)]
        assert all(len(plant.mail(each)) == 1 for each in started)
        found = plant.schedules.get("s")
        assert (found.backfills, found.started_count) == ((), 0)

    def test_backfill__one_by_one__waits_for_each_and_passes_those_that_are_done(self, plant: Plant) -> None:
        plant.schedules.create("s", HOURLY, paused=True)
        since, until = moment(slot_ms(-4)), moment(slot_ms(0))
        plant.schedules.backfill("s", since, moment(slot_ms(-2)), Overlap.ALLOW)
        for done in plant.fire(CREATED_MS):
            plant.end(done)

        plant.schedules.backfill("s", since, until)

        assert plant.fire(CREATED_MS) == [slot_id(-4), slot_id(-3), slot_id(-2)]
        assert plant.fire(CREATED_MS + 2_000) == []
        plant.end(slot_id(-2))
        assert plant.fire(CREATED_MS + 4_000) == [slot_id(-1)]

    def test_backfill__slots_that_are_not_judged_yet__are_left_to_the_schedule(self, plant: Plant) -> None:
        plant.schedules.create("s", policy(Overlap.ALLOW))
        plant.go(slot_ms(2))

        plant.schedules.backfill("s", moment(slot_ms(-1)), moment(slot_ms(9)), Overlap.ALLOW)

        started = plant.fire(slot_ms(2))
        assert sorted(started) == [slot_id(hour) for hour in (-1, 0, 1, 2)]
        assert plant.schedules.get("s").started_count == 2

    def test_backfill__of_the_time_of_a_pause__starts_what_the_pause_skipped(self, plant: Plant) -> None:
        plant.schedules.create("s", HOURLY, paused=True)
        plant.go(slot_ms(3))

        plant.schedules.backfill("s", moment(slot_ms(1)), moment(slot_ms(4)), Overlap.ALLOW)

        assert plant.fire(slot_ms(3)) == [slot_id(1), slot_id(2), slot_id(3)]

    def test_backfill__the_same_while_it_runs__is_one(self, plant: Plant) -> None:
        plant.schedules.create("s", HOURLY)
        since, until = moment(slot_ms(-4)), moment(slot_ms(0))

        plant.schedules.backfill("s", since, until)
        again = plant.schedules.backfill("s", since, until)

        assert len(again.backfills) == 1
        assert plant.schedules.stop_backfills("s").backfills == ()

    def test_backfill__too_many_or_an_impossible_one__is_refused(self, plant: Plant) -> None:
        plant.schedules.create("s", HOURLY)
        for hour in range(BACKFILLS_MAX):
            plant.schedules.backfill("s", moment(slot_ms(-50 - hour)), moment(slot_ms(-20)))

        for since, until, overlap in (
            (moment(slot_ms(-5)), moment(slot_ms(-1)), Overlap.ALLOW),
            (moment(slot_ms(-1)), moment(slot_ms(-5)), Overlap.ALLOW),
            (moment(slot_ms(-5)), moment(slot_ms(-1)), Overlap.SKIP),
            (moment(slot_ms(-5)).replace(tzinfo=None), moment(slot_ms(-1)), Overlap.ALLOW),
        ):
            with pytest.raises(InvalidScheduleError):
                plant.schedules.backfill("s", since, until, overlap)
