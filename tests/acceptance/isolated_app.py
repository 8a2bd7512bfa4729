"""Activities for tests with real threads and processes, where a spawned process can import them."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import headgate as hg

app = hg.App("threads")
once = hg.Retry(attempts=1)
release = threading.Event()
gate = threading.Lock()


# What is no message, and a message that is none.
_NONSENSE = {"noise": b"\xff" * 64, "text": b"rows read: 5\n", "latin-1": b"\0\0\0\x11" + b'{"said":"Beats\xe9"}'}


@app.activity(retry=once, isolate=True, timeout="20s")
def pid_of(_: int) -> int:
    return os.getpid()


@app.activity(retry=once, isolate=True, timeout="20s")
def large(size: int) -> str:
    return "x" * size


@app.activity(retry=once, isolate=True, timeout="20s")
def breaks(what: str) -> None:
    if what.startswith("fork") and os.fork() == 0 and what != "fork":
        time.sleep(60)
    if what.endswith("exit"):
        os._exit(3)
    if what in _NONSENSE:
        # Wherever the worker listens.
        for descriptor in range(3, 64):
            with suppress(OSError):
                os.write(descriptor, _NONSENSE[what])
        time.sleep(60)
    raise LookupError(what)


@app.activity(retry=once, isolate=True, timeout="60s")
def never_ends_nor_its_child(path: str) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    written = Path(f"{path}.new")
    written.write_text(f"{os.getpid()} {child.pid}")
    written.rename(path)
    child.wait()


# Here and below: longer than a process takes to start beside many others, which counts as a part of its attempt.
@app.activity(retry=once, isolate=True, timeout="6s")
def too_slow_and_its_child(path: str) -> None:
    never_ends_nor_its_child.function(path)


@app.activity(retry=hg.Retry(attempts=2, first=0.05), isolate=True, heartbeat="20s")
def goes_on(steps: int) -> list[int]:
    """Say how far it has come, and stop in the middle; another attempt goes on from there."""
    begun_at = hg.activity().heartbeat_details(int) or 0
    for step in range(begun_at, steps):
        hg.heartbeat(step)
        if step == steps // 2 and not begun_at:
            raise RuntimeError("half of it is enough for now")
    hg.emit("steps.done", {"steps": steps})
    logging.getLogger("mine").warning("done with %d", steps)
    return [begun_at, steps]


@app.activity(retry=once, isolate=True, heartbeat="6s")
def falls_silent(path: str) -> None:
    hg.heartbeat("alive")
    never_ends_nor_its_child.function(path)


@app.activity(retry=once, isolate=True)
def asks_outside(path: str) -> str:
    Path(path).write_text(hg.activity().token)
    return hg.complete_later()  # type: ignore[no-any-return]  # in place of it


@app.activity(retry=once)
def copies_the_worker(path: str) -> None:
    """Leave a copy of the worker behind, which holds on to everything that the worker had open."""
    while not Path(path).exists():
        time.sleep(0.01)
    copy = os.fork()
    if copy == 0:
        time.sleep(20)
        os._exit(0)
    Path(f"{path}.copy").write_text(str(copy))


@app.activity(retry=once, timeout="500ms")
def hangs() -> None:
    release.wait(30)


@app.activity(retry=once)
def blocks() -> None:
    release.wait(30)


@app.activity(retry=once, schedule_to_start="500ms")
def begun_soon(number: int) -> int:
    return number


@app.activity(retry=once, schedule_to_close="500ms")
def ended_soon(number: int) -> int:
    return number


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
async def stepwise(steps: int) -> list[int]:
    return await goes_on(steps)


@app.workflow
async def silent(path: str) -> str:
    try:
        await falls_silent(path)
    except hg.ActivityTimeout as exc:
        return exc.kind
    return "passed"


@app.workflow
async def outside(path: str) -> str:
    return await asks_outside(path)


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
async def killed_with_its_child(path: str) -> str:
    try:
        await too_slow_and_its_child(path)
    except hg.ActivityTimeout as exc:
        return exc.kind
    return "passed"


@app.workflow
async def endless(path: str) -> None:
    await never_ends_nor_its_child(path)


@app.workflow
async def endless_beside_a_copy(path: str) -> None:
    await asyncio.gather(never_ends_nor_its_child(path), copies_the_worker(path))


@app.workflow
async def hung(count: int) -> int:
    results = await asyncio.gather(*(hangs() for _ in range(count)), return_exceptions=True)
    return sum(isinstance(result, hg.ActivityTimeout) for result in results)


@app.workflow
async def behind_one_that_blocks(count: int) -> list[str]:
    """Return which limits have passed of those that wait for the one thread there is."""
    blocking = asyncio.ensure_future(blocks())
    await hg.sleep(0.1)
    waiting = [*map(begun_soon, range(count)), *map(ended_soon, range(count))]
    results = await asyncio.gather(*waiting, return_exceptions=True)
    blocking.cancel()
    return sorted({result.kind for result in results if isinstance(result, hg.ActivityTimeout)})


@app.workflow
async def adding_behind_one_that_blocks(count: int) -> int:
    blocking = asyncio.ensure_future(blocks())
    numbers = await asyncio.gather(*(quick(number) for number in range(count)))
    await blocking
    return sum(numbers)


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
async def spinning(_: int) -> None:
    while True:
        pass


@app.workflow(check=False)
async def blocked_for_good(_: int) -> None:
    gate.acquire(timeout=30)


@app.workflow
async def sleeping(seconds: float) -> str:
    await hg.sleep(seconds)
    return "slept"


crowd: list[int] = []


@app.activity(retry=once, timeout="60s")
async def crowding(number: int) -> int:
    crowd.append(number)
    seen = len(crowd)
    await asyncio.sleep(0.02)
    crowd.remove(number)
    return seen


@app.workflow
async def crowded(count: int) -> int:
    return max(await asyncio.gather(*(crowding(number) for number in range(count))))


class Marked(hg.Interceptor):
    """Marks the start with a header, and the result of an activity with the process that wrapped it."""

    @contextmanager
    def client(self, call: hg.ClientCall) -> Iterator[None]:
        call.headers["mark"] = "m"
        yield

    @contextmanager
    def activity(self, call: hg.ActivityCall) -> Iterator[None]:
        yield
        call.result = [*call.result, call.headers["mark"], os.getpid()]


marked = hg.App("marked", interceptors=[Marked()])


@marked.activity(retry=once, isolate=True, timeout="20s")
def isolated_pid(_: int) -> list[object]:
    return [os.getpid()]


@marked.workflow
async def marked_pids(number: int) -> list[object]:
    return await isolated_pid(number)
