"""Workflows and fan-outs of ours as jobs, on a real store, with a clock that is moved by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headgate as hg
from headgate.clock import VirtualClock
from headgate.durable.model.failures import NonRetryable
from headgate.fanout.inline_worker import InlineWorker
from headgate.fanout.service import FanoutService
from headgate.ids import IdMaker
from headgate.testing import Environment
from headgate.triggers.contract import FailureCategory, JobState, StartStatus, TriggerFailedError
from tests.stores import open_sqlite
from tests.unit.triggers.rigs import RUN_ID, kinds, order

HANDLERS = __name__
seen: list[int] = []


def note(numbers: list[int]) -> None:
    seen.extend(numbers)


def refuse(numbers: list[int]) -> None:
    if 1 in numbers:
        raise NonRetryable(f"not {numbers}")


app = hg.App("loads")


@app.activity(retry=hg.Retry(attempts=1))
def parse(text: str) -> int:
    return text.to_int()  # type: ignore[attr-defined, no-any-return]


@app.workflow
async def load(what: dict[str, Any]) -> str:
    if what.get("fail") == "code":
        raise NonRetryable("the code is wrong")
    if what.get("fail") == "workflow bug":
        what.date  # type: ignore[attr-defined]  # noqa: B018 - the bug
    if what.get("fail") == "activity bug":
        await parse("2026")
    if what.get("fail") == "passing":
        raise RuntimeError("no luck")
    await hg.sleep("1h")
    return str(what["date"])


@pytest.fixture
def env() -> Iterator[Environment]:
    with Environment(app) as env:
        yield env


def test_workflow__started_twice__is_one_execution_under_our_id(tmp_path: Path, env: Environment) -> None:
    # D2, D20
    registry = kinds(tmp_path, client=env.service.client)
    asked = order("workflow", {"workflow": "load"})

    first, second = registry.start(asked), registry.start(asked)
    env.run()
    running = registry.poll(asked, first.metadata)
    env.advance("2h")
    ended = registry.poll(asked, first.metadata)

    assert first == second
    assert (first.status, first.external_id) == (StartStatus.RUNNING, RUN_ID)
    assert (running.state, ended.state) == (JobState.RUNNING, JobState.SUCCEEDED)
    assert env.result(env.service.client.handle(RUN_ID)) == "2026-03-03T07"


@pytest.mark.parametrize(
    ("fail", "category"),
    [
        ("code", FailureCategory.PERMANENT),
        ("workflow bug", FailureCategory.PERMANENT),
        ("activity bug", FailureCategory.PERMANENT),
        ("passing", FailureCategory.TRANSIENT),
    ],
)
def test_workflow__that_fails__has_a_category(
    tmp_path: Path, env: Environment, fail: str, category: FailureCategory
) -> None:
    # D27
    registry = kinds(tmp_path, client=env.service.client)
    asked = order("workflow", {"workflow": "load", "input": {"fail": fail}})
    metadata = registry.start(asked).metadata
    env.run()

    polled = registry.poll(asked, metadata)

    assert (polled.state, polled.category) == (JobState.FAILED, category)
    assert "FAILED" in polled.reason


def test_workflow__out_of_time__is_a_time_out(tmp_path: Path, env: Environment) -> None:
    registry = kinds(tmp_path, client=env.service.client)
    asked = order("workflow", {"workflow": "load", "input": {"date": "x"}, "timeout": "1m"})
    metadata = registry.start(asked).metadata
    env.run()
    env.advance("2m")

    assert registry.poll(asked, metadata).category is FailureCategory.TIMEOUT


def test_workflow__cancelled__ends_and_cancelling_again_changes_nothing(tmp_path: Path, env: Environment) -> None:
    registry = kinds(tmp_path, client=env.service.client)
    asked = order("workflow", {"workflow": "load", "input": {"date": "x"}})
    metadata = registry.start(asked).metadata
    env.run()
    registry.cancel(asked, metadata)
    env.run()
    registry.cancel(asked, metadata)

    polled = registry.poll(asked, metadata)

    assert polled.state is JobState.FAILED
    assert "CANCELLED" in polled.reason


def test_workflow__that_does_not_exist_or_was_never_started__fails_for_good(tmp_path: Path, env: Environment) -> None:
    registry = kinds(tmp_path, client=env.service.client)

    with pytest.raises(TriggerFailedError, match="not loaded here") as caught:
        registry.start(order("workflow", {"workflow": "nothing"}))
    polled = registry.poll(order("workflow", {"workflow": "load"}), {"external_id": "run_none"})

    assert caught.value.category is FailureCategory.PERMANENT
    assert (polled.state, polled.category) == (JobState.FAILED, FailureCategory.PERMANENT)


@pytest.fixture
def fanouts(tmp_path: Path) -> Iterator[FanoutService]:
    clock = VirtualClock()
    store = open_sqlite(tmp_path, clock=clock)
    yield FanoutService(store, clock, IdMaker(clock))
    store.close()


def test_fanout__started_twice__is_one_that_runs_to_its_end(tmp_path: Path, fanouts: FanoutService) -> None:
    # D2, D20
    registry = kinds(tmp_path, fanouts=fanouts)
    asked = order("fan-out", {"handler": f"{HANDLERS}:note", "range": [0, 10], "chunk_size": 4})
    seen.clear()

    first, second = registry.start(asked), registry.start(asked)
    running = registry.poll(asked, first.metadata)
    worker = InlineWorker(fanouts)
    while worker.work():
        continue
    ended = registry.poll(asked, first.metadata)

    assert first == second
    assert first.external_id == RUN_ID
    assert (running.state, ended.state) == (JobState.RUNNING, JobState.SUCCEEDED)
    assert sorted(seen) == list(range(10))


@pytest.mark.parametrize(
    ("allows", "state", "category"),
    [(False, JobState.FAILED, FailureCategory.PERMANENT), (True, JobState.SUCCEEDED, None)],
)
def test_fanout__with_a_chunk_that_fails__is_done_only_if_that_is_allowed(
    tmp_path: Path, fanouts: FanoutService, allows: bool, state: JobState, category: FailureCategory | None
) -> None:
    registry = kinds(tmp_path, fanouts=fanouts)
    config = {
        "handler": f"{HANDLERS}:refuse",
        "range": [0, 2],
        "chunk_size": 1,
        "policy": {"max_attempts": 1},
        "allow_partial": allows,
    }
    metadata = registry.start(order("fan-out", config)).metadata
    worker = InlineWorker(fanouts)
    while worker.work():
        continue

    polled = registry.poll(order("fan-out", config), metadata)

    assert (polled.state, polled.category) == (state, category)


@pytest.mark.parametrize(
    ("tolerated", "state", "reason"),
    [
        (1, JobState.SUCCEEDED, "tolerated failures: 1"),
        (0, JobState.FAILED, "1 chunk failed, and 0 are tolerated"),
    ],
)
def test_fanout__tolerated_failures__decide_how_the_run_ends(
    tmp_path: Path, fanouts: FanoutService, tolerated: int, state: JobState, reason: str
) -> None:
    registry = kinds(tmp_path, fanouts=fanouts)
    policy = {"max_attempts": 1, "tolerated_failures": tolerated}
    config = {"handler": f"{HANDLERS}:refuse", "range": [0, 2], "chunk_size": 1, "policy": policy}
    metadata = registry.start(order("fan-out", config)).metadata
    worker = InlineWorker(fanouts)
    while worker.work():
        continue

    polled = registry.poll(order("fan-out", config), metadata)

    assert polled.state is state
    assert reason in polled.reason


def test_fanout__cancelled__ends_and_cancelling_again_changes_nothing(tmp_path: Path, fanouts: FanoutService) -> None:
    registry = kinds(tmp_path, fanouts=fanouts)
    asked = order("fan-out", {"handler": f"{HANDLERS}:note", "items": ["${date}"]})
    metadata = registry.start(asked).metadata
    registry.cancel(asked, metadata)
    InlineWorker(fanouts).work()
    registry.cancel(asked, metadata)

    polled = registry.poll(asked, metadata)

    assert (polled.state, polled.category) == (JobState.FAILED, FailureCategory.TRANSIENT)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"handler": "x:y", "items": [1], "range": [0, 1]}, "items and range are given"),
        ({"handler": "x", "items": [1]}, "write module:function"),
        ({"handler": "x:y", "lines": "relative.txt"}, "give the whole path"),
        ({"handler": "x:y", "lines": "/no/such/file"}, "no"),
    ],
)
def test_fanout__order_that_makes_no_sense__fails_for_good(
    tmp_path: Path, fanouts: FanoutService, config: dict[str, Any], said: str
) -> None:
    with pytest.raises(TriggerFailedError, match=said) as caught:
        kinds(tmp_path, fanouts=fanouts).start(order("fan-out", config))

    assert caught.value.category is FailureCategory.PERMANENT


def test_registry__without_workflows_and_fanouts__does_not_offer_them(tmp_path: Path) -> None:
    assert {"workflow", "fan-out"} & set(kinds(tmp_path).names) == set()
