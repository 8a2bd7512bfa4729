"""Workflows whose order would follow the hashes of strings and objects if anything in the loop did.

Run as a program it prints their histories, so that a test can compare them between processes.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
from msgspec import Raw

import headgate as hg
from headgate.durable.model.history import dump_turn, load_turn
from tests.scenarios.histories import plain as plain_turn

app = hg.App("hashing")
NAMES = [f"name-{n}" for n in range(20)]


@app.activity(retry=hg.Retry(attempts=1))
def measure(name: str) -> int:
    if name == "name-13":
        raise LookupError(name)
    return len(name)


@app.workflow
async def waits_for_sets() -> list[Any]:
    pending: set[asyncio.Future[int]] = {asyncio.ensure_future(measure(name)) for name in NAMES if name != "name-13"}
    order: list[int] = []
    while pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for future in done:
            order.append(future.result())
            await measure(f"again-{len(order)}")
    return order


@app.workflow
async def cancels_sets() -> list[str]:
    order: list[str] = []

    async def one(name: str) -> None:
        try:
            await hg.sleep("1h")
        finally:
            order.append(name)
            hg.emit("ended", name)

    tasks = {asyncio.ensure_future(one(name)) for name in NAMES}
    await hg.sleep("1s")
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    return order


@app.workflow
async def fails_in_a_group() -> list[str]:
    order: list[str] = []

    async def one(name: str) -> None:
        try:
            await hg.sleep("1h")
        finally:
            order.append(name)
            hg.emit("ended", name)

    async def bad() -> None:
        await measure("name-13")

    try:
        async with asyncio.TaskGroup() as group:
            for name in NAMES[:10]:
                group.create_task(one(name))
            group.create_task(bad())
    except* LookupError:
        await measure("after")
    return order


@app.workflow
async def sends_sets() -> int:
    return await measure(await sized({"b", "a", "c", *NAMES}))


@app.activity
def sized(names: set[str]) -> str:
    return "x" * len(names)


EXECUTIONS = ("waits_for_sets", "cancels_sets", "fails_in_a_group", "sends_sets")


def raw(value: object) -> Raw:
    """Return a value as the JSON that clients send."""
    return Raw(msgspec.json.encode(value))


def plain(line: str) -> Any:
    """Return a turn as plain data, without what differs between two runs of the same scenario."""
    return plain_turn(load_turn(line))


def main() -> None:
    """Print the histories of all workflows as one line of JSON."""
    found: dict[str, list[str]] = {}
    with hg.testing.Environment(app) as env:
        for name in EXECUTIONS:
            handle = env.start(app.workflows[name], id=name)
            env.result(handle)
            found[name] = [dump_turn(turn) for turn in env.service.client.history(handle.id)]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
