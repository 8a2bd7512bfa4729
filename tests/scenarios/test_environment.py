"""The environment for tests: stand-ins, time that is skipped, completion from outside, and what it says of waits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec import Raw

import headgate as hg
from headgate.durable.model.failures import ErrorInfo
from headgate.durable.schedules.cron import Recurrence
from headgate.durable.schedules.slots import Spec
from headgate.errors import DefinitionError, DeterminismError
from tests.scenarios import unordered
from tests.scenarios.conftest import OpenEnvironment
from tests.scenarios.histories import left_behind

app = hg.App("environment")


class Custom(Exception):
    """An error of the test's own."""


@app.activity(retry=hg.Retry(attempts=1))
def real(n: int) -> str:
    return f"real {n}"


@app.activity
async def real_async(n: int) -> str:
    await asyncio.sleep(0)
    return f"async {n}"


@app.activity(timeout="1m", retry=hg.Retry(attempts=1))
def limited(n: int) -> str:
    return f"limited {n}"


@app.workflow
async def calls(count: int) -> list[str]:
    found = []
    for n in range(count):
        try:
            found.append(await real(n))
        except Exception as exc:
            found.append(f"{type(exc).__name__}: {exc}")
    return found


@app.workflow
async def calls_async(n: int) -> Any:
    return await real_async(n)


@app.workflow
async def calls_limited() -> str:
    try:
        return await limited(1)
    except hg.ActivityTimeout as exc:
        return f"{exc.kind} at {hg.now().timestamp():.0f}"


@app.workflow
async def dozes(duration: str) -> str:
    await hg.sleep(duration)
    return hg.now().isoformat()


@app.workflow
async def waits() -> list[Any]:
    return [await hg.wait_signal("go"), hg.now().timestamp()]


# Stand-ins.


