"""Events: emitted by workflows, activities and from outside, and delivered to each subscription once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import headgate as hg
from headgate.errors import DefinitionError, InvalidPayloadError, UserError, WorkflowViolationError
from tests.scenarios.conftest import OpenEnvironment
from tests.scenarios.histories import issued, left_behind


def received_by(app: hg.App, *types: str) -> list[tuple[str, Any]]:
    received: list[tuple[str, Any]] = []

    @app.on_event(*types, name="listener")
    def listen(event: hg.Event) -> None:
        received.append((event.type, event.data))

    return received


def test_emit__from_a_workflow__is_delivered_once(open_env: OpenEnvironment) -> None:
    app = hg.App("shop")
    result = received_by(app, "order.*")

    @app.workflow
    async def order() -> str:
        hg.emit("order.placed", {"n": 1})
        await hg.sleep(1)
        hg.emit("order.paid", [1, None])
        hg.emit("other.thing")
        return "done"

    env = open_env(app)
    handle = env.start(order)
    assert env.result(handle) == "done"
    env.advance("1m")
    assert result == [("order.placed", {"n": 1}), ("order.paid", [1, None])]
    assert issued(env, handle) == ["emit_event", "start_timer", "emit_event", "emit_event", "close"]
    assert left_behind(env) == {}


def test_emit__many_in_one_turn__are_all_delivered(open_env: OpenEnvironment) -> None:
    app = hg.App("shop")
    result = received_by(app, "*")

    @app.workflow
    async def floods(count: int) -> None:
        for n in range(count):
            hg.emit("drop", n)

    env = open_env(app)
    env.result(env.start(floods, 150))
    env.advance("1m")
    assert sorted(data for _, data in result) == list(range(150))


def test_emit__from_an_activity_that_is_tried_again__is_delivered_once(open_env: OpenEnvironment) -> None:
    app = hg.App("shop")
    result = received_by(app, "charged")

    @app.activity(retry=hg.Retry(attempts=3, first="1s"))
    def charge() -> None:
        hg.emit("charged", "once")
        if hg.activity().attempt < 3:
            raise OSError("after the event")

    @app.workflow
    async def order() -> None:
        await charge()

    env = open_env(app)
    env.result(env.start(order))
    env.advance("1m")
    assert result == [("charged", "once")]


def test_emit__from_outside_twice_with_one_id__is_delivered_once(open_env: OpenEnvironment) -> None:
    app = hg.App("shop")
    result = received_by(app, "thing")
    env = open_env(app)
    app.emit("thing", 1, id="same")
    app.emit("thing", 2, id="same")
    app.emit("thing", 3)
    env.advance("1m")
    assert sorted(data for _, data in result) == [1, 3]


def test_event_driven__subscription_starts_and_signals_executions(open_env: OpenEnvironment) -> None:
    app = hg.App("shop")

    @app.workflow
    async def fulfil(order: dict[str, Any]) -> Any:
        hg.emit("order.accepted", order)
        return await hg.wait_signal("paid")

    @app.on_event("order.created")
    def start(event: hg.Event) -> None:
        fulfil.start(event.data, id=event.data["id"])

    @app.on_event("order.accepted")
    def pay(event: hg.Event) -> None:
        fulfil.handle(event.data["id"]).signal("paid", "in full")

    env = open_env(app)
    app.emit("order.created", {"id": "o-1"})
    app.emit("order.created", {"id": "o-1"})
    env.advance("1m")
    assert env.result(fulfil.handle("o-1")) == "in full"
    assert len(env.service.client.list(workflow="fulfil").executions) == 1


def test_subscription__whose_handler_fails__is_tried_again_and_then_a_dead_letter(open_env: OpenEnvironment) -> None:
    app = hg.App("shop")
    tried: list[int] = []
    broken = [True]

    @app.on_event("thing", retry=hg.Retry(attempts=3, first="1s", jitter=0))
    def handle(event: hg.Event) -> None:
        tried.append(event.data)
        if broken[0]:
            raise ValueError("handler broke")

    env = open_env(app)
    app.emit("thing", 5)
    env.advance("1m")
    assert tried == [5, 5, 5]
    (letter,) = env.service.bus.dead_letters("handle").letters
    broken[0] = False
    env.service.bus.redeliver("handle", letter.event_id)
    env.advance("1m")
    assert tried == [5] * 4
    assert env.service.bus.dead_letters("handle").letters == []


def test_subscriptions__several_for_one_event__each_gets_its_own(open_env: OpenEnvironment) -> None:
    app = hg.App("shop")
    received: list[str] = []

    @app.on_event("a.*")
    def first(event: hg.Event) -> None:
        received.append("first")

    @app.on_event("a.b", "c")
    def second(event: hg.Event) -> None:
        received.append("second")

    @app.on_event("x")
    def third(event: hg.Event) -> None:
        received.append("third")

    env = open_env(app)
    app.emit("a.b")
    env.advance("1m")
    assert sorted(received) == ["first", "second"]


@pytest.mark.parametrize("name", ["", "a*", " x", "x" * 256])
def test_emit__of_what_cannot_be_a_type__raises_in_the_workflow(open_env: OpenEnvironment, name: str) -> None:
    app = hg.App("shop")

    @app.workflow
    async def misspells() -> str:
        try:
            hg.emit(name)
        except UserError:
            return "refused"
        return "taken"

    env = open_env(app)
    handle = env.start(misspells)
    assert env.result(handle) == "refused"


def test_emit__data_without_a_json_form__raises_in_the_workflow(open_env: OpenEnvironment) -> None:
    app = hg.App("shop")

    @app.workflow
    async def wrong() -> str:
        try:
            hg.emit("x", object())
        except InvalidPayloadError:
            return "refused"
        return "taken"

    env = open_env(app)
    assert env.result(env.start(wrong)) == "refused"


def test_emit__data_larger_than_an_event_may_be__raises_in_the_workflow(open_env: OpenEnvironment) -> None:
    app = hg.App("shop")

    @app.workflow
    async def large() -> str:
        try:
            hg.emit("x", "x" * 1_100_000)
        except UserError:
            return "refused"
        return "taken"

    env = open_env(app)
    assert env.result(env.start(large)) == "refused"


def test_emit__in_a_turn_that_fails__is_not_delivered(open_env: OpenEnvironment) -> None:
    app = hg.App("shop")
    result = received_by(app, "x")

    @app.workflow(check=False)
    async def reaches_out() -> None:
        hg.emit("x")
        open("/etc/hostname").close()  # noqa: PTH123

    env = open_env(app)
    handle = env.start(reaches_out)
    env.advance("1h")
    assert handle.status() is hg.Status.STUCK
    assert result == []


def test_emit__before_a_failure_of_the_workflow__is_delivered(open_env: OpenEnvironment) -> None:
    app = hg.App("shop")
    result = received_by(app, "x")

    @app.workflow
    async def fails() -> None:
        hg.emit("x", "last words")
        raise ValueError("failed")

    env = open_env(app)
    assert env.start(fails).status() is hg.Status.FAILED
    env.advance("1m")
    assert result == [("x", "last words")]


def test_async_subscription__is_run(open_env: OpenEnvironment) -> None:
    app = hg.App("shop")
    received: list[Any] = []

    @app.on_event("x")
    async def listen(event: hg.Event) -> None:
        await asyncio.sleep(0)
        received.append(event.data)

    env = open_env(app)
    app.emit("x", 1)
    env.advance("1m")
    assert received == [1]


def test_subscription__function_that_could_never_be_called__is_refused() -> None:
    app = hg.App("shop")

    def two(event: hg.Event, other: str) -> None:
        """What has one argument too many."""

    def by_name(*, event: hg.Event) -> None:
        """An event is given by position."""

    for handler in (two, by_name):
        with pytest.raises(DefinitionError, match=rf"{handler.__name__}.*one parameter, the event"):
            app.on_event("x")(handler)
    assert app.subscriptions == {}

    def with_default(event: hg.Event, other: str = "") -> None:
        """What it is not given it does not need."""

    app.on_event("x")(with_default)
    app.on_event("y", name="nothing")(lambda: None)


def test_emit__where_neither_workflow_nor_activity_runs__says_what_to_use() -> None:
    with pytest.raises(WorkflowViolationError, match=r"^hg.emit\(\) .*app.emit\(\)"):
        hg.emit("x")


def test_forward__to_an_address_that_must_not_be_reached__is_refused_and_kept_as_a_dead_letter(
    open_env: OpenEnvironment,
) -> None:
    mine = hg.App("mine")
    mine.forward("order.*", to="https://127.0.0.1:9/events", name="elsewhere")
    env = open_env(mine)
    event_id = mine.emit("order.created", {"id": 1})
    mine.emit("other.created")
    env.run()
    (letter,) = env.service.bus.dead_letters("elsewhere").letters
    assert letter.event_id == event_id
    assert "127.0.0.1" in letter.error.message
