"""Running an execution again from its beginning, and starting what is there already: the same input is the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from msgspec import Raw

import headgate as hg
from headgate.durable.model.history import Started
from headgate.errors import AlreadyStartedError, NotFoundError
from headgate.store.catalogue.tables import EXECUTIONS, TIMERS, TURNS
from headgate.store.model.schema import Key
from tests.scenarios.conftest import OpenEnvironment
from tests.scenarios.histories import events, left_behind

app = hg.App("retrying")


@app.activity(retry=hg.Retry(attempts=1))
def weigh(n: int) -> int:
    return n


@app.workflow
async def climbs(n: int, top: int) -> int:
    if n < top:
        hg.continue_as_new(n + 1, top)
    return await weigh(n)


@app.workflow
async def waits(n: int = 0) -> Any:
    return await hg.wait_signal("go")


@app.workflow
async def at_once(n: int) -> int:
    return n


@dataclass
class Order:
    id: str
    pieces: int = 1


@app.workflow
async def orders(order: Order) -> Any:
    return await hg.wait_signal("paid")


def test_retry__after_continuing_as_new__begins_with_the_very_first_input(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    env.stand_in(weigh).raises_once(OSError("not this time")).returns(30)
    handle = env.start(climbs, 1, 3, id="up")
    assert handle.status() is hg.Status.FAILED
    first = handle.describe()
    again = env.service.client.retry("up")
    row = again.describe()
    assert (row.run, row.first_run) == (4, 4)
    assert row.input_digest == first.input_digest
    assert env.service.client.started(row, first=True).input == Raw(b'{"n":1,"top":3}')
    # The same start is still recognised, and takes the one that is there.
    assert climbs.start(1, 3, id="up").was_started is False
    assert env.result(again) == 30
    assert again.describe().run == 6


def test_retry__of_a_retry__begins_with_the_input_of_this_life_of_the_id(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    env.stand_in(weigh).returns(0)
    env.result(env.start(climbs, 1, 3, id="up"))
    env.result(env.start(climbs, 5, 8, id="up", reuse="closed"))
    again = env.service.client.retry("up")
    env.result(again)
    assert env.service.client.started(again.describe(), first=True).input == Raw(b'{"n":5,"top":8}')


def test_retry__of_what_was_archived__begins_with_the_first_input_too(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    env.stand_in(weigh).returns(0)
    for _ in range(2):
        handle = env.start(climbs, 1, 3, id="up", reuse="closed")
        env.result(handle)
        env.advance("8d")
    assert env.service.store.get(TURNS, Key("up", 1)) is None
    assert handle.describe().archived_through == handle.describe().turn
    again = env.service.client.retry("up")
    env.result(again)
    assert env.service.client.started(again.describe(), first=True).input == Raw(b'{"n":1,"top":3}')


def test_retry__without_a_memo__has_none(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(at_once, 1, id="plain")
    assert env.service.client.retry("plain").describe().memo is None
    env.run()
    noted = env.start(at_once, 1, id="noted", memo={"by": "me"})
    assert env.service.client.retry("noted").describe().memo == noted.describe().memo == '{"by":"me"}'
    assert handle.describe().memo is None
    sent = env.service.client.start("at_once", Raw(b"1"), execution_id="sent", memo=Raw(b"null"))
    assert sent.describe().memo is None


@pytest.mark.parametrize("is_told_before", [False, True], ids=["quiet", "after mail"])
def test_retry__terminated_before_its_delayed_start__begins(open_env: OpenEnvironment, *, is_told_before: bool) -> None:
    env = open_env(app)
    handle = env.start(waits, 5, id="later", delay="1h")
    if is_told_before:
        handle.signal("early")
        env.run()
    handle.terminate()
    env.run()
    assert handle.status() is hg.Status.TERMINATED
    # Not even the start is left, which would begin whatever has this id by then.
    assert left_behind(env) == {}
    again = env.service.client.retry("later")
    env.run()
    again.signal("go", "now")
    assert env.result(again) == "now"
    env.advance("2h")
    # Once for each life, the first of which has ended before.
    assert [event.run for event in events(env, again) if isinstance(event, Started)] == [1, 2]
    assert env.service.client.started(again.describe(), first=True).input == Raw(b"5")


def test_retry__of_what_has_no_start_in_its_history__says_what_to_do(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(waits, 5, id="old", delay="1h")
    row = handle.describe()
    store = env.service.store
    # As versions have left it that did not keep the start of what was terminated before it.
    store.delete(TIMERS, Key("old#0#000000"))
    store.update(EXECUTIONS, Key("old"), set={"status": "TERMINATED"})
    assert row.turn == 0
    with pytest.raises(NotFoundError, match=r"execution old: .*start it anew"):
        env.service.client.retry("old")


def test_timeout__of_what_ends_in_its_first_turn__leaves_no_timer_for_the_next(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    assert env.result(env.start(at_once, 1, id="quick", timeout="1h")) == 1
    assert left_behind(env) == {}
    waiting = env.start(waits, id="killed", timeout="1h", delay="10s")
    waiting.terminate()
    env.run()
    assert left_behind(env) == {}


def test_start__of_one_order_by_two_clients__is_the_same_if_the_workflow_reads_it_alike(
    open_env: OpenEnvironment,
) -> None:
    env = open_env(app)
    client = env.service.client
    handle = env.start(orders, Order("e1"), id="e1")
    assert client.start("orders", Raw(b'{"id": "e1"}'), execution_id="e1").was_started is False
    with pytest.raises(AlreadyStartedError):
        client.start("orders", Raw(b'{"id": "e1", "pieces": 2}'), execution_id="e1")
    # Also before its first turn, when nothing but its inbox has the input, or the timer of its start.
    client.start("orders", Raw(b'{"id": "e2"}'), execution_id="e2")
    assert orders.start(Order("e2"), id="e2").was_started is False
    client.start("orders", Raw(b'{"id": "e3"}'), execution_id="e3", delay_seconds=60)
    assert orders.start(Order("e3"), id="e3").was_started is False
    with pytest.raises(AlreadyStartedError):
        orders.start(Order("e4"), id="e3")
    handle.terminate()
