"""Declared signals, queries and updates: both ends have their types, and a value of another type is refused."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

import pytest

import headgate as hg
from headgate.errors import InvalidIdError, InvalidPayloadError
from tests.scenarios.conftest import OpenEnvironment

app = hg.App("typed-messages")


@dataclass
class Approval:
    by: str
    on: date


approved = hg.Signal("approved", Approval)
go = hg.Signal("go")
maybe: hg.Signal[int | None] = hg.Signal("maybe", int | None)
seen = hg.Query("seen", returns=list[Approval])
since = hg.Query("since", date, returns=list[str])
limit = hg.Update("limit", Approval, returns=Approval)
clear = hg.Update("clear")

ADA = Approval("ada", date(2026, 1, 2))
BOB = Approval("bob", date(2026, 5, 1))


@app.workflow
async def desk() -> Approval:
    approvals: list[Approval] = []

    def reject_ada(value: Approval) -> None:
        if value.by == "ada":
            raise ValueError("not ada")

    async def later(value: Approval) -> Approval:
        await hg.sleep("1s")
        return Approval(value.by.upper(), value.on)

    # Without annotations: the declarations decide.
    hg.on_signal(approved, approvals.append)
    hg.on_query(seen, lambda: approvals)
    hg.on_query(since, lambda day: [each.by for each in approvals if each.on >= day])
    hg.on_update(limit, later, validator=reject_ada)
    hg.on_update(clear, approvals.clear)
    await hg.wait_signal(go)
    return approvals[-1]


@app.workflow
async def waiter() -> list[str]:
    first = await hg.wait_signal(approved)
    number = await hg.wait_signal(maybe)
    return [first.on.isoformat(), repr(number)]


@app.workflow
async def sender(to: str) -> str:
    await hg.signal(to, approved, ADA)
    await hg.signal(to, maybe, None)
    child = waiter.options(id="a-child")()
    child.signal(approved, BOB)
    child.signal("maybe", 4)
    return " ".join(await child)


@app.workflow
async def counts(order: Approval, left: int = 2) -> list[str]:
    await hg.sleep(1)
    if left:
        counts.continue_as_new(order, left=left - 1)
    return [type(order).__name__, str(hg.info().run)]


@app.workflow
async def wrongly_continues() -> None:
    counts.continue_as_new(ADA)


def test_messages__declared__arrive_as_their_types(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(desk, id="d-1")
    handle.signal(approved, ADA, id="once")
    handle.signal(approved, BOB)
    env.run()

    assert handle.query(seen) == [ADA, BOB]
    assert handle.query(since, date(2026, 4, 1)) == ["bob"]
    handle.signal(go)
    assert env.result(handle) == BOB
    assert desk.handle("d-1").result() == BOB


def test_update__declared__validator_and_handler_get_the_type(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(desk)
    with pytest.raises(hg.UpdateFailure, match="not ada"):
        handle.update(limit, ADA)
    handle.signal(approved, ADA)
    handle.update(clear)

    assert handle.query(seen) == []


def test_signal__value_of_another_type__is_refused_by_the_sender(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(desk)
    with pytest.raises(InvalidPayloadError, match="payload of signal approved"):
        handle.signal(approved, {"by": "ada"})  # type: ignore[misc]
    with pytest.raises(InvalidPayloadError, match="payload of signal go"):
        handle.signal(go, 5)  # type: ignore[misc]
    with pytest.raises(InvalidPayloadError, match="input of query since"):
        handle.query(since, "no date")  # type: ignore[misc]


def test_signal__between_executions_and_to_a_child__has_its_type(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    waiting = env.start(waiter)

    assert env.result(env.start(sender, waiting.id)) == "2026-05-01 4"
    assert env.result(waiting) == ["2026-01-02", "None"]


def test_signal_with_start__options_and_declaration__starts_once(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    first = waiter.options(id="w-1", tags={"k": "v"}).signal_with_start(approved, ADA)
    again = waiter.signal_with_start(maybe, 5, id="w-1")

    assert (first.was_started, again.was_started) == (True, False)
    assert env.result(first) == ["2026-01-02", "5"]
    assert first.describe().tags == {"k": "v"}
    with pytest.raises(InvalidIdError, match="give the id of the execution"):
        waiter.signal_with_start(maybe, 5)


def test_start__options_given_before__are_those_of_the_execution(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = counts.options(id="c-1", tags={"k": "v"}, memo={"m": 1}, delay="1h", timeout="1d").start(ADA, left=1)
    row = handle.describe()

    assert (handle.id, row.tags, row.memo, row.timeout_at_ms is not None) == ("c-1", {"k": "v"}, '{"m":1}', True)
    env.advance("59m")
    assert row.turn == handle.describe().turn == 0
    assert env.result(handle) == ["Approval", "2"]
    assert counts.options(id="c-1").start(ADA, left=1).was_started is False
    assert counts.options(id="c-1", reuse="closed").start(ADA, 0).was_started is True


def test_continue_as_new__method_of_the_workflow__checks_that_it_is_its_own(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    assert env.result(env.start(counts, ADA)) == ["Approval", "3"]
    stuck = env.start(wrongly_continues)

    with pytest.raises(hg.ExecutionFailure, match="a run continues as its own workflow"):
        env.result(stuck)
