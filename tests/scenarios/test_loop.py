"""asyncio in a workflow: what is built on futures, tasks and timers works, and what reaches outside is refused."""

from __future__ import annotations

import asyncio
import contextvars
import socket
import subprocess
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import headgate as hg
from headgate.durable.replay import deterministic_loop as turn_loop
from headgate.durable.replay.deterministic_loop import TurnLoop
from tests.scenarios.conftest import OpenEnvironment
from tests.scenarios.histories import issued, left_behind, notes, turns

Code = Callable[[], Awaitable[Any]]
color: contextvars.ContextVar[str] = contextvars.ContextVar("color", default="none")

app = hg.App("loop")


@app.activity
def echo(value: Any) -> Any:
    return value


@app.activity(retry=hg.Retry(attempts=1))
def fails(text: str) -> None:
    raise ValueError(text)


def outcome_of(open_env: OpenEnvironment, code: Code) -> Any:
    """Return what code returns as a workflow of the app above."""
    app.workflows.pop("code", None)
    workflow = app.workflow(name="code", check=False)(code)
    env = open_env(app)
    handle = env.start(workflow)
    result = env.result(handle)
    assert left_behind(env) == {}
    hg.testing.replay(workflow, handle.id, turns(env, handle))
    return result


# What works.


def test_gather__results_and_errors__as_on_any_loop(open_env: OpenEnvironment) -> None:
    async def code() -> Any:
        found = await asyncio.gather(echo(1), fails("x"), echo(3), return_exceptions=True)
        return [type(one).__name__ if isinstance(one, Exception) else one for one in found]

    assert outcome_of(open_env, code) == [1, "ValueError", 3]


def test_wait__first_completed_and_all__as_on_any_loop(open_env: OpenEnvironment) -> None:
    async def code() -> Any:
        tasks = [asyncio.ensure_future(hg.sleep(n)) for n in (3, 1, 2)]
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        first = [tasks.index(task) for task in done]
        done, pending = await asyncio.wait(pending, timeout=0.5)
        none = len(done)
        done, pending = await asyncio.wait(pending)
        return [first, none, len(done), len(pending)]

    assert outcome_of(open_env, code) == [[1], 0, 2, 0]


def test_task_group__all_succeed_and_one_fails__as_on_any_loop(open_env: OpenEnvironment) -> None:
    async def code() -> Any:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(napping(n)) for n in (2, 1)]
        seen: list[Any] = [task.result() for task in tasks]
        try:
            async with asyncio.TaskGroup() as group:
                slow = group.create_task(napping(100))
                group.create_task(failing())
        except* ValueError as caught:
            seen.append([str(error) for error in caught.exceptions])
        return [*seen, slow.cancelled()]

    async def napping(n: int) -> int:
        await hg.sleep(n)
        return n

    async def failing() -> None:
        await fails("in the group")

    assert outcome_of(open_env, code) == [2, 1, ["in the group"], True]


def test_timeout__of_every_kind__as_on_any_loop(open_env: OpenEnvironment) -> None:
    async def code() -> Any:
        seen: list[Any] = []
        try:
            async with asyncio.timeout(5):
                await hg.sleep(10)
        except TimeoutError:
            seen.append("timeout")
        try:
            await asyncio.wait_for(hg.sleep(10), 5)
        except TimeoutError:
            seen.append("wait_for")
        seen.append(await asyncio.wait_for(echo("in time"), 5))
        async with asyncio.timeout(None) as limit:
            await hg.sleep(1)
            limit.reschedule(asyncio.get_running_loop().time() + 5)
        try:
            async with asyncio.timeout(10), asyncio.timeout(1):
                await hg.sleep(5)
        except TimeoutError:
            seen.append("inner")
        try:
            async with asyncio.timeout(0):
                await asyncio.sleep(0)
                await hg.sleep(1)
        except TimeoutError:
            seen.append("at once")
        return seen

    assert outcome_of(open_env, code) == ["timeout", "wait_for", "in time", "inner", "at once"]


def test_event_lock_semaphore_condition_barrier__as_on_any_loop(open_env: OpenEnvironment) -> None:
    async def code() -> Any:
        seen: list[str] = []
        event, lock, gate = asyncio.Event(), asyncio.Lock(), asyncio.Semaphore(2)
        condition, barrier = asyncio.Condition(), asyncio.Barrier(3)

        async def one(name: str) -> None:
            await event.wait()
            async with gate, lock:
                await hg.sleep(1)
                seen.append(name)
            await barrier.wait()
            async with condition:
                await condition.wait_for(lambda: len(seen) == 3)
                condition.notify_all()

        async with asyncio.TaskGroup() as group:
            for name in "abc":
                group.create_task(one(name))
            event.set()
        return seen

    assert outcome_of(open_env, code) == ["a", "b", "c"]


