"""Values that travel: what JSON cannot hold is refused where it is given, large ones spill, types are kept."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import msgspec
import pytest

import headgate as hg
from headgate.errors import InvalidPayloadError, PayloadTooLargeError, UserError
from tests.scenarios.conftest import OpenEnvironment
from tests.scenarios.histories import left_behind, turns

app = hg.App("payloads")
MEGABYTE = 1_000_000


class Size(enum.StrEnum):
    SMALL = "small"
    LARGE = "large"


@dataclass
class Item:
    name: str
    price: Decimal
    size: Size = Size.SMALL
    labels: list[str] = field(default_factory=list)


class Order(msgspec.Struct):
    """An order as a struct."""

    id: str
    items: list[Item]
    placed: datetime
    within: timedelta | None = None


@app.activity
def echo(value: Any) -> Any:
    return value


@app.activity
def total(order: Order) -> Decimal:
    assert isinstance(order, Order)
    assert all(isinstance(item, Item) and isinstance(item.size, Size) for item in order.items)
    return sum((item.price for item in order.items), Decimal(0))


@app.activity
def dearest(items: list[Item]) -> Item:
    return max(items, key=lambda item: item.price)


@app.workflow
async def handles(order: Order) -> dict[str, Any]:
    assert isinstance(order, Order)
    assert isinstance(order.placed, datetime)
    dear = await dearest(order.items)
    assert isinstance(dear, Item)
    assert isinstance(await total(order), Decimal)
    await hg.sleep(1)
    return {"dear": dear.name, "size": dear.size, "total": await total(order)}


@app.workflow
async def large(size: int, count: int) -> int:
    text = "x" * size
    length = 0
    for _ in range(count):
        length += len(await echo(text))
    await hg.sleep(1)
    return length


@app.workflow
async def returns(size: int) -> str:
    return "x" * size


@app.workflow
async def gives(kind: str) -> str:
    loop: list[Any] = []
    loop.append(loop)
    values: dict[str, Any] = {
        "object": object(),
        "function": len,
        "nan": math.nan,
        "infinity": [1, {"a": math.inf}],
        "bad key": {(1, 2): 3},
        "itself": loop,
        "surrogate": "\ud800",
        "too large": "x" * 7 * MEGABYTE,
    }
    try:
        await echo(values[kind])
    except (InvalidPayloadError, PayloadTooLargeError) as exc:
        return str(exc)
    return "taken"


ORDER = Order(
    "o-1",
    [Item("tea", Decimal("2.50")), Item("cake", Decimal("4.10"), Size.LARGE, ["sweet"])],
    datetime(2026, 1, 1, tzinfo=UTC),
    timedelta(hours=1),
)


def test_typed_values__dataclass_struct_enum_decimal_and_time__keep_their_types(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    assert env.result(env.start(handles, ORDER)) == {"dear": "cake", "size": "large", "total": "6.60"}


@pytest.mark.parametrize(
    ("kind", "fact"),
    [
        ("object", "no JSON form"),
        ("function", "no JSON form"),
        ("nan", "nan"),
        ("infinity", "inf"),
        ("bad key", "key"),
        ("itself", "holding itself"),
        ("surrogate", "surrogate"),
        ("too large", "reference"),
    ],
)
def test_value__that_cannot_travel__is_refused_where_it_is_given_and_is_catchable(
    open_env: OpenEnvironment, kind: str, fact: str
) -> None:
    env = open_env(app)
    found = env.result(env.start(gives, kind))
    assert fact in found
    assert "activity echo" in found


@pytest.mark.parametrize("value", [math.nan, object(), {1: {2: {3: math.inf}}}])
def test_start__with_what_cannot_travel__is_refused(open_env: OpenEnvironment, value: Any) -> None:
    open_env(app)
    with pytest.raises(UserError):
        gives.start(value)


def test_result__that_cannot_travel__fails_the_workflow(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")

    @mine.workflow
    async def wrong() -> Any:
        return {"a": object()}

    env = open_env(mine)
    handle = env.start(wrong)
    with pytest.raises(hg.ExecutionFailure, match="result of the workflow"):
        env.result(handle)
    assert handle.status() is hg.Status.FAILED


@pytest.mark.parametrize("size", [390_000, 410_000, 3 * MEGABYTE])
def test_large_values__of_activities__go_through_and_replay(open_env: OpenEnvironment, size: int) -> None:
    env = open_env(app)
    handle = env.start(large, size, 2)
    assert env.result(handle) == 2 * size
    assert left_behind(env) == {}


def test_large_values__many_in_one_turn__go_through(open_env: OpenEnvironment) -> None:
    import asyncio

    mine = hg.App("mine")

    @mine.activity
    def echoes(text: str) -> str:
        return text

    @mine.workflow
    async def many() -> list[int]:
        found = await asyncio.gather(*(echoes(str(n) * 900_000) for n in range(8)))
        return [len(one) for one in found]

    env = open_env(mine)
    handle = env.start(many)
    assert env.result(handle) == [900_000] * 8
    hg.testing.replay(many, handle.id, turns(env, handle))


@pytest.mark.parametrize("size", [500_000, MEGABYTE, 5 * MEGABYTE])
def test_large_result__of_a_workflow_and_a_child__goes_through(open_env: OpenEnvironment, size: int) -> None:
    mine = hg.App("mine")

    @mine.workflow
    async def inner() -> str:
        return "x" * size

    @mine.workflow
    async def outer() -> str:
        return str(await inner())

    env = open_env(mine)
    assert len(env.result(env.start(outer))) == size


def test_result__larger_than_is_accepted__fails_the_workflow(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(returns, 7 * MEGABYTE)
    with pytest.raises(hg.ExecutionFailure, match="pass a reference"):
        env.result(handle)


def test_large_signals_inputs_and_memos__go_through(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")

    @mine.workflow
    async def takes(text: str) -> list[int]:
        result = [await hg.wait_signal("large") for _ in range(3)]
        return [len(text), len(hg.info().memo), *(len(one) for one in result)]

    env = open_env(mine)
    handle = env.start(takes, "x" * MEGABYTE, memo="x" * 500_000)
    for _ in range(3):
        handle.signal("large", "x" * MEGABYTE)
    assert env.result(handle) == [MEGABYTE, 500_000, MEGABYTE, MEGABYTE, MEGABYTE]
    with pytest.raises(UserError):
        env.start(takes, "x" * 7 * MEGABYTE)


def test_many_large_signals__at_once__are_all_received(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")

    @mine.workflow
    async def takes(count: int) -> int:
        return sum([len(await hg.wait_signal("large")) for _ in range(count)])

    env = open_env(mine)
    handle = takes.start(20)
    for _ in range(20):
        handle.signal("large", "x" * 400_000)
    assert env.result(handle) == 8_000_000


def test_signal__larger_than_is_accepted__is_refused(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(large, 1, 1)
    with pytest.raises(PayloadTooLargeError):
        handle.signal("x", "x" * 7 * MEGABYTE)


def test_values__in_the_workflow__are_what_replay_sees_not_what_was_given(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")
    given: list[Any] = []

    @mine.activity
    def shared() -> Any:
        given.append([1, 2])
        return given[-1]

    @mine.workflow
    async def changes() -> Any:
        got = await shared()
        got.append(3)
        await hg.sleep(1)
        return got

    env = open_env(mine)
    assert env.result(env.start(changes)) == [1, 2, 3]
    assert given == [[1, 2]]


def test_error__larger_than_is_kept__is_cut_and_still_reported(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")

    @mine.activity(retry=hg.Retry(attempts=1))
    def shouts() -> None:
        error = ValueError("x" * MEGABYTE)
        error.data = "y" * MEGABYTE  # type: ignore[attr-defined]
        raise error

    @mine.workflow
    async def hears() -> list[Any]:
        try:
            await shouts()
        except ValueError as exc:
            return [len(str(exc)) < 10_000, str(exc).startswith("xxx")]
        return []

    env = open_env(mine)
    assert env.result(env.start(hears)) == [True, True]
