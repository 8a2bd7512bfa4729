"""The app whose executions were recorded: everything that a history can hold, in small workflows.

Histories of this code are committed beside it and have to replay for good. So what is here stays as it is: something
new is a new workflow, or a new side of a patch, with a recording of its own.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

import headgate as hg

app = hg.App("recorded")


class Stage:
    """In which state the code is while it is recorded. Replay meets it as it is written here."""

    # Before the change that `renovated` guards with a patch.
    is_before_patch = False
    # While `mended` does what no workflow may.
    is_broken = False
    # While `repaired` has an error in its code.
    is_wrong = False


class Parcel(msgspec.Struct):
    """A value with a type of its own."""

    address: str
    grams: int
    marks: tuple[str, ...] = ()


class Refused(hg.NonRetryable):
    """An error that carries something, and that another attempt would not help."""

    data: Any


class OutOfStock(Exception):
    """An error of this app's own, with an attribute."""

    def __init__(self, item: str) -> None:
        super().__init__(f"{item} is out of stock")
        self.item = item


# Activities. Tokens are what someone outside completes them by.

TOKENS: list[str] = []


@app.activity(retry=hg.Retry(attempts=1))
def weigh(parcel: Parcel) -> int:
    logging.getLogger(__name__).warning("weighing %s", parcel.address)
    return parcel.grams


@app.activity(retry=hg.Retry(attempts=3, first="2s", factor=3.0, most="10s", jitter=0.0))
async def knock(door: str) -> str:
    attempt = hg.activity().attempt
    hg.heartbeat({"knocked": attempt})
    if attempt < 3:
        raise TimeoutError(f"nobody answers at {door}")
    return f"{door} opened at knock {attempt}"


@app.activity(retry=hg.Retry(attempts=5, never=(LookupError,)))
def find(item: str) -> str:
    if item == "nothing":
        raise KeyError(item)
    if item == "forbidden":
        try:
            raise PermissionError("not for you")
        except PermissionError as exc:
            raise Refused("ask someone else", data={"item": item, "ask": ["the boss"]}) from exc
    return item.upper()


@app.activity(
    retry=hg.Retry(attempts=2, first="1s", jitter=0.0),
    timeout="10m",
    schedule_to_start="1h",
    schedule_to_close="1d",
    heartbeat="1m",
    queue="phone",
    limit=hg.Limit(concurrency=2, rate=5, per="2s", key="line"),
)
def call(number: str) -> str:
    TOKENS.append(hg.activity().token)
    answered: str = hg.complete_later()
    return answered


# Activities and how they end.


@app.workflow
async def parcels(doors: list[str], ratio: float = 0.5) -> dict[str, Any]:
    """Activities that end well, at the third attempt, and not at all."""
    hg.log("on the way", level="debug")
    grams = [await weigh(Parcel(door, 100 + place, ("fragile",))) for place, door in enumerate(doors)]
    opened = await knock(doors[0])
    missed: list[str] = []
    for item in ("nothing", "forbidden", "Straße"):
        try:
            missed.append(await find(item))
        except KeyError as exc:
            missed.append(f"no {exc.args[0]}")
        except Refused as exc:
            missed.append(f"{exc}: {exc.data['ask'][0]}")
    return {"grams": grams, "opened": opened, "missed": missed, "ratio": ratio, "big": 2**53 + 1, "tiny": 1e-9}


@app.workflow
async def calls(numbers: list[str]) -> list[str]:
    """Activities that someone outside completes, fails, or forgets."""
    said = []
    for number in numbers:
        try:
            said.append(await call(number))
        except hg.ActivityTimeout as exc:
            said.append(f"{exc.kind} after {exc.attempts}")
        except hg.ActivityFailure as exc:
            said.append(f"{exc.type}: {exc.message}")
    return said


# Time.


