"""Interceptors around clients, workflows and activities, and the headers that calls carry."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import pytest

import headgate as hg
from headgate.durable.model.history import SendSignal, Signal, StartActivity, StartChild, Started
from headgate.errors import DeterminismError, InvalidIdError
from tests.scenarios.conftest import OpenEnvironment
from tests.scenarios.histories import commands, events


class Tenants(hg.Interceptor):
    """Carries the tenant of the caller, and notes what it wraps."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    @contextmanager
    def client(self, call: hg.ClientCall) -> Iterator[None]:
        call.headers["tenant"] = "acme"
        self.seen.append(f"client {call.kind.value} {call.name}".strip())
        yield

    @contextmanager
    def workflow(self, call: hg.WorkflowCall) -> Iterator[None]:
        # Not in `finally`, which also runs when the execution leaves memory.
        yield
        # Only the first time: the code of a workflow runs again on replay.
        if not hg.info().is_replaying:
            self.seen.append(f"workflow {call.workflow} of {call.headers.get('tenant')}: {call.result}")

    @contextmanager
    def activity(self, call: hg.ActivityCall) -> Iterator[None]:
        yield
        call.result = f"{call.result} for {call.headers['tenant']}"

    def outbound(self, call: hg.OutboundCall) -> None:
        call.headers["via"] = call.kind.value


class Outer(hg.Interceptor):
    """Notes the order of nested interceptors, and changes arguments."""

    def __init__(self, order: list[str], name: str) -> None:
        self._order = order
        self._name = name

    @contextmanager
    def activity(self, call: hg.ActivityCall) -> Iterator[None]:
        self._order.append(f"{self._name} begins")
        call.args = (f"{call.args[0]}{self._name}",)
        try:
            yield
        except LookupError as exc:
            self._order.append(f"{self._name} failed")
            raise ValueError("hidden") from exc
        self._order.append(f"{self._name} ends")


def test_headers__from_the_client__reach_activities_children_and_signals(open_env: OpenEnvironment) -> None:
    tenants = Tenants()
    app = hg.App("carried", interceptors=[tenants])

    @app.activity
    def bill(item: str) -> str:
        return f"{item} billed ({hg.activity().headers['via']})"

    @app.activity
    async def mail(item: str) -> str:
        return f"{item} mailed"

    @app.workflow
    async def child(item: str) -> str:
        await hg.wait_signal("go")
        return await bill(item)

    @app.workflow
    async def order(item: str) -> list[str]:
        begun = child.options(id="child")(item)
        await begun.signal("go")
        return [await begun, await mail(item), hg.info().headers["tenant"]]

    env = open_env(app)
    handle = env.start(order, "pen", id="order")
    result = env.result(handle)
    child_events = events(env, child.handle("child"))

    assert result == ["pen billed (activity) for acme", "pen mailed for acme", "acme"]
    carried = [
        each.headers for each in commands(env, handle) if isinstance(each, StartActivity | StartChild | SendSignal)
    ]
    assert [each["via"] for each in carried if each] == ["child", "signal", "activity"]
    started = next(event for event in child_events if isinstance(event, Started))
    signal = next(event for event in child_events if isinstance(event, Signal))
    assert started.headers == {"tenant": "acme", "via": "child"}
    assert signal.headers == {"tenant": "acme", "via": "signal"}
    assert tenants.seen[0] == "client start order"
    assert set(tenants.seen[1:]) == {
        "workflow child of acme: pen billed (activity) for acme",
        "workflow order of acme: ['pen billed (activity) for acme', 'pen mailed for acme', 'acme']",
    }


def test_calls_of_a_handle__each__is_wrapped(open_env: OpenEnvironment) -> None:
    tenants = Tenants()
    app = hg.App("handles", interceptors=[tenants])

    @app.workflow
    async def open_one() -> None:
        hg.on_query("q", lambda: 1)
        hg.on_update("u", lambda: 2)
        await hg.wait_signal("never")

    env = open_env(app)
    handle = env.start(open_one, id="o")
    env.run()
    handle.signal("s", 1)
    assert (handle.query("q"), handle.update("u")) == (1, 2)
    handle.cancel()
    env.run()
    other = open_one.signal_with_start("s", 1, id="p")
    other.terminate()
    env.run()

    names = ["start open_one", "signal s", "query q", "update u", "cancel", "signal_with_start open_one", "terminate"]
    assert [each for each in tenants.seen if each.startswith("client")] == [f"client {name}" for name in names]


