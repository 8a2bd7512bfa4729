"""Sixty-four writers at once, as callers of an event loop and as threads that wait.

Two yardsticks: one caller that commits 32 rows at a time, and the same 64 writers handing ready-made rows to a bare
group commit. The second shows how much is lost to handing work between threads before a store does anything.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from bench.measure import Figure, ratio
from bench.rows import ROWS, TABLE, item, open_raw, open_store, row
from headgate.serve.runtime.thread_pool import FutureBridge
from headgate.store.model.requests import Put
from headgate.store.sqlite.store import SqliteStore

WRITERS = 64
WRITES = WRITERS * 100
PER_COMMIT = 32


def run() -> list[Figure]:
    # The goal is for keys that fall anywhere, as ids of datasets and runs do. With ordered keys bare SQLite touches
    # far fewer pages, and what is left of a write is mostly our own work on it.
    cases = (
        ("64 callers of an event loop, scattered keys", _in_loop, False, 0.60),
        ("64 threads, scattered keys", _in_threads, False, None),
        ("64 callers of an event loop, ordered keys", _in_loop, True, None),
        ("64 threads, ordered keys", _in_threads, True, None),
    )
    figures = []
    for name, subject, ordered, goal in cases:
        with open_store() as store, open_raw() as raw:
            figures.append(_figure(name, subject, store, raw, ordered=ordered, goal=goal))
    for ordered in (False, True):
        figures.append(_bare_group_commit(ordered=ordered))
        with open_store() as store, open_raw() as raw:
            figures.append(_against_bare_group_commit(store, raw, ordered=ordered))
    return figures


def _figure(
    name: str,
    subject: Callable[[SqliteStore, list[Put]], None],
    store: SqliteStore,
    raw: sqlite3.Connection,
    *,
    ordered: bool,
    goal: float | None,
) -> Figure:
    rows = [row(number, ordered=ordered) for number in range(WRITES * 9)]
    puts = [Put(TABLE, item(number, ordered=ordered)) for number in range(WRITES * 9)]

    def bare(number: int) -> int:
        _commit_alone(raw, rows[number * WRITES : (number + 1) * WRITES])
        return WRITES

    def ours(number: int) -> int:
        subject(store, puts[number * WRITES : (number + 1) * WRITES])
        return WRITES

    return ratio(
        f"{name} / raw, {PER_COMMIT} to a commit",
        yardstick=bare,
        subject=ours,
        goal=goal,
        counted=lambda: f"{store.stats.writes} writes, {store.stats.commits} commits",
    )


def _bare_group_commit(*, ordered: bool) -> Figure:
    """What is left of one caller's rate when 64 threads hand ready-made rows to it, before any store is involved."""
    rows = [row(number, ordered=ordered) for number in range(WRITES * 9)]
    with open_raw() as raw, open_raw() as grouped:

        def alone(number: int) -> int:
            _commit_alone(raw, rows[number * WRITES : (number + 1) * WRITES])
            return WRITES

        def handed(number: int) -> int:
            _bare_threads(grouped, rows[number * WRITES : (number + 1) * WRITES])
            return WRITES

        name = f"bare group commit of 64 threads, {'ordered' if ordered else 'scattered'} keys / raw, 32 to a commit"
        return ratio(name, yardstick=alone, subject=handed, goal=None, counted=lambda: "no store")


def _commit_alone(raw: sqlite3.Connection, rows: list[tuple[Any, ...]]) -> None:
    for start in range(0, len(rows), PER_COMMIT):
        raw.execute("BEGIN IMMEDIATE")
        for values in rows[start : start + PER_COMMIT]:
            raw.execute(ROWS.upsert, values)
        raw.execute("COMMIT")


def _against_bare_group_commit(store: SqliteStore, raw: sqlite3.Connection, *, ordered: bool) -> Figure:
    rows = [row(number, ordered=ordered) for number in range(WRITES * 9)]
    puts = [Put(TABLE, item(number, ordered=ordered)) for number in range(WRITES * 9)]

    def bare(number: int) -> int:
        _bare_threads(raw, rows[number * WRITES : (number + 1) * WRITES])
        return WRITES

    def ours(number: int) -> int:
        _in_threads(store, puts[number * WRITES : (number + 1) * WRITES])
        return WRITES

    return ratio(
        f"64 threads, {'ordered' if ordered else 'scattered'} keys / bare group commit of 64 threads",
        yardstick=bare,
        subject=ours,
        goal=0.60,
        counted=lambda: f"{store.stats.writes} writes, {store.stats.commits} commits",
    )


def _bare_threads(raw: sqlite3.Connection, rows: list[tuple[Any, ...]]) -> None:
    """Write prepared rows from 64 threads; a free thread commits for up to 32 that wait. No checks, no port."""
    queue: deque[tuple[tuple[Any, ...], threading.Lock, list[bool]]] = deque()
    leading = threading.Lock()

    def lead() -> None:
        group: list[tuple[threading.Lock, list[bool]]] = []
        raw.execute("BEGIN IMMEDIATE")
        while queue and len(group) < PER_COMMIT:
            values, wake, done = queue.popleft()
            group.append((wake, done))
            raw.execute(ROWS.upsert, values)
        raw.execute("COMMIT")
        heir = queue[0][1] if queue else None
        leading.release()
        for wake, done in group:
            done[0] = True
            with suppress(RuntimeError):  # Not waiting any more: it led, or was promoted before.
                wake.release()
        if heir is not None:
            with suppress(RuntimeError):
                heir.release()

    def writer(place: int) -> None:
        for values in rows[place::WRITERS]:
            wake, done = threading.Lock(), [False]
            wake.acquire()
            queue.append((values, wake, done))
            while not done[0]:
                if leading.acquire(blocking=False):
                    lead()
                elif not done[0]:
                    wake.acquire(timeout=0.05)

    _run_threads(writer)


def _in_loop(store: SqliteStore, puts: list[Put]) -> None:
    async def everyone() -> None:
        loop = asyncio.get_running_loop()
        bridge: FutureBridge[None] = FutureBridge(loop)

        async def writer(place: int) -> None:
            for put in puts[place::WRITERS]:
                future = loop.create_future()
                store.submit([put], partial(bridge.settle, future, None))
                await future

        await asyncio.gather(*(writer(place) for place in range(WRITERS)))

    asyncio.run(everyone())


def _in_threads(store: SqliteStore, puts: list[Put]) -> None:
    def writer(place: int) -> None:
        for put in puts[place::WRITERS]:
            store.put(put.table, put.item)

    _run_threads(writer)


def _run_threads(writer: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=writer, args=(place,)) for place in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