@app.workflow
async def alarms(rounds: int) -> list[str]:
    """Timers that ring, timers that are taken back at once or later, and moments that have passed."""
    rang = []
    begun = hg.now()
    for number in range(rounds):
        try:
            async with asyncio.timeout(90 if number % 2 else 30):
                await hg.sleep("1m")
            rang.append("slept")
        except TimeoutError:
            rang.append("woken")
    await hg.sleep_until(begun + timedelta(hours=1, milliseconds=1))
    await hg.sleep_until(begun)
    await asyncio.sleep(0)
    async with asyncio.timeout(3600):
        pass
    rang.append(hg.now().isoformat())
    return rang


# Signals.


@app.workflow
async def approval(wanted: int) -> list[Any]:
    """Signals that are waited for, came before, come in time, and never come."""
    votes = [await hg.wait_signal("vote") for _ in range(wanted)]
    stamp = await hg.wait_signal("stamp", timeout="1d", type=Parcel)
    try:
        await hg.wait_signal("never", timeout="1h")
    except TimeoutError:
        votes.append("in vain")
    return [*votes, stamp.address]


@app.workflow
async def mailroom() -> list[Any]:
    """Handlers: one that waits, one that fails, one that is disposed of; and conditions."""
    sorted_mail: list[Any] = []
    opened = 0

    async def take(letter: str) -> None:
        nonlocal opened
        sorted_mail.append(await find(letter))
        opened += 1

    def burn(letter: str) -> None:
        sorted_mail.append(f"burnt {letter}")
        raise OutOfStock("matches")

    taking = hg.on_signal("letter", take)
    hg.on_signal("bill", burn)
    hg.on_query("sorted", lambda: sorted_mail)
    sorted_mail.append(await hg.wait_condition(lambda: opened == 2, timeout="1h"))
    taking.dispose()
    sorted_mail.append(await hg.wait_condition(lambda: opened == 3, timeout="1m"))
    sorted_mail.append(await hg.wait_signal("letter"))
    return sorted_mail


@app.workflow
async def account(balance: int) -> int:
    """Updates that are answered, answered later, refused, failed, unknown, and too late."""
    closing = asyncio.Event()

    def deposit(amount: int) -> int:
        nonlocal balance
        balance += amount
        return balance

    def check(amount: int) -> None:
        if amount <= 0:
            raise ValueError("amount: from 1")

    async def audit() -> str:
        await hg.sleep("1m")
        return await find(f"audited {balance}")

    async def break_open() -> None:
        await asyncio.sleep(0)
        raise OutOfStock("crowbars")

    async def linger() -> None:
        await hg.sleep("1h")

    hg.on_update("deposit", deposit, validator=check)
    hg.on_update("audit", audit)
    hg.on_update("break_open", break_open)
    hg.on_update("linger", linger)
    hg.on_signal("close", closing.set)
    await closing.wait()
    return balance


# Families.


@app.workflow(timeout="2d")
async def child(mood: str) -> str:
    """Ends as its parent wishes."""
    if mood == "bad":
        raise OutOfStock("patience")
    if mood == "patient":
        return f"{mood} heard {await hg.wait_signal('word')}"
    if mood == "tired":
        await hg.sleep("1d")
    return f"{mood} child of {hg.info().parent_id}"


@app.workflow
async def parent(taken: str) -> list[str]:
    """Children that end well, fail, are spoken to, cancelled, not to be had, and left behind."""
    result = [await child("good")]
    try:
        await child("bad")
    except OutOfStock as exc:
        result.append(f"{exc.item}: {type(exc.__cause__).__name__}")
    patient = child.options(tags={"kind": "patient"}, timeout="1h")("patient")
    await patient.signal("word", {"of": "the parent"})
    result.append(await patient)
    dropped = child("tired")
    await hg.sleep("1s")
    dropped.cancel()
    try:
        await child.options(id=taken)("good")
    except hg.Failure as exc:
        result.append(exc.type)
    except Exception as exc:  # the class of the error is loaded, so that it comes as itself
        result.append(type(exc).__name__)
    for policy in ("terminate", "cancel", "abandon"):
        child.options(id=f"{hg.info().execution_id}.{policy}", parent_close=policy)("tired")
    await hg.sleep("1s")
    return result


# Runs.


