"""Timers: relative, absolute, in the past, very long, cancelled, many at once, and a clock that is set back."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

import headgate as hg
from headgate.durable.model.duration import Duration
from headgate.durable.model.history import StartTimer
from headgate.errors import UserError
from tests.scenarios.conftest import OpenEnvironment
from tests.scenarios.histories import commands, issued, left_behind, turns

app = hg.App("timers")


@app.workflow
async def sleeps(duration: str) -> float:
    before = hg.now()
    await hg.sleep(duration)
    return (hg.now() - before).total_seconds()


@app.workflow
async def sleeps_until(moment: datetime) -> str:
    await hg.sleep_until(moment)
    return hg.now().isoformat()


@app.workflow
async def sleeps_often(count: int) -> int:
    for _ in range(count):
        await hg.sleep("1h")
    return count


@app.workflow
async def many_timers(count: int) -> list[int]:
    woken: list[int] = []

    async def one(n: int) -> None:
        await hg.sleep(count - n)
        woken.append(n)

    await asyncio.gather(*(one(n) for n in range(count)))
    return woken


@app.workflow
async def same_time(count: int) -> list[int]:
    woken: list[int] = []

    async def one(n: int) -> None:
        await hg.sleep("5s")
        woken.append(n)

    await asyncio.gather(*(one(n) for n in range(count)))
    return woken


@app.workflow
async def ticks() -> list[str]:
    seen: list[str] = []
    for _ in range(3):
        await asyncio.sleep(1.5)
        seen.append(f"{hg.now():%S.%f}"[:4])
    return seen


@pytest.mark.parametrize(
    ("duration", "seconds"),
    [("1s", 1), ("250ms", 0.25), ("1h30m", 5400), ("3d", 259_200), ("52w", 31_449_600), ("0s", 0)],
)
def test_sleep__of_a_duration__lasts_that_long(open_env: OpenEnvironment, duration: str, seconds: float) -> None:
    env = open_env(app)
    assert env.result(env.start(sleeps, duration)) == seconds
    assert left_behind(env) == {}


@pytest.mark.parametrize("duration", [timedelta(minutes=2), 120, 120.0, "2m"])
def test_sleep__in_every_spelling__is_the_same(open_env: OpenEnvironment, duration: Duration) -> None:
    mine = hg.App("mine")

    @mine.workflow
    async def spelled() -> None:
        await hg.sleep(duration)

    env = open_env(mine)
    handle = env.start(spelled)
    (timer,) = [command for command in commands(env, handle) if isinstance(command, StartTimer)]
    assert timer.due_at_ms == 1_750_000_120_000


@pytest.mark.parametrize("duration", ["soon", "-1s", -1, float("nan"), "1000y"])
def test_sleep__of_what_is_no_duration__raises_in_the_workflow(open_env: OpenEnvironment, duration: str) -> None:
    mine = hg.App("mine")

    @mine.workflow
    async def misspelled() -> str:
        try:
            await hg.sleep(duration)
        except UserError:
            return "refused"
        return "slept"

    env = open_env(mine)
    assert env.result(env.start(misspelled)) == "refused"


def test_timer__scheduled_and_not_due__is_not_scheduled_again(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(sleeps, "1h")
    for _ in range(5):
        env.advance("10m")
    assert issued(env, handle) == ["start_timer"]
    assert len(turns(env, handle)) == 1
    env.advance("10m")
    assert issued(env, handle) == ["start_timer", "close"]


def test_sleep_until__in_the_future__wakes_then(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    moment = datetime(2030, 1, 1, 12, 0, tzinfo=UTC)
    assert env.result(env.start(sleeps_until, moment)) == moment.isoformat()
    assert env.now == moment


def test_sleep_until__in_the_past__does_not_wait(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    before = env.now
    assert env.result(env.start(sleeps_until, datetime(2001, 1, 1, tzinfo=UTC))) == before.isoformat()


def test_sleep__often__takes_a_turn_each(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(sleeps_often, 30)
    assert env.result(handle) == 30
    assert len(turns(env, handle)) == 31
    assert issued(env, handle) == ["start_timer"] * 30 + ["close"]


def test_timers__in_reverse__fire_by_time(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    assert env.result(env.start(many_timers, 50)) == list(reversed(range(50)))


@pytest.mark.parametrize("count", [3, 150])
def test_timers__of_the_same_moment__fire_all_and_replay_alike(open_env: OpenEnvironment, count: int) -> None:
    env = open_env(app)
    assert sorted(env.result(env.start(same_time, count))) == list(range(count))
    assert left_behind(env) == {}


def test_timers__of_the_same_moment__fire_in_the_order_they_were_made(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    assert env.result(env.start(same_time, 12)) == list(range(12))


def test_timers__overdue_after_a_long_pause__fire_in_order_of_their_time(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(many_timers, 12)
    env.clock.advance(3600)
    assert env.result(handle) == list(reversed(range(12)))


def test_timers__fractions_of_a_second__keep_them(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    assert env.result(env.start(ticks)) == ["41.5", "43.0", "44.5"]


def test_timer__cancelled_in_its_own_turn__is_never_written(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")

    @mine.workflow
    async def brief() -> str:
        async with asyncio.timeout(60):
            await asyncio.sleep(0)
        return "quick"

    env = open_env(mine)
    handle = env.start(brief)
    assert env.result(handle) == "quick"
    assert issued(env, handle) == ["close"]


def test_timer__cancelled_later__is_removed(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")

    @mine.workflow
    async def guarded() -> str:
        async with asyncio.timeout(3600):
            await hg.sleep(10)
        return "in time"

    env = open_env(mine)
    handle = env.start(guarded)
    assert env.result(handle) == "in time"
    assert issued(env, handle) == ["start_timer", "start_timer", "cancel_timer", "close"]
    assert left_behind(env) == {}


def test_call_later__as_asyncio_has_it__is_durable(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")

    @mine.workflow
    async def calls_back() -> list[str]:
        loop = asyncio.get_running_loop()
        called: list[str] = []
        done = loop.create_future()
        loop.call_later(2, called.append, "two")
        loop.call_at(loop.time() + 1, called.append, "one")
        cancelled = loop.call_later(3, called.append, "never")
        loop.call_later(4, done.set_result, None)
        loop.call_soon(cancelled.cancel)
        await done
        return called

    env = open_env(mine)
    assert env.result(env.start(calls_back)) == ["one", "two"]


def test_clock__set_back_while_asleep__time_of_the_execution_does_not_run_backwards(
    open_env: OpenEnvironment,
) -> None:
    env = open_env(app)
    handle = env.start(sleeps_often, 2)
    env.advance("1h")
    env.clock.step(-1800)
    env.run()
    assert env.result(handle) == 2
    moments = [turn.at_ms for turn in turns(env, handle)]
    assert moments == sorted(moments)


def test_clock__set_back_between_two_events_of_a_turn__replay_sees_the_same_time(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")

    @mine.workflow
    async def looks_twice() -> list[float]:
        seen: list[float] = []

        async def on_signal() -> None:
            await hg.wait_signal("look")
            seen.append(hg.now().timestamp())
            await note_time(seen[-1])

        looking = asyncio.ensure_future(on_signal())
        await hg.sleep(10)
        await looking
        return seen

    @mine.activity
    def note_time(at: float) -> None: ...

    env = open_env(mine)
    handle = env.start(looks_twice)
    env.clock.advance(10)
    env.worker.poll()
    handle.signal("look")
    env.worker.engine.read_inbox(handle.id)
    env.clock.step(-5)
    env.run()
    env.clock.step(5)
    assert len(env.result(handle)) == 1
    hg.testing.replay(looks_twice, handle.id, turns(env, handle))


def test_wait__longer_than_a_lease__survives(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(sleeps, "3650d")
    for _ in range(10):
        env.advance("365d")
    assert env.result(handle) == 3650 * 86_400
