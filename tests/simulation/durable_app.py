"""The app that the simulation runs: each thing that durable execution promises, once, with results known beforehand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import headgate as hg
from headgate.durable.sdk.activity_context import ActivityContext
from headgate.errors import AlreadyStartedError, NotFoundError

FAN_WIDTH = 130
POOL = 2
FLAKY_FAILURES = 2
# Crashes use attempts up as well: only what is meant to fail has a limit.
ENDLESS = hg.Retry(attempts=0, first=0.5, most=5.0)


@dataclass(frozen=True)
class Attempt:
    """One call of an activity's code."""

    activity_id: str
    attempt: int
    token: str
    name: str


@dataclass
class Journal:
    """What happened outside of the store, where no rollback undoes it."""

    attempts: list[Attempt] = field(default_factory=list)
    delivered: dict[str, int] = field(default_factory=dict)
    tokens: list[str] = field(default_factory=list)
    # Whether the code of the workflow `brittle` is the one that its history does not fit.
    broken: bool = False
    performing: Callable[[Attempt], None] = lambda _: None

    def note(self) -> ActivityContext:
        context = hg.activity()
        made = Attempt(context.activity_id, context.attempt, context.token, context.name)
        self.performing(made)
        self.attempts.append(made)
        return context


def make_app(journal: Journal, *, check: bool = False) -> hg.App:
    """Return the app of one process; what its activities do is noted in the journal that all share.

    Looking through the source takes longer than the life of most processes here, so it is done where it is asked for.
    """
    app = hg.App("world")
    _declare_activities(app, journal)
    _declare_steps(app, check=check)
    _declare_effects(app, check=check)
    _declare_waiting(app, check=check)
    _declare_runs(app, journal, check=check)
    _declare_families(app, check=check)
    _declare_repairs(app, journal, check=check)
    _declare_handlers(app, journal)
    return app


def _declare_activities(app: hg.App, journal: Journal) -> None:
    @app.activity(retry=ENDLESS)
    def add(value: int) -> int:
        journal.note()
        return value + 1

    @app.activity(retry=ENDLESS)
    def flaky(value: int) -> int:
        if journal.note().attempt <= FLAKY_FAILURES:
            raise ValueError(f"not yet {value}")
        return value + 1

    @app.activity(retry=hg.Retry(attempts=3, first=0.5))
    def doomed(value: int) -> int:
        journal.note()
        raise LookupError(f"never {value}")

    @app.activity(retry=ENDLESS)
    def asked_outside(value: int) -> int:
        del value
        journal.tokens.append(journal.note().token)
        # What the outside says is the value.
        later: int = hg.complete_later()
        return later

    @app.activity(retry=ENDLESS, limit=hg.Limit(concurrency=POOL, key="pool"))
    def pooled(value: int) -> int:
        journal.note()
        return value + 1

    @app.activity(retry=ENDLESS, limit=hg.Limit(rate=4, per="1s", key="rate"))
    def rated(value: int) -> int:
        journal.note()
        return value + 1

    @app.activity(retry=ENDLESS, timeout="20s")
    def told(value: int) -> int:
        journal.note()
        hg.emit("thing.done", {"key": f"told-{hg.activity().execution_id}-{value}"})
        return value + 1


def _declare_steps(app: hg.App, *, check: bool) -> None:
    add = app.activities["add"]
    flaky, doomed = app.activities["flaky"], app.activities["doomed"]

    @app.workflow(check=check)
    async def serial(steps: int) -> int:
        value = 0
        for _ in range(steps):
            value = await add(value)
        assert hg.side_effect(lambda: 7) == 7
        return value

    @app.workflow(check=check)
    async def failing(value: int) -> list[int]:
        answer = await flaky(value)
        try:
            await doomed(value)
        except LookupError as exc:
            assert isinstance(exc.__cause__, hg.ActivityFailure)
            return [answer, exc.__cause__.attempts]
        except hg.ActivityFailure as exc:
            # Its worker died in the last attempt.
            return [answer, exc.attempts]
        return [answer, 0]

    once = add.options(retry=hg.Retry(attempts=1))

    @app.workflow(check=check)
    async def fragile(value: int) -> str:
        try:
            return str(await once(value))
        except hg.ActivityFailure as exc:
            return exc.type

    @app.workflow(check=check)
    async def fan(width: int) -> int:
        return sum(await asyncio.gather(*(add(value) for value in range(width))))