def test_queue__producer_and_workers__as_on_any_loop(open_env: OpenEnvironment) -> None:
    async def code() -> Any:
        queue: asyncio.Queue[int] = asyncio.Queue(maxsize=2)
        done: list[int] = []

        async def worker() -> None:
            while True:
                n = await queue.get()
                done.append(await echo(n * n))
                queue.task_done()

        workers = [asyncio.create_task(worker()) for _ in range(3)]
        for n in range(7):
            await queue.put(n)
        await queue.join()
        for task in workers:
            task.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        return sorted(done)

    assert outcome_of(open_env, code) == [0, 1, 4, 9, 16, 25, 36]


def test_context_variables__of_tasks__are_their_own(open_env: OpenEnvironment) -> None:
    async def code() -> Any:
        color.set("red")

        async def inner(name: str) -> list[str]:
            before = color.get()
            color.set(name)
            await hg.sleep(1)
            return [before, color.get()]

        found = await asyncio.gather(inner("blue"), inner("green"))
        return [*found, color.get()]

    token = color.set("of the thread that drives")
    try:
        assert outcome_of(open_env, code) == [["red", "blue"], ["red", "green"], "red"]
    finally:
        color.reset(token)


def test_context_variables__of_the_driving_thread__do_not_leak_into_any_code(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")

    @mine.workflow
    async def leaks() -> dict[str, str]:
        seen = {"main": color.get()}

        def in_handler() -> None:
            seen["handler"] = color.get()

        def in_condition() -> bool:
            seen["condition"] = color.get()
            return "handler" in seen

        hg.on_signal("look", in_handler)
        await hg.wait_condition(in_condition)
        await hg.sleep(1)
        seen["after a timer"] = color.get()
        return seen

    env = open_env(mine)
    token = color.set("of the thread that drives")
    try:
        handle = env.start(leaks)
        handle.signal("look")
        found = env.result(handle)
    finally:
        color.reset(token)
    assert found == dict.fromkeys(("main", "handler", "condition", "after a timer"), "none")


def test_async_generators__used_up_and_left_early__as_on_any_loop(open_env: OpenEnvironment) -> None:
    async def code() -> Any:
        seen: list[Any] = []

        async def numbers() -> AsyncIterator[int]:
            try:
                for n in range(3):
                    await hg.sleep(1)
                    yield n
            finally:
                seen.append("closed")

        seen += [n async for n in numbers()]
        async for n in numbers():
            seen.append(n)
            break
        await hg.sleep(1)
        return seen

    assert outcome_of(open_env, code) == ["closed", 0, 1, 2, 0, "closed"]


def test_shield__outlives_the_one_who_gave_up(open_env: OpenEnvironment) -> None:
    async def code() -> Any:
        work = asyncio.ensure_future(napping())
        try:
            await asyncio.wait_for(asyncio.shield(work), 1)
        except TimeoutError:
            return ["gave up", await work]
        return None

    async def napping() -> str:
        await hg.sleep(10)
        return "finished"

    assert outcome_of(open_env, code) == ["gave up", "finished"]


def test_tasks__names_callbacks_and_current_task__as_on_any_loop(open_env: OpenEnvironment) -> None:
    async def code() -> Any:
        seen: list[Any] = []
        task = asyncio.create_task(hg.sleep(1), name="napper")
        task.add_done_callback(lambda done: seen.append(done.get_name()))
        await task
        await asyncio.sleep(0)
        current = asyncio.current_task()
        assert current is not None
        return [*seen, current.get_name(), len(asyncio.all_tasks())]

    assert outcome_of(open_env, code) == ["napper", "main", 1]


def test_dangling_task__that_fails__is_noted_and_fails_nothing(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")

    @mine.workflow
    async def leaves_one() -> str:
        async def bad() -> None:
            raise ValueError("nobody looks")

        asyncio.create_task(bad())  # noqa: RUF006 - not referenced, which is the point
        await hg.sleep(1)
        return "fine"

    env = open_env(mine)
    handle = env.start(leaves_one)
    assert env.result(handle) == "fine"
    assert any("nobody looks" in text for text in notes(env, handle))


def test_loop_time__moves_with_the_execution(open_env: OpenEnvironment) -> None:
    async def code() -> Any:
        loop = asyncio.get_running_loop()
        before = loop.time()
        await hg.sleep("1h")
        return loop.time() - before

    assert outcome_of(open_env, code) == 3600.0


# What is refused.


def read_file() -> Code:
    async def code() -> None:
        Path("/etc/hostname").read_text()

    return code


def open_socket() -> Code:
    async def code() -> None:
        socket.create_connection(("127.0.0.1", 9))

    return code


def run_process() -> Code:
    async def code() -> None:
        subprocess.run(["true"], check=False)

    return code


def start_thread() -> Code:
    async def code() -> None:
        threading.Thread(target=int).start()

    return code


def use_executor() -> Code:
    async def code() -> None:
        await asyncio.get_running_loop().run_in_executor(None, int)

    return code


def use_to_thread() -> Code:
    async def code() -> None:
        await asyncio.to_thread(int)

    return code


def use_streams() -> Code:
    async def code() -> None:
        await asyncio.open_connection("127.0.0.1", 9)

    return code


def use_subprocess() -> Code:
    async def code() -> None:
        await asyncio.create_subprocess_exec("true")

    return code


def use_server() -> Code:
    async def code() -> None:
        await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)

    return code


def list_folder() -> Code:
    async def code() -> None:
        list(Path("/").iterdir())

    return code


def resolve_name() -> Code:
    async def code() -> None:
        socket.getaddrinfo("localhost", 80)

    return code


REFUSED: list[tuple[Callable[[], Code], str]] = [
    (read_file, "activity"),
    (open_socket, "activity"),
    (run_process, "activity"),
    (start_thread, "asyncio.gather"),
    (use_executor, "activity"),
    (use_to_thread, "activity"),
    (use_streams, "activity"),
    (use_subprocess, "activity"),
    (use_server, "activity"),
    (list_folder, "activity"),
    (resolve_name, "activity"),
]


@pytest.mark.parametrize(("make", "remedy"), REFUSED)
@pytest.mark.parametrize("caught", [False, True])
def test_real_world__reached_from_a_workflow__is_refused_and_can_be_repaired(
    open_env: OpenEnvironment, make: Callable[[], Code], remedy: str, caught: bool
) -> None:
    mine = hg.App("mine")
    bad = make()

    @mine.activity
    def before(n: int) -> int:
        return n

    async def reaches_out() -> str:
        await before(1)
        try:
            await bad()
        except Exception:
            if not caught:
                raise
        return "reached"

    async def repaired() -> str:
        await before(1)
        return "mended"

    workflow = mine.workflow(name="reaching", check=False)(reaches_out)
    env = open_env(mine)
    handle = env.start(workflow)
    with pytest.raises(hg.ExecutionFailure, match=remedy) as failure:
        env.result(handle)
    assert failure.value.type == "WorkflowViolationError"
    assert handle.status() is hg.Status.STUCK
    assert issued(env, handle) == ["start_activity"]
    del mine.workflows["reaching"]
    mine.workflow(name="reaching")(repaired)
    env.service.client.redrive(handle.id)
    assert env.result(handle) == "mended"
    assert left_behind(env) == {}


@pytest.mark.parametrize(
    "name",
    [name for name in dir(asyncio.AbstractEventLoop) if not name.startswith("_")],
)
def test_loop__every_method_of_asyncio__is_there_or_refused_by_name(name: str) -> None:
    assert getattr(TurnLoop, name) is not getattr(asyncio.AbstractEventLoop, name)


def test_loop__that_spins_without_waiting__is_stuck_and_does_not_hang(
    open_env: OpenEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn_loop, "HANDLES_MAX", 2_000)
    mine = hg.App("mine")

    @mine.workflow
    async def spins() -> None:
        while True:
            await asyncio.sleep(0)

    env = open_env(mine)
    handle = env.start(spins)
    with pytest.raises(hg.ExecutionFailure, match="spins without waiting"):
        env.result(handle)
    assert handle.status() is hg.Status.STUCK


def test_condition__that_is_never_at_rest__is_stuck_and_does_not_hang(
    open_env: OpenEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn_loop, "HANDLES_MAX", 2_000)
    mine = hg.App("mine")

    @mine.workflow
    async def restless() -> None:
        turn, asked = [0], [0]

        async def one(own: int) -> None:
            def holds() -> bool:
                asked[0] += 1
                if asked[0] > 50_000:
                    raise RuntimeError("asked without end")
                return turn[0] % 2 == own

            while True:
                await hg.wait_condition(holds)
                turn[0] += 1

        await asyncio.gather(one(0), one(1))

    env = open_env(mine)
    handle = env.start(restless)
    with pytest.raises(hg.ExecutionFailure, match="spins without waiting"):
        env.result(handle)
    assert handle.status() is hg.Status.STUCK


@pytest.mark.parametrize("error", [SystemExit(3), GeneratorExit()])
def test_workflow__that_raises_what_is_no_exception__fails_and_does_not_take_the_worker_along(
    open_env: OpenEnvironment, error: BaseException
) -> None:
    mine = hg.App("mine")

    @mine.workflow
    async def leaves() -> None:
        await hg.sleep(1)
        raise error

    env = open_env(mine)
    handle = env.start(leaves)
    try:
        env.advance("1h")
    except BaseException as exc:
        pytest.fail(f"{type(exc).__name__} left the worker")
    assert handle.status() is hg.Status.FAILED


def test_future__of_a_workflow_touched_from_another_thread__is_refused(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")
    kept: list[asyncio.Future[int]] = []

    @mine.workflow
    async def leaks() -> int:
        kept[:] = [asyncio.get_running_loop().create_future()]
        return await kept[0]

    env = open_env(mine)
    handle = env.start(leaks)
    with pytest.raises(Exception, match="outside of its turn"):
        kept[0].get_loop().call_soon(int)
    assert handle.status() is hg.Status.RUNNING


def test_running_loop__after_a_turn__is_not_left_behind(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    app.workflows.pop("code", None)

    async def code() -> Any:
        return await echo(1)

    env.result(env.start(app.workflow(name="code")(code)))
    with pytest.raises(RuntimeError, match="no running event loop"):
        asyncio.get_running_loop()
    assert asyncio.run(code_outside()) == "outside"


async def code_outside() -> str:
    await asyncio.sleep(0)
    return "outside"
