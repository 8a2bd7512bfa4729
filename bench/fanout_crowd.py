"""Many workers on one fan-out, as threads and as processes: what they lose to each other, and to the counters."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time, thread_time
from typing import Any

from bench.fanout_runs import WorkerProcess, claim_all, opened, quiet, split, worker_process
from bench.measure import ROUNDS, Figure, ratio
from headgate.fanout.service import FanoutService
from headgate.store.sqlite.operations import Operation, PutRow, UpdateRow
from headgate.store.sqlite.store import SqliteStore

CHUNKS = 10_000
THREADS, PROCESSES = 64, 8
# As a worker's pool does of no-ops: a quarter of what a child is given ahead.
ROOM = 16
COUNTERS_SHARE_MAX = 0.10


def run(chunks: int = CHUNKS, rounds: int = ROUNDS) -> list[Figure]:
    """Return the figures: first with chunks taken many at a time, then one by one, which few chunks will do for."""
    cases = ((ROOM, chunks), (1, max(THREADS, chunks // 10)))
    figures = []
    for room, count in cases:
        with opened() as (service, store):
            figures += _threads(service, store, count, room, rounds)
    return [*figures, _processes(chunks, rounds)]


def _threads(service: FanoutService, store: SqliteStore, chunks: int, room: int, rounds: int) -> list[Figure]:
    run_ids = [split(service, chunks) for _ in range(2 * rounds + 3)]
    spent: dict[str, int] = {}

    def crowd(number: int) -> int:
        before = store.stats.snapshot()
        done = _together(service, run_ids[2 * number], THREADS, room)
        for name, value in store.stats.snapshot().items():
            spent[name] = spent.get(name, 0) + value - before[name]
        return done

    def counted() -> str:
        each = spent["commits"] / (chunks * (rounds + 1))
        return f"{spent['conflicts']} conflicts in {spent['transactions']} transactions, {each:.4f} commits a chunk"

    compared = ratio(
        f"{THREADS} workers as threads / one, {room} chunks at a time",
        yardstick=lambda number: _together(service, run_ids[2 * number + 1], 1, room),
        subject=crowd,
        goal=None,
        counted=counted,
        rounds=rounds,
    )
    return [compared, _profile(service, run_ids[-1], room)]


def _together(service: FanoutService, run_id: str, workers: int, room: int) -> int:
    with ThreadPoolExecutor(workers) as threads:
        shares = [threads.submit(claim_all, service, run_id, room) for _ in range(workers)]
        return sum(share.result() for share in shares)


def _profile(service: FanoutService, run_id: str, room: int) -> Figure:
    """What share of the processor's time writing counter rows takes, and what share writing the chunks' rows."""
    with _metered(UpdateRow) as counters, _metered(PutRow) as rows:
        started = process_time()
        done = _together(service, run_id, THREADS, room)
        spent = process_time() - started
    share, of_rows = counters.seconds / spent, rows.seconds / spent
    return Figure(
        f"processor time in counter rows, {THREADS} workers, {room} chunks at a time",
        f"{share:.1%}",
        f"<= {COUNTERS_SHARE_MAX:.0%}",
        share <= COUNTERS_SHARE_MAX,
        f"{done} chunks; counter rows {counters}, chunks' rows {rows}",
        f"chunks' rows {of_rows:.1%}, all else {1 - share - of_rows:.1%}; {1e6 * spent / done:.0f} us a chunk in all",
    )


class _Meter:
    """How many writes of a kind were looked at and how many made, and what that took. The committing thread adds."""

    def __init__(self) -> None:
        self.calls = dict.fromkeys(("admits", "prepare", "apply"), 0)
        self.seconds = 0.0

    def __str__(self) -> str:
        return f"{self.calls['apply']} written of {self.calls['admits']} tried"

    def around(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: object) -> object:
            # Of this thread alone: others may have their turn meanwhile.
            started = thread_time()
            try:
                return method(*arguments)
            finally:
                self.seconds += thread_time() - started
                self.calls[name] += 1

        return step


@contextmanager
def _metered(kind: type[Operation]) -> Iterator[_Meter]:
    """Meter the three steps of every write of this kind."""
    meter = _Meter()
    own = {name: kind.__dict__.get(name) for name in meter.calls}
    for name in own:
        setattr(kind, name, meter.around(name, getattr(kind, name)))
    try:
        yield meter
    finally:
        for name, method in own.items():
            if method is None:
                delattr(kind, name)
            else:
                setattr(kind, name, method)


def _processes(chunks: int, rounds: int) -> Figure:
    with TemporaryDirectory(prefix="headgate-bench-") as folder, ExitStack() as running:
        service, _ = running.enter_context(opened(Path(folder)))
        run_ids = [split(service, chunks) for _ in range(2 * rounds + 2)]
        crowd = [running.enter_context(worker_process("bench.fanout_crowd", Path(folder))) for _ in range(PROCESSES)]
        parallel_answers: list[dict[str, int]] = []

        def by(workers: Sequence[WorkerProcess], run_id: str) -> int:
            for worker in workers:
                worker.send(run_id)
            answers = [json.loads(worker.read_line()) for worker in workers]
            if len(answers) > 1:
                parallel_answers.extend(answers)
            return sum(answer["done"] for answer in answers)

        def counted() -> str:
            commits, conflicts = (sum(answer[name] for answer in parallel_answers) for name in ("commits", "conflicts"))
            return f"{conflicts} conflicts, {commits / (chunks * (rounds + 1)):.4f} commits a chunk"

        return ratio(
            f"{PROCESSES} workers as processes / one, {ROOM} chunks at a time",
            yardstick=lambda number: by(crowd[:1], run_ids[2 * number + 1]),
            subject=lambda number: by(crowd, run_ids[2 * number]),
            goal=None,
            counted=counted,
            rounds=rounds,
        )


def _claim(folder: Path) -> None:
    """Be one of the processes: do what is left of each run that a line of standard input names."""
    quiet()
    with opened(folder) as (service, store), ThreadPoolExecutor(1) as thread:
        for line in sys.stdin:
            before = store.stats.snapshot()
            done = thread.submit(claim_all, service, line.strip(), ROOM).result()
            spent = {name: value - before[name] for name, value in store.stats.snapshot().items()}
            print(json.dumps({"done": done, **spent}), flush=True)


if __name__ == "__main__":
    _claim(Path(sys.argv[1]))
