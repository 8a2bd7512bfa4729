"""Changes of code under running executions: patches, old histories against new code, and what a redeploy may change."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import headgate as hg
from headgate.durable.client.patches import open_patches
from headgate.durable.model.history import MarkPatch
from headgate.errors import DeterminismError
from tests.scenarios.conftest import OpenEnvironment
from tests.scenarios.histories import commands, turns

Code = Callable[[], Awaitable[Any]]


class Shop:
    """An app whose workflow is deployed again and again."""

    def __init__(self) -> None:
        self.app = hg.App("shop")
        self.env: hg.testing.Environment | None = None

        @self.app.activity
        def old(n: int) -> str:
            return f"old {n}"

        @self.app.activity
        def new(n: int) -> str:
            return f"new {n}"

        self.old, self.new = old, new

    def deploy(self, code: Code) -> Any:
        self.app.workflows.pop("order", None)
        made = self.app.workflow(name="order", check=False)(code)
        if self.env is not None:
            self.env.worker.engine.drop()
        return made


@pytest.fixture
def shop(open_env: OpenEnvironment) -> Shop:
    made = Shop()
    made.env = open_env(made.app)
    return made


def before(shop: Shop) -> Code:
    async def code() -> list[str]:
        got = [await shop.old(1)]
        await hg.wait_signal("go")
        return [*got, await shop.old(2)]

    return code


def patched(shop: Shop) -> Code:
    async def code() -> list[str]:
        got = [await (shop.new(1) if hg.patched("new-first") else shop.old(1))]
        await hg.wait_signal("go")
        return [*got, await (shop.new(2) if hg.patched("new-second") else shop.old(2))]

    return code


def test_patched__execution_that_passed_the_point__takes_the_old_side(shop: Shop) -> None:
    env = shop.env
    assert env is not None
    running = env.start(shop.deploy(before(shop)))
    fresh_code = shop.deploy(patched(shop))
    running.signal("go")
    assert env.result(running) == ["old 1", "new 2"]
    fresh = env.start(fresh_code)
    fresh.signal("go")
    assert env.result(fresh) == ["new 1", "new 2"]
    marks = [command.patch for command in commands(env, running) if isinstance(command, MarkPatch)]
    assert marks == ["new-second"]


def test_patched__execution_that_ended_before__replays_against_the_new_code(shop: Shop) -> None:
    env = shop.env
    assert env is not None
    handle = env.start(shop.deploy(before(shop)))
    handle.signal("go")
    assert env.result(handle) == ["old 1", "old 2"]
    hg.testing.replay(shop.deploy(patched(shop)), handle.id, turns(env, handle))


def test_patched__asked_again_and_again__answers_the_same(shop: Shop) -> None:
    async def loop_before() -> list[bool]:
        seen = []
        for _ in range(4):
            await shop.old(1)
            seen.append(False)
            await hg.wait_signal("go")
        return seen

    async def loop_patched() -> list[bool]:
        seen = []
        for _ in range(4):
            flag = hg.patched("inside-a-loop")
            await (shop.new(1) if flag else shop.old(1))
            seen.append(flag)
            await hg.wait_signal("go")
        return seen

    env = shop.env
    assert env is not None
    running = env.start(shop.deploy(loop_before))
    fresh_code = shop.deploy(loop_patched)
    fresh = env.start(fresh_code)
    for _ in range(4):
        running.signal("go")
        fresh.signal("go")
        env.run()
        env.worker.engine.drop()
    assert env.result(running) == [False] * 4
    assert env.result(fresh) == [True] * 4


def test_patched__new_execution_against_the_old_code__is_found(shop: Shop) -> None:
    env = shop.env
    assert env is not None
    handle = env.start(shop.deploy(patched(shop)))
    with pytest.raises(DeterminismError, match="mark patch new-first"):
        hg.testing.replay(shop.deploy(before(shop)), handle.id, turns(env, handle))


def test_patch__taken_out_when_no_old_execution_is_left__needs_the_mark_to_stay(shop: Shop) -> None:
    async def without_the_old_side() -> list[str]:
        hg.patched("new-first")
        got = [await shop.new(1)]
        await hg.wait_signal("go")
        hg.patched("new-second")
        return [*got, await shop.new(2)]

    env = shop.env
    assert env is not None
    handle = env.start(shop.deploy(patched(shop)))
    shop.deploy(without_the_old_side)
    handle.signal("go")
    assert env.result(handle) == ["new 1", "new 2"]


def deprecated(shop: Shop) -> Code:
    async def code() -> list[str]:
        hg.deprecate_patch("new-first")
        got = [await shop.new(1)]
        await hg.wait_signal("go")
        hg.deprecate_patch("new-second")
        return [*got, await shop.new(2)]

    return code


def after(shop: Shop) -> Code:
    async def code() -> list[str]:
        got = [await shop.new(1)]
        await hg.wait_signal("go")
        return [*got, await shop.new(2)]

    return code


_STAGES = (patched, deprecated, after)


@pytest.mark.parametrize(("first", "second"), [(0, 1), (1, 0), (1, 2), (2, 1), (1, 1)])
def test_deprecate_patch__each_stage_beside_the_next__a_running_execution_goes_on(
    shop: Shop, first: int, second: int
) -> None:
    env = shop.env
    assert env is not None
    handle = env.start(shop.deploy(_STAGES[first](shop)))
    env.run()
    shop.deploy(_STAGES[second](shop))
    handle.signal("go")
    assert env.result(handle) == ["new 1", "new 2"]
    hg.testing.replay(shop.app.workflows["order"], handle.id, turns(env, handle))
    hg.testing.replay(shop.deploy(deprecated(shop)), handle.id, turns(env, handle))


def test_deprecate_patch__history_of_the_patched_stage_against_the_last__is_found(shop: Shop) -> None:
    env = shop.env
    assert env is not None
    handle = env.start(shop.deploy(patched(shop)))
    with pytest.raises(DeterminismError, match="mark patch new-first"):
        hg.testing.replay(shop.deploy(after(shop)), handle.id, turns(env, handle))


def test_deprecate_patch__execution_of_before_the_patch__is_found(shop: Shop) -> None:
    env = shop.env
    assert env is not None
    handle = env.start(shop.deploy(before(shop)))
    with pytest.raises(DeterminismError, match="start activity new"):
        hg.testing.replay(shop.deploy(deprecated(shop)), handle.id, turns(env, handle))


def test_deprecate_patch__mark_is_the_last_command_of_a_turn__later_commands_keep_their_numbers(shop: Shop) -> None:
    async def marks_last() -> str:
        await hg.wait_signal("go")
        hg.deprecate_patch("late")
        await hg.wait_signal("go")
        return str(await shop.new(2))

    async def without_the_mark() -> str:
        await hg.wait_signal("go")
        await hg.wait_signal("go")
        return str(await shop.new(2))

    env = shop.env
    assert env is not None
    handle = env.start(shop.deploy(marks_last))
    handle.signal("go")
    env.run()
    shop.deploy(without_the_mark)
    handle.signal("go")
    assert env.result(handle) == "new 2"
    hg.testing.replay(shop.app.workflows["order"], handle.id, turns(env, handle))
    hg.testing.replay(shop.deploy(marks_last), handle.id, turns(env, handle))


def test_patches__open_executions__are_counted_with_and_without_the_mark(shop: Shop) -> None:
    env = shop.env
    assert env is not None
    old = env.start(shop.deploy(before(shop)))
    env.run()
    code = shop.deploy(patched(shop))
    fresh, ended = env.start(code), env.start(code)
    ended.signal("go")
    env.result(ended)
    shop.deploy(deprecated(shop))
    last = env.start(shop.app.workflows["order"])
    env.run()
    (only,) = open_patches(env.service.store, 0)
    assert (only.workflow, only.patch) == ("order", "new-first")
    assert (only.with_mark, only.with_deprecated_mark, only.without_mark) == (1, 1, 1)
    assert only.oldest_with_mark == fresh.id
    assert only.oldest_without_mark == old.id
    assert last.id not in (only.oldest_with_mark, only.oldest_without_mark)


def test_patched__inside_of_tasks__is_deterministic(shop: Shop) -> None:
    async def code() -> list[Any]:
        async def one(n: int) -> Any:
            await hg.sleep(n)
            return [n, hg.patched("in-a-task"), await shop.new(n)]

        return list(await asyncio.gather(one(2), one(1)))

    env = shop.env
    assert env is not None
    handle = env.start(shop.deploy(code))
    assert env.result(handle) == [[2, True, "new 2"], [1, True, "new 1"]]
    hg.testing.replay(shop.app.workflows["order"], handle.id, turns(env, handle))


def test_patched__in_a_query__is_refused_unless_known(shop: Shop) -> None:
    async def code() -> None:
        hg.on_query("flag", lambda: hg.patched("only-asked"))
        await hg.wait_signal("go")

    env = shop.env
    assert env is not None
    handle = env.start(shop.deploy(code))
    with pytest.raises(Exception, match="only reads"):
        handle.query("flag")


def test_redeploy__with_another_result_type_or_message__goes_on(shop: Shop) -> None:
    async def text() -> str:
        await hg.wait_signal("go")
        return "text"

    async def number() -> int:
        await hg.wait_signal("go")
        return 5

    env = shop.env
    assert env is not None
    handle = env.start(shop.deploy(text))
    shop.deploy(number)
    handle.signal("go")
    assert env.result(env.service.client.handle(handle.id)) == 5


def test_redeploy__with_a_parameter_that_has_a_default__goes_on(open_env: OpenEnvironment) -> None:
    app = hg.App("grows")

    async def narrow(a: int) -> list[int]:
        await hg.wait_signal("go")
        return [a]

    async def narrow_with_default(a: int = 7) -> list[int]:
        await hg.wait_signal("go")
        return [a, a]

    env = open_env(app)
    handle = env.start(app.workflow(name="grows")(narrow), 1)
    del app.workflows["grows"]
    app.workflow(name="grows")(narrow_with_default)
    env.worker.engine.drop()
    handle.signal("go")
    assert env.result(handle) == [1, 1]


def test_redeploy__that_no_longer_takes_the_input__is_stuck_and_repaired(open_env: OpenEnvironment) -> None:
    app = hg.App("shrinks")

    async def takes_number(a: int) -> int:
        await hg.wait_signal("go")
        return a

    async def takes_text(a: str) -> str:
        await hg.wait_signal("go")
        return a

    env = open_env(app)
    handle = env.start(app.workflow(name="shrinks")(takes_number), 1)
    kept = app.workflows.pop("shrinks")
    app.workflow(name="shrinks")(takes_text)
    env.worker.engine.drop()
    handle.signal("go")
    env.advance("1h")
    assert handle.status() is hg.Status.STUCK
    app.workflows["shrinks"] = kept
    env.service.client.redrive(handle.id)
    assert env.result(handle) == 1