def _declare_effects(app: hg.App, *, check: bool) -> None:
    pooled, rated = app.activities["pooled"], app.activities["rated"]
    emitting, asked_outside = app.activities["told"], app.activities["asked_outside"]

    @app.workflow(check=check)
    async def limited(width: int) -> int:
        calls = [pooled(value) for value in range(width)] + [rated(value) for value in range(width)]
        return sum(await asyncio.gather(*calls))

    @app.workflow(check=check)
    async def outside(value: int) -> Any:
        first = asyncio.ensure_future(asked_outside(value))
        second = asyncio.ensure_future(asked_outside(-value))
        try:
            async with asyncio.timeout(600):
                return [await first, await second]
        except TimeoutError:
            return "late"

    @app.workflow(check=check)
    async def emitter(count: int) -> int:
        for number in range(count):
            hg.emit("thing.made", {"key": f"{hg.info().execution_id}-{number}"})
            await emitting(number)
            await hg.sleep(0.5)
        return count


def _declare_waiting(app: hg.App, *, check: bool) -> None:

    @app.workflow(check=check)
    async def clockwork(rounds: int) -> int:
        """Timers that ring and timers that lose their race, in turn."""
        won = 0
        for number in range(rounds):
            try:
                async with asyncio.timeout(1 if number % 2 else 3600):
                    await hg.sleep(2)
                won += 1
            except TimeoutError:
                won += 10
        return won

    @app.workflow(check=check)
    async def collector() -> list[Any]:
        received: list[Any] = []
        hg.on_signal("item", received.append)
        hg.on_query("count", lambda: len(received))
        limit = await hg.wait_signal("done")
        await hg.wait_condition(lambda: len(received) >= limit, timeout="1h")
        return received


def _declare_runs(app: hg.App, journal: Journal, *, check: bool) -> None:
    add = app.activities["add"]

    @app.workflow(check=check)
    async def loop(left: int, received: list[Any]) -> list[Any]:
        """Runs that follow each other; each begins an activity that it may leave behind."""
        work = asyncio.ensure_future(add(1000 * left))
        tick = await hg.wait_signal("tick")
        if left % 2 == 0 or work.done():
            answer = await work
            if answer != 1000 * left + 1:
                return [f"run {hg.info().run} received {answer} of another run"]
        if left > 1:
            hg.continue_as_new(left - 1, [*received, tick])
        return [*received, tick]

    @app.workflow(check=False)
    async def brittle(value: int) -> int:
        if journal.broken:
            await hg.sleep(1)
        answer: int = await add(value)
        await hg.wait_signal("go")
        return answer + int(await add(answer))


def _declare_repairs(app: hg.App, journal: Journal, *, check: bool) -> None:
    add = app.activities["add"]
    sleeper = app.workflows["sleeper"]

    @app.workflow(check=check)
    async def repairable(value: int) -> list[Any]:
        """Fails with a timer, a child and an activity open, if its code is broken."""
        waiting = [asyncio.ensure_future(hg.sleep(3)), sleeper.options(id="repairable.child")(0.001)]
        for _ in range(2):
            value = await add(value)
        last = add(value)
        if journal.broken:
            raise TypeError("unsupported operand")
        return [await last, *[await each for each in waiting]]


def _declare_families(app: hg.App, *, check: bool) -> None:
    serial = app.workflows["serial"]

    @app.workflow(check=check)
    async def sleeper(hours: float) -> str:
        await hg.sleep(hours * 3600)
        return "woke"

    @app.workflow(check=check)
    async def story(value: int) -> list[Any]:
        answer = await app.activities["add"](value)
        await hg.sleep(2)
        woke = await sleeper(0.001)
        return [answer, woke, await hg.wait_signal("approved")]

    @app.workflow(check=check)
    async def family(steps: int) -> int:
        own = hg.info().execution_id
        for policy in ("terminate", "cancel", "abandon"):
            sleeper.options(id=f"{own}.{policy}", parent_close=policy)(0.5)
        return int(await serial(steps))

    @app.workflow(check=check)
    async def claimant(wanted: str) -> str:
        """Wants a child under an id that others want as well."""
        try:
            return str(await sleeper.options(id=wanted, parent_close="abandon")(0.01))
        except (hg.ChildFailure, AlreadyStartedError):
            return "taken"

    @app.workflow(check=check)
    async def messenger(target: str, count: int) -> int:
        sent = 0
        for number in range(count):
            try:
                await hg.signal(target, "item", f"{hg.info().execution_id}-{number}")
                sent += 1
            except NotFoundError:
                await hg.sleep(1)
        return sent


def _declare_handlers(app: hg.App, journal: Journal) -> None:
    @app.on_event("thing.*", retry=ENDLESS)
    def on_thing(event: hg.Event) -> None:
        journal.note()
        key = event.data["key"]
        journal.delivered[key] = journal.delivered.get(key, 0) + 1

    @app.on_event("order.made", retry=ENDLESS)
    def on_order(event: hg.Event) -> None:
        journal.note()
        app.workflows["serial"].start(2, id=f"order-{event.data['key']}")
        journal.delivered[event.data["key"]] = 1

    @app.on_event("thing.bad", retry=hg.Retry(attempts=2, first=0.5))
    def on_bad(event: hg.Event) -> None:
        journal.note()
        raise ValueError(event.data["key"])
