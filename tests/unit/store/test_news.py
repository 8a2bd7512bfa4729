"""News: which transactions concern workers of other processes, and that those are woken by no others."""

from __future__ import annotations

import socket
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from headgate.store.news import are_quiet, concerns_workers
from headgate.store.schema import Key, Table
from headgate.store.tables import (
    ACTIVITIES,
    AUDIT,
    CONTROL,
    EVENTS,
    EXECUTIONS,
    FANOUT,
    INCIDENT_INDEX,
    SIGNAL_HISTORY,
    SIGNAL_STATE,
)
from headgate.store.wakeups import _NEWS as NEWS
from headgate.store.wakeups import _WORK as WORK
from headgate.store.wakeups import Wakeups
from headgate.store.writes import Delete, Put
from tests.stores import FILE, open_sqlite


@pytest.mark.parametrize(
    ("tables", "is_work"),
    [
        # A signal that changes, an incident that is opened, and an event of either that someone has subscribed to.
        ([SIGNAL_STATE, SIGNAL_HISTORY, EVENTS], False),
        ([INCIDENT_INDEX, AUDIT, CONTROL, EVENTS], False),
        ([SIGNAL_STATE, SIGNAL_HISTORY, EVENTS, ACTIVITIES], True),
        ([EXECUTIONS], True),
        ([FANOUT, SIGNAL_STATE], True),
        # These may be anything.
        ([CONTROL], True),
        ([EVENTS, CONTROL], True),
    ],
)
def test_concerns_workers__what_is_known_of_datasets__does_not(tables: list[Table], is_work: bool) -> None:
    assert concerns_workers([Put(table, {}) for table in tables]) is is_work


def test_are_quiet__all_puts_that_are__and_nothing_else() -> None:
    quiet = Put(SIGNAL_STATE, {}, quiet=True)
    assert are_quiet([quiet, quiet])
    assert not are_quiet([quiet, Put(SIGNAL_STATE, {})])
    assert not are_quiet([quiet, Delete(SIGNAL_STATE, Key("a", "b"))])


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[tuple[Wakeups, Wakeups]]:
    database = tmp_path / "store.db"
    connect = partial(sqlite3.connect, database, check_same_thread=False)
    with ExitStack() as opened:
        yield (
            opened.enter_context(closing(Wakeups(database, connect))),
            opened.enter_context(closing(Wakeups(database, connect))),
        )


def test_committed__by_another_and_not_for_workers__wakes_all_but_those_who_wait_for_work(
    ends: tuple[Wakeups, Wakeups],
) -> None:
    waiting, other = ends
    seen, work_seen = waiting.generation(), waiting.generation(others=True)

    other.committed(for_workers=False)

    assert waiting.wait(seen, 30) > seen
    assert waiting.generation(others=True) == work_seen


def test_committed__by_another_for_workers_after_much_that_is_not__wakes_them(ends: tuple[Wakeups, Wakeups]) -> None:
    waiting, other = ends
    seen = waiting.generation(others=True)

    # More than the kernel keeps: what says that there is work may be dropped, and is assumed then.
    for _ in range(50):
        other.committed(for_workers=False)
    other.committed()

    assert waiting.wait(seen, 30, others=True) > seen


def test_store__transactions_of_either_kind__others_are_told_which() -> None:
    known, control = {"PK": "urn:dp:a", "SK": "FRESHNESS"}, {"PK": "a", "SK": "b"}
    # A path that is short enough for the address of a socket beside the database.
    with (
        TemporaryDirectory(prefix="hg-") as folder,
        closing(open_sqlite(Path(folder))) as store,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as inbox,
    ):
        beside = Path(folder) / f"{FILE}.wake"
        beside.mkdir()
        inbox.bind(str(beside / "listener"))
        inbox.settimeout(30)

        store.transact([Put(SIGNAL_STATE, known)])
        assert inbox.recv(16) == NEWS
        store.transact_many([[Put(SIGNAL_STATE, known)]])
        assert inbox.recv(16) == NEWS
        store.transact_many([[Put(SIGNAL_STATE, known, quiet=True)]])
        store.transact([Put(SIGNAL_STATE, known), Put(CONTROL, control)])
        assert inbox.recv(16) == NEWS, "and not of what is quiet"
        store.transact([Put(CONTROL, control)])
        assert inbox.recv(16) == WORK
