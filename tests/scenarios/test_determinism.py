"""Replay: code that differs from its history is found and named, whichever way it differs, and can be repaired."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import headgate as hg
from headgate.durable.model.history import Turn, load_turn
from headgate.durable.sdk.definitions import Workflow
from headgate.errors import DefinitionError, DeterminismError
from tests.scenarios import hashing
from tests.scenarios.conftest import OpenEnvironment
from tests.scenarios.histories import events, kinds, left_behind, turns

Code = Callable[[], Awaitable[Any]]


def deploy(app: hg.App, function: Code, env: hg.testing.Environment | None = None) -> Workflow[..., Any]:
    """Put other code in the place of the workflow `changing`, as a new release does."""
    app.workflows.pop("changing", None)
    made = app.workflow(name="changing", check=False)(function)
    if env is not None:
        env.worker.engine.drop()
    return made


def shop() -> tuple[hg.App, Any, Any]:
    app = hg.App("changing")

    @app.activity
    def first(n: int) -> int:
        return n

    @app.activity
    def second(n: int) -> int:
        return n

    return app, first, second


# Differences.


def calls_then_waits(*calls: Callable[[], Any]) -> Code:
    """Return code that makes these calls one after the other, awaiting what can be awaited, and then waits."""

    async def code() -> None:
        for call in calls:
            made = call()
            if made is not None:
                await made
        await hg.wait_signal("go")

    return code


def make_pair(kind: str, first: Any, second: Any) -> tuple[Code, Code]:
    """Return the code of two releases that differ in this way."""

    async def ends_early() -> str:
        await first(1)
        return "early"

    async def second_at_the_end() -> None:
        await first(1)
        second(1)
        await hg.wait_signal("go")

    one = calls_then_waits(lambda: first(1))
    two = calls_then_waits(lambda: asyncio.gather(first(1), second(2)))
    pairs: dict[str, tuple[Code, Code]] = {
        "another activity": (one, calls_then_waits(lambda: second(1))),
        "another input": (one, calls_then_waits(lambda: first(2))),
        "fewer calls": (one, calls_then_waits()),
        "more calls": (one, calls_then_waits(lambda: asyncio.gather(second(1), first(1)))),
        "more calls at the end": (one, second_at_the_end),
        "a timer for an activity": (one, calls_then_waits(lambda: hg.sleep(1))),
        "an event before": (one, calls_then_waits(lambda: hg.emit("x"), lambda: first(1))),
        "an earlier end": (one, ends_early),
        "another order": (two, calls_then_waits(lambda: asyncio.gather(second(2), first(1)))),
        "other tags": (
            calls_then_waits(lambda: hg.set_tags({"a": "1"})),
            calls_then_waits(lambda: hg.set_tags({"a": "2"})),
        ),
    }
    return pairs[kind]


KINDS = [
    *("another activity", "another input", "fewer calls", "more calls", "more calls at the end"),
    *("a timer for an activity", "an event before", "an earlier end", "another order", "other tags"),
]


@pytest.mark.parametrize("kind", KINDS)
def test_changed_code__against_a_running_history__is_stuck_and_goes_on_when_repaired(
    open_env: OpenEnvironment, kind: str
) -> None:
    app, first, second = shop()
    before, after = make_pair(kind, first, second)
    workflow = deploy(app, before)
    env = open_env(app)
    handle = env.start(workflow)
    history = turns(env, handle)
    deploy(app, after, env)
    handle.signal("go")
    env.advance("1h")
    assert handle.status() is hg.Status.STUCK
    assert "hg.patched()" in (handle.describe().failure or "")
    assert turns(env, handle) == history
    deploy(app, before, env)
    env.service.client.redrive(handle.id)
    env.run()
    assert handle.status() is hg.Status.SUCCEEDED
    assert left_behind(env) == {}


@pytest.mark.parametrize("kind", KINDS)
def test_replay__of_a_history_against_changed_code__names_the_difference(open_env: OpenEnvironment, kind: str) -> None:
    app, first, second = shop()
    before, after = make_pair(kind, first, second)
    workflow = deploy(app, before)
    env = open_env(app)
    handle = env.start(workflow)
    handle.signal("go")
    env.result(handle)
    history = turns(env, handle)
    hg.testing.replay(workflow, handle.id, history)
    with pytest.raises(DeterminismError, match=r"turn \d+: ") as caught:
        hg.testing.replay(deploy(app, after), handle.id, history)
    assert handle.id in str(caught.value)


def test_difference__is_reported_in_the_words_of_the_author(open_env: OpenEnvironment) -> None:
    app, first, second = shop()
    before, after = make_pair("another activity", first, second)
    workflow = deploy(app, before)
    env = open_env(app)
    handle = env.start(workflow)
    with pytest.raises(DeterminismError, match=r"history has start activity first\(1\) #1, .*second\(1\) #1"):
        hg.testing.replay(deploy(app, after), handle.id, turns(env, handle))


def test_call__made_a_turn_later_than_history_has_it__is_found(open_env: OpenEnvironment) -> None:
    app, first, _ = shop()

    async def at_once() -> None:
        call = first(1)
        await hg.wait_signal("go")
        await call

    async def later() -> None:
        await hg.wait_signal("go")
        await first(1)

    workflow = deploy(app, at_once)
    env = open_env(app)
    handle = env.start(workflow)
    handle.signal("go")
    env.result(handle)
    with pytest.raises(DeterminismError, match="turn 1: history has start activity first"):
        hg.testing.replay(deploy(app, later), handle.id, turns(env, handle))


# What is not a difference.


def test_changed_code__that_issues_the_same__goes_on(open_env: OpenEnvironment) -> None:
    app, first, second = shop()

    async def one_after_the_other() -> list[int]:
        a, b = first(1), second(2)
        got = [await a, await b]
        await hg.wait_signal("go")
        return got

    async def gathered() -> list[int]:
        got = list(await asyncio.gather(first(1), second(2)))
        hg.log("a new line in the log")
        await hg.wait_signal("go")
        return [*got, 3]

    env = open_env(app)
    handle = env.start(deploy(app, one_after_the_other))
    deploy(app, gathered, env)
    handle.signal("go")
    assert env.result(handle) == [1, 2, 3]


def test_changed_options_and_times__are_not_a_difference(open_env: OpenEnvironment) -> None:
    app, first, _ = shop()

    async def before() -> None:
        await first.options(timeout="1m")(1)
        await hg.wait_signal("go", timeout="1h")

    async def after() -> None:
        await first.options(timeout="2m", retry=hg.Retry(attempts=3))(1)
        await hg.wait_signal("go", timeout="2h")

    env = open_env(app)
    handle = env.start(deploy(app, before))
    deploy(app, after, env)
    handle.signal("go")
    env.run()
    assert handle.status() is hg.Status.SUCCEEDED


def test_input__of_types_that_json_has_not__is_no_difference(open_env: OpenEnvironment) -> None:
    app = hg.App("typed")

    @app.activity
    def takes(value: Any) -> Any:
        return value

    @app.workflow
    async def gives() -> list[Any]:
        moment = hg.now().replace(microsecond=123_456)
        values: list[Any] = [
            moment,
            date(2026, 2, 28),
            Decimal("1.50"),
            UUID(int=5),
            {"b": 1, "a": {2, 1}},
            (1, 2),
            b"bytes",
        ]
        got = [await takes(value) for value in values]
        await hg.sleep(1)
        return got

    env = open_env(app)
    found = env.result(env.start(gives))
    assert found[1:] == ["2026-02-28", "1.50", str(UUID(int=5)), {"b": 1, "a": [1, 2]}, [1, 2], "Ynl0ZXM="]


def test_start_input__with_a_moment__arrives_as_annotated(open_env: OpenEnvironment) -> None:
    app = hg.App("typed")

    @app.workflow
    async def dated(moment: datetime) -> bool:
        await hg.sleep(1)
        return moment == datetime(2026, 1, 2, 3, 4, 5, 678_900, tzinfo=UTC)

    env = open_env(app)
    assert env.result(env.start(dated, datetime(2026, 1, 2, 3, 4, 5, 678_900, tzinfo=UTC))) is True


# Time, random numbers and side effects.


def test_random_uuid_and_now__are_the_same_on_replay(open_env: OpenEnvironment) -> None:
    app = hg.App("draws")

    @app.activity
    def takes(value: Any) -> Any:
        return value

    @app.workflow
    async def draws() -> list[Any]:
        seen: list[Any] = []
        for _ in range(4):
            drawn = [hg.random().random(), str(hg.uuid()), hg.now().isoformat(), hg.random().randint(0, 10**9)]
            seen.append(await takes(drawn))
            await hg.sleep(3)
        return seen

    env = open_env(app)
    first, second = env.start(draws), env.start(draws)
    one, two = env.result(first), env.result(second)
    assert len({json.dumps(part) for part in [*one, *two]}) == 8
    hg.testing.replay(draws, first.id, turns(env, first))


def test_side_effect__is_called_once_and_recorded(open_env: OpenEnvironment) -> None:
    app = hg.App("effects")
    count = itertools.count(1)

    @app.workflow
    async def effects() -> list[int]:
        seen = []
        for _ in range(3):
            seen.append(hg.side_effect(lambda: next(count)))
            await hg.sleep(1)
        return seen

    env = open_env(app)
    assert env.result(env.start(effects)) == [1, 2, 3]
    assert next(count) == 4


def test_side_effect__that_reads_a_file__is_what_it_is_for(open_env: OpenEnvironment, tmp_path: Path) -> None:
    app = hg.App("effects")
    note = tmp_path / "note"
    note.write_text("as it was")

    @app.workflow
    async def effects() -> str:
        text = hg.side_effect(lambda: note.read_text())
        await hg.sleep(1)
        return text

    env = open_env(app)
    handle = env.start(effects)
    note.write_text("changed")
    assert env.result(handle) == "as it was"


@pytest.mark.parametrize("replayed", [True, False])
def test_nondeterministic_code__is_found_by_replay_after_every_event(replayed: bool) -> None:
    app = hg.App("wild")
    count = itertools.count()

    @app.activity
    def takes(n: int) -> int:
        return n

    @app.workflow(check=False)
    async def wild() -> None:
        await takes(next(count))
        await takes(next(count))

    with hg.testing.Environment(app, replay_always=replayed) as env:
        handle = env.start(wild)
        env.advance("1h")
        assert handle.status() is (hg.Status.STUCK if replayed else hg.Status.SUCCEEDED)


@pytest.mark.parametrize(
    ("body", "remedy"),
    [
        ("time.time()", "hg.now"),
        ("datetime.datetime.now()", "hg.now"),
        ("random.random()", "hg.random"),
        ("uuid.uuid4()", "hg.uuid"),
        ("open('x')", "activity"),
        ("time.sleep(1)", "hg.sleep"),
        ("os.environ['X']", "input"),
        ("threading.Thread()", "single thread"),
    ],
)
def test_source__that_cannot_be_replayed__is_refused_when_declared(tmp_path: Path, body: str, remedy: str) -> None:
    module = tmp_path / "declared.py"
    module.write_text(
        "import datetime, os, random, threading, time, uuid\nimport headgate as hg\napp = hg.App('x')\n"
        f"@app.workflow\nasync def declared():\n    {body}\n"
    )
    with pytest.raises(DefinitionError, match=remedy):
        exec(compile(module.read_text(), str(module), "exec"), {"__name__": "declared", "__file__": str(module)})


# A poisoned turn.


def test_stuck__emits_an_event_and_keeps_messages(open_env: OpenEnvironment) -> None:
    app, first, second = shop()
    alerts: list[Any] = []

    @app.on_event("headgate.execution.stuck")
    def alarm(event: hg.Event) -> None:
        alerts.append(event.data)

    before, after = make_pair("another activity", first, second)
    env = open_env(app)
    handle = env.start(deploy(app, before))
    deploy(app, after, env)
    handle.signal("unrelated", 1)
    env.advance("1h")
    assert handle.status() is hg.Status.STUCK
    (alert,) = alerts
    assert (alert["execution_id"], alert["attempts"]) == (handle.id, 5)
    handle.signal("go", "kept while stuck")
    env.advance("1h")
    assert handle.status() is hg.Status.STUCK
    deploy(app, before, env)
    env.service.client.redrive(handle.id)
    env.run()
    assert handle.status() is hg.Status.SUCCEEDED
    assert kinds(events(env, handle)).count("signal") == 2


def test_stuck__repaired_before_the_last_attempt__goes_on_by_itself(open_env: OpenEnvironment) -> None:
    app, first, second = shop()
    before, after = make_pair("another activity", first, second)
    env = open_env(app)
    handle = env.start(deploy(app, before))
    deploy(app, after, env)
    handle.signal("go")
    env.advance("1s")
    assert handle.status() is hg.Status.RUNNING
    assert handle.describe().failures > 0
    deploy(app, before, env)
    env.advance("1h")
    assert handle.status() is hg.Status.SUCCEEDED
    assert handle.describe().failures == 0
    assert left_behind(env) == {}


def test_stuck__with_timers_and_activities_ending_meanwhile__loses_none(open_env: OpenEnvironment) -> None:
    app = hg.App("busy")
    broken = [False]
    tokens: list[str] = []

    @app.activity
    def stays() -> Any:
        tokens.append(hg.activity().token)
        return hg.complete_later()

    @app.workflow
    async def busy() -> list[Any]:
        async def nap() -> str:
            await hg.sleep("10m")
            return "woke"

        found = asyncio.gather(nap(), stays(), hg.wait_signal("go"))
        if broken[0]:
            hg.emit("not.in.history")
        return list(await found)

    env = open_env(app)
    handle = env.start(busy)
    broken[0] = True
    env.worker.engine.drop()
    handle.signal("unrelated")
    env.advance("5m")
    assert handle.status() is hg.Status.STUCK
    env.service.client.complete_activity(tokens[0], hashing.raw("done"))
    handle.signal("go", "told")
    env.advance("1h")
    assert handle.status() is hg.Status.STUCK
    broken[0] = False
    env.service.client.redrive(handle.id)
    assert env.result(handle) == ["woke", "done", "told"]
    assert left_behind(env) == {}


def test_stuck__terminated__ends(open_env: OpenEnvironment) -> None:
    app, first, second = shop()
    before, after = make_pair("another activity", first, second)
    env = open_env(app)
    handle = env.start(deploy(app, before))
    deploy(app, after, env)
    handle.signal("go")
    env.advance("1h")
    handle.terminate("given up")
    env.run()
    assert handle.status() is hg.Status.TERMINATED
    assert left_behind(env) == {}


def test_redrive__of_what_is_not_stuck__is_refused(open_env: OpenEnvironment) -> None:
    from headgate.errors import ConflictError

    app, first, second = shop()
    before, _ = make_pair("another activity", first, second)
    env = open_env(app)
    handle = env.start(deploy(app, before))
    with pytest.raises(ConflictError, match="not stuck"):
        env.service.client.redrive(handle.id)


def test_workflow__removed_from_the_code__waits_and_goes_on_when_it_is_back(open_env: OpenEnvironment) -> None:
    app, first, second = shop()
    before, _ = make_pair("another activity", first, second)
    env = open_env(app)
    handle = env.start(deploy(app, before))
    kept = app.workflows.pop("changing")
    env.worker.engine.drop()
    handle.signal("go")
    env.advance("1d")
    assert handle.status() is hg.Status.RUNNING
    app.workflows["changing"] = kept
    env.advance("10s")
    assert handle.status() is hg.Status.SUCCEEDED


def test_other_executions__of_one_that_is_stuck__go_on(open_env: OpenEnvironment) -> None:
    app, first, second = shop()
    before, after = make_pair("another activity", first, second)

    @app.workflow
    async def innocent() -> int:
        await hg.sleep("1m")
        return int(await first(5))

    env = open_env(app)
    stuck = env.start(deploy(app, before))
    deploy(app, after, env)
    stuck.signal("go")
    well = [env.start(innocent) for _ in range(5)]
    env.advance("1h")
    assert stuck.status() is hg.Status.STUCK
    assert [env.result(handle) for handle in well] == [5] * 5


# Another process, another order of hashes.


def test_history__made_under_another_hash_seed__is_the_same_and_replays_here() -> None:
    first, second = (_histories_of(seed) for seed in ("1", "4242"))
    assert first.keys() == second.keys() == set(hashing.EXECUTIONS)
    for execution_id, lines in first.items():
        assert [hashing.plain(line) for line in lines] == [hashing.plain(line) for line in second[execution_id]]
        workflow = hashing.app.workflows[execution_id]
        history: list[Turn] = [load_turn(line) for line in lines]
        hg.testing.replay(workflow, execution_id, history)


def _histories_of(seed: str) -> dict[str, list[str]]:
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "tests.scenarios.hashing"],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    return found
