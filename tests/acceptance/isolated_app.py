"""Activities for tests with real threads and processes, where a spawned process can import them."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time

import headgate as hg

app = hg.App("threads")
once = hg.Retry(attempts=1)
release = threading.Event()


@app.activity(retry=once, isolate=True, timeout="20s")
def pid_of(_: int) -> int:
    return os.getpid()


@app.activity(retry=once, isolate=True, timeout="20s")
def large(size: int) -> str:
    return "x" * size


@app.activity(retry=once, isolate=True, timeout="20s")
def breaks(what: str) -> None:
    if what == "exit":
        os._exit(3)
    raise LookupError(what)


@app.activity(retry=once, isolate=True, timeout="1s")
def never_ends(path: str) -> None:
    with open(path, "w") as file:  # noqa: PTH123
        file.write(str(os.getpid()))
    while True:
        time.sleep(0.05)


@app.activity(retry=once, timeout="500ms")
def hangs() -> None:
    release.wait(30)


@app.activity(retry=once)
async def waits(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return f"{seconds}"


@app.activity(retry=once, heartbeat="300ms")
def beats(times: int) -> int:
    for number in range(times):
        hg.heartbeat(number)
        time.sleep(0.1)
    return times


@app.activity(retry=once)
def quick(number: int) -> int:
    return number


@app.workflow
async def isolated(size: int) -> list[int]:
    return [await pid_of(0), len(await large(size))]


@app.workflow
async def broken(what: str) -> str:
    try:
        await breaks(what)
    except LookupError as exc:
        return f"raised {exc}"
    except hg.ActivityFailure as exc:
        return f"failed {exc.type}"
    return "passed"


@app.workflow
async def killed(path: str) -> str:
    try:
        await never_ends(path)
    except hg.ActivityTimeout as exc:
        return exc.kind
    return "passed"


@app.workflow
async def hung(count: int) -> int:
    results = await asyncio.gather(*(hangs() for _ in range(count)), return_exceptions=True)
    return sum(isinstance(result, hg.ActivityTimeout) for result in results)


@app.workflow
async def many_waits(count: int) -> int:
    return len(await asyncio.gather(*(waits(0.3) for _ in range(count))))


@app.workflow
async def beating(times: int) -> int:
    return await beats(times)


@app.workflow
async def adding(count: int) -> int:
    return sum(await asyncio.gather(*(quick(number) for number in range(count))))


@app.activity(retry=once, limit=hg.Limit(concurrency=8))
def limited(number: int) -> int:
    return number


@app.activity(retry=once)
def odd_words(_: int) -> str:
    logging.getLogger("orders").info("file %s", "caf\udce9")
    logging.getLogger("orders").info("%d of what is no number", "x")
    return "said"


@app.activity(retry=once)
async def leaves(_: int) -> None:
    raise SystemExit(3)


@app.activity(retry=once, timeout="1s")
def slow(_: int) -> int:
    time.sleep(0.3)
    return 1


@app.workflow
async def many_limited(count: int) -> int:
    return sum(await asyncio.gather(*(limited(number) for number in range(count))))


@app.workflow
async def odd(_: int) -> str:
    hg.log("caf\udce9")
    return await odd_words(0)


@app.workflow
async def leaving(_: int) -> str:
    try:
        await leaves(0)
    except hg.ActivityFailure as exc:
        return f"{exc.type} {await waits(0.01)}"
    return "passed"


@app.workflow
async def queueing(count: int) -> int:
    return sum(await asyncio.gather(*(slow(number) for number in range(count))))


@app.workflow
async def restless(left: int) -> str:
    if left:
        hg.continue_as_new(left - 1)
    return "rests"


@app.workflow
async def sleeping(seconds: float) -> str:
    await hg.sleep(seconds)
    return "slept"
