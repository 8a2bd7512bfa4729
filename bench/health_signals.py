"""Taking over 500 signals at once, beside raw SQLite that updates the same rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from msgspec.structs import replace

from bench.health_rows import Sizes, settings_at, signal_at, signature_at, state_at
from bench.measure import Figure, ratio
from headgate.bootstrap.health import open_health
from headgate.bootstrap.store import AppService, open_cache, open_store
from headgate.clock import SystemClock
from headgate.durable.sdk.app import App
from headgate.health.model.enums import SignalState
from headgate.health.model.signals import ANY_VERSION, Metrics, Signal, SignalUpdate, SignalValue
from headgate.health.model.timestamps import instant
from headgate.health.service import HealthService
from headgate.health.signals.rows import history_row, signal_of, signal_row
from headgate.health.signals.writer import BATCH_MAX
from headgate.serve import process
from headgate.store.catalogue.tables import SIGNAL_HISTORY, SIGNAL_STATE
from headgate.store.model.schema import Key
from headgate.store.model.values import dump
from headgate.store.port import Store
from headgate.store.resilience.guarded_store import AnyStore
from headgate.store.sqlite.rows import TableRows

RATE_MIN = 0.20
# One in fifty changes its state, to WARNING or back from it.
TRANSITIONS_EVERY = 50
BATCHES = 8
# A table of bare SQLite needs no copy of the version.
_BARE = replace(SIGNAL_STATE, refreshed=False)
_STATE, _HISTORY = TableRows(_BARE, _BARE.name), TableRows(SIGNAL_HISTORY, SIGNAL_HISTORY.name)


def run(home: Path, size: Sizes, batches: int, rounds: int) -> list[Figure]:
    """Return the figure, measured on a full store."""
    # No signal twice in a round: the second time it would only be a repetition.
    batches = min(batches, size.signals // BATCH_MAX)
    with (
        opened(home) as (health, store),
        _bare(store, size, batches, rounds) as raw,
        ThreadPoolExecutor(1) as pool,
    ):
        # Made before, so that only taking them over is timed.
        started_ms = int(1000 * health.clock.seconds()) - 60_000
        given = [
            [updates(batch, number, started_ms + 1_000 * number) for batch in range(batches)]
            for number in range(rounds + 1)
        ]
        updated = 0
        before = store.stats.snapshot()

        def ours(number: int) -> int:
            # In a thread of a pool, as a server does: the main thread of a process never commits by itself.
            return pool.submit(take_over, number).result()

        def take_over(number: int) -> int:
            nonlocal updated
            for batch in given[number]:
                results = health.signals.update_many(batch)
                assert all(each.is_success for each in results), next(r for r in results if not r.is_success)
            updated += batches * BATCH_MAX
            return batches * BATCH_MAX

        def counted() -> str:
            spent = {name: value - before[name] for name, value in store.stats.snapshot().items()}
            reads = (spent["reads"] + spent["queries"]) / updated
            return f"{spent['commits'] / updated:.4f} commits and {reads:.2f} reads an update; raw {1 / BATCH_MAX:.4f}"

        return [
            ratio(
                f"signals updated {BATCH_MAX} at once / raw updates of the same rows",
                yardstick=raw,
                subject=ours,
                goal=RATE_MIN,
                counted=counted,
                rounds=rounds,
            )
        ]


@contextmanager
def opened(home: Path) -> Iterator[tuple[HealthService, AnyStore]]:
    """Give health on the store at `home`, in this process, as a server has it."""
    clock, settings = SystemClock(), settings_at(home)
    held = open_store(settings, clock)
    with closing(held.store), closing(open_cache(settings, clock)) as cache:
        health = open_health(held, cache, clock, AppService(App("bench"), held, clock))
        with closing(health):
            process.freeze_heap()
            yield health, held.store


def updates(batch: int, number: int, now_ms: int) -> list[SignalUpdate]:
    """Return the updates of a batch in the n-th round: almost all say again what is the case."""
    return [_update(place, number, now_ms) for place in range(batch * BATCH_MAX, (batch + 1) * BATCH_MAX)]


def _update(place: int, number: int, now_ms: int) -> SignalUpdate:
    dataset_urn, signal_type = signal_at(place)
    return SignalUpdate(
        dataset_urn=dataset_urn,
        signal_type=signal_type,
        value=value_at(place, _state(place, number), now_ms),
        expected_version=ANY_VERSION,
    )


def _state(place: int, number: int) -> SignalState:
    """Return what a signal is in the n-th round: in every other one those that change are not OK."""
    if not _is_moved(place):
        return state_at(place)
    return SignalState.WARNING if number % 2 else SignalState.OK


def _is_moved(place: int) -> bool:
    # Those that are critical stay so, and so do their incidents.
    return place % TRANSITIONS_EVERY == 0 and state_at(place) is not SignalState.CRITICAL


def value_at(place: int, state: SignalState, now_ms: int) -> SignalValue:
    """Return the value of a window that ended then."""
    return SignalValue(
        state=state,
        score=0.999 if state is SignalState.OK else 0.91,
        slo_threshold=0.995,
        window_start=instant(now_ms - 300_000),
        window_end=instant(now_ms),
        window_type="TUMBLING_5MIN",
        metrics=Metrics(evidence_count=1200 + place % 7, pass_count=1199, fail_count=1),
        failure_signature=signature_at(place) if state.is_breach else None,
    )


class _Changes(NamedTuple):
    """What a batch changes in bare SQLite: bodies of rows that stay in their place, rows that do not, and history."""

    bodies: list[tuple[str, str, str]]
    moved: list[tuple[Any, ...]]
    history: list[tuple[Any, ...]]


@contextmanager
def _bare(store: Store, size: Sizes, batches: int, rounds: int) -> Iterator[Callable[[int], int]]:
    """Give a function that makes the same changes to a file of bare SQLite with the same rows and indexes."""
    with TemporaryDirectory(prefix="headgate-bench-") as folder, closing(_tables(Path(folder))) as connection:
        signals = _copied(connection, store, size, batches)
        started_ms = 1_800_000_000_000
        # Made before, so that nothing is timed but SQLite.
        changes = [
            [_changes(signals, batch, number, started_ms + 60_000 * number) for batch in range(batches)]
            for number in range(rounds + 1)
        ]

        def write(number: int) -> int:
            for batch in changes[number]:
                connection.execute("BEGIN IMMEDIATE")
                connection.executemany(_STATE.rewrite, batch.bodies)
                connection.executemany(_STATE.upsert, batch.moved)
                connection.executemany(_HISTORY.upsert, batch.history)
                connection.execute("COMMIT")
            return batches * BATCH_MAX

        yield write


def _copied(connection: sqlite3.Connection, store: Store, size: Sizes, batches: int) -> list[Signal]:
    """Copy the rows of all signals, and return those that are to be changed."""
    places = range(size.signals)
    items = store.get_many(SIGNAL_STATE, [Key(*signal_at(place)) for place in places])
    found = [item for item in items if item is not None]
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany(_STATE.upsert, [_STATE.row(item, dump(item, special=False)) for item in found])
    connection.execute("COMMIT")
    return [signal_of(found[place]) for place in range(batches * BATCH_MAX)]


def _changes(signals: list[Signal], batch: int, number: int, now_ms: int) -> _Changes:
    made = _Changes([], [], [])
    for place in range(batch * BATCH_MAX, (batch + 1) * BATCH_MAX):
        signal = signals[place]
        state = _state(place, number)
        after = replace(signal, value=value_at(place, state, now_ms), version=signal.version + 1)
        item = signal_row(after, now_ms // 1000)
        body = dump(item, special=False)
        if _is_moved(place):
            made.moved.append(_STATE.row(item, body))
            past = history_row(after, now_ms // 1000)
            made.history.append(_HISTORY.row(past, dump(past, special=False)))
        else:
            made.bodies.append((body, signal.dataset_urn, signal.signal_type))
    return made


def _tables(folder: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(folder / "raw.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    for rows in (_STATE, _HISTORY):
        connection.execute(rows.create_table)
        for statement in rows.create_indexes.values():
            connection.execute(statement)
    return connection
