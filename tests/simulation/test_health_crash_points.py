"""Signals, people and time, and a process that dies or is not answered at any of its calls: all agrees in the end."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from headgate.clock import VirtualClock
from headgate.durable.bus.subscriptions import Subscription
from headgate.durable.model.records import instant
from headgate.errors import ConflictError, IllegalTransitionError, OutcomeUnknownError, StoreBusyError, TransientError
from headgate.health.model.incidents import Changes
from headgate.health.model.signals import SignalUpdate, UpdateVerdict
from headgate.store.catalogue.tables import ACTIVITIES, EVIDENCE_CACHE
from headgate.store.keyring import Keyring
from headgate.store.model.schema import Key
from headgate.store.port import Store
from headgate.store.sqlite.store import Synchronous
from tests.health_rig import CRITICAL, OK, ORDERS, PAYMENTS, WARNING, Rig, check_invariants, evidence_id, trouble
from tests.simulation.durable_processes import Crash, Fault, ProcessStore, SeededIds
from tests.simulation.seeds import seeds
from tests.stores import open_sqlite

CALLS_MAX = 60
# Read here, because tests themselves see no setting of the machine.
SEEDS = seeds(4)
STEPS = 150
SUBSCRIBER = Subscription(name="listener", types=("headgate.*",))
EVIDENCE = [evidence_id(number) for number in range(6)]


class World:
    """A store that outlives the processes on it."""

    def __init__(self, folder: Path, seed: int = 0, like: World | None = None) -> None:
        """Begin with nothing, or with what another world came to that was closed."""
        self.folder = folder
        self.draw = random.Random(seed)
        self.clock: VirtualClock = VirtualClock() if like is None else VirtualClock(like.clock.seconds())
        self.keyring: Keyring = Keyring.generate(self.clock) if like is None else like.keyring
        if like is not None:
            shutil.copytree(like.folder, folder)
        self.store = open_sqlite(folder, clock=self.clock, synchronous=Synchronous.NORMAL)
        self.eye = self.process(None)
        if like is not None:
            return
        self.eye.bus.register([SUBSCRIBER], "tests")
        for name in EVIDENCE:
            row = {"evidence_id": name, "dataset_urn": ORDERS, "created_at": instant(self.eye.now_ms)}
            self.store.put(EVIDENCE_CACHE, {**row, "ttl": self.eye.now_ms // 1000 + 86_400})

    def process(self, fault: Fault | None) -> Rig:
        store = ProcessStore(self.store)
        store.fault = fault
        ids = SeededIds(self.clock, random.Random(self.draw.random()))
        return Rig(
            cast("Store", store),
            self.clock,
            self.keyring,
            self.folder,
            ids=ids,
            eye=self.store,
            started_ms=1_749_999_999_999,
        )

    def calls(self, rig: Rig) -> int:
        return cast("ProcessStore", rig.store).calls

    def check(self) -> None:
        check_invariants(self.eye, [ORDERS, PAYMENTS], pinned=EVIDENCE)
        # The committing process makes the deliveries too, so that no event can be forgotten.
        keys = [Key(f"{SUBSCRIBER.name}#{each['_kept_as']}") for each in self.eye.stored_events()]
        for start in range(0, len(keys), 100):
            assert None not in self.store.get_many(ACTIVITIES, keys[start : start + 100], consistent=True)

    def close(self) -> None:
        self.store.close()


Act = Callable[[Rig], object]
Prepare = Callable[[Rig], Act]


def one_update(rig: Rig) -> Act:
    rig.say(OK)
    rig.clock.advance(1)
    update = rig.update(CRITICAL, evidence=EVIDENCE[:2])
    return lambda process: process.signals.update(update)


def a_batch_that_opens(rig: Rig) -> Act:
    rig.signals.update_many([rig.update(OK, kind=kind) for kind in "ABC"])
    rig.clock.advance(1)
    updates = [
        rig.update(CRITICAL, kind="A", evidence=EVIDENCE[:2]),
        rig.update(CRITICAL, kind="B", evidence=EVIDENCE[1:3]),
        rig.update(CRITICAL, kind="C", signature="LOW:x"),
        rig.update(CRITICAL, urn=PAYMENTS),
        rig.update(WARNING, kind="D"),
        rig.update(OK, kind="A", ago_ms=700_000),
    ]
    return lambda process: process.signals.update_many(updates)


def a_join(rig: Rig) -> Act:
    rig.say(CRITICAL)
    rig.clock.advance(1)
    update = rig.update(CRITICAL, kind="VOLUME", evidence=EVIDENCE[:2])
    return lambda process: process.signals.update(update)


def a_change_of_trouble(rig: Rig) -> Act:
    rig.say(CRITICAL, evidence=EVIDENCE[:2])
    rig.clock.advance(1)
    update = rig.update(CRITICAL, signature="LOW:x", evidence=EVIDENCE[2:4])
    return lambda process: process.signals.update(update)


def an_opening(rig: Rig) -> Act:
    rig.say(WARNING)
    return lambda process: process.incidents.open(trouble(ORDERS, evidence_sample=tuple(EVIDENCE[:3])), actor="e")


def a_resolution(rig: Rig) -> Act:
    rig.say(CRITICAL, evidence=EVIDENCE[:2])
    rig.say(CRITICAL, kind="VOLUME")
    incident_id = rig.incident_of().incident_id
    return lambda process: process.incidents.change(incident_id, Changes(status="RESOLVED"), actor="ana")


def a_reopening(rig: Rig) -> Act:
    a_resolution(rig)(rig)
    incident_id = rig.all_incidents()[0].incident_id
    return lambda process: process.incidents.change(incident_id, Changes(status="OPEN", reason="no"), actor="ana")


def a_recurrence(rig: Rig) -> Act:
    a_resolution(rig)(rig)
    rig.clock.advance(1)
    rig.say(OK)
    rig.clock.advance(1)
    update = rig.update(CRITICAL, evidence=EVIDENCE[2:4])
    return lambda process: process.signals.update(update)


def a_merge(rig: Rig) -> Act:
    rig.say(CRITICAL, evidence=EVIDENCE[:2])
    rig.say(CRITICAL, urn=PAYMENTS, kind="VOLUME", signature="LOW:x", evidence=EVIDENCE[2:4])
    into, other = rig.incident_of().incident_id, rig.incident_of("VOLUME", PAYMENTS).incident_id

    def act(process: Rig) -> None:
        try:
            process.incidents.merge(other, into, actor="ana")
        except IllegalTransitionError:
            # Repeated by a client that received no answer.
            assert process.incidents.get(other).merged_into == into

    return act


def an_escalation(rig: Rig) -> Act:
    rig.say(CRITICAL)
    rig.pass_minutes(16)
    return lambda process: process.incident_timers.sweep()


def a_recovery(rig: Rig) -> Act:
    rig.say(CRITICAL, evidence=EVIDENCE[:2])
    rig.say(CRITICAL, kind="VOLUME")
    rig.clock.advance(1)
    rig.say(OK)
    rig.say(OK, kind="VOLUME")
    rig.pass_minutes(6)
    return lambda process: process.incident_timers.sweep()


STORIES: list[Prepare] = [
    one_update, a_batch_that_opens, a_join, a_change_of_trouble, an_opening, a_resolution, a_reopening, a_recurrence,
    a_merge, an_escalation, a_recovery,
]  # fmt: skip


def end_of(rig: Rig) -> list[Any]:
    """What a story comes to, without ids, versions and times."""
    signals = [
        (row["PK"], row["SK"], row["state"], row.get("incident_id") is None) for row in rig.rows(ORDERS, PAYMENTS)
    ]
    incidents = [
        (each.status, each.episode, each.escalation_level, each.merged_into is None, sorted(each.signal_types))
        for each in rig.all_incidents()
    ]
    return [sorted(signals), sorted(incidents)]


@pytest.mark.parametrize("is_done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("crash", [True, False], ids=["dies", "fails"])
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_fault__at_every_call__done_again_it_ends_alike(
    tmp_path: Path, story: Prepare, crash: bool, is_done: bool
) -> None:
    ends: list[list[Any]] = []
    (tmp_path / "prepared").mkdir()
    prepared = World(tmp_path / "prepared")
    act = story(prepared.eye)
    prepared.close()
    for number in range(CALLS_MAX):
        world = World(tmp_path / str(number), number, like=prepared)
        try:
            # Number 0 is the story as it goes without a fault.
            process = world.process(Fault(number, crash=crash, is_done=is_done) if number else None)
            try:
                act(process)
            except (Crash, TransientError, ConflictError):
                world.check()
            calls = world.calls(process)
            world.check()
            again = world.process(None)
            act(again)
            world.check()
            ends.append(end_of(world.eye))
            assert ends[-1] == ends[0], f"a fault at call {number}"
        finally:
            world.close()
        if number > calls:
            assert number > 3, "the story has more calls than that"
            return
    pytest.fail(f"the story makes more than {CALLS_MAX} calls")


class Walk:
    """Engines, people and time by the throw of a die; each step may meet a fault, and is then made again."""

    KINDS = ("FRESHNESS", "VOLUME", "DRIFT_X")
    SIGNATURES = ("A:x", "B:y")

    def __init__(self, world: World) -> None:
        self.world = world
        self.draw = world.draw
        self.rig = world.eye

    def step(self) -> None:
        acts: list[Callable[[], Act]] = [
            *[self.update] * 3, *[self.people] * 2, self.batch, self.merge, self.sweep, self.wait, self.open,
        ]  # fmt: skip
        act = self.draw.choice(acts)()
        fault = None
        if self.draw.random() < 0.4:
            fault = Fault(self.draw.randint(1, 12), crash=self.draw.random() < 0.5, is_done=self.draw.random() < 0.5)
        for process in (self.world.process(fault), self.world.process(None)):
            try:
                act(process)
            except (Crash, TransientError, OutcomeUnknownError):
                continue
            except IllegalTransitionError:
                # People ask for what cannot be, or was done already.
                return
            return
        pytest.fail("without a fault it fails too")

    def said(self) -> SignalUpdate:
        state = self.draw.choice([OK, OK, WARNING, CRITICAL, CRITICAL])
        return self.rig.update(
            state,
            urn=self.draw.choice([ORDERS, PAYMENTS]),
            kind=self.draw.choice(self.KINDS),
            ago_ms=self.draw.choice([0, 0, 0, 60_000, 3_600_000]),
            signature=self.draw.choice(self.SIGNATURES) if state is not OK else None,
            evidence=self.draw.sample(EVIDENCE, 2),
        )

    def update(self) -> Act:
        update = self.said()

        def act(process: Rig) -> None:
            result = process.signals.update(update)
            if result.verdict is UpdateVerdict.UNAVAILABLE:
                raise StoreBusyError(result.message)

        return act

    def batch(self) -> Act:
        updates = [self.said() for _ in range(4)]

        def act(process: Rig) -> None:
            for result in process.signals.update_many(updates):
                if result.verdict is UpdateVerdict.UNAVAILABLE:
                    raise StoreBusyError(result.message)

        return act

    def open(self) -> Act:
        given = trouble(
            self.draw.choice([ORDERS, PAYMENTS]),
            *self.draw.sample(self.KINDS, 2),
            failure_signatures=(self.draw.choice(self.SIGNATURES),),
            evidence_sample=tuple(self.draw.sample(EVIDENCE, 2)),
        )
        return lambda process: process.incidents.open(given, actor="engine")

    def some_incident(self) -> str:
        found = self.rig.all_incidents()
        return self.draw.choice(found).incident_id if found else "INC-none"

    def people(self) -> Act:
        incident_id = self.some_incident()
        status = self.draw.choice(["ACKNOWLEDGED", "RESOLVED", "RESOLVED", "OPEN", "CLOSED"])
        changes = Changes(status=status, reason="because", assignee="ana")
        if incident_id == "INC-none":
            return lambda _process: None
        return lambda process: process.incidents.change(incident_id, changes, actor="ana")

    def merge(self) -> Act:
        first, second = self.some_incident(), self.some_incident()
        if "INC-none" in (first, second):
            return lambda _process: None
        return lambda process: process.incidents.merge(first, second, actor="ana")

    def sweep(self) -> Act:
        return lambda process: process.incident_timers.sweep()

    def wait(self) -> Act:
        self.world.clock.advance(self.draw.choice([1.0, 60.0, 360.0, 900.0, 2_400.0, 4_000.0]))
        return lambda process: process.incident_timers.sweep()


@pytest.mark.parametrize("seed", SEEDS)
def test_walk__engines_people_and_time__what_must_hold_holds_after_each_step(tmp_path: Path, seed: int) -> None:
    world = World(tmp_path, seed)
    walk = Walk(world)
    try:
        for number in range(STEPS):
            # Each step has its own moment: two windows that end at once are two engines, which is another story.
            world.clock.advance(0.5)
            walk.step()
            if number % 4 == 0:
                world.check()
        world.check()
    finally:
        world.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_walk__everything_is_well_at_last__every_incident_of_a_signal_ends(tmp_path: Path, seed: int) -> None:
    world = World(tmp_path, 100 + seed)
    walk = Walk(world)
    try:
        for _ in range(60):
            world.clock.advance(0.5)
            walk.step()
        rig = world.eye
        linked = {row["incident_id"] for row in rig.rows(ORDERS, PAYMENTS) if row.get("incident_id") is not None}
        world.clock.advance(1)
        for row in rig.rows(ORDERS, PAYMENTS):
            rig.say(OK, urn=row["PK"], kind=row["SK"])
        for _ in range(12):
            rig.pass_minutes(10)
            rig.incident_timers.sweep()
        still = [each for each in rig.incidents.get_many(sorted(linked)) if each is not None and each.is_open]
        assert still == []
        assert [row for row in rig.rows(ORDERS, PAYMENTS) if row.get("incident_id") is not None] == []
        world.check()
    finally:
        world.close()
