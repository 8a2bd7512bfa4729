"""Durable execution: serial steps, a hundred executions at once, long histories, wide fan-outs, latencies, sleepers."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import sqlite3
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, sleep, time

import headgate as hg
from bench import observed
from bench.measure import ROUNDS, Figure, ratio
from bench.rows import open_at
from headgate.clock import SystemClock
from headgate.durable.model.history import ActivityEnded
from headgate.durable.service import Service
from headgate.serve import process
from headgate.store.blobs.folder import FolderBlobs
from headgate.store.keyring import Keyring
from headgate.store.sqlite.store import SqliteStore

app = hg.App("bench")
_first_lines: dict[str, float] = {}


@app.activity
def step(number: int) -> int:
    return number


@app.workflow
async def serial(steps: int) -> int:
    total = 0
    for number in range(steps):
        total += await step(number)
    return total


@app.activity
def nap(number: int) -> int:
    # Not all at once: the results arrive one by one, as those of real work do.
    sleep(random.uniform(0.0, 0.1))
    return number


@app.workflow
async def napping(steps: int) -> int:
    total = 0
    for number in range(steps):
        total += await nap(number)
    return total


@app.workflow
async def wide(width: int) -> int:
    return sum(await asyncio.gather(*(step(number) for number in range(width))))


@app.workflow
async def batches(width: int) -> int:
    total = 0
    for start in range(0, width, 100):
        total += sum(await asyncio.gather(*(step(number) for number in range(start, start + 100))))
    return total


@app.workflow(check=False)
async def first_line(key: str) -> None:
    _first_lines[key] = perf_counter()


@app.workflow(check=False)
async def late(key: str, seconds: float) -> None:
    await hg.sleep(seconds)
    _first_lines[key] = time()


@app.workflow
async def sleeper() -> None:
    await hg.sleep("1h")


@contextmanager
def running(folder: Path | None = None, *, work: bool = True) -> Iterator[tuple[Service, SqliteStore]]:
    """Give the app at work on a store in a folder of its own, power-safe."""
    clock = SystemClock()
    with TemporaryDirectory(prefix="headgate-bench-") as made:
        home = folder or Path(made)
        store = open_at(home, clock)
        service = Service(app, store, clock, Keyring.open(home / "keys.json", clock), FolderBlobs(home / "blobs"))
        if work:
            service.start()
        # As in a process of a worker.
        process.freeze_heap()
        try:
            yield service, store
        finally:
            service.stop()
            store.close()


def serial_steps(steps: int) -> float:
    """Return steps a second of one execution, one step after the other."""
    with running():
        serial.start(50).result(60)
        started = perf_counter()
        serial.start(steps).result(600)
        return steps / (perf_counter() - started)


def hundred_way(executions: int, steps: int) -> float:
    """Return steps a second of many executions at once."""
    with running():
        serial.start(50).result(60)
        started = perf_counter()
        handles = [serial.start(steps) for _ in range(executions)]
        for handle in handles:
            handle.result(600)
        return executions * steps / (perf_counter() - started)


def run() -> list[Figure]:
    """Return every figure of this group."""
    return [_serial(), *observed.run(), _growth(), _fan_out(), *_latencies(), _recorded(), _timers(), *_sleepers()]


def _serial() -> Figure:
    steps = 1_000
    with running() as (_, store), _raw() as raw:
        serial.start(100).result(60)
        commits = store.stats.commits

        def bare(number: int) -> int:
            for place in range(steps):
                _write_step(raw, number * steps + place)
            return steps

        def ours(number: int) -> int:
            del number
            serial.start(steps).result(600)
            return steps

        return ratio(
            "serial no-op steps / raw transactions of the same rows",
            yardstick=bare,
            subject=ours,
            goal=0.60,
            counted=lambda: f"{(store.stats.commits - commits) / (steps * (ROUNDS + 1)):.3f} commits a step",
        )


@contextmanager
def _raw() -> Iterator[sqlite3.Connection]:
    """Give bare SQLite with the tables that a step writes: executions, turns and activities with their indexes."""
    from headgate.store.catalogue.tables import ACTIVITIES, EXECUTIONS, TURNS
    from headgate.store.sqlite.rows import TableRows

    with TemporaryDirectory(prefix="headgate-bench-") as folder:
        connection = sqlite3.connect(Path(folder) / "raw.db", isolation_level=None)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        for table in (EXECUTIONS, TURNS, ACTIVITIES):
            rows = TableRows(table, table.name)
            connection.execute(rows.create_table)
            for statement in rows.create_indexes.values():
                connection.execute(statement)
        try:
            yield connection
        finally:
            connection.close()


class _Samples:
    """The rows of one step as the engine writes them, taken from a real run."""

    def __init__(self) -> None:
        from headgate.durable.model.history import ActivityEnded, StartActivity, Status, Turn
        from headgate.durable.model.records import NEVER_MS, Activity, Execution, item_of, turn_put
        from headgate.store.catalogue.tables import ACTIVITIES, EXECUTIONS, TURNS
        from headgate.store.model.values import dump
        from headgate.store.sqlite.rows import TableRows

        execution_id = "serial/01M7GXYEXK3W5E9JQNFM6MEABR"
        self.executions = TableRows(EXECUTIONS, EXECUTIONS.name)
        self.turns = TableRows(TURNS, TURNS.name)
        self.activities = TableRows(ACTIVITIES, ACTIVITIES.name)
        execution = Execution(execution_id, "serial", Status.RUNNING, "2026-11-16T01:01:05.213Z", 5, 1, turn=4)
        self.execution_item = item_of(execution)
        from msgspec import Raw

        ended = ActivityEnded(7, Raw(b"7"), worker="wrk_01M7GXYE9R76S2GSDGN6FFR7MX", started_at_ms=1, ended_at_ms=2)
        turn = Turn(1, 1, 1_794_790_865_224, (ended,), (StartActivity(8, "step", Raw(b"8")),), worker=ended.worker)
        self.turn_item = dict(turn_put(execution_id, turn).item)
        activity = Activity(
            f"{execution_id}#1#8", "step", "8", '{"retry":{}}', "01M7GXYEA86HDE3HJVT8H9CR5B", 1_794_790_865_224,
            execution_id, 1, 8, 1, lease_pk=ended.worker, lease_expires_ms=NEVER_MS, worker=ended.worker,
        )  # fmt: skip
        self.activity_item = item_of(activity)
        self._dump = dump

    def write(self, connection: sqlite3.Connection, place: int) -> None:
        turn = {**self.turn_item, "turn": place}
        activity = {**self.activity_item, "activity_id": f"a#{place:09d}"}
        # The row says its turn. SQLite writes no page for a row that is rewritten with what it holds already.
        execution = {**self.execution_item, "turn": place}
        row = self.executions.row(execution, self._dump(execution, special=False))
        connection.execute("BEGIN IMMEDIATE")
        if place == 0:
            connection.execute(self.executions.upsert, row)
        connection.execute(self.executions.rewrite, (row[-1], row[0]))
        connection.execute(self.turns.upsert, self.turns.row(turn, self._dump(turn, special=False)))
        connection.execute(self.activities.delete, (f"a#{place - 1:09d}",))
        connection.execute(self.activities.upsert, self.activities.row(activity, self._dump(activity, special=False)))
        connection.execute("COMMIT")


_samples: list[_Samples] = []


def _write_step(connection: sqlite3.Connection, place: int) -> None:
    if not _samples:
        _samples.append(_Samples())
    _samples[0].write(connection, place)


def _growth() -> Figure:
    """The cost of a step at the end of a long history, against one at its beginning."""
    with running() as (service, _):
        serial.start(100).result(60)
        handle = serial.start(10_000)
        handle.result(600)
        at_ms = [turn.at_ms for turn in service.client.history(handle.id)]
    early = statistics.median(_spans(at_ms[50:1050], 50))
    late_spans = statistics.median(_spans(at_ms[-1001:], 50))
    grown = late_spans / early
    return Figure("cost of a step at 10,000 / at 100", f"{grown:.2f}", "<= 1.20", grown <= 1.2, "20 spans of 50 each")


def _spans(at_ms: list[int], size: int) -> list[int]:
    return [max(1, at_ms[place + size] - at_ms[place]) for place in range(0, len(at_ms) - size, size)]


def _fan_out() -> Figure:
    with running() as (_, store):
        batches.start(1_000).result(60)
        ratios = []
        for _ in range(5):
            started = perf_counter()
            batches.start(10_000).result(600)
            middle = perf_counter()
            wide.start(10_000).result(600)
            ratios.append((perf_counter() - middle) / (middle - started))
        found = statistics.median(ratios)
        notes = f"rounds {min(ratios):.2f} to {max(ratios):.2f}"
        return Figure(
            # Much less than one would say that batches wait for something.
            "10,000 activities in one gather / in batches of 100", f"{found:.2f}", "0.20 to 2.00", 0.2 <= found <= 2.0,
            f"{store.stats.commits} commits", notes,
        )  # fmt: skip


def _latencies() -> list[Figure]:
    with running():
        first_line.start("warm").result(60)
        idle = [_start_once(f"idle{number}") for number in range(200)]
        handles = [serial.start(200) for _ in range(20)]
        loaded = [_start_once(f"load{number}") for number in range(100)]
        for handle in handles:
            handle.result(600)
    return [
        _percentile_figure("start to first line, idle", idle, 0.50, 5.0),
        _percentile_figure("start to first line, under load", loaded, 0.99, 25.0),
    ]


def _recorded() -> Figure:
    """How long the result of an activity waits for the turn that records it, with many executions in one process."""
    executions, steps = 200, 20
    with running() as (service, _):
        serial.start(50).result(60)
        handles = [napping.start(steps) for _ in range(executions)]
        for handle in handles:
            handle.result(600)
        waits = sorted(
            turn.at_ms - event.ended_at_ms
            for handle in handles
            for turn in service.client.history(handle.id)
            for event in turn.events
            if isinstance(event, ActivityEnded) and event.ended_at_ms is not None
        )
    p99 = waits[int(0.99 * (len(waits) - 1))]
    return Figure(
        "end of an activity to its recorded turn, p99", f"{p99} ms", "<= 100 ms", p99 <= 100,
        f"{executions} executions of {steps} activities of up to 0.1 s",
        f"p50 {waits[len(waits) // 2]}, max {waits[-1]} ms",
    )  # fmt: skip


def _start_once(key: str) -> tuple[float, float]:
    started = perf_counter()
    handle = first_line.start(key)
    acknowledged = perf_counter()
    handle.result(60)
    return (_first_lines[key] - started) * 1000, (acknowledged - started) * 1000


def _percentile_figure(name: str, samples: list[tuple[float, float]], share: float, goal_ms: float) -> Figure:
    lines = sorted(line for line, _ in samples)
    acks = sorted(ack for _, ack in samples)
    value = lines[int(share * (len(lines) - 1))]
    notes = f"p50 {lines[len(lines) // 2]:.2f}, p99 {lines[int(0.99 * (len(lines) - 1))]:.2f} ms; "
    notes += f"durable acknowledgement p50 {acks[len(acks) // 2]:.2f} ms"
    return Figure(f"{name}, p{share * 100:.0f}", f"{value:.2f} ms", f"<= {goal_ms:g} ms", value <= goal_ms, "", notes)


def _timers() -> Figure:
    with running():
        lateness = []
        for number in range(60):
            key, due = f"late{number}", time() + 0.05
            late.start(key, 0.05).result(60)
            lateness.append((_first_lines[key] - due) * 1000)
    lateness.sort()
    p99 = lateness[int(0.99 * (len(lateness) - 1))]
    notes = f"p50 {lateness[len(lateness) // 2]:.2f} ms, start included"
    return Figure("lateness of a timer, idle, p99", f"{p99:.2f} ms", "<= 20 ms", p99 <= 20.0, "", notes)


def _sleepers() -> list[Figure]:
    count = 10_000
    with TemporaryDirectory(prefix="headgate-bench-") as folder:
        home = Path(folder)
        with running(home) as (service, _):
            before = _resident_kb()
            for _ in range(count):
                sleeper.start()
            while service.client.list(workflow="sleeper", limit=1).executions[0].turn < 1:
                continue
            each = (_resident_kb() - before) / count
        # A new process would not have what the first service has left behind.
        gc.collect()
        started = perf_counter()
        with running(home) as (service, store):
            first_line.start("after").result(60)
            recovered = perf_counter() - started
            reads = store.stats.reads + store.stats.queries
    memory = _printed("memory of a sleeping execution", f"{each:.2f} KB", f"{count} executions")
    name = f"restart with {count:,} sleepers to first line"
    restart = Figure(name, f"{recovered * 1000:.0f} ms", "<= 100 ms", recovered <= 0.1, f"{reads} reads")
    return [memory, restart]


def _printed(name: str, value: str, counted: str) -> Figure:
    return Figure(name, value, goal="printed", reached=True, counted=counted)


def _resident_kb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1024
