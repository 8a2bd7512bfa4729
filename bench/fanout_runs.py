"""Runs to measure: a store with fan-outs in it, a worker, and processes beside this one."""

from __future__ import annotations

import logging
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import Any

import structlog
from msgspec.structs import replace

from bench.rows import open_at
from headgate.clock import SystemClock
from headgate.fanout.core.attempts import (
    AttemptFailure,
    AttemptResult,
    completion_change,
    failure_change,
    move_change,
    start_change,
    with_disposition,
)
from headgate.fanout.core.completed_index import PRECEDING_MAX
from headgate.fanout.core.splitter import Order
from headgate.fanout.core.transitions import apply
from headgate.fanout.local.claims import Claims
from headgate.fanout.local.worker import LEASE_SECONDS, Options
from headgate.fanout.model.counts import counter_add
from headgate.fanout.model.local_access import LocalAccess
from headgate.fanout.model.rows import (
    ACTIVE,
    MAIN_LANE,
    NO_TOKEN,
    Chunk,
    Fanout,
    Policy,
    attention_partition,
    chunk_id_at,
    sort_key,
    timestamp,
)
from headgate.fanout.model.sources import RangeSource
from headgate.fanout.model.states import Disposition, FanoutStatus
from headgate.fanout.service import FanoutService
from headgate.ids import IdMaker
from headgate.store.catalogue.tables import FANOUT
from headgate.store.model.values import dump
from headgate.store.sqlite.rows import TableRows
from headgate.store.sqlite.store import SqliteStore

PROCESSES = 2
POLL_SECONDS = 0.005
ROWS = TableRows(FANOUT, FANOUT.name)
NOTHING = "bench.fanout_handlers:nothing"
# The handlers of this benchmark are in the checkout.
ACCESS = LocalAccess(folders=(str(Path(__file__).parents[1]),))
FINISH_SECONDS_MAX = 300
# What a child says of a chunk for which there was nothing to do.
DONE = AttemptResult(duration_ms=0, memory_mb=40)


