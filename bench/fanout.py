"""Fan-out: chunks a second beside bare SQLite, and how soon a redrive begins. With it, its questions and its crowds."""

from __future__ import annotations

import sqlite3
import statistics
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from bench import fanout_crowd, fanout_questions
from bench.fanout_runs import (
    DONE,
    PROCESSES,
    ROWS,
    claim_all,
    filled,
    finish,
    opened,
    quiet,
    row,
    split,
    worker_process,
    working,
)
from bench.measure import ROUNDS, Figure, ratio
from headgate.clock import SystemClock
from headgate.fanout.core.attempts import completion_change, start_change
from headgate.fanout.local.worker import LEASE_SECONDS
from headgate.fanout.model.rows import Chunk, counter_key
from headgate.fanout.model.states import Disposition, FanoutStatus
from headgate.fanout.repair.redrive import ChunkSelection, Redriver
from headgate.fanout.service import FanoutService
from headgate.ids import IdMaker
from headgate.store.catalogue.tables import FANOUT
from headgate.store.model.values import dump
from headgate.store.sqlite.store import SqliteStore

CHUNKS = 10_000
RATE_MIN = 0.25
# Chunks a second that print a line, which is kept, beside chunks that print it to the null device.
CAPTURE_MIN = 0.90
REDRIVES, REDRIVEN = 50, 100
REDRIVE_MS_MAX = 100.0
START_TIME_HANDLER = "bench.fanout_handlers:report_start_time"


def run(
    chunks: int = CHUNKS,
    many: int = fanout_questions.MANY,
    redrives: int = REDRIVES,
    rounds: int = ROUNDS,
) -> list[Figure]:
    """Return every figure of this group. Smaller sizes show that it works, not how fast it is."""
    quiet()
    return [
        *_rates(chunks, rounds),
        _capture(chunks, rounds),
        _redrive(chunks, redrives),
        *fanout_crowd.run(chunks, rounds),
        *fanout_questions.run(many, rounds),
    ]


def fan_out(items: int) -> float:
    """Return items a second of a fan-out of no-ops, from asking for it to its end, by a worker that is up."""
    quiet()
    with opened() as (service, _), working(service):
        finish(service, split(service, 8 * PROCESSES))
        started = perf_counter()
        finish(service, split(service, items))
        return items / (perf_counter() - started)


def _rates(chunks: int, rounds: int) -> list[Figure]:
    # The waiting side reads from its own store, so that only the worker is counted.
    with (
        TemporaryDirectory(prefix="headgate-bench-") as folder,
        opened(Path(folder)) as (service, store),
        opened(Path(folder)) as (watcher, _),
    ):
        run_ids = [split(service, chunks) for _ in range(rounds + 2)]
        # So that there is no splitting in what is timed.
        for run_id in run_ids:
            service.control.pause(run_id)

        def worked(run_id: str) -> int:
            service.control.resume(run_id)
            finish(watcher, run_id)
            return chunks

        with working(service):
            before = store.stats.commits
            worked(run_ids[0])
            # Each chunk is written when it is begun and when it is done.
            per_commit = max(1, round(2 * chunks / (store.stats.commits - before)))
            by_children = _beside_bare(
                f"{PROCESSES} processes", service, store, run_ids[1:], worked, per_commit, RATE_MIN
            )
    with opened() as (service, store), ThreadPoolExecutor(1) as thread:
        run_ids = [split(service, chunks) for _ in range(rounds + 1)]

        def taken(run_id: str) -> int:
            return thread.submit(claim_all, service, run_id, per_commit).result()

        # What is left of the distance is what children cost.
        by_itself = _beside_bare("without children", service, store, run_ids, taken, per_commit, None)
    return [by_children, by_itself]


def _capture(chunks: int, rounds: int) -> Figure:
    """Compare chunks whose output is kept with chunks whose output is discarded."""
    with (
        TemporaryDirectory(prefix="headgate-bench-") as folder,
        opened(Path(folder)) as (service, store),
        opened(Path(folder)) as (watcher, _),
    ):
        handlers = ("bench.fanout_handlers:discard_line", "bench.fanout_handlers:print_line")
        discarding, printing = ([split(service, chunks, each) for _ in range(rounds + 1)] for each in handlers)
        for run_id in (*discarding, *printing):
            service.control.pause(run_id)
        before = store.stats.commits

        def worked(run_id: str) -> int:
            service.control.resume(run_id)
            finish(watcher, run_id)
            return chunks

        with working(service):
            return ratio(
                "no-op chunks that print a line / with the line discarded",
                yardstick=lambda number: worked(discarding[number]),
                subject=lambda number: worked(printing[number]),
                goal=CAPTURE_MIN,
                counted=lambda: f"{(store.stats.commits - before) / (2 * chunks * (rounds + 1)):.4f} commits a chunk",
                rounds=rounds,
            )


def _beside_bare(
    how: str,
    service: FanoutService,
    store: SqliteStore,
    run_ids: Sequence[str],
    subject: Callable[[str], int],
    per_commit: int,
    goal: float | None,
) -> Figure:
    """Compare how `subject` does the runs, one a round, with what bare SQLite takes to write the same."""
    with _bare(service, run_ids, per_commit) as yardstick:
        before = store.stats.snapshot()
        chunks = 0

        def work(number: int) -> int:
            nonlocal chunks
            done = subject(run_ids[number])
            chunks += done
            return done

        def counted() -> str:
            spent = {name: value - before[name] for name, value in store.stats.snapshot().items()}
            reads = (spent["reads"] + spent["queries"]) / chunks
            return f"{spent['commits'] / chunks:.4f} commits and {reads:.4f} reads a chunk; raw {2 / per_commit:.4f}"

        return ratio(
            f"no-op chunks, {how} / raw updates of the same rows",
            yardstick=yardstick,
            subject=work,
            goal=goal,
            counted=counted,
            rounds=len(run_ids) - 1,
        )


