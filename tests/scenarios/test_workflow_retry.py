"""Retry policy of a workflow: a failed run is followed by another one with the same input, under the same id."""

from __future__ import annotations

import pytest

import headgate as hg
from tests.scenarios.conftest import OpenEnvironment
from tests.scenarios.histories import notes


class Refused(Exception):
    pass


app = hg.App("retrying")


@app.activity(retry=hg.Retry(attempts=1))
def work(attempt: int) -> str:
    if attempt < 3:
        raise ConnectionError(f"attempt {attempt}")
    return "done"


@app.workflow(retry=hg.Retry(attempts=4, first="1m", factor=2.0, jitter=0, never=(Refused,)))
async def stubborn(item: str) -> str:
    if item == "refused":
        raise Refused(item)
    if item == "always":
        raise ConnectionError(item)
    return f"{item}: {await work(hg.info().attempt)} in attempt {hg.info().attempt}"


@app.workflow
async def parent(item: str) -> str:
    return await stubborn.options(id="child")(item)


@app.workflow(retry=hg.Retry(attempts=3, first="1h", most="1d", jitter=0), timeout="90m")
async def limited() -> None:
    raise ConnectionError("again")


def test_failed_run__with_a_policy__is_followed_by_another_after_its_delay(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    before = env.now
    handle = env.start(stubborn, "item")
    env.run()
    assert handle.status() is hg.Status.RUNNING

    assert env.result(handle) == "item: done in attempt 3"
    assert (env.now - before).total_seconds() == 60 + 120
    assert handle.describe().run == 3
    said = notes(env, handle)
    assert said[0].startswith("attempt 1 failed: ConnectionError: attempt 1")
    assert said[0].endswith("the next one starts in 60 s")


@app.workflow
async def undeclared(item: str) -> str:
    return f"{item}: {await work(hg.info().attempt)}"


@app.workflow
async def impatient_parent(item: str) -> str:
    return await stubborn.options(id="child", retry=hg.Retry(attempts=1))(item)


def test_start__with_a_policy__overrides_the_declared_one(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    once = env.start(stubborn, "always", retry=hg.Retry(attempts=1))
    with pytest.raises(hg.ExecutionFailure):
        env.result(once)
    assert once.describe().run == 1
    before = env.now
    thrice = env.start(undeclared.options(retry=hg.Retry(attempts=3, first="4m", jitter=0)), "item")
    assert env.result(thrice) == "item: done"
    assert (thrice.describe().run, (env.now - before).total_seconds()) == (3, 240 + 300)
    signalled = undeclared.signal_with_start("news", 1, "item", id="signalled", retry=hg.Retry(attempts=2, first=1))
    with pytest.raises(hg.ExecutionFailure, match="attempt 2"):
        env.result(signalled)


def test_start__with_a_policy__is_kept_by_a_retry_from_the_start(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(stubborn, "always", retry=hg.Retry(attempts=1))
    with pytest.raises(hg.ExecutionFailure):
        env.result(handle)
    env.service.client.retry(handle.id)
    with pytest.raises(hg.ExecutionFailure):
        env.result(handle)
    assert handle.describe().run == 2


def test_child__with_a_policy_of_the_call__overrides_the_declared_one(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    with pytest.raises(hg.ExecutionFailure):
        env.result(env.start(impatient_parent, "always"))
    assert stubborn.handle("child").describe().run == 1


def test_failed_run__without_attempts_left_or_never_retried__is_the_end(open_env: OpenEnvironment) -> None:
    env = open_env(app)

    with pytest.raises(hg.ExecutionFailure, match="always"):
        env.result(env.start(stubborn, "always", id="always"))
    assert env.service.client.get("always").run == 4
    with pytest.raises(hg.ExecutionFailure, match="Refused"):
        env.result(env.start(stubborn, "refused", id="refused"))
    assert env.service.client.get("refused").run == 1


def test_child__with_a_policy__ends_once_for_its_parent(open_env: OpenEnvironment) -> None:
    env = open_env(app)

    assert env.result(env.start(parent, "item")) == "item: done in attempt 3"


def test_between_attempts__signals_cancellation_and_timeout__reach_the_execution(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(limited, id="limited")
    env.run()
    handle.signal("kept", 1)
    env.advance("3h")
    assert handle.status() is hg.Status.TIMED_OUT
    terminated = env.start(limited, id="terminated")
    env.run()
    terminated.terminate("enough")
    env.advance("3h")
    assert (terminated.status(), terminated.describe().run) == (hg.Status.TERMINATED, 2)