@app.workflow
async def laps(left: int, heard: list[str]) -> list[str]:
    """Runs that follow each other and take along what they have not heard."""
    heard.append(f"{hg.info().run}: {await hg.wait_signal('lap')} {hg.random().randrange(100)}")
    if left > 1:
        resting = asyncio.ensure_future(hg.sleep("1d"))
        await hg.sleep("1s")
        assert not resting.done()
        hg.continue_as_new(left - 1, heard)
    return heard


@app.workflow(check=False)
async def renovated(name: str) -> str:
    """Code that was changed under executions that had begun."""
    first = await find(name)
    if not Stage.is_before_patch and hg.patched("weigh-it"):
        grams = await weigh(Parcel(first, 5))
        first = f"{first} of {grams} g"
    await hg.wait_signal("on")
    if not Stage.is_before_patch and hg.patched("shout"):
        return f"{first}!"
    return first


@app.workflow(check=False)
async def mended(name: str) -> str:
    """Code that could not go on until it was mended, and had mail by then."""
    found = await find(name)
    if Stage.is_broken:
        found = Path(__file__).read_text()
    return f"{found} {await hg.wait_signal('thanks')}"


# What only looks random.


@app.workflow
async def drawn(count: int) -> dict[str, Any]:
    """Numbers, ids, moments, and what was seen outside."""
    seen = hg.side_effect(lambda: {"load": [0.25, 1e300, -0.0], "host": 'a"b\\c'})
    numbers = [hg.random().random() for _ in range(count)]
    await hg.sleep("1ms")
    order = list(range(10))
    hg.random().shuffle(order)
    again = hg.side_effect(lambda: str(len(seen)))
    memo = hg.info().memo
    return {
        "seen": seen,
        "numbers": numbers,
        "order": order,
        "id": str(hg.uuid()),
        "now": hg.now().isoformat(),
        "again": again,
        "memo": memo,
    }


@app.workflow
async def announcer(listener: str) -> list[str]:
    """Events on the bus, tags, and signals to others and to nobody."""
    hg.emit("thing.made", {"by": hg.info().execution_id}, subject="things/1")
    hg.set_tags({"stage": "made", "shelf": "7"})
    await hg.signal(listener, "vote", {"from": "announcer"})
    received = []
    try:
        await hg.signal("nobody-at-all", "vote")
    except hg.Failure as exc:
        received.append(exc.type)
    except Exception as exc:  # as above
        received.append(type(exc).__name__)
    hg.set_tags({"stage": "done", "shelf": ""})
    hg.signal(listener, "stamp", Parcel("last word", 1))
    return received


# Tasks.


@app.workflow
async def workshop(pieces: int) -> dict[str, Any]:
    """Many at once: gathered, grouped, queued, locked, and cancelled with their work."""
    gathered = await asyncio.gather(
        *(find(f"piece {n}") for n in range(pieces)), find("nothing"), return_exceptions=True
    )
    queue: asyncio.Queue[int | None] = asyncio.Queue(maxsize=1)
    lock = asyncio.Lock()
    done: list[str] = []

    async def bench(name: str) -> None:
        while (piece := await queue.get()) is not None:
            async with lock:
                done.append(f"{name} {await find(str(piece))}")
            await hg.sleep("1s")

    async with asyncio.TaskGroup() as group:
        for name in ("left", "right"):
            group.create_task(bench(name))
        for piece in [*range(pieces), None, None]:
            await queue.put(piece)
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_keep_calling())
            group.create_task(_give_up())
    except* OutOfStock:
        done.append("gave up")
    first, rest = await asyncio.wait({_asleep("5s"), _asleep("1s")}, return_when=asyncio.FIRST_COMPLETED)
    for task in rest:
        task.cancel()
    return {"gathered": [str(each) for each in gathered], "done": done, "first": len(first), "rest": len(rest)}


def _asleep(duration: str) -> asyncio.Future[None]:
    """Return a sleep as a task."""
    return asyncio.ensure_future(hg.sleep(duration))


async def _keep_calling() -> None:
    await call("busy")


