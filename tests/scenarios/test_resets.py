"""Resets and retries from the failure: what is kept, what runs again, and what becomes of everything that was open."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

import headgate as hg
from headgate.clock import VirtualClock
from headgate.durable.client.client import Client
from headgate.durable.client.result_waiters import ResultWaiters
from headgate.durable.engine.dispatcher import STEP_TRIES_MAX, Dispatcher
from headgate.durable.engine.turn_commit import TurnContext
from headgate.durable.model.history import Reset, Signal, Status, Woken
from headgate.durable.model.records import UNDISPATCHED
from headgate.errors import ConflictError, InvalidPayloadError, NotFoundError
from headgate.store.catalogue.tables import EXECUTIONS
from headgate.store.model.conditions import exists
from headgate.store.model.requests import Check
from headgate.store.model.schema import Key
from headgate.testing import replay
from tests.scenarios.conftest import OpenEnvironment
from tests.scenarios.histories import left_behind, turns

app = hg.App("resets")


class World:
    """What the activities have done, and how the code is wrong."""

    def __init__(self) -> None:
        self.effects: Counter[str] = Counter()
        self.keys: dict[str, set[str]] = {}
        self.bugs: set[str] = set()

    def has(self, bug: str) -> bool:
        return bug in self.bugs

    def stumble(self) -> None:
        if self.has("type error"):
            raise TypeError("unsupported operand")


world = World()


@pytest.fixture(autouse=True)
def fresh() -> None:
    world.__init__()  # type: ignore[misc]


@app.activity(retry=hg.Retry(attempts=2))
def effect(name: str) -> str:
    world.effects[name] += 1
    world.keys.setdefault(name, set()).add(hg.activity().activity_id)
    if world.has(f"fail {name}"):
        raise RuntimeError(f"{name} is down")
    return name


@app.workflow
async def nine_effects() -> list[str]:
    done = [await effect(f"e{number}") for number in range(9)]
    world.stumble()
    hg.emit("nine.done", id="done")
    return done


@app.workflow
async def stepwise() -> list[str]:
    return [await effect(name) for name in ("a", "b", "c")]


@app.workflow
async def parallel() -> list[str]:
    return list(await asyncio.gather(effect("left"), effect("right"), effect("third")))


@app.workflow
async def saga() -> str:
    await effect("reserve")
    try:
        await effect("ship")
    except RuntimeError:
        await effect("release")
        raise
    return "shipped"


@app.workflow
async def gathering() -> list[str]:
    seen: list[str] = []
    while len(seen) < 3:
        seen.append(await hg.wait_signal("item", type=str))
        await effect(seen[-1])
    world.stumble()
    return seen


@app.workflow
async def within_an_hour() -> str:
    async with asyncio.timeout(3600):
        return await effect("slow")


@app.workflow
async def child() -> str:
    await effect("child 1")
    return await effect("child 2")


@app.workflow
async def parent() -> Any:
    return await child()


@app.workflow
async def parent_of_a_sleeper() -> str:
    one = child_sleeps.options(id="sleeper")()
    await effect("beside")
    world.stumble()
    return f"{await one}"


@app.workflow
async def child_sleeps() -> str:
    await effect("before sleep")
    await hg.sleep("1h")
    return await effect("after sleep")


@app.workflow
async def rounds(left: int) -> str:
    await effect(f"round {left}")
    if left:
        hg.continue_as_new(left - 1)
    world.stumble()
    return "done"


@app.workflow
async def at_once() -> str:
    world.stumble()
    return await effect("only")


@app.workflow(retention="1h")
async def short_lived() -> str:
    await effect("old")
    world.stumble()
    return await effect("new")


def fail(env: hg.testing.Environment, workflow: Any, *args: Any, bug: str = "type error") -> hg.Handle:
    world.bugs.add(bug)
    handle = env.start(workflow, *args, id="x")
    env.advance("1m")
    assert handle.status() is Status.FAILED
    return handle


def fixed(env: hg.testing.Environment, handle: hg.Handle, **options: Any) -> Any:
    """Remove the bugs, continue from the failure, and return the result."""
    world.bugs.clear()
    env.service.client.retry_from_failure(handle.id, **options)
    return settled(env, handle)


def settled(env: hg.testing.Environment, handle: hg.Handle) -> Any:
    """Return the result of a reset execution, once nothing is left over and its history replays."""
    result = env.result(handle)
    assert not left_behind(env)
    replay(app.workflows[handle.describe().workflow], handle.id, turns(env, handle))
    return result


# From the failure.


def test_from_failure__error_in_workflow_code__no_effect_is_repeated(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = fail(env, nine_effects)
    assert fixed(env, handle, reason="fixed in 1.2") == [f"e{n}" for n in range(9)]
    assert set(world.effects.values()) == {1}
    row = handle.describe()
    assert (row.run, row.status, row.error) == (2, Status.SUCCEEDED, None)
    mark = next(event for turn in turns(env, handle) for event in turn.events if isinstance(event, Reset))
    assert (mark.reason, mark.from_failure) == ("fixed in 1.2", True)


def test_from_failure__failed_activity__fresh_attempts_and_the_same_key(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = fail(env, stepwise, bug="fail b")
    assert world.effects == {"a": 1, "b": 2}
    assert fixed(env, handle) == ["a", "b", "c"]
    assert world.effects == {"a": 1, "b": 3, "c": 1}
    assert len(world.keys["b"]) == 1, "a retry keeps the idempotency key"


def test_from_failure__one_of_several_failed__completed_ones_are_not_repeated(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = fail(env, parallel, bug="fail right")
    assert fixed(env, handle) == ["left", "right", "third"]
    assert (world.effects["left"], world.effects["third"]) == (1, 1)


def test_from_failure__failed_in_the_first_turn__starts_with_the_new_code(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = fail(env, at_once)
    assert fixed(env, handle) == "only"
    assert world.effects == {"only": 1}


def test_from_failure__code_handled_the_failure__refused_with_the_remedy(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = fail(env, saga, bug="fail ship")
    with pytest.raises(ConflictError, match=r"went on with activity effect#3; .*reset x --to TURN"):
        fixed(env, handle)
    assert handle.status() is Status.FAILED


def test_from_failure__terminated__goes_on_where_it_was(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(child_sleeps, id="x")
    handle.terminate("by mistake")
    env.run()
    assert handle.status() is Status.TERMINATED
    assert fixed(env, handle) == "after sleep"
    assert world.effects == {"before sleep": 1, "after sleep": 1}


def test_from_failure__cancelled__goes_on_where_it_was(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(child_sleeps, id="x")
    handle.cancel("by mistake")
    env.run()
    assert handle.status() is Status.CANCELLED
    assert fixed(env, handle) == "after sleep"
    assert world.effects == {"before sleep": 1, "after sleep": 1}


def test_from_failure__succeeded_or_running__refused(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    done = env.start(stepwise, id="done")
    with pytest.raises(ConflictError, match="it is SUCCEEDED and has not failed"):
        env.service.client.retry_from_failure(done.id)
    sleeping = env.start(child_sleeps, id="sleeping")
    with pytest.raises(ConflictError, match="it is RUNNING and has not failed"):
        env.service.client.retry_from_failure(sleeping.id)


def test_from_failure__time_out_around_the_activity__has_the_time_that_was_left(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = fail(env, within_an_hour, bug="fail slow")
    env.advance("2d")
    assert fixed(env, handle) == "slow"


def test_from_failure__child_failed__the_child_goes_on_from_its_failure(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = fail(env, parent, bug="fail child 2")
    assert fixed(env, handle) == "child 2"
    assert world.effects == {"child 1": 1, "child 2": 3}


def test_from_failure__child_was_terminated_with_its_parent__the_child_goes_on(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = fail(env, parent_of_a_sleeper)
    assert env.service.client.get("sleeper").status is Status.TERMINATED
    assert fixed(env, handle) == "after sleep"
    assert world.effects == {"before sleep": 1, "after sleep": 1, "beside": 1}


def test_from_failure__parent_waits_again__the_result_reaches_its_own_parent(open_env: OpenEnvironment) -> None:
    """The child keeps its id and its parent, so that a child that is repaired alone also repairs nothing twice."""
    env = open_env(app)
    world.bugs.add("fail child 2")
    handle = env.start(parent, id="x")
    env.advance("1m")
    fixed(env, handle)
    again = env.service.client.get("x")
    assert (again.status, again.result) == (Status.SUCCEEDED, '"child 2"')


def test_from_failure__after_continue_as_new__the_last_run_goes_on(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = fail(env, rounds, 2)
    assert fixed(env, handle) == "done"
    assert world.effects == {"round 2": 1, "round 1": 1, "round 0": 1}


def test_from_failure__archived__goes_on_from_the_archive(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = fail(env, short_lived)
    env.advance("2h")
    assert handle.describe().archive is not None
    assert fixed(env, handle) == "new"
    assert world.effects == {"old": 1, "new": 1}
    env.advance("2h")
    replay(short_lived, handle.id, turns(env, handle))
    assert env.service.client.started(handle.describe()).workflow == "short_lived"
    assert env.service.client.retry(handle.id).was_started


def test_from_failure__repeatedly__each_begins_with_what_the_last_one_reached(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = fail(env, stepwise, bug="fail b")
    world.bugs.add("fail c")
    world.bugs.discard("fail b")
    env.service.client.retry_from_failure(handle.id)
    env.advance("1m")
    assert handle.status() is Status.FAILED
    assert fixed(env, handle) == ["a", "b", "c"]
    assert world.effects == {"a": 1, "b": 3, "c": 3}
    assert handle.describe().run == 3


# To a turn or an activity.


def test_reset__to_an_activity__runs_it_and_what_follows_again(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(stepwise, id="x")
    done = env.service.client.reset("x", "effect#2", reason="wrong price")
    assert (done.run, done.is_new) == (2, True)
    assert settled(env, handle) == ["a", "b", "c"]
    assert world.effects == {"a": 1, "b": 2, "c": 2}
    assert len(world.keys["b"]) == 2, "work that is done anew has a new idempotency key"


def test_reset__to_a_turn__computes_it_again_without_repeating_what_it_received(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(stepwise, id="x")
    env.service.client.reset("x", 3)
    assert settled(env, handle) == ["a", "b", "c"]
    assert world.effects == {"a": 1, "b": 1, "c": 2}


def test_reset__to_the_first_turn__does_everything_again(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(stepwise, id="x")
    env.service.client.reset("x", 1)
    assert settled(env, handle) == ["a", "b", "c"]
    assert world.effects == {"a": 2, "b": 2, "c": 2}


@pytest.mark.parametrize("messages", ["keep", "drop"])
def test_reset__signals_after_the_point__applied_again_by_choice(open_env: OpenEnvironment, messages: str) -> None:
    env = open_env(app)
    handle = env.start(gathering, id="x")
    for name in ("one", "two", "three"):
        handle.signal("item", name)
        env.run()
    assert env.result(handle) == ["one", "two", "three"]
    env.service.client.reset("x", "effect#2", messages=messages)
    env.run()
    if messages == "keep":
        assert settled(env, handle) == ["one", "two", "three"]
    else:
        assert handle.status() is Status.RUNNING
        handle.signal("item", "other")
        assert settled(env, handle) == ["one", "two", "other"]
    assert world.effects["one"] == 1


def test_reset__running_execution__its_open_activity_and_timer_are_replaced(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    stand_in = env.stand_in(effect).waits()
    handle = env.start(within_an_hour, id="x")
    env.advance("30m")
    (token,) = env.tokens
    env.service.client.reset("x", 1)
    env.run()
    with pytest.raises(NotFoundError):
        env.service.client.complete_activity(token)
    assert len(stand_in.calls) == 2
    env.advance("45m")
    env.service.client.complete_activity(env.tokens[-1], Raw(b'"slow"'))
    assert settled(env, handle) == "slow"


def test_reset__stuck_execution__keeps_results_that_no_turn_has_recorded(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(gathering, id="x")
    handle.signal("item", "one")
    env.run()
    original = app.workflows["gathering"].function

    async def other() -> list[str]:
        await effect("another")
        return []

    app.workflows["gathering"].function = other
    env.worker.engine.drop()
    try:
        handle.signal("item", "two")
        env.advance("10m")
        assert handle.status() is Status.STUCK
    finally:
        app.workflows["gathering"].function = original
    env.service.client.reset("x", 2)
    env.run()
    handle.signal("item", "three")
    assert settled(env, handle) == ["one", "two", "three"]


def test_reset__before_a_continue_as_new__goes_back_to_that_run(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(rounds, 2, id="x")
    assert env.result(handle) == "done"
    env.service.client.reset("x", 2)
    assert settled(env, handle) == "done"
    assert world.effects == {"round 2": 1, "round 1": 2, "round 0": 2}


def test_reset__drops_a_child_that_started_later__it_starts_again(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(parent_of_a_sleeper, id="x")
    with pytest.raises(ConflictError, match="its child sleeper, started at turn 1 or later, is still open"):
        env.service.client.reset("x", 1)
    env.result(handle)
    env.service.client.reset("x", 1)
    assert settled(env, handle) == "after sleep"
    assert world.effects == {"before sleep": 2, "after sleep": 2, "beside": 2}


def test_reset__child_is_open__stays_and_reports_to_the_new_run(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(parent_of_a_sleeper, id="x")
    env.service.client.reset("x", "effect")
    assert settled(env, handle) == "after sleep"
    assert world.effects == {"before sleep": 1, "after sleep": 1, "beside": 2}


def test_reset__event_with_an_id__is_emitted_once(open_env: OpenEnvironment) -> None:
    other = hg.App("events")
    received: list[str] = []
    other.activities.update(app.activities)
    other.workflows["nine_effects"] = app.workflows["nine_effects"]
    other.on_event("nine.done", name="note")(lambda event: received.append(event.id))
    env = open_env(other)
    handle = env.service.client.start("nine_effects", Raw(b"null"), execution_id="x")
    env.run()
    assert received == ["done"]
    env.service.client.reset("x", "effect")
    assert env.result(handle) == [f"e{n}" for n in range(9)]
    assert received == ["done"]


def test_reset__same_request_twice__one_reset(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(stepwise, id="x")
    first = env.service.client.reset("x", "effect#3", request_id="once")
    second = env.service.client.reset("x", "effect#3", request_id="once")
    assert (first.run, first.to, second.is_new) == (second.run, second.to, False)
    assert settled(env, handle) == ["a", "b", "c"]
    assert env.service.client.reset("x", "effect#3", request_id="once").is_new is False
    assert world.effects == {"a": 1, "b": 1, "c": 2}


def test_reset__earlier_request_again_after_a_later_one__changes_nothing(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(stepwise, id="x")
    client = env.service.client
    first = client.reset("x", "effect#3", request_id="one")
    settled(env, handle)
    client.reset("x", 1, request_id="two")
    settled(env, handle)
    before = dict(world.effects)
    again = client.reset("x", "effect#3", request_id="one")
    assert (again.is_new, again.to) == (False, first.to)
    settled(env, handle)
    assert world.effects == before


def test_from_failure__stuck__keeps_the_reason_and_happens_once_for_a_key(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(gathering, id="x")
    original = app.workflows["gathering"].function

    async def other() -> list[str]:
        await effect("another")
        return []

    app.workflows["gathering"].function = other
    env.worker.engine.drop()
    client = env.service.client
    try:
        handle.signal("item", "one")
        env.advance("10m")
        assert handle.status() is Status.STUCK
        assert client.retry_from_failure("x", reason="a first try", request_id="k").is_new
        env.advance("10m")
        assert handle.status() is Status.STUCK
        assert not client.retry_from_failure("x", reason="a first try", request_id="k").is_new
        env.run()
        assert handle.status() is Status.STUCK, "the same request has redriven it again"
    finally:
        app.workflows["gathering"].function = original
    client.retry_from_failure("x", reason="the code is back", request_id="k-2")
    env.run()
    woken = [event.reason for turn in turns(env, handle) for event in turn.events if isinstance(event, Woken)]
    assert "redriven: the code is back" in woken


@app.workflow
async def listens() -> int:
    heard = 0
    while heard < 2:
        await hg.wait_signal("news")
        heard += 1
    return heard


@app.workflow
async def tells_and_fails() -> str:
    telling = hg.signal("listener", "news")
    world.stumble()
    await telling
    return "told"


@app.workflow
async def parent_of_a_teller() -> str:
    return await tells_and_fails.options(id="teller")()


class BusyChildStore:
    """A store in which the row of a child changes whenever it was read."""

    def __init__(self, store: Any, child_id: str) -> None:
        self._store = store
        self._child_id = child_id
        self.reads = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def get(self, table: Any, key: Any, **options: Any) -> Any:
        found = self._store.get(table, key, **options)
        if table is EXECUTIONS and key.partition == self._child_id and found is not None:
            self.reads += 1
            self._store.update(table, key, set={"version": found["version"] + 1})
        return found


def test_from_failure__child_that_changes_all_the_time__is_left_to_a_later_cycle(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    env.start(listens, id="listener")
    handle = fail(env, parent_of_a_teller)
    world.bugs.clear()
    client = env.service.client
    client.retry_from_failure(handle.id)
    row = client.get(handle.id)
    assert row.dispatched is not None, "the child is not resumed yet"
    busy = BusyChildStore(env.service.store, "teller")
    dispatcher = Dispatcher(busy, lambda _: None, lambda _: False)
    context = TurnContext(
        now_ms=row.ready_at_ms or 0,
        worker="w",
        claim=lambda _: None,
        membership=lambda: Check(EXECUTIONS, Key("x"), exists()),
        unique=iter(map(str, range(1000))).__next__,
        event_writes=lambda *_: [],
    )
    with pytest.raises(ConflictError, match=f"was computed {STEP_TRIES_MAX} times"):
        dispatcher.finish(row, context, None, lambda _: None)
    assert busy.reads == STEP_TRIES_MAX
    assert env.result(handle) == "told"


def test_from_failure__child_with_commands_that_a_crash_left__they_are_carried_out_first(
    open_env: OpenEnvironment,
) -> None:
    env = open_env(app)
    listener = env.start(listens, id="listener")
    handle = fail(env, parent_of_a_teller)
    client = env.service.client
    row = client.get("teller")
    # As if the process had died after the turn that ended the child, before its commands were dispatched.
    crashed = replace(row, version=row.version + 1, dispatched=0, ready_pk=UNDISPATCHED)
    env.service.store.transact([crashed.replacing(row.version)])
    world.bugs.clear()
    client.retry_from_failure(handle.id)
    assert env.result(handle) == "told"
    # Of the child before the reset, of its dispatch again, and of its new run.
    assert env.result(listener) == 2
    assert sum(isinstance(event, Signal) for turn in turns(env, listener) for event in turn.events) >= 2


@app.workflow
async def counts_news(count: int) -> int:
    for _ in range(count):
        await hg.wait_signal("news")
    return count


def leave_commands(env: hg.testing.Environment, execution_id: str) -> None:
    """Leave an execution as if its process had died after its last turn, before the commands were dispatched."""
    row = env.service.client.get(execution_id)
    crashed = replace(row, version=row.version + 1, dispatched=0, ready_pk=UNDISPATCHED)
    env.service.store.transact([crashed.replacing(row.version)])


def test_start__closed_execution_with_commands_that_a_crash_left__they_are_carried_out_first(
    open_env: OpenEnvironment,
) -> None:
    env = open_env(app)
    listener = env.start(counts_news, 3, id="listener")
    world.bugs.add("type error")
    env.start(tells_and_fails, id="teller")
    leave_commands(env, "teller")
    world.bugs.clear()
    again = env.start(tells_and_fails, id="teller", reuse="closed")
    assert env.result(again) == "told"
    # Of the run that failed, of its dispatch again, and of the new run.
    assert env.result(listener) == 3


class WaitingStore:
    """A store in which nothing happens while a caller waits, but time passes."""

    def __init__(self, store: Any, clock: VirtualClock) -> None:
        self._store = store
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def wait(self, generation: int, timeout_seconds: float) -> int:
        self._clock.advance(timeout_seconds)
        return generation


def test_start__no_worker_dispatches_the_commands_that_are_left__refused_and_nothing_is_dropped(
    open_env: OpenEnvironment,
) -> None:
    env = open_env(app)
    env.start(counts_news, 2, id="listener")
    world.bugs.add("type error")
    env.start(tells_and_fails, id="teller")
    leave_commands(env, "teller")
    service = env.service
    clock = VirtualClock(env.clock.seconds())
    store: Any = WaitingStore(service.store, clock)
    waiters = ResultWaiters(store, clock)
    alone = Client(service.store, clock, service.ids, service._keyring, service.archive, waiters=waiters)
    with pytest.raises(ConflictError, match="commands of its last turn are not dispatched yet; start a worker"):
        alone.start("tells_and_fails", Raw(b"null"), execution_id="teller", reuse="closed")
    assert service.client.get("teller").dispatched == 0


def test_reset__child_of_the_earlier_run_with_commands_that_a_crash_left__they_are_carried_out_first(
    open_env: OpenEnvironment,
) -> None:
    env = open_env(app)
    listener = env.start(counts_news, 3, id="listener")
    handle = fail(env, parent_of_a_teller)
    leave_commands(env, "teller")
    world.bugs.clear()
    env.service.client.reset(handle.id, 1)
    assert env.result(handle) == "told"
    assert env.result(listener) == 3


def test_reset__query_and_history__of_the_new_run(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    env.start(stepwise, id="x")
    env.service.client.reset("x", "effect#2")
    env.run()
    row = env.service.client.get("x")
    assert row.kept_turns == "1-2"
    assert [turn.run for turn in turns(env, env.service.client.handle("x"))] == [1, 1, 1, 1, 2, 2, 2, 2]


@pytest.mark.parametrize(
    ("to", "error", "fact"),
    [
        (99, NotFoundError, "no turn 99"),
        ("nothing", NotFoundError, "no activity 'nothing'; it has effect"),
        ("effect#7", NotFoundError, "no activity 'effect#7'"),
    ],
)
def test_reset__unknown_point__refused_naming_what_there_is(
    open_env: OpenEnvironment, to: int | str, error: type[Exception], fact: str
) -> None:
    env = open_env(app)
    env.start(stepwise, id="x")
    with pytest.raises(error, match=fact):
        env.service.client.reset("x", to)
    with pytest.raises(InvalidPayloadError, match="signals 'some': use one of"):
        env.service.client.reset("x", 1, messages="some")