def test_activity__without_a_stand_in__is_the_real_one(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    assert env.result(env.start(calls, 2)) == ["real 0", "real 1"]
    assert env.result(env.start(calls_async, 5)) == "async 5"


def test_stand_in__returns_always_once_and_calls__in_that_order_of_precedence(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    stand_in = env.stand_in(real).returns("always").returns_once("once").raises_once(Custom("odd"))
    stand_in.calls_with_once(lambda n: f"called {n}")
    assert env.result(env.start(calls, 5)) == ["once", "Custom: odd", "called 2", "always", "always"]
    assert [call.args for call in stand_in.calls] == [(n,) for n in range(5)]


def test_stand_in__raises__fails_with_the_very_error(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    env.stand_in(real).raises(Custom("custom"))
    assert env.result(env.start(calls, 2)) == ["Custom: custom"] * 2


def test_stand_in__changed_while_it_runs__counts_from_then_on(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")

    @mine.activity
    def asked() -> str:
        return "real"

    @mine.workflow
    async def twice() -> list[str]:
        first = await asked()
        await hg.wait_signal("go")
        return [first, await asked()]

    env = open_env(mine)
    stand_in = env.stand_in(asked).returns("before")
    handle = env.start(twice)
    stand_in.returns("after")
    handle.signal("go")
    assert env.result(handle) == ["before", "after"]
    stand_in.calls_real()
    handle = env.start(twice)
    handle.signal("go")
    assert env.result(handle) == ["real", "real"]


def test_stand_in__of_an_async_activity__falls_back_to_the_real_one(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    stand_in = env.stand_in(real_async).returns_once("stood in")
    assert env.result(env.start(calls_async, 1)) == "stood in"
    assert env.result(env.start(calls_async, 2)) == "async 2"
    assert len(stand_in.calls) == 2


def test_stand_in__async_function_in_its_place__is_awaited(open_env: OpenEnvironment) -> None:
    async def other(n: int) -> str:
        await asyncio.sleep(0)
        return f"other {n}"

    env = open_env(app)
    env.stand_in(real).calls_with(other)
    assert env.result(env.start(calls, 1)) == ["other 0"]


def test_stand_in__that_waits__times_out_at_its_time(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    env.stand_in(limited).waits()
    assert env.result(env.start(calls_limited)) == "start_to_close at 1750000060"
    assert left_behind(env) == {}


def test_stand_in__that_waits__is_completed_by_its_token_now_or_later(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    env.stand_in(limited).waits()
    handle = env.start(calls_limited)
    assert len(env.tokens) == 1
    env.advance("30s")
    env.service.client.complete_activity(env.tokens[0], Raw(b'"by the test"'))
    assert env.result(handle) == "by the test"


def test_stand_in__that_waits_once__answers_the_next(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    env.stand_in(limited).waits_once()
    assert env.result(env.start(calls_limited)).startswith("start_to_close")
    assert env.result(env.start(calls_limited)) == "limited 1"


def test_stand_in__completed_within_the_call__is_no_different(open_env: OpenEnvironment) -> None:
    env = open_env(app)

    def complete_now(n: int) -> Any:
        token = hg.activity().token
        later.append(lambda: env.service.client.complete_activity(token, Raw(b'"handed over"')))
        return hg.complete_later()

    later: list[Any] = []
    env.stand_in(limited).calls_with(complete_now)
    handle = env.start(calls_limited)
    later[0]()
    assert env.result(handle) == "handed over"


def test_stand_in__failed_from_outside__raises_in_the_workflow(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    tokens: list[str] = []

    def keep(n: int) -> Any:
        tokens.append(hg.activity().token)
        return hg.complete_later()

    env.stand_in(real).calls_with(keep)
    handle = env.start(calls, 1)
    env.service.client.fail_activity(tokens[0], ErrorInfo(type="Broken", message=""))
    (found,) = env.result(handle)
    assert "Broken" in found


# Time.


def test_clock__of_the_environment__stands_still_until_it_is_moved(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    assert env.now.timestamp() == 1_750_000_000
    env.start(calls, 5)
    assert env.now.timestamp() == 1_750_000_000
    env.advance("90s")
    assert env.now.timestamp() == 1_750_000_090


def test_advance__in_steps_and_at_once__comes_to_the_same(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    at_once, in_steps = env.start(dozes, "1h"), env.start(dozes, "1h")
    for _ in range(60):
        env.advance("1m")
    assert env.result(at_once) == env.result(in_steps)


def test_advance__over_many_timers__each_is_seen_at_its_own_time(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")

    @mine.workflow
    async def hourly() -> list[float]:
        seen = []
        for _ in range(5):
            await hg.sleep("1h")
            seen.append(hg.now().timestamp() - 1_750_000_000)
        return seen

    env = open_env(mine)
    handle = env.start(hourly)
    env.advance("5h")
    assert handle.status() is hg.Status.SUCCEEDED
    assert env.result(handle) == [3600.0, 7200.0, 10800.0, 14400.0, 18000.0]


def test_result__skips_as_much_time_as_needed_and_no_more(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    env.result(env.start(dozes, "1000d"))
    assert (env.now.timestamp() - 1_750_000_000) / 86_400 == 1000
    with pytest.raises(TimeoutError):
        env.result(env.start(dozes, "10d"), within="9d")


def test_result__of_what_no_time_will_end__says_so(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(waits)
    with pytest.raises(TimeoutError, match="no timer will end the wait"):
        env.result(handle)
    env.advance("5s")
    handle.signal("go", "at last")
    assert env.result(handle) == ["at last", 1_750_000_005.0]


def test_start_seconds__given__is_when_it_begins() -> None:
    with hg.testing.Environment(app, start_seconds=86_400.0) as env:
        assert env.result(env.start(dozes, "1d")) == "1970-01-03T00:00:00+00:00"


def test_sleep__woken_by_a_signal_first__goes_on(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")

    @mine.workflow
    async def either() -> str:
        nap, ring = asyncio.ensure_future(hg.sleep("1d")), asyncio.ensure_future(hg.wait_signal("ring"))
        await asyncio.wait({nap, ring}, return_when=asyncio.FIRST_COMPLETED)
        return "rung" if ring.done() else "slept"

    env = open_env(mine)
    handle = env.start(either)
    env.advance("1h")
    handle.signal("ring")
    assert env.result(handle) == "rung"
    assert env.result(env.start(either)) == "slept"


# The environment itself.


def test_environment__used_twice_in_a_row__shares_nothing(replay_always: bool) -> None:
    for _ in range(2):
        with hg.testing.Environment(app, replay_always=replay_always) as env:
            assert env.start(calls, 1, id="same").was_started is True


def test_app__after_its_environment__is_not_connected(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")

    @mine.workflow
    async def nothing() -> None: ...

    with hg.testing.Environment(mine):
        nothing.start()
    with pytest.raises(DefinitionError, match="not connected"):
        nothing.start()


def test_run__of_what_starts_itself_for_ever__is_reported_and_does_not_hang(
    open_env: OpenEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hg.testing, "STEPS_MAX", 200)
    mine = hg.App("mine")

    @mine.workflow
    async def for_ever(n: int) -> None:
        if n < 500:
            hg.continue_as_new(n + 1)

    env = open_env(mine)
    with pytest.raises(AssertionError, match="restarts itself endlessly"):
        env.start(for_ever, 0)


def test_start__reuse_terminate__ends_the_one_that_runs_and_does_not_hang(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    first = env.start(waits, id="same")
    second = env.start(waits, id="same", reuse="terminate")
    assert second.was_started is True
    assert first.describe().run == 2
    second.signal("go", 1)
    assert env.result(second)[0] == 1


def test_worker__of_the_environment_dropped_in_the_middle__loses_nothing(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(dozes, "1h")
    for _ in range(6):
        env.advance("10m")
        env.worker.engine.drop()
    assert handle.status() is hg.Status.SUCCEEDED


def test_queues__of_all_activities__are_served(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")

    @mine.activity(queue="gpu")
    def heavy() -> str:
        return "heavy"

    @mine.workflow
    async def asks() -> list[str]:
        return [await heavy(), await heavy.options(queue="other")()]

    env = open_env(mine)
    handle = env.start(asks)
    with pytest.raises(TimeoutError):
        env.result(handle, within="1d")
    assert handle.status() is hg.Status.RUNNING


def test_schedule__of_a_workflow_with_limits__gives_them_to_its_executions(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")

    @mine.workflow(timeout="1h", retention="2d")
    async def nightly() -> str:
        await hg.wait_signal("never")
        return "done"

    env = open_env(mine)
    env.service.schedules.create("night", Spec(workflow="nightly", recurrence=Recurrence("0 2 * * *")))
    env.advance("1d")
    (started,) = env.service.client.list(workflow="nightly").executions
    assert started.execution_id.startswith("night/")
    assert started.status is hg.Status.TIMED_OUT
    assert started.retention_seconds == 2 * 86_400


# In place of a child.

family = hg.App("family")


@family.activity
def double(n: int) -> int:
    return 2 * n


@family.workflow
async def child(n: int, *, extra: int = 0) -> int:
    return await double(n) + extra


@family.workflow
async def parent(numbers: list[int]) -> list[Any]:
    found: list[Any] = []
    for n in numbers:
        try:
            async with asyncio.timeout(60):
                found.append(await child(n, extra=1))
        except (TimeoutError, LookupError, Custom) as exc:
            found.append(f"{type(exc).__name__} {exc}".strip())
    return found


def test_stand_in__of_a_child__answers_in_its_place_once_and_always(open_env: OpenEnvironment) -> None:
    env = open_env(family)
    stand_in = env.stand_in(child).returns_once(100).raises_once(Custom("odd")).returns(7)
    assert env.result(env.start(parent, [1, 2, 3, 4])) == [100, "Custom odd", 7, 7]
    assert [(call.args, call.kwargs) for call in stand_in.calls] == [((), {"n": n, "extra": 1}) for n in (1, 2, 3, 4)]
    assert left_behind(env) == {}


def test_stand_in__of_a_child__calls_a_function_or_a_workflow_or_the_real_one(open_env: OpenEnvironment) -> None:
    env = open_env(family)

    def fails(n: int, extra: int) -> int:
        raise LookupError(f"{n} and {extra}")

    async def other(n: int, extra: int) -> int:
        await hg.sleep("10s")
        return 10 * await double(n) + extra

    stand_in = env.stand_in(child).calls_with_once(fails).calls_with_once(lambda n, extra: n + extra)
    stand_in.calls_with_once(other).calls_real()
    assert env.result(env.start(parent, [1, 2, 3, 4])) == ["LookupError 1 and 1", 3, 61, 9]


def test_stand_in__of_a_child_that_waits__ends_by_the_time_limit_of_who_asked(open_env: OpenEnvironment) -> None:
    env = open_env(family)
    env.stand_in(child).waits_once().returns(1)
    handle = env.start(parent, [1, 2])
    env.advance("59s")
    assert handle.status() is hg.Status.RUNNING
    assert env.result(handle) == ["TimeoutError", 1]


def test_stand_in__of_a_child__is_gone_with_its_environment(open_env: OpenEnvironment) -> None:
    with hg.testing.Environment(family) as env:
        env.stand_in(child).returns(1)
        env.stand_in(child).returns(2)
        assert env.result(env.start(parent, [3])) == [2]
    assert family.workflows["child"] is child
    env = open_env(family)
    assert env.result(env.start(parent, [3])) == [7]


def test_stand_in__for_what_is_nothing_of_the_apps__is_refused(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    with pytest.raises(DefinitionError, match=r"workflow child: app environment does not have it"):
        env.stand_in(child)
    with pytest.raises(DefinitionError, match=r"activity double: app environment does not have it"):
        env.stand_in(double)
    with pytest.raises(DefinitionError, match=r"an activity or a workflow"):
        env.stand_in(len)  # type: ignore[arg-type]


def test_hash_seeds__code_iterates_over_a_set_of_strings__is_refused_at_the_end_naming_the_step() -> None:
    names = [f"name-{number}" for number in range(12)]
    with (
        pytest.raises(DeterminismError, match=r"execution e turn \d+: history has start activity visit") as raised,
        hg.testing.Environment(unordered.app, vary_hash_seeds=True) as env,
    ):
        env.result(env.start(unordered.visits_a_set, names, id="e"))
    assert "the order of a set of strings differs between processes" in str(raised.value)


def test_hash_seeds__by_default__workflows_with_sets_are_replayed_under_others() -> None:
    names = [f"name-{number}" for number in range(12)]
    for _ in range(2):
        with pytest.raises(DeterminismError, match="the order of a set"), hg.testing.Environment(unordered.app) as env:
            env.result(env.start(unordered.visits_a_set, names))
    with hg.testing.Environment(unordered.app, vary_hash_seeds=False) as env:
        assert len(env.result(env.start(unordered.visits_a_set, names))) == 12


def test_hash_seeds__code_keeps_an_order__passes() -> None:
    names = [f"name-{number}" for number in range(12)]
    with hg.testing.Environment(unordered.app, vary_hash_seeds=True) as env:
        assert len(env.result(env.start(unordered.visits_in_order, names))) == 24
