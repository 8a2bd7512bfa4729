"""Load shedding, decided from the time of a pass, the tasks in flight and the priority of a request."""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop
from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest

from headgate.serve.http.fast_path import FullResponse
from headgate.serve.http.limits.load_shedder import (
    HOLD_SECONDS,
    OVERLOADED,
    LoadShedder,
    Priority,
    priority_of,
)


class Loop:
    """Collects what the next pass would call."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []
        self.later: list[tuple[float, Callable[[], None]]] = []
        self.now = 0.0

    def call_soon(self, run: Callable[[], None]) -> None:
        self.soon.append(run)

    def call_later(self, seconds: float, run: Callable[..., None], *arguments: Any) -> None:
        self.later.append((self.now + seconds, lambda: run(*arguments)))

    def time(self) -> float:
        return self.now

    def end_pass(self) -> None:
        run, self.soon = self.soon, []
        for each in run:
            each()

    def advance(self, seconds: float) -> None:
        self.now += seconds
        due = [run for at, run in self.later if at <= self.now]
        self.later = [each for each in self.later if each[0] > self.now]
        for run in due:
            run()


def _run_pass(shedder: LoadShedder, loop: Loop) -> None:
    shedder.on_data(cast("AbstractEventLoop", loop), loop.time())
    loop.end_pass()


def test_refusal__pass_lasted_as_long_as_the_delay__is_sent_at_once() -> None:
    loop, sent = Loop(), list[FullResponse]()
    shedder = LoadShedder(in_flight_max=1, now=loop.time)
    on_loop = cast("AbstractEventLoop", loop)
    _run_pass(shedder, loop)
    loop.advance(HOLD_SECONDS / 2)

    shedder.on_data(on_loop, loop.time())
    loop.advance(HOLD_SECONDS / 2)
    shedder.refuse(Priority.NORMAL, on_loop, loop.time(), sent.append)

    assert sent == [OVERLOADED]
    assert loop.later == []


@pytest.mark.parametrize(
    ("url", "priority"),
    [
        (b"/health/live", Priority.HIGH),
        (b"/metrics", Priority.HIGH),
        (b"/api/v1/activities/heartbeat", Priority.HIGH),
        (b"/api/v1/tasks/success", Priority.HIGH),
        (b"/api/v1/fanouts/f/chunks/c/complete", Priority.HIGH),
        (b"/api/v1/fanouts/f/chunks", Priority.NORMAL),
        (b"/api/v1/datasets/x/signals/FRESHNESS", Priority.NORMAL),
        (b"/ui/pipelines", Priority.LOW),
        (b"/ui/assets/0a1b/app.js", Priority.HIGH),
        (b"/graphql", Priority.LOW),
    ],
)
def test_priority__of_a_url__keeps_reports_and_probes_longest(url: bytes, priority: Priority) -> None:
    assert priority_of(url) is priority


@pytest.mark.parametrize(
    ("seconds", "accepted"),
    [
        (0.0, {Priority.LOW, Priority.NORMAL, Priority.HIGH}),
        (0.03, {Priority.NORMAL, Priority.HIGH}),
        (0.06, {Priority.HIGH}),
        (0.11, set()),
    ],
)
@pytest.mark.parametrize("clock", ["elapsed", "CPU"])
def test_pass__lasts_longer__refuses_the_lowest_priority_first(
    seconds: float, accepted: set[Priority], clock: str
) -> None:
    cpu = [7.0]
    limits = (0.05, 0.001) if clock == "elapsed" else (100.0, 0.05)
    shedder = LoadShedder(in_flight_max=10, pass_seconds=limits[0], pass_cpu_seconds=limits[1], cpu_now=lambda: cpu[0])
    shedder.on_data(cast("AbstractEventLoop", Loop()), 100.0)
    cpu[0] += 0.0 if clock == "elapsed" else seconds

    assert {each for each in Priority if shedder.accepts(each, 100.0 + seconds, is_task=False)} == accepted


def test_pass__suspended_without_using_the_cpu__accepts() -> None:
    shedder = LoadShedder(in_flight_max=10, pass_seconds=1.0, pass_cpu_seconds=0.05, cpu_now=lambda: 7.0)
    shedder.on_data(cast("AbstractEventLoop", Loop()), 100.0)

    assert shedder.accepts(Priority.LOW, 100.4, is_task=False)


def test_pass__ended__accepts_again() -> None:
    shedder, loop = LoadShedder(in_flight_max=10, pass_seconds=0.05), Loop()
    shedder.on_data(cast("AbstractEventLoop", loop), 100.0)
    shedder.on_data(cast("AbstractEventLoop", loop), 100.9)
    assert shedder.is_shedding(101.0)
    (end,) = loop.soon
    end()

    assert not shedder.is_shedding(101.0)
    assert shedder.accepts(Priority.LOW, 101.0, is_task=True)


@pytest.mark.parametrize(
    ("tasks", "accepted"),
    [
        (0, {Priority.LOW, Priority.NORMAL, Priority.HIGH}),
        (2, {Priority.NORMAL, Priority.HIGH}),
        (4, {Priority.HIGH}),
        (8, set()),
    ],
)
def test_tasks__in_flight__limit_further_tasks_by_priority(tasks: int, accepted: set[Priority]) -> None:
    shedder = LoadShedder(in_flight_max=4)
    for _ in range(tasks):
        shedder.begin()

    assert {each for each in Priority if shedder.accepts(each, 0.0, is_task=True)} == accepted
    assert shedder.accepts(Priority.LOW, 0.0, is_task=False)


def test_refusal__is_sent_a_moment_later_and_states_when_to_retry() -> None:
    loop, sent = Loop(), list[FullResponse]()
    shedder = LoadShedder(in_flight_max=1, now=loop.time)
    on_loop = cast("AbstractEventLoop", loop)
    _run_pass(shedder, loop)

    shedder.on_data(on_loop, loop.time())
    shedder.refuse(Priority.LOW, on_loop, loop.time(), sent.append)
    loop.end_pass()
    loop.advance(0.02)
    _run_pass(shedder, loop)
    shedder.on_data(on_loop, loop.time())
    shedder.refuse(Priority.NORMAL, on_loop, loop.time(), sent.append)
    loop.advance(HOLD_SECONDS - 0.026)
    assert sent == []
    loop.advance(0.006)
    assert len(sent) == 1
    loop.advance(0.02)

    body: dict[str, Any] = msgspec.json.decode(sent[0].content)
    assert sent == [OVERLOADED, OVERLOADED]
    assert b"retry-after: 1\r\n" in OVERLOADED.head
    assert (OVERLOADED.status, body["code"]) == (503, "server_busy")
    assert shedder.shed_counts == {Priority.LOW: 1, Priority.NORMAL: 1}


def test_admitting__as_many_tasks_as_allowed_run__further_relayed_requests_are_refused_by_priority() -> None:
    async def run() -> None:
        release, begun = asyncio.Event(), list[str]()

        async def app(scope: Any, _receive: Any, send: Any) -> None:
            begun.append(scope["path"])
            await release.wait()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

        def request(path: str) -> asyncio.Task[list[Any]]:
            async def answered() -> list[Any]:
                sent: list[Any] = []

                async def send(message: Any) -> None:
                    sent.append(message)

                scope: Any = {"type": "http", "path": path, "raw_path": path.encode()}
                await relayed(scope, cast("Any", None), send)
                return sent

            return asyncio.create_task(answered())

        shedder = LoadShedder(in_flight_max=2)
        relayed = shedder.admitting(app)
        first = [request("/api/v1/a"), request("/api/v1/b")]
        await asyncio.sleep(0)
        refused = request("/api/v1/c")
        urgent = request("/metrics")
        start, body = await refused
        assert begun == ["/api/v1/a", "/api/v1/b", "/metrics"]
        assert (start["status"], dict(start["headers"])[b"retry-after"]) == (503, b"1")
        assert msgspec.json.decode(body["body"])["code"] == "server_busy"
        assert shedder.shed_counts[Priority.NORMAL] == 1
        release.set()
        assert [(await each)[0]["status"] for each in (*first, urgent)] == [200, 200, 200]
        again = request("/api/v1/d")
        assert (await again)[0]["status"] == 200

    asyncio.run(run())