async def _give_up() -> None:
    await hg.sleep("2s")
    raise OutOfStock("time")


# Ends.


@app.workflow
async def tidy(name: str) -> str:
    """Asked to end, it refuses once and cleans up before it does."""
    try:
        await hg.sleep("1d")
    except asyncio.CancelledError:
        hg.log("not yet", level="warning")
    try:
        await asyncio.gather(call(name), hg.sleep("1d"))
    finally:
        await asyncio.shield(asyncio.ensure_future(find(f"{name} swept")))
    return name


@app.workflow
async def lodger(name: str) -> str:
    """Ended from outside with everything it has under way."""
    child.options(id=f"{name}.left")("tired")
    child.options(id=f"{name}.freed", parent_close="abandon")("tired")
    child.options(id=f"{name}.asked", parent_close="cancel")("tired")
    _ = call(name)
    await hg.sleep("30d")
    return name


@app.workflow(timeout="1h")
async def overtime(name: str) -> str:
    """Takes longer than it may."""
    try:
        await hg.sleep("2h")
    finally:
        hg.emit("thing.late", name)
    return name


@app.workflow
async def failure(item: str) -> str:
    """Fails with an error that has a cause and carries something."""
    try:
        return await find("nothing" if item else item)
    except KeyError as exc:
        raise OutOfStock(item) from exc


@app.workflow
async def retired(name: str) -> str:
    """Marks a patch that has no old branch any more."""
    hg.deprecate_patch("weigh-it")
    return await find(name)


@app.activity(retry=hg.Retry(attempts=3, first=1.0, jitter=0))
def dial(number: str) -> str:
    """Connects in the third attempt."""
    hg.log(f"dialled {number}")
    if hg.activity().attempt < 3:
        raise ConnectionError(f"{number} is engaged")
    return number


@app.workflow
async def redialled(number: str) -> str:
    """Has an activity that fails before it succeeds."""
    return await dial(number)


@app.workflow
async def labelled(left: int) -> dict[str, str]:
    """Passes its headers on: to an activity, a child, a signal and its next run."""
    await hg.wait_signal("go")
    await find(str(left))
    if left:
        await hg.signal(hg.info().execution_id, "go")
        child = labelled.options(id=f"{hg.info().execution_id}.child", parent_close="abandon")(0)
        await child.signal("go")
        hg.continue_as_new(left - 1)
    return dict(hg.info().headers)


# Resets.


@app.workflow
async def repaired(name: str) -> list[str]:
    """Reset while it works, and continued after an error in its code."""
    waiting = [child.options(id=f"{name}.child")("tired"), call(name), asyncio.ensure_future(hg.sleep("2d"))]
    done = [await find(name)]
    hg.emit("thing.repaired", name, id=f"{name} repaired")
    done.append(await hg.wait_signal("vote", type=str))
    if Stage.is_wrong:
        raise TypeError("unsupported operand")
    return [*done, *[str(await each) for each in waiting]]


@app.workflow(retry=hg.Retry(attempts=3, first=60.0, jitter=0))
async def persistent(name: str) -> str:
    """Fails twice, and succeeds in its third run."""
    if hg.info().attempt < 3:
        raise ConnectionError(f"attempt {hg.info().attempt}")
    return await find(name)


@app.activity(cancellation="wait")
def recall(parcel: str) -> str:
    TOKENS.append(hg.activity().token)
    answer: str = hg.complete_later()
    return answer


@app.workflow
async def recalled(parcel: str) -> str:
    """Cancels one activity and lets it run on, and cancels another and waits for its end."""
    notice = asyncio.ensure_future(recall.options(cancellation="abandon")(parcel))
    await asyncio.sleep(1)
    notice.cancel()
    try:
        async with asyncio.timeout(60):
            return await recall(parcel)
    except TimeoutError:
        return await find(parcel)


@app.workflow
async def guardian(name: str) -> str:
    """Has a child with a retry policy of its own."""
    try:
        return await persistent.options(id="ward", retry=hg.Retry(attempts=1))(name)
    except ConnectionError:
        return "failed once"