def test_nested__first_one_is_outermost__and_may_change_arguments_and_errors(open_env: OpenEnvironment) -> None:
    order: list[str] = []
    app = hg.App("nested", interceptors=[Outer(order, "a"), Outer(order, "b")])

    @app.activity(retry=hg.Retry(attempts=1))
    def echo(text: str) -> str:
        if text.startswith("bad"):
            raise LookupError(text)
        return text

    @app.workflow
    async def main(text: str) -> str:
        try:
            return await echo(text)
        except ValueError as exc:
            return str(exc)

    env = open_env(app)
    assert env.result(env.start(main, "x")) == "xab"
    assert order == ["a begins", "b begins", "b ends", "a ends"]
    assert env.result(env.start(main, "bad")) == "hidden"
    assert order[-1] == "b failed"


def test_continue_as_new__headers__stay_with_the_execution(open_env: OpenEnvironment) -> None:
    app = hg.App("again", interceptors=[Tenants()])

    @app.workflow
    async def count(left: int) -> str:
        await hg.sleep(1)
        if left:
            hg.continue_as_new(left - 1)
        return hg.info().headers["tenant"]

    env = open_env(app)
    assert env.result(env.start(count, 2)) == "acme"


class Clocked(hg.Interceptor):
    """Does in a workflow what cannot be replayed."""

    @contextmanager
    def workflow(self, call: hg.WorkflowCall) -> Iterator[None]:
        with open("/dev/null"):  # noqa: PTH123 - refused by the sandbox, whichever way
            yield


def test_workflow__interceptor_with_io__is_refused_as_in_workflow_code() -> None:
    app = hg.App("refused", interceptors=[Clocked()])

    @app.workflow
    async def main() -> None:
        await hg.sleep(1)

    with hg.testing.Environment(app) as env:
        handle = env.start(main)
        env.run()
        failure = handle.describe().failure

    assert failure is not None
    assert "is refused in workflow code" in failure


class Slow(hg.Interceptor):
    """Has every run begin with a timer, which is part of the history."""

    def __init__(self, *, is_slow: bool) -> None:
        self.is_slow = is_slow

    @contextmanager
    def workflow(self, call: hg.WorkflowCall) -> Iterator[None]:
        self.task = asyncio.ensure_future(hg.sleep(3600)) if self.is_slow else None
        yield


def test_replay__interceptor_that_no_longer_asks_for_a_timer__differs_from_history() -> None:
    def made(*, is_slow: bool) -> tuple[hg.App, hg.Workflow[[], datetime]]:
        app = hg.App("slow", interceptors=[Slow(is_slow=is_slow)])

        @app.workflow
        async def main() -> datetime:
            await hg.sleep(5)
            return hg.now()

        return app, main

    app, main = made(is_slow=True)
    with hg.testing.Environment(app) as env:
        handle = env.start(main, id="m")
        assert env.result(handle) > datetime(2000, 1, 1, tzinfo=UTC)
        recorded = list(env.service.client.history("m"))

    hg.testing.replay(main, "m", recorded)
    with pytest.raises(DeterminismError):
        hg.testing.replay(made(is_slow=False)[1], "m", recorded)


def test_headers__too_many_or_not_text__are_refused(open_env: OpenEnvironment) -> None:
    class Greedy(hg.Interceptor):
        @contextmanager
        def client(self, call: hg.ClientCall) -> Iterator[None]:
            call.headers.update({f"h{number}": "x" for number in range(21)})
            yield

    app = hg.App("greedy", interceptors=[Greedy()])

    @app.workflow
    async def main() -> None:
        pass

    open_env(app)
    with pytest.raises(InvalidIdError, match="at most 20"):
        main.start()
