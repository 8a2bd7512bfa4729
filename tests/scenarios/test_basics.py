"""An execution from its first call to its result: blocks, partial completions, inner functions, many events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec import Raw

import headgate as hg
from headgate.durable.model.history import StartActivity, Started
from headgate.errors import (
    AlreadyStartedError,
    ConflictError,
    DefinitionError,
    ExecutionClosedError,
    InvalidIdError,
    InvalidPayloadError,
    NotFoundError,
    WorkflowViolationError,
)
from headgate.store.catalogue.tables import IDEMPOTENCY
from headgate.store.model.conditions import absent
from headgate.store.model.requests import Put
from headgate.store.model.schema import Key
from tests.scenarios.conftest import OpenEnvironment
from tests.scenarios.hashing import raw
from tests.scenarios.histories import commands, events, issued, kinds, left_behind, notes, turns

app = hg.App("basics")


@app.activity
def double(n: int) -> int:
    return 2 * n


@app.activity
def later(n: int) -> Any:
    return hg.complete_later()


@app.activity(name="named-otherwise")
def plainly_named(left: int, *, right: int = 10) -> list[int]:
    return [left, right]


@app.workflow
async def constant() -> str:
    return "done"


@app.workflow
async def one_call(n: int) -> int:
    return await double(n)


@app.workflow
async def three_in_a_row(n: int) -> int:
    for _ in range(3):
        n = await double(n)
    return n


@app.workflow
async def three_at_once() -> list[int]:
    first, second, third = double(1), double(2), double(3)
    return [await third, await first, await second]


@app.workflow
async def inner_functions(n: int) -> list[int]:
    async def inner(k: int) -> int:
        async def innermost() -> int:
            return await double(k) + 1

        return await innermost()

    return [await inner(n), await inner(n + 1)]


@app.workflow
async def fan(count: int) -> int:
    return sum(await asyncio.gather(*(double(n) for n in range(count))))


@app.workflow
async def partly() -> list[int]:
    first, second = later(1), later(2)
    hg.log("both asked for")
    got = [await first]
    hg.log("first is there")
    got.append(await double(100))
    got.append(await second)
    return got


@app.workflow
async def sees_itself(n: int) -> dict[str, object]:
    facts = hg.info()
    return {
        "id": facts.execution_id,
        "workflow": facts.workflow,
        "run": facts.run,
        "parent": facts.parent_id,
        "memo": facts.memo,
    }


@app.workflow
async def by_name(a: int, b: int = 2, *, c: int = 3) -> list[int]:
    return [a, b, c, *await plainly_named(a, right=c)]


@app.workflow
async def dangling() -> str:
    later(1)
    return "did not wait"


@app.workflow
async def nothing() -> None:
    await double(1)


def test_result__workflow_without_calls__closes_in_one_turn(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(constant)
    assert env.result(handle) == "done"
    assert issued(env, handle) == ["close"]
    assert len(turns(env, handle)) == 1
    assert handle.status() is hg.Status.SUCCEEDED


def test_first_turn__no_history__asks_for_the_first_activity_alone(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = three_in_a_row.start(1)
    env.worker.poll()
    env.worker.turn()
    (command,) = commands(env, handle)
    assert isinstance(command, StartActivity)
    assert (command.seq, command.name, bytes(command.input)) == (1, "double", b"1")
    assert env.result(handle) == 8


def test_calls__one_after_the_other__each_gets_the_next_number(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(three_in_a_row, 5)
    assert env.result(handle) == 40
    asked = [command for command in commands(env, handle) if isinstance(command, StartActivity)]
    assert [(command.seq, bytes(command.input)) for command in asked] == [(1, b"5"), (2, b"10"), (3, b"20")]
    assert left_behind(env) == {}


def test_calls__made_together__are_issued_in_order_of_creation_whatever_is_awaited_first(
    open_env: OpenEnvironment,
) -> None:
    env = open_env(app)
    handle = env.start(three_at_once)
    assert env.result(handle) == [6, 2, 4]
    asked = [command for command in commands(env, handle) if isinstance(command, StartActivity)]
    assert [bytes(command.input) for command in asked] == [b"1", b"2", b"3"]


def test_block__completed_in_parts__goes_on_as_far_as_it_can(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    tokens: list[str] = []

    def keep(n: int) -> object:
        tokens.append(hg.activity().token)
        return hg.complete_later()

    env.stand_in(later).calls_with(keep)
    handle = env.start(partly)
    assert len(tokens) == 2
    env.service.client.complete_activity(tokens[1], raw(2))
    env.run()
    assert notes(env, handle) == ["both asked for"]
    assert handle.status() is hg.Status.RUNNING
    env.service.client.complete_activity(tokens[0], raw(1))
    env.run()
    assert notes(env, handle) == ["both asked for", "first is there"]
    assert env.result(handle) == [1, 200, 2]


def test_inner_functions__awaiting_activities__return_their_results(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    assert env.result(env.start(inner_functions, 3)) == [7, 9]


@pytest.mark.parametrize("count", [0, 1, 90, 100, 350])
def test_many_calls__in_one_turn__all_happen_once(open_env: OpenEnvironment, count: int) -> None:
    env = open_env(app)
    stand_in = env.stand_in(double)
    handle = env.start(fan, count)
    assert env.result(handle) == sum(2 * n for n in range(count))
    assert sorted(call.args[0] for call in stand_in.calls) == list(range(count))
    assert left_behind(env) == {}


def test_info__inside__says_who_it_is(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(sees_itself, 1, id="itself", memo={"for": "you"})
    expected = {"id": "itself", "workflow": "sees_itself", "run": 1, "parent": None, "memo": {"for": "you"}}
    assert env.result(handle) == expected


def test_arguments__by_position_and_name__reach_workflow_and_activity(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    assert env.result(env.start(by_name, 1)) == [1, 2, 3, 1, 3]
    assert env.result(env.start(by_name, 1, b=5, c=6)) == [1, 5, 6, 1, 6]


def test_call__never_awaited__does_not_hold_up_the_result(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    assert env.result(env.start(dangling)) == "did not wait"
    assert left_behind(env) == {}


def test_result__of_a_workflow_that_returns_nothing__is_none(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    assert env.result(env.start(nothing)) is None


def test_first_event__of_every_execution__is_its_start(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(one_call, 4)
    assert kinds(events(env, handle)) == ["started", "activity_ended"]
    first = events(env, handle)[0]
    assert isinstance(first, Started)
    assert bytes(first.input) == b"4"


def test_activity__called_outside_of_a_workflow__just_runs() -> None:
    assert double(4) == 8  # type: ignore[comparison-overlap]


@pytest.mark.parametrize(
    "call", [hg.now, hg.random, hg.uuid, hg.info, lambda: hg.side_effect(int), lambda: one_call(1)]
)
def test_workflow_functions__outside_of_a_workflow__are_refused_by_name(call: object) -> None:
    with pytest.raises(WorkflowViolationError, match="belongs into a workflow"):
        call()  # type: ignore[operator]


# Starting.


def test_start__same_id_and_input_again__is_the_same_execution(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    first = env.start(one_call, 1, id="same")
    again = env.start(one_call, 1, id="same")
    assert (first.was_started, again.was_started) == (True, False)
    assert env.result(again) == 2
    once_more = env.start(one_call, 1, id="same")
    assert once_more.was_started is False
    assert len(events(env, once_more)) == 2


def test_start__same_id_and_another_input__is_refused(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    env.start(one_call, 1, id="same")
    with pytest.raises(AlreadyStartedError, match="same"):
        one_call.start(2, id="same")
    with pytest.raises(AlreadyStartedError, match="same"):
        constant.start(id="same")


def test_start__with_a_row_of_the_callers__both_are_there_or_neither(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    client = env.service.client
    row = {"idempotency_key": "mine"}
    mine = Put(IDEMPOTENCY, row, absent())
    handle = client.start("one_call", Raw(b"1"), execution_id="same", also=[mine])
    assert env.service.store.get(IDEMPOTENCY, Key("mine")) == row
    assert client.start("one_call", Raw(b"1"), execution_id="same", also=[mine]).was_started is False
    assert env.result(handle) == 2
    with pytest.raises(ConflictError):
        client.start("one_call", Raw(b"1"), execution_id="other", also=[mine])
    with pytest.raises(NotFoundError):
        client.get("other")


def test_start__input_that_differs_in_the_order_of_keys__is_the_same(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    env.start(by_name.options(id="same"), a=1, b=2)
    # Type checkers accept options beside named arguments only through `options`; they work all the same.
    assert by_name.start(b=2, a=1, id="same").was_started is False  # type: ignore[call-overload]


def test_start__closed_and_reuse_closed__runs_again_as_the_next_run(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    assert env.result(env.start(one_call, 1, id="same")) == 2
    again = env.start(one_call, 5, id="same", reuse="closed")
    assert again.was_started is True
    assert env.result(again) == 10
    assert again.describe().run == 2


def test_start__failed_and_reuse_failed__runs_again_but_not_after_success(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    stand_in = env.stand_in(double).raises_once(hg.NonRetryable("no"))
    with pytest.raises(hg.ExecutionFailure):
        env.result(env.start(one_call, 1, id="same", reuse="failed"))
    assert env.result(env.start(one_call, 1, id="same", reuse="failed")) == 2
    assert env.start(one_call, 1, id="same", reuse="failed").was_started is False
    assert len(stand_in.calls) == 2


@pytest.mark.parametrize("execution_id", ["", " ", "a b", "#", "~x", "x" * 201, "-first", 5, b"x"])
def test_start__id_that_cannot_be_one__is_refused(open_env: OpenEnvironment, execution_id: Any) -> None:
    open_env(app)
    with pytest.raises(InvalidIdError, match="use 1 to 200 letters"):
        constant.start(id=execution_id)


@pytest.mark.parametrize("name", [5, None])
def test_signal__name_that_is_no_text__is_refused(open_env: OpenEnvironment, name: Any) -> None:
    env = open_env(app)
    handle = env.start(one_call, 1, delay="1h")
    with pytest.raises(InvalidIdError, match="signal name"):
        handle.signal(name)
    with pytest.raises(InvalidIdError, match="signal id"):
        handle.signal("go", id=5)  # type: ignore[call-overload]


def test_options__of_a_child_that_there_are_not__are_refused_with_those_that_there_are() -> None:
    with pytest.raises(DefinitionError, match=r"constant: parent_close 'x'.*terminate.*cancel.*abandon"):
        constant.options(parent_close="x")
    with pytest.raises(InvalidIdError):
        constant.options(id=5)  # type: ignore[arg-type]


@pytest.mark.parametrize("input", ["abc", None, 1.5, [1]])
def test_start__input_that_is_not_as_annotated__is_refused_at_the_call(open_env: OpenEnvironment, input: Any) -> None:
    env = open_env(app)
    with pytest.raises(InvalidPayloadError, match="input of workflow one_call: parameter 'n'"):
        one_call.start(input, id="typed")
    with pytest.raises(NotFoundError):
        env.service.client.get("typed")


def test_start__without_an_id__gets_one_of_its_own(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    first, second = env.start(constant), env.start(constant)
    assert first.id != second.id
    assert first.id.startswith("constant/")


def test_start__delayed__begins_at_its_time(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(one_call, 1, delay="1h")
    assert turns(env, handle) == []
    env.advance("59m")
    assert turns(env, handle) == []
    env.advance("1m")
    assert handle.status() is hg.Status.SUCCEEDED


def test_start__inside_of_a_workflow__is_refused_with_the_remedy(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")

    @mine.workflow
    async def starter() -> None:
        one_call.start(1)

    env = open_env(mine)
    handle = env.start(starter)
    with pytest.raises(hg.ExecutionFailure, match="to make a child"):
        env.result(handle)
    assert handle.status() is hg.Status.STUCK


def test_messages__after_the_result__are_refused(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(constant)
    sends: list[Callable[[], object]] = [lambda: handle.signal("late"), handle.cancel, handle.terminate]
    for send in sends:
        with pytest.raises(ExecutionClosedError, match="has ended"):
            send()
    assert len(turns(env, handle)) == 1


def test_messages__to_an_execution_that_never_was__are_refused(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.service.client.handle("nobody")
    sends: list[Callable[[], object]] = [lambda: handle.signal("x"), handle.cancel, handle.status]
    for send in sends:
        with pytest.raises(NotFoundError, match="nobody"):
            send()


def test_define__two_of_one_name_or_not_async__is_refused() -> None:
    mine = hg.App("mine")

    @mine.activity
    def twice() -> None: ...

    with pytest.raises(DefinitionError, match="twice"):
        mine.activity(name="twice")(double.function)

    def blocking() -> None: ...

    with pytest.raises(DefinitionError, match="async def"):
        mine.workflow(blocking)  # type: ignore[arg-type]


def test_list__by_workflow_status_parent_and_tag__finds_executions(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    env.start(constant, id="a", tags={"team": "red"})
    env.start(constant, id="b", tags={"team": "blue"})
    waits = env.start(partly, id="c")
    client = env.service.client
    by_tag = client.list(workflow="constant", tags={"team": "red"})
    assert [row.execution_id for row in by_tag.executions] == ["a"]
    assert [row.execution_id for row in client.list(status=hg.Status.RUNNING).executions] == [waits.id]
    assert {row.execution_id for row in client.list(status=hg.Status.SUCCEEDED).executions} == {"a", "b"}


def test_set_tags__in_a_workflow__changes_what_it_is_found_by(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")

    @mine.workflow
    async def tagged() -> None:
        hg.set_tags({"stage": "one", "gone": ""})
        await hg.wait_signal("go")
        hg.set_tags({"stage": "two"})

    env = open_env(mine)
    handle = env.start(tagged, tags={"gone": "x", "kept": "y"})
    assert handle.describe().tags == {"stage": "one", "kept": "y"}
    handle.signal("go")
    env.run()
    assert handle.describe().tags == {"stage": "two", "kept": "y"}


@pytest.mark.parametrize("tags", [{"n": 5}, {"bad name": "x"}, {"long": "x" * 257}])
def test_set_tags__that_cannot_be_tags__raises_in_the_workflow(open_env: OpenEnvironment, tags: dict[str, str]) -> None:
    mine = hg.App("mine")

    @mine.workflow
    async def tagged() -> str:
        try:
            hg.set_tags(tags)
        except InvalidIdError:
            return "refused"
        return "taken"

    env = open_env(mine)
    assert env.result(env.start(tagged)) == "refused"


def test_log__in_workflow_and_activity__is_kept_once_and_in_order(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")

    @mine.activity
    def speaks() -> None:
        logging.getLogger("shop").warning("in the activity")

    @mine.workflow
    async def logged() -> None:
        hg.log("before")
        await speaks()
        logging.getLogger("shop").error("after %d", 1)
        await hg.sleep("1s")
        hg.log("slept", level="debug")

    env = open_env(mine)
    handle = env.start(logged)
    env.result(handle)
    found = [(note.level, note.text) for note in env.service.client.logs(handle.id)]
    assert found == [
        ("INFO", "before"),
        ("WARNING", "in the activity"),
        ("ERROR", "after 1"),
        ("DEBUG", "slept"),
    ]


def test_now__in_a_workflow__stands_still_within_a_turn_and_moves_with_time(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")

    @mine.workflow
    async def looks() -> list[str]:
        seen = [hg.now().isoformat()]
        await asyncio.sleep(0)
        seen.append(hg.now().isoformat())
        await hg.sleep("90s")
        return [*seen, hg.now().isoformat()]

    env = open_env(mine)
    start = datetime.fromtimestamp(1_750_000_000, UTC)
    first, second, third = env.result(env.start(looks))
    assert first == second == start.isoformat()
    assert third == datetime.fromtimestamp(1_750_000_090, UTC).isoformat()


def test_redelivered_turn__many_executions_in_one_cycle__each_has_its_own_history(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handles = [one_call.start(n, id=f"many-{n}") for n in range(150)]
    env.run()
    assert [env.result(handle) for handle in handles] == [2 * n for n in range(150)]
    assert left_behind(env) == {}
