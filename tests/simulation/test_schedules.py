"""Seeded histories of several processes that fire the same schedule, die between store calls, and lose their clock.

Whatever happens, every slot gets one verdict and at most one execution. A failure prints its seed.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from headgate.clock import VirtualClock
from headgate.durable.model.history import Started, load_event
from headgate.durable.model.records import MESSAGES
from headgate.durable.schedules import cron
from headgate.durable.schedules.cron import Recurrence
from headgate.durable.schedules.schedules import Schedules
from headgate.durable.schedules.slots import CatchUp, Overlap, Schedule, Skipped, Spec, milliseconds, moment, slot_of
from headgate.ids import IdMaker
from headgate.store.catalogue.tables import EXECUTIONS, INBOXES
from headgate.store.model.requests import Page, Query, Range, Sort
from headgate.store.model.schema import Key
from headgate.store.port import Store
from headgate.store.sqlite.store import SqliteStore, Synchronous
from tests.simulation.seeds import seeds
from tests.stores import open_sqlite

WORKFLOW = "report"
STEPS = 120
SEEDS = seeds(20)
# Berlin sets its clock back at 01:00Z, an hour and a half later.
START = datetime(2026, 10, 24, 23, 30, 17, tzinfo=UTC)
RECURRENCES = [
    Recurrence("* * * * *"),
    Recurrence("*/5 * * * *", "Europe/Berlin"),
    Recurrence("*/7 0-23/2 * * *", "Europe/Berlin"),
    Recurrence("every 90s"),
    Recurrence("*/3 * * * *", jitter_seconds=100),
    Recurrence("*/20 * * * * *"),
]
# One by one: at no time are two executions of such a schedule open.
EXCLUSIVE = {Overlap.SKIP, Overlap.BUFFER_ONE}


class CrashError(Exception):
    """The process died here."""


class FlakyStore:
    """A store whose process may die before or after any call, be overtaken, or read an index that lags behind."""

    def __init__(self, store: SqliteStore, chance: random.Random) -> None:
        self._store = store
        self._chance = chance
        self._old_pages: dict[str, Page] = {}
        self.crash_rate = 0.0
        self.overtake: Callable[[], None] | None = None

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            if name in ("transact", "put", "delete") and self.overtake is not None and self._chance.random() < 0.2:
                self.overtake()
            if self._chance.random() < self.crash_rate / 2:
                raise CrashError(f"before {name}")
            answer = method(*args, **kwargs)
            if self._chance.random() < self.crash_rate / 2:
                raise CrashError(f"after {name}")
            return answer

        return call

    def query(self, query: Query) -> Page:
        if self._chance.random() < self.crash_rate:
            raise CrashError("before query")
        page = self._store.query(query)
        old = self._old_pages.setdefault(f"{query.partition} {query.limit}", page)
        if self.crash_rate and self._chance.random() < 0.2:
            return old
        self._old_pages[f"{query.partition} {query.limit}"] = page
        return page


class World:
    """One seeded run: three processes, one schedule, one clock that all of them believe."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.chance = random.Random(seed)
        self.clock = VirtualClock(START.timestamp())
        self.files = [open_sqlite(folder, clock=self.clock, synchronous=Synchronous.NORMAL) for _ in range(2)]
        self.stores = [FlakyStore(self.files[place % 2], self.chance) for place in range(3)]
        self.actors = [Schedules(_as_store(store), self.clock, IdMaker(self.clock)) for store in self.stores]
        self.spec = Spec(
            workflow=WORKFLOW,
            recurrence=self.chance.choice(RECURRENCES),
            overlap=self.chance.choice(list(Overlap)),
            catchup=self.chance.choice(list(CatchUp)),
            catchup_window_seconds=self.chance.choice([300, 3600]),
        )
        self.created_ms = milliseconds(START)
        self.verdicts: dict[str, str | Skipped] = {}
        self.judged_through_ms = 0
        self.known: dict[int, str] = {}
        self.backfilled: set[str] = set()
        self.done: Counter[str] = Counter()
        self.actors[0].create("s", self.spec)
        for store in self.stores:
            store.crash_rate = 0.12

    def now_ms(self) -> int:
        return int(self.clock.seconds() * 1000)

    def step(self) -> None:
        action = self.chance.choices(
            [self.fire, self.wait, self.jump, self.jump_back, self.end, self.pause, self.trigger, self.backfill],
            weights=[40, 25, 3, 4, 20, 3, 3, 2],
        )[0]
        try:
            action()
            self.done[action.__name__] += 1
        except CrashError:
            self.done["crash"] += 1
        finally:
            for store in self.stores:
                store.overtake = None
        self.check()

    def fire(self) -> None:
        started = self.actor().fire_due(self.now_ms())
        assert set(started) <= {item["execution_id"] for item in self.executions()}

    def actor(self) -> Schedules:
        """Return a process that another one may overtake between its reading and its writing."""
        first, second = self.chance.sample(range(3), 2)

        def overtake() -> None:
            self.stores[first].overtake = None
            self.done["overtaken"] += 1
            if self.chance.random() < 0.3:
                self.actors[second].pause("s", "by another")
                return
            self.clock.advance(self.chance.choice([0, 100]))
            self.actors[second].fire_due(self.now_ms())

        self.stores[first].overtake = overtake
        return self.actors[first]

    def wait(self) -> None:
        self.clock.advance(self.chance.choice([0.5, 7, 45, 130]))

    def jump(self) -> None:
        """No process is there for a while."""
        self.clock.advance(self.chance.choice([400, 1500, 4000]))

    def jump_back(self) -> None:
        self.clock.step(-self.chance.choice([1, 60, 300]))

    def end(self) -> None:
        """End one of the executions that are open, or most of them when there are many."""
        open_ids = self.open_ids()
        for each in self.chance.sample(open_ids, (len(open_ids) + 1) // 2):
            self.files[0].update(EXECUTIONS, Key(each), set={"status": "SUCCEEDED"})

    def pause(self) -> None:
        if self.schedule().paused:
            assert not self.actor().resume("s").paused
            assert not self.schedule().paused
        else:
            self.actor().pause("s", "for a while")
            assert self.schedule().reason == "for a while"

    def trigger(self) -> None:
        fire = self.actor().trigger("s", overlap=Overlap.SKIP)
        if fire.execution_id is not None:
            assert fire.execution_id in {item["execution_id"] for item in self.executions()}
        assert fire in self.schedule().fires

    def backfill(self) -> None:
        since = self.created_ms + self.chance.randrange(1, 1800) * 1000
        until = since + self.chance.randrange(1, 900) * 1000
        overlap = Overlap.BUFFER_ONE if self.spec.overlap in EXCLUSIVE else Overlap.ALLOW
        found = cron.times_between(self.spec.recurrence, moment(since - 1), moment(until - 1), 10_000)
        self.backfilled |= {slot_of(milliseconds(slot)) for slot in found}
        self.actor().backfill("s", moment(since), moment(until), overlap)

    def schedule(self) -> Schedule:
        return Schedules(self.files[0], self.clock, IdMaker(self.clock)).get("s")

    def executions(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        cursor: str | None = None
        while True:
            page = self.files[0].query(
                Query(table=EXECUTIONS, index="workflow-index", partition=WORKFLOW, cursor=cursor, limit=1000)
            )
            found += page.items
            cursor = page.cursor
            if cursor is None:
                return found

    def open_ids(self) -> list[str]:
        return sorted(item["execution_id"] for item in self.executions() if item["status"] == "RUNNING")

    def slots(self, until_ms: int) -> set[str]:
        """Return the slots since the schedule was made. They are walked once, because there are many checks."""
        after = moment(max(self.known, default=self.created_ms))
        for slot in cron.times_between(self.spec.recurrence, after, moment(until_ms), 100_000):
            self.known[milliseconds(slot)] = slot_of(milliseconds(slot))
        return {text for slot_ms, text in self.known.items() if slot_ms <= until_ms}

    def check(self) -> None:
        schedule = self.schedule()
        assert schedule.judged_through_ms >= self.judged_through_ms, "it went back"
        self.judged_through_ms = schedule.judged_through_ms
        judged = self.slots(schedule.judged_through_ms)
        waiting = 0 if schedule.buffered_ms is None else 1
        assert schedule.started_count + schedule.skipped_count + waiting == len(judged), "each slot has one verdict"
        by_slot = self.slot_executions()
        assert by_slot <= judged, "nothing starts before its time, or before the schedule was made"
        assert len(by_slot - self.backfilled) <= schedule.started_count <= len(by_slot), "what is said was done"
        if self.spec.overlap in EXCLUSIVE:
            assert len(self.open_ids()) <= 1, "one at a time"
        self.remember(schedule, judged)

    def slot_executions(self) -> set[str]:
        """Return the slots that have an execution, each of which must have been started exactly once."""
        found = set()
        for item in self.executions():
            assert item.get("run", 1) == 1
            _, _, slot = item["execution_id"].partition("/")
            if not slot.startswith("trigger-"):
                found.add(slot)
        return found

    def remember(self, schedule: Schedule, judged: set[str]) -> None:
        """A verdict does not change, but that a backfill starts what had been skipped."""
        for fire in schedule.fires:
            if fire.by_hand:
                continue
            assert fire.slot in judged
            verdict = fire.execution_id or fire.skipped
            assert verdict is not None
            before = self.verdicts.setdefault(fire.slot, verdict)
            if before != verdict and fire.slot not in self.backfilled:
                raise AssertionError(f"{fire.slot}: {before}, and then {verdict}")

    def calm_down(self) -> None:
        """Nothing fails any more: what is due must be judged, in finite time."""
        for store in self.stores:
            store.crash_rate = 0.0
        if self.schedule().paused:
            self.actors[0].resume("s")
        self.clock.advance(2000)
        for _ in range(2000):
            due_ms = self.actors[0].next_due_ms()
            if due_ms is None or due_ms > self.now_ms():
                break
            self.actors[self.chance.randrange(3)].fire_due(self.now_ms())
            self.end()
        else:
            raise AssertionError("it is always due")
        self.check()
        missed = self.slots(self.now_ms() - 1000 * self.spec.recurrence.jitter_seconds) - self.slots(
            self.judged_through_ms
        )
        assert missed == set(), "every slot has a verdict"

    def check_mail(self) -> None:
        for item in self.executions():
            page = self.files[0].query(
                Query(table=INBOXES, partition=item["execution_id"], sort=Sort(Range.BEGINS_WITH, MESSAGES))
            )
            events = [load_event(each["body"]) for each in page.items]
            assert sum(isinstance(event, Started) for event in events) == 1
            # A backfill that comes to a slot which is still ending makes the schedule look after it again.
            _, _, slot = item["execution_id"].partition("/")
            assert len(events) <= 2 or slot in self.backfilled, "it is asked to end once"

    def close(self) -> None:
        for store in self.files:
            store.close()


def _as_store(store: FlakyStore) -> Store:
    """Return a wrapper that passes on whatever it is asked, which a type checker cannot see."""
    wrapped: Any = store
    return wrapped  # type: ignore[no-any-return]


@pytest.mark.parametrize("seed", SEEDS)
def test_schedules__crashes_races_and_clock_jumps__every_slot_has_one_verdict(tmp_path: Path, seed: int) -> None:
    world = World(seed, tmp_path)
    try:
        for _ in range(STEPS):
            world.step()
        world.calm_down()
        world.check_mail()
    except AssertionError as exc:
        raise AssertionError(f"seed {seed}, after {world.done}, {world.spec}") from exc
    finally:
        world.close()
    # The history was worth its name.
    assert world.done["fire"] > 10
    assert world.verdicts
    assert world.done["crash"] + world.done["overtaken"] > 0
