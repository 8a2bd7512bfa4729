"""The service that Restate calls: a handler that walks through durable steps, and one that only tells the time."""
# The peers' packages are not in the environment that checks types.
# mypy: disable-error-code="import-not-found, untyped-decorator"

from __future__ import annotations

from time import perf_counter

import restate

peers = restate.Service("peers")


async def step() -> int:
    # A coroutine, because the SDK hands plain functions to a thread, which would slow Restate down.
    return 1


@peers.handler("walk")
async def walk(context: restate.Context, steps: int) -> int:
    for _ in range(steps):
        await context.run_typed("step", step)
    return steps


@peers.handler("first_line")
async def first_line(context: restate.Context) -> float:  # noqa: ARG001 -- the SDK passes it
    # On Linux this clock is the same in every process of a machine.
    return perf_counter()


app = restate.app([peers])
