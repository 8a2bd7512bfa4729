"""DBOS on a SQLite file, in this process. Runs in the peers' environment and prints one `Answer`."""
# The peers' packages are not in the environment that checks types.
# mypy: disable-error-code="import-not-found, untyped-decorator"

from __future__ import annotations

import sqlite3
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from time import perf_counter

from dbos import DBOS

from bench.peers.answer import WARM_UP_EXECUTIONS, WARM_UP_STEPS, Answer, asked, middle, nearly_worst, rate, tell

SYNCHRONOUS = {0: "OFF", 1: "NORMAL", 2: "FULL", 3: "EXTRA"}


@DBOS.step()
def step(number: int) -> int:
    return number


@DBOS.workflow()
def walk(steps: int) -> int:
    for number in range(steps):
        step(number)
    return steps


@DBOS.workflow()
def first_line() -> float:
    return perf_counter()


def main(journal_mode: str | None = None) -> None:
    """Measure DBOS on a file that it creates, or on one with the journal mode set before."""
    folder, shape = asked()
    file = folder / "dbos.sqlite"
    if journal_mode is not None:
        with closing(sqlite3.connect(file)) as connection:
            connection.execute(f"PRAGMA journal_mode = {journal_mode}")
    DBOS(config={"name": "peers", "system_database_url": f"sqlite:///{file}", "log_level": "ERROR"})
    DBOS.launch()
    try:
        serial(WARM_UP_STEPS)
        at_once(WARM_UP_EXECUTIONS, 2)
        samples = starts(shape.starts)
        answer = Answer(
            peer="DBOS",
            version=version("dbos"),
            durability=durability(file),
            serial_per_second=serial(shape.serial_steps),
            at_once_per_second=at_once(shape.executions, shape.steps),
            start_p50_ms=middle(samples),
            start_p99_ms=nearly_worst(samples),
        )
    finally:
        DBOS.destroy()
    tell(answer)


def serial(steps: int) -> float:
    started = perf_counter()
    walk(steps)
    return rate(steps, started)


def at_once(executions: int, steps: int) -> float:
    started = perf_counter()
    handles = [DBOS.start_workflow(walk, steps) for _ in range(executions)]
    for handle in handles:
        handle.get_result()
    return rate(executions * steps, started)


def starts(count: int) -> list[float]:
    samples = []
    for _ in range(count):
        started = perf_counter()
        samples.append((DBOS.start_workflow(first_line).get_result() - started) * 1000)
    return samples


def durability(file: Path) -> str:
    """Say how the file is written: the mode is kept in it, and DBOS leaves `synchronous` at the library's default."""
    with closing(sqlite3.connect(file)) as connection:
        (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
        (synchronous,) = connection.execute("PRAGMA synchronous").fetchone()
    return f"SQLite file, journal_mode={mode}, synchronous={SYNCHRONOUS[synchronous]}, a commit for each step"


if __name__ == "__main__":
    main()
