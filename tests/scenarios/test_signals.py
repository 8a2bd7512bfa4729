"""Signals: waited for, handled, kept until someone takes them, sent between executions, received once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import headgate as hg
from headgate.durable.model.history import Signal, SignalSent
from headgate.errors import ExecutionClosedError, InvalidIdError, InvalidPayloadError, NotFoundError, UserError
from tests.scenarios.conftest import OpenEnvironment
from tests.scenarios.histories import events, issued, left_behind, notes, turns

app = hg.App("signals")


@app.activity
def double(n: int) -> int:
    return 2 * n


@app.workflow
async def waits() -> Any:
    return await hg.wait_signal("go")


@app.workflow
async def waits_at_most(limit: str) -> Any:
    try:
        return await hg.wait_signal("go", timeout=limit)
    except TimeoutError:
        return "timed out"


@app.workflow
async def waits_twice() -> list[Any]:
    return [await hg.wait_signal("go"), await hg.wait_signal("go")]


@app.workflow
async def two_waiters() -> list[Any]:
    return list(await asyncio.gather(hg.wait_signal("go"), hg.wait_signal("go")))


@app.workflow
async def waits_after_a_timeout() -> list[Any]:
    got: list[Any] = []
    for limit in ("10s", "20s"):
        try:
            got.append(await hg.wait_signal("go", timeout=limit))
        except TimeoutError:
            got.append(None)
    return got


@app.workflow
async def collects() -> list[Any]:
    got: list[Any] = []

    def take(value: Any) -> None:
        got.append(value)

    handler = hg.on_signal("item", take)
    await hg.wait_signal("stop")
    handler.dispose()
    await hg.wait_signal("end")
    return got


# Waiting.


def test_wait_signal__none_sent__waits_for_ever(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(waits)
    env.advance("365d")
    assert handle.status() is hg.Status.RUNNING
    assert issued(env, handle) == []
    with pytest.raises(TimeoutError, match="no timer will end the wait"):
        env.result(handle)


@pytest.mark.parametrize("value", [None, 0, "", "text", [1, {"a": None}], {"deep": {"er": [True]}}])
def test_wait_signal__payload__arrives_as_sent(open_env: OpenEnvironment, value: Any) -> None:
    env = open_env(app)
    handle = env.start(waits)
    handle.signal("go", value)
    assert env.result(handle) == value


def test_wait_signal__sent_before_it_waits__is_kept(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = waits.start()
    handle.signal("go", "early")
    assert env.result(handle) == "early"


def test_wait_signal__of_another_name__is_left_alone(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(waits_at_most, "10s")
    handle.signal("other", 1)
    env.run()
    assert handle.status() is hg.Status.RUNNING
    assert env.result(handle) == "timed out"


def test_wait_signal__time_out__raises_and_is_catchable(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(waits_at_most, "3d")
    started = env.now
    assert env.result(handle) == "timed out"
    assert (env.now - started).total_seconds() == 3 * 86_400


def test_wait_signal__before_the_time_out__cancels_the_timer(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(waits_at_most, "3d")
    handle.signal("go", "in time")
    assert env.result(handle) == "in time"
    assert issued(env, handle) == ["start_timer", "cancel_timer", "close"]
    assert left_behind(env) == {}


def test_wait_signal__after_the_time_out__goes_to_the_next_waiter(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(waits_after_a_timeout)
    env.advance("10s")
    handle.signal("go", "late")
    assert env.result(handle) == [None, "late"]


def test_wait_signal__signal_and_time_out_in_one_turn__the_signal_is_received_first(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(waits_at_most, "10s")
    env.clock.advance(10)
    handle.signal("go", "just in time")
    assert env.result(handle) == "just in time"
    assert left_behind(env) == {}


def test_wait_signal__twice__takes_two_signals_in_order(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(waits_twice)
    handle.signal("go", 1)
    handle.signal("go", 2)
    assert env.result(handle) == [1, 2]


def test_wait_signal__two_waiters_and_one_signal__both_receive_it(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(two_waiters)
    handle.signal("go", "all")
    assert env.result(handle) == ["all", "all"]


def test_wait_signal__cancelled_waiter__does_not_swallow_the_signal(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")

    @mine.workflow
    async def gives_up_once() -> Any:
        waiting = asyncio.ensure_future(hg.wait_signal("go"))
        await asyncio.sleep(1)
        waiting.cancel()
        await asyncio.sleep(1)
        return await hg.wait_signal("go")

    env = open_env(mine)
    handle = env.start(gives_up_once)
    env.advance("1s")
    handle.signal("go", "kept")
    env.run()
    assert env.result(handle) == "kept"


def test_wait_signal__typed__is_decoded_or_refused(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")

    @mine.workflow
    async def wants_a_number() -> str:
        try:
            await hg.wait_signal("n", type=int)
        except InvalidPayloadError as exc:
            return str(exc)
        return "a number"

    env = open_env(mine)
    good, bad = env.start(wants_a_number), env.start(wants_a_number)
    good.signal("n", 5)
    bad.signal("n", "five")
    assert env.result(good) == "a number"
    assert "signal n" in env.result(bad)


# Handling.


def test_on_signal__many__are_handled_in_order_and_do_not_resume_the_code(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(collects)
    for n in range(5):
        handle.signal("item", n)
    env.run()
    assert handle.status() is hg.Status.RUNNING
    handle.signal("stop")
    handle.signal("end")
    assert env.result(handle) == [0, 1, 2, 3, 4]


def test_on_signal__sent_before_it_is_registered__is_handed_over(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = collects.start()
    handle.signal("item", "early")
    env.run()
    handle.signal("item", "later")
    handle.signal("stop")
    handle.signal("end")
    assert env.result(handle) == ["early", "later"]


def test_on_signal__after_dispose__receives_nothing(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(collects)
    handle.signal("item", 1)
    handle.signal("stop")
    env.run()
    handle.signal("item", 2)
    handle.signal("end")
    assert env.result(handle) == [1]


def test_on_signal__disposed_of_twice__is_as_good_as_once(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")

    @mine.workflow
    async def disposes() -> str:
        handler = hg.on_signal("x", lambda: None)
        handler.dispose()
        handler.dispose()
        return "fine"

    env = open_env(mine)
    assert env.result(env.start(disposes)) == "fine"


def test_on_signal__several_handlers_and_a_waiter__everyone_receives_it(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")

    @mine.workflow
    async def everyone() -> list[Any]:
        got: list[Any] = []
        hg.on_signal("x", lambda value: got.append(["first", value]))
        hg.on_signal("x", lambda value: got.append(["second", value]))
        got.append(["waiter", await hg.wait_signal("x")])
        await asyncio.sleep(0)
        return got

    env = open_env(mine)
    handle = env.start(everyone)
    handle.signal("x", 1)
    assert sorted(env.result(handle)) == [["first", 1], ["second", 1], ["waiter", 1]]


def test_on_signal__async_handler__calls_activities_and_sleeps(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")

    @mine.activity
    def triple(n: int) -> int:
        return 3 * n

    @mine.workflow
    async def works_off() -> list[int]:
        done: list[int] = []

        async def work(n: int) -> None:
            await hg.sleep(n)
            done.append(await triple(n))

        hg.on_signal("work", work)
        await hg.wait_condition(lambda: len(done) == 3)
        return done

    env = open_env(mine)
    handle = env.start(works_off)
    for n in (3, 1, 2):
        handle.signal("work", n)
    assert env.result(handle) == [3, 6, 9]


def test_on_signal__handler_that_raises__is_noted_and_does_not_fail_the_workflow(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")

    @mine.workflow
    async def survives() -> str:
        def bad() -> None:
            raise ValueError("handler broke")

        async def worse() -> None:
            await hg.sleep(1)
            raise KeyError("async handler broke")

        hg.on_signal("bad", bad)
        hg.on_signal("bad", worse)
        return str(await hg.wait_signal("end"))

    env = open_env(mine)
    handle = env.start(survives)
    handle.signal("bad")
    env.advance("5s")
    handle.signal("end", "alive")
    assert env.result(handle) == "alive"
    assert any("handler broke" in text for text in notes(env, handle))
    assert any("async handler broke" in text for text in notes(env, handle))


def test_on_signal__payload_that_does_not_fit__is_noted_and_does_not_fail_the_workflow(
    open_env: OpenEnvironment,
) -> None:
    mine = hg.App("mine")

    @mine.workflow
    async def typed() -> list[int]:
        got: list[int] = []

        def take(n: int) -> None:
            got.append(n)

        hg.on_signal("n", take)
        await hg.wait_signal("end")
        return got

    env = open_env(mine)
    handle = env.start(typed)
    handle.signal("n", "five")
    handle.signal("n", 5)
    handle.signal("end")
    assert env.result(handle) == [5]
    assert any("signal n" in text for text in notes(env, handle))


def test_on_signal__handler_completes_what_the_code_awaits__goes_on_in_the_same_turn(
    open_env: OpenEnvironment,
) -> None:
    mine = hg.App("mine")

    @mine.workflow
    async def woken() -> str:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[str] = loop.create_future()

        def give(value: str) -> None:
            answer.set_result(value)

        hg.on_signal("give", give)
        return await answer

    env = open_env(mine)
    handle = env.start(woken)
    handle.signal("give", "yes")
    assert env.result(handle) == "yes"
    assert len(turns(env, handle)) == 2


def test_handler__still_working_when_the_workflow_returns__is_ended(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")

    @mine.workflow
    async def leaves() -> str:
        async def slow() -> None:
            await hg.sleep("1d")

        hg.on_signal("slow", slow)
        return str(await hg.wait_signal("end"))

    env = open_env(mine)
    handle = env.start(leaves)
    handle.signal("slow")
    env.run()
    handle.signal("end", "left")
    assert env.result(handle) == "left"
    assert left_behind(env) == {}


# Many, twice, and at once.


def test_signals__more_than_a_turn_takes__are_all_received_in_order(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(collects)
    for n in range(130):
        handle.signal("item", n)
    env.run()
    handle.signal("stop")
    handle.signal("end")
    assert env.result(handle) == list(range(130))


def test_signal__same_id_twice__is_received_once(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(collects)
    handle.signal("item", "a", id="one")
    handle.signal("item", "b", id="one")
    env.run()
    handle.signal("item", "c", id="one")
    handle.signal("item", "d", id="two")
    handle.signal("stop")
    handle.signal("end")
    assert env.result(handle) == ["a", "d"]


@pytest.mark.parametrize("name", ["", "x" * 201])
def test_signal__name_that_cannot_be_one__is_refused(open_env: OpenEnvironment, name: str) -> None:
    env = open_env(app)
    handle = env.start(waits)
    with pytest.raises(InvalidIdError):
        handle.signal(name)


def test_signal_with_start__none_open__starts_it_with_the_signal(open_env: OpenEnvironment) -> None:
    from msgspec import Raw

    env = open_env(app)
    client = env.service.client
    handle = client.signal_with_start("waits_twice", Raw(b"null"), "go", Raw(b"1"), execution_id="with")
    again = client.signal_with_start("waits_twice", Raw(b"null"), "go", Raw(b"2"), execution_id="with")
    assert (handle.was_started, again.was_started) == (True, False)
    assert env.result(handle) == [1, 2]
    third = client.signal_with_start("waits_twice", Raw(b"null"), "go", Raw(b"3"), execution_id="with")
    assert third.was_started is True
    env.run()
    assert third.status() is hg.Status.RUNNING


def test_signal_with_start__ended_and_not_to_be_started_anew__is_refused(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(waits, id="over")
    handle.signal("go", 1)
    assert env.result(handle) == 1
    for reuse in ("never", "failed"):
        with pytest.raises(ExecutionClosedError, match="over"):
            waits.signal_with_start("go", 2, id="over", reuse=reuse)
    assert handle.describe().run == 1


def test_signal__same_id_after_the_end__was_received(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(waits, id="over")
    handle.signal("go", 1, id="one")
    assert env.result(handle) == 1
    handle.signal("go", 1, id="one")
    with pytest.raises(ExecutionClosedError):
        handle.signal("go", 1, id="two")
    with pytest.raises(ExecutionClosedError):
        handle.signal("go", 1)
    again = env.start(waits, id="over", reuse="closed")
    again.signal("go", 2, id="one")
    assert env.result(again) == 2


@pytest.mark.parametrize("reuse", ["never", "failed", "closed", "terminate"])
def test_signal_with_start__same_signal_id_after_the_end__starts_no_second_run(
    open_env: OpenEnvironment, reuse: str
) -> None:
    env = open_env(app)
    handle = waits.signal_with_start("go", 1, id="over", signal_id="one", reuse=reuse)
    assert env.result(handle) == 1
    again = waits.signal_with_start("go", 1, id="over", signal_id="one", reuse=reuse)
    assert again.was_started is False
    assert again.describe().run == 1
    env.run()
    if reuse in ("closed", "terminate"):
        anew = waits.signal_with_start("go", 2, id="over", signal_id="two", reuse=reuse)
        assert env.result(anew) == 2
        assert anew.describe().run == 2


def test_signal_with_start__by_the_workflow__is_typed_and_takes_the_options_of_a_start(
    open_env: OpenEnvironment,
) -> None:
    env = open_env(app)
    handle = waits_at_most.signal_with_start(
        "other", {"a": 1}, "1h", id="with", tags={"team": "a"}, memo="m", timeout="10m"
    )
    assert handle.was_started
    row = handle.describe()
    assert (row.tags, row.memo) == ({"team": "a"}, '"m"')
    assert row.timeout_at_ms is not None
    # It runs with another input, which is as good.
    again = waits_at_most.signal_with_start("go", 5, limit="2h", id="with")
    assert again.was_started is False
    assert env.result(handle) == 5
    with pytest.raises(InvalidPayloadError, match="limit"):
        waits_at_most.signal_with_start("go", 5, 7, id="typed")
    for name, signal_id in (("", None), ("go", ""), ("go", "x" * 201)):
        with pytest.raises(InvalidIdError):
            waits.signal_with_start(name, id="odd", signal_id=signal_id)
    with pytest.raises(NotFoundError):
        env.service.client.get("odd")


def test_signal_with_start__inside_of_a_workflow__is_refused(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")

    @mine.workflow
    async def asks() -> None:
        waits.signal_with_start("go", id="x")

    env = open_env(mine)
    handle = env.start(asks)
    with pytest.raises(hg.ExecutionFailure, match=r"waits.signal_with_start\(\) inside of a workflow"):
        env.result(handle)


# Between executions.

talk = hg.App("talk")


@talk.workflow
async def listener() -> list[Any]:
    return [await hg.wait_signal("hello"), await hg.wait_signal("bye", timeout="1h")]


@talk.workflow
async def speaker(target: str) -> str:
    await hg.signal(target, "hello", {"from": hg.info().execution_id})
    await hg.sleep("1m")
    await hg.signal(target, "bye")
    return "said"


@talk.workflow
async def speaks_and_leaves(target: str) -> str:
    hg.signal(target, "hello", 1)
    hg.signal(target, "bye", 2)
    return "left"


@talk.workflow
async def speaks_and_works(target: str) -> str:
    hg.signal(target, "hello", 1)
    await hg.sleep("1s")
    hg.signal(target, "bye", 2)
    await hg.sleep("1s")
    return "left"


@talk.workflow
async def speaks_to_no_one(target: str) -> str:
    try:
        await hg.signal(target, "hello")
    except NotFoundError as exc:
        return f"nobody: {exc}"
    return "someone"


@talk.workflow
async def speaks_badly(target: str, name: str) -> str:
    try:
        await hg.signal(target, name)
    except UserError:
        return "refused"
    return "sent"


@talk.workflow
async def speaks_to_itself() -> Any:
    await hg.signal(hg.info().execution_id, "echo", "me")
    return await hg.wait_signal("echo")


def test_send__to_another_execution__is_received_once(open_env: OpenEnvironment) -> None:
    env = open_env(talk)
    ear = env.start(listener)
    mouth = env.start(speaker, ear.id)
    assert env.result(mouth) == "said"
    assert env.result(ear) == [{"from": mouth.id}, None]
    assert issued(env, mouth) == ["send_signal", "start_timer", "send_signal", "close"]
    assert len([event for event in events(env, ear) if isinstance(event, Signal)]) == 2
    assert len([event for event in events(env, mouth) if isinstance(event, SignalSent)]) == 2


def test_send__not_awaited_and_then_returned__is_still_sent(open_env: OpenEnvironment) -> None:
    env = open_env(talk)
    ear = env.start(listener)
    assert env.result(env.start(speaks_and_leaves, ear.id)) == "left"
    assert env.result(ear) == [1, 2]


def test_send__not_awaited_while_it_works_on__is_sent(open_env: OpenEnvironment) -> None:
    env = open_env(talk)
    ear = env.start(listener)
    mouth = env.start(speaks_and_works, ear.id)
    assert env.result(mouth) == "left"
    assert env.result(ear) == [1, 2]


@pytest.mark.parametrize("how", ["never was", "has ended"])
def test_send__to_no_one__raises_in_the_workflow(open_env: OpenEnvironment, how: str) -> None:
    env = open_env(talk)
    target = "nobody"
    if how == "has ended":
        ear = env.start(listener)
        ear.terminate()
        env.run()
        target = ear.id
    assert env.result(env.start(speaks_to_no_one, target)).startswith("nobody: ")


@pytest.mark.parametrize(
    ("target", "name"), [("", "x"), ("a b", "x"), ("x" * 3000, "x"), ("fine", ""), ("fine", "n" * 300)]
)
def test_send__to_what_cannot_be_an_id_or_name__raises_in_the_workflow_and_harms_no_other(
    open_env: OpenEnvironment, target: str, name: str
) -> None:
    env = open_env(talk)
    handle = env.start(speaks_badly, target, name)
    assert env.result(handle) == "refused"
    assert env.result(env.start(speaks_to_itself)) == "me"


def test_send__to_itself__is_received(open_env: OpenEnvironment) -> None:
    env = open_env(talk)
    assert env.result(env.start(speaks_to_itself)) == "me"


def test_send__abandoned_by_a_time_out__is_not_taken_for_an_activity(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")

    @mine.workflow
    async def hurried(target: str) -> str:
        sending = hg.signal(target, "go", 1)
        try:
            await asyncio.wait_for(asyncio.ensure_future(sending), timeout=0)
        except TimeoutError:
            return "did not wait"
        return "waited"

    @mine.workflow
    async def hears() -> Any:
        return await hg.wait_signal("go")

    env = open_env(mine)
    ear = env.start(hears)
    handle = env.start(hurried, ear.id)
    assert env.result(handle) == "did not wait"
    assert "cancel_activity" not in issued(env, handle)
