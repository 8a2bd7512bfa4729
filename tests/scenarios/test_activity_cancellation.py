"""Workflow code that cancels an activity it awaits: it goes on at once, waits for its end, or lets it run on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import Raw

import headgate as hg
from headgate.durable.engine.activity_store import AttemptResult
from headgate.durable.model.failures import ErrorInfo, describe
from headgate.durable.model.history import ActivityEnded, CancelActivity, Cancellation, StartActivity
from headgate.durable.model.records import Activity
from headgate.durable.worker.async_executor import AsyncExecutor
from headgate.durable.worker.executor import RunningAttempt
from headgate.durable.worker.poll_schedule import SWEEP_SECONDS
from headgate.durable.worker.worker import Worker
from headgate.errors import DefinitionError
from tests.scenarios.conftest import OpenEnvironment
from tests.scenarios.histories import commands, events, left_behind

WITHIN_SECONDS = 20.0

app = hg.App("cancelling")
dozing, cleaned = threading.Event(), threading.Event()


@app.activity(retry=hg.Retry(attempts=3, first="1m"), cancellation="wait")
def transfers(n: int) -> int:
    return n


@app.activity(cancellation="abandon", retry=hg.Retry(attempts=1))
def notifies(n: int) -> int:
    return n


@app.activity(cancellation="wait")
def outside(n: int) -> int:
    result: int = hg.complete_later()
    return result


@app.activity(cancellation="wait")
async def dozes(n: int) -> int:
    dozing.set()
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        if n == 1:
            raise
    return n


@app.activity(cancellation="wait")
async def beats_beside_its_work(n: int) -> int:
    async def beat() -> None:
        while True:
            hg.heartbeat(n)
            await asyncio.sleep(0.01)

    beating = asyncio.create_task(beat())
    dozing.set()
    try:
        await asyncio.sleep(3600)
    finally:
        beating.cancel()
    return n


@app.activity(cancellation="wait")
async def beats_and_cleans_up(n: int) -> int:
    dozing.set()
    try:
        while True:
            hg.heartbeat(n)
            await asyncio.sleep(0.01)
    except hg.Cancelled:
        await asyncio.sleep(0.01)
        cleaned.set()
        raise


@app.workflow
async def waits_for_beating(n: int) -> int:
    return await (beats_beside_its_work(n) if n == 1 else beats_and_cleans_up(n))


@app.workflow
async def waits(n: int) -> str:
    try:
        async with asyncio.timeout(60):
            return f"result {await transfers(n)}"
    except TimeoutError:
        return "timed out"


@app.workflow
async def waits_plainly(n: int) -> str:
    try:
        return f"result {await transfers(n)}"
    except asyncio.CancelledError:
        hg.log("cancelled")
        raise


@app.workflow
async def leaves_while_it_waits(n: int) -> str:
    waiting = asyncio.ensure_future(transfers(n))
    await asyncio.sleep(1)
    waiting.cancel()
    await asyncio.sleep(1)
    return "gone"


@app.workflow
async def abandons(n: int) -> str:
    try:
        async with asyncio.timeout(60):
            return f"result {await notifies(n)}"
    except TimeoutError:
        return "went on"


@app.workflow
async def waits_for_dozing(n: int) -> str:
    return f"result {await dozes(n)}"


@app.workflow
async def waits_for_the_outside(n: int) -> str:
    return f"result {await outside(n)}"


@app.workflow
async def calls_by_name(n: int) -> str:
    try:
        async with asyncio.timeout(60):
            return f"result {await hg.call_activity('notifies', n, cancellation='wait')}"
    except TimeoutError:
        return "timed out"


@app.workflow
async def cancels_at_once(n: int) -> str:
    waiting = asyncio.ensure_future(transfers(n))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    return f"cancelled {waiting.cancelled()}"


def step(worker: Worker) -> None:
    """Poll and compute turns until none is ready, without running any activity."""
    for _ in range(3):
        worker.poll()
        while worker.engine.has_work:
            worker.turn()


def claimed(worker: Worker) -> Activity:
    step(worker)
    return worker.queue.popleft()


def cancelled() -> AttemptResult:
    return AttemptResult(error=describe(hg.Cancelled()))


def begun(open_env: OpenEnvironment, workflow: hg.Workflow[[int], str]) -> tuple[Any, hg.Handle[str], RunningAttempt]:
    env = open_env(app)
    handle = workflow.start(7)
    running = env.worker.begin(claimed(env.worker))
    env.clock.advance(61)
    return env, handle, running


def test_wait__running__the_code_goes_on_when_the_attempt_has_ended_itself(open_env: OpenEnvironment) -> None:
    env, handle, running = begun(open_env, waits)
    step(env.worker)
    assert running.context.cancelled
    assert not running.is_abandoned
    assert handle.status() is hg.Status.RUNNING
    env.worker.finish(running.activity, cancelled())
    step(env.worker)
    assert handle.result(0) == "timed out"
    assert [each.cancelled for each in events(env, handle) if isinstance(each, ActivityEnded)] == [True]
    assert left_behind(env) == {}


def test_wait__result_in_spite_of_the_request__is_the_result(open_env: OpenEnvironment) -> None:
    env, handle, running = begun(open_env, waits)
    step(env.worker)
    env.worker.finish(running.activity, AttemptResult(result=Raw(b"7")))
    step(env.worker)
    assert handle.result(0) == "result 7"


def test_wait__another_error_after_the_request__is_raised_without_a_retry(open_env: OpenEnvironment) -> None:
    env, handle, running = begun(open_env, waits_plainly)
    handle.cancel()
    step(env.worker)
    env.worker.finish(running.activity, AttemptResult(error=describe(ValueError("half transferred"))))
    step(env.worker)
    with pytest.raises(hg.ExecutionFailure, match="ValueError: half transferred"):
        handle.result(0)
    assert left_behind(env) == {}


def test_wait__cancelled_execution__ends_cancelled_after_its_activity(open_env: OpenEnvironment) -> None:
    env, handle, running = begun(open_env, waits_plainly)
    handle.cancel()
    step(env.worker)
    assert handle.status() is hg.Status.RUNNING
    env.worker.finish(running.activity, cancelled())
    step(env.worker)
    assert handle.status() is hg.Status.CANCELLED


def test_wait__queued_in_the_process__never_begins_and_the_code_goes_on(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = waits.start(7)
    step(env.worker)
    assert len(env.worker.queue) == 1
    env.clock.advance(61)
    step(env.worker)
    assert not env.worker.queue
    assert handle.result(0) == "timed out"
    assert left_behind(env) == {}


def test_wait__between_two_attempts__ends_without_another(open_env: OpenEnvironment) -> None:
    env, handle, running = begun(open_env, waits_plainly)
    env.worker.finish(running.activity, AttemptResult(error=describe(OSError("down"))))
    handle.cancel()
    step(env.worker)
    assert handle.status() is hg.Status.CANCELLED
    (ended,) = [each for each in events(env, handle) if isinstance(each, ActivityEnded)]
    assert (ended.cancelled, ended.attempts, len(ended.earlier)) == (True, 1, 1)
    assert left_behind(env) == {}


def test_wait__requested_by_another_process__is_found_by_the_sweep_or_the_heartbeat(open_env: OpenEnvironment) -> None:
    for finds in ("sweep", "heartbeat"):
        env, handle, running = begun(open_env, waits_plainly)
        other = env.service.worker()
        other.join()
        handle.cancel()
        other.engine.read_inbox(handle.id)
        while other.engine.has_work:
            other.turn()
        env.worker.engine.ready.take(10)
        env.worker.engine.ready.end_batch()
        assert not running.context.cancelled
        if finds == "sweep":
            env.clock.advance(SWEEP_SECONDS)
            env.worker.poll()
        else:
            running.context.beat(running.context, Raw(b"5"))
        assert running.context.cancelled
        assert env.worker.activities.find(running.activity.activity_id).is_cancel_requested
        env.worker.finish(running.activity, cancelled())
        for worker in (env.worker, other):
            step(worker)
        assert handle.status() is hg.Status.CANCELLED


def test_wait__requested_by_another_process_just_before_the_attempt_fails__is_not_retried(
    open_env: OpenEnvironment,
) -> None:
    env, handle, running = begun(open_env, waits_plainly)
    other = env.service.worker()
    other.join()
    handle.cancel()
    other.engine.read_inbox(handle.id)
    while other.engine.has_work:
        other.turn()
    env.worker.finish(running.activity, cancelled())
    for worker in (env.worker, other):
        step(worker)
    assert handle.status() is hg.Status.CANCELLED
    assert left_behind(env) == {}


def test_wait__worker_stops_or_dies__the_code_goes_on_without_another_attempt(open_env: OpenEnvironment) -> None:
    ends: list[Callable[[Worker, Activity], object]] = [
        lambda worker, activity: worker.activities.interrupt(activity),
        lambda worker, _: worker.activities.reclaim(worker.worker_id),
    ]
    for end in ends:
        env, handle, running = begun(open_env, waits_plainly)
        handle.cancel()
        step(env.worker)
        end(env.worker, running.activity)
        step(env.worker)
        assert handle.status() is hg.Status.CANCELLED
        running.abandon()


def test_wait__code_that_ends_or_is_terminated_meanwhile__stops_the_activity_as_by_default(
    open_env: OpenEnvironment,
) -> None:
    env = open_env(app)
    handle = leaves_while_it_waits.start(7)
    running = env.worker.begin(claimed(env.worker))
    for _ in range(2):
        env.clock.advance(1.1)
        step(env.worker)
    assert handle.result(0) == "gone"
    assert running.is_abandoned
    policies = [each.cancellation for each in commands(env, handle) if isinstance(each, CancelActivity)]
    assert policies == [Cancellation.WAIT, Cancellation.REQUEST]
    terminated = waits_plainly.start(8)
    running = env.worker.begin(claimed(env.worker))
    terminated.cancel()
    step(env.worker)
    terminated.terminate()
    step(env.worker)
    assert terminated.status() is hg.Status.TERMINATED
    assert running.is_abandoned


def test_wait__cancelled_in_the_turn_that_called_it__is_never_started(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(cancels_at_once, 7)
    assert env.result(handle) == "cancelled True"
    assert not any(isinstance(each, StartActivity | CancelActivity) for each in commands(env, handle))


def test_wait__completed_from_outside__heartbeat_answers_cancelled_and_the_report_ends_it(
    open_env: OpenEnvironment,
) -> None:
    env = open_env(app)
    handle = waits_for_the_outside.start(7)
    activity = claimed(env.worker)
    running = env.worker.begin(activity)
    token = running.context.token
    env.worker.finish(activity, None)
    client = env.service.client
    assert client.beat_activity(token)
    handle.cancel()
    step(env.worker)
    assert handle.status() is hg.Status.RUNNING
    assert not client.beat_activity(token)
    client.fail_activity(token, ErrorInfo(type="Cancelled", message="stopped"))
    step(env.worker)
    assert handle.status() is hg.Status.CANCELLED


@pytest.mark.parametrize(("n", "status"), [(1, hg.Status.CANCELLED), (2, hg.Status.SUCCEEDED)])
def test_wait__on_an_event_loop__its_end_counts(open_env: OpenEnvironment, n: int, status: hg.Status) -> None:
    env = open_env(app)
    dozing.clear()
    ended = threading.Event()
    failures: list[Exception] = []
    executor = AsyncExecutor(env.worker, on_ended=ended.set, on_failed=failures.append)
    try:
        handle = waits_for_dozing.start(n)
        executor.perform(claimed(env.worker))
        assert dozing.wait(WITHIN_SECONDS)
        handle.cancel()
        step(env.worker)
        assert ended.wait(WITHIN_SECONDS)
        step(env.worker)
        assert (handle.status(), failures) == (status, [])
    finally:
        executor.stop()


@pytest.mark.parametrize("n", [1, 2])
def test_wait__heartbeat_of_a_coroutine_finds_the_request_of_another_process__the_attempt_is_cancelled_once(
    open_env: OpenEnvironment, n: int
) -> None:
    env = open_env(app)
    dozing.clear()
    cleaned.clear()
    ended = threading.Event()
    failures: list[Exception] = []
    executor = AsyncExecutor(env.worker, on_ended=ended.set, on_failed=failures.append)
    try:
        handle = waits_for_beating.start(n)
        executor.perform(claimed(env.worker))
        assert dozing.wait(WITHIN_SECONDS)
        other = env.service.worker()
        other.join()
        handle.cancel()
        other.engine.read_inbox(handle.id)
        while other.engine.has_work:
            other.turn()
        assert ended.wait(WITHIN_SECONDS)
        for worker in (env.worker, other):
            step(worker)
        assert (handle.status(), failures) == (hg.Status.CANCELLED, [])
        assert cleaned.is_set() is (n == 2)
    finally:
        executor.stop()


def test_wait__called_by_name__has_the_policy_of_the_call(open_env: OpenEnvironment) -> None:
    env, handle, running = begun(open_env, calls_by_name)
    step(env.worker)
    assert handle.status() is hg.Status.RUNNING
    env.worker.finish(running.activity, cancelled())
    step(env.worker)
    assert handle.result(0) == "timed out"


def test_abandon__running__the_code_goes_on_and_the_activity_runs_to_its_end(open_env: OpenEnvironment) -> None:
    env, handle, running = begun(open_env, abandons)
    step(env.worker)
    assert handle.result(0) == "went on"
    assert not running.context.cancelled
    env.clock.advance(SWEEP_SECONDS)
    step(env.worker)
    assert not running.context.cancelled
    env.worker.finish(running.activity, AttemptResult(result=Raw(b"7")))
    step(env.worker)
    assert handle.result(0) == "went on"
    assert left_behind(env) == {}


def test_abandon__option_of_a_call__overrides_the_declaration(open_env: OpenEnvironment) -> None:
    with pytest.raises(DefinitionError, match=r"activity transfers: cancellation 'never': use one of"):
        transfers.options(cancellation="never")
    with pytest.raises(
        DefinitionError, match=r"workflow waits: cancellation 'abandon': use one of \['request', 'wait'\]"
    ):
        waits.options(cancellation="abandon")
    assert transfers.options(cancellation="request").activity_options.cancellation is Cancellation.REQUEST


def test_wait__stand_in_of_the_test_environment__is_ended_by_the_test(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    env.stand_in(transfers).waits()
    first, second = env.start(waits_plainly, 7), env.start(waits_plainly, 8)
    first.cancel()
    env.run()
    assert first.status() is hg.Status.RUNNING
    env.fail(hg.Cancelled(), token=env.tokens[0])
    assert first.status() is hg.Status.CANCELLED
    env.complete(9)
    assert env.result(second) == "result 9"
