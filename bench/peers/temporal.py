"""Temporal's development server on a SQLite file, and a worker in this process.

Runs in the peers' environment and prints one `Answer`. A step is an activity: the server records each before the next
begins. Local activities are recorded only when the workflow task ends, so they are measured beside it.
"""
# The peers' packages are not in the environment that checks types.
# mypy: disable-error-code="import-not-found, untyped-decorator"

from __future__ import annotations

import asyncio
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import timedelta
from importlib.metadata import version
from itertools import count
from pathlib import Path
from time import perf_counter

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import Worker

from bench.peers.answer import WARM_UP_EXECUTIONS, WARM_UP_STEPS, Answer, Shape, asked, middle, nearly_worst, rate, tell
from bench.peers.server import HOST, free_ports, server

QUEUE = "peers"
STEP_SECONDS_MAX = timedelta(seconds=60)
_numbers = count()


@activity.defn
async def step(number: int) -> int:
    return number


# Without the sandbox, which costs Temporal time and is not what is compared.
@workflow.defn(sandboxed=False)
class Walk:
    @workflow.run
    async def run(self, steps: int) -> int:
        for number in range(steps):
            await workflow.execute_activity(step, number, start_to_close_timeout=STEP_SECONDS_MAX)
        return steps


@workflow.defn(sandboxed=False)
class WalkLocally:
    @workflow.run
    async def run(self, steps: int) -> int:
        for number in range(steps):
            await workflow.execute_local_activity(step, number, start_to_close_timeout=STEP_SECONDS_MAX)
        return steps


@workflow.defn(sandboxed=False)
class FirstLine:
    @workflow.run
    async def run(self) -> float:
        return perf_counter()


def main() -> None:
    folder, shape = asked()
    program = Path(sys.executable).parent / "temporal"
    (port,) = free_ports(1)
    file = folder / "temporal.db"
    options = ["--headless", "--ip", HOST, "--port", str(port), "--db-filename", str(file), "--log-level", "error"]
    with server([str(program), "server", "start-dev", *options], port=port, log=folder / "temporal-server.log"):
        answer = asyncio.run(_measure(program, shape, port=port, file=file))
    tell(answer)


async def _measure(program: Path, shape: Shape, *, port: int, file: Path) -> Answer:
    client = await Client.connect(f"{HOST}:{port}")
    async with Worker(client, task_queue=QUEUE, workflows=[Walk, WalkLocally, FirstLine], activities=[step]):
        await serial(client, Walk, WARM_UP_STEPS // 2)
        await at_once(client, WARM_UP_EXECUTIONS, 1)
        samples = await starts(client, shape.starts)
        return Answer(
            peer="Temporal",
            version=_version(program),
            durability=durability(file),
            serial_per_second=await serial(client, Walk, shape.serial_steps),
            at_once_per_second=await at_once(client, shape.executions, shape.steps),
            start_p50_ms=middle(samples),
            start_p99_ms=nearly_worst(samples),
            others_per_second={
                "local activities, recorded together": await serial(client, WalkLocally, shape.serial_steps)
            },
        )


async def serial(client: Client, walk: type[Walk | WalkLocally], steps: int) -> float:
    started = perf_counter()
    await _execute(client, walk, steps)
    return rate(steps, started)


async def at_once(client: Client, executions: int, steps: int) -> float:
    started = perf_counter()
    await asyncio.gather(*(_execute(client, Walk, steps) for _ in range(executions)))
    return rate(executions * steps, started)


async def starts(client: Client, number: int) -> list[float]:
    samples = []
    for _ in range(number):
        started = perf_counter()
        begun: float = await client.execute_workflow(FirstLine.run, id=f"peers-{next(_numbers)}", task_queue=QUEUE)
        samples.append((begun - started) * 1000)
    return samples


async def _execute(client: Client, walk: type[Walk | WalkLocally], steps: int) -> None:
    await client.execute_workflow(walk.run, steps, id=f"peers-{next(_numbers)}", task_queue=QUEUE)


def durability(file: Path) -> str:
    """Describe how the file is written: it stores the mode, and the server sets no pragma by default."""
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as connection:
        (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
    return f"development server, SQLite file, journal_mode={mode}, synchronous at SQLite's default"


def _version(program: Path) -> str:
    words = subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout
    found = re.search(r"Server ([\d.]+)", words)
    return f"{found[1] if found else words.strip()}, SDK {version('temporalio')}"


if __name__ == "__main__":
    main()
