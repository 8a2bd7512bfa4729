"""Workflows of `recorded_app` that someone has changed without a patch: each differs from its recording in one way."""

from __future__ import annotations

import asyncio
from typing import Any

import headgate as hg
from tests.replay.recorded_app import Parcel, call, child, find, knock, weigh

app = hg.App("changed")


@app.workflow
async def parcels(doors: list[str], ratio: float = 0.5) -> dict[str, Any]:
    """Another activity in place of the third."""
    grams = [await weigh(Parcel(door, 100 + place, ("fragile",))) for place, door in enumerate(doors)]
    return {"grams": grams, "opened": await find(doors[0]), "ratio": ratio}


@app.workflow
async def calls(numbers: list[str]) -> list[str]:
    """Another input for the same activity."""
    return [await call(f"+{number}") for number in numbers]


@app.workflow
async def alarms(rounds: int) -> list[str]:
    """A timer less."""
    return [str(rounds)]


@app.workflow
async def approval(wanted: int) -> list[Any]:
    """Something more."""
    hg.emit("vote.opened", wanted)
    return [await hg.wait_signal("vote")]


@app.workflow
async def mailroom() -> list[Any]:
    """A handler less."""
    return [await hg.wait_condition(lambda: False, timeout="1h")]


@app.workflow
async def parent(taken: str) -> list[str]:
    """Another child."""
    return [await child("nice"), taken]


@app.workflow
async def laps(left: int, heard: list[str]) -> list[str]:
    """An end in place of another run."""
    await hg.wait_signal("lap")
    resting = asyncio.ensure_future(hg.sleep("1d"))
    await hg.sleep("1s")
    assert not resting.done()
    return [*heard, str(left)]


@app.workflow
async def renovated(name: str) -> str:
    """The patch is gone, and executions that passed it are not."""
    first = await find(name)
    return f"{first} of {await weigh(Parcel(first, 5))} g"


@app.workflow
async def mended(name: str) -> str:
    """It ends before it has heard everything."""
    return await find(name)


@app.workflow
async def announcer(listener: str) -> list[str]:
    """The same commands in another order."""
    hg.set_tags({"stage": "made", "shelf": "7"})
    hg.emit("thing.made", {"by": hg.info().execution_id}, subject="things/1")
    await hg.signal(listener, "vote", {"from": "announcer"})
    return []


@app.workflow
async def tidy(name: str) -> str:
    """It no longer refuses, nor cleans up."""
    await hg.sleep("1d")
    return await knock(name)
