"""Writes awaited on the event loop: durable when done, failed when refused, one wake-up for many."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.errors import ConflictError, InvalidItemError, StoreClosedError
from headgate.serve.writes import LoopWrites
from headgate.store.catalogue.tables import CONTROL
from headgate.store.model.conditions import absent
from headgate.store.model.requests import Put
from headgate.store.model.schema import Key
from headgate.store.sqlite.store import SqliteStore
from tests.stores import open_sqlite


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    opened = open_sqlite(tmp_path)
    yield opened
    opened.close()


def row(name: str) -> dict[str, object]:
    return {"PK": f"DEDUP#{name}", "SK": "DEDUP", "name": name}


def test_transact__500_at_once__all_durable_in_far_fewer_commits(store: SqliteStore) -> None:
    async def everyone() -> None:
        writes = LoopWrites(store, asyncio.get_running_loop())
        await asyncio.gather(*(writes.transact([Put(CONTROL, row(str(number)))]) for number in range(500)))

    asyncio.run(everyone())

    assert all(store.get(CONTROL, Key(f"DEDUP#{number}", "DEDUP")) for number in range(500))
    assert store.stats.commits < 100


def test_transact__condition_fails__the_future_fails_with_the_current_item(store: SqliteStore) -> None:
    store.put(CONTROL, row("taken"))

    async def attempt() -> None:
        await LoopWrites(store, asyncio.get_running_loop()).transact([Put(CONTROL, row("taken"), absent())])

    with pytest.raises(ConflictError) as caught:
        asyncio.run(attempt())
    assert caught.value.current == row("taken")


def test_transact__bad_input__raised_at_the_call(store: SqliteStore) -> None:
    async def attempt() -> None:
        LoopWrites(store, asyncio.get_running_loop()).transact([Put(CONTROL, {"PK": "DEDUP#x"})])

    with pytest.raises(InvalidItemError):
        asyncio.run(attempt())


def test_transact__cancelled_by_its_caller__still_written_and_the_loop_goes_on(store: SqliteStore) -> None:
    async def attempt() -> None:
        writes = LoopWrites(store, asyncio.get_running_loop())
        abandoned = writes.transact([Put(CONTROL, row("abandoned"))])
        abandoned.cancel()
        await writes.transact([Put(CONTROL, row("kept"))])

    asyncio.run(attempt())

    assert store.get(CONTROL, Key("DEDUP#abandoned", "DEDUP")) is not None
    assert store.get(CONTROL, Key("DEDUP#kept", "DEDUP")) is not None


def test_transact__store_closed__refused(tmp_path: Path) -> None:
    store = open_sqlite(tmp_path)
    store.close()

    async def attempt() -> None:
        LoopWrites(store, asyncio.get_running_loop()).transact([Put(CONTROL, row("late"))])

    with pytest.raises(StoreClosedError):
        asyncio.run(attempt())