@contextmanager
def _bare(service: FanoutService, run_ids: Sequence[str], per_commit: int) -> Iterator[Callable[[int], int]]:
    """Give a function that takes the chunks of a run through the same states in a file of bare SQLite."""
    with TemporaryDirectory(prefix="headgate-bench-") as folder, closing(_table(Path(folder))) as connection:
        runs = [_copied(service, run_id, connection) for run_id in run_ids]

        def write(number: int) -> int:
            states, counter = runs[number]
            for start in range(0, len(states[0]), per_commit):
                for rows in states:
                    connection.execute("BEGIN IMMEDIATE")
                    connection.executemany(ROWS.upsert, rows[start : start + per_commit])
                    connection.execute(ROWS.rewrite, counter)
                    connection.execute("COMMIT")
            return len(states[0])

        yield write


Row = tuple[Any, ...]


def _copied(service: FanoutService, run_id: str, connection: sqlite3.Connection) -> tuple[list[list[Row]], Row]:
    """Copy a run that has not started, and return the rows of its chunks as begun and as done, and its counter."""
    chunks = list(service.queries.every_chunk(run_id))
    counter = service.store.get(FANOUT, counter_key(run_id, 0))
    assert counter is not None
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany(ROWS.upsert, [row(chunk) for chunk in chunks])
    connection.execute(ROWS.upsert, ROWS.row(counter, dump(counter, special=False)))
    connection.execute("COMMIT")
    # As half-way: its numbers change from then on, its size hardly does.
    half = len(chunks) // 2
    counter |= {"queued": half, "running": 0, "done": half, "attempts": half, "items_ok": half, "busy_ms": 0}
    return _states(chunks), (dump(counter, special=False), run_id, counter["SK"])


def _states(chunks: Sequence[Chunk]) -> list[list[Row]]:
    clock = SystemClock()
    ids, now_ms = IdMaker(clock), int(1000 * clock.seconds())
    worker = f"bench|{ids.ulid()}"
    taken = [
        start_change(chunk, worker=worker, token=ids.ulid(), now_ms=now_ms, lease_seconds=LEASE_SECONDS).after
        for chunk in chunks
    ]
    done = [completion_change(chunk, DONE, now_ms=now_ms, width=7).after for chunk in taken]
    return [[row(chunk) for chunk in state] for state in (taken, done)]


def _table(folder: Path) -> sqlite3.Connection:
    """Return bare SQLite in WAL mode with synchronous=FULL and the table of fan-outs with its indexes."""
    connection = sqlite3.connect(folder / "raw.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(ROWS.create_table)
    for statement in ROWS.create_indexes.values():
        connection.execute(statement)
    return connection


def _redrive(chunks: int, redrives: int) -> Figure:
    """From asking for a redrive to the first line of the first chunk, in a worker that is another process."""
    with TemporaryDirectory(prefix="headgate-bench-") as folder, opened(Path(folder)) as (service, store):

        def given_up(place: int, size: int) -> Disposition:
            return Disposition.DONE if place % (size // REDRIVEN) else Disposition.DEAD

        run_id = filled(Path(folder), service, chunks, given_up, handler=START_TIME_HANDLER)
        service.new_maintenance().chunk_ended(run_id)
        with worker_process("bench.fanout_runs", Path(folder)) as worker:
            assert worker.read_line() == "ready"
            # The first has to wait for the worker's children.
            samples = [_redriven(service, run_id) for _ in range(redrives + 1)][1:]
        commits = store.stats.commits
    begun_ms, answered_ms = (sorted(1000 * each for each in side) for side in zip(*samples, strict=True))
    last = begun_ms[int(0.99 * (len(begun_ms) - 1))]
    return Figure(
        f"redrive of {REDRIVEN} of {chunks:,} to the first chunk's first line, p99",
        f"{last:.1f} ms",
        f"<= {REDRIVE_MS_MAX:g} ms",
        last <= REDRIVE_MS_MAX,
        f"{redrives} redrives, {commits} commits",
        f"p50 {statistics.median(begun_ms):.1f} ms; the call returns after p50 {statistics.median(answered_ms):.1f} ms",
        begun_ms,
    )


def _redriven(service: FanoutService, run_id: str) -> tuple[float, float]:
    """Redrive all that has failed, and return after how many seconds the first began and the call returned."""
    redriver = Redriver(service.store, service.clock, service.ids)
    failures = ChunkSelection(dispositions=(Disposition.DEAD, Disposition.QUARANTINED))
    started = perf_counter()
    result = redriver.redrive(run_id, failures)
    answered = perf_counter()
    assert result.redriven == REDRIVEN, f"{result.redriven} of {REDRIVEN} were redriven"
    finish(service, run_id, FanoutStatus.PARTIAL)
    first = min(float(chunk.error or "inf") for chunk in service.queries.failures(run_id))
    return first - started, answered - started
