"""The pool runs blocking work in threads, in the caller's context, and never more than it was sized for."""

from __future__ import annotations

import asyncio
import threading

import pytest

from headgate.errors import NotFoundError, TransientError
from headgate.serve.runtime.thread_pool import Completion, WorkPool
from headgate.telemetry import correlated, correlation_id


def test_run__work_that_returns__gives_the_result_from_another_thread() -> None:
    pool = WorkPool(threads_max=1, waiting_max=0)

    thread = asyncio.run(pool.run(threading.get_ident))

    pool.close()
    assert thread != threading.get_ident()


def test_run__work_that_raises__raises_the_same() -> None:
    pool = WorkPool(threads_max=1, waiting_max=0)

    def fail() -> None:
        raise NotFoundError("run 7: there is none")

    with pytest.raises(NotFoundError, match="run 7"):
        asyncio.run(pool.run(fail))
    pool.close()


def test_run__in_a_correlated_block__the_thread_sees_the_id() -> None:
    pool = WorkPool(threads_max=1, waiting_max=0)

    with correlated("req-7"):
        seen = asyncio.run(pool.run(correlation_id))

    pool.close()
    assert seen == "req-7"


def test_run__caller_gives_up__the_thread_counts_until_its_work_ends() -> None:
    pool = WorkPool(threads_max=1, waiting_max=0)
    release, running = threading.Event(), threading.Event()

    def work() -> None:
        running.set()
        release.wait()

    async def give_up() -> None:
        task = asyncio.create_task(pool.run(work))
        while not running.is_set():
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(TransientError):
            await pool.run(work)

    asyncio.run(give_up())
    assert pool.accepted == 1
    release.set()
    pool.close()
    assert pool.accepted == 0


def test_close__work_waits__what_runs_ends_and_what_waits_is_dropped() -> None:
    pool = WorkPool(threads_max=1, waiting_max=1)
    release, done = threading.Event(), []

    async def close_while_busy() -> tuple[bool, bool]:
        running = asyncio.create_task(pool.run(lambda: done.append(release.wait())))
        waiting = asyncio.create_task(pool.run(lambda: done.append(False)))
        while pool.accepted < 2:
            await asyncio.sleep(0.001)
        closing = asyncio.create_task(asyncio.to_thread(pool.close))
        await asyncio.wait({waiting})
        release.set()
        await closing
        await running
        return running.cancelled(), waiting.cancelled()

    assert asyncio.run(close_while_busy()) == (False, True)
    assert done == [True]


def test_reported__something_that_needs_no_thread__gives_what_it_is_reported_and_counts_as_long_as_it_lasts() -> None:
    pool = WorkPool(threads_max=1, waiting_max=1)

    async def everyone() -> tuple[list[object], int]:
        begun: list[Completion[str]] = []
        waiting = [asyncio.create_task(pool.from_callback(begun.append)) for _ in range(2)]
        while len(begun) < 2:
            await asyncio.sleep(0.001)
        with pytest.raises(TransientError):
            await pool.from_callback(begun.append)
        waiting[0].cancel()
        await asyncio.wait({waiting[0]})
        accepted = pool.accepted
        for done, outcome in zip(begun, [("late", None), (None, NotFoundError("run 7"))], strict=True):
            await asyncio.to_thread(done, *outcome)
        return await asyncio.gather(*waiting, return_exceptions=True), accepted

    outcomes, accepted = asyncio.run(everyone())

    pool.close()
    # A caller that left does not end the work.
    assert accepted == 2
    assert [type(each) for each in outcomes] == [asyncio.CancelledError, NotFoundError]
    assert pool.accepted == 0


def test_reported__cannot_be_begun__raises_that_and_counts_no_longer() -> None:
    pool = WorkPool(threads_max=1, waiting_max=0)

    def begin(_done: Completion[str]) -> None:
        raise NotFoundError("run 7: there is none")

    with pytest.raises(NotFoundError, match="run 7"):
        asyncio.run(pool.from_callback(begin))

    def end(done: Completion[str]) -> None:
        done("fine", None)

    assert asyncio.run(pool.from_callback(end)) == "fine"
    pool.close()
    assert pool.accepted == 0