def quiet() -> None:
    """Have only warnings logged: every run that ends would otherwise be a line in the table."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))


@contextmanager
def opened(folder: Path | None = None) -> Iterator[tuple[FanoutService, SqliteStore]]:
    """Give fan-outs in a store, power-safe, in a folder of its own or in this one."""
    clock = SystemClock()
    with TemporaryDirectory(prefix="headgate-bench-") as made:
        store = open_at(folder or Path(made), clock)
        try:
            yield FanoutService(store, clock, IdMaker(clock), access=ACCESS), store
        finally:
            store.close()


@contextmanager
def working(service: FanoutService) -> Iterator[None]:
    """Have a worker at work on whatever there is."""
    worker = service.worker(Options(processes=PROCESSES))
    # In a thread, as a server has it: the main thread has its commits made by another one.
    with ThreadPoolExecutor(1) as thread:
        ended = thread.submit(worker.run)
        try:
            yield
        finally:
            worker.stop()
            ended.result()


def split(service: FanoutService, chunks: int, handler: str = NOTHING) -> str:
    """Make a run of so many chunks, of which there is nothing to do by default, and return its id."""
    order = Order(group="bench", chunk_size=1, handler=handler)
    return service.splitter.split(order, RangeSource(0, chunks)).run_id


def finish(service: FanoutService, run_id: str, status: FanoutStatus = FanoutStatus.SUCCEEDED) -> None:
    """Wait for the end of a fan-out, which must have this status."""
    ends_at = monotonic() + FINISH_SECONDS_MAX
    while not (fanout := service.queries.fanout(run_id)).is_finished:
        assert monotonic() < ends_at, f"{run_id} has not ended after {FINISH_SECONDS_MAX} s"
        sleep(POLL_SECONDS)
    assert fanout.status is status, f"{run_id} ended as {fanout.status}"


def claim_all(service: FanoutService, run_id: str, room: int) -> int:
    """Run the unclaimed chunks of a run, `room` at a time and without children; return how many."""
    width, done = service.queries.fanout(run_id).width, 0
    claims = Claims(
        service.store,
        service.clock,
        service.ids,
        worker=f"bench|{threading.get_ident()}",
        wanted=lambda fanout: fanout.run_id == run_id,
        lease_seconds=LEASE_SECONDS,
    )
    while True:
        taken = claims.take(room, {})
        if not taken and not service.queries.queued(run_id, MAIN_LANE, limit=1):
            return done
        now_ms = service.queries.now_ms()
        ends = [completion_change(claim.chunk, DONE, now_ms=now_ms, width=width) for claim in taken]
        done += len(ends) - len(apply(service.store, ends))


def row(chunk: Chunk) -> tuple[Any, ...]:
    """Return a chunk as the row that the store makes of it."""
    item = dict(chunk.put(None).item)
    return ROWS.row(item, dump(item, special=False))


# Runs that were never split: what happened to their chunks is written straight into the file.

Fate = Callable[[int, int], Disposition]


def filled(home: Path, service: FanoutService, size: int, fate: Fate, *, handler: str = NOTHING) -> str:
    """Make a run of `size` chunks, the n-th in the disposition `fate(n, size)`, and return its id.

    To split a million, and to run half of them, would take much longer.
    """
    empty = service.splitter.split(Order(group="bench", chunk_size=1, handler=handler), RangeSource(0, 0))
    counts: dict[str, int] = {"total": size, "items_total": size}
    stages, unlisted = _stages(empty, service.queries.now_ms()), 0
    with closing(sqlite3.connect(home / "headgate.db", isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("BEGIN IMMEDIATE")
        for place in range(size):
            disposition = fate(place, size)
            counts[disposition.bucket] = counts.get(disposition.bucket, 0) + 1
            chunk = stages[disposition]
            if disposition is Disposition.DONE and place > unlisted + PRECEDING_MAX:
                counts["done_listed"] = counts.get("done_listed", 0) + 1
                partition = attention_partition(chunk.run_id, disposition)
                chunk = replace(chunk, attention_pk=partition, attention_sk=f"{chunk.completed_at}#")
            elif disposition is Disposition.DONE:
                unlisted += 1
            connection.execute(ROWS.upsert, row(_at(chunk, place)))
        connection.execute("COMMIT")
    _reopen(service, empty, size, counts)
    return empty.run_id


def _stages(fanout: Fanout, now_ms: int) -> dict[Disposition, Chunk]:
    """Return the first chunk of a run in each disposition, an hour after it was made."""
    made_ms = now_ms - 3_600_000
    first = Chunk(
        run_id=fanout.run_id,
        sk=sort_key(chunk_id_at(0, fanout.width)),
        status=Disposition.QUEUED.status,
        disposition=Disposition.QUEUED,
        created_at=timestamp(made_ms),
        start=0,
        items=1,
        token=NO_TOKEN,
        input_key="range:0-0",
    )
    queued = with_disposition(first, Disposition.QUEUED, first.created_at, made_ms)
    # Its lease has expired: it is reported as stuck.
    running = start_change(
        queued, worker="bench|1", token=fanout.run_id, now_ms=now_ms - 60_000, lease_seconds=30
    ).after
    failure, no_retry = AttemptFailure("ValueError", "no such order"), Policy(max_attempts=1)
    return {
        Disposition.QUEUED: queued,
        Disposition.RUNNING: running,
        Disposition.DONE: completion_change(running, DONE, now_ms=now_ms - 30_000, width=fanout.width).after,
        Disposition.CANCELLED: move_change(queued, Disposition.CANCELLED, now_ms=now_ms - 30_000).after,
        Disposition.DEAD: failure_change(running, failure, no_retry, now_ms=now_ms - 30_000, draw=0.0).after,
        Disposition.RETRYING: failure_change(running, failure, Policy(), now_ms=now_ms - 2_000_000, draw=0.0).after,
    }


def _at(chunk: Chunk, place: int) -> Chunk:
    digits = f"{place:07d}"
    return replace(
        chunk,
        sk=f"{chunk.sk.rpartition('-')[0]}-{digits}",
        start=place,
        input_key=f"range:{place}-{place}",
        attention_sk=chunk.attention_sk and f"{chunk.attention_sk.rpartition('#')[0]}#{digits}",
        queue_sk=chunk.queue_sk and f"{chunk.queue_sk.rpartition('#')[0]}#{digits}",
    )


def _reopen(service: FanoutService, fanout: Fanout, size: int, counts: dict[str, int]) -> None:
    """Make of a run without chunks, which has ended at once, the one that the rows are of."""
    after = replace(
        fanout,
        status=FanoutStatus.RUNNING,
        version=fanout.version + 1,
        chunks=size,
        chunks_total=size,
        items_total=size,
        split_through=size,
        finished_at=None,
        attention_pk=ACTIVE,
        attention_sk=f"{fanout.created_at}#{fanout.run_id}",
    )
    service.store.transact([after.replacing(fanout.version), counter_add(fanout.run_id, 0, counts)])


# Other processes.


class WorkerProcess:
    """A process that reads a line and answers with one."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def send(self, line: str) -> None:
        assert self._process.stdin is not None
        print(line, file=self._process.stdin, flush=True)

    def read_line(self) -> str:
        """Return the next line of output; empty if the process has ended."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().rstrip("\n")


@contextmanager
def worker_process(module: str, folder: Path) -> Iterator[WorkerProcess]:
    """Run a module on a store. It ends when its standard input does, and so with this process."""
    command = [sys.executable, "-m", module, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield WorkerProcess(process)


def _serve(folder: Path) -> None:
    """Be the worker of a store, until there is no more standard input."""
    quiet()
    with opened(folder) as (service, _), working(service):
        print("ready", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
